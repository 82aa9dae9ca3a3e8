//! Notes about questions that differ from a model's training data. A small model answers such
//! questions as confidently as any other, so interfaces report the notes with the answer.
//!
//! The command line prints them, the server returns them as `latent.notes`. Only the training data
//! of the embedded reasoner is known; for other models only the vocabulary is checked.

use std::collections::HashSet;
use std::fmt;

pub use corpus::OutOfRange;
use engine::{Prompt, Reasoner};
use model::ModelFiles;

use crate::source::EMBEDDED;
use crate::{Error, Question};

/// Maximum number of unknown words to show.
const SHOWN_WORDS: usize = 8;

/// A note about a question or a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// Words of the question that are not in the vocabulary, without duplicates.
    UnknownWords(Vec<String>),
    /// How the question differs from the embedded reasoner's training data.
    OutOfRange(Vec<OutOfRange>),
    /// The questions of a data set with one of the notes above.
    Questions(QuestionNotes),
}

/// The number of questions of a data set that have notes, with examples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuestionNotes {
    /// Number of all questions.
    pub total: usize,
    /// Number of questions with any note.
    pub noted: usize,
    /// Number of questions with unknown words.
    pub with_unknown_words: usize,
    /// The first unknown words, without duplicates.
    pub words: Vec<String>,
    /// Number of further unknown words.
    pub more_words: usize,
    /// Number of questions that differ from the training data.
    pub out_of_range: usize,
    /// The first reason for such a difference.
    pub example: Option<OutOfRange>,
}

/// Whether these are the files of the embedded reasoner, whose training data is known.
pub fn is_embedded(reasoner: &ModelFiles) -> bool {
    reasoner.path().as_os_str() == EMBEDDED
}

/// The notes about one question. `is_embedded` is the result of [`is_embedded`] for the reasoner.
///
/// # Errors
///
/// If the question cannot be tokenized.
pub fn of_question(
    reasoner: &Reasoner,
    is_embedded: bool,
    question: &str,
) -> Result<Vec<Note>, Error> {
    // The engine rejects longer texts, and checking their words would take minutes and gigabytes.
    if question.len() > Prompt::MAX_BYTES {
        return Ok(Vec::new());
    }
    let words = reasoner.tokenizer.unknown_words(question)?;
    let reasons = if is_embedded { corpus::out_of_range(question) } else { Vec::new() };
    let mut notes = Vec::new();
    if !words.is_empty() {
        notes.push(Note::UnknownWords(words));
    }
    if !reasons.is_empty() {
        notes.push(Note::OutOfRange(reasons));
    }
    Ok(notes)
}

/// The note about the questions of a data set; `None` if no question has one.
///
/// # Errors
///
/// If a question cannot be tokenized.
pub fn of_questions(
    reasoner: &Reasoner,
    is_embedded: bool,
    questions: &[Question],
) -> Result<Option<Note>, Error> {
    let mut counts = QuestionNotes { total: questions.len(), ..QuestionNotes::default() };
    let mut seen = HashSet::new();
    for question in questions {
        let notes = of_question(reasoner, is_embedded, &question.text)?;
        counts.noted += usize::from(!notes.is_empty());
        for note in notes {
            counts.add(note, &mut seen);
        }
    }
    counts.more_words = seen.len() - counts.words.len();
    Ok((counts.noted > 0).then_some(Note::Questions(counts)))
}

impl QuestionNotes {
    fn add(&mut self, note: Note, seen: &mut HashSet<String>) {
        match note {
            Note::UnknownWords(words) => {
                self.with_unknown_words += 1;
                for word in words {
                    if seen.insert(word.clone()) && self.words.len() < SHOWN_WORDS {
                        self.words.push(word);
                    }
                }
            }
            Note::OutOfRange(reasons) => {
                self.out_of_range += 1;
                self.example = self.example.take().or_else(|| reasons.into_iter().next());
            }
            Note::Questions(_) => {}
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownWords(words) => write!(
                f,
                "words not in the model's vocabulary: {} (read as the unknown token); the answer \
                 may be wrong",
                quoted(words)
            ),
            Self::OutOfRange(reasons) => {
                let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "the question is outside the training distribution of the embedded model: {}; \
                     the answer is unreliable (docs/explanation/corpus.md)",
                    reasons.join(", ")
                )
            }
            Self::Questions(counts) => counts.fmt(f),
        }
    }
}

impl fmt::Display for QuestionNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.with_unknown_words > 0 {
            let more = match self.more_words {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            parts.push(format!(
                "{} with unknown words ({}{more})",
                self.with_unknown_words,
                quoted(&self.words)
            ));
        }
        if let Some(example) = &self.example {
            parts.push(format!(
                "{} outside its training distribution (e.g. {example})",
                self.out_of_range
            ));
        }
        write!(
            f,
            "{} of {} {} outside the model's range: {}; expect wrong answers",
            self.noted,
            report::table::count(self.total, "question"),
            if self.noted == 1 { "is" } else { "are" },
            parts.join(", ")
        )
    }
}

fn quoted(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    words.join(", ")
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::*;
    use crate::{Model, RewardModelChoice};

    #[test]
    fn a_question_beyond_the_training_data_has_notes() {
        let files = crate::ModelSelection::new(EMBEDDED, RewardModelChoice::None).unwrap().reasoner;
        let model = Model::load(EMBEDDED).unwrap().without_reward_model();
        let of =
            |question: &str| of_question(model.reasoner(), is_embedded(&files), question).unwrap();
        let within = "Tom has 3 boxes with 4 pens in each. He gives away 5 pens. How many pens \
                      does Tom have?";
        assert_eq!(of(within), []);
        let beyond = of("What is 12 plus 3000000?");
        assert!(beyond.iter().any(|note| matches!(note, Note::OutOfRange(_))), "{beyond:?}");
        assert!(beyond.iter().any(|note| matches!(note, Note::UnknownWords(_))), "{beyond:?}");
        assert_eq!(of(&"x".repeat(Prompt::MAX_BYTES + 1)), []);
    }
}
