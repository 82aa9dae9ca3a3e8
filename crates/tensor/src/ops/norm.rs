//! Normalisation of rows.

use super::{Indices, OutputDtype};
use crate::cuda::args::{NormGradients, PositionEmbeddings};
use crate::cuda::norm::CudaNorm;
use crate::device::Backend;
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// A normalisation and its parameters.
#[derive(Debug)]
pub struct Normalization(NormStorage);

#[derive(Debug)]
enum NormStorage {
    Cpu(CpuNorm),
    Cuda(CudaNorm),
}

/// A normalisation on the processor.
#[derive(Debug)]
pub(crate) struct CpuNorm {
    pub(crate) eps: f32,
    pub(crate) scale: Vec<f32>,         // (width)
    pub(crate) shift: Option<Vec<f32>>, // (width) of a layer norm; none of a root-mean-square norm
}

impl Normalization {
    /// Subtract the mean, divide by the standard deviation, scale and shift.
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

    /// Divide by the root of the mean square and scale.
    pub fn rms(device: &Device, eps: f32, scale: Vec<f32>) -> Result<Self, DeviceError> {
        Ok(Self(match device.backend() {
            Backend::Cpu(_) => NormStorage::Cpu(CpuNorm { eps, scale, shift: None }),
            Backend::Cuda(cuda) => NormStorage::Cuda(CudaNorm::rms(cuda, eps, &scale)?),
        }))
    }

    /// How many numbers are normalised together.
    pub fn width(&self) -> usize {
        match &self.0 {
            NormStorage::Cpu(norm) => norm.scale.len(),
            NormStorage::Cuda(norm) => norm.width(),
        }
    }

    /// Takes new parameters in the place of the old: (1, width) each, in single precision on the
    /// device. A shift for a layer norm, none for a root-mean-square norm.
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

/// Normalises each row of x (rows, width) into out (rows, width).
pub fn norm(
    device: &Device,
    x: &Tensor,
    by: &Normalization,
    format: OutputDtype,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    assert_eq!(
        x.cols(),
        by.width(),
        "norm: rows of {} against parameters of {}",
        x.cols(),
        by.width()
    );
    match device.backend() {
        Backend::Cpu(cpu) => {
            out.reshape(x.rows(), x.cols());
            cpu::norm::norm(cpu.isa, x, by.cpu(), out);
        }
        Backend::Cuda(cuda) => {
            *out = cuda::norm::norm(x.gpu(), by.gpu(), format.cuda_dtype(cuda))?.into()
        }
    }
    Ok(())
}

/// What a pass begins with: x (rows, width) plus, if there is a table of positions (any, width), a
/// row of it for each; returns that, and normalises each row into out (rows, width).
pub fn add_positions_norm(
    device: &Device,
    mut x: Tensor,
    positions: Option<(&Tensor, &Indices)>,
    (by, format): (&Normalization, OutputDtype),
    out: &mut Tensor,
) -> Result<Tensor, DeviceError> {
    if let Some((table, rows)) = positions {
        let count = rows.host().len();
        assert_eq!(
            (x.rows(), x.cols()),
            (count, table.cols()),
            "enter: {count} positions of {} columns",
            table.cols()
        );
    }
    match device.backend() {
        Backend::Cpu(_) => {
            if let Some((table, rows)) = positions {
                for (r, &row) in rows.host().iter().enumerate() {
                    x.row_mut(r).iter_mut().zip(table.row(row as usize)).for_each(|(x, y)| *x += y);
                }
            }
            norm(device, &x, by, format, out)?;
        }
        Backend::Cuda(cuda) => {
            let positions = positions
                .map(|(table, rows)| PositionEmbeddings { table: table.gpu(), rows: rows.gpu() });
            // What others hold too stays as it is.
            let sum = if x.is_shared() { x.gpu().uninit_like()?.into() } else { x.clone() };
            *out = cuda::norm::add_positions_norm(
                (x.gpu(), sum.gpu()),
                positions,
                by.gpu(),
                format.cuda_dtype(cuda),
            )?
            .into();
            x = sum;
        }
    }
    Ok(x)
}

/// Adds what reaches the norm's input x (rows, width) to dx (rows, width) and what reaches its
/// parameters to dscale and dshift (1, width), given dy (rows, width) in any format. Means and
/// deviations are computed again.
pub fn norm_backward(
    device: &Device,
    (x, by, dy): (&Tensor, &Normalization, &Tensor),
    dx: &mut Tensor,
    dscale: &mut Tensor,
    dshift: Option<&mut Tensor>,
) -> Result<(), DeviceError> {
    let (rows, width) = (x.rows(), by.width());
    let fits = |x: &Tensor| (x.rows(), x.cols()) == (rows, width);
    assert!(fits(x) && fits(dy) && fits(dx), "norm_backward: rows that are not {rows} of {width}");
    assert!(
        dscale.cols() == width && dshift.as_ref().is_none_or(|d| d.cols() == width),
        "norm_backward: not {width} wide"
    );
    match device.backend() {
        Backend::Cpu(cpu) => {
            let parts = cpu::norm::norm_backward(cpu.isa, (x, by.cpu(), dy), dx);
            for (to, which) in [Some(dscale), dshift].into_iter().zip(0..) {
                let Some(to) = to else { continue };
                parts.iter().for_each(|part| {
                    to.data_mut().iter_mut().zip(&part[which]).for_each(|(d, x)| *d += x)
                });
            }
        }
        Backend::Cuda(_) => {
            let dshift = dshift.map(Tensor::gpu_mut).transpose()?;
            let to = NormGradients {
                dy: dy.gpu(),
                dx: dx.gpu_mut()?,
                dscale: dscale.gpu_mut()?,
                dshift,
            };
            cuda::norm::norm_backward(x.gpu(), by.gpu(), to)?;
        }
    }
    Ok(())
}
