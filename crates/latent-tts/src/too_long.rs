//! Separates questions that exceed the model's context from those that fit.

use data::Question;
use engine::EngineError;

use crate::Error;

/// The questions that `check` accepts, and the ids of those that are too long for the model.
///
/// # Errors
///
/// Any other error of `check`.
pub fn fitting_questions(
    questions: Vec<Question>,
    check: impl Fn(&Question) -> Result<(), Error>,
) -> Result<(Vec<Question>, Vec<u32>), Error> {
    let mut fitting = Vec::new();
    let mut skipped = Vec::new();
    for question in questions {
        match check(&question) {
            Ok(()) => fitting.push(question),
            Err(Error::Engine(
                EngineError::TooLong { id, .. } | EngineError::LongText { id, .. },
            )) => skipped.push(id),
            Err(error) => return Err(error),
        }
    }
    Ok((fitting, skipped))
}
