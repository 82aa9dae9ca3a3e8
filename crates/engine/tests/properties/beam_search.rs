//! Compares beam search with its definition: every extension recomputed from scratch, every reward
//! computed from the whole path, the best selected by sorting.

use std::collections::BTreeSet;

use latent_tts_engine::{
    AnswerBatch, BeamSize, LatentLength, Perturbation, Prompt, Reply, Rewards, SamplingParams,
    reference,
};
use model::testkit::CheckpointFamily;
use model::{Config, RewardHead, TensorSource};
use tensor::Tensor;

use crate::common::*;
use crate::length::{OPEN_LENGTH, open_length};
use crate::naive::{NaiveEngine, argmax};

/// A search of that size.
pub fn size(width: usize, candidates: usize) -> Option<BeamSize> {
    Some(BeamSize { width: nonzero(width), candidates: nonzero(candidates) })
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
        let BeamSize { width, candidates } = self.params.beam.unwrap();
        let width = width.get();
        let candidates = candidates.get();
        let mut extensions: Vec<_> = (0..width * candidates).map(|c| self.empty_path(c)).collect();
        let mut finished = Vec::new();
        while !extensions.is_empty() {
            let mut open = Vec::new();
            self.extend(extensions, &mut open, &mut finished);
            open.sort_by(|a, b| b.cumulative().total_cmp(&a.cumulative()));
            open.truncate(width);
            let forks = open.iter().flat_map(|beam| std::iter::repeat_n(beam.clone(), candidates));
            extensions = forks.collect();
            for (c, path) in extensions.iter_mut().enumerate() {
                path.naive.row = row_id(self.prompt.id, c);
                path.feed_last_thought();
            }
        }
        finished.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
        finished.truncate(if self.pair.reward_model.outcome_head.is_some() { width } else { 1 });
        let answered = finished.into_iter().map(|path| self.answer(path));
        answered.reduce(|best, path| if path.outcome > best.outcome { path } else { best }).unwrap()
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
            let params = SamplingParams { beam: size(2, 3), ..params };
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
            let params = SamplingParams { beam: size(3, 3), ..params };
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
            let params = SamplingParams { beam: size(width, candidates), ..params };
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
            for beam in [size(2, 2), size(3, 2)] {
                let params = SamplingParams { beam, length: at_most(5), ..base };
                let what = format!("{family:?}, {perturbation:?}, {beam:?}");
                lengths.extend(assert_naive(&pair, params, &what));
            }
        }
    }
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let base = short_params(&pair.reasoner, 1, thought_dropout(0.3));
    for seed in 0..3 {
        let params = SamplingParams { seed, beam: size(2, 3), length: between(1, 5), ..base };
        lengths.extend(assert_naive(&pair, params, &format!("seed {seed}")));
    }
    let different: BTreeSet<usize> = lengths.iter().copied().collect();
    assert!(different.len() >= 3, "{lengths:?}");
}

#[test]
fn one_beam_with_one_extension_is_trajectory_0() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let base = short_params(&pair.reasoner, 2, perturbation);
            for length in [base.length, between(1, 4)] {
                let params = SamplingParams { beam: size(1, 1), length, ..base };
                for reply in pair.run(params, &questions()) {
                    let what = format!("{family:?}, {perturbation:?}, {length:?}");
                    assert_is_trajectory_0(&reply, &what);
                }
            }
        }
    }
}

fn assert_is_trajectory_0(reply: &Reply, what: &str) {
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
            let params = SamplingParams { beam: size(3, 2), length: exactly(4), ..params };
            for reply in pair.run(params, &questions()) {
                assert_is_trajectory_0(&reply, &format!("{family:?}, {perturbation:?}"));
            }
        }
        let params = short_params(&pair.reasoner, 1, Perturbation::None);
        let params = SamplingParams { beam: size(2, 2), greedy: true, ..params };
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
            let params = SamplingParams { beam: size(3, 3), ..params };
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
    let params = SamplingParams { beam: size(4, 4), ..params };
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
    let params = SamplingParams { beam: size(40, 40), ..params };
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
        assert_eq!(Some(BeamSize::for_samples(nonzero(samples))), size(root, root), "{samples}");
    }
}
