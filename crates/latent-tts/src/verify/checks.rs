//! Inference checks: compares the results of the reference and the engine on the same inputs.

use std::num::NonZeroUsize;

use engine::reference::{self, RandomSource, ReferenceRun};
use engine::{
    DropoutScope, DropoutSites, LatentLength, MaskLifetime, Perturbation, Probability, Reasoner,
    RewardModel,
};
use engine::{Prompt, RecordedNoise};
use model::LatentHead;
use serde::Serialize;
use tensor::{Device, Precision, Tensor};

use super::failure::{Context, Result};
use super::fit::ModelLimits;
use super::golden::{GoldenDump, GoldenRow, GoldenTensor};

/// Maximum difference relative to the reference's largest magnitude. Two float32 implementations
/// with different summation order differ by about 1e-6; deep models need more.
pub(super) const F32_TOLERANCE: f64 = 2e-4;
/// The same for bf16 operands, whose relative rounding error is 4e-3. Random models with few layers
/// and width 48 to 64 average out little of it (measured: at most 9.1e-2).
const BF16_TOLERANCE: f64 = 1e-1;
/// For fp8, whose operands have four significant bits instead of bf16's eight (sixteen times the
/// rounding error): the maximum root mean square of a sequence's errors, relative to the
/// reference's. Unrelated results have an error of 1 or more (measured: at most 5.8e-1). Individual
/// values of these models differ by up to their own magnitude.
const FP8_TOLERANCE: f64 = 7e-1;

/// The outcome of a check. The serialized names are part of the JSON that `verify` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CheckOutcome {
    /// Every comparison is within the tolerance.
    #[serde(rename = "passed")]
    Passed,
    /// Some comparison exceeds the tolerance.
    #[serde(rename = "missed")]
    Failed,
    /// Not comparable in this precision.
    #[serde(rename = "not_asked")]
    Skipped,
}

/// How the error of a group of numbers is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorMeasure {
    /// The largest difference, relative to the reference's largest magnitude.
    Largest,
    /// The root mean square of the differences, relative to the reference's.
    RootMeanSquare,
}

impl ErrorMeasure {
    /// The error of numbers, relative to at least `scale` for those that are zero up to rounding.
    fn of(self, found: &[f32], expected: &[f32], scale: f64) -> f64 {
        let differences = || found.iter().zip(expected).map(|(&a, &b)| f64::from(a) - f64::from(b));
        match self {
            Self::Largest => {
                let scale = expected.iter().fold(scale, |m, x| m.max(f64::from(x.abs())));
                let larger = |m: f64, e: f64| if e > m || e.is_nan() { e } else { m };
                differences().map(|d| d.abs() / scale).fold(0.0, larger)
            }
            Self::RootMeanSquare => {
                let expected: f64 = expected.iter().map(|&x| f64::from(x).powi(2)).sum();
                differences().map(|d| d * d).sum::<f64>().sqrt() / expected.sqrt().max(scale)
            }
        }
    }
}

/// One check over all questions and sequences of the dump.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GoldenCheck {
    /// The stage and the compared quantity.
    pub name: String,
    /// The outcome over all comparisons.
    #[serde(rename = "verdict")]
    pub outcome: CheckOutcome,
    /// Number of comparisons.
    pub compared: usize,
    /// Of the numbers that are compared at a time, by `measure`; `None` for exact comparisons.
    pub largest_error: Option<f64>,
    #[serde(skip)]
    measure: ErrorMeasure,
    /// Allowed error; `None` for exact comparisons.
    pub tolerance: Option<f64>,
    /// The first failure, or the reason for a skip.
    pub note: Option<String>,
}

impl GoldenCheck {
    fn exact(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            outcome: CheckOutcome::Passed,
            compared: 0,
            largest_error: None,
            measure: ErrorMeasure::Largest,
            tolerance: None,
            note: None,
        }
    }

    pub(super) fn within(name: impl Into<String>, tolerance: f64) -> Self {
        Self { largest_error: Some(0.0), tolerance: Some(tolerance), ..Self::exact(name) }
    }

    /// A check of device results, with the tolerance of its precision.
    fn on(device: &Device, name: impl Into<String>) -> Self {
        match device.precision() {
            Precision::F32 => Self::within(name, F32_TOLERANCE),
            Precision::Bf16 | Precision::Int8 => Self::within(name, BF16_TOLERANCE),
            Precision::Fp8 => {
                let measure = ErrorMeasure::RootMeanSquare;
                Self { measure, ..Self::within(name, FP8_TOLERANCE) }
            }
        }
    }

    /// A skipped check, with the reason.
    pub(super) fn skipped(name: String, why: &str) -> Self {
        let note = Some(why.to_owned());
        Self { outcome: CheckOutcome::Skipped, note, ..Self::exact(name) }
    }

    /// Adds the comparisons of another part of the same check.
    pub(super) fn join(&mut self, part: Self) {
        self.compared += part.compared;
        let errors = self.largest_error.into_iter().chain(part.largest_error);
        self.largest_error = errors.reduce(f64::max);
        if part.outcome == CheckOutcome::Failed {
            self.fail(|| part.note.unwrap_or_default());
        }
    }

    fn fail(&mut self, note: impl FnOnce() -> String) {
        self.outcome = CheckOutcome::Failed;
        self.note.get_or_insert_with(note);
    }

    fn expect_equal<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: &str,
        found: &T,
        expected: &T,
    ) {
        self.compared += 1;
        if found != expected {
            self.fail(|| format!("{what}: found {found:?}, expected {expected:?}"));
        }
    }

    /// Compares the thoughts of a sequence. Their number must be equal in f32; in other precisions
    /// the common prefix is compared.
    fn expect_thoughts(&mut self, what: &str, found: &Tensor, expected: &Tensor) {
        if found.rows() == expected.rows() {
            self.expect_close(what, found.data(), expected.data());
        } else if self.tolerance == Some(F32_TOLERANCE) {
            self.expect_equal(what, &found.rows(), &expected.rows());
        } else {
            let both = found.rows().min(expected.rows());
            self.expect_close(what, found.select(0..both).data(), expected.select(0..both).data());
        }
    }

    pub(super) fn expect_close(&mut self, what: &str, found: &[f32], expected: &[f32]) {
        self.expect_close_at(what, found, expected, f64::MIN_POSITIVE);
    }

    /// Like [`Self::expect_close`], but relative to at least `scale`, for tensors that are zero up
    /// to rounding.
    pub(super) fn expect_close_at(
        &mut self,
        what: &str,
        found: &[f32],
        expected: &[f32],
        scale: f64,
    ) {
        self.compared += 1;
        if found.len() != expected.len() {
            return self
                .fail(|| format!("{what}: {} numbers, expected {}", found.len(), expected.len()));
        }
        let error = self.measure.of(found, expected, scale);
        let largest = self.largest_error.get_or_insert(0.0);
        *largest = if error.is_nan() { error } else { largest.max(error) };
        if error.is_nan() || self.tolerance.is_some_and(|t| error > t) {
            self.fail(|| format!("{what}: error {error:.1e}"));
        }
    }
}

/// Every inference check that the dump has data for.
pub(super) fn run_all(
    golden: &GoldenDump,
    reasoner: &Reasoner,
    reward_model: Option<&RewardModel>,
) -> Result<Vec<GoldenCheck>> {
    let prompts = golden
        .meta
        .questions
        .iter()
        .enumerate()
        .map(|(i, question)| encode_prompt(reasoner, i, &question.question));
    let prompts = prompts.collect::<Result<Vec<_>>>()?;
    let meta = &golden.meta;
    let thoughts = meta.latents_exactly.or(meta.latents_at_most).unwrap_or(0);
    for (i, prompt) in prompts.iter().enumerate() {
        let limits = ModelLimits(reasoner.decoder.config());
        let parts = [&prompt.tokens[..], &reasoner.method.end_latent[..]];
        limits.check_tokens(&format!("question {i}"), parts, thoughts + meta.max_new_tokens)?;
    }
    let mut checks = vec![special_tokens(golden, reasoner), prompt_ids(golden, &prompts)];
    if golden.has("0.prompt_hidden") {
        checks.push(prompt_hidden(golden, reasoner, &prompts)?);
    }
    for run in ["clean", "dropout", "dropout_mlp", "noise"] {
        checks.extend(reference_run(golden, reasoner, &prompts, run)?);
    }
    if let Some(reward_model) = reward_model {
        checks.push(process_rewards(golden, reward_model, &prompts)?);
    }
    Ok(checks)
}

fn encode_prompt(reasoner: &Reasoner, i: usize, text: &str) -> Result<Prompt> {
    Ok(Prompt::new(reasoner, i as u32, text)?)
}

fn special_tokens(golden: &GoldenDump, reasoner: &Reasoner) -> GoldenCheck {
    let mut check = GoldenCheck::exact("end and eos tokens");
    check.expect_equal("end tokens", &reasoner.method.end_latent, &golden.meta.end_ids);
    check.expect_equal(
        "eos token known",
        &reasoner.method.eos.contains(&golden.meta.eos_id),
        &true,
    );
    check
}

fn prompt_ids(golden: &GoldenDump, prompts: &[Prompt]) -> GoldenCheck {
    let mut check = GoldenCheck::exact("prompt ids");
    for (i, (prompt, question)) in prompts.iter().zip(&golden.meta.questions).enumerate() {
        check.expect_equal(&format!("question {i}"), &prompt.tokens, &question.prompt_ids);
    }
    check
}

fn prompt_hidden(
    golden: &GoldenDump,
    reasoner: &Reasoner,
    prompts: &[Prompt],
) -> Result<GoldenCheck> {
    let mut check = GoldenCheck::on(reasoner.decoder.device(), "prompt hidden states");
    for (i, prompt) in prompts.iter().enumerate() {
        let hidden = reference::prompt_hidden(reasoner, &prompt.tokens)?;
        check.expect_close(
            &format!("question {i}"),
            hidden.data(),
            &golden.tensor(&format!("{i}.prompt_hidden"))?.values,
        );
    }
    Ok(check)
}

/// Checks thoughts, first logits, answers and texts of one run of all questions.
///
/// Thoughts and logits are teacher-forced: thought t is computed from the reference's thoughts
/// before t. A free-running random model amplifies rounding from thought to thought (transformers
/// differs from its own dump by 3e-3 on another machine), so free runs are only checked by their
/// number of thoughts and their answer.
fn reference_run(
    golden: &GoldenDump,
    reasoner: &Reasoner,
    prompts: &[Prompt],
    run: &str,
) -> Result<Vec<GoldenCheck>> {
    let device = reasoner.decoder.device();
    let mut thoughts = GoldenCheck::on(device, format!("{run} thoughts"));
    let mut logits = GoldenCheck::on(device, format!("{run} first logits"));
    let mut answers = GoldenCheck::exact(format!("{run} answer ids"));
    let mut texts = GoldenCheck::exact(format!("{run} texts"));
    let mut readings = GoldenCheck::exact(format!("{run} readings of the thoughts"));
    for (i, (prompt, question)) in prompts.iter().zip(&golden.meta.questions).enumerate() {
        let expected = question
            .runs
            .get(run)
            .with_context(|| format!("golden.json: question {i} has no run `{run}`"))?;
        let recording = golden.recording(i)?;
        let golden_thoughts = expected.iter().enumerate().map(|(r, row)| {
            reference_thoughts(golden, reasoner, &format!("{i}.{run}.{r}"), row.lengths)
        });
        let golden_thoughts = golden_thoughts.collect::<Result<Vec<_>>>()?;
        for thoughts in golden_thoughts.iter().filter(|thoughts| thoughts.rows() > 0) {
            let what = format!("`{i}.{run}`");
            ModelLimits(reasoner.decoder.config()).check_width(&what, thoughts.cols())?;
        }
        let params = reference_params(golden, run, expected, &recording)?;
        let teacher_forced = reference::run_sequences(
            reasoner,
            prompt,
            ReferenceRun { forced_thoughts: Some(&golden_thoughts), ..params },
        )?;
        let free_running = reference::run_sequences(reasoner, prompt, params)?;
        for (r, expected) in expected.iter().enumerate() {
            let what = format!("question {i} row {r}");
            thoughts.expect_thoughts(&what, &teacher_forced[r].thoughts, &golden_thoughts[r]);
            // A sequence with another number of thoughts has other logits; in f32 that has already
            // failed the check of the thoughts.
            if teacher_forced[r].thoughts.rows() == expected.lengths {
                logits.expect_close(
                    &what,
                    &teacher_forced[r].first_logits,
                    &golden.tensor(&format!("{i}.{run}.{r}.first_logits"))?.values,
                );
            }
            answers.expect_equal(
                &what,
                &(free_running[r].thoughts.rows(), &free_running[r].tokens[..]),
                &(expected.lengths, &expected.answer_ids[..]),
            );
            texts.expect_equal(
                &what,
                &reasoner.tokenizer.decode(&free_running[r].tokens)?,
                &expected.text,
            );
            if let Some(reading) = &expected.reading {
                readings.expect_equal(&what, &free_running[r].reading, reading);
            }
        }
    }
    if !device.is_f32() {
        // The argmax of a random model over thousands of tokens is decided by differences far below
        // bf16's rounding, and sequences diverge after the first different token.
        let precision = device.precision();
        let why = &format!("argmax of a random model is not stable under {precision}");
        [answers, texts] = [answers, texts].map(|check| GoldenCheck::skipped(check.name, why));
        readings =
            GoldenCheck { compared: readings.compared, ..GoldenCheck::skipped(readings.name, why) };
        // The top-k tokens of a mixture are subject to the same rounding.
        if matches!(*reasoner.head, LatentHead::TopKMixture { .. }) {
            thoughts = GoldenCheck::skipped(thoughts.name, why);
        }
    }
    let mut checks = vec![thoughts, logits, answers, texts];
    if readings.compared > 0 {
        checks.push(readings);
    }
    Ok(checks)
}

/// The reference's thoughts of a sequence. The dump has no tensor for a sequence without thoughts.
///
/// For looped positions, the tensor holds the values added to the latent token's embedding in each
/// loop.
fn reference_thoughts(
    golden: &GoldenDump,
    reasoner: &Reasoner,
    row: &str,
    thoughts: usize,
) -> Result<Tensor> {
    if thoughts == 0 {
        return Ok(Tensor::default());
    }
    let Some(looped) = reasoner.method.looped else {
        return latents(golden, &format!("{row}.latents"), thoughts);
    };
    let name = format!("{row}.injected");
    let GoldenTensor { shape, values } = golden.tensor(&name)?;
    let width = shape.last().copied().unwrap_or(0);
    ensure!(
        shape.len() == 3 && shape[0] * shape[1] == thoughts,
        "`{name}` has shape {shape:?}, expected {thoughts} positions in loops"
    );
    ModelLimits(reasoner.decoder.config()).check_width(&name, width)?;
    let embedding = reasoner.embed(&[looped.token])?.to_host()?;
    let mut fed = Tensor::from_vec(thoughts, width, values.clone());
    for at in 0..thoughts {
        let sums = fed.row_mut(at).iter_mut().zip(embedding.row(0));
        sums.for_each(|(sum, embedded)| *sum += embedded);
    }
    Ok(fed)
}

fn latents(golden: &GoldenDump, name: &str, thoughts: usize) -> Result<Tensor> {
    let GoldenTensor { shape, values } = golden.tensor(name)?;
    ensure!(
        shape.len() == 2 && shape[0] == thoughts,
        "`{name}` has shape {shape:?}, expected {thoughts} thoughts"
    );
    Ok(Tensor::from_vec(shape[0], shape[1], values.clone()))
}

fn reference_params<'a>(
    golden: &GoldenDump,
    run: &str,
    rows: &[GoldenRow],
    recording: &'a RecordedNoise,
) -> Result<ReferenceRun<'a>> {
    let meta = &golden.meta;
    ensure!(
        rows.len() == 1 || rows.len() <= recording.shape[2],
        "golden.json: more rows than masks"
    );
    let count = |n: usize| NonZeroUsize::new(n).context("golden.json: a count of zero");
    let length = match (meta.latents_exactly, meta.latents_at_most) {
        (Some(n), _) => LatentLength::Exactly(count(n)?),
        (None, Some(n)) => LatentLength::AtMost(count(n)?),
        (None, None) => {
            bail!("golden.json: neither `latents_exactly` nor `latents_at_most`")
        }
    };
    let p = Probability::new(meta.p).context("golden.json: `p` is not in [0, 1)")?;
    let perturbation = match run {
        "dropout" => Perturbation::Dropout {
            p,
            sites: DropoutSites::BOTH,
            scope: DropoutScope::Thoughts,
            mask: MaskLifetime::Step,
        },
        "dropout_mlp" => Perturbation::Dropout {
            p,
            sites: DropoutSites::MLP,
            scope: DropoutScope::Thoughts,
            mask: MaskLifetime::Step,
        },
        "noise" => Perturbation::Gaussian { std: meta.std },
        _ => Perturbation::None,
    };
    let source = RandomSource::Recorded(recording);
    Ok(ReferenceRun {
        rows: rows.len(),
        length,
        perturbation,
        source,
        max_new_tokens: count(meta.max_new_tokens)?,
        forced_thoughts: None,
    })
}

fn process_rewards(
    golden: &GoldenDump,
    reward_model: &RewardModel,
    prompts: &[Prompt],
) -> Result<GoldenCheck> {
    let mut check = GoldenCheck::on(reward_model.decoder.device(), "latent-rm scores");
    let expected = golden.tensor("rm.scores")?;
    let mut found = Vec::new();
    for (i, prompt) in prompts.iter().enumerate() {
        let latents = golden.tensor(&format!("rm.latents.{i}"))?;
        let &[rows, thoughts, width] = &latents.shape[..] else {
            bail!("`rm.latents.{i}` must have shape (rows, thoughts, width)")
        };
        ensure!(
            rows == golden.meta.n,
            "`rm.latents.{i}` has {rows} rows, expected {}",
            golden.meta.n
        );
        let row = |r: usize| {
            Tensor::from_vec(
                thoughts,
                width,
                latents.values[r * thoughts * width..][..thoughts * width].to_vec(),
            )
        };
        let thoughts: Vec<Tensor> = (0..rows).map(row).collect();
        found.extend(reference::rewards(reward_model, prompt, &thoughts)?.concat());
    }
    check.expect_close("all questions", &found, &expected.values);
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::ErrorMeasure::{Largest, RootMeanSquare};
    use super::*;

    #[test]
    fn errors_are_relative_to_the_reference() {
        let (found, expected) = ([3.0, 4.5, 0.0], [3.0, 4.0, 0.0]);
        assert_eq!(Largest.of(&found, &expected, f64::MIN_POSITIVE), 0.125);
        assert_eq!(RootMeanSquare.of(&found, &expected, f64::MIN_POSITIVE), 0.1);
        // Results unrelated to the reference exceed the tolerance of fp8.
        assert_eq!(RootMeanSquare.of(&[0.0; 3], &expected, f64::MIN_POSITIVE), 1.0);
        assert!(RootMeanSquare.of(&[-3.0, 4.0, 5.0], &expected, f64::MIN_POSITIVE) > FP8_TOLERANCE);
        for measure in [Largest, RootMeanSquare] {
            assert!(measure.of(&[f32::NAN, 4.0, 0.0], &expected, f64::MIN_POSITIVE).is_nan());
        }
    }
}
