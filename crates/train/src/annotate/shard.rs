//! Labelled questions on their way into a file.

use dataset::Question;
use engine::rollout::{AnnotatedQuestion, LabelledTrajectory};
use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::error::AnnotationError;
use super::index::{AnnotationIndex, ThoughtsDtype};
use super::ragged::RaggedArray;
use super::steps::step_results;

/// What became of a shard's questions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnnotationCounts {
    /// Questions that were looked at.
    pub questions: u64,
    /// Left out: all trajectories are right.
    pub all_right: u64,
    /// Left out: all are wrong.
    pub all_wrong: u64,
    /// Rollouts that were computed.
    pub rollouts: u64,
}

/// Labelled questions of one shard.
#[derive(Debug)]
pub struct AnnotationShard {
    trajectories: usize,
    width: usize,
    dtype: ThoughtsDtype,
    counts: AnnotationCounts,
    ids: Vec<u32>,
    prompts: RaggedArray<u32>,
    steps: RaggedArray<i64>,
    answers: RaggedArray<u32>,
    labels: RaggedArray<f32>,
    correct: Vec<u8>,
    thoughts: Vec<u8>, // in the format of the file
}

impl AnnotationShard {
    /// A shard without questions.
    pub fn new(index: &AnnotationIndex) -> Self {
        Self {
            trajectories: index.trajectories,
            width: index.width,
            dtype: index.dtype,
            counts: AnnotationCounts::default(),
            ids: Vec::new(),
            prompts: RaggedArray::default(),
            steps: RaggedArray::default(),
            answers: RaggedArray::default(),
            labels: RaggedArray::default(),
            correct: Vec::new(),
            thoughts: Vec::new(),
        }
    }

    /// What became of its questions so far.
    pub fn counts(&self) -> AnnotationCounts {
        self.counts
    }

    /// Problems that were kept.
    pub fn problems(&self) -> usize {
        self.ids.len()
    }

    /// Labelled thoughts.
    pub fn thoughts(&self) -> usize {
        self.labels.values.len()
    }

    /// Adds a question, the next one of the data; one that is all right or all wrong is only
    /// counted.
    pub fn add(
        &mut self,
        question: &Question,
        annotated: &AnnotatedQuestion,
    ) -> Result<(), AnnotationError> {
        self.counts.questions += 1;
        self.counts.rollouts += annotated.rollouts as u64;
        if !annotated.kept {
            let all_right = annotated.trajectories.iter().all(|p| p.correct);
            *(if all_right { &mut self.counts.all_right } else { &mut self.counts.all_wrong }) += 1;
            return Ok(());
        }
        self.check(annotated)?;
        self.ids.push(annotated.id);
        self.prompts.push(&annotated.prompt);
        self.steps.push(&step_results(&question.steps));
        annotated.trajectories.iter().for_each(|path| self.add_path(path));
        Ok(())
    }

    fn check(&self, annotated: &AnnotatedQuestion) -> Result<(), AnnotationError> {
        let unfit = |what, found, wanted| {
            Err(AnnotationError::ShapeMismatch { id: annotated.id, what, found, wanted })
        };
        if annotated.trajectories.len() != self.trajectories {
            return unfit("trajectories", annotated.trajectories.len(), self.trajectories);
        }
        for LabelledTrajectory { thoughts, labels, .. } in &annotated.trajectories {
            if labels.len() != thoughts.rows() {
                return unfit("labels", labels.len(), thoughts.rows());
            }
            if thoughts.rows() > 0 && thoughts.cols() != self.width {
                return unfit("numbers a thought", thoughts.cols(), self.width);
            }
        }
        Ok(())
    }

    fn add_path(&mut self, path: &LabelledTrajectory) {
        self.answers.push(&path.tokens);
        self.labels.push(&path.labels);
        self.correct.push(u8::from(path.correct));
        let numbers = path.thoughts.data();
        match self.dtype {
            ThoughtsDtype::F32 => {
                self.thoughts.extend(numbers.iter().flat_map(|x| x.to_le_bytes()))
            }
            ThoughtsDtype::Bf16 => {
                self.thoughts.extend(numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()))
            }
        }
    }

    /// The whole file.
    pub(super) fn bytes(&self) -> Result<Vec<u8>, String> {
        let (problems, rows) = (self.problems(), self.thoughts());
        let each = || vec![problems, self.trajectories];
        let AnnotationCounts { questions, all_right, all_wrong, rollouts } = self.counts;
        let counts = [questions, all_right, all_wrong, rollouts];
        let tensors = [
            ("thoughts", self.dtype.safetensors(), vec![rows, self.width], self.thoughts.clone()),
            ("labels", Dtype::F32, vec![rows], bytes(&self.labels.values, |x| x.to_le_bytes())),
            ("thought_ends", Dtype::U64, each(), bytes(&self.labels.ends, |x| x.to_le_bytes())),
            ("correct", Dtype::U8, each(), self.correct.clone()),
            (
                "answers",
                Dtype::U32,
                vec![self.answers.values.len()],
                bytes(&self.answers.values, |x| x.to_le_bytes()),
            ),
            ("answer_ends", Dtype::U64, each(), bytes(&self.answers.ends, |x| x.to_le_bytes())),
            (
                "prompts",
                Dtype::U32,
                vec![self.prompts.values.len()],
                bytes(&self.prompts.values, |x| x.to_le_bytes()),
            ),
            (
                "prompt_ends",
                Dtype::U64,
                vec![problems],
                bytes(&self.prompts.ends, |x| x.to_le_bytes()),
            ),
            (
                "steps",
                Dtype::I64,
                vec![self.steps.values.len()],
                bytes(&self.steps.values, |x| x.to_le_bytes()),
            ),
            ("step_ends", Dtype::U64, vec![problems], bytes(&self.steps.ends, |x| x.to_le_bytes())),
            ("ids", Dtype::U32, vec![problems], bytes(&self.ids, |x| x.to_le_bytes())),
            ("counts", Dtype::U64, vec![counts.len()], bytes(&counts, |x| x.to_le_bytes())),
        ];
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            Ok((*name, TensorView::new(*dtype, shape.clone(), data)?))
        });
        let views = views
            .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
            .map_err(|e| e.to_string())?;
        safetensors::serialize(views, None).map_err(|e| e.to_string())
    }
}

fn bytes<T: Copy, const B: usize>(numbers: &[T], of: impl Fn(T) -> [u8; B]) -> Vec<u8> {
    numbers.iter().flat_map(|&x| of(x)).collect()
}
