//! Token draws in the layout of `sample.cu`; [`super::topk`] launches it on chunks of logits.

use bytemuck::{Pod, Zeroable};

use super::memory::DeviceBuffer;
use super::{CudaDevice, CudaError};
use crate::params::TokenDraw;
use crate::rng::Site;

/// Threads of a block, which samples one row; as in sample.cu.
pub(crate) const SAMPLE_THREADS: usize = 512;

/// `TokenDraw` of sample.cu.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct DeviceDraw {
    uniform: f64,             // in [0, 1)
    inverse_temperature: f32, // 0: the argmax
    top_p: f32,
}

impl From<TokenDraw> for DeviceDraw {
    fn from(TokenDraw { key, sampling }: TokenDraw) -> Self {
        Self {
            uniform: key.uniform(Site::Token),
            inverse_temperature: 1.0 / sampling.temperature(),
            top_p: sampling.top_p(),
        }
    }
}

/// A draw for each row, on the device.
pub(crate) struct DeviceDraws(DeviceBuffer);

impl DeviceDraws {
    pub(crate) fn new(cuda: &CudaDevice, draws: &[Option<TokenDraw>]) -> Result<Self, CudaError> {
        let draws: Vec<DeviceDraw> =
            draws.iter().map(|draw| draw.map_or_else(DeviceDraw::default, Into::into)).collect();
        Ok(Self(DeviceBuffer::stage(cuda, &draws)?))
    }

    /// The device address of a row's draw, followed by those of later rows.
    pub(crate) fn at(&self, row: usize) -> u64 {
        self.0.pointer() + (row * size_of::<DeviceDraw>()) as u64
    }
}
