//! Heads on the hidden state: latent heads, which compute the next thought, and reward heads.

mod gate;
mod trainable;

use tensor::ops::{
    self, Activation, Linear, MixtureDraw, MixtureRule, MixtureTables, Normalization, OutputDtype,
    PerturbedRows, TopKMixture,
};
use tensor::{Device, DeviceError, Tensor};

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::source::TensorSource;
use crate::weights::{LinearSpec, ModuleLoader, stacked};

pub use gate::StopGate;
pub use trainable::{
    GaussianOutput, HeadActivations, MlpShape, SwiGluActivations, TrainableGaussianHead,
    TrainableHead, TrainableLinear, TrainableMlp, TrainableSwiGlu,
};

/// Computes the next thought from a hidden state.
#[derive(Debug)]
pub enum LatentHead {
    /// The hidden state itself (COCONUT).
    Identity,
    /// Linear, GELU, linear, LayerNorm (CODI).
    Mlp {
        /// width -> hidden
        up: Linear,
        /// hidden -> width
        down: Linear,
        /// (width)
        norm: Normalization,
    },
    /// Linear, GELU, linear, LayerNorm, linear: the mean of a Gaussian, in units of the embeddings'
    /// standard deviation (CoLaR).
    GaussianMean {
        /// width -> hidden
        up: Linear,
        /// hidden -> hidden
        down: Linear,
        /// (hidden)
        norm: Normalization,
        /// hidden -> width
        mean: Linear,
        /// The embeddings' standard deviation, the factor of the mean.
        std: f32,
    },
    /// The embeddings of the `k` most probable tokens, weighted by their probabilities
    /// (Latent-SFT).
    TopKMixture {
        /// Number of tokens.
        k: usize,
    },
    /// The same for a distribution with temperature and top-p (Soft Thinking).
    SoftMixture {
        /// Number of tokens.
        k: usize,
        /// Divides the logits.
        temperature: f32,
        /// The smallest set of these tokens with at least this share of their probability is kept.
        top_p: f32,
    },
    /// Linear, LayerNorm (adaptive latent reasoning's linear filter).
    Affine {
        /// width -> width
        map: Linear,
        /// (width)
        norm: Normalization,
    },
    /// LayerNorm, linear, SwiGLU, linear (Render-of-Thought).
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

/// The output of [`LatentHead::forward`].
#[derive(Debug)]
pub struct LatentOutput {
    /// The next thought of each row: (rows, width)
    pub thoughts: Tensor,
    /// The argmax token of each row, from heads that compute logits.
    pub argmax: Option<Vec<u32>>,
    /// The entropy of each row's next token in nats, if a mixture rule was passed.
    pub entropies: Option<Vec<f32>>,
}

/// Module names of a [`LatentHead::Mlp`] in a checkpoint, without `.weight` and `.bias`.
#[derive(Clone, Copy, Debug)]
pub struct MlpNames {
    /// `nn.Linear`, width -> hidden.
    pub up: &'static str,
    /// `nn.Linear`, hidden -> width.
    pub down: &'static str,
    /// `nn.LayerNorm` over the width, eps 1e-5.
    pub norm: &'static str,
}

/// Module names of a [`LatentHead::GaussianMean`] in a checkpoint, without `.weight` and `.bias`.
#[derive(Clone, Copy, Debug)]
pub struct GaussianMeanNames {
    /// `nn.Linear`, width -> hidden.
    pub up: &'static str,
    /// `nn.Linear`, hidden -> hidden.
    pub down: &'static str,
    /// `nn.LayerNorm` over the hidden size, eps 1e-5.
    pub norm: &'static str,
    /// `nn.Linear`, hidden -> width: the mean.
    pub mean: &'static str,
    /// `nn.Linear`, hidden -> width: the logarithm of the standard deviation, used only in
    /// training.
    pub log_std: &'static str,
}

/// Module names of a [`LatentHead::SwiGlu`] in a checkpoint, without `.weight` and `.bias`.
#[derive(Clone, Copy, Debug)]
pub struct SwiGluNames {
    /// `nn.LayerNorm` over the width, eps 1e-6.
    pub norm: &'static str,
    /// `nn.Linear`, width -> hidden.
    pub up: &'static str,
    /// `nn.Linear` without bias, hidden -> hidden: the input of SiLU.
    pub gate: &'static str,
    /// `nn.Linear` without bias, hidden -> hidden: the factor of SiLU's output.
    pub value: &'static str,
    /// `nn.Linear`, hidden -> hidden.
    pub down: &'static str,
    /// `nn.Linear`, hidden -> width.
    pub out: &'static str,
}

impl SwiGluNames {
    /// Gate and value as one linear layer, hidden -> 2 hidden.
    fn gates(&self, hidden: usize) -> LinearSpec {
        stacked(hidden, [self.gate, self.value].map(|name| (name.to_owned(), hidden)))
    }
}

impl LatentHead {
    /// Loads a [`LatentHead::Mlp`]; its hidden size is the number of rows of `names.up`.
    pub fn mlp(
        device: &Device,
        checkpoint: &Checkpoint,
        names: &MlpNames,
    ) -> Result<Self, ModelError> {
        let modules = ModuleLoader::new(device, checkpoint);
        let width = checkpoint.config().width;
        let hidden = hidden_size(checkpoint, names.up);
        Ok(Self::Mlp {
            up: modules.linear(names.up, width, hidden)?,
            down: modules.linear(names.down, hidden, width)?,
            norm: modules.layer_norm(names.norm, width, 1e-5)?,
        })
    }

    /// Loads a [`LatentHead::GaussianMean`]; its hidden size is the number of rows of `names.up`.
    /// `std` is the factor of the mean.
    pub fn gaussian_mean(
        device: &Device,
        checkpoint: &Checkpoint,
        names: &GaussianMeanNames,
        std: f32,
    ) -> Result<Self, ModelError> {
        let modules = ModuleLoader::new(device, checkpoint);
        let width = checkpoint.config().width;
        let hidden = hidden_size(checkpoint, names.up);
        Ok(Self::GaussianMean {
            up: modules.linear(names.up, width, hidden)?,
            down: modules.linear(names.down, hidden, hidden)?,
            norm: modules.layer_norm(names.norm, hidden, 1e-5)?,
            mean: modules.linear(names.mean, hidden, width)?,
            std,
        })
    }

    /// Loads a [`LatentHead::SwiGlu`]; its hidden size is the number of rows of `names.up`.
    pub fn swiglu(
        device: &Device,
        checkpoint: &Checkpoint,
        names: &SwiGluNames,
    ) -> Result<Self, ModelError> {
        let modules = ModuleLoader::new(device, checkpoint);
        let width = checkpoint.config().width;
        let hidden = hidden_size(checkpoint, names.up);
        Ok(Self::SwiGlu {
            norm: modules.layer_norm(names.norm, width, 1e-6)?,
            up: modules.linear(names.up, width, hidden)?,
            gates: names.gates(hidden).load(device, checkpoint)?,
            down: modules.linear(names.down, hidden, hidden)?,
            out: modules.linear(names.out, hidden, width)?,
        })
    }

    /// Loads a [`LatentHead::Affine`].
    pub fn affine(
        device: &Device,
        checkpoint: &Checkpoint,
        [map, norm]: [&'static str; 2],
    ) -> Result<Self, ModelError> {
        let modules = ModuleLoader::new(device, checkpoint);
        let width = checkpoint.config().width;
        Ok(Self::Affine {
            map: modules.linear(map, width, width)?,
            norm: modules.layer_norm(norm, width, 1e-5)?,
        })
    }

    /// Whether thoughts are mixtures of token embeddings.
    pub fn is_mixture(&self) -> bool {
        self.mixture_rule().is_some()
    }

    /// The rule of mixtures without randomness; `None` for other heads.
    pub fn mixture_rule(&self) -> Option<MixtureRule> {
        let rule = |tokens, temperature, top_p| MixtureRule {
            tokens,
            temperature,
            top_p,
            draw: MixtureDraw::None,
        };
        match *self {
            Self::TopKMixture { k } => Some(rule(k, 1.0, 1.0)),
            Self::SoftMixture { k, temperature, top_p } => Some(rule(k, temperature, top_p)),
            _ => None,
        }
    }

    /// Mixtures with a separate rule for each row of `hidden` (rows, width).
    pub fn forward_mixed(
        &self,
        decoder: &Decoder,
        hidden: &Tensor,
        rules: &[MixtureRule],
    ) -> Result<LatentOutput, DeviceError> {
        let tables = MixtureTables { head: decoder.lm_head(), table: decoder.embedding() };
        let mixed = ops::mix_tokens(decoder.device(), hidden, tables, rules)?;
        Ok(LatentOutput {
            thoughts: mixed.mixtures,
            argmax: Some(mixed.argmax),
            entropies: Some(mixed.entropies),
        })
    }

    /// The next thought of each row of `hidden` (rows, width).
    pub fn forward(&self, decoder: &Decoder, hidden: &Tensor) -> Result<LatentOutput, DeviceError> {
        self.forward_perturbed(decoder, hidden, None)
    }

    /// The same with Gumbel noise on the logits of mixtures, for the rows that `noise` (rows)
    /// perturbs; other heads ignore it.
    pub fn forward_perturbed(
        &self,
        decoder: &Decoder,
        hidden: &Tensor,
        noise: Option<&PerturbedRows>,
    ) -> Result<LatentOutput, DeviceError> {
        let device = decoder.device();
        let thoughts = match self {
            Self::Identity => hidden.clone(),
            Self::Mlp { up, down, norm } => {
                let inner = apply_linear(device, hidden, up, Activation::GeluErf)?;
                apply_norm(device, &apply_linear(device, &inner, down, Activation::None)?, norm)?
            }
            Self::GaussianMean { up, down, norm, mean, std } => {
                let inner = apply_linear(device, hidden, up, Activation::GeluErf)?;
                let inner = apply_linear(device, &inner, down, Activation::None)?;
                let inner = apply_norm(device, &inner, norm)?;
                let mut out = apply_linear(device, &inner, mean, Activation::None)?;
                ops::scale(device, &mut out, *std)?;
                out
            }
            Self::TopKMixture { k } => {
                let head = decoder.lm_head();
                let table = decoder.embedding();
                let mixture = TopKMixture { head, table, k: *k, noise };
                let (thoughts, argmax) = ops::top_k_mixture(device, hidden, mixture)?;
                return Ok(LatentOutput { thoughts, argmax: Some(argmax), entropies: None });
            }
            Self::SoftMixture { .. } => {
                let rules = vec![self.mixture_rule(); hidden.rows()];
                let rules: Vec<MixtureRule> = rules.into_iter().flatten().collect();
                return self.forward_mixed(decoder, hidden, &rules);
            }
            Self::Affine { map, norm } => {
                apply_norm(device, &apply_linear(device, hidden, map, Activation::None)?, norm)?
            }
            Self::SwiGlu { norm, up, gates, down, out } => {
                let inner = apply_norm(device, hidden, norm)?;
                let inner = apply_linear(device, &inner, up, Activation::None)?;
                let gates = apply_linear(device, &inner, gates, Activation::None)?;
                let mut gated = Tensor::default();
                ops::swiglu(device, &gates, &mut gated)?;
                let inner = apply_linear(device, &gated, down, Activation::None)?;
                apply_linear(device, &inner, out, Activation::None)?
            }
        };
        Ok(LatentOutput { thoughts, argmax: None, entropies: None })
    }

    /// Floating-point operations per thought.
    pub fn flops(&self, decoder: &Decoder) -> f64 {
        let products = |linears: &[&Linear]| {
            2.0 * linears.iter().map(|l| l.inputs() * l.outputs()).sum::<usize>() as f64
        };
        match self {
            Self::Identity => 0.0,
            Self::Mlp { up, down, .. } => products(&[up, down]),
            Self::GaussianMean { up, down, mean, .. } => products(&[up, down, mean]),
            Self::TopKMixture { .. } | Self::SoftMixture { .. } => decoder.flops_per_logits(),
            Self::Affine { map, .. } => products(&[map]),
            Self::SwiGlu { up, gates, down, out, .. } => products(&[up, gates, down, out]),
        }
    }
}

/// The outputs of a head's first linear layer: the rows of its weight. The default for a missing
/// tensor has no effect, because loading that tensor fails.
fn hidden_size(checkpoint: &Checkpoint, up: &str) -> usize {
    let rows = checkpoint.shape(&format!("{up}.weight")).and_then(|shape| shape.first());
    rows.copied().unwrap_or(checkpoint.config().width)
}

fn apply_linear(
    device: &Device,
    x: &Tensor,
    linear: &Linear,
    activation: Activation,
) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::default();
    ops::linear(device, x, linear, activation, OutputDtype::F32, &mut out)?;
    Ok(out)
}

fn apply_norm(device: &Device, x: &Tensor, norm: &Normalization) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::default();
    ops::norm(device, x, norm, OutputDtype::F32, &mut out)?;
    Ok(out)
}

/// Logits (rows, vocab) of hidden states (rows, width), in float32.
pub fn logits(decoder: &Decoder, hidden: &Tensor) -> Result<Tensor, DeviceError> {
    apply_linear(decoder.device(), hidden, decoder.lm_head(), Activation::None)
}

/// The inputs of a reward head, one row per thought: (rows, width) each.
#[derive(Clone, Copy, Debug)]
pub struct RewardInputs<'a> {
    /// The reward model's hidden state one position before the thought: its prediction. For the
    /// first thought that is the last prompt token's.
    pub before: &'a Tensor,
    /// The reward model's hidden state at the thought's position.
    pub at: &'a Tensor,
    /// The thought itself: the input vector at its position.
    pub thoughts: &'a Tensor,
}

/// The scalar head of a reward model: process rewards (one per thought) or outcome rewards (one per
/// answer).
#[derive(Debug)]
pub enum RewardHead {
    /// A linear layer on the hidden state at the thought (the published LatentRM).
    Linear {
        /// width -> 1
        classifier: Linear,
    },
    /// A SwiGLU over all three [`RewardInputs`]: its products can compare the thought with the
    /// reward model's prediction and hidden state.
    Compare(Box<ComparisonHead>),
}

/// The weights of [`RewardHead::Compare`].
#[derive(Debug)]
pub struct ComparisonHead {
    at: Linear,      // width -> 2 width, of the hidden state at the thought
    before: Linear,  // width -> 2 width, of the hidden state one position before
    thought: Linear, // width -> 2 width, of the thought
    out: Linear,     // width -> 1
}

impl RewardHead {
    /// The head's tensor, if the source is a reward model.
    pub fn detect(source: &impl TensorSource) -> Option<&'static str> {
        ["classifier.weight", "compare.out.weight"].into_iter().find(|name| source.has(name))
    }

    /// Loads the head for process rewards. The bias of a linear head is optional; the inner size of
    /// a comparison head is the model's width.
    pub fn load(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
    ) -> Result<Self, ModelError> {
        if source.has("classifier.weight") {
            let modules = ModuleLoader::new(device, source);
            return Ok(Self::Linear { classifier: modules.linear("classifier", config.width, 1)? });
        }
        Self::comparison(device, config, source, "compare")
    }

    /// Loads the head for outcome rewards, if the source has one. It takes hidden states of the
    /// reward model: at the answer's last token (as [`RewardInputs::at`]), before the answer (as
    /// [`RewardInputs::before`]) and at the last thought (as [`RewardInputs::thoughts`]).
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
        let modules = ModuleLoader::new(device, source);
        let width = config.width;
        let inner = |part: &str| modules.linear(&format!("{name}.{part}"), width, 2 * width);
        let out = modules.linear(&format!("{name}.out"), width, 1)?;
        Ok(Self::Compare(Box::new(ComparisonHead {
            at: inner("at")?,
            before: inner("before")?,
            thought: inner("thought")?,
            out,
        })))
    }

    /// The reward of each row.
    pub fn rewards(
        &self,
        device: &Device,
        inputs: RewardInputs<'_>,
    ) -> Result<Vec<f32>, DeviceError> {
        let rewards = match self {
            Self::Linear { classifier } => {
                apply_linear(device, inputs.at, classifier, Activation::None)?
            }
            Self::Compare(head) => {
                let mut sum = apply_linear(device, inputs.at, &head.at, Activation::None)?;
                let before = apply_linear(device, inputs.before, &head.before, Activation::None)?;
                ops::add(device, &mut sum, &before)?;
                let thought =
                    apply_linear(device, inputs.thoughts, &head.thought, Activation::None)?;
                ops::add(device, &mut sum, &thought)?;
                let mut inner = Tensor::default();
                ops::swiglu(device, &sum, &mut inner)?;
                apply_linear(device, &inner, &head.out, Activation::None)?
            }
        };
        Ok(rewards.to_host()?.data().to_vec())
    }
}
