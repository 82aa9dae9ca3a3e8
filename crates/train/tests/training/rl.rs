//! Reinforcement learning: gradients of each policy match finite differences, the forward pass of
//! training reproduces the sampled trajectories bit for bit, training resumes byte for byte, and
//! the reward rises.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use data::TrainExample;
use engine::family::CODI_PROJECTOR;
use engine::{FamilyParts, PerturbationKeys, Request};
use latent_tts_train::data_loader::ExampleSource;
use latent_tts_train::model_dir::{self, ContinuedModel};
use latent_tts_train::options::RlTrainerOptions;
use latent_tts_train::rl::RlTask;
use latent_tts_train::rl::policy::{
    ActionValues, PolicyBatch, PolicyConfig, PolicyStep, PolicyTrajectory, ThoughtGradient,
};
use latent_tts_train::rl::task::RlSetup;
use latent_tts_train::trainer::{TrainEvent, TrainOutcome, TrainTask};
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use model::{LatentHead, ModelFiles, Parameter, TrainableHead};
use serde_json::{Value, json};
use tensor::Tensor;

use crate::gradients::{Differentiable, assert_gradients};
use crate::resumable::{ACCUMULATION_STEPS, assert_resumable};
use crate::support::{
    FULL_TUNING, ReasonerFixture, device, latent_step, problems, tiny, train, train_config,
};

/// Options of a small training, overridden by `given`.
fn options(given: Value) -> RlTrainerOptions {
    let mut fields = json!({
        "samples": 4, "batch": 2, "eval_samples": 2, "seed": 5, "max_new_tokens": 5,
        "pass_trajectories": 3,
    });
    for (name, value) in given.as_object().unwrap() {
        fields[name] = value.clone();
    }
    let options = RlTrainerOptions::from_fields(fields.as_object().unwrap().clone()).unwrap();
    options.check().unwrap();
    options
}

/// The task of a model in a directory.
fn task(base: &Path, out: &Path, options: &RlTrainerOptions, examples: &[TrainExample]) -> RlTask {
    let files = ModelFiles::Directory(base.to_owned());
    let ContinuedModel { decoder, tokenizer, writer, checkpoint } =
        model_dir::continue_model(device(), &files, out, &FULL_TUNING).unwrap();
    let parts = FamilyParts::read(device(), &checkpoint, &tokenizer, None).unwrap();
    let head = || match parts.head {
        LatentHead::Mlp { .. } => {
            TrainableHead::mlp(device(), &checkpoint, &CODI_PROJECTOR).unwrap()
        }
        _ => TrainableHead::Identity,
    };
    let settings = options.settings(&parts.method).unwrap();
    let copy = || model_dir::load_continued(device(), &checkpoint, None).unwrap();
    RlTask::new(RlSetup {
        device: device().clone(),
        policy: PolicyStep::new(decoder, head()),
        reference: (settings.kl_coef > 0.0).then(|| PolicyStep::new(copy(), head())),
        reward_model: None,
        method: parts.method.clone(),
        tokenizer,
        writer,
        source: ExampleSource::List { examples: Arc::new(examples.to_vec()), seed: 3 },
        held_out: examples[..examples.len().min(4)].to_vec(),
        out: out.to_owned(),
        settings,
    })
}

/// All policies: options with the family they apply to.
fn policies() -> Vec<(CheckpointFamily, Value)> {
    use CheckpointFamily::{Coconut, CodiGpt2, CodiLlama};
    vec![
        (Coconut, json!({ "sampler": "dropout", "dropout_p": 0.2 })),
        (Coconut, json!({ "sampler": "dropout", "dropout_p": 0.2, "mask": "trajectory" })),
        (CodiGpt2, json!({ "sampler": "dropout", "dropout_p": 0.3, "sites": "mlp" })),
        (CodiLlama, json!({ "sampler": "dropout", "dropout_p": 0.1, "scope": "prompt" })),
        (Coconut, json!({ "sampler": "dropout", "dropout_p": 0.2, "scope": "all" })),
        (Coconut, json!({ "dropout_p": 0.2, "latent_length": "2-4" })),
        (CodiGpt2, json!({ "dropout_p": 0.2, "latent_length": "<=3" })),
        (Coconut, json!({ "dropout_p": 0.2, "answers_per_thoughts": 2 })),
        (Coconut, json!({ "sampler": "noise", "noise_std": 0.5 })),
        (CodiLlama, json!({ "sampler": "noise", "noise_std": 0.1, "temperature": 0.7 })),
        (
            CodiGpt2,
            json!({
                "sampler": "noise", "noise_std": 0.4, "thought_gradient": "density",
            }),
        ),
        (Coconut, json!({ "sampler": "tokens" })),
        (Coconut, json!({ "sampler": "tokens", "latent_length": "0" })),
    ]
}

/// Questions of different lengths, in words of all test vocabularies.
fn questions() -> Vec<TrainExample> {
    ["A hen lays 12 eggs; what do 3 lay?", "3+4?", "Tom has 7 pens."]
        .map(|question| TrainExample {
            question: question.to_owned(),
            steps: Vec::new(),
            answer: "7".to_owned(),
        })
        .to_vec()
}

#[test]
fn the_log_probability_at_sampling_is_that_of_the_pass_with_gradients_to_the_bit() {
    for (family, given) in policies() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base");
        write_checkpoint(&base, &tiny(family)).unwrap();
        let options = options(given.clone());
        let mut task = task(&base, &dir.path().join("out"), &options, &questions());
        let config = task.policy_config();
        let engine = task.engine().unwrap();
        let rollout = options.settings(&engine.reasoner().method).unwrap().rollout;
        let groups = rollout.sample(&engine, 20, &questions()).unwrap();
        let request = |(id, question): (u32, TrainExample)| Request {
            id,
            answer_sampling: rollout.answer_sampling(),
            ..Request::new(question.question, rollout.params)
        };
        let requests: Vec<Request> = (20..).zip(questions()).map(request).collect();
        let mut sampled: Vec<Vec<f32>> = Vec::new();
        engine
            .run(&requests, |_, reply| -> Result<(), engine::EngineError> {
                sampled.push(reply?.trajectories.iter().map(|one| one.logprob.unwrap()).collect());
                Ok(())
            })
            .unwrap();
        drop(engine);
        // All questions in one forward pass, independent of the batches in which they were sampled.
        let mut batch = PolicyBatch::default();
        for (prompt, group) in groups.iter().enumerate() {
            batch.prompts.push(group.prompt.clone());
            batch.trajectories.extend(
                group.trajectories.iter().cloned().map(|one| PolicyTrajectory { prompt, ..one }),
            );
        }
        // At temperature 1, as the engine reports them.
        let config = PolicyConfig { temperature: 1.0, ..config };
        let found = task.policy_mut().logprobs(&config, &batch).unwrap();
        let sums = found.tokens.iter().map(|tokens| tokens.iter().fold(0.0, |sum, x| sum + x));
        let distinct: std::collections::BTreeSet<_> =
            batch.trajectories.iter().map(|one| &one.answer).collect();
        assert!(distinct.len() > 3, "{given}: the trajectories do not differ");
        for (sum, expected) in sums.zip(sampled.into_iter().flatten()) {
            assert_eq!(f32::to_bits(sum), expected.to_bits(), "{family:?} {given}");
        }
    }
}

/// With a density, the sampled noise is recovered from the difference between the input thought and
/// the computed thought, so the log-densities agree up to rounding.
#[test]
fn the_log_density_of_sampled_thoughts_is_that_of_the_noise_to_rounding() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    write_checkpoint(&base, &tiny(CheckpointFamily::CodiGpt2)).unwrap();
    let given = json!({ "sampler": "noise", "noise_std": 0.4, "thought_gradient": "density" });
    let mut task = task(&base, &dir.path().join("out"), &options(given), &questions());
    let config = task.policy_config();
    for group in task.sample_round(0).unwrap() {
        let batch =
            PolicyBatch { prompts: vec![group.prompt.clone()], trajectories: group.trajectories };
        let found = task.policy_mut().logprobs(&config, &batch).unwrap();
        for (one, densities) in batch.trajectories.iter().zip(&found.thoughts) {
            assert_eq!(densities.len(), one.thoughts);
            for (t, density) in densities.iter().enumerate() {
                let expected = density_of_noise(&config.keys, one, group.prompt.len() + t);
                assert!((f64::from(*density) - expected).abs() < 2e-4, "{density} {expected}");
            }
        }
    }
}

fn density_of_noise(keys: &PerturbationKeys, one: &PolicyTrajectory, position: usize) -> f64 {
    let id = engine::SequenceId { question: one.question, trajectory: one.number };
    let noise = keys.noise(id, position).unwrap();
    let mut sample = vec![0.0; one.latents.cols()];
    noise.key.add_noise(1.0, &mut sample);
    let normal = |z: &f32| {
        -0.5 * f64::from(*z).powi(2)
            - (f64::from(noise.strength) * (2.0 * std::f64::consts::PI).sqrt()).ln()
    };
    sample.iter().map(normal).sum()
}

/// A policy with the loss `- sum of weight * log-probability`, for weights of both signs.
struct PolicySubject {
    policy: PolicyStep,
    config: PolicyConfig,
    batch: PolicyBatch,
}

impl PolicySubject {
    fn weights(&self) -> ActionValues {
        let weight = |n: usize, i: usize| ((n * 7 + i * 3) % 5) as f32 / 2.0 - 0.9;
        let of = |(n, count): (usize, usize)| (0..count).map(|i| weight(n, i)).collect();
        let density = self.config.thoughts == ThoughtGradient::Density;
        let tokens = self.batch.trajectories.iter().map(|one| one.answer.len());
        let thoughts =
            self.batch.trajectories.iter().map(|one| one.thoughts * usize::from(density));
        ActionValues {
            tokens: tokens.enumerate().map(of).collect(),
            thoughts: thoughts.enumerate().map(of).collect(),
        }
    }
}

impl Differentiable for PolicySubject {
    fn accumulate_gradients(&mut self) -> f64 {
        let weights = self.weights();
        let given = weights.clone();
        let values = self.policy.accumulate(&self.config, &self.batch, |_| given).unwrap();
        let dot = |a: &[Vec<f32>], b: &[Vec<f32>]| -> f64 {
            let pairs = a.iter().flatten().zip(b.iter().flatten());
            pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        -dot(&weights.tokens, &values.tokens) - dot(&weights.thoughts, &values.thoughts)
    }

    fn parameters(&mut self) -> Vec<&mut Parameter> {
        self.policy.parameters_mut()
    }

    fn sync_weights(&mut self) {
        self.policy.sync_weights().unwrap();
    }
}

#[test]
fn gradients_of_every_policy_match_finite_differences() {
    for (family, given) in policies() {
        let step = latent_step(family, false);
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base");
        write_checkpoint(&base, &tiny(family)).unwrap();
        let task = task(&base, &dir.path().join("out"), &options(given.clone()), &questions());
        let width = step.model.decoder.config().width;
        let trajectory = |(number, prompt): (u32, usize)| {
            let thoughts = if given["latent_length"] == "0" { 0 } else { 1 + number as usize % 3 };
            let latent = |i: usize| ((i as f32 + 1.0) * (number as f32 + 0.7)).sin();
            PolicyTrajectory {
                prompt,
                question: 3 + prompt as u32,
                number,
                thoughts,
                ended_early: given["latent_length"] == "<=3" && thoughts < 3,
                answer: (0..1 + number % 3).map(|i| (i * 31 + number * 17) % 250).collect(),
                latents: Tensor::from_vec(
                    thoughts,
                    width,
                    (0..thoughts * width).map(latent).collect(),
                ),
            }
        };
        let batch = PolicyBatch {
            prompts: vec![vec![5, 9, 70, 31], vec![8, 2]],
            trajectories: (0..5).zip([0, 0, 1, 1, 0]).map(trajectory).collect(),
        };
        let config = task.policy_config();
        let policy = PolicyStep::new(step.model, step.head);
        assert_gradients(&mut PolicySubject { policy, config, batch });
    }
}

/// A small reasoner that answers some of its problems.
fn half_trained(dir: &Path, steps: u32) -> Vec<TrainExample> {
    let fixture = ReasonerFixture {
        width: 32,
        layers: 2,
        batch: 10,
        accumulation_steps: 1,
        steps,
        dropout: 0.0,
    };
    let examples = problems(10);
    let mut task = fixture.task(dir, examples.clone());
    let outcome =
        train(&mut task, &train_config(dir, steps, 1e-2), &mut |_| ControlFlow::Continue(()));
    assert_eq!(outcome.unwrap(), TrainOutcome::Finished);
    examples
}

/// The mean rewards of the first and of the last five steps.
fn trained_rewards(given: Value, steps: u32) -> [f64; 2] {
    const WINDOW: usize = 5;
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    let examples = half_trained(&base, 40);
    let out = dir.path().join("out");
    let mut task = task(&base, &out, &options(given), &examples);
    let mut rewards = Vec::new();
    let outcome = train(&mut task, &train_config(&out, steps, 2e-3), &mut |event| {
        if let TrainEvent::Stepped { record, .. } = event {
            rewards.push(record.losses.get("reward").unwrap());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(outcome.unwrap(), TrainOutcome::Finished);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    [mean(&rewards[..WINDOW]), mean(&rewards[rewards.len() - WINDOW..])]
}

#[test]
fn the_reward_of_a_tiny_reasoner_rises() {
    for given in [
        json!({ "dropout_p": 0.1, "mask": "trajectory" }),
        json!({ "dropout_p": 0.1, "estimator": "grpo", "updates": 2, "kl_coef": 0.01 }),
    ] {
        let mut fields = given.clone();
        fields["batch"] = json!(10);
        fields["samples"] = json!(8);
        fields["pass_trajectories"] = json!(1024);
        let [first, last] = trained_rewards(fields, 30);
        assert!(last > first + 0.1, "{given}: the reward was {first:.3} and is {last:.3}");
    }
}

fn resumable(out: &Path, given: Value) -> Box<dyn TrainTask> {
    let base = out.join("base");
    if !base.join("config.json").exists() {
        let spec = CheckpointSpec { context: 96, ..tiny(CheckpointFamily::CodiGpt2) };
        write_checkpoint(&base, &spec).unwrap();
    }
    let mut fields = given;
    fields["accumulate"] = json!(ACCUMULATION_STEPS);
    fields["reward"] = json!("majority");
    Box::new(task(&base, out, &options(fields), &questions()))
}

#[test]
fn a_resumed_training_ends_with_the_same_bytes() {
    assert_resumable(|out| resumable(out, json!({ "dropout_p": 0.3, "mask": "trajectory" })));
}

/// A training interrupted within a round: the state contains trajectories of earlier weights.
#[test]
fn a_training_resumed_within_a_round_ends_with_the_same_bytes() {
    assert_resumable(|out| {
        resumable(
            out,
            json!({
                "sampler": "noise", "noise_std": 0.3, "thought_gradient": "density",
                "estimator": "grpo", "updates": 3, "kl_coef": 0.1,
            }),
        )
    });
}
