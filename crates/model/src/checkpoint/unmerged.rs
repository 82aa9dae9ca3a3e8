//! A checkpoint for continued training: the factors of its topmost adapter are kept separate.

use super::{Checkpoint, StoredTensor};
use crate::error::ModelError;
use crate::source::TensorSource;

/// A checkpoint whose topmost adapter is not merged: its factors are separate tensors, for
/// continued training of the adapter. A full model is merged with the factors in its own files.
#[derive(Clone, Copy)]
pub struct UnmergedCheckpoint<'a>(pub &'a Checkpoint);

impl UnmergedCheckpoint<'_> {
    fn factor(&self, name: &str) -> Option<&StoredTensor> {
        self.0.base()?;
        self.0.layers.last()?.factor(name)
    }
}

impl TensorSource for UnmergedCheckpoint<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.has(name) || self.factor(name).is_some()
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let merged = match self.0.base() {
            Some(_) => self.0.layers.len() - 1,
            None => self.0.layers.len(),
        };
        match self.factor(name) {
            Some(factor) => self.0.read_values(factor, shape),
            None => self.0.merged_tensor(name, shape, &self.0.layers[..merged]),
        }
    }
}
