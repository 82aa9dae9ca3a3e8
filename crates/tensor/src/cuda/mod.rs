//! The kernels of an NVIDIA GPU: cuBLASLt for products, our own for the rest, compiled at run time.
//!
//! * [`context`] opens a GPU; [`lane`] is a stream of it, in which everything runs in order, and
//!   nothing waits for it but what brings numbers back to the host.
//! * [`module`] compiles the `.cu` files beside these with NVRTC and keeps the result on disk.
//! * [`blas`] wraps cuBLASLt; [`array`] is memory on the GPU.
//! * [`ahead`] brings numbers to the GPU before they are needed, [`later`] brings numbers back
//!   while the host does other things.
//! * [`product`] and [`residual`] have kernels for Hopper alone (`hopper.cuh`), to whose copy
//!   engine [`copies`] describes matrices.
//! * [`replay`] records work that is repeated and replays it.
//! * One file per operation, under the names of `cpu`: contract and launch here, kernel in the
//!   `.cu` of the same name.
//!
//! Nothing is linked: the driver, NVRTC and cuBLASLt are found when a GPU is opened, and building
//! needs none of them. Operations panic when shapes disagree, as those of `ops` do; whatever
//! depends on the machine is a [`CudaError`].

pub(crate) mod activation;
pub(crate) mod args;
pub(crate) mod attention;
pub(crate) mod blas;
pub(crate) mod context;
pub(crate) mod driver;
pub(crate) mod dropout;
pub(crate) mod embedding;
pub(crate) mod error;
pub(crate) mod graph;
pub(crate) mod hopper_gemm;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod noise;
pub(crate) mod norm;
pub(crate) mod optimizer;
pub(crate) mod qkv;
pub(crate) mod readback;
pub(crate) mod residual;
pub(crate) mod staging;
pub(crate) mod stream;
pub(crate) mod tma;
pub(crate) mod topk;

pub(crate) use args::CudaDtype;
pub(crate) use context::CudaDevice;
pub use error::CudaError;
pub(crate) use memory::{CudaIndices, CudaTensor};

pub(crate) use crate::params::Precision;
