//! An interrupted and resumed training ends with the same bytes as an uninterrupted one; a state
//! that cannot be resumed is reported.

use std::ops::ControlFlow;
use std::path::Path;

use data::{AnswerKind, Question};

use engine::rollout::{AnnotatedQuestion, LabelledTrajectory};
use engine::{LatentModel, ReferenceTracer, RewardModel};
use latent_tts_train::TrainError;
use latent_tts_train::annotate::{
    AnnotationIndex, AnnotationShard, AnnotationStore, Annotations, ThoughtsDtype,
};
use latent_tts_train::loss::Objective;
use latent_tts_train::reward::RewardTask;
use latent_tts_train::reward_step::{RewardExample, RewardHeadKind, RewardTrainStep};
use latent_tts_train::trainer::{TrainConfig, TrainOutcome, TrainSettings, TrainTask};
use model::save::{self, SaveDtype};
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use model::{NamedTensor, Parameter};
use record::TrainingDir;
use serde_json::json;

use crate::methods::SMALL;
use crate::resumable::{ACCUMULATION_STEPS, assert_resumable, config};
use crate::support::{
    FULL_WRITER, device, problems, reward_example, reward_step, tiny, train, with_outcome_head,
};

/// A small task with all sources of randomness: shuffling, micro-batches, dropout.
fn reasoner(out: &Path) -> Box<dyn TrainTask> {
    Box::new(SMALL.task(out, problems(4)))
}

/// Annotations of three problems.
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

fn annotated(example: RewardExample) -> AnnotatedQuestion {
    let mut start = 0;
    let trajectories = example.lengths.iter().zip(&example.correct).map(|(&length, &correct)| {
        start += length;
        let range = start - length..start;
        let thoughts = example.thoughts.select(range.clone());
        let labels = example.labels[range].to_vec();
        LabelledTrajectory {
            thoughts,
            labels,
            tokens: [1].as_slice().into(),
            answer: None,
            correct,
        }
    });
    AnnotatedQuestion {
        id: example.id,
        trajectories: trajectories.collect(),
        prompt: example.prompt,
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
        order_preference: 0.5,
        dropout: 0.1,
        seed: 8,
        batch_size: 2,
        accumulation_steps: ACCUMULATION_STEPS,
        out: out.to_owned(),
        writer: FULL_WRITER,
    }
}

#[test]
fn a_problem_that_exceeds_a_context_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let task = |train_step: RewardTrainStep, reference_reasoner: Option<LatentModel>| RewardTask {
        train_step,
        reference_reasoner,
        ..reward_task(dir.path())
    };
    let reference = |context: usize| {
        let dir = tempfile::tempdir().unwrap();
        write_checkpoint(
            dir.path(),
            &CheckpointSpec { context, ..tiny(CheckpointFamily::Coconut) },
        )
        .unwrap();
        RewardModel::load_reference(device(), dir.path(), 16).unwrap()
    };
    let step = || {
        with_outcome_head(reward_step(CheckpointFamily::RewardGpt2, RewardHeadKind::Compare, true))
    };
    task(step(), None).check().unwrap();
    task(step(), Some(reference(64))).check().unwrap();
    // The longest prompt has 6 tokens, the reference trace 6 thoughts.
    assert!(matches!(
        task(step(), Some(reference(11))).check(),
        Err(TrainError::TooLong { id: 2, length: 12, context: 11 })
    ));
    let mut long = step();
    if let Some(outcome) = &mut long.outcome {
        outcome.end_latent = vec![5; 64];
    }
    assert!(matches!(
        task(long, None).check(),
        Err(TrainError::TooLong { id: 0, context: 64, .. })
    ));
}

#[test]
fn a_resumed_reasoner_ends_with_the_same_bytes() {
    assert_resumable(reasoner);
}

#[test]
fn a_resumed_reward_model_ends_with_the_same_bytes() {
    assert_resumable(reward);
}

/// Interrupts a training after its first step.
fn interrupt(out: &Path) {
    let outcome = train(&mut *reasoner(out), &config(out), &mut |_| ControlFlow::Break(()));
    assert_eq!(outcome.unwrap(), TrainOutcome::Interrupted);
}

fn resume_error(out: &Path, config: &TrainConfig) -> Option<TrainError> {
    // Interrupts as soon as the state is restored.
    train(&mut *reasoner(out), config, &mut |_| ControlFlow::Break(())).err()
}

#[test]
fn a_state_of_other_settings_is_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    interrupt(dir.path());
    let other = TrainConfig { settings: TrainSettings::default(), ..config(dir.path()) };
    let error = resume_error(dir.path(), &other).unwrap();
    assert!(matches!(error, TrainError::SettingsChanged { .. }), "{error}");
    assert!(error.to_string().contains("state.safetensors"), "{error}");
    assert!(resume_error(dir.path(), &config(dir.path())).is_none(), "the same settings");
}

#[test]
fn the_optimizer_of_a_state_changes_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    interrupt(dir.path());
    let mut other = config(dir.path());
    other.settings.optimizer.insert("lr".to_owned(), json!(1e-4));
    let error = resume_error(dir.path(), &other).unwrap();
    assert!(matches!(error, TrainError::OptimizerChanged { .. }), "{error}");
    other.change_optimizer = true;
    let outcome =
        train(&mut *reasoner(dir.path()), &other, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(outcome, TrainOutcome::Finished);
    let settings = TrainingDir::find(dir.path()).unwrap().settings().unwrap();
    assert_eq!(settings, json!({ "method": "these settings", "lr": 1e-4 }));
}

#[test]
fn a_damaged_state_is_named() {
    let dir = tempfile::tempdir().unwrap();
    interrupt(dir.path());
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
fn a_state_of_another_shape_or_dtype_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("training/state.safetensors");
    let fixed = r#"{"method":"these settings"}"#;
    let metadata = json!({
        "fingerprint": fixed, "optimizer": "{}", "steps": 1, "best": null, "evals_since_best": 0,
    });
    let shape = |parameter: &Parameter| (parameter.value.rows(), parameter.value.cols());
    let (rows, cols) = shape(reasoner(dir.path()).parameters()[0]);
    for (shape, dtype) in [
        (vec![rows, cols], SaveDtype::Bf16),
        (vec![cols, rows], SaveDtype::F32),
        (vec![1, 1], SaveDtype::F32),
    ] {
        let values = vec![0.0; shape.iter().product()];
        save::write_safetensors(
            &path,
            &[NamedTensor { name: "0.value".to_owned(), shape, values }],
            dtype,
            ("training", &metadata.to_string()),
        )
        .unwrap();
        let error = resume_error(dir.path(), &config(dir.path())).unwrap();
        assert!(
            matches!(error, TrainError::BadState { .. }) && error.to_string().contains("0.value"),
            "{error}"
        );
    }
}
