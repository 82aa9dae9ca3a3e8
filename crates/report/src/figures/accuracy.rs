//! Accuracy against N for every rule that chooses one answer (the paper's figure 6).

use record::MetricName;

use super::figure::{
    AxisScale, COLOURS, DataPoint, Figure, FigureAxis, IntervalStyle, LineStyle, Panel, Series,
    SeriesStyle, percent_interval,
};
use super::{group_by, pair_title};
use crate::draw::scene::Symbol;
use crate::interval::Interval;
use crate::rules;
use crate::run_data::RunData;

/// The figure; none where no run has a vote.
pub fn figure(studies: &[RunData]) -> Option<Figure> {
    let panel = |((model, split), members): ((&str, &str), Vec<&RunData>)| {
        let run = best_rewarded_run(&members)?;
        let series: Vec<Series> = rules::DISPLAY_ORDER
            .into_iter()
            .enumerate()
            .filter_map(|(place, name)| curve(run, place, name))
            .collect();
        let setting =
            format!("{} ({})", pair_title(model, split, studies), run.traits.sampler.name());
        let (x, y) = (
            FigureAxis::new("trajectories, N", AxisScale::Log2),
            FigureAxis::new("accuracy (%)", AxisScale::Percent),
        );
        (!series.is_empty()).then_some(Panel { title: setting, x, y, series })
    };
    let pairs = group_by(studies, |s| (s.traits.model.as_str(), s.traits.split.as_str()));
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
fn best_rewarded_run<'a>(members: &[&'a RunData]) -> Option<&'a RunData> {
    let scored: Vec<&RunData> =
        members.iter().copied().filter(|run| !run.curve(MetricName::BestOf).is_empty()).collect();
    super::best_run(if scored.is_empty() { members } else { &scored })
}

fn curve(run: &RunData, place: usize, name: MetricName) -> Option<Series> {
    let label = rules::display_name(name);
    let tip = |k: usize, interval: &Interval| {
        format!("{label}\nN = {k}\naccuracy {}", percent_interval(interval))
    };
    let points = run
        .curve(name)
        .into_iter()
        .map(|(k, interval)| DataPoint::with_interval(k as f64, interval, tip(k, &interval)));
    let mut points: Vec<DataPoint> = points.collect();
    // Greedy has no N; a level line lets the eye compare.
    if let (MetricName::Greedy, [point]) = (name, &points[..]) {
        points.push(DataPoint { x: run.traits.n.max(2) as f64, ..point.clone() });
    }
    (!points.is_empty()).then(|| Series { label: label.clone(), style: style(place, name), points })
}

fn style(place: usize, name: MetricName) -> SeriesStyle {
    // Greedy, the first, takes the last colour, grey.
    let look = SeriesStyle::line(COLOURS[(place + COLOURS.len() - 1) % COLOURS.len()]);
    match name {
        MetricName::Greedy => SeriesStyle {
            symbol: Symbol::Hidden,
            line: LineStyle::Dashed,
            intervals: IntervalStyle::None,
            ..look
        },
        MetricName::Coverage => SeriesStyle { line: LineStyle::Dashed, ..look },
        MetricName::Beam => SeriesStyle {
            symbol: Symbol::Star,
            intervals: IntervalStyle::Bars,
            radius: 4.0,
            ..look
        },
        MetricName::Maj => look,
        // Bands of rules that share most of their answers would lie upon each other and hide all
        // lines.
        _ => SeriesStyle { intervals: IntervalStyle::None, ..look },
    }
}
