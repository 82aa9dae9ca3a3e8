//! Training checks: compares losses, gradients and optimizer steps with the reference's.

use std::collections::BTreeMap;
use std::path::Path;

use engine::LatentLoop;
use engine::family::CODI_PROJECTOR;
use model::names::{TensorRole, classify};
use model::{
    Checkpoint, LmHead, ModelFiles, Parameter, Tokenizer, TrainableDecoder, TrainableHead,
};
use tensor::{Device, Tensor};
use train::latent_step::{AuxiliaryLosses, LatentTrainStep};
use train::loss::Objective;
use train::methods::lotus::{LotusExample, LotusShape, LotusTrainStep};
use train::reward_step::{
    RewardExample, RewardHeadKind, RewardLossConfig, RewardTrainStep, TrainableRewardHead,
};
use train::schedule::{LrSchedule, Optimizer};
use train::tokenized_example::TokenizedExample;
use train::vocabulary::LATENT;

use super::checks::GoldenCheck;
use super::failure::{Context, Result};
use super::golden::{GoldenDump, GoldenTensors, GoldenTraining};

/// Relative tolerance of losses.
pub(super) const LOSS_TOLERANCE: f64 = 1e-5;
/// Tolerance of gradients, relative to the tensor's largest magnitude. They sum over many more
/// terms than activations.
const GRADIENT_TOLERANCE: f64 = 1e-3;
/// A tensor whose gradients are below this fraction of the largest one is zero up to rounding. For
/// example, the contrastive loss is invariant to the classifier's bias.
const ROUNDING_FLOOR: f64 = 3e-4;

/// Every training check that the dump has data for.
pub(super) fn run_all(
    golden: &GoldenDump,
    device: &Device,
    dir: &Path,
    checkpoint: &ModelFiles,
) -> Result<Vec<GoldenCheck>> {
    let mut checks = Vec::new();
    if let Some(training) = &golden.meta.training {
        let names = ["training loss", "training gradients"];
        checks.extend(if_f32(device, &names, || match golden.meta.loops {
            Some(loops) => check_looped(golden, (training, loops), device, checkpoint),
            None => check_reasoner(golden, training, device, checkpoint),
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
                check_reward_model(golden, device, dir, GoldenLoss { name, objective, loss })
            })?);
        }
        checks.extend(if_f32(device, &["latent-rm AdamW steps"], || {
            check_adamw_steps(golden, device, dir)
        })?);
    }
    Ok(checks)
}

/// The checks returned by `make` in f32; in other precisions each of `names` is skipped.
pub(super) fn if_f32(
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

/// Checks one batch of latent training: the loss, and all gradients through all thoughts.
fn check_reasoner(
    golden: &GoldenDump,
    training: &GoldenTraining,
    device: &Device,
    checkpoint: &ModelFiles,
) -> Result<Vec<GoldenCheck>> {
    let checkpoint = Checkpoint::open(checkpoint)?;
    let config = checkpoint.config();
    let head = if checkpoint.has("projector.1.weight") {
        TrainableHead::mlp(device, &checkpoint, &CODI_PROJECTOR)?
    } else {
        TrainableHead::Identity
    };
    let decoder =
        device.run(|| TrainableDecoder::load(device, config, &checkpoint, LmHead::With))?;
    let mut train_step = LatentTrainStep::new(decoder, head, AuxiliaryLosses::default());
    let example = |(i, item): (usize, &super::golden::GoldenExample)| TokenizedExample {
        id: i as u32,
        prompt: item.prompt_ids.clone(),
        thoughts: training.latents,
        completion: golden.meta.end_ids.iter().chain(&item.target_ids).copied().collect(),
        loss_start: golden.meta.end_ids.len(),
        ..TokenizedExample::default()
    };
    let examples: Vec<TokenizedExample> = training.items.iter().enumerate().map(example).collect();
    let losses = device.run(|| train_step.batch_losses(&examples, None))?;
    let mut loss = GoldenCheck::within("training loss", LOSS_TOLERANCE);
    loss.expect_close("the batch", &[losses.tokens as f32], &[training.loss as f32]);
    let parameters = train_step.model.parameters().chain(train_step.head.parameters());
    let gradients = GoldenGradients { tensors: &golden.tensors, prefix: "training.grad." };
    Ok(vec![loss, check_gradients("training gradients", gradients, parameters)?])
}

/// The same for looped blocks of latent positions.
fn check_looped(
    golden: &GoldenDump,
    (training, loops): (&GoldenTraining, usize),
    device: &Device,
    checkpoint: &ModelFiles,
) -> Result<Vec<GoldenCheck>> {
    let meta = &golden.meta;
    let looped_field = |name| format!("golden.json: looped training without `{name}`");
    let blocks = meta.blocks.with_context(|| looped_field("blocks"))?;
    let block_width = meta.block_width.with_context(|| looped_field("block_width"))?;
    let answer = training.answer.with_context(|| looped_field("answer"))?;
    let steps = training.steps.with_context(|| looped_field("steps"))?;
    let weight = training.weight.with_context(|| looped_field("weight"))?;
    ensure!(block_width > 0, "golden.json: `block_width` is 0");
    let files = checkpoint;
    let checkpoint = Checkpoint::open(files)?;
    let [token] = train::model_dir::token_ids(&Tokenizer::read(files)?, [LATENT])?;
    let looped = LatentLoop { token, block_width, loops };
    let decoder = device
        .run(|| TrainableDecoder::load(device, checkpoint.config(), &checkpoint, LmHead::With))?;
    let mut train_step = LotusTrainStep::new(decoder, LotusShape { blocks, looped }, weight);
    let example = |(i, item): (usize, &super::golden::GoldenExample)| LotusExample {
        id: i as u32,
        prompt: item.prompt_ids.clone(),
        steps: item.step_ids.clone(),
        completion: meta.end_ids.iter().chain(&item.target_ids).copied().collect(),
    };
    let examples: Vec<LotusExample> = training.items.iter().enumerate().map(example).collect();
    let losses = device.run(|| train_step.batch_losses(&examples, None))?;
    let mut loss = GoldenCheck::within("training loss", LOSS_TOLERANCE);
    loss.expect_close("the answers", &[losses.tokens as f32], &[answer as f32]);
    loss.expect_close("the steps", &[losses.steps as f32], &[steps as f32]);
    let gradients = GoldenGradients { tensors: &golden.tensors, prefix: "training.grad." };
    let parameters = train_step.model.parameters();
    Ok(vec![loss, check_gradients("training gradients", gradients, parameters)?])
}

/// The gradients of a dump: the tensors under a prefix.
#[derive(Clone, Copy)]
pub(super) struct GoldenGradients<'a> {
    pub(super) tensors: &'a GoldenTensors,
    pub(super) prefix: &'a str,
}

/// Compares every gradient of the dump with that of `parameters`.
pub(super) fn check_gradients<'a>(
    name: &str,
    GoldenGradients { tensors: golden, prefix }: GoldenGradients<'_>,
    parameters: impl Iterator<Item = &'a Parameter>,
) -> Result<GoldenCheck> {
    let mut gradients = BTreeMap::new();
    for parameter in parameters {
        gradients.extend(
            parameter.named_gradients()?.into_iter().map(|named| (named.name, named.values)),
        );
    }
    let mut check = GoldenCheck::within(name, GRADIENT_TOLERANCE);
    let largest = golden
        .with_prefix(prefix)
        .flat_map(|(_, of)| &of.values)
        .fold(0.0, |m: f64, x| m.max(f64::from(x.abs())));
    // The gradients of the step decoder are under a separate prefix.
    let own = golden.with_prefix(prefix).filter(|(name, _)| !name.starts_with("decoder."));
    for (original, expected) in own {
        let canonical = match classify(original) {
            TensorRole::Weight(name) => name,
            TensorRole::LoraA(module) => format!("{module}.lora_A.weight"),
            TensorRole::LoraB(module) => format!("{module}.lora_B.weight"),
            // The spread of sampled thoughts is only needed in training.
            TensorRole::Ignored(_) if original.contains("log_std") => original.to_owned(),
            _ => bail!("`{prefix}{original}` is not a weight"),
        };
        let own =
            gradients.get(&canonical).with_context(|| format!("no parameter `{canonical}`"))?;
        check.expect_close_at(original, own, &expected.values, ROUNDING_FLOOR * largest);
    }
    ensure!(check.compared > 0, "the dump has no gradients under `{prefix}`");
    Ok(check)
}

fn load_reward_model(device: &Device, dir: &Path) -> Result<RewardTrainStep> {
    let checkpoint = Checkpoint::open(&dir.join("latent-rm"))?;
    let config = checkpoint.config();
    let decoder =
        device.run(|| TrainableDecoder::load(device, config, &checkpoint, LmHead::Without))?;
    let head =
        TrainableRewardHead::load(device, &checkpoint, RewardHeadKind::Linear, config.width)?;
    Ok(RewardTrainStep::new(decoder, head, None))
}

fn reward_examples(golden: &GoldenDump) -> Result<Vec<RewardExample>> {
    let labels = golden.tensor("rm.labels")?;
    let example = |(i, question): (usize, &super::golden::GoldenQuestion)| {
        let latents = golden.tensor(&format!("rm.latents.{i}"))?;
        let &[rows, thoughts, width] = &latents.shape[..] else {
            bail!("`rm.latents.{i}` must have shape (rows, thoughts, width)")
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

/// The reference's loss for one objective.
struct GoldenLoss {
    /// The objective's name in the dump's tensors.
    name: &'static str,
    objective: Objective,
    loss: f64,
}

fn check_reward_model(
    golden: &GoldenDump,
    device: &Device,
    dir: &Path,
    GoldenLoss { name, objective, loss: expected }: GoldenLoss,
) -> Result<Vec<GoldenCheck>> {
    let (mut reward_model, examples) = (load_reward_model(device, dir)?, reward_examples(golden)?);
    let params =
        RewardLossConfig { objective, step_weight: &|_| 1.0, dropout: None, order_preference: 0.0 };
    let losses = device.run(|| reward_model.accumulate_gradients(&examples, params))?;
    let mut loss = GoldenCheck::within(format!("latent-rm {name} loss"), LOSS_TOLERANCE);
    loss.expect_close("the batch", &[losses.objective as f32], &[expected as f32]);
    let parameters = reward_model.model.parameters().chain(reward_model.head.parameters());
    Ok(vec![
        loss,
        check_gradients(
            &format!("latent-rm {name} gradients"),
            GoldenGradients { tensors: &golden.tensors, prefix: &format!("rm.{name}.grad.") },
            parameters,
        )?,
    ])
}

/// Checks the contrastive loss before each optimizer step of the reference.
fn check_adamw_steps(golden: &GoldenDump, device: &Device, dir: &Path) -> Result<Vec<GoldenCheck>> {
    let Some(adamw) = &golden.meta.adamw else { return Ok(Vec::new()) };
    let (mut reward_model, examples) = (load_reward_model(device, dir)?, reward_examples(golden)?);
    let steps = adamw.losses.len() as u32;
    let optimizer = Optimizer {
        schedule: LrSchedule { peak: adamw.lr, warmup: 0, steps, min_ratio: 1.0 },
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
        order_preference: 0.0,
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
