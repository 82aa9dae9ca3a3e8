//! Errors of the CUDA backend.

/// Why a GPU could not be opened, or failed.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no GPU, or a library that is needed to use it is missing.
    #[error("no usable gpu: {0}")]
    Unavailable(String),
    /// The GPU is too old for the kernels.
    #[error("{name} has compute capability {major}.{minor}, 8.0 is needed")]
    UnsupportedCapability {
        /// The GPU's name.
        name: String,
        /// Its compute capability, major.
        major: i32,
        /// Its compute capability, minor.
        minor: i32,
    },
    /// The GPU's tensor cores are not those that the fp8 kernels are written for.
    #[error(
        "{name} has compute capability {major}.{minor}, and fp8 is for 9.0 (Hopper); take bf16"
    )]
    NoFp8 {
        /// The GPU's name.
        name: String,
        /// Its compute capability, major.
        major: i32,
        /// Its compute capability, minor.
        minor: i32,
    },
    /// An allocation failed.
    #[error("the gpu's memory is full: {bytes} bytes asked for, {free} of {total} free")]
    OutOfMemory {
        /// The bytes of the allocation.
        bytes: usize,
        /// Free bytes of the GPU.
        free: usize,
        /// All bytes of the GPU.
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
    /// A call of the driver failed.
    #[error("the gpu driver failed to {what}: {reason}; see `nvidia-smi`")]
    Driver {
        /// What was tried.
        what: &'static str,
        /// The driver's message.
        reason: String,
    },
    /// cuBLASLt has no algorithm for a GEMM, or failed to run it.
    #[error(
        "cublaslt has no way to multiply {rows} rows of {inputs} into {outputs}: {reason}; \
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
