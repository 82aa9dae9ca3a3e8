//! The random numbers of one attempt: a Philox stream.

use tensor::rng::philox;

/// Separates this stream from those of masks and noise with the same seed ("corp").
const TAG: u32 = 0x636f_7270;

/// A stream of random words, determined by seed, index, split and attempt.
#[derive(Debug)]
pub(super) struct CorpusRng {
    key: [u32; 2],
    counter: [u32; 4],
    words: [u32; 4],
    next: usize,
}

impl CorpusRng {
    /// The stream of an attempt. Streams repeat after 2^20 attempts, which no problem needs.
    pub(super) fn new(seed: u64, index: u64, split: u32, attempt: u32) -> Self {
        let counter =
            [split << 28 | (attempt & 0xf_ffff) << 8, index as u32, (index >> 32) as u32, TAG];
        Self { key: [seed as u32, (seed >> 32) as u32], counter, words: [0; 4], next: 4 }
    }

    fn next_u32(&mut self) -> u32 {
        if self.next == 4 {
            self.words = philox(self.counter, self.key);
            self.counter[0] += 1;
            self.next = 0;
        }
        self.next += 1;
        self.words[self.next - 1]
    }

    /// A uniform number from `0..n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.next_u32()) * n as u64) >> 32) as usize
    }

    /// A uniform number from `low..=high`.
    pub(super) fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1).max(1) as usize) as i64
    }

    /// True with a probability in percent.
    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A uniform element.
    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
