//! The continuous batch: at every step sequences are admitted, advance, and leave.
//!
//! ```text
//! step: admit -> one forward pass -> sources observe -> done sequences go back to their sources
//! ```
//!
//! The batch owns the KV memory. A sequence's slots are reserved when it is admitted, so that a
//! step never runs out of memory; they are freed when it leaves. The prompts of sources that have
//! left stay in the [`PrefixCache`] until their slots are needed. The batch accesses its sources
//! only through [`SequenceSource`]; it knows neither rewards nor votes.

use std::time::Instant;

use model::Cache;
use tensor::{DeviceError, Tensor};

use super::prefix_cache::{PrefixCache, PrefixLease};
use super::source::SequenceSource;
use crate::batch::{BatchContext, BatchItem};
use crate::batch_plan::Footprint;
use crate::error::EngineError;
use crate::executor::{Alignment, Executor, Gather, Lookahead, NextInput, Prefix, SequenceState};
use crate::perturb::PromptSharing;
use crate::reasoner::LatentModel;
use crate::sampler::Sampler;
use crate::stage_timer::Stage;

/// Sources with sequences in the KV cache.
pub(crate) struct SequenceBatch<'a, S> {
    model: &'a LatentModel,
    executor: Executor<'a>,
    /// In the order of admission. Sequences refer to them by index.
    pub(crate) sources: Vec<S>,
    /// The cached prefix of each source's prompt.
    leases: Vec<PrefixLease>,
    prefixes: PrefixCache,
    cache: Option<Cache>,
    /// Reserved slots in addition to cached prefixes, out of `slots`.
    reserved: usize,
    slots: usize,
    max_sequences: usize,
    /// Whether admission is paused because other work waits for memory.
    pub(crate) is_closed: bool,
}

impl<'a, S: SequenceSource> SequenceBatch<'a, S> {
    /// An empty batch with `memory` bytes of KV cache.
    pub(crate) fn new(context: &BatchContext<'a>, memory: usize, lookahead: Lookahead) -> Self {
        let model = context.model;
        let device = model.decoder.device();
        let bytes = Cache::bytes_per_position(device, model.decoder.config());
        let mut executor = Executor::new(model, Alignment::Mixed);
        executor.lookahead = lookahead;
        executor.keep_states = context.keeps_states();
        Self {
            model,
            executor,
            sources: Vec::new(),
            leases: Vec::new(),
            prefixes: PrefixCache::default(),
            cache: None,
            reserved: 0,
            // Whole chunks, as allocated to sequences.
            slots: memory / bytes / Cache::slots_for(1) * Cache::slots_for(1),
            max_sequences: device.max_batch_rows(),
            is_closed: false,
        }
    }

    pub(crate) fn num_sequences(&self) -> usize {
        self.executor.sequences.len()
    }

    /// Slots in use, excluding cached prefixes, and all slots.
    pub(crate) fn slot_usage(&self) -> (usize, usize) {
        (self.reserved + self.prefixes.pinned_slots(), self.slots)
    }

    pub(crate) fn prefixes(&self) -> &PrefixCache {
        &self.prefixes
    }

    fn fits(&self, slots: usize) -> bool {
        self.reserved + self.prefixes.pinned_slots() + slots <= self.slots
    }

    /// Whether a source can join: whether there is memory for one of its sequences in addition to
    /// all admitted and waiting ones.
    pub(crate) fn has_room(&self, footprint: &Footprint) -> bool {
        let mut sequences = self.executor.sequences.len();
        let mut slots = footprint.shared_slots() + footprint.own_slots();
        for before in &self.sources {
            sequences += before.waiting();
            slots += before.waiting() * before.footprint().own_slots();
        }
        sequences < self.max_sequences && self.fits(slots)
    }

    /// Adds a source for which there is room. Its sequences are admitted in the next steps.
    pub(crate) fn join(&mut self, source: S) {
        let item = source.item();
        let tokens = &item.prompt.tokens;
        // A sequence that shares the whole prompt reads the hidden state at its last token.
        let reusable = match item.params.perturbation.prompt_sharing() {
            PromptSharing::Whole => tokens.len() - 1,
            PromptSharing::AllButLast => item.shared_tokens(),
            PromptSharing::Nothing => 0,
        };
        let lease = self.prefixes.acquire(&tokens[..reusable]);
        self.prefixes.count_prompt(item.shared_tokens());
        self.executor.prefixes.push(lease.kv.clone().map(Prefix::begun));
        self.reserved += source.footprint().shared_slots() - lease.len();
        self.leases.push(lease);
        self.sources.push(source);
    }

    /// Reserves slots for positions that are computed outside the batch's steps; false if there is
    /// no room.
    pub(crate) fn reserve(&mut self, positions: usize) -> bool {
        let slots = Cache::slots_for(positions);
        let fits = self.fits(slots);
        self.reserved += if fits { slots } else { 0 };
        fits
    }

    /// Frees slots reserved by [`Self::reserve`].
    pub(crate) fn unreserve(&mut self, positions: usize) {
        self.reserved -= Cache::slots_for(positions);
    }

    /// The cache, grown to the reserved size.
    pub(crate) fn cache(&mut self) -> Result<&mut Cache, DeviceError> {
        let decoder = &self.model.decoder;
        let cache = match &mut self.cache {
            Some(cache) => cache,
            none => none.insert(Cache::new(decoder.device(), decoder.config(), self.slots)?),
        };
        while self.reserved + self.prefixes.slots() > self.slots && self.prefixes.evict(cache) {}
        Ok(cache)
    }

    /// Runs one step of the admitted sequences; returns how many finished.
    pub(crate) fn step(&mut self) -> Result<usize, EngineError> {
        if self.executor.sequences.is_empty() {
            return Ok(0);
        }
        self.cache()?;
        let Some(cache) = &mut self.cache else { return Ok(0) };
        let items: Vec<BatchItem<'_>> = self.sources.iter().map(S::item).collect();
        let stages = stage_counts(&self.executor.sequences, items.len());
        let start = Instant::now();
        self.executor.step(cache, Sampler::new(&items))?;
        let seconds = start.elapsed().as_secs_f64();
        for (source, counts) in self.sources.iter_mut().zip(stages) {
            let all: usize = counts.iter().map(|(_, count)| count).sum();
            for (stage, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                source.add_seconds(stage, seconds * count as f64 / all as f64);
            }
        }
        for sequence in &self.executor.sequences {
            self.sources[sequence.spec.item].observe(sequence);
        }
        self.finish()
    }

    /// Admits sequences in the order of their sources, as far as there is memory; while the batch
    /// is closed only one, and only if there is no other.
    pub(crate) fn admit(&mut self) {
        for item in 0..self.sources.len() {
            let slots = self.sources[item].footprint().own_slots();
            while self.sources[item].waiting() > 0 {
                let count = self.executor.sequences.len();
                let is_full = count >= self.max_sequences || (self.is_closed && count > 0);
                if is_full || !self.fits(slots) {
                    return;
                }
                self.reserved += slots;
                let next = self.sources[item].next(item);
                self.executor.sequences.extend(next.map(SequenceState::new));
            }
        }
    }

    /// Returns finished sequences to their sources.
    fn finish(&mut self) -> Result<usize, EngineError> {
        let is_done = |sequence: &SequenceState| sequence.next == NextInput::Done;
        if !self.executor.sequences.iter().any(is_done) {
            return Ok(0);
        }
        let done = self.executor.remove(is_done);
        let returns =
            |sequence: &&SequenceState| self.sources[sequence.spec.item].returns_latents();
        let returned = done.iter().filter(returns).flat_map(|sequence| &sequence.thoughts);
        let gather = Gather::of_thoughts(returned);
        let decoder = &self.model.decoder;
        let latents = match gather.is_empty() {
            true => Tensor::zeros(0, decoder.config().width),
            false => gather.select(decoder.device())?.to_host()?,
        };
        let count = done.len();
        let mut first = 0;
        for mut sequence in done {
            self.release(&mut sequence);
            let source = &mut self.sources[sequence.spec.item];
            let own = first..first + sequence.thoughts.len();
            let latents = source.returns_latents().then(|| latents.select(own.clone()));
            first = if latents.is_some() { own.end } else { first };
            source.finish(sequence, latents)?;
        }
        Ok(count)
    }

    /// Removes sources, given by ascending index, with their sequences.
    pub(crate) fn remove(&mut self, items: &[usize]) -> Vec<S> {
        if items.is_empty() {
            return Vec::new();
        }
        // A complete source has no sequences left; a cancelled one may have.
        let leaves = |sequence: &SequenceState| items.binary_search(&sequence.spec.item).is_ok();
        for mut sequence in self.executor.remove(leaves) {
            self.release(&mut sequence);
        }
        let prefixes = self.executor.remove_items(items);
        let mut removed = Vec::with_capacity(items.len());
        for (&item, prefix) in items.iter().zip(prefixes).rev() {
            let source = self.sources.remove(item);
            let lease = self.leases.remove(item);
            self.reserved -= source.footprint().shared_slots() - lease.len();
            let of = source.item();
            let shared = &of.prompt.tokens[..of.shared_tokens()];
            let kv = prefix.map(|prefix| prefix.kv).unwrap_or_default();
            self.prefixes.give_back(self.cache.as_mut(), (shared, kv), lease);
            removed.push(source);
        }
        removed.reverse();
        removed
    }

    /// Frees the slots of a leaving sequence.
    fn release(&mut self, sequence: &mut SequenceState) {
        let source = &self.sources[sequence.spec.item];
        let item = source.item();
        let shared = match item.shared_tokens() {
            1.. if self.model.method.looped.is_some() => item.continued_tokens(),
            shared => shared,
        };
        self.reserved -= source.footprint().own_slots();
        let kv = std::mem::take(&mut sequence.kv);
        if let Some(cache) = self.cache.as_mut().filter(|_| !kv.is_empty()) {
            cache.release(kv, shared);
        }
    }

    /// After an out-of-memory error: halves the number of slots and restarts every sequence.
    /// Returns the sources of which not even one sequence fits.
    pub(crate) fn requeue(&mut self) -> Vec<S> {
        for sequence in std::mem::take(&mut self.executor.sequences) {
            self.sources[sequence.spec.item].requeue(sequence.spec);
        }
        self.slots = self.slots / 2 / Cache::slots_for(1) * Cache::slots_for(1);
        self.release_cache();
        let (stay, unfit) =
            std::mem::take(&mut self.sources).into_iter().partition(|source: &S| {
                let footprint = source.footprint();
                footprint.shared_slots() + footprint.own_slots() <= self.slots
            });
        let stay: Vec<S> = stay;
        stay.into_iter().for_each(|source| self.join(source));
        unfit
    }

    /// Removes all sources; their sequences are lost.
    pub(crate) fn clear(&mut self) -> Vec<S> {
        self.release_cache();
        std::mem::take(&mut self.sources)
    }

    /// Releases the memory of the cache, which contains no sequence.
    pub(crate) fn release_cache(&mut self) {
        self.executor.clear();
        self.leases.clear();
        self.prefixes.clear();
        self.cache = None;
        self.reserved = 0;
    }
}

/// Number of sequences of each source at each stage.
fn stage_counts(sequences: &[SequenceState], sources: usize) -> Vec<[(Stage, usize); 3]> {
    let none = [(Stage::Prefill, 0), (Stage::Thoughts, 0), (Stage::Answers, 0)];
    let mut counts = vec![none; sources];
    for sequence in sequences {
        let stage = usize::from(sequence.next.stage()).min(2);
        counts[sequence.spec.item][stage].1 += 1;
    }
    counts
}
