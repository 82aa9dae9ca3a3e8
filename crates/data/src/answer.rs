//! Extraction of answers from decoded text, for voting and grading.
//!
//! Every model family has a different answer format and grader: [`AnswerRule`] lists the formats,
//! and [`Answer::matches`] compares an answer with a gold answer. Votes are counted by
//! [`Answer::as_str`].
//!
//! ```
//! use latent_tts_data::answer::{AnswerKind, AnswerRule};
//! let answer = AnswerRule::Hash.extract(AnswerKind::Number, "### 1,018.0").unwrap();
//! assert_eq!(answer.as_str(), "1018");
//! assert!(answer.matches("1018"));
//! assert_eq!(AnswerRule::Hash.extract(AnswerKind::Number, "no mark"), None);
//! ```
//!
//! Invariants: extraction never panics; numbers are finite; two answers are the same vote if and
//! only if their canonical strings are equal. The Python graders turn a failed parse into +inf,
//! which can then win a vote; here it is `None`: a text without an answer never votes and is never
//! correct.
//!
//! Digits are ASCII digits. Python's `float` and `\d` also accept the decimal digits of other
//! scripts, which none of these models generates.

mod choice;
mod latex;
mod number;
mod scan;
#[cfg(test)]
mod tests;
mod truth;

pub(crate) use latex::boxed;
pub use number::parse_number;
pub(crate) use truth::truth_word;

/// The kind of a question's answer; determines extraction and comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AnswerKind {
    /// A finite number.
    #[default]
    Number,
    /// A formula or a word, as in MATH-500; numbers are compared by value.
    Math,
    /// The letter of a multiple-choice option.
    Choice,
    /// Yes or no, true or false.
    YesNo,
}

/// A family's answer format, and how its grader compares answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerRule {
    /// COCONUT: the text after the last `#`, without commas, as a float; compared exactly.
    Hash,
    /// CODI: the last `-?\d+\.?\d*` of the text without commas; compared exactly.
    LastNumber,
    /// CoLaR: the text after the last `Answer:` as a float, including commas, so `1,000` is not an
    /// answer; compared exactly.
    AnswerColon,
    /// Latent-SFT: the last `boxed{...}`; compared as a formula (see [`Answer::matches`]).
    Boxed,
    /// Render-of-Thought: six patterns tried in order, none of which matches a sign or a comma, so
    /// a negative gold answer is never matched; compared to within 1e-9. (The original program
    /// applies the patterns to the gold answer as well and so compares magnitudes; here a gold
    /// answer keeps its sign.)
    Cascade,
}

impl AnswerRule {
    /// The answer in a decoded text, if there is one.
    ///
    /// For formulas and for yes or no, a rule for numbers uses the text at the same position; for
    /// multiple choice, all rules use the same search for a letter.
    pub fn extract(self, kind: AnswerKind, text: &str) -> Option<Answer> {
        match kind {
            AnswerKind::Number => self.number(text),
            AnswerKind::Math => Answer::math(self.formula(text)?),
            AnswerKind::Choice => {
                choice::letter(text).map(|letter| Answer::new(AnswerForm::Letter(letter)))
            }
            AnswerKind::YesNo => {
                let truth = truth::truth(text, self.marked(text));
                truth.map(|truth| Answer::new(AnswerForm::Truth(truth)))
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

    /// The text where this family expects a formula: after its marker, or inside the box if any.
    fn formula(self, text: &str) -> Option<&str> {
        let text = text.trim_end_matches('#');
        let marked = self.marked(text);
        latex::boxed(marked.unwrap_or(text)).or(marked)
    }

    /// The text after this family's marker.
    fn marked(self, text: &str) -> Option<&str> {
        match self {
            AnswerRule::Hash | AnswerRule::Cascade => scan::after_last(text, "#"),
            AnswerRule::LastNumber => scan::after_last(text, "answer is:"),
            AnswerRule::AnswerColon => scan::after_last(text, "Answer:"),
            AnswerRule::Boxed => None,
        }
    }
}

/// An extracted answer: a number, a normalized formula, the letter of an option, or yes or no.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    form: AnswerForm,
    canonical: String,
}

/// The content of an answer, and how it is compared. Numbers are finite and never -0.
#[derive(Debug, Clone, PartialEq)]
enum AnswerForm {
    /// Matches gold numbers that are equal or differ by less than `within`.
    Number { value: f64, within: f64 },
    /// Compared as a formula.
    Math(Formula),
    /// The letter of an option.
    Letter(char),
    /// Yes or no.
    Truth(bool),
}

/// A formula: its value if it can be parsed, else its normalized, non-empty text.
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
            AnswerForm::Truth(truth) => if *truth { "yes" } else { "no" }.to_owned(),
        };
        Self { form, canonical }
    }

    fn number(value: f64, within: f64) -> Self {
        Self::new(AnswerForm::Number { value: unsigned_zero(value), within })
    }

    fn math(text: &str) -> Option<Self> {
        Formula::read(text).map(|formula| Self::new(AnswerForm::Math(formula)))
    }

    /// The canonical string, by which votes are counted: the shortest decimal that parses to the
    /// same `f64` (`18` for 18.0 and `0` for -0, never an exponent), a normalized formula, a
    /// letter, or `yes` or `no`.
    pub fn as_str(&self) -> &str {
        &self.canonical
    }

    /// Whether this answer matches the gold answer `gold` of its question.
    ///
    /// COCONUT, CODI and CoLaR compare floats exactly, RoT to within 1e-9. Latent-SFT, and every
    /// rule for formulas, compare like the Qwen2.5-Math grader without its symbolic step: numbers
    /// and simple fractions may differ by 1e-4, and a fraction below 1 matches its percentage and
    /// vice versa (0.5 and 50); a gold answer with a percent sign matches its hundredth, regardless
    /// of its size. Other formulas must be equal as normalized strings.
    pub fn matches(&self, gold: &str) -> bool {
        match &self.form {
            AnswerForm::Number { value, within } => number::parse_number(gold)
                .is_some_and(|gold| *value == gold || (value - gold).abs() < *within),
            AnswerForm::Math(formula) => {
                let is_percent = gold.contains('%') || gold.contains("percent");
                Formula::read(gold).is_some_and(|gold| formula.same(&gold, is_percent))
            }
            AnswerForm::Letter(letter) => gold.trim().chars().eq([*letter]),
            AnswerForm::Truth(truth) => truth_word(gold) == Some(*truth),
        }
    }
}

impl Formula {
    fn read(text: &str) -> Option<Self> {
        let text = latex::normalize(text)?;
        match latex::value(&text) {
            Some(value) => Some(Formula::Value(unsigned_zero(value))),
            None if text.is_empty() => None,
            None => Some(Formula::Text(text)),
        }
    }

    fn same(&self, gold: &Formula, gold_is_percent: bool) -> bool {
        match (self, gold) {
            (Formula::Value(value), Formula::Value(gold)) => {
                latex::close_or_percent(*value, *gold, gold_is_percent)
            }
            (Formula::Text(text), Formula::Text(gold)) => text == gold,
            _ => false,
        }
    }
}

/// Turns -0 into 0, so that both are the same vote.
fn unsigned_zero(value: f64) -> f64 {
    value + 0.0
}
