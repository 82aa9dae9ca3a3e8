//! Converts keyword arguments to library options.

use std::num::NonZeroUsize;

use latent_tts::aggregate::UnknownRule;
use latent_tts::engine::family::FAMILIES;
use latent_tts::record::MetricName;
use latent_tts::sweep::METRICS;
use latent_tts::tensor::Precision;
use latent_tts::{
    AblationKind, AnswerKind, DataSource, DeviceKind, DeviceOptions, DropoutScope, DropoutSites,
    Error, Family, FieldNames, MaskLifetime, OnExisting, Question, Rule, SamplingOptions,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use serde_json::{Map, Value};

use crate::errors::invalid;

/// A question from Python: id, text, gold answer, kind and steps.
pub type QuestionTuple = (u32, String, String, String, Vec<String>);

/// A question to sample: text, gold answer if known, and kind.
pub type QuestionInput = (String, Option<String>, String);

pub fn question((id, text, gold, kind, steps): QuestionTuple) -> PyResult<Question> {
    Ok(Question { id, text, gold, kind: answer_kind(&kind)?, steps })
}

pub fn question_tuple(question: &Question) -> QuestionTuple {
    let Question { id, text, gold, kind, steps } = question.clone();
    let kind = KINDS.iter().find(|(_, known)| *known == kind).map_or("number", |(name, _)| *name);
    (id, text, gold, kind.to_owned(), steps)
}

const KINDS: [(&str, AnswerKind); 4] = [
    ("number", AnswerKind::Number),
    ("math", AnswerKind::Math),
    ("choice", AnswerKind::Choice),
    ("yes_no", AnswerKind::YesNo),
];

pub fn answer_kind(name: &str) -> PyResult<AnswerKind> {
    named("answer_kind", name, &KINDS)
}

/// The keyword arguments of sampling: the fields of [`SamplingOptions`], parsed by the schema.
pub struct Sampling(pub SamplingOptions);

impl<'a, 'py> FromPyObject<'a, 'py> for Sampling {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let mut options = SamplingOptions::default();
        for (name, value) in object.cast::<PyDict>()?.iter() {
            if value.is_none() {
                continue;
            }
            let name: String = name.extract()?;
            let field = Map::from_iter([(name.clone(), json(&value)?)]);
            let option = serde_json::from_value::<SamplingOptions>(Value::Object(field));
            let option = option.map_err(|error| match error.to_string() {
                unknown if unknown.starts_with("unknown field") => {
                    PyTypeError::new_err(format!("unknown option {name}: {unknown}"))
                }
                message => invalid(format!("{name}: {message}")),
            })?;
            options = options.or(option);
        }
        options.sampler_kind().map_err(|error| invalid(error.to_string()))?;
        Ok(Self(options))
    }
}

/// Converts a number, string, bool, or dict of these to JSON.
fn json(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(flag.is_true().into());
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let entry = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            Ok((name.extract::<String>()?, json(&value)?))
        };
        let entries = dict.iter().map(entry).collect::<PyResult<Map<String, Value>>>()?;
        return Ok(Value::Object(entries));
    }
    if let Ok(number) = value.extract::<i64>() {
        return Ok(number.into());
    }
    if let Ok(number) = value.extract::<u64>() {
        return Ok(number.into());
    }
    match value.extract::<f64>() {
        Ok(number) => Ok(number.into()),
        Err(_) => Ok(value.extract::<String>()?.into()),
    }
}

/// Sampling options as keyword arguments.
pub fn keywords<'py>(
    py: Python<'py>,
    sampling: &impl serde::Serialize,
) -> PyResult<Bound<'py, PyDict>> {
    let text = serde_json::to_string(sampling).map_err(|error| invalid(error.to_string()))?;
    Ok(py.import("json")?.call_method1("loads", (text,))?.cast_into::<PyDict>()?)
}

/// The names of the sampling options, from their schema.
#[pyfunction]
pub fn sampling_fields() -> Vec<String> {
    let schema = schemars::schema_for!(SamplingOptions).to_value();
    schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

pub fn positive(name: &str, count: usize) -> PyResult<NonZeroUsize> {
    NonZeroUsize::new(count).ok_or_else(|| invalid(format!("{name} must be at least 1")))
}

pub fn rule(name: &str) -> PyResult<Rule> {
    name.parse().map_err(|error: UnknownRule| invalid(error.to_string()))
}

fn named<T: Copy>(argument: &str, name: &str, known: &[(&str, T)]) -> PyResult<T> {
    let found = known.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
    let names = || known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| invalid(format!("invalid {argument}={name:?}; use one of {}", names())))
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
        ("generated", DropoutScope::Generated),
        ("all", DropoutScope::All),
    ];
    named("scope", name, &known)
}

pub fn mask(name: &str) -> PyResult<MaskLifetime> {
    named("mask", name, &[("step", MaskLifetime::Step), ("trajectory", MaskLifetime::Trajectory)])
}

/// The metric that a sweep maximizes, by its name in results.json.
pub fn metric(name: &str) -> PyResult<MetricName> {
    named("metric", name, &METRICS)
}

/// The kind of replacement for the thoughts of the greedy run, by name.
pub fn ablation(name: &str) -> PyResult<AblationKind> {
    named("ablate", name, &AblationKind::ALL.map(|kind| (kind.name(), kind)))
}

pub fn family(name: &str) -> PyResult<Family> {
    let names = || FAMILIES.map(Family::name).join(", ");
    Family::from_name(name)
        .ok_or_else(|| invalid(format!("invalid family={name:?}; use one of {}", names())))
}

pub fn on_existing(name: &str) -> PyResult<OnExisting> {
    let known = [
        ("refuse", OnExisting::Refuse),
        ("resume", OnExisting::Resume),
        ("overwrite", OnExisting::Overwrite),
    ];
    named("on_existing", name, &known)
}

/// Parses the device (`auto`, `cpu`, `cuda` or `cuda:INDEX`), the precision (`f32`, `bf16`, `int8`
/// or `fp8`), the number of worker threads, and whether GPU results are independent of the batch.
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
    let unknown = || invalid(format!("device={device:?}: use auto, cpu, cuda or cuda:INDEX"));
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

/// The field names for question, answer and steps, where given.
pub type FieldTuple = (Option<String>, Option<String>, Option<String>);

/// Converts field names to the library's type.
pub fn field_names((question, answer, steps): FieldTuple) -> FieldNames {
    FieldNames { question_field: question, answer_field: answer, steps_field: steps }
}

/// The data source with this name, with field names.
pub fn data_source(name: &str, fields: FieldTuple) -> Result<DataSource, Error> {
    DataSource::parse(name)?.with_fields(field_names(fields))
}
