//! The KV cache: sequences of slots in one store of keys and values.
//!
//! A [`Sequence`] is a list of spans of slots. A fork copies the list, not the slots, so N
//! sequences share their question's prefix and beams share their thoughts. A [`Cache`] allocates
//! slots in ascending order and frees them together. Slots are freed earlier in three cases: a
//! continuous batch releases the chunks of each sequence that leaves it; beam search, whose forks
//! mostly exist for one position, allocates single slots and releases them one by one; and an
//! aborted pass rolls back its allocations.

use smallvec::SmallVec;
use tensor::ops::{AttentionSpans, KvGrads, KvStore, Span};
use tensor::{Device, DeviceError};

use crate::config::Config;

/// Slots per chunk: whole blocks of the store, which attention reads fastest.
const CHUNK_SLOTS: u32 = KvStore::ALIGNMENT as u32;

/// A store of keys and values, and the allocation state of its slots.
#[derive(Debug)]
pub struct Cache {
    pub(crate) kv: KvStore,
    used: u32,
    granularity: u32,
    free_slots: Vec<u32>,  // freed single slots
    free_chunks: Vec<u32>, // first slots of freed chunks
}

/// The slots of a sequence, in the order of positions. The last span may be followed by reserved
/// slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    spans: SmallVec<[Span; 2]>, /* mostly a prefix and what is its own: thousands of rows are
                                 * made and dropped */
    reserved: u32,
    len: u32,
    /// Leading positions in whole chunks, up to the first fork: the part that other sequences may
    /// share. Attention reads them separately from the rest, so this must not depend on which slots
    /// happened to be free, nor on the other contents of the cache.
    prefix: u32,
    /// Whether the sequence is a fork, or has single slots: its prefix no longer grows.
    prefix_ended: bool,
}

impl Sequence {
    /// Number of positions.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no positions.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A sequence that shares all positions so far. No keys or values are copied.
    #[inline]
    pub fn fork(&self) -> Self {
        let len = self.len;
        let prefix = self.prefix;
        let spans = SmallVec::from_slice(&self.spans);
        Self { spans, reserved: 0, len, prefix, prefix_ended: len > 0 }
    }

    /// A fork of whole chunks that continues like the sequence itself: its positions and the
    /// following ones form one prefix, whichever sequence computed them.
    ///
    /// # Panics
    /// If the positions do not fill their chunks, or are not all part of the prefix.
    pub fn continued(&self) -> Self {
        let is_whole = self.len.is_multiple_of(CHUNK_SLOTS) && self.prefix == self.len;
        assert!(is_whole, "only a prefix of whole chunks can be continued");
        Self { prefix_ended: false, ..self.fork() }
    }

    /// A fork that shares the first `len` positions only.
    ///
    /// # Panics
    /// If the sequence is shorter.
    pub fn fork_at(&self, len: usize) -> Self {
        assert!(
            len <= self.len(),
            "a sequence of {} positions cannot be forked at {len}",
            self.len()
        );
        let mut spans = SmallVec::with_capacity(self.spans.len() + 1);
        let mut left = len as u32;
        for span in &self.spans {
            let len = span.len.min(left);
            if len == 0 {
                break;
            }
            spans.push(Span { len, ..*span });
            left -= len;
        }
        let len = len as u32;
        let prefix = self.prefix.min(len);
        let prefix_ended = len > 0;
        Self { spans, reserved: 0, len, prefix, prefix_ended }
    }
}

/// A snapshot of the allocation state of a cache; see [`Cache::rewind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheMark(u32);

/// The unit in which a [`Cache`] allocates slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotGranularity {
    /// Aligned chunks of [`KvStore::ALIGNMENT`] slots: fastest to read.
    Chunk,
    /// Single slots: no memory is wasted on sequences that stay short.
    Single,
}

impl Cache {
    /// An empty cache of `slots` positions.
    pub fn new(device: &Device, config: &Config, slots: usize) -> Result<Self, DeviceError> {
        Ok(Self::with_store(KvStore::new(
            device,
            config.layers,
            config.kv_heads,
            config.head_dim,
            slots,
        )?))
    }

    fn with_store(kv: KvStore) -> Self {
        let free_slots = Vec::new();
        let free_chunks = Vec::new();
        Self { kv, used: 0, granularity: CHUNK_SLOTS, free_slots, free_chunks }
    }

    /// Bytes per position, over all layers.
    pub fn bytes_per_position(device: &Device, config: &Config) -> usize {
        KvStore::bytes_per_slot(device, config.layers, config.kv_heads, config.head_dim)
    }

    /// Slots used by `own` unshared positions of a sequence: allocation is in chunks.
    pub fn slots_for(own: usize) -> usize {
        own.next_multiple_of(CHUNK_SLOTS as usize)
    }

    /// Leading positions of a prompt that [`Sequence::continued`] can share: whole chunks.
    pub fn shareable(len: usize) -> usize {
        len - len % CHUNK_SLOTS as usize
    }

    /// The capacity, in slots.
    pub fn slots(&self) -> usize {
        self.kv.slots()
    }

    /// Zero gradients of all keys and values.
    pub fn gradients(&self, device: &Device) -> Result<KvGrads, DeviceError> {
        KvGrads::zeros(device, &self.kv)
    }

    /// Frees all slots. Existing sequences become invalid.
    pub fn clear(&mut self) {
        (self.used, self.granularity) = (0, CHUNK_SLOTS);
        self.free_slots.clear();
        self.free_chunks.clear();
    }

    /// Sets the unit of further allocations.
    pub fn set_slot_granularity(&mut self, granularity: SlotGranularity) {
        self.granularity = match granularity {
            SlotGranularity::Single => 1,
            SlotGranularity::Chunk => CHUNK_SLOTS,
        };
    }

    /// Frees the last slot of a sequence with [`SlotGranularity::Single`]. The sequence must not
    /// share that position: it and its forks become invalid.
    pub fn release_last(&mut self, sequence: Sequence) {
        if let Some(last) = sequence.spans.last().filter(|s| sequence.reserved == 0 && s.len > 0) {
            self.free_slots.push(last.start + last.len - 1);
        }
    }

    /// Frees the chunks of a sequence after its first `shared` positions, which belong to the
    /// sequence that it was forked from. Its forks become invalid. All of its slots must have been
    /// allocated with [`SlotGranularity::Chunk`].
    pub fn release(&mut self, sequence: Sequence, shared: usize) {
        let mut position = 0;
        for span in &sequence.spans {
            // A fork's unshared positions start in a separate chunk.
            let skipped = (shared as u32).saturating_sub(position).min(span.len);
            let own = span.start + skipped..span.start + span.len;
            self.free_chunks.extend(own.step_by(CHUNK_SLOTS as usize));
            position += span.len;
        }
    }

    /// The current allocation state.
    pub fn mark(&self) -> CacheMark {
        CacheMark(self.used)
    }

    /// Frees the slots allocated since `mark`. Sequences that grew since are invalid, except forks
    /// at lengths that they had then.
    pub fn rewind(&mut self, mark: CacheMark) {
        self.used = self.used.min(mark.0);
        self.free_slots.retain(|&slot| slot < mark.0);
        self.free_chunks.retain(|&slot| slot < mark.0);
    }

    /// Undoes one [`Pass::push`] per sequence: removes their last positions, which must all have
    /// been pushed since `mark` and in this order. Cache and sequences are then in their previous
    /// state.
    pub fn rollback<'a, I>(&mut self, mark: CacheMark, sequences: I)
    where
        I: IntoIterator<Item = &'a mut Sequence>,
        I::IntoIter: DoubleEndedIterator,
    {
        for sequence in sequences.into_iter().rev() {
            let Some(last) = sequence.spans.last_mut().filter(|s| s.len > 0) else { continue };
            last.len -= 1;
            sequence.len -= 1;
            sequence.prefix = sequence.prefix.min(sequence.len);
            sequence.reserved += 1;
            if sequence.reserved == self.granularity {
                sequence.reserved = 0; // the first position of its chunk: the chunk is freed too
                let slot = last.start + last.len;
                let free = match self.granularity {
                    1 => &mut self.free_slots,
                    _ => &mut self.free_chunks,
                };
                free.extend((slot < mark.0).then_some(slot));
            }
            if last.len == 0 {
                sequence.spans.pop();
            }
        }
        self.rewind(mark);
    }

    /// Appends one position to a sequence and returns its slot.
    fn append_slot(&mut self, sequence: &mut Sequence) -> u32 {
        if sequence.reserved == 0 {
            let chunk = self.granularity;
            let start = self.allocate(chunk);
            // A sequence whose last span ends where the allocation starts extends that span.
            let whole = |s: &Span| s.len.is_multiple_of(chunk) && s.start.is_multiple_of(chunk);
            let follows =
                sequence.spans.last().is_some_and(|s| s.start + s.len == start && whole(s));
            if !follows {
                sequence.spans.push(Span { start, len: 0 });
            }
            sequence.reserved = chunk;
            sequence.prefix_ended |= chunk == 1;
        }
        let Some(last) = sequence.spans.last_mut() else {
            unreachable!("a sequence with reserved slots has a span")
        };
        let slot = last.start + last.len;
        last.len += 1;
        sequence.reserved -= 1;
        sequence.len += 1;
        if !sequence.prefix_ended {
            sequence.prefix = sequence.len;
        }
        slot
    }

    /// Allocates `chunk` consecutive slots, aligned to `chunk`; returns the first.
    fn allocate(&mut self, chunk: u32) -> u32 {
        let free = if chunk == 1 { &mut self.free_slots } else { &mut self.free_chunks };
        if let Some(slot) = free.pop() {
            return slot;
        }
        let start = self.used.next_multiple_of(chunk);
        assert!(
            start + chunk <= self.kv.slots() as u32,
            "the cache is too small: {} slots",
            self.kv.slots()
        );
        self.used = start + chunk;
        start
    }
}

/// Positions that are computed together, in one forward pass.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    pub(crate) attention: AttentionSpans,
    pub(crate) slots: Vec<u32>,         // (rows)
    pub(crate) positions: Vec<u32>,     // (rows)
    pub(crate) output_rows: Vec<usize>, // rows whose hidden states are returned, ascending
}

impl Pass {
    /// An empty pass with capacity for `rows` positions.
    pub fn with_capacity(rows: usize) -> Self {
        let slots = Vec::with_capacity(rows);
        let positions = Vec::with_capacity(rows);
        Self {
            attention: AttentionSpans::with_capacity(rows),
            slots,
            positions,
            output_rows: Vec::with_capacity(rows),
        }
    }

    /// Adds the next position of a sequence; `output` requests its hidden state.
    ///
    /// Positions of one sequence are added in order. Each attends to itself and all before it.
    pub fn push(&mut self, cache: &mut Cache, sequence: &mut Sequence, output: bool) {
        if output {
            self.output_rows.push(self.slots.len());
        }
        self.positions.push(sequence.len);
        self.slots.push(cache.append_slot(sequence));
        self.attention.push_with_prefix(sequence.spans.iter().copied(), sequence.prefix);
    }

    /// Recomputes a position of a sequence from another input: its keys and values are replaced. It
    /// attends to itself and all positions before it.
    ///
    /// # Panics
    /// If the sequence is shorter.
    pub fn push_again(&mut self, sequence: &Sequence, position: usize, output: bool) {
        let until = sequence.fork_at(position + 1);
        let Some(last) = until.spans.last() else { unreachable!("it has a position") };
        if output {
            self.output_rows.push(self.slots.len());
        }
        self.positions.push(position as u32);
        self.slots.push(last.start + last.len - 1);
        self.attention.push_with_prefix(until.spans.iter().copied(), until.prefix);
    }

    /// Number of positions.
    pub fn rows(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> Cache {
        Cache::with_store(KvStore::new(&Device::cpu(None).unwrap(), 1, 1, 4, 160).unwrap())
    }

    #[test]
    fn forks_share_the_prefix_and_nothing_else() {
        let mut cache = cache();
        let mut pass = Pass::default();
        let mut prefix = Sequence::default();
        (0..20).for_each(|_| pass.push(&mut cache, &mut prefix, false));
        assert_eq!(prefix.spans[..], [Span { start: 0, len: 20 }]);
        let mut a = prefix.fork();
        let mut b = prefix.fork();
        for _ in 0..17 {
            pass.push(&mut cache, &mut a, true);
            pass.push(&mut cache, &mut b, true);
        }
        assert_eq!((a.len(), b.len(), prefix.len()), (37, 37, 20));
        assert_eq!(a.spans[0], prefix.spans[0]);
        let own = |s: &Sequence| {
            s.spans[1..].iter().flat_map(|s| s.start..s.start + s.len).collect::<Vec<_>>()
        };
        assert!(own(&a).iter().all(|slot| *slot >= 32 && !own(&b).contains(slot)));
        assert_eq!(own(&a).len(), 17);
        assert_eq!(pass.positions[20..24], [20, 20, 21, 21]);
    }

    /// The prefix does not depend on which slots are free and whether they are adjacent.
    #[test]
    fn the_prefix_is_what_was_there_at_the_first_fork() {
        let mut cache = cache();
        let grow = |cache: &mut Cache, sequence: &mut Sequence, count: usize| {
            (0..count).for_each(|_| Pass::default().push(cache, sequence, false));
            sequence.prefix
        };
        let mut first = Sequence::default();
        let mut other = Sequence::default();
        assert_eq!(grow(&mut cache, &mut first, 16), 16);
        let mut adjacent = first.fork();
        assert_eq!(grow(&mut cache, &mut adjacent, 3), 16);
        assert_eq!(adjacent.spans[..], [Span { start: 0, len: 19 }], "it follows its prefix");
        assert_eq!(grow(&mut cache, &mut other, 5), 5);
        let mut beam = adjacent.fork();
        assert_eq!(grow(&mut cache, &mut beam, 1), 16);
        assert_eq!(grow(&mut cache, &mut first, 20), 36);
        assert!(first.spans.len() > 1, "chunks in two places are one prefix");
        assert_eq!((first.fork_at(30).prefix, beam.fork_at(18).prefix), (30, 16));
        cache.set_slot_granularity(SlotGranularity::Single);
        assert_eq!(grow(&mut cache, &mut other, 20), 16, "single slots are no whole chunks");
    }

    /// A prompt that begins with another's chunks has the same prefix as on its own, and frees none
    /// of them.
    #[test]
    fn a_continued_sequence_is_one_prefix() {
        let mut cache = cache();
        let mut first = Sequence::default();
        (0..20).for_each(|_| Pass::default().push(&mut cache, &mut first, false));
        let mut continued = first.fork_at(16).continued();
        (0..20).for_each(|_| Pass::default().push(&mut cache, &mut continued, false));
        assert_eq!((continued.len, continued.prefix), (36, 36));
        assert_eq!(continued.spans[0], Span { start: 0, len: 16 });
        assert!(continued.spans[1].start >= 32, "the chunk after is its own");
        cache.release(continued, 16);
        cache.free_chunks.sort_unstable();
        assert_eq!(cache.free_chunks, [32, 48]);
    }

    #[test]
    fn a_position_is_computed_again_in_its_slot() {
        let mut cache = cache();
        let mut first = Pass::default();
        let mut prefix = Sequence::default();
        (0..3).for_each(|_| first.push(&mut cache, &mut prefix, false));
        let mut own = prefix.fork();
        (0..20).for_each(|_| first.push(&mut cache, &mut own, true));
        let mut again = Pass::default();
        (3..23).for_each(|position| again.push_again(&own, position, true));
        assert_eq!(
            (&again.slots[..], &again.positions[..]),
            (&first.slots[3..], &first.positions[3..])
        );
        assert_eq!(again.attention, first.attention.select(3..23));
    }

    #[test]
    fn nested_forks_share_both_prefixes() {
        let mut cache = cache();
        let mut pass = Pass::default();
        let mut prefix = Sequence::default();
        (0..3).for_each(|_| pass.push(&mut cache, &mut prefix, false));
        let mut beam = prefix.fork();
        pass.push(&mut cache, &mut beam, false);
        let mut next = beam.fork();
        pass.push(&mut cache, &mut next, false);
        assert_eq!(
            next.spans[..],
            [Span { start: 0, len: 3 }, Span { start: 16, len: 1 }, Span { start: 32, len: 1 }]
        );
        cache.clear();
        assert_eq!(cache.used, 0);
    }

    #[test]
    fn released_slots_are_reused_and_chunks_stay_aligned() {
        let mut cache = cache();
        let mut pass = Pass::default();
        let mut prefix = Sequence::default();
        (0..3).for_each(|_| pass.push(&mut cache, &mut prefix, false));
        cache.set_slot_granularity(SlotGranularity::Single);
        let mut forks: Vec<Sequence> = (0..3).map(|_| prefix.fork()).collect();
        forks.iter_mut().for_each(|fork| pass.push(&mut cache, fork, true));
        assert_eq!(pass.slots[3..], [16, 17, 18]);
        cache.release_last(forks.remove(1));
        let mut next = forks[1].fork();
        pass.push(&mut cache, &mut next, true);
        assert_eq!(
            next.spans[..],
            [Span { start: 0, len: 3 }, Span { start: 18, len: 1 }, Span { start: 17, len: 1 }]
        );
        cache.release_last(next);
        cache.set_slot_granularity(SlotGranularity::Chunk);
        let mut answer = forks[0].fork();
        pass.push(&mut cache, &mut answer, true);
        assert_eq!(
            pass.slots.last(),
            Some(&32),
            "a chunk is aligned even if single slots are free before it"
        );
    }

    #[test]
    fn released_chunks_are_reused_and_shared_ones_are_kept() {
        for prefix_len in [20, 32] {
            let mut cache = cache();
            let mut pass = Pass::default();
            let mut prefix = Sequence::default();
            (0..prefix_len).for_each(|_| pass.push(&mut cache, &mut prefix, false));
            let mut row = prefix.fork();
            (0..17).for_each(|_| pass.push(&mut cache, &mut row, true));
            cache.release(row, prefix_len);
            assert_eq!(cache.free_chunks, [32, 48]);
            let mut next = prefix.fork();
            let mark = cache.mark();
            pass.push(&mut cache, &mut next, true);
            assert_eq!(pass.slots.last(), Some(&48));
            cache.rollback(mark, [&mut next]);
            assert_eq!((next, &cache.free_chunks[..]), (prefix.fork(), &[32, 48][..]));
            cache.release(prefix, 0);
            cache.free_chunks.sort_unstable();
            assert_eq!(cache.free_chunks, [0, 16, 32, 48]);
        }
    }

    #[test]
    fn rollback_restores_cache_and_sequences() {
        for granularity in [SlotGranularity::Chunk, SlotGranularity::Single] {
            let mut cache = cache();
            let mut pass = Pass::default();
            let mut prefix = Sequence::default();
            (0..3).for_each(|_| pass.push(&mut cache, &mut prefix, false));
            let mut rows: Vec<Sequence> = (0..4).map(|_| prefix.fork()).collect();
            cache.set_slot_granularity(granularity);
            rows.iter_mut().for_each(|row| pass.push(&mut cache, row, true));
            if granularity == SlotGranularity::Single {
                cache.release_last(rows.remove(1)); // the next push reuses its slot
            }
            // The next push extends the last row by an adjacent chunk, gives the new row its first
            // chunk, and takes reserved slots of the others.
            (0..15).for_each(|_| pass.push(&mut cache, rows.last_mut().unwrap(), true));
            rows.push(prefix.fork());
            let before = (rows.clone(), cache.used, cache.free_slots.clone());
            for _ in 0..2 {
                let mark = cache.mark();
                rows.iter_mut().for_each(|row| pass.push(&mut cache, row, true));
                let grown = rows.clone();
                cache.rollback(mark, &mut rows);
                assert_eq!((rows.clone(), cache.used, cache.free_slots.clone()), before);
                let mark = cache.mark();
                rows.iter_mut().for_each(|row| pass.push(&mut cache, row, true));
                assert_eq!(rows, grown, "the same slots are allocated again");
                cache.rollback(mark, &mut rows);
            }
        }
    }

    #[test]
    fn fork_at_shares_a_prefix_and_rewind_frees_the_rest() {
        let mut cache = cache();
        let mut pass = Pass::default();
        let mut prefix = Sequence::default();
        (0..5).for_each(|_| pass.push(&mut cache, &mut prefix, false));
        let mut path = prefix.fork();
        (0..3).for_each(|_| pass.push(&mut cache, &mut path, false));
        let mark = cache.mark();
        for _ in 0..2 {
            let mut other = path.fork_at(6);
            assert_eq!(
                (other.len(), &other.spans[..]),
                (6, &[Span { start: 0, len: 5 }, Span { start: 16, len: 1 }][..])
            );
            pass.push(&mut cache, &mut other, false);
            assert_eq!(other.spans[2], Span { start: 32, len: 1 });
            assert_eq!(path.fork_at(5), prefix.fork());
            cache.rewind(mark);
        }
        assert_eq!(path.fork_at(0), Sequence::default());
    }
}
