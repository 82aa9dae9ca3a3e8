//! An estimate of the activations that a micro-batch keeps for its backward.
//!
//! The sum of what `model::decoder::trainable` saves in each layer, keys and values with their
//! gradients, and the larger of the logits with their gradients and the temporaries of one layer's
//! backward. With recomputation the layers but the last save their inputs, and the temporaries
//! include the recomputed activations of one layer.

use model::TrainableDecoder;
use model::config::Mlp;

/// The size of a micro-batch, as far as memory depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchRows {
    /// Positions that are fed.
    pub fed: usize,
    /// Those whose hidden state is used.
    pub output: usize,
    /// Those that predict a token.
    pub logits: usize,
    /// Slots of the cache.
    pub slots: usize,
}

impl BatchRows {
    /// Bytes of the activations of such a batch.
    pub fn activation_bytes(&self, model: &TrainableDecoder) -> u64 {
        let (config, device) = (model.decoder.config(), model.decoder.device());
        // The residual stream is f32; what is multiplied has the compute dtype.
        let compute = if device.is_f32() { 4 } else { 2 };
        let (width, kv) = (config.width, config.kv_heads * config.head_dim);
        let (heads, qkv) = (
            config.heads * config.head_dim,
            (config.heads + 2 * config.kv_heads) * config.head_dim,
        );
        let pre_activation = match config.mlp {
            Mlp::SwiGlu => 2 * config.ffn,
            Mlp::GeluTanh | Mlp::GeluErf => config.ffn,
        };
        let (x, normed) = (width * 4, width * compute);
        let inside = width * (4 + compute) // mid_residual, mlp_normed
            + (qkv + heads + pre_activation + config.ffn) * compute;
        let others = config.layers.saturating_sub(1) * self.fed;
        // The last layer has its output rows only.
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
