//! Rounds thoughts to tokens: each vector is replaced by the nearest token embedding.

use engine::LatentModel;
use tensor::ops::{self, Activation, OutputDtype};
use tensor::{DeviceError, Tensor};

/// Number of vectors compared with all embeddings at once. Their products are (vectors, vocabulary)
/// floats on the host.
const VECTORS_AT_ONCE: usize = 256;

/// Number of token embeddings read at once.
const TOKENS_AT_ONCE: usize = 8192;

/// Rounds vectors to token embeddings.
pub(super) struct Rounding<'a> {
    model: &'a LatentModel,
    /// Half the squared norm of each token's embedding.
    half_squares: Vec<f32>,
}

impl<'a> Rounding<'a> {
    /// Reads the embedding table.
    pub(super) fn new(model: &'a LatentModel) -> Result<Self, DeviceError> {
        let tokens: Vec<u32> = (0..model.decoder.config().vocab as u32).collect();
        let mut half_squares = Vec::with_capacity(tokens.len());
        for tokens in tokens.chunks(TOKENS_AT_ONCE) {
            let embeddings = model.decoder.embed(tokens)?.to_host()?;
            for r in 0..embeddings.rows() {
                let square: f32 = embeddings.row(r).iter().map(|x| x * x).sum();
                half_squares.push(square / 2.0);
            }
        }
        Ok(Self { model, half_squares })
    }

    /// The token whose embedding has the smallest Euclidean distance to each row of `vectors`
    /// (count, width), computed as |x - e|² / 2 = |x|² / 2 - (x · e - |e|² / 2). Ties select the
    /// lowest token.
    pub(super) fn nearest(&self, vectors: &Tensor) -> Result<Vec<u32>, DeviceError> {
        let decoder = &self.model.decoder;
        let device = decoder.device();
        let mut nearest = Vec::with_capacity(vectors.rows());
        for first in (0..vectors.rows()).step_by(VECTORS_AT_ONCE) {
            let rows = first..vectors.rows().min(first + VECTORS_AT_ONCE);
            let x = vectors.select(rows).to_device(device)?;
            let mut products = Tensor::default();
            let table = decoder.embedding();
            ops::linear(device, &x, table, Activation::None, OutputDtype::F32, &mut products)?;
            let products = products.to_host()?;
            for r in 0..products.rows() {
                let mut best = (0, f32::NEG_INFINITY);
                for (token, (product, half)) in
                    products.row(r).iter().zip(&self.half_squares).enumerate()
                {
                    if product - half > best.1 {
                        best = (token as u32, product - half);
                    }
                }
                nearest.push(best.0);
            }
        }
        Ok(nearest)
    }

    /// The embeddings nearest to `vectors`, in the same shape.
    pub(super) fn round(&self, vectors: &Tensor) -> Result<Tensor, DeviceError> {
        if vectors.rows() == 0 {
            return Ok(vectors.clone());
        }
        self.model.decoder.embed(&self.nearest(vectors)?)?.to_host()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use tensor::Device;

    use super::*;
    use crate::bench::{BenchShape, RandomModels};

    #[test]
    fn a_vector_near_an_embedding_is_rounded_to_it() {
        let device = Device::cpu(NonZeroUsize::new(1)).unwrap();
        let models = RandomModels { shape: BenchShape::Embedded, seed: 3, bf16: false };
        let model = models.reasoner(&device).unwrap();
        let rounding = Rounding::new(&model).unwrap();
        let tokens: Vec<u32> =
            (0..300).map(|i| i * 7 % model.decoder.config().vocab as u32).collect();
        let embeddings = model.decoder.embed(&tokens).unwrap();
        let mut moved = embeddings.clone();
        for (i, x) in moved.data_mut().iter_mut().enumerate() {
            *x += if i % 2 == 0 { 1e-3 } else { -1e-3 };
        }
        assert_eq!(rounding.nearest(&moved).unwrap(), tokens);
        assert_eq!(rounding.round(&moved).unwrap(), embeddings);
        assert_eq!(rounding.round(&Tensor::zeros(0, 256)).unwrap().rows(), 0);
    }

    #[test]
    fn the_nearest_embedding_is_the_one_by_distance() {
        let device = Device::cpu(NonZeroUsize::new(1)).unwrap();
        let models = RandomModels { shape: BenchShape::Embedded, seed: 4, bf16: false };
        let model = models.reasoner(&device).unwrap();
        let vocab = model.decoder.config().vocab as u32;
        let table = model.decoder.embed(&(0..vocab).collect::<Vec<_>>()).unwrap();
        let mut vectors = Tensor::zeros(9, table.cols());
        for (i, x) in vectors.data_mut().iter_mut().enumerate() {
            *x = 0.05 * ((i * 2654435761) % 997) as f32 / 997.0 - 0.02;
        }
        let distance = |r: usize, token: usize| -> f64 {
            let pairs = vectors.row(r).iter().zip(table.row(token));
            pairs.map(|(x, e)| f64::from(x - e).powi(2)).sum()
        };
        let nearest = Rounding::new(&model).unwrap().nearest(&vectors).unwrap();
        for (r, &token) in nearest.iter().enumerate() {
            let least = (0..table.rows()).map(|t| distance(r, t)).fold(f64::INFINITY, f64::min);
            let excess = distance(r, token as usize) - least;
            assert!(excess <= 1e-6 * least, "row {r}: {excess} beyond the nearest");
        }
    }
}
