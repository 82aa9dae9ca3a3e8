//! The models that this program carries: a small reasoner, its reward model with the mind that it thinks with, and their tokenizer.
//!
//! They are read from the program's own memory, never written anywhere. `assets/README.md` says how they were made.

use engine::reasoner::MIND;
use model::{Folder, Packed};

/// What `--model`, `--reward-model` and `inspect` call them.
pub const NAME: &str = "embedded";

/// A file of `assets/`.
macro_rules! asset {
    ($($part:literal),+) => {
        include_bytes!(concat!("../../../assets/", $($part),+)).as_slice()
    };
}

/// The files of a model in a folder of `assets/`, with the tokenizer that all share.
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

// Statics, for a constant's bytes would be in the program once for every place that names it.
static REASONER: Packed = Packed { name: NAME, files: files!("reasoner"), folders: &[] };

static REWARD: Packed = Packed { name: "embedded:reward", files: files!("reward"), folders: &[(MIND, REFLECTING)] };

const REFLECTING: Packed = Packed { name: "embedded:reward/mind", files: files!("reward/mind"), folders: &[] };

/// Who thinks.
pub fn reasoner() -> Folder {
    Folder::Memory(REASONER)
}

/// Who scores its thoughts.
pub fn reward() -> Folder {
    Folder::Memory(REWARD)
}

/// The model of this name, as messages and `inspect` call it.
pub fn named(name: &str) -> Option<Folder> {
    [REASONER, REWARD].into_iter().find(|packed| packed.name == name).map(Folder::Memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever clones the repository pays for them.
    #[test]
    fn they_are_small() {
        let all =
            [REASONER, REWARD].into_iter().flat_map(|packed| packed.folders.iter().map(|(_, inner)| *inner).chain([packed]));
        let sizes: Vec<usize> = all.flat_map(|packed| packed.files).map(|(_, file)| file.len()).collect();
        assert!(sizes.iter().all(|&size| size <= 16_000_000), "{sizes:?}");
        assert!(sizes.iter().sum::<usize>() <= 32_000_000, "{sizes:?}");
    }
}
