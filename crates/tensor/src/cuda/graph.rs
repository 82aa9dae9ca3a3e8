//! Work recorded once and replayed: to the host one launch instead of a hundred.
//!
//! A recording fixes every address. What differs from time to time, the inputs, is therefore made
//! outside of it, in memory of its own that is handed out in the same order each time; what the
//! work needs in between is memory of its own, too. While a thread records, its operations go to a
//! stream that runs nothing, so other threads' work is not caught.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result as driver;
use cudarc::driver::sys;

use super::stream::Stream;
use super::{CudaDevice, CudaError};

/// Memory that belongs to a recording. The same requests in the same order get the same pieces.
#[derive(Debug)]
pub(crate) struct GraphPool {
    cuda: CudaDevice,
    stream: Arc<Stream>, // that its pieces are of
    blocks: Mutex<GraphBlocks>,
}

#[derive(Debug, Default)]
struct GraphBlocks {
    all: Vec<GraphBlock>,
    taken: Vec<u64>, // since the last `rewind`, in order
}

#[derive(Debug)]
struct GraphBlock {
    size: usize,
    pointer: u64,
    free: bool,
}

impl GraphPool {
    fn new(cuda: &CudaDevice) -> Arc<Self> {
        Arc::new(Self {
            cuda: cuda.clone(),
            stream: cuda.current_stream(),
            blocks: Mutex::default(),
        })
    }

    /// The first free piece of a size.
    pub(crate) fn take(&self, size: usize) -> Option<u64> {
        let mut pieces = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let piece = pieces.all.iter_mut().find(|p| p.free && p.size == size)?;
        piece.free = false;
        let pointer = piece.pointer;
        pieces.taken.push(pointer);
        Some(pointer)
    }

    /// Adopts a piece that is in use.
    pub(crate) fn adopt(&self, size: usize, pointer: u64) {
        let mut pieces = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.all.push(GraphBlock { size, pointer, free: false });
        pieces.taken.push(pointer);
    }

    /// Takes a piece back.
    pub(crate) fn free(&self, pointer: u64) {
        let mut pieces = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = pieces.all.iter_mut().find(|p| p.pointer == pointer) {
            piece.free = true;
        }
    }

    /// What was taken since the last time.
    fn take_log(&self) -> Vec<u64> {
        std::mem::take(&mut self.blocks.lock().unwrap_or_else(PoisonError::into_inner).taken)
    }
}

impl Drop for GraphPool {
    fn drop(&mut self) {
        let pieces = std::mem::take(self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner));
        pieces.all.into_iter().for_each(|p| self.stream.free(p.size, p.pointer));
    }
}

/// Where the operations of this thread on a GPU take memory, and where they go.
#[derive(Debug)]
struct CaptureScope {
    pool: Arc<GraphPool>,
    stream: Option<sys::CUstream>, // none: the thread's lane
}

thread_local! {
    static CAPTURE: RefCell<Option<CaptureScope>> = const { RefCell::new(None) };
}

/// The memory that this thread takes from, if not its lane's.
pub(crate) fn current_pool(cuda: &CudaDevice) -> Option<Arc<GraphPool>> {
    CAPTURE.with_borrow(|detour| {
        detour.as_ref().filter(|d| d.pool.cuda.same_device(cuda)).map(|d| d.pool.clone())
    })
}

/// The stream that this thread records, if it does.
pub(crate) fn capture_stream(cuda: &CudaDevice) -> Option<sys::CUstream> {
    CAPTURE.with_borrow(|detour| {
        detour.as_ref().filter(|d| d.pool.cuda.same_device(cuda)).and_then(|d| d.stream)
    })
}

/// Runs `work` on a detour, which ends when it returns or panics.
fn with_scope<T>(
    pool: &Arc<GraphPool>,
    stream: Option<sys::CUstream>,
    work: impl FnOnce() -> T,
) -> T {
    struct RestoreCapture(Option<CaptureScope>);
    impl Drop for RestoreCapture {
        fn drop(&mut self) {
            CAPTURE.set(self.0.take());
        }
    }
    let _leave = RestoreCapture(CAPTURE.replace(Some(CaptureScope { pool: pool.clone(), stream })));
    work()
}

/// Inputs at addresses that stay.
#[derive(Debug)]
pub(crate) struct GraphInputs {
    pool: Arc<GraphPool>,
    order: Vec<u64>,
}

impl GraphInputs {
    /// Makes inputs for the first time.
    pub(crate) fn allocate<T, E>(
        cuda: &CudaDevice,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let pool = GraphPool::new(cuda);
        let made = with_scope(&pool, None, make)?;
        let order = pool.take_log();
        Ok((Self { pool, order }, made))
    }

    /// Makes them again. Says whether they are where they were; if not, they are still good, but
    /// not for the recording.
    pub(crate) fn refill<T, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<(bool, T), E> {
        self.pool.take_log();
        let made = with_scope(&self.pool, None, make)?;
        Ok((self.pool.take_log() == self.order, made))
    }
}

/// Recorded work.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    graph: sys::CUgraphExec,
    pool: Arc<GraphPool>, // what it works in
}

// SAFETY: the graph is an opaque name that the driver lets every thread use, one at a time, and
// `replay` takes it alone.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Records `work` without running it. What `work` returns is what a replay fills.
    ///
    /// Everything that `work` touches must live as long as this, at its address.
    pub(crate) fn new<T, E: From<CudaError>>(
        cuda: &CudaDevice,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        cuda.bind()?;
        let pool = GraphPool::new(cuda);
        let mut tape = StreamCapture::begin()?;
        let made = with_scope(&pool, Some(tape.stream), work)?;
        Ok((Self { graph: tape.end()?, pool }, made))
    }

    /// Runs it, in the order of the lane that recorded it, which must be this thread's.
    pub(crate) fn launch(&mut self) -> Result<(), CudaError> {
        let cuda = &self.pool.cuda;
        cuda.bind()?;
        // SAFETY: the graph is alive and runs in the order of the lane that all its memory belongs
        // to.
        unsafe { driver::graph::launch(self.graph, self.pool.stream.staged_stream()?) }
            .map_err(CudaError::driver("replay its work"))
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.pool.cuda.bind().is_ok() {
            // SAFETY: made by `new`, destroyed once; the driver waits for a run that is under way.
            // Nobody hears of a failure.
            unsafe { driver::graph::exec_destroy(self.graph) }.ok();
        }
    }
}

/// A stream that records.
struct StreamCapture {
    stream: sys::CUstream,
    active: bool,
}

impl StreamCapture {
    fn begin() -> Result<Self, CudaError> {
        let stream = driver::stream::create(driver::stream::StreamKind::NonBlocking)
            .map_err(CudaError::driver("open a stream"))?;
        let mut tape = Self { stream, active: false };
        // Relaxed: memory may be taken meanwhile, from the stream that runs.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream was just made.
        unsafe { driver::stream::begin_capture(stream, mode) }
            .map_err(CudaError::driver("record"))?;
        tape.active = true;
        Ok(tape)
    }

    fn end(&mut self) -> Result<sys::CUgraphExec, CudaError> {
        self.active = false;
        let mut made = std::ptr::null_mut();
        // SAFETY: the stream records; the graph is destroyed once, after what is made of it; `made`
        // outlives the call.
        unsafe {
            let graph = driver::stream::end_capture(self.stream)
                .map_err(CudaError::driver("end a recording"))?;
            let ready = sys::cuGraphInstantiateWithFlags(&raw mut made, graph, 0).result();
            driver::graph::destroy(graph).ok();
            ready.map_err(CudaError::driver("prepare a recording"))?;
        }
        Ok(made)
    }
}

impl Drop for StreamCapture {
    fn drop(&mut self) {
        // SAFETY: the stream is alive and destroyed once. What was recorded of work that failed is
        // thrown away.
        unsafe {
            if self.active
                && let Ok(graph) = driver::stream::end_capture(self.stream)
                && !graph.is_null()
            {
                driver::graph::destroy(graph).ok();
            }
            driver::stream::destroy(self.stream).ok();
        }
    }
}
