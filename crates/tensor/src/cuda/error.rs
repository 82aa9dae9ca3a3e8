//! Errors of the CUDA backend.

/// An error from opening or using a GPU.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No GPU was found, or a required library is missing.
    #[error("no usable gpu: {0}")]
    Unavailable(String),
    /// The GPU is too old for the kernels.
    #[error("{name} has compute capability {major}.{minor}; 8.0 or later is required")]
    UnsupportedCapability {
        /// The GPU's name.
        name: String,
        /// Major compute capability.
        major: i32,
        /// Minor compute capability.
        minor: i32,
    },
    /// The fp8 kernels need the tensor cores of compute capability 9.0.
    #[error(
        "{name} has compute capability {major}.{minor}, but fp8 requires 9.0 (Hopper); use bf16"
    )]
    NoFp8 {
        /// The GPU's name.
        name: String,
        /// Major compute capability.
        major: i32,
        /// Minor compute capability.
        minor: i32,
    },
    /// An allocation failed.
    #[error("out of gpu memory: {bytes} bytes requested, {free} of {total} free")]
    OutOfMemory {
        /// Size of the allocation in bytes.
        bytes: usize,
        /// Free memory of the GPU in bytes.
        free: usize,
        /// Total memory of the GPU in bytes.
        total: usize,
    },
    /// NVRTC rejected a kernel.
    #[error("kernel {file} does not compile for {arch}: {log}; update the cuda libraries (nvrtc)")]
    Compile {
        /// The source file.
        file: &'static str,
        /// The architecture.
        arch: String,
        /// The compiler's log.
        log: String,
    },
    /// A driver call failed.
    #[error("the gpu driver failed to {what}: {reason}; see `nvidia-smi`")]
    Driver {
        /// The operation, e.g. `allocate memory`.
        what: &'static str,
        /// The driver's message.
        reason: String,
    },
    /// cuBLASLt has no algorithm for a GEMM, or failed to run it.
    #[error(
        "cublaslt failed to multiply {rows} rows of {inputs} into {outputs}: {reason}; \
         update the cuda libraries"
    )]
    Matmul {
        /// Rows of x.
        rows: usize,
        /// Columns of x.
        inputs: usize,
        /// Columns of the result.
        outputs: usize,
        /// cuBLASLt's status.
        reason: String,
    },
}
