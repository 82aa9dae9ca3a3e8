//! Tensors and the operations of a transformer, on the CPU and on NVIDIA GPUs. This crate knows
//! nothing of models.
//!
//! * [`Device`] is a thread pool with a SIMD instruction set, or a GPU.
//! * [`Tensor`] is a row-major matrix on a device.
//! * [`ops`] holds every operation once: contract and shapes, checks, dispatch to a backend.
//! * `cpu` and `cuda` hold the kernels, one file per operation, under the names of [`ops`].
//! * [`rng`] is a counter-based generator: random numbers as a pure function of what they are for.
//!
//! Two invariants hold for every operation. Batch invariance: a row of the result depends on that
//! row of the input alone, not on the other rows, their number or the number of threads; to the bit
//! on the CPU and on a GPU that was opened as deterministic, to rounding on another. And an
//! operation never reads uninitialised memory or leaves part of its output unwritten.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "cuda_disabled.rs"]
mod cuda;
mod device;
pub mod ops;
mod params;
mod peak;
pub mod rng;
mod tensor;

pub use cpu::isa::Isa;
pub use cuda::CudaError;
pub use device::{Device, DeviceError, DeviceEvent, start_global_threads};
pub use params::Precision;
pub use peak::peak_flops;
pub use tensor::Tensor;
