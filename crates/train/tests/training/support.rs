//! Tiny models, examples and tasks shared by the tests.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use corpus::{self, Split};
use data::TrainExample;
use engine::family::CODI_PROJECTOR;
use latent_tts_train::TrainError;
use latent_tts_train::curriculum::{Curriculum, Removal};
use latent_tts_train::data_loader::{BatchSpec, DataLoader, ExampleSource};
use latent_tts_train::digit_head::{DigitHead, ThoughtTarget};
use latent_tts_train::dropout::DropoutConfig;
use latent_tts_train::latent_step::{AuxiliaryLosses, LatentTrainStep};
use latent_tts_train::loss::Objective;
use latent_tts_train::methods::TrainingMethod;
use latent_tts_train::methods::coconut::CoconutEncoder;
use latent_tts_train::model_dir::{
    self, ModelInit, ModelUsage, ScratchShape, TrainableModel, TuningSpec, WeightWriter,
};
use latent_tts_train::reasoner::{ReasonerTask, ReasonerTraining, TaskSetup};
use latent_tts_train::reward_step::{
    DigitHeads, OutcomeHead, RewardExample, RewardHeadKind, RewardLossConfig, RewardTrainStep,
    TrainableRewardHead,
};
use latent_tts_train::schedule::{LrSchedule, Optimizer};
use latent_tts_train::tokenized_example::TokenizedExample;
use latent_tts_train::trainer::{
    EventCallback, KeepPolicy, TrainConfig, TrainLoop, TrainOutcome, TrainSettings, TrainTask,
};
use model::save::SaveDtype;
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use model::{
    Checkpoint, LmHead, LoraConfig, Parameter, RandomWeights, TrainableDecoder, TrainableHead,
};
use tensor::{Device, Tensor};

/// Weights of heads missing from a checkpoint, large enough to have an effect.
const HEADS: RandomWeights = RandomWeights { seed: 5 };
/// Weight of the digit losses.
pub const DIGIT_WEIGHT: f32 = 0.7;

/// All weights, saved in f32.
pub const FULL_TUNING: TuningSpec = TuningSpec { lora: None, dtype: SaveDtype::F32 };
/// The writer of all weights in f32.
pub const FULL_WRITER: WeightWriter = WeightWriter { dtype: SaveDtype::F32, adapter: None };

pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Device::cpu(NonZeroUsize::new(2)).unwrap())
}

/// A model of hidden size 16.
pub fn tiny(family: CheckpointFamily) -> CheckpointSpec {
    let (width, heads, kv_heads, head_dim, ffn, head_width) = (16, 2, 1, 8, 24, 12);
    CheckpointSpec {
        family,
        width,
        heads,
        kv_heads,
        head_dim,
        ffn,
        head_width,
        context: 64,
        ..CheckpointSpec::default()
    }
}

/// A train step of a tiny reasoner.
pub fn latent_step(family: CheckpointFamily, digits: bool) -> LatentTrainStep {
    latent_step_of(&tiny(family), digits)
}

/// A train step of a reasoner.
pub fn latent_step_of(spec: &CheckpointSpec, digits: bool) -> LatentTrainStep {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), spec).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let config = checkpoint.config();
    let head = if checkpoint.has("projector.1.weight") {
        TrainableHead::mlp(device(), &checkpoint, &CODI_PROJECTOR).unwrap()
    } else {
        TrainableHead::Identity
    };
    let model = TrainableDecoder::load(device(), config, &checkpoint, LmHead::With).unwrap();
    let auxiliary = AuxiliaryLosses {
        digit_head: digits.then(|| digit_head("digits", config.width)),
        operand_head: digits.then(|| {
            let source = &HEADS;
            let width = config.width;
            DigitHead::with_numbers(device(), source, "operands", width, 3, DIGIT_WEIGHT).unwrap()
        }),
        ..AuxiliaryLosses::default()
    };
    LatentTrainStep::new(model, head, auxiliary)
}

fn digit_head(name: &str, width: usize) -> DigitHead {
    DigitHead::new(device(), &HEADS, name, width, DIGIT_WEIGHT).unwrap()
}

/// A train step of a tiny reward model.
pub fn reward_step(
    family: CheckpointFamily,
    head: RewardHeadKind,
    digits: bool,
) -> RewardTrainStep {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), &tiny(family)).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let width = checkpoint.config().width;
    let model = TrainableDecoder::load(device(), checkpoint.config(), &checkpoint, LmHead::Without)
        .unwrap();
    let head = TrainableRewardHead::load(device(), &HEADS, head, width).unwrap();
    let digit_heads = || DigitHeads {
        current: digit_head("current", width),
        next: digit_head("next", width),
        answer: digit_head("answer", width),
    };
    RewardTrainStep::new(model, head, digits.then(digit_heads))
}

/// Adds an outcome head.
pub fn with_outcome_head(step: RewardTrainStep) -> RewardTrainStep {
    let head =
        TrainableRewardHead::outcome(device(), &HEADS, step.model.decoder.config().width).unwrap();
    step.with_outcome_head(OutcomeHead { head, end_latent: vec![5] })
}

/// An example with `thoughts` thoughts, one context token and `targets` tokens in the loss.
pub fn tokenized_example(id: u32, thoughts: usize, targets: usize) -> TokenizedExample {
    let tokens = |count: usize, salt: u32| {
        (0..count as u32).map(|i| (i * 37 + id * 11 + salt) % 250).collect::<Vec<_>>()
    };
    TokenizedExample {
        id,
        prompt: tokens(4 + id as usize % 3, 1),
        thoughts,
        completion: tokens(1 + targets, 90),
        loss_start: 1,
        thought_targets: vec![
            Some(ThoughtTarget::Result(i64::from(id) * 17 + 3)),
            Some(ThoughtTarget::Operands([240, i64::from(id), 1])),
            None,
            Some(ThoughtTarget::Result(240 - i64::from(id))),
        ],
        ..TokenizedExample::default()
    }
}

/// Dropout with fixed masks.
pub fn dropout() -> DropoutConfig {
    DropoutConfig { p: 0.2, seed: 3, step: 1 }
}

/// A problem whose trajectories have the given numbers of thoughts.
pub fn reward_example(id: u32, lengths: &[usize]) -> RewardExample {
    let rows: usize = lengths.iter().sum();
    let thoughts = (0..rows * 16).map(|i| ((i as f32 + 1.0) * (id as f32 + 0.7)).sin()).collect();
    RewardExample {
        id,
        prompt: (0..4 + id).map(|i| i * 29 + id).collect(),
        thoughts: Tensor::from_vec(rows, 16, thoughts),
        lengths: lengths.to_vec(),
        labels: (0..rows).map(|i| (i * 3 % 5) as f32 / 4.0).collect(),
        reference_trace: Tensor::default(),
        answers: (0..lengths.len() as u32)
            .map(|n| (0..=n % 3).map(|i| i * 13 + id + n).collect())
            .collect(),
        correct: (0..lengths.len()).map(|n| n % 2 == 0).collect(),
        step_results: vec![i64::from(id) + 41, 7],
        permuted_from: Vec::new(),
    }
}

/// An objective with increasing step weights.
pub fn loss_config(
    objective: Objective,
    dropout: Option<DropoutConfig>,
) -> RewardLossConfig<'static> {
    let step_weight = &|t| 1.0 + 0.5 * t as f32;
    RewardLossConfig { objective, step_weight, dropout, order_preference: 0.0 }
}

/// The gradients of parameters, by name.
pub type NamedGradients = Vec<(String, Vec<f32>)>;

/// Returns all gradients by name and zeroes them.
pub fn take_gradients<'a>(
    parameters: impl IntoIterator<Item = &'a mut Parameter>,
) -> NamedGradients {
    let take = |parameter: &mut Parameter| {
        let gradient = parameter.gradient.data().to_vec();
        parameter.gradient.data_mut().fill(0.0);
        (parameter.name().to_owned(), gradient)
    };
    parameters.into_iter().map(take).collect()
}

/// Problems of the corpus.
pub fn problems(count: u64) -> Vec<TrainExample> {
    (0..count).map(|i| corpus::problem(Split::Train, 1, i).into()).collect()
}

/// The optimizer of all trainings in these tests.
pub fn optimizer(steps: u32, peak: f32) -> Optimizer {
    let schedule = LrSchedule { peak, warmup: 2, steps, min_ratio: 0.1 };
    Optimizer {
        schedule,
        betas: (0.9, 0.98),
        eps: 1e-8,
        weight_decay: 0.01,
        decay_all: false,
        clip: Some(1.0),
    }
}

/// Settings of a task that trains a new reasoner with six thoughts and no explicit steps.
pub struct ReasonerFixture {
    pub width: usize,
    pub layers: usize,
    pub batch: usize,
    pub accumulation_steps: u32,
    pub steps: u32,
    pub dropout: f32,
}

impl ReasonerFixture {
    /// A new model.
    pub fn scratch(&self, out: &Path, usage: impl Into<ModelUsage>) -> TrainableModel {
        let shape = ScratchShape {
            width: self.width,
            layers: self.layers,
            heads: 2,
            context: 256,
            seed: 4,
        };
        let init = ModelInit::Scratch(shape);
        model_dir::init_model(device(), &init, out, usage, &FULL_TUNING).unwrap()
    }

    /// A task of any method. With LoRA, the base is a new model in `out/base`.
    pub fn method_task(
        &self,
        out: &Path,
        method: &dyn TrainingMethod,
        lora: Option<LoraConfig>,
        examples: Vec<TrainExample>,
    ) -> Box<dyn TrainTask> {
        let model = self.model(out, method, lora);
        let training = self.training(out, examples);
        method.task(TaskSetup { device: device().clone(), model, training }).unwrap()
    }

    /// The model of [`Self::method_task`].
    pub fn model(
        &self,
        out: &Path,
        method: &dyn TrainingMethod,
        lora: Option<LoraConfig>,
    ) -> TrainableModel {
        if lora.is_none() {
            return self.scratch(out, method.usage());
        }
        let base = out.join("base");
        if !base.join("model.safetensors").exists() {
            let model = self.scratch(&base, serde_json::json!({ "family": "cot" }));
            model.writer.write(&base, &model.decoder, []).unwrap();
        }
        pretrained(out, base, method, lora)
    }

    /// A task of any method that starts from a model.
    pub fn pretrained_task(
        &self,
        out: &Path,
        base: PathBuf,
        method: &dyn TrainingMethod,
        lora: Option<LoraConfig>,
        examples: Vec<TrainExample>,
    ) -> Box<dyn TrainTask> {
        let model = pretrained(out, base, method, lora);
        let training = self.training(out, examples);
        method.task(TaskSetup { device: device().clone(), model, training }).unwrap()
    }

    /// The training of a model by any method.
    pub fn training(&self, out: &Path, examples: Vec<TrainExample>) -> ReasonerTraining {
        ReasonerTraining {
            source: ExampleSource::List { examples: Arc::new(examples.clone()), seed: 2 },
            batch_size: self.batch,
            steps: self.steps,
            accumulation_steps: self.accumulation_steps,
            dropout: self.dropout,
            seed: 6,
            out: out.to_owned(),
            held_out: examples,
        }
    }

    pub fn task(
        &self,
        out: &Path,
        examples: Vec<TrainExample>,
    ) -> ReasonerTask<LatentTrainStep, CoconutEncoder> {
        let usage = serde_json::json!({ "family": "coconut", "thoughts": 6, "max_new_tokens": 8 });
        let model = self.scratch(out, usage);
        let digits = DigitHead::new(device(), &HEADS, "digits", self.width, 0.1).unwrap();
        let removal = Removal::Smooth { end: 0.0, no_cot_fraction: 1.0, uniform_prob: 0.0 };
        let spec = BatchSpec {
            source: ExampleSource::List { examples: Arc::new(examples.clone()), seed: 2 },
            encoder: CoconutEncoder {
                tokenizer: model.tokenizer,
                markers: model.markers,
                curriculum: Curriculum::Latent { thoughts: 6, removal },
                thoughts_per_step: 1,
            },
            batch_size: self.batch,
            batches: u64::from(self.steps * self.accumulation_steps),
            seed: 9,
            context: 256,
        };
        ReasonerTask {
            device: device().clone(),
            train_step: LatentTrainStep::new(
                model.decoder,
                TrainableHead::Identity,
                AuxiliaryLosses { digit_head: Some(digits), ..AuxiliaryLosses::default() },
            ),
            loader: DataLoader::new(spec),
            dropout: self.dropout,
            seed: 6,
            accumulation_steps: self.accumulation_steps,
            out: out.to_owned(),
            writer: model.writer,
            held_out: examples,
        }
    }
}

/// A model that starts from another.
pub fn pretrained(
    out: &Path,
    base: PathBuf,
    method: &dyn TrainingMethod,
    lora: Option<LoraConfig>,
) -> TrainableModel {
    let init = ModelInit::Pretrained((&base).into());
    let tuning = TuningSpec { lora: lora.map(Into::into), ..FULL_TUNING };
    model_dir::init_model(device(), &init, out, method.usage(), &tuning).unwrap()
}

/// Settings of a loop without intermediate evaluations and saves.
pub fn train_config(out: &Path, steps: u32, peak: f32) -> TrainConfig {
    TrainConfig {
        optimizer: optimizer(steps, peak),
        accumulation_steps: 1,
        dir: out.join("training"),
        save_every: 0,
        eval_every: 0,
        keep: KeepPolicy::Best,
        patience: 0,
        max_loss_ratio: Some(3.0),
        settings: TrainSettings::default(),
        change_optimizer: false,
    }
}

/// Runs the training loop on the tests' device.
pub fn train(
    task: &mut dyn TrainTask,
    config: &TrainConfig,
    on_event: &mut EventCallback<'_>,
) -> Result<TrainOutcome, TrainError> {
    TrainLoop { device: device(), config }.run(task, on_event)
}
