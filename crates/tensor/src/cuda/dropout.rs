//! Dropout: masks for the kernels, drawn where they are used or recorded elsewhere, and as an
//! operation of its own.

use bytemuck::{Pod, Zeroable};

use super::context::{LaunchConfig, int, kernel_args};
use super::memory::DeviceBuffer;
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor};
use crate::rng::{RngKey, Site, drop_threshold, site_word};

/// Row by row, where random numbers are drawn: uploaded once a pass, used at every layer and site
/// of it.
#[derive(Debug)]
pub(crate) struct CudaPerturbedRows {
    rows: usize,
    buffer: DeviceBuffer, // (rows) of DeviceDraw
}

/// As in prelude.cuh.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct DeviceRowPerturbation {
    seed: [u32; 2],
    position: u32,
    trajectory: u32,
    question: u32,
    drawn: u32,
    unused: [u32; 2],
}

impl CudaPerturbedRows {
    /// Uploads them; `None` leaves a row clean.
    pub(crate) fn new(cuda: &CudaDevice, rows: &[Option<RngKey>]) -> Result<Self, CudaError> {
        let all: Vec<DeviceRowPerturbation> = rows
            .iter()
            .map(|row| {
                row.as_ref()
                    .map_or_else(DeviceRowPerturbation::default, DeviceRowPerturbation::from)
            })
            .collect();
        Ok(Self { rows: rows.len(), buffer: DeviceBuffer::stage(cuda, &all)? })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.buffer.pointer()
    }
}

impl From<&RngKey> for DeviceRowPerturbation {
    fn from(draw: &RngKey) -> Self {
        let (seed, [position, trajectory, question]) = draw.key_and_counter();
        Self { seed, position, trajectory, question, drawn: 1, unused: [0; 2] }
    }
}

/// A recorded mask: 1 keeps, 0 drops.
#[derive(Debug)]
pub(crate) struct CudaKeepMask {
    rows: usize,
    cols: usize,
    buffer: DeviceBuffer, // (rows, cols) of u8
}

impl CudaKeepMask {
    /// Uploads it.
    pub(crate) fn new(
        cuda: &CudaDevice,
        rows: usize,
        cols: usize,
        keep: &[u8],
    ) -> Result<Self, CudaError> {
        assert_eq!(keep.len(), rows * cols, "dropout: a recorded mask of another shape");
        Ok(Self { rows, cols, buffer: DeviceBuffer::upload(cuda, keep)? })
    }
}

/// What dropout does to each row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CudaDropoutMask<'a> {
    /// Masks drawn from the random function.
    Sampled {
        /// The share of elements dropped.
        p: f32,
        /// In the name of the random numbers.
        layer: usize,
        /// In the name of the random numbers.
        site: Site,
        /// Where each row's numbers are drawn.
        rows: &'a CudaPerturbedRows,
    },
    /// Masks given from outside.
    Recorded {
        /// The share of elements dropped.
        p: f32,
        /// What is kept.
        keep: &'a CudaKeepMask,
    },
}

/// A mask as the kernels take it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DropoutArgs {
    pub(crate) kind: u32,
    pub(crate) pointer: u64,
    pub(crate) site: u32,
    pub(crate) threshold: u32,
    pub(crate) keep_scale: f32,
}

impl DropoutArgs {
    /// Checks that a mask fits.
    pub(crate) fn new(mask: Option<&CudaDropoutMask<'_>>, rows: usize, cols: usize) -> Self {
        match mask {
            None => Self::default(),
            Some(CudaDropoutMask::Sampled { p, layer, site, rows: draws }) => {
                assert_eq!(draws.rows, rows, "dropout: {} draws for {rows} rows", draws.rows);
                assert!(
                    cols <= crate::rng::MAX_ELEMENTS,
                    "dropout: {cols} elements cannot be named"
                );
                Self {
                    kind: 1,
                    pointer: draws.pointer(),
                    site: site_word(*layer, *site),
                    threshold: drop_threshold(*p),
                    keep_scale: 1.0 / (1.0 - p),
                }
            }
            Some(CudaDropoutMask::Recorded { p, keep }) => {
                assert_eq!(
                    (keep.rows, keep.cols),
                    (rows, cols),
                    "dropout: a recorded mask of another shape"
                );
                Self {
                    kind: 2,
                    pointer: keep.buffer.pointer(),
                    keep_scale: 1.0 / (1.0 - p),
                    ..Self::default()
                }
            }
        }
    }
}

/// `dropout(x)` in format `want`; without a mask a copy.
pub(crate) fn dropout(
    x: &CudaTensor,
    mask: Option<CudaDropoutMask<'_>>,
    want: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    let out = CudaTensor::uninit(x.cuda(), x.rows(), x.cols(), want)?;
    let DropoutArgs { kind, pointer, site, threshold, keep_scale } =
        DropoutArgs::new(mask.as_ref(), x.rows(), x.cols());
    let grid = LaunchConfig::per_row(x.rows(), x.cols().div_ceil(4));
    let (from, to, cols) = ((x.pointer(), x.dtype()), (out.pointer(), out.dtype()), int(x.cols()));
    let arguments =
        kernel_args![from.0, from.1, kind, pointer, site, threshold, keep_scale, to.0, to.1, cols];
    // SAFETY: x, out and the mask are (rows, cols).
    unsafe { x.cuda().launch("dropout", grid, arguments) }?;
    Ok(out)
}
