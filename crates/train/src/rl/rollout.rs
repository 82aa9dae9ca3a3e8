//! Sampling of the groups of trajectories for an update.

use std::num::{NonZeroU32, NonZeroUsize};

use data::TrainExample;
use engine::{
    AnswerSampling, Engine, LatentLength, Output, Perturbation, Prompt, Request, SamplingParams,
    Trajectory,
};
use record::Losses;
use tensor::ops::TokenSampling;

use super::estimator::{Estimator, GroupRewards};
use super::policy::{PolicyTrajectory, ThoughtGradient};
use super::reward::{RewardConfig, is_correct};
use crate::error::TrainError;

/// Sampling, rewards and advantages of groups.
#[derive(Clone, Copy, Debug)]
pub struct RolloutConfig {
    /// Perturbation, lengths and seed; `samples` is the size of a group.
    pub params: SamplingParams,
    /// Softmax temperature of answer tokens.
    pub temperature: f32,
    /// Number of consecutive trajectories with the same thoughts.
    pub per_thoughts: NonZeroU32,
    /// The reward.
    pub reward: RewardConfig,
    /// Estimator of advantages from rewards.
    pub estimator: Estimator,
    /// Whether trajectories truncated at the maximum number of answer tokens get no weight.
    pub mask_truncated: bool,
    /// How the gradient reaches the thoughts.
    pub thoughts: ThoughtGradient,
}

/// The trajectories of one question.
#[derive(Clone, Debug, Default)]
pub struct SampledGroup {
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// The trajectories; their prompt index is 0.
    pub trajectories: Vec<PolicyTrajectory>,
    /// Advantage per trajectory.
    pub advantages: Vec<f64>,
    /// Per trajectory: log-probabilities of its answer tokens and of its thoughts at sampling time.
    /// Empty if the trajectory is used before the weights change.
    pub old_logprobs: Vec<[Vec<f32>; 2]>,
    /// Statistics for the log.
    pub stats: GroupStats,
}

/// Statistics of a group, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupStats {
    /// Mean reward.
    pub reward: f64,
    /// Fraction of correct trajectories.
    pub accuracy: f64,
    /// 1 if any trajectory is correct, else 0.
    pub coverage: f64,
    /// Sum of the log-probabilities of all answer tokens at temperature 1.
    pub logprob: f64,
    /// Number of answer tokens.
    pub tokens: f64,
    /// Thoughts per trajectory.
    pub thoughts: f64,
    /// Number of distinct answers divided by the number of trajectories.
    pub distinct: f64,
    /// Fraction of trajectories without an EOS token.
    pub truncated: f64,
}

impl RolloutConfig {
    /// How answers are sampled in addition to the perturbation of thoughts; `None` if only tokens
    /// are sampled.
    pub fn answer_sampling(&self) -> Option<AnswerSampling> {
        match self.params.perturbation {
            Perturbation::Tokens { .. } => None,
            _ => Some(AnswerSampling {
                tokens: TokenSampling::new(self.temperature, 1.0)?,
                per_thoughts: self.per_thoughts,
            }),
        }
    }

    /// Samples a group for each example; `first` is the question number of the first example.
    pub fn sample(
        &self,
        engine: &Engine,
        first: u64,
        examples: &[TrainExample],
    ) -> Result<Vec<SampledGroup>, TrainError> {
        let params = SamplingParams { greedy: self.estimator.needs_greedy(), ..self.params };
        let request = |(i, example): (u64, &TrainExample)| Request {
            id: i as u32,
            answer_sampling: self.answer_sampling(),
            ..Request::new(example.question.clone(), params)
        };
        let requests: Vec<Request> = (first..).zip(examples).map(request).collect();
        let mut groups = Vec::with_capacity(requests.len());
        engine.run(&requests, |index, reply| -> Result<(), TrainError> {
            let Request { id, question, .. } = &requests[index];
            let prompt = Prompt::new(engine.reasoner(), *id, question)?.tokens;
            groups.push(self.group(engine, prompt, reply?, &examples[index]));
            Ok(())
        })?;
        Ok(groups)
    }

    fn group(
        &self,
        engine: &Engine,
        prompt: Vec<u32>,
        reply: Output,
        example: &TrainExample,
    ) -> SampledGroup {
        let gold = &example.answer;
        let eos = &engine.reasoner().method.eos;
        let truncated = |one: &Trajectory| one.tokens.last().is_none_or(|last| !eos.contains(last));
        let correct: Vec<bool> =
            reply.trajectories.iter().map(|one| is_correct(one, gold)).collect();
        let rewards = GroupRewards {
            rewards: self.reward.rewards(&reply, gold),
            greedy: reply.greedy.as_ref().map(|greedy| self.reward.of_greedy(greedy, gold)),
            correct: correct.clone(),
        };
        let mut advantages = self.estimator.advantages(&rewards);
        let cut: Vec<bool> = reply.trajectories.iter().map(truncated).collect();
        if self.mask_truncated {
            let weights = advantages.iter_mut().zip(&cut);
            weights.filter(|(_, cut)| **cut).for_each(|(weight, _)| *weight = 0.0);
        }
        let share = |hits: &[bool]| mean(hits.iter().map(|&hit| f64::from(u8::from(hit))));
        let stats = GroupStats {
            reward: mean(rewards.rewards.iter().copied()),
            accuracy: share(&correct),
            coverage: f64::from(u8::from(correct.contains(&true))),
            logprob: reply.trajectories.iter().filter_map(|one| one.logprob).map(f64::from).sum(),
            tokens: reply.trajectories.iter().map(|one| one.tokens.len() as f64).sum(),
            thoughts: mean(reply.trajectories.iter().map(|one| one.thoughts as f64)),
            distinct: reply.votes().len() as f64 / reply.trajectories.len().max(1) as f64,
            truncated: share(&cut),
        };
        let question = reply.id;
        let trajectories = reply
            .trajectories
            .into_iter()
            .map(|one: Trajectory| self.trajectory(question, one))
            .collect();
        SampledGroup { prompt, trajectories, advantages, old_logprobs: Vec::new(), stats }
    }

    fn trajectory(&self, question: u32, one: Trajectory) -> PolicyTrajectory {
        let ended_early = match self.params.length {
            LatentLength::AtMost(limit) => one.thoughts < NonZeroUsize::get(limit),
            _ => false,
        };
        let keeps_latents = self.thoughts == ThoughtGradient::Density;
        PolicyTrajectory {
            prompt: 0,
            question,
            number: one.number,
            thoughts: one.thoughts,
            ended_early,
            answer: one.tokens.to_vec(),
            latents: if keeps_latents { one.latents } else { tensor::Tensor::default() },
        }
    }
}

impl SampledGroup {
    /// Whether any advantage is non-zero.
    pub fn has_weight(&self) -> bool {
        self.advantages.iter().any(|&advantage| advantage != 0.0)
    }
}

/// Adds the statistics of groups to the losses for the log: means over groups or answer tokens.
pub fn log_means(groups: &[SampledGroup], losses: Losses) -> Losses {
    let over = |of: fn(&GroupStats) -> f64| mean(groups.iter().map(|group| of(&group.stats)));
    let total =
        |of: fn(&GroupStats) -> f64| -> f64 { groups.iter().map(|group| of(&group.stats)).sum() };
    let samples: usize = groups.iter().map(|group| group.trajectories.len()).sum();
    let tokens = total(|stats| stats.tokens);
    let thoughts = over(|stats| stats.thoughts);
    losses
        .with("reward", over(|stats| stats.reward))
        .with("accuracy", over(|stats| stats.accuracy))
        .with("coverage", over(|stats| stats.coverage))
        .with("entropy", -total(|stats| stats.logprob) / tokens.max(1.0))
        .with("distinct", over(|stats| stats.distinct))
        .with("answer_tokens", tokens / samples.max(1) as f64)
        .with("thoughts", (thoughts > 0.0).then_some(thoughts))
        .with("truncated", over(|stats| stats.truncated))
        .with("groups_used", mean(groups.iter().map(|g| f64::from(u8::from(g.has_weight())))))
}

/// The mean; 0 for no values.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}
