//! Rows: gathering, concatenating, adding, scattering.

use rayon::prelude::*;

use super::{Linear, PerturbedRows};
use crate::cuda::CudaDtype;
use crate::cuda::args::ResidualAddend;
use crate::device::Backend;
use crate::rng::{MAX_ELEMENTS, Site};
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// Unsigned integers in device memory: positions, slots, tokens, rows.
#[derive(Debug)]
pub struct Indices {
    host: Vec<u32>,
    on_gpu: Option<cuda::CudaIndices>,
}

impl Indices {
    /// Copies them to the device.
    pub fn new(device: &Device, host: Vec<u32>) -> Result<Self, DeviceError> {
        let on_gpu = match device.backend() {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda::CudaIndices::new(cuda, &host)?),
        };
        Ok(Self { host, on_gpu })
    }

    pub(crate) fn host(&self) -> &[u32] {
        &self.host
    }

    pub(crate) fn gpu(&self) -> &cuda::CudaIndices {
        self.on_gpu.as_ref().unwrap_or_else(|| panic!("these indices are not on the gpu"))
    }
}

/// Gathers rows of several tensors, which are indexed as if they were concatenated; an index may
/// repeat. Panics if there are indices but no parts.
pub fn select<'a>(
    device: &Device,
    parts: impl IntoIterator<Item = &'a Tensor>,
    picked: &[usize],
) -> Result<Tensor, DeviceError> {
    let parts: Vec<&Tensor> = parts.into_iter().collect();
    let Some(&first) = parts.first() else {
        assert!(picked.is_empty(), "select: rows without a tensor to pick from");
        return Ok(Tensor::default());
    };
    match device.backend() {
        Backend::Cpu(_) => {
            let rows: Vec<&[f32]> = picked.iter().map(|&r| row_of(&parts, r)).collect();
            Ok(cpu::rows::matrix_of(&rows, first.cols()))
        }
        Backend::Cuda(cuda) => {
            if parts.len() == 1
                && picked.len() == first.rows()
                && picked.iter().enumerate().all(|(i, &r)| i == r)
            {
                return Ok(first.clone()); // the identity: share it
            }
            let picked: Vec<u32> = picked.iter().map(|&r| r as u32).collect();
            let parts: Vec<_> = parts.iter().map(|part| part.gpu()).collect();
            Ok(cuda::embedding::select(&parts, &cuda::CudaIndices::new(cuda, &picked)?)?.into())
        }
    }
}

fn row_of<'a>(parts: &[&'a Tensor], mut row: usize) -> &'a [f32] {
    for part in parts {
        if row < part.rows() {
            return part.row(row);
        }
        row -= part.rows();
    }
    panic!("select: {row} rows beyond the last")
}

/// Gathers rows of one tensor by indices that are already on the device.
pub fn gather(device: &Device, x: &Tensor, picked: &Indices) -> Result<Tensor, DeviceError> {
    match device.backend() {
        Backend::Cpu(_) => Ok(x.select(picked.host.iter().map(|&r| r as usize))),
        Backend::Cuda(_) => Ok(cuda::embedding::select(&[x.gpu()], picked.gpu())?.into()),
    }
}

/// Concatenates the rows of at least one tensor.
pub fn concat<'a>(device: &Device, parts: &[&'a Tensor]) -> Result<Tensor, DeviceError> {
    match device.backend() {
        Backend::Cpu(_) => {
            let rows_of = |part: &&'a Tensor| -> Vec<&'a [f32]> {
                (0..part.rows()).map(|r| part.row(r)).collect()
            };
            let rows: Vec<&[f32]> = parts.iter().flat_map(rows_of).collect();
            Ok(cpu::rows::matrix_of(&rows, parts[0].cols()))
        }
        Backend::Cuda(_) => {
            Ok(cuda::embedding::concat(&parts.iter().map(|p| p.gpu()).collect::<Vec<_>>())?.into())
        }
    }
}

/// Minimum rows that one CPU task looks up.
const ROWS_PER_LOOKUP: usize = 16;

/// The weights of some outputs of a map, (outputs, inputs): a map to the vocabulary doubles as an
/// embedding table.
pub fn lookup(device: &Device, table: &Linear, outputs: &[u32]) -> Result<Tensor, DeviceError> {
    match device.backend() {
        Backend::Cpu(_) => {
            let mut out = Tensor::zeros(outputs.len(), table.inputs());
            let rows = out.data_mut().par_chunks_mut(table.inputs().max(1)).zip(outputs);
            rows.with_min_len(ROWS_PER_LOOKUP)
                .for_each(|(row, &j)| table.output_weights(j as usize, row));
            Ok(out)
        }
        Backend::Cuda(cuda) => {
            Ok(cuda::embedding::lookup(table.gpu(), &cuda::CudaIndices::new(cuda, outputs)?)?
                .into())
        }
    }
}

/// `x += y`, both (rows, columns).
pub fn add(device: &Device, x: &mut Tensor, y: &Tensor) -> Result<(), DeviceError> {
    assert_eq!((x.rows(), x.cols()), (y.rows(), y.cols()), "add: shapes differ");
    match device.backend() {
        Backend::Cpu(cpu) => cpu::rows::add_scaled(cpu.isa, x, y, 1.0),
        Backend::Cuda(_) => {
            cuda::norm::add(x.gpu_mut()?, ResidualAddend { y: y.gpu(), bias: None, mask: None })?
        }
    }
    Ok(())
}

/// `x += by * y`, both (rows, columns) of f32.
pub fn add_scaled(device: &Device, x: &mut Tensor, y: &Tensor, by: f32) -> Result<(), DeviceError> {
    assert_eq!((x.rows(), x.cols()), (y.rows(), y.cols()), "add_scaled: shapes differ");
    match device.backend() {
        Backend::Cpu(cpu) => cpu::rows::add_scaled(cpu.isa, x, y, by),
        Backend::Cuda(_) => cuda::rows::add_scaled(x.gpu_mut()?, y.gpu(), by)?,
    }
    Ok(())
}

/// `x[r] *= factors[r]`: x is (rows, columns) of f32.
pub fn scale_rows(device: &Device, x: &mut Tensor, factors: &[f32]) -> Result<(), DeviceError> {
    let rows = x.rows();
    let count = factors.len();
    assert_eq!(count, rows, "scale_rows: {count} factors for {rows} rows");
    match device.backend() {
        Backend::Cpu(_) => cpu::rows::scale_rows(x, factors),
        Backend::Cuda(_) => cuda::rows::scale_rows(x.gpu_mut()?, factors)?,
    }
    Ok(())
}

/// `x *= by`.
pub fn scale(device: &Device, x: &mut Tensor, by: f32) -> Result<(), DeviceError> {
    match device.backend() {
        Backend::Cpu(_) => x.data_mut().iter_mut().for_each(|x| *x *= by),
        Backend::Cuda(_) => *x = x.gpu().scaled(by, CudaDtype::F32)?.into(),
    }
    Ok(())
}

/// Adds Gaussian noise to each row of x (rows, columns) that is perturbed at [`Site::Noise`], with
/// that row's standard deviation; other rows are left unchanged.
pub fn add_noise(device: &Device, x: &mut Tensor, rows: &PerturbedRows) -> Result<(), DeviceError> {
    let count = rows.rows().len();
    assert_eq!(x.rows(), count, "add_noise: {count} perturbations for {} rows", x.rows());
    assert!(x.cols() <= MAX_ELEMENTS, "add_noise: {} columns exceed the rng counter", x.cols());
    match device.backend() {
        Backend::Cpu(_) => {
            for r in 0..count {
                if let Some(row) = rows.at(r, Site::Noise) {
                    row.key.add_noise(row.strength, x.row_mut(r));
                }
            }
        }
        Backend::Cuda(_) => cuda::noise::add_noise(x.gpu_mut()?, rows.gpu())?,
    }
    Ok(())
}

/// `to[rows[r]] += x[r]`: x is (rows, columns) of any dtype. Indices may repeat.
pub fn scatter_add(
    device: &Device,
    x: &Tensor,
    rows: &Indices,
    to: &mut Tensor,
) -> Result<(), DeviceError> {
    let count = rows.host.len();
    assert_eq!(
        (x.rows(), x.cols()),
        (count, to.cols()),
        "scatter_add: {count} rows of {} columns",
        to.cols()
    );
    match device.backend() {
        Backend::Cpu(_) => {
            for (r, &row) in rows.host.iter().enumerate() {
                to.row_mut(row as usize).iter_mut().zip(x.row(r)).for_each(|(t, x)| *t += x);
            }
        }
        Backend::Cuda(_) => cuda::embedding::scatter_add(x.gpu(), rows.gpu(), to.gpu_mut()?)?,
    }
    Ok(())
}

/// `x = 0`.
pub fn fill_zero(device: &Device, x: &mut Tensor) -> Result<(), DeviceError> {
    match device.backend() {
        Backend::Cpu(_) => x.data_mut().fill(0.0),
        Backend::Cuda(_) => x.gpu_mut()?.clear()?,
    }
    Ok(())
}
