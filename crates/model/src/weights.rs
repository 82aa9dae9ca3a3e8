//! Tensor names, shapes and layouts of the decoder's modules in each architecture's checkpoints.
//!
//! A module is specified once ([`LinearSpec`], [`NormSpec`]); inference, training and saving all
//! use that specification.

use tensor::ops::{Linear, Normalization};
use tensor::{Device, Tensor};

use crate::config::{Architecture, Config, Mlp, NormConfig, PositionEncoding};
use crate::error::ModelError;
use crate::source::TensorSource;

/// A linear layer in a checkpoint: one matrix, or several over the same input whose outputs are
/// concatenated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinearSpec {
    /// Module name, without `.weight`, and outputs of each matrix.
    pub(crate) parts: Vec<(String, usize)>,
    pub(crate) inputs: usize,
    pub(crate) layout: WeightLayout,
    pub(crate) has_bias: bool,
}

/// The layout of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightLayout {
    /// (outputs, inputs): `nn.Linear`, `nn.Embedding`.
    OutputMajor,
    /// (inputs, outputs): GPT-2's `Conv1D`.
    InputMajor,
}

impl WeightLayout {
    /// The layout of a module's weight: GPT-2's projections are `Conv1D`.
    pub(crate) fn of(architecture: Architecture, module: &str) -> Self {
        let conv = [".c_attn", ".c_proj", ".c_fc"];
        if architecture == Architecture::Gpt2 && conv.iter().any(|name| module.ends_with(name)) {
            Self::InputMajor
        } else {
            Self::OutputMajor
        }
    }

    /// Inputs and outputs of a stored matrix.
    pub(crate) fn inputs_and_outputs(self, rows: usize, columns: usize) -> (usize, usize) {
        match self {
            Self::OutputMajor => (columns, rows),
            Self::InputMajor => (rows, columns),
        }
    }
}

/// A normalization layer in a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NormSpec {
    /// Module name, without `.weight` and `.bias`.
    pub(crate) name: String,
    pub(crate) width: usize,
    pub(crate) kind: NormConfig,
}

impl LinearSpec {
    fn single(
        name: &str,
        inputs: usize,
        outputs: usize,
        layout: WeightLayout,
        has_bias: bool,
    ) -> Self {
        Self { parts: vec![(name.to_owned(), outputs)], inputs, layout, has_bias }
    }

    /// An `nn.Linear`, with a bias if the source has one.
    pub(crate) fn nn_linear(
        source: &impl TensorSource,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Self {
        let has_bias = source.has(&format!("{name}.bias"));
        Self::single(name, inputs, outputs, WeightLayout::OutputMajor, has_bias)
    }

    pub(crate) fn outputs(&self) -> usize {
        self.parts.iter().map(|(_, outputs)| outputs).sum()
    }

    /// The matrix in its stored layout; several matrices are concatenated.
    pub(crate) fn matrix(&self, source: &impl TensorSource) -> Result<Vec<f32>, ModelError> {
        let part = |(name, outputs): &(String, usize)| {
            let shape = match self.layout {
                WeightLayout::OutputMajor => [*outputs, self.inputs],
                WeightLayout::InputMajor => [self.inputs, *outputs],
            };
            source.tensor(&format!("{name}.weight"), &shape)
        };
        if let [only] = self.parts.as_slice() {
            return part(only);
        }
        // Nothing is allocated before a shape has been compared with the file's, because
        // config.json is untrusted.
        let mut matrix = Vec::new();
        for of in &self.parts {
            let values = part(of)?;
            matrix.reserve_exact(values.len());
            matrix.extend(values);
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
        let matrix = self.matrix(source)?;
        let bias = self.bias(source)?;
        let inputs = self.inputs;
        let outputs = self.outputs();
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
    /// An `nn.LayerNorm` with weight and bias.
    pub(crate) fn layer_norm(name: &str, width: usize, eps: f32) -> Self {
        Self { name: name.to_owned(), width, kind: NormConfig::LayerNorm { eps } }
    }

    pub(crate) fn weight(&self, source: &impl TensorSource) -> Result<Vec<f32>, ModelError> {
        source.tensor(&format!("{}.weight", self.name), &[self.width])
    }

    pub(crate) fn bias(&self, source: &impl TensorSource) -> Result<Option<Vec<f32>>, ModelError> {
        match self.kind {
            NormConfig::RmsNorm { .. } => Ok(None),
            NormConfig::LayerNorm { .. } => {
                source.tensor(&format!("{}.bias", self.name), &[self.width]).map(Some)
            }
        }
    }

    pub(crate) fn load(
        &self,
        device: &Device,
        source: &impl TensorSource,
    ) -> Result<Normalization, ModelError> {
        let weight = self.weight(source)?;
        Ok(match (self.kind, self.bias(source)?) {
            (NormConfig::LayerNorm { eps }, Some(bias)) => {
                Normalization::layer(device, eps, weight, bias)?
            }
            (NormConfig::LayerNorm { eps } | NormConfig::RmsNorm { eps }, _) => {
                Normalization::rms(device, eps, weight)?
            }
        })
    }
}

/// The specifications of a decoder's modules. `i` is the index of a block.
#[derive(Clone, Copy)]
pub(crate) struct DecoderTensors<'a>(pub(crate) &'a Config);

impl DecoderTensors<'_> {
    fn is_gpt2(&self) -> bool {
        self.0.architecture == Architecture::Gpt2
    }

    /// The token embedding (vocab, width), as a linear layer from hidden states to logits.
    pub(crate) fn embedding(&self) -> LinearSpec {
        self.vocab_linear(self.0.embedding_name())
    }

    /// The LM head (vocab, width), where it is not tied to the embedding.
    pub(crate) fn lm_head(&self) -> LinearSpec {
        self.vocab_linear("lm_head")
    }

    pub(crate) fn has_lm_head(source: &impl TensorSource) -> bool {
        source.has("lm_head.weight")
    }

    fn vocab_linear(&self, name: &str) -> LinearSpec {
        let Config { width, vocab, .. } = *self.0;
        LinearSpec::single(name, width, vocab, WeightLayout::OutputMajor, false)
    }

    /// Learned positions: tensor name and values (context, width).
    pub(crate) fn position_embedding(
        &self,
        source: &impl TensorSource,
    ) -> Result<Option<(&'static str, Tensor)>, ModelError> {
        if self.0.positions != PositionEncoding::Learned {
            return Ok(None);
        }
        let context = self.0.context;
        let width = self.0.width;
        let name = "wpe.weight";
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

    /// The fused QKV projection: outputs are queries, keys, values.
    pub(crate) fn qkv(&self, i: usize) -> LinearSpec {
        let Config { width, heads, kv_heads, head_dim, .. } = *self.0;
        if self.is_gpt2() {
            return conv1d(&format!("h.{i}.attn.c_attn"), width, 3 * width);
        }
        let name = |part| format!("layers.{i}.self_attn.{part}_proj");
        let parts = [
            (name("q"), heads * head_dim),
            (name("k"), kv_heads * head_dim),
            (name("v"), kv_heads * head_dim),
        ];
        LinearSpec { has_bias: self.0.qkv_bias, ..stacked(width, parts) }
    }

    /// The norms of queries and of keys, per head, with QK-norm.
    pub(crate) fn qk_norm(&self, i: usize) -> Option<[NormSpec; 2]> {
        let one = |part| NormSpec {
            name: format!("layers.{i}.self_attn.{part}_norm"),
            width: self.0.head_dim,
            kind: self.0.norm,
        };
        self.0.qk_norm.then(|| [one("q"), one("k")])
    }

    pub(crate) fn attn_out(&self, i: usize) -> LinearSpec {
        let inputs = self.0.heads * self.0.head_dim;
        let width = self.0.width;
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
        debug_assert_eq!(mlp, Mlp::SwiGlu, "only GPT-2 has an MLP without a gate");
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
    LinearSpec::single(name, inputs, outputs, WeightLayout::InputMajor, true)
}

/// Several (out, in) matrices over the same input as one linear layer, without biases.
pub(crate) fn stacked<const N: usize>(inputs: usize, parts: [(String, usize); N]) -> LinearSpec {
    LinearSpec { parts: parts.into(), inputs, layout: WeightLayout::OutputMajor, has_bias: false }
}

/// (rows, columns) to (columns, rows).
pub(crate) fn transpose(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * columns + c])).collect()
}

/// Loads the modules of a head: PyTorch modules next to the decoder.
pub(crate) struct ModuleLoader<'a, S> {
    device: &'a Device,
    source: &'a S,
}

impl<'a, S: TensorSource> ModuleLoader<'a, S> {
    pub(crate) fn new(device: &'a Device, source: &'a S) -> Self {
        Self { device, source }
    }

    /// An `nn.Linear`, with a bias if the source has one.
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
        NormSpec::layer_norm(name, width, eps).load(self.device, self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gpt2_uses_conv1d() {
        let layout = WeightLayout::of;
        assert_eq!(layout(Architecture::Gpt2, "h.0.mlp.c_fc"), WeightLayout::InputMajor);
        assert_eq!(layout(Architecture::Gpt2, "lm_head"), WeightLayout::OutputMajor);
        let llama = layout(Architecture::Llama, "layers.0.self_attn.q_proj");
        assert_eq!(llama, WeightLayout::OutputMajor);
    }
}
