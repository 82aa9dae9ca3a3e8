//! An interrupted training ends with the bytes of an uninterrupted one; what cannot be gone on with
//! is refused by name.

use std::ops::ControlFlow;
use std::path::Path;

use engine::question::AnswerKind;
use engine::reference_trace::ReferenceTracer;
use engine::rollout::{AnnotatedQuestion, LabelledTrajectory as Followed};
use engine::{LatentModel, Question, RewardModel};
use model::save::{self, SaveDtype};
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use model::{NamedTensor, Parameter};
use train::TrainError;
use train::annotate::{
    AnnotationIndex, AnnotationShard, AnnotationStore, Annotations, ThoughtsDtype,
};
use train::loss::Objective;
use train::reward::RewardTask;
use train::reward_step::{RewardExample, RewardHeadKind, RewardTrainStep};
use train::trainer::{self, TrainConfig, TrainEvent, TrainOutcome, TrainTask};

use crate::support::{
    ReasonerFixture, device, optimizer, problems, reward_example, reward_step, tiny,
    with_outcome_head,
};

const STEPS: u32 = 5;

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        optimizer: optimizer(STEPS, 1e-3),
        accumulation_steps: 2,
        dir: out.join("training"),
        save_every: 0,
        eval_every: 3,
        patience: 0,
        fingerprint: "these settings".to_owned(),
    }
}

/// Small, with everything that is drawn: the order of the problems, parts of a step, dropout.
fn reasoner(out: &Path) -> Box<dyn TrainTask> {
    let reasoning = ReasonerFixture {
        width: 16,
        layers: 1,
        batch: 3,
        accumulation_steps: 2,
        steps: STEPS,
        dropout: 0.1,
    };
    Box::new(reasoning.task(out, problems(4)))
}

/// What `annotate` would have written of three problems.
fn annotations(dir: &Path) -> Annotations {
    let index = AnnotationIndex {
        version: AnnotationIndex::VERSION,
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
    let mut shard = AnnotationShard::new(&index);
    for id in 0..3 {
        let steps = vec![format!("<<1+{id}={}>>", id + 1)];
        let question = Question {
            id,
            text: "?".to_owned(),
            gold: "7".to_owned(),
            kind: AnswerKind::Number,
            steps,
        };
        shard.add(&question, &annotated(reward_example(id, &[2, 3, 1]))).unwrap();
    }
    AnnotationStore::create(dir, &index).unwrap().write(0, &shard).unwrap();
    Annotations::open(dir).unwrap()
}

fn annotated(of: RewardExample) -> AnnotatedQuestion {
    let mut start = 0;
    let paths = of.lengths.iter().zip(&of.correct).map(|(&length, &correct)| {
        start += length;
        let (thoughts, labels) =
            (of.thoughts.select(start - length..start), of.labels[start - length..start].to_vec());
        Followed { thoughts, labels, tokens: [1].as_slice().into(), answer: None, correct }
    });
    AnnotatedQuestion {
        id: of.id,
        trajectories: paths.collect(),
        prompt: of.prompt,
        kept: true,
        rollouts: 1,
    }
}

fn reward(out: &Path) -> Box<dyn TrainTask> {
    Box::new(reward_task(out))
}

fn reward_task(out: &Path) -> RewardTask {
    let labels = out.join("labels");
    let annotations =
        if labels.exists() { Annotations::open(&labels).unwrap() } else { annotations(&labels) };
    RewardTask {
        device: device().clone(),
        train_step: reward_step(CheckpointFamily::RewardGpt2, RewardHeadKind::Compare, true),
        reference_reasoner: None,
        reference_tracer: ReferenceTracer::default(),
        annotations: vec![annotations],
        held_out: Some(Annotations::open(&labels).unwrap()),
        objective: Objective::Contrastive,
        last_step_weight: 2.0,
        dropout: 0.1,
        seed: 8,
        batch_size: 2,
        accumulation_steps: 2,
        out: out.to_owned(),
        dtype: SaveDtype::F32,
    }
}

/// What does not fit is named before anything is learned.
#[test]
fn a_problem_that_does_not_fit_the_judge_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let course = |judge: RewardTrainStep, mind: Option<LatentModel>| RewardTask {
        train_step: judge,
        reference_reasoner: mind,
        ..reward_task(dir.path())
    };
    let mind = |context: usize| {
        let dir = tempfile::tempdir().unwrap();
        write_checkpoint(
            dir.path(),
            &CheckpointSpec { context, ..tiny(CheckpointFamily::Coconut) },
        )
        .unwrap();
        RewardModel::load_reference(device(), dir.path(), 16).unwrap()
    };
    let reading = || {
        with_outcome_head(reward_step(CheckpointFamily::RewardGpt2, RewardHeadKind::Compare, true))
    };
    course(reading(), None).check().unwrap();
    course(reading(), Some(mind(64))).check().unwrap();
    // The longest prompt has 6 tokens, and a COCONUT thinks six thoughts.
    assert!(matches!(
        course(reading(), Some(mind(11))).check(),
        Err(TrainError::TooLong { id: 2, length: 12, context: 11 })
    ));
    let mut far = reading();
    if let Some(verdicts) = &mut far.outcome {
        verdicts.end_latent = vec![5; 64];
    }
    assert!(matches!(
        course(far, None).check(),
        Err(TrainError::TooLong { id: 0, context: 64, .. })
    ));
}

type MakeTask = fn(&Path) -> Box<dyn TrainTask>;

/// What is left of a training that is interrupted after every so many steps, and started anew each
/// time.
fn trained(make: MakeTask, interruptions: u32) -> [Vec<u8>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path();
    let mut runs = 0;
    loop {
        runs += 1;
        let mut steps_now = 0;
        let ended = trainer::run(&mut *make(out), device(), &config(out), &mut |event| {
            steps_now += u32::from(matches!(event, TrainEvent::Stepped { .. }));
            if interruptions > 0 && steps_now == interruptions {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        if ended.unwrap() == TrainOutcome::Finished {
            break;
        }
    }
    assert_eq!(runs, if interruptions == 0 { 1 } else { STEPS.div_ceil(interruptions) }, "runs");
    let log = std::fs::read_to_string(out.join("training/log.jsonl")).unwrap();
    let steps: Vec<u64> = log
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, (0..u64::from(STEPS)).collect::<Vec<_>>(), "a line a step");
    ["training/state.safetensors", "model.safetensors"]
        .map(|name| std::fs::read(out.join(name)).unwrap())
}

fn resumes(make: MakeTask) {
    let whole = trained(make, 0);
    for interruptions in [1, 2, 4] {
        assert!(
            trained(make, interruptions) == whole,
            "other bytes after an interruption every {interruptions} steps"
        );
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
fn interrupted(out: &Path) {
    let ended =
        trainer::run(&mut *reasoner(out), device(), &config(out), &mut |_| ControlFlow::Break(()));
    assert_eq!(ended.unwrap(), TrainOutcome::Interrupted);
}

fn resume_error(out: &Path, plan: &TrainConfig) -> Option<TrainError> {
    // Stops as soon as the state is read.
    trainer::run(&mut *reasoner(out), device(), plan, &mut |_| ControlFlow::Break(())).err()
}

#[test]
fn other_settings_do_not_go_on() {
    let dir = tempfile::tempdir().unwrap();
    interrupted(dir.path());
    let other = TrainConfig { fingerprint: "others".to_owned(), ..config(dir.path()) };
    let error = resume_error(dir.path(), &other).unwrap();
    assert!(matches!(error, TrainError::SettingsChanged { .. }), "{error}");
    assert!(error.to_string().contains("state.safetensors"), "{error}");
    assert!(resume_error(dir.path(), &config(dir.path())).is_none(), "the same ones do");
}

#[test]
fn a_damaged_state_is_named() {
    let dir = tempfile::tempdir().unwrap();
    interrupted(dir.path());
    let path = dir.path().join("training/state.safetensors");
    let good = std::fs::read(&path).unwrap();
    for length in [0, 7, 100, good.len() / 2, good.len() - 1] {
        std::fs::write(&path, &good[..length]).unwrap();
        let error = resume_error(dir.path(), &config(dir.path())).unwrap();
        assert!(matches!(error, TrainError::BadState { .. }), "{length} bytes: {error}");
        assert!(
            error.to_string().contains("state.safetensors")
                && error.to_string().contains("delete it"),
            "{error}"
        );
    }
    let header = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    for at in (0..8 + header).step_by(97) {
        let mut flipped = good.clone();
        flipped[at] ^= 4;
        std::fs::write(&path, flipped).unwrap();
        let error = resume_error(dir.path(), &config(dir.path()));
        let named = matches!(
            error,
            None | Some(TrainError::BadState { .. } | TrainError::SettingsChanged { .. })
        );
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
    for (shape, format) in [
        (vec![rows, cols], SaveDtype::Bf16),
        (vec![cols, rows], SaveDtype::F32),
        (vec![1, 1], SaveDtype::F32),
    ] {
        let values = vec![0.0; shape.iter().product()];
        save::write_safetensors(
            &path,
            &[NamedTensor { name: "0.value".to_owned(), shape, values }],
            format,
            ("training", note),
        )
        .unwrap();
        let error = resume_error(dir.path(), &config(dir.path())).unwrap();
        assert!(
            matches!(error, TrainError::BadState { .. }) && error.to_string().contains("0.value"),
            "{error}"
        );
    }
}
