//! Why a problem has no variants.

use serde::Serialize;

/// The reason for which a problem is not renumbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The solution has no annotated step.
    NoSteps,
    /// A step is no calculation with `+ - * / ( ) %`.
    NotACalculation,
    /// A step's result is not exactly its value: rounded, or wrong.
    InexactStep,
    /// The answer is not the last step's result.
    AnswerNotLast,
    /// A step has a number that neither the question, nor an earlier step, nor general knowledge
    /// explains.
    UnexplainedNumber,
    /// A step's result is used by no later step, so that something was calculated in the head.
    UnusedResult,
    /// A product has the unit of both its factors: a coefficient of an equation was taken for a
    /// number of the question.
    MixedUnits,
    /// No number of the question is used and free to change.
    NothingToChange,
    /// The text is of a kind that other numbers would break: clock times in steps, puzzles about
    /// digits.
    UnsuitableText,
    /// No draw of other numbers stays sensible.
    NoSensibleDraw,
    /// Shares nine words in a row with a file that was to be left out.
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
            Self::NotACalculation => "a step that is no calculation",
            Self::InexactStep => "a rounded or wrong step",
            Self::AnswerNotLast => "an answer that is not the last result",
            Self::UnexplainedNumber => "a number from nowhere",
            Self::UnusedResult => "a result that no later step uses",
            Self::MixedUnits => "a product with the unit of its factors",
            Self::NothingToChange => "no number free to change",
            Self::UnsuitableText => "a text that other numbers would break",
            Self::NoSensibleDraw => "no sensible draw",
            Self::Overlap => "nine words shared with a file left out",
        }
    }
}
