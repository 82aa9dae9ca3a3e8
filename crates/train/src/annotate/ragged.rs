//! Lists of unlike length in two flat ones, as files keep them.

use std::ops::Range;

/// The elements of all lists one after the other, and where each list ends.
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
    /// Those of a file, if the ends rise to the number of elements.
    pub(super) fn read(name: &str, all: Vec<T>, ends: Vec<u64>) -> Result<Self, String> {
        if ends.is_sorted() && ends.last().copied().unwrap_or(0) == all.len() as u64 {
            return Ok(Self { values: all, ends });
        }
        Err(format!("the parts of `{name}` do not add up to its {} elements", all.len()))
    }

    /// Adds a list.
    pub(super) fn push(&mut self, list: &[T]) {
        self.values.extend_from_slice(list);
        self.ends.push(self.values.len() as u64);
    }

    /// Where list `i` is among all elements.
    pub(super) fn range(&self, i: usize) -> Range<usize> {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        start as usize..self.ends[i] as usize
    }

    /// List `i`.
    pub(super) fn get(&self, i: usize) -> &[T] {
        &self.values[self.range(i)]
    }
}
