//! Errors of data files: each names the file, the position and the accepted form.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::MAX_BYTES;

const ACCEPTED: &str = "a JSON array of {question, answer}, lines of {question, answer} \
    (also input/target, problem/answer, problem/solution, question/cot/answer, \
    Body+Question/Answer, question/choices/answer), CSV with the columns of GPQA, or Parquet with \
    such columns; for other fields set question_field, answer_field and steps_field";

/// Why a data file could not be read.
#[derive(Debug, thiserror::Error)]
#[error("data file {}: {problem}", path.display())]
pub struct DatasetError {
    /// The file.
    pub path: PathBuf,
    /// The problem. It is part of the message, and therefore not the error's `source`.
    pub problem: DatasetProblem,
}

/// The problem of a data file.
#[derive(Debug, thiserror::Error)]
pub enum DatasetProblem {
    /// The file could not be opened or read.
    #[error("{}", describe_io(.0))]
    Io(#[from] io::Error),
    /// The file is larger than [`MAX_BYTES`].
    #[error("is larger than {MAX_BYTES} bytes; split it")]
    TooLarge,
    /// The file contains no question.
    #[error("contains no questions; expected {ACCEPTED}")]
    Empty,
    /// The file is neither JSON, nor CSV, nor Parquet of a known benchmark; the text describes its
    /// beginning.
    #[error("has an unknown format ({0}); expected {ACCEPTED}")]
    Unrecognised(String),
    /// The JSON or CSV is malformed.
    #[error("{place}: {reason}; expected {ACCEPTED}")]
    Syntax {
        /// Position in the file.
        place: FilePosition,
        /// The parser's message.
        reason: String,
    },
    /// A Parquet file is corrupt or uses unsupported features; the text is the reader's message.
    #[error("cannot be read as Parquet: {0}; download it again, or convert it to JSON lines")]
    Parquet(String),
    /// A Parquet file is compressed with an unsupported codec.
    #[error(
        "uses the unsupported Parquet compression {0}; rewrite it with snappy, the default of \
         pandas and pyarrow, or as JSON lines"
    )]
    Compression(String),
    /// A well-formed record is not a question.
    #[error("{place}: {flaw}")]
    Record {
        /// Position in the file.
        place: FilePosition,
        /// The problem with the record.
        flaw: RecordFlaw,
    },
}

/// The reason why a record is not a question.
#[derive(Debug, thiserror::Error)]
pub enum RecordFlaw {
    /// A field is missing.
    #[error("no {field:?} field; accepted names are {accepted}")]
    Missing {
        /// The usual name of the field.
        field: &'static str,
        /// All accepted names.
        accepted: &'static str,
    },
    /// A field requested by the caller is missing.
    #[error("no {field:?} field, as requested by {role}; use another field of the file")]
    MissingNamed {
        /// The field's name.
        field: String,
        /// The setting that requested it.
        role: &'static str,
    },
    /// A field has a type or value that cannot be used.
    #[error("the field {field:?} {problem}")]
    Field {
        /// The field's name in the file.
        field: String,
        /// The problem, and the accepted values.
        problem: String,
    },
}

/// A position in a data file, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePosition {
    /// Line number.
    Line(usize),
    /// Line and column.
    Column(usize, usize),
    /// Element number of a JSON array.
    Element(usize),
    /// Row of a Parquet file.
    Row(usize),
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilePosition::Line(line) => write!(f, "line {line}"),
            FilePosition::Column(line, column) => write!(f, "line {line}, column {column}"),
            FilePosition::Element(element) => write!(f, "element {element} (counted from 1)"),
            FilePosition::Row(row) => write!(f, "row {row} (counted from 1)"),
        }
    }
}

impl DatasetProblem {
    /// A JSON error; `lines_before` lines precede the text in which it counts lines.
    pub(super) fn json(error: &serde_json::Error, lines_before: usize) -> Self {
        let message = error.to_string();
        // serde_json's message ends with a position, which `place` replaces.
        let reason = message.rsplit_once(" at line ").map_or(&*message, |(reason, _)| reason);
        let place = FilePosition::Column(lines_before + error.line(), error.column());
        DatasetProblem::Syntax { place, reason: reason.to_owned() }
    }
}

fn describe_io(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file; check the path".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}
