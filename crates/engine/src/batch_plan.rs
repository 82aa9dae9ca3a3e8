//! Divides sequences into batches: as many per batch as fit the memory budget, in request order.
//!
//! A trajectory does not depend on the other sequences in its batch, so the plan affects only speed
//! and memory. A question whose sequences do not fit in one batch is split, and its prompt is
//! computed once per part.

use std::ops::Range;

use model::{Cache, Config, Decoder};
use tensor::Tensor;

use crate::batch::{BatchContext, BatchItem};
use crate::error::EngineError;
use crate::method::{ColdStop, LatentLength};
use crate::perturb::PromptSharing;
use crate::prompt::Prompt;
use crate::reasoner::{LatentModel, RewardModel};
use crate::sampling_params::{self, AdaptiveSampling};
use crate::streams;

/// A range of sequences of one question. Sequence 0 is the greedy one, if requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SequenceRange {
    /// Index of the question among the plan's items.
    pub(crate) question: usize,
    pub(crate) rows: Range<usize>,
}

/// KV cache slots of the reasoner and of the reward model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheSlots {
    pub(crate) reasoner: usize,
    pub(crate) reward: usize,
}

/// KV memory of one question, in cache slots and in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footprint {
    prompt_slots: usize,
    /// Every sequence stores the whole prompt separately in the cache.
    private_prompt: bool,
    row_slots: usize,
    reward_prompt_slots: usize,
    reward_row_slots: usize,
    /// Bytes used once per question; the next field is per sequence.
    pub(crate) shared_bytes: usize,
    pub(crate) row_bytes: usize,
    beam: Option<BeamFootprint>,
}

/// KV slots of the beam search of one question.
#[derive(Clone, Copy, Debug, Default)]
struct BeamFootprint {
    extensions: usize,
    prompts: CacheSlots,
    /// Slots in addition to the prompts, in whole chunks, when the search starts from a batch that
    /// already holds the prompts.
    own: CacheSlots,
}

impl BeamFootprint {
    /// Slots including the prompts, for a search that starts from scratch.
    fn slots(&self) -> CacheSlots {
        CacheSlots {
            reasoner: self.prompts.reasoner + self.own.reasoner,
            reward: self.prompts.reward + self.own.reward,
        }
    }
}

/// The plan: the items, how many sequences run at once, and their KV memory in bytes.
pub(crate) struct BatchPlan<'a> {
    items: &'a [BatchItem<'a>],
    footprints: Vec<Footprint>,
    bytes: PositionBytes,
    /// GPU streams on which batches run concurrently.
    streams: usize,
    /// Minimum number of sequences for which several streams are used.
    stream_min_rows: usize,
    /// Maximum sequences per batch; larger batches are not faster.
    max_rows: usize,
    /// KV memory of each stream in bytes.
    budget: usize,
}

/// Bytes of the keys and values of one position, in each cache.
#[derive(Clone, Copy, Debug, Default)]
struct PositionBytes {
    reasoner: usize,
    reward: usize,
    reference: usize,
}

impl PositionBytes {
    fn new(context: &BatchContext<'_>) -> Self {
        let bytes =
            |decoder: &Decoder| Cache::bytes_per_position(decoder.device(), decoder.config());
        let reference = context.reward_model.and_then(|reward| reward.reference.as_ref());
        Self {
            reasoner: bytes(&context.model.decoder),
            reward: context.reward_model.map_or(0, |reward| bytes(&reward.decoder)),
            reference: reference.map_or(0, |reference| bytes(&reference.decoder)),
        }
    }

    fn of(&self, slots: CacheSlots) -> usize {
        slots.reasoner * self.reasoner + slots.reward * self.reward
    }
}

impl Footprint {
    /// The memory of a question run in a context.
    pub(crate) fn of(context: &BatchContext<'_>, item: &BatchItem<'_>) -> Self {
        Self::new(context, item, PositionBytes::new(context))
    }

    /// Slots of the shared prompt, used once per question.
    pub(crate) fn shared_slots(&self) -> usize {
        if self.private_prompt { 0 } else { self.prompt_slots }
    }

    /// Slots of the reasoner used by each sequence.
    pub(crate) fn sequence_slots(&self) -> usize {
        self.row_slots + if self.private_prompt { self.prompt_slots } else { 0 }
    }

    /// Slots of the reward model used by `rows` sequences.
    pub(crate) fn reward_slots(&self, rows: usize) -> usize {
        self.reward_prompt_slots + rows * self.reward_row_slots
    }

    fn new(context: &BatchContext<'_>, item: &BatchItem<'_>, bytes: PositionBytes) -> Self {
        let model = context.model;
        let params = item.params;
        // `check_context` rejects more thoughts than the context has positions.
        let thoughts = params.length.limit().min(model.decoder.config().context);
        let max_new_tokens = params.max_new_tokens.get();
        let answer = row_positions(model, 0, max_new_tokens);
        let prompt_slots = Cache::slots_for(item.prompt_len());
        let row_slots = Cache::slots_for(row_positions(model, thoughts, max_new_tokens));
        let private_prompt = params.perturbation.prompt_sharing() == PromptSharing::Nothing;
        let mut footprint = Self { prompt_slots, private_prompt, row_slots, ..Self::default() };
        let mut reference_slots = 0;
        if let Some(reward) = context.reward_model {
            let trace = reward.reference_thoughts();
            footprint.reward_prompt_slots = Cache::slots_for(item.prompt_len() + trace);
            footprint.reward_row_slots = Cache::slots_for(reward.positions_read(thoughts, answer));
            reference_slots = prompt_slots + Cache::slots_for(trace);
        }
        let prompt_bytes = prompt_slots * bytes.reasoner;
        footprint.row_bytes =
            row_slots * bytes.reasoner + footprint.reward_row_slots * bytes.reward;
        footprint.shared_bytes =
            footprint.reward_prompt_slots * bytes.reward + reference_slots * bytes.reference;
        let prompt_owner =
            if private_prompt { &mut footprint.row_bytes } else { &mut footprint.shared_bytes };
        *prompt_owner += prompt_bytes;
        footprint.beam = footprint.of_search(context, item, thoughts);
        footprint
    }

    /// Memory of a beam search. Its caches hold the extensions of one step, the selected beams of
    /// every step, and the best finished path together with its replacement.
    fn of_search(
        &self,
        context: &BatchContext<'_>,
        item: &BatchItem<'_>,
        thoughts: usize,
    ) -> Option<BeamFootprint> {
        let (size, reward) = item.params.search.zip(context.reward_model)?;
        let finalists = reward.num_finalists(size);
        let paths = size.extensions() + size.width.get() * thoughts + finalists + 1;
        let answer = row_positions(context.model, 0, item.params.max_new_tokens.get());
        // Chunks of slots start at block boundaries.
        let answers = |positions| finalists * Cache::slots_for(positions) + Cache::slots_for(1);
        let prompts = if self.private_prompt { size.extensions() } else { 1 };
        let own = CacheSlots {
            reasoner: paths + answers(answer),
            reward: paths + answers(reward.positions_read(0, answer)),
        };
        Some(BeamFootprint {
            extensions: size.extensions(),
            prompts: CacheSlots {
                reasoner: prompts * self.prompt_slots,
                reward: self.reward_prompt_slots,
            },
            own: round_up(own),
        })
    }
}

impl<'a> BatchPlan<'a> {
    /// Rejects a request that cannot run even alone because of its parameters, length or memory.
    pub(crate) fn check(
        context: &BatchContext<'_>,
        item: &BatchItem<'_>,
        budget: usize,
    ) -> Result<(), EngineError> {
        let model = context.model;
        let params = item.params;
        sampling_params::check(params, &model.method)?;
        if params.search.is_some() && (context.reward_model.is_none() || params.length.limit() == 0)
        {
            return Err(EngineError::NothingToSearch);
        }
        if params.search.is_some() && model.method.looped.is_some() {
            return Err(EngineError::ParallelThoughts { family: model.method.family });
        }
        let needs_mixtures = params.perturbation.needs_mixtures()
            || params.cold_stop.is_some_and(ColdStop::is_on) && params.length.limit() > 0;
        if needs_mixtures && !model.head.is_mixture() {
            return Err(EngineError::NothingToMix { family: model.method.family });
        }
        check_forced(model, item)?;
        let thoughts = params.length.limit().min(model.decoder.config().context);
        let end = model.method.end_latent.len();
        check_context(model.decoder.config(), item.prompt, thoughts, end)?;
        if let Some(reward) = context.reward_model {
            check_reward_context(reward, item.prompt, thoughts, end)?;
        }
        let bytes = PositionBytes::new(context);
        let footprint = Footprint::new(context, item, bytes);
        let id = item.prompt.id;
        let need = footprint.shared_bytes + footprint.row_bytes;
        let mebibytes = |bytes: usize| bytes.div_ceil(1 << 20);
        if need > budget {
            let need = mebibytes(need);
            let budget = budget >> 20;
            return Err(EngineError::Memory { id, need, budget });
        }
        let search = footprint.beam.map_or(0, |beam| bytes.of(beam.slots()));
        if search > budget {
            let need = mebibytes(search);
            let budget = budget >> 20;
            return Err(EngineError::BeamMemory { id, need, budget });
        }
        Ok(())
    }

    /// A plan for items that passed [`BatchPlan::check`].
    pub(crate) fn new(
        context: &BatchContext<'_>,
        items: &'a [BatchItem<'a>],
        budget: usize,
    ) -> Self {
        let bytes = PositionBytes::new(context);
        let device = context.model.decoder.device();
        let mut plan = Self {
            items,
            footprints: items.iter().map(|item| Footprint::new(context, item, bytes)).collect(),
            bytes,
            streams: 1,
            stream_min_rows: streams::min_rows_for_streams(&context.model.decoder),
            max_rows: device.max_batch_rows(),
            budget,
        };
        // A search alternates with batches in the caches of one stream, so there is only one.
        let rows: usize = items.iter().map(|item| item.params.rows()).sum();
        let searches = items.iter().any(|item| item.params.search.is_some());
        if !searches && rows >= plan.stream_min_rows {
            plan.split_among_streams(device.streams());
        }
        plan
    }

    /// Divides memory and sequences among streams, if each can then hold a sequence of every
    /// question.
    fn split_among_streams(&mut self, streams: usize) {
        let most = self.footprints.iter().map(|f| f.shared_bytes + f.row_bytes).max().unwrap_or(0);
        if most <= self.budget / streams {
            self.streams = streams;
            self.max_rows /= streams;
            self.budget /= streams;
        }
    }

    /// GPU streams on which batches run concurrently.
    pub(crate) fn streams(&self) -> usize {
        self.streams
    }

    /// KV memory of each stream in bytes.
    pub(crate) fn budget(&self) -> usize {
        self.budget
    }

    pub(crate) fn items(&self) -> &'a [BatchItem<'a>] {
        self.items
    }

    /// The beam search of a question, if a batch that contains this range contains all of the
    /// search's first extensions.
    fn search_after(&self, range: &SequenceRange) -> Option<&BeamFootprint> {
        let first = usize::from(self.items.get(range.question)?.params.greedy);
        let beam = self.footprints[range.question].beam.as_ref()?;
        let is_held = range.rows.start <= first && first + beam.extensions <= range.rows.end;
        is_held.then_some(beam)
    }

    /// Positions of a search's first extensions within this range of its question; `None` if the
    /// range does not contain all of them.
    pub(crate) fn first_extensions(&self, range: &SequenceRange) -> Option<Range<usize>> {
        let beam = self.search_after(range)?;
        let first = usize::from(self.items[range.question].params.greedy) - range.rows.start;
        Some(first..first + beam.extensions)
    }

    /// Whether the caches have room for a batch and for the searches that start from its sequences.
    pub(crate) fn holds_searches(&self, batch: &[SequenceRange]) -> bool {
        let bytes = |range: &SequenceRange| {
            let footprint = &self.footprints[range.question];
            let search = self.search_after(range).map_or(0, |beam| self.bytes.of(beam.own));
            footprint.shared_bytes + range.rows.len() * footprint.row_bytes + search
        };
        batch.iter().map(bytes).sum::<usize>() <= self.budget
    }

    /// Maximum slots used by a batch, including the searches that start from its sequences if there
    /// is room for them.
    pub(crate) fn slots(&self, batch: &[SequenceRange]) -> CacheSlots {
        let mut slots = CacheSlots::default();
        for range in batch {
            let footprint = &self.footprints[range.question];
            let rows = range.rows.len();
            slots.reasoner += footprint.shared_slots() + rows * footprint.sequence_slots();
            slots.reward += footprint.reward_slots(rows);
        }
        if self.holds_searches(batch) {
            for beam in batch.iter().filter_map(|range| self.search_after(range)) {
                slots.reasoner += beam.own.reasoner;
                slots.reward += beam.own.reward;
            }
        }
        slots
    }

    /// Slots used by the beam searches of some questions, run from scratch.
    pub(crate) fn search_slots(&self, questions: &[usize]) -> CacheSlots {
        let slots = |sum: CacheSlots, &q: &usize| match &self.footprints[q].beam {
            Some(beam) => CacheSlots {
                reasoner: sum.reasoner + beam.slots().reasoner,
                reward: sum.reward + beam.slots().reward,
            },
            None => sum,
        };
        questions.iter().fold(CacheSlots::default(), slots)
    }

    /// Groups of items that fit into one batch per stream, given the sequences `rows(item)` of
    /// each; at least one item per group.
    fn groups(&self, rows: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
        let fits = |group: &Range<usize>| {
            let bytes =
                |q: usize| self.footprints[q].shared_bytes + rows(q) * self.footprints[q].row_bytes;
            let all_bytes: usize = group.clone().map(bytes).sum();
            let all_rows: usize = group.clone().map(&rows).sum();
            all_rows <= self.streams * self.max_rows && all_bytes / self.streams <= self.budget
        };
        split_greedily(0..self.items.len(), fits)
    }

    /// Groups of items that run together: a single group, unless some items check their vote
    /// between rounds of samples.
    pub(crate) fn question_groups(&self) -> Vec<Range<usize>> {
        if self.items.iter().all(|item| item.params.adaptive.is_none()) {
            return std::iter::once(0..self.items.len()).collect();
        }
        self.groups(|q| {
            let params = self.items[q].params;
            let first = usize::from(params.greedy) + AdaptiveSampling::FIRST_ROUND;
            if params.adaptive.is_some() { first.min(params.rows()) } else { params.rows() }
        })
    }

    /// Groups of questions whose beam searches run together: equal parameters, as many as fit.
    pub(crate) fn searches(&self, questions: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
        let searched: Vec<usize> =
            questions.filter(|&q| self.footprints[q].beam.is_some()).collect();
        let fits = |group: &Range<usize>| {
            let group = &searched[group.clone()];
            let bytes = self.bytes.of(self.search_slots(group));
            let params = |q: usize| self.items[q].params;
            group.iter().all(|&q| params(q) == params(group[0]))
                && group
                    .iter()
                    .map(|&q: &usize| self.footprints[q].beam.map_or(0, |b| b.extensions))
                    .sum::<usize>()
                    <= self.max_rows
                && bytes <= self.budget
        };
        let groups = split_greedily(0..searched.len(), fits);
        groups.into_iter().map(|group| searched[group].to_vec()).collect()
    }

    /// Maximum sequences per batch, chosen such that streams finish at the same time and no batch
    /// is left with the remainder of one question.
    fn max_batch_rows(&self, ranges: &[SequenceRange]) -> usize {
        let rows: usize = ranges.iter().map(|range| range.rows.len()).sum();
        if self.streams == 1 || rows < self.stream_min_rows {
            return self.max_rows;
        }
        let batches = rows.div_ceil(self.max_rows).next_multiple_of(self.streams);
        let even = rows.div_ceil(batches);
        let question = ranges.iter().map(|range| range.rows.len()).max().unwrap_or(1);
        let whole = if question <= even { even.next_multiple_of(question) } else { even };
        whole.min(self.max_rows)
    }

    /// Splits ranges of sequences into batches that fit, preserving their order.
    pub(crate) fn batches(&self, ranges: &[SequenceRange]) -> Vec<Vec<SequenceRange>> {
        let max_rows = self.max_batch_rows(ranges);
        let mut batches = Vec::new();
        let mut batch = Vec::new();
        let mut used = 0;
        let mut rows = 0;
        for range in ranges {
            let Footprint { shared_bytes, row_bytes, .. } = self.footprints[range.question];
            let mut first = range.rows.start;
            while first < range.rows.end {
                let left = range.rows.end - first;
                let fitting = |search: usize| {
                    let room = self.budget.saturating_sub(used + shared_bytes + search);
                    (room / row_bytes.max(1)).min(left).min(max_rows - rows)
                };
                // A batch leaves room for its search unless that would split its question.
                let part = SequenceRange { question: range.question, rows: first..range.rows.end };
                let search = self.search_after(&part).map_or(0, |beam| self.bytes.of(beam.own));
                let (count, search) = match fitting(search) {
                    count if count < left && batch.is_empty() => (fitting(0), 0),
                    count => (count, search),
                };
                // A question that would be split starts a new batch, unless the batch is empty.
                if count < left && !batch.is_empty() {
                    batches.push(std::mem::take(&mut batch));
                    (used, rows) = (0, 0);
                    continue;
                }
                // One sequence always fits: this was checked before the plan was made.
                let end = first + count.max(1);
                batch.push(SequenceRange { question: range.question, rows: first..end });
                used += shared_bytes + count * row_bytes + search;
                (rows, first) = (rows + count, end);
            }
        }
        batches.extend((!batch.is_empty()).then_some(batch));
        batches
    }
}

/// Splits a range into the longest pieces that fit; a piece of length one always fits.
fn split_greedily(range: Range<usize>, fits: impl Fn(&Range<usize>) -> bool) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let mut end = start + 1;
        while end < range.end && fits(&(start..end + 1)) {
            end += 1;
        }
        pieces.push(start..end);
        start = end;
    }
    pieces
}

/// Rounds up to whole chunks of slots.
fn round_up(slots: CacheSlots) -> CacheSlots {
    CacheSlots {
        reasoner: Cache::slots_for(slots.reasoner),
        reward: Cache::slots_for(slots.reward),
    }
}

/// Maximum positions of a sequence after its prompt. Answers end at the context length, so larger
/// limits have no effect.
pub(crate) fn row_positions(model: &LatentModel, thoughts: usize, max_new_tokens: usize) -> usize {
    let context = model.decoder.config().context;
    // Looped latent positions begin inside a chunk of the prompt.
    let repeated = if model.method.looped.is_some() { Cache::slots_for(1) } else { 1 };
    repeated + thoughts + model.method.end_latent.len() + max_new_tokens.min(context)
}

/// Rejects forced thoughts of the wrong width, or more of them than the request allows.
fn check_forced(model: &LatentModel, item: &BatchItem<'_>) -> Result<(), EngineError> {
    let id = item.prompt.id;
    let params = item.params;
    let expected = [params.length.limit(), model.decoder.config().width];
    let unfit = |(trajectory, forced): (usize, &Tensor)| {
        let found = [forced.rows(), forced.cols()];
        let fits = found[0] <= expected[0] && (found[1] == expected[1] || found[0] == 0);
        (!fits).then_some(EngineError::ForcedShape { id, trajectory, found, expected })
    };
    match item.forced_thoughts {
        [] => Ok(()),
        _ if params.length == LatentLength::None => {
            Err(EngineError::NothingToReplace { family: model.method.family })
        }
        _ if params.search.is_some() => Err(EngineError::ForcedSearch { id }),
        forced => forced.iter().enumerate().find_map(unfit).map_or(Ok(()), Err),
    }
}

/// Rejects a prompt that leaves no room for an answer after `thoughts` and `more` other positions.
pub(crate) fn check_context(
    config: &Config,
    prompt: &Prompt,
    thoughts: usize,
    more: usize,
) -> Result<(), EngineError> {
    let id = prompt.id;
    let length = prompt.tokens.len();
    let context = config.context;
    if length + thoughts + more >= context {
        return Err(EngineError::TooLong { id, prompt: length, thoughts, context });
    }
    Ok(())
}

/// The same check for a reward model that reads a sequence of `thoughts` followed by `end` tokens,
/// and for its reference reasoner; both must have embeddings for the prompt's tokens.
fn check_reward_context(
    reward: &RewardModel,
    prompt: &Prompt,
    thoughts: usize,
    end: usize,
) -> Result<(), EngineError> {
    let config = reward.decoder.config();
    let own = reward.reference_thoughts();
    prompt.check_tokens(config.vocab)?;
    let read = reward.positions_read(thoughts, end);
    check_context(config, prompt, thoughts, own + read.saturating_sub(thoughts))?;
    if let Some(reference) = &reward.reference {
        prompt.check_tokens(reference.decoder.config().vocab)?;
        check_context(reference.decoder.config(), prompt, own, 0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batch sizes for `questions` questions with `rows` sequences each, on two streams.
    fn batches(questions: usize, rows: usize) -> Vec<usize> {
        let plan = BatchPlan {
            items: &[],
            footprints: vec![Footprint { row_bytes: 16, ..Footprint::default() }; questions],
            bytes: PositionBytes::default(),
            streams: 2,
            stream_min_rows: 12288,
            max_rows: 8192,
            budget: usize::MAX / 4,
        };
        let range = |question| SequenceRange { question, rows: 0..rows };
        let batches = plan.batches(&(0..questions).map(range).collect::<Vec<_>>());
        batches.iter().map(|batch| batch.iter().map(|range| range.rows.len()).sum()).collect()
    }

    #[test]
    fn streams_get_even_batches_of_whole_questions() {
        assert_eq!(batches(192, 64), [6144, 6144]);
        assert_eq!(batches(193, 64), [97 * 64, 96 * 64]);
        assert_eq!(batches(256, 64), [8192, 8192]);
        assert_eq!(batches(300, 64), [4800; 4]);
        assert_eq!(batches(1, 15000), [7500, 7500]);
    }

    #[test]
    fn few_rows_stay_together() {
        assert_eq!(batches(64, 64), [64 * 64]);
        assert_eq!(batches(128, 64), [128 * 64]);
        assert_eq!(batches(1, 1), [1]);
    }
}
