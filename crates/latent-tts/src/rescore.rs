//! Applies further voting rules to the recorded trajectories of a run, without sampling.

use std::collections::BTreeSet;

use aggregate::Rule;
use record::{MetricName, Results, RunDir};
use report::metrics::{self, MetricSettings};

use crate::Error;

/// Measures rules on a finished run in addition to those in its results, and replaces
/// `results.json`. Results of rules registered by other programs are kept.
///
/// # Errors
///
/// If the run has no results yet or a rule fails; `results.json` is then unchanged.
pub fn rescore(run: &RunDir, rules: &[Rule]) -> Result<Results, Error> {
    let before = run.results()?;
    let recorded = before.metrics.iter().filter_map(|metric| match metric.name {
        MetricName::Rule(rule) => Some((rule, metric.k)),
        _ => None,
    });
    let ks: BTreeSet<usize> = recorded.clone().map(|(_, k)| k).collect();
    let measured: BTreeSet<Rule> = recorded
        .map(|(rule, _)| rule)
        .filter(|rule| rule.is_known())
        .chain(rules.to_vec())
        .collect();
    let settings = MetricSettings {
        ks: ks.into_iter().collect(),
        aggregators: Some(measured.into_iter().collect()),
        vote_params: before.vote_params.unwrap_or_default(),
        ..MetricSettings::default()
    };
    let mut results = metrics::results_of_run(run, &settings)?;
    check_rules(rules)?;
    let unknown = |name: MetricName| matches!(name, MetricName::Rule(rule) if !rule.is_known());
    results.metrics.extend(before.metrics.into_iter().filter(|metric| unknown(metric.name)));
    results.gains.extend(before.gains.into_iter().filter(|gain| unknown(gain.name)));
    run.write_results(&results)?;
    Ok(results)
}

/// Returns the failure of one of these rules since the last call.
pub(crate) fn check_rules(rules: &[Rule]) -> Result<(), Error> {
    let failed = rules.iter().find_map(|rule| Some((rule, rule.take_failure()?)));
    failed.map_or(Ok(()), |(rule, error)| {
        Err(Error::Callback { name: format!("rule {rule}"), error })
    })
}
