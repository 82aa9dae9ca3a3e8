//! From decoded text to an answer that can vote and be graded.
//!
//! Every model family was trained to end its text in its own way and is graded by its own program:
//! [`AnswerRule`] names those ways, and [`Answer`] remembers how it has to be compared with a gold
//! answer. Votes are counted by [`Answer::as_str`].
//!
//! ```
//! use answer::{AnswerKind, AnswerRule};
//! let answer = AnswerRule::Hash.extract(AnswerKind::Number, "### 1,018.0").unwrap();
//! assert_eq!(answer.as_str(), "1018");
//! assert!(answer.matches("1018"));
//! assert_eq!(AnswerRule::Hash.extract(AnswerKind::Number, "no mark"), None);
//! ```
//!
//! Invariants: no text makes extraction panic; an answer is finite or is text, never infinity or
//! NaN; two answers are the same vote exactly when their canonical strings are equal. Where the
//! Python programs turn a failed parse into +inf, which can then win a vote, this module returns
//! `None`: a text without an answer never votes and is never correct.
//!
//! Digits are ASCII digits. Python's `float` and `\d` also take the decimal digits of other
//! scripts, which none of these models writes.

mod choice;
mod latex;
mod number;
mod scan;
#[cfg(test)]
mod tests;

pub use number::parse_number;

/// What kind of answer a question has, which decides how answers are found and compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AnswerKind {
    /// A finite number.
    #[default]
    Number,
    /// A formula or a word, as in MATH-500; its numbers are compared as mathematics too.
    Math,
    /// The letter of an option.
    Choice,
}

/// Where a family's models put their answer, and how it is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerRule {
    /// COCONUT: what follows the last `#`, commas dropped, as a float; compared exactly.
    Hash,
    /// CODI: the last `-?\d+\.?\d*` of the text, commas dropped; compared exactly.
    LastNumber,
    /// CoLaR: what follows the last `Answer:`, as a float and with commas kept, so `1,000` is no
    /// answer; compared exactly.
    AnswerColon,
    /// Latent-SFT: the last `boxed{...}`; compared as mathematics (see [`Answer::matches`]).
    Boxed,
    /// Render-of-Thought: six patterns tried in order, none of which takes a sign or a comma, so a
    /// negative gold answer is never met; compared to within 1e-9. (The original program puts the
    /// gold answer through the same patterns and so compares magnitudes; here a gold answer
    /// keeps its sign.)
    Cascade,
}

impl AnswerRule {
    /// Finds the answer in a decoded text, or `None` where there is none.
    ///
    /// A rule made for numbers reads the same place for a formula, but keeps it as text; for
    /// multiple choice every rule gives way to one search for a letter.
    pub fn extract(self, kind: AnswerKind, text: &str) -> Option<Answer> {
        match kind {
            AnswerKind::Number => self.number(text),
            AnswerKind::Math => Answer::math(self.formula(text)?),
            AnswerKind::Choice => {
                choice::letter(text).map(|letter| Answer::new(AnswerForm::Letter(letter)))
            }
        }
    }

    fn number(self, text: &str) -> Option<Answer> {
        let exactly = |value: f64| Answer::number(value, 0.0);
        match self {
            AnswerRule::Hash => scan::after_hash(text).map(exactly),
            AnswerRule::LastNumber => scan::last_number(text).map(exactly),
            AnswerRule::AnswerColon => scan::after_answer_colon(text).map(exactly),
            AnswerRule::Boxed => Answer::math(latex::boxed(text)?),
            AnswerRule::Cascade => scan::cascade(text).map(|value| Answer::number(value, 1e-9)),
        }
    }

    /// The text where this family would put a formula: after its marker, inside a box if there is
    /// one.
    fn formula(self, text: &str) -> Option<&str> {
        let text = text.trim_end_matches('#');
        let marked = match self {
            AnswerRule::Hash | AnswerRule::Cascade => scan::after_last(text, "#"),
            AnswerRule::LastNumber => scan::after_last(text, "answer is:"),
            AnswerRule::AnswerColon => scan::after_last(text, "Answer:"),
            AnswerRule::Boxed => None,
        };
        latex::boxed(marked.unwrap_or(text)).or(marked)
    }
}

/// One trajectory's answer: a number, a normalised formula, or the letter of a choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    form: AnswerForm,
    canonical: String,
}

/// What was found, with what its rule says about comparing it. Numbers are finite and never -0.
#[derive(Debug, Clone, PartialEq)]
enum AnswerForm {
    /// Equal to gold numbers that are nearer than `within`, or the same.
    Number { value: f64, within: f64 },
    /// Compared as mathematics.
    Math(Formula),
    /// One of the options.
    Letter(char),
}

/// A formula by its value where that can be read off, else by its normalised, non-empty text.
#[derive(Debug, Clone, PartialEq)]
enum Formula {
    Value(f64),
    Text(String),
}

impl Answer {
    fn new(form: AnswerForm) -> Self {
        let canonical = match &form {
            AnswerForm::Number { value, .. } | AnswerForm::Math(Formula::Value(value)) => {
                value.to_string()
            }
            AnswerForm::Math(Formula::Text(text)) => text.clone(),
            AnswerForm::Letter(letter) => letter.to_string(),
        };
        Self { form, canonical }
    }

    fn number(value: f64, within: f64) -> Self {
        Self::new(AnswerForm::Number { value: unsigned_zero(value), within })
    }

    fn math(text: &str) -> Option<Self> {
        Formula::read(text).map(|formula| Self::new(AnswerForm::Math(formula)))
    }

    /// The string that votes are counted by: the shortest decimal that reads back as the same `f64`
    /// (`18` for 18.0 and `0` for -0, never an exponent), a normalised formula, or a letter.
    pub fn as_str(&self) -> &str {
        &self.canonical
    }

    /// Whether this answer is the gold answer `gold` of the same question.
    ///
    /// COCONUT, CODI and CoLaR compare floats exactly, RoT to within 1e-9. Latent-SFT, and every
    /// rule where the gold answer is a formula, compare as the Qwen2.5-Math grader does without
    /// its symbolic step: numbers, simple fractions included, may differ by 1e-4, and a gold
    /// answer divided or multiplied by 100 is accepted for the sake of percentages; anything
    /// else must be equal as a normalised string.
    pub fn matches(&self, gold: &str) -> bool {
        match &self.form {
            AnswerForm::Number { value, within } => number::parse_number(gold)
                .is_some_and(|gold| *value == gold || (value - gold).abs() < *within),
            AnswerForm::Math(formula) => {
                Formula::read(gold).is_some_and(|gold| formula.same(&gold))
            }
            AnswerForm::Letter(letter) => gold.trim().chars().eq([*letter]),
        }
    }
}

impl Formula {
    fn read(text: &str) -> Option<Self> {
        let text = latex::normalise(text);
        match latex::value(&text) {
            Some(value) => Some(Formula::Value(unsigned_zero(value))),
            None if text.is_empty() => None,
            None => Some(Formula::Text(text)),
        }
    }

    fn same(&self, gold: &Formula) -> bool {
        match (self, gold) {
            (Formula::Value(value), Formula::Value(gold)) => latex::close_or_percent(*value, *gold),
            (Formula::Text(text), Formula::Text(gold)) => text == gold,
            _ => false,
        }
    }
}

/// Adding zero turns -0 into 0, so that both are one vote.
fn unsigned_zero(value: f64) -> f64 {
    value + 0.0
}
