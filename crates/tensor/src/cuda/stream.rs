//! Lanes: streams of one GPU whose work may run at the same time, each with memory and products of
//! its own.
//!
//! Within a lane everything runs in the order in which it was asked for, by whichever threads. That
//! order is what makes it safe to hand dropped memory to the next who asks, so memory belongs to
//! the lane that took it and goes back there. What one lane made may be read in another once the
//! first has been waited for; weights are the case in point.
//!
//! A thread works in the GPU's main lane unless it entered another ([`within`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaStream, result as driver, sys};

use super::CudaError;
use super::blas::CublasLt;
use super::readback::PinnedBuffer;
use super::staging::{StagingBuffer, StagingStream};

/// Larger pieces go back to the driver's pool: they are few, and idle memory is missed.
pub(crate) const MAX_CACHED_BLOCK: usize = 64 << 20;
/// All spare memory of a lane together.
const MAX_CACHED_BYTES: usize = 2 << 30;

/// One stream and what belongs to it.
#[derive(Debug)]
pub(crate) struct Stream {
    // Fields are dropped in this order: what uses the context goes first.
    free_list: Mutex<FreeList>,
    pinned: Mutex<Vec<PinnedBuffer>>, // not in use
    staging: StagingStream,
    blas: Arc<CublasLt>,
    mailbox: Mailbox,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

/// Bytes of a lane's board.
pub(crate) const MAILBOX_BYTES: usize = 2 << 20;

/// Memory where the blocks of a kernel tell each other things, zeros at first, and how many kernels
/// have used it.
///
/// What is told carries the kernel's number, so that nobody takes what an earlier kernel told for
/// an answer.
#[derive(Debug)]
struct Mailbox {
    pointer: u64,
    launches: AtomicU32,
}

impl Mailbox {
    /// In the current context.
    fn new() -> Result<Self, CudaError> {
        // SAFETY: freed once, when this is dropped.
        let pointer = unsafe { driver::malloc_sync(MAILBOX_BYTES) }
            .map_err(CudaError::driver("give memory"))?;
        let board = Self { pointer, launches: AtomicU32::new(0) };
        // SAFETY: as long as was asked for, and nobody else knows of it yet.
        unsafe { driver::memset_d8_sync(pointer, 0, MAILBOX_BYTES) }
            .map_err(CudaError::driver("clear memory"))?;
        Ok(board)
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // SAFETY: taken by `new` and given back once; freeing waits for what still uses it.
        unsafe { driver::free_sync(self.pointer) }.ok();
    }
}

/// Memory that was dropped and waits to be taken again: what takes it next runs after what used it
/// last.
#[derive(Debug, Default)]
struct FreeList {
    by_size: HashMap<usize, Vec<u64>>,
    bytes: usize,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Stream>>> = const { RefCell::new(None) };
}

/// The lane that this thread has entered, if it is one of that context.
pub(crate) fn current(context: &Arc<CudaContext>) -> Option<Arc<Stream>> {
    CURRENT.with_borrow(|lane| lane.as_ref().filter(|l| Arc::ptr_eq(&l.context, context)).cloned())
}

/// Runs `work` in a lane, which is left when it returns or panics.
pub(crate) fn with_stream<T>(lane: Arc<Stream>, work: impl FnOnce() -> T) -> T {
    struct RestoreStream(Option<Arc<Stream>>);
    impl Drop for RestoreStream {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _leave = RestoreStream(CURRENT.replace(Some(lane)));
    work()
}

impl Stream {
    /// Opens a lane of a context.
    pub(crate) fn open(context: &Arc<CudaContext>) -> Result<Arc<Self>, CudaError> {
        let stream = context.new_stream().map_err(CudaError::driver("open a stream"))?;
        let (blas, board) = (Arc::new(CublasLt::new(context)?), Mailbox::new()?);
        let (spare, pages, ahead) =
            (Mutex::default(), Mutex::default(), StagingStream::open(context)?);
        Ok(Arc::new(Self {
            free_list: spare,
            pinned: pages,
            staging: ahead,
            blas,
            mailbox: board,
            stream,
            context: context.clone(),
        }))
    }

    /// The stream for what needs nothing that was sent ahead; also the lane's name.
    pub(crate) fn raw_stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// The stream, in which everything that was sent ahead so far is awaited.
    pub(crate) fn staged_stream(&self) -> Result<sys::CUstream, CudaError> {
        let stream = self.raw_stream();
        self.staging.join_stream(stream)?;
        Ok(stream)
    }

    /// Sends numbers ahead of the work that needs them, if there are some and not too many.
    pub(crate) fn stage<T: Pod>(&self, values: &[T]) -> Result<Option<StagingBuffer>, CudaError> {
        self.bind()?;
        self.staging.stage(values)
    }

    /// Takes back what nothing uses any more but what was asked of this lane before.
    pub(crate) fn release_staging(&self, berth: StagingBuffer) {
        if self.bind().is_ok() {
            self.staging.release(berth, self.raw_stream());
        }
    }

    pub(crate) fn blas(&self) -> Arc<CublasLt> {
        self.blas.clone()
    }

    /// The board, and the number of the next kernel that uses it, never 0.
    pub(crate) fn next_mailbox(&self) -> (u64, u32) {
        (
            self.mailbox.pointer,
            self.mailbox.launches.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1),
        )
    }

    fn bind(&self) -> Result<(), CudaError> {
        self.context.bind_to_thread().map_err(CudaError::driver("be used from this thread"))
    }

    /// The moment when everything asked for so far is done.
    pub(crate) fn record_event(&self) -> Result<CudaEvent, CudaError> {
        self.bind()?;
        let event = CudaEvent::new(&self.context, CudaEvent::TIMING)?;
        event.record(self.raw_stream())?;
        Ok(event)
    }

    /// Waits until everything asked for so far is done, and says whether it went well.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        self.stream.synchronize().map_err(CudaError::driver("finish its work"))
    }

    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        self.free_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spare memory of a size, if there is any.
    pub(crate) fn take_cached(&self, size: usize) -> Option<u64> {
        let mut spare = self.free_list();
        let pointer = spare.by_size.get_mut(&size)?.pop()?;
        spare.bytes -= size;
        Some(pointer)
    }

    /// Keeps memory of a size for the next who asks, or gives it back to the driver.
    pub(crate) fn free(&self, size: usize, pointer: u64) {
        let mut spare = self.free_list();
        if size <= MAX_CACHED_BLOCK && spare.bytes + size <= MAX_CACHED_BYTES {
            spare.bytes += size;
            spare.by_size.entry(size).or_default().push(pointer);
        } else if self.bind().is_ok() {
            // SAFETY: taken in this lane and given back once. A failure has nobody to be told to.
            unsafe { driver::free_async(pointer, self.raw_stream()) }.ok();
        }
    }

    /// Memory of the host for at least so many bytes that come back from this lane.
    pub(crate) fn take_pinned(&self, bytes: usize) -> Result<PinnedBuffer, CudaError> {
        let mut pages = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        match pages.iter().position(|page| page.capacity() >= bytes) {
            Some(at) => Ok(pages.swap_remove(at)),
            None => PinnedBuffer::new(&self.context, bytes),
        }
    }

    /// Keeps it for the next who asks: what comes back next is copied after what came last.
    pub(crate) fn return_pinned(&self, page: PinnedBuffer) {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).push(page);
    }

    /// Bytes of spare memory.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.free_list().bytes
    }

    /// Gives all spare memory back to the driver and waits until what was given back before can be
    /// had.
    pub(crate) fn release_cached(&self) -> Result<(), CudaError> {
        self.bind()?;
        let spare = std::mem::take(&mut *self.free_list());
        for pointer in spare.by_size.into_values().flatten() {
            // SAFETY: taken in this lane, and nobody else has it.
            unsafe { driver::free_async(pointer, self.raw_stream()) }
                .map_err(CudaError::driver("take memory back"))?;
        }
        self.synchronize()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.release_cached().ok(); // a failure has nobody to be told to
    }
}

/// A moment in a lane's work, by the GPU's clock.
#[derive(Debug)]
pub(crate) struct CudaEvent {
    event: sys::CUevent,
    context: Arc<CudaContext>,
}

// SAFETY: an opaque name that the driver lets every thread use.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// For those that are asked for their time.
    pub(crate) const TIMING: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
    /// For those that are only waited for.
    pub(crate) const NO_TIMING: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;

    /// One that is past already.
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        flags: sys::CUevent_flags,
    ) -> Result<Self, CudaError> {
        let failed = || CudaError::driver("make an event");
        context.bind_to_thread().map_err(failed())?;
        Ok(Self {
            event: driver::event::create(flags).map_err(failed())?,
            context: context.clone(),
        })
    }

    /// Makes it the moment when everything asked of `stream` so far is done.
    pub(crate) fn record(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: both are alive and of one context.
        unsafe { driver::event::record(self.event, stream) }
            .map_err(CudaError::driver("note the time"))
    }

    /// Whether it is past, and what came before it went well.
    pub(crate) fn is_complete(&self) -> bool {
        // SAFETY: it is alive.
        unsafe { sys::cuEventQuery(self.event) }.result().is_ok()
    }

    /// Lets what `stream` is asked from now on wait for it.
    pub(crate) fn block_stream(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive and of one context.
        unsafe { driver::stream::wait_event(stream, self.event, flags) }
            .map_err(CudaError::driver("wait for data"))
    }

    /// Waits for it, and says whether everything before it went well.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let failed = || CudaError::driver("finish its work");
        self.context.bind_to_thread().map_err(failed())?;
        // SAFETY: it was recorded and is alive.
        unsafe { driver::event::synchronize(self.event) }.map_err(failed())
    }

    /// Seconds from this to a later moment of the same lane, which is waited for.
    pub(crate) fn elapsed(&self, later: &Self) -> Result<f64, CudaError> {
        let failed = || CudaError::driver("say how long its work took");
        self.context.bind_to_thread().map_err(failed())?;
        // SAFETY: both were recorded, in one lane, and are alive.
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
            // SAFETY: made once and destroyed once. A failure has nobody to be told to.
            unsafe { driver::event::destroy(self.event) }.ok();
        }
    }
}
