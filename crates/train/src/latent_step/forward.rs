//! The forward pass of a batch, segment by segment.

use model::{Cache, HeadActivations, Segment, Sequence};
use tensor::ops;
use tensor::{DeviceError, Tensor};

use super::LatentTrainStep;
use crate::dropout::DropoutConfig;
use crate::rows::{PassRows, RowInput};
use crate::tokenized_example::{DistillRole, TokenizedExample};

/// The rows of a segment and the use of their hidden states.
#[derive(Default)]
pub(super) struct SegmentRows {
    pub(super) input: PassRows,
    /// Indices among the output rows of those with a token loss, and the target and role of each.
    pub(super) logit_outputs: Vec<usize>,
    pub(super) targets: Vec<u32>,
    pub(super) roles: Vec<DistillRole>,
    /// Indices among the output rows of those whose hidden state becomes a thought.
    pub(super) thought_outputs: Vec<usize>,
    /// Rows compared in self-distillation.
    pub(super) compared: Vec<ComparedRow>,
}

/// A row whose hidden states are compared in self-distillation.
#[derive(Clone, Copy)]
pub(crate) struct ComparedRow {
    /// [`TokenizedExample::id`].
    pub(crate) id: u32,
    pub(crate) role: DistillRole,
    /// Index among the rows of the segment.
    pub(crate) row: usize,
    /// Index among the output rows of the segment.
    pub(crate) output: usize,
}

/// The use of a row's hidden state.
enum RowOutput {
    Unused,
    /// Predicts completion token `.0`.
    Token(usize),
    Thought,
}

/// A segment after its forward pass.
pub(crate) struct ForwardSegment {
    pub(super) rows: SegmentRows,
    pub(crate) segment: Segment,
    pub(crate) hidden: Tensor, // (output rows, width)
}

impl ForwardSegment {
    /// The rows of a role that are compared in self-distillation, sorted by example.
    pub(crate) fn compared(&self, role: DistillRole) -> Vec<ComparedRow> {
        let mut rows: Vec<ComparedRow> =
            self.rows.compared.iter().filter(|row| row.role == role).copied().collect();
        rows.sort_by_key(|row| row.id);
        rows
    }
}

/// Thought number t of every example with more than t thoughts.
pub(crate) struct ThoughtStep {
    pub(crate) examples: Vec<usize>,
    pub(crate) vectors: Tensor, // (examples, width)
    pub(super) activations: HeadActivations,
    /// Indices into `examples` of those with further thoughts.
    pub(super) intermediate: Vec<usize>,
    /// Indices into `examples` of those whose last thought this is, which is fed together with the
    /// completion.
    pub(super) last: Vec<usize>,
}

/// A batch after its forward pass.
pub(super) struct LatentForward {
    pub(super) prompts: ForwardSegment,
    /// Thought steps in order. If the thought after the last one is computed, it is the last entry,
    /// which is not an input of any segment.
    pub(super) thoughts: Vec<ThoughtStep>,
    /// Entry t feeds thought t of the examples with further thoughts.
    pub(super) intermediate: Vec<ForwardSegment>,
    pub(super) completions: Option<ForwardSegment>,
    pub(super) has_unfed_thought: bool,
}

impl LatentForward {
    pub(super) fn run(
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
        let unfed = match &completions {
            Some(segment) if step.makes_unfed_thought() => {
                Some(context.unfed_thought(segment, &thoughts)?)
            }
            _ => None,
        };
        let has_unfed_thought = unfed.is_some();
        thoughts.extend(unfed);
        Ok(Self { prompts, thoughts, intermediate, completions, has_unfed_thought })
    }

    /// The thoughts of every example, in order.
    pub(super) fn thoughts_by_example(self, examples: usize) -> Result<Vec<Tensor>, DeviceError> {
        let mut all = vec![Tensor::zeros(0, self.prompts.hidden.cols()); examples];
        for ThoughtStep { examples, vectors, .. } in self.thoughts {
            let vectors = vectors.to_host()?;
            examples.iter().enumerate().for_each(|(at, &i)| all[i].push(vectors.row(at)));
        }
        Ok(all)
    }
}

/// Shared state of a batch's segments: the cache and every example's sequence in it.
struct ForwardContext<'a> {
    step: &'a LatentTrainStep,
    cache: &'a mut Cache,
    examples: &'a [TokenizedExample],
    sequences: Vec<Sequence>, // one per example
    dropout: Option<DropoutConfig>,
}

impl ForwardContext<'_> {
    fn push(&mut self, rows: &mut SegmentRows, example: usize, input: RowInput, output: RowOutput) {
        let TokenizedExample { id, role, completion, compared_at, .. } = &self.examples[example];
        let outputs = rows.logit_outputs.len() + rows.thought_outputs.len();
        match output {
            RowOutput::Unused => {}
            RowOutput::Token(target) => {
                rows.logit_outputs.push(outputs);
                rows.targets.push(completion[target]);
                rows.roles.push(*role);
                // The row with input token `compared_at` predicts the next token.
                if *compared_at == target.checked_sub(1) && target > 0 {
                    let row = rows.input.len();
                    rows.compared.push(ComparedRow { id: *id, role: *role, row, output: outputs });
                }
            }
            RowOutput::Thought => rows.thought_outputs.push(outputs),
        }
        let sequence = &mut self.sequences[example];
        // Student and teacher have the same id; the upper bit of the stream distinguishes them.
        let stream = |dropout: &DropoutConfig| dropout.step | (*role as u32) << 31;
        let dropout = self.dropout.map(|dropout| dropout.row(*id, stream(&dropout), sequence));
        let is_output = !matches!(output, RowOutput::Unused);
        rows.input.push(self.cache, sequence, input, dropout, is_output);
    }

    /// Runs the decoder; `thoughts` are the inputs of the vector rows.
    fn run(
        &mut self,
        rows: SegmentRows,
        thoughts: Option<Tensor>,
    ) -> Result<ForwardSegment, DeviceError> {
        let model = &self.step.model;
        let input = &rows.input;
        let x = input.embed(&model.decoder, thoughts)?;
        let dropout = self.dropout.map(|_| input.dropout());
        let (hidden, segment) = model.forward(self.cache, &input.pass, x, dropout)?;
        Ok(ForwardSegment { rows, segment, hidden })
    }

    /// Feeds the prompts, and for examples without thoughts also the completion.
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
                    Some(_) if at + 1 >= first_target => {
                        RowOutput::Token(at + 1 - example.prompt.len())
                    }
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

    /// Feeds each example's last thought and completion. `None` if no example has thoughts.
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
        for i in in_order_of_last_thought(thoughts) {
            let TokenizedExample { completion, loss_start, .. } = &self.examples[i];
            let target = |at: usize| match at >= *loss_start {
                true => RowOutput::Token(at),
                false => RowOutput::Unused,
            };
            let first = match *loss_start > 0 && self.step.makes_unfed_thought() {
                true => RowOutput::Thought,
                false => target(0),
            };
            self.push(&mut rows, i, RowInput::Vector, first);
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

    /// Computes the thought after each example's last thought.
    fn unfed_thought(
        &self,
        completions: &ForwardSegment,
        thoughts: &[ThoughtStep],
    ) -> Result<ThoughtStep, DeviceError> {
        let device = self.step.device();
        let ForwardSegment { rows, hidden, .. } = completions;
        let hidden = ops::select(&device, [hidden], &rows.thought_outputs)?;
        let (vectors, activations) = self.step.head.forward(&device, hidden)?;
        Ok(ThoughtStep {
            examples: in_order_of_last_thought(thoughts).collect(),
            vectors,
            activations,
            intermediate: Vec::new(),
            last: Vec::new(),
        })
    }
}

/// The examples with thoughts in the order of the completions' segment: sorted by the index of
/// their last thought, so that the last thoughts are concatenated without reordering.
fn in_order_of_last_thought(thoughts: &[ThoughtStep]) -> impl Iterator<Item = usize> {
    thoughts.iter().flat_map(|step| step.last.iter().map(|&at| step.examples[at]))
}
