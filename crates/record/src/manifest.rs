//! The digest of a manifest, which records carry, and the check whether a run may be resumed.
//!
//! `settings`, `seeds`, `questions` and `fingerprint` determine the results and must be equal when
//! a run is resumed; the other fields may differ.

use std::fmt;
use std::path::Path;

use crate::files::Fingerprint;
pub use schema::{FORMAT, Manifest};
use serde_json::Value;

use crate::error::RecordError;

/// The digest of all fields that determine the run's records; each record carries it.
pub fn digest(manifest: &Manifest) -> Fingerprint {
    let seeds: Vec<u8> = manifest.seeds.iter().flat_map(|seed| seed.to_le_bytes()).collect();
    Fingerprint::default()
        .with("settings", manifest.settings.to_string().as_bytes())
        .with("seeds", &seeds)
        .with("questions", &(manifest.questions as u64).to_le_bytes())
        .with("fingerprint", manifest.fingerprint.as_bytes())
}

/// Checks that the run of the manifest stored at `path` may be resumed with `requested`.
pub(crate) fn check_resumable(
    manifest: &Manifest,
    requested: &Manifest,
    path: &Path,
) -> Result<(), RecordError> {
    if manifest.version != FORMAT {
        return Err(RecordError::OldFormat { path: path.into(), found: manifest.version });
    }
    // Checked before the other settings, because the reward model determines some of their
    // defaults.
    let [stored, wanted] = [manifest, requested].map(|of| &of.settings["rewards"]);
    let difference = first_difference("settings.rewards", stored, wanted)
        .or_else(|| first_difference("settings", &manifest.settings, &requested.settings))
        .or_else(|| {
            value_difference("seeds", &manifest.seeds, &requested.seeds, |s| format!("{s:?}"))
        })
        .or_else(|| {
            value_difference(
                "questions",
                &manifest.questions,
                &requested.questions,
                usize::to_string,
            )
        })
        .or_else(|| {
            value_difference(
                "fingerprint",
                &manifest.fingerprint,
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

/// A field whose stored value differs from the requested one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDifference {
    /// Path of the field, e.g. `settings.perturbation.p`.
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
        check_resumable(&stored, &requested, Path::new("run/manifest.json"))
            .expect_err("they differ")
            .to_string()
    }

    fn with(settings: Value) -> Manifest {
        Manifest { settings, ..Manifest::default() }
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
        let requested = Manifest { commit: Some("abc".into()), ..Manifest::default() };
        check_resumable(&stored, &requested, Path::new("m")).unwrap();
    }

    #[test]
    fn key_order_is_no_difference() {
        let a = json!({"n": 4, "p": 0.2});
        let b = json!({"p": 0.2, "n": 4});
        check_resumable(&with(a), &with(b), Path::new("m")).unwrap();
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
