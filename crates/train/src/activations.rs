//! Estimate of the activation memory of a micro-batch.
//!
//! The sum of the activations that `model::decoder::trainable` saves in each layer, of keys and
//! values with their gradients, and of the larger of (a) the logits with their gradients and (b)
//! the temporaries of one layer's backward pass. With recomputation, all layers except the last
//! save only their inputs, and the temporaries include one layer's recomputed activations.

use model::TrainableDecoder;
use model::config::Mlp;

/// Sizes of a micro-batch that determine its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchRows {
    /// Input positions.
    pub fed: usize,
    /// Positions whose hidden state is used.
    pub output: usize,
    /// Positions that predict a token.
    pub logits: usize,
    /// KV-cache slots.
    pub slots: usize,
}

impl BatchRows {
    /// Activation memory of such a batch, in bytes.
    pub fn activation_bytes(&self, model: &TrainableDecoder) -> u64 {
        let config = model.decoder.config();
        let device = model.decoder.device();
        // The residual stream is f32; inputs of matrix products have the compute dtype.
        let compute = if device.is_f32() { 4 } else { 2 };
        let width = config.width;
        let kv = config.kv_heads * config.head_dim;
        let (heads, qkv) = (
            config.heads * config.head_dim,
            (config.heads + 2 * config.kv_heads) * config.head_dim,
        );
        let pre_activation = match config.mlp {
            Mlp::SwiGlu => 2 * config.ffn,
            Mlp::GeluTanh | Mlp::GeluErf => config.ffn,
        };
        let x = width * 4;
        let normed = width * compute;
        let inside = width * (4 + compute) // mid_residual, mlp_normed
            + (qkv + heads + pre_activation + config.ffn) * compute;
        let others = config.layers.saturating_sub(1) * self.fed;
        // The last layer computes the output rows only.
        let last = self.fed * (x + normed) + self.output * inside;
        let (saved, recomputed) = match model.recomputes() {
            true => {
                (others * x + last, self.fed * (normed + inside) + self.slots * 2 * kv * compute)
            }
            false => (others * (x + normed + inside) + last, 0),
        };
        let keys_and_values = config.layers * self.slots * 2 * kv * (compute + 4);
        let logits = 2 * self.logits * config.vocab * 4;
        let backward = recomputed + self.fed * (2 * width + qkv + config.ffn + pre_activation) * 4;
        (saved + keys_and_values + logits.max(backward)) as u64
    }
}
