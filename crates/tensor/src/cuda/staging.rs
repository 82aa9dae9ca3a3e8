//! What goes to the GPU ahead of the work that needs it: the counterpart of
//! [`later`](super::later).
//!
//! A copy in a lane's own stream makes its kernels wait, and one from memory that is not
//! page-locked the host as well. So what a pass needs is copied from page-locked memory, in a
//! stream beside the lane's, while the GPU is still busy with the pass before; the lane's next work
//! waits for it.

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaStream, result as driver, sys};

use super::CudaError;
use super::driver::is_out_of_memory;
use super::readback::PinnedBuffer;
use super::stream::CudaEvent;

/// More than this is not what passes need again and again.
const MAX_BYTES: usize = 4 << 20;

/// Memory of the host and as much of the GPU, which it is copied to.
#[derive(Debug)]
pub(crate) struct StagingBuffer {
    // Fields are dropped in this order: what uses the context goes first.
    host: PinnedBuffer,
    device_ptr: u64,
    last_use: CudaEvent, // what used it is done
    context: Arc<CudaContext>,
}

impl StagingBuffer {
    /// One of at least so many bytes; none if the host or the GPU has not so much memory left.
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Option<Self>, CudaError> {
        let Ok(page) = PinnedBuffer::new(context, bytes) else { return Ok(None) };
        let left = CudaEvent::new(context, CudaEvent::NO_TIMING)?;
        // SAFETY: freed once, when this is dropped.
        match unsafe { driver::malloc_sync(page.capacity()) } {
            Ok(pointer) => Ok(Some(Self {
                host: page,
                device_ptr: pointer,
                last_use: left,
                context: context.clone(),
            })),
            Err(e) if is_out_of_memory(&e) => Ok(None),
            Err(e) => Err(CudaError::driver("give memory")(e)),
        }
    }

    pub(crate) fn device_ptr(&self) -> u64 {
        self.device_ptr
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: taken by `new` and given back once; freeing waits for what still uses it.
            unsafe { driver::free_sync(self.device_ptr) }.ok();
        }
    }
}

/// The stream beside a lane's, and the berths that are not in use: as many as were ever on their
/// way at once.
#[derive(Debug)]
pub(crate) struct StagingStream {
    free: Mutex<Vec<StagingBuffer>>,
    state: Mutex<StagingState>,
    stream: Arc<CudaStream>,
}

#[derive(Debug)]
struct StagingState {
    copied: CudaEvent, // everything that was sent so far
    joined: bool,      // by the lane's stream
}

impl StagingStream {
    pub(crate) fn open(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let stream = context.new_stream().map_err(CudaError::driver("open a stream"))?;
        let sent = Mutex::new(StagingState {
            copied: CudaEvent::new(context, CudaEvent::NO_TIMING)?,
            joined: true,
        });
        Ok(Self { free: Mutex::default(), state: sent, stream })
    }

    /// Sends numbers; `None` if they are none, too many, or there is no memory for another berth.
    pub(crate) fn stage<T: Pod>(&self, values: &[T]) -> Result<Option<StagingBuffer>, CudaError> {
        let bytes = size_of_val(values);
        if bytes == 0 || bytes > MAX_BYTES {
            return Ok(None);
        }
        let Some(mut berth) = self.take_buffer(bytes)? else { return Ok(None) };
        berth.host.write(bytemuck::cast_slice(values));
        let stream = self.stream.cu_stream();
        // SAFETY: both sides are that long, and the page is not touched before the berth has been
        // left.
        unsafe { driver::memcpy_htod_async(berth.device_ptr, berth.host.prefix(bytes), stream) }
            .map_err(CudaError::driver("take data"))?;
        let mut sent = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        sent.copied.record(stream)?;
        sent.joined = false;
        Ok(Some(berth))
    }

    fn take_buffer(&self, bytes: usize) -> Result<Option<StagingBuffer>, CudaError> {
        let size = PinnedBuffer::capacity_for(bytes);
        let mut idle = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = idle
            .iter()
            .position(|berth| berth.host.capacity() == size && berth.last_use.is_complete())
        {
            return Ok(Some(idle.swap_remove(at)));
        }
        drop(idle);
        StagingBuffer::new(self.stream.context(), bytes)
    }

    /// Takes a berth back that nothing uses any more but what was asked of `stream` before.
    pub(crate) fn release(&self, berth: StagingBuffer, stream: sys::CUstream) {
        if berth.last_use.record(stream).is_ok() {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(berth);
        }
    }

    /// Lets what `stream` is asked from now on wait for everything sent so far.
    pub(crate) fn join_stream(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        let mut sent = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !sent.joined {
            sent.copied.block_stream(stream)?;
            sent.joined = true;
        }
        Ok(())
    }
}

impl Drop for StagingStream {
    fn drop(&mut self) {
        self.stream.synchronize().ok(); // pages must not go while they are read; a failure has nobody to be told to
    }
}
