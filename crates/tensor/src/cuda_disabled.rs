//! Replaces `cuda` if the crate is built without that feature.
//!
//! The types are uninhabited, so a [`Backend::Cuda`](crate::device::Backend::Cuda) cannot exist and
//! its dispatch is unreachable; [`crate::ops`] compiles unchanged against the signatures.

#[path = "cuda/args.rs"]
#[allow(dead_code, reason = "arguments that are never read")]
pub(crate) mod args;
#[path = "cuda/error.rs"]
mod error;

pub(crate) use args::CudaDtype;
pub use error::CudaError;

use crate::params::Precision;

const DISABLED: &str = "built without the cuda feature";

type CudaResult<T> = Result<T, CudaError>;

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
    pub(crate) fn availability() -> Result<(), String> {
        Err(DISABLED.to_owned())
    }

    pub(crate) fn open(_: usize, _: Precision, _: bool) -> CudaResult<Self> {
        Err(CudaError::Unavailable(DISABLED.to_owned()))
    }

    pub(crate) fn on_stream<T>(&self, _: usize, _: impl FnOnce() -> T) -> CudaResult<T> {
        match *self {}
    }
}

methods! { CudaDevice:
    fn name() -> &str;
    fn capability() -> (i32, i32);
    fn precision() -> Precision;
    fn without_fp8() -> Option<Self>;
    fn is_deterministic() -> bool;
    fn peak_memory() -> CudaResult<usize>;
    fn reset_peak_memory() -> CudaResult<()>;
    fn compute_dtype() -> CudaDtype;
    fn operand_dtype() -> CudaDtype;
    fn memory() -> CudaResult<(usize, usize)>;
    fn synchronize() -> CudaResult<()>;
    fn stream_id() -> usize;
    fn record_event() -> CudaResult<stream::CudaEvent>;
}

impl CudaIndices {
    functions! { fn new(&CudaDevice, &[u32]) -> CudaResult<Self>; }
}

impl CudaTensor {
    functions! {
        fn zeros(&CudaDevice, usize, usize, CudaDtype) -> CudaResult<Self>;
        fn from_host(&CudaDevice, usize, usize, &[f32]) -> CudaResult<Self>;
    }
}

methods! { CudaTensor:
    fn rows() -> usize;
    fn cols() -> usize;
    fn to_host() -> CudaResult<Vec<f32>>;
    fn copy() -> CudaResult<Self>;
    fn uninit_like() -> CudaResult<Self>;
    fn scaled(f32, CudaDtype) -> CudaResult<Self>;
    fn set_shape(usize, usize) -> ();
    fn clear() -> CudaResult<()>;
}

pub(crate) mod memory {
    uninhabited!(DeviceBuffer);
}

pub(crate) mod stream {
    use super::CudaResult;

    uninhabited!(CudaEvent);
    methods! { CudaEvent: fn elapsed(&CudaEvent) -> CudaResult<f64>; }
}

pub(crate) mod graph {
    use super::{CudaDevice, CudaError, CudaResult};

    uninhabited!(CudaGraph, GraphInputs);

    impl CudaGraph {
        pub(crate) fn launch(&mut self) -> CudaResult<()> {
            match *self {}
        }

        pub(crate) fn new<T, E: From<CudaError>>(
            cuda: &CudaDevice,
            _: impl FnOnce() -> Result<T, E>,
        ) -> Result<(Self, T), E> {
            match *cuda {}
        }
    }

    impl GraphInputs {
        pub(crate) fn allocate<T, E>(
            cuda: &CudaDevice,
            _: impl FnOnce() -> Result<T, E>,
        ) -> Result<(Self, T), E> {
            match *cuda {}
        }

        pub(crate) fn refill<T, E>(
            &self,
            _: impl FnOnce() -> Result<T, E>,
        ) -> Result<(bool, T), E> {
            match *self {}
        }
    }
}

pub(crate) mod activation {
    use super::{CudaDevice, CudaDtype, CudaResult, CudaTensor};
    use crate::params::Activation;

    functions! {
        fn swiglu(&CudaDevice, &CudaTensor) -> CudaResult<CudaTensor>;
        fn activate(&CudaTensor, Activation, CudaDtype) -> CudaResult<CudaTensor>;
        fn activate_backward(&CudaTensor, Activation, &CudaTensor, CudaDtype) -> CudaResult<CudaTensor>;
        fn swiglu_backward(&CudaTensor, &CudaTensor, CudaDtype) -> CudaResult<CudaTensor>;
    }
}

pub(crate) mod attention {
    use super::args::{CudaAttentionBackward, MetadataExtent};
    use super::{CudaDevice, CudaResult, CudaTensor};

    uninhabited!(CudaKv, CudaKvGrads, CudaAttentionMetadata);

    impl CudaKv {
        functions! {
            fn new(&CudaDevice, usize, usize, usize, usize) -> CudaResult<Self>;
            fn bytes_per_slot(&CudaDevice, usize, usize, usize) -> usize;
        }
    }

    methods! { CudaKv:
        fn slots() -> usize;
        fn kv_heads() -> usize;
        fn head_dim() -> usize;
        fn address_and_shape() -> (u64, [usize; 4]);
    }

    impl CudaKv {
        pub(crate) fn metadata_extent<I: IntoIterator<Item = (u32, u32)>>(
            &self,
            _: usize,
            _: impl Fn(usize) -> I,
            _: impl Fn(usize) -> u32,
        ) -> MetadataExtent {
            match *self {}
        }
    }

    impl CudaKvGrads {
        functions! { fn zeros(&CudaDevice, &CudaKv) -> CudaResult<Self>; }
    }

    methods! { CudaKvGrads:
        fn clear() -> CudaResult<()>;
        fn shape() -> (usize, usize);
    }

    impl CudaAttentionMetadata {
        pub(crate) fn with_prefixes<I: IntoIterator<Item = (u32, u32)>>(
            cuda: &CudaDevice,
            _: usize,
            _: impl Fn(usize) -> I,
            _: impl Fn(usize) -> u32,
        ) -> CudaResult<Self> {
            match *cuda {}
        }

        pub(crate) fn new<I: IntoIterator<Item = (u32, u32)>>(
            cuda: &CudaDevice,
            _: usize,
            _: impl Fn(usize) -> I,
        ) -> CudaResult<Self> {
            match *cuda {}
        }
    }

    functions! {
        fn attention(
            &CudaTensor, &CudaKv, usize, usize, &CudaAttentionMetadata
        ) -> CudaResult<CudaTensor>;
        fn attention_backward(CudaAttentionBackward<'_>, &mut CudaKvGrads) -> CudaResult<CudaTensor>;
    }
}

pub(crate) mod dropout {
    use super::args::CudaDropoutMask;
    use super::{CudaDevice, CudaDtype, CudaResult, CudaTensor};
    use crate::params::RowPerturbation;

    uninhabited!(CudaPerturbedRows, CudaKeepMask);

    impl CudaPerturbedRows {
        functions! { fn new(&CudaDevice, &[Option<RowPerturbation>]) -> CudaResult<Self>; }
    }

    impl CudaKeepMask {
        functions! { fn new(&CudaDevice, usize, usize, &[u8]) -> CudaResult<Self>; }
    }

    functions! {
        fn dropout(&CudaTensor, Option<CudaDropoutMask<'_>>, CudaDtype) -> CudaResult<CudaTensor>;
    }
}

pub(crate) mod embedding {
    use super::linear::CudaLinear;
    use super::topk::PendingRowTokens;
    use super::{CudaIndices, CudaResult, CudaTensor};

    functions! {
        fn lookup(&CudaLinear, &CudaIndices) -> CudaResult<CudaTensor>;
        fn lookup_pending(&CudaLinear, &PendingRowTokens) -> CudaResult<CudaTensor>;
        fn select(&[&CudaTensor], &CudaIndices) -> CudaResult<CudaTensor>;
        fn concat(&[&CudaTensor]) -> CudaResult<CudaTensor>;
        fn scatter_add(&CudaTensor, &CudaIndices, &mut CudaTensor) -> CudaResult<()>;
    }
}

pub(crate) mod linear {
    use super::{CudaDevice, CudaDtype, CudaResult, CudaTensor};
    use crate::params::Activation;

    uninhabited!(CudaLinear);

    impl CudaLinear {
        functions! {
            fn from_output_major(
                &CudaDevice, usize, usize, &[f32], Option<&[f32]>
            ) -> CudaResult<Self>;
            fn from_input_major(
                &CudaDevice, usize, usize, &[f32], Option<&[f32]>
            ) -> CudaResult<Self>;
        }
    }

    methods! { CudaLinear:
        fn inputs() -> usize;
        fn outputs() -> usize;
        fn assign(&CudaTensor, Option<&CudaTensor>) -> CudaResult<()>;
    }

    functions! {
        fn linear(&CudaTensor, &CudaLinear, Activation, CudaDtype) -> CudaResult<CudaTensor>;
        fn linear_add(&CudaTensor, &CudaLinear, &mut CudaTensor) -> CudaResult<()>;
        fn logits(&CudaTensor, &CudaLinear) -> CudaResult<CudaTensor>;
        fn linear_dx(&CudaTensor, &CudaLinear, CudaDtype) -> CudaResult<CudaTensor>;
        fn linear_dw(
            &CudaTensor, &CudaTensor, &mut CudaTensor, Option<&mut CudaTensor>
        ) -> CudaResult<()>;
    }
}

pub(crate) mod loss {
    use super::{CudaIndices, CudaResult, CudaTensor};

    functions! {
        fn cross_entropy(
            &CudaTensor, &CudaIndices, &[f32]
        ) -> CudaResult<(CudaTensor, CudaTensor)>;
    }
}

pub(crate) mod noise {
    use super::dropout::CudaPerturbedRows;
    use super::{CudaResult, CudaTensor};

    functions! { fn add_noise(&mut CudaTensor, &CudaPerturbedRows) -> CudaResult<()>; }
}

pub(crate) mod norm {
    use super::args::{CudaLearnedPositions, NormGradients, ResidualAddend};
    use super::{CudaDevice, CudaDtype, CudaResult, CudaTensor};

    uninhabited!(CudaNorm);

    impl CudaNorm {
        functions! {
            fn layer(&CudaDevice, f32, &[f32], &[f32]) -> CudaResult<Self>;
            fn rms(&CudaDevice, f32, &[f32]) -> CudaResult<Self>;
        }
    }

    methods! { CudaNorm:
        fn width() -> usize;
        fn assign(&CudaTensor, Option<&CudaTensor>) -> CudaResult<()>;
    }

    functions! {
        fn add(&mut CudaTensor, ResidualAddend<'_>) -> CudaResult<()>;
        fn add_positions_norm(
            &CudaTensor, &CudaTensor, Option<CudaLearnedPositions<'_>>, &CudaNorm, CudaDtype
        ) -> CudaResult<CudaTensor>;
        fn norm(&CudaTensor, &CudaNorm, CudaDtype) -> CudaResult<CudaTensor>;
        fn norm_backward(&CudaTensor, &CudaNorm, NormGradients<'_>) -> CudaResult<()>;
    }
}

pub(crate) mod optimizer {
    use super::{CudaResult, CudaTensor};
    use crate::params::AdamWCoefficients;

    functions! {
        fn adamw(
            &AdamWCoefficients, &mut CudaTensor, &mut CudaTensor, [&mut CudaTensor; 2]
        ) -> CudaResult<()>;
        fn sum_of_squares(&[&CudaTensor]) -> CudaResult<f64>;
    }
}

pub(crate) mod qkv {
    use super::args::{CudaQkvTransform, CudaSlotMapping};
    use super::attention::{CudaKv, CudaKvGrads};
    use super::linear::CudaLinear;
    use super::{CudaDevice, CudaResult, CudaTensor};

    uninhabited!(CudaRope);

    impl CudaRope {
        functions! { fn new(&CudaDevice, &[f32]) -> CudaResult<Self>; }
    }

    functions! {
        fn project_qkv(
            &CudaTensor, &CudaLinear, CudaQkvTransform<'_>, &mut CudaKv, usize,
            CudaSlotMapping<'_>
        ) -> CudaResult<CudaTensor>;
        fn rope_and_cache(
            &mut CudaTensor, CudaQkvTransform<'_>, &mut CudaKv, usize, CudaSlotMapping<'_>
        ) -> CudaResult<()>;
        fn rope_and_cache_backward(
            &mut CudaTensor, CudaQkvTransform<'_>, &CudaKvGrads, usize, CudaSlotMapping<'_>
        ) -> CudaResult<()>;
        fn qk_norm_backward(
            &CudaTensor, CudaQkvTransform<'_>, &mut CudaTensor, [&mut CudaTensor; 2]
        ) -> CudaResult<()>;
    }
}

pub(crate) mod regression {
    use super::args::CudaGaussianLoss;
    use super::{CudaResult, CudaTensor};

    functions! {
        fn smooth_l1(
            &CudaTensor, &CudaTensor, usize, f32
        ) -> CudaResult<(CudaTensor, CudaTensor)>;
        fn gaussian_loss(CudaGaussianLoss<'_>) -> CudaResult<(CudaTensor, [CudaTensor; 2])>;
    }
}

pub(crate) mod residual {
    use super::args::CudaLinearResidualNorm;
    use super::{CudaResult, CudaTensor};

    functions! {
        fn linear_residual_norm(
            CudaLinearResidualNorm<'_>, &mut CudaTensor
        ) -> CudaResult<CudaTensor>;
    }
}

pub(crate) mod rows {
    use super::{CudaResult, CudaTensor};

    functions! {
        fn add_scaled(&mut CudaTensor, &CudaTensor, f32) -> CudaResult<()>;
        fn scale_rows(&mut CudaTensor, &[f32]) -> CudaResult<()>;
    }
}

pub(crate) mod topk {
    use super::args::CudaMixture;
    use super::linear::CudaLinear;
    use super::{CudaResult, CudaTensor};
    use crate::params::TokenDraw;

    uninhabited!(PendingRowTokens);

    impl PendingRowTokens {
        functions! {
            fn launch(&CudaTensor, &CudaLinear) -> CudaResult<Self>;
            fn sample(&CudaTensor, &CudaLinear, &[Option<TokenDraw>]) -> CudaResult<Self>;
        }
    }

    methods! { PendingRowTokens: fn read() -> CudaResult<Vec<(u32, f32)>>; }

    functions! {
        fn top_k_mixture(
            &CudaTensor, &CudaLinear, &CudaLinear, CudaMixture<'_>
        ) -> CudaResult<(CudaTensor, Vec<u32>)>;
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
