//! CUDA streams, each with its own free list, cuBLASLt handle, staging buffers and mailbox.
//!
//! Work on a stream runs in the order in which it was queued, by whichever threads. Therefore freed
//! memory can be reused immediately, so memory belongs to the stream on which it was allocated and
//! is returned to it. Data written on one stream, such as weights, may be read on another after the
//! first has been synchronized.
//!
//! A thread uses the GPU's main stream unless it is inside [`with_stream`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaStream, result as driver, sys};

use super::CudaError;
use super::blas::CublasLt;
use super::readback::PinnedBuffer;
use super::staging::{StagingBuffer, StagingStream};

/// Larger blocks are returned to the driver's pool: they are few, and would keep much memory idle.
pub(crate) const MAX_CACHED_BLOCK: usize = 64 << 20;
/// Maximum bytes of a stream's free list.
const MAX_CACHED_BYTES: usize = 2 << 30;

/// A CUDA stream and its resources.
#[derive(Debug)]
pub(crate) struct Stream {
    // Fields are dropped in this order: users of the context first.
    free_list: Mutex<FreeList>,
    pinned: Mutex<Vec<PinnedBuffer>>, // not in use
    staging: StagingStream,
    blas: Arc<CublasLt>,
    mailbox: Mailbox,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

/// Size of a stream's mailbox in bytes.
pub(crate) const MAILBOX_BYTES: usize = 2 << 20;

/// Memory through which the CTAs of a kernel exchange values, followed by a counter of the launches
/// that have used it and of started clusters; initially zero.
///
/// A published value includes the number of its launch, so that values of earlier kernels are never
/// mistaken for this one's and nothing needs to be cleared. The kernel updates the counter itself
/// (residual.cu), so that a CUDA graph may replay it.
#[derive(Debug)]
struct Mailbox {
    pointer: u64,
}

impl Mailbox {
    /// Allocates it in the current context.
    fn new() -> Result<Self, CudaError> {
        const BYTES: usize = MAILBOX_BYTES + size_of::<u64>();
        // SAFETY: freed once, when this is dropped.
        let pointer =
            unsafe { driver::malloc_sync(BYTES) }.map_err(CudaError::driver("allocate memory"))?;
        let mailbox = Self { pointer };
        // SAFETY: of that length, and not shared yet.
        unsafe { driver::memset_d8_sync(pointer, 0, BYTES) }
            .map_err(CudaError::driver("clear memory"))?;
        Ok(mailbox)
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` and freed once; freeing waits for kernels that use it.
        unsafe { driver::free_sync(self.pointer) }.ok();
    }
}

/// Freed memory for reuse: its next use is queued after its last one.
#[derive(Debug, Default)]
struct FreeList {
    by_size: HashMap<usize, Vec<u64>>,
    bytes: usize,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Stream>>> = const { RefCell::new(None) };
}

/// The stream that this thread is inside of, if it belongs to that context.
pub(crate) fn current(context: &Arc<CudaContext>) -> Option<Arc<Stream>> {
    CURRENT
        .with_borrow(|stream| stream.as_ref().filter(|s| Arc::ptr_eq(&s.context, context)).cloned())
}

/// Runs `work` on a stream; the previous one is restored when it returns or panics.
pub(crate) fn with_stream<T>(stream: Arc<Stream>, work: impl FnOnce() -> T) -> T {
    struct RestoreStream(Option<Arc<Stream>>);
    impl Drop for RestoreStream {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _restore = RestoreStream(CURRENT.replace(Some(stream)));
    work()
}

impl Stream {
    /// Opens a stream of a context.
    pub(crate) fn open(context: &Arc<CudaContext>) -> Result<Arc<Self>, CudaError> {
        let stream = context.new_stream().map_err(CudaError::driver("open a stream"))?;
        let blas = Arc::new(CublasLt::new(context)?);
        let mailbox = Mailbox::new()?;
        let free_list = Mutex::default();
        let pinned = Mutex::default();
        let staging = StagingStream::open(context)?;
        Ok(Arc::new(Self {
            free_list,
            pinned,
            staging,
            blas,
            mailbox,
            stream,
            context: context.clone(),
        }))
    }

    /// The stream, without waiting for staged copies; also its identity.
    pub(crate) fn raw_stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// The stream, made to wait for all copies staged so far.
    pub(crate) fn staged_stream(&self) -> Result<sys::CUstream, CudaError> {
        let stream = self.raw_stream();
        self.staging.join_stream(stream)?;
        Ok(stream)
    }

    /// Copies values to the GPU on the staging stream; `None` if there are none or too many.
    pub(crate) fn stage<T: Pod>(&self, values: &[T]) -> Result<Option<StagingBuffer>, CudaError> {
        self.bind()?;
        self.staging.stage(values)
    }

    /// Returns a staging buffer that may only still be used by work queued on this stream so far.
    pub(crate) fn release_staging(&self, buffer: StagingBuffer) {
        if self.bind().is_ok() {
            self.staging.release(buffer, self.raw_stream());
        }
    }

    pub(crate) fn blas(&self) -> Arc<CublasLt> {
        self.blas.clone()
    }

    /// The addresses of the mailbox and of its counter.
    pub(crate) fn mailbox(&self) -> (u64, u64) {
        (self.mailbox.pointer, self.mailbox.pointer + MAILBOX_BYTES as u64)
    }

    fn bind(&self) -> Result<(), CudaError> {
        self.context.bind_to_thread().map_err(CudaError::driver("bind its context"))
    }

    /// An event that completes when everything queued so far has.
    pub(crate) fn record_event(&self) -> Result<CudaEvent, CudaError> {
        self.bind()?;
        let event = CudaEvent::new(&self.context, CudaEvent::TIMING)?;
        event.record(self.raw_stream())?;
        Ok(event)
    }

    /// Waits until everything queued so far is done; returns its errors.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        self.stream.synchronize().map_err(CudaError::driver("finish its work"))
    }

    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        self.free_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of this size from the free list.
    pub(crate) fn take_cached(&self, size: usize) -> Option<u64> {
        let mut free_list = self.free_list();
        let pointer = free_list.by_size.get_mut(&size)?.pop()?;
        free_list.bytes -= size;
        Some(pointer)
    }

    /// Puts a block into the free list, or returns it to the driver.
    pub(crate) fn free(&self, size: usize, pointer: u64) {
        let mut free_list = self.free_list();
        if size <= MAX_CACHED_BLOCK && free_list.bytes + size <= MAX_CACHED_BYTES {
            free_list.bytes += size;
            free_list.by_size.entry(size).or_default().push(pointer);
        } else if self.bind().is_ok() {
            // SAFETY: allocated on this stream and freed once. A failure cannot be returned.
            unsafe { driver::free_async(pointer, self.raw_stream()) }.ok();
        }
    }

    /// A pinned buffer of at least `bytes` bytes for a readback.
    pub(crate) fn take_pinned(&self, bytes: usize) -> Result<PinnedBuffer, CudaError> {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        match pinned.iter().position(|buffer| buffer.capacity() >= bytes) {
            Some(at) => Ok(pinned.swap_remove(at)),
            None => PinnedBuffer::new(&self.context, bytes),
        }
    }

    /// Retains it for the next readback, which is queued after the last.
    pub(crate) fn return_pinned(&self, buffer: PinnedBuffer) {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    /// Size of the free list in bytes.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.free_list().bytes
    }

    /// Returns the free list to the driver and waits until queued frees are done.
    pub(crate) fn release_cached(&self) -> Result<(), CudaError> {
        self.bind()?;
        let free_list = std::mem::take(&mut *self.free_list());
        for pointer in free_list.by_size.into_values().flatten() {
            // SAFETY: allocated on this stream, and unused.
            unsafe { driver::free_async(pointer, self.raw_stream()) }
                .map_err(CudaError::driver("free memory"))?;
        }
        self.synchronize()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.release_cached().ok(); // a failure cannot be returned
    }
}

/// A CUDA event.
#[derive(Debug)]
pub(crate) struct CudaEvent {
    event: sys::CUevent,
    context: Arc<CudaContext>,
}

// SAFETY: an opaque handle that the driver lets every thread use.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// Flag of events that measure time.
    pub(crate) const TIMING: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
    /// Flag of events that are only waited for.
    pub(crate) const NO_TIMING: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;

    /// An event that is complete until it is recorded.
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        flags: sys::CUevent_flags,
    ) -> Result<Self, CudaError> {
        let failed = || CudaError::driver("create an event");
        context.bind_to_thread().map_err(failed())?;
        Ok(Self {
            event: driver::event::create(flags).map_err(failed())?,
            context: context.clone(),
        })
    }

    /// Records it: it completes when everything queued on `stream` so far has.
    pub(crate) fn record(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: both are alive and of one context.
        unsafe { driver::event::record(self.event, stream) }
            .map_err(CudaError::driver("record an event"))
    }

    /// Whether it is complete, without errors.
    pub(crate) fn is_complete(&self) -> bool {
        // SAFETY: it is alive.
        unsafe { sys::cuEventQuery(self.event) }.result().is_ok()
    }

    /// Makes all later work on `stream` wait for it.
    pub(crate) fn block_stream(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive and of one context.
        unsafe { driver::stream::wait_event(stream, self.event, flags) }
            .map_err(CudaError::driver("wait for an event"))
    }

    /// Waits for it; returns errors of the work before it.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let failed = || CudaError::driver("finish its work");
        self.context.bind_to_thread().map_err(failed())?;
        // SAFETY: it was recorded and is alive.
        unsafe { driver::event::synchronize(self.event) }.map_err(failed())
    }

    /// Seconds from this to a later event of the same stream. Waits for the later one.
    pub(crate) fn elapsed(&self, later: &Self) -> Result<f64, CudaError> {
        let failed = || CudaError::driver("measure elapsed time");
        self.context.bind_to_thread().map_err(failed())?;
        // SAFETY: both were recorded, on one stream, and are alive.
        let milliseconds = unsafe {
            driver::event::synchronize(later.event).map_err(failed())?;
            driver::event::elapsed(self.event, later.event).map_err(failed())?
        };
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: created once and destroyed once. A failure cannot be returned.
            unsafe { driver::event::destroy(self.event) }.ok();
        }
    }
}
