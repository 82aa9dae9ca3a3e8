//! Lanes: streams of one GPU whose work may run at the same time, each with memory and products of its own.
//!
//! Within a lane everything runs in the order in which it was asked for, by whichever threads. That order is what makes it
//! safe to hand dropped memory to the next who asks, so memory belongs to the lane that took it and goes back there. What one
//! lane made may be read in another once the first has been waited for; weights are the case in point.
//!
//! A thread works in the GPU's main lane unless it entered another ([`within`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaStream, result as driver, sys};

use super::CudaError;
use super::ahead::{Ahead, Berth};
use super::blas::Blas;
use super::later::Page;

/// Larger pieces go back to the driver's pool: they are few, and idle memory is missed.
pub(crate) const MOST_SPARE_PIECE: usize = 64 << 20;
/// All spare memory of a lane together.
const MOST_SPARE: usize = 2 << 30;

/// One stream and what belongs to it.
#[derive(Debug)]
pub(crate) struct Lane {
    // Fields are dropped in this order: what uses the context goes first.
    spare: Mutex<Spare>,
    pages: Mutex<Vec<Page>>, // not in use
    ahead: Ahead,
    blas: Arc<Blas>,
    board: Board,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

/// Bytes of a lane's board.
pub(crate) const BOARD: usize = 2 << 20;

/// Memory where the blocks of a kernel tell each other things, zeros at first, and how many kernels have used it.
///
/// What is told carries the kernel's number, so that nobody takes what an earlier kernel told for an answer.
#[derive(Debug)]
struct Board {
    pointer: u64,
    kernels: AtomicU32,
}

impl Board {
    /// In the current context.
    fn new() -> Result<Self, CudaError> {
        // SAFETY: freed once, when this is dropped.
        let pointer = unsafe { driver::malloc_sync(BOARD) }.map_err(CudaError::driver("give memory"))?;
        let board = Self { pointer, kernels: AtomicU32::new(0) };
        // SAFETY: as long as was asked for, and nobody else knows of it yet.
        unsafe { driver::memset_d8_sync(pointer, 0, BOARD) }.map_err(CudaError::driver("clear memory"))?;
        Ok(board)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: taken by `new` and given back once; freeing waits for what still uses it.
        unsafe { driver::free_sync(self.pointer) }.ok();
    }
}

/// Memory that was dropped and waits to be taken again: what takes it next runs after what used it last.
#[derive(Debug, Default)]
struct Spare {
    by_size: HashMap<usize, Vec<u64>>,
    bytes: usize,
}

thread_local! {
    static LANE: RefCell<Option<Arc<Lane>>> = const { RefCell::new(None) };
}

/// The lane that this thread has entered, if it is one of that context.
pub(crate) fn entered(context: &Arc<CudaContext>) -> Option<Arc<Lane>> {
    LANE.with_borrow(|lane| lane.as_ref().filter(|l| Arc::ptr_eq(&l.context, context)).cloned())
}

/// Runs `work` in a lane, which is left when it returns or panics.
pub(crate) fn within<T>(lane: Arc<Lane>, work: impl FnOnce() -> T) -> T {
    struct Leave(Option<Arc<Lane>>);
    impl Drop for Leave {
        fn drop(&mut self) {
            LANE.set(self.0.take());
        }
    }
    let _leave = Leave(LANE.replace(Some(lane)));
    work()
}

impl Lane {
    /// Opens a lane of a context.
    pub(crate) fn open(context: &Arc<CudaContext>) -> Result<Arc<Self>, CudaError> {
        let stream = context.new_stream().map_err(CudaError::driver("open a stream"))?;
        let (blas, board) = (Arc::new(Blas::new(context)?), Board::new()?);
        let (spare, pages, ahead) = (Mutex::default(), Mutex::default(), Ahead::open(context)?);
        Ok(Arc::new(Self { spare, pages, ahead, blas, board, stream, context: context.clone() }))
    }

    /// The stream for what needs nothing that was sent ahead; also the lane's name.
    pub(crate) fn bare_stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// The stream, in which everything that was sent ahead so far is awaited.
    pub(crate) fn stream(&self) -> Result<sys::CUstream, CudaError> {
        let stream = self.bare_stream();
        self.ahead.join(stream)?;
        Ok(stream)
    }

    /// Sends numbers ahead of the work that needs them, if there are some and not too many.
    pub(crate) fn send_ahead<T: Pod>(&self, values: &[T]) -> Result<Option<Berth>, CudaError> {
        self.bind()?;
        self.ahead.send(values)
    }

    /// Takes back what nothing uses any more but what was asked of this lane before.
    pub(crate) fn take_back(&self, berth: Berth) {
        if self.bind().is_ok() {
            self.ahead.take_back(berth, self.bare_stream());
        }
    }

    pub(crate) fn blas(&self) -> Arc<Blas> {
        self.blas.clone()
    }

    /// The board, and the number of the next kernel that uses it, never 0.
    pub(crate) fn board(&self) -> (u64, u32) {
        (self.board.pointer, self.board.kernels.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1))
    }

    fn bind(&self) -> Result<(), CudaError> {
        self.context.bind_to_thread().map_err(CudaError::driver("be used from this thread"))
    }

    /// The moment when everything asked for so far is done.
    pub(crate) fn moment(&self) -> Result<Event, CudaError> {
        self.bind()?;
        let event = Event::new(&self.context, Event::TIME)?;
        event.record(self.bare_stream())?;
        Ok(event)
    }

    /// Waits until everything asked for so far is done, and says whether it went well.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        self.stream.synchronize().map_err(CudaError::driver("finish its work"))
    }

    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spare memory of a size, if there is any.
    pub(crate) fn take_spare(&self, size: usize) -> Option<u64> {
        let mut spare = self.spare();
        let pointer = spare.by_size.get_mut(&size)?.pop()?;
        spare.bytes -= size;
        Some(pointer)
    }

    /// Keeps memory of a size for the next who asks, or gives it back to the driver.
    pub(crate) fn give_back(&self, size: usize, pointer: u64) {
        let mut spare = self.spare();
        if size <= MOST_SPARE_PIECE && spare.bytes + size <= MOST_SPARE {
            spare.bytes += size;
            spare.by_size.entry(size).or_default().push(pointer);
        } else if self.bind().is_ok() {
            // SAFETY: taken in this lane and given back once. A failure has nobody to be told to.
            unsafe { driver::free_async(pointer, self.bare_stream()) }.ok();
        }
    }

    /// Memory of the host for at least so many bytes that come back from this lane.
    pub(crate) fn take_page(&self, bytes: usize) -> Result<Page, CudaError> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        match pages.iter().position(|page| page.bytes() >= bytes) {
            Some(at) => Ok(pages.swap_remove(at)),
            None => Page::new(&self.context, bytes),
        }
    }

    /// Keeps it for the next who asks: what comes back next is copied after what came last.
    pub(crate) fn give_page(&self, page: Page) {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner).push(page);
    }

    /// Bytes of spare memory.
    pub(crate) fn spare_bytes(&self) -> usize {
        self.spare().bytes
    }

    /// Gives all spare memory back to the driver and waits until what was given back before can be had.
    pub(crate) fn release_spare(&self) -> Result<(), CudaError> {
        self.bind()?;
        let spare = std::mem::take(&mut *self.spare());
        for pointer in spare.by_size.into_values().flatten() {
            // SAFETY: taken in this lane, and nobody else has it.
            unsafe { driver::free_async(pointer, self.bare_stream()) }.map_err(CudaError::driver("take memory back"))?;
        }
        self.synchronize()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.release_spare().ok(); // a failure has nobody to be told to
    }
}

/// A moment in a lane's work, by the GPU's clock.
#[derive(Debug)]
pub(crate) struct Event {
    event: sys::CUevent,
    context: Arc<CudaContext>,
}

// SAFETY: an opaque name that the driver lets every thread use.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// For those that are asked for their time.
    pub(crate) const TIME: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
    /// For those that are only waited for.
    pub(crate) const MARK: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;

    /// One that is past already.
    pub(crate) fn new(context: &Arc<CudaContext>, flags: sys::CUevent_flags) -> Result<Self, CudaError> {
        let failed = || CudaError::driver("make an event");
        context.bind_to_thread().map_err(failed())?;
        Ok(Self { event: driver::event::create(flags).map_err(failed())?, context: context.clone() })
    }

    /// Makes it the moment when everything asked of `stream` so far is done.
    pub(crate) fn record(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: both are alive and of one context.
        unsafe { driver::event::record(self.event, stream) }.map_err(CudaError::driver("note the time"))
    }

    /// Whether it is past, and what came before it went well.
    pub(crate) fn is_past(&self) -> bool {
        // SAFETY: it is alive.
        unsafe { sys::cuEventQuery(self.event) }.result().is_ok()
    }

    /// Lets what `stream` is asked from now on wait for it.
    pub(crate) fn hold_up(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive and of one context.
        unsafe { driver::stream::wait_event(stream, self.event, flags) }.map_err(CudaError::driver("wait for data"))
    }

    /// Waits for it, and says whether everything before it went well.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        let failed = || CudaError::driver("finish its work");
        self.context.bind_to_thread().map_err(failed())?;
        // SAFETY: it was recorded and is alive.
        unsafe { driver::event::synchronize(self.event) }.map_err(failed())
    }

    /// Seconds from this to a later moment of the same lane, which is waited for.
    pub(crate) fn until(&self, later: &Self) -> Result<f64, CudaError> {
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

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made once and destroyed once. A failure has nobody to be told to.
            unsafe { driver::event::destroy(self.event) }.ok();
        }
    }
}
