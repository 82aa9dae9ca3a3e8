//! What the decoder's parts are called in each architecture's checkpoints, and how they are stored.

use tensor::ops::{Linear, Norm};
use tensor::{Device, Tensor};

use crate::config::{self, Architecture, Config, Mlp};
use crate::error::Error;
use crate::source::TensorSource;

/// A decoder's weights by their role.
pub(crate) struct Weights<'a, S> {
    device: &'a Device,
    config: &'a Config,
    source: &'a S,
}

impl<'a, S: TensorSource> Weights<'a, S> {
    pub(crate) fn new(device: &'a Device, config: &'a Config, source: &'a S) -> Self {
        Self { device, config, source }
    }

    fn gpt2(&self) -> bool {
        self.config.architecture == Architecture::Gpt2
    }

    /// (vocab, width), as a map from hidden states to tokens.
    pub(crate) fn embedding(&self) -> Result<Linear, Error> {
        self.vocabulary(if self.gpt2() { "wte.weight" } else { "embed_tokens.weight" })
    }

    pub(crate) fn has_head(&self) -> bool {
        self.source.has("lm_head.weight")
    }

    /// (vocab, width)
    pub(crate) fn head(&self) -> Result<Linear, Error> {
        self.vocabulary("lm_head.weight")
    }

    fn vocabulary(&self, name: &str) -> Result<Linear, Error> {
        let Config { vocab, width, .. } = *self.config;
        let matrix = self.source.tensor(name, &[vocab, width])?;
        Ok(Linear::from_output_major(self.device, (width, vocab), &matrix, None)?)
    }

    /// (context, width)
    pub(crate) fn positions(&self) -> Result<Tensor, Error> {
        let Config { context, width, .. } = *self.config;
        Ok(Tensor::from_vec(context, width, self.source.tensor("wpe.weight", &[context, width])?).to_device(self.device)?)
    }

    pub(crate) fn final_norm(&self) -> Result<Norm, Error> {
        self.norm(if self.gpt2() { "ln_f" } else { "norm" })
    }

    pub(crate) fn attn_norm(&self, i: usize) -> Result<Norm, Error> {
        self.norm(&self.block(i, "ln_1", "input_layernorm"))
    }

    pub(crate) fn mlp_norm(&self, i: usize) -> Result<Norm, Error> {
        self.norm(&self.block(i, "ln_2", "post_attention_layernorm"))
    }

    /// Queries, keys and values side by side.
    pub(crate) fn qkv(&self, i: usize) -> Result<Linear, Error> {
        let Config { width, heads, kv_heads, head_dim, .. } = *self.config;
        if self.gpt2() {
            return self.conv1d(&format!("h.{i}.attn.c_attn"), width, 3 * width);
        }
        let name = |part| format!("layers.{i}.self_attn.{part}_proj");
        self.stacked(width, &[(name("q"), heads * head_dim), (name("k"), kv_heads * head_dim), (name("v"), kv_heads * head_dim)])
    }

    pub(crate) fn qk_norm(&self, i: usize) -> Result<(Norm, Norm), Error> {
        let config::Norm::RmsNorm { eps } = self.config.norm else {
            unreachable!("only Qwen3 has these norms, and it has RMS norms")
        };
        let one = |part| -> Result<Norm, Error> {
            let scale = self.source.tensor(&format!("layers.{i}.self_attn.{part}_norm.weight"), &[self.config.head_dim])?;
            Ok(Norm::rms(self.device, eps, scale)?)
        };
        Ok((one("q")?, one("k")?))
    }

    pub(crate) fn attn_out(&self, i: usize) -> Result<Linear, Error> {
        let inputs = self.config.heads * self.config.head_dim;
        if self.gpt2() {
            return self.conv1d(&format!("h.{i}.attn.c_proj"), inputs, self.config.width);
        }
        self.stacked(inputs, &[(format!("layers.{i}.self_attn.o_proj"), self.config.width)])
    }

    pub(crate) fn mlp_in(&self, i: usize) -> Result<Linear, Error> {
        let Config { width, ffn, mlp, .. } = *self.config;
        if self.gpt2() {
            return self.conv1d(&format!("h.{i}.mlp.c_fc"), width, ffn);
        }
        debug_assert_eq!(mlp, Mlp::SwiGlu, "only GPT-2 has an MLP of two matrices");
        self.stacked(width, &[(format!("layers.{i}.mlp.gate_proj"), ffn), (format!("layers.{i}.mlp.up_proj"), ffn)])
    }

    pub(crate) fn mlp_out(&self, i: usize) -> Result<Linear, Error> {
        let Config { width, ffn, .. } = *self.config;
        if self.gpt2() {
            return self.conv1d(&format!("h.{i}.mlp.c_proj"), ffn, width);
        }
        self.stacked(ffn, &[(format!("layers.{i}.mlp.down_proj"), width)])
    }

    fn block(&self, i: usize, gpt2: &str, llama: &str) -> String {
        if self.gpt2() { format!("h.{i}.{gpt2}") } else { format!("layers.{i}.{llama}") }
    }

    fn norm(&self, name: &str) -> Result<Norm, Error> {
        let width = [self.config.width];
        let scale = self.source.tensor(&format!("{name}.weight"), &width)?;
        match self.config.norm {
            config::Norm::RmsNorm { eps } => Ok(Norm::rms(self.device, eps, scale)?),
            config::Norm::LayerNorm { eps } => {
                let shift = self.source.tensor(&format!("{name}.bias"), &width)?;
                Ok(Norm::layer(self.device, eps, scale, shift)?)
            }
        }
    }

    /// GPT-2's `Conv1D`: (in, out) with a bias.
    fn conv1d(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, Error> {
        let matrix = self.source.tensor(&format!("{name}.weight"), &[inputs, outputs])?;
        let bias = self.source.tensor(&format!("{name}.bias"), &[outputs])?;
        Ok(Linear::from_input_major(self.device, (inputs, outputs), &matrix, Some(bias))?)
    }

    /// Several (out, in) matrices over the same input as one, without biases.
    fn stacked(&self, inputs: usize, parts: &[(String, usize)]) -> Result<Linear, Error> {
        let outputs = parts.iter().map(|(_, n)| n).sum();
        let mut matrix = Vec::with_capacity(inputs * outputs);
        for (name, n) in parts {
            matrix.extend(self.source.tensor(&format!("{name}.weight"), &[*n, inputs])?);
        }
        Ok(Linear::from_output_major(self.device, (inputs, outputs), &matrix, None)?)
    }
}

/// Parts of a head beside the decoder, as PyTorch names and stores them.
pub(crate) struct Modules<'a, S> {
    pub(crate) device: &'a Device,
    pub(crate) source: &'a S,
}

impl<S: TensorSource> Modules<'_, S> {
    /// An `nn.Linear`: (out, in), with a bias if there is one.
    pub(crate) fn linear(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, Error> {
        let matrix = self.source.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = format!("{name}.bias");
        let bias = if self.source.has(&bias) { Some(self.source.tensor(&bias, &[outputs])?) } else { None };
        Ok(Linear::from_output_major(self.device, (inputs, outputs), &matrix, bias)?)
    }

    /// An `nn.LayerNorm` with weight and bias.
    pub(crate) fn layer_norm(&self, name: &str, width: usize, eps: f32) -> Result<Norm, Error> {
        let scale = self.source.tensor(&format!("{name}.weight"), &[width])?;
        Ok(Norm::layer(self.device, eps, scale, self.source.tensor(&format!("{name}.bias"), &[width])?)?)
    }
}
