//! Compares searches with their definitions: every extension recomputed from scratch, every reward
//! computed from the whole path, the best selected by sorting.

use std::collections::BTreeSet;

use latent_tts_engine::{
    AnswerBatch, LatentLength, Output, Perturbation, Prompt, Rewards, SamplingParams, Search,
    SearchMethod, reference,
};
use model::testkit::CheckpointFamily;
use model::{Config, RewardHead, TensorSource};
use tensor::Tensor;

use crate::common::*;
use crate::length::{OPEN_LENGTH, open_length};
use crate::naive::{NaiveEngine, argmax};

/// A beam search of that size.
pub fn size(width: usize, candidates: usize) -> Option<Search> {
    Some(Search::beam(nonzero(width), nonzero(candidates)))
}

/// A particle filter.
fn particles(count: usize, temperature: f64) -> Option<Search> {
    let filter = Search::for_samples(SearchMethod::Particles, nonzero(count));
    Some(Search { temperature, ..filter })
}

/// A diverse verifier tree search.
fn subtrees(width: usize, candidates: usize) -> Option<Search> {
    let search = Search::beam(nonzero(width), nonzero(candidates));
    Some(Search { method: SearchMethod::Dvts, ..search })
}

/// A path with all of its inputs; its last thought is not fed yet.
#[derive(Clone)]
struct NaivePath<'a> {
    naive: NaiveEngine<'a>,
    thoughts: Tensor,
    process_rewards: Vec<f32>,
    max_thoughts: usize,
    /// Whether the model stopped by itself, with all thoughts fed.
    ended_itself: bool,
}

impl NaivePath<'_> {
    fn cumulative(&self) -> f64 {
        self.process_rewards.iter().copied().map(f64::from).sum()
    }

    fn mean(&self) -> f64 {
        if self.process_rewards.is_empty() {
            f64::NEG_INFINITY
        } else {
            self.cumulative() / self.process_rewards.len() as f64
        }
    }

    fn feed_last_thought(&mut self) {
        let count = self.thoughts.rows();
        self.naive.feed_thought(self.thoughts.row(count - 1), count);
    }
}

/// A beam search by definition.
#[derive(Clone, Copy)]
struct NaiveSearch<'a> {
    pair: &'a RewardedReasoner,
    params: &'a SamplingParams,
    prompt: &'a Prompt,
}

/// Paths with the random numbers of the trajectories from `first` on.
fn numbered<'a>(
    mut paths: Vec<NaivePath<'a>>,
    first: usize,
    prompt: &Prompt,
) -> Vec<NaivePath<'a>> {
    for (index, path) in paths.iter_mut().enumerate() {
        path.naive.row = row_id(prompt.id, first + index);
    }
    paths
}

/// The best path: its thoughts, their rewards, the answer's tokens and its reward.
#[derive(Debug, PartialEq)]
struct NaiveResult {
    thoughts: usize,
    process_rewards: Vec<f32>,
    tokens: Vec<u32>,
    outcome: Option<f32>,
}

impl<'a> NaiveSearch<'a> {
    fn run(self) -> NaiveResult {
        let search = self.params.search.unwrap();
        let width = search.width.get();
        let candidates = search.candidates.get();
        let mut extensions: Vec<_> = (0..width * candidates).map(|c| self.empty_path(c)).collect();
        let mut finished = Vec::new();
        while !extensions.is_empty() {
            let mut open = Vec::new();
            self.extend(extensions, &mut open, &mut finished);
            extensions = match search.method {
                SearchMethod::Beam => {
                    open.sort_by(|a, b| b.cumulative().total_cmp(&a.cumulative()));
                    open.truncate(width);
                    let copies = |path: &NaivePath<'a>| vec![path.clone(); candidates];
                    numbered(open.iter().flat_map(copies).collect(), 0, self.prompt)
                }
                SearchMethod::Particles => numbered(self.resampled(&open), 0, self.prompt),
                SearchMethod::Dvts => {
                    let best_of = |subtree: usize| {
                        let number = |path: &&NaivePath<'a>| path.naive.row.trajectory as usize;
                        let own = open.iter().filter(|path| number(path) / candidates == subtree);
                        // The first of equals.
                        let best =
                            own.rev().max_by(|a, b| a.cumulative().total_cmp(&b.cumulative()));
                        let copies = best.map(|path| vec![path.clone(); candidates]);
                        numbered(copies.unwrap_or_default(), subtree * candidates, self.prompt)
                    };
                    (0..width).flat_map(best_of).collect()
                }
            };
            extensions.iter_mut().for_each(NaivePath::feed_last_thought);
        }
        finished.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
        if search.method == SearchMethod::Dvts {
            let mut subtrees = BTreeSet::new();
            finished
                .retain(|path| subtrees.insert(path.naive.row.trajectory as usize / candidates));
        }
        if search.method != SearchMethod::Beam {
            return self.vote(finished.into_iter().map(|path| self.answer(path)).collect());
        }
        finished.truncate(if self.pair.reward_model.outcome_head.is_some() { width } else { 1 });
        let answered = finished.into_iter().map(|path| self.answer(path));
        answered.reduce(|best, path| if path.outcome > best.outcome { path } else { best }).unwrap()
    }

    /// Particles by the inverse of the cumulative weights at equidistant points.
    fn resampled(self, open: &[NaivePath<'a>]) -> Vec<NaivePath<'a>> {
        let Some(first) = open.first() else { return Vec::new() };
        let temperature = self.params.search.unwrap().temperature;
        let id = row_id(self.prompt.id, u32::MAX as usize);
        let key = id.rng_key(self.params.seed, first.thoughts.rows());
        let offset = key.uniform(tensor::rng::Site::Resampling);
        let weight = |path: &NaivePath<'a>| {
            (f64::from(*path.process_rewards.last().unwrap()) / temperature).exp()
        };
        let weights: Vec<f64> = open.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let chosen = |point: usize| {
            let position = (point as f64 + offset) / open.len() as f64 * total;
            let up_to = |count: usize| weights[..count].iter().sum::<f64>();
            (0..open.len() - 1).find(|&i| position < up_to(i + 1)).unwrap_or(open.len() - 1)
        };
        (0..open.len()).map(|point| open[chosen(point)].clone()).collect()
    }

    /// The path that the vote selects, weighted by the outcome reward, else by the last reward of a
    /// particle and the mean reward of a subtree; the first of those with the chosen answer.
    fn vote(self, paths: Vec<NaiveResult>) -> NaiveResult {
        let search = self.params.search.unwrap();
        let weight = |path: &NaiveResult| {
            let rewards: Vec<f64> = path.process_rewards.iter().copied().map(f64::from).collect();
            let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
            let own = match search.method {
                SearchMethod::Particles => rewards.last().unwrap() / search.temperature,
                _ => mean,
            };
            path.outcome.map_or(own, f64::from).exp()
        };
        let answer = |path: &NaiveResult| {
            let kind = latent_tts_engine::Request::new("", *self.params).answer_kind;
            let (_, answer) = self.pair.reasoner.parse_answer(kind, &path.tokens).unwrap();
            answer.map(|answer| answer.as_str().to_owned())
        };
        let answers: Vec<Option<String>> = paths.iter().map(answer).collect();
        let share = |of: &Option<String>| {
            let votes = paths.iter().zip(&answers).filter(|(_, answer)| *answer == of);
            votes.map(|(path, _)| weight(path)).sum::<f64>()
        };
        let answered = (0..paths.len()).filter(|&i| answers[i].is_some());
        let best = answered.reduce(|best, i| match share(&answers[i]) > share(&answers[best]) {
            true => i,
            false => best,
        });
        paths.into_iter().nth(best.unwrap_or(0)).unwrap()
    }

    /// A path without thoughts, with the random numbers of trajectory `c`.
    fn empty_path(self, c: usize) -> NaivePath<'a> {
        let reasoner = &self.pair.reasoner;
        let id = row_id(self.prompt.id, c);
        let max_thoughts = max_thoughts(self.params, id);
        let mut naive = NaiveEngine::new(reasoner, self.params, id, max_thoughts);
        naive.feed_prompt(&self.prompt.tokens);
        let thoughts = Tensor::zeros(0, reasoner.decoder.config().width);
        let process_rewards = Vec::new();
        NaivePath { naive, thoughts, process_rewards, max_thoughts, ended_itself: false }
    }

    /// Adds a thought to each path: finished paths go to `finished`, first those where the model
    /// stopped by itself, and the others to `open`.
    fn extend(
        self,
        paths: Vec<NaivePath<'a>>,
        open: &mut Vec<NaivePath<'a>>,
        finished: &mut Vec<NaivePath<'a>>,
    ) {
        let is_open_length = matches!(self.params.length, LatentLength::AtMost(_));
        let end = self.pair.reasoner.method.end_latent[0];
        let mut at_limit = Vec::new();
        for mut path in paths {
            if is_open_length && argmax(&path.naive.logits()) == end {
                finished.push(NaivePath { ended_itself: true, ..path });
                continue;
            }
            path.thoughts.push(&path.naive.thought());
            let rewards = self.rewards(&path.thoughts, None).process;
            let (_, earlier) = rewards.split_last().unwrap();
            assert_eq!(earlier, path.process_rewards, "rewards of earlier thoughts do not change");
            path.process_rewards = rewards;
            let is_full = path.thoughts.rows() == path.max_thoughts;
            if is_full { at_limit.push(path) } else { open.push(path) }
        }
        finished.extend(at_limit);
    }

    /// Rewards of a whole path.
    fn rewards(self, thoughts: &Tensor, answers: Option<AnswerBatch<'_>>) -> Rewards {
        let model = &self.pair.reward_model;
        let rows = std::slice::from_ref(thoughts);
        reference::rewards_with_answers(model, self.prompt, rows, answers).unwrap().remove(0)
    }

    /// Decodes a finished path.
    fn answer(self, mut path: NaivePath<'a>) -> NaiveResult {
        if !path.ended_itself {
            path.feed_last_thought();
        }
        let tokens = path.naive.answer().0;
        let answers = [tokens.clone().into()];
        let end_latent = &self.pair.reasoner.method.end_latent;
        let answers = AnswerBatch { end_latent, answers: &answers };
        let outcome = self.rewards(&path.thoughts, Some(answers)).outcome;
        let process_rewards = path.process_rewards;
        NaiveResult { thoughts: path.thoughts.rows(), process_rewards, tokens, outcome }
    }
}

/// Fails unless the search agrees with its definition; returns the numbers of thoughts.
pub fn assert_naive(pair: &RewardedReasoner, params: SamplingParams, what: &str) -> Vec<usize> {
    let questions = &questions()[2..4];
    let mut lengths = Vec::new();
    for (question, reply) in questions.iter().zip(pair.run(params, questions)) {
        let prompt = &prompt_of(&pair.reasoner, question);
        let expected = NaiveSearch { pair, params: &params, prompt }.run();
        let best = reply.beam.unwrap().best;
        let text = pair.reasoner.tokenizer.decode(&expected.tokens).unwrap();
        assert_eq!(best.text, text, "{what}");
        lengths.push(best.thoughts);
        let found = NaiveResult {
            thoughts: best.thoughts,
            process_rewards: best.process_rewards.unwrap(),
            tokens: best.tokens.to_vec(),
            outcome: best.outcome_reward,
        };
        assert_eq!(found, expected, "{what}");
    }
    lengths
}

#[test]
fn every_family_finds_what_the_definition_does() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let params = short_params(&pair.reasoner, 1, perturbation);
            let params = SamplingParams { search: size(2, 3), ..params };
            assert_naive(&pair, params, &format!("{family:?}, {perturbation:?}"));
        }
    }
}

#[test]
fn a_reference_trace_and_an_outcome_head_guide_as_in_the_definition() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::LatentSft] {
        let with_outcome = RewardedReasoner::with_reference(family);
        let mut without_outcome = RewardedReasoner::with_reference(family);
        without_outcome.reward_model_mut().outcome_head = None;
        for perturbation in perturbations() {
            let params = short_params(&with_outcome.reasoner, 1, perturbation);
            let params = SamplingParams { search: size(3, 3), ..params };
            let what = format!("{family:?}, {perturbation:?}");
            assert_naive(&with_outcome, params, &format!("{what}, with an outcome head"));
            assert_naive(&without_outcome, params, &format!("{what}, without"));
        }
    }
}

#[test]
fn every_size_finds_what_the_definition_does() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    for (width, candidates) in [(1, 1), (1, 4), (3, 1), (4, 2)] {
        for perturbation in [thought_dropout(0.3), Perturbation::Gaussian { std: 0.6 }] {
            let params = short_params(&pair.reasoner, 1, perturbation);
            let params = SamplingParams { search: size(width, candidates), ..params };
            assert_naive(&pair, params, &format!("{width} x {candidates}, {perturbation:?}"));
        }
    }
}

/// Paths of different lengths, where the model stops by itself or the number is sampled. Short ones
/// win in some searches, long ones in others.
#[test]
fn paths_of_different_lengths_compete_by_their_mean() {
    let mut lengths = Vec::new();
    for family in OPEN_LENGTH {
        let pair = open_length(family);
        for perturbation in [thought_dropout(0.3), Perturbation::Gaussian { std: 0.6 }] {
            let base = short_params(&pair.reasoner, 1, perturbation);
            for search in [size(2, 2), size(3, 2)] {
                let params = SamplingParams { search, length: at_most(5), ..base };
                let what = format!("{family:?}, {perturbation:?}, {search:?}");
                lengths.extend(assert_naive(&pair, params, &what));
            }
        }
    }
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let base = short_params(&pair.reasoner, 1, thought_dropout(0.3));
    for seed in 0..3 {
        let params = SamplingParams { seed, search: size(2, 3), length: between(1, 5), ..base };
        lengths.extend(assert_naive(&pair, params, &format!("seed {seed}")));
    }
    let different: BTreeSet<usize> = lengths.iter().copied().collect();
    assert!(different.len() >= 3, "{lengths:?}");
}

#[test]
fn particles_and_subtrees_find_what_the_definition_does() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiGpt2] {
        let with_outcome = RewardedReasoner::with_reference(family);
        let without_outcome = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            for search in [particles(6, 1.0), particles(5, 0.05), subtrees(3, 2), subtrees(1, 4)] {
                for pair in [&with_outcome, &without_outcome] {
                    let params = short_params(&pair.reasoner, 1, perturbation);
                    let params = SamplingParams { search, ..params };
                    assert_naive(
                        pair,
                        params,
                        &format!("{family:?}, {perturbation:?}, {search:?}"),
                    );
                }
            }
        }
    }
    let mut lengths = Vec::new();
    for family in OPEN_LENGTH {
        let pair = open_length(family);
        for search in [particles(6, 0.3), subtrees(3, 3)] {
            let base = short_params(&pair.reasoner, 1, thought_dropout(0.3));
            let params = SamplingParams { search, length: at_most(5), ..base };
            lengths.extend(assert_naive(&pair, params, &format!("{family:?}, {search:?}")));
        }
    }
    assert!(lengths.iter().any(|&thoughts| thoughts != lengths[0]), "{lengths:?}");
}

/// One particle is never resampled, and a search of one path has nothing to choose.
#[test]
fn one_particle_is_trajectory_0() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    for perturbation in perturbations() {
        for search in [particles(1, 1.0), subtrees(1, 1)] {
            let params = short_params(&pair.reasoner, 2, perturbation);
            for reply in pair.run(SamplingParams { search, ..params }, &questions()) {
                assert_is_trajectory_0(&reply, &format!("{perturbation:?}, {search:?}"));
            }
        }
    }
}

#[test]
fn one_beam_with_one_extension_is_trajectory_0() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let base = short_params(&pair.reasoner, 2, perturbation);
            for length in [base.length, between(1, 4)] {
                let params = SamplingParams { search: size(1, 1), length, ..base };
                for reply in pair.run(params, &questions()) {
                    let what = format!("{family:?}, {perturbation:?}, {length:?}");
                    assert_is_trajectory_0(&reply, &what);
                }
            }
        }
    }
}

fn assert_is_trajectory_0(reply: &Output, what: &str) {
    let best = &reply.beam.as_ref().unwrap().best;
    let first = &reply.trajectories[0];
    assert_eq!((best.number, best.thoughts), (first.number, first.thoughts), "{what}");
    assert_eq!((&best.tokens, &best.text), (&first.tokens, &first.text), "{what}");
    assert_eq!(best.answer, first.answer, "{what}");
    assert_eq!(best.process_rewards, first.process_rewards, "{what}");
}

/// A source of zero weights.
struct ZeroWeights;

impl TensorSource for ZeroWeights {
    fn has(&self, _: &str) -> bool {
        true
    }

    fn tensor(&self, _: &str, shape: &[usize]) -> Result<Vec<f32>, model::ModelError> {
        Ok(vec![0.0; shape.iter().product()])
    }
}

/// Models whose rewards are all equal.
fn with_equal_rewards(family: CheckpointFamily) -> RewardedReasoner {
    let mut pair = RewardedReasoner::of(family);
    let config: Config = pair.reward_model.decoder.config().clone();
    pair.reward_model_mut().head = RewardHead::load(device(), &config, &ZeroWeights).unwrap();
    pair
}

/// Equal rewards go to the lowest number at every step.
#[test]
fn equal_rewards_find_trajectory_0_and_without_perturbation_the_greedy_one() {
    for family in FAMILIES {
        let pair = with_equal_rewards(family);
        for perturbation in perturbations() {
            let params = short_params(&pair.reasoner, 2, perturbation);
            let params = SamplingParams { search: size(3, 2), length: exactly(4), ..params };
            for reply in pair.run(params, &questions()) {
                assert_is_trajectory_0(&reply, &format!("{family:?}, {perturbation:?}"));
            }
        }
        let params = short_params(&pair.reasoner, 1, Perturbation::None);
        let params = SamplingParams { search: size(2, 2), greedy: true, ..params };
        for reply in pair.run(params, &questions()) {
            let best = reply.beam.unwrap().best;
            let greedy = reply.greedy.unwrap();
            assert_eq!((best.thoughts, &best.text), (greedy.thoughts, &greedy.text), "{family:?}");
        }
    }
}

/// The result does not depend on the other questions, the memory or the number of samples.
#[test]
fn a_search_does_not_depend_on_what_shares_its_batch() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let params = short_params(&pair.reasoner, 10, perturbation);
            let params = SamplingParams { search: size(3, 3), ..params };
            let together = pair.run(params, &questions());
            let requests: Vec<_> = questions().iter().map(|q| q.request(params)).collect();
            // From enough memory for a search alone to enough for searches in addition to their
            // batches.
            let least = smallest_memory(&pair.engine(), &requests);
            for memory in [4, 5, 6, 8, 11, 16].map(|quarters| least * quarters / 4) {
                let tight = pair.run_in_memory(memory, params, &questions());
                let what = format!("{family:?}, {perturbation:?}, {memory} bytes");
                assert_all_same(&together, &tight, &what);
            }
            // Its first extensions are not among so few samples.
            let fewer = SamplingParams { samples: nonzero(8), ..params };
            for (a, question) in together.iter().zip(questions()) {
                let what = format!("{family:?}, {perturbation:?}, question {}", question.id);
                assert_same(a, &pair.solve(params, &question), &what);
                assert_eq!(a.beam, pair.solve(fewer, &question).beam, "{what}");
            }
        }
    }
}

/// On average, the result of a search has a larger reward than samples.
#[test]
fn a_search_finds_larger_rewards_than_samples_do() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let params = short_params(&pair.reasoner, 4, thought_dropout(0.3));
    let params = SamplingParams { search: size(4, 4), ..params };
    let sum = |rewards: &Option<Vec<f32>>| rewards.as_ref().unwrap().iter().sum::<f32>();
    let mut found = 0.0;
    let mut sampled = 0.0;
    for reply in pair.run(params, &questions()) {
        found += sum(&reply.beam.unwrap().best.process_rewards);
        let rewards = reply.trajectories.iter().map(|t| sum(&t.process_rewards));
        sampled += rewards.sum::<f32>() / 4.0;
    }
    assert!(found > sampled, "{found} {sampled}");
}

#[test]
fn a_search_without_reward_model_thoughts_or_memory_is_refused() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let params = short_params(&pair.reasoner, 1, thought_dropout(0.3));
    let params = SamplingParams { search: size(40, 40), ..params };
    let refused = |engine: &latent_tts_engine::Engine, params| {
        run(engine, params, &questions()).unwrap_err().to_string()
    };
    let unrewarded = refused(&pair.unrewarded_engine(), params);
    assert!(unrewarded.contains("reward model"), "{unrewarded}");
    let no_thoughts =
        SamplingParams { length: LatentLength::None, perturbation: Perturbation::None, ..params };
    let no_thoughts = refused(&pair.engine(), no_thoughts);
    assert!(no_thoughts.contains("needs latent thoughts"), "{no_thoughts}");
    let large = refused(&pair.engine().with_memory(1 << 20), params);
    assert!(large.contains("beam search needs") && large.contains("fewer beams"), "{large}");
}

#[test]
fn the_default_size_is_the_root() {
    let roots = [(1, 1), (2, 1), (3, 2), (4, 2), (16, 4), (32, 6), (64, 8)];
    for (samples, root) in roots {
        assert_eq!(
            Some(Search::for_samples(SearchMethod::Beam, nonzero(samples))),
            size(root, root),
            "{samples}"
        );
    }
}
