//! Accuracy against N for every rule that chooses one answer (the paper's figure 6).

use record::MetricName;

use super::figure::{Axis, COLOURS, Figure, Line, Look, Panel, Point, Scale, Series, Spread, percent_with};
use super::{groups, title};
use crate::draw::scene::Symbol;
use crate::interval::Interval;
use crate::rules;
use crate::study::Study;

/// The figure; none where no run has a vote.
pub fn figure(studies: &[Study]) -> Option<Figure> {
    let panel = |((model, split), members): ((&str, &str), Vec<&Study>)| {
        let run = judged(&members)?;
        let series: Vec<Series> =
            rules::ORDER.into_iter().enumerate().filter_map(|(place, name)| curve(run, place, name)).collect();
        let setting = format!("{} ({})", title(model, split, studies), run.traits.sampler.name());
        let (x, y) = (Axis::new("trajectories, N", Scale::Doublings), Axis::new("accuracy (%)", Scale::Percent));
        (!series.is_empty()).then_some(Panel { title: setting, x, y, series })
    };
    let pairs = groups(studies, |s| (s.traits.model.as_str(), s.traits.split.as_str()));
    let panels: Vec<Panel> = pairs.into_iter().filter_map(panel).collect();
    (!panels.is_empty()).then(|| Figure {
        name: "accuracy",
        title: "From N thoughts to one answer: accuracy of each rule".into(),
        caption:
            "Greedy: one trajectory without perturbation. Majority: the answer that most of N trajectories give. With a reward \
                  model, best of N takes the trajectory of the highest reward, the weighted vote counts each vote by its \
                  reward (normalized: in units of the question's own spread), and beam search lets rewards guide the thoughts \
                  themselves. Coverage, dashed, is the limit of every rule (it is estimated from all trajectories and the rules \
                  use the first N of them, so at small N a rule can lie above it by chance). Bands and bars: 95% bootstrap \
                  interval over questions, of majority, coverage and beam search; those of the other rules are as wide as \
                  majority's."
                .into(),
        panels,
    })
}

/// The run to show: one with rewards if there is one, then as for coverage.
fn judged<'a>(members: &[&'a Study]) -> Option<&'a Study> {
    let scored: Vec<&Study> = members.iter().copied().filter(|run| !run.curve(MetricName::BestOf).is_empty()).collect();
    super::best(if scored.is_empty() { members } else { &scored })
}

fn curve(run: &Study, place: usize, name: MetricName) -> Option<Series> {
    let label = rules::label(name);
    let tip = |k: usize, interval: &Interval| format!("{label}\nN = {k}\naccuracy {}", percent_with(interval));
    let points = run.curve(name).into_iter().map(|(k, interval)| Point::with_interval(k as f64, interval, tip(k, &interval)));
    let mut points: Vec<Point> = points.collect();
    // Greedy has no N; a level line lets the eye compare.
    if let (MetricName::Greedy, [point]) = (name, &points[..]) {
        points.push(Point { x: run.traits.n.max(2) as f64, ..point.clone() });
    }
    (!points.is_empty()).then(|| Series { label: label.clone(), look: look(place, name), points })
}

fn look(place: usize, name: MetricName) -> Look {
    // Greedy, the first, takes the last colour, grey.
    let look = Look::line(COLOURS[(place + COLOURS.len() - 1) % COLOURS.len()]);
    match name {
        MetricName::Greedy => Look { symbol: Symbol::Hidden, line: Line::Dashed, spread: Spread::None, ..look },
        MetricName::Coverage => Look { line: Line::Dashed, ..look },
        MetricName::Beam => Look { symbol: Symbol::Star, spread: Spread::Bars, radius: 4.0, ..look },
        MetricName::Maj => look,
        // Bands of rules that share most of their answers would lie upon each other and hide all lines.
        _ => Look { spread: Spread::None, ..look },
    }
}
