//! Dropout masks: drawn where they are used, or recorded elsewhere.

use crate::cuda;
use crate::device::Kind;
use crate::rng::{Draw, MAX_ELEMENTS, Site};
use crate::{Device, DeviceError};

/// Row by row, where random numbers are drawn; `None` leaves a row as it is.
#[derive(Debug)]
pub struct Draws {
    rows: Vec<Option<Draw>>,
    on_gpu: Option<cuda::mask::Draws>,
}

impl Draws {
    /// Brings them to the device.
    pub fn new(device: &Device, rows: Vec<Option<Draw>>) -> Result<Self, DeviceError> {
        let on_gpu = match device.kind() {
            Kind::Cpu(_) => None,
            Kind::Cuda(cuda) => Some(cuda::mask::Draws::new(cuda, &rows)?),
        };
        Ok(Self { rows, on_gpu })
    }

    /// The draws.
    pub fn rows(&self) -> &[Option<Draw>] {
        &self.rows
    }

    pub(crate) fn gpu(&self) -> &cuda::mask::Draws {
        self.on_gpu.as_ref().unwrap_or_else(|| panic!("these draws are not on the gpu"))
    }
}

/// A mask given from outside, to replay another implementation's: 1 keeps, 0 drops.
#[derive(Debug)]
pub struct Keep {
    keep: Vec<u8>, // (rows, cols)
    on_gpu: Option<cuda::mask::Keep>,
}

impl Keep {
    /// Brings it to the device; it is (rows, cols).
    pub fn new(device: &Device, rows: usize, cols: usize, keep: Vec<u8>) -> Result<Self, DeviceError> {
        assert_eq!(keep.len(), rows * cols, "dropout: a recorded mask of another shape");
        let on_gpu = match device.kind() {
            Kind::Cpu(_) => None,
            Kind::Cuda(cuda) => Some(cuda::mask::Keep::new(cuda, rows, cols, &keep)?),
        };
        Ok(Self { keep, on_gpu })
    }

    pub(crate) fn host(&self) -> &[u8] {
        &self.keep
    }

    fn gpu(&self) -> &cuda::mask::Keep {
        self.on_gpu.as_ref().unwrap_or_else(|| panic!("this mask is not on the gpu"))
    }
}

/// What dropout does to each row of a result.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// Masks drawn from the random function.
    Drawn {
        /// The share of elements dropped.
        p: f32,
        /// The layer in the name of the random numbers.
        layer: usize,
        /// The site in the name of the random numbers.
        site: Site,
        /// Where each row's numbers are drawn. (rows)
        draws: &'a Draws,
    },
    /// Masks given from outside.
    Recorded {
        /// The share of elements dropped.
        p: f32,
        /// What is kept. (rows, outputs)
        keep: &'a Keep,
    },
}

impl<'a> Mask<'a> {
    pub(crate) fn check(&self, rows: usize, cols: usize) {
        match self {
            Self::Drawn { draws, .. } => {
                assert_eq!(draws.rows.len(), rows, "dropout: {} draws for {rows} rows", draws.rows.len());
                assert!(cols <= MAX_ELEMENTS, "dropout: {cols} elements cannot be named");
            }
            Self::Recorded { keep, .. } => assert_eq!(keep.keep.len(), rows * cols, "dropout: a recorded mask of another shape"),
        }
    }

    pub(crate) fn gpu(self) -> cuda::mask::DeviceMask<'a> {
        match self {
            Self::Drawn { p, layer, site, draws } => cuda::mask::DeviceMask::Drawn { p, layer, site, draws: draws.gpu() },
            Self::Recorded { p, keep } => cuda::mask::DeviceMask::Recorded { p, keep: keep.gpu() },
        }
    }
}
