//! Compressed steps, shared by CoLaR, Latent-SFT and Render-of-Thought: groups of tokens become
//! vectors, which are the inputs of one teacher-forced forward pass.
//!
//! ```text
//! prompt  [a b] [c d] [e]  completion
//!         └─ groups: weighted sums of token embeddings
//! ```
//!
//! From the prompt's last position on, every position has an output, which predicts the next group
//! or, after the last group, the next token of the completion. The method defines the losses.

use model::{Cache, Segment, Sequence, TrainableDecoder};
use tensor::ops::{self, Indices};
use tensor::{DeviceError, Tensor};

use super::ExampleRows;
use crate::dropout::DropoutConfig;
use crate::rows::{PassRows, RowInput};

/// An example with compressed steps, for Latent-SFT and Render-of-Thought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompressedExample {
    /// Index in the data; part of the RNG key of dropout masks.
    pub id: u32,
    /// Prompt tokens, including those that begin the thoughts.
    pub prompt: Vec<u32>,
    /// The tokens of each group.
    pub groups: Vec<Vec<u32>>,
    /// The tokens that end the thoughts, and the answer with its end.
    pub completion: Vec<u32>,
    /// Index of the first completion token in the loss; earlier ones are context only.
    pub loss_start: usize,
    /// Scheduled sampling: whether the inputs are the model's own thoughts instead of the groups.
    pub feeds_thoughts: bool,
}

impl CompressedExample {
    pub(crate) fn sequence(&self) -> CompressedSequence<'_> {
        let Self { id, prompt, groups, completion, .. } = self;
        CompressedSequence { id: *id, prompt, groups, completion }
    }

    /// The completion tokens in the loss.
    pub(crate) fn targets(&self) -> &[u32] {
        self.completion.get(self.loss_start..).unwrap_or_default()
    }
}

/// The inputs of an example, of any method.
#[derive(Clone, Copy)]
pub(crate) struct CompressedSequence<'a> {
    pub(crate) id: u32,
    pub(crate) prompt: &'a [u32],
    pub(crate) groups: &'a [Vec<u32>],
    pub(crate) completion: &'a [u32],
}

impl CompressedSequence<'_> {
    /// Number of input positions; the last completion token is only a target.
    pub(crate) fn positions(&self) -> usize {
        self.prompt.len() + self.outputs().saturating_sub(1)
    }

    /// Number of positions whose hidden state is used.
    fn outputs(&self) -> usize {
        self.groups.len() + self.completion.len()
    }

    /// The numbers of rows; `logits` of them have logits.
    pub(crate) fn rows(&self, logits: usize) -> ExampleRows {
        ExampleRows { fed: self.positions(), output: self.outputs(), logits }
    }
}

/// Weights of a group's token embeddings in its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFactors {
    /// Normalization of the factors.
    pub norm: FactorNorm,
    /// Whether later tokens of a group have smaller weights, so that their order can be recovered.
    pub ordered: bool,
}

/// Normalization of the factors of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorNorm {
    /// The squares sum to 1, so that a sum of uncorrelated embeddings keeps their norm (CoLaR).
    Squares,
    /// The factors sum to 1: a mixture, whose factors are also probabilities (Latent-SFT).
    Sum,
}

/// Ratio of consecutive factors in an ordered group. Two tokens have factors 0.8 and 0.6.
const ORDER_DECAY: f32 = 0.75;

impl GroupFactors {
    /// The factors of a group of `count` tokens.
    pub fn of(self, count: usize) -> Vec<f32> {
        let decay = if self.ordered { ORDER_DECAY } else { 1.0 };
        let weights: Vec<f32> = (0..count).map(|at| decay.powi(at as i32)).collect();
        let norm = match self.norm {
            FactorNorm::Sum => weights.iter().sum::<f32>(),
            // CoLaR's published code adds 1e-5 to the root.
            FactorNorm::Squares if !self.ordered => (count as f32).sqrt() + 1e-5,
            FactorNorm::Squares => weights.iter().map(|weight| weight * weight).sum::<f32>().sqrt(),
        };
        weights.into_iter().map(|weight| weight / norm).collect()
    }
}

/// The groups of a batch as vectors.
pub(crate) struct CompressedGroups {
    pub(crate) vectors: Tensor, // (groups, width)
    tokens: Vec<u32>,
    /// Per token: the index of its group, and the factor of its embedding.
    group_of_token: Vec<usize>,
    factors: Vec<f32>,
}

impl CompressedGroups {
    /// Computes each group's vector, the sum of its embeddings times their factors.
    pub(crate) fn new(
        model: &TrainableDecoder,
        sequences: &[CompressedSequence<'_>],
        factors: GroupFactors,
    ) -> Result<Self, DeviceError> {
        let device = model.decoder.device();
        let width = model.decoder.config().width;
        let groups: Vec<&Vec<u32>> = sequences.iter().flat_map(|of| of.groups).collect();
        let tokens: Vec<u32> = groups.iter().flat_map(|group| group.iter().copied()).collect();
        let each = |(at, group): (usize, &&Vec<u32>)| {
            let factors = factors.of(group.len());
            factors.into_iter().map(move |factor| (at, factor))
        };
        let (group_of_token, factors): (Vec<usize>, Vec<f32>) =
            groups.iter().enumerate().flat_map(each).unzip();
        let mut vectors = Tensor::zeros_on(device, groups.len(), width)?;
        if !tokens.is_empty() {
            let mut embeddings = model.decoder.embed(&tokens)?;
            ops::scale_rows(device, &mut embeddings, &factors)?;
            let rows = group_of_token.iter().map(|&group| group as u32).collect();
            ops::scatter_add(device, &embeddings, &Indices::new(device, rows)?, &mut vectors)?;
        }
        Ok(Self { vectors, tokens, group_of_token, factors })
    }

    /// Accumulates the gradients of the embeddings, given those of the vectors.
    fn accumulate_gradients(
        self,
        model: &mut TrainableDecoder,
        dvectors: &Tensor,
    ) -> Result<(), DeviceError> {
        if self.tokens.is_empty() {
            return Ok(());
        }
        let device = model.decoder.device().clone();
        let mut dtokens = ops::select(&device, [dvectors], &self.group_of_token)?;
        ops::scale_rows(&device, &mut dtokens, &self.factors)?;
        model.accumulate_embedding_gradients(self.tokens, &dtokens)
    }
}

/// The rows of a batch's forward pass and the use of their hidden states.
pub(crate) struct CompressedRows {
    input: PassRows,
    /// Rows whose input is a group.
    pub(crate) groups: Vec<usize>,
    /// Indices among the output rows of those that predict a group, and of those that predict a
    /// completion token. The output following one of the former is at the group itself.
    pub(crate) before_groups: Vec<usize>,
    pub(crate) before_tokens: Vec<Vec<usize>>, // per example
}

impl CompressedRows {
    fn new(
        cache: &mut Cache,
        sequences: &[CompressedSequence<'_>],
        dropout: Option<DropoutConfig>,
    ) -> Self {
        let mut rows = Self {
            input: PassRows::default(),
            groups: Vec::new(),
            before_groups: Vec::new(),
            before_tokens: Vec::new(),
        };
        let mut outputs = 0;
        for of in sequences {
            let mut sequence = Sequence::default();
            let fed = &of.completion[..of.completion.len() - 1];
            let tokens = |tokens: &[u32]| {
                tokens.iter().map(|&token| RowInput::Token(token)).collect::<Vec<_>>()
            };
            let groups = vec![RowInput::Vector; of.groups.len()];
            let inputs = [tokens(of.prompt), groups, tokens(fed)].concat();
            let first = of.prompt.len() - 1; // predicts the first group
            for (at, input) in inputs.into_iter().enumerate() {
                if matches!(input, RowInput::Vector) {
                    rows.groups.push(rows.input.len());
                }
                let dropout = dropout.map(|with| with.row(of.id, with.step, &sequence));
                rows.input.push(cache, &mut sequence, input, dropout, at >= first);
            }
            let tokens = outputs + of.groups.len();
            rows.before_groups.extend(outputs..tokens);
            outputs += of.outputs();
            rows.before_tokens.push((tokens..outputs).collect());
        }
        rows
    }
}

/// The inputs of a batch's forward pass.
pub(crate) struct CompressedBatch<'a> {
    pub(crate) sequences: Vec<CompressedSequence<'a>>,
    pub(crate) factors: GroupFactors,
    pub(crate) dropout: Option<DropoutConfig>,
}

/// Thoughts used as constant inputs instead of groups (scheduled sampling).
pub(crate) struct FedThoughts {
    vectors: Tensor, // (groups, width)
    /// Per group: whether a thought replaces it.
    replaces: Vec<bool>,
}

impl FedThoughts {
    /// Replaces the groups of the examples with `feeds_thoughts`.
    pub(crate) fn new(vectors: Tensor, examples: &[CompressedExample]) -> Self {
        let replaces = examples
            .iter()
            .flat_map(|example| vec![example.feeds_thoughts; example.groups.len()])
            .collect();
        Self { vectors, replaces }
    }
}

impl CompressedBatch<'_> {
    /// Number of KV-cache slots of the batch.
    pub(crate) fn slots(&self) -> usize {
        self.sequences.iter().map(|of| Cache::slots_for(of.positions())).sum()
    }

    /// Runs the forward pass over prompts, groups (or the thoughts that replace them) and
    /// completions.
    pub(crate) fn forward(
        &self,
        model: &TrainableDecoder,
        cache: &mut Cache,
        thoughts: Option<FedThoughts>,
    ) -> Result<CompressedPass, DeviceError> {
        let groups = CompressedGroups::new(model, &self.sequences, self.factors)?;
        let rows = CompressedRows::new(cache, &self.sequences, self.dropout);
        let (fed, replaced) = match thoughts {
            None => (groups.vectors.clone(), None),
            Some(FedThoughts { vectors, replaces }) => {
                let count = replaces.len();
                let indices: Vec<usize> = (0..count)
                    .zip(&replaces)
                    .map(|(at, is_replaced)| at + count * usize::from(*is_replaced))
                    .collect();
                let device = model.decoder.device();
                (ops::select(device, [&groups.vectors, &vectors], &indices)?, Some(replaces))
            }
        };
        let inputs = rows.input.embed(&model.decoder, Some(fed))?;
        let masks = self.dropout.map(|_| rows.input.dropout());
        let (hidden, segment) = model.forward(cache, &rows.input.pass, inputs.clone(), masks)?;
        Ok(CompressedPass { rows, groups, inputs, hidden, segment, replaced })
    }
}

/// A batch's forward pass.
pub(crate) struct CompressedPass {
    pub(crate) rows: CompressedRows,
    pub(crate) groups: CompressedGroups,
    pub(crate) inputs: Tensor, // (rows, width)
    pub(crate) hidden: Tensor, // (output rows, width)
    segment: Segment,
    /// Per group: whether a thought replaced it.
    replaced: Option<Vec<bool>>,
}

impl CompressedPass {
    /// The hidden states that predict the groups: (groups, width).
    pub(crate) fn before_groups(&self, model: &TrainableDecoder) -> Result<Tensor, DeviceError> {
        ops::select(model.decoder.device(), [&self.hidden], &self.rows.before_groups)
    }

    /// Accumulates the gradients of the model, given those of the output rows.
    pub(crate) fn backward(
        self,
        model: &mut TrainableDecoder,
        cache: &Cache,
        dhidden: &Tensor,
    ) -> Result<(), DeviceError> {
        let device = model.decoder.device().clone();
        let mut dkv = cache.gradients(&device)?;
        let dx = model.backward(cache, &mut dkv, self.segment, dhidden)?;
        let mut dgroups = self.rows.input.accumulate_embedding_gradients(model, &dx)?;
        if let Some(replaced) = self.replaced {
            let factors: Vec<f32> = replaced.iter().map(|of| if *of { 0.0 } else { 1.0 }).collect();
            ops::scale_rows(&device, &mut dgroups, &factors)?;
        }
        self.groups.accumulate_gradients(model, &dgroups)?;
        model.collect_gradients()
    }
}

/// The weighted sum of losses.
pub(crate) fn weighted_sum(losses: &[f32], weights: &[f32]) -> f64 {
    let terms = losses.iter().zip(weights);
    terms.map(|(loss, weight)| f64::from(*loss) * f64::from(*weight)).sum()
}

/// The mean of losses (rows, 1).
pub(crate) fn mean(losses: Tensor) -> Result<f64, DeviceError> {
    let losses = losses.to_host()?;
    let sum: f64 = losses.data().iter().map(|&loss| f64::from(loss)).sum();
    Ok(sum / losses.rows().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::{FactorNorm, GroupFactors};

    #[test]
    fn factors_keep_the_length_of_unrelated_embeddings_or_sum_to_one() {
        for count in 1..6 {
            for ordered in [false, true] {
                let factors = |norm| GroupFactors { norm, ordered }.of(count);
                let squares: f32 = factors(FactorNorm::Squares).iter().map(|x| x * x).sum();
                assert!((squares - 1.0).abs() < 1e-4, "{count} tokens: {squares}");
                let sum: f32 = factors(FactorNorm::Sum).iter().sum();
                assert!((sum - 1.0).abs() < 1e-6, "{count} tokens: {sum}");
                for norm in [FactorNorm::Squares, FactorNorm::Sum] {
                    let falls = factors(norm).is_sorted_by(|a, b| a > b);
                    assert_eq!(falls, ordered || count == 1);
                }
            }
        }
        let ordered = GroupFactors { norm: FactorNorm::Squares, ordered: true };
        assert_eq!(ordered.of(2), [0.8, 0.6]);
    }
}
