//! The random numbers of one variant: a Philox stream.

use tensor::rng::philox;

/// Separates this stream from those of the corpus, masks and noise with the same seed ("augm").
const TAG: u32 = 0x6175_676d;

/// A stream of random words, determined by seed, problem and variant.
#[derive(Debug)]
pub(super) struct VariantRng {
    key: [u32; 2],
    counter: [u32; 4],
    words: [u32; 4],
    next: usize,
}

impl VariantRng {
    /// The stream of a variant.
    pub(super) fn new(seed: u64, problem: u32, variant: u32) -> Self {
        let key = [seed as u32, (seed >> 32) as u32];
        Self { key, counter: [0, variant, problem, TAG], words: [0; 4], next: 4 }
    }

    fn next_u32(&mut self) -> u32 {
        if self.next == 4 {
            self.words = philox(self.counter, self.key);
            self.counter[0] = self.counter[0].wrapping_add(1);
            self.next = 0;
        }
        self.next += 1;
        self.words[self.next - 1]
    }

    /// A uniform number from `0..bound`; 0 if the range is empty.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.next_u32()) * u64::from(bound)) >> 32) as u32
    }

    /// True with a probability in percent.
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}
