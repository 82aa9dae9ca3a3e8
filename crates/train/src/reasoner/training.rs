//! A reasoner's training from its settings: the method's losses, heads and encoder, as a task for
//! the trainer.

use std::path::PathBuf;
use std::sync::Arc;

use engine::family::{CODI_PROJECTOR, COLAR_HEAD, ROT_HEAD, ROT_MARKERS};
use model::{
    InitialWeights, MlpShape, TrainableGaussianHead, TrainableHead, TrainableMlp, TrainableSwiGlu,
};
use serde::Serialize;
use serde_json::{Value, json};
use tensor::Device;

use super::ReasonerTask;
use crate::curriculum::Curriculum;
use crate::data_loader::{BatchSpec, DataLoader, ExampleSource};
use crate::digit_head::DigitHead;
use crate::error::TrainError;
use crate::latent_step::{AuxiliaryLosses, LatentTrainStep};
use crate::methods::coconut::CoconutEncoder;
use crate::methods::codi::{CodiEncoder, Distillation};
use crate::methods::colar::{self, ColarEncoder, ColarTrainStep};
use crate::methods::latent_sft::{LatentSftEncoder, LatentSftTrainStep};
use crate::methods::layout::FamilyLayout;
use crate::methods::rot::{RotEncoder, RotTrainStep};
use crate::methods::simcot::StepDecoder;
use crate::methods::{ExampleEncoder, TrainStep};
use crate::model_dir::{self, ModelUsage, TrainableModel, WeightWriter};
use crate::trainer::TrainTask;
use data::TrainExample;

/// A method with its settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "method")]
pub enum MethodSpec {
    /// COCONUT, or a baseline with explicit or no steps.
    Coconut {
        /// Decides which steps become thoughts.
        curriculum: Curriculum,
        /// Thoughts that a step should take; see [`CoconutEncoder::thoughts_per_step`].
        thoughts_per_step: usize,
        /// Weight of the digit losses; 0 for none.
        digits: f32,
        /// SIM-CoT's loss.
        step_decoder: StepDecoderSpec,
    },
    /// CODI.
    Codi {
        /// Thoughts of the student.
        thoughts: usize,
        /// Weight of the distillation loss.
        gamma: f32,
        /// Inner width of the projector; `None` for the hidden size.
        projector: Option<usize>,
        /// Whether the teacher writes the last step too.
        keeps_last_step: bool,
        /// Text before the question.
        prompt_prefix: String,
        /// SIM-CoT's loss.
        step_decoder: StepDecoderSpec,
    },
    /// CoLaR's supervised stage.
    Colar {
        /// The fewest and the most tokens that a thought stands for.
        speeds: (usize, usize),
        /// Whether a thought tells the order of its tokens.
        ordered: bool,
        /// Inner width of the latent head.
        latent_head: usize,
    },
    /// Like Latent-SFT.
    LatentSft {
        /// Tokens that a thought stands for.
        compression: usize,
        /// Whether a thought tells the order of its tokens.
        ordered: bool,
        /// The share of examples that are fed the model's own mixtures.
        scheduled_sampling: f32,
        /// The most thoughts of inference.
        thoughts: usize,
        /// Texts around question and thoughts.
        layout: FamilyLayout,
    },
    /// Like Render-of-Thought.
    Rot {
        /// Thoughts of every example.
        thoughts: usize,
        /// Tokens that a thought stands for, more where the chain would not fit.
        compression: usize,
        /// Whether a thought tells the order of its tokens.
        ordered: bool,
        /// Weight of the regression.
        gamma: f32,
        /// The share of examples that are fed the head's own thoughts.
        scheduled_sampling: f32,
        /// Inner width of the projection head.
        latent_head: usize,
        /// Texts around question and thoughts.
        layout: FamilyLayout,
    },
}

/// SIM-CoT's auxiliary loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepDecoderSpec {
    /// Its weight; 0 for none.
    pub loss_weight: f32,
    /// Thoughts that a step is read from.
    pub thoughts_per_step: usize,
}

impl StepDecoderSpec {
    /// No loss.
    pub const NONE: Self = Self { loss_weight: 0.0, thoughts_per_step: 1 };
}

impl MethodSpec {
    /// The `latent_tts` section of config.json: the family and its generation defaults.
    pub fn family_config(&self) -> Value {
        match self {
            Self::Coconut { curriculum: Curriculum::Cot, .. } => {
                json!({ "family": "cot", "max_new_tokens": 128 })
            }
            Self::Coconut { curriculum: Curriculum::NoCot, .. } => {
                json!({ "family": "cot", "max_new_tokens": 24 })
            }
            Self::Coconut { curriculum: Curriculum::Latent { thoughts, .. }, .. } => {
                json!({ "family": "coconut", "thoughts": thoughts, "max_new_tokens": 24 })
            }
            Self::Codi { thoughts, prompt_prefix, .. } => json!({
                "family": "codi", "thoughts": thoughts, "max_new_tokens": 24,
                "prompt_prefix": prompt_prefix,
            }),
            Self::Colar { .. } => json!({ "family": "colar", "max_new_tokens": 24 }),
            Self::LatentSft { thoughts, layout, .. } => {
                layout_config("latent-sft", *thoughts, layout)
            }
            Self::Rot { thoughts, layout, .. } => layout_config("rot", *thoughts, layout),
        }
    }

    /// How the trained model will be used.
    pub fn usage(&self) -> ModelUsage {
        let added_tokens = match self {
            Self::LatentSft { layout, .. } | Self::Rot { layout, .. } => {
                layout.added_tokens.clone()
            }
            _ => Vec::new(),
        };
        ModelUsage { config: self.family_config(), added_tokens }
    }
}

/// The `latent_tts` section of a family whose texts depend on the vocabulary.
fn layout_config(family: &str, thoughts: usize, layout: &FamilyLayout) -> Value {
    json!({
        "family": family, "thoughts": thoughts, "max_new_tokens": 24,
        "prompt_prefix": layout.prompt_prefix, "prompt_suffix": layout.prompt_suffix,
    })
}

/// The settings of a reasoner's training, the optimizer's aside.
#[derive(Clone)]
pub struct ReasonerTraining {
    /// The method.
    pub method: MethodSpec,
    /// Its data.
    pub source: ExampleSource,
    /// Examples per batch.
    pub batch_size: usize,
    /// Optimizer steps.
    pub steps: u32,
    /// Micro-batches per step.
    pub accumulation_steps: u32,
    /// Dropout probability; 0 for none.
    pub dropout: f32,
    /// Seed of new weights, curriculum, labels, noise and masks.
    pub seed: u64,
    /// Directory of the model; configuration and tokenizer are in it.
    pub out: PathBuf,
    /// Problems for evaluation; may be empty.
    pub held_out: Vec<TrainExample>,
}

impl ReasonerTraining {
    /// The training of a model as a task.
    pub fn task(
        self,
        device: &Device,
        model: TrainableModel,
    ) -> Result<Box<dyn TrainTask>, TrainError> {
        let config = model.decoder.decoder.config().clone();
        match self.method.clone() {
            MethodSpec::Coconut { curriculum, thoughts_per_step, digits, step_decoder } => {
                let is_latent = matches!(curriculum, Curriculum::Latent { .. });
                let source = InitialWeights { seed: self.seed, layers: config.layers };
                let head = |name, numbers, wanted: bool| {
                    let wanted = wanted && is_latent && digits > 0.0;
                    let new = || {
                        let width = config.width;
                        DigitHead::with_numbers(device, &source, name, width, numbers, digits)
                    };
                    wanted.then(new).transpose()
                };
                let auxiliary = AuxiliaryLosses {
                    digit_head: head("digits", 1, true)?,
                    operand_head: head("operands", 3, thoughts_per_step > 1)?,
                    step_decoder: load_step_decoder(device, &model, step_decoder)?,
                    ..AuxiliaryLosses::default()
                };
                let encoder = CoconutEncoder {
                    tokenizer: Arc::new(model.tokenizer),
                    markers: model.markers,
                    curriculum,
                    thoughts_per_step,
                };
                let step = LatentTrainStep::new(model.decoder, TrainableHead::Identity, auxiliary);
                Ok(self.with(device, step, encoder, model.writer))
            }
            MethodSpec::Codi {
                thoughts,
                gamma,
                projector,
                keeps_last_step,
                prompt_prefix,
                step_decoder,
            } => {
                let source = model.initial.head_source(self.seed, config.layers)?;
                let hidden = source.rows(&format!("{}.weight", CODI_PROJECTOR.up)).or(projector);
                let (inputs, outputs) = (config.width, config.width);
                let shape = MlpShape { inputs, hidden: hidden.unwrap_or(inputs), outputs };
                let head = TrainableMlp::load(device, &source, &CODI_PROJECTOR, shape)?;
                let auxiliary = AuxiliaryLosses {
                    distillation: Some(Distillation { loss_weight: gamma }),
                    step_decoder: load_step_decoder(device, &model, step_decoder)?,
                    ..AuxiliaryLosses::default()
                };
                let encoder = CodiEncoder {
                    tokenizer: Arc::new(model.tokenizer),
                    markers: model.markers,
                    prompt_prefix,
                    thoughts,
                    keeps_last_step,
                };
                let head = TrainableHead::Mlp(Box::new(head));
                let step = LatentTrainStep::new(model.decoder, head, auxiliary);
                Ok(self.with(device, step, encoder, model.writer))
            }
            MethodSpec::Colar { speeds, ordered, latent_head } => {
                colar::check_vocabulary(&model.tokenizer)?;
                let source = model.initial.head_source(self.seed, config.layers)?;
                let hidden = source.rows(&format!("{}.weight", COLAR_HEAD.up));
                let shape = (config.width, hidden.unwrap_or(latent_head));
                let head = TrainableGaussianHead::load(device, &source, &COLAR_HEAD, shape)?;
                let std = match config.latent.embedding_std {
                    Some(std) => std,
                    None => model.decoder.embedding_std()?,
                };
                model_dir::set_embedding_std(&self.out, std)?;
                let encoder = ColarEncoder {
                    tokenizer: Arc::new(model.tokenizer),
                    eos: model.markers.eos,
                    speeds,
                    seed: self.seed,
                };
                let mut step = ColarTrainStep::new(model.decoder, head, std);
                step.ordered = ordered;
                step.seed = self.seed;
                Ok(self.with(device, step, encoder, model.writer))
            }
            MethodSpec::LatentSft { compression, ordered, scheduled_sampling, layout, .. } => {
                let encoder = LatentSftEncoder {
                    tokenizer: Arc::new(model.tokenizer),
                    layout,
                    eos: model.markers.eos,
                    compression,
                    scheduled_sampling,
                };
                let step = LatentSftTrainStep::new(model.decoder, ordered);
                Ok(self.with(device, step, encoder, model.writer))
            }
            MethodSpec::Rot {
                thoughts,
                compression,
                ordered,
                gamma,
                scheduled_sampling,
                latent_head,
                layout,
            } => {
                let source = model.initial.head_source(self.seed, config.layers)?;
                let hidden = source.rows(&format!("{}.weight", ROT_HEAD.up));
                let shape = (config.width, hidden.unwrap_or(latent_head));
                let head = TrainableSwiGlu::load(device, &source, &ROT_HEAD, shape)?;
                let std = model.decoder.embedding_std()?;
                let encoder = RotEncoder {
                    markers: model_dir::token_ids(&model.tokenizer, ROT_MARKERS)?,
                    tokenizer: Arc::new(model.tokenizer),
                    layout,
                    eos: model.markers.eos,
                    thoughts,
                    compression,
                    scheduled_sampling,
                };
                let mut step = RotTrainStep::new(model.decoder, head, std);
                (step.ordered, step.loss_weight) = (ordered, gamma);
                Ok(self.with(device, step, encoder, model.writer))
            }
        }
    }

    /// The task of a method's step on its encoder's batches.
    fn with<S, E>(
        self,
        device: &Device,
        train_step: S,
        encoder: E,
        writer: WeightWriter,
    ) -> Box<dyn TrainTask>
    where
        S: TrainStep + 'static,
        E: ExampleEncoder<Encoded = S::Example> + 'static,
    {
        let batches = BatchSpec {
            source: self.source,
            encoder,
            batch_size: self.batch_size,
            batches: u64::from(self.steps) * u64::from(self.accumulation_steps),
            seed: self.seed,
            context: train_step.model().decoder.config().context,
        };
        Box::new(ReasonerTask {
            device: device.clone(),
            train_step,
            loader: DataLoader::new(batches),
            dropout: self.dropout,
            seed: self.seed,
            accumulation_steps: self.accumulation_steps,
            out: self.out,
            writer,
            held_out: self.held_out,
        })
    }
}

/// SIM-CoT's decoder, which begins as a copy of the model; `None` without its loss.
fn load_step_decoder(
    device: &Device,
    model: &TrainableModel,
    spec: StepDecoderSpec,
) -> Result<Option<StepDecoder>, TrainError> {
    if spec.loss_weight == 0.0 {
        return Ok(None);
    }
    let mut copy = model.initial.load_copy(device, model.decoder.decoder.config())?;
    copy.set_recompute(model.decoder.recomputes());
    let mut decoder = StepDecoder::new(copy, spec.thoughts_per_step.max(1), model.markers.eos);
    decoder.loss_weight = spec.loss_weight;
    Ok(Some(decoder))
}
