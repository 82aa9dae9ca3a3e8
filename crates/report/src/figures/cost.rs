//! Accuracy against cost, in floating-point operations and in seconds.
//!
//! A run is one point per rule. The cost of a subset of its trajectories is not recorded, so a
//! curve needs runs with different N.

use record::MetricName;

use super::figure::{
    AxisScale, COLOURS, DataPoint, Figure, FigureAxis, IntervalStyle, LineStyle, Panel, Series,
    SeriesStyle, percent_interval,
};
use super::{best_run, device_name, group_by};
use crate::draw::drawing::Symbol;
use crate::rules;
use crate::run_data::RunData;
use crate::table::gflop;

const RULES: [(MetricName, Symbol); 7] = [
    (MetricName::Greedy, Symbol::Triangle),
    (MetricName::MAJORITY, Symbol::Circle),
    (MetricName::WEIGHTED, Symbol::Square),
    (MetricName::BEST_OF, Symbol::Diamond),
    (MetricName::Beam, Symbol::Star),
    (MetricName::Particles, Symbol::Star),
    (MetricName::Dvts, Symbol::Star),
];

/// Whether the costs of the runs differ by at least 5%.
fn costs_differ(runs: &[&RunData]) -> bool {
    let costs = || runs.iter().map(|run| run.results.cost.flops);
    costs().fold(0.0, f64::max) >= 1.05 * costs().fold(f64::INFINITY, f64::min)
}

/// Cost of a rule per question and seed.
#[derive(Clone, Copy)]
struct RuleCost {
    /// Floating-point operations.
    flops: f64,
    /// Wall-clock seconds.
    seconds: f64,
}

impl RuleCost {
    /// The cost of the search for a search, and the cost of sampling for other rules. `None` if
    /// it was not recorded.
    fn of(run: &RunData, rule: MetricName) -> Option<Self> {
        let cost = &run.results.cost;
        let (flops, seconds) = match rule {
            search if search.is_search() => (cost.beam?.flops, cost.seconds.beam),
            _ => (cost.flops, cost.seconds.total - cost.seconds.beam),
        };
        let count = (run.results.questions * run.results.seeds).max(1) as f64;
        Some(Self { flops, seconds: seconds / count })
    }
}

/// Caption of the figure.
fn caption(device: &str) -> String {
    format!(
        "Each point is a whole run: all N trajectories, the greedy trajectory, and rewards if \
         there is a reward model. A search is shown at its own cost, which other rules do not \
         include. Lines connect points of the same model and sampler. Symbols distinguish rules, \
         colors distinguish models (rules, if there is one model). Seconds are averages over many \
         concurrent questions on {device}. Bars: 95% confidence interval over questions for \
         majority and greedy; those of other rules are about as wide."
    )
}

/// Two panels per split; `None` if the runs of every split cost the same.
pub fn figure(runs: &[RunData]) -> Option<Figure> {
    let panel = |split: &str, label: &str, members: &[&RunData], cost: fn(RuleCost) -> f64| {
        let series = series(members, cost);
        let (x, y) = (
            FigureAxis::new(label, AxisScale::Log10),
            FigureAxis::new("accuracy (%)", AxisScale::Percent),
        );
        (!series.is_empty()).then(|| Panel { title: split.into(), x, y, series })
    };
    let splits = group_by(runs, |s| s.traits.split.as_str());
    let panels: Vec<Panel> = splits
        .iter()
        .filter(|(_, members)| costs_differ(members))
        .flat_map(|(split, members)| {
            [
                panel(split, "GFLOP per question", members, |cost| cost.flops / 1e9),
                panel(split, "seconds per question", members, |cost| cost.seconds),
            ]
        })
        .flatten()
        .collect();
    (!panels.is_empty()).then(|| Figure {
        name: "cost",
        title: "Accuracy against operations and time".into(),
        caption: caption(&device_name(&runs[0])),
        panels,
    })
}

fn series(members: &[&RunData], cost: fn(RuleCost) -> f64) -> Vec<Series> {
    let kinds = group_by(members.iter().copied(), |s| (&s.traits.model, s.traits.sampler.kind()));
    let mut series = Vec::new();
    for (index, ((model, kind), runs)) in kinds.iter().enumerate() {
        // Of runs that differ only in the strength of the sampler, the best is shown.
        let runs: Vec<&RunData> = group_by(runs.iter().copied(), |run| run.traits.n)
            .iter()
            .filter_map(|(_, same)| best_run(same))
            .collect();
        for (order, (rule, symbol)) in RULES.into_iter().enumerate() {
            let mut points: Vec<DataPoint> =
                runs.iter().filter_map(|run| data_point(run, rule, cost)).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            let line =
                if rule == MetricName::MAJORITY { LineStyle::Solid } else { LineStyle::Dashed };
            // The bars of all rules of a run would overlap.
            let intervals = if matches!(rule, MetricName::MAJORITY | MetricName::Greedy) {
                IntervalStyle::Bars
            } else {
                IntervalStyle::None
            };
            let single = kinds.len() == 1;
            let colour = COLOURS[if single { order } else { index } % COLOURS.len()];
            let style =
                SeriesStyle { symbol, line, intervals, radius: 3.4, ..SeriesStyle::line(colour) };
            let label = if single {
                rules::display_name(rule)
            } else {
                format!("{model}, {kind}: {}", rules::display_name(rule))
            };
            series.extend((!points.is_empty()).then_some(Series { label, style, points }));
        }
    }
    series
}

/// A rule's accuracy at k = N. Greedy has a point only if N = 1, since the recorded cost is that of
/// all samples.
fn data_point(run: &RunData, rule: MetricName, axis: fn(RuleCost) -> f64) -> Option<DataPoint> {
    if rule == MetricName::Greedy && run.traits.n > 1 {
        return None;
    }
    let accuracy =
        if rule.is_search() { run.curve(rule).pop()?.1 } else { run.metric(rule, run.traits.n)? };
    let accuracy_text = format!(
        "{}\n{}\naccuracy {}",
        run.label,
        rules::display_name(rule),
        percent_interval(&accuracy)
    );
    let cost = RuleCost::of(run, rule)?;
    let cost_text = format!("{} GFLOP, {:.3} s per question", gflop(cost.flops), cost.seconds);
    let x = axis(cost);
    (x > 0.0)
        .then(|| DataPoint::with_interval(x, accuracy, format!("{accuracy_text}\n{cost_text}")))
}
