//! CUDA graphs: work that is captured once and replayed with a single launch.
//!
//! A graph fixes every address. Its inputs are therefore written outside of it, to memory from a
//! pool that returns the same addresses in the same order each time; intermediate results use a
//! separate pool. While a thread captures, its operations are queued on a separate stream that
//! executes nothing, so that other threads' work is not captured.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result as driver;
use cudarc::driver::sys;

use super::stream::Stream;
use super::{CudaDevice, CudaError};

/// Memory of a graph: the same requests in the same order get the same blocks.
#[derive(Debug)]
pub(crate) struct GraphPool {
    cuda: CudaDevice,
    stream: Arc<Stream>, // that its blocks belong to
    blocks: Mutex<GraphBlocks>,
}

#[derive(Debug, Default)]
struct GraphBlocks {
    all: Vec<GraphBlock>,
    taken: Vec<u64>, // since the last `take_log`, in order
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

    /// The first free block of this size.
    pub(crate) fn take(&self, size: usize) -> Option<u64> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let block = blocks.all.iter_mut().find(|p| p.free && p.size == size)?;
        block.free = false;
        let pointer = block.pointer;
        blocks.taken.push(pointer);
        Some(pointer)
    }

    /// Adds a block that is in use.
    pub(crate) fn adopt(&self, size: usize, pointer: u64) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.all.push(GraphBlock { size, pointer, free: false });
        blocks.taken.push(pointer);
    }

    /// Marks a block as free.
    pub(crate) fn free(&self, pointer: u64) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = blocks.all.iter_mut().find(|p| p.pointer == pointer) {
            block.free = true;
        }
    }

    /// The blocks that were taken since the last call, in order.
    fn take_log(&self) -> Vec<u64> {
        std::mem::take(&mut self.blocks.lock().unwrap_or_else(PoisonError::into_inner).taken)
    }
}

impl Drop for GraphPool {
    fn drop(&mut self) {
        let blocks = std::mem::take(self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner));
        blocks.all.into_iter().for_each(|p| self.stream.free(p.size, p.pointer));
    }
}

/// The pool from which this thread's operations allocate memory, and the stream on which they are
/// queued.
#[derive(Debug)]
struct CaptureScope {
    pool: Arc<GraphPool>,
    stream: Option<sys::CUstream>, // `None`: the thread's current stream
}

thread_local! {
    static CAPTURE: RefCell<Option<CaptureScope>> = const { RefCell::new(None) };
}

/// The pool from which this thread allocates, if not its stream's.
pub(crate) fn current_pool(cuda: &CudaDevice) -> Option<Arc<GraphPool>> {
    CAPTURE.with_borrow(|scope| {
        scope.as_ref().filter(|d| d.pool.cuda.same_device(cuda)).map(|d| d.pool.clone())
    })
}

/// The stream that this thread captures, if any.
pub(crate) fn capture_stream(cuda: &CudaDevice) -> Option<sys::CUstream> {
    CAPTURE.with_borrow(|scope| {
        scope.as_ref().filter(|d| d.pool.cuda.same_device(cuda)).and_then(|d| d.stream)
    })
}

/// Runs `work` in a scope that ends when it returns or panics.
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
    let _restore =
        RestoreCapture(CAPTURE.replace(Some(CaptureScope { pool: pool.clone(), stream })));
    work()
}

/// Inputs of a graph, at fixed addresses.
#[derive(Debug)]
pub(crate) struct GraphInputs {
    pool: Arc<GraphPool>,
    order: Vec<u64>,
}

impl GraphInputs {
    /// Runs `make` for the first time and records its allocations.
    pub(crate) fn allocate<T, E>(
        cuda: &CudaDevice,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let pool = GraphPool::new(cuda);
        let made = with_scope(&pool, None, make)?;
        let order = pool.take_log();
        Ok((Self { pool, order }, made))
    }

    /// Runs `make` again. Returns whether its allocations have the recorded addresses; if not, the
    /// inputs are valid, but not for the graph.
    pub(crate) fn refill<T, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<(bool, T), E> {
        self.pool.take_log();
        let made = with_scope(&self.pool, None, make)?;
        Ok((self.pool.take_log() == self.order, made))
    }
}

/// An instantiated CUDA graph.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    graph: sys::CUgraphExec,
    pool: Arc<GraphPool>, // of intermediate results
}

// SAFETY: the graph is an opaque handle that the driver lets one thread at a time use, and `launch`
// borrows it mutably.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Captures `work` without running it. The value returned by `work` is written by each launch.
    ///
    /// Everything that `work` accesses must live as long as the graph, at the same address.
    pub(crate) fn new<T, E: From<CudaError>>(
        cuda: &CudaDevice,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        cuda.bind()?;
        let pool = GraphPool::new(cuda);
        let mut capture = StreamCapture::begin()?;
        let made = with_scope(&pool, Some(capture.stream), work)?;
        Ok((Self { graph: capture.end()?, pool }, made))
    }

    /// Replays it on the stream that captured it, which must be this thread's.
    pub(crate) fn launch(&mut self) -> Result<(), CudaError> {
        let cuda = &self.pool.cuda;
        cuda.bind()?;
        // SAFETY: the graph is alive and launched on the stream that all its memory belongs to.
        unsafe { driver::graph::launch(self.graph, self.pool.stream.staged_stream()?) }
            .map_err(CudaError::driver("launch a graph"))
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.pool.cuda.bind().is_ok() {
            // SAFETY: instantiated by `new`, destroyed once; the driver waits for a launch that is
            // running. A failure cannot be returned.
            unsafe { driver::graph::exec_destroy(self.graph) }.ok();
        }
    }
}

/// A stream in capture mode.
struct StreamCapture {
    stream: sys::CUstream,
    active: bool,
}

impl StreamCapture {
    fn begin() -> Result<Self, CudaError> {
        let stream = driver::stream::create(driver::stream::StreamKind::NonBlocking)
            .map_err(CudaError::driver("open a stream"))?;
        let mut capture = Self { stream, active: false };
        // Relaxed mode: memory may be allocated meanwhile, on the stream that executes.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream was just created.
        unsafe { driver::stream::begin_capture(stream, mode) }
            .map_err(CudaError::driver("begin a capture"))?;
        capture.active = true;
        Ok(capture)
    }

    fn end(&mut self) -> Result<sys::CUgraphExec, CudaError> {
        self.active = false;
        let mut made = std::ptr::null_mut();
        // SAFETY: the stream captures; the graph is destroyed once, after its instantiation; `made`
        // outlives the call.
        unsafe {
            let graph = driver::stream::end_capture(self.stream)
                .map_err(CudaError::driver("end a capture"))?;
            let ready = sys::cuGraphInstantiateWithFlags(&raw mut made, graph, 0).result();
            driver::graph::destroy(graph).ok();
            ready.map_err(CudaError::driver("instantiate a graph"))?;
        }
        Ok(made)
    }
}

impl Drop for StreamCapture {
    fn drop(&mut self) {
        // SAFETY: the stream is alive and destroyed once. The capture of work that failed is
        // discarded.
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
