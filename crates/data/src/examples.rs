//! Reads training examples from a file: the paper's JSON, GSM8K's lines, or iCoT's text.
//!
//! JSON is parsed by this crate's question reader, which knows the field names of every benchmark.
//! iCoT's text, with one example per line as `question||<<16-3-4=9>> <<9*2=18>> #### 18`, is parsed
//! here. Errors contain the file, position and field.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Serialize;

use crate::worked_step::steps_of_text;
use crate::{
    DatasetError, DatasetProblem, FieldNames, FilePosition, MAX_BYTES, Question, RecordFlaw,
};

/// A question with its solution.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct TrainExample {
    /// The question's text.
    pub question: String,
    /// Worked steps such as `<<16-3-4=9>>`, or sentences; may be empty.
    pub steps: Vec<String>,
    /// The answer: a number without thousands separators, or as written in the file.
    pub answer: String,
}

/// Reads the examples of the file at `path`, at most the first `limit`.
///
/// # Errors
///
/// If the file cannot be read, is too large, contains no example, or has an invalid example within
/// the limit.
pub fn read(path: &Path, limit: Option<usize>) -> Result<Vec<TrainExample>, DatasetError> {
    read_fields(path, &FieldNames::default(), limit)
}

/// Like [`read`], with field names given by the caller. They do not apply to iCoT's text.
///
/// # Errors
///
/// As [`read`].
pub fn read_fields(
    path: &Path,
    fields: &FieldNames,
    limit: Option<usize>,
) -> Result<Vec<TrainExample>, DatasetError> {
    let located = |problem| DatasetError { path: path.to_owned(), problem };
    let mut file = BufReader::new(File::open(path).map_err(|error| located(error.into()))?);
    if is_icot(&mut file).map_err(|error| located(error.into()))? {
        return read_icot(file, limit.unwrap_or(usize::MAX)).map_err(located);
    }
    let questions = crate::parse_fields(path, file, fields, limit)?;
    Ok(questions.into_iter().map(from_question).collect())
}

/// Whether the file is iCoT's text: the first buffered line is not JSON and has the separator.
fn is_icot(file: &mut impl BufRead) -> std::io::Result<bool> {
    let start = file.fill_buf()?;
    let mut lines = start.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let line = lines.find(|line| !line.is_empty()).unwrap_or_default();
    let is_json = matches!(line.first(), Some(b'[' | b'{'));
    let separator = STEP_SEPARATOR.as_bytes();
    Ok(!is_json && line.windows(separator.len()).any(|window| window == separator))
}

/// Separator between question and steps.
const STEP_SEPARATOR: &str = "||";

fn read_icot(file: impl BufRead, limit: usize) -> Result<Vec<TrainExample>, DatasetProblem> {
    let mut input = file.take(MAX_BYTES + 1);
    let mut examples = Vec::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        if examples.len() == limit || input.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if !bytes.trim_ascii().is_empty() {
            let position = FilePosition::Line(line);
            examples.push(
                parse_icot_line(&bytes)
                    .map_err(|flaw| DatasetProblem::Record { place: position, flaw })?,
            );
        }
    }
    match input.limit() {
        0 => Err(DatasetProblem::TooLarge),
        _ if examples.is_empty() => Err(DatasetProblem::Empty),
        _ => Ok(examples),
    }
}

/// Parses a line of the form `question||steps #### answer`.
fn parse_icot_line(bytes: &[u8]) -> Result<TrainExample, RecordFlaw> {
    let missing = |field, accepted| RecordFlaw::Missing { field, accepted };
    let text = std::str::from_utf8(bytes)
        .map_err(|_| field_error("question", "is not UTF-8; convert the file"))?;
    let (question, rest) =
        text.split_once(STEP_SEPARATOR).ok_or(missing("steps", "text after ||"))?;
    let (steps, answer) = rest.split_once("####").ok_or(missing("answer", "text after ####"))?;
    let answer = answer.trim().replace(',', "");
    if question.trim().is_empty() {
        return Err(field_error("question", "is empty; expected a string"));
    }
    if answer.is_empty() {
        return Err(field_error("answer", "is empty; expected a number"));
    }
    let steps = steps_of_text(steps);
    Ok(TrainExample { question: question.trim().to_owned(), steps, answer })
}

fn from_question(question: Question) -> TrainExample {
    let Question { text, steps, gold, .. } = question;
    TrainExample { question: text, steps, answer: gold }
}

fn field_error(field: &str, problem: &str) -> RecordFlaw {
    RecordFlaw::Field { field: field.to_owned(), problem: problem.to_owned() }
}
