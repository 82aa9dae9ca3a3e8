//! Sources of weights: a checkpoint, random weights for benchmarks, initial weights for training.

use rayon::prelude::*;
use tensor::rng::RngKey;

use crate::checkpoint::Checkpoint;
use crate::error::ModelError;

/// Tensors by canonical name (see [`crate::names`]); several threads may read at once.
pub trait TensorSource: Sync {
    /// Whether the tensor exists.
    fn has(&self, name: &str) -> bool;

    /// The values of a tensor, row-major. Another shape than `shape` is an error.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError>;
}

impl TensorSource for Checkpoint {
    fn has(&self, name: &str) -> bool {
        Self::has(self, name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        Self::tensor(self, name, shape)
    }
}

/// Random weights for benchmarks, scaled so that activations stay in range: norms near 1, matrices
/// by 1 / sqrt(columns).
#[derive(Clone, Copy, Debug)]
pub struct RandomWeights {
    /// Seed of the random weights.
    pub seed: u64,
}

impl TensorSource for RandomWeights {
    fn has(&self, _: &str) -> bool {
        true
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let (std, mean) = match shape {
            [_] => (0.02, if name.ends_with("weight") { 1.0 } else { 0.0 }),
            _ => (0.5 / (shape[shape.len() - 1] as f32).sqrt(), 0.0),
        };
        Ok(normal_values(self.seed, name, shape, std, mean))
    }
}

/// Normal values that depend on the seed and the tensor's name only.
fn normal_values(seed: u64, name: &str, shape: &[usize], std: f32, mean: f32) -> Vec<f32> {
    let salt = name_salt(name);
    let mut out = vec![mean; shape.iter().product()];
    // One RNG key covers at most 2^18 elements; the chunk index is used as the position.
    out.par_chunks_mut(tensor::rng::MAX_ELEMENTS).enumerate().for_each(|(position, chunk)| {
        RngKey { seed, question: salt, trajectory: 0, position: position as u32 }
            .add_noise(std, chunk);
    });
    out
}

/// A number for a tensor's name, so that tensors of one seed differ.
pub(crate) fn name_salt(name: &str) -> u32 {
    name.bytes().fold(0xcbf2_9ce4, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

/// GPT-2's initialization: normal weights with standard deviation 0.02, divided by sqrt(2 layers)
/// in projections onto the residual stream; norm weights 1, biases 0.
#[derive(Clone, Copy, Debug)]
pub struct InitialWeights {
    /// Seed of the random weights.
    pub seed: u64,
    /// Blocks of the decoder; each adds to the residual stream twice.
    pub layers: usize,
}

/// GPT-2's standard deviation.
const INITIAL_STD: f32 = 0.02;

impl TensorSource for InitialWeights {
    fn has(&self, name: &str) -> bool {
        name != "lm_head.weight" // tied to the embedding
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let onto_residual = ["c_proj.weight", "o_proj.weight", "down_proj.weight"]
            .iter()
            .any(|end| name.ends_with(end));
        let (std, mean) = match shape {
            [_] => (0.0, if name.ends_with("weight") { 1.0 } else { 0.0 }),
            _ if onto_residual => (INITIAL_STD / (2.0 * self.layers as f32).sqrt(), 0.0),
            _ => (INITIAL_STD, 0.0),
        };
        Ok(normal_values(self.seed, name, shape, std, mean))
    }
}

/// A source with an enlarged vocabulary, like `resize_token_embeddings`: the new rows of embedding
/// and LM head are copies of an existing row.
#[derive(Clone, Copy, Debug)]
pub struct ResizedEmbeddings<'a, S> {
    /// The original weights.
    pub source: &'a S,
    /// Rows of the original embedding.
    pub old_vocab: usize,
    /// Rows after resizing.
    pub new_vocab: usize,
    /// The token whose row is copied.
    pub copy_from: u32,
}

impl<S: TensorSource> TensorSource for ResizedEmbeddings<'_, S> {
    fn has(&self, name: &str) -> bool {
        self.source.has(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let resized = ["wte.weight", "embed_tokens.weight", "lm_head.weight"].contains(&name)
            && shape[0] == self.new_vocab;
        if !resized {
            return self.source.tensor(name, shape);
        }
        let width = shape[1];
        let mut out = self.source.tensor(name, &[self.old_vocab, width])?;
        let row = out[self.copy_from as usize * width..][..width].to_vec();
        (self.old_vocab..self.new_vocab).for_each(|_| out.extend(&row));
        Ok(out)
    }
}
