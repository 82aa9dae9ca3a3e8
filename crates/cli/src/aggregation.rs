//! Converts aggregation flags to library options; contradictions are errors.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use latent_tts::aggregate::signals;
use latent_tts::{Rule, SamplingOptions, SearchMethod};

use crate::args::AggregationArgs;
use crate::args::values::AggregateRule;

/// The voting rules in `--aggregate`; `None` if the flag is absent. Beam search is not a voting
/// rule and is omitted.
pub fn rules(args: &AggregationArgs) -> Option<Vec<Rule>> {
    let sampled = |rules: &Vec<AggregateRule>| {
        rules.iter().filter_map(|rule| sampled_aggregator(*rule)).collect()
    };
    args.aggregate.as_ref().map(sampled)
}

/// Where the rewards of trajectories come from.
#[derive(Debug, Clone, Copy)]
pub struct RewardOrigins {
    /// A reward model, which can also guide a search.
    pub reward_model: bool,
    /// An external scorer.
    pub scorer: bool,
}

/// `options` with beam search enabled or disabled according to `--aggregate`.
pub fn apply(
    args: &AggregationArgs,
    options: SamplingOptions,
    sources: RewardOrigins,
) -> Result<SamplingOptions> {
    let requested = args.aggregate.as_deref().unwrap_or_default();
    let has_reward_model = sources.reward_model;
    let is_missing = |rule: AggregateRule| match rule {
        AggregateRule::Search(_) => !has_reward_model,
        AggregateRule::Sampled(rule) => {
            rule.needs().rewards && !has_reward_model && !sources.scorer
        }
    };
    if let Some(rule) = requested.iter().find(|rule| is_missing(**rule)) {
        bail!("--aggregate {} needs rewards; pass --reward-model or omit the rule", rule.name());
    }
    let requested_search = requested_search(requested)?;
    let fields = [
        ("--search", options.search.is_some()),
        ("--search-temperature", options.search_temperature.is_some()),
        ("--beam-width", options.beam_width.is_some()),
        ("--beam-candidates", options.beam_candidates.is_some()),
        ("--beam", options.beam == Some(true)),
    ];
    let flag = fields.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag);
    let left_out = args.aggregate.is_some() && requested_search.is_none();
    match flag {
        Some(flag) if !has_reward_model => {
            bail!("{flag} needs rewards to guide the search; pass --reward-model or omit {flag}")
        }
        Some(flag) if left_out => {
            bail!("{flag} has no effect without a search; add beam to --aggregate")
        }
        _ => {}
    }
    let Some(method) = requested_search else {
        let beam = left_out.then_some(false).or(options.beam);
        return Ok(SamplingOptions { beam, ..options });
    };
    if let Some(search) = options.search.filter(|search| *search != method) {
        let (search, method) = (search.name(), method.name());
        bail!("--search {search} contradicts --aggregate {method}; omit one of them");
    }
    // Plain beam search is the default and is recorded as such.
    let search = Some(method).filter(|method| *method != SearchMethod::Beam).or(options.search);
    Ok(SamplingOptions { beam: Some(true), search, ..options })
}

/// The search that `--aggregate` names, of which there is at most one.
fn requested_search(requested: &[AggregateRule]) -> Result<Option<SearchMethod>> {
    let methods: BTreeSet<SearchMethod> = requested
        .iter()
        .filter_map(|rule| match rule {
            AggregateRule::Search(method) => Some(*method),
            AggregateRule::Sampled(_) => None,
        })
        .collect();
    if methods.len() > 1 {
        let names: Vec<&str> = methods.iter().map(|method| method.name()).collect();
        bail!("--aggregate names several searches ({}); keep one of them", names.join(", "));
    }
    Ok(methods.first().copied())
}

/// Rejects rules whose signal is unavailable: probe scores, checked steps, or a calibration.
pub fn check_signals(
    rules: Option<&[Rule]>,
    options: &SamplingOptions,
    has_probe: bool,
) -> Result<()> {
    let named = rules.unwrap_or_default().iter().chain(&options.rule);
    for rule in named {
        let needs = rule.needs();
        let missing = match needs.signal {
            Some(signals::PROBE) if !has_probe => "a probe; pass --probe",
            Some(signals::ARITHMETIC) if options.check_steps != Some(true) => {
                "checked steps; pass --check-steps"
            }
            _ if needs.calibration && options.calibration.is_none() => {
                "learned weights; pass --calibration"
            }
            _ => continue,
        };
        bail!("rule {rule} needs {missing} or omit the rule");
    }
    Ok(())
}

fn sampled_aggregator(rule: AggregateRule) -> Option<Rule> {
    match rule {
        AggregateRule::Sampled(rule) => Some(rule),
        AggregateRule::Search(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn apply_to(
        aggregate: Option<Vec<AggregateRule>>,
        options: SamplingOptions,
        reward_model: bool,
    ) -> Result<SamplingOptions, String> {
        let sources = RewardOrigins { reward_model, scorer: false };
        let args = AggregationArgs { aggregate };
        apply(&args, options, sources).map_err(|error| error.to_string())
    }

    #[test]
    fn a_scorer_gives_rewards_and_guides_no_search() {
        let sources = RewardOrigins { reward_model: false, scorer: true };
        let apply_to = |rule| {
            let args = AggregationArgs { aggregate: Some(vec![rule]) };
            apply(&args, SamplingOptions::default(), sources)
        };
        assert!(apply_to(AggregateRule::Sampled(Rule::WEIGHTED)).is_ok());
        let error = apply_to(AggregateRule::Search(SearchMethod::Beam)).unwrap_err().to_string();
        assert!(error.contains("--reward-model"), "{error}");
    }

    #[test]
    fn at_most_one_search_runs() {
        let search = |method| AggregateRule::Search(method);
        let open = SamplingOptions::default();
        let particles = vec![search(SearchMethod::Particles)];
        let applied = apply_to(Some(particles.clone()), open.clone(), true).unwrap();
        assert_eq!((applied.beam, applied.search), (Some(true), Some(SearchMethod::Particles)));
        let both = vec![search(SearchMethod::Particles), search(SearchMethod::Dvts)];
        assert!(apply_to(Some(both), open.clone(), true).unwrap_err().contains("particles, dvts"));
        let other = SamplingOptions { search: Some(SearchMethod::Dvts), ..open };
        assert!(apply_to(Some(particles), other, true).unwrap_err().contains("contradicts"));
    }

    #[test]
    fn beam_search_needs_a_reward_model() {
        let open = SamplingOptions::default();
        assert_eq!(apply_to(None, open.clone(), false).unwrap(), open);
        let narrow = SamplingOptions { beam_width: NonZeroU32::new(2), ..open.clone() };
        assert_eq!(apply_to(None, narrow.clone(), true).unwrap(), narrow);
        assert!(apply_to(None, narrow.clone(), false).unwrap_err().contains("--beam-width"));
        let best = vec![AggregateRule::Sampled(Rule::BEST_OF)];
        assert_eq!(apply_to(Some(best.clone()), open.clone(), true).unwrap().beam, Some(false));
        assert!(apply_to(Some(best), narrow, true).unwrap_err().contains("add beam"));
        let beam = vec![AggregateRule::Search(SearchMethod::Beam)];
        assert_eq!(apply_to(Some(beam.clone()), open.clone(), true).unwrap().beam, Some(true));
        assert!(apply_to(Some(beam), open, false).unwrap_err().contains("--reward-model"));
    }

    #[test]
    fn rules_require_the_source_of_their_signal() {
        let open = SamplingOptions::default();
        let error = |rule, options: &SamplingOptions| {
            check_signals(Some(&[rule]), options, false).map_err(|error| error.to_string())
        };
        assert!(error(Rule::PROBE, &open).unwrap_err().contains("--probe"));
        assert!(error(Rule::ARITHMETIC, &open).unwrap_err().contains("--check-steps"));
        assert!(error(Rule::CALIBRATED, &open).unwrap_err().contains("--calibration"));
        assert!(error(Rule::MAJORITY, &open).is_ok());
        assert!(check_signals(Some(&[Rule::PROBE]), &open, true).is_ok());
        let checked = SamplingOptions { check_steps: Some(true), ..open.clone() };
        assert!(error(Rule::ARITHMETIC, &checked).is_ok());
        let chosen = SamplingOptions { rule: Some(Rule::PROBE), ..open };
        assert!(check_signals(None, &chosen, false).is_err());
    }

    #[test]
    fn reward_rules_need_a_reward_model() {
        for &rule in Rule::ALL {
            let requested = vec![AggregateRule::Sampled(rule)];
            let allowed = apply_to(Some(requested), SamplingOptions::default(), false).is_ok();
            assert_eq!(allowed, !rule.needs().rewards, "{rule}");
        }
        let args =
            AggregationArgs { aggregate: Some(vec![AggregateRule::Search(SearchMethod::Beam)]) };
        assert_eq!(rules(&args), Some(Vec::new()));
    }
}
