//! The backward of one layer of a segment.

use tensor::ops::{self, AttentionBackward, AttentionMetadata, KvGrads, OutputDtype, SlotMapping};
use tensor::rng::Site;
use tensor::{Device, DeviceError, Tensor};

use super::super::chunk_dropout::ChunkDropout;
use super::super::{Decoder, mlp_activation};
use super::BlockParameters;
use super::segment::LayerActivations;
use crate::cache::Cache;
use crate::parameters::{AdapterInput, LinearBackward};

/// The backward of one layer.
pub(super) struct LayerBackward<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) device: &'a Device,
    pub(super) params: &'a mut BlockParameters,
    pub(super) layer: usize,
    pub(super) saved: &'a LayerActivations,
    pub(super) adapter_dropout: &'a ChunkDropout,
}

impl<'a> LayerBackward<'a> {
    /// The backward of a linear layer with input `x`, from the gradient `dy` of its output.
    fn linear<'x>(
        &self,
        x: &'x Tensor,
        site: Site,
        dy: &'x Tensor,
        dtype: OutputDtype,
    ) -> LinearBackward<'x>
    where
        'a: 'x,
    {
        let input = AdapterInput { x, mask: self.adapter_dropout.mask(self.layer, site) };
        LinearBackward { input, dy, dtype }
    }

    /// The backward of the MLP and its norm. `dx` contains the gradient of the residual stream
    /// after the MLP, and on return that before it.
    pub(super) fn mlp(
        &mut self,
        dropout: &ChunkDropout,
        dx: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let device = self.device;
        let saved = self.saved;
        let block = &self.decoder.blocks[self.layer];
        let (mut dy, mut dinner, mut dpre, mut dnormed) = Default::default();
        ops::dropout(
            device,
            dx,
            dropout.mask(self.layer, Site::MlpOut),
            OutputDtype::Compute,
            &mut dy,
        )?;
        let compute = OutputDtype::Compute;
        let of = self.linear(&saved.inner, Site::LoraMlpOut, &dy, compute);
        self.params.mlp_out.backward(device, &block.mlp_out, of, &mut dinner)?;
        match mlp_activation(self.decoder.config.mlp) {
            Some(a) => ops::activate_backward(
                device,
                &saved.pre_activation,
                a,
                &dinner,
                OutputDtype::Compute,
                &mut dpre,
            )?,
            None => ops::swiglu_backward(
                device,
                &saved.pre_activation,
                &dinner,
                OutputDtype::Compute,
                &mut dpre,
            )?,
        }
        let of = self.linear(&saved.mlp_normed, Site::LoraMlpIn, &dpre, OutputDtype::F32);
        self.params.mlp_in.backward(device, &block.mlp_in, of, &mut dnormed)?;
        let mlp_norm = &mut self.params.mlp_norm;
        mlp_norm.accumulate_gradients(device, &block.mlp_norm, &saved.mid_residual, &dnormed, dx)
    }

    /// The backward of attention and its output projection. Adds to `dkv` and returns the gradient
    /// of the QKV projection, of which only the queries' columns are set.
    pub(super) fn attention(
        &mut self,
        cache: &Cache,
        dkv: &mut KvGrads,
        metadata: &AttentionMetadata<'static>,
        dropout: &ChunkDropout,
        dx: &mut Tensor,
    ) -> Result<Tensor, DeviceError> {
        let device = self.device;
        let saved = self.saved;
        let block = &self.decoder.blocks[self.layer];
        let (mut dy, mut dattended, mut dqkv) = Default::default();
        ops::dropout(
            device,
            dx,
            dropout.mask(self.layer, Site::AttnOut),
            OutputDtype::Compute,
            &mut dy,
        )?;
        let of = self.linear(&saved.attended, Site::LoraAttnOut, &dy, OutputDtype::Compute);
        self.params.attn_out.backward(device, &block.attn_out, of, &mut dattended)?;
        let inputs = AttentionBackward {
            q: &saved.qkv,
            kv: cache.kv.layer(self.layer),
            heads: self.decoder.config.heads,
            metadata,
            out: &saved.attended,
            dout: &dattended,
        };
        ops::attention_backward(device, inputs, dkv, &mut dqkv)?;
        Ok(dqkv)
    }

    /// The backward of RoPE, QK norms, the QKV projection and the first norm, for all rows of the
    /// segment: gradients of keys and values come from `dkv`.
    pub(super) fn qkv(
        &mut self,
        dkv: &KvGrads,
        dqkv: &mut Tensor,
        slot_mapping: &SlotMapping,
        dx: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let device = self.device;
        let saved = self.saved;
        let transform = self.decoder.qkv_params(&self.decoder.blocks[self.layer]);
        ops::rope_and_cache_backward(device, dqkv, transform, dkv, self.layer, slot_mapping)?;
        if let Some([q, k]) = &mut self.params.qk_norm {
            let dscales = [&mut q.weight.gradient, &mut k.weight.gradient];
            ops::qk_norm_backward(device, &saved.raw_qkv, transform, dqkv, dscales)?;
        }
        let mut dnormed = Tensor::default();
        let block = &self.decoder.blocks[self.layer];
        let of = self.linear(&saved.normed, Site::LoraQkv, dqkv, OutputDtype::F32);
        self.params.qkv.backward(device, &block.qkv, of, &mut dnormed)?;
        let norm = &block.attn_norm;
        self.params.attn_norm.accumulate_gradients(device, norm, &saved.x, &dnormed, dx)
    }
}
