//! What comes back from the GPU while the host does other things.
//!
//! Copies into memory that is not page-locked make the host wait at once. Locking takes long, so
//! pages are kept by the lane ([`Lane`]) and used again.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaContext, result as driver};

use super::stream::{CudaEvent, Stream};
use super::{CudaDevice, CudaError};

/// The smallest page: locking costs the same for fewer bytes.
const MIN_BYTES: usize = 64 << 10;

/// Page-locked memory of the host.
#[derive(Debug)]
pub(crate) struct PinnedBuffer {
    ptr: *mut c_void,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: memory that one owner at a time reads and writes, on any thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above; through a shared reference it is only read.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// A page of at least so many bytes.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, CudaError> {
        let failed = || CudaError::driver("lock memory of the host");
        let bytes = Self::capacity_for(bytes);
        context.bind_to_thread().map_err(failed())?;
        // SAFETY: freed once, when this is dropped.
        let address = unsafe { driver::malloc_host(bytes, 0) }.map_err(failed())?;
        // SAFETY: just taken, as long as that; from here on its contents are specified.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { ptr: address, bytes, context: context.clone() })
    }

    /// The size of a page for so many bytes.
    pub(crate) fn capacity_for(bytes: usize) -> usize {
        bytes.next_power_of_two().max(MIN_BYTES)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes
    }

    /// Begins with these bytes from now on.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes, "page: {} bytes into {}", bytes.len(), self.bytes);
        // SAFETY: it is that long, and its owner's alone.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast::<u8>(), bytes.len()) }
            .copy_from_slice(bytes);
    }

    /// Its first bytes.
    pub(crate) fn prefix(&self, bytes: usize) -> &[u8] {
        assert!(bytes <= self.bytes, "page: {bytes} bytes of {}", self.bytes);
        // SAFETY: it is that long, and all of it was written.
        unsafe { std::slice::from_raw_parts(self.ptr.cast::<u8>(), bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: taken by `new` and freed once; a lane waits for its copies before it drops
            // its pages. A failure has nobody to be told to.
            unsafe { driver::free_host(self.ptr) }.ok();
        }
    }
}

/// A page that the GPU is about to fill with numbers.
#[derive(Debug)]
pub(crate) struct ReadbackBuffer<T> {
    stream: Arc<Stream>, // that the page goes back to
    host: Option<PinnedBuffer>,
    count: usize,
    element: PhantomData<T>,
}

impl<T: Pod> ReadbackBuffer<T> {
    pub(crate) fn new(cuda: &CudaDevice, count: usize) -> Result<Self, CudaError> {
        let lane = cuda.current_stream();
        let page = Some(lane.take_pinned(count * size_of::<T>())?);
        Ok(Self { stream: lane, host: page, count, element: PhantomData })
    }

    /// Where number `at` goes: kernels of this thread's lane can write there.
    pub(crate) fn element_ptr(&self, at: usize) -> u64 {
        self.host.as_ref().map_or(0, |page| page.ptr as u64) + (at * size_of::<T>()) as u64
    }

    /// The numbers, which everything asked for so far writes.
    pub(crate) fn submitted(self) -> Result<Readback<T>, CudaError> {
        Ok(Readback { ready: self.stream.record_event()?, buffer: self })
    }
}

impl<T> Drop for ReadbackBuffer<T> {
    fn drop(&mut self) {
        if let Some(page) = self.host.take() {
            self.stream.return_pinned(page);
        }
    }
}

/// Numbers that were asked for and come when everything asked for before them is done.
#[derive(Debug)]
pub(crate) struct Readback<T> {
    buffer: ReadbackBuffer<T>,
    ready: CudaEvent,
}

impl<T: Pod> Readback<T> {
    /// Asks for `count` numbers from `from` on.
    ///
    /// # Safety
    /// There must be as many on the GPU, in memory that is used in the order of this thread's lane.
    pub(crate) unsafe fn start(
        cuda: &CudaDevice,
        from: u64,
        count: usize,
    ) -> Result<Self, CudaError> {
        let blank = ReadbackBuffer::new(cuda, count)?;
        if let Some(page) = blank.host.as_ref().filter(|_| count > 0) {
            // SAFETY: the page is that long, and nobody looks at it before `here`; the caller
            // vouches for `from`.
            let copied = unsafe {
                let into = std::slice::from_raw_parts_mut(page.ptr.cast::<T>(), count);
                driver::memcpy_dtoh_async(into, from, blank.stream.staged_stream()?)
            };
            copied.map_err(CudaError::driver("bring data back"))?;
        }
        blank.submitted()
    }

    /// The numbers, once they are here.
    pub(crate) fn read(self) -> Result<Vec<T>, CudaError> {
        self.ready.synchronize()?;
        let Some(page) = &self.buffer.host else { return Ok(Vec::new()) };
        // SAFETY: the page begins at a multiple of every alignment and holds as many numbers, which
        // any bits are.
        Ok(unsafe { std::slice::from_raw_parts(page.ptr.cast::<T>(), self.buffer.count) }.to_vec())
    }
}
