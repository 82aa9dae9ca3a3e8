//! Argument structs of operations: plain data, filled by [`crate::ops`].

use super::attention::{CudaAttentionMetadata, CudaKv};
use super::dropout::{CudaKeepMask, CudaPerturbedRows};
use super::linear::CudaLinear;
use super::memory::DeviceBuffer;
use super::norm::CudaNorm;
use super::qkv::CudaRope;
use super::{CudaIndices, CudaTensor};
use crate::rng::Site;

/// The element type of a tensor on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CudaDtype {
    F32,
    Bf16,
    /// One byte, with a scale for all rows or one per row (fp8.rs): only read by the linear maps of
    /// an fp8 device.
    E4m3,
}

/// See [`crate::ops::AttentionBackward`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaAttentionBackward<'a> {
    pub(crate) q: &'a CudaTensor,
    pub(crate) kv: &'a CudaKv,
    pub(crate) layer: usize,
    pub(crate) heads: usize,
    pub(crate) metadata: &'a CudaAttentionMetadata,
    /// (rows, heads * head_dim), of q's dtype.
    pub(crate) out: &'a CudaTensor,
    /// (rows, heads * head_dim), of any dtype.
    pub(crate) dout: &'a CudaTensor,
}

/// The arguments of a mixture; see [`crate::ops::TopKMixture`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaMixture<'a> {
    pub(crate) k: usize,
    pub(crate) noise: Option<&'a CudaPerturbedRows>,
}

/// The properties of the metadata, other than its contents, that attention's launches depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetadataExtent {
    pub(crate) rows: usize,
    pub(crate) tiles: usize,
    /// Size of the metadata in bytes.
    pub(crate) bytes: usize,
}

/// See [`crate::ops::DropoutMask`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum CudaDropoutMask<'a> {
    Sampled { layer: usize, site: Site, rows: &'a CudaPerturbedRows },
    Recorded { p: f32, keep: &'a CudaKeepMask },
}

/// The addend of the residual stream: `dropout(y + bias)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidualAddend<'a> {
    /// (rows, cols), of any dtype.
    pub(crate) y: &'a CudaTensor,
    /// (>= cols) of f32.
    pub(crate) bias: Option<&'a DeviceBuffer>,
    pub(crate) mask: Option<CudaDropoutMask<'a>>,
}

/// See [`crate::ops::LearnedPositions`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaLearnedPositions<'a> {
    /// (context, cols) of f32.
    pub(crate) table: &'a CudaTensor,
    /// (rows)
    pub(crate) positions: &'a CudaIndices,
}

/// See [`crate::ops::LinearResidualNorm`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaLinearResidualNorm<'a> {
    pub(crate) x: &'a CudaTensor,
    pub(crate) map: &'a CudaLinear,
    pub(crate) mask: Option<CudaDropoutMask<'a>>,
    pub(crate) norm: &'a CudaNorm,
    pub(crate) dtype: CudaDtype,
}

/// The gradient of a norm's output, and the gradients to which the backward adds.
#[derive(Debug)]
pub(crate) struct NormGradients<'a> {
    /// (rows, width), of any dtype.
    pub(crate) dy: &'a CudaTensor,
    /// (rows, width) of f32.
    pub(crate) dx: &'a mut CudaTensor,
    /// (1, width) of f32.
    pub(crate) dscale: &'a mut CudaTensor,
    /// (1, width) of f32.
    pub(crate) dshift: Option<&'a mut CudaTensor>,
}

/// See [`crate::ops::GaussianLoss`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaGaussianLoss<'a> {
    /// (rows, cols) of f32, like all others.
    pub(crate) mean: &'a CudaTensor,
    pub(crate) log_std: &'a CudaTensor,
    pub(crate) noise: &'a CudaTensor,
    pub(crate) target: &'a CudaTensor,
    pub(crate) weight: f32,
}

/// See [`crate::ops::QkvTransform`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaQkvTransform<'a> {
    pub(crate) heads: usize,
    /// RMSNorms of each query head and each key head, with the same eps.
    pub(crate) qk_norms: Option<(&'a CudaNorm, &'a CudaNorm)>,
    pub(crate) rope: Option<&'a CudaRope>,
}

/// See [`crate::ops::SlotMapping`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaSlotMapping<'a> {
    /// (rows)
    pub(crate) positions: &'a CudaIndices,
    /// (rows)
    pub(crate) slots: &'a CudaIndices,
}
