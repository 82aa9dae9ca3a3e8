//! Rewards are read at each thought's own position, whatever else is scored with it.

use engine::reference_trace::ReferenceTracer;
use engine::{AnswerBatch, LatentLength, Perturbation, RewardModel, SamplingParams, reference};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use model::{Cache, Pass, RewardInputs, Sequence};
use tensor::Tensor;

use crate::common::*;

/// Rewards computed one position after the other, and a verdict if the judge gives one: on
/// `answer`, after `end`.
fn step_by_step(
    judge: &RewardModel,
    (prompt, own): (&[u32], &Tensor),
    thoughts: &Tensor,
    (end, answer): (&[u32], &[u32]),
) -> (Vec<f32>, Option<f32>) {
    let decoder = &judge.decoder;
    let slots =
        Cache::slots_for(prompt.len() + own.rows() + thoughts.rows() + end.len() + answer.len());
    let (mut cache, mut sequence) =
        (Cache::new(decoder.device(), decoder.config(), slots).unwrap(), Sequence::default());
    let mut pass_one = |x: Tensor| {
        let mut pass = Pass::default();
        pass.push(&mut cache, &mut sequence, true);
        decoder.forward(&mut cache, &pass, x, None).unwrap()
    };
    let word = |token: &u32| decoder.embed(&[*token]).unwrap();
    let vectors = prompt.iter().map(word).chain((0..own.rows()).map(|t| matrix(own.row(t))));
    let mut last = vectors.fold(Tensor::default(), |_, x| pass_one(x));
    let mut reward = |t| {
        let thought = matrix(thoughts.row(t));
        let at = pass_one(thought.clone());
        let judged = RewardInputs {
            before: &std::mem::replace(&mut last, at.clone()),
            at: &at,
            thoughts: &thought,
        };
        judge.head.rewards(decoder.device(), judged).unwrap()[0]
    };
    let rewards = (0..thoughts.rows()).map(&mut reward).collect();
    let before = end.iter().map(word).fold(last.clone(), |_, x| pass_one(x));
    let at = answer.iter().map(word).fold(before.clone(), |_, x| pass_one(x));
    let judged = RewardInputs { before: &before, at: &at, thoughts: &last };
    let verdict =
        judge.outcome_head.as_ref().map(|head| head.rewards(decoder.device(), judged).unwrap()[0]);
    (rewards, verdict)
}

#[test]
fn scored_together_is_scored_alone_is_scored_step_by_step() {
    for family in FAMILIES {
        let pair = RewardedReasoner::new(
            device(),
            &CheckpointSpec { family, seed: 11, ..CheckpointSpec::default() },
        );
        for perturbation in [thoughtful(0.3), Perturbation::Gaussian { std: 0.3 }] {
            // Rows of unlike length, in every family.
            let length = match pair.reasoner.method.length {
                LatentLength::AtMost(_) => at_most(6),
                _ => between(1, 6),
            };
            let settings = SamplingParams { length, ..settings(&pair.reasoner, 4, perturbation) };
            for (outcome, question) in pair.ask(settings, &questions()).iter().zip(questions()) {
                let prompt = prompted(&pair.reasoner, &question);
                let again = reference::rewards(&pair.judge, &prompt, &outcome.thoughts).unwrap();
                for (k, thoughts) in outcome.thoughts.iter().enumerate() {
                    let scores = outcome.sample.trajectories[k].process_rewards.clone().unwrap();
                    let alone = reference::rewards(&pair.judge, &prompt, &outcome.thoughts[k..=k])
                        .unwrap()
                        .remove(0);
                    assert_eq!(scores.len(), thoughts.rows());
                    assert_eq!(scores, again[k], "{family:?}, {perturbation:?}: once more");
                    assert_eq!(scores, alone, "{family:?}, {perturbation:?}: alone");
                    assert_eq!(
                        scores,
                        step_by_step(
                            &pair.judge,
                            (&prompt.tokens, &Tensor::default()),
                            thoughts,
                            (&[], &[])
                        )
                        .0,
                        "{family:?}, {perturbation:?}: step by step"
                    );
                }
            }
        }
    }
}

#[test]
fn a_judge_with_a_mind_reads_its_own_thoughts_first_and_answers_last() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::LatentSft] {
        let pair = RewardedReasoner::reflecting(family);
        let settings = settings(&pair.reasoner, 3, thoughtful(0.3));
        for (outcome, question) in pair.ask(settings, &questions()).iter().zip(questions()) {
            let prompt = prompted(&pair.reasoner, &question);
            let own = ReferenceTracer::default()
                .trace(pair.judge.reference.as_ref().unwrap(), &[&prompt])
                .unwrap();
            let rows = reference::run_rows(&pair.reasoner, &prompt, replay_of(&settings)).unwrap();
            let end = &pair.reasoner.method.end_latent;
            for (k, row) in rows.iter().enumerate() {
                let trajectory = &outcome.sample.trajectories[k];
                let said =
                    AnswerBatch { end_latent: end, answers: std::slice::from_ref(&row.tokens) };
                let alone = reference::rewards_with_answers(
                    &pair.judge,
                    &prompt,
                    &outcome.thoughts[k..=k],
                    Some(said),
                )
                .unwrap()
                .remove(0);
                assert_eq!(
                    trajectory.process_rewards.as_ref(),
                    Some(&alone.process),
                    "{family:?}: alone"
                );
                assert_eq!(trajectory.outcome_reward, alone.outcome, "{family:?}: alone");
                let told = (&end[..], &row.tokens[..]);
                let (scores, verdict) = step_by_step(
                    &pair.judge,
                    (&prompt.tokens, &own.thoughts),
                    &outcome.thoughts[k],
                    told,
                );
                assert_eq!(
                    (alone.process, alone.outcome),
                    (scores, verdict),
                    "{family:?}: step by step"
                );
                assert!(verdict.is_some());
            }
        }
    }
}

/// A judge reads and does not interfere.
#[test]
fn a_judge_changes_no_trajectory() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let pair = RewardedReasoner::of(family);
        let engine = pair.engine(SamplingParams {
            greedy: true,
            ..settings(&pair.reasoner, 3, thoughtful(0.2))
        });
        let judged = ask(engine, &questions()).unwrap();
        let unjudged = ask(engine::Engine { reward_model: None, ..engine }, &questions()).unwrap();
        for (a, b) in judged.iter().zip(&unjudged) {
            assert_eq!(a.thoughts, b.thoughts);
            let (a, b) = (&a.sample, &b.sample);
            for (a, b) in
                a.trajectories.iter().chain(&a.greedy).zip(b.trajectories.iter().chain(&b.greedy))
            {
                assert_eq!(
                    (a.k, &a.text, &a.answer, b.process_rewards.as_ref()),
                    (b.k, &b.text, &b.answer, None)
                );
            }
        }
    }
}

/// A score depends on what comes before its thought, and on nothing after it.
#[test]
fn a_score_does_not_look_ahead() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiLlama);
    let asked = &questions()[0];
    let prompt = prompted(&pair.reasoner, asked);
    let thoughts = &pair.ask_one(settings(&pair.reasoner, 1, thoughtful(0.3)), asked).thoughts[0];
    let whole =
        reference::rewards(&pair.judge, &prompt, std::slice::from_ref(thoughts)).unwrap().remove(0);
    let part = reference::rewards(&pair.judge, &prompt, &[first(2, thoughts)]).unwrap().remove(0);
    assert_eq!(whole[..2], part);
}
