//! Forward and backward of one batch of latent reasoning.
//!
//! ```text
//! prompt ──> thought 1 ──> … ──> thought T ──> completion ──> cross entropy of its tokens
//!               └─ digits of step 1's result                (optional auxiliary loss)
//! ```
//!
//! Each arrow is a segment: one pass of the decoder over some positions of some examples, which
//! attends to the segments before it. Backward takes the segments in reverse order, so gradients
//! flow through every thought (backpropagation through time). An example without thoughts is a
//! single segment. Examples of different lengths are packed without padding.

use model::{
    Cache, HeadActivations, Parameter, Segment, Sequence, TrainableDecoder, TrainableHead,
};
use tensor::ops::{self, KvGrads};
use tensor::{Device, DeviceError, Tensor};

use crate::digit_head::{DIGITS, DigitHead};
use crate::dropout::DropoutConfig;
use crate::rows::{PassRows, RowInput, assemble_rows, reuse_cache, scatter_add};
use crate::tokenized_example::TokenizedExample;

/// Mean losses of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct LatentLosses {
    /// Cross entropy per completion token, in nats.
    pub tokens: f64,
    /// Cross entropy per predicted digit, in nats; zero without a digit head.
    pub digits: f64,
}

/// A reasoner with its gradients.
#[derive(Debug)]
pub struct LatentTrainStep {
    /// The decoder and its language-model head.
    pub model: TrainableDecoder,
    /// Maps hidden states to thoughts.
    pub head: TrainableHead,
    /// Predicts step results from thoughts: an auxiliary loss.
    pub digit_head: Option<DigitHead>,
    cache: Option<Cache>,
}

impl LatentTrainStep {
    /// A step over these modules.
    pub fn new(
        model: TrainableDecoder,
        head: TrainableHead,
        digit_head: Option<DigitHead>,
    ) -> Self {
        Self { model, head, digit_head, cache: None }
    }

    /// Adds the gradients of a batch's mean loss to all parameters.
    pub fn accumulate_gradients(
        &mut self,
        examples: &[TokenizedExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<LatentLosses, DeviceError> {
        let slots = examples.iter().map(|example| Cache::slots_for(example.len())).sum();
        let mut cache = reuse_cache(self.cache.take(), &self.model.decoder, slots)?;
        let forward = LatentForward::run(self, &mut cache, examples, dropout)?;
        let losses = forward.backward(self, &cache, examples);
        self.cache = Some(cache);
        losses
    }

    fn device(&self) -> Device {
        self.model.decoder.device().clone()
    }

    /// All parameters, in a fixed order.
    pub fn parameters(&self) -> Vec<&Parameter> {
        let digits = self.digit_head.iter().flat_map(DigitHead::parameters);
        self.model.parameters().chain(self.head.parameters()).chain(digits).collect()
    }

    /// All parameters, mutably. [`Self::sync_weights`] has to follow a change.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let digits = self.digit_head.iter_mut().flat_map(DigitHead::parameters_mut);
        self.model.parameters_mut().chain(self.head.parameters_mut()).chain(digits).collect()
    }

    /// Copies changed parameters to the weights that the forward pass uses.
    pub fn sync_weights(&mut self) -> Result<(), DeviceError> {
        let device = self.device();
        self.model.sync_weights()?;
        self.head.sync_weights(&device)?;
        self.digit_head.as_mut().map_or(Ok(()), |head| head.sync_weights(&device))
    }
}

/// The rows of a segment and the use of their hidden states.
#[derive(Default)]
struct SegmentRows {
    input: PassRows,
    /// Indices among the output rows: those with a token loss, and the target of each.
    logit_outputs: Vec<usize>,
    targets: Vec<u32>,
    /// Indices among the output rows: those whose hidden state becomes a thought.
    thought_outputs: Vec<usize>,
}

/// The use of a row's hidden state.
enum RowOutput {
    Unused,
    /// Predicts this token.
    Token(u32),
    Thought,
}

/// What the rows of one segment are pushed with: the cache and every example's sequence in it.
struct ForwardContext<'a> {
    step: &'a LatentTrainStep,
    cache: &'a mut Cache,
    examples: &'a [TokenizedExample],
    sequences: Vec<Sequence>, // one per example
    dropout: Option<DropoutConfig>,
}

impl ForwardContext<'_> {
    fn push(&mut self, rows: &mut SegmentRows, example: usize, input: RowInput, output: RowOutput) {
        let outputs = rows.logit_outputs.len() + rows.thought_outputs.len();
        match output {
            RowOutput::Unused => {}
            RowOutput::Token(target) => {
                rows.logit_outputs.push(outputs);
                rows.targets.push(target);
            }
            RowOutput::Thought => rows.thought_outputs.push(outputs),
        }
        let (sequence, id) = (&mut self.sequences[example], self.examples[example].id);
        let dropout = self.dropout.map(|dropout| dropout.row(id, dropout.step, sequence));
        let is_output = !matches!(output, RowOutput::Unused);
        rows.input.push(self.cache, sequence, input, dropout, is_output);
    }

    /// Runs the decoder; `thoughts` are the inputs of the rows that are vectors.
    fn run(
        &mut self,
        rows: SegmentRows,
        thoughts: Option<Tensor>,
    ) -> Result<ForwardSegment, DeviceError> {
        let (model, input) = (&self.step.model, &rows.input);
        let x = match thoughts {
            None => model.decoder.embed(&input.tokens)?,
            Some(thoughts) if input.tokens.is_empty() => thoughts,
            Some(thoughts) => {
                let tokens = model.decoder.embed(&input.tokens)?;
                ops::select(model.decoder.device(), [&tokens, &thoughts], &input.input_order())?
            }
        };
        let dropout = self.dropout.map(|_| input.dropout());
        let (hidden, segment) = model.forward(self.cache, &input.pass, x, dropout)?;
        Ok(ForwardSegment { rows, segment, hidden })
    }

    /// The prompts; of examples without thoughts the completion too.
    fn prompts(&mut self) -> Result<ForwardSegment, DeviceError> {
        let mut rows = SegmentRows::default();
        for (i, example) in self.examples.iter().enumerate() {
            let whole = example.thoughts == 0;
            let completion = if whole { &example.completion[..] } else { &[] };
            let tokens: Vec<u32> = example.prompt.iter().chain(completion).copied().collect();
            let first_target = example.prompt.len() + example.loss_start;
            let inputs = if whole { tokens.len() - 1 } else { tokens.len() };
            for (at, &token) in tokens[..inputs].iter().enumerate() {
                let output = match tokens.get(at + 1) {
                    None => RowOutput::Thought,
                    Some(&next) if at + 1 >= first_target => RowOutput::Token(next),
                    Some(_) => RowOutput::Unused,
                };
                self.push(&mut rows, i, RowInput::Token(token), output);
            }
        }
        self.run(rows, None)
    }

    /// Feeds one thought to each of some examples; its hidden state becomes the next thought.
    fn next_thoughts(
        &mut self,
        examples: &[usize],
        thoughts: Tensor,
    ) -> Result<ForwardSegment, DeviceError> {
        let mut rows = SegmentRows::default();
        for &i in examples {
            self.push(&mut rows, i, RowInput::Vector, RowOutput::Thought);
        }
        self.run(rows, Some(thoughts))
    }

    /// Each example's last thought and its completion. `None` if no example has thoughts.
    fn completions(
        &mut self,
        thoughts: &[ThoughtStep],
    ) -> Result<Option<ForwardSegment>, DeviceError> {
        let device = self.step.device();
        let last: Vec<Tensor> = thoughts
            .iter()
            .map(|step| ops::select(&device, [&step.vectors], &step.last))
            .collect::<Result<_, _>>()?;
        let mut rows = SegmentRows::default();
        // In the order of the last thoughts, so that they are concatenated without reordering.
        for i in thoughts.iter().flat_map(|step| step.last.iter().map(|&at| step.examples[at])) {
            let TokenizedExample { completion, loss_start, .. } = &self.examples[i];
            let target = |at: usize| match at >= *loss_start {
                true => RowOutput::Token(completion[at]),
                false => RowOutput::Unused,
            };
            self.push(&mut rows, i, RowInput::Vector, target(0));
            for (at, &token) in completion[..completion.len() - 1].iter().enumerate() {
                self.push(&mut rows, i, RowInput::Token(token), target(at + 1));
            }
        }
        if rows.input.is_empty() {
            return Ok(None);
        }
        let parts: Vec<&Tensor> = last.iter().filter(|part| part.rows() > 0).collect();
        let thoughts = ops::concat(&device, &parts)?;
        self.run(rows, Some(thoughts)).map(Some)
    }
}

/// A segment after its forward pass.
struct ForwardSegment {
    rows: SegmentRows,
    segment: Segment,
    hidden: Tensor, // (output rows, width)
}

/// Thought number t of every example that has so many.
struct ThoughtStep {
    examples: Vec<usize>,
    vectors: Tensor, // (examples, width)
    activations: HeadActivations,
    intermediate: Vec<usize>, // indices into `examples` with more thoughts
    last: Vec<usize>,         // the others: fed together with the completion
}

/// A batch after its forward pass.
struct LatentForward {
    prompts: ForwardSegment,
    thoughts: Vec<ThoughtStep>,
    /// Entry t feeds thought t of the examples with more thoughts.
    intermediate: Vec<ForwardSegment>,
    completions: Option<ForwardSegment>,
}

impl LatentForward {
    fn run(
        step: &LatentTrainStep,
        cache: &mut Cache,
        examples: &[TokenizedExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<Self, DeviceError> {
        let device = step.device();
        let sequences = vec![Sequence::default(); examples.len()];
        let mut context = ForwardContext { step, cache, examples, sequences, dropout };
        let prompts = context.prompts()?;
        let mut thoughts: Vec<ThoughtStep> = Vec::new();
        let mut intermediate: Vec<ForwardSegment> = Vec::new();
        let mut live: Vec<usize> =
            (0..examples.len()).filter(|&i| examples[i].thoughts > 0).collect();
        while !live.is_empty() {
            let count = thoughts.len() + 1;
            let previous = intermediate.last().unwrap_or(&prompts);
            let hidden = ops::select(&device, [&previous.hidden], &previous.rows.thought_outputs)?;
            let (vectors, activations) = step.head.forward(&device, hidden)?;
            let (more, last): (Vec<usize>, Vec<usize>) =
                (0..live.len()).partition(|&at| examples[live[at]].thoughts > count);
            let next: Vec<usize> = more.iter().map(|&at| live[at]).collect();
            if !next.is_empty() {
                let x = ops::select(&device, [&vectors], &more)?;
                intermediate.push(context.next_thoughts(&next, x)?);
            }
            thoughts.push(ThoughtStep {
                examples: live,
                vectors,
                activations,
                intermediate: more,
                last,
            });
            live = next;
        }
        let completions = context.completions(&thoughts)?;
        Ok(Self { prompts, thoughts, intermediate, completions })
    }

    fn backward(
        self,
        step: &mut LatentTrainStep,
        cache: &Cache,
        examples: &[TokenizedExample],
    ) -> Result<LatentLosses, DeviceError> {
        let Self { prompts, thoughts, mut intermediate, completions } = self;
        let device = step.device();
        let width = prompts.hidden.cols();
        let tokens: usize = examples.iter().map(TokenizedExample::loss_tokens).sum();
        let numbers = thoughts.iter().enumerate().map(|(t, of)| of.results(examples, t).count());
        let digits = numbers.sum::<usize>() * DIGITS;
        let dkv = cache.gradients(&device)?;
        let token_weight = 1.0 / tokens.max(1) as f32;
        let losses = LossSums::default();
        let mut context = BackwardContext { step, cache, dkv, token_weight, digits, losses };

        // Gradients of the last thoughts, thought step after thought step.
        let dlast = completions.map(|segment| segment.backward(&mut context, None)).transpose()?;
        let dlast = dlast.unwrap_or_default();
        let mut dlast_rows: usize = thoughts.iter().map(|of| of.last.len()).sum();
        // Gradients of the hidden states that became the thoughts of the step after.
        let mut dhidden: Option<Tensor> = None;
        for (t, of) in thoughts.into_iter().enumerate().rev() {
            let mut dvectors = Tensor::zeros_on(&device, of.examples.len(), width)?;
            if !of.last.is_empty() {
                let rows: Vec<usize> = (dlast_rows - of.last.len()..dlast_rows).collect();
                let own = ops::select(&device, [&dlast], &rows)?;
                scatter_add(&device, &own, &of.last, &mut dvectors)?;
                dlast_rows -= of.last.len();
            }
            if let Some(segment) =
                if of.intermediate.is_empty() { None } else { intermediate.pop() }
            {
                let dfed = segment.backward(&mut context, dhidden.take())?;
                scatter_add(&device, &dfed, &of.intermediate, &mut dvectors)?;
            }
            of.add_digit_loss(&mut context, examples, t, &mut dvectors)?;
            dhidden = Some(context.step.head.backward(&device, &of.activations, dvectors)?);
        }
        prompts.backward(&mut context, dhidden)?;
        context.losses.means(tokens, digits)
    }
}

/// What the backward passes of a batch's segments share.
struct BackwardContext<'a> {
    step: &'a mut LatentTrainStep,
    cache: &'a Cache,
    dkv: KvGrads,
    /// The weight of one token's loss: one over the tokens with a loss.
    token_weight: f32,
    /// Digits that the digit head predicts.
    digits: usize,
    losses: LossSums,
}

impl ThoughtStep {
    /// Indices into `self.examples` of those with a worked step `t`, and the step's result.
    fn results<'a>(
        &'a self,
        examples: &'a [TokenizedExample],
        t: usize,
    ) -> impl Iterator<Item = (usize, i64)> {
        let indexed = self.examples.iter().enumerate();
        indexed.filter_map(move |(at, &i)| Some((at, *examples[i].step_results.get(t)?)))
    }

    /// Adds the gradients of the digit loss, if the model has a digit head.
    fn add_digit_loss(
        &self,
        context: &mut BackwardContext<'_>,
        examples: &[TokenizedExample],
        t: usize,
        dvectors: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let device = context.step.device();
        let (rows, numbers): (Vec<usize>, Vec<i64>) = self.results(examples, t).unzip();
        let Some(head) = &mut context.step.digit_head else { return Ok(()) };
        if rows.is_empty() {
            return Ok(());
        }
        let x = ops::select(&device, [&self.vectors], &rows)?;
        let loss = head.accumulate_gradients(&device, &x, &numbers, context.digits)?;
        context.losses.digits.push(loss.losses);
        scatter_add(&device, &loss.gradient, &rows, dvectors)
    }
}

impl ForwardSegment {
    /// Adds the gradients of this segment. `dthoughts` are those of the hidden states that became
    /// thoughts; returns those of the thoughts that were fed.
    fn backward(
        self,
        context: &mut BackwardContext<'_>,
        dthoughts: Option<Tensor>,
    ) -> Result<Tensor, DeviceError> {
        let device = context.step.device();
        let model = &mut context.step.model;
        let Self { rows, segment, hidden } = self;
        let mut parts = Vec::new();
        if !rows.logit_outputs.is_empty() {
            let predicting = ops::select(&device, [&hidden], &rows.logit_outputs)?;
            let weights = vec![context.token_weight; rows.logit_outputs.len()];
            let (losses, dpredicting) = model.cross_entropy(&predicting, rows.targets, &weights)?;
            context.losses.tokens.push(losses);
            parts.push((dpredicting, rows.logit_outputs));
        }
        if let Some(dthoughts) = dthoughts {
            parts.push((dthoughts, rows.thought_outputs));
        }
        let dhidden = assemble_rows(&device, parts, &hidden)?;
        let dx = model.backward(context.cache, &mut context.dkv, segment, &dhidden)?;
        let input = rows.input;
        if !input.tokens.is_empty() {
            let dtokens = ops::select(&device, [&dx], &input.token_rows)?;
            model.accumulate_embedding_gradients(input.tokens, &dtokens)?;
        }
        ops::select(&device, [&dx], &input.vector_rows)
    }
}

/// Losses of single tokens and digits. They stay on the device until the batch is done, so that
/// segments are queued without host synchronization.
#[derive(Default)]
struct LossSums {
    tokens: Vec<Tensor>,
    digits: Vec<Tensor>,
}

impl LossSums {
    fn means(self, tokens: usize, digits: usize) -> Result<LatentLosses, DeviceError> {
        let mean = |parts: Vec<Tensor>, count: usize| -> Result<f64, DeviceError> {
            let mut sum = 0.0;
            for part in parts {
                sum += part.to_host()?.data().iter().map(|&x| f64::from(x)).sum::<f64>();
            }
            Ok(sum / count.max(1) as f64)
        };
        Ok(LatentLosses { tokens: mean(self.tokens, tokens)?, digits: mean(self.digits, digits)? })
    }
}
