//! What turns a hidden state into something else: the next thought, or a reward.

mod trainable;

use tensor::ops::{self, Activation, Linear, Normalization, OutputDtype};
use tensor::{Device, DeviceError, Tensor};

use crate::config::Config;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::source::TensorSource;
use crate::weights::ModuleLoader;

pub use trainable::{HeadActivations, TrainableHead, TrainableLinear};

/// How a family makes the next thought from a hidden state.
#[derive(Debug)]
pub enum LatentHead {
    /// The hidden state itself (COCONUT).
    Identity,
    /// Linear, GELU, linear, layer norm (CODI).
    Mlp {
        /// width -> hidden
        up: Linear,
        /// hidden -> width
        down: Linear,
        /// (width)
        norm: Normalization,
    },
    /// The mean of a Gaussian head, in units of the embeddings' standard deviation (CoLaR).
    GaussianMean {
        /// width -> hidden
        up: Linear,
        /// hidden -> hidden
        down: Linear,
        /// (hidden)
        norm: Normalization,
        /// hidden -> width
        mean: Linear,
        /// What the mean is multiplied by.
        std: f32,
    },
    /// The `k` likeliest tokens' embeddings, mixed by their probabilities (Latent-SFT).
    TopKMixture {
        /// How many tokens.
        k: usize,
    },
    /// Layer norm, linear, SwiGLU, linear (Render-of-Thought).
    SwiGlu {
        /// (width)
        norm: Normalization,
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
pub struct LatentOutput {
    /// (rows, width)
    pub thoughts: Tensor,
    /// The likeliest token of each row, where the head had to look at the logits anyway.
    pub argmax: Option<Vec<u32>>,
}

impl LatentHead {
    /// CODI's projector.
    pub fn mlp(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let (modules, width) = (ModuleLoader { device, source }, config.width);
        Ok(Self::Mlp {
            up: modules.linear("projector.1", width, hidden)?,
            down: modules.linear("projector.3", hidden, width)?,
            norm: modules.layer_norm("projector.4", width, 1e-5)?,
        })
    }

    /// CoLaR's mean head.
    pub fn gaussian_mean(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
        (hidden, std): (usize, f32),
    ) -> Result<Self, ModelError> {
        let modules = ModuleLoader { device, source };
        Ok(Self::GaussianMean {
            up: modules.linear("lt_head.fc.0", config.width, hidden)?,
            down: modules.linear("lt_head.fc.2", hidden, hidden)?,
            norm: modules.layer_norm("lt_head.fc.3", hidden, 1e-5)?,
            mean: modules.linear("lt_head.mean", hidden, config.width)?,
            std,
        })
    }

    /// Render-of-Thought's projection head.
    pub fn swiglu(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let (modules, width) = (ModuleLoader { device, source }, config.width);
        let mut gates = source.tensor("projection_head.2.w1.weight", &[hidden, hidden])?;
        gates.extend(source.tensor("projection_head.2.w2.weight", &[hidden, hidden])?);
        Ok(Self::SwiGlu {
            norm: modules.layer_norm("projection_head.0", width, 1e-6)?,
            up: modules.linear("projection_head.1", width, hidden)?,
            gates: Linear::from_output_major(device, hidden, 2 * hidden, &gates, None)?,
            down: modules.linear("projection_head.2.w3", hidden, hidden)?,
            out: modules.linear("projection_head.3", hidden, width)?,
        })
    }

    /// The next thought of each row of hidden (rows, width).
    pub fn forward(&self, decoder: &Decoder, hidden: &Tensor) -> Result<LatentOutput, DeviceError> {
        let device = decoder.device();
        let thoughts = match self {
            Self::Identity => hidden.clone(),
            Self::Mlp { up, down, norm } => {
                let inner = apply_linear(device, hidden, up, Activation::GeluErf)?;
                apply_norm(device, &apply_linear(device, &inner, down, Activation::None)?, norm)?
            }
            Self::GaussianMean { up, down, norm, mean, std } => {
                let inner = apply_linear(device, hidden, up, Activation::GeluErf)?;
                let inner = apply_norm(
                    device,
                    &apply_linear(device, &inner, down, Activation::None)?,
                    norm,
                )?;
                let mut out = apply_linear(device, &inner, mean, Activation::None)?;
                ops::scale(device, &mut out, *std)?;
                out
            }
            Self::TopKMixture { k } => {
                let (thoughts, likeliest) =
                    ops::top_k_mixture(device, hidden, decoder.lm_head(), decoder.embedding(), *k)?;
                return Ok(LatentOutput { thoughts, argmax: Some(likeliest) });
            }
            Self::SwiGlu { norm, up, gates, down, out } => {
                let inner =
                    apply_linear(device, &apply_norm(device, hidden, norm)?, up, Activation::None)?;
                let mut gated = Tensor::default();
                ops::swiglu(
                    device,
                    &apply_linear(device, &inner, gates, Activation::None)?,
                    &mut gated,
                )?;
                apply_linear(
                    device,
                    &apply_linear(device, &gated, down, Activation::None)?,
                    out,
                    Activation::None,
                )?
            }
        };
        Ok(LatentOutput { thoughts, argmax: None })
    }

    /// Floating-point operations of one thought.
    pub fn flops(&self, decoder: &Decoder) -> f64 {
        let products = |maps: &[&Linear]| {
            2.0 * maps.iter().map(|l| l.inputs() * l.outputs()).sum::<usize>() as f64
        };
        match self {
            Self::Identity => 0.0,
            Self::Mlp { up, down, .. } => products(&[up, down]),
            Self::GaussianMean { up, down, mean, .. } => products(&[up, down, mean]),
            Self::TopKMixture { .. } => decoder.flops_per_logits(),
            Self::SwiGlu { up, gates, down, out, .. } => products(&[up, gates, down, out]),
        }
    }
}

fn apply_linear(
    device: &Device,
    x: &Tensor,
    by: &Linear,
    activation: Activation,
) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::default();
    ops::linear(device, x, by, activation, OutputDtype::F32, &mut out)?;
    Ok(out)
}

fn apply_norm(device: &Device, x: &Tensor, by: &Normalization) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::default();
    ops::norm(device, x, by, OutputDtype::F32, &mut out)?;
    Ok(out)
}

/// Whole rows of logits: hidden (rows, width) to (rows, vocab).
pub fn logits(decoder: &Decoder, hidden: &Tensor) -> Result<Tensor, DeviceError> {
    apply_linear(decoder.device(), hidden, decoder.lm_head(), Activation::None)
}

/// What a reward is read from, thought by thought: each (rows, width).
#[derive(Clone, Copy, Debug)]
pub struct RewardInputs<'a> {
    /// The judge's hidden states one position earlier: what it expected. Before the first thought,
    /// the last prompt token's.
    pub before: &'a Tensor,
    /// Its hidden states at the thoughts' own positions.
    pub at: &'a Tensor,
    /// The thoughts themselves, as they were fed.
    pub thoughts: &'a Tensor,
}

/// A reward model's head: a reward for each thought, or for each answer.
#[derive(Debug)]
pub enum RewardHead {
    /// A linear map of the hidden state at the thought (the published LatentRM).
    Linear {
        /// width -> 1
        classifier: Linear,
    },
    /// A SwiGLU over what the judge expected, what it thinks now and the thought itself: its
    /// products can tell whether two of them say the same.
    Compare(Box<ComparisonHead>),
}

/// The maps of a head that compares.
#[derive(Debug)]
pub struct ComparisonHead {
    /// From the hidden state at the thought: width -> 2 width
    at: Linear,
    /// From the hidden state one position before: width -> 2 width
    before: Linear,
    /// From the thought: width -> 2 width
    thought: Linear,
    /// width -> 1
    out: Linear,
}

impl RewardHead {
    /// Whether a checkpoint is a reward model: the name of its head's tensor.
    pub fn detect(source: &impl TensorSource) -> Option<&'static str> {
        ["classifier.weight", "compare.out.weight"].into_iter().find(|name| source.has(name))
    }

    /// From a reward model's checkpoint; the bias of a linear head is optional, a comparing head is
    /// as wide inside as the model.
    pub fn load(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
    ) -> Result<Self, ModelError> {
        if source.has("classifier.weight") {
            let modules = ModuleLoader { device, source };
            return Ok(Self::Linear { classifier: modules.linear("classifier", config.width, 1)? });
        }
        Self::comparison(device, config, source, "compare")
    }

    /// What judges whole answers, in a checkpoint that has it. It reads the judge's hidden state at
    /// the answer's last token, and compares it with those before the answer (as
    /// [`Judged::before`]) and at the last thought (as [`Judged::thoughts`]).
    pub fn outcome(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
    ) -> Result<Option<Self>, ModelError> {
        let has = source.has("verdict.out.weight");
        has.then(|| Self::comparison(device, config, source, "verdict")).transpose()
    }

    fn comparison(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
        name: &str,
    ) -> Result<Self, ModelError> {
        let (modules, width) = (ModuleLoader { device, source }, config.width);
        let inner = |part: &str| modules.linear(&format!("{name}.{part}"), width, 2 * width);
        let out = modules.linear(&format!("{name}.out"), width, 1)?;
        Ok(Self::Compare(Box::new(ComparisonHead {
            at: inner("at")?,
            before: inner("before")?,
            thought: inner("thought")?,
            out,
        })))
    }

    /// Rewards of some thoughts.
    pub fn rewards(
        &self,
        device: &Device,
        inputs: RewardInputs<'_>,
    ) -> Result<Vec<f32>, DeviceError> {
        let rewards = match self {
            Self::Linear { classifier } => {
                apply_linear(device, inputs.at, classifier, Activation::None)?
            }
            Self::Compare(maps) => {
                let mut sum = apply_linear(device, inputs.at, &maps.at, Activation::None)?;
                ops::add(
                    device,
                    &mut sum,
                    &apply_linear(device, inputs.before, &maps.before, Activation::None)?,
                )?;
                ops::add(
                    device,
                    &mut sum,
                    &apply_linear(device, inputs.thoughts, &maps.thought, Activation::None)?,
                )?;
                let mut inner = Tensor::default();
                ops::swiglu(device, &sum, &mut inner)?;
                apply_linear(device, &inner, &maps.out, Activation::None)?
            }
        };
        Ok(rewards.to_host()?.data().to_vec())
    }
}
