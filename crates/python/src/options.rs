//! Keyword arguments become options of the library.

use std::num::NonZeroUsize;

use latent_tts::aggregate::Confidence;
use latent_tts::engine::family::FAMILIES;
use latent_tts::record::MetricName;
use latent_tts::sweep::METRICS;
use latent_tts::tensor::Precision;
use latent_tts::{
    AdaptiveSampling, Aggregator, AnswerKind, BeamOptions, BeamSize, DeviceKind, DeviceOptions,
    DropoutScope, DropoutSites, Family, MaskLifetime, OnExisting, PerturbationOptions, Probability,
    Question, SamplingOptions, Temperature, TokenSampling, VoteParams,
};
use pyo3::prelude::*;

use crate::errors::invalid;

/// A question as Python has it: id, text, gold answer, kind and steps.
pub type QuestionTuple = (u32, String, String, String, Vec<String>);

pub fn question((id, text, gold, kind, steps): QuestionTuple) -> PyResult<Question> {
    Ok(Question { id, text, gold, kind: answer_kind(&kind)?, steps })
}

pub fn question_tuple(question: &Question) -> QuestionTuple {
    let Question { id, text, gold, kind, steps } = question.clone();
    let kind = KINDS.iter().find(|(_, known)| *known == kind).map_or("number", |(name, _)| *name);
    (id, text, gold, kind.to_owned(), steps)
}

const KINDS: [(&str, AnswerKind); 3] =
    [("number", AnswerKind::Number), ("math", AnswerKind::Math), ("choice", AnswerKind::Choice)];

pub fn answer_kind(name: &str) -> PyResult<AnswerKind> {
    named("answer_kind", name, &KINDS)
}

/// The keyword arguments of sampling, as a dict in which what is not given is missing or None.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Sampling {
    n: usize,
    #[pyo3(default)]
    seed: Option<u64>,
    #[pyo3(default)]
    sampler: Option<String>,
    #[pyo3(default)]
    p: Option<f32>,
    #[pyo3(default)]
    sigma: Option<f32>,
    #[pyo3(default)]
    tau: Option<f32>,
    #[pyo3(default)]
    temperature: Option<f32>,
    #[pyo3(default)]
    top_p: Option<f32>,
    #[pyo3(default)]
    sites: Option<String>,
    #[pyo3(default)]
    scope: Option<String>,
    #[pyo3(default)]
    mask: Option<String>,
    #[pyo3(default)]
    thoughts: Option<String>,
    #[pyo3(default)]
    max_new_tokens: Option<usize>,
    /// Width and candidates; both 0 for the size that costs what the samples do.
    #[pyo3(default)]
    beam: Option<(usize, usize)>,
    #[pyo3(default)]
    adaptive: Option<f64>,
    #[pyo3(default)]
    rule: Option<String>,
    #[pyo3(default)]
    vote_temperature: Option<f64>,
    #[pyo3(default)]
    likelihood_weight: Option<f64>,
    #[pyo3(default)]
    caution: Option<f64>,
}

impl Sampling {
    pub fn options(&self) -> PyResult<SamplingOptions> {
        let samples = positive("n", self.n)?;
        let length = self.thoughts.as_deref().map(str::parse).transpose();
        let confidence = self.adaptive.map(|share| {
            Confidence::new(share)
                .ok_or_else(|| invalid(format!("adaptive={share} must be above 0.5 and at most 1")))
        });
        Ok(SamplingOptions {
            seed: self.seed.unwrap_or_default(),
            perturbation: self.perturbation()?,
            length: length.map_err(|error| invalid(format!("thoughts: {error}")))?,
            max_new_tokens: self
                .max_new_tokens
                .map(|count| positive("max_new_tokens", count))
                .transpose()?,
            beam: self.beam.map(|size| beam_options(size, samples)).transpose()?,
            adaptive: confidence.transpose()?.map(|confidence| AdaptiveSampling { confidence }),
            rule: self.rule.as_deref().map(rule).transpose()?,
            vote: vote_params(self.vote_temperature, self.likelihood_weight, self.caution)?,
            ..SamplingOptions::new(samples)
        })
    }

    /// The perturbation that the arguments describe; `None` if none does.
    fn perturbation(&self) -> PyResult<Option<PerturbationOptions>> {
        let given = [
            ("p", "dropout", self.p.is_some()),
            ("sites", "dropout", self.sites.is_some()),
            ("scope", "dropout", self.scope.is_some()),
            ("mask", "dropout", self.mask.is_some()),
            ("sigma", "noise", self.sigma.is_some()),
            ("tau", "gumbel", self.tau.is_some()),
            ("temperature", "tokens", self.temperature.is_some()),
            ("top_p", "tokens", self.top_p.is_some()),
        ];
        let mut given = given.into_iter().filter(|(_, _, given)| *given);
        let first = given.clone().next().map(|(_, sampler, _)| sampler);
        let Some(sampler) = self.sampler.as_deref().or(first) else { return Ok(None) };
        if let Some((name, of, _)) = given.find(|(_, of, _)| *of != sampler) {
            let message = format!("{name} belongs to sampler={of:?} and not to {sampler:?}");
            return Err(invalid(format!("{message}; leave one of them out")));
        }
        match sampler {
            "none" => Ok(PerturbationOptions::None),
            "dropout" => self.dropout(),
            "noise" => Ok(PerturbationOptions::Noise {
                sigma: checked("sigma", self.sigma, "finite and at least 0", |sigma| {
                    (sigma.is_finite() && sigma >= 0.0).then_some(sigma)
                })?,
            }),
            "gumbel" => Ok(PerturbationOptions::Gumbel {
                tau: checked("tau", self.tau, "finite and above 0", Temperature::new)?,
            }),
            "tokens" => {
                let (temperature, top_p) =
                    (self.temperature.unwrap_or(1.0), self.top_p.unwrap_or(1.0));
                TokenSampling::new(temperature, top_p).map(PerturbationOptions::Tokens).ok_or_else(
                    || invalid("temperature must be above 0, top_p above 0 and at most 1"),
                )
            }
            other => Err(invalid(format!(
                "sampler={other:?} is not known; use dropout, noise, gumbel, tokens or none"
            ))),
        }
        .map(Some)
    }

    fn dropout(&self) -> PyResult<PerturbationOptions> {
        Ok(PerturbationOptions::Dropout {
            p: checked("p", self.p, "at least 0 and below 1", Probability::new)?,
            sites: self.sites.as_deref().map(sites).transpose()?,
            scope: self.scope.as_deref().map_or(Ok(DropoutScope::Thoughts), scope)?,
            mask: self.mask.as_deref().map_or(Ok(MaskLifetime::Step), mask)?,
        })
    }
}

/// A value that is refused unless `check` takes it.
fn checked<T>(
    name: &str,
    value: Option<f32>,
    rule: &str,
    check: impl Fn(f32) -> Option<T>,
) -> PyResult<Option<T>> {
    let check =
        |value| check(value).ok_or_else(|| invalid(format!("{name}={value} must be {rule}")));
    value.map(check).transpose()
}

fn beam_options(
    (width, candidates): (usize, usize),
    samples: NonZeroUsize,
) -> PyResult<BeamOptions> {
    if (width, candidates) == (0, 0) {
        return Ok(BeamOptions { size: BeamSize::for_samples(samples), forced: false });
    }
    let (width, candidates) = (positive("beam", width)?, positive("beam", candidates)?);
    Ok(BeamOptions { size: BeamSize { width, candidates }, forced: true })
}

pub fn vote_params(
    temperature: Option<f64>,
    lambda: Option<f64>,
    caution: Option<f64>,
) -> PyResult<VoteParams> {
    let defaults = VoteParams::default();
    let params = VoteParams {
        temperature: temperature.unwrap_or(defaults.temperature),
        lambda: lambda.unwrap_or(defaults.lambda),
        caution: caution.unwrap_or(defaults.caution),
    };
    let weight = |x: f64| x.is_finite() && x >= 0.0;
    match (params.temperature, params.lambda, params.caution) {
        (t, _, _) if !(weight(t) && t > 0.0) => {
            Err(invalid(format!("vote_temperature={t} must be finite and above 0")))
        }
        (_, l, _) if !weight(l) => {
            Err(invalid(format!("likelihood_weight={l} must be finite and at least 0")))
        }
        (_, _, c) if !weight(c) => {
            Err(invalid(format!("caution={c} must be finite and at least 0")))
        }
        _ => Ok(params),
    }
}

pub fn positive(name: &str, count: usize) -> PyResult<NonZeroUsize> {
    NonZeroUsize::new(count).ok_or_else(|| invalid(format!("{name} must be at least 1")))
}

pub fn rule(name: &str) -> PyResult<Aggregator> {
    let known = || Aggregator::ALL.map(Aggregator::name).join(", ");
    Aggregator::from_name(name)
        .ok_or_else(|| invalid(format!("rule={name:?} is not known; use one of {}", known())))
}

fn named<T: Copy>(argument: &str, name: &str, known: &[(&str, T)]) -> PyResult<T> {
    let found = known.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
    let names = || known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| invalid(format!("{argument}={name:?} is not known; use {}", names())))
}

pub fn sites(name: &str) -> PyResult<DropoutSites> {
    let known =
        [("both", DropoutSites::BOTH), ("attn", DropoutSites::ATTN), ("mlp", DropoutSites::MLP)];
    named("sites", name, &known)
}

pub fn scope(name: &str) -> PyResult<DropoutScope> {
    let known = [
        ("thoughts", DropoutScope::Thoughts),
        ("prompt", DropoutScope::Prompt),
        ("all", DropoutScope::All),
    ];
    named("scope", name, &known)
}

pub fn mask(name: &str) -> PyResult<MaskLifetime> {
    named("mask", name, &[("step", MaskLifetime::Step), ("trajectory", MaskLifetime::Trajectory)])
}

/// What a sweep maximizes, by its name in results.json.
pub fn metric(name: &str) -> PyResult<MetricName> {
    named("metric", name, &METRICS)
}

pub fn family(name: &str) -> PyResult<Family> {
    let names = || FAMILIES.map(Family::name).join(", ");
    Family::from_name(name)
        .ok_or_else(|| invalid(format!("family={name:?} is not known; use one of {}", names())))
}

pub fn on_existing(name: &str) -> PyResult<OnExisting> {
    let known = [
        ("refuse", OnExisting::Refuse),
        ("resume", OnExisting::Resume),
        ("overwrite", OnExisting::Overwrite),
    ];
    named("on_existing", name, &known)
}

/// `auto`, `cpu`, `cuda` or `cuda:NUMBER`; `f32`, `bf16`, `int8` or `fp8`; worker threads; whether
/// a GPU's bits depend on the row alone.
pub fn device_options(
    device: &str,
    dtype: Option<&str>,
    threads: Option<usize>,
    deterministic: bool,
) -> PyResult<DeviceOptions> {
    let kind = match device.split_once(':') {
        None if device == "auto" => Some(DeviceKind::Auto),
        None if device == "cpu" => Some(DeviceKind::Cpu),
        None if device == "cuda" => Some(DeviceKind::Cuda(0)),
        Some(("cuda", number)) => number.parse().ok().map(DeviceKind::Cuda),
        _ => None,
    };
    let unknown = || invalid(format!("device={device:?}: use auto, cpu, cuda or cuda:NUMBER"));
    let precisions = [
        ("f32", Precision::F32),
        ("float32", Precision::F32),
        ("bf16", Precision::Bf16),
        ("bfloat16", Precision::Bf16),
        ("int8", Precision::Int8),
        ("fp8", Precision::Fp8),
    ];
    Ok(DeviceOptions {
        kind: kind.ok_or_else(unknown)?,
        precision: dtype.map(|dtype| named("dtype", dtype, &precisions)).transpose()?,
        threads: threads.map(|threads| positive("threads", threads)).transpose()?,
        isa: None,
        deterministic,
    })
}
