//! The checks of training: losses, gradients and steps of the optimizer against the reference's.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use model::names::{Role, role};
use model::{Checkpoint, HeadLearner, Learner, LmHead, Parameter};
use tensor::{Device, Tensor};
use train::judge::{Case, HeadKind, Judge, Judging, ScoreLearner};
use train::lesson::Lesson;
use train::loss::Objective;
use train::schedule::{Optimizer, Schedule};
use train::study::Study;

use super::checks::Check;
use super::golden::{Golden, Training};

/// Losses, relative.
const LOSS: f64 = 1e-5;
/// Gradients, as a share of the tensor's largest magnitude: they add up many more terms than activations do.
const GRADIENT: f64 = 1e-3;
/// A tensor whose gradients are smaller than this share of the largest has none but for rounding: the contrastive loss does
/// not see the classifier's bias.
const NOTHING: f64 = 3e-4;

/// Every check of training that the dump has material for.
pub(super) fn all(golden: &Golden, device: &Device, dir: &Path) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    if let Some(training) = &golden.meta.training {
        let names = ["training loss", "training gradients"];
        checks.extend(if_single(device, &names, || reasoner(golden, training, device, &dir.join("checkpoint")))?);
    }
    if golden.has_reward_model() {
        for (name, objective, loss) in
            [("contrastive", Objective::Contrastive, golden.meta.contrastive), ("bce", Objective::Bce, golden.meta.bce)]
        {
            let Some(loss) = loss else { continue };
            let names = ["loss", "gradients"].map(|what| format!("latent-rm {name} {what}"));
            let names = names.each_ref().map(String::as_str);
            checks.extend(if_single(device, &names, || reward(golden, device, dir, (name, objective, loss)))?);
        }
        checks.extend(if_single(device, &["latent-rm AdamW steps"], || steps(golden, device, dir))?);
    }
    Ok(checks)
}

/// The checks, or a word on why they are not made.
fn if_single(device: &Device, names: &[&str], make: impl FnOnce() -> Result<Vec<Check>>) -> Result<Vec<Check>> {
    if device.is_single() {
        return make();
    }
    let why = "gradients are compared in single precision; pass --dtype f32";
    Ok(names.iter().map(|name| Check::not_asked((*name).to_owned(), why)).collect())
}

/// One batch of latent training: the loss, and every gradient through every thought.
fn reasoner(golden: &Golden, training: &Training, device: &Device, dir: &Path) -> Result<Vec<Check>> {
    let checkpoint = Checkpoint::open(dir)?;
    let config = checkpoint.config();
    let head = match checkpoint.shape("projector.1.weight") {
        Some(shape) => HeadLearner::projector(device, config, &checkpoint, shape.first().copied().unwrap_or(config.width))?,
        None => HeadLearner::Identity,
    };
    let learner = device.run(|| Learner::load(device, config, &checkpoint, LmHead::With))?;
    let mut study = Study::new(learner, head, None);
    let lesson = |(i, item): (usize, &super::golden::Item)| Lesson {
        id: i as u32,
        prompt: item.prompt_ids.clone(),
        thoughts: training.latents,
        tail: golden.meta.end_ids.iter().chain(&item.target_ids).copied().collect(),
        given: golden.meta.end_ids.len(),
        results: Vec::new(),
    };
    let lessons: Vec<Lesson> = training.items.iter().enumerate().map(lesson).collect();
    let losses = device.run(|| study.learn(&lessons, None))?;
    let mut loss = Check::within("training loss", LOSS);
    loss.close("the batch", &[losses.tokens as f32], &[training.loss as f32]);
    let parameters = study.learner.parameters();
    Ok(vec![loss, gradients("training gradients", golden, "training.grad.", parameters)?])
}

/// Every gradient of the dump under `prefix` against the parameters'.
fn gradients<'a>(name: &str, golden: &Golden, prefix: &str, parameters: impl Iterator<Item = &'a Parameter>) -> Result<Check> {
    let mut found = BTreeMap::new();
    for parameter in parameters {
        found.extend(parameter.named_gradient()?.into_iter().map(|named| (named.name, named.values)));
    }
    let mut check = Check::within(name, GRADIENT);
    let largest = golden.under(prefix).flat_map(|(_, of)| &of.values).fold(0.0, |m: f64, x| m.max(f64::from(x.abs())));
    for (original, expected) in golden.under(prefix) {
        let Role::Weight(canonical) = role(original) else { bail!("golden.safetensors: `{prefix}{original}` is no weight") };
        if canonical.starts_with("projector.") {
            continue;
        }
        let own = found.get(&canonical).with_context(|| format!("no parameter `{canonical}`"))?;
        check.close_at(original, own, &expected.values, NOTHING * largest);
    }
    ensure!(check.compared > 0, "golden.safetensors: no gradients under `{prefix}`");
    Ok(check)
}

fn judge(device: &Device, dir: &Path) -> Result<Judge> {
    let checkpoint = Checkpoint::open(&dir.join("latent-rm"))?;
    let config = checkpoint.config();
    let learner = device.run(|| Learner::load(device, config, &checkpoint, LmHead::Without))?;
    let head = ScoreLearner::load(device, &checkpoint, HeadKind::Linear, config.width)?;
    Ok(Judge::new(learner, head, None))
}

fn cases(golden: &Golden) -> Result<Vec<Case>> {
    let labels = golden.tensor("rm.labels")?;
    let case = |(i, asked): (usize, &super::golden::Asked)| {
        let latents = golden.tensor(&format!("rm.latents.{i}"))?;
        let &[rows, thoughts, width] = &latents.shape[..] else { bail!("`rm.latents.{i}` is not (rows, thoughts, width)") };
        let own = labels.values.get(i * rows * thoughts..(i + 1) * rows * thoughts).context("`rm.labels` is too short")?;
        Ok(Case {
            id: i as u32,
            prompt: asked.prompt_ids.clone(),
            thoughts: Tensor::from_vec(rows * thoughts, width, latents.values.clone()),
            lengths: vec![thoughts; rows],
            labels: own.to_vec(),
            ..Case::default()
        })
    };
    golden.meta.questions.iter().enumerate().map(case).collect()
}

fn reward(
    golden: &Golden,
    device: &Device,
    dir: &Path,
    (name, objective, expected): (&str, Objective, f64),
) -> Result<Vec<Check>> {
    let (mut judge, cases) = (judge(device, dir)?, cases(golden)?);
    let how = Judging { objective, weight: &|_| 1.0, droppings: None };
    let losses = device.run(|| judge.learn(&cases, how))?;
    let mut loss = Check::within(format!("latent-rm {name} loss"), LOSS);
    loss.close("the batch", &[losses.score as f32], &[expected as f32]);
    let parameters = judge.learner.parameters().chain(judge.head.parameters());
    Ok(vec![loss, gradients(&format!("latent-rm {name} gradients"), golden, &format!("rm.{name}.grad."), parameters)?])
}

/// The contrastive loss before each of the reference's steps.
fn steps(golden: &Golden, device: &Device, dir: &Path) -> Result<Vec<Check>> {
    let Some(of) = &golden.meta.adamw else { return Ok(Vec::new()) };
    let (mut judge, cases) = (judge(device, dir)?, cases(golden)?);
    let steps = of.losses.len() as u32;
    let optimizer = Optimizer {
        schedule: Schedule { peak: of.lr, warmup: 0, steps, floor: 1.0 },
        betas: of.betas,
        eps: of.eps,
        weight_decay: of.weight_decay,
        decay_all: true,
        clip: None,
    };
    let mut check = Check::within("latent-rm AdamW steps", LOSS);
    let how = Judging { objective: Objective::Contrastive, weight: &|_| 1.0, droppings: None };
    for (step, expected) in of.losses.iter().enumerate() {
        let losses = device.run(|| judge.learn(&cases, how))?;
        check.close(&format!("step {step}"), &[losses.score as f32], &[*expected as f32]);
        device.run(|| optimizer.step(device, step as u32, 1, judge.parameters_mut()))?;
        device.run(|| judge.refresh())?;
    }
    Ok(vec![check])
}
