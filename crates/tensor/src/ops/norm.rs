//! LayerNorm and RMSNorm of rows.

use super::{Indices, OutputDtype};
use crate::cuda::args::{CudaLearnedPositions, NormGradients};
use crate::cuda::norm::CudaNorm;
use crate::device::Backend;
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// A LayerNorm or RMSNorm with its parameters on a device.
#[derive(Debug)]
pub struct Normalization(NormStorage);

#[derive(Debug)]
enum NormStorage {
    Cpu(CpuNorm),
    Cuda(CudaNorm),
}

/// A norm on the CPU.
#[derive(Debug)]
pub(crate) struct CpuNorm {
    pub(crate) eps: f32,
    pub(crate) scale: Vec<f32>,         // (width)
    pub(crate) shift: Option<Vec<f32>>, // (width) for LayerNorm; `None` for RMSNorm
}

impl Normalization {
    /// LayerNorm: `(x - mean) / sqrt(variance + eps) * scale + shift`.
    pub fn layer(
        device: &Device,
        eps: f32,
        scale: Vec<f32>,
        shift: Vec<f32>,
    ) -> Result<Self, DeviceError> {
        assert_eq!(
            scale.len(),
            shift.len(),
            "layer norm: {} scales, {} shifts",
            scale.len(),
            shift.len()
        );
        Ok(Self(match device.backend() {
            Backend::Cpu(_) => NormStorage::Cpu(CpuNorm { eps, scale, shift: Some(shift) }),
            Backend::Cuda(cuda) => NormStorage::Cuda(CudaNorm::layer(cuda, eps, &scale, &shift)?),
        }))
    }

    /// RMSNorm: `x / sqrt(mean square + eps) * scale`.
    pub fn rms(device: &Device, eps: f32, scale: Vec<f32>) -> Result<Self, DeviceError> {
        Ok(Self(match device.backend() {
            Backend::Cpu(_) => NormStorage::Cpu(CpuNorm { eps, scale, shift: None }),
            Backend::Cuda(cuda) => NormStorage::Cuda(CudaNorm::rms(cuda, eps, &scale)?),
        }))
    }

    /// The width of the rows that it normalizes.
    pub fn width(&self) -> usize {
        match &self.0 {
            NormStorage::Cpu(norm) => norm.scale.len(),
            NormStorage::Cuda(norm) => norm.width(),
        }
    }

    /// Replaces the parameters, f32 of shape (1, width) on the device: a scale, and a shift for
    /// LayerNorm.
    pub fn assign(
        &mut self,
        device: &Device,
        scale: &Tensor,
        shift: Option<&Tensor>,
    ) -> Result<(), DeviceError> {
        let width = self.width();
        let fits = |x: &Tensor| (x.rows(), x.cols()) == (1, width);
        assert!(
            fits(scale) && shift.is_none_or(fits),
            "assign: parameters of a norm that is not {width} wide"
        );
        match (device.backend(), &mut self.0) {
            (Backend::Cpu(_), NormStorage::Cpu(norm)) => {
                assert_eq!(
                    norm.shift.is_some(),
                    shift.is_some(),
                    "assign: parameters of another norm"
                );
                norm.scale.copy_from_slice(scale.data());
                if let (Some(to), Some(from)) = (&mut norm.shift, shift) {
                    to.copy_from_slice(from.data());
                }
            }
            (Backend::Cuda(_), NormStorage::Cuda(norm)) => {
                norm.assign(scale.gpu(), shift.map(Tensor::gpu))?
            }
            _ => panic!("assign: the norm is not on the device"),
        }
        Ok(())
    }

    pub(crate) fn cpu(&self) -> &CpuNorm {
        match &self.0 {
            NormStorage::Cpu(norm) => norm,
            NormStorage::Cuda(_) => panic!("this norm is on a gpu"),
        }
    }

    pub(crate) fn gpu(&self) -> &CudaNorm {
        match &self.0 {
            NormStorage::Cuda(norm) => norm,
            NormStorage::Cpu(_) => panic!("this norm is not on the gpu"),
        }
    }
}

/// Normalizes each row of x (rows, width) into out (rows, width).
pub fn norm(
    device: &Device,
    x: &Tensor,
    by: &Normalization,
    dtype: OutputDtype,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    let width = x.cols();
    let expected = by.width();
    assert_eq!(width, expected, "norm: rows of {width} against parameters of {expected}");
    match device.backend() {
        Backend::Cpu(cpu) => {
            out.reshape(x.rows(), x.cols());
            cpu::norm::norm(cpu.isa, x, by.cpu(), out);
        }
        Backend::Cuda(cuda) => {
            *out = cuda::norm::norm(x.gpu(), by.gpu(), dtype.cuda_dtype(cuda))?.into()
        }
    }
    Ok(())
}

/// A learned position embedding for each row.
#[derive(Clone, Copy, Debug)]
pub struct LearnedPositions<'a> {
    /// (context, width)
    pub table: &'a Tensor,
    /// Each row's position. (rows)
    pub positions: &'a Indices,
}

/// The start of a pass: adds position embeddings, if any, to x (rows, width), returns the sum and
/// writes its normalized rows to out (rows, width).
pub fn add_positions_norm(
    device: &Device,
    mut x: Tensor,
    positions: Option<LearnedPositions<'_>>,
    by: &Normalization,
    dtype: OutputDtype,
    out: &mut Tensor,
) -> Result<Tensor, DeviceError> {
    if let Some(LearnedPositions { table, positions }) = positions {
        let count = positions.host().len();
        let cols = table.cols();
        assert_eq!(
            (x.rows(), x.cols()),
            (count, cols),
            "add_positions_norm: {count} positions of {cols} columns"
        );
    }
    match device.backend() {
        Backend::Cpu(_) => {
            if let Some(LearnedPositions { table, positions }) = positions {
                for (r, &position) in positions.host().iter().enumerate() {
                    let embedding = table.row(position as usize);
                    x.row_mut(r).iter_mut().zip(embedding).for_each(|(x, y)| *x += y);
                }
            }
            norm(device, &x, by, dtype, out)?;
        }
        Backend::Cuda(cuda) => {
            let positions = positions.map(|p| CudaLearnedPositions {
                table: p.table.gpu(),
                positions: p.positions.gpu(),
            });
            // In place, unless x is shared with another tensor.
            let sum = if x.is_shared() { x.gpu().uninit_like()?.into() } else { x.clone() };
            let from = x.gpu();
            let to = sum.gpu();
            let dtype = dtype.cuda_dtype(cuda);
            *out = cuda::norm::add_positions_norm(from, to, positions, by.gpu(), dtype)?.into();
            x = sum;
        }
    }
    Ok(x)
}

/// The read-only arguments of [`norm_backward`].
#[derive(Clone, Copy, Debug)]
pub struct NormBackward<'a> {
    /// The norm's input. (rows, width)
    pub x: &'a Tensor,
    /// The norm.
    pub norm: &'a Normalization,
    /// The gradient of its output, of any dtype. (rows, width)
    pub dy: &'a Tensor,
}

/// Adds the gradient of the norm's input to dx (rows, width), and those of its parameters to dscale
/// and dshift (1, width). Mean and variance are recomputed.
pub fn norm_backward(
    device: &Device,
    of: NormBackward<'_>,
    dx: &mut Tensor,
    dscale: &mut Tensor,
    dshift: Option<&mut Tensor>,
) -> Result<(), DeviceError> {
    let NormBackward { x, norm, dy } = of;
    let rows = x.rows();
    let width = norm.width();
    let fits = |x: &Tensor| (x.rows(), x.cols()) == (rows, width);
    assert!(fits(x) && fits(dy) && fits(dx), "norm_backward: rows that are not {rows} of {width}");
    assert!(
        dscale.cols() == width && dshift.as_ref().is_none_or(|d| d.cols() == width),
        "norm_backward: not {width} wide"
    );
    match device.backend() {
        Backend::Cpu(cpu) => {
            let partial = cpu::norm::norm_backward(cpu.isa, x, norm.cpu(), dy, dx);
            add_partial_sums(partial, dscale, dshift);
        }
        Backend::Cuda(_) => {
            let dshift = dshift.map(Tensor::gpu_mut).transpose()?;
            let dx = dx.gpu_mut()?;
            let dscale = dscale.gpu_mut()?;
            let gradients = NormGradients { dy: dy.gpu(), dx, dscale, dshift };
            cuda::norm::norm_backward(x.gpu(), norm.gpu(), gradients)?;
        }
    }
    Ok(())
}

/// Adds a CPU kernel's partial sums of the gradients of scale and shift to them (1, width).
pub(super) fn add_partial_sums(
    partial: Vec<[Vec<f32>; 2]>,
    dscale: &mut Tensor,
    dshift: Option<&mut Tensor>,
) {
    for (to, which) in [Some(dscale), dshift].into_iter().zip(0..) {
        let Some(to) = to else { continue };
        partial
            .iter()
            .for_each(|sums| to.data_mut().iter_mut().zip(&sums[which]).for_each(|(d, x)| *d += x));
    }
}
