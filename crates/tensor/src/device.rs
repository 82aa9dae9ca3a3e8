//! Where numbers live: the processor's worker threads and the instruction set chosen for them at run time.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::cpu::isa::Isa;

/// Why a device could not be had.
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
}

/// A handle on the machine that computes; cheap to clone.
#[derive(Clone, Debug)]
pub struct Device(Arc<Cpu>);

#[derive(Debug)]
struct Cpu {
    pool: rayon::ThreadPool,
    isa: Isa,
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
        Ok(Self(Arc::new(Cpu { pool, isa })))
    }

    /// The instruction set that the kernels use.
    pub fn isa(&self) -> Isa {
        self.0.isa
    }

    /// How many workers share the work.
    pub fn threads(&self) -> usize {
        self.0.pool.current_num_threads()
    }

    /// Runs `work` on this device's workers, so that the parallel parts of the operations in it use them and no others.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.0.pool.install(work)
    }
}

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
