//! Timing of training: one step on a synthetic batch, repeated: forward, backward, optimizer,
//! weight sync.
//!
//! Weights are those of a fresh model, so the first loss is that of a uniform guess.

use model::{Config, InitialWeights, LmHead, ModelError, TrainableDecoder, TrainableHead};
use tensor::rng::{MAX_ELEMENTS, RngKey};
use tensor::{Device, DeviceError, Tensor};

use crate::dropout::DropoutConfig;
use crate::latent_step::{AuxiliaryLosses, LatentTrainStep};
use crate::loss::Objective;
use crate::methods::TrainStep;
use crate::reward_step::{
    RewardExample, RewardHeadKind, RewardLossConfig, RewardTrainStep, TrainableRewardHead,
};
use crate::schedule::{LrSchedule, Optimizer};
use crate::tokenized_example::TokenizedExample;

/// The shape of the batch.
#[derive(Clone, Copy, Debug)]
pub struct TrainBenchSize {
    /// Sequences.
    pub sequences: usize,
    /// Prompt tokens of each.
    pub prompt: usize,
    /// Thoughts of each.
    pub thoughts: usize,
}

/// A model and its batch.
enum BenchedStep {
    Reasoner { train_step: Box<LatentTrainStep>, examples: Vec<TokenizedExample> },
    Reward { train_step: Box<RewardTrainStep>, examples: Vec<RewardExample> },
}

/// Repeats a training step on one batch.
pub struct TrainBench {
    device: Device,
    benched: BenchedStep,
    dropout: f32,
    steps: u32,
}

/// Common AdamW settings, with a learning rate that stays stable on a repeated batch.
const OPTIMIZER: Optimizer = Optimizer {
    schedule: LrSchedule { peak: 1e-4, warmup: 0, steps: 1, floor: 1.0 },
    betas: (0.9, 0.999),
    eps: 1e-8,
    weight_decay: 0.01,
    decay_all: false,
    clip: Some(1.0),
};

impl TrainBench {
    /// A reasoner. Completions are an end-latent token and `target` tokens with a loss.
    pub fn reasoner(
        device: &Device,
        config: &Config,
        size: TrainBenchSize,
        target: usize,
    ) -> Result<Self, ModelError> {
        let model = load_decoder(device, config, LmHead::With)?;
        let example = |i: u32| TokenizedExample {
            id: i,
            prompt: synthetic_tokens(config.vocab, i, size.prompt),
            thoughts: size.thoughts,
            completion: synthetic_tokens(config.vocab, !i, 1 + target),
            loss_start: 1,
            ..TokenizedExample::default()
        };
        let (head, auxiliary) = (TrainableHead::Identity, AuxiliaryLosses::default());
        let train_step = Box::new(LatentTrainStep::new(model, head, auxiliary));
        let examples = (0..size.sequences as u32).map(example).collect();
        Ok(Self::new(device, BenchedStep::Reasoner { train_step, examples }))
    }

    /// A reward model with the contrastive objective over problems of `trajectories` each.
    /// Sequences that do not fill a problem are left out.
    pub fn reward(
        device: &Device,
        config: &Config,
        size: TrainBenchSize,
        trajectories: usize,
    ) -> Result<Self, ModelError> {
        let model = load_decoder(device, config, LmHead::Without)?;
        let source = initial_weights(config);
        let head =
            TrainableRewardHead::load(device, &source, RewardHeadKind::Linear, config.width)?;
        let thoughts = trajectories * size.thoughts;
        let example = |i: u32| RewardExample {
            id: i,
            prompt: synthetic_tokens(config.vocab, i, size.prompt),
            thoughts: synthetic_thoughts(i, thoughts, config.width),
            lengths: vec![size.thoughts; trajectories],
            labels: (0..thoughts).map(|t| (t % 5) as f32 / 4.0).collect(),
            ..RewardExample::default()
        };
        let train_step = Box::new(RewardTrainStep::new(model, head, None));
        let examples = (0..(size.sequences / trajectories) as u32).map(example).collect();
        Ok(Self::new(device, BenchedStep::Reward { train_step, examples }))
    }

    fn new(device: &Device, benched: BenchedStep) -> Self {
        Self { device: device.clone(), benched, dropout: 0.0, steps: 0 }
    }

    /// With dropout of this probability on attention and MLP outputs.
    pub fn with_dropout(self, dropout: f32) -> Self {
        Self { dropout, ..self }
    }

    /// Runs a step, waits for the device, and returns the mean loss before it: per token of a
    /// reasoner, per problem of a reward model.
    pub fn step(&mut self) -> Result<f64, DeviceError> {
        let Self { device, benched, dropout, steps } = self;
        let (step, p) = (*steps, *dropout);
        *steps += 1;
        let dropout = (p > 0.0).then_some(DropoutConfig { p, seed: 0, step });
        let loss = device.run(|| match benched {
            BenchedStep::Reasoner { train_step, examples } => {
                let losses = train_step.batch_losses(examples, dropout)?;
                OPTIMIZER.step(device, step, 1, train_step.parameters_mut())?;
                train_step.sync_weights()?;
                Ok::<_, DeviceError>(losses.tokens)
            }
            BenchedStep::Reward { train_step, examples } => {
                let objective = Objective::Contrastive;
                let config = RewardLossConfig { objective, step_weight: &|_| 1.0, dropout };
                let losses = train_step.accumulate_gradients(examples, config)?;
                OPTIMIZER.step(device, step, 1, train_step.parameters_mut())?;
                train_step.sync_weights()?;
                Ok(losses.objective)
            }
        })?;
        device.synchronize()?;
        Ok(loss)
    }

    /// Sequences of the batch.
    pub fn sequences(&self) -> usize {
        match &self.benched {
            BenchedStep::Reasoner { examples, .. } => examples.len(),
            BenchedStep::Reward { examples, .. } => {
                examples.iter().map(|example| example.lengths.len()).sum()
            }
        }
    }

    /// Positions per step, tokens and thoughts; a prompt that trajectories share counts once.
    pub fn positions(&self) -> usize {
        match &self.benched {
            BenchedStep::Reasoner { examples, .. } => {
                examples.iter().map(TokenizedExample::len).sum()
            }
            BenchedStep::Reward { examples, .. } => {
                examples.iter().map(|example| example.prompt.len() + example.thoughts.rows()).sum()
            }
        }
    }

    /// Floating-point operations per step: forward, and twice as many for backward. Optimizer and
    /// reward head are negligible and not counted.
    pub fn flops(&self) -> f64 {
        let forward: f64 = match &self.benched {
            BenchedStep::Reasoner { train_step, examples } => {
                let decoder = &train_step.model.decoder;
                let flops = |example: &TokenizedExample| {
                    decoder.flops_for(0..example.len())
                        + example.loss_tokens() as f64 * decoder.flops_per_logits()
                };
                examples.iter().map(flops).sum()
            }
            BenchedStep::Reward { train_step, examples } => {
                let decoder = &train_step.model.decoder;
                let flops = |example: &RewardExample| {
                    let prompt = example.prompt.len();
                    let lengths = example.lengths.iter();
                    let trajectories = lengths.map(|&n| decoder.flops_for(prompt..prompt + n));
                    decoder.flops_for(0..prompt) + trajectories.sum::<f64>()
                };
                examples.iter().map(flops).sum()
            }
        };
        3.0 * forward
    }
}

fn initial_weights(config: &Config) -> InitialWeights {
    InitialWeights { seed: 0, layers: config.layers }
}

fn load_decoder(
    device: &Device,
    config: &Config,
    head: LmHead,
) -> Result<TrainableDecoder, ModelError> {
    device.run(|| TrainableDecoder::load(device, config, &initial_weights(config), head))
}

/// Tokens of a vocabulary, different for each sequence.
pub fn synthetic_tokens(vocab: usize, sequence: u32, count: usize) -> Vec<u32> {
    let token =
        |i: u32| sequence.wrapping_mul(7919).wrapping_add(i.wrapping_mul(104_729)) % vocab as u32;
    (0..count as u32).map(token).collect()
}

/// Standard normal vectors (thoughts, width), the scale of a final norm's output.
fn synthetic_thoughts(problem: u32, thoughts: usize, width: usize) -> Tensor {
    let mut numbers = vec![0.0; thoughts * width];
    for (position, part) in (0..).zip(numbers.chunks_mut(MAX_ELEMENTS)) {
        RngKey { seed: 1, question: problem, trajectory: 0, position }.add_noise(1.0, part);
    }
    Tensor::from_vec(thoughts, width, numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::testkit::{CheckpointSpec, write_checkpoint};

    fn config() -> Config {
        let dir = tempfile::tempdir().unwrap();
        let spec = CheckpointSpec { ffn: 64, ..CheckpointSpec::default() };
        write_checkpoint(dir.path(), &spec).unwrap();
        Config::read(dir.path()).unwrap()
    }

    const SIZE: TrainBenchSize = TrainBenchSize { sequences: 6, prompt: 7, thoughts: 3 };

    fn device() -> Device {
        Device::cpu(std::num::NonZeroUsize::new(2)).unwrap()
    }

    #[test]
    fn a_reasoner_starts_at_chance_and_fits_its_batch() {
        let bench = TrainBench::reasoner(&device(), &config(), SIZE, 4).unwrap();
        let mut bench = bench.with_dropout(0.1);
        let first = bench.step().unwrap();
        assert!((first - (config().vocab as f64).ln()).abs() < 0.2, "{first}");
        let last = (0..60).map(|_| bench.step().unwrap()).last().unwrap();
        assert!(last < first - 0.1, "{first} and then {last}");
    }

    #[test]
    fn a_reward_model_starts_at_chance_and_fits_its_batch() {
        let mut bench = TrainBench::reward(&device(), &config(), SIZE, 3).unwrap();
        let first = bench.step().unwrap();
        // The sum of each step's labels times the entropy of a uniform choice among three.
        let labels: f64 = (0..9).map(|t| f64::from(t % 5) / 4.0).sum();
        assert!((first - labels * 3f64.ln()).abs() < 0.2 * first, "{first}");
        let last = (0..60).map(|_| bench.step().unwrap()).last().unwrap();
        assert!(last < first, "{first} and then {last}");
    }

    #[test]
    fn shared_prompts_are_counted_once() {
        let reasoner = TrainBench::reasoner(&device(), &config(), SIZE, 4).unwrap();
        assert_eq!((reasoner.sequences(), reasoner.positions()), (6, 6 * (7 + 3 + 4)));
        let shared = TrainBench::reward(&device(), &config(), SIZE, 3).unwrap();
        assert_eq!((shared.sequences(), shared.positions()), (6, 2 * (7 + 3 * 3)));
        let alone = TrainBench::reward(&device(), &config(), SIZE, 1).unwrap();
        assert_eq!((alone.sequences(), alone.positions()), (6, 6 * (7 + 3)));
        let products = (2 * 32 * (3 * 32 + 32 + 2 * 64)) as f64;
        let prompt = 2.0 * products * 7.0 + 4.0 * (2 * 32) as f64 * 28.0;
        assert_eq!(alone.flops() - shared.flops(), 3.0 * 4.0 * prompt);
    }
}
