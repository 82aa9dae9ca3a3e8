//! Runs of nine words that a text shares with others: the usual test for leaked benchmarks.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Words in a row that count as shared text.
pub const OVERLAP_WORDS: usize = 9;

/// The runs of [`OVERLAP_WORDS`] words of some texts, in lower case and without punctuation.
///
/// A shorter text counts as one run. Runs are kept as 64-bit hashes: a false match is possible, a
/// missed one is not.
#[derive(Debug, Clone, Default)]
pub struct OverlapIndex {
    runs: HashSet<u64>,
}

impl OverlapIndex {
    /// Adds a text.
    pub fn add(&mut self, text: &str) {
        self.runs.extend(runs(text));
    }

    /// Whether a text shares a run with any that was added.
    pub fn overlaps(&self, text: &str) -> bool {
        !self.runs.is_empty() && runs(text).iter().any(|run| self.runs.contains(run))
    }
}

fn runs(text: &str) -> Vec<u64> {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let hash = |run: &[String]| {
        let mut hasher = DefaultHasher::new();
        run.hash(&mut hasher);
        hasher.finish()
    };
    match words.len() {
        0 => Vec::new(),
        1..OVERLAP_WORDS => vec![hash(&words)],
        _ => words.windows(OVERLAP_WORDS).map(hash).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_words_in_a_row_are_found() {
        let mut index = OverlapIndex::default();
        assert!(!index.overlaps("one two three"));
        index.add("Ann's dog ate 3 of the 12 big bones, and slept.");
        assert!(index.overlaps("So ann s DOG ate 3 of the 12 big: bones"));
        assert!(!index.overlaps("Ann's dog ate 4 of the 12 big bones, and slept."));
        index.add("How many bones?");
        assert!(index.overlaps("how many bones") && !index.overlaps("how many bones now"));
    }
}
