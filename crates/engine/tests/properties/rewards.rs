//! Rewards are computed at each thought's own position, in every batch.

use latent_tts_engine::{
    AnswerBatch, LatentLength, Perturbation, ReferenceTracer, RewardModel, SamplingParams,
    reference,
};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use model::{Cache, Pass, RewardInputs, Sequence};
use tensor::Tensor;

use crate::common::*;

/// The inputs of a reward model for one sequence, in order.
struct ScoredText<'a> {
    prompt: &'a [u32],
    /// The reference reasoner's thoughts: (thoughts, width).
    trace: &'a Tensor,
    thoughts: &'a Tensor, // (thoughts, width)
    end_latent: &'a [u32],
    answer: &'a [u32],
}

/// Rewards computed one position after the other: one per thought, and the outcome reward if the
/// model has an outcome head.
fn rewards_step_by_step(model: &RewardModel, text: &ScoredText<'_>) -> (Vec<f32>, Option<f32>) {
    let ScoredText { prompt, trace, thoughts, end_latent, answer } = text;
    let decoder = &model.decoder;
    let tokens = prompt.len() + end_latent.len() + answer.len();
    let slots = Cache::slots_for(tokens + trace.rows() + thoughts.rows());
    let mut cache = Cache::new(decoder.device(), decoder.config(), slots).unwrap();
    let mut sequence = Sequence::default();
    let mut step = |x: Tensor| {
        let mut pass = Pass::default();
        pass.push(&mut cache, &mut sequence, true);
        decoder.forward(&mut cache, &pass, x, None).unwrap()
    };
    let embed = |token: &u32| decoder.embed(&[*token]).unwrap();
    let vectors = prompt.iter().map(embed).chain((0..trace.rows()).map(|t| matrix(trace.row(t))));
    let mut last = vectors.fold(Tensor::default(), |_, x| step(x));
    let mut process = Vec::new();
    for t in 0..thoughts.rows() {
        let thought = matrix(thoughts.row(t));
        let at = step(thought.clone());
        let before = std::mem::replace(&mut last, at.clone());
        let inputs = RewardInputs { before: &before, at: &at, thoughts: &thought };
        process.push(model.head.rewards(decoder.device(), inputs).unwrap()[0]);
    }
    let before = end_latent.iter().map(embed).fold(last.clone(), |_, x| step(x));
    let at = answer.iter().map(embed).fold(before.clone(), |_, x| step(x));
    let inputs = RewardInputs { before: &before, at: &at, thoughts: &last };
    let outcome = model.outcome_head.as_ref();
    let outcome = outcome.map(|head| head.rewards(decoder.device(), inputs).unwrap()[0]);
    (process, outcome)
}

#[test]
fn scored_together_is_scored_alone_is_scored_step_by_step() {
    for family in FAMILIES {
        let spec = CheckpointSpec { family, seed: 11, ..CheckpointSpec::default() };
        let pair = RewardedReasoner::new(device(), &spec);
        for perturbation in [thought_dropout(0.3), Perturbation::Gaussian { std: 0.3 }] {
            // Sequences of different lengths, in every family.
            let length = match pair.reasoner.method.length {
                LatentLength::AtMost(_) => at_most(6),
                _ => between(1, 6),
            };
            let params = short_params(&pair.reasoner, 4, perturbation);
            let params = SamplingParams { length, ..params };
            for (reply, question) in pair.run(params, &questions()).iter().zip(questions()) {
                let prompt = prompt_of(&pair.reasoner, &question);
                let what = format!("{family:?}, {perturbation:?}");
                let thoughts = latents(reply);
                let score = |rows| reference::rewards(&pair.reward_model, &prompt, rows).unwrap();
                let together = score(&thoughts);
                for (k, own) in thoughts.iter().enumerate() {
                    let found = reply.trajectories[k].process_rewards.clone().unwrap();
                    assert_eq!(found.len(), own.rows());
                    assert_eq!(found, together[k], "{what}: together");
                    assert_eq!(found, score(&thoughts[k..=k])[0], "{what}: alone");
                    let text = ScoredText {
                        prompt: &prompt.tokens,
                        trace: &Tensor::default(),
                        thoughts: own,
                        end_latent: &[],
                        answer: &[],
                    };
                    let (stepped, _) = rewards_step_by_step(&pair.reward_model, &text);
                    assert_eq!(found, stepped, "{what}: step by step");
                }
            }
        }
    }
}

#[test]
fn a_reference_trace_is_read_before_the_thoughts_and_the_answer_after_them() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::LatentSft] {
        let pair = RewardedReasoner::with_reference(family);
        let reference = pair.reward_model.reference.as_ref().unwrap();
        let params = short_params(&pair.reasoner, 3, thought_dropout(0.3));
        let end_latent = &pair.reasoner.method.end_latent;
        for (reply, question) in pair.run(params, &questions()).iter().zip(questions()) {
            let prompt = prompt_of(&pair.reasoner, &question);
            let trace = ReferenceTracer::default().trace(reference, &[&prompt]).unwrap();
            let rows = run_sequences(&pair.reasoner, &params, &prompt);
            for (trajectory, row) in reply.trajectories.iter().zip(&rows) {
                let answers =
                    AnswerBatch { end_latent, answers: std::slice::from_ref(&row.tokens) };
                let thoughts = std::slice::from_ref(&trajectory.latents);
                let alone = reference::rewards_with_answers(
                    &pair.reward_model,
                    &prompt,
                    thoughts,
                    Some(answers),
                );
                let alone = alone.unwrap().remove(0);
                let process = trajectory.process_rewards.as_ref();
                assert_eq!(process, Some(&alone.process), "{family:?}: alone");
                assert_eq!(trajectory.outcome_reward, alone.outcome, "{family:?}: alone");
                let text = ScoredText {
                    prompt: &prompt.tokens,
                    trace: &trace.thoughts,
                    thoughts: &trajectory.latents,
                    end_latent,
                    answer: &row.tokens,
                };
                let stepped = rewards_step_by_step(&pair.reward_model, &text);
                assert!(stepped.1.is_some());
                assert_eq!((alone.process, alone.outcome), stepped, "{family:?}: step by step");
            }
        }
    }
}

/// A reward model scores trajectories without changing anything but the rewards.
#[test]
fn a_reward_model_changes_no_trajectory() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let pair = RewardedReasoner::of(family);
        let params = short_params(&pair.reasoner, 3, thought_dropout(0.2));
        let params = SamplingParams { greedy: true, ..params };
        let mut rewarded = pair.run(params, &questions());
        let plain = run(&pair.unrewarded_engine(), params, &questions()).unwrap();
        for (a, b) in rewarded.iter_mut().zip(&plain) {
            for trajectory in a.trajectories.iter_mut().chain(&mut a.greedy) {
                assert!(trajectory.process_rewards.take().is_some());
            }
            assert_same_trajectories(&a.trajectories, &b.trajectories, "with a reward model");
            let a = a.greedy.as_slice();
            let b = b.greedy.as_slice();
            assert_same_trajectories(a, b, "with a reward model, greedy");
        }
    }
}

/// A process reward depends only on positions up to its thought.
#[test]
fn a_process_reward_does_not_look_ahead() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiLlama);
    let question = &questions()[0];
    let prompt = prompt_of(&pair.reasoner, question);
    let reply = pair.solve(short_params(&pair.reasoner, 1, thought_dropout(0.3)), question);
    let thoughts = &reply.trajectories[0].latents;
    let score = |thoughts: &Tensor| {
        let rows = std::slice::from_ref(thoughts);
        reference::rewards(&pair.reward_model, &prompt, rows).unwrap().remove(0)
    };
    assert_eq!(score(thoughts)[..2], score(&first_rows(2, thoughts)));
}
