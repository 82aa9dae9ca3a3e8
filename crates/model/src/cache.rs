//! Sequences in a store of keys and values: a prefix computed once, rows forked from it.
//!
//! A [`Sequence`] is a list of spans of slots. Forking copies the list, not the slots, so N rows
//! share their question's prefix, and beams share their thoughts. Slots are handed out from a
//! [`Cache`] in order and taken back all at once; only a search, whose forks mostly live for one
//! position, takes single slots and gives them back one by one, and a pass that is not made after
//! all gives back what it was handed.

use smallvec::SmallVec;
use tensor::ops::{AttentionSpans, KvGrads, KvStore, Span};
use tensor::{Device, DeviceError};

use crate::config::Config;

/// Slots handed to a sequence at a time: whole blocks of the store, so that its own positions are
/// read fastest.
const CHUNK_SLOTS: u32 = KvStore::ALIGNMENT as u32;

/// A store of keys and values, and how much of it is in use.
#[derive(Debug)]
pub struct Cache {
    pub(crate) kv: KvStore,
    used: u32,
    granularity: u32,
    free_slots: Vec<u32>, // single slots that were given back
}

/// Positions in a cache, in order. The last span may have room for more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    spans: SmallVec<[Span; 2]>, /* mostly a prefix and what is its own: thousands of rows are
                                 * made and dropped */
    reserved: u32,
    len: u32,
}

impl Sequence {
    /// How many positions it holds.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A sequence that starts with the same positions and goes its own way. Nothing is copied.
    #[inline]
    pub fn fork(&self) -> Self {
        Self { spans: SmallVec::from_slice(&self.spans), reserved: 0, len: self.len }
    }

    /// A fork that shares the first `len` positions alone.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn fork_at(&self, len: usize) -> Self {
        assert!(
            len <= self.len(),
            "a sequence of {} positions cannot be forked at {len}",
            self.len()
        );
        let (mut spans, mut left) = (SmallVec::with_capacity(self.spans.len() + 1), len as u32);
        for span in &self.spans {
            let len = span.len.min(left);
            if len == 0 {
                break;
            }
            spans.push(Span { len, ..*span });
            left -= len;
        }
        Self { spans, reserved: 0, len: len as u32 }
    }
}

/// How much of a cache was in use at some moment; see [`Cache::rewind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheMark(u32);

impl Cache {
    /// An empty cache for a decoder of that shape.
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
        Self { kv, used: 0, granularity: CHUNK_SLOTS, free_slots: Vec::new() }
    }

    /// Memory that one position takes.
    pub fn bytes_per_position(device: &Device, config: &Config) -> usize {
        KvStore::bytes_per_slot(device, config.layers, config.kv_heads, config.head_dim)
    }

    /// Slots that a sequence of `own` positions of its own may take: they are handed out in chunks.
    pub fn slots_for(own: usize) -> usize {
        own.next_multiple_of(CHUNK_SLOTS as usize)
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.kv.slots()
    }

    /// Gradients of everything that it holds, all zero.
    pub fn gradients(&self, device: &Device) -> Result<KvGrads, DeviceError> {
        KvGrads::zeros(device, &self.kv)
    }

    /// Takes all slots back. Sequences made before must not be used any more.
    pub fn clear(&mut self) {
        (self.used, self.granularity) = (0, CHUNK_SLOTS);
        self.free_slots.clear();
    }

    /// Whether slots are handed out one at a time from now on, which wastes none where sequences
    /// stay short, or in chunks again.
    pub fn set_slot_granularity(&mut self, singly: bool) {
        self.granularity = if singly { 1 } else { CHUNK_SLOTS };
    }

    /// Takes back the last position of a sequence that was handed single slots. The position must
    /// be its own: neither the sequence nor what was forked from it may be used any more.
    pub fn release_last(&mut self, sequence: Sequence) {
        if let Some(last) = sequence.spans.last().filter(|s| sequence.reserved == 0 && s.len > 0) {
            self.free_slots.push(last.start + last.len - 1);
        }
    }

    /// This moment, to come back to.
    pub fn mark(&self) -> CacheMark {
        CacheMark(self.used)
    }

    /// Takes back the slots handed out since then. Of sequences that grew since, only forks at what
    /// they held then may be used.
    pub fn rewind(&mut self, mark: CacheMark) {
        self.used = self.used.min(mark.0);
        self.free_slots.retain(|&slot| slot < mark.0);
    }

    /// Takes back the last position of each of some sequences, all of them added since then and in
    /// this order: as if they had never been.
    pub fn rollback<'a, I>(&mut self, mark: CacheMark, sequences: I)
    where
        I: IntoIterator<Item = &'a mut Sequence>,
        I::IntoIter: DoubleEndedIterator,
    {
        for sequence in sequences.into_iter().rev() {
            let Some(last) = sequence.spans.last_mut().filter(|s| s.len > 0) else { continue };
            last.len -= 1;
            sequence.len -= 1;
            sequence.reserved += 1;
            if sequence.reserved == self.granularity {
                sequence.reserved = 0; // it was the first of its chunk, which goes back too
                let slot = last.start + last.len;
                self.free_slots.extend((self.granularity == 1 && slot < mark.0).then_some(slot));
            }
            if last.len == 0 {
                sequence.spans.pop();
            }
        }
        self.rewind(mark);
    }

    /// Makes room for one more position and returns its slot.
    fn append_slot(&mut self, sequence: &mut Sequence) -> u32 {
        if sequence.reserved == 0 {
            let chunk = self.granularity;
            let start = self.allocate(chunk);
            // A sequence that grew last goes on where it ended; others start a span of their own.
            let whole = |s: &Span| s.len.is_multiple_of(chunk) && s.start.is_multiple_of(chunk);
            let follows =
                sequence.spans.last().is_some_and(|s| s.start + s.len == start && whole(s));
            if !follows {
                sequence.spans.push(Span { start, len: 0 });
            }
            sequence.reserved = chunk;
        }
        let Some(last) = sequence.spans.last_mut() else {
            unreachable!("a sequence with room has a span")
        };
        let slot = last.start + last.len;
        last.len += 1;
        sequence.reserved -= 1;
        sequence.len += 1;
        slot
    }

    /// The first of so many neighbouring slots; chunks start at whole blocks.
    fn allocate(&mut self, chunk: u32) -> u32 {
        if let Some(slot) = self.free_slots.pop_if(|_| chunk == 1) {
            return slot;
        }
        let start = self.used.next_multiple_of(chunk);
        assert!(
            start + chunk <= self.kv.slots() as u32,
            "the cache was planned too small: {} slots",
            self.kv.slots()
        );
        self.used = start + chunk;
        start
    }
}

/// New positions that are computed together, in one pass over the weights.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    pub(crate) attention: AttentionSpans,
    pub(crate) slots: Vec<u32>,         // (rows)
    pub(crate) positions: Vec<u32>,     // (rows)
    pub(crate) output_rows: Vec<usize>, // rows whose hidden state is asked for, ascending
}

impl Pass {
    /// An empty pass with room for so many positions.
    pub fn with_capacity(rows: usize) -> Self {
        let (slots, positions) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        Self {
            attention: AttentionSpans::with_capacity(rows),
            slots,
            positions,
            output_rows: Vec::with_capacity(rows),
        }
    }

    /// Adds the next position of a sequence; `wanted` asks for its hidden state.
    ///
    /// Positions of one sequence are added in order. Each sees all before it and itself.
    pub fn push(&mut self, cache: &mut Cache, sequence: &mut Sequence, output: bool) {
        if output {
            self.output_rows.push(self.slots.len());
        }
        self.positions.push(sequence.len);
        self.slots.push(cache.append_slot(sequence));
        self.attention.push(sequence.spans.iter().copied());
    }

    /// How many positions there are.
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
        let (mut cache, mut pass, mut prefix) = (cache(), Pass::default(), Sequence::default());
        (0..20).for_each(|_| pass.push(&mut cache, &mut prefix, false));
        assert_eq!(prefix.spans[..], [Span { start: 0, len: 20 }]);
        let (mut a, mut b) = (prefix.fork(), prefix.fork());
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

    #[test]
    fn nested_forks_share_both_prefixes() {
        let (mut cache, mut pass, mut prefix) = (cache(), Pass::default(), Sequence::default());
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
        let (mut cache, mut pass, mut prefix) = (cache(), Pass::default(), Sequence::default());
        (0..3).for_each(|_| pass.push(&mut cache, &mut prefix, false));
        cache.set_slot_granularity(true);
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
        cache.set_slot_granularity(false);
        let mut answer = forks[0].fork();
        pass.push(&mut cache, &mut answer, true);
        assert_eq!(
            pass.slots.last(),
            Some(&32),
            "a chunk starts at a whole block, whatever is free before it"
        );
    }

    #[test]
    fn rollback_restores_cache_and_sequences() {
        for singly in [false, true] {
            let (mut cache, mut pass, mut prefix) = (cache(), Pass::default(), Sequence::default());
            (0..3).for_each(|_| pass.push(&mut cache, &mut prefix, false));
            let mut rows: Vec<Sequence> = (0..4).map(|_| prefix.fork()).collect();
            cache.set_slot_granularity(singly);
            rows.iter_mut().for_each(|row| pass.push(&mut cache, row, true));
            if singly {
                cache.release_last(rows.remove(1)); // the next is handed what was given back, the others fresh slots
            }
            // The last goes on right where it ended, in a chunk of its own; a new one begins with
            // one; the others have room.
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
                assert_eq!(rows, grown, "the same slots are handed out again");
                cache.rollback(mark, &mut rows);
            }
        }
    }

    #[test]
    fn fork_at_shares_a_prefix_and_rewind_frees_the_rest() {
        let (mut cache, mut pass, mut prefix) = (cache(), Pass::default(), Sequence::default());
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
