//! The range of the corpus: properties shared by the questions of all splits.
//!
//! A model trained only on the corpus has seen no other questions, and answers questions outside
//! this range with the same confidence. Unknown words are detected by the tokenizer.

use std::fmt;

/// Maximum value of a number in a question.
pub const MAX_NUMBER: u64 = 99_999;
/// Minimum and maximum number of quantities in a question, including `half` and `twice`.
pub const QUANTITIES: [usize; 2] = [2, 8];
/// Minimum and maximum number of sentences in a question.
pub const SENTENCES: [usize; 2] = [2, 9];
/// Maximum number of words in a question.
pub const MAX_WORDS: usize = 100;

/// Words that denote a number.
const NUMBER_WORDS: [&str; 9] =
    ["half", "third", "quarter", "fifth", "twice", "three", "four", "five", "six"];

/// A property in which a question differs from all problems of the corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutOfRange {
    /// A number with a decimal point, a separator, a sign, a slash or a percent sign.
    NotWhole(String),
    /// A number above `MAX_NUMBER`.
    TooLarge(String),
    /// Fewer or more quantities than `QUANTITIES`.
    Quantities(usize),
    /// Fewer or more sentences than `SENTENCES`.
    Sentences(usize),
    /// More words than `MAX_WORDS`.
    Words(usize),
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWhole(number) => {
                write!(f, "{number} is not an integer in digits")
            }
            Self::TooLarge(number) => write!(f, "{number} is greater than {MAX_NUMBER}"),
            Self::Quantities(count) => {
                let [least, most] = QUANTITIES;
                write!(
                    f,
                    "{count} {} (expected {least} to {most})",
                    noun(*count, "quantity", "quantities")
                )
            }
            Self::Sentences(count) => {
                let [least, most] = SENTENCES;
                write!(
                    f,
                    "{count} {} (expected {least} to {most})",
                    noun(*count, "sentence", "sentences")
                )
            }
            Self::Words(count) => write!(f, "{count} words (expected at most {MAX_WORDS})"),
        }
    }
}

fn noun(count: usize, one: &'static str, several: &'static str) -> &'static str {
    if count == 1 { one } else { several }
}

/// The properties in which a question is outside the range; empty for every problem of the corpus.
/// An empty list does not imply that the corpus has similar questions.
pub fn out_of_range(question: &str) -> Vec<OutOfRange> {
    let mut found = Vec::new();
    let words: Vec<&str> = question.split_whitespace().collect();
    let numbers: Vec<&str> =
        words.iter().map(|word| bare(word)).filter(|word| has_digit(word)).collect();
    for number in &numbers {
        match number.parse::<u64>() {
            Ok(value) if value <= MAX_NUMBER => {}
            _ if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                found.push(OutOfRange::TooLarge((*number).to_owned()));
            }
            _ => found.push(OutOfRange::NotWhole((*number).to_owned())),
        }
    }
    let in_words = |word: &&&str| NUMBER_WORDS.contains(&bare(word).to_ascii_lowercase().as_str());
    let quantities = numbers.len() + words.iter().filter(in_words).count();
    if !(QUANTITIES[0]..=QUANTITIES[1]).contains(&quantities) {
        found.push(OutOfRange::Quantities(quantities));
    }
    let sentences = words.iter().filter(|word| word.ends_with(['.', '?', '!'])).count();
    if !(SENTENCES[0]..=SENTENCES[1]).contains(&sentences) {
        found.push(OutOfRange::Sentences(sentences));
    }
    if words.len() > MAX_WORDS {
        found.push(OutOfRange::Words(words.len()));
    }
    found
}

/// A word without surrounding punctuation.
fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| ".,?!;:()\"'".contains(c))
}

fn has_digit(word: &str) -> bool {
    word.bytes().any(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Split, problem};

    #[test]
    fn every_problem_of_the_corpus_is_within_the_range() {
        for split in [Split::Train, Split::Valid, Split::Test, Split::Hard, Split::Ood] {
            for index in 0..2_000 {
                let question = problem(split, 3, index).question;
                assert_eq!(out_of_range(&question), [], "{question}");
            }
        }
    }

    #[test]
    fn questions_outside_the_range_are_detected() {
        let found = |question| out_of_range(question);
        assert_eq!(found("What is 7 times 8?"), [OutOfRange::Sentences(1)]);
        let decimal = "Tom has 3.5 pens. He buys 2 more. How many pens does Tom have?";
        assert_eq!(found(decimal), [OutOfRange::NotWhole("3.5".into())]);
        let percent = "Tom has 30 pens. He sells 20% of them. How many pens does Tom have?";
        assert_eq!(found(percent), [OutOfRange::NotWhole("20%".into())]);
        let large = "Tom has 123456 pens. He buys 2 more. How many pens does Tom have?";
        assert_eq!(found(large), [OutOfRange::TooLarge("123456".into())]);
        assert_eq!(
            found("Tom has pens. How many pens does Tom have?"),
            [OutOfRange::Quantities(0)]
        );
    }
}
