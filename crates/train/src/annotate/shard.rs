//! Annotated questions, collected in memory until their shard is complete.

use data::Question;
use engine::rollout::{AnnotatedQuestion, LabelledTrajectory};
use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::error::AnnotationError;
use super::index::{AnnotationIndex, ThoughtsDtype};
use super::ragged::RaggedArray;
use data::worked_step::step_result;

/// Questions and rollouts of a shard, or of all shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnnotationCounts {
    /// Number of sampled questions.
    pub questions: u64,
    /// Questions left out because all trajectories are correct.
    pub all_right: u64,
    /// Questions left out because all trajectories are wrong.
    pub all_wrong: u64,
    /// Number of computed rollouts.
    pub rollouts: u64,
}

/// The annotated questions of one shard.
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
    thoughts: Vec<u8>, // little-endian, of `dtype`
}

impl AnnotationShard {
    /// An empty shard.
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

    /// Counts of the questions added so far.
    pub fn counts(&self) -> AnnotationCounts {
        self.counts
    }

    /// Number of questions with both correct and wrong trajectories.
    pub fn problems(&self) -> usize {
        self.ids.len()
    }

    /// Number of labeled thoughts.
    pub fn thoughts(&self) -> usize {
        self.labels.values.len()
    }

    /// Adds the next question of the data. Questions whose trajectories are all correct or all
    /// wrong are only counted.
    pub fn add(
        &mut self,
        question: &Question,
        annotated: &AnnotatedQuestion,
    ) -> Result<(), AnnotationError> {
        self.counts.questions += 1;
        self.counts.rollouts += annotated.rollouts as u64;
        if !annotated.kept {
            let all_right = annotated.trajectories.iter().all(|trajectory| trajectory.correct);
            *(if all_right { &mut self.counts.all_right } else { &mut self.counts.all_wrong }) += 1;
            return Ok(());
        }
        self.check(annotated)?;
        self.ids.push(annotated.id);
        self.prompts.push(&annotated.prompt);
        self.steps.push(&step_results(&question.steps));
        annotated.trajectories.iter().for_each(|trajectory| self.add_trajectory(trajectory));
        Ok(())
    }

    fn check(&self, annotated: &AnnotatedQuestion) -> Result<(), AnnotationError> {
        let mismatch = |what, found, wanted| {
            Err(AnnotationError::ShapeMismatch { id: annotated.id, what, found, wanted })
        };
        if annotated.trajectories.len() != self.trajectories {
            return mismatch("trajectories", annotated.trajectories.len(), self.trajectories);
        }
        for LabelledTrajectory { thoughts, labels, .. } in &annotated.trajectories {
            if labels.len() != thoughts.rows() {
                return mismatch("labels", labels.len(), thoughts.rows());
            }
            if thoughts.rows() > 0 && thoughts.cols() != self.width {
                return mismatch("numbers per thought", thoughts.cols(), self.width);
            }
        }
        Ok(())
    }

    fn add_trajectory(&mut self, trajectory: &LabelledTrajectory) {
        self.answers.push(&trajectory.tokens);
        self.labels.push(&trajectory.labels);
        self.correct.push(u8::from(trajectory.correct));
        let numbers = trajectory.thoughts.data();
        match self.dtype {
            ThoughtsDtype::F32 => {
                self.thoughts.extend(numbers.iter().flat_map(|x| x.to_le_bytes()))
            }
            ThoughtsDtype::Bf16 => {
                self.thoughts.extend(numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()))
            }
        }
    }

    /// The shard as a safetensors file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let Self { prompts, steps, answers, labels, ids, .. } = self;
        let problems = self.problems();
        let rows = self.thoughts();
        let trajectories = || vec![problems, self.trajectories];
        let AnnotationCounts { questions, all_right, all_wrong, rollouts } = self.counts;
        let counts = [questions, all_right, all_wrong, rollouts];
        let tensors = [
            ("thoughts", self.dtype.safetensors(), vec![rows, self.width], self.thoughts.clone()),
            ("labels", Dtype::F32, vec![rows], le(&labels.values, f32::to_le_bytes)),
            ("thought_ends", Dtype::U64, trajectories(), le(&labels.ends, u64::to_le_bytes)),
            ("correct", Dtype::U8, trajectories(), self.correct.clone()),
            ("answers", Dtype::U32, answers.shape(), le(&answers.values, u32::to_le_bytes)),
            ("answer_ends", Dtype::U64, trajectories(), le(&answers.ends, u64::to_le_bytes)),
            ("prompts", Dtype::U32, prompts.shape(), le(&prompts.values, u32::to_le_bytes)),
            ("prompt_ends", Dtype::U64, vec![problems], le(&prompts.ends, u64::to_le_bytes)),
            ("steps", Dtype::I64, steps.shape(), le(&steps.values, i64::to_le_bytes)),
            ("step_ends", Dtype::U64, vec![problems], le(&steps.ends, u64::to_le_bytes)),
            ("ids", Dtype::U32, vec![problems], le(ids, u32::to_le_bytes)),
            ("counts", Dtype::U64, vec![counts.len()], le(&counts, u64::to_le_bytes)),
        ];
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            Ok((*name, TensorView::new(*dtype, shape.clone(), data)?))
        });
        let views: Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
        views.and_then(|views| safetensors::serialize(views, None)).map_err(|e| e.to_string())
    }
}

/// The integer results of the worked steps. Empty if any step has no integer result, so that result
/// t always belongs to step t.
pub(super) fn step_results(steps: &[String]) -> Vec<i64> {
    steps.iter().map(|step| step_result(step)).collect::<Option<_>>().unwrap_or_default()
}

/// The little-endian bytes of `numbers`.
fn le<T: Copy, const B: usize>(numbers: &[T], to_bytes: impl Fn(T) -> [u8; B]) -> Vec<u8> {
    numbers.iter().flat_map(|&x| to_bytes(x)).collect()
}

#[cfg(test)]
mod tests {
    use super::step_results;

    #[test]
    fn one_step_without_a_whole_result_empties_the_list() {
        let results = |steps: &[&str]| {
            step_results(&steps.iter().map(|step| (*step).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(results(&["<<48/2=24>>", "<<48+24=72>>"]), [24, 72]);
        assert!(results(&[]).is_empty());
        assert!(results(&["<<48/2=24>>", "<<1/2=.5>>"]).is_empty());
        assert!(results(&["so x is 7", "<<48/2=24>>"]).is_empty());
    }
}
