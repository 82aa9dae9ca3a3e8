//! Display order and names of the aggregation rules.

use std::collections::BTreeSet;

use aggregate::Rule;
use record::MetricName;

use crate::run_data::RunData;

/// The rules shown in tables and figures, in order.
pub const DISPLAY_ORDER: [MetricName; 7] = [
    MetricName::Greedy,
    MetricName::MAJORITY,
    MetricName::WEIGHTED,
    MetricName::NORMALIZED,
    MetricName::BEST_OF,
    MetricName::Beam,
    MetricName::Coverage,
];

/// The rules shown of some runs: the display order, then rules that a program has registered.
pub fn shown(runs: &[&RunData]) -> Vec<MetricName> {
    let metrics = runs.iter().flat_map(|run| &run.results.metrics).map(|metric| metric.name);
    let registered: BTreeSet<MetricName> =
        metrics.filter(|name| is_main(*name) && !DISPLAY_ORDER.contains(name)).collect();
    DISPLAY_ORDER.into_iter().chain(registered).collect()
}

/// Rules of signals that a run has only if they were asked for.
const SIGNAL_RULES: [Rule; 4] = [Rule::PROBE, Rule::ARITHMETIC, Rule::CALIBRATED, Rule::BEST_PROBE];

/// Whether a metric is shown unless all are asked for: the paper's rules, those of signals that
/// were asked for, and rules that the program has registered.
pub fn is_main(name: MetricName) -> bool {
    match name {
        MetricName::Rule(rule) => {
            DISPLAY_ORDER.contains(&name)
                || SIGNAL_RULES.contains(&rule)
                || !Rule::ALL.contains(&rule)
        }
        _ => DISPLAY_ORDER.contains(&name),
    }
}

/// The display name of a metric.
pub fn display_name(name: MetricName) -> String {
    match name {
        MetricName::Rule(rule) => rule.label().to_owned(),
        MetricName::Beam => "beam search".to_owned(),
        other => other.name().replace('_', " "),
    }
}
