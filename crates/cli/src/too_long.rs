//! `--too-long`: the handling of questions that exceed the model's context.

use anyhow::{Result, bail};
use latent_tts::report::table::count;
use latent_tts::{Error, Question, fitting_questions};

use crate::args::TooLongKind;
use crate::printer::Printer;

/// Maximum number of question ids that a note lists.
const LISTED: usize = 20;

/// The questions that `check` accepts, and the ids of those that are too long. The latter is
/// nonempty only with `--too-long skip`.
pub fn fitting(
    kind: Option<TooLongKind>,
    questions: Vec<Question>,
    check: impl Fn(&Question) -> Result<(), Error>,
    printer: &Printer,
) -> Result<(Vec<Question>, Vec<u32>)> {
    if kind != Some(TooLongKind::Skip) {
        return Ok((questions, Vec::new()));
    }
    let total = questions.len();
    let (fitting, skipped) = fitting_questions(questions, check)?;
    if fitting.is_empty() {
        bail!("all {} exceed the model's context; pass fewer thoughts", count(total, "question"));
    }
    if !skipped.is_empty() {
        let ids: Vec<String> = skipped.iter().take(LISTED).map(ToString::to_string).collect();
        let more = if skipped.len() > LISTED { ", ..." } else { "" };
        let (skipped, ids) = (count(skipped.len(), "question"), ids.join(", "));
        printer.note(&format!("skipped {skipped} of {total}, too long for the model: {ids}{more}"));
    }
    Ok((fitting, skipped))
}
