//! Questions unlike those that a model was trained on: said before they are answered, because a
//! small model answers them as confidently as any other.

use std::collections::HashSet;

use anyhow::Result;
use corpus::{OutOfRange, out_of_range};
use latent_tts::engine::Prompt;
use latent_tts::report::table::count;
use latent_tts::{EMBEDDED, Model, ModelSelection, Question};

/// Words shown of those that a model does not know.
const SHOWN_WORDS: usize = 8;

/// What of a question is outside the range of a model.
pub struct RangeCheck {
    /// Words that are not in the vocabulary, each once.
    pub unknown_words: Vec<String>,
    /// What else no question of the training data has; only known of the embedded reasoner.
    pub out_of_range: Vec<OutOfRange>,
}

impl RangeCheck {
    /// Checks one question.
    pub fn new(models: &ModelSelection, model: &Model, question: &str) -> Result<Self> {
        // The engine refuses longer texts; looking for words in them takes minutes and gigabytes.
        if question.len() > Prompt::MAX_BYTES {
            return Ok(Self { unknown_words: Vec::new(), out_of_range: Vec::new() });
        }
        let embedded = models.reasoner.path().as_os_str() == EMBEDDED;
        Ok(Self {
            unknown_words: model.reasoner().tokenizer.unknown_words(question)?,
            out_of_range: if embedded { out_of_range(question) } else { Vec::new() },
        })
    }

    /// Whether nothing is outside the range.
    pub fn is_within(&self) -> bool {
        self.unknown_words.is_empty() && self.out_of_range.is_empty()
    }

    /// What to tell of one question.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.unknown_words.is_empty() {
            notes.push(format!(
                "note: the model does not know {} and reads an unknown token there; its answer may \
                 be wrong for that reason (`latent-tts corpus --count 5` shows questions in its \
                 vocabulary)",
                quoted(&self.unknown_words)
            ));
        }
        if !self.out_of_range.is_empty() {
            let reasons: Vec<String> = self.out_of_range.iter().map(ToString::to_string).collect();
            notes.push(format!(
                "note: the question is outside what the embedded model was trained on: {}; its \
                 answer means little (docs/corpus.md)",
                reasons.join(", ")
            ));
        }
        notes
    }
}

/// What to tell of the questions of a data set; `None` if all are within the range.
pub fn data_note(
    models: &ModelSelection,
    model: &Model,
    questions: &[Question],
) -> Result<Option<String>> {
    let (mut outside, mut unknown, mut other) = (0, 0, 0);
    let (mut seen, mut shown, mut example) = (HashSet::new(), Vec::new(), None);
    for question in questions {
        let check = RangeCheck::new(models, model, &question.text)?;
        outside += usize::from(!check.is_within());
        unknown += usize::from(!check.unknown_words.is_empty());
        other += usize::from(!check.out_of_range.is_empty());
        example = example.or_else(|| check.out_of_range.first().map(ToString::to_string));
        for word in check.unknown_words {
            if !seen.contains(&word) && shown.len() < SHOWN_WORDS {
                shown.push(word.clone());
            }
            seen.insert(word);
        }
    }
    if outside == 0 {
        return Ok(None);
    }
    let mut parts = Vec::new();
    if unknown > 0 {
        let list = quoted(&shown);
        let more = seen.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        parts.push(format!("{unknown} with words that it does not know ({list}{more})"));
    }
    if let Some(example) = example {
        parts.push(format!("{other} unlike the corpus it was trained on (e.g. {example})"));
    }
    Ok(Some(format!(
        "note: {outside} of {} {} outside the model's range: {}; expect wrong answers",
        count(questions.len(), "question"),
        if outside == 1 { "is" } else { "are" },
        parts.join(", ")
    )))
}

fn quoted(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    words.join(", ")
}
