//! An interrupted training ends with the bytes of an uninterrupted one; what cannot be gone on with is refused by name.

use std::ops::ControlFlow;
use std::path::Path;

use engine::question::GoldKind;
use engine::reflect::Reflections;
use engine::rollout::{Annotated, Path as Followed};
use engine::{Mind, Question, RewardModel};
use model::save::{self, Saved};
use model::testkit::{Family, Spec, write_checkpoint};
use model::{Named, Parameter};
use train::Error;
use train::annotate::{Annotations, Index, Shard, Store, ThoughtsDtype};
use train::course::{self, Course, Ended, Event, Plan};
use train::judge::{Case, HeadKind, Judge};
use train::loss::Objective;
use train::reward::RewardCourse;

use crate::support::{Reasoning, case, device, judge, optimizer, problems, tiny, verdicts};

const STEPS: u32 = 5;

fn plan(out: &Path) -> Plan {
    Plan {
        optimizer: optimizer(STEPS, 1e-3),
        accumulate: 2,
        dir: out.join("training"),
        save_every: 0,
        examine_every: 3,
        patience: 0,
        fingerprint: "these settings".to_owned(),
    }
}

/// Small, with everything that is drawn: the order of the problems, parts of a step, dropout.
fn reasoner(out: &Path) -> Box<dyn Course> {
    let reasoning = Reasoning { width: 16, layers: 1, batch: 3, accumulate: 2, steps: STEPS, dropout: 0.1 };
    Box::new(reasoning.course(out, problems(4)))
}

/// What `annotate` would have written of three problems.
fn annotations(dir: &Path) -> Annotations {
    let index = Index {
        version: Index::VERSION,
        program: "test 1".to_owned(),
        commit: None,
        settings: serde_json::Value::Null,
        fingerprint: "f".to_owned(),
        questions: 3,
        per_shard: 3,
        trajectories: 3,
        width: 16,
        dtype: ThoughtsDtype::F32,
    };
    let mut shard = Shard::new(&index);
    for id in 0..3 {
        let steps = vec![format!("<<1+{id}={}>>", id + 1)];
        let question = Question { id, text: "?".to_owned(), gold: "7".to_owned(), kind: GoldKind::Number, steps };
        shard.add(&question, &annotated(case(id, &[2, 3, 1]))).unwrap();
    }
    Store::create(dir, &index).unwrap().write(0, &shard).unwrap();
    Annotations::open(dir).unwrap()
}

fn annotated(of: Case) -> Annotated {
    let mut start = 0;
    let paths = of.lengths.iter().zip(&of.correct).map(|(&length, &correct)| {
        start += length;
        let (thoughts, labels) = (of.thoughts.select(start - length..start), of.labels[start - length..start].to_vec());
        Followed { thoughts, labels, tokens: [1].as_slice().into(), answer: None, correct }
    });
    Annotated { id: of.id, paths: paths.collect(), prompt: of.prompt, kept: true, rollouts: 1 }
}

fn reward(out: &Path) -> Box<dyn Course> {
    Box::new(judging(out))
}

fn judging(out: &Path) -> RewardCourse {
    let labels = out.join("labels");
    let annotations = if labels.exists() { Annotations::open(&labels).unwrap() } else { annotations(&labels) };
    RewardCourse {
        device: device().clone(),
        judge: judge(Family::RewardGpt2, HeadKind::Compare, true),
        mind: None,
        reflections: Reflections::default(),
        annotations: vec![annotations],
        held_out: Some(Annotations::open(&labels).unwrap()),
        objective: Objective::Contrastive,
        late: 2.0,
        dropout: 0.1,
        seed: 8,
        batch: 2,
        accumulate: 2,
        out: out.to_owned(),
        saved: Saved::F32,
    }
}

/// What does not fit is named before anything is learned.
#[test]
fn a_problem_that_does_not_fit_the_judge_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let course = |judge: Judge, mind: Option<Mind>| RewardCourse { judge, mind, ..judging(dir.path()) };
    let mind = |context: usize| {
        let dir = tempfile::tempdir().unwrap();
        write_checkpoint(dir.path(), &Spec { context, ..tiny(Family::Coconut) }).unwrap();
        RewardModel::mind(device(), dir.path(), 16).unwrap()
    };
    let reading = || verdicts(judge(Family::RewardGpt2, HeadKind::Compare, true));
    course(reading(), None).check().unwrap();
    course(reading(), Some(mind(64))).check().unwrap();
    // The longest prompt has 6 tokens, and a COCONUT thinks six thoughts.
    assert!(matches!(course(reading(), Some(mind(11))).check(), Err(Error::TooLong { id: 2, length: 12, context: 11 })));
    let mut far = reading();
    if let Some(verdicts) = &mut far.verdicts {
        verdicts.end = vec![5; 64];
    }
    assert!(matches!(course(far, None).check(), Err(Error::TooLong { id: 0, context: 64, .. })));
}

type Make = fn(&Path) -> Box<dyn Course>;

/// What is left of a training that is interrupted after every so many steps, and started anew each time.
fn trained(make: Make, interruptions: u32) -> [Vec<u8>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path();
    let mut runs = 0;
    loop {
        runs += 1;
        let mut steps_now = 0;
        let ended = course::run(&mut *make(out), device(), &plan(out), &mut |event| {
            steps_now += u32::from(matches!(event, Event::Stepped { .. }));
            if interruptions > 0 && steps_now == interruptions { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if ended.unwrap() == Ended::Done {
            break;
        }
    }
    assert_eq!(runs, if interruptions == 0 { 1 } else { STEPS.div_ceil(interruptions) }, "runs");
    let log = std::fs::read_to_string(out.join("training/log.jsonl")).unwrap();
    let steps: Vec<u64> =
        log.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (0..u64::from(STEPS)).collect::<Vec<_>>(), "a line a step");
    ["training/state.safetensors", "model.safetensors"].map(|name| std::fs::read(out.join(name)).unwrap())
}

fn resumes(make: Make) {
    let whole = trained(make, 0);
    for interruptions in [1, 2, 4] {
        assert!(trained(make, interruptions) == whole, "other bytes after an interruption every {interruptions} steps");
    }
}

#[test]
fn a_reasoner_goes_on_as_if_nothing_had_been() {
    resumes(reasoner);
}

#[test]
fn a_judge_goes_on_as_if_nothing_had_been() {
    resumes(reward);
}

/// A training that was interrupted after its first step.
fn begun(out: &Path) {
    let ended = course::run(&mut *reasoner(out), device(), &plan(out), &mut |_| ControlFlow::Break(()));
    assert_eq!(ended.unwrap(), Ended::Interrupted);
}

fn refusal(out: &Path, plan: &Plan) -> Option<Error> {
    // Stops as soon as the state is read.
    course::run(&mut *reasoner(out), device(), plan, &mut |_| ControlFlow::Break(())).err()
}

#[test]
fn other_settings_do_not_go_on() {
    let dir = tempfile::tempdir().unwrap();
    begun(dir.path());
    let other = Plan { fingerprint: "others".to_owned(), ..plan(dir.path()) };
    let error = refusal(dir.path(), &other).unwrap();
    assert!(matches!(error, Error::OtherTraining { .. }), "{error}");
    assert!(error.to_string().contains("state.safetensors"), "{error}");
    assert!(refusal(dir.path(), &plan(dir.path())).is_none(), "the same ones do");
}

#[test]
fn a_damaged_state_is_named() {
    let dir = tempfile::tempdir().unwrap();
    begun(dir.path());
    let path = dir.path().join("training/state.safetensors");
    let good = std::fs::read(&path).unwrap();
    for length in [0, 7, 100, good.len() / 2, good.len() - 1] {
        std::fs::write(&path, &good[..length]).unwrap();
        let error = refusal(dir.path(), &plan(dir.path())).unwrap();
        assert!(matches!(error, Error::BadState { .. }), "{length} bytes: {error}");
        assert!(error.to_string().contains("state.safetensors") && error.to_string().contains("delete it"), "{error}");
    }
    let header = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    for at in (0..8 + header).step_by(97) {
        let mut flipped = good.clone();
        flipped[at] ^= 4;
        std::fs::write(&path, flipped).unwrap();
        let error = refusal(dir.path(), &plan(dir.path()));
        let named = matches!(error, None | Some(Error::BadState { .. } | Error::OtherTraining { .. }));
        assert!(named, "byte {at}: {error:?}");
    }
}

#[test]
fn a_state_of_another_model_or_format_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("training/state.safetensors");
    let note = r#"{"fingerprint": "these settings", "steps": 1, "best": null, "looks_since": 0}"#;
    let first = |parameter: &Parameter| (parameter.value.rows(), parameter.value.cols());
    let (rows, cols) = first(reasoner(dir.path()).parameters()[0]);
    for (shape, format) in [(vec![rows, cols], Saved::Bf16), (vec![cols, rows], Saved::F32), (vec![1, 1], Saved::F32)] {
        let values = vec![0.0; shape.iter().product()];
        save::tensors(&path, &[Named { name: "0.value".to_owned(), shape, values }], format, ("training", note)).unwrap();
        let error = refusal(dir.path(), &plan(dir.path())).unwrap();
        assert!(matches!(error, Error::BadState { .. }) && error.to_string().contains("0.value"), "{error}");
    }
}
