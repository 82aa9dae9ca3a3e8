//! Annotations, read: thoughts stay in mapped files until they are asked for, everything else is
//! small and kept.

use std::fs::File;
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

/// A finished directory of annotations.
#[derive(Debug)]
pub struct Annotations {
    index: AnnotationIndex,
    shards: Vec<MappedShard>,
    ends: Vec<usize>, // per shard: where its problems end among all
}

impl Annotations {
    /// Opens a directory whose shards are all there, and checks them.
    pub fn open(dir: &Path) -> Result<Self, AnnotationError> {
        let index = AnnotationIndex::read(dir)?;
        let shards = shard_files(dir, &index)?
            .iter()
            .map(|path| MappedShard::open(path, &index))
            .collect::<Result<Vec<_>, _>>()?;
        let mut sum = 0;
        let ends = shards.iter().map(|shard| {
            sum += shard.ids.len();
            sum
        });
        Ok(Self { ends: ends.collect(), index, shards })
    }

    /// How they were made.
    pub fn index(&self) -> &AnnotationIndex {
        &self.index
    }

    /// How many problems were kept.
    pub fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What became of all questions.
    pub fn counts(&self) -> AnnotationCounts {
        self.shards.iter().fold(AnnotationCounts::default(), |sum, shard| AnnotationCounts {
            questions: sum.questions + shard.counts.questions,
            all_right: sum.all_right + shard.counts.all_right,
            all_wrong: sum.all_wrong + shard.counts.all_wrong,
            rollouts: sum.rollouts + shard.counts.rollouts,
        })
    }

    /// A problem by its place among those that were kept, if it is one.
    pub fn get(&self, problem: usize) -> Option<AnnotatedProblem<'_>> {
        let shard = self.ends.partition_point(|&end| end <= problem);
        let before = if shard == 0 { 0 } else { self.ends[shard - 1] };
        Some(AnnotatedProblem {
            shard: self.shards.get(shard)?,
            at: problem - before,
            trajectories: self.index.trajectories,
        })
    }

    /// All problems, in the order of the data.
    pub fn problems(&self) -> impl ExactSizeIterator<Item = AnnotatedProblem<'_>> {
        (0..self.len())
            .map(|i| self.get(i).unwrap_or_else(|| unreachable!("problem {i} of {}", self.len())))
    }
}

/// A problem some of whose trajectories are right.
#[derive(Debug, Clone, Copy)]
pub struct AnnotatedProblem<'a> {
    shard: &'a MappedShard,
    at: usize,
    trajectories: usize,
}

impl<'a> AnnotatedProblem<'a> {
    /// The question's place in the data.
    pub fn id(&self) -> u32 {
        self.shard.ids[self.at]
    }

    /// The tokens that the reasoner saw.
    pub fn prompt(&self) -> &'a [u32] {
        self.shard.prompts.get(self.at)
    }

    /// Results of the worked steps; empty where the data has none.
    pub fn steps(&self) -> &'a [i64] {
        self.shard.steps.get(self.at)
    }

    /// Its trajectories, in their order.
    pub fn trajectories(&self) -> impl ExactSizeIterator<Item = AnnotatedTrajectory<'a>> + use<'a> {
        let (shard, first) = (self.shard, self.at * self.trajectories);
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
    /// Each thought's label.
    pub fn labels(&self) -> &'a [f32] {
        self.shard.labels.get(self.at)
    }

    /// Whether its own answer is right.
    pub fn correct(&self) -> bool {
        self.shard.correct[self.at] == 1
    }

    /// The tokens of its answer.
    pub fn answer(&self) -> &'a [u32] {
        self.shard.answers.get(self.at)
    }

    /// Its thoughts, one after the other: (thoughts, width).
    pub fn thoughts(&self) -> Vec<f32> {
        self.shard.thoughts(self.shard.labels.range(self.at))
    }
}

/// A shard: its small lists, and where its thoughts are.
#[derive(Debug)]
struct MappedShard {
    bytes: Mmap,
    thoughts: Range<usize>, // of the file's bytes
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
    fn open(path: &Path, index: &AnnotationIndex) -> Result<Self, AnnotationError> {
        let unreadable = |source| AnnotationError::Read { path: path.into(), source };
        let file = File::open(path).map_err(unreadable)?;
        // SAFETY: the map is read-only and private to this struct. Like every reader of mapped
        // files this trusts that nobody truncates the file meanwhile; a changed byte gives
        // a wrong number, since values are copied out byte by byte.
        let bytes = unsafe { Mmap::map(&file) }.map_err(unreadable)?;
        Self::parse(bytes, index)
            .map_err(|why| AnnotationError::BadShard { path: path.into(), why })
    }

    fn parse(bytes: Mmap, index: &AnnotationIndex) -> Result<Self, String> {
        let header = ShardHeader::parse(&bytes)?;
        let ids = header.list("ids", Dtype::U32, u32::from_le_bytes)?;
        let (problems, each) = (vec![ids.len()], vec![ids.len(), index.trajectories]);
        let ends =
            |name, shape: &[usize]| header.shaped(name, Dtype::U64, shape, u64::from_le_bytes);
        let labels = RaggedArray::read(
            "labels",
            header.list("labels", Dtype::F32, f32::from_le_bytes)?,
            ends("thought_ends", &each)?,
        )?;
        if let Some(label) = labels.values.iter().find(|label| !(0.0..=1.0).contains(*label)) {
            return Err(format!("`labels` holds {label}, which is no share"));
        }
        let thoughts = header.byte_range(
            "thoughts",
            index.dtype.safetensors(),
            Some(&[labels.values.len(), index.width]),
        )?;
        let correct = header.shaped("correct", Dtype::U8, &each, |[x]: [u8; 1]| x)?;
        if let Some(other) = correct.iter().find(|c| **c > 1) {
            return Err(format!("`correct` holds {other}, which is neither 0 nor 1"));
        }
        let counts = header.shaped("counts", Dtype::U64, &[4], u64::from_le_bytes)?;
        let prompts = header.list("prompts", Dtype::U32, u32::from_le_bytes)?;
        let steps = header.list("steps", Dtype::I64, i64::from_le_bytes)?;
        let answers = header.list("answers", Dtype::U32, u32::from_le_bytes)?;
        Ok(Self {
            prompts: RaggedArray::read("prompts", prompts, ends("prompt_ends", &problems)?)?,
            steps: RaggedArray::read("steps", steps, ends("step_ends", &problems)?)?,
            answers: RaggedArray::read("answers", answers, ends("answer_ends", &each)?)?,
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

    /// Thoughts by their places in the shard.
    fn thoughts(&self, rows: Range<usize>) -> Vec<f32> {
        let size = match self.dtype {
            ThoughtsDtype::F32 => size_of::<f32>(),
            ThoughtsDtype::Bf16 => size_of::<bf16>(),
        };
        let bytes = &self.bytes[self.thoughts.clone()]
            [rows.start * self.width * size..rows.end * self.width * size];
        match self.dtype {
            ThoughtsDtype::F32 => numbers(bytes, f32::from_le_bytes),
            ThoughtsDtype::Bf16 => numbers(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        }
    }
}

/// A file's tensors, by name.
struct ShardHeader<'a> {
    bytes: &'a [u8],
    start: usize,
    metadata: Metadata,
}

impl<'a> ShardHeader<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let short = || "the file is cut short".to_owned();
        let (size, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
        let size = usize::try_from(u64::from_le_bytes(*size)).map_err(|_| short())?;
        let header = rest.get(..size).ok_or_else(short)?;
        // Parsing checks that tensors lie one after the other and agree with their shapes.
        let metadata: Metadata =
            serde_json::from_slice(header).map_err(|e| format!("not a safetensors file: {e}"))?;
        let start = 8 + size;
        match start.checked_add(metadata.data_len()) {
            Some(end) if end == bytes.len() => Ok(Self { bytes, start, metadata }),
            _ => Err(format!(
                "{} bytes where its header says {}",
                bytes.len() - start,
                metadata.data_len()
            )),
        }
    }

    /// Where a tensor's bytes are; a list has any length.
    fn byte_range(
        &self,
        name: &str,
        dtype: Dtype,
        shape: Option<&[usize]>,
    ) -> Result<Range<usize>, String> {
        let info = self.metadata.info(name).ok_or_else(|| format!("it has no tensor `{name}`"))?;
        let fits = shape.map_or(info.shape.len() == 1, |shape| info.shape == shape);
        if info.dtype != dtype || !fits {
            let wanted = shape.map_or_else(|| "a list".to_owned(), |shape| format!("{shape:?}"));
            return Err(format!(
                "`{name}` is {} {:?} where {dtype} {wanted} belongs",
                info.dtype, info.shape
            ));
        }
        Ok(self.start + info.data_offsets.0..self.start + info.data_offsets.1)
    }

    fn list<T, const B: usize>(
        &self,
        name: &str,
        dtype: Dtype,
        of: impl Fn([u8; B]) -> T,
    ) -> Result<Vec<T>, String> {
        Ok(numbers(&self.bytes[self.byte_range(name, dtype, None)?], of))
    }

    fn shaped<T, const B: usize>(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        of: impl Fn([u8; B]) -> T,
    ) -> Result<Vec<T>, String> {
        Ok(numbers(&self.bytes[self.byte_range(name, dtype, Some(shape))?], of))
    }
}

fn numbers<T, const B: usize>(bytes: &[u8], of: impl Fn([u8; B]) -> T) -> Vec<T> {
    bytes.as_chunks::<B>().0.iter().map(|chunk| of(*chunk)).collect()
}
