//! The thoughts of a run in `latents.safetensors`: one f32 tensor per question and seed.
//!
//! While the run is in progress, the values are appended to `latents.part` in the order of
//! `samples.jsonl`, those of each question before its line, followed by their CRC-32. Their number
//! follows from the lines, so a resumed run truncates excess values and continues. At the end the
//! header and the values are written to a temporary file, which is then renamed. A run that was
//! interrupted before the rename is finished from the part; a run without any stored thoughts is
//! rejected.
//!
//! The header's metadata contain the digest of the run and the CRC-32 of every tensor, under the
//! key `crc32:` followed by its name. Every value is finite. Every reader checks both.
//!
//! Tensor `SEED.ID` is `[trajectories, thoughts, width]`, or `[sum of thoughts, width]` if the
//! trajectories differ in length; `SEED.ID.greedy` is `[thoughts, width]` of the unperturbed
//! trajectory.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::RecordError;
use crate::files::{self, Checksum};
use crate::run_dir::RunDir;
use crate::sample::Sample;

/// The file with the thoughts of a run.
pub const LATENTS_FILE: &str = "latents.safetensors";
pub(crate) const PART_FILE: &str = "latents.part";
/// The key of the header's metadata: `run`, the digest of the run, and the tensors' checksums.
const METADATA: &str = "__metadata__";
/// Suffix of a sample's name for its greedy trajectory.
const GREEDY: &str = ".greedy";
/// Prefix of a tensor's name for the key of its checksum.
const CHECKSUM: &str = "crc32:";
/// Bytes that are read at a time; a multiple of the size of a value.
const BUFFER: usize = 1 << 16;
/// Size of the checksum after each sample in the part.
const TRAILER: u64 = size_of::<u32>() as u64;

/// Appends the thoughts of a run in progress.
#[derive(Debug)]
pub struct LatentsWriter {
    dir: PathBuf,
    /// `None` once [`LATENTS_FILE`] contains the thoughts of the complete run.
    part: Option<File>,
    width: usize,
    length: u64,
}

impl LatentsWriter {
    /// Opens the thoughts of the run in `dir`: those of the samples already recorded must be
    /// present, in the part file or in the final one, and excess values are truncated. Every
    /// thought has `width` elements.
    pub fn open(dir: &Path, width: usize) -> Result<Self, RecordError> {
        let run = RunDir::open(dir)?;
        let layout = LatentsLayout::of(&run, width)?;
        let path = dir.join(PART_FILE);
        let done = dir.join(LATENTS_FILE);
        let mut writer = Self { dir: dir.into(), part: None, width, length: layout.length };
        let damaged = |path: &Path| {
            let path = path.to_owned();
            move |why| RecordError::Latents { path, why }
        };
        if done.exists() {
            let values_start = layout.check_file(&done).map_err(damaged(&done))?;
            if layout.samples == run.manifest().sample_count() {
                // A leftover of a process that exited before it could remove it.
                crate::run_dir::remove_if_exists(&path)?;
                return Ok(writer);
            }
            // Samples were lost after the run was complete: it continues from the thoughts of the
            // remaining ones.
            let restored = files::replace(&path, |out| {
                let mut values = files::open_regular(&done)?;
                values.seek(SeekFrom::Start(values_start))?;
                layout.write_part(BufReader::new(values), out)
            });
            restored.map_err(|source| RecordError::Write { path: path.clone(), source })?;
        }
        if fs::metadata(&path).map_or(0, |found| found.len()) < layout.part_length() {
            let why = "the thoughts of recorded samples are missing".to_owned();
            return Err(RecordError::Latents { path: done, why });
        }
        let cut = files::open_append(&path)
            .and_then(|part| part.set_len(layout.part_length()).map(|()| part));
        writer.part =
            Some(cut.map_err(|source| RecordError::Write { path: path.clone(), source })?);
        if layout.samples > 0 {
            let checked = files::open_regular(&path)
                .and_then(|part| layout.copy_part(BufReader::new(part), &mut io::sink()));
            checked.map_err(|error| damaged(&path)(format!("the file is damaged ({error})")))?;
        }
        Ok(writer)
    }

    /// Fails if the run in `dir` records thoughts and has not finished: without a writer the
    /// thoughts of its other samples would be lost.
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
        let mut bytes: Vec<u8> =
            thoughts.into_iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
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
        if !is_finite(&bytes) {
            let field = format!("thoughts of question {}", sample.id);
            let why = "are not finite";
            return Err(RecordError::InvalidRecord { path: path(), field, why });
        }
        let mut checksum = Checksum::new();
        checksum.update(&bytes);
        bytes.extend(checksum.finalize().to_le_bytes());
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
        let mut layout = LatentsLayout::of(&RunDir::open(&self.dir)?, self.width)?;
        let part = self.dir.join(PART_FILE);
        let done = self.dir.join(LATENTS_FILE);
        let values = || files::open_regular(&part).map(BufReader::new);
        let written = values()
            .and_then(|values| layout.copy_part(values, &mut io::sink()))
            .and_then(|checksums| {
                layout.add_checksums(checksums);
                let header = layout.header();
                files::replace(&done, |out| {
                    out.write_all(&(header.len() as u64).to_le_bytes())?;
                    out.write_all(&header)?;
                    layout.copy_part(values()?, out).map(drop)
                })
            });
        let written = written.and_then(|()| fs::remove_file(&part));
        written.map_err(|source| RecordError::Write { path: done, source })
    }
}

/// Compares every tensor of a finished file with its checksum, and checks that it is finite.
///
/// # Errors
///
/// A description of the problem with the file.
pub fn verify_latents(path: &Path) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("the file is damaged ({error})");
    let (header, start) = read_header(path).map_err(unreadable)?;
    let mut file = BufReader::new(files::open_regular(path).map_err(unreadable)?);
    for (name, entry) in header.iter().filter(|(name, _)| *name != METADATA) {
        let stored = header.get(METADATA).and_then(|all| all[format!("{CHECKSUM}{name}")].as_str());
        let stored = stored.ok_or_else(|| format!("tensor {name} has no checksum"))?;
        let offset = |i: usize| entry["data_offsets"][i].as_u64();
        let (Some(from), Some(to)) = (offset(0), offset(1)) else {
            return Err(format!("tensor {name} is outside the file"));
        };
        let length = to.checked_sub(from).ok_or_else(|| format!("tensor {name} has no length"))?;
        let read = file
            .seek(SeekFrom::Start(start.saturating_add(from)))
            .and_then(|_| copy_tensor(&mut file, length, &mut io::sink(), &mut Checksum::new()));
        if hex(read.map_err(|error| format!("tensor {name}: {error}"))?) != stored {
            return Err(format!("tensor {name} does not match its checksum"));
        }
    }
    Ok(())
}

/// The header of a finished file, and the offset of its values.
fn read_header(path: &Path) -> io::Result<(Map<String, Value>, u64)> {
    let mut file = files::open_regular(path)?;
    let size = file.metadata()?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    // A damaged length must not be used as the size of a buffer.
    let mut header = Vec::new();
    file.take(length.min(size)).read_to_end(&mut header)?;
    Ok((serde_json::from_slice(&header)?, length.saturating_add(8)))
}

/// Copies the values of a tensor, adds them to the checksum of their sample, and returns the
/// tensor's checksum.
fn copy_tensor(
    values: &mut impl Read,
    mut length: u64,
    out: &mut impl Write,
    sample: &mut Checksum,
) -> io::Result<u32> {
    let mut checksum = Checksum::new();
    let mut buffer = [0; BUFFER];
    while length > 0 {
        let size = length.min(BUFFER as u64) as usize;
        let chunk = &mut buffer[..size];
        values.read_exact(chunk)?;
        if !is_finite(chunk) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a value is not finite"));
        }
        checksum.update(chunk);
        sample.update(chunk);
        out.write_all(chunk)?;
        length -= size as u64;
    }
    Ok(checksum.finalize())
}

fn is_finite(values: &[u8]) -> bool {
    values.as_chunks::<4>().0.iter().all(|value| f32::from_le_bytes(*value).is_finite())
}

fn hex(checksum: u32) -> String {
    format!("{checksum:08x}")
}

/// A tensor, in the order of the values.
struct TensorSpan {
    name: String,
    bytes: u64,
    /// Whether it is the last of its sample, which is followed by the sample's checksum in the
    /// part.
    ends_sample: bool,
}

/// The header of a run's thoughts, which follows from the recorded samples.
struct LatentsLayout {
    /// Entry by tensor name.
    tensors: Map<String, Value>,
    spans: Vec<TensorSpan>,
    samples: usize,
    /// Total size of the values in bytes.
    length: u64,
}

impl LatentsLayout {
    fn of(run: &RunDir, width: usize) -> Result<Self, RecordError> {
        let run_digest = crate::manifest::digest(run.manifest()).finish();
        let tensors = Map::from_iter([(METADATA.to_owned(), json!({ "run": run_digest }))]);
        let mut layout = Self { tensors, spans: Vec::new(), samples: 0, length: 0 };
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
            let bytes = thought_bytes(thoughts, width);
            let end = self.length + bytes;
            let offsets = [self.length, end];
            let ends_sample = sample.greedy.is_none() || name.ends_with(GREEDY);
            self.spans.push(TensorSpan { name: name.clone(), bytes, ends_sample });
            self.tensors
                .insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets }));
            self.length = end;
        };
        add(name.clone(), shape, counts.iter().map(|&count| u64::from(count)).sum());
        if let Some(greedy) = &sample.greedy {
            let shape = json!([greedy.latent_steps, width]);
            add(format!("{name}{GREEDY}"), shape, u64::from(greedy.latent_steps));
        }
        self.samples += 1;
    }

    /// Size of the part in bytes: the values, and a checksum after each sample.
    fn part_length(&self) -> u64 {
        self.length + self.samples as u64 * TRAILER
    }

    /// Copies the values of a part without the checksums of the samples, which are verified;
    /// returns those of the tensors.
    fn copy_part(&self, mut part: impl Read, out: &mut impl Write) -> io::Result<Vec<u32>> {
        let mut checksums = Vec::new();
        let mut sample = Checksum::new();
        for span in &self.spans {
            checksums.push(copy_tensor(&mut part, span.bytes, out, &mut sample)?);
            if !span.ends_sample {
                continue;
            }
            let mut stored = [0; TRAILER as usize];
            part.read_exact(&mut stored)?;
            if std::mem::take(&mut sample).finalize() != u32::from_le_bytes(stored) {
                let why = format!("{} does not match its checksum", span.name);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        Ok(checksums)
    }

    /// Writes a part from the values of a finished file.
    fn write_part(&self, mut values: impl Read, out: &mut impl Write) -> io::Result<()> {
        let mut sample = Checksum::new();
        for span in &self.spans {
            copy_tensor(&mut values, span.bytes, out, &mut sample)?;
            if span.ends_sample {
                out.write_all(&std::mem::take(&mut sample).finalize().to_le_bytes())?;
            }
        }
        Ok(())
    }

    fn add_checksums(&mut self, checksums: Vec<u32>) {
        let keys = self.spans.iter().map(|span| format!("{CHECKSUM}{}", span.name));
        let entries = keys.zip(checksums.into_iter().map(|checksum| json!(hex(checksum))));
        if let Some(Value::Object(metadata)) = self.tensors.get_mut(METADATA) {
            metadata.extend(entries);
        }
    }

    /// The safetensors header: names, shapes and offsets, padded to eight bytes.
    fn header(&self) -> Vec<u8> {
        let mut header = serde_json::to_vec(&self.tensors).unwrap_or_default();
        header.resize(header.len().next_multiple_of(8), b' ');
        header
    }

    /// Checks that a finished file starts with these thoughts and that its values match their
    /// checksums; returns the offset of the values.
    fn check_file(&self, path: &Path) -> Result<u64, String> {
        let damaged = |error: io::Error| format!("the file is damaged ({error})");
        let (found, start) = read_header(path).map_err(damaged)?;
        let size = fs::metadata(path).map_err(damaged)?.len();
        let differs = |(name, entry): &(&String, &Value)| match name.as_str() {
            METADATA => found.get(METADATA).map(|stored| &stored["run"]) != Some(&entry["run"]),
            name => found.get(name) != Some(*entry),
        };
        if let Some((name, _)) = self.tensors.iter().find(differs) {
            return Err(format!("its thoughts do not match the recorded samples ({name})"));
        }
        let ends = found.values().filter_map(|entry| entry["data_offsets"][1].as_u64());
        match ends.max().unwrap_or(0).checked_add(start) {
            Some(end) if end == size => verify_latents(path).map(|()| start),
            _ => Err("the file is truncated".into()),
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
        let part = dir.path().join(PART_FILE);
        let done = dir.path().join(LATENTS_FILE);
        let bytes = fs::read(&done).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let part_of = |values: &[u8]| {
            let checksum = |sample: &[u8]| {
                let mut checksum = Checksum::new();
                checksum.update(sample);
                [sample, &checksum.finalize().to_le_bytes()].concat()
            };
            let (first, second) = values.split_at(48);
            [checksum(first), checksum(second)].concat()
        };
        for with_final in [false, true] {
            fs::write(&part, part_of(&bytes[header..])).unwrap();
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
    fn any_changed_byte_of_the_values_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        finished(dir.path());
        let done = dir.path().join(LATENTS_FILE);
        let bytes = fs::read(&done).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        verify_latents(&done).unwrap();
        for at in header..bytes.len() {
            for bit in [0, 7] {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                fs::write(&done, damaged).unwrap();
                assert!(verify_latents(&done).is_err(), "byte {at}, bit {bit}");
                let error = LatentsWriter::open(dir.path(), WIDTH).unwrap_err();
                assert!(matches!(error, RecordError::Latents { .. }), "{error}");
            }
        }
        for value in [f32::INFINITY, f32::NAN] {
            let mut damaged = bytes.clone();
            damaged[header..header + 4].copy_from_slice(&value.to_le_bytes());
            fs::write(&done, damaged).unwrap();
            assert!(verify_latents(&done).unwrap_err().contains("not finite"));
        }
        // Without checksums, as if rewritten by another tool.
        let text = String::from_utf8(bytes[8..header].to_vec()).unwrap();
        let length = &bytes[..8];
        let without = text.replace(CHECKSUM, "other:");
        fs::write(&done, [length, without.as_bytes(), &bytes[header..]].concat()).unwrap();
        assert!(verify_latents(&done).unwrap_err().contains("no checksum"));
    }

    #[test]
    fn a_damaged_part_is_not_continued() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = Manifest { questions: 2, seeds: vec![7], ..Manifest::default() };
        let first = sample(0, &[2, 2]);
        let mut writer = RunDir::create(dir.path(), &manifest).unwrap();
        let mut latents = LatentsWriter::open(dir.path(), WIDTH).unwrap();
        latents.append(&first, [&thoughts(&first)[..]]).unwrap();
        writer.append(&first).unwrap();
        let second = sample(1, &[1]);
        let error = latents.append(&second, [&[0.0, f32::NAN, 0.0][..]]).unwrap_err();
        assert!(error.to_string().contains("not finite"), "{error}");
        drop((writer, latents));
        let part = dir.path().join(PART_FILE);
        let bytes = fs::read(&part).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(&part, damaged).unwrap();
            let error = LatentsWriter::open(dir.path(), WIDTH).unwrap_err();
            assert!(matches!(error, RecordError::Latents { .. }), "byte {at}: {error}");
        }
        fs::write(&part, bytes).unwrap();
        LatentsWriter::open(dir.path(), WIDTH).unwrap();
    }

    #[test]
    fn thoughts_in_progress_are_not_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        assert!(LatentsWriter::check_none(dir.path()).is_ok());
        fs::write(dir.path().join(PART_FILE), b"").unwrap();
        let error = LatentsWriter::check_none(dir.path()).unwrap_err();
        assert!(error.to_string().contains("records its thoughts"), "{error}");
    }
}
