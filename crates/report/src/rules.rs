//! Display order and names of the aggregation rules.

use std::collections::BTreeSet;

use aggregate::Rule;
use record::MetricName;

use crate::run_data::RunData;

/// The rules shown in tables and figures, in order.
pub const DISPLAY_ORDER: [MetricName; 9] = [
    MetricName::Greedy,
    MetricName::MAJORITY,
    MetricName::WEIGHTED,
    MetricName::NORMALIZED,
    MetricName::BEST_OF,
    MetricName::Beam,
    MetricName::Particles,
    MetricName::Dvts,
    MetricName::Coverage,
];

/// The rules to show for some runs: the display order, then custom registered rules.
pub fn shown(runs: &[&RunData]) -> Vec<MetricName> {
    let metrics = runs.iter().flat_map(|run| &run.results.metrics).map(|metric| metric.name);
    let registered: BTreeSet<MetricName> =
        metrics.filter(|name| is_main(*name) && !DISPLAY_ORDER.contains(name)).collect();
    DISPLAY_ORDER.into_iter().chain(registered).collect()
}

/// Rules that use signals which a run has only on request.
const SIGNAL_RULES: [Rule; 4] = [Rule::PROBE, Rule::ARITHMETIC, Rule::CALIBRATED, Rule::BEST_PROBE];

/// Whether a metric is shown by default: the paper's rules, rules that use requested signals, and
/// custom registered rules.
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
        MetricName::Particles => "particle filtering".to_owned(),
        MetricName::Dvts => "verifier tree search".to_owned(),
        other => other.name().replace('_', " "),
    }
}
