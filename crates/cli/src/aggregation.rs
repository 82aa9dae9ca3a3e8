//! Converts aggregation flags to library options; contradictions are errors.

use anyhow::{Result, bail};
use latent_tts::aggregate::signals;
use latent_tts::{Rule, SamplingOptions};

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
        AggregateRule::Beam => !has_reward_model,
        AggregateRule::Sampled(rule) => {
            rule.needs().rewards && !has_reward_model && !sources.scorer
        }
    };
    if let Some(rule) = requested.iter().find(|rule| is_missing(**rule)) {
        bail!("--aggregate {} needs rewards; pass --reward-model or omit the rule", rule.name());
    }
    let sizes =
        [("--beam-width", options.beam_width), ("--beam-candidates", options.beam_candidates)];
    let size = sizes.into_iter().find(|(_, size)| size.is_some()).map(|(flag, _)| flag);
    let flag = size.or_else(|| (options.beam == Some(true)).then_some("--beam"));
    let left_out = args.aggregate.is_some() && !requested.contains(&AggregateRule::Beam);
    match flag {
        Some(flag) if !has_reward_model => {
            bail!("{flag} needs rewards to guide the search; pass --reward-model or omit {flag}")
        }
        Some(flag) if left_out => {
            bail!("{flag} has no effect without a beam search; add beam to --aggregate")
        }
        _ => {}
    }
    let beam = match requested.contains(&AggregateRule::Beam) {
        true => Some(true),
        false => left_out.then_some(false).or(options.beam),
    };
    Ok(SamplingOptions { beam, ..options })
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
        AggregateRule::Beam => None,
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
        let error = apply_to(AggregateRule::Beam).unwrap_err().to_string();
        assert!(error.contains("--reward-model"), "{error}");
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
        let beam = vec![AggregateRule::Beam];
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
        let args = AggregationArgs { aggregate: Some(vec![AggregateRule::Beam]) };
        assert_eq!(rules(&args), Some(Vec::new()));
    }
}
