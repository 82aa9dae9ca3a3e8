//! Aggregation flags become options of the library; contradictions are errors.

use std::num::NonZeroUsize;

use anyhow::{Result, bail};
use latent_tts::aggregate::Confidence;
use latent_tts::{
    AdaptiveSampling, Aggregator, BeamOptions, BeamSize, SamplingOptions, VoteParams,
};

use crate::args::AggregationArgs;
use crate::args::values::AggregateRule;
use crate::settings::to_usize;

/// The voting rules that `--aggregate` names; `None` if the flag is absent. Beam search is not a
/// voting rule and is left out.
pub fn rules(args: &AggregationArgs) -> Option<Vec<Aggregator>> {
    let sampled = |rules: &Vec<AggregateRule>| {
        rules.iter().filter_map(|rule| sampled_aggregator(*rule)).collect()
    };
    args.aggregate.as_ref().map(sampled)
}

/// `options` with the beam search, the early stopping and the vote parameters of the flags.
pub fn apply(
    args: &AggregationArgs,
    options: SamplingOptions,
    has_reward_model: bool,
) -> Result<SamplingOptions> {
    let requested = args.aggregate.as_deref().unwrap_or_default();
    if let Some(rule) = requested.iter().find(|rule| !has_reward_model && needs_rewards(**rule)) {
        bail!("--aggregate {} needs rewards; give --reward-model, or leave it out", rule.name());
    }
    let beam_enabled = args.aggregate.is_none() || requested.contains(&AggregateRule::Beam);
    let size = beam_size(args, options.samples, has_reward_model, beam_enabled)?;
    let forced = requested.contains(&AggregateRule::Beam) || size_flag(args).is_some();
    Ok(SamplingOptions {
        beam: size.map(|size| BeamOptions { size, forced }),
        adaptive: adaptive(args)?,
        vote: vote_params(args),
        ..options
    })
}

fn vote_params(args: &AggregationArgs) -> VoteParams {
    let defaults = VoteParams::default();
    VoteParams {
        temperature: args.vote_temperature.unwrap_or(defaults.temperature),
        lambda: args.likelihood_weight.unwrap_or(defaults.lambda),
        caution: args.caution.unwrap_or(defaults.caution),
    }
}

fn sampled_aggregator(rule: AggregateRule) -> Option<Aggregator> {
    match rule {
        AggregateRule::Sampled(rule) => Some(rule),
        AggregateRule::Beam => None,
    }
}

fn needs_rewards(rule: AggregateRule) -> bool {
    !matches!(rule, AggregateRule::Sampled(Aggregator::Majority | Aggregator::Likelihood))
}

/// The first of the flags given that set the size of the beam search.
fn size_flag(args: &AggregationArgs) -> Option<&'static str> {
    let flags = [("--beam-width", args.beam_width), ("--beam-candidates", args.beam_candidates)];
    flags.into_iter().find(|(_, given)| given.is_some()).map(|(flag, _)| flag)
}

fn beam_size(
    args: &AggregationArgs,
    samples: NonZeroUsize,
    has_reward_model: bool,
    beam_enabled: bool,
) -> Result<Option<BeamSize>> {
    match size_flag(args) {
        Some(flag) if !has_reward_model => {
            bail!("{flag} is for a search guided by rewards; give --reward-model, or leave it out")
        }
        Some(flag) if !beam_enabled => {
            bail!("{flag} is for a search that --aggregate leaves out; add beam to it")
        }
        _ => {}
    }
    let defaults = BeamSize::for_samples(samples);
    let width = args.beam_width.map_or(defaults.width, to_usize);
    let candidates = args.beam_candidates.map_or(defaults.candidates, to_usize);
    Ok((has_reward_model && beam_enabled).then_some(BeamSize { width, candidates }))
}

/// Default of `--confidence`.
const DEFAULT_CONFIDENCE: f64 = 0.95;

fn adaptive(args: &AggregationArgs) -> Result<Option<AdaptiveSampling>> {
    match (args.adaptive, args.confidence.or_else(|| Confidence::new(DEFAULT_CONFIDENCE))) {
        (true, Some(confidence)) => Ok(Some(AdaptiveSampling { confidence })),
        (false, _) if args.confidence.is_some() => {
            bail!("--confidence says when --adaptive stops; add --adaptive")
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use latent_tts::RewardReduction;

    use super::*;

    fn args() -> AggregationArgs {
        AggregationArgs {
            aggregate: None,
            beam_width: None,
            beam_candidates: None,
            adaptive: false,
            confidence: None,
            vote_temperature: None,
            likelihood_weight: None,
            caution: None,
        }
    }

    fn resolve(args: AggregationArgs, has_reward_model: bool) -> Result<SamplingOptions, String> {
        let options = SamplingOptions::new(NonZeroUsize::new(64).unwrap());
        apply(&args, options, has_reward_model).map_err(|error| error.to_string())
    }

    #[test]
    fn beam_search_needs_a_reward_model() {
        assert_eq!(resolve(args(), false).unwrap().beam, None);
        let size = |beam: BeamOptions| (beam.size.width.get(), beam.size.candidates.get());
        let sizes = |options: SamplingOptions| options.beam.map(size);
        assert_eq!(sizes(resolve(args(), true).unwrap()), Some((8, 8)));
        let narrow = AggregationArgs { beam_width: NonZeroU32::new(2), ..args() };
        assert_eq!(sizes(resolve(narrow.clone(), true).unwrap()), Some((2, 8)));
        assert!(resolve(narrow.clone(), false).unwrap_err().contains("--beam-width"));
        let best = AggregateRule::Sampled(Aggregator::BestOf(RewardReduction::OutcomeOrMean));
        let best_only = AggregationArgs { aggregate: Some(vec![best]), ..args() };
        assert_eq!(sizes(resolve(best_only, true).unwrap()), None);
        let contradictory = AggregationArgs { aggregate: Some(vec![best]), ..narrow };
        assert!(resolve(contradictory, true).unwrap_err().contains("add beam"));
    }

    #[test]
    fn reward_rules_need_a_reward_model() {
        for rule in Aggregator::ALL {
            let requested =
                AggregationArgs { aggregate: Some(vec![AggregateRule::Sampled(rule)]), ..args() };
            let reward_free = matches!(rule, Aggregator::Majority | Aggregator::Likelihood);
            assert_eq!(resolve(requested, false).is_ok(), reward_free, "{rule:?}");
        }
        let alone = AggregationArgs { aggregate: Some(vec![AggregateRule::Beam]), ..args() };
        assert_eq!(rules(&alone), Some(Vec::new()));
        assert!(resolve(alone, false).unwrap_err().contains("--reward-model"));
    }

    #[test]
    fn confidence_requires_adaptive() {
        let confident = AggregationArgs { confidence: Confidence::new(0.99), ..args() };
        assert!(resolve(confident.clone(), false).unwrap_err().contains("--adaptive"));
        let adaptive = |args| resolve(args, false).unwrap().adaptive.map(|a| a.confidence.get());
        assert_eq!(adaptive(AggregationArgs { adaptive: true, ..confident }), Some(0.99));
        assert_eq!(adaptive(AggregationArgs { adaptive: true, ..args() }), Some(0.95));
        assert_eq!(adaptive(args()), None);
    }
}
