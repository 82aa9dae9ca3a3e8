//! The manifest: settings and seeds of a run, program and host.
//!
//! `settings`, `seeds`, `questions` and `fingerprint` determine the results and must be equal when
//! a run is resumed; the other fields may differ.

use std::fmt;
use std::path::Path;

use crate::files::Fingerprint;
use schema::SamplingOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::RecordError;

/// The format version of the run directory. Incremented when an older reader would misread it.
pub const FORMAT: u32 = 2;
/// The oldest format version that is still read. Its runs are not resumed.
pub const OLDEST_FORMAT: u32 = 1;

/// The content of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format version, [`FORMAT`].
    pub version: u32,
    /// Program name and version.
    pub program: String,
    /// The commit the program was built from, if known.
    pub commit: Option<String>,
    /// When the run was first started, RFC 3339.
    pub created: String,
    /// Device, threads, memory: nothing that changes results.
    pub host: Value,
    /// Every setting that changes results, and no other.
    pub settings: Value,
    /// The seeds, in processing order.
    pub seeds: Vec<u64>,
    /// The number of questions under each seed.
    pub questions: usize,
    /// [`Fingerprint`](crate::Fingerprint) of the inputs: weights and questions.
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
    /// Samples of the complete run: each question under each seed.
    pub fn sample_count(&self) -> usize {
        self.seeds.len() * self.questions
    }

    /// How the run was sampled, whatever its format version. Empty where the settings are not those
    /// of an evaluation.
    pub fn sampling(&self) -> SamplingOptions {
        let options = match self.version {
            OLDEST_FORMAT => sampling_of_version_1(&self.settings),
            _ => self.settings["sampling"].clone(),
        };
        serde_json::from_value(options).unwrap_or_default()
    }

    /// The digest of everything that determines the run's records, which each of them carries.
    pub fn digest(&self) -> Fingerprint {
        let seeds: Vec<u8> = self.seeds.iter().flat_map(|seed| seed.to_le_bytes()).collect();
        Fingerprint::default()
            .with("settings", self.settings.to_string().as_bytes())
            .with("seeds", &seeds)
            .with("questions", &(self.questions as u64).to_le_bytes())
            .with("fingerprint", self.fingerprint.as_bytes())
    }

    /// Checks that the run of `self`, stored at `path`, may be resumed with `requested`.
    pub(crate) fn check_resumable(&self, requested: &Self, path: &Path) -> Result<(), RecordError> {
        if self.version != FORMAT {
            return Err(RecordError::OldFormat { path: path.into(), found: self.version });
        }
        // Before the other settings: the reward model decides some of their defaults.
        let [stored, wanted] = [self, requested].map(|manifest| &manifest.settings["rewards"]);
        let difference = first_difference("settings.rewards", stored, wanted)
            .or_else(|| first_difference("settings", &self.settings, &requested.settings))
            .or_else(|| {
                value_difference("seeds", &self.seeds, &requested.seeds, |s| format!("{s:?}"))
            })
            .or_else(|| {
                value_difference(
                    "questions",
                    &self.questions,
                    &requested.questions,
                    usize::to_string,
                )
            })
            .or_else(|| {
                value_difference(
                    "fingerprint",
                    &self.fingerprint,
                    &requested.fingerprint,
                    String::clone,
                )
            });
        match difference {
            None => Ok(()),
            Some(FieldDifference { field, stored, requested }) => {
                Err(RecordError::Mismatch { path: path.into(), field, stored, requested })
            }
        }
    }
}

/// The sampling options in settings of version 1, which had an object for the sampler and other
/// names.
fn sampling_of_version_1(settings: &Value) -> Value {
    let mut options = Map::new();
    for name in ["samples", "greedy", "thoughts", "max_new_tokens"] {
        options.extend(settings.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    for (name, value) in settings["sampler"].as_object().into_iter().flatten() {
        let name = if name == "kind" { "sampler" } else { name };
        options.insert(name.to_owned(), value.clone());
    }
    for name in ["width", "candidates"] {
        let size = settings["beam"].get(name);
        options.extend(size.map(|size| (format!("beam_{name}"), size.clone())));
    }
    let confidence = settings["adaptive"].get("confidence");
    options.extend(confidence.map(|share| ("target_confidence".to_owned(), share.clone())));
    Value::Object(options)
}

/// A field whose stored value differs from the requested one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDifference {
    /// Its path, e.g. `settings.perturbation.p`.
    pub field: String,
    /// The stored value.
    pub stored: String,
    /// The requested value.
    pub requested: String,
}

fn value_difference<T: PartialEq>(
    field: &str,
    stored: &T,
    requested: &T,
    show: fn(&T) -> String,
) -> Option<FieldDifference> {
    (stored != requested).then(|| FieldDifference {
        field: field.into(),
        stored: show(stored),
        requested: show(requested),
    })
}

/// Compares two JSON values recursively and returns the innermost field that differs first.
pub fn first_difference(field: &str, stored: &Value, requested: &Value) -> Option<FieldDifference> {
    if stored == requested {
        return None;
    }
    if let (Value::Object(stored), Value::Object(requested)) = (stored, requested) {
        let added = requested.keys().filter(|key| !stored.contains_key(*key));
        for key in stored.keys().chain(added) {
            let field = format!("{field}.{key}");
            let inner = match (stored.get(key), requested.get(key)) {
                (Some(stored), Some(requested)) => first_difference(&field, stored, requested),
                (stored, requested) => Some(FieldDifference {
                    field,
                    stored: show(&stored),
                    requested: show(&requested),
                }),
            };
            if inner.is_some() {
                return inner;
            }
        }
    }
    Some(FieldDifference {
        field: field.into(),
        stored: stored.to_string(),
        requested: requested.to_string(),
    })
}

fn show(value: &Option<&impl fmt::Display>) -> String {
    value.map_or_else(|| "(absent)".into(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(stored: Manifest, requested: Manifest) -> String {
        stored
            .check_resumable(&requested, Path::new("run/manifest.json"))
            .expect_err("they differ")
            .to_string()
    }

    fn with(settings: Value) -> Manifest {
        Manifest { settings, ..Manifest::default() }
    }

    #[test]
    fn sampling_is_read_in_both_formats() {
        let old = Manifest {
            version: 1,
            settings: json!({
                "method": "coconut", "samples": 64, "greedy": true, "thoughts": "<=9",
                "max_new_tokens": 64, "rewards": true, "beam": { "width": 8, "candidates": 4 },
                "sampler": { "kind": "dropout", "p": 0.2, "sites": "both", "scope": "thoughts" },
                "adaptive": { "confidence": 0.9 },
            }),
            ..Manifest::default()
        };
        let new = with(json!({ "method": "coconut", "rewards": true, "sampling": {
            "samples": 64, "greedy": true, "latent_length": "<=9", "max_new_tokens": 64,
            "beam_width": 8, "beam_candidates": 4, "sampler": "dropout", "dropout_p": 0.2,
            "sites": "both", "scope": "thoughts", "target_confidence": 0.9,
        }}));
        assert_eq!(old.sampling(), new.sampling());
        assert_eq!(old.sampling().dropout_p.map(|p| p.get()), Some(0.2));
        assert_eq!(with(json!({ "lr": 1 })).sampling(), SamplingOptions::default());
    }

    #[test]
    fn a_run_of_an_older_format_is_not_resumed() {
        let old = Manifest { version: 1, ..Manifest::default() };
        let message = refusal(old, Manifest::default());
        assert!(
            message.contains("format version 1") && message.contains("not resumed"),
            "{message}"
        );
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
        assert!(message.starts_with("run/manifest.json: "), "{message}");
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
        let requested = Manifest { seeds: vec![1], ..Manifest::default() };
        assert!(refusal(Manifest::default(), requested).contains("seeds = [], now it is [1]"));
        let requested = Manifest { questions: 5, ..Manifest::default() };
        assert!(refusal(Manifest::default(), requested).contains("questions = 0, now it is 5"));
        let requested = Manifest { fingerprint: "f".into(), ..Manifest::default() };
        assert!(refusal(Manifest::default(), requested).contains("fingerprint = , now it is f"));
    }
}
