//! What can go wrong on a GPU, each with the next step.

/// Why a GPU could not be used, or stopped being usable.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no GPU, or a library to reach it is missing.
    #[error("no usable gpu: {0}; run with --device cpu")]
    Unavailable(String),
    /// The GPU cannot run these kernels.
    #[error("{name} has compute capability {major}.{minor}, 8.0 is needed; run with --device cpu")]
    UnsupportedCapability {
        /// The GPU.
        name: String,
        /// What it is capable of.
        major: i32,
        /// What it is capable of.
        minor: i32,
    },
    /// Its memory is full.
    #[error(
        "the gpu's memory is full: {bytes} bytes asked for, {free} of {total} free; lower --memory or the number of samples"
    )]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
        /// What there was.
        free: usize,
        /// What there is.
        total: usize,
    },
    /// A kernel did not compile.
    #[error(
        "kernel {file} does not compile for {arch}: {log}; update the cuda libraries (nvrtc), or run with --device cpu"
    )]
    Compile {
        /// Its source.
        file: &'static str,
        /// The architecture asked for.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// The driver refused something.
    #[error(
        "the gpu driver failed to {what}: {reason}; see `nvidia-smi`, or run with --device cpu"
    )]
    Driver {
        /// What was tried.
        what: &'static str,
        /// What it said.
        reason: String,
    },
    /// cuBLASLt refused a product.
    #[error(
        "cublaslt has no way to multiply {rows} rows of {inputs} into {outputs}: {reason}; update the cuda libraries"
    )]
    Matmul {
        /// Of the left matrix.
        rows: usize,
        /// Of a row.
        inputs: usize,
        /// Of a result's row.
        outputs: usize,
        /// What it said.
        reason: String,
    },
}
