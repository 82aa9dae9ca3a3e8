//! Training examples, from the corpus or from a file: the paper's JSON, GSM8K's lines, or iCoT's text.
//!
//! JSON is read by [`engine::question`], which knows every benchmark's field names; the text of iCoT, one example a line as
//! `question||<<16-3-4=9>> <<9*2=18>> #### 18`, is read here. Errors are the engine's: they name file, place and field.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use engine::Question;
use engine::question::{self, Flaw, MAX_BYTES, Place, QuestionError};
use serde::Serialize;

use crate::corpus::Problem;

/// Something to learn from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Example {
    /// The text, as the file has it.
    pub question: String,
    /// The calculations, such as `<<16-3-4=9>>`. A file may have none.
    pub steps: Vec<String>,
    /// The answer, a number without thousands separators.
    pub answer: String,
}

impl From<Problem> for Example {
    fn from(problem: Problem) -> Self {
        let steps = problem.steps.iter().map(|step| format!("<<{step}>>")).collect();
        Self { question: problem.question, steps, answer: problem.answer.to_string() }
    }
}

/// Reads the examples of the file at `path`, at most the first `limit`.
///
/// # Errors
///
/// When the file cannot be read, is too large, holds no example, or holds something that is not one before the limit is reached.
pub fn read(path: &Path, limit: Option<usize>) -> Result<Vec<Example>, QuestionError> {
    let named = |problem| QuestionError { path: path.to_owned(), problem };
    let mut file = BufReader::new(File::open(path).map_err(|error| named(error.into()))?);
    match is_text(&mut file).map_err(|error| named(error.into()))? {
        true => lines(file, limit.unwrap_or(usize::MAX)).map_err(named),
        false => question::parse(path, file, limit)?.into_iter().map(|q| example(q).map_err(named)).collect(),
    }
}

/// Whether the file holds lines of iCoT: its first line, of which a buffer holds enough, is no JSON and has the mark.
fn is_text(file: &mut impl BufRead) -> std::io::Result<bool> {
    let start = file.fill_buf()?;
    let line = start.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    let is_json = matches!(line.trim_ascii().first(), Some(b'[' | b'{'));
    Ok(!is_json && line.windows(MARK.len()).any(|pair| pair == MARK.as_bytes()))
}

/// Between question and steps.
const MARK: &str = "||";

fn lines(file: impl BufRead, limit: usize) -> Result<Vec<Example>, question::Problem> {
    let mut input = file.take(MAX_BYTES + 1);
    let (mut examples, mut bytes) = (Vec::new(), Vec::new());
    for line in 1.. {
        bytes.clear();
        if examples.len() == limit || input.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if !bytes.trim_ascii().is_empty() {
            let flawed = |flaw| question::Problem::Record { place: Place::Line(line), flaw };
            examples.push(text_line(&bytes).map_err(flawed)?);
        }
    }
    match input.limit() {
        0 => Err(question::Problem::TooLarge),
        _ if examples.is_empty() => Err(question::Problem::Empty),
        _ => Ok(examples),
    }
}

/// `question||steps #### answer`
fn text_line(bytes: &[u8]) -> Result<Example, Flaw> {
    let missing = |field, accepted| Flaw::Missing { field, accepted };
    let text = std::str::from_utf8(bytes).map_err(|_| wrong("question", "is not UTF-8; convert the file"))?;
    let (question, rest) = text.split_once(MARK).ok_or(missing("steps", "what follows || on its line"))?;
    let (work, answer) = rest.split_once("####").ok_or(missing("answer", "what follows #### on its line"))?;
    let answer = answer.trim().replace(',', "");
    if question.trim().is_empty() {
        return Err(wrong("question", "is empty; give it a text"));
    }
    if answer.is_empty() {
        return Err(wrong("answer", "is empty; give it a number"));
    }
    let steps = work.split_whitespace().map(str::to_owned).collect();
    Example { question: question.trim().to_owned(), steps, answer }.checked()
}

fn example(question: Question) -> Result<Example, question::Problem> {
    let place = Place::Element(question.id as usize + 1);
    let example = Example { question: question.text, steps: question.steps, answer: question.gold };
    example.checked().map_err(|flaw| question::Problem::Record { place, flaw })
}

impl Example {
    /// The example, if its steps are calculations.
    fn checked(self) -> Result<Self, Flaw> {
        let is_step = |step: &str| step.strip_prefix("<<").and_then(|s| s.strip_suffix(">>")).is_some_and(|s| s.contains('='));
        match self.steps.iter().find(|step| !is_step(step)) {
            Some(step) => Err(wrong("steps", &format!("holds {step:?}; write each as <<12*3=36>>"))),
            None => Ok(self),
        }
    }
}

fn wrong(field: &'static str, problem: &str) -> Flaw {
    Flaw::Field { field, problem: problem.to_owned() }
}
