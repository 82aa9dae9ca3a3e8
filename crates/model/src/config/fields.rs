//! Range-checked access to the fields of a JSON object; every error names the file and the field.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::ModelError;

/// Far above any real count; the product of two counts does not overflow a u64.
const MAX_COUNT: u64 = 1 << 31;

/// A JSON object and the file it is from.
#[derive(Clone, Copy)]
pub(super) struct JsonFields<'a> {
    file: &'a Path,
    parent: Option<&'static str>, // the field whose value this object is
    map: &'a Map<String, Value>,
}

impl<'a> JsonFields<'a> {
    pub fn new(file: &'a Path, value: &'a Value) -> Result<JsonFields<'a>, ModelError> {
        match value {
            Value::Object(map) => Ok(JsonFields { file, parent: None, map }),
            other => Err(ModelError::BadJson {
                file: file.to_path_buf(),
                why: format!("expected an object, not {}", json_type(other)),
            }),
        }
    }

    /// A nested object; `None` if absent or null.
    pub fn object(&self, name: &'static str) -> Result<Option<JsonFields<'a>>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(JsonFields { file: self.file, parent: Some(name), map }))
            }
            Some(_) => Err(self.bad(name, "must be an object")),
        }
    }

    /// Rejects field names that are not in `known`.
    pub fn deny_unknown(&self, known: &[&str]) -> Result<(), ModelError> {
        match self.map.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => {
                Err(self
                    .bad(name, &format!("is unknown; the known fields are {}", known.join(", "))))
            }
            None => Ok(()),
        }
    }

    /// The value of a field; `None` if absent or null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    /// A count from 1 to 2^31.
    pub fn opt_count(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(n) if (1..=MAX_COUNT).contains(&n) => Ok(Some(n as usize)),
            _ => Err(self.bad(
                name,
                &format!("is {value}; it must be a whole number from 1 to {MAX_COUNT}"),
            )),
        }
    }

    pub fn count(&self, name: &str) -> Result<usize, ModelError> {
        self.opt_count(name)?.ok_or_else(|| self.missing(name))
    }

    /// A number that satisfies `is_legal` as an f32, the precision it is used in; `what` describes
    /// the legal range.
    pub fn number(
        &self,
        name: &str,
        is_legal: impl Fn(f32) -> bool,
        what: &str,
    ) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(x) if is_legal(x as f32) => Ok(Some(x)),
            _ => Err(self.bad(name, &format!("is {value}; it must be {what}"))),
        }
    }

    /// A number that is finite and above zero as an f32: 0 or infinity would spread to every hidden
    /// state.
    pub fn positive(&self, name: &str) -> Result<Option<f64>, ModelError> {
        self.number(name, |x| x > 0.0 && x.is_finite(), "a finite number above zero")
    }

    pub fn boolean(&self, name: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.bad(name, &format!("is {value}; it must be true or false")))
    }

    pub fn string(&self, name: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.bad(name, &format!("is {value}; it must be a string")))
    }

    /// A token id; negative ids mean "none" in published files.
    pub fn token(&self, name: &str) -> Result<Option<u32>, ModelError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        self.parse_token(name, value)
    }

    /// A token id or a list of token ids.
    pub fn tokens(&self, name: &str) -> Result<Vec<u32>, ModelError> {
        let values = match self.get(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        values.iter().filter_map(|v| self.parse_token(name, v).transpose()).collect()
    }

    fn parse_token(&self, name: &str, value: &Value) -> Result<Option<u32>, ModelError> {
        match value.as_i64() {
            Some(id) if id < 0 => Ok(None),
            Some(id) if id <= i64::from(u32::MAX) => Ok(Some(id as u32)),
            _ => Err(self.bad(name, &format!("holds {value}; it must be a token id"))),
        }
    }

    /// Rejects a boolean that is true: it enables a feature that the decoder lacks.
    pub fn must_be_false(&self, name: &str) -> Result<(), ModelError> {
        match self.boolean(name)? {
            Some(true) => Err(self.unsupported(name, "true", "false")),
            _ => Ok(()),
        }
    }

    pub fn missing(&self, name: &str) -> ModelError {
        ModelError::MissingField { file: self.file.to_path_buf(), field: self.path(name) }
    }

    pub fn bad(&self, name: &str, why: &str) -> ModelError {
        ModelError::BadField {
            file: self.file.to_path_buf(),
            field: self.path(name),
            why: why.to_owned(),
        }
    }

    fn path(&self, name: &str) -> String {
        self.parent.map_or_else(|| name.to_owned(), |within| format!("{within}.{name}"))
    }

    pub fn unsupported(&self, name: &str, found: &str, supported: &str) -> ModelError {
        ModelError::Unsupported {
            file: self.file.to_path_buf(),
            field: name.to_owned(),
            found: found.to_owned(),
            supported: supported.to_owned(),
        }
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
