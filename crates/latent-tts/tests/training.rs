//! Training with only the library: a user-defined method, cancelling and resuming, and invalid
//! options.

#![expect(clippy::unwrap_used, reason = "a training that cannot be set up fails the test")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

use latent_tts::data::TrainExample;
use latent_tts::engine::{Family, Reasoner};
use latent_tts::record::RecordError;
use latent_tts::train::TrainError;
use latent_tts::train::latent_step::{AuxiliaryLosses, LatentTrainStep};
use latent_tts::train::methods::{ExampleEncoder, ExamplePlace, ExampleRows, LatentMarkers};
use latent_tts::train::model_dir::ModelUsage;
use latent_tts::train::reasoner::TaskSetup;
use latent_tts::train::tokenized_example::TokenizedExample;
use latent_tts::train::trainer::TrainTask;
use latent_tts::training::{MethodEntry, MethodOptions, TrainEvent, TrainingMethod};
use latent_tts::{CancelToken, Device, Error, TrainObserver, TrainReport, Trainer, TrainerOptions};
use model::{ModelError, Tokenizer, TrainableHead};
use serde_json::{Value, json};

/// A training method in one file: thoughts replace all steps from the first example on, and the
/// loss is only that of the answer.
const PAUSE: MethodEntry = MethodEntry {
    name: "pause",
    about: "Thoughts instead of steps from the start",
    configure: |options: &MethodOptions, _: &Tokenizer| {
        let thoughts = options.thoughts.map_or(3, NonZeroUsize::get);
        Ok(Box::new(Pause { thoughts }))
    },
};

#[derive(Debug)]
struct Pause {
    thoughts: usize,
}

struct PauseEncoder {
    tokenizer: Arc<Tokenizer>,
    markers: LatentMarkers,
    thoughts: usize,
}

impl TrainingMethod for Pause {
    fn usage(&self) -> ModelUsage {
        json!({ "family": "coconut", "thoughts": self.thoughts, "max_new_tokens": 8 }).into()
    }

    fn settings(&self) -> Value {
        json!({ "method": PAUSE.name, "thoughts": self.thoughts })
    }

    fn task(&self, setup: TaskSetup) -> Result<Box<dyn TrainTask>, TrainError> {
        let encoder = PauseEncoder {
            tokenizer: setup.tokenizer(),
            markers: setup.model.markers,
            thoughts: self.thoughts,
        };
        setup.task(encoder, |model| {
            LatentTrainStep::new(model, TrainableHead::Identity, AuxiliaryLosses::default())
        })
    }
}

impl ExampleEncoder for PauseEncoder {
    type Encoded = TokenizedExample;

    fn encode(
        &self,
        example: &TrainExample,
        place: ExamplePlace,
    ) -> Result<Vec<TokenizedExample>, ModelError> {
        let LatentMarkers { begin_latent, end_latent, eos } = self.markers;
        let mut prompt = self.tokenizer.encode(&format!("{}\n", example.question))?;
        prompt.push(begin_latent);
        let mut completion = vec![end_latent];
        completion.extend(self.tokenizer.encode(&format!("### {}", example.answer))?);
        completion.push(eos);
        Ok(vec![TokenizedExample {
            id: place.id as u32,
            prompt,
            thoughts: self.thoughts,
            completion,
            loss_start: 1,
            ..TokenizedExample::default()
        }])
    }

    fn rows(&self, encoded: &TokenizedExample) -> ExampleRows {
        encoded.rows()
    }
}

fn examples() -> Vec<TrainExample> {
    (0..6).map(|i| corpus::problem(corpus::Split::Train, 1, i).into()).collect()
}

fn options(steps: u32) -> TrainerOptions {
    let fields = json!({
        "width": 32, "layers": 2, "heads": 2, "batch": 6, "steps": steps, "warmup": 2,
        "lr": 0.01, "dropout": 0.0, "eval_every": 2,
    });
    TrainerOptions::from_fields(fields.as_object().cloned().unwrap()).unwrap()
}

fn device() -> Device {
    Device::cpu(NonZeroUsize::new(1)).unwrap()
}

fn trainer(out: &Path, options: TrainerOptions) -> Trainer {
    Trainer::new(out, options).unwrap().with_examples(examples()).with_held_out(examples())
}

fn run(trainer: &Trainer) -> Result<TrainReport, Error> {
    trainer.run(&device(), &mut (), &CancelToken::default())
}

#[test]
fn a_method_of_the_users_trains_a_reasoner() {
    let dir = tempfile::tempdir().unwrap();
    let report = run(&trainer(dir.path(), options(150)).with_method(PAUSE)).unwrap();
    let kept = report.kept.unwrap();
    assert!(report.finished && kept.score == 1.0, "{kept:?}");
    let reasoner = Reasoner::load(&device(), dir.path(), None).unwrap();
    assert_eq!(reasoner.method.family, Family::COCONUT);
    assert_eq!(reasoner.method.length.limit(), 3);
}

/// Cancels after a step, and counts the events it observes.
struct Canceller {
    after: u32,
    token: CancelToken,
    evaluations: usize,
}

impl TrainObserver for Canceller {
    fn event(&mut self, event: &TrainEvent<'_>) {
        match event {
            TrainEvent::Stepped { steps, .. } if *steps == self.after => self.token.cancel(),
            TrainEvent::Evaluated { .. } => self.evaluations += 1,
            _ => {}
        }
    }
}

#[test]
fn a_cancelled_training_resumes_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let parts = dir.path().join("parts");
    run(&trainer(&whole, options(5))).unwrap();
    let token = CancelToken::default();
    let mut observer = Canceller { after: 3, token: token.clone(), evaluations: 0 };
    let report = trainer(&parts, options(5)).run(&device(), &mut observer, &token).unwrap();
    assert!(!report.finished && observer.evaluations == 1, "{report:?}");
    assert!(matches!(
        run(&trainer(&parts, options(5))),
        Err(Error::Record(RecordError::TrainingExists { .. }))
    ));
    let mut resumed = options(5);
    resumed.training.resume = true;
    assert!(run(&trainer(&parts, resumed.clone())).unwrap().finished);
    for file in ["model.safetensors", "training/log.jsonl", "training/evals.jsonl"] {
        let bytes = |out: &Path| std::fs::read(out.join(file)).unwrap();
        assert_eq!(bytes(&whole), bytes(&parts), "{file}");
    }
    // Other examples are a different training.
    let other = trainer(&parts, resumed).with_examples(examples()[1..].to_vec());
    assert!(matches!(run(&other), Err(Error::Train(TrainError::InputsChanged { .. }))));
}

#[test]
fn options_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new");
    let mut wide = options(1);
    wide.training.dropout = 1.5;
    assert!(Trainer::new(&out, wide).is_err_and(|error| error.to_string().contains("dropout")));
    let mut unknown = options(1);
    unknown.method = "osmosis".to_owned();
    let error = run(&trainer(&out, unknown)).unwrap_err().to_string();
    assert!(error.contains("osmosis") && error.contains("coconut"), "{error}");
    let mut without_resume = options(1);
    without_resume.training.change_optimizer = true;
    assert!(run(&trainer(&out, without_resume)).unwrap_err().to_string().contains("`resume`"));
    assert!(run(&trainer(&out, options(1)).with_examples(Vec::new())).is_err());
    assert!(!out.exists());
    assert_eq!(options(7).training.steps, NonZeroU32::new(7).unwrap());
}
