//! The thoughts of a run, read question by question from `latents.safetensors`.
//!
//! Such a file may be larger than memory: the header is read once, then only the tensors that are asked for.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata};

use crate::error::Error;

const FILE: &str = "latents.safetensors";
/// The bytes that say how long the header is.
const LENGTH: usize = 8;
/// A header longer than this is no header: a name and a place take about a hundred bytes a question.
const LONGEST: u64 = 1 << 28;

/// The thoughts of a run.
#[derive(Debug)]
pub struct Latents {
    path: PathBuf,
    header: Metadata,
    /// Where the numbers begin.
    start: u64,
}

/// The thoughts of some trajectories.
#[derive(Debug, Clone, PartialEq)]
pub struct Thoughts {
    /// Numbers of each thought.
    pub width: usize,
    /// All thoughts, trajectory after trajectory, `[thoughts, width]`.
    pub numbers: Vec<f32>,
}

impl Thoughts {
    /// Thought `i`, counted over all trajectories.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.numbers[i * self.width..][..self.width]
    }

    /// How many there are.
    pub fn rows(&self) -> usize {
        self.numbers.len().checked_div(self.width).unwrap_or(0)
    }
}

impl Latents {
    /// The thoughts of the run in `dir`, where they were kept.
    pub fn open(dir: &Path) -> Result<Option<Self>, Error> {
        let path = dir.join(FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Read { path, source }),
        };
        match header(file) {
            Ok((header, start)) => Ok(Some(Self { path, header, start })),
            Err(source) => Err(Error::Latents { path, source }),
        }
    }

    /// The thoughts of a question's trajectories under a seed, where they are on file.
    pub fn of(&self, seed: u64, id: u32) -> Result<Option<Thoughts>, Error> {
        self.read(&format!("{seed}.{id}"))
    }

    /// The thoughts of its trajectory without perturbation, where they are on file.
    pub fn of_greedy(&self, seed: u64, id: u32) -> Result<Option<Thoughts>, Error> {
        self.read(&format!("{seed}.{id}.greedy"))
    }

    fn read(&self, name: &str) -> Result<Option<Thoughts>, Error> {
        let Some(info) = self.header.info(name) else { return Ok(None) };
        let (from, to) = info.data_offsets;
        let width = info.shape.last().copied().unwrap_or_default();
        let bytes = || -> io::Result<Vec<u8>> {
            if info.dtype != Dtype::F32 || width == 0 && from != to {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("tensor {name} is not of 32-bit floats")));
            }
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.start + from as u64))?;
            let mut bytes = Vec::new();
            file.take((to - from) as u64).read_to_end(&mut bytes)?;
            if bytes.len() == to - from { Ok(bytes) } else { Err(truncated()) }
        };
        let bytes = bytes().map_err(|source| Error::Latents { path: self.path.clone(), source })?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(0.0, f32::from_le_bytes);
        Ok(Some(Thoughts { width, numbers: bytes.chunks_exact(size_of::<f32>()).map(number).collect() }))
    }
}

fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before its numbers do")
}

fn header(mut file: File) -> io::Result<(Metadata, u64)> {
    let size = file.metadata()?.len();
    let mut length = [0; LENGTH];
    file.read_exact(&mut length).map_err(|_| truncated())?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST || length + LENGTH as u64 > size {
        return Err(truncated());
    }
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    let header: Metadata = serde_json::from_slice(&bytes)?;
    let start = LENGTH as u64 + length;
    if start + header.data_len() as u64 > size { Err(truncated()) } else { Ok((header, start)) }
}

#[cfg(test)]
mod tests {
    use record::{Manifest, RunDir, Sample, Trajectory};

    use super::*;

    /// A run of one question whose two trajectories have two thoughts of three numbers, and the unperturbed one a single one.
    fn run() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let trajectory = |k| Trajectory { k, thoughts: 2, ..Trajectory::default() };
        let greedy = Some(Trajectory { thoughts: 1, ..Trajectory::default() });
        let sample = Sample { id: 3, seed: 7, trajectories: vec![trajectory(0), trajectory(1)], greedy, ..Sample::default() };
        let mut writer = RunDir::create(dir.path(), &Manifest::default()).unwrap();
        let mut latents = record::Latents::open(dir.path(), 3).unwrap();
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
        let latents = Latents::open(dir.path()).unwrap().unwrap();
        let thoughts = latents.of(7, 3).unwrap().unwrap();
        assert_eq!((thoughts.width, thoughts.rows()), (3, 4));
        assert_eq!(thoughts.row(2), [6.0, 7.0, 8.0]);
        assert_eq!(latents.of(7, 4).unwrap(), None);
        assert_eq!(latents.of_greedy(7, 3).unwrap().unwrap().numbers, [12.0, 13.0, 14.0]);
        assert_eq!(latents.of_greedy(7, 4).unwrap(), None);
    }

    #[test]
    fn none_were_kept() {
        assert!(Latents::open(tempfile::tempdir().unwrap().path()).unwrap().is_none());
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error_that_names_it() {
        let dir = run();
        let path = dir.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for length in [0, 4, 8, 40, whole.len() - 48, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = Latents::open(dir.path()).unwrap_err();
            assert!(error.to_string().contains(FILE) && error.to_string().contains("--latents"), "{length}: {error}");
        }
        std::fs::write(&path, [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat()).unwrap();
        assert!(Latents::open(dir.path()).is_err());
    }
}
