//! Latent beam search: paths of thoughts guided by step rewards (the paper's section 4.2).
//!
//! At each step every beam of a question is extended K times; the judge rewards each extension's
//! new thought; the B extensions of largest cumulative reward go on:
//!
//! ```text
//! R_t = R_{t-1} + r_t,   beams_t = the B largest R_t of up to B x K,   result = the largest R_T / T of all that ended
//!                                                                     or, by a judge that reads answers: of the B largest
//!                                                                     R_T / T the one whose answer has the largest verdict
//! ```
//!
//! * The first step extends the empty path B x K times, so that every step tries as many
//!   extensions.
//! * Extension j of beam b draws the numbers of trajectory `b * K + j` at its position; beams are
//!   numbered by their rank. What is found is therefore a function of seed and question alone, and
//!   with B = K = 1 it is trajectory 0.
//! * A path ends by its own decision, at its drawn length (inherited from its first extension) or
//!   at the limit. Ended paths leave the beam and compete by their mean reward; one without
//!   thoughts only with its like.
//! * Equal rewards go to the lower number, among ended paths to the one that ended first, and equal
//!   verdicts to the larger mean.
//!
//! Paths share what they have in common: a beam's thoughts are in the caches once, however many
//! extensions it has. With dropout an extension is a pass with masks of its own; with noise or
//! nothing the pass is one for all K.

use std::cmp::Ordering;

use model::{Cache, SlotGranularity};
use tensor::{DeviceError, Tensor, ops};

use crate::cost::ComputeCost;
use crate::decode::{AnswerTokens, decode};
use crate::method::LatentLength;
use crate::perturb::{RowId, Sampler};
use crate::prefill::{RowSpec, prefill, step};
use crate::prompt::Prompt;
use crate::reasoner::RewardModel;
use crate::reference_trace::ReferenceTrace;
use crate::sampling_params::BeamSize;
use crate::score::{AnswerBatch, Rewards, ScorerState, score};
use crate::think::{Row, ThoughtBatch, max_thoughts};
use crate::wave::BatchContext;

/// The best path of a question, and its answer.
pub(crate) struct BeamOutput {
    pub(crate) thoughts: usize,
    pub(crate) tokens: AnswerTokens,
    /// Its step rewards.
    pub(crate) process_rewards: Vec<f32>,
    /// The reward of its answer, by a judge that reads answers.
    pub(crate) outcome_reward: Option<f32>,
    pub(crate) cost: ComputeCost,
}

/// What a search needs beside the questions.
pub(crate) struct BeamSearch<'a> {
    pub(crate) party: &'a BatchContext<'a>,
    pub(crate) reward_model: &'a RewardModel,
    pub(crate) size: BeamSize,
    pub(crate) chance: Sampler<'a>,
}

/// A path on its way.
#[derive(Clone)]
struct BeamPath {
    row: Row,
    limit: usize,
    rewards: Vec<f32>,
    scorer_row: usize, // what the judge has read of it, or of what it extends
}

impl BeamPath {
    fn question(&self) -> usize {
        self.row.spec.prompt
    }

    /// The sum of its rewards; the lowest number there is where one is not finite.
    fn cumulative(&self) -> f64 {
        let sum: f64 = self.rewards.iter().copied().map(f64::from).sum();
        if sum.is_finite() { sum } else { f64::NEG_INFINITY }
    }

    /// The same by thought; the lowest number without thoughts.
    fn mean(&self) -> f64 {
        if self.rewards.is_empty() {
            f64::NEG_INFINITY
        } else {
            self.cumulative() / self.rewards.len() as f64
        }
    }
}

/// Extensions, and the hidden state that each one's next thought is made of.
struct Expansion {
    paths: Vec<BeamPath>,
    hidden: Tensor,         // (different hidden states, width)
    hidden_row: Vec<usize>, // of each path's among them
}

/// Where a search stands.
struct BeamState<'c> {
    cache: &'c mut Cache,
    reward_cache: &'c mut Cache,
    scorer: ScorerState,
    finished: Vec<Vec<BeamPath>>, /* by question, the largest mean first; as many as may yet be
                                   * chosen */
    steps: Vec<Tensor>,     // all thoughts that were made, step after step
    num_thoughts: usize,    // how many they are
    cost: Vec<ComputeCost>, // by question
}

impl BeamSearch<'_> {
    /// Searches for the best path of every prompt, of which the judge has its own thoughts. The
    /// caches must be empty.
    pub(crate) fn search(
        &self,
        prompts: &[&Prompt],
        own: Option<&ReferenceTrace>,
        (cache, judge_cache): (&mut Cache, &mut Cache),
    ) -> Result<Vec<BeamOutput>, DeviceError> {
        let BatchContext { model: mind, params: settings, .. } = *self.party;
        cache.set_slot_granularity(SlotGranularity::Single);
        judge_cache.set_slot_granularity(SlotGranularity::Single);
        let started = prefill(mind, cache, prompts, &self.row_specs(prompts), self.chance)?;
        let mut state = BeamState {
            scorer: ScorerState::prefill(self.reward_model, judge_cache, prompts, own)?,
            cache,
            reward_cache: judge_cache,
            finished: vec![Vec::new(); prompts.len()],
            steps: Vec::new(),
            num_thoughts: 0,
            cost: prompts
                .iter()
                .map(|p| ComputeCost::of_search(self.party, p.tokens.len(), self.size.extensions()))
                .collect(),
        };
        let path = |row: Row| BeamPath {
            limit: max_thoughts(&row, settings.length, self.chance.source),
            scorer_row: row.spec.prompt,
            rewards: Vec::new(),
            row,
        };
        let paths: Vec<BeamPath> = started.rows.into_iter().map(path).collect();
        let mut open =
            Expansion { hidden_row: (0..paths.len()).collect(), hidden: started.hidden, paths };
        while !open.paths.is_empty() {
            let thoughts = self.think(&mut open, &mut state)?;
            let kept = self.select(open.paths, &thoughts, &mut state)?;
            open = self.extend(kept, &thoughts, &mut state)?;
            state.steps.push(thoughts);
        }
        self.answer((prompts, own), state)
    }

    /// The extensions of the empty paths. They are named as samples are.
    fn row_specs(&self, prompts: &[&Prompt]) -> Vec<RowSpec> {
        let numbered = |(prompt, of): (usize, &&Prompt)| {
            let question = of.id;
            (0..self.size.extensions() as u32).map(move |trajectory| RowSpec {
                prompt,
                id: RowId { question, trajectory },
                perturbed: true,
            })
        };
        prompts.iter().enumerate().flat_map(numbered).collect()
    }

    /// The next thought of every path: (paths, width). Paths that end without one leave.
    fn think(
        &self,
        open: &mut Expansion,
        state: &mut BeamState<'_>,
    ) -> Result<Tensor, DeviceError> {
        let (mind, device) = (self.party.model, self.party.model.decoder.device());
        let made = mind.head.forward(&mind.decoder, &open.hidden)?;
        if matches!(self.party.params.length, LatentLength::AtMost(_)) {
            let likeliest = made
                .argmax
                .map_or_else(|| ops::argmax(device, &open.hidden, mind.decoder.lm_head()), Ok)?;
            let places = std::mem::take(&mut open.hidden_row);
            for (path, place) in std::mem::take(&mut open.paths).into_iter().zip(places) {
                if likeliest[place] == mind.method.end_latent[0] {
                    self.finish(path, state);
                } else {
                    open.paths.push(path);
                    open.hidden_row.push(place);
                }
            }
        }
        let mut thoughts = ops::select(device, [&made.thoughts], &open.hidden_row)?;
        let ids: Vec<RowId> = open.paths.iter().map(|path| path.row.spec.id).collect();
        let draws = || open.paths.iter().map(|path| path.row.rng_key(self.chance.source)).collect();
        self.chance.add_noise(device, &ids, draws, state.steps.len(), &mut thoughts)?;
        for path in &mut open.paths {
            path.row.thoughts.push(state.num_thoughts);
            state.num_thoughts += 1;
            state.cost[path.question()].add_thought(self.party);
        }
        Ok(thoughts)
    }

    /// Rewards the new thoughts, ends what is long enough, and keeps the best of the rest: question
    /// by question, by rank.
    fn select(
        &self,
        mut paths: Vec<BeamPath>,
        thoughts: &Tensor,
        state: &mut BeamState<'_>,
    ) -> Result<Vec<BeamPath>, DeviceError> {
        if paths.is_empty() {
            return Ok(paths);
        }
        let of: Vec<usize> = paths.iter().map(|path| path.scorer_row).collect();
        let (readings, rewards) =
            state.scorer.score_thoughts(self.reward_model, state.reward_cache, &of, thoughts)?;
        for (i, (path, reward)) in paths.iter_mut().zip(rewards).enumerate() {
            state.cost[path.question()]
                .add_process_reward(self.reward_model, path.row.sequence.len());
            (path.scorer_row, path.row.pending) = (i, path.row.thoughts.len() == path.limit);
            path.rewards.push(reward);
        }
        let (ended, mut going): (Vec<BeamPath>, Vec<BeamPath>) =
            paths.into_iter().partition(|path| path.row.pending);
        ended.into_iter().for_each(|path| self.finish(path, state));
        going.sort_by(by_rank); // stable: equals stay in the order of their numbers
        let mut taken = vec![0; state.finished.len()];
        let (mut kept, mut left) = (Vec::new(), Vec::new());
        for path in going {
            let taken = &mut taken[path.question()];
            *taken += 1;
            if *taken <= self.size.width.get() { kept.push(path) } else { left.push(path) }
        }
        left.into_iter().for_each(|path| self.discard(path, state));
        let read: Vec<usize> = kept.iter().map(|path| path.scorer_row).collect();
        state.scorer = readings.retain(self.reward_model, state.reward_cache, &read)?;
        kept.iter_mut().enumerate().for_each(|(i, path)| path.scorer_row = i);
        Ok(kept)
    }

    /// Passes the last thought of every beam and makes K paths of each.
    fn extend(
        &self,
        kept: Vec<BeamPath>,
        thoughts: &Tensor,
        state: &mut BeamState<'_>,
    ) -> Result<Expansion, DeviceError> {
        let (mind, device) = (self.party.model, self.party.model.decoder.device());
        let mut paths = self.fork_beams(&kept);
        if paths.is_empty() {
            return Ok(Expansion { paths, hidden: Tensor::default(), hidden_row: Vec::new() });
        }
        // Where one pass serves all paths of a beam, the first makes it and the others fork from
        // there.
        let serves = if self.extensions_differ() { 1 } else { self.size.candidates.get() };
        let place = (0..paths.len()).map(|i| i / serves).collect();
        let mut rows: Vec<&mut Row> =
            paths.iter_mut().step_by(serves).map(|path| &mut path.row).collect();
        for row in &rows {
            state.cost[row.spec.prompt].add_pass(self.party, row.sequence.len());
        }
        let before = state.num_thoughts - thoughts.rows(); // thoughts of earlier steps
        let last: Vec<usize> = rows
            .iter()
            .filter_map(|row| row.thoughts.last())
            .map(|thought| thought - before)
            .collect();
        let x = ops::select(device, [thoughts], &last)?;
        let hidden =
            step(mind, state.cache, &mut rows, x, Some((self.chance, state.steps.len() + 1)))?;
        for siblings in paths.chunks_mut(serves) {
            if let [first, others @ ..] = siblings {
                others.iter_mut().for_each(|path| path.row.sequence = first.row.sequence.fork());
            }
        }
        Ok(Expansion { paths, hidden, hidden_row: place })
    }

    /// K forks of every beam, numbered within their question.
    fn fork_beams(&self, kept: &[BeamPath]) -> Vec<BeamPath> {
        let mut numbers = vec![0; kept.iter().map(|path| path.question() + 1).max().unwrap_or(0)];
        let mut paths = Vec::with_capacity(kept.len() * self.size.candidates.get());
        for beam in kept {
            for _ in 0..self.size.candidates.get() {
                let mut path = beam.clone();
                path.row.sequence = beam.row.sequence.fork();
                path.row.spec.id.trajectory = numbers[beam.question()];
                numbers[beam.question()] += 1;
                paths.push(path);
            }
        }
        paths
    }

    /// Whether extensions of one beam differ in the pass over its last thought.
    fn extensions_differ(&self) -> bool {
        self.chance.perturbation.last_token_is_private()
    }

    /// A path that ended competes with those that ended before it.
    fn finish(&self, path: BeamPath, state: &mut BeamState<'_>) {
        let ended = &mut state.finished[path.question()];
        let place = ended.partition_point(|other| other.mean() >= path.mean());
        ended.insert(place, path);
        let loser = if ended.len() > self.num_finalists() { ended.pop() } else { None };
        loser.into_iter().for_each(|path| self.discard(path, state));
    }

    /// A path that nobody goes on with: its last position, where it has one of its own, is given
    /// back.
    fn discard(&self, path: BeamPath, state: &mut BeamState<'_>) {
        if self.extensions_differ() {
            state.cache.release_last(path.row.sequence);
        }
    }

    /// Ended paths of a question that are decoded: the best one, or all that a verdict chooses
    /// from.
    fn num_finalists(&self) -> usize {
        self.size.num_finalists(self.reward_model)
    }

    /// Decodes what may be chosen, and chooses.
    fn answer(
        &self,
        asked: (&[&Prompt], Option<&ReferenceTrace>),
        state: BeamState<'_>,
    ) -> Result<Vec<BeamOutput>, DeviceError> {
        let (mind, settings) = (self.party.model, &self.party.params);
        state.cache.set_slot_granularity(SlotGranularity::Chunk);
        let (mut rows, mut scores) = (Vec::new(), Vec::new());
        for mut path in state.finished.into_iter().flatten() {
            path.row.sequence = path.row.sequence.fork();
            rows.push(path.row);
            scores.push(path.rewards);
        }
        let fed: Vec<usize> = rows.iter().map(|row| row.sequence.len()).collect();
        let mut thoughts =
            ThoughtBatch { rows, steps: state.steps, after_prompt: None, noiseless: None };
        let spoken =
            decode(mind, state.cache, &mut thoughts, settings.max_new_tokens.get(), self.chance)?;
        let verdicts = match self.reward_model.outcome_head {
            Some(_) => {
                state.reward_cache.clear();
                let said =
                    AnswerBatch { end_latent: &mind.method.end_latent, answers: &spoken.tokens };
                score(self.reward_model, state.reward_cache, asked, &thoughts, Some(said))?
            }
            None => vec![Rewards::default(); thoughts.rows.len()],
        };
        let (mut cost, mut found) = (state.cost, Vec::<BeamOutput>::new());
        let mut before = None; // the question of the path before
        for ((((row, scores), tokens), reading), fed) in
            thoughts.rows.iter().zip(scores).zip(spoken.tokens).zip(verdicts).zip(fed)
        {
            let question = row.spec.prompt;
            let is_first = before.replace(question) != Some(question);
            let spent = &mut cost[question];
            spent.add_answer(self.party, fed..row.sequence.len(), tokens.len());
            if reading.outcome.is_some() {
                let prompt = asked.0[question].tokens.len();
                spent.add_outcome_reward(
                    self.party,
                    (prompt, is_first),
                    row.thoughts.len(),
                    tokens.len(),
                );
            }
            let path = BeamOutput {
                thoughts: row.thoughts.len(),
                tokens,
                process_rewards: scores,
                outcome_reward: reading.outcome,
                cost: ComputeCost::default(),
            };
            match found.last_mut().filter(|_| !is_first) {
                None => found.push(path),
                Some(best) if path.outcome_reward > best.outcome_reward => *best = path,
                Some(_) => {}
            }
        }
        found.iter_mut().zip(cost).for_each(|(found, cost)| found.cost = cost);
        Ok(found)
    }
}

/// Question by question, the largest cumulative reward first.
fn by_rank(a: &BeamPath, b: &BeamPath) -> Ordering {
    a.question().cmp(&b.question()).then_with(|| b.cumulative().total_cmp(&a.cumulative()))
}
