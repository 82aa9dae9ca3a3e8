//! Where numbers live: the processor's worker threads, or a GPU.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use crate::cpu::isa::Isa;
use crate::cuda::lane::Event;
use crate::cuda::{Cuda, CudaError, Precision};

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
    Isa(Isa),
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
pub struct Device(Arc<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    Cpu(Cpu),
    Cuda(Cuda),
}

#[derive(Debug)]
pub(crate) struct Cpu {
    pool: rayon::ThreadPool,
    pub(crate) isa: Isa,
}

impl Device {
    /// The processor, with `threads` workers (all cores if `None`) and the best instruction set it has.
    pub fn cpu(threads: Option<NonZeroUsize>) -> Result<Self, DeviceError> {
        Self::cpu_with(threads, Isa::detect())
    }

    /// The processor with a chosen instruction set; an error if it does not have it.
    pub fn cpu_with(threads: Option<NonZeroUsize>, isa: Isa) -> Result<Self, DeviceError> {
        if !isa.is_present() {
            return Err(DeviceError::Isa(isa));
        }
        let threads = threads.map_or_else(available_threads, NonZeroUsize::get);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("latent-tts-{i}"))
            .build()
            .map_err(|e| DeviceError::Threads { threads, reason: e.to_string() })?;
        Ok(Self(Arc::new(Kind::Cpu(Cpu { pool, isa }))))
    }

    /// GPU number `ordinal`.
    pub fn cuda(ordinal: usize, precision: Precision) -> Result<Self, DeviceError> {
        Ok(Self(Arc::new(Kind::Cuda(Cuda::open(ordinal, precision)?))))
    }

    /// Whether there is a GPU and what it takes to use it; if not, why.
    pub fn cuda_presence() -> Result<(), String> {
        Cuda::present()
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Whether this is a GPU.
    pub fn is_cuda(&self) -> bool {
        matches!(self.kind(), Kind::Cuda(_))
    }

    /// Whether everything is computed in single precision.
    pub fn is_single(&self) -> bool {
        match self.kind() {
            Kind::Cpu(_) => true,
            Kind::Cuda(cuda) => cuda.precision() == Precision::F32,
        }
    }

    /// What it is, in a few words.
    pub fn describe(&self) -> String {
        match self.kind() {
            Kind::Cpu(cpu) => format!("{} threads of {}", cpu.pool.current_num_threads(), cpu.isa),
            Kind::Cuda(cuda) => {
                let (major, minor) = cuda.capability();
                format!("{} (compute capability {major}.{minor}) in {}", cuda.name(), cuda.precision())
            }
        }
    }

    /// The instruction set of the processor's kernels.
    pub fn isa(&self) -> Option<Isa> {
        match self.kind() {
            Kind::Cpu(cpu) => Some(cpu.isa),
            Kind::Cuda(_) => None,
        }
    }

    /// How many of the processor's workers share the work.
    pub fn threads(&self) -> usize {
        match self.kind() {
            Kind::Cpu(cpu) => cpu.pool.current_num_threads(),
            Kind::Cuda(_) => 1,
        }
    }

    /// Bytes of a GPU's own memory: free, and all.
    pub fn memory(&self) -> Result<Option<(usize, usize)>, DeviceError> {
        match self.kind() {
            Kind::Cpu(_) => Ok(None),
            Kind::Cuda(cuda) => Ok(Some(cuda.memory()?)),
        }
    }

    /// Lanes in which work may run at the same time; what a processor is asked for it does with all its workers at once.
    pub fn lanes(&self) -> usize {
        match self.kind() {
            Kind::Cpu(_) => 1,
            Kind::Cuda(_) => 2,
        }
    }

    /// Runs `work` of this thread in a lane, by its number below [`Device::lanes`]; outside of this everything is in lane 0.
    ///
    /// Work in one lane is done in its order. Between lanes there is none: before what one made is read or dropped in
    /// another, the first must have been waited for, as [`Device::synchronize`] does in the lane that it is called in.
    pub fn in_lane<R>(&self, lane: usize, work: impl FnOnce() -> R) -> Result<R, DeviceError> {
        match self.kind() {
            Kind::Cpu(_) => Ok(work()),
            Kind::Cuda(cuda) => Ok(cuda.in_lane(lane, work)?),
        }
    }

    /// The moment when everything asked for so far in this lane is done. Nothing waits for it.
    pub fn moment(&self) -> Result<Moment, DeviceError> {
        Ok(Moment(match self.kind() {
            Kind::Cpu(_) => Clock::Host(Instant::now()),
            Kind::Cuda(cuda) => Clock::Cuda(cuda.lane().moment()?),
        }))
    }

    /// Waits until everything asked for so far in this lane is done.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        match self.kind() {
            Kind::Cpu(_) => Ok(()),
            Kind::Cuda(cuda) => Ok(cuda.synchronize()?),
        }
    }

    /// Rows that are best computed together: enough for full speed, few enough that activations stay small.
    pub fn rows_at_once(&self) -> usize {
        match self.kind() {
            Kind::Cpu(_) => 768,
            Kind::Cuda(_) => 16_384,
        }
    }

    /// Runs `work` on this device's workers, so that the parallel parts of the operations in it use them and no others.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match self.kind() {
            Kind::Cpu(cpu) => cpu.pool.install(work),
            Kind::Cuda(_) => work(),
        }
    }
}

/// A point in the order of a device's work, and its time.
#[derive(Debug)]
pub struct Moment(Clock);

#[derive(Debug)]
enum Clock {
    Host(Instant),
    Cuda(Event),
}

impl Moment {
    /// Seconds from this to a later moment of the same device and lane, which is waited for.
    pub fn until(&self, later: &Self) -> Result<f64, DeviceError> {
        match (&self.0, &later.0) {
            (Clock::Host(from), Clock::Host(to)) => Ok((*to - *from).as_secs_f64()),
            (Clock::Cuda(from), Clock::Cuda(to)) => Ok(from.until(to)?),
            _ => panic!("moments of two devices"),
        }
    }
}

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
