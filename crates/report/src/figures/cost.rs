//! Accuracy against what it cost, in operations and in seconds.
//!
//! A run is one point for each rule: what was spent is known of the whole run and not of a part of its trajectories, so a curve
//! needs runs of several N.

use record::MetricName;

use super::figure::{Axis, COLOURS, Figure, Line, Look, Panel, Point, Scale, Series, Spread, percent_with};
use super::{groups, machine};
use crate::draw::scene::Symbol;
use crate::rules;
use crate::study::Study;

const RULES: [MetricName; 5] = [MetricName::Greedy, MetricName::Maj, MetricName::Weighted, MetricName::BestOf, MetricName::Beam];

/// The figure; none of a single run.
pub fn figure(studies: &[Study]) -> Option<Figure> {
    if studies.len() < 2 {
        return None;
    }
    let flops: fn(&Study) -> f64 = |run| run.results.cost.flops;
    let panel = |split: &str, label: &str, members: &[&Study], cost: fn(&Study) -> f64| {
        let series = series(members, cost);
        let (x, y) = (Axis::new(label, Scale::Tenfolds), Axis::new("accuracy (%)", Scale::Percent));
        (!series.is_empty()).then(|| Panel { title: split.into(), x, y, series })
    };
    let splits = groups(studies, |s| s.traits.split.as_str());
    let panels: Vec<Panel> = splits
        .iter()
        .flat_map(|(split, members)| {
            let work = panel(split, "floating-point operations a question", members, flops);
            [work, panel(split, "seconds a question", members, Study::seconds)]
        })
        .flatten()
        .collect();
    (!panels.is_empty()).then(|| Figure {
        name: "cost",
        title: "What an answer costs: accuracy against operations and time".into(),
        caption: format!(
            "Each point is a whole run: all N trajectories, the greedy one, and the rewards if there were any; points of one \
             model and sampler are joined. Symbols are the rules. Seconds are of throughput, many questions at a time, on {}. \
             Bars: 95% bootstrap interval over questions.",
            machine(&studies[0])
        ),
        panels,
    })
}

fn series(members: &[&Study], cost: fn(&Study) -> f64) -> Vec<Series> {
    let kinds = groups(members.iter().copied(), |s| (s.traits.model.clone(), s.traits.sampler.kind().to_owned()));
    let curve = |(place, ((model, kind), runs)): (usize, &((String, String), Vec<&Study>)), rule: usize| {
        let mut points: Vec<Point> = runs.iter().filter_map(|run| point(run, RULES[rule], cost(run))).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let symbol = [Symbol::Circle, Symbol::Circle, Symbol::Square, Symbol::Diamond, Symbol::Star][rule];
        let line = if rule > 1 { Line::Dashed } else { Line::Solid };
        let look = Look { symbol, line, spread: Spread::Bars, radius: 3.4, ..Look::line(COLOURS[place % COLOURS.len()]) };
        let label = format!("{model}, {kind}: {}", rules::label(RULES[rule]));
        (!points.is_empty()).then_some(Series { label, look, points })
    };
    kinds.iter().enumerate().flat_map(|kind| (0..RULES.len()).filter_map(move |rule| curve(kind, rule))).collect()
}

/// A rule's accuracy with all of a run's trajectories. Greedy counts only where it is what the run was for.
fn point(run: &Study, rule: MetricName, cost: f64) -> Option<Point> {
    if rule == MetricName::Greedy && run.traits.n > 1 {
        return None;
    }
    let accuracy = if rule == MetricName::Beam { run.curve(rule).pop()?.1 } else { run.metric(rule, run.traits.n)? };
    let words = format!("{}\n{}\naccuracy {}", run.label, rules::label(rule), percent_with(&accuracy));
    let spent = format!("{:.3e} operations, {:.3} s a question", run.results.cost.flops, run.seconds());
    (cost > 0.0).then(|| Point::with_interval(cost, accuracy, format!("{words}\n{spent}")))
}
