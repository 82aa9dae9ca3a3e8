//! What a run was asked to do, and by which program on which host.
//!
//! `settings`, `seeds`, `questions` and `fingerprint` change results and must be equal when a run
//! is resumed; the other fields describe circumstances and may differ.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::RecordError;

/// The version of the run directory's format. Raised when a reader of the old one would misread the
/// new one.
pub const FORMAT: u32 = 1;

/// The content of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format of the run directory, [`FORMAT`].
    pub version: u32,
    /// The program and its version.
    pub program: String,
    /// The commit the program was built from, where known.
    pub commit: Option<String>,
    /// When the run was first started, in RFC 3339.
    pub created: String,
    /// Where it ran: device, threads, memory. Nothing here may change results.
    pub host: Value,
    /// Every setting that changes results, and only those: the number of threads belongs in
    /// `host`.
    pub settings: Value,
    /// The seeds, in the order of work.
    pub seeds: Vec<u64>,
    /// The number of questions under each seed.
    pub questions: usize,
    /// A digest of the inputs' content (weights, questions); see
    /// [`Fingerprint`](crate::Fingerprint).
    pub fingerprint: String,
}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            version: FORMAT,
            program: String::new(),
            commit: None,
            created: String::new(),
            host: Value::Null,
            settings: Value::Null,
            seeds: Vec::new(),
            questions: 0,
            fingerprint: String::new(),
        }
    }
}

impl Manifest {
    /// Checks that a run begun under `self`, stored at `path`, may be continued under `asked`.
    pub(crate) fn check_resumable(&self, asked: &Self, path: &Path) -> Result<(), RecordError> {
        let difference = first_difference("settings", &self.settings, &asked.settings)
            .or_else(|| {
                value_difference("seeds", &self.seeds, &asked.seeds, |seeds| format!("{seeds:?}"))
            })
            .or_else(|| {
                value_difference("questions", &self.questions, &asked.questions, usize::to_string)
            })
            .or_else(|| {
                value_difference(
                    "fingerprint",
                    &self.fingerprint,
                    &asked.fingerprint,
                    String::clone,
                )
            });
        match difference {
            None => Ok(()),
            Some(FieldDifference { field, stored, requested: asked }) => {
                Err(RecordError::Mismatch { path: path.into(), field, stored, asked })
            }
        }
    }
}

/// A field in which what was stored and what is asked for differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDifference {
    /// Its name, from the outermost field to the innermost.
    pub field: String,
    /// What was stored.
    pub stored: String,
    /// What is asked for.
    pub requested: String,
}

fn value_difference<T: PartialEq>(
    field: &str,
    stored: &T,
    asked: &T,
    show: fn(&T) -> String,
) -> Option<FieldDifference> {
    (stored != asked).then(|| FieldDifference {
        field: field.into(),
        stored: show(stored),
        requested: show(asked),
    })
}

/// Walks two JSON values side by side and names the innermost field where they first part.
pub fn first_difference(field: &str, stored: &Value, asked: &Value) -> Option<FieldDifference> {
    if stored == asked {
        return None;
    }
    if let (Value::Object(stored), Value::Object(asked)) = (stored, asked) {
        let added = asked.keys().filter(|key| !stored.contains_key(*key));
        for key in stored.keys().chain(added) {
            let field = format!("{field}.{key}");
            let inner = match (stored.get(key), asked.get(key)) {
                (Some(stored), Some(asked)) => first_difference(&field, stored, asked),
                (stored, asked) => {
                    Some(FieldDifference { field, stored: show(&stored), requested: show(&asked) })
                }
            };
            if inner.is_some() {
                return inner;
            }
        }
    }
    Some(FieldDifference {
        field: field.into(),
        stored: stored.to_string(),
        requested: asked.to_string(),
    })
}

fn show(value: &Option<&impl fmt::Display>) -> String {
    value.map_or_else(|| "(absent)".into(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(stored: Manifest, asked: Manifest) -> String {
        stored
            .check_resumable(&asked, Path::new("run/manifest.json"))
            .expect_err("they differ")
            .to_string()
    }

    fn with(settings: Value) -> Manifest {
        Manifest { settings, ..Manifest::default() }
    }

    #[test]
    fn host_and_version_may_differ() {
        let stored =
            Manifest { host: json!({"threads": 2}), created: "then".into(), ..Manifest::default() };
        stored
            .check_resumable(
                &Manifest { commit: Some("abc".into()), ..Manifest::default() },
                Path::new("m"),
            )
            .unwrap();
    }

    #[test]
    fn key_order_is_no_difference() {
        let (a, b) = (json!({"n": 4, "p": 0.2}), json!({"p": 0.2, "n": 4}));
        with(a).check_resumable(&with(b), Path::new("m")).unwrap();
    }

    #[test]
    fn the_innermost_field_is_named_with_both_values() {
        let message = refusal(
            with(json!({"n": 4, "noise": {"p": 0.2}})),
            with(json!({"n": 4, "noise": {"p": 0.3}})),
        );
        assert!(message.contains("settings.noise.p = 0.2, now it is 0.3"), "{message}");
        assert!(message.starts_with("run/manifest.json") && message.contains("--out"), "{message}");
    }

    #[test]
    fn absent_fields_are_named() {
        assert!(
            refusal(with(json!({})), with(json!({"n": 4})))
                .contains("settings.n = (absent), now it is 4")
        );
        assert!(
            refusal(with(json!({"n": 4})), with(json!({})))
                .contains("settings.n = 4, now it is (absent)")
        );
        assert!(
            refusal(with(json!([1, 2])), with(json!([1])))
                .contains("settings = [1,2], now it is [1]")
        );
    }

    #[test]
    fn seeds_questions_and_fingerprint_count() {
        let asked = Manifest { seeds: vec![1], ..Manifest::default() };
        assert!(refusal(Manifest::default(), asked).contains("seeds = [], now it is [1]"));
        let asked = Manifest { questions: 5, ..Manifest::default() };
        assert!(refusal(Manifest::default(), asked).contains("questions = 0, now it is 5"));
        let asked = Manifest { fingerprint: "f".into(), ..Manifest::default() };
        assert!(refusal(Manifest::default(), asked).contains("fingerprint = , now it is f"));
    }
}
