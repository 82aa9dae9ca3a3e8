//! Models of published shapes with random weights, to measure speed without downloads.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use data::answer::AnswerRule;
use engine::{DropoutSites, Family, LatentLength, LatentModel, Method, RewardModel};
use model::config::{
    Architecture, GenerationDefaults, LatentConfig, Llama3Scaling, Mlp, NormConfig,
    PositionEncoding,
};
use model::{
    Config, Decoder, LatentHead, LmHead, ModelError, RandomWeights, RewardHead, TensorSource,
};
use tensor::Device;

use crate::Error;

/// The architecture and sizes of the benchmarked model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum BenchShape {
    /// GPT-2, 124M
    Gpt2,
    /// Llama 3.2, 1B
    #[cfg_attr(feature = "clap", value(name = "llama-1b"))]
    Llama1b,
    /// The text model of Qwen3-VL, 2B
    #[cfg_attr(feature = "clap", value(name = "qwen3-2b"))]
    Qwen32b,
    /// SmolLM2, 135M
    Smollm2,
    /// The embedded reasoner, 5M
    Embedded,
}

/// Models with random weights: a reward model, and a reasoner whose thoughts are unprojected hidden
/// states and which has no EOS token, so that every answer has full length.
#[derive(Debug, Clone, Copy)]
pub struct RandomModels {
    /// The shape of both models.
    pub shape: BenchShape,
    /// The seed of the weights.
    pub seed: u64,
    /// Whether weights are rounded to bf16.
    pub bf16: bool,
}

impl RandomModels {
    /// A reasoner with random weights.
    pub fn reasoner(&self, device: &Device) -> Result<LatentModel, Error> {
        let config = self.shape.config()?;
        let weights = self.weights(self.seed);
        let decoder = device.run(|| Decoder::load(device, &config, &weights, LmHead::With))?;
        let is_gpt2 = config.architecture == Architecture::Gpt2;
        let method = Method {
            family: Family::COCONUT,
            prompt_prefix: String::new(),
            prompt_suffix: String::new(),
            begin_latent: Vec::new(),
            end_latent: vec![1],
            latent_stops: Vec::new(),
            eos: Vec::new(),
            length: LatentLength::Exactly(NonZeroUsize::MIN),
            max_new_tokens: 1,
            looped: None,
            answer_rule: AnswerRule::Hash,
            p: 0.0,
            sigma: 0.0,
            cold_stop: None,
            soft_thoughts: false,
            sites: if is_gpt2 { DropoutSites::BOTH } else { DropoutSites::MLP },
        };
        Ok(LatentModel {
            decoder: Arc::new(decoder),
            method,
            head: Arc::new(LatentHead::Identity),
            marker_embeddings: BTreeMap::new(),
            gate: None,
        })
    }

    /// A reward model with random weights.
    pub fn reward_model(&self, device: &Device) -> Result<RewardModel, Error> {
        let config = self.shape.config()?;
        let weights = self.weights(self.seed + 1);
        Ok(RewardModel {
            head: RewardHead::load(device, &config, &weights)?,
            decoder: device.run(|| Decoder::load(device, &config, &weights, LmHead::Without))?,
            outcome_head: None,
            reference: None,
            warnings: Vec::new(),
        })
    }

    fn weights(&self, seed: u64) -> RoundedWeights {
        RoundedWeights { random: RandomWeights { seed }, bf16: self.bf16 }
    }
}

/// Random weights, rounded to the dtype of a checkpoint.
struct RoundedWeights {
    random: RandomWeights,
    bf16: bool,
}

impl TensorSource for RoundedWeights {
    fn has(&self, name: &str) -> bool {
        self.random.has(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let mut values = self.random.tensor(name, shape)?;
        if self.bf16 {
            values.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xffff_0000));
        }
        Ok(values)
    }
}

impl BenchShape {
    /// The configuration of the published model, or of the embedded reasoner.
    pub fn config(self) -> Result<Config, Error> {
        Ok(match self {
            Self::Embedded => Config::read(crate::model_files(crate::EMBEDDED)?)?,
            Self::Gpt2 => Config {
                architecture: Architecture::Gpt2,
                class_name: None,
                layers: 12,
                width: 768,
                heads: 12,
                kv_heads: 12,
                head_dim: 64,
                ffn: 3072,
                vocab: 50_257,
                context: 1024,
                norm: NormConfig::LayerNorm { eps: 1e-5 },
                positions: PositionEncoding::Learned,
                mlp: Mlp::GeluTanh,
                qk_norm: false,
                qkv_bias: false,
                tied: true,
                eos: Vec::new(),
                latent: LatentConfig::default(),
                defaults: GenerationDefaults::default(),
                reference: None,
            },
            Self::Smollm2 => Config {
                layers: 30,
                width: 576,
                heads: 9,
                kv_heads: 3,
                ffn: 1536,
                vocab: 49_152,
                context: 8192,
                positions: PositionEncoding::Rope { theta: 100_000.0, scaling: None },
                ..Self::Llama1b.config()?
            },
            Self::Llama1b => Config {
                architecture: Architecture::Llama,
                layers: 16,
                width: 2048,
                heads: 32,
                kv_heads: 8,
                ffn: 8192,
                vocab: 128_256,
                context: 131_072,
                norm: NormConfig::RmsNorm { eps: 1e-5 },
                positions: PositionEncoding::Rope {
                    theta: 500_000.0,
                    scaling: Some(Llama3Scaling {
                        factor: 32.0,
                        low: 1.0,
                        high: 4.0,
                        original_context: 8192,
                    }),
                },
                mlp: Mlp::SwiGlu,
                ..Self::Gpt2.config()?
            },
            Self::Qwen32b => Config {
                architecture: Architecture::Qwen3,
                layers: 28,
                heads: 16,
                head_dim: 128,
                ffn: 6144,
                vocab: 151_936,
                norm: NormConfig::RmsNorm { eps: 1e-6 },
                positions: PositionEncoding::Rope { theta: 5_000_000.0, scaling: None },
                qk_norm: true,
                qkv_bias: false,
                ..Self::Llama1b.config()?
            },
        })
    }
}
