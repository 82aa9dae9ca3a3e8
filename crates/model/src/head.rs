//! What turns a hidden state into something else: the next thought, or a reward.

use tensor::ops::{self, Activation, Finish, Linear, Norm};
use tensor::{Device, DeviceError, Tensor};

use crate::config::Config;
use crate::decoder::Decoder;
use crate::error::Error;
use crate::source::TensorSource;
use crate::weights::{nn_layer_norm, nn_linear};

/// Rows of logits made at a time where whole rows are needed.
const LOGIT_ROWS: usize = 64;

/// How a family makes the next thought from a hidden state.
#[derive(Debug)]
pub enum LatentHead {
    /// The hidden state itself (COCONUT).
    Identity,
    /// Linear, GELU, linear, layer norm (CODI).
    Projector {
        /// width -> hidden
        up: Linear,
        /// hidden -> width
        down: Linear,
        /// (width)
        norm: Norm,
    },
    /// The mean of a Gaussian head, in units of the embeddings' standard deviation (CoLaR).
    Mean {
        /// width -> hidden
        up: Linear,
        /// hidden -> hidden
        down: Linear,
        /// (hidden)
        norm: Norm,
        /// hidden -> width
        mean: Linear,
        /// What the mean is multiplied by.
        std: f32,
    },
    /// The `k` likeliest tokens' embeddings, mixed by their probabilities (Latent-SFT).
    Mixture {
        /// How many tokens.
        k: usize,
    },
    /// Layer norm, linear, SwiGLU, linear (Render-of-Thought).
    Projection {
        /// (width)
        norm: Norm,
        /// width -> hidden
        up: Linear,
        /// hidden -> 2 hidden: gate and value
        gates: Linear,
        /// hidden -> hidden
        down: Linear,
        /// hidden -> width
        out: Linear,
    },
}

/// Thoughts, and what fell off on the way.
#[derive(Debug)]
pub struct Made {
    /// (rows, width)
    pub thoughts: Tensor,
    /// The likeliest token of each row, where the head had to look at the logits anyway.
    pub likeliest: Option<Vec<u32>>,
}

impl LatentHead {
    /// CODI's projector.
    pub fn projector(config: &Config, source: &impl TensorSource, hidden: usize) -> Result<Self, Error> {
        let width = config.width;
        Ok(Self::Projector {
            up: nn_linear(source, "projector.1", width, hidden, true)?,
            down: nn_linear(source, "projector.3", hidden, width, true)?,
            norm: nn_layer_norm(source, "projector.4", width, 1e-5)?,
        })
    }

    /// CoLaR's mean head.
    pub fn mean(config: &Config, source: &impl TensorSource, hidden: usize, std: f32) -> Result<Self, Error> {
        Ok(Self::Mean {
            up: nn_linear(source, "lt_head.fc.0", config.width, hidden, true)?,
            down: nn_linear(source, "lt_head.fc.2", hidden, hidden, true)?,
            norm: nn_layer_norm(source, "lt_head.fc.3", hidden, 1e-5)?,
            mean: nn_linear(source, "lt_head.mean", hidden, config.width, true)?,
            std,
        })
    }

    /// Render-of-Thought's projection head.
    pub fn projection(config: &Config, source: &impl TensorSource, hidden: usize) -> Result<Self, Error> {
        let width = config.width;
        let mut gates = source.tensor("projection_head.2.w1.weight", &[hidden, hidden])?;
        gates.extend(source.tensor("projection_head.2.w2.weight", &[hidden, hidden])?);
        Ok(Self::Projection {
            norm: nn_layer_norm(source, "projection_head.0", width, 1e-6)?,
            up: nn_linear(source, "projection_head.1", width, hidden, true)?,
            gates: Linear::from_output_major(hidden, 2 * hidden, &gates, None),
            down: nn_linear(source, "projection_head.2.w3", hidden, hidden, false)?,
            out: nn_linear(source, "projection_head.3", hidden, width, true)?,
        })
    }

    /// The next thought of each row of hidden (rows, width).
    pub fn thoughts(&self, decoder: &Decoder, hidden: &Tensor) -> Result<Made, DeviceError> {
        let device = decoder.device();
        let thoughts = match self {
            Self::Identity => hidden.clone(),
            Self::Projector { up, down, norm } => {
                let inner = map(device, hidden, up, Activation::GeluErf)?;
                normed(device, &map(device, &inner, down, Activation::None)?, norm)?
            }
            Self::Mean { up, down, norm, mean, std } => {
                let inner = map(device, hidden, up, Activation::GeluErf)?;
                let inner = normed(device, &map(device, &inner, down, Activation::None)?, norm)?;
                let mut out = map(device, &inner, mean, Activation::None)?;
                ops::scale(device, &mut out, *std)?;
                out
            }
            Self::Mixture { k } => return mixture(decoder, hidden, *k),
            Self::Projection { norm, up, gates, down, out } => {
                let inner = map(device, &normed(device, hidden, norm)?, up, Activation::None)?;
                let mut gated = Tensor::default();
                ops::swiglu(device, &map(device, &inner, gates, Activation::None)?, &mut gated)?;
                map(device, &map(device, &gated, down, Activation::None)?, out, Activation::None)?
            }
        };
        Ok(Made { thoughts, likeliest: None })
    }

    /// Floating-point operations of one thought.
    pub fn flops(&self, decoder: &Decoder) -> f64 {
        let products = |maps: &[&Linear]| 2.0 * maps.iter().map(|l| l.inputs() * l.outputs()).sum::<usize>() as f64;
        match self {
            Self::Identity => 0.0,
            Self::Projector { up, down, .. } => products(&[up, down]),
            Self::Mean { up, down, mean, .. } => products(&[up, down, mean]),
            Self::Mixture { .. } => decoder.flops_per_logits(),
            Self::Projection { up, gates, down, out, .. } => products(&[up, gates, down, out]),
        }
    }
}

fn map(device: &Device, x: &Tensor, by: &Linear, activation: Activation) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::default();
    ops::linear(device, x, by, Finish::Write(activation), &mut out)?;
    Ok(out)
}

fn normed(device: &Device, x: &Tensor, by: &Norm) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::default();
    ops::norm(device, x, by, &mut out)?;
    Ok(out)
}

/// `sum_i softmax_i(top k logits) E[i]` for each row.
fn mixture(decoder: &Decoder, hidden: &Tensor, k: usize) -> Result<Made, DeviceError> {
    let mut likeliest = Vec::with_capacity(hidden.rows());
    let mut thoughts = Tensor::zeros(0, hidden.cols());
    for start in (0..hidden.rows()).step_by(LOGIT_ROWS) {
        let rows: Vec<usize> = (start..hidden.rows().min(start + LOGIT_ROWS)).collect();
        let logits = logits(decoder, &ops::select(decoder.device(), hidden, &rows)?)?;
        for r in 0..rows.len() {
            let best = softmax(ops::top_k(logits.row(r), k));
            let embeddings = decoder.embed(&best.iter().map(|&(token, _)| token as u32).collect::<Vec<_>>())?;
            likeliest.push(best.first().map_or(0, |&(token, _)| token as u32));
            let mut thought = vec![0.0; hidden.cols()];
            for (i, (_, weight)) in best.iter().enumerate() {
                thought.iter_mut().zip(embeddings.row(i)).for_each(|(x, e)| *x += weight * e);
            }
            thoughts.push(&thought);
        }
    }
    Ok(Made { thoughts, likeliest: Some(likeliest) })
}

fn softmax(mut scored: Vec<(usize, f32)>) -> Vec<(usize, f32)> {
    let largest = scored.first().map_or(0.0, |&(_, x)| x);
    scored.iter_mut().for_each(|(_, x)| *x = (*x - largest).exp());
    let total: f32 = scored.iter().map(|(_, x)| x).sum();
    scored.iter_mut().for_each(|(_, x)| *x /= total);
    scored
}

/// Whole rows of logits: hidden (rows, width) to (rows, vocab).
pub fn logits(decoder: &Decoder, hidden: &Tensor) -> Result<Tensor, DeviceError> {
    map(decoder.device(), hidden, decoder.head(), Activation::None)
}

/// The LatentRM's scalar head: a reward for each row.
#[derive(Debug)]
pub struct RewardHead {
    classifier: Linear, // width -> 1
}

impl RewardHead {
    /// From a LatentRM's checkpoint; the bias is optional.
    pub fn load(config: &Config, source: &impl TensorSource) -> Result<Self, Error> {
        Ok(Self { classifier: nn_linear(source, "classifier", config.width, 1, source.has("classifier.bias"))? })
    }

    /// Rewards of hidden states (rows, width).
    pub fn rewards(&self, device: &Device, hidden: &Tensor) -> Result<Vec<f32>, DeviceError> {
        Ok(map(device, hidden, &self.classifier, Activation::None)?.data().to_vec())
    }
}
