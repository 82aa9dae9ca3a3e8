//! Reads annotations. Thoughts stay in memory-mapped files until they are used; everything else is
//! small and read at once.

use std::ops::Range;
use std::path::Path;

use half::bf16;
use memmap2::Mmap;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::error::AnnotationError;
use super::index::{AnnotationIndex, ThoughtsDtype, shard_files};
use super::ragged::RaggedArray;
use super::shard::AnnotationCounts;

/// A complete directory of annotations.
#[derive(Debug)]
pub struct Annotations {
    index: AnnotationIndex,
    shards: Vec<MappedShard>,
    ends: Vec<usize>, // per shard: cumulative number of problems
}

impl Annotations {
    /// Opens a directory, and checks that all shards exist and are valid.
    pub fn open(dir: &Path) -> Result<Self, AnnotationError> {
        let index = AnnotationIndex::read(dir)?;
        let shards = shard_files(dir, &index)?
            .iter()
            .enumerate()
            .map(|(shard, path)| MappedShard::open(path, &index, shard))
            .collect::<Result<Vec<_>, _>>()?;
        let mut sum = 0;
        let ends = shards.iter().map(|shard| {
            sum += shard.ids.len();
            sum
        });
        Ok(Self { ends: ends.collect(), index, shards })
    }

    /// The index: settings and shapes.
    pub fn index(&self) -> &AnnotationIndex {
        &self.index
    }

    /// Problems with both correct and wrong trajectories.
    pub fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there is no such problem.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts over all shards.
    pub fn counts(&self) -> AnnotationCounts {
        self.shards.iter().fold(AnnotationCounts::default(), |sum, shard| AnnotationCounts {
            questions: sum.questions + shard.counts.questions,
            all_right: sum.all_right + shard.counts.all_right,
            all_wrong: sum.all_wrong + shard.counts.all_wrong,
            rollouts: sum.rollouts + shard.counts.rollouts,
        })
    }

    /// Problem `index`; `None` if out of range.
    pub fn get(&self, index: usize) -> Option<AnnotatedProblem<'_>> {
        let shard = self.ends.partition_point(|&end| end <= index);
        let before = if shard == 0 { 0 } else { self.ends[shard - 1] };
        Some(AnnotatedProblem {
            shard: self.shards.get(shard)?,
            at: index - before,
            trajectories: self.index.trajectories,
        })
    }

    /// All problems, in the order of the data.
    pub fn problems(&self) -> impl ExactSizeIterator<Item = AnnotatedProblem<'_>> {
        (0..self.len())
            .map(|i| self.get(i).unwrap_or_else(|| unreachable!("problem {i} of {}", self.len())))
    }
}

/// A problem with both correct and wrong trajectories.
#[derive(Debug, Clone, Copy)]
pub struct AnnotatedProblem<'a> {
    shard: &'a MappedShard,
    at: usize,
    trajectories: usize,
}

impl<'a> AnnotatedProblem<'a> {
    /// Index of the question in the data.
    pub fn id(&self) -> u32 {
        self.shard.ids[self.at]
    }

    /// Prompt tokens.
    pub fn prompt(&self) -> &'a [u32] {
        self.shard.prompts.get(self.at)
    }

    /// Results of the worked steps; empty if the data has none.
    pub fn steps(&self) -> &'a [i64] {
        self.shard.steps.get(self.at)
    }

    /// Its trajectories, in order.
    pub fn trajectories(&self) -> impl ExactSizeIterator<Item = AnnotatedTrajectory<'a>> + use<'a> {
        let shard = self.shard;
        let first = self.at * self.trajectories;
        (first..first + self.trajectories).map(move |at| AnnotatedTrajectory { shard, at })
    }
}

/// A trajectory and its labels.
#[derive(Debug, Clone, Copy)]
pub struct AnnotatedTrajectory<'a> {
    shard: &'a MappedShard,
    at: usize,
}

impl<'a> AnnotatedTrajectory<'a> {
    /// A label in 0..=1 per thought.
    pub fn labels(&self) -> &'a [f32] {
        self.shard.labels.get(self.at)
    }

    /// Whether its answer is correct.
    pub fn correct(&self) -> bool {
        self.shard.correct[self.at] == 1
    }

    /// Answer tokens.
    pub fn answer(&self) -> &'a [u32] {
        self.shard.answers.get(self.at)
    }

    /// Its thoughts, row-major: (thoughts, width).
    pub fn thoughts(&self) -> Vec<f32> {
        self.shard.thoughts(self.shard.labels.range(self.at))
    }
}

/// A memory-mapped shard, from which only the thoughts are read later.
#[derive(Debug)]
struct MappedShard {
    bytes: Mmap,
    thoughts: Range<usize>, // bytes of the file
    dtype: ThoughtsDtype,
    width: usize,
    counts: AnnotationCounts,
    ids: Vec<u32>,
    prompts: RaggedArray<u32>,
    steps: RaggedArray<i64>,
    answers: RaggedArray<u32>,
    labels: RaggedArray<f32>,
    correct: Vec<u8>,
}

impl MappedShard {
    fn open(path: &Path, index: &AnnotationIndex, shard: usize) -> Result<Self, AnnotationError> {
        let unreadable = |source| AnnotationError::Read { path: path.into(), source };
        let file = record::files::open_regular(path).map_err(unreadable)?;
        // SAFETY: the map is read-only and private to this struct. As with every memory-mapped
        // file, no other process may truncate it meanwhile. A concurrent write can change a number
        // but cannot produce an invalid value, because numbers are decoded from copied bytes.
        let bytes = unsafe { Mmap::map(&file) }.map_err(unreadable)?;
        Self::parse(bytes, index, shard)
            .map_err(|why| AnnotationError::BadShard { path: path.into(), why })
    }

    fn parse(bytes: Mmap, index: &AnnotationIndex, shard: usize) -> Result<Self, String> {
        let header = ShardHeader::parse(&bytes)?;
        header.check_digest(index, shard)?;
        let ids = header.list("ids", Dtype::U32, u32::from_le_bytes)?;
        let problems = vec![ids.len()];
        let trajectories = vec![ids.len(), index.trajectories];
        let ends =
            |name, shape: &[usize]| header.shaped(name, Dtype::U64, shape, u64::from_le_bytes);
        let labels = RaggedArray::read(
            "labels",
            header.list("labels", Dtype::F32, f32::from_le_bytes)?,
            ends("thought_ends", &trajectories)?,
        )?;
        if let Some(label) = labels.values.iter().find(|label| !(0.0..=1.0).contains(*label)) {
            return Err(format!("`labels` contains {label}, expected 0 to 1"));
        }
        let thoughts = header.byte_range(
            "thoughts",
            index.dtype.safetensors(),
            Some(&[labels.values.len(), index.width]),
        )?;
        let correct = header.shaped("correct", Dtype::U8, &trajectories, |[x]: [u8; 1]| x)?;
        if let Some(other) = correct.iter().find(|c| **c > 1) {
            return Err(format!("`correct` contains {other}, expected 0 or 1"));
        }
        let counts = header.shaped("counts", Dtype::U64, &[4], u64::from_le_bytes)?;
        let questions = index.questions_of(shard).len() as u64;
        if counts[0] != questions {
            return Err(format!("it has {} questions, expected {questions}", counts[0]));
        }
        let prompts = header.list("prompts", Dtype::U32, u32::from_le_bytes)?;
        let steps = header.list("steps", Dtype::I64, i64::from_le_bytes)?;
        let answers = header.list("answers", Dtype::U32, u32::from_le_bytes)?;
        Ok(Self {
            prompts: RaggedArray::read("prompts", prompts, ends("prompt_ends", &problems)?)?,
            steps: RaggedArray::read("steps", steps, ends("step_ends", &problems)?)?,
            answers: RaggedArray::read("answers", answers, ends("answer_ends", &trajectories)?)?,
            counts: AnnotationCounts {
                questions: counts[0],
                all_right: counts[1],
                all_wrong: counts[2],
                rollouts: counts[3],
            },
            width: index.width,
            dtype: index.dtype,
            thoughts,
            ids,
            labels,
            correct,
            bytes,
        })
    }

    /// Rows of the shard's thoughts, row-major: (rows, width).
    fn thoughts(&self, rows: Range<usize>) -> Vec<f32> {
        let size = match self.dtype {
            ThoughtsDtype::F32 => size_of::<f32>(),
            ThoughtsDtype::Bf16 => size_of::<bf16>(),
        };
        let row = self.width * size;
        let bytes = &self.bytes[self.thoughts.clone()][rows.start * row..rows.end * row];
        match self.dtype {
            ThoughtsDtype::F32 => numbers(bytes, f32::from_le_bytes),
            ThoughtsDtype::Bf16 => numbers(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        }
    }
}

/// The header of a safetensors file.
struct ShardHeader<'a> {
    bytes: &'a [u8],
    start: usize,
    metadata: Metadata,
}

impl<'a> ShardHeader<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let short = || "the file is truncated".to_owned();
        let (size, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
        let size = usize::try_from(u64::from_le_bytes(*size)).map_err(|_| short())?;
        let header = rest.get(..size).ok_or_else(short)?;
        // Parsing checks that tensors are contiguous and have the sizes of their shapes.
        let metadata: Metadata =
            serde_json::from_slice(header).map_err(|e| format!("not a safetensors file: {e}"))?;
        let start = 8 + size;
        match start.checked_add(metadata.data_len()) {
            Some(end) if end == bytes.len() => Ok(Self { bytes, start, metadata }),
            _ => Err(format!(
                "the size is {} bytes, the header says {}",
                bytes.len() - start,
                metadata.data_len()
            )),
        }
    }

    /// Checks that the file is an unmodified shard of this index and number. Files of earlier
    /// versions have no digest.
    fn check_digest(&self, index: &AnnotationIndex, shard: usize) -> Result<(), String> {
        let found = self.metadata.metadata().as_ref().and_then(|entries| entries.get(DIGEST));
        let Some(found) = found else { return Ok(()) };
        let header = String::from_utf8_lossy(&self.bytes[8..self.start]);
        let unsigned = header.replacen(&signature(found), "", 1);
        let data = &self.bytes[self.start..];
        match index.shard_digest(shard, unsigned.trim_end().as_bytes(), data)? == *found {
            true => Ok(()),
            false => Err("it is corrupt, or a shard of another annotation or number".into()),
        }
    }

    /// The bytes of a tensor, checked for dtype and shape. A shape of `None` is one dimension of
    /// any length.
    fn byte_range(
        &self,
        name: &str,
        dtype: Dtype,
        shape: Option<&[usize]>,
    ) -> Result<Range<usize>, String> {
        let info = self.metadata.info(name).ok_or_else(|| format!("tensor `{name}` is missing"))?;
        let fits = shape.map_or(info.shape.len() == 1, |shape| info.shape == shape);
        if info.dtype != dtype || !fits {
            let wanted = shape.map_or_else(|| "a list".to_owned(), |shape| format!("{shape:?}"));
            return Err(format!(
                "`{name}` is {} {:?}, expected {dtype} {wanted}",
                info.dtype, info.shape
            ));
        }
        Ok(self.start + info.data_offsets.0..self.start + info.data_offsets.1)
    }

    fn list<T, const B: usize>(
        &self,
        name: &str,
        dtype: Dtype,
        from_bytes: impl Fn([u8; B]) -> T,
    ) -> Result<Vec<T>, String> {
        Ok(numbers(&self.bytes[self.byte_range(name, dtype, None)?], from_bytes))
    }

    fn shaped<T, const B: usize>(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        from_bytes: impl Fn([u8; B]) -> T,
    ) -> Result<Vec<T>, String> {
        Ok(numbers(&self.bytes[self.byte_range(name, dtype, Some(shape))?], from_bytes))
    }
}

/// Checks that a file is a shard of an annotation.
pub(super) fn check_shard(
    path: &Path,
    index: &AnnotationIndex,
    shard: usize,
) -> Result<(), AnnotationError> {
    MappedShard::open(path, index, shard).map(drop)
}

/// The key of a shard's digest in its header's metadata.
const DIGEST: &str = "digest";

/// The digest's metadata entry, at the beginning of a header.
fn signature(digest: &str) -> String {
    format!("\"__metadata__\":{{\"{DIGEST}\":\"{digest}\"}},")
}

/// Adds the digest of a shard to the header of its bytes.
pub(super) fn sign_shard(
    index: &AnnotationIndex,
    shard: usize,
    bytes: &[u8],
) -> Result<Vec<u8>, String> {
    let ShardHeader { start, .. } = ShardHeader::parse(bytes)?;
    let header = String::from_utf8_lossy(&bytes[8..start]);
    let header = header.trim_end();
    let data = &bytes[start..];
    let digest = index.shard_digest(shard, header.as_bytes(), data)?;
    let mut signed = header.replacen('{', &format!("{{{}", signature(&digest)), 1).into_bytes();
    signed.resize(signed.len().next_multiple_of(8), b' ');
    Ok([&(signed.len() as u64).to_le_bytes()[..], &signed, data].concat())
}

fn numbers<T, const B: usize>(bytes: &[u8], from_bytes: impl Fn([u8; B]) -> T) -> Vec<T> {
    bytes.as_chunks::<B>().0.iter().map(|chunk| from_bytes(*chunk)).collect()
}
