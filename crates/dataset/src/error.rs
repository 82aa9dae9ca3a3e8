//! What can be wrong with a data file, said so that it can be put right.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::MAX_BYTES;

const ACCEPTED: &str = "a JSON array of {question, answer}, lines of {question, answer} \
    (also input/target, problem/answer, Body+Question/Answer, question/choices/answer), \
    or CSV with the columns of GPQA";

/// Why a data file could not be read.
#[derive(Debug, thiserror::Error)]
#[error("data file {}: {problem}", path.display())]
pub struct DatasetError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it. Part of the message, and therefore not its source as well.
    pub problem: DatasetProblem,
}

/// What is wrong with a data file.
#[derive(Debug, thiserror::Error)]
pub enum DatasetProblem {
    /// It could not be opened or read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is larger than [`MAX_BYTES`].
    #[error("is larger than {MAX_BYTES} bytes; split it")]
    TooLarge,
    /// It holds no question.
    #[error("holds no questions; expected {ACCEPTED}")]
    Empty,
    /// It is neither JSON, nor JSON lines, nor CSV of a known benchmark; says what was met instead.
    #[error("is of no known kind ({0}); expected {ACCEPTED}")]
    Unrecognised(String),
    /// It is not well-formed.
    #[error("{place}: {reason}; expected {ACCEPTED}")]
    Syntax {
        /// Where.
        place: FilePosition,
        /// What is wrong there.
        reason: String,
    },
    /// A record is well-formed but no question.
    #[error("{place}: {flaw}")]
    Record {
        /// Where.
        place: FilePosition,
        /// What is wrong with it.
        flaw: RecordFlaw,
    },
}

/// Why a record is no question.
#[derive(Debug, thiserror::Error)]
pub enum RecordFlaw {
    /// A field is missing.
    #[error("no {field:?} field; accepted names are {accepted}")]
    Missing {
        /// What is missing.
        field: &'static str,
        /// Names under which it is looked for.
        accepted: &'static str,
    },
    /// A field is there, but not in a form that can be used.
    #[error("the field {field:?} {problem}")]
    Field {
        /// The field's name in the file.
        field: &'static str,
        /// What is wrong with it and what is accepted.
        problem: String,
    },
}

/// A place in a data file, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePosition {
    /// A line.
    Line(usize),
    /// A line and a column of it.
    Column(usize, usize),
    /// An element of a JSON array.
    Element(usize),
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilePosition::Line(line) => write!(f, "line {line}"),
            FilePosition::Column(line, column) => write!(f, "line {line}, column {column}"),
            FilePosition::Element(element) => write!(f, "element {element} (counted from 1)"),
        }
    }
}

impl DatasetProblem {
    /// `lines_before` were read before the JSON text that the error counts its lines in.
    pub(super) fn json(error: &serde_json::Error, lines_before: usize) -> Self {
        let message = error.to_string();
        // The message ends in its own idea of the place, which `Place` says better.
        let reason = message.rsplit_once(" at line ").map_or(&*message, |(reason, _)| reason);
        let place = FilePosition::Column(lines_before + error.line(), error.column());
        DatasetProblem::Syntax { place, reason: reason.to_owned() }
    }
}
