//! The CPU kernels, one file per operation of [`crate::ops`], compiled for every instruction set of
//! [`isa`].

pub(crate) mod activation;
pub(crate) mod aligned;
#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod attention;
pub(crate) mod int8;
pub(crate) mod isa;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod math;
pub(crate) mod norm;
pub(crate) mod optimizer;
pub(crate) mod peak;
pub(crate) mod regression;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod split;
pub(crate) mod topk;
