//! Training benchmark: repeats one step (forward, backward, optimizer, weight sync) on a synthetic
//! batch.
//!
//! The weights are randomly initialized, so the first loss is that of a uniform guess.

use engine::family::{CODI_PROJECTOR, COLAR_HEAD};
use model::{
    Config, Decoder, DecoderTuning, InitialWeights, LmHead, LoraConfig, MlpShape, ModelError,
    TrainableDecoder, TrainableGaussianHead, TrainableHead, TrainableMlp,
};
use tensor::rng::{MAX_ELEMENTS, RngKey};
use tensor::{Device, DeviceError, Tensor};

use crate::dropout::DropoutConfig;
use crate::latent_step::{AuxiliaryLosses, LatentTrainStep};
use crate::loss::Objective;
use crate::methods::codi::Distillation;
use crate::methods::colar::{ColarExample, ColarTrainStep};
use crate::methods::simcot::StepDecoder;
use crate::methods::{ExampleRows, TrainStep};
use crate::reward_step::{
    RewardExample, RewardHeadKind, RewardLossConfig, RewardTrainStep, TrainableRewardHead,
};
use crate::schedule::{LrSchedule, Optimizer};
use crate::tokenized_example::{DistillRole, TokenizedExample};

/// The shape of the batch.
#[derive(Clone, Copy, Debug)]
pub struct TrainBenchSize {
    /// Number of sequences.
    pub sequences: usize,
    /// Prompt tokens per sequence.
    pub prompt: usize,
    /// Thoughts per sequence.
    pub thoughts: usize,
}

/// Training method to benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchMethod {
    /// A chain of thought in text.
    Cot,
    /// COCONUT.
    Coconut,
    /// CODI.
    Codi,
    /// CODI with SIM-CoT's step decoder.
    Simcot,
    /// CoLaR's supervised stage.
    Colar,
}

/// Tokens of a chain of thought.
const COT_TOKENS: usize = 32;
/// Number of steps of a chain of thought for the step decoder, and tokens per step.
const STEPS: (usize, usize) = (3, 10);
/// CoLaR: tokens per thought, and inner width of the latent head.
const SPEED: usize = 2;
const LATENT_HEAD: usize = 2048;

/// A model and its batch.
enum BenchedStep {
    Reasoner { train_step: Box<LatentTrainStep>, examples: Vec<TokenizedExample> },
    Colar { train_step: Box<ColarTrainStep>, examples: Vec<ColarExample> },
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
    schedule: LrSchedule { peak: 1e-4, warmup: 0, steps: 1, min_ratio: 1.0 },
    betas: (0.9, 0.999),
    eps: 1e-8,
    weight_decay: 0.01,
    decay_all: false,
    clip: Some(1.0),
};

impl TrainBench {
    /// Benchmarks a reasoner with a method, training all weights or adapters. Answers have `target`
    /// tokens.
    pub fn reasoner(
        device: &Device,
        config: &Config,
        size: TrainBenchSize,
        target: usize,
        (method, lora): (BenchMethod, Option<&LoraConfig>),
    ) -> Result<Self, ModelError> {
        let source = initial_weights(config);
        let tuning = match lora {
            None => DecoderTuning::Full,
            Some(config) => DecoderTuning::Lora { config, new_tokens: 0 },
        };
        let load = || TrainableDecoder::load_tuned(device, config, &source, LmHead::With, tuning);
        let model = device.run(load)?;
        let batch = SyntheticBatch { config, size, target };
        let width = config.width;
        if method == BenchMethod::Colar {
            let shape = (width, LATENT_HEAD);
            let head = TrainableGaussianHead::load(device, &source, &COLAR_HEAD, shape)?;
            let train_step = Box::new(ColarTrainStep::new(model, head, 0.02));
            let benched = BenchedStep::Colar { train_step, examples: batch.colar() };
            return Ok(Self::new(device, benched));
        }
        let mut head = TrainableHead::Identity;
        let mut auxiliary = AuxiliaryLosses::default();
        if matches!(method, BenchMethod::Codi | BenchMethod::Simcot) {
            let shape = MlpShape { inputs: width, hidden: width, outputs: width };
            let projector = TrainableMlp::load(device, &source, &CODI_PROJECTOR, shape)?;
            head = TrainableHead::Mlp(Box::new(projector));
            auxiliary.distillation = Some(Distillation { loss_weight: 20.0 });
        }
        if method == BenchMethod::Simcot {
            let decoder = load_decoder(device, config, LmHead::With)?;
            auxiliary.step_decoder = Some(StepDecoder::new(decoder, 1, 0));
        }
        let examples = match method {
            BenchMethod::Cot => batch.cot(DistillRole::Student),
            BenchMethod::Coconut => batch.students(),
            _ => {
                let pairs = batch.students().into_iter().zip(batch.cot(DistillRole::Teacher));
                pairs.flat_map(|(student, teacher)| [student, teacher]).collect()
            }
        };
        let train_step = Box::new(LatentTrainStep::new(model, head, auxiliary));
        Ok(Self::new(device, BenchedStep::Reasoner { train_step, examples }))
    }

    /// Benchmarks a reward model with the contrastive objective and `trajectories` per problem.
    /// Sequences that do not fill a problem are dropped.
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

    /// Sets the dropout probability of attention and MLP outputs.
    pub fn with_dropout(self, dropout: f32) -> Self {
        Self { dropout, ..self }
    }

    /// Recomputes activations in the backward pass.
    pub fn with_recompute(mut self) -> Self {
        match &mut self.benched {
            BenchedStep::Reasoner { train_step, .. } => {
                train_step.model.set_recompute(true);
                if let Some(step_decoder) = &mut train_step.auxiliary.step_decoder {
                    step_decoder.decoder.set_recompute(true);
                }
            }
            BenchedStep::Colar { train_step, .. } => train_step.model.set_recompute(true),
            BenchedStep::Reward { train_step, .. } => train_step.model.set_recompute(true),
        }
        self
    }

    /// Runs a step, waits for the device, and returns the mean loss before the update: per token
    /// for a reasoner, per problem for a reward model.
    pub fn step(&mut self) -> Result<f64, DeviceError> {
        let Self { device, benched, dropout, steps } = self;
        let step = *steps;
        let p = *dropout;
        *steps += 1;
        let adapters = match benched {
            BenchedStep::Reasoner { train_step, .. } => train_step.model.has_adapter_dropout(),
            BenchedStep::Colar { train_step, .. } => train_step.model.has_adapter_dropout(),
            BenchedStep::Reward { train_step, .. } => train_step.model.has_adapter_dropout(),
        };
        let dropout = (p > 0.0 || adapters).then_some(DropoutConfig { p, seed: 0, step });
        let loss = device.run(|| match benched {
            BenchedStep::Reasoner { train_step, examples } => {
                let losses = train_step.batch_losses(examples, dropout)?;
                OPTIMIZER.step(device, step, 1, train_step.parameters_mut())?;
                train_step.sync_weights()?;
                Ok::<_, DeviceError>(losses.tokens)
            }
            BenchedStep::Colar { train_step, examples } => {
                let losses = train_step.batch_losses(examples, dropout)?;
                OPTIMIZER.step(device, step, 1, train_step.parameters_mut())?;
                train_step.sync_weights()?;
                Ok(losses.tokens)
            }
            BenchedStep::Reward { train_step, examples } => {
                let objective = Objective::Contrastive;
                let config = RewardLossConfig {
                    objective,
                    step_weight: &|_| 1.0,
                    dropout,
                    order_preference: 0.0,
                };
                let losses = train_step.accumulate_gradients(examples, config)?;
                OPTIMIZER.step(device, step, 1, train_step.parameters_mut())?;
                train_step.sync_weights()?;
                Ok(losses.objective)
            }
        })?;
        device.synchronize()?;
        Ok(loss)
    }

    /// Number of sequences of the batch; student and teacher count as two.
    pub fn sequences(&self) -> usize {
        match &self.benched {
            BenchedStep::Reasoner { examples, .. } => examples.len(),
            BenchedStep::Colar { examples, .. } => examples.len(),
            BenchedStep::Reward { examples, .. } => {
                examples.iter().map(|example| example.lengths.len()).sum()
            }
        }
    }

    /// Positions (tokens and thoughts) per step; a prompt shared by trajectories counts once.
    pub fn positions(&self) -> usize {
        match &self.benched {
            BenchedStep::Reasoner { examples, .. } => {
                examples.iter().map(TokenizedExample::len).sum()
            }
            BenchedStep::Colar { examples, .. } => {
                examples.iter().map(|example| example.rows().fed).sum()
            }
            BenchedStep::Reward { examples, .. } => {
                examples.iter().map(|example| example.prompt.len() + example.thoughts.rows()).sum()
            }
        }
    }

    /// Floating-point operations per step: the forward pass, plus twice as many for the backward
    /// pass. Optimizer, heads and step decoder are not counted.
    pub fn flops(&self) -> f64 {
        let forward: f64 = match &self.benched {
            BenchedStep::Reasoner { train_step, examples } => {
                let decoder = &train_step.model.decoder;
                examples.iter().map(|example| sequence_flops(decoder, example.rows())).sum()
            }
            BenchedStep::Colar { train_step, examples } => {
                let decoder = &train_step.model.decoder;
                examples.iter().map(|example| sequence_flops(decoder, example.rows())).sum()
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

fn sequence_flops(decoder: &Decoder, rows: ExampleRows) -> f64 {
    decoder.flops_for(0..rows.fed) + rows.logits as f64 * decoder.flops_per_logits()
}

/// Examples of equal lengths.
struct SyntheticBatch<'a> {
    config: &'a Config,
    size: TrainBenchSize,
    target: usize,
}

impl SyntheticBatch<'_> {
    fn tokens(&self, sequence: u32, count: usize) -> Vec<u32> {
        synthetic_tokens(self.config.vocab, sequence, count)
    }

    /// A prompt, thoughts, an end-latent token and an answer.
    fn students(&self) -> Vec<TokenizedExample> {
        let student = |id: u32| TokenizedExample {
            id,
            prompt: self.tokens(id, self.size.prompt),
            thoughts: self.size.thoughts,
            completion: self.tokens(!id, 1 + self.target),
            loss_start: 1,
            step_tokens: (0..STEPS.0 as u32).map(|step| self.tokens(step, STEPS.1)).collect(),
            compared_at: Some(1 + self.target / 2),
            ..TokenizedExample::default()
        };
        (0..self.size.sequences as u32).map(student).collect()
    }

    /// A prompt, a chain of thought and an answer.
    fn cot(&self, role: DistillRole) -> Vec<TokenizedExample> {
        let example = |id: u32| TokenizedExample {
            id,
            prompt: self.tokens(id, self.size.prompt),
            completion: self.tokens(!id, COT_TOKENS + self.target),
            compared_at: Some(COT_TOKENS + self.target / 2),
            role,
            ..TokenizedExample::default()
        };
        (0..self.size.sequences as u32).map(example).collect()
    }

    /// A prompt, a compressed chain of thought, a separator and an answer.
    fn colar(&self) -> Vec<ColarExample> {
        let example = |id: u32| {
            let cot = self.tokens(id, COT_TOKENS);
            let groups: Vec<Vec<u32>> =
                [vec![1]].into_iter().chain(cot.chunks(SPEED).map(<[u32]>::to_vec)).collect();
            ColarExample {
                id,
                prompt: self.tokens(id, self.size.prompt),
                labels: groups.iter().map(|group| group[0]).collect(),
                groups,
                completion: self.tokens(!id, 1 + self.target),
                noise: None,
            }
        };
        (0..self.size.sequences as u32).map(example).collect()
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

/// Synthetic tokens of a vocabulary, different for each sequence.
pub fn synthetic_tokens(vocab: usize, sequence: u32, count: usize) -> Vec<u32> {
    let token =
        |i: u32| sequence.wrapping_mul(7919).wrapping_add(i.wrapping_mul(104_729)) % vocab as u32;
    (0..count as u32).map(token).collect()
}

/// Standard normal vectors (thoughts, width), on the scale of a final norm's output.
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

    const COCONUT: (BenchMethod, Option<&LoraConfig>) = (BenchMethod::Coconut, None);
    const SIZE: TrainBenchSize = TrainBenchSize { sequences: 6, prompt: 7, thoughts: 3 };

    fn device() -> Device {
        Device::cpu(std::num::NonZeroUsize::new(2)).unwrap()
    }

    #[test]
    fn a_reasoner_starts_at_chance_and_fits_its_batch() {
        let bench = TrainBench::reasoner(&device(), &config(), SIZE, 4, COCONUT).unwrap();
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
    fn every_method_starts_at_chance_and_fits_its_batch() {
        let lora = LoraConfig {
            rank: 4,
            alpha: 8.0,
            targets: model::LoraTargets::All,
            dropout: 0.0,
            seed: 0,
        };
        for method in [BenchMethod::Cot, BenchMethod::Codi, BenchMethod::Simcot, BenchMethod::Colar]
        {
            for lora in [None, Some(&lora)] {
                let of = (method, lora);
                let mut bench = TrainBench::reasoner(&device(), &config(), SIZE, 4, of).unwrap();
                let first = bench.step().unwrap();
                assert!((first - (config().vocab as f64).ln()).abs() < 0.3, "{of:?}: {first}");
                let last = (0..60).map(|_| bench.step().unwrap()).last().unwrap();
                assert!(last < first, "{of:?}: {first} and then {last}");
            }
        }
    }

    #[test]
    fn shared_prompts_are_counted_once() {
        let reasoner = TrainBench::reasoner(&device(), &config(), SIZE, 4, COCONUT).unwrap();
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
