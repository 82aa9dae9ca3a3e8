//! Prompts become prefixes in the KV cache: computed once and shared by all rows of a question.
//!
//! How much is shared depends on the request's perturbation. Without one, or with noise, the whole
//! prompt and the first hidden state; with dropout on thoughts, all but the last token, which every
//! row passes with masks of its own; with dropout in the prompt, nothing. Where rows are few, all
//! of this is one pass: rows attend to prefixes that are computed in the same pass.

use model::{Cache, DeferredInputs, Dropout, ForwardOptions, Pass, Sequence, SlotGranularity};
use tensor::ops::{self, OutputDtype, RowPerturbation};
use tensor::{DeviceError, Tensor};

use crate::perturb::PromptSharing;
use crate::reasoner::LatentModel;
use crate::sampler::{PassStage, RowId, Sampler};
use crate::think::Row;

/// Rows that have passed their prompt, and the hidden state at its last token of each.
pub(crate) struct PrefillOutput {
    pub(crate) rows: Vec<Row>,
    pub(crate) hidden: Tensor, // (rows, width)
}

/// A row to begin. Rows of one item are neighbours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSpec {
    /// Index of its question in the batch.
    pub(crate) item: usize,
    pub(crate) id: RowId,
    /// False for the greedy trajectory, which no perturbation touches.
    pub(crate) perturbed: bool,
}

/// Passes the prompts of the sampler's items and forks a row for each spec.
pub(crate) fn prefill(
    model: &LatentModel,
    cache: &mut Cache,
    specs: &[RowSpec],
    sampler: Sampler<'_>,
) -> Result<PrefillOutput, DeviceError> {
    PrefillBatch { model, specs, sampler, last_token: SlotGranularity::Chunk }.run(cache)
}

/// [`prefill`] for rows that mostly stay short: the last token of those that pass it by themselves
/// is in a single slot. Prefixes are in chunks all the same, so that attention takes them apart
/// from the rest as it does in a wave.
pub(crate) fn prefill_short(
    model: &LatentModel,
    cache: &mut Cache,
    specs: &[RowSpec],
    sampler: Sampler<'_>,
) -> Result<PrefillOutput, DeviceError> {
    PrefillBatch { model, specs, sampler, last_token: SlotGranularity::Single }.run(cache)
}

/// Prefix tokens and forked rows of a single pass, at most: beyond, two passes fill a GPU as well,
/// and fit its waves of tiles better.
const MAX_SINGLE_PASS: usize = 2048;
/// Rows whose private prompts are passed together: enough for full speed, few enough to keep the
/// inputs small.
const PRIVATE_PROMPT_ROWS: usize = 16;

#[derive(Clone, Copy)]
struct PrefillBatch<'a> {
    model: &'a LatentModel,
    specs: &'a [RowSpec],
    sampler: Sampler<'a>,
    /// Slots of the last tokens that rows pass by themselves.
    last_token: SlotGranularity,
}

impl PrefillBatch<'_> {
    fn run(self, cache: &mut Cache) -> Result<PrefillOutput, DeviceError> {
        let device = self.model.decoder.device();
        let mut hidden = Vec::new();
        let mut rows = self.shared_prefixes(cache, &mut hidden)?;
        cache.set_slot_granularity(SlotGranularity::Chunk);
        self.private_prompts(cache, &mut rows, &mut hidden)?;
        let order = self.hidden_order();
        let in_order = order.iter().copied().eq(0..hidden.iter().map(Tensor::rows).sum());
        let hidden = match (hidden.len(), in_order) {
            (1, true) => hidden.remove(0),
            (_, true) => ops::concat(device, &hidden.iter().collect::<Vec<_>>())?,
            (_, false) => ops::select(device, &hidden, &order)?,
        };
        Ok(PrefillOutput { rows, hidden })
    }

    fn sharing(&self, item: usize) -> PromptSharing {
        self.sampler.items[item].params.perturbation.prompt_sharing()
    }

    /// Each row's place among the hidden states: those of wholly shared prompts, of rows that pass
    /// their last token, of rows that pass their whole prompt.
    fn hidden_order(&self) -> Vec<usize> {
        let whole: Vec<usize> = (0..self.sampler.items.len())
            .filter(|&item| self.sharing(item) == PromptSharing::Whole)
            .collect();
        let count = |sharing| self.specs.iter().filter(|s| self.sharing(s.item) == sharing).count();
        let forked = count(PromptSharing::AllButLast);
        let mut forked_places = whole.len()..;
        let mut private_places = whole.len() + forked..;
        let place = |spec: &RowSpec| match self.sharing(spec.item) {
            PromptSharing::Whole => Some(whole.partition_point(|&item| item < spec.item)),
            PromptSharing::AllButLast => forked_places.next(),
            PromptSharing::Nothing => private_places.next(),
        };
        self.specs.iter().filter_map(place).collect()
    }

    /// Passes the prefixes, forks the rows that share them, and passes the last token of those that
    /// pass it by themselves: in the same pass where they are few, else in one of their own.
    fn shared_prefixes(
        self,
        cache: &mut Cache,
        hidden: &mut Vec<Tensor>,
    ) -> Result<Vec<Row>, DeviceError> {
        let Self { model, specs, sampler, .. } = self;
        let is_forked = |spec: &&RowSpec| self.sharing(spec.item) == PromptSharing::AllButLast;
        let last_token = |spec: &RowSpec| sampler.items[spec.item].prompt.tokens.last().copied();
        let last_tokens = || specs.iter().filter(is_forked).filter_map(last_token);
        let (mut tokens, forks) = (self.prefix_tokens(), last_tokens().count());
        if tokens.is_empty() && forks == 0 {
            return Ok(specs.iter().map(|&spec| Row::new(spec)).collect());
        }
        // Recorded masks fall on all rows of a pass, which prefixes must not be among.
        let single =
            forks == 0 || (sampler.recorded.is_none() && tokens.len() + forks <= MAX_SINGLE_PASS);
        if single {
            tokens.extend(last_tokens());
        }
        // The device looks embeddings up while the host builds the pass.
        let x = model.embed(&tokens)?;
        let (mut pass, prefixes) = self.prefix_pass(cache, tokens.len());
        let x = if single {
            x
        } else {
            // It computes the prefixes while the host makes the rows.
            let at_prompts = model.decoder.forward(cache, &pass, x, None)?;
            let has_whole = (0..prefixes.len()).any(|i| self.sharing(i) == PromptSharing::Whole);
            hidden.extend(has_whole.then_some(at_prompts));
            model.embed(&last_tokens().collect::<Vec<u32>>())?
        };
        let fork = |&spec: &RowSpec| {
            let prefix = prefixes[spec.item].as_ref();
            Row::with_sequence(spec, prefix.map(Sequence::fork).unwrap_or_default())
        };
        let mut rows: Vec<Row> = specs.iter().map(fork).collect();
        let mut forked: Vec<&mut Row> =
            rows.iter_mut().filter(|row| is_forked(&&row.spec)).collect();
        cache.set_slot_granularity(self.last_token);
        if !single {
            hidden.push(step(model, cache, &mut forked, x, sampler, PassStage::Thought(0))?);
            return Ok(rows);
        }
        let clean = std::iter::repeat_n(None, pass.rows());
        let own = forked.iter().map(|row| sampler.dropout_row(row, PassStage::Thought(0)));
        let dropout: Vec<Option<RowPerturbation>> = clean.chain(own).collect();
        forked.iter_mut().for_each(|row| pass.push(cache, &mut row.sequence, true));
        let dropout = (!forked.is_empty()).then_some(Dropout::Sampled(&dropout));
        hidden.push(model.decoder.forward(cache, &pass, x, dropout)?);
        Ok(rows)
    }

    /// How many prompt tokens of an item its rows share; none where they share nothing.
    fn prefix_len(&self, item: usize) -> Option<usize> {
        let length = self.sampler.items[item].prompt_len();
        match self.sharing(item) {
            PromptSharing::Whole => Some(length),
            PromptSharing::AllButLast => Some(length - 1),
            PromptSharing::Nothing => None,
        }
    }

    fn prefix_tokens(&self) -> Vec<u32> {
        let items = self.sampler.items.iter().enumerate();
        let prefix = |(i, item): (usize, &crate::batch::BatchItem<'_>)| {
            item.prompt.tokens[..self.prefix_len(i).unwrap_or(0)].to_vec()
        };
        items.flat_map(prefix).collect()
    }

    /// A pass over the shared prefixes and each one's sequence. The hidden state at the end of a
    /// wholly shared prompt is an output.
    fn prefix_pass(&self, cache: &mut Cache, capacity: usize) -> (Pass, Vec<Option<Sequence>>) {
        let mut pass = Pass::with_capacity(capacity);
        let mut prefix = |item: usize| {
            let mut sequence = Sequence::default();
            let shared = self.prefix_len(item)?;
            let length = self.sampler.items[item].prompt_len();
            (1..=shared).for_each(|n| pass.push(cache, &mut sequence, n == length));
            Some(sequence)
        };
        let prefixes = (0..self.sampler.items.len()).map(&mut prefix).collect();
        (pass, prefixes)
    }

    /// Rows that share nothing pass the whole prompt by themselves.
    fn private_prompts(
        self,
        cache: &mut Cache,
        rows: &mut [Row],
        hidden: &mut Vec<Tensor>,
    ) -> Result<(), DeviceError> {
        let Self { model, sampler, .. } = self;
        let is_private = |row: &&mut Row| self.sharing(row.spec.item) == PromptSharing::Nothing;
        let mut private: Vec<&mut Row> = rows.iter_mut().filter(is_private).collect();
        for chunk in private.chunks_mut(PRIVATE_PROMPT_ROWS) {
            let (mut pass, mut dropout, mut tokens) = (Pass::default(), Vec::new(), Vec::new());
            for row in chunk {
                let prompt = &sampler.items[row.spec.item].prompt.tokens;
                for (i, &token) in prompt.iter().enumerate() {
                    dropout.push(sampler.dropout_row(row, PassStage::Prompt));
                    pass.push(cache, &mut row.sequence, i + 1 == prompt.len());
                    tokens.push(token);
                }
            }
            let (x, dropout) = (model.embed(&tokens)?, Some(Dropout::Sampled(&dropout)));
            hidden.push(model.decoder.forward(cache, &pass, x, dropout)?);
        }
        Ok(())
    }
}

/// One position of each row: x (rows, width) to the hidden states (rows, width).
pub(crate) fn step(
    model: &LatentModel,
    cache: &mut Cache,
    rows: &mut [&mut Row],
    x: Tensor,
    sampler: Sampler<'_>,
    stage: PassStage,
) -> Result<Tensor, DeviceError> {
    let step = DeferredStep { sampler, stage, dtype: OutputDtype::F32 };
    step.run(model, cache, rows, || Ok(x), || Ok(()))
}

/// A step whose input vectors are not known when it is prepared, or that may be called off after
/// it was launched; see [`model::Decoder::forward_deferred`].
pub(crate) struct DeferredStep<'a> {
    pub(crate) sampler: Sampler<'a>,
    pub(crate) stage: PassStage,
    pub(crate) dtype: OutputDtype,
}

impl DeferredStep<'_> {
    /// Runs it. `input` gives x (rows, width) when everything else is ready; `proceed` is asked
    /// once the first block is launched. If either fails, the rows are where they were.
    pub(crate) fn run<E: From<DeviceError>>(
        &self,
        model: &LatentModel,
        cache: &mut Cache,
        rows: &mut [&mut Row],
        input: impl FnOnce() -> Result<Tensor, E>,
        proceed: impl FnOnce() -> Result<(), E>,
    ) -> Result<Tensor, E> {
        let Self { sampler, stage, dtype } = *self;
        let mark = cache.mark();
        let sampled = sampler.dropout_rows(rows, stage);
        let recorded = sampler.recorded_masks(rows, stage);
        let dropout = match (&recorded, rows.first()) {
            (Some(masks), Some(row)) => sampler.recorded_dropout(row, masks),
            _ => sampled.as_deref().map(Dropout::Sampled),
        };
        let mut pass = Pass::with_capacity(rows.len());
        rows.iter_mut().for_each(|row| pass.push(cache, &mut row.sequence, true));
        let options = ForwardOptions { dropout, output: dtype };
        let inputs = DeferredInputs { x: input, proceed };
        let hidden = model.decoder.forward_deferred(cache, &pass, options, inputs);
        if hidden.is_err() {
            cache.rollback(mark, rows.iter_mut().map(|row| &mut row.sequence));
        }
        hidden
    }
}
