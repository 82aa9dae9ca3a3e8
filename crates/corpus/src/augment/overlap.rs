//! Decontamination: finds runs of nine words shared with other texts, the usual test for leaked
//! benchmarks.
//!
//! Numbers and names are masked, so that copies of a problem with different numbers or names are
//! found as well.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::names::is_first_name;
use super::number_words::{magnitude, word_value};

/// Number of consecutive words that count as shared text.
pub const OVERLAP_WORDS: usize = 9;

/// Minimum number of words of a run that are neither numbers nor names, since runs such as
/// `Ann has 3 and Bob has 4` are common.
const OVERLAP_PLAIN_WORDS: usize = 6;

/// The runs of [`OVERLAP_WORDS`] words of some texts, in lower case, without punctuation and with
/// numbers and names masked.
///
/// A shorter text counts as one run. Runs are stored as 64-bit hashes: false positives are
/// possible, false negatives are not.
#[derive(Debug, Clone, Default)]
pub struct OverlapIndex {
    runs: HashSet<u64>,
}

impl OverlapIndex {
    /// Adds a text.
    pub fn add(&mut self, text: &str) {
        self.runs.extend(runs(text));
    }

    /// Whether a text shares a run with any added text.
    pub fn overlaps(&self, text: &str) -> bool {
        !self.runs.is_empty() && runs(text).iter().any(|run| self.runs.contains(run))
    }
}

/// A word of a run, with numbers and names masked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum OverlapWord {
    Number,
    Name,
    Plain(String),
}

fn runs(text: &str) -> Vec<u64> {
    let words = overlap_words(text);
    let hash = |run: &[OverlapWord]| {
        let mut hasher = DefaultHasher::new();
        run.hash(&mut hasher);
        hasher.finish()
    };
    let is_plain = |word: &&OverlapWord| matches!(word, OverlapWord::Plain(_));
    let tells = |run: &&[OverlapWord]| run.iter().filter(is_plain).count() >= OVERLAP_PLAIN_WORDS;
    match words.len() {
        0 => Vec::new(),
        1..OVERLAP_WORDS => vec![hash(&words)],
        _ => words.windows(OVERLAP_WORDS).filter(tells).map(hash).collect(),
    }
}

/// The words of a text; `3.50`, `1,200` and `twenty-five` are single numbers.
fn overlap_words(text: &str) -> Vec<OverlapWord> {
    let mut words = Vec::new();
    // A capital letter distinguishes names from other words, except at the start of a sentence.
    let mut begins_sentence = true;
    for piece in text.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let word = piece.trim_end_matches(|c: char| !c.is_alphanumeric());
        if !word.is_empty() {
            let lower = word.to_lowercase();
            let capital = word.starts_with(char::is_uppercase) && lower != "i";
            let is_number = word.starts_with(|c: char| c.is_ascii_digit())
                || word_value(&lower).is_some()
                || magnitude(&lower).is_some();
            if is_number {
                if words.last() != Some(&OverlapWord::Number) {
                    words.push(OverlapWord::Number);
                }
            } else if capital && (!begins_sentence || is_first_name(&lower)) {
                words.push(OverlapWord::Name);
            } else {
                words.push(OverlapWord::Plain(lower));
            }
            begins_sentence = false;
        }
        if piece.ends_with(['.', '!', '?', '\n', '"', '\u{201c}']) {
            begins_sentence = true;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_words_in_a_row_are_found() {
        let mut index = OverlapIndex::default();
        assert!(!index.overlaps("one two three"));
        index.add("Ann's dog ate 3 of the 12 big bones, and slept.");
        assert!(index.overlaps("So, says Ann's dog, ate 3 of the 12 big: bones and slept"));
        assert!(!index.overlaps("Ann's dog ate 3 of the 12 small bones, and slept."));
        index.add("How many bones?");
        assert!(index.overlaps("how many bones") && !index.overlaps("how many bones now"));
    }

    #[test]
    fn other_numbers_and_names_do_not_hide_a_shared_run() {
        let mut index = OverlapIndex::default();
        index.add("Ann's dog ate 3 of the 12 big bones, and slept in a basket.");
        for text in [
            "Ann's dog ate 4 of the 1,250 big bones, and slept in a basket.",
            "Zoltan's dog ate three of the twenty-five big bones and slept.",
            "The neighbour saw how Priya's dog ate 2.5 of the hundred big bones, and slept.",
        ] {
            assert!(index.overlaps(text), "{text}");
        }
        assert!(!index.overlaps("Ann's cat ate 3 of the 12 big fish, and slept in a basket."));
    }

    #[test]
    fn runs_of_numbers_and_names_do_not_count() {
        let mut index = OverlapIndex::default();
        index.add("So Ann has 3 and Bob 4 and Tom 5 and then they left.");
        assert!(!index.overlaps("If Mia has 7 and Ben 8 and Sue 9 and all of them came."));
    }
}
