//! Labels of thoughts: rollouts that share their trajectory's cache equal rollouts computed from
//! scratch, in every batch.
//!
//! Tiny random models give no correct answers, so the grader here is an arbitrary function of the
//! answer's tokens: any different token in a rollout changes its label in half of the cases.

use latent_tts_engine::rollout::{
    self, AnnotatedQuestion, Grade, Grader, RolloutRunner, ThoughtLabels, rollout_row,
};
use latent_tts_engine::{
    DropoutScope, DropoutSites, Engine, EngineError, Perturbation, Probability, Prompt, Reasoner,
    SamplingParams, SequenceId,
};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use tensor::Device;

use crate::common::*;
use crate::length::OPEN_LENGTH;
use crate::naive::NaiveEngine;
use crate::requests::CallerError;

/// Grades an answer by a hash of its tokens.
fn is_right(tokens: &[u32]) -> bool {
    let mixed = tokens
        .iter()
        .fold(0x9E37_79B9u32, |h, &t| (h ^ t).wrapping_mul(0x85EB_CA6B).rotate_left(13));
    (mixed >> 16) & 1 == 1
}

fn grade_by_hash(_: usize, tokens: &[u32]) -> Result<Grade, EngineError> {
    Ok(Grade { answer: None, correct: is_right(tokens) })
}

pub fn rollouts(n: usize) -> ThoughtLabels {
    ThoughtLabels::Rollouts(nonzero(n))
}

/// Labels every question, mixed or not, by the hash of its answers.
pub fn runner(
    reasoner: &Reasoner,
    params: SamplingParams,
    labels: ThoughtLabels,
) -> RolloutRunner<'_> {
    RolloutRunner {
        model: reasoner,
        params,
        memory: Engine::DEFAULT_MEMORY,
        labels,
        keep_all: true,
        grader: &grade_by_hash,
        cancel: None,
    }
}

/// Labels the prompts' thoughts.
pub fn annotate(runner: RolloutRunner<'_>, prompts: &[Prompt]) -> Vec<AnnotatedQuestion> {
    let mut all = Vec::new();
    runner
        .run(prompts, |annotated| -> Result<(), EngineError> {
            all.push(annotated);
            Ok(())
        })
        .unwrap();
    all
}

pub fn prompts(reasoner: &Reasoner) -> Vec<Prompt> {
    questions().iter().map(|q| prompt_of(reasoner, q)).collect()
}

/// Fails unless labels are those of the definition: M rollouts from every thought, each computed
/// from scratch.
pub fn assert_naive_labels(reasoner: &Reasoner, params: &SamplingParams, count: usize, what: &str) {
    let prompts = &prompts(reasoner)[2..4];
    let annotated = annotate(runner(reasoner, *params, rollouts(count)), prompts);
    let mut mixed = 0;
    for (prompt, found) in prompts.iter().zip(annotated) {
        assert_eq!((found.id, &found.prompt), (prompt.id, &prompt.tokens), "{what}");
        for (k, trajectory) in found.trajectories.iter().enumerate() {
            let id = row_id(prompt.id, k);
            let naive = |id| NaiveEngine::new(reasoner, params, id, max_thoughts(params, id));
            let own = naive(id).run(&prompt.tokens);
            assert_eq!(trajectory.tokens[..], own.tokens, "{what}");
            assert_eq!(trajectory.correct, is_right(&own.tokens), "{what}");
            assert_eq!(trajectory.labels.len(), own.thoughts.rows(), "{what}");
            if own.thoughts.rows() > 0 {
                assert_same_bits(&trajectory.thoughts, &own.thoughts, what);
            }
            for (t, &label) in trajectory.labels.iter().enumerate() {
                let given = first_rows(t + 1, &own.thoughts);
                let is_rollout_right = |m: &usize| {
                    let rollout = rollout_row(id, t + 1, *m);
                    is_right(&naive(id).roll_out(&prompt.tokens, &given, rollout).tokens)
                };
                let right = (0..count).filter(is_rollout_right).count();
                let share = right as f32 / count as f32;
                assert_eq!(label, share, "{what}, trajectory {k}, thought {}", t + 1);
                mixed += usize::from(right > 0 && right < count);
            }
        }
    }
    let is_random = params.perturbation != Perturbation::None;
    assert_eq!(mixed > 0, is_random, "{what}: {mixed} labels are neither 0 nor 1");
}

#[test]
fn labels_are_those_of_rollouts_from_scratch() {
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        for perturbation in perturbations() {
            // Half of the elements are dropped: answers of random models hardly change otherwise.
            let perturbation = match perturbation {
                Perturbation::Dropout { sites, scope, mask, .. } => {
                    Perturbation::Dropout { p: Probability::new(0.5).unwrap(), sites, scope, mask }
                }
                other => other,
            };
            let params = short_params(&reasoner, 3, perturbation);
            assert_naive_labels(&reasoner, &params, 3, &format!("{family:?}, {perturbation:?}"));
        }
    }
}

/// Sequences that end at once, later, and at the limit: after the last thought of a sequence that
/// chose to end, a rollout may continue with more thoughts.
#[test]
fn rows_that_end_by_themselves_are_labelled_too() {
    for family in OPEN_LENGTH {
        let spec = CheckpointSpec { family, seed: 11, ..CheckpointSpec::default() };
        let reasoner = reasoner(device(), &spec);
        for perturbation in [
            thought_dropout(0.4),
            dropout(0.4, DropoutSites::BOTH, DropoutScope::All),
            Perturbation::Gaussian { std: 0.6 },
        ] {
            let params = short_params(&reasoner, 6, perturbation);
            let what = format!("{family:?}, {perturbation:?}");
            let prompts = &prompts(&reasoner)[2..4];
            let annotated = annotate(runner(&reasoner, params, rollouts(1)), prompts);
            let trajectories = annotated.iter().flat_map(|question| &question.trajectories);
            let lengths: Vec<usize> = trajectories.map(|t| t.labels.len()).collect();
            assert!(
                lengths.iter().any(|&n| n < 5) && lengths.iter().any(|&n| n > 0),
                "{what}: lengths {lengths:?}"
            );
            assert_naive_labels(&reasoner, &params, 2, &what);
        }
    }
}

#[test]
fn rollouts_keep_the_sampled_length_of_their_trajectory() {
    let reasoner = reasoner(device(), &CheckpointSpec::default());
    for perturbation in [thought_dropout(0.5), Perturbation::Gaussian { std: 0.6 }] {
        let params = short_params(&reasoner, 4, perturbation);
        let params = SamplingParams { length: between(1, 4), ..params };
        assert_naive_labels(&reasoner, &params, 3, &format!("{perturbation:?}"));
    }
}

/// Without a perturbation every rollout is the trajectory, and the trajectory is the greedy one.
#[test]
fn without_a_perturbation_a_rollout_is_the_greedy_continuation() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let params = short_params(&pair.reasoner, 2, Perturbation::None);
        let replies = pair.run(SamplingParams { greedy: true, ..params }, &questions());
        let runner = runner(&pair.reasoner, params, rollouts(1));
        let annotated = annotate(runner, &prompts(&pair.reasoner));
        for (found, reply) in annotated.iter().zip(&replies) {
            let greedy = reply.greedy.as_ref().unwrap();
            for trajectory in &found.trajectories {
                assert_eq!(trajectory.tokens, greedy.tokens, "{family:?}");
                let own = f32::from(u8::from(trajectory.correct));
                assert!(trajectory.labels.iter().all(|&label| label == own), "{family:?}");
            }
        }
    }
}

/// The annotated trajectories are those that the engine samples under the same seed.
#[test]
fn trajectories_are_those_of_a_run() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let pair = RewardedReasoner::of(family);
        let params = short_params(&pair.reasoner, 3, thought_dropout(0.3));
        let replies = pair.run(params, &questions());
        let runner = runner(&pair.reasoner, params, ThoughtLabels::Final);
        let annotated = annotate(runner, &prompts(&pair.reasoner));
        for (found, reply) in annotated.iter().zip(&replies) {
            assert_eq!(found.rollouts, 0);
            for (labelled, sampled) in found.trajectories.iter().zip(&reply.trajectories) {
                assert_eq!(labelled.tokens, sampled.tokens, "{family:?}");
                let latents = &sampled.latents;
                if latents.rows() > 0 {
                    assert_same_bits(&labelled.thoughts, latents, &format!("{family:?}"));
                }
                let own = f32::from(u8::from(labelled.correct));
                assert_eq!(labelled.labels, vec![own; latents.rows()]);
            }
        }
    }
}

/// The rollouts of a small run are the first ones of a larger run.
#[test]
fn more_rollouts_keep_the_first() {
    let reasoner = reasoner(device(), &CheckpointSpec::default());
    let params = short_params(&reasoner, 2, thought_dropout(0.5));
    let prompts = prompts(&reasoner);
    let right = |m: usize| -> Vec<usize> {
        let annotated = annotate(runner(&reasoner, params, rollouts(m)), &prompts);
        let trajectories = annotated.iter().flat_map(|question| &question.trajectories);
        let labels = trajectories.flat_map(|trajectory| &trajectory.labels);
        labels.map(|label| (label * m as f32).round() as usize).collect()
    };
    let few = right(4);
    let many = right(6);
    // Nothing random follows the last thought of a trajectory: all or none of its rollouts are
    // correct.
    let open = few.iter().zip(&many).enumerate().filter(|(i, _)| (i + 1) % 4 != 0);
    assert!(open.clone().all(|(_, (few, many))| (few..=&(few + 2)).contains(&many)));
    assert!(open.clone().any(|(_, (few, many))| few != many));
}

#[test]
fn labels_do_not_depend_on_batch_memory_or_threads() {
    let spec =
        CheckpointSpec { family: CheckpointFamily::Colar, seed: 11, ..CheckpointSpec::default() };
    let reasoner = reasoner(device(), &spec);
    let prompts = prompts(&reasoner);
    for perturbation in [
        thought_dropout(0.4),
        Perturbation::Gaussian { std: 0.6 },
        dropout(0.4, DropoutSites::BOTH, DropoutScope::All),
    ] {
        let params = short_params(&reasoner, 4, perturbation);
        let all = runner(&reasoner, params, rollouts(3));
        let together = annotate(all, &prompts);
        for (prompt, expected) in prompts.iter().zip(&together) {
            let alone = annotate(all, std::slice::from_ref(prompt));
            assert_eq!(alone, std::slice::from_ref(expected), "{perturbation:?}");
        }
        let memory = smallest_memory(all, &prompts);
        let tight = annotate(RolloutRunner { memory, ..all }, &prompts);
        assert_eq!(tight, together, "{perturbation:?}, {memory} bytes");
        let single = Device::cpu(Some(nonzero(1))).unwrap();
        let other = crate::common::reasoner(&single, &spec);
        let threads = annotate(runner(&other, params, rollouts(3)), &prompts);
        assert_eq!(threads, together, "{perturbation:?}, one thread");
    }
}

/// The smallest sufficient memory, to 16 KiB.
fn smallest_memory(runner: RolloutRunner<'_>, prompts: &[Prompt]) -> usize {
    let fits = |memory: &usize| match (RolloutRunner { memory: *memory, ..runner }).check(prompts) {
        Err(EngineError::RolloutMemory { .. }) => false,
        other => other.is_ok(),
    };
    (1..1 << 16).map(|n| n << 14).find(fits).unwrap()
}

#[test]
fn questions_that_are_all_right_or_all_wrong_are_left_out_before_any_rollout() {
    let spec = CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() };
    let reasoner = reasoner(device(), &spec);
    let params = short_params(&reasoner, 4, thought_dropout(0.5));
    let prompts = prompts(&reasoner);
    let grader = |q: usize, tokens: &[u32]| match q {
        0 => Ok(Grade { answer: Some("7".into()), correct: true }),
        1 => Ok(Grade::default()),
        q => grade_by_hash(q, tokens),
    };
    let keep_all = RolloutRunner { grader: &grader, ..runner(&reasoner, params, rollouts(2)) };
    let found = annotate(RolloutRunner { keep_all: false, ..keep_all }, &prompts);
    let everything = annotate(keep_all, &prompts);
    let mut kept = 0;
    for (found, whole) in found.iter().zip(&everything) {
        let right = found.trajectories.iter().filter(|t| t.correct).count();
        assert_eq!(found.kept, right > 0 && right < 4);
        kept += usize::from(found.kept);
        if found.kept {
            assert_eq!(found, whole);
            continue;
        }
        assert_eq!(found.rollouts, 0);
        for trajectory in &found.trajectories {
            assert!(trajectory.labels.is_empty() && trajectory.thoughts.rows() == 0);
            assert!(!trajectory.tokens.is_empty());
        }
    }
    assert!(!found[0].kept && !found[1].kept && kept > 0);
    assert_eq!(found[0].trajectories[0].answer.as_deref(), Some("7"));
    // Three of four thoughts have rollouts: nothing random happens after the last.
    assert!(everything.iter().all(|question| question.rollouts == 4 * 3 * 2));
}

/// A grader that reads text: answers are found by the family's rule and compared with the gold
/// answer.
#[test]
fn a_grader_can_read_answers() {
    let spec = CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() };
    let reasoner = reasoner(device(), &spec);
    let params = short_params(&reasoner, 16, thought_dropout(0.5));
    let params = SamplingParams { max_new_tokens: nonzero(24), ..params };
    let annotate_with_gold = |prompts: &[Prompt], gold: &str| {
        let grader: &Grader<'_> = &|_, tokens: &[u32]| {
            let (_, answer) = reasoner.parse_answer(data::answer::AnswerKind::Number, tokens)?;
            let correct = answer.as_ref().is_some_and(|answer| answer.matches(gold));
            Ok(Grade { answer: answer.map(|answer| answer.as_str().to_owned()), correct })
        };
        let runner = runner(&reasoner, params, rollouts(2));
        annotate(RolloutRunner { grader, keep_all: false, ..runner }, prompts)
    };
    let prompts = prompts(&reasoner);
    let mut kept = 0;
    for (prompt, found) in prompts.iter().zip(annotate_with_gold(&prompts, "7")) {
        let Some(gold) = found.trajectories.iter().find_map(|t| t.answer.clone()) else {
            continue;
        };
        let again = annotate_with_gold(std::slice::from_ref(prompt), &gold).remove(0);
        for trajectory in &again.trajectories {
            assert_eq!(trajectory.correct, trajectory.answer.as_deref() == Some(&gold));
        }
        assert_eq!(again.kept, again.trajectories.iter().any(|t| !t.correct));
        kept += usize::from(again.kept);
    }
    assert!(kept > 0, "no question has an answer that some trajectories give and others do not");
}

#[test]
fn rollouts_without_a_name_or_without_memory_are_refused() {
    let reasoner = reasoner(device(), &CheckpointSpec::default());
    let prompts = prompts(&reasoner);
    let usual = short_params(&reasoner, 2, thought_dropout(0.2));
    let refused =
        |params, labels| runner(&reasoner, params, labels).check(&prompts).unwrap_err().to_string();
    let many = SamplingParams { samples: nonzero(rollout::MAX_TRAJECTORIES + 1), ..usual };
    assert!(refused(many, rollouts(1)).contains("1025 trajectories"));
    assert!(refused(usual, rollouts(rollout::MAX_ROLLOUTS + 1)).contains("4097 rollouts"));
    let long = SamplingParams { length: at_most(600), ..usual };
    assert!(refused(long, rollouts(1)).contains("600 thoughts"));
    let runner = runner(&reasoner, usual, rollouts(1));
    let small = RolloutRunner { memory: 1 << 10, ..runner };
    let small = small.check(&prompts).unwrap_err().to_string();
    assert!(small.contains("2 trajectories") && small.contains("raise the budget"), "{small}");
    assert!(annotate(runner, &[]).is_empty());
}

/// The error of the caller ends the run and is returned.
#[test]
fn the_callers_error_ends_a_rollout_run() {
    let reasoner = reasoner(device(), &CheckpointSpec::default());
    let params = short_params(&reasoner, 2, thought_dropout(0.2));
    let mut seen = 0;
    let end = runner(&reasoner, params, rollouts(1)).run(&prompts(&reasoner), |_| {
        seen += 1;
        if seen == 2 { Err(CallerError::Enough) } else { Ok(()) }
    });
    assert!(matches!(end, Err(CallerError::Enough)), "{end:?}");
    assert_eq!(seen, 2);
}

/// The random number keys of rollouts are required for reproducibility: they must not change.
#[test]
fn rollouts_are_named_as_documented() {
    let id = rollout_row(SequenceId { question: 7, trajectory: 5 }, 3, 9);
    assert_eq!((id.question, id.trajectory), (7, 1 << 31 | 5 << 21 | 2 << 12 | 9));
}
