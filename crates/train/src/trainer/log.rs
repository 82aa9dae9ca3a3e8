//! `log.jsonl`: one JSON object per step.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::TrainError;

/// The log of a training, open for appending.
pub(super) struct TrainLog {
    path: PathBuf,
    out: BufWriter<File>,
}

impl TrainLog {
    /// Keeps the lines of the first `steps` steps; those of steps that will be repeated are cut.
    pub(super) fn open(path: &Path, steps: u32) -> Result<Self, TrainError> {
        let failed = |source| TrainError::Io { path: path.to_owned(), source };
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(failed)?;
        }
        let kept: Vec<String> = match File::open(path) {
            Ok(file) => {
                let lines = BufReader::new(file).lines().take(steps as usize);
                lines.collect::<Result<_, _>>().map_err(failed)?
            }
            Err(_) => Vec::new(),
        };
        let mut contents = kept.join("\n");
        if !kept.is_empty() {
            contents.push('\n');
        }
        record::write_atomic(path, contents.as_bytes())?;
        let out = File::options().append(true).open(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), out: BufWriter::new(out) })
    }

    pub(super) fn write(&mut self, line: &Map<String, Value>) -> Result<(), TrainError> {
        let text = Value::Object(line.clone());
        writeln!(self.out, "{text}").map_err(|source| self.error(source))
    }

    pub(super) fn flush(&mut self) -> Result<(), TrainError> {
        self.out.flush().map_err(|source| self.error(source))
    }

    fn error(&self, source: std::io::Error) -> TrainError {
        TrainError::Io { path: self.path.clone(), source }
    }
}
