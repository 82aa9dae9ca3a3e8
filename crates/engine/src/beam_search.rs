//! Latent beam search: paths of thoughts guided by process rewards (the paper's section 4.2).
//!
//! At each step every beam of a question is extended K times; the reward model scores each
//! extension's new thought; the B extensions of largest cumulative reward go on:
//!
//! ```text
//! R_t     = R_{t-1} + r_t
//! beams_t = the B largest R_t of up to B x K extensions
//! result  = the largest R_T / T of all finished paths; with a reward model that reads answers,
//!           the path of largest outcome reward among the B largest R_T / T
//! ```
//!
//! * The first step extends the empty path B x K times, so that every step tries as many
//!   extensions.
//! * Extension j of beam b draws the random numbers of trajectory `b * K + j` at its position;
//!   beams are numbered by their rank. The result is therefore a function of seed and question
//!   alone, and with B = K = 1 it is trajectory 0.
//! * A path ends by its own decision, at its drawn length (inherited from its first extension) or
//!   at the limit. Finished paths leave the beam and compete by their mean reward; a path without
//!   thoughts competes only with others like it.
//! * Equal rewards go to the lower number, among finished paths to the one that finished first, and
//!   equal outcome rewards to the larger mean.
//!
//! Paths share what they have in common: a beam's thoughts are in the caches once, however many
//! extensions it has. With dropout an extension is a pass with masks of its own; with noise or
//! without perturbation one pass serves all K. Where the first extensions are still in the caches
//! of the wave that made the trajectories of their numbers, the search begins with these
//! ([`crate::first_expansion`]).
//!
//! The questions of one search have equal parameters.

use std::cmp::Ordering;

use model::{Cache, SlotGranularity};
use tensor::{Device, DeviceError, Tensor, ops};

use crate::batch::BatchContext;
use crate::cost::CostModel;
use crate::decode::{AnswerTokens, decode};
use crate::first_expansion::SearchStart;
use crate::method::LatentLength;
use crate::perturb::Perturbation;
use crate::prefill::{RowSpec, prefill_short, step};
use crate::prompt::Prompt;
use crate::reasoner::RewardModel;
use crate::reference_trace::ReferenceTrace;
use crate::reply::ComputeCost;
use crate::sampler::{PassStage, RowId, Sampler};
use crate::sampling_params::{BeamSize, SamplingParams};
use crate::score::{AnswerBatch, Rewards, ScoredPath, ScorerState};
use crate::think::{Row, ThoughtBatch};

/// The best path of a question, and its answer.
#[derive(Debug, PartialEq)]
pub(crate) struct BeamOutput {
    /// Number of thoughts.
    pub(crate) thoughts: usize,
    pub(crate) tokens: AnswerTokens,
    pub(crate) rewards: Rewards,
    pub(crate) cost: ComputeCost,
}

/// A beam search over the sampler's items.
#[derive(Clone, Copy)]
pub(crate) struct BeamSearch<'a> {
    pub(crate) context: BatchContext<'a>,
    pub(crate) reward_model: &'a RewardModel,
    pub(crate) size: BeamSize,
    pub(crate) sampler: Sampler<'a>,
}

/// A path in progress.
#[derive(Clone)]
struct BeamPath {
    row: Row,
    max_thoughts: usize,
    process_rewards: Vec<f32>,
    /// What the reward model has read of it.
    scored: ScoredPath,
    /// Whether its last position there is its own; else it is that of the beam it extends.
    owns_scored: bool,
}

impl BeamPath {
    fn question(&self) -> usize {
        self.row.spec.item
    }

    /// The sum of its rewards; negative infinity where one is not finite.
    fn cumulative(&self) -> f64 {
        let sum: f64 = self.process_rewards.iter().copied().map(f64::from).sum();
        if sum.is_finite() { sum } else { f64::NEG_INFINITY }
    }

    /// The mean of its rewards; negative infinity without thoughts.
    fn mean(&self) -> f64 {
        match self.process_rewards.len() {
            0 => f64::NEG_INFINITY,
            thoughts => self.cumulative() / thoughts as f64,
        }
    }
}

/// Extensions, and the hidden state that each one's next thought is made of.
struct Expansion {
    paths: Vec<BeamPath>,
    /// The distinct hidden states: (states, width).
    hidden: Tensor,
    /// Each path's row of them.
    hidden_row: Vec<usize>,
}

impl Expansion {
    /// Keeps the paths of which `keep` says so.
    fn retain(&mut self, mut keep: impl FnMut(&BeamPath) -> bool) {
        let rows = std::mem::take(&mut self.hidden_row);
        let paths = std::mem::take(&mut self.paths);
        let kept = paths.into_iter().zip(rows).filter(|(path, _)| keep(path));
        (self.paths, self.hidden_row) = kept.unzip();
    }
}

/// The state of a search.
struct BeamState<'c> {
    cache: &'c mut Cache,
    reward_cache: &'c mut Cache,
    scorer: ScorerState,
    /// Finished paths by question, the largest mean first; as many as may yet be chosen.
    finished: Vec<Vec<BeamPath>>,
    /// All thoughts that were made, step after step, and how many they are.
    steps: Vec<Tensor>,
    num_thoughts: usize,
    /// By question.
    costs: Vec<ComputeCost>,
}

/// Paths with the thoughts that were made for them.
#[derive(Default)]
struct Attempt {
    paths: Vec<BeamPath>,
    /// One each: (paths, width).
    thoughts: Tensor,
    /// Their process rewards.
    rewards: Vec<f32>,
}

impl<'a> BeamSearch<'a> {
    /// Searches for the best path of every item, whose prompts and reference traces are given. The
    /// caches must be empty. `None` for an item whose request was cancelled.
    pub(crate) fn run(
        &self,
        prompts: &[&Prompt],
        trace: Option<&ReferenceTrace>,
        cache: &mut Cache,
        reward_cache: &mut Cache,
    ) -> Result<Vec<Option<BeamOutput>>, DeviceError> {
        let start = prefill_short(self.context.model, cache, &self.row_specs(), self.sampler)?;
        let (scorer, prefixes) =
            ScorerState::prefill(self.reward_model, reward_cache, prompts, trace)?;
        let mut state = self.state(scorer, cache, reward_cache);
        let path = |row: Row| self.empty_path(prefixes[row.spec.item].fork(), row);
        let paths: Vec<BeamPath> = start.rows.into_iter().map(path).collect();
        let hidden_row = (0..paths.len()).collect();
        let open = Expansion { paths, hidden: start.hidden, hidden_row };
        let first = self.attempt(open, &mut state)?;
        self.search(first, state)
    }

    /// The same for items whose first extensions were made before, in these caches.
    pub(crate) fn run_from(
        &self,
        start: SearchStart<'_>,
        cache: &mut Cache,
        reward_cache: &mut Cache,
    ) -> Result<Vec<Option<BeamOutput>>, DeviceError> {
        let mut state = self.state(start.scorer, cache, reward_cache);
        let (mut first, mut places) = (Attempt::default(), Vec::new());
        let extensions = start.extensions.into_iter().zip(start.scored).zip(self.row_specs());
        let mut thoughts = 0..start.thoughts.rows();
        for ((extension, scored), spec) in extensions {
            let row = Row::with_sequence(spec, extension.sequence.fork());
            let path = self.empty_path(scored, row);
            let place = extension.thought.and_then(|thought| thoughts.next().zip(Some(thought)));
            if self.sampler.is_cancelled(&path.row) {
                continue;
            }
            match place {
                None => self.finish(path, &mut state),
                Some((place, thought)) => {
                    places.push(place);
                    first.rewards.push(thought.reward);
                    first.paths.push(path);
                }
            }
        }
        first.thoughts = ops::select(self.device(), [&start.thoughts], &places)?;
        self.count_thoughts(&mut first.paths, &mut state);
        self.search(first, state)
    }

    /// A search that has not begun.
    fn state<'c>(
        &self,
        scorer: ScorerState,
        cache: &'c mut Cache,
        reward_cache: &'c mut Cache,
    ) -> BeamState<'c> {
        cache.set_slot_granularity(SlotGranularity::Single);
        reward_cache.set_slot_granularity(SlotGranularity::Single);
        let (items, extensions) = (self.sampler.items.len(), self.size.extensions());
        BeamState {
            cache,
            reward_cache,
            scorer,
            finished: vec![Vec::new(); items],
            steps: Vec::new(),
            num_thoughts: 0,
            costs: (0..items).map(|i| self.cost_model(i).search_prompt(extensions)).collect(),
        }
    }

    /// A path without rewards.
    fn empty_path(&self, scored: ScoredPath, row: Row) -> BeamPath {
        let (max_thoughts, process_rewards) = (self.sampler.max_thoughts(&row), Vec::new());
        BeamPath { row, max_thoughts, process_rewards, scored, owns_scored: false }
    }

    /// Goes on from the first extensions until no path is left to extend.
    fn search(
        &self,
        mut tried: Attempt,
        mut state: BeamState<'_>,
    ) -> Result<Vec<Option<BeamOutput>>, DeviceError> {
        while !tried.paths.is_empty() {
            let kept = self.select(tried.paths, tried.rewards, &mut state);
            let open = self.extend(kept, &tried.thoughts, &mut state)?;
            state.steps.push(tried.thoughts);
            tried = self.attempt(open, &mut state)?;
        }
        self.answer(state)
    }

    /// Makes and scores the next thought of every path. Paths that end without one leave.
    fn attempt(
        &self,
        mut open: Expansion,
        state: &mut BeamState<'_>,
    ) -> Result<Attempt, DeviceError> {
        open.retain(|path| !self.sampler.is_cancelled(&path.row));
        if open.paths.is_empty() {
            return Ok(Attempt::default());
        }
        let thoughts = self.think(&mut open, state)?;
        let mut paths = open.paths;
        if paths.is_empty() {
            return Ok(Attempt::default());
        }
        let rewards = state.scorer.score_thoughts(
            self.reward_model,
            state.reward_cache,
            paths.iter_mut().map(|path| &mut path.scored),
            &thoughts,
        )?;
        Ok(Attempt { paths, thoughts, rewards })
    }

    fn device(&self) -> &'a Device {
        self.context.model.decoder.device()
    }

    /// The items' parameters, which are equal.
    fn params(&self) -> &'a SamplingParams {
        self.sampler.items[0].params
    }

    fn cost_model(&self, item: usize) -> CostModel<'a> {
        CostModel { context: self.context, item: self.sampler.items[item] }
    }

    /// The extensions of the empty paths, which are named as samples are.
    fn row_specs(&self) -> Vec<RowSpec> {
        let specs = |item: usize| {
            let question = self.sampler.items[item].prompt.id;
            (0..self.size.extensions() as u32).map(move |trajectory| RowSpec {
                item,
                id: RowId { question, trajectory },
                perturbed: true,
            })
        };
        (0..self.sampler.items.len()).flat_map(specs).collect()
    }

    /// The next thought of every path: (paths, width). Paths that end without one leave.
    fn think(
        &self,
        open: &mut Expansion,
        state: &mut BeamState<'_>,
    ) -> Result<Tensor, DeviceError> {
        let (model, device) = (self.context.model, self.device());
        if matches!(self.params().perturbation, Perturbation::Gumbel { .. }) {
            // Extensions of one hidden state have mixtures of their own.
            open.hidden = ops::select(device, [&open.hidden], &open.hidden_row)?;
            open.hidden_row = (0..open.paths.len()).collect();
        }
        let noise = self.sampler.mixture_noise(device, open.paths.iter().map(|path| &path.row))?;
        let made = model.head.forward_perturbed(&model.decoder, &open.hidden, noise.as_ref())?;
        if matches!(self.params().length, LatentLength::AtMost(_)) {
            let argmax = || ops::argmax(device, &open.hidden, model.decoder.lm_head());
            let argmax = made.argmax.map_or_else(argmax, Ok)?;
            let rows = std::mem::take(&mut open.hidden_row);
            for (path, row) in std::mem::take(&mut open.paths).into_iter().zip(rows) {
                if argmax[row] == model.method.end_latent[0] {
                    self.finish(path, state);
                } else {
                    open.paths.push(path);
                    open.hidden_row.push(row);
                }
            }
        }
        let mut thoughts = ops::select(device, [&made.thoughts], &open.hidden_row)?;
        let rows = open.paths.iter().map(|path| &path.row);
        self.sampler.add_noise(device, rows, state.steps.len(), &mut thoughts)?;
        self.count_thoughts(&mut open.paths, state);
        Ok(thoughts)
    }

    /// Numbers the new thoughts of paths, one each.
    fn count_thoughts(&self, paths: &mut [BeamPath], state: &mut BeamState<'_>) {
        for path in paths {
            path.row.thoughts.push(state.num_thoughts);
            state.num_thoughts += 1;
            state.costs[path.question()] += self.cost_model(path.question()).thought();
        }
    }

    /// Adds the new thoughts' rewards, ends paths that are long enough, and keeps the best of the
    /// rest: question by question, by rank.
    fn select(
        &self,
        mut paths: Vec<BeamPath>,
        rewards: Vec<f32>,
        state: &mut BeamState<'_>,
    ) -> Vec<BeamPath> {
        for (path, reward) in paths.iter_mut().zip(rewards) {
            let cost = self.cost_model(path.question()).process_reward(path.row.sequence.len());
            state.costs[path.question()] += cost;
            path.owns_scored = true;
            path.row.pending = path.row.thoughts.len() == path.max_thoughts;
            path.process_rewards.push(reward);
        }
        let (finished, mut open): (Vec<BeamPath>, Vec<BeamPath>) =
            paths.into_iter().partition(|path| path.row.pending);
        finished.into_iter().for_each(|path| self.finish(path, state));
        open.sort_by(by_rank); // stable: equals stay in the order of their numbers
        let mut taken = vec![0; state.finished.len()];
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        for path in open {
            let taken = &mut taken[path.question()];
            *taken += 1;
            if *taken <= self.size.width.get() { kept.push(path) } else { dropped.push(path) }
        }
        dropped.into_iter().for_each(|path| self.discard(path, state));
        kept
    }

    /// Passes the last thought of every beam and makes K paths of each.
    fn extend(
        &self,
        kept: Vec<BeamPath>,
        thoughts: &Tensor,
        state: &mut BeamState<'_>,
    ) -> Result<Expansion, DeviceError> {
        let (model, device) = (self.context.model, self.device());
        let mut paths = self.fork_beams(&kept);
        if paths.is_empty() {
            return Ok(Expansion { paths, hidden: Tensor::default(), hidden_row: Vec::new() });
        }
        // Where one pass serves all paths of a beam, the first makes it and the others fork it.
        let served = if self.extensions_differ() { 1 } else { self.size.candidates.get() };
        let hidden_row = (0..paths.len()).map(|i| i / served).collect();
        let mut rows: Vec<&mut Row> =
            paths.iter_mut().step_by(served).map(|path| &mut path.row).collect();
        for row in &rows {
            let item = row.spec.item;
            state.costs[item] += self.cost_model(item).pass(row.sequence.len());
        }
        let earlier = state.num_thoughts - thoughts.rows(); // thoughts of earlier steps
        let last: Vec<usize> = rows
            .iter()
            .filter_map(|row| row.thoughts.last())
            .map(|thought| thought - earlier)
            .collect();
        let x = ops::select(device, [thoughts], &last)?;
        let stage = PassStage::Thought(state.steps.len() + 1);
        let hidden = step(model, state.cache, &mut rows, x, self.sampler, stage)?;
        for siblings in paths.chunks_mut(served) {
            if let [first, others @ ..] = siblings {
                let fork = |path: &mut BeamPath| path.row.sequence = first.row.sequence.fork();
                others.iter_mut().for_each(fork);
            }
        }
        Ok(Expansion { paths, hidden, hidden_row })
    }

    /// K forks of every beam, numbered within their question.
    fn fork_beams(&self, kept: &[BeamPath]) -> Vec<BeamPath> {
        let questions = kept.iter().map(|path| path.question() + 1).max().unwrap_or(0);
        let mut numbers = vec![0; questions];
        let mut paths = Vec::with_capacity(kept.len() * self.size.candidates.get());
        for beam in kept {
            for _ in 0..self.size.candidates.get() {
                let mut path = beam.clone();
                path.row.sequence = beam.row.sequence.fork();
                (path.scored, path.owns_scored) = (beam.scored.fork(), false);
                path.row.spec.id.trajectory = numbers[beam.question()];
                numbers[beam.question()] += 1;
                paths.push(path);
            }
        }
        paths
    }

    /// Whether extensions of one beam differ in the pass over its last thought.
    fn extensions_differ(&self) -> bool {
        self.params().perturbation.is_dropout()
    }

    /// Adds a path to the finished ones of its question, of which only the best are kept.
    fn finish(&self, path: BeamPath, state: &mut BeamState<'_>) {
        let finished = &mut state.finished[path.question()];
        let place = finished.partition_point(|other| other.mean() >= path.mean());
        finished.insert(place, path);
        let is_full = finished.len() > self.num_finalists();
        let worst = if is_full { finished.pop() } else { None };
        worst.into_iter().for_each(|path| self.discard(path, state));
    }

    /// Releases the last positions of a path that is not continued, where they are its own.
    fn discard(&self, path: BeamPath, state: &mut BeamState<'_>) {
        if path.owns_scored {
            state.reward_cache.release_last(path.scored.sequence);
        }
        if self.extensions_differ() {
            state.cache.release_last(path.row.sequence);
        }
    }

    fn num_finalists(&self) -> usize {
        self.reward_model.num_finalists(self.size)
    }

    /// Decodes the finalists of every question and chooses among them.
    fn answer(&self, state: BeamState<'_>) -> Result<Vec<Option<BeamOutput>>, DeviceError> {
        let model = self.context.model;
        state.cache.set_slot_granularity(SlotGranularity::Chunk);
        state.reward_cache.set_slot_granularity(SlotGranularity::Chunk);
        let mut found: Vec<Option<BeamOutput>> = state.finished.iter().map(|_| None).collect();
        let (mut rows, mut scored, mut process_rewards) = (Vec::new(), Vec::new(), Vec::new());
        let finalists = state.finished.into_iter().flatten();
        for mut path in finalists.filter(|path| !self.sampler.is_cancelled(&path.row)) {
            path.row.sequence = path.row.sequence.fork();
            rows.push(path.row);
            scored.push(path.scored);
            process_rewards.push(path.process_rewards);
        }
        if rows.is_empty() {
            return Ok(found);
        }
        let fed: Vec<usize> = rows.iter().map(|row| row.sequence.len()).collect();
        let mut thoughts = ThoughtBatch { rows, steps: state.steps, ..ThoughtBatch::default() };
        let answers = decode(model, state.cache, &mut thoughts, self.sampler)?;
        let read = AnswerBatch { end_latent: &model.method.end_latent, answers: &answers.tokens };
        let outcomes =
            state.scorer.score_answers(self.reward_model, state.reward_cache, &mut scored, read)?;
        let mut outcomes = outcomes.into_iter();
        let mut costs = state.costs;
        let rows = thoughts.rows.iter().zip(process_rewards).zip(answers.tokens);
        for (((row, process), tokens), fed) in rows.zip(fed) {
            let item = row.spec.item;
            let (cost_model, best) = (self.cost_model(item), &mut found[item]);
            costs[item] += cost_model.answer(fed..row.sequence.len(), tokens.len());
            let (thoughts, outcome) = (row.thoughts.len(), outcomes.next());
            if outcome.is_some() {
                costs[item] += cost_model.outcome_reward(thoughts, tokens.len());
            }
            if best.as_ref().is_none_or(|best| outcome > best.rewards.outcome) {
                let rewards = Rewards { process, outcome };
                *best = Some(BeamOutput { thoughts, tokens, rewards, cost: costs[item] });
            }
        }
        for (output, cost) in found.iter_mut().zip(costs) {
            output.iter_mut().for_each(|output| output.cost = cost);
        }
        Ok(found)
    }
}

/// Question by question, the largest cumulative reward first.
fn by_rank(a: &BeamPath, b: &BeamPath) -> Ordering {
    let by_reward = || b.cumulative().total_cmp(&a.cumulative());
    a.question().cmp(&b.question()).then_with(by_reward)
}
