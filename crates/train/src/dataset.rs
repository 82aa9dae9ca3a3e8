//! Training examples, from the corpus or from a file: the paper's JSON, GSM8K's lines, or iCoT's
//! text.
//!
//! JSON is read by the `dataset` crate, which knows every benchmark's field names; the text of
//! iCoT, one example a line as `question||<<16-3-4=9>> <<9*2=18>> #### 18`, is read here. Errors
//! are the engine's: they name file, place and field.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use ::dataset::{DatasetError, DatasetProblem, FilePosition, MAX_BYTES, Question, RecordFlaw};
use serde::Serialize;

use crate::corpus::WordProblem;

/// Something to learn from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct TrainExample {
    /// The text, as the file has it.
    pub question: String,
    /// The calculations, such as `<<16-3-4=9>>`. A file may have none.
    pub steps: Vec<String>,
    /// The answer, a number without thousands separators.
    pub answer: String,
}

impl From<WordProblem> for TrainExample {
    fn from(problem: WordProblem) -> Self {
        let steps = problem.steps.iter().map(|step| format!("<<{step}>>")).collect();
        Self { question: problem.question, steps, answer: problem.answer.to_string() }
    }
}

/// Reads the examples of the file at `path`, at most the first `limit`.
///
/// # Errors
///
/// When the file cannot be read, is too large, holds no example, or holds something that is not one
/// before the limit is reached.
pub fn read(path: &Path, limit: Option<usize>) -> Result<Vec<TrainExample>, DatasetError> {
    let named = |problem| DatasetError { path: path.to_owned(), problem };
    let mut file = BufReader::new(File::open(path).map_err(|error| named(error.into()))?);
    match is_icot(&mut file).map_err(|error| named(error.into()))? {
        true => read_icot(file, limit.unwrap_or(usize::MAX)).map_err(named),
        false => ::dataset::parse(path, file, limit)?
            .into_iter()
            .map(|q| from_question(q).map_err(named))
            .collect(),
    }
}

/// Whether the file holds lines of iCoT: its first line, of which a buffer holds enough, is no JSON
/// and has the mark.
fn is_icot(file: &mut impl BufRead) -> std::io::Result<bool> {
    let start = file.fill_buf()?;
    let line = start
        .split(|byte| *byte == b'\n')
        .find(|line| !line.trim_ascii().is_empty())
        .unwrap_or_default();
    let is_json = matches!(line.trim_ascii().first(), Some(b'[' | b'{'));
    Ok(!is_json && line.windows(STEP_SEPARATOR.len()).any(|pair| pair == STEP_SEPARATOR.as_bytes()))
}

/// Between question and steps.
const STEP_SEPARATOR: &str = "||";

fn read_icot(file: impl BufRead, limit: usize) -> Result<Vec<TrainExample>, DatasetProblem> {
    let mut input = file.take(MAX_BYTES + 1);
    let (mut examples, mut bytes) = (Vec::new(), Vec::new());
    for line in 1.. {
        bytes.clear();
        if examples.len() == limit || input.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if !bytes.trim_ascii().is_empty() {
            let flawed = |flaw| DatasetProblem::Record { place: FilePosition::Line(line), flaw };
            examples.push(parse_icot_line(&bytes).map_err(flawed)?);
        }
    }
    match input.limit() {
        0 => Err(DatasetProblem::TooLarge),
        _ if examples.is_empty() => Err(DatasetProblem::Empty),
        _ => Ok(examples),
    }
}

/// `question||steps #### answer`
fn parse_icot_line(bytes: &[u8]) -> Result<TrainExample, RecordFlaw> {
    let missing = |field, accepted| RecordFlaw::Missing { field, accepted };
    let text = std::str::from_utf8(bytes)
        .map_err(|_| field_error("question", "is not UTF-8; convert the file"))?;
    let (question, rest) =
        text.split_once(STEP_SEPARATOR).ok_or(missing("steps", "what follows || on its line"))?;
    let (work, answer) =
        rest.split_once("####").ok_or(missing("answer", "what follows #### on its line"))?;
    let answer = answer.trim().replace(',', "");
    if question.trim().is_empty() {
        return Err(field_error("question", "is empty; give it a text"));
    }
    if answer.is_empty() {
        return Err(field_error("answer", "is empty; give it a number"));
    }
    let steps = work.split_whitespace().map(str::to_owned).collect();
    TrainExample { question: question.trim().to_owned(), steps, answer }.checked()
}

fn from_question(question: Question) -> Result<TrainExample, DatasetProblem> {
    let place = FilePosition::Element(question.id as usize + 1);
    let example =
        TrainExample { question: question.text, steps: question.steps, answer: question.gold };
    example.checked().map_err(|flaw| DatasetProblem::Record { place, flaw })
}

impl TrainExample {
    /// The example, if its steps are calculations.
    fn checked(self) -> Result<Self, RecordFlaw> {
        let is_step = |step: &str| {
            step.strip_prefix("<<")
                .and_then(|s| s.strip_suffix(">>"))
                .is_some_and(|s| s.contains('='))
        };
        match self.steps.iter().find(|step| !is_step(step)) {
            Some(step) => {
                Err(field_error("steps", &format!("holds {step:?}; write each as <<12*3=36>>")))
            }
            None => Ok(self),
        }
    }
}

fn field_error(field: &'static str, problem: &str) -> RecordFlaw {
    RecordFlaw::Field { field, problem: problem.to_owned() }
}
