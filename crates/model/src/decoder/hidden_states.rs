//! The residual stream between the blocks, for analysis.

use tensor::ops::OutputDtype;
use tensor::{DeviceError, Tensor};

use super::chunk::PassChunk;
use super::{Decoder, ranges};
use crate::cache::{Cache, Pass};

impl Decoder {
    /// Computes a pass over the input vectors x (rows, width) and returns hidden states of all
    /// rows, (rows, width) for each of `layers`, on the host. Layers are numbered as in
    /// transformers' `hidden_states`: 0 is the input of the first block, l the output of block l
    /// counted from 1, except that the last one is taken after the final norm.
    ///
    /// Every row of the pass must be an output row, and every layer at most the number of blocks.
    pub fn hidden_states(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        x: &Tensor,
        layers: &[usize],
    ) -> Result<Vec<Tensor>, DeviceError> {
        let last = self.blocks.len();
        let mut states = vec![Tensor::zeros(0, self.config.width); layers.len()];
        let turns = pass.rows().div_ceil(self.device.max_batch_rows()).max(1);
        for range in ranges(0..pass.rows(), pass.rows().div_ceil(turns)) {
            let rows = self.chunk_rows(pass, range);
            let mut chunks = self.chunks(pass, &rows, None)?;
            self.set_inputs(&mut chunks, &rows, x)?;
            let mut keep = |layer: usize, parts: &[&Tensor]| {
                let requested = layers.iter().zip(&mut states).filter(|(of, _)| **of == layer);
                for (_, state) in requested {
                    for &part in parts {
                        state.extend(&part.clone().to_host()?);
                    }
                }
                Ok::<(), DeviceError>(())
            };
            let observe = |layer: usize, chunks: &[PassChunk<'_>]| match layer {
                _ if layer == last => Ok(()),
                _ => keep(layer, &chunks.iter().map(|chunk| &chunk.x).collect::<Vec<_>>()),
            };
            let hidden = self.forward_chunks(cache, chunks, OutputDtype::F32, observe)?;
            keep(last, &hidden.iter().collect::<Vec<_>>())?;
        }
        Ok(states)
    }
}
