//! Notes about questions that are unlike those that a model was trained on: a small model answers
//! them as confidently as any other, so whoever reports an answer reports its notes too.
//!
//! The command line prints them, the server returns them as `latent.notes`. Only the embedded
//! reasoner's training data is known; of other models only the vocabulary is checked.

use std::collections::HashSet;
use std::fmt;

pub use corpus::OutOfRange;
use engine::{Prompt, Reasoner};
use model::ModelFiles;

use crate::source::EMBEDDED;
use crate::{Error, Question};

/// Words shown of those that a model does not know.
const SHOWN_WORDS: usize = 8;

/// Something to tell beside an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// Words of the question that are not in the vocabulary, each once.
    UnknownWords(Vec<String>),
    /// In what the question is unlike the embedded reasoner's training data.
    OutOfRange(Vec<OutOfRange>),
    /// Of a data set, the questions that have one of the notes above.
    Questions(QuestionNotes),
}

/// How many questions of a data set have notes, with examples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuestionNotes {
    /// All questions.
    pub total: usize,
    /// Questions with any note.
    pub noted: usize,
    /// Questions with unknown words.
    pub with_unknown_words: usize,
    /// The first of the unknown words, each once.
    pub words: Vec<String>,
    /// Further unknown words.
    pub more_words: usize,
    /// Questions unlike the training data.
    pub out_of_range: usize,
    /// The first reason of those.
    pub example: Option<OutOfRange>,
}

/// Whether these are the embedded reasoner's files, whose training data is known.
pub fn is_embedded(reasoner: &ModelFiles) -> bool {
    reasoner.path().as_os_str() == EMBEDDED
}

/// The notes about one question. `is_embedded` is [`is_embedded`] of the reasoner's files.
///
/// # Errors
///
/// When the question cannot be tokenized.
pub fn of_question(
    reasoner: &Reasoner,
    is_embedded: bool,
    question: &str,
) -> Result<Vec<Note>, Error> {
    // The engine refuses longer texts; looking for words in them takes minutes and gigabytes.
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
/// When a question cannot be tokenized.
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
                "the model does not know {} and reads an unknown token there; its answer may be \
                 wrong for that reason",
                quoted(words)
            ),
            Self::OutOfRange(reasons) => {
                let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "the question is outside what the embedded model was trained on: {}; its \
                     answer means little (docs/corpus.md)",
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
                "{} with words that it does not know ({}{more})",
                self.with_unknown_words,
                quoted(&self.words)
            ));
        }
        if let Some(example) = &self.example {
            parts.push(format!(
                "{} unlike the corpus it was trained on (e.g. {example})",
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
