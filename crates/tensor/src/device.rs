//! Compute devices: the threads of the CPU, or a GPU.

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use rayon::prelude::*;

use crate::cpu::int8::ByteKernel;
use crate::cpu::isa::Isa;
use crate::cpu::linear::REGISTER_ROWS;
use crate::cuda::stream::CudaEvent;
use crate::cuda::{CudaDevice, CudaError};
use crate::params::{GPU_STREAMS, Precision};

/// An error from opening or using a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The operating system refused to start the threads.
    #[error("cannot start {threads} worker threads: {reason}")]
    Threads {
        /// The number of threads.
        threads: usize,
        /// The operating system's message.
        reason: String,
    },
    /// More threads than are useful: each operation wakes all of them.
    #[error("{threads} worker threads exceed the limit of {limit} on this machine")]
    TooManyThreads {
        /// The number of threads.
        threads: usize,
        /// The maximum number of threads.
        limit: usize,
    },
    /// The device does not support this precision.
    #[error("{device} does not support {precision}; {}", precision.advice())]
    UnsupportedPrecision {
        /// `a GPU` or `the CPU`.
        device: &'static str,
        /// The precision.
        precision: Precision,
    },
    /// The CPU does not have the instruction set.
    #[error("this CPU has no {0}; leave the instruction set to automatic selection")]
    UnsupportedIsa(Isa),
    /// A model dimension that exceeds the GPU kernels' limits.
    #[error("a {what} of {found} exceeds the limit of {limit} of the GPU kernels")]
    GpuShape {
        /// The dimension, e.g. `hidden size`.
        what: &'static str,
        /// Its value.
        found: usize,
        /// The maximum.
        limit: usize,
    },
    /// An error of the GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl DeviceError {
    /// Whether the device ran out of memory, so that a smaller batch might succeed.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Cuda(CudaError::OutOfMemory { .. }))
    }
}

/// A handle on a device; cheap to clone.
#[derive(Clone, Debug)]
pub struct Device(Arc<Backend>);

#[derive(Debug)]
pub(crate) enum Backend {
    Cpu(CpuDevice),
    Cuda(CudaDevice),
}

#[derive(Debug)]
pub(crate) struct CpuDevice {
    pool: rayon::ThreadPool,
    pub(crate) isa: Isa,
    pub(crate) precision: Precision,
}

impl Device {
    /// The CPU with `threads` threads (one per core if `None`) and its best instruction set.
    pub fn cpu(threads: Option<NonZeroUsize>) -> Result<Self, DeviceError> {
        Self::cpu_with(threads, Isa::detect())
    }

    /// The CPU with a given instruction set; an error if it does not have it.
    pub fn cpu_with(threads: Option<NonZeroUsize>, isa: Isa) -> Result<Self, DeviceError> {
        Self::cpu_in(threads, isa, Precision::F32)
    }

    /// The CPU in a given precision: f32 or int8.
    pub fn cpu_in(
        threads: Option<NonZeroUsize>,
        isa: Isa,
        precision: Precision,
    ) -> Result<Self, DeviceError> {
        if matches!(precision, Precision::Bf16 | Precision::Fp8) {
            return Err(DeviceError::UnsupportedPrecision { device: "the CPU", precision });
        }
        if !isa.is_present() {
            return Err(DeviceError::UnsupportedIsa(isa));
        }
        let threads = threads.map_or_else(available_threads, NonZeroUsize::get);
        let limit = (THREADS_PER_CORE * available_threads()).max(LEAST_THREAD_LIMIT);
        if threads > limit {
            return Err(DeviceError::TooManyThreads { threads, limit });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("latent-tts-{i}"))
            .build()
            .map_err(|e| DeviceError::Threads { threads, reason: e.to_string() })?;
        check_spare_threads(SPARE_THREADS)?;
        Ok(Self(Arc::new(Backend::Cpu(CpuDevice { pool, isa, precision }))))
    }

    /// GPU number `ordinal`.
    pub fn cuda(ordinal: usize, precision: Precision) -> Result<Self, DeviceError> {
        Self::cuda_with(ordinal, precision, false)
    }

    /// GPU number `ordinal`; if `deterministic`, a row of a result depends only on that row of the
    /// input, to the bit, as on the CPU: kernels are then selected by the shapes of a model, never
    /// by the number of rows. This does not hold for gradients, whose sums over rows have no fixed
    /// order.
    pub fn cuda_with(
        ordinal: usize,
        precision: Precision,
        deterministic: bool,
    ) -> Result<Self, DeviceError> {
        if precision == Precision::Int8 {
            return Err(DeviceError::UnsupportedPrecision { device: "a GPU", precision });
        }
        Ok(Self(Arc::new(Backend::Cuda(CudaDevice::open(ordinal, precision, deterministic)?))))
    }

    /// The same device, but in bf16 if its precision is fp8: for models whose results do not
    /// tolerate four-bit significands.
    pub fn without_fp8(&self) -> Self {
        let bf16 = match self.backend() {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => cuda.without_fp8(),
        };
        bf16.map_or_else(|| self.clone(), |cuda| Self(Arc::new(Backend::Cuda(cuda))))
    }

    /// Whether there is a usable GPU; if not, the reason.
    pub fn cuda_availability() -> Result<(), String> {
        CudaDevice::availability()
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.0
    }

    /// Whether this is a GPU.
    pub fn is_cuda(&self) -> bool {
        matches!(self.backend(), Backend::Cuda(_))
    }

    /// Rejects a model whose dimensions exceed the limits of this device's kernels.
    pub fn check_model(&self, width: usize, head_dim: usize) -> Result<(), DeviceError> {
        if self.is_cuda() { check_gpu_shape(width, head_dim) } else { Ok(()) }
    }

    /// How the device stores and multiplies numbers.
    pub fn precision(&self) -> Precision {
        match self.backend() {
            Backend::Cpu(cpu) => cpu.precision,
            Backend::Cuda(cuda) => cuda.precision(),
        }
    }

    /// Whether the compute dtype is f32.
    pub fn is_f32(&self) -> bool {
        match self.backend() {
            Backend::Cpu(cpu) => cpu.precision == Precision::F32,
            Backend::Cuda(cuda) => cuda.precision() == Precision::F32,
        }
    }

    /// Whether a row of a result depends only on that row of the input, to the bit.
    pub fn is_deterministic(&self) -> bool {
        match self.backend() {
            Backend::Cpu(_) => true,
            Backend::Cuda(cuda) => cuda.is_deterministic(),
        }
    }

    /// A description of the numerics of a GPU opened as deterministic: everything other than its
    /// inputs that determines the bits of a result. `None` for the CPU, and for a GPU whose bits
    /// depend on the batch.
    pub fn deterministic_numerics(&self) -> Option<String> {
        match self.backend() {
            Backend::Cuda(cuda) if cuda.is_deterministic() => {
                let (major, minor) = cuda.capability();
                Some(format!("{} on compute capability {major}.{minor}", cuda.precision()))
            }
            _ => None,
        }
    }

    /// A one-line description.
    pub fn describe(&self) -> String {
        match self.backend() {
            Backend::Cpu(cpu) => {
                let threads = cpu.pool.current_num_threads();
                let isa = cpu.isa;
                match cpu.precision {
                    Precision::Int8 => {
                        format!("{threads} threads of {} in int8", ByteKernel::for_isa(isa))
                    }
                    _ => format!("{threads} threads of {isa}"),
                }
            }
            Backend::Cuda(cuda) => {
                let (major, minor) = cuda.capability();
                let deterministic = if cuda.is_deterministic() { ", deterministic" } else { "" };
                format!(
                    "{} (compute capability {major}.{minor}) in {}{deterministic}",
                    cuda.name(),
                    cuda.precision()
                )
            }
        }
    }

    /// The instruction set of the CPU; `None` for a GPU.
    pub fn isa(&self) -> Option<Isa> {
        match self.backend() {
            Backend::Cpu(cpu) => Some(cpu.isa),
            Backend::Cuda(_) => None,
        }
    }

    /// The number of threads of the CPU; 1 for a GPU.
    pub fn threads(&self) -> usize {
        match self.backend() {
            Backend::Cpu(cpu) => cpu.pool.current_num_threads(),
            Backend::Cuda(_) => 1,
        }
    }

    /// Bytes of a GPU's memory, free and total; `None` for the CPU.
    pub fn memory(&self) -> Result<Option<(usize, usize)>, DeviceError> {
        match self.backend() {
            Backend::Cpu(_) => Ok(None),
            Backend::Cuda(cuda) => Ok(Some(cuda.memory()?)),
        }
    }

    /// Peak GPU memory of this process in bytes; `None` for the CPU.
    pub fn peak_memory(&self) -> Result<Option<usize>, DeviceError> {
        match self.backend() {
            Backend::Cpu(_) => Ok(None),
            Backend::Cuda(cuda) => Ok(Some(cuda.peak_memory()?)),
        }
    }

    /// Restarts the measurement of [`Device::peak_memory`].
    pub fn reset_peak_memory(&self) -> Result<(), DeviceError> {
        match self.backend() {
            Backend::Cpu(_) => Ok(()),
            Backend::Cuda(cuda) => Ok(cuda.reset_peak_memory()?),
        }
    }

    /// The number of streams whose work may run concurrently: 1 on the CPU, where all threads work
    /// on one operation.
    pub fn streams(&self) -> usize {
        match self.backend() {
            Backend::Cpu(_) => 1,
            Backend::Cuda(_) => GPU_STREAMS,
        }
    }

    /// Runs `work` on stream `index`, which must be below [`Device::streams`]; everything else runs
    /// on stream 0.
    ///
    /// Work on one stream runs in order; streams are not ordered with each other. Before data
    /// written on one stream is read or dropped on another, the first stream must be synchronized:
    /// [`Device::synchronize`] waits for the stream on which it is called.
    pub fn on_stream<R>(&self, index: usize, work: impl FnOnce() -> R) -> Result<R, DeviceError> {
        match self.backend() {
            Backend::Cpu(_) => Ok(work()),
            Backend::Cuda(cuda) => Ok(cuda.on_stream(index, work)?),
        }
    }

    /// Records an event that completes when everything queued so far on this stream has. Does not
    /// wait.
    pub fn record_event(&self) -> Result<DeviceEvent, DeviceError> {
        Ok(DeviceEvent(match self.backend() {
            Backend::Cpu(_) => EventClock::Host(Instant::now()),
            Backend::Cuda(cuda) => EventClock::Cuda(cuda.record_event()?),
        }))
    }

    /// Waits until everything queued so far on this stream is done.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        match self.backend() {
            Backend::Cpu(_) => Ok(()),
            Backend::Cuda(cuda) => Ok(cuda.synchronize()?),
        }
    }

    /// Maximum rows that a pass computes at once: enough for full speed, few enough that
    /// activations stay small.
    pub fn max_batch_rows(&self) -> usize {
        match self.backend() {
            Backend::Cpu(_) => 768,
            Backend::Cuda(_) => 16_384,
        }
    }

    /// The best part size, in rows, for a pass of `rows` rows.
    ///
    /// A CPU with several threads computes parts in parallel ([`Device::for_each`]): threads that
    /// each take their own rows through a whole layer wait for each other far less often than
    /// threads that share every operation. If each part would have few rows, all threads share the
    /// operations of a single part instead: weights are read once per part.
    pub fn part_rows(&self, rows: usize) -> usize {
        const FEWEST: usize = 48;
        const MOST: usize = 128;
        let Backend::Cpu(cpu) = self.backend() else { return rows };
        let threads = cpu.pool.current_num_threads();
        if threads == 1 || rows < threads * FEWEST {
            return rows;
        }
        // The same number of parts for each thread, of whole AMX registers.
        let step = if cpu.isa == Isa::Amx { REGISTER_ROWS } else { 1 };
        rows.div_ceil(rows.div_ceil(MOST).next_multiple_of(threads)).next_multiple_of(step)
    }

    /// Runs `work` on each item, in parallel on a CPU's threads; idle threads join the operations
    /// inside it.
    pub fn for_each<T: Send>(
        &self,
        items: &mut [T],
        work: impl Fn(&mut T) -> Result<(), DeviceError> + Send + Sync,
    ) -> Result<(), DeviceError> {
        match (self.backend(), items) {
            (Backend::Cpu(_), items @ [_, _, ..]) => items.par_iter_mut().try_for_each(work),
            (_, items) => items.iter_mut().try_for_each(work),
        }
    }

    /// Runs `work` on this device's thread pool, which the operations in it then use.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match self.backend() {
            Backend::Cpu(cpu) => cpu.pool.install(work),
            Backend::Cuda(_) => work(),
        }
    }
}

/// A recorded point in a stream's work.
#[derive(Debug)]
pub struct DeviceEvent(EventClock);

#[derive(Debug)]
enum EventClock {
    Host(Instant),
    Cuda(CudaEvent),
}

impl DeviceEvent {
    /// Seconds from this to a later event of the same device and stream. Waits for the later one.
    pub fn elapsed(&self, later: &Self) -> Result<f64, DeviceError> {
        match (&self.0, &later.0) {
            (EventClock::Host(from), EventClock::Host(to)) => Ok((*to - *from).as_secs_f64()),
            (EventClock::Cuda(from), EventClock::Cuda(to)) => Ok(from.elapsed(to)?),
            _ => panic!("events of two devices"),
        }
    }
}

/// Maximum width of the normalization kernels, and maximum head size of the attention kernels.
const MAX_GPU_WIDTH: usize = 16_384;
const MAX_GPU_HEAD_DIM: usize = 256;

fn check_gpu_shape(width: usize, head_dim: usize) -> Result<(), DeviceError> {
    let sizes = [("hidden size", width, MAX_GPU_WIDTH), ("head size", head_dim, MAX_GPU_HEAD_DIM)];
    match sizes.into_iter().find(|(_, found, limit)| found > limit) {
        Some((what, found, limit)) => Err(DeviceError::GpuShape { what, found, limit }),
        None => Ok(()),
    }
}

/// Starts the global thread pool for work that belongs to no device, with one thread per core if
/// `threads` is `None`. Without this call the pool is started on first use, where a failure is a
/// panic.
///
/// # Errors
///
/// [`DeviceError::Threads`] if the operating system refuses.
pub fn start_global_threads(threads: Option<NonZeroUsize>) -> Result<(), DeviceError> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let threads = threads.map_or_else(available_threads, NonZeroUsize::get);
    let started = STARTED.get_or_init(|| {
        let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
        match built {
            Ok(()) => Ok(()),
            // Another caller has started them already.
            Err(error) if error.source().is_none() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    });
    started.clone().map_err(|reason| DeviceError::Threads { threads, reason })
}

/// Threads that an engine or a training run starts in addition to those of its device.
const SPARE_THREADS: usize = 2;

/// Checks that `threads` more threads can be started, while an error can still be reported: the
/// standard library panics if a thread cannot be started when it is needed.
///
/// # Errors
///
/// [`DeviceError::Threads`] with the operating system's reason.
pub fn check_spare_threads(threads: usize) -> Result<(), DeviceError> {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let mut spare = Vec::new();
    let mut failed = None;
    for _ in 0..threads {
        let held = Arc::clone(&held);
        // Every thread waits for the channel to close, so that all of them exist at the same time.
        let wait = move || drop(held.lock().map(|held| held.recv()));
        match std::thread::Builder::new().spawn(wait) {
            Ok(thread) => spare.push(thread),
            Err(error) => failed = Some(error),
        }
    }
    drop(release);
    spare.into_iter().for_each(|thread| drop(thread.join()));
    match failed {
        Some(error) => Err(DeviceError::Threads { threads, reason: error.to_string() }),
        None => Ok(()),
    }
}

/// The limit of worker threads: this number per core, and at least [`LEAST_THREAD_LIMIT`].
const THREADS_PER_CORE: usize = 4;
const LEAST_THREAD_LIMIT: usize = 64;

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_no_gpu_kernel_takes_are_refused() {
        assert!(check_gpu_shape(MAX_GPU_WIDTH, MAX_GPU_HEAD_DIM).is_ok());
        for (width, head_dim) in [(MAX_GPU_WIDTH + 1, 64), (768, MAX_GPU_HEAD_DIM + 1)] {
            let error = check_gpu_shape(width, head_dim).unwrap_err();
            assert!(matches!(error, DeviceError::GpuShape { .. }), "{error}");
        }
        let device = Device::cpu(None).unwrap();
        assert!(device.check_model(1 << 18, 512).is_ok(), "CPUs have no such limits");
    }

    #[test]
    fn threads_are_limited() {
        let error = Device::cpu(NonZeroUsize::new(100_000)).unwrap_err();
        assert!(matches!(error, DeviceError::TooManyThreads { .. }), "{error}");
    }
}
