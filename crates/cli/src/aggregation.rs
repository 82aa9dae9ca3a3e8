//! What the flags about aggregation mean, for a number of samples and with or without a reward
//! model.

use std::num::{NonZeroU32, NonZeroUsize};

use aggregate::{Aggregator, Confidence, VoteParams};
use anyhow::{Result, bail};
use engine::{AdaptiveSampling, BeamSize, SamplingParams};

use crate::args::AggregationArgs;
use crate::args::values::AggregateRule;

/// How trajectories become one answer.
#[derive(Debug, Clone, PartialEq)]
pub struct AggregationSettings {
    /// The rules that were asked for, if any were.
    pub rules: Option<Vec<Aggregator>>,
    /// The numbers in them.
    pub tuning: VoteParams,
    beam: Option<BeamSize>,
    beam_requested: bool,
    adaptive: Option<AdaptiveSampling>,
}

impl AggregationSettings {
    /// What the flags say for so many samples; `judged` says whether there is a reward model.
    pub fn from_args(
        args: &AggregationArgs,
        samples: NonZeroUsize,
        has_reward_model: bool,
    ) -> Result<Self> {
        let requested = args.aggregate.as_deref().unwrap_or_default();
        if let Some(rule) = requested.iter().find(|rule| !has_reward_model && needs_rewards(**rule))
        {
            bail!(
                "--aggregate {} needs rewards; give --reward-model, or leave it out",
                rule.name()
            );
        }
        let rules = args.aggregate.as_ref().map(|requested| {
            requested.iter().filter_map(|rule| sampled_aggregator(*rule)).collect()
        });
        let beam_enabled = args.aggregate.is_none() || requested.contains(&AggregateRule::Beam);
        let beam = beam_size(args, samples, has_reward_model, beam_enabled)?;
        let beam_requested = requested.contains(&AggregateRule::Beam) || size_flag(args).is_some();
        Ok(Self { rules, tuning: tuning(args), beam, beam_requested, adaptive: adaptive(args)? })
    }

    /// Settings with a search and rounds added. Where there are no thoughts, nobody searches unless
    /// it was asked for.
    pub fn apply(&self, params: SamplingParams) -> SamplingParams {
        let beam = self.beam.filter(|_| self.beam_requested || params.length.limit() > 0);
        SamplingParams { adaptive: self.adaptive, beam, ..params }
    }
}

fn tuning(args: &AggregationArgs) -> VoteParams {
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

/// The first flag that gives the search a size.
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

fn to_usize(count: NonZeroU32) -> NonZeroUsize {
    NonZeroUsize::try_from(count).unwrap_or(NonZeroUsize::MAX)
}

/// How sure to be unless told otherwise.
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
    use aggregate::RewardReduction;

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

    fn resolve(
        args: AggregationArgs,
        has_reward_model: bool,
    ) -> Result<AggregationSettings, String> {
        AggregationSettings::from_args(&args, NonZeroUsize::new(64).unwrap(), has_reward_model)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn beam_search_needs_a_reward_model() {
        assert_eq!(resolve(args(), false).unwrap().beam, None);
        let sizes =
            |a: AggregationSettings| a.beam.map(|beam| (beam.width.get(), beam.candidates.get()));
        assert_eq!(sizes(resolve(args(), true).unwrap()), Some((8, 8)));
        let narrow = AggregationArgs { beam_width: NonZeroU32::new(2), ..args() };
        assert_eq!(sizes(resolve(narrow.clone(), true).unwrap()), Some((2, 8)));
        assert!(resolve(narrow.clone(), false).unwrap_err().contains("--beam-width"));
        let best = AggregateRule::Sampled(Aggregator::BestOf(RewardReduction::OutcomeOrMean));
        let without = AggregationArgs { aggregate: Some(vec![best]), ..args() };
        assert_eq!(sizes(resolve(without, true).unwrap()), None);
        let contradictory = AggregationArgs { aggregate: Some(vec![best]), ..narrow };
        assert!(resolve(contradictory, true).unwrap_err().contains("add beam"));
    }

    #[test]
    fn reward_rules_need_a_reward_model() {
        for rule in Aggregator::ALL {
            let requested =
                AggregationArgs { aggregate: Some(vec![AggregateRule::Sampled(rule)]), ..args() };
            let free = matches!(rule, Aggregator::Majority | Aggregator::Likelihood);
            assert_eq!(resolve(requested, false).is_ok(), free, "{rule:?}");
        }
        let alone = AggregationArgs { aggregate: Some(vec![AggregateRule::Beam]), ..args() };
        assert_eq!(resolve(alone.clone(), true).unwrap().rules, Some(Vec::new()));
        assert!(resolve(alone, false).unwrap_err().contains("--reward-model"));
    }

    #[test]
    fn confidence_requires_adaptive() {
        let sure = AggregationArgs { confidence: Confidence::new(0.99), ..args() };
        assert!(resolve(sure.clone(), false).unwrap_err().contains("--adaptive"));
        let adaptive = |args| resolve(args, false).unwrap().adaptive.map(|a| a.confidence.get());
        assert_eq!(adaptive(AggregationArgs { adaptive: true, ..sure }), Some(0.99));
        assert_eq!(adaptive(AggregationArgs { adaptive: true, ..args() }), Some(0.95));
        assert_eq!(adaptive(args()), None);
    }
}
