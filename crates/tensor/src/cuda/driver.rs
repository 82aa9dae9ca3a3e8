//! Conversions of driver and cuBLASLt results to [`CudaError`].

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;

use super::CudaError;

impl CudaError {
    /// Wraps an error of the driver call for operation `what`.
    pub(crate) fn driver(what: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |e| Self::Driver { what, reason: reason(e) }
    }

    /// Wraps an error of cuBLASLt outside of a GEMM.
    pub(crate) fn blas(what: &'static str) -> impl FnOnce(CublasError) -> Self {
        move |e| Self::Driver { what, reason: format!("{:?}", e.0) }
    }
}

/// Whether an allocation failed.
pub(crate) fn is_out_of_memory(e: &DriverError) -> bool {
    e.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

fn reason(e: DriverError) -> String {
    let text = e.error_string().ok().and_then(|s| s.to_str().ok().map(str::to_owned));
    text.map_or_else(|| format!("{:?}", e.0), |t| format!("{t} ({:?})", e.0))
}
