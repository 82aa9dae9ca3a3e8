//! Layout of a reward-model batch as one forward pass: the input at each position, and the output
//! rows that the heads read.
//!
//! ```text
//! prompt, reference trace ─┬─ thoughts of trajectory 1, end-latent tokens, answer
//!                          ├─ thoughts of trajectory 2, end-latent tokens, answer
//!                          └─ …
//! ```

use model::{Cache, Segment, Sequence};
use tensor::{Device, DeviceError, Tensor, ops};

use super::head::{RewardHeadRows, TrainableRewardHead};
use super::{RewardExample, RewardTrainStep};
use crate::dropout::DropoutConfig;
use crate::rows::{PassRows, RowInput, scatter_add};

/// Indices of the output rows that a head reads, one entry per thought or per answer.
#[derive(Default)]
pub(super) struct HeadPositions {
    /// At the thought, or at the answer's last token.
    pub(super) at: Vec<usize>,
    /// One position before the thought, or the last position before the answer.
    pub(super) before: Vec<usize>,
    /// At the last thought before the answer. `None` for thoughts, whose head reads the input
    /// vectors.
    pub(super) thought: Option<Vec<usize>>,
}

/// A head after its forward pass.
pub(super) struct HeadForward {
    pub(super) positions: HeadPositions,
    pub(super) rewards: Tensor, // (thoughts or answers, 1)
    input: RewardHeadRows,
    activations: [Tensor; 2],
}

/// A batch after its forward pass.
pub(super) struct RewardForward {
    pub(super) hidden: Tensor, // (output rows, width)
    pub(super) segment: Segment,
    pub(super) input: PassRows,
    pub(super) thoughts: HeadForward,
    pub(super) answers: Option<HeadForward>,
}

/// The rows of a batch. Input vectors are ordered: all reference traces, then all thoughts.
struct RewardBatchLayout<'a> {
    cache: &'a mut Cache,
    /// Tokens between thoughts and answer; `None` without an outcome head.
    end_latent: Option<&'a [u32]>,
    dropout: Option<DropoutConfig>,
    input: PassRows,
    outputs: usize,
    thoughts: HeadPositions,
    answers: HeadPositions,
}

impl RewardBatchLayout<'_> {
    /// Adds the next position of a sequence; returns the index of its output row, if any.
    fn push(
        &mut self,
        example: &RewardExample,
        branch: usize,
        sequence: &mut Sequence,
        input: RowInput,
        is_output: bool,
    ) -> usize {
        // The RNG key packs step and branch into one number, which allows 4095 trajectories per
        // problem.
        let dropout = self
            .dropout
            .map(|dropout| dropout.row(example.id, dropout.step << 12 | branch as u32, sequence));
        self.input.push(self.cache, sequence, input, dropout, is_output);
        self.outputs += usize::from(is_output);
        self.outputs - usize::from(is_output)
    }

    /// Adds prompt and reference trace; returns their sequence and its last output row.
    fn push_prefix(&mut self, example: &RewardExample) -> (Sequence, usize) {
        let mut sequence = Sequence::default();
        let mut last = 0;
        let prompt = example.prompt.iter().map(|&token| RowInput::Token(token));
        let trace = std::iter::repeat_n(RowInput::Vector, example.reference_trace.rows());
        let count = example.prompt.len() + example.reference_trace.rows();
        for (i, input) in prompt.chain(trace).enumerate() {
            last = self.push(example, 0, &mut sequence, input, i + 1 == count);
        }
        (sequence, last)
    }

    /// Adds trajectory `n` after a prefix whose last output row is `last`.
    fn push_trajectory(&mut self, example: &RewardExample, n: usize, prefix: &(Sequence, usize)) {
        let mut sequence = prefix.0.fork();
        let mut last = prefix.1;
        for _ in 0..example.lengths[n] {
            self.thoughts.before.push(last);
            last = self.push(example, n + 1, &mut sequence, RowInput::Vector, true);
            self.thoughts.at.push(last);
        }
        let Some(end_latent) = self.end_latent else { return };
        self.answers.thought.get_or_insert_default().push(last);
        last = self.push_tokens(example, n, &mut sequence, end_latent).unwrap_or(last);
        self.answers.before.push(last);
        last = self.push_tokens(example, n, &mut sequence, &example.answers[n]).unwrap_or(last);
        self.answers.at.push(last);
    }

    /// Adds tokens of trajectory `n`; returns the output row of the last token.
    fn push_tokens(
        &mut self,
        example: &RewardExample,
        n: usize,
        sequence: &mut Sequence,
        tokens: &[u32],
    ) -> Option<usize> {
        let mut last = None;
        for (i, &token) in tokens.iter().enumerate() {
            let input = RowInput::Token(token);
            let is_output = i + 1 == tokens.len();
            last = Some(self.push(example, n + 1, sequence, input, is_output));
        }
        last
    }
}

impl RewardTrainStep {
    pub(super) fn forward(
        &self,
        cache: &mut Cache,
        examples: &[RewardExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<RewardForward, DeviceError> {
        let mut layout = RewardBatchLayout {
            cache: &mut *cache,
            end_latent: self.outcome.as_ref().map(|outcome| &outcome.end_latent[..]),
            dropout,
            input: PassRows::default(),
            outputs: 0,
            thoughts: HeadPositions::default(),
            answers: HeadPositions::default(),
        };
        let prefixes: Vec<(Sequence, usize)> =
            examples.iter().map(|example| layout.push_prefix(example)).collect();
        for (example, prefix) in examples.iter().zip(&prefixes) {
            (0..example.lengths.len()).for_each(|n| layout.push_trajectory(example, n, prefix));
        }
        let RewardBatchLayout { input, thoughts: positions, answers, .. } = layout;

        let decoder = &self.model.decoder;
        let device = decoder.device();
        let width = decoder.config().width;
        let traces = concat(device, examples.iter().map(|e| &e.reference_trace), width)?;
        let thoughts = concat(device, examples.iter().map(|e| &e.thoughts), width)?;
        let parts = [&decoder.embed(&input.tokens)?, &traces, &thoughts];
        let x = ops::select(device, parts, &input.input_order())?;
        let dropout = dropout.map(|_| input.dropout());
        let (hidden, segment) = self.model.forward(cache, &input.pass, x, dropout)?;
        let run = |head: &TrainableRewardHead, positions, thoughts| {
            HeadForward::run(device, head, &hidden, positions, thoughts)
        };
        let thoughts = run(&self.head, positions, Some(thoughts))?;
        let answers =
            self.outcome.as_ref().map(|outcome| run(&outcome.head, answers, None)).transpose()?;
        Ok(RewardForward { hidden, segment, input, thoughts, answers })
    }
}

/// Concatenates the parts, (any, width) each, on the device.
fn concat<'a>(
    device: &Device,
    parts: impl Iterator<Item = &'a Tensor>,
    width: usize,
) -> Result<Tensor, DeviceError> {
    let mut all = Tensor::zeros(0, width);
    parts.filter(|part| part.rows() > 0).for_each(|part| all.extend(part));
    all.to_device(device)
}

impl HeadForward {
    /// Runs a head on its rows of `hidden`. Without `thoughts`, the head reads the hidden states at
    /// the last thought instead.
    fn run(
        device: &Device,
        head: &TrainableRewardHead,
        hidden: &Tensor,
        positions: HeadPositions,
        thoughts: Option<Tensor>,
    ) -> Result<Self, DeviceError> {
        let select = |rows: &[usize]| ops::select(device, [hidden], rows);
        let input = RewardHeadRows {
            at: select(&positions.at)?,
            before: select(&positions.before)?,
            thought: match thoughts {
                Some(thoughts) => thoughts,
                None => select(positions.thought.as_deref().unwrap_or_default())?,
            },
        };
        let (rewards, activations) = head.forward(device, &input)?;
        Ok(Self { positions, rewards, input, activations })
    }

    /// Accumulates the head's gradients, and adds the gradients of its input rows to `dhidden`.
    pub(super) fn backward(
        &self,
        device: &Device,
        head: &mut TrainableRewardHead,
        drewards: Vec<f32>,
        dhidden: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let drewards = Tensor::from_vec(drewards.len(), 1, drewards).to_device(device)?;
        let gradients = head.backward(device, &self.input, &self.activations, &drewards)?;
        scatter_add(device, &gradients.at, &self.positions.at, dhidden)?;
        if gradients.before.rows() > 0 {
            scatter_add(device, &gradients.before, &self.positions.before, dhidden)?;
        }
        if let Some(rows) = &self.positions.thought {
            scatter_add(device, &gradients.thought, rows, dhidden)?;
        }
        Ok(())
    }
}
