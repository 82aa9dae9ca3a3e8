//! The thoughts of a run in `latents.safetensors`: one f32 tensor per question and seed.
//!
//! While the run is in progress, the values are appended to `latents.part` in the order of
//! `samples.jsonl`, each question's before its line. Their number follows from the lines alone, so
//! an interrupted run truncates what is beyond and continues. At the end the header and the values
//! are written to a temporary file, which is then renamed.
//!
//! Tensor `SEED.ID` is `[trajectories, thoughts, width]`, or `[sum of thoughts, width]` if the
//! trajectories differ in length; `SEED.ID.greedy` is `[thoughts, width]` of the trajectory without
//! perturbation.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::RecordError;
use crate::run_dir::RunDir;
use crate::sample::Sample;

/// The file that holds the thoughts of a run.
pub const LATENTS_FILE: &str = "latents.safetensors";
pub(crate) const PART_FILE: &str = "latents.part";

/// Appends the thoughts of a run in progress.
#[derive(Debug)]
pub struct LatentsWriter {
    dir: PathBuf,
    part: File,
    width: usize,
    length: u64,
}

impl LatentsWriter {
    /// Opens the part file of the run in `dir` and truncates it to the samples already recorded.
    /// Every thought has `width` elements.
    pub fn open(dir: &Path, width: usize) -> Result<Self, RecordError> {
        let path = dir.join(PART_FILE);
        let length = RunDir::open(dir)?
            .samples()?
            .try_fold(0, |sum, s| Ok::<_, RecordError>(sum + sample_bytes(&s?, width)))?;
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        let checked = opened.and_then(|part| {
            if part.metadata()?.len() < length {
                let why =
                    "thoughts of recorded samples are missing: the run was started without latents";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            part.set_len(length)?;
            Ok(part)
        });
        match checked {
            Ok(part) => Ok(Self { dir: dir.into(), part, width, length }),
            Err(source) => Err(RecordError::Write { path, source }),
        }
    }

    /// Appends the thoughts of a sample: its trajectories in order, then the greedy one. Must be
    /// called before the sample itself is appended.
    pub fn append<'a>(
        &mut self,
        sample: &Sample,
        thoughts: impl IntoIterator<Item = &'a [f32]>,
    ) -> Result<(), RecordError> {
        let bytes: Vec<u8> = thoughts.into_iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        debug_assert_eq!(
            bytes.len() as u64,
            sample_bytes(sample, self.width),
            "number or width of the thoughts"
        );
        self.part.write_all(&bytes).map_err(|source| {
            let _ = self.part.set_len(self.length); // undo a partial write
            RecordError::Write { path: self.dir.join(PART_FILE), source }
        })?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Writes header and values to the final file. The run's samples must be complete.
    pub fn finish(self) -> Result<(), RecordError> {
        let header = self.header()?;
        let (part, done) = (self.dir.join(PART_FILE), self.dir.join(LATENTS_FILE));
        let written = files::replace(&done, |out| {
            out.write_all(&(header.len() as u64).to_le_bytes())?;
            out.write_all(&header)?;
            io::copy(&mut File::open(&part)?, out).map(drop)
        });
        let written = written.and_then(|()| fs::remove_file(&part));
        written.map_err(|source| RecordError::Write { path: done, source })
    }

    /// The safetensors header: names, shapes and offsets, padded to eight bytes.
    fn header(&self) -> Result<Vec<u8>, RecordError> {
        let (mut tensors, mut start) = (Map::new(), 0);
        for sample in RunDir::open(&self.dir)?.samples()? {
            let sample = sample?;
            let counts: Vec<u32> = sample.trajectories.iter().map(|t| t.thoughts).collect();
            let uniform = counts.windows(2).all(|w| w[0] == w[1]);
            let shape = match counts.first() {
                Some(&thoughts) if uniform => json!([counts.len(), thoughts, self.width]),
                _ => json!([counts.iter().sum::<u32>(), self.width]),
            };
            let name = format!("{}.{}", sample.seed, sample.id);
            let mut add = |name: String, shape: Value, thoughts: u64| {
                let end = start + thought_bytes(thoughts, self.width);
                tensors.insert(
                    name,
                    json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] }),
                );
                start = end;
            };
            add(name.clone(), shape, counts.iter().map(|&count| u64::from(count)).sum());
            if let Some(greedy) = &sample.greedy {
                add(
                    format!("{name}.greedy"),
                    json!([greedy.thoughts, self.width]),
                    u64::from(greedy.thoughts),
                );
            }
        }
        let mut header = Value::Object(tensors).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        Ok(header)
    }
}

fn sample_bytes(sample: &Sample, width: usize) -> u64 {
    let all = sample.trajectories.iter().chain(&sample.greedy);
    thought_bytes(all.map(|t| u64::from(t.thoughts)).sum(), width)
}

fn thought_bytes(thoughts: u64, width: usize) -> u64 {
    thoughts * width as u64 * size_of::<f32>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Manifest, TrajectoryRecord};

    const WIDTH: usize = 3;

    fn sample(id: u32, counts: &[u32]) -> Sample {
        let one = |(k, &thoughts): (usize, &u32)| TrajectoryRecord {
            k: k as u32,
            thoughts,
            ..TrajectoryRecord::default()
        };
        Sample {
            id,
            seed: 7,
            trajectories: counts.iter().enumerate().map(one).collect(),
            ..Sample::default()
        }
    }

    fn thoughts(sample: &Sample) -> Vec<f32> {
        let count: u32 = sample.trajectories.iter().chain(&sample.greedy).map(|t| t.thoughts).sum();
        (0..count as usize * WIDTH).map(|i| (sample.id * 100) as f32 + i as f32).collect()
    }

    #[test]
    fn an_interrupted_run_resumes_to_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = Manifest { questions: 2, seeds: vec![7], ..Manifest::default() };
        let greedy = Some(TrajectoryRecord { thoughts: 1, ..TrajectoryRecord::default() });
        let samples = [Sample { greedy, ..sample(0, &[2, 2]) }, sample(1, &[1, 0, 2])];
        let mut writer = RunDir::create(dir.path(), &manifest).unwrap();
        let mut latents = LatentsWriter::open(dir.path(), WIDTH).unwrap();
        latents.append(&samples[0], [&thoughts(&samples[0])[..]]).unwrap();
        writer.append(&samples[0]).unwrap();
        latents.append(&samples[1], [&thoughts(&samples[1])[..]]).unwrap(); // no line
        drop((writer, latents));

        let mut writer = RunDir::resume(dir.path(), &manifest).unwrap();
        let mut latents = LatentsWriter::open(dir.path(), WIDTH).unwrap();
        latents.append(&samples[1], [&thoughts(&samples[1])[..]]).unwrap();
        writer.append(&samples[1]).unwrap();
        writer.finish().unwrap();
        latents.finish().unwrap();

        let bytes = fs::read(dir.path().join(LATENTS_FILE)).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        assert_eq!(
            header["7.0"],
            json!({ "dtype": "F32", "shape": [2, 2, 3], "data_offsets": [0, 48] })
        );
        assert_eq!(
            header["7.0.greedy"],
            json!({ "dtype": "F32", "shape": [1, 3], "data_offsets": [48, 60] })
        );
        assert_eq!(
            header["7.1"],
            json!({ "dtype": "F32", "shape": [3, 3], "data_offsets": [60, 96] })
        );
        let values: Vec<f32> = bytes[8 + length..]
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(values, [thoughts(&samples[0]), thoughts(&samples[1])].concat());
        assert!(!dir.path().join(PART_FILE).exists());
    }

    #[test]
    fn missing_thoughts_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = RunDir::create(dir.path(), &Manifest::default()).unwrap();
        writer.append(&sample(0, &[2])).unwrap();
        let error = LatentsWriter::open(dir.path(), WIDTH).unwrap_err();
        assert!(
            std::error::Error::source(&error).unwrap().to_string().contains("without latents"),
            "{error}"
        );
    }
}
