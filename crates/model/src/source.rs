//! Where weights come from: a checkpoint, or random numbers of a model's shape for benchmarks.

use rayon::prelude::*;
use tensor::rng::RngKey;

use crate::checkpoint::Checkpoint;
use crate::error::ModelError;

/// Named tensors. Names are the canonical ones of [`crate::names`].
pub trait TensorSource {
    /// Whether there is a tensor of that name.
    fn has(&self, name: &str) -> bool;

    /// The numbers of a tensor, which must have that shape.
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

/// Random weights, scaled so that activations stay in range: norms near one, matrices by the root
/// of their width.
#[derive(Clone, Copy, Debug)]
pub struct RandomWeights {
    /// Other seeds give other weights.
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

/// Normal numbers that depend on the seed and the tensor's name alone.
fn normal_values(seed: u64, name: &str, shape: &[usize], std: f32, mean: f32) -> Vec<f32> {
    let salt =
        name.bytes().fold(0xcbf2_9ce4_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let mut out = vec![mean; shape.iter().product()];
    // A draw names at most 2^18 elements; each chunk is a "position" of its own.
    out.par_chunks_mut(tensor::rng::MAX_ELEMENTS).enumerate().for_each(|(position, chunk)| {
        RngKey { seed, question: salt, trajectory: 0, position: position as u32 }
            .add_noise(std, chunk);
    });
    out
}

/// Weights to begin learning with, as GPT-2's were: small normal numbers, smaller where many are
/// added up; norms that change nothing, no biases.
#[derive(Clone, Copy, Debug)]
pub struct InitialWeights {
    /// Other seeds give other weights.
    pub seed: u64,
    /// Blocks of the decoder: each adds to the stream twice.
    pub layers: usize,
}

/// GPT-2's standard deviation.
const INITIAL_STD: f32 = 0.02;

impl TensorSource for InitialWeights {
    fn has(&self, name: &str) -> bool {
        name != "lm_head.weight" // the embedding serves as the head
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let adds = ["c_proj.weight", "o_proj.weight", "down_proj.weight"]
            .iter()
            .any(|end| name.ends_with(end));
        let (std, mean) = match shape {
            [_] => (0.0, if name.ends_with("weight") { 1.0 } else { 0.0 }),
            _ if adds => (INITIAL_STD / (2.0 * self.layers as f32).sqrt(), 0.0),
            _ => (INITIAL_STD, 0.0),
        };
        Ok(normal_values(self.seed, name, shape, std, mean))
    }
}

/// A model whose vocabulary grows: new tokens begin as copies of one that is there.
#[derive(Clone, Copy, Debug)]
pub struct ResizedEmbeddings<'a, S> {
    /// The model as it is.
    pub source: &'a S,
    /// Tokens that it has.
    pub old_vocab: usize,
    /// Tokens that it shall have.
    pub new_vocab: usize,
    /// The token that new ones are copies of.
    pub copy_from: u32,
}

impl<S: TensorSource> TensorSource for ResizedEmbeddings<'_, S> {
    fn has(&self, name: &str) -> bool {
        self.source.has(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let grows = ["wte.weight", "embed_tokens.weight", "lm_head.weight"].contains(&name)
            && shape[0] == self.new_vocab;
        if !grows {
            return self.source.tensor(name, shape);
        }
        let width = shape[1];
        let mut out = self.source.tensor(name, &[self.old_vocab, width])?;
        let like = out[self.copy_from as usize * width..][..width].to_vec();
        (self.old_vocab..self.new_vocab).for_each(|_| out.extend(&like));
        Ok(out)
    }
}
