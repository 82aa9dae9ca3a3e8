//! The CUDA backend: cuBLASLt for most bf16 GEMMs, our own kernels for the rest, compiled at run
//! time.
//!
//! * [`context`] opens a GPU and launches kernels; [`stream`] is a CUDA stream with its free list.
//!   Operations are queued; only copies to the host synchronize.
//! * [`module`] compiles the `.cu` files beside these with NVRTC and caches the cubins on disk.
//! * [`blas`] wraps cuBLASLt, `f32_gemm` multiplies f32, `mma_gemm` bf16 in a fixed order;
//!   [`memory`] is device memory, [`args`] the structs of arguments.
//! * [`staging`] copies inputs to the GPU ahead of their pass, [`readback`] copies results to the
//!   host asynchronously.
//! * [`hopper_gemm`] and [`residual`] contain kernels that only run on Hopper (`hopper.cuh`), which
//!   load and store matrices through [`tma`] descriptors.
//! * [`fp8`] contains e4m3 rows with their scales, which `hopper_gemm` multiplies; [`e4m3`] is the
//!   format on the host.
//! * [`graph`] captures and replays CUDA graphs.
//! * One file per operation, under the names of `cpu`: contract and launch here, the kernel in the
//!   `.cu` file of the same name.
//!
//! Nothing is linked: the driver, NVRTC and cuBLASLt are loaded when a GPU is opened, and a build
//! needs none of them. Operations panic when shapes disagree, like those of `ops`; failures that
//! depend on the machine are a [`CudaError`].

pub(crate) mod activation;
pub(crate) mod args;
pub(crate) mod attention;
pub(crate) mod blas;
pub(crate) mod context;
pub(crate) mod driver;
pub(crate) mod dropout;
pub(crate) mod e4m3;
pub(crate) mod embedding;
pub(crate) mod error;
mod f32_gemm;
pub(crate) mod fp8;
#[cfg(test)]
mod fp8_checks;
pub(crate) mod graph;
pub(crate) mod hopper_gemm;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod memory;
mod mma_gemm;
pub(crate) mod module;
pub(crate) mod noise;
pub(crate) mod norm;
pub(crate) mod optimizer;
pub(crate) mod qkv;
pub(crate) mod readback;
pub(crate) mod regression;
pub(crate) mod residual;
pub(crate) mod rows;
pub(crate) mod sample;
pub(crate) mod staging;
pub(crate) mod stream;
mod tiles;
pub(crate) mod tma;
pub(crate) mod topk;

pub(crate) use args::CudaDtype;
pub(crate) use context::CudaDevice;
pub use error::CudaError;
pub(crate) use memory::{CudaIndices, CudaTensor};

pub(crate) use crate::params::Precision;
