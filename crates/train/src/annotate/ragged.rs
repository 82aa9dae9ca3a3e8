//! Ragged arrays: lists of different lengths as two flat arrays, values and end offsets.

use std::ops::Range;

/// The concatenated values of all lists, and the end offset of each list.
#[derive(Debug)]
pub(super) struct RaggedArray<T> {
    pub(super) values: Vec<T>,
    pub(super) ends: Vec<u64>,
}

impl<T> Default for RaggedArray<T> {
    fn default() -> Self {
        Self { values: Vec::new(), ends: Vec::new() }
    }
}

impl<T: Copy> RaggedArray<T> {
    /// Builds it from arrays of a file, checking that the ends ascend to the number of values.
    pub(super) fn read(name: &str, values: Vec<T>, ends: Vec<u64>) -> Result<Self, String> {
        if ends.is_sorted() && ends.last().copied().unwrap_or(0) == values.len() as u64 {
            return Ok(Self { values, ends });
        }
        Err(format!("the end offsets of `{name}` do not match its {} elements", values.len()))
    }

    /// The shape of `values` as a tensor.
    pub(super) fn shape(&self) -> Vec<usize> {
        vec![self.values.len()]
    }

    /// Appends a list.
    pub(super) fn push(&mut self, list: &[T]) {
        self.values.extend_from_slice(list);
        self.ends.push(self.values.len() as u64);
    }

    /// The range of list `i` among all values.
    pub(super) fn range(&self, i: usize) -> Range<usize> {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        start as usize..self.ends[i] as usize
    }

    /// The values of list `i`.
    pub(super) fn get(&self, i: usize) -> &[T] {
        &self.values[self.range(i)]
    }
}
