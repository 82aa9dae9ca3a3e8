//! JSON Lines files, read one line at a time.
//!
//! A killed writer can damage only the last line, because every line is terminated before the next
//! is written. So a damaged last line is dropped ([`recover_lines`] truncates it, [`JsonLines`]
//! stops before it), and damage anywhere else is an error that reports the line.
//!
//! A line of samples ends with a digest of its run and its bytes, which detects lines of another
//! run and edited ones. A line without one is rejected likewise.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use crate::files::Fingerprint;
use serde::de::DeserializeOwned;

use crate::error::{FieldError, RecordError};
use crate::sample::Validate;

/// Iterates over the records of a file; holds one line at a time and stops at the first error.
#[derive(Debug)]
pub struct JsonLines<T> {
    path: PathBuf,
    reader: BufReader<File>,
    line: Vec<u8>,
    number: usize,
    ended: bool,
    /// The digest from which each line's digest is computed; `None` for files without digests.
    run: Option<Fingerprint>,
    record: PhantomData<fn() -> T>,
}

impl<T> JsonLines<T> {
    pub(crate) fn open(path: &Path, run: Option<Fingerprint>) -> Result<Self, RecordError> {
        let file = crate::files::open_regular(path)
            .map_err(|source| RecordError::Read { path: path.into(), source })?;
        Ok(Self {
            path: path.into(),
            reader: BufReader::new(file),
            line: Vec::new(),
            number: 0,
            ended: false,
            run,
            record: PhantomData,
        })
    }

    /// The number of the line last read, from 1.
    pub(crate) fn line_number(&self) -> usize {
        self.number
    }

    /// Reads the next line into `self.line`; false at the end of the file.
    fn read_line(&mut self) -> Result<bool, RecordError> {
        self.line.clear();
        self.number += 1;
        match self.reader.read_until(b'\n', &mut self.line) {
            Ok(length) => Ok(length > 0),
            Err(source) => Err(self.read_error(source)),
        }
    }

    /// Whether nothing follows the line last read.
    fn is_last(&mut self) -> Result<bool, RecordError> {
        match self.reader.fill_buf() {
            Ok(rest) => Ok(rest.is_empty()),
            Err(source) => Err(self.read_error(source)),
        }
    }

    fn is_terminated(&self) -> bool {
        self.line.ends_with(b"\n")
    }

    fn read_error(&self, source: io::Error) -> RecordError {
        RecordError::Read { path: self.path.clone(), source }
    }
}

#[expect(private_bounds, reason = "only this crate's record types are stored as lines")]
impl<T: DeserializeOwned + Validate> JsonLines<T> {
    /// Parses the line last read.
    fn parse(&self) -> Result<T, RecordError> {
        let path = self.path.clone();
        let line = self.number;
        let record: T = match serde_json::from_slice(&self.line) {
            Ok(record) => record,
            Err(source) => return Err(RecordError::Json { path, line, source }),
        };
        if let Err(FieldError { field, why }) = record.validate() {
            return Err(RecordError::InvalidLine { path, line, field, why });
        }
        match &self.run {
            Some(run) if !has_digest_of(run, &self.line) => {
                Err(RecordError::ForeignLine { path, line })
            }
            _ => Ok(record),
        }
    }

    fn read(&mut self) -> Result<Option<T>, RecordError> {
        if !self.read_line()? {
            return Ok(None);
        }
        match self.parse() {
            // A writer is still writing this line, or was killed while doing so.
            Err(RecordError::Json { .. }) if !self.is_terminated() => Ok(None),
            record => record.map(Some),
        }
    }
}

impl<T: DeserializeOwned + Validate> Iterator for JsonLines<T> {
    type Item = Result<T, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.read().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Calls `visit` with every record of `path` and its line number, and truncates a damaged last
/// line. A missing file counts as empty.
pub(crate) fn recover_lines<T: DeserializeOwned + Validate>(
    path: &Path,
    run: Option<Fingerprint>,
    mut visit: impl FnMut(T, usize) -> Result<(), RecordError>,
) -> Result<(), RecordError> {
    if !path.exists() {
        return Ok(());
    }
    let mut lines = JsonLines::<T>::open(path, run)?;
    let mut valid_bytes = 0;
    while lines.read_line()? {
        let terminated = lines.is_terminated();
        match lines.parse() {
            Ok(record) if terminated => visit(record, lines.line_number())?,
            // A killed writer truncates its line, but never changes it.
            Err(error @ RecordError::ForeignLine { .. }) if terminated => return Err(error),
            Err(error) if !lines.is_last()? => return Err(error),
            Ok(_) | Err(_) => return truncate(path, valid_bytes),
        }
        valid_bytes += lines.line.len() as u64;
    }
    Ok(())
}

fn truncate(path: &Path, length: u64) -> Result<(), RecordError> {
    let cut = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(length));
    cut.map_err(|source| RecordError::Write { path: path.into(), source })
}

/// The key of a line's digest.
const DIGEST: &str = ",\"digest\":\"";

/// Appends a digest of the run and of the line's bytes to a line, which is a JSON object.
pub(crate) fn add_digest(run: &Fingerprint, line: &mut Vec<u8>) {
    let digest = run.clone().with("line", line).finish();
    line.pop(); // the closing brace
    line.extend(DIGEST.as_bytes());
    line.extend(digest.as_bytes());
    line.extend(b"\"}");
}

/// Whether a line ends with the digest of the run and of its bytes.
fn has_digest_of(run: &Fingerprint, line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let start = line.windows(DIGEST.len()).rposition(|window| window == DIGEST.as_bytes());
    let Some(start) = start else { return false };
    let mut whole = line[..start].to_vec();
    whole.push(b'}');
    add_digest(run, &mut whole);
    whole == line
}
