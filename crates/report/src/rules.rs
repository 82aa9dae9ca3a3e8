//! Display order and names of the aggregation rules.

use record::MetricName;

/// The rules shown in tables and figures, in order.
pub const DISPLAY_ORDER: [MetricName; 7] = [
    MetricName::Greedy,
    MetricName::Majority,
    MetricName::Weighted,
    MetricName::Normalized,
    MetricName::BestOf,
    MetricName::Beam,
    MetricName::Coverage,
];

/// The display name of a rule; by default its name in `results.json`.
pub fn display_name(name: MetricName) -> String {
    match name {
        MetricName::Greedy => "greedy".into(),
        MetricName::Majority => "majority".into(),
        MetricName::Weighted => "weighted vote".into(),
        MetricName::Normalized => "normalized vote".into(),
        MetricName::BestOf => "best of N".into(),
        MetricName::Beam => "beam search".into(),
        MetricName::Coverage => "coverage".into(),
        name => serde_json::to_value(name)
            .ok()
            .and_then(|name| name.as_str().map(|n| n.replace('_', " ")))
            .unwrap_or_default(),
    }
}
