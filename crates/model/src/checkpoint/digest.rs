//! A digest of a checkpoint's weights, by which an adapter identifies its base and a reward model
//! its reasoner.
//!
//! It covers the names and shapes of all tensors, and the values of some rows of each: any training
//! changes every row. Values are hashed as f32, so that a GGUF file and the directory that it was
//! widened to have the same digest. It reads about one percent of the weights, in milliseconds.

use rayon::prelude::*;
use record::Fingerprint;

use super::{Checkpoint, StoredTensor};
use crate::error::ModelError;

/// Number of rows of each tensor that are hashed.
const SAMPLED_ROWS: usize = 8;

impl Checkpoint {
    /// The digest, 16 hexadecimal digits.
    pub fn digest(&self) -> Result<String, ModelError> {
        let weights = self.weights.iter().filter(|(name, _)| self.redundant_reason(name).is_none());
        let mut tensors: Vec<(String, &StoredTensor)> =
            weights.map(|(name, stored)| (name.clone(), stored)).collect();
        let mut scales = Fingerprint::default();
        for layer in &self.layers {
            tensors.extend(layer.factors());
            for (module, pair) in &layer.pairs {
                if let Some(a) = &pair.a {
                    scales = scales.with(module, &layer.scale(module, a)?.to_le_bytes());
                }
            }
        }
        let parts: Vec<String> =
            tensors.par_iter().map(|(name, stored)| self.tensor_digest(name, stored)).collect();
        let whole = parts.iter().fold(scales, |whole, part| whole.with("", part.as_bytes()));
        Ok(whole.finish())
    }

    fn tensor_digest(&self, name: &str, stored: &StoredTensor) -> String {
        let sizes: Vec<u8> =
            stored.shape.iter().flat_map(|&size| (size as u64).to_le_bytes()).collect();
        let bytes = self.bytes(stored);
        let rows = match stored.shape.split_last() {
            Some((_, rows)) if !rows.is_empty() => rows.iter().product::<usize>(),
            _ => 1,
        };
        let sampled = rows.min(SAMPLED_ROWS);
        let row = |i: usize| i * (rows - 1) / (sampled - 1).max(1);
        let digest = (0..sampled).fold(Fingerprint::default().with(name, &sizes), |digest, i| {
            match stored.encoding.row_to_f32(row(i), rows, bytes) {
                Some(values) => digest.with("", bytemuck::cast_slice(&values)),
                // A tensor with an unsupported encoding is hashed as raw bytes.
                None => digest.with("", bytes),
            }
        });
        digest.finish()
    }
}
