//! The thoughts of a run in `latents.safetensors`: one f32 tensor per question and seed.
//!
//! While the run is in progress, the values are appended to `latents.part` in the order of
//! `samples.jsonl`, each question's before its line. Their number follows from the lines alone, so
//! an interrupted run truncates what is beyond and continues. At the end the header and the values
//! are written to a temporary file, which is then renamed. A run that ends before the rename is
//! finished from the part; one whose thoughts are nowhere is refused.
//!
//! Tensor `SEED.ID` is `[trajectories, thoughts, width]`, or `[sum of thoughts, width]` if the
//! trajectories differ in length; `SEED.ID.greedy` is `[thoughts, width]` of the trajectory without
//! perturbation.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::RecordError;
use crate::run_dir::RunDir;
use crate::sample::Sample;

/// The file that holds the thoughts of a run.
pub const LATENTS_FILE: &str = "latents.safetensors";
pub(crate) const PART_FILE: &str = "latents.part";
/// The key of the header's metadata: `run`, the digest of the run.
const METADATA: &str = "__metadata__";

/// Appends the thoughts of a run in progress.
#[derive(Debug)]
pub struct LatentsWriter {
    dir: PathBuf,
    /// `None` once [`LATENTS_FILE`] holds the thoughts of the complete run.
    part: Option<File>,
    width: usize,
    length: u64,
}

impl LatentsWriter {
    /// Opens the thoughts of the run in `dir`: those of the samples already recorded must be there,
    /// in the part file or in the final one, and whatever is beyond them is cut. Every thought has
    /// `width` elements.
    pub fn open(dir: &Path, width: usize) -> Result<Self, RecordError> {
        let run = RunDir::open(dir)?;
        let layout = LatentsLayout::of(&run, width)?;
        let (path, done) = (dir.join(PART_FILE), dir.join(LATENTS_FILE));
        let mut writer = Self { dir: dir.into(), part: None, width, length: layout.length };
        if done.exists() {
            let values_start = layout
                .check_file(&done)
                .map_err(|why| RecordError::Latents { path: done.clone(), why })?;
            if layout.samples == run.manifest().sample_count() {
                // Left by a process that ended before it could remove it.
                crate::run_dir::remove_if_exists(&path)?;
                return Ok(writer);
            }
            // Samples were lost after the run was complete: it goes on from the thoughts of those
            // that are left.
            let restored = crate::files::replace(&path, |out| {
                let mut values = File::open(&done)?;
                values.seek(SeekFrom::Start(values_start))?;
                io::copy(&mut values.take(layout.length), out).map(drop)
            });
            restored.map_err(|source| RecordError::Write { path: path.clone(), source })?;
        }
        if fs::metadata(&path).map_or(0, |found| found.len()) < layout.length {
            let why = "the thoughts of recorded samples are missing".to_owned();
            return Err(RecordError::Latents { path: done, why });
        }
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        let cut = opened.and_then(|part| part.set_len(layout.length).map(|()| part));
        writer.part = Some(cut.map_err(|source| RecordError::Write { path, source })?);
        Ok(writer)
    }

    /// Fails if the run in `dir` keeps thoughts and has not finished: without a writer those of its
    /// other samples would be lost.
    pub fn check_none(dir: &Path) -> Result<(), RecordError> {
        let path = dir.join(PART_FILE);
        match path.exists() {
            true => Err(RecordError::LatentsKept { path }),
            false => Ok(()),
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
        let path = || self.dir.join(PART_FILE);
        let Some(part) = &mut self.part else {
            return Err(RecordError::Duplicate {
                path: path(),
                line: 0,
                id: sample.id,
                seed: sample.seed,
            });
        };
        part.write_all(&bytes).map_err(|source| {
            let _ = part.set_len(self.length); // undo a partial write
            RecordError::Write { path: path(), source }
        })?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Writes header and values to the final file. The run's samples must be complete.
    pub fn finish(self) -> Result<(), RecordError> {
        if self.part.is_none() {
            return Ok(());
        }
        let header = LatentsLayout::of(&RunDir::open(&self.dir)?, self.width)?.header();
        let (part, done) = (self.dir.join(PART_FILE), self.dir.join(LATENTS_FILE));
        let written = crate::files::replace(&done, |out| {
            out.write_all(&(header.len() as u64).to_le_bytes())?;
            out.write_all(&header)?;
            io::copy(&mut File::open(&part)?, out).map(drop)
        });
        let written = written.and_then(|()| fs::remove_file(&part));
        written.map_err(|source| RecordError::Write { path: done, source })
    }
}

/// What the header says of a run's thoughts: it follows from the recorded samples.
struct LatentsLayout {
    /// Entry by tensor name.
    tensors: Map<String, Value>,
    samples: usize,
    /// Bytes of all values.
    length: u64,
}

impl LatentsLayout {
    fn of(run: &RunDir, width: usize) -> Result<Self, RecordError> {
        let run_digest = run.manifest().digest().finish();
        let tensors = Map::from_iter([(METADATA.to_owned(), json!({ "run": run_digest }))]);
        let mut layout = Self { tensors, samples: 0, length: 0 };
        for sample in run.samples()? {
            layout.add(&sample?, width);
        }
        Ok(layout)
    }

    fn add(&mut self, sample: &Sample, width: usize) {
        let counts: Vec<u32> = sample.trajectories.iter().map(|t| t.latent_steps).collect();
        let uniform = counts.windows(2).all(|w| w[0] == w[1]);
        let shape = match counts.first() {
            Some(&thoughts) if uniform => json!([counts.len(), thoughts, width]),
            _ => json!([counts.iter().sum::<u32>(), width]),
        };
        let name = format!("{}.{}", sample.seed, sample.id);
        let mut add = |name: String, shape: Value, thoughts: u64| {
            let end = self.length + thought_bytes(thoughts, width);
            let offsets = [self.length, end];
            self.tensors
                .insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets }));
            self.length = end;
        };
        add(name.clone(), shape, counts.iter().map(|&count| u64::from(count)).sum());
        if let Some(greedy) = &sample.greedy {
            let shape = json!([greedy.latent_steps, width]);
            add(format!("{name}.greedy"), shape, u64::from(greedy.latent_steps));
        }
        self.samples += 1;
    }

    /// The safetensors header: names, shapes and offsets, padded to eight bytes.
    fn header(self) -> Vec<u8> {
        let mut header = Value::Object(self.tensors).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        header
    }

    /// Checks that a finished file begins with these thoughts; returns where its values start.
    fn check_file(&self, path: &Path) -> Result<u64, String> {
        let read = || -> io::Result<(Map<String, Value>, u64, u64)> {
            let mut file = File::open(path)?;
            let size = file.metadata()?.len();
            let mut length = [0; 8];
            file.read_exact(&mut length)?;
            let length = u64::from_le_bytes(length);
            // A damaged length must not be read as the size of a buffer.
            let mut header = Vec::new();
            file.take(length.min(size)).read_to_end(&mut header)?;
            Ok((serde_json::from_slice(&header)?, length.saturating_add(8), size))
        };
        let (found, start, size) = read().map_err(|error| format!("it is damaged ({error})"))?;
        // Files of earlier versions do not name their run.
        let named = found.contains_key(METADATA);
        let differs = |(name, entry): (&String, &Value)| {
            found.get(name) != Some(entry) && (named || name != METADATA)
        };
        if let Some((name, _)) = self.tensors.iter().find(|entry| differs(*entry)) {
            return Err(format!("its thoughts are not those of the recorded samples ({name})"));
        }
        let ends = found.values().filter_map(|entry| entry["data_offsets"][1].as_u64());
        match ends.max().unwrap_or(0).checked_add(start) {
            Some(end) if end == size => Ok(start),
            _ => Err("it is cut short".into()),
        }
    }
}

fn sample_bytes(sample: &Sample, width: usize) -> u64 {
    let all = sample.trajectories.iter().chain(&sample.greedy);
    thought_bytes(all.map(|t| u64::from(t.latent_steps)).sum(), width)
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
            index: k as u32,
            latent_steps: thoughts,
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
        let count: u32 =
            sample.trajectories.iter().chain(&sample.greedy).map(|t| t.latent_steps).sum();
        (0..count as usize * WIDTH).map(|i| (sample.id * 100) as f32 + i as f32).collect()
    }

    #[test]
    fn an_interrupted_run_resumes_to_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = Manifest { questions: 2, seeds: vec![7], ..Manifest::default() };
        let greedy = Some(TrajectoryRecord { latent_steps: 1, ..TrajectoryRecord::default() });
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
        assert!(error.to_string().contains("thoughts of recorded samples are missing"), "{error}");
    }

    /// A finished run of two samples.
    fn finished(dir: &Path) -> (Manifest, [Sample; 2]) {
        let manifest = Manifest { questions: 2, seeds: vec![7], ..Manifest::default() };
        let samples = [sample(0, &[2, 2]), sample(1, &[1, 0, 2])];
        let mut writer = RunDir::create(dir, &manifest).unwrap();
        let mut latents = LatentsWriter::open(dir, WIDTH).unwrap();
        for sample in &samples {
            latents.append(sample, [&thoughts(sample)[..]]).unwrap();
            writer.append(sample).unwrap();
        }
        writer.finish().unwrap();
        latents.finish().unwrap();
        (manifest, samples)
    }

    #[test]
    fn a_run_that_ended_before_the_final_name_is_finished_from_the_part() {
        let dir = tempfile::tempdir().unwrap();
        finished(dir.path());
        let (part, done) = (dir.path().join(PART_FILE), dir.path().join(LATENTS_FILE));
        let bytes = fs::read(&done).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for with_final in [false, true] {
            fs::write(&part, &bytes[header..]).unwrap();
            if !with_final {
                fs::remove_file(&done).unwrap();
            }
            LatentsWriter::open(dir.path(), WIDTH).unwrap().finish().unwrap();
            assert_eq!(fs::read(&done).unwrap(), bytes);
            assert!(!part.exists());
        }
        fs::remove_file(&done).unwrap();
        let error = LatentsWriter::open(dir.path(), WIDTH).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }

    #[test]
    fn a_finished_file_continues_after_lost_samples_and_must_fit_them() {
        let dir = tempfile::tempdir().unwrap();
        let (manifest, samples) = finished(dir.path());
        let done = dir.path().join(LATENTS_FILE);
        let bytes = fs::read(&done).unwrap();
        let lines = dir.path().join("samples.jsonl");
        let text = fs::read_to_string(&lines).unwrap();
        fs::write(&lines, text.split_inclusive('\n').next().unwrap()).unwrap();
        let mut writer = RunDir::resume(dir.path(), &manifest).unwrap();
        let mut latents = LatentsWriter::open(dir.path(), WIDTH).unwrap();
        latents.append(&samples[1], [&thoughts(&samples[1])[..]]).unwrap();
        writer.append(&samples[1]).unwrap();
        latents.finish().unwrap();
        assert_eq!(fs::read(&done).unwrap(), bytes);

        for damaged in [&bytes[..bytes.len() - 4], &bytes[..20], b"", &[255; 64]] {
            fs::write(&done, damaged).unwrap();
            let error = LatentsWriter::open(dir.path(), WIDTH).unwrap_err();
            assert!(matches!(error, RecordError::Latents { .. }), "{error}");
        }
        fs::write(&done, &bytes).unwrap();
        assert!(LatentsWriter::open(dir.path(), WIDTH + 1).is_err());
    }

    #[test]
    fn thoughts_in_progress_are_not_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        assert!(LatentsWriter::check_none(dir.path()).is_ok());
        fs::write(dir.path().join(PART_FILE), b"").unwrap();
        let error = LatentsWriter::check_none(dir.path()).unwrap_err();
        assert!(error.to_string().contains("keeps its thoughts"), "{error}");
    }
}
