//! The embedded models: a small reasoner, its reward model with the reference reasoner, and their
//! tokenizer.
//!
//! They are read from the memory of the program and never written to disk. `assets/README.md`
//! describes how they were trained.

use engine::REFERENCE_DIR;
use model::{EmbeddedFiles, ModelFiles};

/// A file of `assets/`.
macro_rules! asset {
    ($($part:literal),+) => {
        include_bytes!(concat!("../../../assets/", $($part),+)).as_slice()
    };
}

/// The files of a model in a directory of `assets/`, with the shared tokenizer.
macro_rules! files {
    ($folder:literal) => {
        &[
            ("config.json", asset!($folder, "/config.json")),
            ("model.safetensors", asset!($folder, "/model.safetensors")),
            ("tokenizer.json", TOKENIZER),
            ("tokenizer_config.json", TOKENIZER_CONFIG),
        ]
    };
}

const TOKENIZER: &[u8] = asset!("tokenizer.json");
const TOKENIZER_CONFIG: &[u8] = asset!("tokenizer_config.json");

// Statics, because a constant would duplicate the bytes at every use.
static REASONER: EmbeddedFiles =
    EmbeddedFiles { name: crate::EMBEDDED, files: files!("reasoner"), subdirs: &[] };

static REWARD_MODEL: EmbeddedFiles = EmbeddedFiles {
    name: "embedded:reward",
    files: files!("reward"),
    subdirs: &[(REFERENCE_DIR, REFERENCE_REASONER)],
};

const REFERENCE_REASONER: EmbeddedFiles = EmbeddedFiles {
    name: "embedded:reward/reference",
    files: files!("reward/reference"),
    subdirs: &[],
};

/// The files of the embedded reasoner.
pub fn reasoner() -> ModelFiles {
    ModelFiles::Embedded(REASONER)
}

/// The files of the embedded reward model.
pub fn reward_model() -> ModelFiles {
    ModelFiles::Embedded(REWARD_MODEL)
}

/// The files of the embedded model with this display name.
pub fn by_name(name: &str) -> Option<ModelFiles> {
    [REASONER, REWARD_MODEL]
        .into_iter()
        .find(|packed| packed.name == name)
        .map(ModelFiles::Embedded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The models are part of the repository, so every clone downloads them.
    #[test]
    fn embedded_models_are_small() {
        let all = [REASONER, REWARD_MODEL]
            .into_iter()
            .flat_map(|packed| packed.subdirs.iter().map(|(_, inner)| *inner).chain([packed]));
        let sizes: Vec<usize> =
            all.flat_map(|packed| packed.files).map(|(_, file)| file.len()).collect();
        assert!(sizes.iter().all(|&size| size <= 16_000_000), "{sizes:?}");
        assert!(sizes.iter().sum::<usize>() <= 32_000_000, "{sizes:?}");
    }
}
