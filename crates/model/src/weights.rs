//! What the decoder's parts are called in each architecture's checkpoints, and how they are stored.
//!
//! A part is described once, by its role; loading, learning and saving all go by that description.

use tensor::ops::{Linear, Normalization};
use tensor::{Device, Tensor};

use crate::config::{self, Architecture, Config, Mlp};
use crate::error::ModelError;
use crate::source::TensorSource;

/// A linear map as files hold it: one matrix, or several over the same input side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinearSpec {
    /// Each matrix's name, without `.weight`, and its outputs.
    pub(crate) parts: Vec<(String, usize)>,
    pub(crate) inputs: usize,
    pub(crate) layout: WeightLayout,
    pub(crate) has_bias: bool,
}

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightLayout {
    /// (outputs, inputs): `nn.Linear`, embedding tables.
    OutputMajor,
    /// (inputs, outputs): GPT-2's `Conv1D`.
    InputMajor,
}

/// A norm as files hold it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NormSpec {
    /// Without `.weight` and `.bias`.
    pub(crate) name: String,
    pub(crate) width: usize,
    pub(crate) kind: config::NormConfig,
}

impl LinearSpec {
    fn single(
        name: &str,
        (inputs, outputs): (usize, usize),
        order: WeightLayout,
        has_bias: bool,
    ) -> Self {
        Self { parts: vec![(name.to_owned(), outputs)], inputs, layout: order, has_bias }
    }

    /// An `nn.Linear`, with a bias if the source has one.
    pub(crate) fn nn_linear(
        source: &impl TensorSource,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Self {
        Self::single(
            name,
            (inputs, outputs),
            WeightLayout::OutputMajor,
            source.has(&format!("{name}.bias")),
        )
    }

    pub(crate) fn outputs(&self) -> usize {
        self.parts.iter().map(|(_, outputs)| outputs).sum()
    }

    /// The matrix as it is stored; parts are stacked.
    pub(crate) fn matrix(&self, source: &impl TensorSource) -> Result<Vec<f32>, ModelError> {
        let mut matrix = Vec::with_capacity(self.inputs * self.outputs());
        for (name, outputs) in &self.parts {
            let shape = match self.layout {
                WeightLayout::OutputMajor => [*outputs, self.inputs],
                WeightLayout::InputMajor => [self.inputs, *outputs],
            };
            matrix.extend(source.tensor(&format!("{name}.weight"), &shape)?);
        }
        Ok(matrix)
    }

    pub(crate) fn bias(&self, source: &impl TensorSource) -> Result<Option<Vec<f32>>, ModelError> {
        if !self.has_bias {
            return Ok(None);
        }
        let parts = self
            .parts
            .iter()
            .map(|(name, outputs)| source.tensor(&format!("{name}.bias"), &[*outputs]));
        Ok(Some(parts.collect::<Result<Vec<_>, _>>()?.concat()))
    }

    pub(crate) fn load(
        &self,
        device: &Device,
        source: &impl TensorSource,
    ) -> Result<Linear, ModelError> {
        let (matrix, bias) = (self.matrix(source)?, self.bias(source)?);
        let (inputs, outputs) = (self.inputs, self.outputs());
        Ok(match self.layout {
            WeightLayout::OutputMajor => {
                Linear::from_output_major(device, inputs, outputs, &matrix, bias)?
            }
            WeightLayout::InputMajor => {
                Linear::from_input_major(device, inputs, outputs, &matrix, bias)?
            }
        })
    }
}

impl NormSpec {
    pub(crate) fn weight(&self, source: &impl TensorSource) -> Result<Vec<f32>, ModelError> {
        source.tensor(&format!("{}.weight", self.name), &[self.width])
    }

    pub(crate) fn bias(&self, source: &impl TensorSource) -> Result<Option<Vec<f32>>, ModelError> {
        match self.kind {
            config::NormConfig::RmsNorm { .. } => Ok(None),
            config::NormConfig::LayerNorm { .. } => {
                source.tensor(&format!("{}.bias", self.name), &[self.width]).map(Some)
            }
        }
    }

    pub(crate) fn load(
        &self,
        device: &Device,
        source: &impl TensorSource,
    ) -> Result<Normalization, ModelError> {
        let scale = self.weight(source)?;
        Ok(match (self.kind, self.bias(source)?) {
            (config::NormConfig::LayerNorm { eps }, Some(shift)) => {
                Normalization::layer(device, eps, scale, shift)?
            }
            (config::NormConfig::LayerNorm { eps } | config::NormConfig::RmsNorm { eps }, _) => {
                Normalization::rms(device, eps, scale)?
            }
        })
    }
}

/// A decoder's parts by their role.
#[derive(Clone, Copy)]
pub(crate) struct DecoderTensors<'a>(pub(crate) &'a Config);

impl DecoderTensors<'_> {
    fn is_gpt2(&self) -> bool {
        self.0.architecture == Architecture::Gpt2
    }

    /// (vocab, width), as a map from hidden states to tokens.
    pub(crate) fn embedding(&self) -> LinearSpec {
        self.vocab_linear(if self.is_gpt2() { "wte" } else { "embed_tokens" })
    }

    /// (vocab, width), where it is not the embedding.
    pub(crate) fn lm_head(&self) -> LinearSpec {
        self.vocab_linear("lm_head")
    }

    pub(crate) fn has_lm_head(source: &impl TensorSource) -> bool {
        source.has("lm_head.weight")
    }

    fn vocab_linear(&self, name: &str) -> LinearSpec {
        LinearSpec::single(name, (self.0.width, self.0.vocab), WeightLayout::OutputMajor, false)
    }

    /// Learned positions: their name and values (context, width).
    pub(crate) fn position_embedding(
        &self,
        source: &impl TensorSource,
    ) -> Result<Option<(&'static str, Tensor)>, ModelError> {
        if self.0.positions != config::PositionEncoding::Learned {
            return Ok(None);
        }
        let (context, width, name) = (self.0.context, self.0.width, "wpe.weight");
        Ok(Some((name, Tensor::from_vec(context, width, source.tensor(name, &[context, width])?))))
    }

    pub(crate) fn final_norm(&self) -> NormSpec {
        self.norm_spec(if self.is_gpt2() { "ln_f" } else { "norm" }.to_owned())
    }

    pub(crate) fn attn_norm(&self, i: usize) -> NormSpec {
        self.norm_spec(self.block_name(i, "ln_1", "input_layernorm"))
    }

    pub(crate) fn mlp_norm(&self, i: usize) -> NormSpec {
        self.norm_spec(self.block_name(i, "ln_2", "post_attention_layernorm"))
    }

    /// Queries, keys and values side by side.
    pub(crate) fn qkv(&self, i: usize) -> LinearSpec {
        let Config { width, heads, kv_heads, head_dim, .. } = *self.0;
        if self.is_gpt2() {
            return conv1d(&format!("h.{i}.attn.c_attn"), width, 3 * width);
        }
        let name = |part| format!("layers.{i}.self_attn.{part}_proj");
        stacked(
            width,
            [
                (name("q"), heads * head_dim),
                (name("k"), kv_heads * head_dim),
                (name("v"), kv_heads * head_dim),
            ],
        )
    }

    /// The norms of each query head and each key head, if there are any.
    pub(crate) fn qk_norm(&self, i: usize) -> Option<[NormSpec; 2]> {
        let one = |part| NormSpec {
            name: format!("layers.{i}.self_attn.{part}_norm"),
            width: self.0.head_dim,
            kind: self.0.norm,
        };
        self.0.qk_norm.then(|| [one("q"), one("k")])
    }

    pub(crate) fn attn_out(&self, i: usize) -> LinearSpec {
        let (inputs, width) = (self.0.heads * self.0.head_dim, self.0.width);
        if self.is_gpt2() {
            return conv1d(&format!("h.{i}.attn.c_proj"), inputs, width);
        }
        stacked(inputs, [(format!("layers.{i}.self_attn.o_proj"), width)])
    }

    pub(crate) fn mlp_in(&self, i: usize) -> LinearSpec {
        let Config { width, ffn, mlp, .. } = *self.0;
        if self.is_gpt2() {
            return conv1d(&format!("h.{i}.mlp.c_fc"), width, ffn);
        }
        debug_assert_eq!(mlp, Mlp::SwiGlu, "only GPT-2 has an MLP of two matrices");
        stacked(
            width,
            [(format!("layers.{i}.mlp.gate_proj"), ffn), (format!("layers.{i}.mlp.up_proj"), ffn)],
        )
    }

    pub(crate) fn mlp_out(&self, i: usize) -> LinearSpec {
        let Config { width, ffn, .. } = *self.0;
        if self.is_gpt2() {
            return conv1d(&format!("h.{i}.mlp.c_proj"), ffn, width);
        }
        stacked(ffn, [(format!("layers.{i}.mlp.down_proj"), width)])
    }

    fn block_name(&self, i: usize, gpt2: &str, llama: &str) -> String {
        if self.is_gpt2() { format!("h.{i}.{gpt2}") } else { format!("layers.{i}.{llama}") }
    }

    fn norm_spec(&self, name: String) -> NormSpec {
        NormSpec { name, width: self.0.width, kind: self.0.norm }
    }
}

/// GPT-2's `Conv1D`: (in, out) with a bias.
fn conv1d(name: &str, inputs: usize, outputs: usize) -> LinearSpec {
    LinearSpec::single(name, (inputs, outputs), WeightLayout::InputMajor, true)
}

/// Several (out, in) matrices over the same input as one, without biases.
fn stacked<const N: usize>(inputs: usize, parts: [(String, usize); N]) -> LinearSpec {
    LinearSpec { parts: parts.into(), inputs, layout: WeightLayout::OutputMajor, has_bias: false }
}

/// Parts of a head beside the decoder, as PyTorch names and stores them.
pub(crate) struct ModuleLoader<'a, S> {
    pub(crate) device: &'a Device,
    pub(crate) source: &'a S,
}

impl<S: TensorSource> ModuleLoader<'_, S> {
    /// An `nn.Linear`: (out, in), with a bias if there is one.
    pub(crate) fn linear(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Linear, ModelError> {
        LinearSpec::nn_linear(self.source, name, inputs, outputs).load(self.device, self.source)
    }

    /// An `nn.LayerNorm` with weight and bias.
    pub(crate) fn layer_norm(
        &self,
        name: &str,
        width: usize,
        eps: f32,
    ) -> Result<Normalization, ModelError> {
        NormSpec { name: name.to_owned(), width, kind: config::NormConfig::LayerNorm { eps } }
            .load(self.device, self.source)
    }
}
