//! What goes to the GPU ahead of the work that needs it: the counterpart of [`later`](super::later).
//!
//! A copy in a lane's own stream makes its kernels wait, and one from memory that is not page-locked the host as well. So what a
//! pass needs is copied from page-locked memory, in a stream beside the lane's, while the GPU is still busy with the pass
//! before; the lane's next work waits for it.

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaStream, result as driver, sys};

use super::CudaError;
use super::error::is_out_of_memory;
use super::lane::Event;
use super::later::Page;

/// More than this is not what passes need again and again.
const MOST: usize = 4 << 20;

/// Memory of the host and as much of the GPU, which it is copied to.
#[derive(Debug)]
pub(crate) struct Berth {
    // Fields are dropped in this order: what uses the context goes first.
    page: Page,
    pointer: u64,
    left: Event, // what used it is done
    context: Arc<CudaContext>,
}

impl Berth {
    /// One of at least so many bytes; none if the host or the GPU has not so much memory left.
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Option<Self>, CudaError> {
        let Ok(page) = Page::new(context, bytes) else { return Ok(None) };
        let left = Event::new(context, Event::MARK)?;
        // SAFETY: freed once, when this is dropped.
        match unsafe { driver::malloc_sync(page.bytes()) } {
            Ok(pointer) => Ok(Some(Self { page, pointer, left, context: context.clone() })),
            Err(e) if is_out_of_memory(&e) => Ok(None),
            Err(e) => Err(CudaError::driver("give memory")(e)),
        }
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.pointer
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: taken by `new` and given back once; freeing waits for what still uses it.
            unsafe { driver::free_sync(self.pointer) }.ok();
        }
    }
}

/// The stream beside a lane's, and the berths that are not in use: as many as were ever on their way at once.
#[derive(Debug)]
pub(crate) struct Ahead {
    idle: Mutex<Vec<Berth>>,
    sent: Mutex<Sent>,
    stream: Arc<CudaStream>,
}

#[derive(Debug)]
struct Sent {
    arrived: Event, // everything that was sent so far
    awaited: bool,  // by the lane's stream
}

impl Ahead {
    pub(crate) fn open(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let stream = context.new_stream().map_err(CudaError::driver("open a stream"))?;
        let sent = Mutex::new(Sent { arrived: Event::new(context, Event::MARK)?, awaited: true });
        Ok(Self { idle: Mutex::default(), sent, stream })
    }

    /// Sends numbers; `None` if they are none, too many, or there is no memory for another berth.
    pub(crate) fn send<T: Pod>(&self, values: &[T]) -> Result<Option<Berth>, CudaError> {
        let bytes = size_of_val(values);
        if bytes == 0 || bytes > MOST {
            return Ok(None);
        }
        let Some(mut berth) = self.berth(bytes)? else { return Ok(None) };
        berth.page.fill(bytemuck::cast_slice(values));
        let stream = self.stream.cu_stream();
        // SAFETY: both sides are that long, and the page is not touched before the berth has been left.
        unsafe { driver::memcpy_htod_async(berth.pointer, berth.page.filled(bytes), stream) }
            .map_err(CudaError::driver("take data"))?;
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.arrived.record(stream)?;
        sent.awaited = false;
        Ok(Some(berth))
    }

    fn berth(&self, bytes: usize) -> Result<Option<Berth>, CudaError> {
        let size = Page::size(bytes);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = idle.iter().position(|berth| berth.page.bytes() == size && berth.left.is_past()) {
            return Ok(Some(idle.swap_remove(at)));
        }
        drop(idle);
        Berth::new(self.stream.context(), bytes)
    }

    /// Takes a berth back that nothing uses any more but what was asked of `stream` before.
    pub(crate) fn take_back(&self, berth: Berth, stream: sys::CUstream) {
        if berth.left.record(stream).is_ok() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(berth);
        }
    }

    /// Lets what `stream` is asked from now on wait for everything sent so far.
    pub(crate) fn join(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if !sent.awaited {
            sent.arrived.hold_up(stream)?;
            sent.awaited = true;
        }
        Ok(())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stream.synchronize().ok(); // pages must not go while they are read; a failure has nobody to be told to
    }
}
