//! Mutations like libFuzzer's, without coverage feedback, for stable Rust.

/// Generates inputs from a corpus. The sequence is determined by the seed.
#[derive(Debug)]
pub struct Mutator {
    state: u64,
}

/// Boundary values for sizes and counts.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    7,
    8,
    127,
    255,
    256,
    u16::MAX as u64,
    i32::MAX as u64,
    u32::MAX as u64,
    1 << 40,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX - 7,
    u64::MAX,
];

impl Mutator {
    /// A mutator with this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The finalizer of SplitMix64 over a counter.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % (end.max(1) as u64)) as usize
    }

    /// A position in an input, half of the time near the start, where headers are.
    fn place(&mut self, length: usize) -> usize {
        match self.next() % 2 {
            0 => self.below(length),
            _ => self.below(length.min(400)),
        }
    }

    /// Writes the next input to `out`: an input of the corpus with one to eight mutations.
    pub fn mutate(&mut self, corpus: &[(String, Vec<u8>)], words: &[&str], out: &mut Vec<u8>) {
        out.clear();
        if corpus.is_empty() {
            return;
        }
        let from = self.below(corpus.len());
        out.extend_from_slice(&corpus[from].1);
        for _ in 0..1 + self.below(8) {
            let other = self.below(corpus.len());
            self.step(out, &corpus[other].1, words);
        }
    }

    fn step(&mut self, out: &mut Vec<u8>, other: &[u8], words: &[&str]) {
        let at = self.place(out.len());
        let end = (at + 1 + self.below(32)).min(out.len());
        match self.next() % 10 {
            0 if at < out.len() => out[at] ^= 1 << self.below(8),
            1 if at < out.len() => out[at] = self.next() as u8,
            2 => out.truncate(at),
            3 => drop(out.drain(at..end)),
            4 => {
                let part = out[at..end].to_vec();
                drop(out.splice(at..at, part));
            }
            5 => {
                let number = NUMBERS[self.below(NUMBERS.len())];
                let bytes = number.to_le_bytes();
                let size = [1, 2, 4, 8][self.below(4)];
                let end = (at + size).min(out.len());
                out[at..end].copy_from_slice(&bytes[..end - at]);
            }
            6 => self.replace_number(out, at),
            7 if !words.is_empty() => {
                let word = words[self.below(words.len())].as_bytes();
                let end = if self.next().is_multiple_of(2) { at } else { end };
                drop(out.splice(at..end, word.iter().copied()));
            }
            8 => {
                let start = self.below(other.len());
                let stop = (start + 1 + self.below(64)).min(other.len());
                drop(out.splice(at..at, other[start..stop].iter().copied()));
            }
            _ => {
                let byte = self.next() as u8;
                out.insert(at, byte);
            }
        }
    }

    /// Replaces the decimal digits at a position.
    fn replace_number(&mut self, out: &mut Vec<u8>, at: usize) {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let Some(start) = out[at..].iter().position(is_digit) else { return };
        let start = at + start;
        let digits = out[start..].iter().take_while(|byte| is_digit(byte)).count();
        let number = NUMBERS[self.below(NUMBERS.len())].to_string();
        drop(out.splice(start..start + digits, number.into_bytes()));
    }
}
