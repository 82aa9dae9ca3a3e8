//! Dropout: masks for the kernels, drawn where they are used or recorded elsewhere, and as an operation of its own.

use bytemuck::{Pod, Zeroable};

use super::array::Buffer;
use super::context::{Grid, int, slots};
use super::{Array, Cuda, CudaError, Dtype};
use crate::rng::{Draw, Site, drop_threshold, site_word};

/// Row by row, where random numbers are drawn: uploaded once a pass, used at every layer and site of it.
#[derive(Debug)]
pub(crate) struct Draws {
    rows: usize,
    buffer: Buffer, // (rows) of DeviceDraw
}

/// As in prelude.cuh.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct DeviceDraw {
    seed: [u32; 2],
    position: u32,
    trajectory: u32,
    question: u32,
    drawn: u32,
    unused: [u32; 2],
}

impl Draws {
    /// Uploads them; `None` leaves a row clean.
    pub(crate) fn new(cuda: &Cuda, rows: &[Option<Draw>]) -> Result<Self, CudaError> {
        let all: Vec<DeviceDraw> =
            rows.iter().map(|row| row.as_ref().map_or_else(DeviceDraw::default, DeviceDraw::from)).collect();
        Ok(Self { rows: rows.len(), buffer: Buffer::send(cuda, &all)? })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.buffer.pointer()
    }
}

impl From<&Draw> for DeviceDraw {
    fn from(draw: &Draw) -> Self {
        let (seed, [position, trajectory, question]) = draw.words();
        Self { seed, position, trajectory, question, drawn: 1, unused: [0; 2] }
    }
}

/// A recorded mask: 1 keeps, 0 drops.
#[derive(Debug)]
pub(crate) struct Keep {
    rows: usize,
    cols: usize,
    buffer: Buffer, // (rows, cols) of u8
}

impl Keep {
    /// Uploads it.
    pub(crate) fn new(cuda: &Cuda, rows: usize, cols: usize, keep: &[u8]) -> Result<Self, CudaError> {
        assert_eq!(keep.len(), rows * cols, "dropout: a recorded mask of another shape");
        Ok(Self { rows, cols, buffer: Buffer::upload(cuda, keep)? })
    }
}

/// What dropout does to each row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceMask<'a> {
    /// Masks drawn from the random function.
    Drawn {
        /// The share of elements dropped.
        p: f32,
        /// In the name of the random numbers.
        layer: usize,
        /// In the name of the random numbers.
        site: Site,
        /// Where each row's numbers are drawn.
        draws: &'a Draws,
    },
    /// Masks given from outside.
    Recorded {
        /// The share of elements dropped.
        p: f32,
        /// What is kept.
        keep: &'a Keep,
    },
}

/// A mask as the kernels take it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MaskArguments {
    pub(crate) kind: u32,
    pub(crate) pointer: u64,
    pub(crate) site: u32,
    pub(crate) threshold: u32,
    pub(crate) keep_scale: f32,
}

impl MaskArguments {
    /// Checks that a mask fits.
    pub(crate) fn new(mask: Option<&DeviceMask<'_>>, rows: usize, cols: usize) -> Self {
        match mask {
            None => Self::default(),
            Some(DeviceMask::Drawn { p, layer, site, draws }) => {
                assert_eq!(draws.rows, rows, "dropout: {} draws for {rows} rows", draws.rows);
                assert!(cols <= crate::rng::MAX_ELEMENTS, "dropout: {cols} elements cannot be named");
                Self {
                    kind: 1,
                    pointer: draws.pointer(),
                    site: site_word(*layer, *site),
                    threshold: drop_threshold(*p),
                    keep_scale: 1.0 / (1.0 - p),
                }
            }
            Some(DeviceMask::Recorded { p, keep }) => {
                assert_eq!((keep.rows, keep.cols), (rows, cols), "dropout: a recorded mask of another shape");
                Self { kind: 2, pointer: keep.buffer.pointer(), keep_scale: 1.0 / (1.0 - p), ..Self::default() }
            }
        }
    }
}

/// `dropout(x)` in format `want`; without a mask a copy.
pub(crate) fn dropout(x: &Array, mask: Option<DeviceMask<'_>>, want: Dtype) -> Result<Array, CudaError> {
    let out = Array::uninit(x.cuda(), x.rows(), x.cols(), want)?;
    let MaskArguments { kind, pointer, site, threshold, keep_scale } = MaskArguments::new(mask.as_ref(), x.rows(), x.cols());
    let grid = Grid::rows(x.rows(), x.cols().div_ceil(4));
    let (from, to, cols) = ((x.pointer(), x.dtype()), (out.pointer(), out.dtype()), int(x.cols()));
    let arguments = slots![from.0, from.1, kind, pointer, site, threshold, keep_scale, to.0, to.1, cols];
    // SAFETY: x, out and the mask are (rows, cols).
    unsafe { x.cuda().launch("dropout", grid, arguments) }?;
    Ok(out)
}
