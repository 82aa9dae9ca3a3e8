//! Where weights come from: a checkpoint, or random numbers of a model's shape for benchmarks.

use rayon::prelude::*;
use tensor::rng::Draw;

use crate::checkpoint::Checkpoint;
use crate::error::Error;

/// Named tensors. Names are the canonical ones of [`crate::names`].
pub trait TensorSource {
    /// Whether there is a tensor of that name.
    fn has(&self, name: &str) -> bool;

    /// The numbers of a tensor, which must have that shape.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error>;
}

impl TensorSource for Checkpoint {
    fn has(&self, name: &str) -> bool {
        Self::has(self, name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        Self::tensor(self, name, shape)
    }
}

/// Random weights, scaled so that activations stay in range: norms near one, matrices by the root of their width.
#[derive(Clone, Copy, Debug)]
pub struct RandomWeights {
    /// Other seeds give other weights.
    pub seed: u64,
}

impl TensorSource for RandomWeights {
    fn has(&self, _: &str) -> bool {
        true
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let salt = name.bytes().fold(0xcbf2_9ce4_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        let (std, mean) = match shape {
            [_] => (0.02, if name.ends_with("weight") { 1.0 } else { 0.0 }),
            _ => (0.5 / (shape[shape.len() - 1] as f32).sqrt(), 0.0),
        };
        let mut out = vec![mean; shape.iter().product()];
        // A draw names at most 2^18 elements; each chunk is a "position" of its own.
        out.par_chunks_mut(tensor::rng::MAX_ELEMENTS).enumerate().for_each(|(position, chunk)| {
            Draw { seed: self.seed, question: salt, trajectory: 0, position: position as u32 }.add_noise(std, chunk);
        });
        Ok(out)
    }
}
