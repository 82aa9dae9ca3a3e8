//! Accuracy against what it cost, in operations and in seconds.
//!
//! A run is one point for each rule: what was spent is known of the whole run and not of a part of
//! its trajectories, so a curve needs runs of several N.

use record::MetricName;

use super::figure::{
    AxisScale, COLOURS, DataPoint, Figure, FigureAxis, IntervalStyle, LineStyle, Panel, Series,
    SeriesStyle, percent_interval,
};
use super::{best_run, device_name, group_by};
use crate::draw::scene::Symbol;
use crate::rules;
use crate::run_data::RunData;

const RULES: [(MetricName, Symbol); 5] = [
    (MetricName::Greedy, Symbol::Triangle),
    (MetricName::Maj, Symbol::Circle),
    (MetricName::Weighted, Symbol::Square),
    (MetricName::BestOf, Symbol::Diamond),
    (MetricName::Beam, Symbol::Star),
];

/// Whether runs differ in what they cost, so that there is something to compare.
fn costs_differ(runs: &[&RunData]) -> bool {
    let costs = || runs.iter().map(|run| run.results.cost.flops);
    costs().fold(0.0, f64::max) >= 1.05 * costs().fold(f64::INFINITY, f64::min)
}

/// The figure, a pair of panels a split; none where all runs of every split cost the same.
pub fn figure(studies: &[RunData]) -> Option<Figure> {
    let flops: fn(&RunData) -> f64 = |run| run.results.cost.flops;
    let panel = |split: &str, label: &str, members: &[&RunData], cost: fn(&RunData) -> f64| {
        let series = series(members, cost);
        let (x, y) = (
            FigureAxis::new(label, AxisScale::Log10),
            FigureAxis::new("accuracy (%)", AxisScale::Percent),
        );
        (!series.is_empty()).then(|| Panel { title: split.into(), x, y, series })
    };
    let splits = group_by(studies, |s| s.traits.split.as_str());
    let panels: Vec<Panel> = splits
        .iter()
        .filter(|(_, members)| costs_differ(members))
        .flat_map(|(split, members)| {
            let work = panel(split, "floating-point operations a question", members, flops);
            [work, panel(split, "seconds a question", members, RunData::seconds)]
        })
        .flatten()
        .collect();
    (!panels.is_empty()).then(|| Figure {
        name: "cost",
        title: "What an answer costs: accuracy against operations and time".into(),
        caption: format!(
            "Each point is a whole run: all N trajectories, the greedy one, and the rewards if there were any; points of one \
             model and sampler are joined. Symbols are the rules, colours the models (with one model, the rules). Seconds are of throughput, many questions at a time, on {}. \
             Bars: 95% bootstrap interval over questions, of majority and greedy; those of the other rules are as wide.",
            device_name(&studies[0])
        ),
        panels,
    })
}

fn series(members: &[&RunData], cost: fn(&RunData) -> f64) -> Vec<Series> {
    let kinds = group_by(members.iter().copied(), |s| (&s.traits.model, s.traits.sampler.kind()));
    let mut series = Vec::new();
    for (place, ((model, kind), runs)) in kinds.iter().enumerate() {
        // Of runs that differ only in the strength of the sampler, the best.
        let runs: Vec<&RunData> = group_by(runs.iter().copied(), |run| run.traits.n)
            .iter()
            .filter_map(|(_, same)| best_run(same))
            .collect();
        for (order, (rule, symbol)) in RULES.into_iter().enumerate() {
            let mut points: Vec<DataPoint> =
                runs.iter().filter_map(|run| data_point(run, rule, cost(run))).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            let line = if rule == MetricName::Maj { LineStyle::Solid } else { LineStyle::Dashed };
            // Bars of every rule of a run would stand in the same place.
            let spread = if matches!(rule, MetricName::Maj | MetricName::Greedy) {
                IntervalStyle::Bars
            } else {
                IntervalStyle::None
            };
            let alone = kinds.len() == 1;
            let colour = COLOURS[if alone { order } else { place } % COLOURS.len()];
            let look = SeriesStyle {
                symbol,
                line,
                intervals: spread,
                radius: 3.4,
                ..SeriesStyle::line(colour)
            };
            let label = if alone {
                rules::display_name(rule)
            } else {
                format!("{model}, {kind}: {}", rules::display_name(rule))
            };
            series.extend((!points.is_empty()).then_some(Series { label, style: look, points }));
        }
    }
    series
}

/// A rule's accuracy with all of a run's trajectories. Greedy counts only where it is what the run
/// was for.
fn data_point(run: &RunData, rule: MetricName, cost: f64) -> Option<DataPoint> {
    if rule == MetricName::Greedy && run.traits.n > 1 {
        return None;
    }
    let accuracy = if rule == MetricName::Beam {
        run.curve(rule).pop()?.1
    } else {
        run.metric(rule, run.traits.n)?
    };
    let words = format!(
        "{}\n{}\naccuracy {}",
        run.label,
        rules::display_name(rule),
        percent_interval(&accuracy)
    );
    let spent =
        format!("{:.3e} operations, {:.3} s a question", run.results.cost.flops, run.seconds());
    (cost > 0.0).then(|| DataPoint::with_interval(cost, accuracy, format!("{words}\n{spent}")))
}
