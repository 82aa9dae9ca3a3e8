//! A row-major matrix of `f32`. Everything that the engine moves is rows of hidden states, so two dimensions suffice.

/// A matrix of `rows` x `cols` numbers, row after row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensor {
    rows: usize,
    cols: usize,
    data: Vec<f32>, // (rows, cols)
}

impl Tensor {
    /// A matrix of zeros.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }

    /// A matrix from its numbers.
    ///
    /// # Panics
    /// If there are not `rows * cols` of them.
    pub fn from_vec(rows: usize, cols: usize, data: Vec<f32>) -> Self {
        assert_eq!(data.len(), rows * cols, "a {rows} x {cols} matrix needs that many numbers");
        Self { rows, cols, data }
    }

    /// Makes this a matrix of `rows` x `cols` with unspecified (old or zero) contents, keeping its memory.
    pub fn reshape(&mut self, rows: usize, cols: usize) {
        self.data.resize(rows * cols, 0.0);
        self.rows = rows;
        self.cols = cols;
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
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All numbers, to be written.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// One row.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// One row, to be written.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// The rows `picked`, in that order, as a matrix of their own.
    pub fn select(&self, picked: impl ExactSizeIterator<Item = usize>) -> Self {
        let rows = picked.len();
        let mut data = Vec::with_capacity(rows * self.cols);
        for i in picked {
            data.extend_from_slice(self.row(i));
        }
        Self { rows, cols: self.cols, data }
    }

    /// Adds all rows of another matrix at the end.
    ///
    /// # Panics
    /// If they are not as wide as these.
    pub fn extend(&mut self, other: &Self) {
        assert!(other.rows == 0 || other.cols == self.cols, "every row of a matrix has {} columns", self.cols);
        self.data.extend_from_slice(&other.data);
        self.rows += other.rows;
    }

    /// Adds a row at the end.
    ///
    /// # Panics
    /// If it is not as wide as the others.
    pub fn push(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.cols, "every row of a matrix has {} columns", self.cols);
        self.data.extend_from_slice(row);
        self.rows += 1;
    }
}
