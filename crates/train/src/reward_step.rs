//! Forward and backward of one batch of the reward model (LatentRM).
//!
//! The thoughts are inputs, so one forward pass covers all positions of a trajectory. The N
//! trajectories of a problem share its prompt and reference trace through the KV cache. `layout`
//! packs a batch into rows; `head` maps hidden states to rewards.

mod head;
mod layout;

use std::ops::Range;

use model::{Cache, Parameter, TrainableDecoder};
use tensor::{Device, DeviceError, Tensor, ops};

use crate::digit_head::{DIGITS, DigitHead};
use crate::dropout::DropoutConfig;
use crate::loss::{Objective, ScoredProblem};
use crate::order_preference;
use crate::rows::{reuse_cache, scatter_add};
pub use head::{RewardHeadKind, TrainableCompareHead, TrainableRewardHead};
use layout::{HeadForward, RewardForward};

/// A problem with N trajectories and their labels.
#[derive(Clone, Debug, Default)]
pub struct RewardExample {
    /// Index in the data; part of the RNG key of dropout masks.
    pub id: u32,
    /// Prompt tokens.
    pub prompt: Vec<u32>,
    /// Thoughts of the reference reasoner, (thoughts, width); empty without one.
    pub reference_trace: Tensor,
    /// The concatenated thoughts of all trajectories: (thoughts, width).
    pub thoughts: Tensor,
    /// Thoughts per trajectory.
    pub lengths: Vec<usize>,
    /// A label in 0..=1 per thought.
    pub labels: Vec<f32>,
    /// Answer tokens per trajectory; used only with an outcome head.
    pub answers: Vec<Vec<u32>>,
    /// Per trajectory: whether its answer is correct.
    pub correct: Vec<bool>,
    /// Results of the solution's steps, the targets of the digit heads.
    pub step_results: Vec<i64>,
    /// Indices of the originals of the last trajectories, which are copies with permuted thoughts.
    /// Copies have no entries in `labels` and `correct`. See [`crate::order_preference`].
    pub permuted_from: Vec<usize>,
}

impl RewardExample {
    /// Per thought: its index within its trajectory.
    pub fn step_indices(&self) -> Vec<usize> {
        self.lengths.iter().flat_map(|&n| 0..n).collect()
    }

    /// Number of sampled trajectories, without permuted copies.
    fn originals(&self) -> usize {
        self.lengths.len() - self.permuted_from.len()
    }
}

/// Auxiliary digit heads on the reward model's hidden states.
#[derive(Debug)]
pub struct DigitHeads {
    /// Predicts step t's result at thought t.
    pub current: DigitHead,
    /// Predicts step t's result one position before thought t.
    pub next: DigitHead,
    /// Predicts the last step's result before the answer; used only with an outcome head.
    pub answer: DigitHead,
}

impl DigitHeads {
    fn each(&self) -> [&DigitHead; 3] {
        [&self.current, &self.next, &self.answer]
    }

    fn each_mut(&mut self) -> [&mut DigitHead; 3] {
        [&mut self.current, &mut self.next, &mut self.answer]
    }
}

/// The head for outcome rewards.
#[derive(Debug)]
pub struct OutcomeHead {
    /// The reward head, applied at the last token of the answer.
    pub head: TrainableRewardHead,
    /// Tokens between the last thought and the answer.
    pub end_latent: Vec<u32>,
}

/// A trainable reward model: decoder, heads and their gradients.
#[derive(Debug)]
pub struct RewardTrainStep {
    /// The decoder, without a language-model head.
    pub model: TrainableDecoder,
    /// Head for process rewards.
    pub head: TrainableRewardHead,
    /// Head for outcome rewards, if the model reads answers.
    pub outcome: Option<OutcomeHead>,
    /// Heads of the auxiliary digit losses.
    pub digit_heads: Option<DigitHeads>,
    cache: Option<Cache>,
}

/// Settings of the loss.
#[derive(Clone, Copy)]
pub struct RewardLossConfig<'a> {
    /// The objective over the rewards of a problem's trajectories.
    pub objective: Objective,
    /// Weight of a thought step, by its index from 0.
    pub step_weight: &'a (dyn Fn(usize) -> f32 + Sync),
    /// Dropout in the decoder; `None` disables it.
    pub dropout: Option<DropoutConfig>,
    /// Weight of the order preference. It applies to outcome rewards or, without an outcome head,
    /// to process rewards.
    pub order_preference: f32,
}

/// The rewards of one example.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PredictedRewards {
    /// Process rewards: one per thought, concatenated over trajectories.
    pub process: Vec<f32>,
    /// Outcome rewards: one per trajectory; empty without an outcome head.
    pub outcome: Vec<f32>,
}

/// Mean losses of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct RewardLosses {
    /// Objective per problem: the sum over process and outcome rewards.
    pub objective: f64,
    /// Cross entropy per predicted digit, in nats; zero without digit heads.
    pub digits: f64,
}

impl RewardTrainStep {
    /// A train step without an outcome head.
    pub fn new(
        model: TrainableDecoder,
        head: TrainableRewardHead,
        digit_heads: Option<DigitHeads>,
    ) -> Self {
        Self { model, head, outcome: None, digit_heads, cache: None }
    }

    /// Adds an outcome head.
    pub fn with_outcome_head(self, outcome: OutcomeHead) -> Self {
        Self { outcome: Some(outcome), ..self }
    }

    /// The rewards of every example, without dropout.
    pub fn predict(
        &mut self,
        examples: &[RewardExample],
    ) -> Result<Vec<PredictedRewards>, DeviceError> {
        let mut cache = self.cache_for(examples)?;
        let forward = self.forward(&mut cache, examples, None);
        self.cache = Some(cache);
        let forward = forward?;
        let process = forward.thoughts.rewards.to_host()?;
        let outcome = forward.answers.map(|answers| answers.rewards.to_host()).transpose()?;
        let mut process = process.data().iter().copied();
        let mut outcome = outcome.iter().flat_map(Tensor::data).copied();
        let split = |example: &RewardExample| PredictedRewards {
            process: process.by_ref().take(example.thoughts.rows()).collect(),
            outcome: outcome.by_ref().take(example.lengths.len()).collect(),
        };
        Ok(examples.iter().map(split).collect())
    }

    /// Adds the gradients of a batch's mean loss to all parameters.
    pub fn accumulate_gradients(
        &mut self,
        examples: &[RewardExample],
        config: RewardLossConfig<'_>,
    ) -> Result<RewardLosses, DeviceError> {
        let mut cache = self.cache_for(examples)?;
        let forward = self.forward(&mut cache, examples, config.dropout)?;
        let losses = self.backward(&cache, examples, config, forward);
        self.cache = Some(cache);
        self.model.collect_gradients()?;
        losses
    }

    /// The parameters of both reward heads.
    pub fn head_parameters(&self) -> impl Iterator<Item = &Parameter> {
        let outcome = self.outcome.iter().flat_map(|outcome| outcome.head.parameters());
        self.head.parameters().chain(outcome)
    }

    /// All parameters, in a fixed order.
    pub fn parameters(&self) -> Vec<&Parameter> {
        let digits = self.digit_heads.iter().flat_map(DigitHeads::each);
        let digits = digits.flat_map(DigitHead::parameters);
        self.model.parameters().chain(self.head_parameters()).chain(digits).collect()
    }

    /// All parameters, mutably. Call [`Self::sync_weights`] after changing them.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let Self { model, head, outcome, digit_heads, .. } = self;
        let outcome = outcome.iter_mut().flat_map(|outcome| outcome.head.parameters_mut());
        let digits = digit_heads.iter_mut().flat_map(DigitHeads::each_mut);
        let digits = digits.flat_map(DigitHead::parameters_mut);
        model.parameters_mut().chain(head.parameters_mut()).chain(outcome).chain(digits).collect()
    }

    /// Copies changed parameters to the weights that the forward pass uses.
    pub fn sync_weights(&mut self) -> Result<(), DeviceError> {
        let device = &self.model.decoder.device().clone();
        self.model.sync_weights()?;
        self.head.sync_weights(device)?;
        if let Some(outcome) = &mut self.outcome {
            outcome.head.sync_weights(device)?;
        }
        let mut digits = self.digit_heads.iter_mut().flat_map(DigitHeads::each_mut);
        digits.try_for_each(|head| head.sync_weights(device))
    }

    fn cache_for(&mut self, examples: &[RewardExample]) -> Result<Cache, DeviceError> {
        let answer_slots = |example: &RewardExample, n: usize| {
            let answer = example.answers.get(n).zip(self.outcome.as_ref());
            answer.map_or(0, |(answer, outcome)| outcome.end_latent.len() + answer.len())
        };
        let slots = |example: &RewardExample| {
            let lengths = example.lengths.iter().enumerate();
            let own = lengths.map(|(n, &length)| length + answer_slots(example, n));
            let shared = example.prompt.len() + example.reference_trace.rows();
            Cache::slots_for(shared) + own.map(Cache::slots_for).sum::<usize>()
        };
        let slots = examples.iter().map(slots).sum();
        reuse_cache(self.cache.take(), &self.model.decoder, slots)
    }

    fn backward(
        &mut self,
        cache: &Cache,
        examples: &[RewardExample],
        config: RewardLossConfig<'_>,
        forward: RewardForward,
    ) -> Result<RewardLosses, DeviceError> {
        let device = self.model.decoder.device().clone();
        let mut dhidden = Tensor::zeros_on(&device, forward.hidden.rows(), forward.hidden.cols())?;
        let targets: Vec<HeadTargets> = examples.iter().map(HeadTargets::of_thoughts).collect();
        let prefers_answers = self.outcome.is_some() && forward.answers.is_some();
        let of_thoughts = if prefers_answers { 0.0 } else { config.order_preference };
        let of_thoughts = RewardLossConfig { order_preference: of_thoughts, ..config };
        let (mut objective, drewards) = objective_loss(&forward.thoughts, &targets, of_thoughts)?;
        forward.thoughts.backward(&device, &mut self.head, drewards, &mut dhidden)?;
        if let (Some(outcome), Some(answers)) = (&mut self.outcome, &forward.answers) {
            let targets: Vec<HeadTargets> = examples.iter().map(HeadTargets::of_answers).collect();
            let config = RewardLossConfig { step_weight: &|_| 1.0, ..config };
            let (loss, drewards) = objective_loss(answers, &targets, config)?;
            objective += loss;
            answers.backward(&device, &mut outcome.head, drewards, &mut dhidden)?;
        }
        let digits = self.add_digit_losses(&device, examples, &forward, &mut dhidden)?;
        let mut dkv = cache.gradients(&device)?;
        let dx = self.model.backward(cache, &mut dkv, forward.segment, &dhidden)?;
        let dtokens = ops::select(&device, [&dx], &forward.input.token_rows)?;
        self.model.accumulate_embedding_gradients(forward.input.tokens, &dtokens)?;
        Ok(RewardLosses { objective, digits })
    }

    /// Adds the gradients of the digit losses; returns the mean loss per digit.
    fn add_digit_losses(
        &mut self,
        device: &Device,
        examples: &[RewardExample],
        forward: &RewardForward,
        dhidden: &mut Tensor,
    ) -> Result<f64, DeviceError> {
        let Some(DigitHeads { current, next, answer }) = &mut self.digit_heads else {
            return Ok(0.0);
        };
        let results = examples.iter().flat_map(|example| {
            let result = |t: usize| example.step_results.get(t).copied();
            let permuted = example.lengths[example.originals()..].iter().sum::<usize>();
            let labeled = example.lengths[..example.originals()].iter().flat_map(|&n| 0..n);
            labeled.map(result).chain(std::iter::repeat_n(None, permuted)).collect::<Vec<_>>()
        });
        let results: Vec<Option<i64>> = results.collect();
        let positions = &forward.thoughts.positions;
        let mut predictions = vec![
            DigitPrediction::new(current, &positions.at, &results),
            DigitPrediction::new(next, &positions.before, &results),
        ];
        if let Some(answers) = &forward.answers {
            let last = examples.iter().flat_map(|example| {
                let known = |n: usize| n < example.originals();
                let last = |n: usize| example.step_results.last().copied().filter(|_| known(n));
                (0..example.lengths.len()).map(last).collect::<Vec<_>>()
            });
            let last: Vec<Option<i64>> = last.collect();
            predictions.push(DigitPrediction::new(answer, &answers.positions.before, &last));
        }
        predictions.retain(|prediction| !prediction.rows.is_empty());
        let mut total = 0.0;
        let heads = predictions.len();
        for DigitPrediction { head, rows, numbers } in predictions {
            let digits = numbers.len() * DIGITS * heads;
            let x = ops::select(device, [&forward.hidden], &rows)?;
            let loss = head.accumulate_gradients(device, &x, &numbers, digits)?;
            scatter_add(device, &loss.gradient, &rows, dhidden)?;
            let sum = loss.losses.to_host()?.data().iter().map(|&x| f64::from(x)).sum::<f64>();
            total += sum / f64::from(digits as f32);
        }
        Ok(total)
    }
}

/// The inputs and targets of one digit head.
struct DigitPrediction<'a> {
    head: &'a mut DigitHead,
    rows: Vec<usize>, // indices of output rows
    numbers: Vec<i64>,
}

impl<'a> DigitPrediction<'a> {
    /// Keeps those of `rows` whose result is known.
    fn new(head: &'a mut DigitHead, rows: &[usize], results: &[Option<i64>]) -> Self {
        let known = rows.iter().zip(results).filter_map(|(&row, result)| Some((row, (*result)?)));
        let (rows, numbers) = known.unzip();
        Self { head, rows, numbers }
    }
}

/// The labels of one problem's rewards.
struct HeadTargets {
    /// One label per reward of the sampled trajectories, which precede permuted copies.
    labels: Vec<f32>,
    /// Per label: its thought step.
    steps: Vec<usize>,
    /// Per trajectory, permuted copies included: the range of its rewards.
    ranges: Vec<Range<usize>>,
    permuted_from: Vec<usize>,
}

impl HeadTargets {
    fn of_thoughts(example: &RewardExample) -> Self {
        let mut steps = example.step_indices();
        steps.truncate(example.labels.len());
        let mut end = 0;
        let range = |&length: &usize| {
            end += length;
            end - length..end
        };
        let ranges = example.lengths.iter().map(range).collect();
        let permuted_from = example.permuted_from.clone();
        Self { labels: example.labels.clone(), steps, ranges, permuted_from }
    }

    fn of_answers(example: &RewardExample) -> Self {
        let labels = example.correct.iter().map(|&correct| f32::from(u8::from(correct))).collect();
        Self {
            labels,
            steps: vec![0; example.correct.len()],
            ranges: (0..example.lengths.len()).map(|n| n..n + 1).collect(),
            permuted_from: example.permuted_from.clone(),
        }
    }
}

/// The mean objective per problem, and its gradient with respect to the rewards.
fn objective_loss(
    head: &HeadForward,
    targets: &[HeadTargets],
    config: RewardLossConfig<'_>,
) -> Result<(f64, Vec<f32>), DeviceError> {
    let rewards = head.rewards.clone().to_host()?;
    let mut loss = 0.0;
    let mut start = 0;
    let mut drewards = vec![0.0; head.positions.at.len()];
    for HeadTargets { labels, steps, ranges, permuted_from } in targets {
        let labeled = start..start + labels.len();
        let all = start..start + ranges.last().map_or(0, |range| range.end);
        let problem = ScoredProblem { scores: &rewards.data()[labeled.clone()], labels, steps };
        loss += config.objective.loss(problem, config.step_weight, &mut drewards[labeled]);
        if config.order_preference > 0.0 {
            let scores = &rewards.data()[all.clone()];
            let gradient = &mut drewards[all.clone()];
            let weight = config.order_preference;
            loss += order_preference::loss(permuted_from, ranges, scores, weight, gradient);
        }
        start = all.end;
    }
    let share = 1.0 / targets.len() as f32;
    drewards.iter_mut().for_each(|d| *d *= share);
    Ok((loss / targets.len() as f64, drewards))
}
