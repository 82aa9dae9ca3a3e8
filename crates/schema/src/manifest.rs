//! The manifest of a run: settings, seeds, program version and host.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::options::SamplingOptions;

/// The format version of the run directory. Incremented when an older reader would misread it.
pub const FORMAT: u32 = 2;
/// The oldest format version that can be read. Runs in that format cannot be resumed.
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
    /// Device, threads and memory, none of which change results.
    pub host: Value,
    /// Every setting that changes results, and no others.
    pub settings: Value,
    /// The seeds, in processing order.
    pub seeds: Vec<u64>,
    /// The number of questions under each seed.
    pub questions: usize,
    /// The digest of the inputs (weights and questions).
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
    /// The number of samples of a complete run: every question under every seed.
    pub fn sample_count(&self) -> usize {
        self.seeds.len() * self.questions
    }

    /// The sampling options of the run, for every supported format version. Empty if the settings
    /// are not those of an evaluation.
    pub fn sampling(&self) -> SamplingOptions {
        let options = match self.version {
            OLDEST_FORMAT => sampling_of_version_1(&self.settings),
            _ => self.settings["sampling"].clone(),
        };
        serde_json::from_value(options).unwrap_or_default()
    }
}

/// The sampling options in settings of version 1, which used a nested object for the sampler and
/// other field names.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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

    fn with(settings: Value) -> Manifest {
        Manifest { settings, ..Manifest::default() }
    }
}
