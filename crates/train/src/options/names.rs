//! Enumerations and text formats of option values.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// What a reasoner generates before the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum ReasonerMode {
    /// Latent thoughts
    #[default]
    Latent,
    /// A chain of thought in text
    Cot,
    /// Nothing
    NoCot,
}

/// Schedule by which thoughts replace steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum CurriculumKind {
    /// All thoughts from the start; steps are removed at a constant rate
    #[default]
    Smooth,
    /// COCONUT's stages: thoughts are added as steps are removed
    Stages,
}

/// Length of the learning-rate warmup.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Warmup {
    /// Optimizer steps.
    Steps(u32),
    /// Fraction of all steps, 0 to 1.
    Share(f64),
}

impl Warmup {
    /// The number of warmup steps in a training of `total` steps.
    pub fn steps(self, total: u32) -> u32 {
        match self {
            Self::Steps(steps) => steps,
            Self::Share(share) => (share * f64::from(total)).ceil() as u32,
        }
    }
}

impl fmt::Display for Warmup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            Self::Share(share) => write!(f, "{}%", 100.0 * share),
        }
    }
}

impl FromStr for Warmup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || "expected a number of steps such as 300, or a percentage such as 3%".to_owned();
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(Self::Steps).map_err(|_| wrong());
        };
        let share = percent.trim().parse::<f64>().map_err(|_| wrong())? / 100.0;
        if (0.0..=1.0).contains(&share) { Ok(Self::Share(share)) } else { Err(wrong()) }
    }
}

/// The name of the built-in corpus.
const CORPUS: &str = "corpus";

/// A source of training data: a file or the built-in corpus, with an optional weight.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedData {
    name: String,
    /// Relative share of examples; `None` for the default.
    pub weight: Option<f64>,
}

impl WeightedData {
    /// The file; `None` for the built-in corpus.
    pub fn file(&self) -> Option<&Path> {
        (self.name != CORPUS).then_some(Path::new(&self.name))
    }
}

impl fmt::Display for WeightedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.weight {
            Some(weight) => write!(f, "{}:{weight}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl FromStr for WeightedData {
    type Err = String;

    /// Parses `FILE` or `FILE:WEIGHT`: a number after the last colon is the weight.
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.rsplit_once(':').and_then(|(name, n)| Some((name, n.parse().ok()?)));
        let (name, weight) = match parsed {
            Some((name, weight)) => (name, Some(weight)),
            None => (text, None),
        };
        if weight.is_some_and(|weight: f64| !weight.is_finite() || weight <= 0.0) {
            return Err("a weight must be a number above 0".to_owned());
        }
        match name {
            "" => Err("expected a file or `corpus`".to_owned()),
            // The name that other commands use.
            "embedded:train" => Ok(Self { name: CORPUS.to_owned(), weight }),
            part if part.starts_with("embedded:") => Err(
                "the built-in corpus can only be used as a whole, as `corpus`; to write a part \
                     of it, run `latent-tts corpus --split train --count 1000 --out FILE`"
                    .to_owned(),
            ),
            name => Ok(Self { name: name.to_owned(), weight }),
        }
    }
}

/// Serializes values as text. Deserialization also accepts a number in place of its text.
macro_rules! serialize_as_text {
    ($($value:ident),*) => {$(
        impl Serialize for $value {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $value {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = match Value::deserialize(deserializer)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                text.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

serialize_as_text!(Warmup, WeightedData);

/// Deserializes a list, a single item, or a comma-separated string.
pub(super) fn one_or_several<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let items = match Value::deserialize(deserializer)? {
        Value::String(text) => text.split(',').map(Value::from).collect(),
        Value::Array(items) => items,
        other => vec![other],
    };
    items.into_iter().map(|item| serde_json::from_value(item).map_err(D::Error::custom)).collect()
}

/// Rejects unknown fields, suggesting the closest known name.
pub(super) fn check_fields(
    fields: &Map<String, Value>,
    defaults: &impl Serialize,
) -> Result<(), String> {
    let known = serde_json::to_value(defaults).map_err(|error| error.to_string())?;
    let known = known.as_object().cloned().unwrap_or_default();
    let Some(unknown) = fields.keys().find(|name| !known.contains_key(*name)) else {
        return Ok(());
    };
    let scored = known.keys().map(|name| (strsim::jaro_winkler(name, unknown), name));
    Err(match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, name)) if score > 0.8 => {
            format!("unknown option `{unknown}`; did you mean `{name}`?")
        }
        _ => format!("unknown option `{unknown}`"),
    })
}

/// Parser for the name of a training method.
#[cfg(feature = "clap")]
pub(super) fn method_parser() -> clap::builder::PossibleValuesParser {
    use crate::methods::{METHODS, MethodEntry};
    let value =
        |entry: MethodEntry| clap::builder::PossibleValue::new(entry.name).help(entry.about);
    clap::builder::PossibleValuesParser::new(METHODS.map(value))
}

/// Parser for the data type of saved weights.
#[cfg(feature = "clap")]
pub(super) fn dtype_parser() -> impl clap::builder::TypedValueParser<Value = model::save::SaveDtype>
{
    use clap::builder::TypedValueParser;
    clap::builder::PossibleValuesParser::new(["f32", "bf16"])
        .try_map(|name| serde_json::from_value(Value::String(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_may_have_a_weight() {
        for (text, name, weight) in [
            ("a.jsonl", "a.jsonl", None),
            ("a.jsonl:2", "a.jsonl", Some(2.0)),
            ("a:b.jsonl", "a:b.jsonl", None),
            ("corpus:0.5", "corpus", Some(0.5)),
        ] {
            let data: WeightedData = text.parse().unwrap();
            assert_eq!((data.name.as_str(), data.weight), (name, weight), "{text}");
            assert_eq!(data.to_string(), text);
            assert_eq!(data.file().is_none(), name == "corpus");
        }
        let parsed = |text: &str| text.parse::<WeightedData>();
        assert_eq!(parsed("embedded:train:2"), parsed("corpus:2"));
        let refused = ["", ":2", "a:0", "a:-1", "a:nan", "embedded:train:0..9", "embedded:test"];
        assert!(refused.iter().all(|text| parsed(text).is_err()));
    }

    #[test]
    fn a_warmup_is_a_number_or_a_percentage() {
        let steps = |text: &str| text.parse::<Warmup>().map(|warmup| warmup.steps(1000));
        assert_eq!((steps("300"), steps("3%"), steps("0")), (Ok(300), Ok(30), Ok(0)));
        assert!(["", "x", "-1", "101%", "%"].iter().all(|text| steps(text).is_err()));
        assert_eq!(Warmup::Share(0.03).to_string(), "3%");
    }
}
