//! Asynchronous device-to-host copies into pinned memory.
//!
//! A copy to pageable memory blocks the host. Pinning memory is slow, so pinned buffers are
//! retained by the [`Stream`] and reused.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaContext, result as driver};

use super::stream::{CudaEvent, Stream};
use super::{CudaDevice, CudaError};

/// Minimum size of a pinned buffer: pinning fewer bytes costs the same.
const MIN_BYTES: usize = 64 << 10;

/// Pinned (page-locked) host memory.
#[derive(Debug)]
pub(crate) struct PinnedBuffer {
    ptr: *mut c_void,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: memory that is accessed by one owner at a time, on any thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above; through a shared reference it is only read.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// A buffer of at least `bytes` bytes, initially zero.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, CudaError> {
        let failed = || CudaError::driver("pin host memory");
        let bytes = Self::capacity_for(bytes);
        context.bind_to_thread().map_err(failed())?;
        // SAFETY: freed once, when this is dropped.
        let ptr = unsafe { driver::malloc_host(bytes, 0) }.map_err(failed())?;
        // SAFETY: just allocated, and that long.
        unsafe { ptr.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { ptr, bytes, context: context.clone() })
    }

    /// The capacity of a buffer for `bytes` bytes.
    pub(crate) fn capacity_for(bytes: usize) -> usize {
        bytes.next_power_of_two().max(MIN_BYTES)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes
    }

    /// Copies bytes to its start.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.bytes,
            "pinned buffer: {} bytes into {}",
            bytes.len(),
            self.bytes
        );
        // SAFETY: it is that long and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast::<u8>(), bytes.len()) }
            .copy_from_slice(bytes);
    }

    /// Its first bytes.
    pub(crate) fn prefix(&self, bytes: usize) -> &[u8] {
        assert!(bytes <= self.bytes, "pinned buffer: {bytes} bytes of {}", self.bytes);
        // SAFETY: it is that long, and all of it is initialized.
        unsafe { std::slice::from_raw_parts(self.ptr.cast::<u8>(), bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `new` and freed once; a stream waits for its copies before it
            // drops its buffers. A failure cannot be returned.
            unsafe { driver::free_host(self.ptr) }.ok();
        }
    }
}

/// A pinned buffer that queued work will write `count` elements to.
#[derive(Debug)]
pub(crate) struct ReadbackBuffer<T> {
    stream: Arc<Stream>, // the stream to which the buffer is returned
    host: Option<PinnedBuffer>,
    count: usize,
    element: PhantomData<T>,
}

impl<T: Pod> ReadbackBuffer<T> {
    pub(crate) fn new(cuda: &CudaDevice, count: usize) -> Result<Self, CudaError> {
        let stream = cuda.current_stream();
        let host = Some(stream.take_pinned(count * size_of::<T>())?);
        Ok(Self { stream, host, count, element: PhantomData })
    }

    /// The address of element `at`, to which kernels of this thread's stream can write.
    pub(crate) fn element_ptr(&self, at: usize) -> u64 {
        self.host.as_ref().map_or(0, |host| host.ptr as u64) + (at * size_of::<T>()) as u64
    }

    /// Creates the readback once the work that writes to the buffer is queued.
    pub(crate) fn submitted(self) -> Result<Readback<T>, CudaError> {
        Ok(Readback { ready: self.stream.record_event()?, buffer: self })
    }
}

impl<T> Drop for ReadbackBuffer<T> {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            self.stream.return_pinned(host);
        }
    }
}

/// Elements that are in a pinned buffer once the previously queued work is done.
#[derive(Debug)]
pub(crate) struct Readback<T> {
    buffer: ReadbackBuffer<T>,
    ready: CudaEvent,
}

impl<T: Pod> Readback<T> {
    /// Queues a copy of `count` elements from device address `from`.
    ///
    /// # Safety
    /// They must be valid, in memory that is used in the order of this thread's stream.
    pub(crate) unsafe fn start(
        cuda: &CudaDevice,
        from: u64,
        count: usize,
    ) -> Result<Self, CudaError> {
        let buffer = ReadbackBuffer::new(cuda, count)?;
        if let Some(host) = buffer.host.as_ref().filter(|_| count > 0) {
            // SAFETY: the buffer is that long, and not read before `ready`; `from` is guaranteed by
            // the caller.
            let copied = unsafe {
                let into = std::slice::from_raw_parts_mut(host.ptr.cast::<T>(), count);
                driver::memcpy_dtoh_async(into, from, buffer.stream.staged_stream()?)
            };
            copied.map_err(CudaError::driver("copy data back"))?;
        }
        buffer.submitted()
    }

    /// Waits for the elements.
    pub(crate) fn read(self) -> Result<Vec<T>, CudaError> {
        self.ready.synchronize()?;
        let Some(host) = &self.buffer.host else { return Ok(Vec::new()) };
        // SAFETY: the buffer is aligned for every type and holds `count` elements, of which any
        // bits are valid.
        Ok(unsafe { std::slice::from_raw_parts(host.ptr.cast::<T>(), self.buffer.count) }.to_vec())
    }
}
