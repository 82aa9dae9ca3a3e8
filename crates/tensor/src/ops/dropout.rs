//! Dropout: its masks, drawn where they are used or recorded elsewhere, and as an operation of its
//! own.

use rayon::prelude::*;

use super::OutputDtype;
use crate::cpu::linear::TILE_COLS;
use crate::device::Backend;
use crate::rng::{MAX_ELEMENTS, RngKey, Site, drop_threshold, philox_lanes, site_word};
use crate::{Device, DeviceError, Tensor, cuda};

/// Row by row, where random numbers are drawn; `None` leaves a row as it is.
#[derive(Debug)]
pub struct PerturbedRows {
    rows: Vec<Option<RngKey>>,
    on_gpu: Option<cuda::dropout::CudaPerturbedRows>,
}

impl PerturbedRows {
    /// Brings them to the device.
    pub fn new(device: &Device, rows: Vec<Option<RngKey>>) -> Result<Self, DeviceError> {
        let on_gpu = match device.backend() {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda::dropout::CudaPerturbedRows::new(cuda, &rows)?),
        };
        Ok(Self { rows, on_gpu })
    }

    /// The draws.
    pub fn rows(&self) -> &[Option<RngKey>] {
        &self.rows
    }

    pub(crate) fn gpu(&self) -> &cuda::dropout::CudaPerturbedRows {
        self.on_gpu.as_ref().unwrap_or_else(|| panic!("these draws are not on the gpu"))
    }
}

/// A mask given from outside, to replay another implementation's: 1 keeps, 0 drops.
#[derive(Debug)]
pub struct KeepMask {
    keep: Vec<u8>, // (rows, cols)
    on_gpu: Option<cuda::dropout::CudaKeepMask>,
}

impl KeepMask {
    /// Brings it to the device; it is (rows, cols).
    pub fn new(
        device: &Device,
        rows: usize,
        cols: usize,
        keep: Vec<u8>,
    ) -> Result<Self, DeviceError> {
        assert_eq!(keep.len(), rows * cols, "dropout: a recorded mask of another shape");
        let on_gpu = match device.backend() {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda::dropout::CudaKeepMask::new(cuda, rows, cols, &keep)?),
        };
        Ok(Self { keep, on_gpu })
    }

    fn gpu(&self) -> &cuda::dropout::CudaKeepMask {
        self.on_gpu.as_ref().unwrap_or_else(|| panic!("this mask is not on the gpu"))
    }
}

/// What dropout does to each row of a result.
#[derive(Clone, Copy, Debug)]
pub enum DropoutMask<'a> {
    /// Masks drawn from the random function.
    Sampled {
        /// The share of elements dropped.
        p: f32,
        /// The layer in the name of the random numbers.
        layer: usize,
        /// The site in the name of the random numbers.
        site: Site,
        /// Where each row's numbers are drawn. (rows)
        rows: &'a PerturbedRows,
    },
    /// Masks given from outside.
    Recorded {
        /// The share of elements dropped.
        p: f32,
        /// What is kept. (rows, outputs)
        keep: &'a KeepMask,
    },
}

impl<'a> DropoutMask<'a> {
    pub(crate) fn check(&self, rows: usize, cols: usize) {
        match self {
            Self::Sampled { rows: draws, .. } => {
                assert_eq!(
                    draws.rows.len(),
                    rows,
                    "dropout: {} draws for {rows} rows",
                    draws.rows.len()
                );
                assert!(cols <= MAX_ELEMENTS, "dropout: {cols} elements cannot be named");
            }
            Self::Recorded { keep, .. } => assert_eq!(
                keep.keep.len(),
                rows * cols,
                "dropout: a recorded mask of another shape"
            ),
        }
    }

    /// Inverted dropout of columns `col ..` (a multiple of 4; at most `TILE_COLS` of them) of a row
    /// of `cols`.
    #[inline(always)]
    pub(crate) fn apply(&self, row: usize, (col, cols): (usize, usize), values: &mut [f32]) {
        match *self {
            Self::Sampled { p, layer, site, rows: draws } => {
                if let Some(draw) = &draws.rows[row] {
                    apply_philox_mask(values, draw, site_word(layer, site), col, p);
                }
            }
            Self::Recorded { p, keep } => {
                let keep = &keep.keep[row * cols + col..];
                let scale = 1.0 / (1.0 - p);
                values
                    .iter_mut()
                    .zip(keep)
                    .for_each(|(x, &k)| *x = if k != 0 { *x * scale } else { 0.0 });
            }
        }
    }

    pub(crate) fn gpu(self) -> cuda::dropout::CudaDropoutMask<'a> {
        match self {
            Self::Sampled { p, layer, site, rows: draws } => {
                cuda::dropout::CudaDropoutMask::Sampled { p, layer, site, rows: draws.gpu() }
            }
            Self::Recorded { p, keep } => {
                cuda::dropout::CudaDropoutMask::Recorded { p, keep: keep.gpu() }
            }
        }
    }
}

#[inline(always)]
fn apply_philox_mask(values: &mut [f32], draw: &RngKey, site: u32, col: usize, p: f32) {
    const LANES: usize = TILE_COLS / 4;
    let (key, rest) = draw.key_and_counter();
    let (threshold, scale) = (drop_threshold(p), 1.0 / (1.0 - p));
    let first = site | (col / 4) as u32;
    let words: [u32; LANES] = std::array::from_fn(|l| first + l as u32);
    let bits = philox_lanes(words, rest, key);
    for (x, &b) in values.iter_mut().zip(bits.as_flattened()) {
        *x = if b >= threshold { *x * scale } else { 0.0 };
    }
}

/// `out = dropout(x)`, both (rows, cols); without a mask a copy. Its backward is itself, of the
/// gradient.
pub fn dropout(
    device: &Device,
    x: &Tensor,
    mask: Option<DropoutMask<'_>>,
    format: OutputDtype,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    let (rows, cols) = (x.rows(), x.cols());
    if let Some(mask) = &mask {
        mask.check(rows, cols);
    }
    match device.backend() {
        Backend::Cpu(_) => {
            out.reshape(rows, cols);
            out.data_mut().copy_from_slice(x.data());
            let Some(mask) = mask else { return Ok(()) };
            out.data_mut().par_chunks_mut(cols.max(1)).enumerate().for_each(|(r, row)| {
                row.chunks_mut(TILE_COLS)
                    .enumerate()
                    .for_each(|(i, part)| mask.apply(r, (i * TILE_COLS, cols), part));
            });
        }
        Backend::Cuda(cuda) => {
            *out = cuda::dropout::dropout(
                x.gpu(),
                mask.map(DropoutMask::gpu),
                format.cuda_dtype(cuda),
            )?
            .into()
        }
    }
    Ok(())
}
