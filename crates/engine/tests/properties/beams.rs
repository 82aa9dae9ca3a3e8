//! A beam search is the enumeration of its definition: every extension recomputed from nothing,
//! every reward read from the whole path, the best kept by sorting.

use engine::prompt::Prompt;
use engine::{
    AnswerBatch, BeamSize, Engine, LatentLength, Perturbation, RewardModel, SamplingParams,
    reference,
};
use model::testkit::CheckpointFamily;
use model::{Config, RewardHead, TensorSource};
use tensor::Tensor;

use crate::common::*;
use crate::length::{OPEN_ENDED, open_ended};
use crate::recomputed::{NaiveEngine, likeliest};

/// A search of that size.
pub fn size(width: usize, candidates: usize) -> Option<BeamSize> {
    Some(BeamSize { width: count(width), candidates: count(candidates) })
}

/// A path with everything that was fed to make it; the last thought is not fed yet.
#[derive(Clone)]
struct EnumeratedPath<'a> {
    naive: NaiveEngine<'a>,
    thoughts: Tensor,
    rewards: Vec<f32>,
    limit: usize,
    ended_by_itself: bool,
}

impl EnumeratedPath<'_> {
    fn cumulative(&self) -> f64 {
        self.rewards.iter().copied().map(f64::from).sum()
    }

    fn mean(&self) -> f64 {
        if self.rewards.is_empty() {
            f64::NEG_INFINITY
        } else {
            self.cumulative() / self.rewards.len() as f64
        }
    }
}

/// What a search finds: thoughts, step rewards, tokens.
fn enumerated(
    pair: &RewardedReasoner,
    settings: &SamplingParams,
    prompt: &Prompt,
) -> (usize, Vec<f32>, Vec<u32>) {
    let BeamSize { width, candidates } = settings.beam.unwrap();
    let (width, candidates) = (width.get(), candidates.get());
    let empty = |c: usize| {
        let id = row(prompt.id, c);
        let limit = most_thoughts(settings, id);
        let mut naive = NaiveEngine::new(&pair.reasoner, settings, id, limit);
        naive.feed_prompt(&prompt.tokens);
        let thoughts = Tensor::zeros(0, pair.reasoner.decoder.config().width);
        EnumeratedPath { naive, thoughts, rewards: Vec::new(), limit, ended_by_itself: false }
    };
    let mut extensions: Vec<EnumeratedPath<'_>> = (0..width * candidates).map(empty).collect();
    let mut ended: Vec<EnumeratedPath<'_>> = Vec::new();
    while !extensions.is_empty() {
        let mut going = Vec::new();
        let open = matches!(settings.length, LatentLength::AtMost(_));
        let end = pair.reasoner.method.end_latent[0];
        let (mut stopped, mut full) = (Vec::new(), Vec::new());
        for mut path in extensions {
            if open && likeliest(&path.naive.logits()) == end {
                stopped.push(EnumeratedPath { ended_by_itself: true, ..path });
                continue;
            }
            path.thoughts.push(&path.naive.thought());
            let whole =
                reference::rewards(&pair.judge, prompt, std::slice::from_ref(&path.thoughts))
                    .unwrap()
                    .remove(0);
            assert_eq!(
                whole[..whole.len() - 1],
                path.rewards,
                "rewards of earlier thoughts do not change"
            );
            path.rewards = whole;
            if path.thoughts.rows() == path.limit { full.push(path) } else { going.push(path) }
        }
        ended.extend(stopped.into_iter().chain(full));
        going.sort_by(|a, b| b.cumulative().total_cmp(&a.cumulative()));
        going.truncate(width);
        extensions =
            going.iter().flat_map(|beam| std::iter::repeat_n(beam.clone(), candidates)).collect();
        for (c, path) in extensions.iter_mut().enumerate() {
            path.naive.row = row(prompt.id, c);
            path.naive
                .feed_thought(path.thoughts.row(path.thoughts.rows() - 1), path.thoughts.rows());
        }
    }
    ended.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
    ended.truncate(if pair.judge.outcome_head.is_some() { width } else { 1 });
    let decoded = ended.into_iter().map(|mut path| {
        if !path.ended_by_itself {
            path.naive
                .feed_thought(path.thoughts.row(path.thoughts.rows() - 1), path.thoughts.rows());
        }
        let tokens = path.naive.answer().0;
        let answers = [tokens.clone().into()];
        let said = AnswerBatch { end_latent: &pair.reasoner.method.end_latent, answers: &answers };
        let reading = reference::rewards_with_answers(
            &pair.judge,
            prompt,
            std::slice::from_ref(&path.thoughts),
            Some(said),
        )
        .unwrap()
        .remove(0);
        (reading.outcome, (path.thoughts.rows(), path.rewards, tokens))
    });
    decoded.reduce(|best, path| if path.0 > best.0 { path } else { best }).unwrap().1
}

/// Fails unless the search finds what the enumeration does; returns the number of thoughts.
fn check(pair: &RewardedReasoner, settings: SamplingParams, what: &str) -> Vec<usize> {
    let asked = &questions()[2..4];
    let outcomes = pair.ask(settings, asked);
    let mut lengths = Vec::new();
    for (question, outcome) in asked.iter().zip(&outcomes) {
        let prompt = prompted(&pair.reasoner, question);
        let (thoughts, scores, tokens) = enumerated(pair, &settings, &prompt);
        let beam = outcome.sample.beam.as_ref().unwrap();
        assert_eq!((beam.thoughts as usize, &beam.process_rewards), (thoughts, &scores), "{what}");
        assert_eq!(beam.text, pair.reasoner.tokenizer.decode(&tokens).unwrap(), "{what}");
        assert_eq!(beam.reward, scores.iter().sum::<f32>(), "{what}");
        lengths.push(thoughts);
    }
    lengths
}

#[test]
fn every_family_searches_as_its_enumeration_does() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let settings =
                SamplingParams { beam: size(2, 3), ..settings(&pair.reasoner, 1, perturbation) };
            check(&pair, settings, &format!("{family:?}, {perturbation:?}"));
        }
    }
}

#[test]
fn a_judge_that_thinks_steers_as_its_enumeration_does() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::LatentSft] {
        let pair = RewardedReasoner::reflecting(family);
        let unread = RewardedReasoner {
            judge: RewardModel { outcome_head: None, ..RewardedReasoner::reflecting(family).judge },
            ..RewardedReasoner::of(family)
        };
        for perturbation in perturbations() {
            let settings =
                SamplingParams { beam: size(3, 3), ..settings(&pair.reasoner, 1, perturbation) };
            check(&pair, settings, &format!("{family:?}, {perturbation:?}, with verdicts"));
            check(&unread, settings, &format!("{family:?}, {perturbation:?}, without"));
        }
    }
}

#[test]
fn every_size_searches_as_its_enumeration_does() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    for (width, candidates) in [(1, 1), (1, 4), (3, 1), (4, 2)] {
        for perturbation in [thoughtful(0.3), Perturbation::Gaussian { std: 0.6 }] {
            let settings = SamplingParams {
                beam: size(width, candidates),
                ..settings(&pair.reasoner, 1, perturbation)
            };
            check(&pair, settings, &format!("{width} x {candidates}, {perturbation:?}"));
        }
    }
}

/// Beams of unlike length: by their own decision, and by a drawn number. Short ones win somewhere,
/// long ones elsewhere.
#[test]
fn beams_of_unlike_length_compete_by_their_mean() {
    let mut lengths = Vec::new();
    for family in OPEN_ENDED {
        let pair = open_ended(family);
        for perturbation in [thoughtful(0.3), Perturbation::Gaussian { std: 0.6 }] {
            let base = settings(&pair.reasoner, 1, perturbation);
            for beam in [size(2, 2), size(3, 2)] {
                let settings = SamplingParams { beam, length: at_most(5), ..base };
                lengths.extend(check(
                    &pair,
                    settings,
                    &format!("{family:?}, {perturbation:?}, {beam:?}"),
                ));
            }
        }
    }
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    for seed in 0..3 {
        let base = settings(&pair.reasoner, 1, thoughtful(0.3));
        lengths.extend(check(
            &pair,
            SamplingParams { seed, beam: size(2, 3), length: between(1, 5), ..base },
            &format!("seed {seed}"),
        ));
    }
    let different: std::collections::BTreeSet<usize> = lengths.iter().copied().collect();
    assert!(different.len() >= 3, "{lengths:?}");
}

#[test]
fn one_beam_with_one_extension_is_trajectory_0() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            for length in [settings(&pair.reasoner, 1, perturbation).length, between(1, 4)] {
                let settings = SamplingParams {
                    beam: size(1, 1),
                    length,
                    ..settings(&pair.reasoner, 2, perturbation)
                };
                for outcome in pair.ask(settings, &questions()) {
                    assert_is_trajectory_0(
                        &outcome.sample,
                        &format!("{family:?}, {perturbation:?}, {length:?}"),
                    );
                }
            }
        }
    }
}

fn assert_is_trajectory_0(sample: &record::Sample, what: &str) {
    let (beam, first) = (sample.beam.as_ref().unwrap(), &sample.trajectories[0]);
    assert_eq!(
        (beam.thoughts, &beam.text, &beam.answer),
        (first.thoughts, &first.text, &first.answer),
        "{what}"
    );
    assert_eq!(Some(&beam.process_rewards), first.process_rewards.as_ref(), "{what}");
}

/// Every weight is zero.
struct ZeroWeights;

impl TensorSource for ZeroWeights {
    fn has(&self, _: &str) -> bool {
        true
    }

    fn tensor(&self, _: &str, shape: &[usize]) -> Result<Vec<f32>, model::ModelError> {
        Ok(vec![0.0; shape.iter().product()])
    }
}

fn indifferent(pair: &mut RewardedReasoner) {
    let config: &Config = pair.judge.decoder.config();
    pair.judge.head = RewardHead::load(device(), config, &ZeroWeights).unwrap();
}

/// Equal rewards go to the lowest number at every step.
#[test]
fn an_indifferent_judge_finds_trajectory_0_and_without_perturbation_the_greedy_one() {
    for family in FAMILIES {
        let mut pair = RewardedReasoner::of(family);
        indifferent(&mut pair);
        for perturbation in perturbations() {
            let settings = SamplingParams {
                beam: size(3, 2),
                length: exactly(4),
                ..settings(&pair.reasoner, 2, perturbation)
            };
            for outcome in pair.ask(settings, &questions()) {
                assert_is_trajectory_0(&outcome.sample, &format!("{family:?}, {perturbation:?}"));
            }
        }
        let settings = settings(&pair.reasoner, 1, Perturbation::None);
        for outcome in
            pair.ask(SamplingParams { beam: size(2, 2), greedy: true, ..settings }, &questions())
        {
            let (beam, greedy) = (outcome.sample.beam.unwrap(), outcome.sample.greedy.unwrap());
            assert_eq!((beam.thoughts, &beam.text), (greedy.thoughts, &greedy.text), "{family:?}");
        }
    }
}

/// Neither the other questions nor the memory nor the samples beside change what is found.
#[test]
fn a_search_does_not_depend_on_its_company() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let settings =
                SamplingParams { beam: size(3, 3), ..settings(&pair.reasoner, 5, perturbation) };
            let together = pair.ask(settings, &questions());
            let least = (17..40).map(|power| 1usize << power).find(|&memory| {
                ask(pair.engine(SamplingParams { memory, ..settings }), &questions()).is_ok()
            });
            let tight =
                pair.ask(SamplingParams { memory: least.unwrap(), ..settings }, &questions());
            let fewer = SamplingParams { samples: count(2), ..settings };
            for ((a, b), question) in together.iter().zip(&tight).zip(questions()) {
                let what = format!("{family:?}, {perturbation:?}, question {}", question.id);
                assert_same(a, b, &what);
                assert_same(a, &pair.ask_one(settings, &question), &what);
                assert_eq!(a.sample.beam, pair.ask_one(fewer, &question).sample.beam, "{what}");
            }
        }
    }
}

/// The search is guided: what it finds is rewarded at least as highly as what chance finds, on the
/// whole.
#[test]
fn a_search_finds_higher_rewards_than_samples_do() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let settings =
        SamplingParams { beam: size(4, 4), ..settings(&pair.reasoner, 4, thoughtful(0.3)) };
    let (mut found, mut sampled) = (0.0, 0.0);
    for outcome in pair.ask(settings, &questions()) {
        found += outcome.sample.beam.unwrap().reward;
        let rewards = outcome
            .sample
            .trajectories
            .iter()
            .map(|t| t.process_rewards.as_ref().unwrap().iter().sum::<f32>());
        sampled += rewards.sum::<f32>() / 4.0;
    }
    assert!(found > sampled, "{found} {sampled}");
}

#[test]
fn what_cannot_be_searched_is_refused() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let settings = SamplingParams {
        beam: size(40, 40),
        memory: 1 << 20,
        ..settings(&pair.reasoner, 1, thoughtful(0.3))
    };
    let unjudged = ask(Engine { reward_model: None, ..pair.engine(settings) }, &questions())
        .unwrap_err()
        .to_string();
    assert!(unjudged.contains("--reward-model"), "{unjudged}");
    let large = ask(pair.engine(settings), &questions()).unwrap_err().to_string();
    assert!(large.contains("its beam search needs") && large.contains("--beam-width"), "{large}");
}

#[test]
fn the_default_size_is_the_root() {
    let roots = [(1, 1), (2, 1), (3, 2), (4, 2), (16, 4), (32, 6), (64, 8)];
    for (samples, root) in roots {
        assert_eq!(Some(BeamSize::for_samples(count(samples))), size(root, root), "{samples}");
    }
}
