//! Searches over thoughts that process rewards guide: beam search (the paper's section 4.2),
//! particle filtering, and diverse verifier tree search.
//!
//! Beam search: at each step every beam of a question is extended K times; the reward model scores
//! each extension's new thought; the B extensions with the largest cumulative reward are selected:
//!
//! ```text
//! R_t     = R_{t-1} + r_t
//! beams_t = the B largest R_t of up to B x K extensions
//! result  = the largest R_T / T of all finished paths; with a reward model that reads answers,
//!           the path of largest outcome reward among the B largest R_T / T
//! ```
//!
//! * The first step extends the empty path B x K times, so that every step evaluates the same
//!   number of extensions.
//! * Extension j of beam b uses the random numbers of trajectory `b * K + j` at its position; beams
//!   are numbered by rank. The result is therefore a function of seed and question only, and with B
//!   = K = 1 it is trajectory 0.
//! * A path ends when the model stops, at its sampled length (inherited from its first extension),
//!   or at the limit. Finished paths leave the beam and compete by mean reward; a path without
//!   thoughts competes only with other such paths.
//! * Ties go to the lower number, among finished paths to the one that finished first, and for
//!   equal outcome rewards to the larger mean.
//!
//! Paths share common prefixes: a beam's thoughts are in the caches once, however many extensions
//! it has. With dropout every extension is a separate forward pass with its own masks; with noise
//! or without perturbation one forward pass serves all K. If the first extensions are still in the
//! caches of the batch that computed the trajectories with their numbers, the search starts from
//! these ([`crate::first_expansion`]).
//!
//! The other methods differ in the selection alone, and all of their paths vote, weighted by reward
//! ([`crate::question`]):
//!
//! * Particle filtering extends each of P particles once and resamples them, systematically and in
//!   proportion to exp(r_t / temperature). Particle p uses the random numbers of trajectory p.
//! * Diverse verifier tree search keeps B independent subtrees and continues the best of the K
//!   extensions of each.
//!
//! All questions of one search have equal parameters.

mod resampling;

use std::cmp::Ordering;
use std::collections::BTreeSet;

use model::{Cache, SlotGranularity};
use tensor::rng::Site;
use tensor::{Device, DeviceError};

use crate::batch::BatchContext;
use crate::cost::CostModel;
use crate::executor::{AnswerTokens, Executor, Gather, NextInput, SequenceSpec, SequenceState};
use crate::first_expansion::SearchStart;
use crate::prompt::Prompt;
use crate::reasoner::RewardModel;
use crate::reference_trace::ReferenceTrace;
use crate::reply::ComputeCost;
use crate::sampler::{Sampler, SequenceId};
use crate::sampling_params::{SamplingParams, Search, SearchMethod};
use crate::score::{AnswerBatch, Rewards, ScoredPath, ScorerState};
use resampling::systematic_resampling;

/// The result of a question's search.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct SearchOutput {
    /// The best path of a beam search, or all paths that vote.
    pub(crate) paths: Vec<AnsweredPath>,
    pub(crate) cost: ComputeCost,
}

/// A finished path with its answer.
#[derive(Debug, PartialEq)]
pub(crate) struct AnsweredPath {
    /// Number of thoughts.
    pub(crate) thoughts: usize,
    pub(crate) tokens: AnswerTokens,
    pub(crate) rewards: Rewards,
}

/// Takes the place of the trajectory in the key of the random number that resampling draws.
const RESAMPLING: u32 = u32::MAX;

/// A beam search over the sampler's items.
#[derive(Clone, Copy)]
pub(crate) struct BeamSearch<'a> {
    pub(crate) context: BatchContext<'a>,
    pub(crate) reward_model: &'a RewardModel,
    pub(crate) search: Search,
    pub(crate) sampler: Sampler<'a>,
}

/// A path in progress; its sequence is held by the executor.
#[derive(Clone)]
struct BeamPath {
    process_rewards: Vec<f32>,
    /// The reward model's state for the path.
    scored: ScoredPath,
    /// Whether its last position in the reward model's cache belongs to this path; otherwise it
    /// belongs to the beam that it extends.
    owns_scored: bool,
}

impl BeamPath {
    /// A path without rewards.
    fn new(scored: ScoredPath) -> Self {
        Self { process_rewards: Vec::new(), scored, owns_scored: false }
    }

    /// Sum of rewards; negative infinity if one is not finite.
    fn cumulative(&self) -> f64 {
        let sum: f64 = self.process_rewards.iter().copied().map(f64::from).sum();
        if sum.is_finite() { sum } else { f64::NEG_INFINITY }
    }

    /// The reward of its last thought; negative infinity without thoughts.
    fn last_reward(&self) -> f64 {
        self.process_rewards.last().map_or(f64::NEG_INFINITY, |&reward| f64::from(reward))
    }

    /// Mean reward; negative infinity without thoughts.
    fn mean(&self) -> f64 {
        match self.process_rewards.len() {
            0 => f64::NEG_INFINITY,
            thoughts => self.cumulative() / thoughts as f64,
        }
    }
}

/// A path that is continued.
struct SelectedPath {
    path: SearchPath,
    /// Number of its extensions at the next step, above 0.
    extensions: usize,
}

/// A path with its sequence.
struct SearchPath {
    sequence: SequenceState,
    path: BeamPath,
}

impl SearchPath {
    fn question(&self) -> usize {
        self.sequence.spec.item
    }
}

/// The state of a search.
struct BeamState<'c, 'm> {
    cache: &'c mut Cache,
    reward_cache: &'c mut Cache,
    executor: Executor<'m>,
    /// Parallel to the executor's sequences.
    paths: Vec<BeamPath>,
    scorer: ScorerState,
    /// Finished paths by question, in descending order of mean reward; only those that may still be
    /// chosen.
    finished: Vec<Vec<SearchPath>>,
    /// Cost by question.
    costs: Vec<ComputeCost>,
}

impl BeamState<'_, '_> {
    /// Runs one executor step. The paths of cancelled questions are removed.
    fn step(&mut self, sampler: Sampler<'_>) -> Result<(), DeviceError> {
        let cancelled = sampler.cancelled_items();
        if cancelled.contains(&true) {
            let leaves = |sequence: &SequenceState| cancelled[sequence.spec.item];
            let mut stays = self.executor.sequences.iter().map(|sequence| !leaves(sequence));
            self.paths.retain(|_| stays.next().unwrap_or_default());
            self.executor.remove(leaves);
        }
        self.executor.step(self.cache, sampler)
    }

    /// Takes the paths out of the executor.
    fn take(&mut self) -> impl Iterator<Item = SearchPath> + use<> {
        let sequences = std::mem::take(&mut self.executor.sequences).into_iter();
        let paths = std::mem::take(&mut self.paths);
        sequences.zip(paths).map(|(sequence, path)| SearchPath { sequence, path })
    }

    fn push(&mut self, sequence: SequenceState, path: BeamPath) {
        self.executor.sequences.push(sequence);
        self.paths.push(path);
    }
}

impl<'a> BeamSearch<'a> {
    /// Searches for the best path of every item; `None` for a cancelled one.
    pub(crate) fn run(
        &self,
        prompts: &[&Prompt],
        trace: Option<&ReferenceTrace>,
        cache: &mut Cache,
        reward_cache: &mut Cache,
    ) -> Result<Vec<Option<SearchOutput>>, DeviceError> {
        let (scorer, scored) =
            ScorerState::prefill(self.reward_model, reward_cache, prompts, trace)?;
        let mut state = self.state(scorer, cache, reward_cache);
        for spec in self.specs() {
            let path = BeamPath::new(scored[spec.item].fork());
            state.push(SequenceState::new(spec), path);
        }
        state.step(self.sampler)?;
        let first = self.score(&mut state)?;
        self.continue_from(first, state)
    }

    /// The same for items whose first extensions are already in these caches.
    pub(crate) fn run_from(
        &self,
        start: SearchStart<'_>,
        cache: &mut Cache,
        reward_cache: &mut Cache,
    ) -> Result<Vec<Option<SearchOutput>>, DeviceError> {
        let mut state = self.state(start.scorer, cache, reward_cache);
        let mut first = Vec::new();
        let cancelled = self.sampler.cancelled_items();
        let extensions = start.extensions.into_iter().zip(start.scored).zip(self.specs());
        for ((extension, scored), spec) in extensions {
            let mut sequence = SequenceState::new(spec);
            sequence.kv = extension.kv.fork();
            sequence.limit = Some(self.sampler.max_thoughts(&sequence));
            let mut path = BeamPath::new(scored);
            if cancelled[spec.item] {
                continue;
            }
            let Some(thought) = extension.thought.clone() else {
                sequence.next = NextInput::End;
                self.finish(SearchPath { sequence, path }, &mut state);
                continue;
            };
            sequence.push_thought(thought.thought);
            path.process_rewards.push(thought.reward);
            self.count_thought(&sequence, &mut state);
            first.push(SearchPath { sequence, path });
        }
        self.continue_from(first, state)
    }

    /// The initial state of a search.
    fn state<'c>(
        &self,
        scorer: ScorerState,
        cache: &'c mut Cache,
        reward_cache: &'c mut Cache,
    ) -> BeamState<'c, 'a> {
        // Most paths exist for one position only. Prompts are still stored in chunks, so that
        // attention reads them separately from the rest, as in other batches.
        reward_cache.set_slot_granularity(SlotGranularity::Single);
        let mut executor = Executor::aligned(self.context.model, &[]);
        executor.granularity = SlotGranularity::Single;
        let items = self.sampler.items.len();
        let extensions = self.search.extensions();
        BeamState {
            cache,
            reward_cache,
            executor,
            paths: Vec::new(),
            scorer,
            finished: (0..items).map(|_| Vec::new()).collect(),
            costs: (0..items).map(|i| self.cost_model(i).search_prompt(extensions)).collect(),
        }
    }

    /// Continues from scored extensions until no path is left to extend.
    fn continue_from(
        &self,
        mut extensions: Vec<SearchPath>,
        mut state: BeamState<'_, 'a>,
    ) -> Result<Vec<Option<SearchOutput>>, DeviceError> {
        while !extensions.is_empty() {
            let selected = self.select(extensions, &mut state);
            self.extend(&selected, &mut state);
            extensions = if selected.is_empty() {
                Vec::new()
            } else {
                state.step(self.sampler)?;
                self.score(&mut state)?
            };
        }
        self.answer(state)
    }

    /// Scores the thoughts of the last step. Paths that ended without a thought are removed.
    fn score(&self, state: &mut BeamState<'_, 'a>) -> Result<Vec<SearchPath>, DeviceError> {
        let mut extensions = Vec::new();
        for extension in state.take() {
            // The only thought that a continuing path has not fed yet.
            let has_new = extension.sequence.thoughts.len() > extension.path.process_rewards.len();
            match has_new {
                true => extensions.push(extension),
                false => self.finish(extension, state),
            }
        }
        if extensions.is_empty() {
            return Ok(extensions);
        }
        let last = extensions.iter().filter_map(|extension| extension.sequence.thoughts.last());
        let thoughts = Gather::of_thoughts(last).select(self.device())?;
        let rewards = state.scorer.score_thoughts(
            self.reward_model,
            state.reward_cache,
            extensions.iter_mut().map(|extension| &mut extension.path.scored),
            &thoughts,
        )?;
        for (extension, reward) in extensions.iter_mut().zip(rewards) {
            extension.path.process_rewards.push(reward);
            self.count_thought(&extension.sequence, state);
        }
        Ok(extensions)
    }

    fn device(&self) -> &'a Device {
        self.context.model.decoder.device()
    }

    /// The parameters shared by all items.
    fn params(&self) -> &'a SamplingParams {
        self.sampler.items[0].params
    }

    fn cost_model(&self, item: usize) -> CostModel<'a> {
        CostModel { context: self.context, item: self.sampler.items[item] }
    }

    /// The extensions of the empty paths, numbered like samples.
    fn specs(&self) -> Vec<SequenceSpec> {
        let specs = |item: usize| {
            let question = self.sampler.items[item].prompt.id;
            (0..self.search.extensions() as u32).map(move |trajectory| SequenceSpec {
                item,
                id: SequenceId { question, trajectory },
                perturbed: true,
            })
        };
        (0..self.sampler.items.len()).flat_map(specs).collect()
    }

    /// Adds the cost of a new thought and its reward.
    fn count_thought(&self, sequence: &SequenceState, state: &mut BeamState<'_, 'a>) {
        let item = sequence.spec.item;
        state.costs[item] += self.cost_model(item).thought();
        state.costs[item] += self.cost_model(item).process_reward(sequence.kv.len());
    }

    /// Finishes extensions that reached their length, and selects among the rest: by question, each
    /// with the number of its extensions at the next step.
    fn select(
        &self,
        mut extensions: Vec<SearchPath>,
        state: &mut BeamState<'_, 'a>,
    ) -> Vec<SelectedPath> {
        extensions.iter_mut().for_each(|extension| extension.path.owns_scored = true);
        let (finished, mut open): (Vec<SearchPath>, Vec<SearchPath>) =
            extensions.into_iter().partition(|extension| extension.sequence.pending);
        finished.into_iter().for_each(|extension| self.finish(extension, state));
        if self.search.method != SearchMethod::Particles {
            open.sort_by(by_rank); // stable: ties stay in order of their numbers
        }
        let counts = match self.search.method {
            SearchMethod::Beam => self.best_of_question(&open),
            SearchMethod::Dvts => self.best_of_subtrees(&open),
            SearchMethod::Particles => self.resample(&open),
        };
        let mut selected = Vec::new();
        for (path, extensions) in open.into_iter().zip(counts) {
            match extensions {
                0 => self.discard(path, state),
                extensions => selected.push(SelectedPath { path, extensions }),
            }
        }
        selected
    }

    /// Extensions of each path: K for the B best of a question, which come first.
    fn best_of_question(&self, open: &[SearchPath]) -> Vec<usize> {
        let mut counts = Vec::with_capacity(open.len());
        for paths in open.chunk_by(|a, b| a.question() == b.question()) {
            let width = self.search.width.get().min(paths.len());
            counts.extend(std::iter::repeat_n(self.search.candidates.get(), width));
            counts.extend(std::iter::repeat_n(0, paths.len() - width));
        }
        counts
    }

    /// Extensions of each path: K for the best of a subtree, the first of it.
    fn best_of_subtrees(&self, open: &[SearchPath]) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let is_best = |path: &SearchPath| seen.insert((path.question(), self.subtree(path)));
        let best: Vec<bool> = open.iter().map(is_best).collect();
        best.into_iter()
            .map(|is_best| if is_best { self.search.candidates.get() } else { 0 })
            .collect()
    }

    /// Copies of each particle, as many in all as there are: systematic resampling in proportion to
    /// exp(reward of the last thought / temperature).
    fn resample(&self, open: &[SearchPath]) -> Vec<usize> {
        let mut counts = Vec::with_capacity(open.len());
        for particles in open.chunk_by(|a, b| a.question() == b.question()) {
            let first = &particles[0].sequence;
            let item = self.sampler.items[first.spec.item];
            let step = first.thoughts.len();
            let id = SequenceId { question: item.prompt.id, trajectory: RESAMPLING };
            let offset = id.rng_key(item.params.seed, step).uniform(Site::Resampling);
            let rewards = particles.iter().map(|particle| particle.path.last_reward());
            let rewards: Vec<f64> = rewards.collect();
            counts.extend(systematic_resampling(&rewards, self.search.temperature, offset));
        }
        counts
    }

    /// The subtree of a path: extensions are numbered subtree by subtree.
    fn subtree(&self, path: &SearchPath) -> usize {
        path.sequence.spec.id.trajectory as usize / self.search.candidates.get()
    }

    /// Creates the extensions of the selected paths, numbered within their question, that feed the
    /// path's last thought.
    fn extend(&self, selected: &[SelectedPath], state: &mut BeamState<'_, 'a>) {
        let mut numbers = vec![0; state.finished.len()];
        for SelectedPath { path: beam, extensions } in selected {
            let item = beam.question();
            let first = state.paths.len();
            for k in 0..*extensions {
                let mut sequence = beam.sequence.clone();
                sequence.kv = beam.sequence.kv.fork();
                sequence.spec.id.trajectory = match self.search.method {
                    SearchMethod::Beam | SearchMethod::Particles => numbers[item],
                    SearchMethod::Dvts => (self.subtree(beam) * extensions + k) as u32,
                };
                numbers[item] += 1;
                // If one forward pass serves all extensions of a beam, the first extension runs it.
                if k > 0 && !self.extensions_differ() {
                    sequence.next = NextInput::Fork(first);
                } else {
                    state.costs[item] += self.cost_model(item).pass(sequence.kv.len());
                }
                let scored = beam.path.scored.fork();
                let path = BeamPath { scored, owns_scored: false, ..beam.path.clone() };
                state.push(sequence, path);
            }
        }
    }

    /// Whether the extensions of one beam differ in the forward pass over its last thought.
    fn extensions_differ(&self) -> bool {
        self.params().perturbation.is_dropout()
    }

    /// Adds a path to the finished paths of its question, of which only the best are retained: of a
    /// subtree one.
    fn finish(&self, candidate: SearchPath, state: &mut BeamState<'_, 'a>) {
        let finished = &mut state.finished[candidate.question()];
        let mut dropped = None;
        if self.search.method == SearchMethod::Dvts {
            let subtree = self.subtree(&candidate);
            if let Some(index) = finished.iter().position(|other| self.subtree(other) == subtree) {
                if finished[index].path.mean() >= candidate.path.mean() {
                    return self.discard(candidate, state);
                }
                dropped = Some(finished.remove(index));
            }
        }
        let index = finished.partition_point(|other| other.path.mean() >= candidate.path.mean());
        finished.insert(index, candidate);
        if finished.len() > self.num_finalists() {
            dropped = finished.pop();
        }
        dropped.into_iter().for_each(|candidate| self.discard(candidate, state));
    }

    /// Releases the last positions of a discarded path, if they are not shared.
    fn discard(&self, candidate: SearchPath, state: &mut BeamState<'_, 'a>) {
        if candidate.path.owns_scored {
            state.reward_cache.release_last(candidate.path.scored.sequence);
        }
        if self.extensions_differ() {
            state.cache.release_last(candidate.sequence.kv);
        }
    }

    fn num_finalists(&self) -> usize {
        self.reward_model.num_finalists(self.search)
    }

    /// Decodes the finalists of every question and chooses among them.
    fn answer(
        &self,
        mut state: BeamState<'_, 'a>,
    ) -> Result<Vec<Option<SearchOutput>>, DeviceError> {
        let model = self.context.model;
        state.executor.granularity = SlotGranularity::Chunk;
        state.reward_cache.set_slot_granularity(SlotGranularity::Chunk);
        let mut outputs: Vec<Option<SearchOutput>> = state.finished.iter().map(|_| None).collect();
        let cancelled = self.sampler.cancelled_items();
        for SearchPath { mut sequence, path } in
            std::mem::take(&mut state.finished).into_iter().flatten()
        {
            if !cancelled[sequence.spec.item] {
                sequence.kv = sequence.kv.fork();
                state.push(sequence, path);
            }
        }
        let is_done = |sequence: &SequenceState| sequence.next == NextInput::Done;
        while !state.executor.sequences.iter().all(is_done) {
            state.step(self.sampler)?;
        }
        let mut finalists: Vec<SearchPath> = state.take().collect();
        if finalists.is_empty() {
            return Ok(outputs);
        }
        let answers: Vec<AnswerTokens> =
            finalists.iter().map(|finalist| finalist.sequence.tokens.clone()).collect();
        let mut scored: Vec<ScoredPath> =
            finalists.iter().map(|finalist| finalist.path.scored.fork()).collect();
        let read = AnswerBatch { end_latent: &model.method.end_latent, answers: &answers };
        let outcomes =
            state.scorer.score_answers(self.reward_model, state.reward_cache, &mut scored, read)?;
        let mut outcomes = outcomes.into_iter();
        let mut costs = state.costs;
        for SearchPath { sequence, path } in finalists.drain(..) {
            let item = sequence.spec.item;
            let cost_model = self.cost_model(item);
            let thoughts = sequence.thoughts.len();
            let tokens = sequence.tokens;
            let start = self.sampler.items[item].prompt_len() + thoughts;
            let fed = start - usize::from(sequence.limit == Some(thoughts));
            // The last token is decoded, not fed.
            let end = start + model.method.end_latent.len() + tokens.len() - 1;
            costs[item] += cost_model.answer(fed..end, tokens.len());
            let outcome = outcomes.next();
            if outcome.is_some() {
                costs[item] += cost_model.outcome_reward(thoughts, tokens.len());
            }
            let rewards = Rewards { process: path.process_rewards, outcome };
            let answered = AnsweredPath { thoughts, tokens, rewards };
            let paths = &mut outputs[item].get_or_insert_default().paths;
            match paths.first_mut().filter(|_| self.search.method == SearchMethod::Beam) {
                Some(best) if outcome > best.rewards.outcome => *best = answered,
                Some(_) => {}
                None => paths.push(answered),
            }
        }
        for (output, cost) in outputs.iter_mut().zip(costs) {
            output.iter_mut().for_each(|output| output.cost = cost);
        }
        Ok(outputs)
    }
}

/// Orders by question, then by descending cumulative reward.
fn by_rank(a: &SearchPath, b: &SearchPath) -> Ordering {
    a.question()
        .cmp(&b.question())
        .then_with(|| b.path.cumulative().total_cmp(&a.path.cumulative()))
}
