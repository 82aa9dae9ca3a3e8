//! Annotates one batch: trajectories first, then batches of rollouts, each a fork of its trajectory
//! at a thought.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use model::{Cache, CacheMark};
use tensor::{DeviceError, Tensor};

use super::{
    AnnotatedQuestion, Grade, Grader, LabelledTrajectory, RolloutCost, RolloutRunner,
    ThoughtLabels, rollout_row,
};
use crate::batch::BatchItem;
use crate::cost::CostModel;
use crate::error::EngineError;
use crate::executor::{
    AnswerTokens, Executor, Gather, MadeThoughts, SequenceSpec, SequenceState, ThoughtRef,
};
use crate::perturb::Perturbation;
use crate::prompt::Prompt;
use crate::reply::ComputeCost;
use crate::request::CancelToken;
use crate::sampler::{Sampler, SequenceId};
use crate::stage_timer::StageTimer;

/// A batch of questions and how it is annotated.
pub(super) struct RolloutBatch<'a> {
    pub(super) runner: &'a RolloutRunner<'a>,
    /// The index of the batch's first prompt.
    pub(super) first: usize,
    pub(super) prompts: &'a [Prompt],
    /// Number of concurrent rollouts.
    pub(super) at_once: usize,
}

/// The specification of a rollout.
#[derive(Clone, Copy, Debug)]
struct RolloutSpec {
    /// Index of its trajectory in the batch.
    row: usize,
    /// The thought it starts from, counted from 1.
    thought: usize,
    /// Its index among the rollouts from that thought.
    rollout: usize,
}

/// The trajectories of a batch, in the cache up to their last thoughts.
struct TrajectoryBatch<'a> {
    sampler: Sampler<'a>,
    sequences: Vec<SequenceState>,
    /// The state of the cache after the last thought.
    mark: CacheMark,
}

impl TrajectoryBatch<'_> {
    fn prompt_len(&self, row: &SequenceState) -> usize {
        self.sampler.items[row.spec.item].prompt_len()
    }
}

impl RolloutBatch<'_> {
    /// Annotates the batch; the cache is planned and empty.
    pub(super) fn annotate(
        &self,
        cache: &mut Cache,
        spent: &mut RolloutCost,
    ) -> Result<Vec<AnnotatedQuestion>, EngineError> {
        let params = &self.runner.params;
        let never = CancelToken::default();
        let cancel = self.runner.cancel.unwrap_or(&never);
        let item = |prompt| BatchItem::new(prompt, params, cancel);
        let items: Vec<BatchItem<'_>> = self.prompts.iter().map(item).collect();
        let sampler = Sampler::new(&items);
        let (group, tokens) = self.trajectories(cache, sampler, spent)?;
        self.check_cancelled(cancel)?;
        let mut grades = GradeCache {
            grader: self.runner.grader,
            first: self.first,
            known: vec![HashMap::new(); self.prompts.len()],
        };
        let graded = group.sequences.iter().zip(tokens).map(|(row, tokens)| {
            let grade = grades.grade(row.spec.item, &tokens)?;
            Ok((tokens, grade))
        });
        let answers = graded.collect::<Result<Vec<(AnswerTokens, Grade)>, EngineError>>()?;
        let is_mixed = |question: &[(AnswerTokens, Grade)]| {
            question.iter().any(|(_, grade)| grade.correct != question[0].1.correct)
        };
        let kept: Vec<bool> = answers
            .chunks(params.samples.get())
            .map(|question| self.runner.keep_all || is_mixed(question))
            .collect();

        let start = Instant::now();
        let per_thought = self.runner.labels.rollouts();
        let specs = self.rollout_specs(&group, &kept);
        let mut right = Vec::with_capacity(specs.len());
        for batch in specs.chunks(self.at_once) {
            let tokens = self.run_rollouts(cache, &group, batch, &mut spent.cost)?;
            self.check_cancelled(cancel)?;
            for (spec, tokens) in batch.iter().zip(tokens) {
                let item = group.sequences[spec.row].spec.item;
                right.push(grades.grade(item, &tokens)?.correct);
            }
        }
        spent.rollout_seconds += start.elapsed().as_secs_f64();
        let thoughts = specs.chunks(per_thought.max(1)).zip(right.chunks(per_thought.max(1)));
        let shares = thoughts.map(|(specs, right)| {
            let count = right.iter().filter(|right| **right).count();
            (specs[0], count as f32 / per_thought as f32)
        });
        self.annotated(&group, &kept, answers, shares)
    }

    /// Cancelled sequences end early: no result of the batch is complete.
    fn check_cancelled(&self, cancel: &CancelToken) -> Result<(), EngineError> {
        let id = self.prompts.first().map_or(0, |prompt| prompt.id);
        if cancel.is_cancelled() { Err(EngineError::Cancelled { id }) } else { Ok(()) }
    }

    /// The questions with their labels: the share of correct rollouts where there are rollouts,
    /// else the trajectory's own outcome.
    fn annotated(
        &self,
        group: &TrajectoryBatch<'_>,
        kept: &[bool],
        answers: Vec<(AnswerTokens, Grade)>,
        shares: impl Iterator<Item = (RolloutSpec, f32)>,
    ) -> Result<Vec<AnnotatedQuestion>, EngineError> {
        let latents = self.latents_to_host(&group.sequences, kept)?;
        let labelled = |(thoughts, (tokens, grade)): (Tensor, (AnswerTokens, Grade))| {
            let Grade { answer, correct } = grade;
            let labels = vec![f32::from(u8::from(correct)); thoughts.rows()];
            LabelledTrajectory { thoughts, labels, tokens, answer, correct }
        };
        let mut trajectories: Vec<LabelledTrajectory> =
            latents.into_iter().zip(answers).map(labelled).collect();
        let mut rollouts = vec![0; self.prompts.len()];
        for (RolloutSpec { row, thought, .. }, share) in shares {
            trajectories[row].labels[thought - 1] = share;
            rollouts[group.sequences[row].spec.item] += self.runner.labels.rollouts();
        }
        let per_question = self.runner.params.samples.get();
        let mut trajectories = trajectories.into_iter();
        let questions = self.prompts.iter().zip(kept).zip(rollouts);
        let annotated = questions.map(|((prompt, &kept), rollouts)| AnnotatedQuestion {
            id: prompt.id,
            prompt: prompt.tokens.clone(),
            kept,
            trajectories: trajectories.by_ref().take(per_question).collect(),
            rollouts,
        });
        Ok(annotated.collect())
    }

    /// The batch's trajectories and their answers.
    fn trajectories<'s>(
        &self,
        cache: &mut Cache,
        sampler: Sampler<'s>,
        spent: &mut RolloutCost,
    ) -> Result<(TrajectoryBatch<'s>, Vec<AnswerTokens>), DeviceError> {
        let RolloutRunner { model, params, labels, .. } = self.runner;
        let specs = sampler.items.iter().enumerate().flat_map(|(item, of)| {
            let question = of.prompt.id;
            let id = move |trajectory| SequenceId { question, trajectory };
            let numbers = 0..params.samples.get() as u32;
            numbers.map(move |k| SequenceSpec { item, id: id(k), perturbed: true })
        });
        let specs: Vec<SequenceSpec> = specs.collect();
        let mut executor = Executor::aligned(model, &specs);
        executor.timer = Some(StageTimer::default());
        // Rollouts add different noise to the same thoughts.
        executor.keep_noiseless = *labels != ThoughtLabels::Final
            && matches!(params.perturbation, Perturbation::Gaussian { .. });
        executor.run_thoughts(cache, sampler)?;
        let mark = cache.mark();
        executor.run(cache, sampler)?;
        spent.seconds += executor.timer.unwrap_or_default().finish(model.decoder.device())?;
        let sequences = executor.sequences;
        let tokens: Vec<AnswerTokens> =
            sequences.iter().map(|sequence| sequence.tokens.clone()).collect();
        let costs = |item: usize| self.cost_model(sampler, item);
        (0..sampler.items.len()).for_each(|item| spent.cost += costs(item).prompt());
        for row in &sequences {
            spent.cost += costs(row.spec.item).row(row.thoughts.len(), row.tokens.len());
        }
        Ok((TrajectoryBatch { sampler, sequences, mark }, tokens))
    }

    fn cost_model<'s>(&'s self, sampler: Sampler<'s>, item: usize) -> CostModel<'s> {
        CostModel { context: self.runner.context(), item: sampler.items[item] }
    }

    /// The rollouts of a batch: those of one thought are adjacent.
    fn rollout_specs(&self, group: &TrajectoryBatch<'_>, kept: &[bool]) -> Vec<RolloutSpec> {
        let rows = group.sequences.iter().enumerate();
        let open = rows.filter(|(_, row)| kept[row.spec.item]).flat_map(|(r, row)| {
            (1..=row.thoughts.len())
                .filter(|&thought: &usize| !self.is_settled(group.sampler, row, thought))
                .map(move |thought| (r, thought))
        });
        let rollouts = 0..self.runner.labels.rollouts();
        open.flat_map(|(row, thought)| {
            rollouts.clone().map(move |rollout| RolloutSpec { row, thought, rollout })
        })
        .collect()
    }

    /// Whether nothing random follows a trajectory's thought.
    fn is_settled(&self, sampler: Sampler<'_>, row: &SequenceState, thought: usize) -> bool {
        let perturbation = self.runner.params.perturbation;
        match perturbation {
            // The pass over the last possible thought is unperturbed. One after which the model
            // chose to stop is not.
            Perturbation::Dropout { .. } => {
                !perturbation.affects_answer() && thought == sampler.max_thoughts(row)
            }
            // All passes are unperturbed, so a model that chose to stop would do so again.
            Perturbation::Gaussian { .. }
            | Perturbation::Gumbel { .. }
            | Perturbation::Multiplex { .. }
            | Perturbation::Custom(_)
            | Perturbation::None => thought == row.thoughts.len(),
            Perturbation::Tokens { .. } => false,
        }
    }

    /// Runs some rollouts and returns their answers.
    ///
    /// With dropout the pass over the thought itself differs, with noise the next thought: that is
    /// the first vector fed. Sampled tokens differ after any thought, including the last one, so
    /// the thought itself is fed again; likewise for mixtures, which are computed from the hidden
    /// state after it.
    fn run_rollouts(
        &self,
        cache: &mut Cache,
        group: &TrajectoryBatch<'_>,
        batch: &[RolloutSpec],
        cost: &mut ComputeCost,
    ) -> Result<Vec<AnswerTokens>, DeviceError> {
        let model = self.runner.model;
        let sampler = group.sampler;
        let device = model.decoder.device();
        cache.rewind(group.mark);
        let perturbation = self.runner.params.perturbation;
        let feeds_thought = !matches!(
            perturbation,
            Perturbation::None | Perturbation::Gaussian { .. } | Perturbation::Custom(_)
        );
        let first_fed = |spec: &RolloutSpec| spec.thought + usize::from(!feeds_thought);
        let trajectory = |spec: &RolloutSpec| &group.sequences[spec.row];
        let left = |spec: &RolloutSpec| sampler.max_thoughts(trajectory(spec)) - first_fed(spec);
        let fork = |spec: &RolloutSpec| {
            let row = trajectory(spec);
            let id = rollout_row(row.spec.id, spec.thought, spec.rollout);
            let position = group.prompt_len(row) + first_fed(spec) - 1;
            let kv = row.kv.fork_at(position);
            let limit = Some(left(spec) + 1);
            SequenceState { kv, limit, ..SequenceState::new(SequenceSpec { id, ..row.spec }) }
        };
        let mut sequences: Vec<SequenceState> = batch.iter().map(fork).collect();
        let mut given = Gather::with_capacity(batch.len());
        for spec in batch {
            let ThoughtRef { made, row } = &trajectory(spec).thoughts[first_fed(spec) - 1];
            let noiseless = made.noiseless.as_ref().filter(|_| !feeds_thought);
            given.push(noiseless.unwrap_or(&made.fed), *row);
        }
        let mut given = given.select(device)?;
        let fed = || sequences.iter().map(SequenceState::next_thought);
        sampler.add_noise(device, fed(), 0, &mut given)?;
        given = sampler.perturb_thoughts(device, fed(), given)?;
        let given = Arc::new(MadeThoughts { fed: given, noiseless: None });
        for (row, sequence) in sequences.iter_mut().enumerate() {
            sequence.push_thought(ThoughtRef { made: Arc::clone(&given), row });
        }
        let mut executor = Executor::aligned(model, &[]);
        executor.sequences = sequences;
        executor.run(cache, sampler)?;
        let mut answers = Vec::with_capacity(batch.len());
        for (spec, sequence) in batch.iter().zip(executor.sequences) {
            let made = sequence.thoughts.len() - 1;
            let costs = self.cost_model(sampler, sequence.spec.item);
            *cost += costs.rollout(first_fed(spec), made, sequence.tokens.len());
            answers.push(sequence.tokens);
        }
        Ok(answers)
    }

    /// The thoughts of each trajectory, on the host; empty for skipped questions.
    fn latents_to_host(
        &self,
        sequences: &[SequenceState],
        kept: &[bool],
    ) -> Result<Vec<Tensor>, DeviceError> {
        let decoder = &self.runner.model.decoder;
        let own = |row: &SequenceState| if kept[row.spec.item] { row.thoughts.len() } else { 0 };
        let vectors = sequences.iter().flat_map(|row| &row.thoughts[..own(row)]);
        let vectors = Gather::of_thoughts(vectors);
        let all = match vectors.is_empty() {
            true => Tensor::zeros(0, decoder.config().width),
            false => vectors.select(decoder.device())?.to_host()?,
        };
        let mut next = 0;
        let latents = sequences.iter().map(|row| {
            next += own(row);
            all.select(next - own(row)..next)
        });
        Ok(latents.collect())
    }
}

/// Caches grades of a batch's answers. Rollouts of a question repeat the same few answers, and
/// decoding one takes longer than a lookup.
struct GradeCache<'a> {
    grader: &'a Grader<'a>,
    first: usize,
    known: Vec<HashMap<Vec<u32>, Grade>>, // per question of the batch
}

impl GradeCache<'_> {
    fn grade(&mut self, question: usize, tokens: &[u32]) -> Result<Grade, EngineError> {
        if let Some(grade) = self.known[question].get(tokens) {
            return Ok(grade.clone());
        }
        let grade = (self.grader)(self.first + question, tokens)?;
        self.known[question].insert(tokens.to_vec(), grade.clone());
        Ok(grade)
    }
}
