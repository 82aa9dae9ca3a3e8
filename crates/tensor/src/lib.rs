//! Tensors and the operations of a transformer, on the CPU and on NVIDIA GPUs. This crate is
//! independent of any model.
//!
//! * [`Device`] is a thread pool with a SIMD instruction set, or a GPU.
//! * [`Tensor`] is a row-major matrix on a device.
//! * [`ops`] defines every operation once: contract and shapes, checks, dispatch to a backend.
//! * `cpu` and `cuda` contain the kernels, one file per operation, with the names of [`ops`].
//! * [`rng`] is a counter-based generator: random numbers as a pure function of their key.
//!
//! Two invariants hold for every operation. First, batch invariance: a row of the result depends
//! only on that row of the input, not on the other rows, their number or the number of threads; to
//! the bit on the CPU and on a GPU that was opened as deterministic, up to rounding on other GPUs.
//! Second, an operation never reads uninitialized memory or leaves part of its output unwritten.

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
pub use device::{Device, DeviceError, DeviceEvent, check_spare_threads, start_global_threads};
pub use params::Precision;
pub use peak::peak_flops;
pub use tensor::Tensor;
