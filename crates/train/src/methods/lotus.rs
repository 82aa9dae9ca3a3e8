//! LOTUS: blocks of latent positions, computed in parallel over several loops; block k learns to
//! predict the tokens of step k.
//!
//! ```text
//! question \n [begin-latent]  block 1 … block K  [end-latent] step \n … ### answer [eos]
//!
//! pass 0:      the input of every latent position is the embedding E of the latent token
//! pass 1 … R:  E + the hidden state of the previous pass at the same position
//! ```
//!
//! In pass R the LM head predicts each token of step k one position before the token's position in
//! block k; the first token is predicted at the end of the prompt. Keys and values of earlier
//! passes are discarded, so gradients reach those passes only through the hidden states: each pass
//! is a separate segment, and the backward pass visits the segments in reverse order.

use std::num::NonZeroUsize;
use std::sync::Arc;

use data::TrainExample;
use engine::LatentLoop;
use engine::family::{LOTUS_BLOCKS, LOTUS_LOOPS};
use model::{Cache, ModelError, Parameter, Segment, Sequence, Tokenizer, TrainableDecoder};
use record::Losses;
use serde::Serialize;
use serde_json::{Value, json};
use tensor::ops;
use tensor::{Device, DeviceError, Tensor};

use super::{
    ExampleEncoder, ExamplePlace, ExampleRows, LatentMarkers, MethodEntry, OptionCheck, TrainStep,
    TrainingMethod, guarded,
};
use crate::curriculum::Curriculum;
use crate::dropout::DropoutConfig;
use crate::error::TrainError;
use crate::methods::coconut::curriculum;
use crate::model_dir::{ModelUsage, token_ids};
use crate::options::MethodOptions;
use crate::reasoner::TaskSetup;
use crate::rows::{PassRows, RowInput, reuse_cache};
use crate::trainer::TrainTask;
use crate::vocabulary::LATENT;

/// LOTUS's entry.
pub const METHOD: MethodEntry = MethodEntry {
    name: "lotus",
    about: "Looped blocks of latent positions; each block predicts the tokens of a step",
    configure: |options, _| Ok(Box::new(LotusMethod::new(options)?)),
};

/// The published weight of the loss on step tokens.
const STEP_LOSS_WEIGHT: f32 = 0.05;
/// The published block width for vocabularies with numbers as tokens; 25 with digits as tokens.
const BLOCK_WIDTH: usize = 13;

/// LOTUS's settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "method", rename = "lotus")]
pub struct LotusMethod {
    /// Schedule that removes written steps after the blocks.
    pub curriculum: Curriculum,
    /// Number of blocks of latent positions.
    pub blocks: usize,
    /// Latent positions per block.
    pub block_width: usize,
    /// Number of passes whose hidden states are fed back.
    pub loops: usize,
    /// Weight of the loss on step tokens.
    pub step_loss_weight: f32,
}

impl LotusMethod {
    fn new(options: &MethodOptions) -> Result<Self, TrainError> {
        OptionCheck::latent(METHOD.name, options)?
            .no_step_decoder()?
            .no_compression()?
            .no_order()?;
        let or = |option: Option<NonZeroUsize>, default| option.map_or(default, NonZeroUsize::get);
        Ok(Self {
            curriculum: curriculum(options, 1),
            blocks: or(options.blocks, LOTUS_BLOCKS),
            block_width: or(options.block_width, BLOCK_WIDTH),
            loops: or(options.loops, LOTUS_LOOPS),
            step_loss_weight: options
                .step_loss_weight
                .map_or(STEP_LOSS_WEIGHT, |weight| weight.get() as f32),
        })
    }
}

impl TrainingMethod for LotusMethod {
    fn usage(&self) -> ModelUsage {
        let Self { blocks, block_width, loops, .. } = self;
        ModelUsage::from(json!({
            "family": METHOD.name, "blocks": blocks, "block_width": block_width, "loops": loops,
            "max_new_tokens": 24,
        }))
    }

    fn settings(&self) -> Value {
        json!(self)
    }

    fn task(&self, setup: TaskSetup) -> Result<Box<dyn TrainTask>, TrainError> {
        let [token] = token_ids(&setup.model.tokenizer, [LATENT])?;
        let encoder = LotusEncoder {
            tokenizer: setup.tokenizer(),
            markers: setup.model.markers,
            curriculum: self.curriculum,
            blocks: self.blocks,
            block_width: self.block_width,
            loops: self.loops,
        };
        let looped = LatentLoop { token, block_width: self.block_width, loops: self.loops };
        let shape = LotusShape { blocks: self.blocks, looped };
        let weight = self.step_loss_weight;
        setup.task(encoder, |model| LotusTrainStep::new(model, shape, weight))
    }
}

/// An example whose steps are predicted at blocks of latent positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LotusExample {
    /// Index in the data; part of the RNG key of dropout masks.
    pub id: u32,
    /// Prompt tokens, including the one that begins the thoughts.
    pub prompt: Vec<u32>,
    /// Step tokens per block, at most the block width.
    pub steps: Vec<Vec<u32>>,
    /// The token that ends the thoughts, remaining written steps, and the answer with its end.
    pub completion: Vec<u32>,
}

/// Tokenizes examples in LOTUS's layout.
#[derive(Clone)]
pub struct LotusEncoder {
    /// Tokenizes text.
    pub tokenizer: Arc<Tokenizer>,
    /// Special tokens.
    pub markers: LatentMarkers,
    /// Schedule that removes written steps after the blocks.
    pub curriculum: Curriculum,
    /// Number of blocks of latent positions.
    pub blocks: usize,
    /// Latent positions per block.
    pub block_width: usize,
    /// Number of passes whose hidden states are fed back.
    pub loops: usize,
}

impl ExampleEncoder for LotusEncoder {
    type Encoded = LotusExample;

    fn encode(
        &self,
        example: &TrainExample,
        place: ExamplePlace,
    ) -> Result<Vec<LotusExample>, ModelError> {
        let ExamplePlace { id, progress, uniforms } = place;
        let sample = self.curriculum.sample(progress, example.steps.len(), uniforms);
        let example = &guarded(&self.tokenizer, example);
        let encode = |text: &str| self.tokenizer.encode(text);
        let LatentMarkers { begin_latent, end_latent, eos } = self.markers;
        let mut prompt = encode(&format!("{}\n", example.question))?;
        prompt.push(begin_latent);
        let mut completion = vec![end_latent];
        for step in &example.steps[sample.removed_steps.min(example.steps.len())..] {
            completion.extend(encode(&format!("{step}\n"))?);
        }
        completion.extend(encode(&format!("### {}", example.answer))?);
        completion.push(eos);
        let mut steps = Vec::with_capacity(self.blocks);
        for step in example.steps.iter().take(self.blocks) {
            let mut tokens = encode(step)?;
            tokens.truncate(self.block_width);
            steps.push(tokens);
        }
        Ok(vec![LotusExample { id: id as u32, prompt, steps, completion }])
    }

    fn rows(&self, encoded: &LotusExample) -> ExampleRows {
        let positions = self.blocks * self.block_width;
        let step_tokens: usize = encoded.steps.iter().map(Vec::len).sum();
        let answer = encoded.completion.len() - 1;
        let repeated = encoded.prompt.len() - Cache::shareable(encoded.prompt.len());
        let passes = (self.loops + 1) * (repeated + positions);
        ExampleRows {
            fed: encoded.prompt.len() + passes + answer,
            output: self.loops * positions + step_tokens + answer,
            logits: step_tokens + answer,
        }
    }
}

/// The latent positions of every example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LotusShape {
    /// Number of blocks of latent positions.
    pub blocks: usize,
    /// Width of a block, the latent token, and the number of loops.
    pub looped: LatentLoop,
}

impl LotusShape {
    fn positions(self) -> usize {
        self.blocks * self.looped.block_width
    }

    /// The step token at a latent position, if any.
    fn token_at(self, example: &LotusExample, position: usize) -> Option<u32> {
        let width = self.looped.block_width;
        example.steps.get(position / width)?.get(position % width).copied()
    }
}

/// A trainable LOTUS reasoner and its losses.
#[derive(Debug)]
pub struct LotusTrainStep {
    /// The decoder and its language-model head.
    pub model: TrainableDecoder,
    /// The latent positions.
    pub shape: LotusShape,
    /// Weight of the loss on step tokens.
    pub step_loss_weight: f32,
    cache: Option<Cache>,
}

/// Mean losses of a batch, unweighted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LotusLosses {
    /// Cross entropy per token after the thoughts, in nats.
    pub tokens: f64,
    /// Cross entropy per step token at the latent positions, in nats.
    pub steps: f64,
}

/// A forward pass over some rows, with the saved values for its backward pass.
struct LoopPass {
    rows: PassRows,
    segment: Segment,
    hidden: Tensor, // (output rows, width)
}

/// The last forward pass and its targets.
struct LastPass {
    pass: LoopPass,
    targets: Vec<u32>,  // per output row
    is_step: Vec<bool>, // per output row
}

impl LotusTrainStep {
    /// A train step on a model.
    pub fn new(model: TrainableDecoder, shape: LotusShape, step_loss_weight: f32) -> Self {
        Self { model, shape, step_loss_weight, cache: None }
    }

    fn device(&self) -> Device {
        self.model.decoder.device().clone()
    }

    /// Adds the gradients of a batch's loss to all parameters; returns its terms.
    pub fn batch_losses(
        &mut self,
        examples: &[LotusExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<LotusLosses, DeviceError> {
        let loops = self.shape.looped.loops;
        let own = |example: &LotusExample| {
            let positions = self.shape.positions();
            let repeated = example.prompt.len() - Cache::shareable(example.prompt.len());
            Cache::slots_for(example.prompt.len())
                + loops * Cache::slots_for(repeated + positions)
                + Cache::slots_for(repeated + positions + example.completion.len())
        };
        let slots = examples.iter().map(own).sum();
        let mut cache = reuse_cache(self.cache.take(), &self.model.decoder, slots)?;
        let mut prompts = vec![Sequence::default(); examples.len()];
        let prompt = self.pass_prompts(&mut cache, examples, &mut prompts, dropout)?;
        let mut passes: Vec<LoopPass> = Vec::with_capacity(loops);
        for number in 0..loops {
            let previous = passes.last().map(|pass| &pass.hidden);
            let x = self.loop_inputs(previous, examples.len())?;
            passes.push(self.pass_loop(&mut cache, examples, &prompts, (number, x, dropout))?);
        }
        let x = self.loop_inputs(passes.last().map(|pass| &pass.hidden), examples.len())?;
        let last = self.pass_last(&mut cache, examples, &prompts, (x, dropout))?;
        let losses = self.backward(&cache, examples, (prompt, passes, last));
        self.cache = Some(cache);
        losses
    }

    /// Inputs of the latent positions: the latent token's embedding plus the hidden states of the
    /// previous pass.
    fn loop_inputs(
        &self,
        previous: Option<&Tensor>,
        examples: usize,
    ) -> Result<Tensor, DeviceError> {
        let device = self.device();
        let embedding = self.model.decoder.embed(&[self.shape.looped.token])?;
        let rows = vec![0; examples * self.shape.positions()];
        let mut x = ops::select(&device, [&embedding], &rows)?;
        if let Some(hidden) = previous {
            ops::add(&device, &mut x, hidden)?;
        }
        Ok(x)
    }

    /// The forward pass over the prompts. An example with steps has an output at the end of its
    /// prompt, which predicts the first token of the first step.
    fn pass_prompts(
        &self,
        cache: &mut Cache,
        examples: &[LotusExample],
        prompts: &mut [Sequence],
        dropout: Option<DropoutConfig>,
    ) -> Result<LoopPass, DeviceError> {
        let mut rows = PassRows::default();
        for (example, sequence) in examples.iter().zip(prompts) {
            let has_output = self.shape.token_at(example, 0).is_some();
            for (at, &token) in example.prompt.iter().enumerate() {
                let masks = dropout.map(|with| with.row(example.id, with.step, sequence));
                let is_output = has_output && at + 1 == example.prompt.len();
                rows.push(cache, sequence, RowInput::Token(token), masks, is_output);
            }
        }
        self.run(cache, rows, None, dropout)
    }

    /// One loop over the latent positions. All of them have outputs.
    fn pass_loop(
        &self,
        cache: &mut Cache,
        examples: &[LotusExample],
        prompts: &[Sequence],
        (number, x, dropout): (usize, Tensor, Option<DropoutConfig>),
    ) -> Result<LoopPass, DeviceError> {
        let mut rows = PassRows::default();
        for (example, prompt) in examples.iter().zip(prompts) {
            let mut sequence = begin_pass(cache, &mut rows, (example, prompt), dropout);
            for _ in 0..self.shape.positions() {
                let masks = dropout.map(|with| {
                    with.row(example.id, loop_stream(with.step, number + 1), &sequence)
                });
                rows.push(cache, &mut sequence, RowInput::Vector, masks, true);
            }
        }
        self.run(cache, rows, Some(x), dropout)
    }

    /// The last pass over the latent positions, and the completions after them.
    fn pass_last(
        &self,
        cache: &mut Cache,
        examples: &[LotusExample],
        prompts: &[Sequence],
        (x, dropout): (Tensor, Option<DropoutConfig>),
    ) -> Result<LastPass, DeviceError> {
        let mut rows = PassRows::default();
        let mut targets = Vec::new();
        let mut is_step = Vec::new();
        for (example, prompt) in examples.iter().zip(prompts) {
            let mut sequence = begin_pass(cache, &mut rows, (example, prompt), dropout);
            let mut push = |input: RowInput, target: Option<u32>| {
                let masks = dropout.map(|with| with.row(example.id, with.step, &sequence));
                rows.push(cache, &mut sequence, input, masks, target.is_some());
                targets.extend(target);
                is_step.extend(target.map(|_| matches!(input, RowInput::Vector)));
            };
            for position in 1..=self.shape.positions() {
                push(RowInput::Vector, self.shape.token_at(example, position));
            }
            for pair in example.completion.windows(2) {
                push(RowInput::Token(pair[0]), Some(pair[1]));
            }
        }
        let pass = self.run(cache, rows, Some(x), dropout)?;
        Ok(LastPass { pass, targets, is_step })
    }

    fn run(
        &self,
        cache: &mut Cache,
        rows: PassRows,
        vectors: Option<Tensor>,
        dropout: Option<DropoutConfig>,
    ) -> Result<LoopPass, DeviceError> {
        let x = rows.embed(&self.model.decoder, vectors)?;
        let masks = dropout.map(|_| rows.dropout());
        let (hidden, segment) = self.model.forward(cache, &rows.pass, x, masks)?;
        Ok(LoopPass { rows, segment, hidden })
    }

    /// Computes the losses, and the gradients of all passes in reverse order.
    fn backward(
        &mut self,
        cache: &Cache,
        examples: &[LotusExample],
        (prompt, passes, last): (LoopPass, Vec<LoopPass>, LastPass),
    ) -> Result<LotusLosses, DeviceError> {
        let device = self.device();
        let LastPass { pass: last, mut targets, mut is_step } = last;
        let first = examples.iter().filter_map(|example| self.shape.token_at(example, 0));
        targets.extend(first);
        is_step.resize(targets.len(), true);
        let steps = is_step.iter().filter(|is_step| **is_step).count();
        let tokens = targets.len() - steps;
        let weight = |is_step: &bool| match is_step {
            true => self.step_loss_weight / steps.max(1) as f32,
            false => 1.0 / tokens.max(1) as f32,
        };
        let weights: Vec<f32> = is_step.iter().map(weight).collect();
        let parts = [&last.hidden, &prompt.hidden];
        let parts: Vec<&Tensor> = parts.into_iter().filter(|part| part.rows() > 0).collect();
        let hidden = ops::concat(&device, &parts)?;
        let (losses, dhidden) = self.model.cross_entropy(&hidden, targets, &weights)?;
        let (at_last, at_prompt): (Vec<usize>, Vec<usize>) =
            (0..hidden.rows()).partition(|&row| row < last.hidden.rows());
        let dlast = ops::select(&device, [&dhidden], &at_last)?;
        let dprompt = ops::select(&device, [&dhidden], &at_prompt)?;

        let mut dkv = cache.gradients(&device)?;
        let dx = self.model.backward(cache, &mut dkv, last.segment, &dlast)?;
        let mut dvectors = last.rows.accumulate_embedding_gradients(&mut self.model, &dx)?;
        for pass in passes.into_iter().rev() {
            self.accumulate_latent_embedding(&dvectors)?;
            // The input vectors of a pass are in the order of the previous pass's outputs.
            let dx = self.model.backward(cache, &mut dkv, pass.segment, &dvectors)?;
            dvectors = pass.rows.accumulate_embedding_gradients(&mut self.model, &dx)?;
        }
        self.accumulate_latent_embedding(&dvectors)?;
        let dx = self.model.backward(cache, &mut dkv, prompt.segment, &dprompt)?;
        prompt.rows.accumulate_embedding_gradients(&mut self.model, &dx)?;
        self.model.collect_gradients()?;

        let losses = losses.to_host()?;
        let mean = |of_steps: bool, count: usize| {
            let own = losses.data().iter().zip(&is_step).filter(|(_, own)| **own == of_steps);
            own.map(|(loss, _)| f64::from(*loss)).sum::<f64>() / count.max(1) as f64
        };
        Ok(LotusLosses { tokens: mean(false, tokens), steps: mean(true, steps) })
    }

    /// Adds the gradient of the latent token's embedding, an input of every latent position of
    /// every pass.
    fn accumulate_latent_embedding(&mut self, dvectors: &Tensor) -> Result<(), DeviceError> {
        let tokens = vec![self.shape.looped.token; dvectors.rows()];
        self.model.accumulate_embedding_gradients(tokens, dvectors)
    }
}

/// A sequence that continues a prompt. It shares the complete chunks of the prompt's slots and
/// recomputes the remaining tokens with the same masks, so that prompt and latent positions are one
/// prefix, which attention reads in tiles.
fn begin_pass(
    cache: &mut Cache,
    rows: &mut PassRows,
    (example, prompt): (&LotusExample, &Sequence),
    dropout: Option<DropoutConfig>,
) -> Sequence {
    let shared = Cache::shareable(prompt.len());
    let mut sequence = prompt.fork_at(shared).continued();
    for &token in &example.prompt[shared..] {
        let masks = dropout.map(|with| with.row(example.id, with.step, &sequence));
        rows.push(cache, &mut sequence, RowInput::Token(token), masks, false);
    }
    sequence
}

/// The dropout stream of a loop, 0 for the prompt and the last pass. The upper bits distinguish
/// loops, which have the same positions.
fn loop_stream(step: u32, number: usize) -> u32 {
    step ^ (number as u32) << 24
}

impl TrainStep for LotusTrainStep {
    type Example = LotusExample;

    fn accumulate_gradients(
        &mut self,
        examples: &[LotusExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<Losses, DeviceError> {
        let LotusLosses { tokens, steps } = self.batch_losses(examples, dropout)?;
        Ok(Losses::new(tokens).with("steps", steps))
    }

    fn model(&self) -> &TrainableDecoder {
        &self.model
    }

    fn head_parameters(&self) -> Vec<&Parameter> {
        Vec::new()
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.model.parameters().collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.model.parameters_mut().collect()
    }

    fn sync_weights(&mut self) -> Result<(), DeviceError> {
        self.model.sync_weights()
    }
}
