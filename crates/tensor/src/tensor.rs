//! A row-major matrix on a device. All data of the engine are rows of hidden states, so two
//! dimensions suffice.
//!
//! Matrices on the host can be read and written element by element. Those on a GPU are processed by
//! [`crate::ops`] and copied back with [`Tensor::to_host`].

use std::sync::Arc;

use crate::cuda::{CudaDtype, CudaTensor};
use crate::device::Backend;
use crate::{Device, DeviceError};

/// A matrix (rows, cols), of f32 on the host.
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
    /// Whether both are on the host, have the same shape, and have equal elements.
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

    /// A matrix of zeros, f32, on a device.
    pub fn zeros_on(device: &Device, rows: usize, cols: usize) -> Result<Self, DeviceError> {
        match device.backend() {
            Backend::Cpu(_) => Ok(Self::zeros(rows, cols)),
            Backend::Cuda(cuda) => Ok(CudaTensor::zeros(cuda, rows, cols, CudaDtype::F32)?.into()),
        }
    }

    /// A matrix on the host from its elements, row by row.
    ///
    /// # Panics
    /// If there are not `rows * cols` elements.
    pub fn from_vec(rows: usize, cols: usize, data: Vec<f32>) -> Self {
        assert_eq!(data.len(), rows * cols, "a {rows} x {cols} matrix has that many elements");
        Self { rows, cols, data: TensorStorage::Host(data) }
    }

    /// The matrix in the device's memory.
    pub fn to_device(self, device: &Device) -> Result<Self, DeviceError> {
        match (device.backend(), &self.data) {
            (Backend::Cuda(cuda), TensorStorage::Host(data)) => {
                Ok(CudaTensor::from_host(cuda, self.rows, self.cols, data)?.into())
            }
            _ => Ok(self),
        }
    }

    /// The matrix on the host, as f32. Synchronizes with the device if it is on one.
    pub fn to_host(self) -> Result<Self, DeviceError> {
        match &self.data {
            TensorStorage::Host(_) => Ok(self),
            TensorStorage::Cuda(array) => {
                Ok(Self::from_vec(self.rows, self.cols, array.to_host()?))
            }
        }
    }

    /// Makes this a matrix (rows, cols) on the host with unspecified (old or zero) elements,
    /// reusing its memory.
    pub fn reshape(&mut self, rows: usize, cols: usize) {
        let mut data = match std::mem::replace(&mut self.data, TensorStorage::Host(Vec::new())) {
            TensorStorage::Host(data) => data,
            TensorStorage::Cuda(_) => Vec::new(),
        };
        data.resize(rows * cols, 0.0);
        *self = Self { rows, cols, data: TensorStorage::Host(data) };
    }

    /// The same elements with another row length.
    ///
    /// # Panics
    /// If the number of elements differs.
    pub fn with_shape(mut self, rows: usize, cols: usize) -> Result<Self, DeviceError> {
        assert_eq!(
            self.rows * self.cols,
            rows * cols,
            "{} x {} elements are not {rows} x {cols}",
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

    /// All elements, row by row.
    ///
    /// # Panics
    /// If the matrix is on a GPU; so do all methods below.
    pub fn data(&self) -> &[f32] {
        match &self.data {
            TensorStorage::Host(data) => data,
            TensorStorage::Cuda(_) => panic!("this matrix is on a gpu; copy it to the host first"),
        }
    }

    /// Mutable access to all elements.
    pub fn data_mut(&mut self) -> &mut [f32] {
        self.host_mut()
    }

    /// All elements, row by row, without a copy.
    pub fn into_data(mut self) -> Vec<f32> {
        std::mem::take(self.host_mut())
    }

    fn host_mut(&mut self) -> &mut Vec<f32> {
        match &mut self.data {
            TensorStorage::Host(data) => data,
            TensorStorage::Cuda(_) => panic!("this matrix is on a gpu; copy it to the host first"),
        }
    }

    /// One row.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data()[i * self.cols..(i + 1) * self.cols]
    }

    /// Mutable access to one row.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        let cols = self.cols;
        &mut self.data_mut()[i * cols..(i + 1) * cols]
    }

    /// Gathers the rows `picked`, in that order.
    pub fn select(&self, picked: impl ExactSizeIterator<Item = usize>) -> Self {
        let rows = picked.len();
        let mut data = Vec::with_capacity(rows * self.cols);
        for i in picked {
            data.extend_from_slice(self.row(i));
        }
        Self::from_vec(rows, self.cols, data)
    }

    /// Appends all rows of another matrix.
    ///
    /// # Panics
    /// If their width differs.
    pub fn extend(&mut self, other: &Self) {
        assert!(
            other.rows == 0 || other.cols == self.cols,
            "every row of a matrix has {} columns",
            self.cols
        );
        self.host_mut().extend_from_slice(other.data());
        self.rows += other.rows;
    }

    /// Appends a row.
    ///
    /// # Panics
    /// If its width differs.
    pub fn push(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.cols, "every row of a matrix has {} columns", self.cols);
        self.host_mut().extend_from_slice(row);
        self.rows += 1;
    }

    /// Frees memory on a GPU, so that the next allocation reuses it while it is in the L2 cache.
    /// Memory on the host is retained, for [`Tensor::reshape`].
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
                panic!("this matrix is on the host; copy it to the gpu first")
            }
        }
    }

    /// Whether it is on a GPU and another tensor shares its memory.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(&self.data, TensorStorage::Cuda(array) if Arc::strong_count(array) > 1)
    }

    /// Mutable access to the matrix on the GPU: copied first if it is shared.
    pub(crate) fn gpu_mut(&mut self) -> Result<&mut CudaTensor, DeviceError> {
        let TensorStorage::Cuda(array) = &mut self.data else {
            panic!("this matrix is on the host; copy it to the gpu first")
        };
        if Arc::get_mut(array).is_none() {
            *array = Arc::new(array.copy()?);
        }
        Ok(Arc::get_mut(array).unwrap_or_else(|| unreachable!("just copied")))
    }
}
