//! Labels of thoughts: rollouts that share their trajectory's cache equal rollouts computed from
//! scratch, whatever runs beside them.
//!
//! Tiny random models say nothing that is right, so that the judge here is an arbitrary function of
//! an answer's tokens: one rollout that says anything else changes its label as likely as not.

use std::ops::ControlFlow;

use engine::perturb::RowId;
use engine::prompt::Prompt;
use engine::question::Question;
use engine::rollout::{self, AnnotatedQuestion, Annotator, Grade, RolloutRunner, ThoughtLabels};
use engine::{DropoutScope, DropoutSites, EngineError, Perturbation, Reasoner, SamplingParams};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use tensor::Device;

use crate::common::*;
use crate::recomputed::NaiveEngine;

/// Right or wrong by the toss of a coin that the tokens decide.
fn is_right(tokens: &[u32]) -> bool {
    let mixed = tokens
        .iter()
        .fold(0x9E37_79B9u32, |h, &t| (h ^ t).wrapping_mul(0x85EB_CA6B).rotate_left(13));
    (mixed >> 16) & 1 == 1
}

fn judge(_: usize, tokens: &[u32]) -> Result<Grade, EngineError> {
    Ok(Grade { answer: None, correct: is_right(tokens) })
}

pub fn rollouts(n: usize) -> ThoughtLabels {
    ThoughtLabels::Rollouts(count(n))
}

fn explore(explorer: RolloutRunner<'_>, prompts: &[Prompt]) -> Vec<AnnotatedQuestion> {
    let mut all = Vec::new();
    explorer
        .run(prompts, &mut |annotated| {
            all.push(annotated);
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

/// Every question labelled, mixed or not.
pub fn all_of(
    reasoner: &Reasoner,
    settings: SamplingParams,
    labels: ThoughtLabels,
    prompts: &[Prompt],
) -> Vec<AnnotatedQuestion> {
    explore(
        RolloutRunner { model: reasoner, settings, labels, keep_all: true, grader: &judge },
        prompts,
    )
}

pub fn prompts(reasoner: &Reasoner) -> Vec<Prompt> {
    questions().iter().map(|q| prompted(reasoner, q)).collect()
}

/// Labels by definition: M rollouts from every thought, each from nothing.
fn assert_labels(reasoner: &Reasoner, settings: &SamplingParams, of_each: usize, what: &str) {
    let prompts = &prompts(reasoner)[2..4];
    let mut shares = 0;
    for (prompt, found) in
        prompts.iter().zip(all_of(reasoner, *settings, rollouts(of_each), prompts))
    {
        assert_eq!((found.id, &found.prompt), (prompt.id, &prompt.tokens), "{what}");
        for (k, path) in found.trajectories.iter().enumerate() {
            let id = row(prompt.id, k);
            let limit = most_thoughts(settings, id);
            let naive = |id| NaiveEngine::new(reasoner, settings, id, limit);
            let own = naive(id).run(&prompt.tokens);
            assert_eq!(
                (&path.tokens[..], path.correct),
                (&own.tokens[..], is_right(&own.tokens)),
                "{what}"
            );
            assert_eq!(path.labels.len(), own.thoughts.rows(), "{what}");
            if own.thoughts.rows() > 0 {
                assert_same_bits(&path.thoughts, &own.thoughts, what);
            }
            for (t, &label) in path.labels.iter().enumerate() {
                let given = first(t + 1, &own.thoughts);
                let rolled =
                    |m| naive(id).roll(&prompt.tokens, &given, rollout::rollout_row(id, t + 1, m));
                let right = (0..of_each).filter(|&m| is_right(&rolled(m).tokens)).count();
                assert_eq!(
                    label,
                    right as f32 / of_each as f32,
                    "{what}, trajectory {k}, thought {}",
                    t + 1
                );
                shares += usize::from(right > 0 && right < of_each);
            }
        }
    }
    let random = settings.perturbation != Perturbation::None;
    assert_eq!(shares > 0, random, "{what}: {shares} labels are neither 0 nor 1");
}

#[test]
fn labels_are_what_rollouts_from_scratch_say() {
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        for perturbation in perturbations() {
            // Half the elements: answers of random models hardly change otherwise.
            let perturbation = match perturbation {
                Perturbation::Dropout { sites, scope, .. } => dropout(0.5, sites, scope),
                other => other,
            };
            assert_labels(
                &reasoner,
                &settings(&reasoner, 3, perturbation),
                3,
                &format!("{family:?}, {perturbation:?}"),
            );
        }
    }
}

/// Rows that end at once, later, and at the limit: after the last thought of a row that chose to
/// end a rollout may think on.
#[test]
fn rows_that_end_by_themselves_are_labelled_too() {
    for family in [CheckpointFamily::Colar, CheckpointFamily::LatentSft] {
        let reasoner =
            reasoner(device(), &CheckpointSpec { family, seed: 11, ..CheckpointSpec::default() });
        for perturbation in [
            thoughtful(0.4),
            dropout(0.4, DropoutSites::BOTH, DropoutScope::All),
            Perturbation::Gaussian { std: 0.6 },
        ] {
            let settings = settings(&reasoner, 6, perturbation);
            let what = format!("{family:?}, {perturbation:?}");
            let lengths: Vec<usize> =
                all_of(&reasoner, settings, rollouts(1), &prompts(&reasoner)[2..4])
                    .iter()
                    .flat_map(|a| a.trajectories.iter().map(|p| p.labels.len()).collect::<Vec<_>>())
                    .collect();
            assert!(
                lengths.iter().any(|&n| n < 5) && lengths.iter().any(|&n| n > 0),
                "{what}: lengths {lengths:?}"
            );
            assert_labels(&reasoner, &settings, 2, &what);
        }
    }
}

#[test]
fn rollouts_keep_the_length_that_their_trajectory_drew() {
    let reasoner = reasoner(device(), &CheckpointSpec::default());
    for perturbation in [thoughtful(0.5), Perturbation::Gaussian { std: 0.6 }] {
        let settings =
            SamplingParams { length: between(1, 4), ..settings(&reasoner, 4, perturbation) };
        assert_labels(&reasoner, &settings, 3, &format!("{perturbation:?}"));
    }
}

/// Without a perturbation every rollout is the trajectory, and the trajectory is the greedy one.
#[test]
fn without_a_perturbation_a_rollout_is_the_greedy_continuation() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let settings = settings(&pair.reasoner, 2, Perturbation::None);
        let greedy = pair.ask(SamplingParams { greedy: true, ..settings }, &questions());
        for (found, greedy) in
            all_of(&pair.reasoner, settings, rollouts(1), &prompts(&pair.reasoner))
                .iter()
                .zip(&greedy)
        {
            for path in &found.trajectories {
                let text = pair.reasoner.tokenizer.decode(&path.tokens).unwrap();
                assert_eq!(
                    Some(text),
                    greedy.sample.greedy.as_ref().map(|g| g.text.clone()),
                    "{family:?}"
                );
                assert!(
                    path.labels.iter().all(|&label| label == f32::from(u8::from(path.correct))),
                    "{family:?}"
                );
            }
        }
    }
}

/// What is annotated are the trajectories of `eval`: same seed, same names.
#[test]
fn trajectories_are_those_of_a_run() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let pair = RewardedReasoner::of(family);
        let settings = settings(&pair.reasoner, 3, thoughtful(0.3));
        let run = pair.ask(settings, &questions());
        for (found, outcome) in
            all_of(&pair.reasoner, settings, ThoughtLabels::Final, &prompts(&pair.reasoner))
                .iter()
                .zip(&run)
        {
            assert_eq!(found.rollouts, 0);
            for (path, thoughts) in found
                .trajectories
                .iter()
                .zip(&outcome.thoughts)
                .filter(|(_, thoughts)| thoughts.rows() > 0)
            {
                assert_same_bits(&path.thoughts, thoughts, &format!("{family:?}"));
                assert_eq!(path.labels, vec![f32::from(u8::from(path.correct)); thoughts.rows()]);
            }
        }
    }
}

/// The label's rollouts that were computed, and those that a wider run would share with it.
#[test]
fn more_rollouts_keep_the_first() {
    let reasoner = reasoner(device(), &CheckpointSpec::default());
    let settings = settings(&reasoner, 2, thoughtful(0.5));
    let prompts = prompts(&reasoner);
    let right = |m: usize| -> Vec<usize> {
        let all = all_of(&reasoner, settings, rollouts(m), &prompts);
        all.iter()
            .flat_map(|a| &a.trajectories)
            .flat_map(|p| &p.labels)
            .map(|label| (label * m as f32).round() as usize)
            .collect()
    };
    let (few, many) = (right(4), right(6));
    // The last thought of each trajectory is settled: all or none of its rollouts are right.
    let open = few.iter().zip(&many).enumerate().filter(|(i, _)| (i + 1) % 4 != 0);
    assert!(open.clone().all(|(_, (few, many))| (few..=&(few + 2)).contains(&many)));
    assert!(open.clone().any(|(_, (few, many))| few != many));
}

#[test]
fn labels_do_not_depend_on_batch_memory_threads_or_company() {
    let spec =
        CheckpointSpec { family: CheckpointFamily::Colar, seed: 11, ..CheckpointSpec::default() };
    let reasoner = reasoner(device(), &spec);
    for perturbation in [
        thoughtful(0.4),
        Perturbation::Gaussian { std: 0.6 },
        dropout(0.4, DropoutSites::BOTH, DropoutScope::All),
    ] {
        let settings = settings(&reasoner, 4, perturbation);
        let prompts = prompts(&reasoner);
        let together = all_of(&reasoner, settings, rollouts(3), &prompts);
        for (prompt, expected) in prompts.iter().zip(&together) {
            let alone = all_of(&reasoner, settings, rollouts(3), std::slice::from_ref(prompt));
            assert_eq!(alone, std::slice::from_ref(expected), "{perturbation:?}");
        }
        let tight = tightest(&reasoner, settings, &prompts);
        assert_eq!(
            all_of(&reasoner, SamplingParams { memory: tight, ..settings }, rollouts(3), &prompts),
            together,
            "{perturbation:?}"
        );
        let single = Device::cpu(Some(count(1))).unwrap();
        let other = crate::common::reasoner(&single, &spec);
        assert_eq!(
            all_of(&other, settings, rollouts(3), &prompts),
            together,
            "{perturbation:?}, one thread"
        );
    }
}

/// The smallest memory, to 16 KiB, that is not refused.
fn tightest(reasoner: &Reasoner, settings: SamplingParams, prompts: &[Prompt]) -> usize {
    let fits = |memory: usize| {
        let settings = SamplingParams { memory, ..settings };
        let explorer = RolloutRunner {
            model: reasoner,
            settings,
            labels: rollouts(3),
            keep_all: true,
            grader: &judge,
        };
        match explorer.run(prompts, &mut |_| ControlFlow::Break(())) {
            Err(EngineError::RolloutMemory { .. }) => false,
            other => other.is_ok(),
        }
    };
    (1..1 << 16).map(|n| n << 14).find(|&memory| fits(memory)).unwrap()
}

#[test]
fn questions_that_are_all_right_or_all_wrong_are_left_out_before_any_rollout() {
    let reasoner = reasoner(
        device(),
        &CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() },
    );
    let settings = settings(&reasoner, 4, thoughtful(0.5));
    let prompts = prompts(&reasoner);
    let opinion = |q: usize, tokens: &[u32]| match q {
        0 => Ok(Grade { answer: Some("7".into()), correct: true }),
        1 => Ok(Grade::default()),
        q => judge(q, tokens),
    };
    let explorer = RolloutRunner {
        model: &reasoner,
        settings,
        labels: rollouts(2),
        keep_all: false,
        grader: &opinion,
    };
    let found = explore(explorer, &prompts);
    let everything = explore(RolloutRunner { keep_all: true, ..explorer }, &prompts);
    let mut kept = 0;
    for (found, whole) in found.iter().zip(&everything) {
        let right = found.trajectories.iter().filter(|p| p.correct).count();
        assert_eq!(found.kept, right > 0 && right < 4);
        kept += usize::from(found.kept);
        match found.kept {
            true => assert_eq!(found, whole),
            false => {
                assert_eq!(found.rollouts, 0);
                assert!(found.trajectories.iter().all(|p| p.labels.is_empty()
                    && p.thoughts.rows() == 0
                    && !p.tokens.is_empty()));
            }
        }
    }
    assert!(!found[0].kept && !found[1].kept && kept > 0);
    assert_eq!(found[0].trajectories[0].answer.as_deref(), Some("7"));
    // Three of four thoughts are open: nothing random happens after the last.
    assert!(everything.iter().all(|a| a.rollouts == 4 * 3 * 2));
}

/// With text: answers are found by the family's rule and compared with the gold answer.
#[test]
fn an_annotator_reads_answers() {
    let reasoner = reasoner(
        device(),
        &CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() },
    );
    let settings =
        SamplingParams { max_new_tokens: count(24), ..settings(&reasoner, 16, thoughtful(0.5)) };
    let run = |questions: &[Question]| {
        let mut all = Vec::new();
        let annotator = Annotator { reasoner: &reasoner, settings, labels: rollouts(2) };
        annotator.check(questions).unwrap();
        annotator
            .run(questions, &mut |annotated| {
                all.push(annotated);
                ControlFlow::Continue(())
            })
            .unwrap();
        all
    };
    let answers = run(&questions());
    let mut kept = 0;
    for (question, found) in questions().into_iter().zip(answers) {
        let Some(answer) = found.trajectories.iter().find_map(|p| p.answer.clone()) else {
            continue;
        };
        let again = run(&[Question { gold: answer.clone(), ..question }]).remove(0);
        for path in &again.trajectories {
            assert_eq!(path.correct, path.answer.as_deref() == Some(&answer));
        }
        assert_eq!(again.kept, again.trajectories.iter().any(|p| !p.correct));
        kept += usize::from(again.kept);
    }
    assert!(kept > 0, "no question has an answer that some trajectories give and others do not");
}

#[test]
fn what_cannot_be_named_or_does_not_fit_is_refused() {
    let reasoner = reasoner(device(), &CheckpointSpec::default());
    let annotator = |settings, labels| Annotator { reasoner: &reasoner, settings, labels };
    let usual = settings(&reasoner, 2, thoughtful(0.2));
    let many = SamplingParams { samples: count(rollout::MOST_TRAJECTORIES + 1), ..usual };
    let refused =
        |settings, labels| annotator(settings, labels).check(&questions()).unwrap_err().to_string();
    assert!(refused(many, rollouts(1)).contains("1025 trajectories"));
    assert!(refused(usual, rollouts(rollout::MOST_ROLLOUTS + 1)).contains("4097 rollouts"));
    assert!(
        refused(SamplingParams { length: at_most(600), ..usual }, rollouts(1))
            .contains("600 thoughts")
    );
    let small = refused(SamplingParams { memory: 1 << 10, ..usual }, rollouts(1));
    assert!(small.contains("2 trajectories") && small.contains("--memory"), "{small}");
    let mut never = |_: AnnotatedQuestion| panic!("nothing was asked");
    annotator(usual, rollouts(1)).run(&[], &mut never).unwrap();
}

/// The names of rollouts are part of what makes a result repeatable: they must not change.
#[test]
fn rollouts_are_named_as_documented() {
    let id = rollout::rollout_row(RowId { question: 7, trajectory: 5 }, 3, 9);
    assert_eq!((id.question, id.trajectory), (7, 1 << 31 | 5 << 21 | 2 << 12 | 9));
}
