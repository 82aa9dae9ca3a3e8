//! One test per error variant: the files that cause it, and that its message names file and remedy.

#![expect(clippy::unwrap_used, reason = "a broken test should fail loudly")]

use std::fs;
use std::path::PathBuf;

use latent_tts_model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use latent_tts_model::{Checkpoint, ModelError, Tokenizer};
use safetensors::Dtype;
use safetensors::tensor::{SafeTensors, TensorView};
use serde_json::Value;

/// A tensor to be written: dtype, shape, bytes.
type RawTensor = (Dtype, Vec<usize>, Vec<u8>);

/// A tiny checkpoint to corrupt.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new(spec: CheckpointSpec) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        write_checkpoint(dir.path(), &spec).unwrap();
        Fixture(dir)
    }

    fn tiny() -> Fixture {
        Fixture::new(CheckpointSpec::default())
    }

    fn family(family: CheckpointFamily) -> Fixture {
        Fixture::new(CheckpointSpec { family, ..CheckpointSpec::default() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self) -> Result<Checkpoint, ModelError> {
        Checkpoint::open(self.0.path())
    }

    fn tokenizer(&self) -> Result<Tokenizer, ModelError> {
        Tokenizer::read(self.0.path())
    }

    /// The error of opening; its message must contain all of `words`.
    fn open_error(&self, words: &[&str]) -> ModelError {
        assert_message(self.open().err().expect("the checkpoint opens"), words)
    }

    fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) -> &Fixture {
        let path = self.path(name);
        let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
        self
    }

    fn bytes(&self, change: impl FnOnce(&mut Vec<u8>)) -> &Fixture {
        let path = self.path("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
        self
    }

    /// Rewrites model.safetensors with tensors added, replaced or (`None`) removed.
    fn tensors(&self, changes: &[(&str, Option<RawTensor>)]) -> &Fixture {
        let path = self.path("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let raw = SafeTensors::deserialize(&bytes).unwrap();
        let kept = raw.iter().filter(|(name, _)| !changes.iter().any(|(n, _)| n == name));
        let mut tensors: Vec<(&str, TensorView)> = kept.collect();
        for (name, change) in changes {
            if let Some((dtype, shape, data)) = change {
                tensors.push((name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
            }
        }
        let serialized = safetensors::serialize(tensors, None).unwrap();
        fs::write(path, serialized).unwrap();
        self
    }
}

/// Asserts that the message is one line without a full stop and contains all of `words`.
fn assert_message(error: ModelError, words: &[&str]) -> ModelError {
    let message = error.to_string();
    assert!(!message.contains('\n') && !message.ends_with('.'), "{message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    error
}

/// Asserts that an error matches a pattern.
macro_rules! assert_is {
    ($error:expr, $pattern:pat) => {
        let error = $error;
        assert!(matches!(error, $pattern), "{error:?}");
    };
}

mod config;
mod gguf;
mod tokenizer;
mod weights;
