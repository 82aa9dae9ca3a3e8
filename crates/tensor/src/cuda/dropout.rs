//! Dropout: its masks as kernel arguments, and as a separate operation.

use bytemuck::{Pod, Zeroable};

use super::args::CudaDropoutMask;
use super::context::{LaunchConfig, int, kernel_args};
use super::memory::DeviceBuffer;
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor};
use crate::params::{RowPerturbation, keep_scale};
use crate::rng::{MAX_ELEMENTS, Site, drop_threshold, site_word};

/// The perturbation of each row: uploaded once per pass, read at every layer and site.
#[derive(Debug)]
pub(crate) struct CudaPerturbedRows {
    rows: usize,
    buffer: DeviceBuffer, // (rows) of DeviceRowPerturbation
}

/// `RowPerturbation` of prelude.cuh. All zeros for an unperturbed row.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct DeviceRowPerturbation {
    seed: [u32; 2],
    position: u32,
    trajectory: u32,
    question: u32,
    sites: u32,
    threshold: u32, // dropout: elements with smaller words are dropped
    // Dropout: the scale of retained elements; noise: the standard deviation; Gumbel noise: the
    // temperature.
    scale: f32,
}

impl CudaPerturbedRows {
    pub(crate) fn new(
        cuda: &CudaDevice,
        rows: &[Option<RowPerturbation>],
    ) -> Result<Self, CudaError> {
        let all: Vec<DeviceRowPerturbation> =
            rows.iter().map(|row| row.map_or_else(Default::default, Into::into)).collect();
        Ok(Self { rows: rows.len(), buffer: DeviceBuffer::stage(cuda, &all)? })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.buffer.pointer()
    }

    /// The device address of a row's perturbation, followed by those of later rows.
    pub(crate) fn at(&self, row: usize) -> u64 {
        self.pointer() + (row * size_of::<DeviceRowPerturbation>()) as u64
    }
}

impl From<RowPerturbation> for DeviceRowPerturbation {
    fn from(RowPerturbation { key, strength, sites }: RowPerturbation) -> Self {
        let (seed, [position, trajectory, question]) = key.key_and_counter();
        let (threshold, scale) = if sites.contains(Site::Noise) || sites.contains(Site::Gumbel) {
            (0, strength)
        } else {
            (drop_threshold(strength), keep_scale(strength))
        };
        Self { seed, position, trajectory, question, sites: sites.bits(), threshold, scale }
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

/// A mask as kernel arguments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DropoutArgs {
    pub(crate) kind: u32,       // 0: none, 1: sampled, 2: recorded
    pub(crate) pointer: u64,    // address of the rows' perturbations, or of the recorded mask
    pub(crate) site: u32,       // sampled: site and layer in the random counter
    pub(crate) keep_scale: f32, // recorded: the scale of retained elements
}

impl DropoutArgs {
    /// Checks that a mask has the shape of the result.
    pub(crate) fn new(mask: Option<&CudaDropoutMask<'_>>, rows: usize, cols: usize) -> Self {
        match mask.copied() {
            None => Self::default(),
            Some(CudaDropoutMask::Sampled { layer, site, rows: perturbed }) => {
                let count = perturbed.rows;
                assert_eq!(count, rows, "dropout: {count} perturbations for {rows} rows");
                assert!(cols <= MAX_ELEMENTS, "dropout: {cols} columns exceed the rng counter");
                let site = site_word(layer, site);
                Self { kind: 1, pointer: perturbed.pointer(), site, ..Self::default() }
            }
            Some(CudaDropoutMask::Recorded { p, keep }) => {
                let shape = (keep.rows, keep.cols);
                assert_eq!(shape, (rows, cols), "dropout: a recorded mask of another shape");
                let pointer = keep.buffer.pointer();
                let keep_scale = keep_scale(p);
                Self { kind: 2, pointer, keep_scale, ..Self::default() }
            }
        }
    }
}

/// `dropout(x)` in the given dtype; a copy if there is no mask.
pub(crate) fn dropout(
    x: &CudaTensor,
    mask: Option<CudaDropoutMask<'_>>,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    let out = CudaTensor::uninit(x.cuda(), x.rows(), x.cols(), dtype)?;
    let DropoutArgs { kind, pointer, site, keep_scale } =
        DropoutArgs::new(mask.as_ref(), x.rows(), x.cols());
    let config = LaunchConfig::per_row(x.rows(), x.cols().div_ceil(4));
    let arguments = kernel_args![
        x.pointer(),
        x.dtype(),
        kind,
        pointer,
        site,
        keep_scale,
        out.pointer(),
        out.dtype(),
        int(x.cols()),
    ];
    // SAFETY: x, out and the mask are (rows, cols).
    unsafe { x.cuda().launch("dropout", config, arguments) }?;
    Ok(out)
}
