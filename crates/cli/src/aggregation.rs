//! What the flags about aggregation mean, for a number of samples and with or without a reward model.

use std::num::{NonZeroU32, NonZeroUsize};

use anyhow::{Result, bail};
use engine::{Adaptive, BeamSize, Settings};
use record::aggregate::{Aggregator, Tuning};
use record::stopping::Confidence;

use crate::args::AggregationArgs;
use crate::args::values::Rule;

/// How trajectories become one answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Aggregation {
    /// The rules that were asked for, if any were.
    pub rules: Option<Vec<Aggregator>>,
    /// The numbers in them.
    pub tuning: Tuning,
    beam: Option<BeamSize>,
    beam_is_asked_for: bool,
    adaptive: Option<Adaptive>,
}

impl Aggregation {
    /// What the flags say for so many samples; `judged` says whether there is a reward model.
    pub fn of(args: &AggregationArgs, samples: NonZeroUsize, judged: bool) -> Result<Self> {
        let asked = args.aggregate.as_deref().unwrap_or_default();
        if let Some(rule) = asked.iter().find(|rule| !judged && needs_rewards(**rule)) {
            bail!("--aggregate {} needs rewards; give --reward-model, or leave it out", rule.name());
        }
        let rules = args.aggregate.as_ref().map(|asked| asked.iter().filter_map(|rule| sampled(*rule)).collect());
        let wanted = args.aggregate.is_none() || asked.contains(&Rule::Beam);
        let beam = beam(args, samples, judged, wanted)?;
        let beam_is_asked_for = asked.contains(&Rule::Beam) || size_flag(args).is_some();
        Ok(Self { rules, tuning: tuning(args), beam, beam_is_asked_for, adaptive: adaptive(args)? })
    }

    /// Settings with a search and rounds added. Where there are no thoughts, nobody searches unless it was asked for.
    pub fn apply(&self, settings: Settings) -> Settings {
        let beam = self.beam.filter(|_| self.beam_is_asked_for || settings.length.limit() > 0);
        Settings { adaptive: self.adaptive, beam, ..settings }
    }
}

fn tuning(args: &AggregationArgs) -> Tuning {
    let usual = Tuning::default();
    Tuning {
        temperature: args.vote_temperature.unwrap_or(usual.temperature),
        lambda: args.likelihood_weight.unwrap_or(usual.lambda),
        caution: args.caution.unwrap_or(usual.caution),
    }
}

fn sampled(rule: Rule) -> Option<Aggregator> {
    match rule {
        Rule::Sampled(rule) => Some(rule),
        Rule::Beam => None,
    }
}

fn needs_rewards(rule: Rule) -> bool {
    !matches!(rule, Rule::Sampled(Aggregator::Majority | Aggregator::Likely))
}

/// The first flag that gives the search a size.
fn size_flag(args: &AggregationArgs) -> Option<&'static str> {
    let flags = [("--beam-width", args.beam_width), ("--beam-candidates", args.beam_candidates)];
    flags.into_iter().find(|(_, given)| given.is_some()).map(|(flag, _)| flag)
}

fn beam(args: &AggregationArgs, samples: NonZeroUsize, judged: bool, wanted: bool) -> Result<Option<BeamSize>> {
    match size_flag(args) {
        Some(flag) if !judged => bail!("{flag} is for a search guided by rewards; give --reward-model, or leave it out"),
        Some(flag) if !wanted => bail!("{flag} is for a search that --aggregate leaves out; add beam to it"),
        _ => {}
    }
    let usual = BeamSize::of_samples(samples);
    let width = args.beam_width.map_or(usual.width, wide);
    let candidates = args.beam_candidates.map_or(usual.candidates, wide);
    Ok((judged && wanted).then_some(BeamSize { width, candidates }))
}

fn wide(count: NonZeroU32) -> NonZeroUsize {
    NonZeroUsize::try_from(count).unwrap_or(NonZeroUsize::MAX)
}

/// How sure to be unless told otherwise.
const CONFIDENCE: f64 = 0.95;

fn adaptive(args: &AggregationArgs) -> Result<Option<Adaptive>> {
    match (args.adaptive, args.confidence.or_else(|| Confidence::new(CONFIDENCE))) {
        (true, Some(confidence)) => Ok(Some(Adaptive { confidence })),
        (false, _) if args.confidence.is_some() => bail!("--confidence says when --adaptive stops; add --adaptive"),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use record::aggregate::Reduction;

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

    fn of(args: AggregationArgs, judged: bool) -> Result<Aggregation, String> {
        Aggregation::of(&args, NonZeroUsize::new(64).unwrap(), judged).map_err(|error| error.to_string())
    }

    #[test]
    fn a_search_runs_where_there_are_rewards() {
        assert_eq!(of(args(), false).unwrap().beam, None);
        let sizes = |a: Aggregation| a.beam.map(|beam| (beam.width.get(), beam.candidates.get()));
        assert_eq!(sizes(of(args(), true).unwrap()), Some((8, 8)));
        let narrow = AggregationArgs { beam_width: NonZeroU32::new(2), ..args() };
        assert_eq!(sizes(of(narrow.clone(), true).unwrap()), Some((2, 8)));
        assert!(of(narrow.clone(), false).unwrap_err().contains("--beam-width"));
        let best = Rule::Sampled(Aggregator::BestOf(Reduction::Overall));
        let without = AggregationArgs { aggregate: Some(vec![best]), ..args() };
        assert_eq!(sizes(of(without, true).unwrap()), None);
        let contradicts = AggregationArgs { aggregate: Some(vec![best]), ..narrow };
        assert!(of(contradicts, true).unwrap_err().contains("add beam"));
    }

    #[test]
    fn rules_that_need_rewards_say_so() {
        for rule in Aggregator::ALL {
            let asked = AggregationArgs { aggregate: Some(vec![Rule::Sampled(rule)]), ..args() };
            let free = matches!(rule, Aggregator::Majority | Aggregator::Likely);
            assert_eq!(of(asked, false).is_ok(), free, "{rule:?}");
        }
        let alone = AggregationArgs { aggregate: Some(vec![Rule::Beam]), ..args() };
        assert_eq!(of(alone.clone(), true).unwrap().rules, Some(Vec::new()));
        assert!(of(alone, false).unwrap_err().contains("--reward-model"));
    }

    #[test]
    fn confidence_belongs_to_adaptive() {
        let sure = AggregationArgs { confidence: Confidence::new(0.99), ..args() };
        assert!(of(sure.clone(), false).unwrap_err().contains("--adaptive"));
        let adaptive = |args| of(args, false).unwrap().adaptive.map(|a| a.confidence.get());
        assert_eq!(adaptive(AggregationArgs { adaptive: true, ..sure }), Some(0.99));
        assert_eq!(adaptive(AggregationArgs { adaptive: true, ..args() }), Some(0.95));
        assert_eq!(adaptive(args()), None);
    }
}
