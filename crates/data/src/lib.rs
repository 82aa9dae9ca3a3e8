//! Reads questions with gold answers from benchmark files in their original formats.
//!
//! The format is detected from the content, not from the file name: a JSON array (the paper's
//! files), one JSON object per line (GSM8K, GSM-Hard, SVAMP, MATH-500, AIME), CSV with a header
//! (GPQA), or, with the feature `parquet`, Parquet (most datasets of the Hub). `record` parses the
//! known fields, `fields` has field names given by the caller, `shape` maps each benchmark's fields
//! to a question, `csv` parses quoted CSV, `parquet` rows of columns, and `error` defines the
//! errors.
//!
//! Invariants: a question's `id` is its index in the file, independent of the limit, because random
//! numbers are keyed by it; the text is unchanged, including leading spaces, because prompts depend
//! on it; reading never panics and uses at most a small multiple of the file's size in memory.

pub mod answer;
mod csv;
mod error;
pub mod examples;
mod fields;
#[cfg(feature = "parquet")]
mod parquet;
mod record;
mod shape;
#[cfg(test)]
mod tests;
pub mod worked_step;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::Path;

pub use answer::AnswerKind;
pub use error::{DatasetError, DatasetProblem, FilePosition, RecordFlaw};
pub use examples::TrainExample;
pub use fields::FieldNames;
use record::DataRecord;

/// Maximum file size in bytes; known benchmarks have a few megabytes.
pub const MAX_BYTES: u64 = 1 << 30;

/// The first bytes of a Parquet file.
const PARQUET_MAGIC: &[u8; 4] = b"PAR1";

/// One problem and its gold answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Index in the file, from 0. Identifies the question in records, and keys its random numbers.
    pub id: u32,
    /// The text as in the file; for multiple choice, followed by the options as `A) ...` lines.
    pub text: String,
    /// The gold answer: a number without thousands separators, a formula, the letter of an option,
    /// or a yes or no as written in the file.
    pub gold: String,
    /// The kind of `gold`; determines how answers are extracted and compared.
    pub kind: AnswerKind,
    /// Steps of the solution, calculations such as `<<48/2=24>>` or sentences, if the file has
    /// them.
    pub steps: Vec<String>,
}

/// Reads the questions of the file at `path`, at most the first `limit`.
///
/// # Errors
///
/// The file cannot be read, is too large, contains no question, or contains an invalid record
/// before the limit. The error contains the file, the position and the accepted formats.
pub fn read(path: &Path, limit: Option<usize>) -> Result<Vec<Question>, DatasetError> {
    read_fields(path, &FieldNames::default(), limit)
}

/// Like [`read`], with field names given by the caller.
///
/// # Errors
///
/// As [`read`].
pub fn read_fields(
    path: &Path,
    fields: &FieldNames,
    limit: Option<usize>,
) -> Result<Vec<Question>, DatasetError> {
    let named = |problem| DatasetError { path: path.to_owned(), problem };
    let file = File::open(path).map_err(|error| named(error.into()))?;
    let size = file.metadata().map_err(|error| named(error.into()))?.len();
    if size > MAX_BYTES {
        return Err(named(DatasetProblem::TooLarge));
    }
    parse_fields(path, BufReader::new(file), fields, limit)
}

/// Like [`read`], from `input`; errors use `name` as the file.
///
/// # Errors
///
/// As [`read`].
pub fn parse(
    name: &Path,
    input: impl BufRead,
    limit: Option<usize>,
) -> Result<Vec<Question>, DatasetError> {
    parse_fields(name, input, &FieldNames::default(), limit)
}

/// Like [`parse`], with field names given by the caller.
///
/// # Errors
///
/// As [`read`].
pub fn parse_fields(
    name: &Path,
    input: impl BufRead,
    fields: &FieldNames,
    limit: Option<usize>,
) -> Result<Vec<Question>, DatasetError> {
    let mut input = input.take(MAX_BYTES + 1);
    let questions = questions(&mut input, fields, limit.unwrap_or(usize::MAX));
    // The size of a pipe is not known in advance, so the limit is checked after reading.
    let result = if input.limit() == 0 { Err(DatasetProblem::TooLarge) } else { questions };
    result.map_err(|problem| DatasetError { path: name.to_owned(), problem })
}

fn questions(
    input: &mut impl BufRead,
    fields: &FieldNames,
    limit: usize,
) -> Result<Vec<Question>, DatasetProblem> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let (first, skipped) = first_byte(input)?;
    let questions = match first {
        None => Vec::new(),
        Some(b'P') if input.fill_buf()?.starts_with(PARQUET_MAGIC) => {
            parquet_rows(input, fields, limit)?
        }
        Some(b'[') => {
            let walk = |each: &mut dyn FnMut(DataRecord) -> ControlFlow<()>| {
                record::array(input, fields, each)
                    .map_err(|error| DatasetProblem::json(&error, skipped))
            };
            listed((fields, limit), FilePosition::Element, walk)?
        }
        Some(b'{') => lines(input, fields, limit, skipped)?,
        Some(_) => table(input, fields, limit, skipped)?,
    };
    if questions.is_empty() { Err(DatasetProblem::Empty) } else { Ok(questions) }
}

/// Skips a byte-order mark and white space; returns the next byte without consuming it, and the
/// number of skipped lines.
fn first_byte(input: &mut impl BufRead) -> Result<(Option<u8>, usize), DatasetProblem> {
    if input.fill_buf()?.starts_with(b"\xef\xbb\xbf") {
        input.consume(3);
    }
    let mut lines = 0;
    loop {
        match input.fill_buf()?.first().copied() {
            Some(byte) if byte.is_ascii_whitespace() => {
                lines += usize::from(byte == b'\n');
                input.consume(1);
            }
            first => return Ok((first, lines)),
        }
    }
}

/// The questions of records passed on one at a time, so that only one record is in memory. `place`
/// returns the position of a record from its number, counted from 1.
fn listed(
    (fields, limit): (&FieldNames, usize),
    place: fn(usize) -> FilePosition,
    walk: impl FnOnce(&mut dyn FnMut(DataRecord) -> ControlFlow<()>) -> Result<(), DatasetProblem>,
) -> Result<Vec<Question>, DatasetProblem> {
    let mut questions = Vec::new();
    let mut flaw = None;
    walk(&mut |record| {
        match shape::question(&record, fields, questions.len()) {
            Ok(question) => questions.push(question),
            Err(found) => flaw = Some(found),
        }
        let done = flaw.is_some() || questions.len() == limit;
        if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    match flaw {
        Some(flaw) => Err(DatasetProblem::Record { place: place(questions.len() + 1), flaw }),
        None => Ok(questions),
    }
}

/// Parses Parquet, which must be read completely because its metadata is at the end.
#[cfg(feature = "parquet")]
fn parquet_rows(
    input: &mut impl BufRead,
    fields: &FieldNames,
    limit: usize,
) -> Result<Vec<Question>, DatasetProblem> {
    let mut content = Vec::new();
    input.read_to_end(&mut content)?;
    listed((fields, limit), FilePosition::Row, |each| parquet::rows(content, fields, each))
}

#[cfg(not(feature = "parquet"))]
fn parquet_rows(
    _: &mut impl BufRead,
    _: &FieldNames,
    _: usize,
) -> Result<Vec<Question>, DatasetProblem> {
    let what = "Parquet, which requires the feature `parquet`";
    Err(DatasetProblem::Unrecognised(what.to_owned()))
}

/// Parses JSON lines, with one line in memory at a time. Empty lines are skipped.
fn lines(
    input: &mut impl BufRead,
    fields: &FieldNames,
    limit: usize,
    skipped: usize,
) -> Result<Vec<Question>, DatasetProblem> {
    let mut questions = Vec::new();
    let mut bytes = Vec::new();
    let mut line = skipped;
    while questions.len() < limit && input.read_until(b'\n', &mut bytes)? > 0 {
        if !bytes.trim_ascii().is_empty() {
            let record =
                record::line(&bytes, fields).map_err(|error| DatasetProblem::json(&error, line))?;
            questions.push(numbered(&record, fields, questions.len(), line + 1)?);
        }
        bytes.clear();
        line += 1;
    }
    Ok(questions)
}

/// Parses CSV whose header has a known question field.
fn table(
    input: &mut impl BufRead,
    fields: &FieldNames,
    limit: usize,
    skipped: usize,
) -> Result<Vec<Question>, DatasetProblem> {
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        DatasetProblem::Unrecognised(format!("neither JSON nor UTF-8, {error}"))
    })?;
    let mut rows = csv::CsvRows::new(text, skipped);
    let header = rows.next().transpose()?.map(|row| row.cells).unwrap_or_default();
    if !shape::is_header(fields, &header) {
        let start: String = text.chars().take(40).collect();
        return Err(DatasetProblem::Unrecognised(format!("it starts with {start:?}")));
    }
    let mut questions = Vec::new();
    for row in rows.take(limit) {
        let row = row?;
        let record = DataRecord::from_row(fields, &header, row.cells).map_err(|reason| {
            DatasetProblem::Syntax { place: FilePosition::Line(row.line), reason }
        })?;
        questions.push(numbered(&record, fields, questions.len(), row.line)?);
    }
    Ok(questions)
}

fn numbered(
    record: &DataRecord,
    fields: &FieldNames,
    index: usize,
    line: usize,
) -> Result<Question, DatasetProblem> {
    shape::question(record, fields, index)
        .map_err(|flaw| DatasetProblem::Record { place: FilePosition::Line(line), flaw })
}
