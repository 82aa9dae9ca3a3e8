//! COCONUT, and the baselines with explicit steps (CoT) or without steps (no-CoT).
//!
//! ```text
//! question \n [begin-latent] thoughts [end-latent] step \n … ### answer [eos]   latent
//! question \n                                      step \n … ### answer [eos]   CoT and no-CoT
//! ```

use std::num::NonZeroUsize;
use std::sync::Arc;

use data::TrainExample;
use data::worked_step::{step_operands, step_result};
use model::{InitialWeights, ModelError, Tokenizer, TrainableHead};
use serde::Serialize;
use serde_json::{Value, json};
use tensor::Device;

use super::simcot::StepDecoderSpec;
use super::{
    ExampleEncoder, ExamplePlace, ExampleRows, LatentMarkers, MethodEntry, OptionCheck,
    TrainingMethod, guarded,
};
use crate::curriculum::{Curriculum, CurriculumSample, Removal};
use crate::digit_head::{DigitHead, ThoughtTarget};
use crate::error::TrainError;
use crate::latent_step::{AuxiliaryLosses, LatentTrainStep};
use crate::model_dir::ModelUsage;
use crate::options::{CurriculumKind, MethodOptions, ReasonerMode};
use crate::reasoner::TaskSetup;
use crate::tokenized_example::TokenizedExample;
use crate::trainer::TrainTask;

/// COCONUT's entry.
pub const METHOD: MethodEntry = MethodEntry {
    name: "coconut",
    about: "Thoughts replace the steps one by one; the last hidden state is the next thought",
    configure: |options, _| Ok(Box::new(CoconutMethod::new(options)?)),
};

/// Settings of COCONUT and of the baselines with explicit or no steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "method", rename = "coconut")]
pub struct CoconutMethod {
    /// Schedule that replaces steps by thoughts.
    pub curriculum: Curriculum,
    /// Thoughts per step; see [`CoconutEncoder::thoughts_per_step`].
    pub thoughts_per_step: usize,
    /// Weight of the digit losses; 0 disables them.
    pub digit_loss_weight: f32,
    /// SIM-CoT's auxiliary loss.
    pub step_decoder: StepDecoderSpec,
}

impl CoconutMethod {
    fn new(options: &MethodOptions) -> Result<Self, TrainError> {
        let check = OptionCheck { method: METHOD.name, options };
        let check = check.no_compression()?.no_order()?.no_blocks()?;
        if options.mode != ReasonerMode::Latent {
            check.no_step_decoder()?;
        }
        let default = match options.curriculum {
            CurriculumKind::Smooth => 1,
            CurriculumKind::Stages => 2,
        };
        let thoughts_per_step = options.thoughts_per_step.map_or(default, NonZeroUsize::get);
        Ok(Self {
            curriculum: curriculum(options, thoughts_per_step),
            thoughts_per_step,
            digit_loss_weight: options.digit_loss_weight,
            step_decoder: StepDecoderSpec { loss_weight: options.step_decoder, thoughts_per_step },
        })
    }

    /// Loads a digit head; `None` if this curriculum has no digit loss.
    fn digit_head(
        &self,
        device: &Device,
        source: &InitialWeights,
        (name, numbers): (&str, usize),
        width: usize,
    ) -> Result<Option<DigitHead>, TrainError> {
        let is_latent = matches!(self.curriculum, Curriculum::Latent { .. });
        if !is_latent || self.digit_loss_weight == 0.0 {
            return Ok(None);
        }
        let weight = self.digit_loss_weight;
        Ok(Some(DigitHead::with_numbers(device, source, name, width, numbers, weight)?))
    }
}

/// The curriculum given by the options.
pub(super) fn curriculum(options: &MethodOptions, thoughts_per_step: usize) -> Curriculum {
    let end = f64::from(options.curriculum_end);
    let uniform_prob = f64::from(options.uniform_stage_prob);
    let no_cot_fraction = f64::from(options.no_cot_fraction);
    let removal = match options.curriculum {
        CurriculumKind::Smooth => Removal::Smooth { end, no_cot_fraction, uniform_prob },
        CurriculumKind::Stages => {
            let stages = options.stages;
            Removal::Stages { stages, thoughts_per_step, end, uniform_prob }
        }
    };
    match options.mode {
        ReasonerMode::Cot => Curriculum::Cot,
        ReasonerMode::NoCot => Curriculum::NoCot,
        ReasonerMode::Latent => {
            Curriculum::Latent { thoughts: options.thoughts.map_or(6, NonZeroUsize::get), removal }
        }
    }
}

impl TrainingMethod for CoconutMethod {
    fn usage(&self) -> ModelUsage {
        ModelUsage::from(match self.curriculum {
            Curriculum::Cot => json!({ "family": "cot", "max_new_tokens": 128 }),
            Curriculum::NoCot => json!({ "family": "cot", "max_new_tokens": 24 }),
            Curriculum::Latent { thoughts, .. } => {
                json!({ "family": "coconut", "thoughts": thoughts, "max_new_tokens": 24 })
            }
        })
    }

    fn settings(&self) -> Value {
        json!(self)
    }

    fn task(&self, setup: TaskSetup) -> Result<Box<dyn TrainTask>, TrainError> {
        let device = setup.device.clone();
        let config = setup.model.decoder.decoder.config().clone();
        let source = InitialWeights { seed: setup.training.seed, layers: config.layers };
        let operand_head = match self.thoughts_per_step > 1 {
            true => self.digit_head(&device, &source, ("operands", 3), config.width)?,
            false => None,
        };
        let auxiliary = AuxiliaryLosses {
            digit_head: self.digit_head(&device, &source, ("digits", 1), config.width)?,
            operand_head,
            step_decoder: self.step_decoder.load(&setup)?,
            ..AuxiliaryLosses::default()
        };
        let encoder = CoconutEncoder {
            tokenizer: setup.tokenizer(),
            markers: setup.model.markers,
            curriculum: self.curriculum,
            thoughts_per_step: self.thoughts_per_step,
        };
        setup.task(encoder, |model| LatentTrainStep::new(model, TrainableHead::Identity, auxiliary))
    }
}

/// Tokenizes examples in COCONUT's layout.
#[derive(Clone)]
pub struct CoconutEncoder {
    /// Tokenizes text.
    pub tokenizer: Arc<Tokenizer>,
    /// Special tokens.
    pub markers: LatentMarkers,
    /// Schedule that replaces steps by thoughts.
    pub curriculum: Curriculum,
    /// Thoughts per step, for the digit heads: the last one predicts the step's result; the first,
    /// if there are several, its operands and operator.
    pub thoughts_per_step: usize,
}

impl CoconutEncoder {
    fn thought_targets(&self, steps: &[String]) -> Vec<Option<ThoughtTarget>> {
        let mut targets = Vec::with_capacity(steps.len() * self.thoughts_per_step);
        for step in steps {
            let first = targets.len();
            targets.resize(first + self.thoughts_per_step, None);
            targets[first] = step_operands(step).map(ThoughtTarget::Operands);
            if let Some(last) = targets.last_mut() {
                *last = step_result(step).map(ThoughtTarget::Result);
            }
        }
        targets
    }

    /// Tokenizes an example in a given layout. Steps and answer are tokenized separately, as in
    /// COCONUT.
    pub fn encode_sample(
        &self,
        id: u32,
        example: &TrainExample,
        sample: CurriculumSample,
    ) -> Result<TokenizedExample, ModelError> {
        let LatentMarkers { begin_latent, end_latent, eos } = self.markers;
        let example = &guarded(&self.tokenizer, example);
        let encode = |text: &str| self.tokenizer.encode(text);
        let mut prompt = encode(&format!("{}\n", example.question))?;
        let mut completion = Vec::new();
        // Also without thoughts, so that all prompts of a latent reasoner end with the same tokens.
        let with_markers = matches!(self.curriculum, Curriculum::Latent { .. });
        if with_markers {
            prompt.push(begin_latent);
            completion.push(end_latent);
        }
        for step in &example.steps[sample.removed_steps.min(example.steps.len())..] {
            completion.extend(encode(&format!("{step}\n"))?);
        }
        completion.extend(encode(&format!("### {}", example.answer))?);
        completion.push(eos);
        Ok(TokenizedExample {
            id,
            prompt,
            thoughts: sample.thoughts,
            completion,
            loss_start: usize::from(with_markers),
            thought_targets: self.thought_targets(&example.steps),
            step_tokens: example.steps.iter().map(|step| encode(step)).collect::<Result<_, _>>()?,
            ..TokenizedExample::default()
        })
    }
}

impl ExampleEncoder for CoconutEncoder {
    type Encoded = TokenizedExample;

    fn encode(
        &self,
        example: &TrainExample,
        place: ExamplePlace,
    ) -> Result<Vec<TokenizedExample>, ModelError> {
        let ExamplePlace { id, progress, uniforms } = place;
        let sample = self.curriculum.sample(progress, example.steps.len(), uniforms);
        Ok(vec![self.encode_sample(id as u32, example, sample)?])
    }

    fn rows(&self, encoded: &TokenizedExample) -> ExampleRows {
        encoded.rows()
    }
}
