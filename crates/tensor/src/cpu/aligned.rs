//! Memory whose rows of 64 bytes are cache lines.
//!
//! A vector of 512 bits that lies across two lines is loaded in two steps, and a row of a tile
//! register of AMX far slower than that; what the allocator gives begins 16 bytes into a line.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// A vector of fixed length that begins with a cache line.
#[derive(Clone, Debug)]
pub(crate) struct AlignedVec<T> {
    lines: Vec<CacheLine>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> AlignedVec<T> {
    /// So many times `value`.
    pub(crate) fn filled(value: T, len: usize) -> Self {
        // SAFETY: every element is written.
        unsafe { Self::written_by(len, |to| to.fill(MaybeUninit::new(value))) }
    }

    /// What `write` writes.
    ///
    /// # Safety
    /// `write` writes every element.
    pub(crate) unsafe fn written_by(len: usize, write: impl FnOnce(&mut [MaybeUninit<T>])) -> Self {
        let count = (len * size_of::<T>()).div_ceil(size_of::<CacheLine>());
        let mut lines = Vec::<CacheLine>::with_capacity(count);
        if let Some(last) = count.checked_sub(1) {
            lines.spare_capacity_mut()[last].write(CacheLine::zeroed());
        }
        // SAFETY: the lines have room for `len` elements, whose alignment is at most theirs.
        write(unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) });
        // SAFETY: by the contract, and what the last line has beyond the elements was zeroed.
        unsafe { lines.set_len(count) };
        Self { lines, len, element: PhantomData }
    }
}

impl<T: Pod> Deref for AlignedVec<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Pod> DerefMut for AlignedVec<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_kept_and_begin_with_a_line() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let mut numbers = AlignedVec::filled(1.5f32, len);
            assert_eq!(numbers.as_ptr().align_offset(64), 0);
            assert_eq!(*numbers, vec![1.5; len]);
            numbers.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32);
            assert!(numbers.clone().iter().enumerate().all(|(i, &x)| x == i as f32));
        }
    }
}
