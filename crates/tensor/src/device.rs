//! Where numbers live: the processor's worker threads, or a GPU.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use crate::cpu::isa::Isa;
use crate::cuda::stream::CudaEvent;
use crate::cuda::{CudaDevice, CudaError};
use crate::params::Precision;

/// Why a device could not be had, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The operating system refused to start the workers.
    #[error("cannot start {threads} worker threads: {reason}; pass a smaller --threads")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the operating system said.
        reason: String,
    },
    /// The instruction set asked for is not on this processor.
    #[error("this processor has no {0}; leave the instruction set to be chosen at run time")]
    UnsupportedIsa(Isa),
    /// The GPU refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl DeviceError {
    /// Whether less work at a time would have gone through.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Cuda(CudaError::OutOfMemory { .. }))
    }
}

/// A handle on what computes; cheap to clone.
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
}

impl Device {
    /// The processor, with `threads` workers (all cores if `None`) and the best instruction set it
    /// has.
    pub fn cpu(threads: Option<NonZeroUsize>) -> Result<Self, DeviceError> {
        Self::cpu_with(threads, Isa::detect())
    }

    /// The processor with a chosen instruction set; an error if it does not have it.
    pub fn cpu_with(threads: Option<NonZeroUsize>, isa: Isa) -> Result<Self, DeviceError> {
        if !isa.is_present() {
            return Err(DeviceError::UnsupportedIsa(isa));
        }
        let threads = threads.map_or_else(available_threads, NonZeroUsize::get);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("latent-tts-{i}"))
            .build()
            .map_err(|e| DeviceError::Threads { threads, reason: e.to_string() })?;
        Ok(Self(Arc::new(Backend::Cpu(CpuDevice { pool, isa }))))
    }

    /// GPU number `ordinal`.
    pub fn cuda(ordinal: usize, precision: Precision) -> Result<Self, DeviceError> {
        Ok(Self(Arc::new(Backend::Cuda(CudaDevice::open(ordinal, precision)?))))
    }

    /// Whether there is a GPU and what it takes to use it; if not, why.
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

    /// Whether everything is computed in single precision.
    pub fn is_f32(&self) -> bool {
        match self.backend() {
            Backend::Cpu(_) => true,
            Backend::Cuda(cuda) => cuda.precision() == Precision::F32,
        }
    }

    /// What it is, in a few words.
    pub fn describe(&self) -> String {
        match self.backend() {
            Backend::Cpu(cpu) => {
                format!("{} threads of {}", cpu.pool.current_num_threads(), cpu.isa)
            }
            Backend::Cuda(cuda) => {
                let (major, minor) = cuda.capability();
                format!(
                    "{} (compute capability {major}.{minor}) in {}",
                    cuda.name(),
                    cuda.precision()
                )
            }
        }
    }

    /// The instruction set of the processor's kernels.
    pub fn isa(&self) -> Option<Isa> {
        match self.backend() {
            Backend::Cpu(cpu) => Some(cpu.isa),
            Backend::Cuda(_) => None,
        }
    }

    /// How many of the processor's workers share the work.
    pub fn threads(&self) -> usize {
        match self.backend() {
            Backend::Cpu(cpu) => cpu.pool.current_num_threads(),
            Backend::Cuda(_) => 1,
        }
    }

    /// Bytes of a GPU's own memory: free, and all.
    pub fn memory(&self) -> Result<Option<(usize, usize)>, DeviceError> {
        match self.backend() {
            Backend::Cpu(_) => Ok(None),
            Backend::Cuda(cuda) => Ok(Some(cuda.memory()?)),
        }
    }

    /// Lanes in which work may run at the same time; what a processor is asked for it does with all
    /// its workers at once.
    pub fn streams(&self) -> usize {
        match self.backend() {
            Backend::Cpu(_) => 1,
            Backend::Cuda(_) => 2,
        }
    }

    /// Runs `work` of this thread in a lane, by its number below [`Device::lanes`]; outside of this
    /// everything is in lane 0.
    ///
    /// Work in one lane is done in its order. Between lanes there is none: before what one made is
    /// read or dropped in another, the first must have been waited for, as
    /// [`Device::synchronize`] does in the lane that it is called in.
    pub fn on_stream<R>(&self, lane: usize, work: impl FnOnce() -> R) -> Result<R, DeviceError> {
        match self.backend() {
            Backend::Cpu(_) => Ok(work()),
            Backend::Cuda(cuda) => Ok(cuda.on_stream(lane, work)?),
        }
    }

    /// The moment when everything asked for so far in this lane is done. Nothing waits for it.
    pub fn record_event(&self) -> Result<DeviceEvent, DeviceError> {
        Ok(DeviceEvent(match self.backend() {
            Backend::Cpu(_) => EventClock::Host(Instant::now()),
            Backend::Cuda(cuda) => EventClock::Cuda(cuda.record_event()?),
        }))
    }

    /// Waits until everything asked for so far in this lane is done.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        match self.backend() {
            Backend::Cpu(_) => Ok(()),
            Backend::Cuda(cuda) => Ok(cuda.synchronize()?),
        }
    }

    /// Rows that are best computed together: enough for full speed, few enough that activations
    /// stay small.
    pub fn max_batch_rows(&self) -> usize {
        match self.backend() {
            Backend::Cpu(_) => 768,
            Backend::Cuda(_) => 16_384,
        }
    }

    /// Runs `work` on this device's workers, so that the parallel parts of the operations in it use
    /// them and no others.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match self.backend() {
            Backend::Cpu(cpu) => cpu.pool.install(work),
            Backend::Cuda(_) => work(),
        }
    }
}

/// A point in the order of a device's work, and its time.
#[derive(Debug)]
pub struct DeviceEvent(EventClock);

#[derive(Debug)]
enum EventClock {
    Host(Instant),
    Cuda(CudaEvent),
}

impl DeviceEvent {
    /// Seconds from this to a later moment of the same device and lane, which is waited for.
    pub fn elapsed(&self, later: &Self) -> Result<f64, DeviceError> {
        match (&self.0, &later.0) {
            (EventClock::Host(from), EventClock::Host(to)) => Ok((*to - *from).as_secs_f64()),
            (EventClock::Cuda(from), EventClock::Cuda(to)) => Ok(from.elapsed(to)?),
            _ => panic!("moments of two devices"),
        }
    }
}

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
