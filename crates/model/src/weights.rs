//! What the decoder's parts are called in each architecture's checkpoints, and how they are stored.
//!
//! A part is described once, by its role; loading, learning and saving all go by that description.

use tensor::ops::{Linear, Norm};
use tensor::{Device, Tensor};

use crate::config::{self, Architecture, Config, Mlp};
use crate::error::Error;
use crate::source::TensorSource;

/// A linear map as files hold it: one matrix, or several over the same input side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredLinear {
    /// Each matrix's name, without `.weight`, and its outputs.
    pub(crate) parts: Vec<(String, usize)>,
    pub(crate) inputs: usize,
    pub(crate) order: Order,
    pub(crate) has_bias: bool,
}

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// (outputs, inputs): `nn.Linear`, embedding tables.
    OutputMajor,
    /// (inputs, outputs): GPT-2's `Conv1D`.
    InputMajor,
}

/// A norm as files hold it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredNorm {
    /// Without `.weight` and `.bias`.
    pub(crate) name: String,
    pub(crate) width: usize,
    pub(crate) kind: config::Norm,
}

impl StoredLinear {
    fn one(name: &str, (inputs, outputs): (usize, usize), order: Order, has_bias: bool) -> Self {
        Self { parts: vec![(name.to_owned(), outputs)], inputs, order, has_bias }
    }

    /// An `nn.Linear`, with a bias if the source has one.
    pub(crate) fn module(source: &impl TensorSource, name: &str, inputs: usize, outputs: usize) -> Self {
        Self::one(name, (inputs, outputs), Order::OutputMajor, source.has(&format!("{name}.bias")))
    }

    pub(crate) fn outputs(&self) -> usize {
        self.parts.iter().map(|(_, outputs)| outputs).sum()
    }

    /// The matrix as it is stored; parts are stacked.
    pub(crate) fn matrix(&self, source: &impl TensorSource) -> Result<Vec<f32>, Error> {
        let mut matrix = Vec::with_capacity(self.inputs * self.outputs());
        for (name, outputs) in &self.parts {
            let shape = match self.order {
                Order::OutputMajor => [*outputs, self.inputs],
                Order::InputMajor => [self.inputs, *outputs],
            };
            matrix.extend(source.tensor(&format!("{name}.weight"), &shape)?);
        }
        Ok(matrix)
    }

    pub(crate) fn bias(&self, source: &impl TensorSource) -> Result<Option<Vec<f32>>, Error> {
        if !self.has_bias {
            return Ok(None);
        }
        let parts = self.parts.iter().map(|(name, outputs)| source.tensor(&format!("{name}.bias"), &[*outputs]));
        Ok(Some(parts.collect::<Result<Vec<_>, _>>()?.concat()))
    }

    pub(crate) fn load(&self, device: &Device, source: &impl TensorSource) -> Result<Linear, Error> {
        let (matrix, bias, shape) = (self.matrix(source)?, self.bias(source)?, (self.inputs, self.outputs()));
        Ok(match self.order {
            Order::OutputMajor => Linear::from_output_major(device, shape, &matrix, bias)?,
            Order::InputMajor => Linear::from_input_major(device, shape, &matrix, bias)?,
        })
    }
}

impl StoredNorm {
    pub(crate) fn scale(&self, source: &impl TensorSource) -> Result<Vec<f32>, Error> {
        source.tensor(&format!("{}.weight", self.name), &[self.width])
    }

    pub(crate) fn shift(&self, source: &impl TensorSource) -> Result<Option<Vec<f32>>, Error> {
        match self.kind {
            config::Norm::RmsNorm { .. } => Ok(None),
            config::Norm::LayerNorm { .. } => source.tensor(&format!("{}.bias", self.name), &[self.width]).map(Some),
        }
    }

    pub(crate) fn load(&self, device: &Device, source: &impl TensorSource) -> Result<Norm, Error> {
        let scale = self.scale(source)?;
        Ok(match (self.kind, self.shift(source)?) {
            (config::Norm::LayerNorm { eps }, Some(shift)) => Norm::layer(device, eps, scale, shift)?,
            (config::Norm::LayerNorm { eps } | config::Norm::RmsNorm { eps }, _) => Norm::rms(device, eps, scale)?,
        })
    }
}

/// A decoder's parts by their role.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a>(pub(crate) &'a Config);

impl Parts<'_> {
    fn gpt2(&self) -> bool {
        self.0.architecture == Architecture::Gpt2
    }

    /// (vocab, width), as a map from hidden states to tokens.
    pub(crate) fn embedding(&self) -> StoredLinear {
        self.vocabulary(if self.gpt2() { "wte" } else { "embed_tokens" })
    }

    /// (vocab, width), where it is not the embedding.
    pub(crate) fn head(&self) -> StoredLinear {
        self.vocabulary("lm_head")
    }

    pub(crate) fn has_head(source: &impl TensorSource) -> bool {
        source.has("lm_head.weight")
    }

    fn vocabulary(&self, name: &str) -> StoredLinear {
        StoredLinear::one(name, (self.0.width, self.0.vocab), Order::OutputMajor, false)
    }

    /// Learned positions: their name and values (context, width).
    pub(crate) fn positions(&self, source: &impl TensorSource) -> Result<Option<(&'static str, Tensor)>, Error> {
        if self.0.positions != config::Positions::Learned {
            return Ok(None);
        }
        let (context, width, name) = (self.0.context, self.0.width, "wpe.weight");
        Ok(Some((name, Tensor::from_vec(context, width, source.tensor(name, &[context, width])?))))
    }

    pub(crate) fn final_norm(&self) -> StoredNorm {
        self.norm(if self.gpt2() { "ln_f" } else { "norm" }.to_owned())
    }

    pub(crate) fn attn_norm(&self, i: usize) -> StoredNorm {
        self.norm(self.block(i, "ln_1", "input_layernorm"))
    }

    pub(crate) fn mlp_norm(&self, i: usize) -> StoredNorm {
        self.norm(self.block(i, "ln_2", "post_attention_layernorm"))
    }

    /// Queries, keys and values side by side.
    pub(crate) fn qkv(&self, i: usize) -> StoredLinear {
        let Config { width, heads, kv_heads, head_dim, .. } = *self.0;
        if self.gpt2() {
            return conv1d(&format!("h.{i}.attn.c_attn"), width, 3 * width);
        }
        let name = |part| format!("layers.{i}.self_attn.{part}_proj");
        stacked(width, [(name("q"), heads * head_dim), (name("k"), kv_heads * head_dim), (name("v"), kv_heads * head_dim)])
    }

    /// The norms of each query head and each key head, if there are any.
    pub(crate) fn qk_norm(&self, i: usize) -> Option<[StoredNorm; 2]> {
        let one =
            |part| StoredNorm { name: format!("layers.{i}.self_attn.{part}_norm"), width: self.0.head_dim, kind: self.0.norm };
        self.0.qk_norm.then(|| [one("q"), one("k")])
    }

    pub(crate) fn attn_out(&self, i: usize) -> StoredLinear {
        let (inputs, width) = (self.0.heads * self.0.head_dim, self.0.width);
        if self.gpt2() {
            return conv1d(&format!("h.{i}.attn.c_proj"), inputs, width);
        }
        stacked(inputs, [(format!("layers.{i}.self_attn.o_proj"), width)])
    }

    pub(crate) fn mlp_in(&self, i: usize) -> StoredLinear {
        let Config { width, ffn, mlp, .. } = *self.0;
        if self.gpt2() {
            return conv1d(&format!("h.{i}.mlp.c_fc"), width, ffn);
        }
        debug_assert_eq!(mlp, Mlp::SwiGlu, "only GPT-2 has an MLP of two matrices");
        stacked(width, [(format!("layers.{i}.mlp.gate_proj"), ffn), (format!("layers.{i}.mlp.up_proj"), ffn)])
    }

    pub(crate) fn mlp_out(&self, i: usize) -> StoredLinear {
        let Config { width, ffn, .. } = *self.0;
        if self.gpt2() {
            return conv1d(&format!("h.{i}.mlp.c_proj"), ffn, width);
        }
        stacked(ffn, [(format!("layers.{i}.mlp.down_proj"), width)])
    }

    fn block(&self, i: usize, gpt2: &str, llama: &str) -> String {
        if self.gpt2() { format!("h.{i}.{gpt2}") } else { format!("layers.{i}.{llama}") }
    }

    fn norm(&self, name: String) -> StoredNorm {
        StoredNorm { name, width: self.0.width, kind: self.0.norm }
    }
}

/// GPT-2's `Conv1D`: (in, out) with a bias.
fn conv1d(name: &str, inputs: usize, outputs: usize) -> StoredLinear {
    StoredLinear::one(name, (inputs, outputs), Order::InputMajor, true)
}

/// Several (out, in) matrices over the same input as one, without biases.
fn stacked<const N: usize>(inputs: usize, parts: [(String, usize); N]) -> StoredLinear {
    StoredLinear { parts: parts.into(), inputs, order: Order::OutputMajor, has_bias: false }
}

/// Parts of a head beside the decoder, as PyTorch names and stores them.
pub(crate) struct Modules<'a, S> {
    pub(crate) device: &'a Device,
    pub(crate) source: &'a S,
}

impl<S: TensorSource> Modules<'_, S> {
    /// An `nn.Linear`: (out, in), with a bias if there is one.
    pub(crate) fn linear(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, Error> {
        StoredLinear::module(self.source, name, inputs, outputs).load(self.device, self.source)
    }

    /// An `nn.LayerNorm` with weight and bias.
    pub(crate) fn layer_norm(&self, name: &str, width: usize, eps: f32) -> Result<Norm, Error> {
        StoredNorm { name: name.to_owned(), width, kind: config::Norm::LayerNorm { eps } }.load(self.device, self.source)
    }
}
