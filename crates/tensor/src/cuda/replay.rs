//! Work recorded once and replayed: to the host one launch instead of a hundred.
//!
//! A recording fixes every address. What differs from time to time, the inputs, is therefore made outside of it, in memory
//! of its own that is handed out in the same order each time; what the work needs in between is memory of its own, too.
//! While a thread records, its operations go to a stream that runs nothing, so other threads' work is not caught.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result as driver;
use cudarc::driver::sys;

use super::lane::Lane;
use super::{Cuda, CudaError};

/// Memory that belongs to a recording. The same requests in the same order get the same pieces.
#[derive(Debug)]
pub(crate) struct Pool {
    cuda: Cuda,
    lane: Arc<Lane>, // that its pieces are of
    pieces: Mutex<Pieces>,
}

#[derive(Debug, Default)]
struct Pieces {
    all: Vec<Piece>,
    taken: Vec<u64>, // since the last `rewind`, in order
}

#[derive(Debug)]
struct Piece {
    size: usize,
    pointer: u64,
    free: bool,
}

impl Pool {
    fn new(cuda: &Cuda) -> Arc<Self> {
        Arc::new(Self { cuda: cuda.clone(), lane: cuda.lane(), pieces: Mutex::default() })
    }

    /// The first free piece of a size.
    pub(crate) fn take(&self, size: usize) -> Option<u64> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let piece = pieces.all.iter_mut().find(|p| p.free && p.size == size)?;
        piece.free = false;
        let pointer = piece.pointer;
        pieces.taken.push(pointer);
        Some(pointer)
    }

    /// Adopts a piece that is in use.
    pub(crate) fn adopt(&self, size: usize, pointer: u64) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.all.push(Piece { size, pointer, free: false });
        pieces.taken.push(pointer);
    }

    /// Takes a piece back.
    pub(crate) fn put(&self, pointer: u64) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = pieces.all.iter_mut().find(|p| p.pointer == pointer) {
            piece.free = true;
        }
    }

    /// What was taken since the last time.
    fn rewind(&self) -> Vec<u64> {
        std::mem::take(&mut self.pieces.lock().unwrap_or_else(PoisonError::into_inner).taken)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let pieces = std::mem::take(self.pieces.get_mut().unwrap_or_else(PoisonError::into_inner));
        pieces.all.into_iter().for_each(|p| self.lane.give_back(p.size, p.pointer));
    }
}

/// Where the operations of this thread on a GPU take memory, and where they go.
#[derive(Debug)]
struct Detour {
    pool: Arc<Pool>,
    stream: Option<sys::CUstream>, // none: the thread's lane
}

thread_local! {
    static DETOUR: RefCell<Option<Detour>> = const { RefCell::new(None) };
}

/// The memory that this thread takes from, if not its lane's.
pub(crate) fn pool(cuda: &Cuda) -> Option<Arc<Pool>> {
    DETOUR.with_borrow(|detour| detour.as_ref().filter(|d| d.pool.cuda.is(cuda)).map(|d| d.pool.clone()))
}

/// The stream that this thread records, if it does.
pub(crate) fn stream(cuda: &Cuda) -> Option<sys::CUstream> {
    DETOUR.with_borrow(|detour| detour.as_ref().filter(|d| d.pool.cuda.is(cuda)).and_then(|d| d.stream))
}

/// Runs `work` on a detour, which ends when it returns or panics.
fn within<T>(pool: &Arc<Pool>, stream: Option<sys::CUstream>, work: impl FnOnce() -> T) -> T {
    struct Leave(Option<Detour>);
    impl Drop for Leave {
        fn drop(&mut self) {
            DETOUR.set(self.0.take());
        }
    }
    let _leave = Leave(DETOUR.replace(Some(Detour { pool: pool.clone(), stream })));
    work()
}

/// Inputs at addresses that stay.
#[derive(Debug)]
pub(crate) struct Inputs {
    pool: Arc<Pool>,
    order: Vec<u64>,
}

impl Inputs {
    /// Makes inputs for the first time.
    pub(crate) fn first<T, E>(cuda: &Cuda, make: impl FnOnce() -> Result<T, E>) -> Result<(Self, T), E> {
        let pool = Pool::new(cuda);
        let made = within(&pool, None, make)?;
        let order = pool.rewind();
        Ok((Self { pool, order }, made))
    }

    /// Makes them again. Says whether they are where they were; if not, they are still good, but not for the recording.
    pub(crate) fn again<T, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<(bool, T), E> {
        self.pool.rewind();
        let made = within(&self.pool, None, make)?;
        Ok((self.pool.rewind() == self.order, made))
    }
}

/// Recorded work.
#[derive(Debug)]
pub(crate) struct Recording {
    graph: sys::CUgraphExec,
    pool: Arc<Pool>, // what it works in
}

// SAFETY: the graph is an opaque name that the driver lets every thread use, one at a time, and `replay` takes it alone.
unsafe impl Send for Recording {}

impl Recording {
    /// Records `work` without running it. What `work` returns is what a replay fills.
    ///
    /// Everything that `work` touches must live as long as this, at its address.
    pub(crate) fn new<T, E: From<CudaError>>(cuda: &Cuda, work: impl FnOnce() -> Result<T, E>) -> Result<(Self, T), E> {
        cuda.bind()?;
        let pool = Pool::new(cuda);
        let mut tape = Tape::start()?;
        let made = within(&pool, Some(tape.stream), work)?;
        Ok((Self { graph: tape.finish()?, pool }, made))
    }

    /// Runs it, in the order of the lane that recorded it, which must be this thread's.
    pub(crate) fn replay(&mut self) -> Result<(), CudaError> {
        let cuda = &self.pool.cuda;
        cuda.bind()?;
        // SAFETY: the graph is alive and runs in the order of the lane that all its memory belongs to.
        unsafe { driver::graph::launch(self.graph, self.pool.lane.stream()?) }.map_err(CudaError::driver("replay its work"))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.pool.cuda.bind().is_ok() {
            // SAFETY: made by `new`, destroyed once; the driver waits for a run that is under way. Nobody hears of a failure.
            unsafe { driver::graph::exec_destroy(self.graph) }.ok();
        }
    }
}

/// A stream that records.
struct Tape {
    stream: sys::CUstream,
    runs: bool,
}

impl Tape {
    fn start() -> Result<Self, CudaError> {
        let stream =
            driver::stream::create(driver::stream::StreamKind::NonBlocking).map_err(CudaError::driver("open a stream"))?;
        let mut tape = Self { stream, runs: false };
        // Relaxed: memory may be taken meanwhile, from the stream that runs.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream was just made.
        unsafe { driver::stream::begin_capture(stream, mode) }.map_err(CudaError::driver("record"))?;
        tape.runs = true;
        Ok(tape)
    }

    fn finish(&mut self) -> Result<sys::CUgraphExec, CudaError> {
        self.runs = false;
        let mut made = std::ptr::null_mut();
        // SAFETY: the stream records; the graph is destroyed once, after what is made of it; `made` outlives the call.
        unsafe {
            let graph = driver::stream::end_capture(self.stream).map_err(CudaError::driver("end a recording"))?;
            let ready = sys::cuGraphInstantiateWithFlags(&raw mut made, graph, 0).result();
            driver::graph::destroy(graph).ok();
            ready.map_err(CudaError::driver("prepare a recording"))?;
        }
        Ok(made)
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        // SAFETY: the stream is alive and destroyed once. What was recorded of work that failed is thrown away.
        unsafe {
            if self.runs
                && let Ok(graph) = driver::stream::end_capture(self.stream)
                && !graph.is_null()
            {
                driver::graph::destroy(graph).ok();
            }
            driver::stream::destroy(self.stream).ok();
        }
    }
}
