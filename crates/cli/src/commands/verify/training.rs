//! The checks of training: losses, gradients and steps of the optimizer against the reference's.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use latent_tts::engine::family::CODI_PROJECTOR;
use model::names::{TensorRole, classify};
use model::{Checkpoint, LmHead, Parameter, TrainableDecoder, TrainableHead};
use tensor::{Device, Tensor};
use train::latent_step::LatentTrainStep;
use train::loss::Objective;
use train::reward_step::{
    RewardExample, RewardHeadKind, RewardLossConfig, RewardTrainStep, TrainableRewardHead,
};
use train::schedule::{LrSchedule, Optimizer};
use train::tokenized_example::TokenizedExample;

use super::checks::GoldenCheck;
use super::golden::{GoldenDump, GoldenTraining};

/// Losses, relative.
const LOSS_TOLERANCE: f64 = 1e-5;
/// Gradients, as a share of the tensor's largest magnitude: they add up many more terms than
/// activations do.
const GRADIENT_TOLERANCE: f64 = 1e-3;
/// A tensor whose gradients are smaller than this share of the largest has none but for rounding:
/// the contrastive loss does not see the classifier's bias.
const ROUNDING_FLOOR: f64 = 3e-4;

/// Every check of training that the dump has material for.
pub(super) fn run_all(
    golden: &GoldenDump,
    device: &Device,
    dir: &Path,
) -> Result<Vec<GoldenCheck>> {
    let mut checks = Vec::new();
    if let Some(training) = &golden.meta.training {
        let names = ["training loss", "training gradients"];
        checks.extend(if_f32(device, &names, || {
            check_reasoner(golden, training, device, &dir.join("checkpoint"))
        })?);
    }
    if golden.has_reward_model() {
        for (name, objective, loss) in [
            ("contrastive", Objective::Contrastive, golden.meta.contrastive),
            ("bce", Objective::Bce, golden.meta.bce),
        ] {
            let Some(loss) = loss else { continue };
            let names = ["loss", "gradients"].map(|what| format!("latent-rm {name} {what}"));
            let names = names.each_ref().map(String::as_str);
            checks.extend(if_f32(device, &names, || {
                check_reward_model(golden, device, dir, (name, objective, loss))
            })?);
        }
        checks.extend(if_f32(device, &["latent-rm AdamW steps"], || {
            check_adamw_steps(golden, device, dir)
        })?);
    }
    Ok(checks)
}

/// The checks, or a word on why they are not made.
fn if_f32(
    device: &Device,
    names: &[&str],
    make: impl FnOnce() -> Result<Vec<GoldenCheck>>,
) -> Result<Vec<GoldenCheck>> {
    if device.is_f32() {
        return make();
    }
    let why = "gradients are compared in single precision; pass --dtype f32";
    Ok(names.iter().map(|name| GoldenCheck::skipped((*name).to_owned(), why)).collect())
}

/// One batch of latent training: the loss, and every gradient through every thought.
fn check_reasoner(
    golden: &GoldenDump,
    training: &GoldenTraining,
    device: &Device,
    dir: &Path,
) -> Result<Vec<GoldenCheck>> {
    let checkpoint = Checkpoint::open(dir)?;
    let config = checkpoint.config();
    let head = if checkpoint.has("projector.1.weight") {
        TrainableHead::mlp(device, &checkpoint, &CODI_PROJECTOR)?
    } else {
        TrainableHead::Identity
    };
    let learner =
        device.run(|| TrainableDecoder::load(device, config, &checkpoint, LmHead::With))?;
    let mut train_step = LatentTrainStep::new(learner, head, None);
    let example = |(i, item): (usize, &super::golden::GoldenExample)| TokenizedExample {
        id: i as u32,
        prompt: item.prompt_ids.clone(),
        thoughts: training.latents,
        completion: golden.meta.end_ids.iter().chain(&item.target_ids).copied().collect(),
        loss_start: golden.meta.end_ids.len(),
        step_results: Vec::new(),
    };
    let examples: Vec<TokenizedExample> = training.items.iter().enumerate().map(example).collect();
    let losses = device.run(|| train_step.accumulate_gradients(&examples, None))?;
    let mut loss = GoldenCheck::within("training loss", LOSS_TOLERANCE);
    loss.expect_close("the batch", &[losses.tokens as f32], &[training.loss as f32]);
    let parameters = train_step.model.parameters().chain(train_step.head.parameters());
    Ok(vec![loss, check_gradients("training gradients", golden, "training.grad.", parameters)?])
}

/// Every gradient of the dump under `prefix` against the parameters'.
fn check_gradients<'a>(
    name: &str,
    golden: &GoldenDump,
    prefix: &str,
    parameters: impl Iterator<Item = &'a Parameter>,
) -> Result<GoldenCheck> {
    let mut found = BTreeMap::new();
    for parameter in parameters {
        found.extend(
            parameter.named_gradients()?.into_iter().map(|named| (named.name, named.values)),
        );
    }
    let mut check = GoldenCheck::within(name, GRADIENT_TOLERANCE);
    let largest = golden
        .with_prefix(prefix)
        .flat_map(|(_, of)| &of.values)
        .fold(0.0, |m: f64, x| m.max(f64::from(x.abs())));
    for (original, expected) in golden.with_prefix(prefix) {
        let TensorRole::Weight(canonical) = classify(original) else {
            bail!("golden.safetensors: `{prefix}{original}` is no weight")
        };
        let own = found.get(&canonical).with_context(|| format!("no parameter `{canonical}`"))?;
        check.expect_close_at(original, own, &expected.values, ROUNDING_FLOOR * largest);
    }
    ensure!(check.compared > 0, "golden.safetensors: no gradients under `{prefix}`");
    Ok(check)
}

fn load_reward_model(device: &Device, dir: &Path) -> Result<RewardTrainStep> {
    let checkpoint = Checkpoint::open(&dir.join("latent-rm"))?;
    let config = checkpoint.config();
    let learner =
        device.run(|| TrainableDecoder::load(device, config, &checkpoint, LmHead::Without))?;
    let head =
        TrainableRewardHead::load(device, &checkpoint, RewardHeadKind::Linear, config.width)?;
    Ok(RewardTrainStep::new(learner, head, None))
}

fn reward_examples(golden: &GoldenDump) -> Result<Vec<RewardExample>> {
    let labels = golden.tensor("rm.labels")?;
    let example = |(i, question): (usize, &super::golden::GoldenQuestion)| {
        let latents = golden.tensor(&format!("rm.latents.{i}"))?;
        let &[rows, thoughts, width] = &latents.shape[..] else {
            bail!("`rm.latents.{i}` is not (rows, thoughts, width)")
        };
        let own = labels
            .values
            .get(i * rows * thoughts..(i + 1) * rows * thoughts)
            .context("`rm.labels` is too short")?;
        Ok(RewardExample {
            id: i as u32,
            prompt: question.prompt_ids.clone(),
            thoughts: Tensor::from_vec(rows * thoughts, width, latents.values.clone()),
            lengths: vec![thoughts; rows],
            labels: own.to_vec(),
            ..RewardExample::default()
        })
    };
    golden.meta.questions.iter().enumerate().map(example).collect()
}

fn check_reward_model(
    golden: &GoldenDump,
    device: &Device,
    dir: &Path,
    (name, objective, expected): (&str, Objective, f64),
) -> Result<Vec<GoldenCheck>> {
    let (mut reward_model, examples) = (load_reward_model(device, dir)?, reward_examples(golden)?);
    let params = RewardLossConfig { objective, step_weight: &|_| 1.0, dropout: None };
    let losses = device.run(|| reward_model.accumulate_gradients(&examples, params))?;
    let mut loss = GoldenCheck::within(format!("latent-rm {name} loss"), LOSS_TOLERANCE);
    loss.expect_close("the batch", &[losses.objective as f32], &[expected as f32]);
    let parameters = reward_model.model.parameters().chain(reward_model.head.parameters());
    Ok(vec![
        loss,
        check_gradients(
            &format!("latent-rm {name} gradients"),
            golden,
            &format!("rm.{name}.grad."),
            parameters,
        )?,
    ])
}

/// The contrastive loss before each of the reference's steps.
fn check_adamw_steps(golden: &GoldenDump, device: &Device, dir: &Path) -> Result<Vec<GoldenCheck>> {
    let Some(adamw) = &golden.meta.adamw else { return Ok(Vec::new()) };
    let (mut reward_model, examples) = (load_reward_model(device, dir)?, reward_examples(golden)?);
    let steps = adamw.losses.len() as u32;
    let optimizer = Optimizer {
        schedule: LrSchedule { peak: adamw.lr, warmup: 0, steps, floor: 1.0 },
        betas: adamw.betas,
        eps: adamw.eps,
        weight_decay: adamw.weight_decay,
        decay_all: true,
        clip: None,
    };
    let mut check = GoldenCheck::within("latent-rm AdamW steps", LOSS_TOLERANCE);
    let params = RewardLossConfig {
        objective: Objective::Contrastive,
        step_weight: &|_| 1.0,
        dropout: None,
    };
    for (step, expected) in adamw.losses.iter().enumerate() {
        let losses = device.run(|| reward_model.accumulate_gradients(&examples, params))?;
        check.expect_close(
            &format!("step {step}"),
            &[losses.objective as f32],
            &[*expected as f32],
        );
        device.run(|| optimizer.step(device, step as u32, 1, reward_model.parameters_mut()))?;
        device.run(|| reward_model.sync_weights())?;
    }
    Ok(vec![check])
}
