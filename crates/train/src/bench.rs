//! A step of training on a made-up batch, again and again, for measuring: forward, backward,
//! optimizer, refresh.
//!
//! Weights are those that training begins with, so that losses mean something: the first is that of
//! guessing.

use model::{Config, InitialWeights, LmHead, TrainableDecoder, TrainableHead};
use tensor::rng::{MAX_ELEMENTS, RngKey};
use tensor::{Device, DeviceError, Tensor};

use crate::latent_step::{DropoutConfig, LatentTrainStep};
use crate::loss::Objective;
use crate::reward_step::{
    RewardExample, RewardHeadKind, RewardLossConfig, RewardTrainStep, TrainableRewardHead,
};
use crate::schedule::{LrSchedule, Optimizer};
use crate::tokenized_example::TokenizedExample;

/// What all sequences of a batch have in common.
#[derive(Clone, Copy, Debug)]
pub struct TrainBenchSize {
    /// How many sequences.
    pub sequences: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Thoughts after it.
    pub thoughts: usize,
}

/// Who learns, and its batch.
enum BenchedStep {
    Reasoner { train_step: Box<LatentTrainStep>, examples: Vec<TokenizedExample> },
    Reward { train_step: Box<RewardTrainStep>, examples: Vec<RewardExample> },
}

/// A learner that takes the same batch in every step.
pub struct TrainBench {
    device: Device,
    benched: BenchedStep,
    dropout: f32,
    steps: u32,
}

/// As most use AdamW; the rate is so small that nothing blows up however often the batch is taken.
const OPTIMIZER: Optimizer = Optimizer {
    schedule: LrSchedule { peak: 1e-4, warmup: 0, steps: 1, floor: 1.0 },
    betas: (0.9, 0.999),
    eps: 1e-8,
    weight_decay: 0.01,
    decay_all: false,
    clip: Some(1.0),
};

impl TrainBench {
    /// A reasoner of a shape that learns to say `target` tokens after its thoughts and one token
    /// that ends them.
    pub fn reasoner(
        device: &Device,
        config: &Config,
        size: TrainBenchSize,
        target: usize,
    ) -> Result<Self, model::ModelError> {
        let learner = load_decoder(device, config, LmHead::With)?;
        let lesson = |i: u32| TokenizedExample {
            id: i,
            prompt: synthetic_tokens(config.vocab, i, size.prompt),
            thoughts: size.thoughts,
            completion: synthetic_tokens(config.vocab, !i, 1 + target),
            loss_start: 1,
            step_results: Vec::new(),
        };
        let study = Box::new(LatentTrainStep::new(learner, TrainableHead::Identity, None));
        let learning = BenchedStep::Reasoner {
            train_step: study,
            examples: (0..size.sequences as u32).map(lesson).collect(),
        };
        Ok(Self { device: device.clone(), benched: learning, dropout: 0.0, steps: 0 })
    }

    /// A reward model of a shape that compares the trajectories of problems, which have
    /// `trajectories` each; sequences that do not make a whole problem are left out.
    pub fn reward(
        device: &Device,
        config: &Config,
        size: TrainBenchSize,
        trajectories: usize,
    ) -> Result<Self, model::ModelError> {
        let learner = load_decoder(device, config, LmHead::Without)?;
        let head = TrainableRewardHead::load(
            device,
            &initial_weights(config),
            RewardHeadKind::Linear,
            config.width,
        )?;
        let thoughts = trajectories * size.thoughts;
        let case = |i: u32| RewardExample {
            id: i,
            prompt: synthetic_tokens(config.vocab, i, size.prompt),
            thoughts: synthetic_thoughts(i, thoughts, config.width),
            lengths: vec![size.thoughts; trajectories],
            labels: (0..thoughts).map(|t| (t % 5) as f32 / 4.0).collect(),
            ..RewardExample::default()
        };
        let problems = (size.sequences / trajectories) as u32;
        let judge = Box::new(RewardTrainStep::new(learner, head, None));
        let learning =
            BenchedStep::Reward { train_step: judge, examples: (0..problems).map(case).collect() };
        Ok(Self { device: device.clone(), benched: learning, dropout: 0.0, steps: 0 })
    }

    /// With dropout of a share at both sites of every position.
    pub fn with_dropout(self, dropout: f32) -> Self {
        Self { dropout, ..self }
    }

    /// Takes a step, waits until it is done, and returns the batch's mean loss before it: of a
    /// reasoner a token's, of a reward model a problem's.
    pub fn step(&mut self) -> Result<f64, DeviceError> {
        let Self { device, benched: learning, dropout, steps } = self;
        let (step, p) = (*steps, *dropout);
        *steps += 1;
        let droppings = (p > 0.0).then_some(DropoutConfig { p, seed: 0, step });
        let loss = device.run(|| match learning {
            BenchedStep::Reasoner { train_step: study, examples: lessons } => {
                let losses = study.accumulate_gradients(lessons, droppings)?;
                OPTIMIZER.step(device, step, 1, study.parameters_mut())?;
                study.sync_weights()?;
                Ok::<_, DeviceError>(losses.tokens)
            }
            BenchedStep::Reward { train_step: judge, examples: cases } => {
                let losses = judge.accumulate_gradients(
                    cases,
                    RewardLossConfig {
                        objective: Objective::Contrastive,
                        step_weight: &|_| 1.0,
                        dropout: droppings,
                    },
                )?;
                OPTIMIZER.step(device, step, 1, judge.parameters_mut())?;
                judge.sync_weights()?;
                Ok(losses.objective)
            }
        })?;
        device.synchronize()?;
        Ok(loss)
    }

    /// Sequences of the batch.
    pub fn sequences(&self) -> usize {
        match &self.benched {
            BenchedStep::Reasoner { examples: lessons, .. } => lessons.len(),
            BenchedStep::Reward { examples: cases, .. } => {
                cases.iter().map(|case| case.lengths.len()).sum()
            }
        }
    }

    /// Tokens and thoughts that a step passes; a prompt that trajectories share counts once.
    pub fn positions(&self) -> usize {
        match &self.benched {
            BenchedStep::Reasoner { examples: lessons, .. } => {
                lessons.iter().map(TokenizedExample::len).sum()
            }
            BenchedStep::Reward { examples: cases, .. } => {
                cases.iter().map(|case| case.prompt.len() + case.thoughts.rows()).sum()
            }
        }
    }

    /// Floating-point operations of a step's algorithm: the way there, and twice as many for the
    /// way back. Optimizer and score head have too few to count.
    pub fn flops(&self) -> f64 {
        let forward: f64 = match &self.benched {
            BenchedStep::Reasoner { train_step: study, examples: lessons } => {
                let decoder = &study.model.decoder;
                let of = |lesson: &TokenizedExample| {
                    decoder.flops_for(0..lesson.len())
                        + lesson.loss_tokens() as f64 * decoder.flops_per_logits()
                };
                lessons.iter().map(of).sum()
            }
            BenchedStep::Reward { train_step: judge, examples: cases } => {
                let decoder = &judge.model.decoder;
                let of = |case: &RewardExample| {
                    let prompt = case.prompt.len();
                    let own = case.lengths.iter().map(|&n| decoder.flops_for(prompt..prompt + n));
                    decoder.flops_for(0..prompt) + own.sum::<f64>()
                };
                cases.iter().map(of).sum()
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
) -> Result<TrainableDecoder, model::ModelError> {
    device.run(|| TrainableDecoder::load(device, config, &initial_weights(config), head))
}

/// Tokens of a vocabulary that differ from sequence to sequence.
pub fn synthetic_tokens(vocab: usize, sequence: u32, count: usize) -> Vec<u32> {
    let of =
        |i: u32| sequence.wrapping_mul(7919).wrapping_add(i.wrapping_mul(104_729)) % vocab as u32;
    (0..count as u32).map(of).collect()
}

/// Vectors (thoughts, width) as a final norm leaves them.
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
        write_checkpoint(dir.path(), &CheckpointSpec { ffn: 64, ..CheckpointSpec::default() })
            .unwrap();
        Config::read(dir.path()).unwrap()
    }

    const SIZE: TrainBenchSize = TrainBenchSize { sequences: 6, prompt: 7, thoughts: 3 };

    fn device() -> Device {
        Device::cpu(std::num::NonZeroUsize::new(2)).unwrap()
    }

    #[test]
    fn a_reasoner_begins_by_guessing_and_learns_its_batch() {
        let mut drill =
            TrainBench::reasoner(&device(), &config(), SIZE, 4).unwrap().with_dropout(0.1);
        let first = drill.step().unwrap();
        assert!((first - (config().vocab as f64).ln()).abs() < 0.2, "{first}");
        let last = (0..60).map(|_| drill.step().unwrap()).last().unwrap();
        assert!(last < first - 0.1, "{first} and then {last}");
    }

    #[test]
    fn a_reward_model_begins_by_guessing_and_learns_its_batch() {
        let mut drill = TrainBench::reward(&device(), &config(), SIZE, 3).unwrap();
        let first = drill.step().unwrap();
        // Each step's labels times the log of three trajectories to choose from.
        let labels: f64 = (0..9).map(|t| f64::from(t % 5) / 4.0).sum();
        assert!((first - labels * 3f64.ln()).abs() < 0.2 * first, "{first}");
        let last = (0..60).map(|_| drill.step().unwrap()).last().unwrap();
        assert!(last < first, "{first} and then {last}");
    }

    #[test]
    fn what_trajectories_share_is_counted_once() {
        let reasoner = TrainBench::reasoner(&device(), &config(), SIZE, 4).unwrap();
        assert_eq!((reasoner.sequences(), reasoner.positions()), (6, 6 * (7 + 3 + 4)));
        let shared = TrainBench::reward(&device(), &config(), SIZE, 3).unwrap();
        assert_eq!((shared.sequences(), shared.positions()), (6, 2 * (7 + 3 * 3)));
        let alone = TrainBench::reward(&device(), &config(), SIZE, 1).unwrap();
        assert_eq!((alone.sequences(), alone.positions()), (6, 6 * (7 + 3)));
        let prompt =
            2.0 * (2 * 32 * (3 * 32 + 32 + 2 * 64)) as f64 * 7.0 + 4.0 * (2 * 32) as f64 * 28.0;
        assert_eq!(alone.flops() - shared.flops(), 3.0 * 4.0 * prompt);
    }
}
