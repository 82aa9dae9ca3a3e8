//! Files of one JSON record per line, read one line at a time.
//!
//! Only the end of such a file can be damaged by a killed writer: every line before it was followed by a
//! newline before the next began. So damage at the end is forgiven ([`recover`] removes it, [`Lines`] stops
//! before it) and damage anywhere else is an error that names the line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::sample::Check;

/// The records of a file, in order; holds one line at a time and ends at the first error.
#[derive(Debug)]
pub struct Lines<T> {
    path: PathBuf,
    reader: BufReader<File>,
    line: Vec<u8>,
    number: usize,
    ended: bool,
    record: PhantomData<fn() -> T>,
}

impl<T> Lines<T> {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = open_regular(path).map_err(|source| Error::Read { path: path.into(), source })?;
        Ok(Self {
            path: path.into(),
            reader: BufReader::new(file),
            line: Vec::new(),
            number: 0,
            ended: false,
            record: PhantomData,
        })
    }

    /// The number of the line last read, from 1.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Reads the next line into `self.line`; false at the end of the file.
    fn advance(&mut self) -> Result<bool, Error> {
        self.line.clear();
        self.number += 1;
        match self.reader.read_until(b'\n', &mut self.line) {
            Ok(length) => Ok(length > 0),
            Err(source) => Err(self.unreadable(source)),
        }
    }

    /// Whether nothing follows the line last read.
    fn is_last(&mut self) -> Result<bool, Error> {
        match self.reader.fill_buf() {
            Ok(rest) => Ok(rest.is_empty()),
            Err(source) => Err(self.unreadable(source)),
        }
    }

    fn is_terminated(&self) -> bool {
        self.line.ends_with(b"\n")
    }

    fn unreadable(&self, source: io::Error) -> Error {
        Error::Read { path: self.path.clone(), source }
    }
}

#[expect(private_bounds, reason = "which records have lines is this crate's to say")]
impl<T: DeserializeOwned + Check> Lines<T> {
    /// The record on the line last read.
    fn parse(&self) -> Result<T, Error> {
        let (path, line) = (self.path.clone(), self.number);
        let record: T = match serde_json::from_slice(&self.line) {
            Ok(record) => record,
            Err(source) => return Err(Error::Json { path, line, source }),
        };
        match record.check() {
            Ok(()) => Ok(record),
            Err(fault) => Err(Error::Invalid { path, line, field: fault.field, why: fault.why }),
        }
    }

    fn read(&mut self) -> Result<Option<T>, Error> {
        if !self.advance()? {
            return Ok(None);
        }
        match self.parse() {
            // A writer is at work on this line, or was when it was killed.
            Err(Error::Json { .. }) if !self.is_terminated() => Ok(None),
            record => record.map(Some),
        }
    }
}

impl<T: DeserializeOwned + Check> Iterator for Lines<T> {
    type Item = Result<T, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.read().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Hands every record of `path` to `keep` and cuts off a damaged last line. A missing file is an empty one.
pub(crate) fn recover<T: DeserializeOwned + Check>(
    path: &Path,
    mut keep: impl FnMut(T, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    if !path.exists() {
        return Ok(());
    }
    let mut lines = Lines::<T>::open(path)?;
    let mut good = 0;
    while lines.advance()? {
        let whole = lines.is_terminated();
        match lines.parse() {
            Ok(record) if whole => keep(record, lines.number())?,
            Err(error) if !lines.is_last()? => return Err(error),
            Ok(_) | Err(_) => return truncate(path, good),
        }
        good += lines.line.len() as u64;
    }
    Ok(())
}

fn truncate(path: &Path, length: u64) -> Result<(), Error> {
    let cut = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(length));
    cut.map_err(|source| Error::Write { path: path.into(), source })
}

/// Opens a regular file only: a pipe or a device under this name could keep us reading for ever.
fn open_regular(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}
