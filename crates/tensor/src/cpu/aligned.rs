//! Cache-line-aligned memory.
//!
//! A 512-bit vector that straddles two cache lines takes two loads, and a misaligned row of an AMX
//! tile register is far slower still; the global allocator only aligns to 16 bytes.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// A vector of fixed length that starts at a cache line boundary.
#[derive(Clone, Debug)]
pub(crate) struct AlignedVec<T> {
    lines: Vec<CacheLine>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> AlignedVec<T> {
    /// `len` copies of `value`.
    pub(crate) fn filled(value: T, len: usize) -> Self {
        // SAFETY: every element is written.
        unsafe { Self::written_to(Vec::new(), len, |to| to.fill(MaybeUninit::new(value))) }
    }

    /// The elements written by `write`, in the memory of `lines` if it suffices.
    ///
    /// # Safety
    /// `write` writes every element.
    unsafe fn written_to(
        mut lines: Vec<CacheLine>,
        len: usize,
        write: impl FnOnce(&mut [MaybeUninit<T>]),
    ) -> Self {
        let count = (len * size_of::<T>()).div_ceil(size_of::<CacheLine>());
        lines.clear();
        lines.reserve_exact(count);
        if let Some(last) = count.checked_sub(1) {
            lines.spare_capacity_mut()[last].write(CacheLine::zeroed());
        }
        // SAFETY: the lines have room for `len` elements, whose alignment is at most theirs.
        write(unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) });
        // SAFETY: by the contract; the rest of the last line beyond the elements was zeroed.
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

thread_local! {
    /// Unused scratch memory of a thread. The allocator would return it to the operating system,
    /// which zeroes it page by page for the next product.
    static FREE: RefCell<Vec<Vec<CacheLine>>> = const { RefCell::new(Vec::new()) };
}
/// Maximum vectors that a thread retains: a thread that waits for others in a product may start
/// another one.
const MOST_FREE: usize = 2;

/// An aligned vector that lives for one product; its memory is reused.
pub(crate) struct ScratchVec<T>(AlignedVec<T>);

impl<T: Pod> ScratchVec<T> {
    /// `len` copies of `value`.
    pub(crate) fn filled(value: T, len: usize) -> Self {
        // SAFETY: every element is written.
        unsafe { Self::written_by(len, |to| to.fill(MaybeUninit::new(value))) }
    }

    /// The elements written by `write`.
    ///
    /// # Safety
    /// `write` writes every element.
    pub(crate) unsafe fn written_by(len: usize, write: impl FnOnce(&mut [MaybeUninit<T>])) -> Self {
        let lines = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
        // SAFETY: by this function's own contract.
        Self(unsafe { AlignedVec::written_to(lines, len, write) })
    }
}

impl<T> Drop for ScratchVec<T> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.0.lines);
        // At thread exit the memory is simply freed.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < MOST_FREE {
                free.push(lines);
            }
        });
    }
}

impl<T: Pod> Deref for ScratchVec<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Pod> DerefMut for ScratchVec<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
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

    #[test]
    fn memory_that_is_used_again_has_what_was_written_last() {
        for (len, value) in [(1000, 1u16), (10, 2), (0, 3), (5000, 4), (33, 5)] {
            let scratch = ScratchVec::filled(value, len);
            assert_eq!(scratch.as_ptr().align_offset(64), 0);
            assert_eq!(*scratch, vec![value; len]);
        }
    }
}
