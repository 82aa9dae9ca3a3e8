//! Reads the thoughts of a run from `latents.safetensors`, one question at a time.
//!
//! The file may be larger than memory: only the header is kept, and tensors are read on demand.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use record::{LATENTS_FILE, RunDir};
use safetensors::tensor::{Dtype, Metadata};

use crate::error::ReportError;

/// The size of the header's length field.
const LENGTH_BYTES: usize = 8;
/// Larger headers are rejected as corrupt: an entry has about a hundred bytes per question.
const MAX_HEADER_BYTES: u64 = 1 << 28;

/// An open `latents.safetensors`.
#[derive(Debug)]
pub struct LatentsReader {
    path: PathBuf,
    header: Metadata,
    /// The file offset of the tensor data.
    start: u64,
}

/// The thoughts of one or more trajectories.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentRows {
    /// Elements per thought.
    pub width: usize,
    /// All thoughts, concatenated over trajectories, `[thoughts, width]`.
    pub values: Vec<f32>,
}

impl LatentRows {
    /// Thought `i`, counted over all trajectories.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.width..][..self.width]
    }

    /// The number of thoughts.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }
}

impl LatentsReader {
    /// Opens the latents of the run in `dir`; `None` if they were not kept.
    pub fn open(dir: &Path) -> Result<Option<Self>, ReportError> {
        let path = dir.join(LATENTS_FILE);
        let file = match record::files::open_regular(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ReportError::Read { path, source }),
        };
        let (header, start) = match read_header(file) {
            Ok(read) => read,
            Err(source) => return Err(ReportError::Latents { path, source }),
        };
        let run = header.metadata().as_ref().and_then(|entries| entries.get("run"));
        let damaged = match run {
            Some(run) if *run == record::digest(RunDir::open(dir)?.manifest()).finish() => {
                record::verify_latents(&path).err()
            }
            _ => Some("the thoughts belong to another run".to_owned()),
        };
        if let Some(why) = damaged {
            let source = io::Error::new(io::ErrorKind::InvalidData, why);
            return Err(ReportError::Latents { path, source });
        }
        Ok(Some(Self { path, header, start }))
    }

    /// The thoughts of the sampled trajectories of a question, if they are in the file.
    pub fn read_sampled(&self, seed: u64, id: u32) -> Result<Option<LatentRows>, ReportError> {
        self.read_tensor(&format!("{seed}.{id}"))
    }

    /// The thoughts of the greedy trajectory of a question, if they are in the file.
    pub fn read_greedy(&self, seed: u64, id: u32) -> Result<Option<LatentRows>, ReportError> {
        self.read_tensor(&format!("{seed}.{id}.greedy"))
    }

    fn read_tensor(&self, name: &str) -> Result<Option<LatentRows>, ReportError> {
        let Some(info) = self.header.info(name) else { return Ok(None) };
        let (from, to) = info.data_offsets;
        let width = info.shape.last().copied().unwrap_or_default();
        let bytes = || -> io::Result<Vec<u8>> {
            if info.dtype != Dtype::F32 || width == 0 && from != to {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("tensor {name} does not have the data type F32"),
                ));
            }
            let mut file = record::files::open_regular(&self.path)?;
            file.seek(SeekFrom::Start(self.start + from as u64))?;
            let mut bytes = Vec::new();
            file.take((to - from) as u64).read_to_end(&mut bytes)?;
            if bytes.len() == to - from { Ok(bytes) } else { Err(truncated_error()) }
        };
        let bytes =
            bytes().map_err(|source| ReportError::Latents { path: self.path.clone(), source })?;
        let value = |bytes: &[u8]| bytes.try_into().map_or(0.0, f32::from_le_bytes);
        Ok(Some(LatentRows {
            width,
            values: bytes.chunks_exact(size_of::<f32>()).map(value).collect(),
        }))
    }
}

fn truncated_error() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file is truncated")
}

fn read_header(mut file: File) -> io::Result<(Metadata, u64)> {
    let size = file.metadata()?.len();
    let mut length = [0; LENGTH_BYTES];
    file.read_exact(&mut length).map_err(|_| truncated_error())?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES || length + LENGTH_BYTES as u64 > size {
        return Err(truncated_error());
    }
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    let header: Metadata = serde_json::from_slice(&bytes)?;
    let start = LENGTH_BYTES as u64 + length;
    if start + header.data_len() as u64 > size {
        Err(truncated_error())
    } else {
        Ok((header, start))
    }
}

#[cfg(test)]
mod tests {
    use record::{Manifest, RunDir, Sample, TrajectoryRecord};

    use super::*;

    /// A run of one question. Its two trajectories have two thoughts of width 3 each; the greedy
    /// trajectory has one thought.
    fn run() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let trajectory =
            |k| TrajectoryRecord { index: k, latent_steps: 2, ..TrajectoryRecord::default() };
        let greedy = Some(TrajectoryRecord { latent_steps: 1, ..TrajectoryRecord::default() });
        let sample = Sample {
            id: 3,
            seed: 7,
            trajectories: vec![trajectory(0), trajectory(1)],
            greedy,
            ..Sample::default()
        };
        let mut writer = RunDir::create(dir.path(), &Manifest::default()).unwrap();
        let mut latents = record::LatentsWriter::open(dir.path(), 3).unwrap();
        let numbers: Vec<f32> = (0..15).map(|i| i as f32).collect();
        latents.append(&sample, [&numbers[..6], &numbers[6..]]).unwrap();
        writer.append(&sample).unwrap();
        writer.finish().unwrap();
        latents.finish().unwrap();
        dir
    }

    #[test]
    fn what_was_written_is_read() {
        let dir = run();
        let latents = LatentsReader::open(dir.path()).unwrap().unwrap();
        let thoughts = latents.read_sampled(7, 3).unwrap().unwrap();
        assert_eq!((thoughts.width, thoughts.rows()), (3, 4));
        assert_eq!(thoughts.row(2), [6.0, 7.0, 8.0]);
        assert_eq!(latents.read_sampled(7, 4).unwrap(), None);
        assert_eq!(latents.read_greedy(7, 3).unwrap().unwrap().values, [12.0, 13.0, 14.0]);
        assert_eq!(latents.read_greedy(7, 4).unwrap(), None);
    }

    #[test]
    fn a_run_without_latents_has_none() {
        assert!(LatentsReader::open(tempfile::tempdir().unwrap().path()).unwrap().is_none());
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error_that_names_it() {
        let dir = run();
        let path = dir.path().join(LATENTS_FILE);
        let whole = std::fs::read(&path).unwrap();
        for length in [0, 4, 8, 40, whole.len() - 48, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = LatentsReader::open(dir.path()).unwrap_err();
            assert!(error.to_string().contains(LATENTS_FILE), "{length}: {error}");
        }
        std::fs::write(&path, [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat()).unwrap();
        assert!(LatentsReader::open(dir.path()).is_err());
    }
}
