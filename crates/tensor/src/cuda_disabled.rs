//! Stands in for `cuda` where the crate is built without that feature.
//!
//! The types have no values, so a [`Backend::Cuda`](crate::device::Backend::Cuda) cannot exist and
//! what is dispatched to it is never reached; [`crate::ops`] compiles unchanged against the
//! signatures.

#[path = "cuda/args.rs"]
#[allow(dead_code, reason = "arguments that are never read")]
pub(crate) mod args;
#[path = "cuda/error.rs"]
mod error;

use std::result::Result as StdResult;

pub(crate) use args::CudaDtype;
pub use error::CudaError;

use crate::params::Precision;

const DISABLED: &str = "built without the cuda feature";

type Result<T> = StdResult<T, CudaError>;

macro_rules! uninhabited {
    ($($name:ident),*) => { $(#[derive(Debug)] pub(crate) enum $name {})* };
}

/// Functions with an argument of an uninhabited type.
macro_rules! functions {
    ($(fn $name:ident($($argument:ty),*) -> $returns:ty;)*) => {
        $(pub(crate) fn $name($(_: $argument),*) -> $returns { unreachable!() })*
    };
}

/// Methods of an uninhabited type.
macro_rules! methods {
    ($type:ident: $(fn $name:ident($($argument:ty),*) -> $returns:ty;)*) => {
        impl $type {
            $(pub(crate) fn $name(&self $(, _: $argument)*) -> $returns { match *self {} })*
        }
    };
}

uninhabited!(CudaDevice, CudaIndices, CudaTensor);

impl CudaDevice {
    pub(crate) fn availability() -> StdResult<(), String> {
        Err(DISABLED.to_owned())
    }

    pub(crate) fn open(_: usize, _: Precision) -> Result<Self> {
        Err(CudaError::Unavailable(DISABLED.to_owned()))
    }

    pub(crate) fn on_stream<T>(&self, _: usize, _: impl FnOnce() -> T) -> Result<T> {
        match *self {}
    }
}

methods! { CudaDevice:
    fn name() -> &str;
    fn capability() -> (i32, i32);
    fn precision() -> Precision;
    fn compute_dtype() -> CudaDtype;
    fn memory() -> Result<(usize, usize)>;
    fn synchronize() -> Result<()>;
    fn stream_id() -> usize;
    fn record_event() -> Result<stream::CudaEvent>;
}

impl CudaIndices {
    functions! { fn new(&CudaDevice, &[u32]) -> Result<Self>; }
}

impl CudaTensor {
    functions! {
        fn zeros(&CudaDevice, usize, usize, CudaDtype) -> Result<Self>;
        fn from_host(&CudaDevice, usize, usize, &[f32]) -> Result<Self>;
    }
}

methods! { CudaTensor:
    fn rows() -> usize;
    fn cols() -> usize;
    fn to_host() -> Result<Vec<f32>>;
    fn copy() -> Result<Self>;
    fn uninit_like() -> Result<Self>;
    fn scaled(f32, CudaDtype) -> Result<Self>;
    fn set_shape(usize, usize) -> ();
    fn clear() -> Result<()>;
}

pub(crate) mod memory {
    uninhabited!(DeviceBuffer);
}

pub(crate) mod stream {
    use super::Result;

    uninhabited!(CudaEvent);
    methods! { CudaEvent: fn elapsed(&CudaEvent) -> Result<f64>; }
}

pub(crate) mod graph {
    use super::{CudaDevice, CudaError, Result, StdResult};

    uninhabited!(CudaGraph, GraphInputs);

    impl CudaGraph {
        pub(crate) fn launch(&mut self) -> Result<()> {
            match *self {}
        }

        pub(crate) fn new<T, E: From<CudaError>>(
            cuda: &CudaDevice,
            _: impl FnOnce() -> StdResult<T, E>,
        ) -> StdResult<(Self, T), E> {
            match *cuda {}
        }
    }

    impl GraphInputs {
        pub(crate) fn allocate<T, E>(
            cuda: &CudaDevice,
            _: impl FnOnce() -> StdResult<T, E>,
        ) -> StdResult<(Self, T), E> {
            match *cuda {}
        }

        pub(crate) fn refill<T, E>(
            &self,
            _: impl FnOnce() -> StdResult<T, E>,
        ) -> StdResult<(bool, T), E> {
            match *self {}
        }
    }
}

pub(crate) mod activation {
    use super::{CudaDtype, CudaTensor, Result};
    use crate::params::Activation;

    functions! {
        fn swiglu(&CudaTensor) -> Result<CudaTensor>;
        fn activate(&CudaTensor, Activation, CudaDtype) -> Result<CudaTensor>;
        fn activate_backward(&CudaTensor, Activation, &CudaTensor, CudaDtype) -> Result<CudaTensor>;
        fn swiglu_backward(&CudaTensor, &CudaTensor, CudaDtype) -> Result<CudaTensor>;
    }
}

pub(crate) mod attention {
    use super::args::{CudaAttentionBackward, MetadataExtent};
    use super::{CudaDevice, CudaTensor, Result};

    uninhabited!(CudaKv, CudaKvGrads, CudaAttentionMetadata);

    impl CudaKv {
        functions! {
            fn new(&CudaDevice, usize, usize, usize, usize) -> Result<Self>;
            fn bytes_per_slot(&CudaDevice, usize, usize, usize) -> usize;
        }
    }

    methods! { CudaKv:
        fn slots() -> usize;
        fn kv_heads() -> usize;
        fn head_dim() -> usize;
        fn address_and_shape() -> (u64, [usize; 4]);
        fn metadata_extent(usize, usize, impl Iterator<Item = u32>) -> MetadataExtent;
    }

    impl CudaKvGrads {
        functions! { fn zeros(&CudaDevice, &CudaKv) -> Result<Self>; }
    }

    methods! { CudaKvGrads:
        fn clear() -> Result<()>;
        fn shape() -> (usize, usize);
    }

    impl CudaAttentionMetadata {
        pub(crate) fn new<I: IntoIterator<Item = (u32, u32)>>(
            cuda: &CudaDevice,
            _: usize,
            _: impl Fn(usize) -> I,
        ) -> Result<Self> {
            match *cuda {}
        }
    }

    functions! {
        fn attention(
            &CudaTensor, &CudaKv, usize, usize, &CudaAttentionMetadata
        ) -> Result<CudaTensor>;
        fn attention_backward(CudaAttentionBackward<'_>, &mut CudaKvGrads) -> Result<CudaTensor>;
    }
}

pub(crate) mod dropout {
    use super::args::CudaDropoutMask;
    use super::{CudaDevice, CudaDtype, CudaTensor, Result};
    use crate::params::RowPerturbation;

    uninhabited!(CudaPerturbedRows, CudaKeepMask);

    impl CudaPerturbedRows {
        functions! { fn new(&CudaDevice, &[Option<RowPerturbation>]) -> Result<Self>; }
    }

    impl CudaKeepMask {
        functions! { fn new(&CudaDevice, usize, usize, &[u8]) -> Result<Self>; }
    }

    functions! {
        fn dropout(&CudaTensor, Option<CudaDropoutMask<'_>>, CudaDtype) -> Result<CudaTensor>;
    }
}

pub(crate) mod embedding {
    use super::linear::CudaLinear;
    use super::topk::PendingArgmax;
    use super::{CudaIndices, CudaTensor, Result};

    functions! {
        fn lookup(&CudaLinear, &CudaIndices) -> Result<CudaTensor>;
        fn lookup_pending(&CudaLinear, &PendingArgmax) -> Result<CudaTensor>;
        fn select(&[&CudaTensor], &CudaIndices) -> Result<CudaTensor>;
        fn concat(&[&CudaTensor]) -> Result<CudaTensor>;
        fn scatter_add(&CudaTensor, &CudaIndices, &mut CudaTensor) -> Result<()>;
    }
}

pub(crate) mod linear {
    use super::{CudaDevice, CudaDtype, CudaTensor, Result};
    use crate::params::Activation;

    uninhabited!(CudaLinear);

    impl CudaLinear {
        functions! {
            fn from_output_major(
                &CudaDevice, usize, usize, &[f32], Option<&[f32]>
            ) -> Result<Self>;
            fn from_input_major(
                &CudaDevice, usize, usize, &[f32], Option<&[f32]>
            ) -> Result<Self>;
        }
    }

    methods! { CudaLinear:
        fn inputs() -> usize;
        fn outputs() -> usize;
        fn assign(&CudaTensor, Option<&CudaTensor>) -> Result<()>;
    }

    functions! {
        fn linear(&CudaTensor, &CudaLinear, Activation, CudaDtype) -> Result<CudaTensor>;
        fn logits(&CudaTensor, &CudaLinear) -> Result<CudaTensor>;
        fn linear_dx(&CudaTensor, &CudaLinear, CudaDtype) -> Result<CudaTensor>;
        fn linear_dw(
            &CudaTensor, &CudaTensor, &mut CudaTensor, Option<&mut CudaTensor>
        ) -> Result<()>;
    }
}

pub(crate) mod loss {
    use super::{CudaIndices, CudaTensor, Result};

    functions! {
        fn cross_entropy(
            &CudaTensor, &CudaIndices, &[f32]
        ) -> Result<(CudaTensor, CudaTensor)>;
    }
}

pub(crate) mod noise {
    use super::dropout::CudaPerturbedRows;
    use super::{CudaTensor, Result};

    functions! { fn add_noise(&mut CudaTensor, &CudaPerturbedRows) -> Result<()>; }
}

pub(crate) mod norm {
    use super::args::{CudaLearnedPositions, NormGradients, ResidualAddend};
    use super::{CudaDevice, CudaDtype, CudaTensor, Result};

    uninhabited!(CudaNorm);

    impl CudaNorm {
        functions! {
            fn layer(&CudaDevice, f32, &[f32], &[f32]) -> Result<Self>;
            fn rms(&CudaDevice, f32, &[f32]) -> Result<Self>;
        }
    }

    methods! { CudaNorm:
        fn width() -> usize;
        fn assign(&CudaTensor, Option<&CudaTensor>) -> Result<()>;
    }

    functions! {
        fn add(&mut CudaTensor, ResidualAddend<'_>) -> Result<()>;
        fn add_positions_norm(
            &CudaTensor, &CudaTensor, Option<CudaLearnedPositions<'_>>, &CudaNorm, CudaDtype
        ) -> Result<CudaTensor>;
        fn norm(&CudaTensor, &CudaNorm, CudaDtype) -> Result<CudaTensor>;
        fn norm_backward(&CudaTensor, &CudaNorm, NormGradients<'_>) -> Result<()>;
    }
}

pub(crate) mod optimizer {
    use super::{CudaTensor, Result};
    use crate::params::AdamWCoefficients;

    functions! {
        fn adamw(
            &AdamWCoefficients, &mut CudaTensor, &mut CudaTensor, [&mut CudaTensor; 2]
        ) -> Result<()>;
        fn sum_of_squares(&[&CudaTensor]) -> Result<f64>;
    }
}

pub(crate) mod qkv {
    use super::args::{CudaQkvTransform, CudaSlotMapping};
    use super::attention::{CudaKv, CudaKvGrads};
    use super::linear::CudaLinear;
    use super::{CudaDevice, CudaTensor, Result};

    uninhabited!(CudaRope);

    impl CudaRope {
        functions! { fn new(&CudaDevice, &[f32]) -> Result<Self>; }
    }

    functions! {
        fn project_qkv(
            &CudaTensor, &CudaLinear, CudaQkvTransform<'_>, &mut CudaKv, usize,
            CudaSlotMapping<'_>
        ) -> Result<CudaTensor>;
        fn rope_and_cache(
            &mut CudaTensor, CudaQkvTransform<'_>, &mut CudaKv, usize, CudaSlotMapping<'_>
        ) -> Result<()>;
        fn rope_and_cache_backward(
            &mut CudaTensor, CudaQkvTransform<'_>, &CudaKvGrads, usize, CudaSlotMapping<'_>
        ) -> Result<()>;
    }
}

pub(crate) mod residual {
    use super::args::CudaLinearResidualNorm;
    use super::{CudaTensor, Result};

    functions! {
        fn linear_residual_norm(
            CudaLinearResidualNorm<'_>, &mut CudaTensor
        ) -> Result<CudaTensor>;
    }
}

pub(crate) mod topk {
    use super::linear::CudaLinear;
    use super::{CudaTensor, Result};

    uninhabited!(PendingArgmax);

    impl PendingArgmax {
        functions! { fn launch(&CudaTensor, &CudaLinear) -> Result<Self>; }
    }

    methods! { PendingArgmax: fn read() -> Result<Vec<(u32, f32)>>; }

    functions! {
        fn top_k_mixture(
            &CudaTensor, &CudaLinear, &CudaLinear, usize
        ) -> Result<(CudaTensor, Vec<u32>)>;
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Precision};

    #[test]
    fn a_gpu_is_refused_by_name_of_the_feature() {
        let error = Device::cuda(0, Precision::F32).unwrap_err().to_string();
        assert!(error.contains("built without the cuda feature"), "{error}");
        assert!(Device::cuda_availability().is_err_and(|why| why.contains("cuda feature")));
    }
}
