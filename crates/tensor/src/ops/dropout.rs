//! Inverted dropout, with masks that are sampled on the fly or recorded elsewhere; and the per-row
//! perturbations for dropout and noise.

use rayon::prelude::*;

use super::OutputDtype;
use crate::cpu::linear::{PANEL, TILE_COLS};
use crate::device::Backend;
use crate::params::{RowPerturbation, SiteSet, keep_scale};
use crate::rng::{LANES, MAX_ELEMENTS, Site, drop_threshold, philox_lanes, site_word};
use crate::{Device, DeviceError, Tensor, cuda};

/// The perturbation of each row of a batch, in device memory; `None` leaves a row unchanged. Rows
/// are independent: their keys, strengths and sites may all differ.
#[derive(Debug)]
pub struct PerturbedRows {
    rows: Vec<Option<RowPerturbation>>,
    on_gpu: Option<cuda::dropout::CudaPerturbedRows>,
}

impl PerturbedRows {
    /// Copies them to the device.
    ///
    /// # Panics
    /// If a row has more than one of dropout, noise and Gumbel noise, because they share its
    /// strength.
    pub fn new(device: &Device, rows: Vec<Option<RowPerturbation>>) -> Result<Self, DeviceError> {
        let kinds = [SiteSet::DROPOUT.union(SiteSet::LORA), SiteSet::NOISE, SiteSet::GUMBEL];
        let is_mixed = |row: &RowPerturbation| {
            let has = |kind: &&SiteSet| !row.sites.intersection(**kind).is_empty();
            kinds.iter().filter(has).count() > 1
        };
        assert!(!rows.iter().flatten().any(is_mixed), "a row has both dropout and noise");
        let on_gpu = match device.backend() {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda::dropout::CudaPerturbedRows::new(cuda, &rows)?),
        };
        Ok(Self { rows, on_gpu })
    }

    /// The perturbation of each row.
    pub fn rows(&self) -> &[Option<RowPerturbation>] {
        &self.rows
    }

    /// The perturbation of row `r` if it applies to `site`.
    #[inline(always)]
    pub(crate) fn at(&self, r: usize, site: Site) -> Option<&RowPerturbation> {
        self.rows[r].as_ref().filter(|row| row.sites.contains(site))
    }

    pub(crate) fn gpu(&self) -> &cuda::dropout::CudaPerturbedRows {
        self.on_gpu.as_ref().unwrap_or_else(|| panic!("these rows are not on the gpu"))
    }
}

/// A recorded mask, to reproduce another implementation's dropout: 1 keeps, 0 drops.
#[derive(Debug)]
pub struct KeepMask {
    keep: Vec<u8>, // (rows, cols)
    on_gpu: Option<cuda::dropout::CudaKeepMask>,
}

impl KeepMask {
    /// Copies a mask (rows, cols) to the device.
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

/// The mask by which dropout multiplies a result (rows, cols).
#[derive(Clone, Copy, Debug)]
pub enum DropoutMask<'a> {
    /// Philox bits, keyed by row, layer and site. Each row has its own probability; a row that is
    /// not perturbed at this site is left unchanged.
    Sampled {
        /// The layer, part of the random counter.
        layer: usize,
        /// The site, part of the random counter.
        site: Site,
        /// The rows' keys and probabilities. (rows)
        rows: &'a PerturbedRows,
    },
    /// A recorded mask.
    Recorded {
        /// The dropout probability of the mask, which determines the scale.
        p: f32,
        /// The mask. (rows, cols)
        keep: &'a KeepMask,
    },
}

impl<'a> DropoutMask<'a> {
    pub(crate) fn check(&self, rows: usize, cols: usize) {
        match self {
            Self::Sampled { rows: perturbed, .. } => {
                let count = perturbed.rows.len();
                assert_eq!(count, rows, "dropout: {count} perturbations for {rows} rows");
                assert!(cols <= MAX_ELEMENTS, "dropout: {cols} columns exceed the rng counter");
            }
            Self::Recorded { keep, .. } => assert_eq!(
                keep.keep.len(),
                rows * cols,
                "dropout: a recorded mask of another shape"
            ),
        }
    }

    /// Applies the mask to columns `col ..` (a multiple of 4; at most `TILE_COLS` of them) of a row
    /// of `cols` columns. `FUSED` is as in [`crate::cpu::isa`].
    #[inline(always)]
    pub(crate) fn apply<const FUSED: bool>(
        &self,
        row: usize,
        col: usize,
        cols: usize,
        values: &mut [f32],
    ) {
        match *self {
            Self::Sampled { layer, site, rows } => {
                if let Some(perturbation) = rows.at(row, site) {
                    let word = site_word(layer, site);
                    apply_philox_mask::<FUSED>(values, perturbation, word, col);
                }
            }
            Self::Recorded { p, keep } => {
                let keep = &keep.keep[row * cols + col..];
                let scale = keep_scale(p);
                values
                    .iter_mut()
                    .zip(keep)
                    .for_each(|(x, &k)| *x = if k != 0 { *x * scale } else { 0.0 });
            }
        }
    }

    pub(crate) fn gpu(self) -> cuda::args::CudaDropoutMask<'a> {
        match self {
            Self::Sampled { layer, site, rows } => {
                cuda::args::CudaDropoutMask::Sampled { layer, site, rows: rows.gpu() }
            }
            Self::Recorded { p, keep } => {
                cuda::args::CudaDropoutMask::Recorded { p, keep: keep.gpu() }
            }
        }
    }
}

#[inline(always)]
fn apply_philox_mask<const FUSED: bool>(
    values: &mut [f32],
    row: &RowPerturbation,
    site_word: u32,
    col: usize,
) {
    const { assert!(TILE_COLS == 4 * LANES) };
    let (key, rest) = row.key.key_and_counter();
    let threshold = drop_threshold(row.strength);
    let scale = keep_scale(row.strength);
    let bits = philox_lanes::<FUSED>(site_word | (col / 4) as u32, rest, key);
    // A mask of all bits or none, because compilers turn a choice into a branch per number.
    let kept = |x: f32, bits: u32| {
        let mask = 0u32.wrapping_sub(u32::from(bits >= threshold));
        f32::from_bits((x * scale).to_bits() & mask)
    };
    // Arrays of a register's length, which compilers process at once.
    let bits = bits.as_flattened();
    let (registers, rest) = values.as_chunks_mut::<PANEL>();
    let (bits, bits_rest) = bits.split_at(PANEL * registers.len());
    for (x, bits) in registers.iter_mut().zip(bits.as_chunks::<PANEL>().0) {
        *x = std::array::from_fn(|l| kept(x[l], bits[l]));
    }
    rest.iter_mut().zip(bits_rest).for_each(|(x, &bits)| *x = kept(*x, bits));
}

/// `out = dropout(x)`, both (rows, cols); a copy if there is no mask. The gradient passes back
/// through the same operation with the same mask.
pub fn dropout(
    device: &Device,
    x: &Tensor,
    mask: Option<DropoutMask<'_>>,
    dtype: OutputDtype,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    let rows = x.rows();
    let cols = x.cols();
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
                    .for_each(|(i, part)| mask.apply::<false>(r, i * TILE_COLS, cols, part));
            });
        }
        Backend::Cuda(cuda) => {
            let mask = mask.map(DropoutMask::gpu);
            *out = cuda::dropout::dropout(x.gpu(), mask, dtype.cuda_dtype(cuda))?.into();
        }
    }
    Ok(())
}
