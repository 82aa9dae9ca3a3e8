//! Checks of the training methods: compares losses and gradients of one batch of CODI, SIM-CoT,
//! LoRA and CoLaR with the reference's, from methods.json and methods.safetensors of a dump.

use std::path::Path;

use engine::family::{CODI_PROJECTOR, COLAR_HEAD};
use model::{
    Checkpoint, DecoderTuning, LmHead, LoraConfig, LoraTargets, ModelError, ModelFiles,
    TensorSource, TrainableDecoder, TrainableGaussianHead, TrainableHead,
};
use serde::Deserialize;
use tensor::{Device, Tensor};
use train::latent_step::{AuxiliaryLosses, LatentLosses, LatentTrainStep};
use train::methods::TrainStep;
use train::methods::codi::Distillation;
use train::methods::colar::{ColarExample, ColarTrainStep};
use train::methods::simcot::StepDecoder;
use train::tokenized_example::{DistillRole, TokenizedExample};

use super::checks::{F32_TOLERANCE, GoldenCheck};
use super::failure::{Context, Result};
use super::fit::ModelLimits;
use super::golden::{GoldenTensors, read_json};
use super::training::{GoldenGradients, LOSS_TOLERANCE, check_gradients, if_f32};

/// The content of methods.json. Fields of methods that the dump does not contain are absent.
#[derive(Debug, Deserialize)]
struct MethodsMeta {
    items: Vec<MethodExample>,
    eos_id: u32,
    codi: Option<CodiReference>,
    simcot: Option<SimcotReference>,
    lora: Option<LoraReference>,
    colar: Option<ColarReference>,
    #[serde(default)]
    latents: usize,
    #[serde(default)]
    gamma: f32,
    #[serde(default)]
    end_ids: Vec<u32>,
    #[serde(default)]
    separator_ids: Vec<u32>,
    embedding_std: Option<f32>,
}

/// One training example, as token ids.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MethodExample {
    prompt_ids: Vec<u32>,
    question_ids: Vec<u32>,
    cot_ids: Vec<u32>,
    answer_ids: Vec<u32>,
    before_number: usize,
    step_ids: Vec<Vec<u32>>,
    colar_prompt_ids: Vec<u32>,
    colar_answer_ids: Vec<u32>,
    groups: Vec<Vec<u32>>,
    labels: Vec<u32>,
}

/// The reference's losses of CODI.
#[derive(Clone, Copy, Debug, Deserialize)]
struct CodiReference {
    student: f64,
    teacher: f64,
    distill: f64,
    total: f64,
}

/// The loss that SIM-CoT adds, and the total.
#[derive(Clone, Copy, Debug, Deserialize)]
struct SimcotReference {
    steps: f64,
    total: f64,
}

/// CODI's losses with adapters.
#[derive(Clone, Copy, Debug, Deserialize)]
struct LoraReference {
    rank: usize,
    alpha: f32,
    #[serde(flatten)]
    losses: CodiReference,
}

/// The reference's losses of CoLaR.
#[derive(Clone, Copy, Debug, Deserialize)]
struct ColarReference {
    tokens: f64,
    latent: f64,
    total: f64,
}

/// The part of a dump for training methods.
struct MethodsDump<'a> {
    device: &'a Device,
    checkpoint: Checkpoint,
    meta: MethodsMeta,
    tensors: GoldenTensors,
}

/// Every check of a method that the dump has data for.
pub(super) fn run_all(
    device: &Device,
    dir: &Path,
    checkpoint: &ModelFiles,
) -> Result<Vec<GoldenCheck>> {
    let path = dir.join("methods.json");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let dump = MethodsDump {
        device,
        checkpoint: Checkpoint::open(checkpoint)?,
        meta: read_json(&path)?,
        tensors: GoldenTensors::read(dir.join("methods.safetensors"))?,
    };
    dump.check_fit()?;
    let MethodsMeta { codi, simcot, lora, colar, .. } = &dump.meta;
    let mut checks = Vec::new();
    let mut add = |method: &str, make: &dyn Fn() -> Result<Vec<GoldenCheck>>| {
        let names = ["losses", "gradients"].map(|what| format!("{method} {what}"));
        let names = names.each_ref().map(String::as_str);
        checks.extend(if_f32(device, &names, make)?);
        Ok::<_, crate::Error>(())
    };
    if let Some(reference) = codi {
        add("codi", &|| dump.check_codi(reference))?;
    }
    if let (Some(codi), Some(reference)) = (codi, simcot) {
        add("simcot", &|| dump.check_simcot(codi, reference))?;
    }
    if let Some(reference) = lora {
        add("lora", &|| dump.check_lora(reference))?;
    }
    if let Some(reference) = colar {
        add("colar", &|| dump.check_colar(reference))?;
    }
    Ok(checks)
}

impl MethodsDump<'_> {
    /// Checks that the examples fit the model.
    fn check_fit(&self) -> Result<()> {
        let (limits, meta) = (ModelLimits(self.checkpoint.config()), &self.meta);
        for (i, item) in meta.items.iter().enumerate() {
            let what = format!("methods.json: item {i}");
            let (end, answer) = (&meta.end_ids[..], &item.answer_ids[..]);
            let student = [&item.prompt_ids[..], end, answer];
            limits.check_tokens(&what, student, meta.latents)?;
            limits.check_tokens(&what, [&item.question_ids[..], &item.cot_ids, answer], 0)?;
            for step in &item.step_ids {
                limits.check_tokens(&what, [&step[..], &[meta.eos_id]], 1)?;
            }
            let groups = item.groups.iter().map(Vec::as_slice);
            groups.clone().try_for_each(|group| limits.check_tokens(&what, [group], 0))?;
            let colar = [&item.colar_prompt_ids[..], &meta.separator_ids, &item.colar_answer_ids];
            limits.check_tokens(&what, colar.into_iter().chain([&item.labels[..]]), 0)?;
            let distilled = meta.codi.is_some() || meta.lora.is_some();
            ensure!(
                !distilled || item.before_number < item.answer_ids.len(),
                "{what}: `before_number` is beyond its answer"
            );
            ensure!(
                meta.colar.is_none() || groups.clone().all(|group| !group.is_empty()),
                "{what}: a group without tokens"
            );
        }
        Ok(())
    }

    fn decoder(&self) -> Result<TrainableDecoder> {
        let Self { device, checkpoint, .. } = self;
        let load = || TrainableDecoder::load(device, checkpoint.config(), checkpoint, LmHead::With);
        Ok(device.run(load)?)
    }

    fn projector(&self) -> Result<TrainableHead> {
        Ok(TrainableHead::mlp(self.device, &self.checkpoint, &CODI_PROJECTOR)?)
    }

    fn distillation(&self) -> AuxiliaryLosses {
        let distillation = Some(Distillation { loss_weight: self.meta.gamma });
        AuxiliaryLosses { distillation, ..AuxiliaryLosses::default() }
    }

    /// The student and teacher sequences of every item.
    fn examples(&self) -> Vec<TokenizedExample> {
        let MethodsMeta { items, latents, end_ids, .. } = &self.meta;
        let pair = |(i, item): (usize, &MethodExample)| {
            let join = |first: &[u32]| first.iter().chain(&item.answer_ids).copied().collect();
            let student = TokenizedExample {
                id: i as u32,
                prompt: item.prompt_ids.clone(),
                thoughts: *latents,
                completion: join(end_ids),
                loss_start: end_ids.len(),
                step_tokens: item.step_ids.clone(),
                compared_at: Some(end_ids.len() + item.before_number),
                ..TokenizedExample::default()
            };
            let teacher = TokenizedExample {
                id: i as u32,
                prompt: item.question_ids.clone(),
                completion: join(&item.cot_ids),
                role: DistillRole::Teacher,
                compared_at: Some(item.cot_ids.len() + item.before_number),
                ..TokenizedExample::default()
            };
            [student, teacher]
        };
        items.iter().enumerate().flat_map(pair).collect()
    }

    fn check_codi(&self, reference: &CodiReference) -> Result<Vec<GoldenCheck>> {
        let mut step =
            LatentTrainStep::new(self.decoder()?, self.projector()?, self.distillation());
        let examples = self.examples();
        let losses = self.device.run(|| step.batch_losses(&examples, None))?;
        let mut check = GoldenCheck::within("codi losses", LOSS_TOLERANCE);
        self.expect_codi(&mut check, &losses, reference);
        let gradients = self.check_gradients("codi", step.parameters().into_iter())?;
        Ok(vec![check, gradients, self.check_latents(&mut step)?])
    }

    fn expect_codi(
        &self,
        check: &mut GoldenCheck,
        losses: &LatentLosses,
        reference: &CodiReference,
    ) {
        let LatentLosses { tokens, teacher, distill, .. } = *losses;
        let (teacher, distill) = (teacher.unwrap_or(f64::NAN), distill.unwrap_or(f64::NAN));
        let total = tokens + teacher + f64::from(self.meta.gamma) * distill;
        for (what, found, expected) in [
            ("student", tokens, reference.student),
            ("teacher", teacher, reference.teacher),
            ("distill", distill, reference.distill),
            ("total", total, reference.total),
        ] {
            check.expect_close(what, &[found as f32], &[expected as f32]);
        }
    }

    /// Compares the latents of every item that are fed; the last one is only used in SIM-CoT's
    /// losses.
    fn check_latents(&self, step: &mut LatentTrainStep) -> Result<GoldenCheck> {
        let mut check = GoldenCheck::within("codi latents", F32_TOLERANCE);
        let examples = self.examples();
        let thoughts = self.device.run(|| step.thoughts(&examples))?;
        let of_students = thoughts.iter().step_by(2);
        for (i, found) in of_students.enumerate() {
            let expected = self.tensors.tensor(&format!("codi.latents.{i}"))?;
            let fed = expected.values.get(..found.data().len());
            let fed = fed.with_context(|| format!("`codi.latents.{i}` is too short"))?;
            check.expect_close(&format!("item {i}"), found.data(), fed);
        }
        Ok(check)
    }

    fn check_simcot(
        &self,
        codi: &CodiReference,
        reference: &SimcotReference,
    ) -> Result<Vec<GoldenCheck>> {
        let decoder = StepDecoder::new(self.decoder()?, 1, self.meta.eos_id);
        let auxiliary = AuxiliaryLosses { step_decoder: Some(decoder), ..self.distillation() };
        let mut step = LatentTrainStep::new(self.decoder()?, self.projector()?, auxiliary);
        let examples = self.examples();
        let losses = self.device.run(|| step.batch_losses(&examples, None))?;
        let mut check = GoldenCheck::within("simcot losses", LOSS_TOLERANCE);
        self.expect_codi(&mut check, &losses, codi);
        let steps = losses.steps.unwrap_or(f64::NAN);
        check.expect_close("steps", &[steps as f32], &[reference.steps as f32]);
        let total = codi.total + steps;
        check.expect_close("total", &[total as f32], &[reference.total as f32]);
        let own = step.model.parameters().chain(step.head.parameters());
        let mut gradients = self.check_gradients("simcot", own)?;
        let decoder = step.auxiliary.step_decoder.as_ref().context("the step decoder is gone")?;
        let of_decoder = GoldenGradients { tensors: &self.tensors, prefix: "simcot.grad.decoder." };
        let of_decoder = check_gradients("simcot", of_decoder, decoder.decoder.parameters())?;
        gradients.join(of_decoder);
        Ok(vec![check, gradients])
    }

    fn check_lora(&self, reference: &LoraReference) -> Result<Vec<GoldenCheck>> {
        let config = LoraConfig {
            rank: reference.rank,
            alpha: reference.alpha,
            targets: LoraTargets::All,
            dropout: 0.0,
            seed: 0,
        };
        let tuning = DecoderTuning::Lora { config: &config, new_tokens: 0 };
        let (device, base) = (self.device, self.checkpoint.config());
        let load =
            || TrainableDecoder::load_tuned(device, base, &DumpSource(self), LmHead::With, tuning);
        let decoder = device.run(load)?;
        let mut step = LatentTrainStep::new(decoder, self.projector()?, self.distillation());
        let examples = self.examples();
        let losses = device.run(|| step.batch_losses(&examples, None))?;
        let mut check = GoldenCheck::within("lora losses", LOSS_TOLERANCE);
        self.expect_codi(&mut check, &losses, &reference.losses);
        Ok(vec![check, self.check_gradients("lora", step.parameters().into_iter())?])
    }

    fn check_colar(&self, reference: &ColarReference) -> Result<Vec<GoldenCheck>> {
        let (device, width) = (self.device, self.checkpoint.config().width);
        let hidden = self.checkpoint.shape("lt_head.fc.0.weight").and_then(|s| s.first().copied());
        let hidden = hidden.context("the checkpoint has no `lt_head.fc.0.weight`")?;
        let source = DumpSource(self);
        let head = TrainableGaussianHead::load(device, &source, &COLAR_HEAD, (width, hidden))?;
        let std = self.meta.embedding_std.context("methods.json: no `embedding_std`")?;
        let mut step = ColarTrainStep::new(self.decoder()?, head, std);
        let examples = self.colar_examples(width)?;
        let losses = device.run(|| step.batch_losses(&examples, None))?;
        let mut check = GoldenCheck::within("colar losses", LOSS_TOLERANCE);
        for (what, found, expected) in [
            ("tokens", losses.tokens, reference.tokens),
            ("latent", losses.latent, reference.latent),
            ("total", losses.tokens + losses.latent, reference.total),
        ] {
            check.expect_close(what, &[found as f32], &[expected as f32]);
        }
        Ok(vec![check, self.check_gradients("colar", step.parameters().into_iter())?])
    }

    fn colar_examples(&self, width: usize) -> Result<Vec<ColarExample>> {
        let example = |(i, item): (usize, &MethodExample)| {
            let noise = self.tensors.tensor(&format!("colar.noise.{i}"))?;
            let groups = item.groups.len();
            ensure!(
                noise.shape == [groups, width] && item.labels.len() == groups,
                "`colar.noise.{i}` or the labels do not fit the groups of item {i}"
            );
            let separator = self.meta.separator_ids.iter();
            Ok(ColarExample {
                id: i as u32,
                prompt: item.colar_prompt_ids.clone(),
                groups: item.groups.clone(),
                labels: item.labels.clone(),
                completion: separator.chain(&item.colar_answer_ids).copied().collect(),
                noise: Some(Tensor::from_vec(groups, width, noise.values.clone())),
            })
        };
        self.meta.items.iter().enumerate().map(example).collect()
    }

    fn check_gradients<'p>(
        &self,
        method: &str,
        parameters: impl Iterator<Item = &'p model::Parameter>,
    ) -> Result<GoldenCheck> {
        let prefix = format!("{method}.grad.");
        let golden = GoldenGradients { tensors: &self.tensors, prefix: &prefix };
        check_gradients(&format!("{method} gradients"), golden, parameters)
    }
}

/// The checkpoint with the dump's low-rank factors and the spread head of CoLaR.
struct DumpSource<'a>(&'a MethodsDump<'a>);

impl DumpSource<'_> {
    /// The dump's tensor for a canonical name.
    fn given(&self, name: &str) -> Option<&[f32]> {
        let MethodsDump { tensors, .. } = self.0;
        let mut factors =
            tensors.with_prefix("lora.init.").chain(tensors.with_prefix("colar.init."));
        let found = factors.find(|(original, _)| original.ends_with(name));
        found.map(|(_, tensor)| &tensor.values[..])
    }
}

impl TensorSource for DumpSource<'_> {
    fn has(&self, name: &str) -> bool {
        self.given(name).is_some() || self.0.checkpoint.has(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        match self.given(name) {
            Some(values) if values.len() == shape.iter().product::<usize>() => Ok(values.to_vec()),
            Some(values) => Err(ModelError::WrongShape {
                file: "methods.safetensors".into(),
                tensor: name.to_owned(),
                expected: shape.to_vec(),
                found: vec![values.len()],
            }),
            None => self.0.checkpoint.tensor(name, shape),
        }
    }
}
