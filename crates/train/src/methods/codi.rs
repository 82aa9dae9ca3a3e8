//! CODI: self-distillation. At the token before the answer's number, a loss pulls the hidden states
//! of the student (latent thoughts) towards those of the teacher (written steps).
//!
//! ```text
//! question [begin-latent] thoughts [end-latent] The answer is: 18 [eos]    student
//! question <<16-3-4=9>>                         The answer is: 18 [eos]    teacher
//! ```
//!
//! Student and teacher are the same model, applied to two examples of a batch with the same id. The
//! loss is the mean over the embedding and all blocks (the last after the final norm) of
//! `smooth_l1(student, teacher) / std(teacher)`; no gradient flows into the teacher.

use std::num::NonZeroUsize;
use std::sync::Arc;

use data::TrainExample;
use engine::family::CODI_PROJECTOR;
use model::{MlpShape, ModelError, Tokenizer, TrainableHead, TrainableMlp};
use serde::Serialize;
use serde_json::{Value, json};
use tensor::ops;
use tensor::{Device, DeviceError, Tensor};

use super::simcot::StepDecoderSpec;
use super::{
    ExampleEncoder, ExamplePlace, ExampleRows, LatentMarkers, MethodEntry, OptionCheck,
    TrainingMethod, guarded,
};
use crate::error::TrainError;
use crate::latent_step::{AuxiliaryLosses, ComparedRow, ForwardSegment, LatentTrainStep};
use crate::model_dir::ModelUsage;
use crate::options::MethodOptions;
use crate::reasoner::TaskSetup;
use crate::tokenized_example::{DistillRole, TokenizedExample};
use crate::trainer::TrainTask;

/// CODI's entry.
pub const METHOD: MethodEntry = MethodEntry {
    name: "codi",
    about: "Self-distillation from written steps; a projector computes the next thought",
    configure: |options, tokenizer| Ok(Box::new(CodiMethod::new(options, tokenizer)?)),
};

/// The text before an answer.
const ANSWER_INTRODUCTION: &str = "The answer is:";
/// The token that Llama 3's prompts begin with.
const BEGIN_OF_TEXT: &str = "<|begin_of_text|>";

/// CODI's settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "method", rename = "codi")]
pub struct CodiMethod {
    /// Number of thoughts of the student.
    pub thoughts: usize,
    /// Weight of the distillation loss.
    pub gamma: f32,
    /// Inner width of the projector; `None` for the hidden size.
    pub projector: Option<usize>,
    /// Whether the teacher's chain of thought includes the last step.
    pub keeps_last_step: bool,
    /// Text before the question.
    pub prompt_prefix: String,
    /// SIM-CoT's auxiliary loss.
    pub step_decoder: StepDecoderSpec,
}

impl CodiMethod {
    fn new(options: &MethodOptions, tokenizer: &Tokenizer) -> Result<Self, TrainError> {
        OptionCheck::latent(METHOD.name, options)?.no_compression()?.no_order()?.no_blocks()?;
        let has_prefix = tokenizer.token_to_id(BEGIN_OF_TEXT).is_some();
        Ok(Self {
            thoughts: options.thoughts.map_or(6, NonZeroUsize::get),
            gamma: options.gamma,
            projector: options.projector.map(NonZeroUsize::get),
            keeps_last_step: options.keep_last_step,
            prompt_prefix: if has_prefix { BEGIN_OF_TEXT } else { "" }.to_owned(),
            step_decoder: StepDecoderSpec {
                loss_weight: options.step_decoder,
                thoughts_per_step: 1,
            },
        })
    }
}

impl TrainingMethod for CodiMethod {
    fn usage(&self) -> ModelUsage {
        ModelUsage::from(json!({
            "family": "codi", "thoughts": self.thoughts, "max_new_tokens": 24,
            "prompt_prefix": self.prompt_prefix,
        }))
    }

    fn settings(&self) -> Value {
        json!(self)
    }

    fn task(&self, setup: TaskSetup) -> Result<Box<dyn TrainTask>, TrainError> {
        let source = setup.head_source()?;
        let width = setup.model.decoder.decoder.config().width;
        let hidden = source.rows(&format!("{}.weight", CODI_PROJECTOR.up)).or(self.projector);
        let shape = MlpShape { inputs: width, hidden: hidden.unwrap_or(width), outputs: width };
        let head = TrainableMlp::load(&setup.device, &source, &CODI_PROJECTOR, shape)?;
        let auxiliary = AuxiliaryLosses {
            distillation: Some(Distillation { loss_weight: self.gamma }),
            step_decoder: self.step_decoder.load(&setup)?,
            ..AuxiliaryLosses::default()
        };
        let encoder = CodiEncoder {
            tokenizer: setup.tokenizer(),
            markers: setup.model.markers,
            prompt_prefix: self.prompt_prefix.clone(),
            thoughts: self.thoughts,
            keeps_last_step: self.keeps_last_step,
        };
        let head = TrainableHead::Mlp(Box::new(head));
        setup.task(encoder, |model| LatentTrainStep::new(model, head, auxiliary))
    }
}

/// Tokenizes examples for student and teacher.
#[derive(Clone)]
pub struct CodiEncoder {
    /// Tokenizes text.
    pub tokenizer: Arc<Tokenizer>,
    /// Special tokens.
    pub markers: LatentMarkers,
    /// Text before the question.
    pub prompt_prefix: String,
    /// Number of thoughts of the student.
    pub thoughts: usize,
    /// Whether the teacher's chain of thought includes the last step. CODI omits it, because the
    /// answer could be copied from it.
    pub keeps_last_step: bool,
}

impl ExampleEncoder for CodiEncoder {
    type Encoded = TokenizedExample;

    fn encode(
        &self,
        example: &TrainExample,
        place: ExamplePlace,
    ) -> Result<Vec<TokenizedExample>, ModelError> {
        let LatentMarkers { begin_latent, end_latent, eos } = self.markers;
        let example = &guarded(&self.tokenizer, example);
        let encode = |text: &str| self.tokenizer.encode(text);
        let question = encode(&format!("{}{}", self.prompt_prefix, example.question))?;
        let dropped = usize::from(!self.keeps_last_step);
        let steps = &example.steps[..example.steps.len().saturating_sub(dropped)];
        let mut answer = encode(ANSWER_INTRODUCTION)?;
        let number = encode(&format!(" {}", example.answer))?;
        // Some vocabularies have a token for the space before a number.
        let spaces = number.iter().take_while(|&&token| self.is_blank(token)).count();
        let compared_at = answer.len() + spaces - 1;
        answer.extend(number);
        answer.push(eos);
        let student = TokenizedExample {
            id: place.id as u32,
            prompt: question.iter().copied().chain([begin_latent]).collect(),
            thoughts: self.thoughts,
            completion: [end_latent].into_iter().chain(answer.iter().copied()).collect(),
            loss_start: 1,
            step_tokens: steps.iter().map(|step| encode(step)).collect::<Result<_, _>>()?,
            compared_at: Some(1 + compared_at),
            ..TokenizedExample::default()
        };
        let mut completion = encode(&steps.join(" "))?;
        let compared_at = Some(completion.len() + compared_at);
        completion.extend(answer);
        let teacher = TokenizedExample {
            id: student.id,
            prompt: question,
            completion,
            role: DistillRole::Teacher,
            compared_at,
            ..TokenizedExample::default()
        };
        Ok(vec![student, teacher])
    }

    fn rows(&self, encoded: &TokenizedExample) -> ExampleRows {
        encoded.rows()
    }
}

impl CodiEncoder {
    fn is_blank(&self, token: u32) -> bool {
        self.tokenizer.decode(&[token]).is_ok_and(|text| text.trim().is_empty())
    }
}

/// The distillation loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distillation {
    /// Weight of the loss, gamma in CODI's paper.
    pub loss_weight: f32,
}

/// The result of [`Distillation::distill`].
pub(crate) struct Distilled {
    /// Loss per layer, (blocks + 1, 1).
    pub(crate) losses: Tensor,
    /// The gradient of the students' last hidden states: (examples, width).
    pub(crate) dhidden: Tensor,
    /// Indices of these states among the output rows of the students' segment.
    pub(crate) outputs: Vec<usize>,
}

impl Distillation {
    /// Compares the students of one segment with the teachers of another; sets the gradients of
    /// the students' hidden states between blocks. `None` if nothing is compared.
    pub(crate) fn distill(
        &self,
        device: &Device,
        teachers: &ForwardSegment,
        students: &mut ForwardSegment,
    ) -> Result<Option<Distilled>, DeviceError> {
        let of_students = students.compared(DistillRole::Student);
        let of_teachers = teachers.compared(DistillRole::Teacher);
        let (of_students, of_teachers) = paired(&of_students, &of_teachers);
        if of_students.is_empty() {
            return Ok(None);
        }
        let student = hidden_states(device, students, &of_students)?;
        let teacher = hidden_states(device, teachers, &of_teachers)?;
        let groups = student.rows() / of_students.len();
        let examples = of_students.len();
        let weight = self.loss_weight / groups as f32;
        let mut gradient = Tensor::default();
        let losses = ops::smooth_l1(device, &student, &teacher, groups, weight, &mut gradient)?;
        let group = |g: usize| {
            let rows: Vec<usize> = (g * examples..(g + 1) * examples).collect();
            ops::select(device, [&gradient], &rows)
        };
        let rows: Vec<usize> = of_students.iter().map(|compared| compared.row).collect();
        let between_blocks = (0..groups - 1).map(group).collect::<Result<_, _>>()?;
        students.segment.set_input_gradients(device, &rows, between_blocks)?;
        let outputs = of_students.iter().map(|compared| compared.output).collect();
        Ok(Some(Distilled { losses, dhidden: group(groups - 1)?, outputs }))
    }
}

/// The rows of ids present on both sides, in the same order. Both inputs are sorted by id.
fn paired(
    students: &[ComparedRow],
    teachers: &[ComparedRow],
) -> (Vec<ComparedRow>, Vec<ComparedRow>) {
    let teacher = |id: u32| {
        let at = teachers.binary_search_by_key(&id, |row| row.id).ok()?;
        Some(teachers[at])
    };
    students.iter().filter_map(|student| Some((*student, teacher(student.id)?))).unzip()
}

/// The hidden states of `rows`, concatenated over layers: ((blocks + 1) * rows, width).
fn hidden_states(
    device: &Device,
    of: &ForwardSegment,
    rows: &[ComparedRow],
) -> Result<Tensor, DeviceError> {
    let (inputs, outputs): (Vec<usize>, Vec<usize>) =
        rows.iter().map(|compared| (compared.row, compared.output)).unzip();
    let mut layers = of.segment.block_inputs(device, &inputs)?;
    layers.push(ops::select(device, [&of.hidden], &outputs)?);
    ops::concat(device, &layers.iter().collect::<Vec<_>>())
}
