//! Reasons why a problem has no variants.

use serde::Serialize;

/// The reason why a problem has no variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The solution has no annotated step.
    NoSteps,
    /// A step is not a calculation with `+ - * / ( ) %`.
    NotACalculation,
    /// A step's result is rounded or wrong.
    InexactStep,
    /// The answer is not the last step's result.
    AnswerNotLast,
    /// A step has a number that comes neither from the question, nor from an earlier step, nor from
    /// general knowledge.
    UnexplainedNumber,
    /// A step's result is not used by a later step, so a calculation is implicit.
    UnusedResult,
    /// A product has the unit of both factors: a coefficient of an equation was mistaken for a
    /// number of the question.
    MixedUnits,
    /// No number of the question is both used and changeable.
    NothingToChange,
    /// The text would be inconsistent with other numbers: clock times in steps, puzzles about
    /// digits.
    UnsuitableText,
    /// No sampled numbers make sense.
    NoSensibleDraw,
    /// The problem shares nine consecutive words with a decontamination file.
    Overlap,
}

impl Refusal {
    /// Every reason, in the order of the table.
    pub const ALL: [Self; 11] = [
        Self::NoSteps,
        Self::NotACalculation,
        Self::InexactStep,
        Self::AnswerNotLast,
        Self::UnexplainedNumber,
        Self::UnusedResult,
        Self::MixedUnits,
        Self::NothingToChange,
        Self::UnsuitableText,
        Self::NoSensibleDraw,
        Self::Overlap,
    ];

    /// The reason in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::NoSteps => "no annotated steps",
            Self::NotACalculation => "a step that is not a calculation",
            Self::InexactStep => "a rounded or wrong step",
            Self::AnswerNotLast => "an answer that is not the last result",
            Self::UnexplainedNumber => "a number of unknown origin",
            Self::UnusedResult => "a result that no later step uses",
            Self::MixedUnits => "a product with the unit of its factors",
            Self::NothingToChange => "no changeable number",
            Self::UnsuitableText => "a text that does not allow other numbers",
            Self::NoSensibleDraw => "no sensible sample",
            Self::Overlap => "nine words shared with a decontamination file",
        }
    }
}
