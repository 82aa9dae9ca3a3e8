//! A row-major matrix of numbers on a device. Everything that the engine moves is rows of hidden
//! states, so two dimensions suffice.
//!
//! Matrices of the host can be read and written by anyone. Those on a GPU are handled by
//! [`crate::ops`] alone and are brought back with [`Tensor::to_host`].

use std::sync::Arc;

use crate::cuda::{CudaDtype, CudaTensor};
use crate::device::Backend;
use crate::{Device, DeviceError};

/// A matrix of `rows` x `cols` numbers, row after row.
#[derive(Clone, Debug)]
pub struct Tensor {
    rows: usize,
    cols: usize,
    data: TensorStorage, // (rows, cols)
}

#[derive(Clone, Debug)]
enum TensorStorage {
    Host(Vec<f32>),
    Cuda(Arc<CudaTensor>),
}

impl Default for Tensor {
    fn default() -> Self {
        Self::zeros(0, 0)
    }
}

impl PartialEq for Tensor {
    /// Whether both are of the host and hold equal numbers.
    fn eq(&self, other: &Self) -> bool {
        match (&self.data, &other.data) {
            (TensorStorage::Host(a), TensorStorage::Host(b)) => {
                (self.rows, self.cols) == (other.rows, other.cols) && a == b
            }
            _ => false,
        }
    }
}

impl From<CudaTensor> for Tensor {
    fn from(array: CudaTensor) -> Self {
        Self { rows: array.rows(), cols: array.cols(), data: TensorStorage::Cuda(Arc::new(array)) }
    }
}

impl Tensor {
    /// A matrix of zeros on the host.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: TensorStorage::Host(vec![0.0; rows * cols]) }
    }

    /// A matrix of zeros in single precision on a device.
    pub fn zeros_on(device: &Device, rows: usize, cols: usize) -> Result<Self, DeviceError> {
        match device.backend() {
            Backend::Cpu(_) => Ok(Self::zeros(rows, cols)),
            Backend::Cuda(cuda) => Ok(CudaTensor::zeros(cuda, rows, cols, CudaDtype::F32)?.into()),
        }
    }

    /// A matrix on the host from its numbers.
    ///
    /// # Panics
    /// If there are not `rows * cols` of them.
    pub fn from_vec(rows: usize, cols: usize, data: Vec<f32>) -> Self {
        assert_eq!(data.len(), rows * cols, "a {rows} x {cols} matrix needs that many numbers");
        Self { rows, cols, data: TensorStorage::Host(data) }
    }

    /// The same matrix where a device's operations can use it.
    pub fn to_device(self, device: &Device) -> Result<Self, DeviceError> {
        match (device.backend(), &self.data) {
            (Backend::Cuda(cuda), TensorStorage::Host(data)) => {
                Ok(CudaTensor::from_host(cuda, self.rows, self.cols, data)?.into())
            }
            _ => Ok(self),
        }
    }

    /// The same matrix on the host. Waits for the device if it has to.
    pub fn to_host(self) -> Result<Self, DeviceError> {
        match &self.data {
            TensorStorage::Host(_) => Ok(self),
            TensorStorage::Cuda(array) => {
                Ok(Self::from_vec(self.rows, self.cols, array.to_host()?))
            }
        }
    }

    /// Makes this a matrix of the host of `rows` x `cols` with unspecified (old or zero) contents,
    /// keeping its memory.
    pub fn reshape(&mut self, rows: usize, cols: usize) {
        let mut data = match std::mem::replace(&mut self.data, TensorStorage::Host(Vec::new())) {
            TensorStorage::Host(data) => data,
            TensorStorage::Cuda(_) => Vec::new(),
        };
        data.resize(rows * cols, 0.0);
        *self = Self { rows, cols, data: TensorStorage::Host(data) };
    }

    /// The same numbers in rows of another length.
    ///
    /// # Panics
    /// If they are not as many.
    pub fn with_shape(mut self, rows: usize, cols: usize) -> Result<Self, DeviceError> {
        assert_eq!(
            self.rows * self.cols,
            rows * cols,
            "{} x {} numbers are not {rows} x {cols}",
            self.rows,
            self.cols
        );
        if matches!(self.data, TensorStorage::Cuda(_)) {
            self.gpu_mut()?.set_shape(rows, cols);
        }
        (self.rows, self.cols) = (rows, cols);
        Ok(self)
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All numbers, row after row.
    ///
    /// # Panics
    /// If they are on a GPU, as all that follow.
    pub fn data(&self) -> &[f32] {
        match &self.data {
            TensorStorage::Host(data) => data,
            TensorStorage::Cuda(_) => panic!("this matrix is on a gpu; bring it to the host first"),
        }
    }

    /// All numbers, to be written.
    pub fn data_mut(&mut self) -> &mut [f32] {
        self.host_mut()
    }

    fn host_mut(&mut self) -> &mut Vec<f32> {
        match &mut self.data {
            TensorStorage::Host(data) => data,
            TensorStorage::Cuda(_) => panic!("this matrix is on a gpu; bring it to the host first"),
        }
    }

    /// One row.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data()[i * self.cols..(i + 1) * self.cols]
    }

    /// One row, to be written.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        let cols = self.cols;
        &mut self.data_mut()[i * cols..(i + 1) * cols]
    }

    /// The rows `picked`, in that order, as a matrix of their own.
    pub fn select(&self, picked: impl ExactSizeIterator<Item = usize>) -> Self {
        let rows = picked.len();
        let mut data = Vec::with_capacity(rows * self.cols);
        for i in picked {
            data.extend_from_slice(self.row(i));
        }
        Self::from_vec(rows, self.cols, data)
    }

    /// Adds all rows of another matrix at the end.
    ///
    /// # Panics
    /// If they are not as wide as these.
    pub fn extend(&mut self, other: &Self) {
        assert!(
            other.rows == 0 || other.cols == self.cols,
            "every row of a matrix has {} columns",
            self.cols
        );
        self.host_mut().extend_from_slice(other.data());
        self.rows += other.rows;
    }

    /// Adds a row at the end.
    ///
    /// # Panics
    /// If it is not as wide as the others.
    pub fn push(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.cols, "every row of a matrix has {} columns", self.cols);
        self.host_mut().extend_from_slice(row);
        self.rows += 1;
    }

    /// Gives memory on a GPU back, so that the next who asks has it while it is still in the cache.
    /// The host's stays, for what is written there next.
    pub fn release(&mut self) {
        if matches!(self.data, TensorStorage::Cuda(_)) {
            *self = Self::default();
        }
    }

    /// The matrix on the GPU.
    pub(crate) fn gpu(&self) -> &CudaTensor {
        match &self.data {
            TensorStorage::Cuda(array) => array,
            TensorStorage::Host(_) => {
                panic!("this matrix is on the host; bring it to the gpu first")
            }
        }
    }

    /// Whether it is on the GPU and others hold it too.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(&self.data, TensorStorage::Cuda(array) if Arc::strong_count(array) > 1)
    }

    /// The matrix on the GPU, to be written: a copy of its own if others hold it too.
    pub(crate) fn gpu_mut(&mut self) -> Result<&mut CudaTensor, DeviceError> {
        let TensorStorage::Cuda(array) = &mut self.data else {
            panic!("this matrix is on the host; bring it to the gpu first")
        };
        if Arc::get_mut(array).is_none() {
            *array = Arc::new(array.copy()?);
        }
        Ok(Arc::get_mut(array).unwrap_or_else(|| unreachable!("a copy of one's own")))
    }
}
