//! Typed access to a JSON object, with errors that name the field.
//!
//! A field that is `null` counts as absent, because clients send it that way.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use latent_tts::SamplingOptions;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// Maximum length of an unknown field name in an error message.
const MAX_SHOWN_NAME: usize = 64;
/// Minimum Jaro-Winkler similarity for suggesting a known field.
const MIN_SIMILARITY: f64 = 0.7;

/// The JSON schema of a shared type, without references, because it is embedded in other schemas.
pub(crate) fn schema_of<T: JsonSchema>() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// The names of the sampling options, from their schema.
pub(crate) fn sampling_fields() -> &'static [String] {
    static FIELDS: OnceLock<Vec<String>> = OnceLock::new();
    FIELDS.get_or_init(|| {
        let schema = schema_of::<SamplingOptions>();
        schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect()
    })
}

/// The fields of an object at a path.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: &'a str,
}

impl<'a> Fields<'a> {
    /// The fields of a request body.
    pub(crate) fn of_body(body: &'a Value) -> Result<Self, ApiError> {
        let map =
            body.as_object().ok_or_else(|| ApiError::body("the body must be a JSON object"))?;
        Ok(Self { map, path: "" })
    }

    /// The object `name`, if it is present.
    pub(crate) fn object(&self, name: &'a str) -> Result<Option<Self>, ApiError> {
        let object = |value: &'a Value| value.as_object().map(|map| Self { map, path: name });
        self.read(name, "an object", object)
    }

    /// The full name of a field, for messages.
    pub(crate) fn name(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// An error for a field.
    pub(crate) fn error(&self, name: &str, message: impl Into<String>) -> ApiError {
        ApiError::field(self.name(name), message)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn read<T>(
        &self,
        name: &str,
        what: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || self.error(name, format!("`{}` must be {what}", self.name(name)));
        read(value).map(Some).ok_or_else(wrong)
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(name, "a string", Value::as_str)
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.read(name, "a list", Value::as_array)
    }

    /// An integer in a range.
    pub(crate) fn count(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ApiError> {
        let what = format!("an integer from {} to {}", range.start(), range.end());
        self.read(name, &what, |value| value.as_u64().filter(|count| range.contains(count)))
    }

    /// A number in a range.
    pub(crate) fn number(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ApiError> {
        let what = format!("a number from {} to {}", range.start(), range.end());
        self.read(name, &what, |value| value.as_f64().filter(|number| range.contains(number)))
    }

    /// The sampling options among the fields; `others` are read elsewhere. Each option is parsed
    /// separately, so that errors name it. For an unknown field, the closest name is suggested.
    pub(crate) fn sampling(&self, others: &[&str]) -> Result<SamplingOptions, ApiError> {
        let mut options = SamplingOptions::default();
        for (name, value) in self.map {
            if others.contains(&name.as_str()) {
                continue;
            }
            let field = Map::from_iter([(name.clone(), value.clone())]);
            match serde_json::from_value::<SamplingOptions>(Value::Object(field)) {
                Ok(option) => options = options.or(option),
                Err(error) if error.to_string().starts_with("unknown field") => {
                    let known: Vec<&str> = sampling_fields()
                        .iter()
                        .map(String::as_str)
                        .chain(others.iter().copied())
                        .collect();
                    return Err(self.unknown(name, &known));
                }
                Err(error) => return Err(self.error(name, error.to_string())),
            }
        }
        Ok(options)
    }

    /// Rejects fields that are not in `known`, and suggests the closest known one.
    pub(crate) fn refuse_unknown(&self, known: &[&str]) -> Result<(), ApiError> {
        let unknown = self.map.keys().find(|name| !known.contains(&name.as_str()));
        unknown.map_or(Ok(()), |name| Err(self.unknown(name, known)))
    }

    /// The error for a field that is not in `known`, with the closest known one.
    fn unknown(&self, name: &str, known: &[&str]) -> ApiError {
        // Client text: long names are neither compared nor repeated in full.
        let shown: String = name.chars().take(MAX_SHOWN_NAME).collect();
        let scored = known.iter().map(|known| (strsim::jaro_winkler(known, &shown), known));
        let closest = scored.max_by(|a, b| a.0.total_cmp(&b.0));
        let advice = match closest {
            Some((score, closest)) if score >= MIN_SIMILARITY => {
                format!("did you mean `{}`?", self.name(closest))
            }
            _ => format!("known fields: {}", known.join(", ")),
        };
        let shown = self.name(&shown);
        ApiError::field(&shown, format!("unknown field `{shown}`; {advice}"))
    }

    /// Rejects a field unless its value has no effect.
    pub(crate) fn unsupported(
        &self,
        name: &str,
        changes_nothing: impl FnOnce(&Value) -> bool,
    ) -> Result<(), ApiError> {
        match self.get(name).filter(|value| !changes_nothing(value)) {
            Some(_) => {
                let name = self.name(name);
                Err(ApiError::field(&name, format!("`{name}` is not supported; omit it")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use schema::testkit::FIELD_EXAMPLES;
    use serde_json::json;

    use super::*;

    /// A value of each schema field means the same in `latent` as in JSON elsewhere.
    #[test]
    fn every_sampling_field_is_read() {
        let examples: Vec<&str> = FIELD_EXAMPLES.iter().map(|(field, _)| *field).collect();
        assert!(sampling_fields().iter().all(|field| examples.contains(&field.as_str())));
        for (field, value) in FIELD_EXAMPLES {
            let text = format!("{{\"{field}\": {value}}}");
            let body = json!({ "latent": serde_json::from_str::<Value>(&text).unwrap() });
            let latent = Fields::of_body(&body).unwrap().object("latent").unwrap().unwrap();
            let expected: SamplingOptions = serde_json::from_str(&text).unwrap();
            assert_eq!(latent.sampling(&[]).ok(), Some(expected), "{text}");
        }
    }
}
