//! One wave: trajectories first, then batches of rollouts, each a fork of its trajectory at a
//! thought.

use std::collections::HashMap;
use std::time::Instant;

use model::{Cache, CacheMark};
use tensor::{DeviceError, Tensor, ops};

use super::plan::RolloutPlan;
use super::{
    AnnotatedQuestion, Grade, Grader, LabelledTrajectory, RolloutCost, RolloutRunner,
    ThoughtLabels, rollout_row,
};
use crate::cost::ComputeCost;
use crate::decode::{AnswerTokens, decode};
use crate::error::EngineError;
use crate::perturb::{Perturbation, RandomSource, RowId, Sampler};
use crate::prefill::{PrefillOutput, RowSpec, prefill, step};
use crate::prompt::Prompt;
use crate::think::{Row, ThinkParams, ThoughtBatch, continue_thinking, max_thoughts, think};

/// A rollout to be made.
#[derive(Clone, Copy, Debug)]
struct RolloutSpec {
    /// Its trajectory, as a row of the wave.
    row: usize,
    /// The thought it starts from, counted from 1.
    thought: usize,
    /// Its number among those from that thought.
    rollout: usize,
}

/// What a wave's rollouts start from: its trajectories, in the cache up to their last thoughts.
struct TrajectoryWave<'a> {
    prompts: Vec<&'a Prompt>,
    thoughts: ThoughtBatch,
    mark: CacheMark, // the moment after the last thought
}

impl TrajectoryWave<'_> {
    /// Tokens of a row's prompt.
    fn prompt(&self, row: &Row) -> usize {
        self.prompts[row.spec.prompt].tokens.len()
    }
}

impl RolloutRunner<'_> {
    /// Follows a wave whose cache is planned and empty.
    pub(super) fn annotate_wave(
        &self,
        plan: &RolloutPlan<'_>,
        (first, count): (usize, usize),
        at_once: usize,
        (cache, spent): (&mut Cache, &mut RolloutCost),
    ) -> Result<Vec<AnnotatedQuestion>, EngineError> {
        let prompts = plan.prompts[first..first + count].iter().collect();
        let (wave, tokens) = self.trajectories(cache, prompts, spent)?;
        let mut opinions =
            GradeCache { judge: self.grader, first, known: vec![HashMap::new(); count] };
        let answers = wave.thoughts.rows.iter().zip(tokens).map(|(row, tokens)| {
            let verdict = opinions.of(row.spec.prompt, &tokens)?;
            Ok((tokens, verdict))
        });
        let answers = answers.collect::<Result<Vec<(AnswerTokens, Grade)>, EngineError>>()?;
        let is_mixed =
            |of: &[(AnswerTokens, Grade)]| of.iter().any(|(_, v)| v.correct != of[0].1.correct);
        let kept: Vec<bool> = answers
            .chunks(self.settings.samples.get())
            .map(|of| self.keep_all || is_mixed(of))
            .collect();

        let start = Instant::now();
        let of_each = self.labels.rollouts();
        let branches = self.rollout_specs(&wave.thoughts.rows, &kept, of_each);
        let mut right = Vec::with_capacity(branches.len());
        for some in branches.chunks(at_once) {
            let spoken = self.run_rollouts(cache, &wave, some, &mut spent.cost)?;
            for (branch, tokens) in some.iter().zip(spoken) {
                right.push(
                    opinions.of(wave.thoughts.rows[branch.row].spec.prompt, &tokens)?.correct,
                );
            }
        }
        spent.rollouts += start.elapsed().as_secs_f64();
        let shares = branches.chunks(of_each.max(1)).zip(right.chunks(of_each.max(1)));
        let shares = shares.map(|(some, right)| {
            (some[0], right.iter().filter(|r| **r).count() as f32 / of_each as f32)
        });
        self.annotated(&wave, &kept, answers, shares)
    }

    /// What is handed over: labels are a trajectory's own outcome but where rollouts gave a share.
    fn annotated(
        &self,
        wave: &TrajectoryWave<'_>,
        kept: &[bool],
        answers: Vec<(AnswerTokens, Grade)>,
        shares: impl Iterator<Item = (RolloutSpec, f32)>,
    ) -> Result<Vec<AnnotatedQuestion>, EngineError> {
        let vectors = self.latents_to_host(&wave.thoughts, kept)?;
        let path =
            |(thoughts, (tokens, Grade { answer, correct })): (Tensor, (AnswerTokens, Grade))| {
                let labels = vec![f32::from(u8::from(correct)); thoughts.rows()];
                LabelledTrajectory { thoughts, labels, tokens, answer, correct }
            };
        let mut paths: Vec<LabelledTrajectory> =
            vectors.into_iter().zip(answers).map(path).collect();
        let mut rollouts = vec![0; wave.prompts.len()];
        for (RolloutSpec { row, thought, .. }, share) in shares {
            paths[row].labels[thought - 1] = share;
            rollouts[wave.thoughts.rows[row].spec.prompt] += self.labels.rollouts();
        }
        let (mut paths, each) = (paths.into_iter(), self.settings.samples.get());
        let questions =
            wave.prompts.iter().zip(kept).zip(rollouts).map(|((prompt, &kept), rollouts)| {
                AnnotatedQuestion {
                    id: prompt.id,
                    prompt: prompt.tokens.clone(),
                    kept,
                    trajectories: paths.by_ref().take(each).collect(),
                    rollouts,
                }
            });
        Ok(questions.collect())
    }

    fn chance(&self) -> Sampler<'static> {
        let settings = &self.settings;
        Sampler { perturbation: settings.perturbation, source: RandomSource::Seeded(settings.seed) }
    }

    fn thinking(&self) -> ThinkParams<'static> {
        ThinkParams {
            length: self.settings.length,
            sampler: self.chance(),
            hook: None,
            keep_noiseless: false,
        }
    }

    /// The wave's trajectories and their answers.
    fn trajectories<'p>(
        &self,
        cache: &mut Cache,
        prompts: Vec<&'p Prompt>,
        spent: &mut RolloutCost,
    ) -> Result<(TrajectoryWave<'p>, Vec<AnswerTokens>), DeviceError> {
        let (mind, settings, chance) = (self.model, &self.settings, self.chance());
        let starts = prompts.iter().enumerate().flat_map(|(prompt, of)| {
            let id = |trajectory| RowId { question: of.id, trajectory: trajectory as u32 };
            (0..settings.samples.get()).map(move |k| RowSpec { prompt, id: id(k), perturbed: true })
        });
        let device = mind.decoder.device();
        let began = device.record_event()?;
        let started = prefill(mind, cache, &prompts, &starts.collect::<Vec<_>>(), chance)?;
        let prefilled = device.record_event()?;
        // Rollouts draw other noise on the same thoughts.
        let keep_clean = self.labels != ThoughtLabels::Final
            && matches!(settings.perturbation, Perturbation::Gaussian { .. });
        let mut thoughts = think(
            mind,
            cache,
            started,
            ThinkParams { keep_noiseless: keep_clean, ..self.thinking() },
        )?;
        let thought = device.record_event()?;
        let mark = cache.mark();
        let tokens =
            decode(mind, cache, &mut thoughts, settings.max_new_tokens.get(), chance)?.tokens;
        let answered = device.record_event()?;
        spent.seconds.prefill += began.elapsed(&prefilled)?;
        spent.seconds.thoughts += prefilled.elapsed(&thought)?;
        spent.seconds.answers += thought.elapsed(&answered)?;
        prompts.iter().for_each(|prompt| {
            spent.cost.flops += ComputeCost::of_prompt(&self.context(), prompt.tokens.len()).flops
        });
        let wave = TrajectoryWave { prompts, thoughts, mark };
        for (row, tokens) in wave.thoughts.rows.iter().zip(&tokens) {
            spent.cost.add_row(&self.context(), wave.prompt(row), row.thoughts.len(), tokens.len());
        }
        Ok((wave, tokens))
    }

    /// The rollouts of a wave: those of one thought are neighbours.
    fn rollout_specs(&self, rows: &[Row], kept: &[bool], of_each: usize) -> Vec<RolloutSpec> {
        let kept = rows.iter().enumerate().filter(|(_, row)| kept[row.spec.prompt]);
        let open = kept.flat_map(|(r, row)| {
            (1..=row.thoughts.len()).filter(|&t| !self.is_settled(row, t)).map(move |t| (r, t))
        });
        open.flat_map(|(row, thought)| {
            (0..of_each).map(move |rollout| RolloutSpec { row, thought, rollout })
        })
        .collect()
    }

    /// Whether nothing random happens after a trajectory's thought.
    fn is_settled(&self, path: &Row, thought: usize) -> bool {
        let Sampler { perturbation, source: randomness } = self.chance();
        match perturbation {
            // The pass over the last thought that a row may have is clean. One after which the
            // model chose to end is not.
            Perturbation::Dropout { .. } => {
                !perturbation.affects_answer()
                    && thought == max_thoughts(path, self.settings.length, randomness)
            }
            // All passes are clean, so that a model that chose to end would choose so again.
            Perturbation::Gaussian { .. } | Perturbation::None => thought == path.thoughts.len(),
            Perturbation::Tokens(_) => false,
        }
    }

    /// Makes some rollouts and returns their answers.
    ///
    /// Dropout makes the pass over the thought itself differ, noise the thought after it: that is
    /// the first vector fed. Drawn words differ after any thought, the last one included, so
    /// the thought itself is fed again.
    fn run_rollouts(
        &self,
        cache: &mut Cache,
        wave: &TrajectoryWave<'_>,
        some: &[RolloutSpec],
        cost: &mut ComputeCost,
    ) -> Result<Vec<AnswerTokens>, DeviceError> {
        let (mind, settings, chance) = (self.model, &self.settings, self.chance());
        let device = mind.decoder.device();
        cache.rewind(wave.mark);
        let is_fed_again =
            matches!(chance.perturbation, Perturbation::Dropout { .. } | Perturbation::Tokens(_));
        let fed = |b: &RolloutSpec| b.thought + usize::from(!is_fed_again);
        let path = |b: &RolloutSpec| &wave.thoughts.rows[b.row];
        let left = |b: &RolloutSpec| max_thoughts(path(b), settings.length, chance.source) - fed(b);
        let fork = |b: &RolloutSpec| {
            let start =
                RowSpec { id: rollout_row(path(b).spec.id, b.thought, b.rollout), ..path(b).spec };
            Row::new(start, path(b).sequence.fork_at(wave.prompt(path(b)) + fed(b) - 1))
        };
        // Rows that think on, then those whose last thought is given: it goes with their end
        // tokens.
        let (on, last): (Vec<usize>, Vec<usize>) =
            (0..some.len()).partition(|&i| left(&some[i]) > 0);
        let order: Vec<usize> = on.iter().chain(&last).copied().collect();
        let mut rows: Vec<Row> = order.iter().map(|&i| fork(&some[i])).collect();
        let from = wave
            .thoughts
            .noiseless
            .as_ref()
            .filter(|_| !is_fed_again)
            .unwrap_or(&wave.thoughts.steps);
        let vectors: Vec<usize> =
            order.iter().map(|&i| path(&some[i]).thoughts[fed(&some[i]) - 1]).collect();
        let mut x = ops::select(device, from, &vectors)?;
        let ids: Vec<RowId> = rows.iter().map(|row| row.spec.id).collect();
        chance.add_noise(
            device,
            &ids,
            || rows.iter().map(|row| row.rng_key(chance.source)).collect(),
            0,
            &mut x,
        )?;

        let ending = rows.split_off(on.len());
        let limits: Vec<usize> = on.iter().map(|&i| left(&some[i])).collect();
        let mut branched = self.think_on(cache, rows, &limits, &x)?;
        branched.end_with(device, ending, &x)?;
        let spoken =
            decode(mind, cache, &mut branched, settings.max_new_tokens.get(), chance)?.tokens;
        let mut answers = vec![AnswerTokens::new(); some.len()];
        for ((&i, row), tokens) in order.iter().zip(&branched.rows).zip(spoken) {
            let made = row.thoughts.len() - usize::from(left(&some[i]) == 0);
            cost.add_rollout(
                &self.context(),
                (wave.prompt(row), fed(&some[i])),
                made,
                tokens.len(),
            );
            answers[i] = tokens;
        }
        Ok(answers)
    }

    /// Feeds the first vectors of x to the rows, one each, and lets them think on.
    fn think_on(
        &self,
        cache: &mut Cache,
        mut rows: Vec<Row>,
        limits: &[usize],
        x: &Tensor,
    ) -> Result<ThoughtBatch, DeviceError> {
        let (mind, chance) = (self.model, self.chance());
        if rows.is_empty() {
            return Ok(ThoughtBatch {
                rows,
                steps: Vec::new(),
                after_prompt: None,
                noiseless: None,
            });
        }
        let first = ops::select(mind.decoder.device(), [x], &(0..rows.len()).collect::<Vec<_>>())?;
        let hidden =
            step(mind, cache, &mut rows.iter_mut().collect::<Vec<_>>(), first, Some((chance, 0)))?;
        continue_thinking(mind, cache, PrefillOutput { rows, hidden }, limits, self.thinking())
    }

    /// The thoughts of each trajectory, on the host; none of questions that are left out.
    fn latents_to_host(
        &self,
        thoughts: &ThoughtBatch,
        kept: &[bool],
    ) -> Result<Vec<Tensor>, DeviceError> {
        let device = self.model.decoder.device();
        let is_kept = |row: &Row| kept[row.spec.prompt];
        let wanted: Vec<usize> = thoughts
            .rows
            .iter()
            .filter(|row| is_kept(row))
            .flat_map(|row| &row.thoughts)
            .copied()
            .collect();
        let all = match wanted.is_empty() {
            true => Tensor::zeros(0, self.model.decoder.config().width),
            false => ops::select(device, &thoughts.steps, &wanted)?.to_host()?,
        };
        let mut next = 0;
        let own = thoughts.rows.iter().map(|row| {
            let count = if is_kept(row) { row.thoughts.len() } else { 0 };
            next += count;
            all.select(next - count..next)
        });
        Ok(own.collect())
    }
}

impl ThoughtBatch {
    /// Adds rows whose last thoughts are the last vectors of x, one each, and are still to be fed.
    fn end_with(
        &mut self,
        device: &tensor::Device,
        rows: Vec<Row>,
        x: &Tensor,
    ) -> Result<(), DeviceError> {
        if rows.is_empty() {
            return Ok(());
        }
        let vectors =
            ops::select(device, [x], &(x.rows() - rows.len()..x.rows()).collect::<Vec<_>>())?;
        let before = self.steps.iter().map(Tensor::rows).sum::<usize>();
        self.steps.push(vectors);
        self.rows.extend(rows.into_iter().enumerate().map(|(i, row)| Row {
            thoughts: [before + i].as_slice().into(),
            pending: true,
            ..row
        }));
        Ok(())
    }
}

/// Verdicts on a wave's answers. Rollouts of a question say the same few things again and again,
/// and reading an answer takes longer than looking it up.
struct GradeCache<'a> {
    judge: &'a Grader<'a>,
    first: usize,
    known: Vec<HashMap<Vec<u32>, Grade>>, // of each question of the wave
}

impl GradeCache<'_> {
    fn of(&mut self, question: usize, tokens: &[u32]) -> Result<Grade, EngineError> {
        if let Some(verdict) = self.known[question].get(tokens) {
            return Ok(verdict.clone());
        }
        let verdict = (self.judge)(self.first + question, tokens)?;
        self.known[question].insert(tokens.to_vec(), verdict.clone());
        Ok(verdict)
    }
}
