//! Host-to-device staging: the inputs of a pass are copied on a side stream, ahead of the pass. The
//! counterpart of [`readback`](super::readback).
//!
//! A copy on the compute stream delays its kernels, and one from pageable memory also blocks the
//! host. So the inputs of a pass are copied from pinned buffers on a second stream while the GPU
//! runs the previous pass; the compute stream waits for the copies' event.

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaStream, result as driver, sys};

use super::CudaError;
use super::driver::is_out_of_memory;
use super::readback::PinnedBuffer;
use super::stream::CudaEvent;

/// Maximum size: larger values are not recurring inputs of passes.
const MAX_BYTES: usize = 4 << 20;

/// A pinned buffer, and device memory of the same size to which it is copied.
#[derive(Debug)]
pub(crate) struct StagingBuffer {
    // Fields are dropped in this order: users of the context first.
    host: PinnedBuffer,
    device_ptr: u64,
    last_use: CudaEvent, // complete: the buffer can be reused
    context: Arc<CudaContext>,
}

impl StagingBuffer {
    /// A buffer of at least `bytes` bytes; `None` if the host or the GPU is out of memory.
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Option<Self>, CudaError> {
        let Ok(host) = PinnedBuffer::new(context, bytes) else { return Ok(None) };
        let last_use = CudaEvent::new(context, CudaEvent::NO_TIMING)?;
        // SAFETY: freed once, when this is dropped.
        match unsafe { driver::malloc_sync(host.capacity()) } {
            Ok(device_ptr) => {
                Ok(Some(Self { host, device_ptr, last_use, context: context.clone() }))
            }
            Err(e) if is_out_of_memory(&e) => Ok(None),
            Err(e) => Err(CudaError::driver("allocate memory")(e)),
        }
    }

    pub(crate) fn device_ptr(&self) -> u64 {
        self.device_ptr
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `new` and freed once; freeing waits for kernels that use it.
            unsafe { driver::free_sync(self.device_ptr) }.ok();
        }
    }
}

/// The side stream of a compute stream, and the unused staging buffers: as many as were ever in
/// flight at once.
#[derive(Debug)]
pub(crate) struct StagingStream {
    free: Mutex<Vec<StagingBuffer>>,
    state: Mutex<StagingState>,
    stream: Arc<CudaStream>,
}

#[derive(Debug)]
struct StagingState {
    copied: CudaEvent, // after all copies so far
    joined: bool,      // whether the compute stream waits for it
}

impl StagingStream {
    pub(crate) fn open(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let stream = context.new_stream().map_err(CudaError::driver("open a stream"))?;
        let state = Mutex::new(StagingState {
            copied: CudaEvent::new(context, CudaEvent::NO_TIMING)?,
            joined: true,
        });
        Ok(Self { free: Mutex::default(), state, stream })
    }

    /// Queues a copy of values; `None` if there are none, too many, or no memory for another
    /// buffer.
    pub(crate) fn stage<T: Pod>(&self, values: &[T]) -> Result<Option<StagingBuffer>, CudaError> {
        let bytes = size_of_val(values);
        if bytes == 0 || bytes > MAX_BYTES {
            return Ok(None);
        }
        let Some(mut buffer) = self.take_buffer(bytes)? else { return Ok(None) };
        buffer.host.write(bytemuck::cast_slice(values));
        let stream = self.stream.cu_stream();
        // SAFETY: both sides are that long, and the pinned buffer is not written before its last
        // use is complete.
        unsafe { driver::memcpy_htod_async(buffer.device_ptr, buffer.host.prefix(bytes), stream) }
            .map_err(CudaError::driver("copy data to it"))?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.copied.record(stream)?;
        state.joined = false;
        Ok(Some(buffer))
    }

    fn take_buffer(&self, bytes: usize) -> Result<Option<StagingBuffer>, CudaError> {
        let size = PinnedBuffer::capacity_for(bytes);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = free
            .iter()
            .position(|buffer| buffer.host.capacity() == size && buffer.last_use.is_complete())
        {
            return Ok(Some(free.swap_remove(at)));
        }
        drop(free);
        StagingBuffer::new(self.stream.context(), bytes)
    }

    /// Returns a buffer that may only still be used by work queued on `stream` so far.
    pub(crate) fn release(&self, buffer: StagingBuffer, stream: sys::CUstream) {
        if buffer.last_use.record(stream).is_ok() {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        }
    }

    /// Makes all later work on `stream` wait for all copies so far.
    pub(crate) fn join_stream(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.joined {
            state.copied.block_stream(stream)?;
            state.joined = true;
        }
        Ok(())
    }
}

impl Drop for StagingStream {
    fn drop(&mut self) {
        // Pinned buffers must outlive their copies. A failure cannot be returned.
        self.stream.synchronize().ok();
    }
}
