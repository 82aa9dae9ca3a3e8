//! Numbers on a device. This crate knows nothing of models.
//!
//! * [`Device`] says where numbers live and which instructions work on them.
//! * [`Tensor`] is a row-major matrix of `f32` on a device.
//! * [`ops`] holds every operation once: its contract in prose and shapes, the checks, the dispatch
//!   to a device.
//! * `cpu` and `cuda` hold the kernels, one file per operation, under the names of [`ops`].
//! * [`rng`] is randomness as a pure function: the same bits wherever and whenever they are drawn.
//!
//! Two promises hold for every operation here. A row of the result depends on that row of the input
//! alone, never on its neighbours, the number of rows or the number of threads: bit for bit on the
//! processor, to rounding on a GPU. And an operation never reads uninitialised memory or leaves
//! part of its output unwritten.

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
pub use device::{Device, DeviceError, DeviceEvent};
pub use params::Precision;
pub use peak::peak_flops;
pub use tensor::Tensor;
