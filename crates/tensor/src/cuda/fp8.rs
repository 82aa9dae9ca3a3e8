//! e4m3 rows, and the linear maps of an fp8 device that multiply them.
//!
//! Tensors in e4m3: the norms of the residual stream (`add_norm_*`, `residual_768`) and the results
//! of GELU (`gemm_fp8_gelu`), with one scale for all rows derived from a bound; those of SwiGLU
//! and, where an extra pass over them is worthwhile, of attention, with a scale per row. Everything
//! else is as on a bf16 device, whose weights are stored in addition to those in e4m3: for
//! embeddings, and for products of other operands.
//!
//! Products use `hopper_gemm` for any number of rows, or `residual`.

use super::context::{LaunchConfig, int, kernel_args};
use super::linear::{self, CudaLinear};
use super::memory::{CommonScale, DeviceBuffer, E4M3_GROUP};
use super::{CudaDtype, CudaError, CudaTensor, e4m3, hopper_gemm};
use crate::params::Activation;

/// Minimum number of outputs for which rounding rows to e4m3 first, an extra pass over them, takes
/// less than half of the time of their bf16 product (an estimate; docs/explanation/kernels.md).
const MIN_OUTPUTS_TO_QUANTIZE: usize = 1024;

/// The widest rows of `swiglu_fp8`: a row stays in a block's registers.
const MAX_SWIGLU: usize = 16_384;

/// The largest finite f16, in which GELU is computed.
const F16_MAX: f32 = 65504.0;

/// Lower bound of GELU's results when their scale is chosen, so that its inverse is within f16's
/// range.
const LEAST_GELU: f32 = 0.01;

/// Factor by which rounding to e4m3 may increase the product of two norms: a sixteenth each.
const ROUNDED_NORMS: f32 = 1.13;

/// The weights of a linear map as e4m3.
#[derive(Debug)]
pub(crate) struct Fp8Weights {
    /// (padded outputs, inputs), with a single scale: an epilogue then has at most one factor per
    /// row, and e4m3 has enough binades for outputs of different sizes.
    pub(crate) matrix: CudaTensor,
    /// Scale and largest row norm of the matrix.
    pub(crate) scale: CommonScale,
    /// The largest magnitude of the bias.
    pub(crate) max_bias: f32,
}

impl Fp8Weights {
    /// Converts a bf16 matrix (padded outputs, inputs); `None` if its rows cannot be e4m3.
    /// Synchronizes with the GPU.
    pub(crate) fn new(
        matrix: &CudaTensor,
        bias: Option<&[f32]>,
    ) -> Result<Option<Self>, CudaError> {
        if CudaDtype::E4m3.of_rows(matrix.cols()) != CudaDtype::E4m3 || matrix.cols() == 0 {
            return Ok(None);
        }
        let scale = measure(matrix)?;
        let max_bias = bias.unwrap_or_default().iter().fold(0.0f32, |m, b| m.max(b.abs()));
        Ok(Some(Self { matrix: quantize(matrix, scale)?, scale, max_bias }))
    }
}

/// The smallest scale that fits all of x, and the largest norm of its rows. Synchronizes with the
/// GPU.
fn measure(x: &CudaTensor) -> Result<CommonScale, CudaError> {
    let rows = x.rows();
    let cols = x.cols();
    let measured = DeviceBuffer::new(x.cuda(), rows * size_of::<[f32; 2]>())?;
    let arguments = kernel_args![x.pointer(), x.dtype(), measured.pointer(), int(rows), int(cols)];
    let config = LaunchConfig::new(rows.div_ceil(4), 128);
    // SAFETY: x is (rows, cols), and there are two numbers for each row.
    unsafe { x.cuda().launch("measure_rows", config, arguments) }?;
    let mut of_rows = vec![[0.0f32; 2]; rows];
    measured.download(0, &mut of_rows)?;
    let [largest, max_norm] = of_rows
        .into_iter()
        .fold([0.0f32; 2], |[largest, norm], row| [largest.max(row[0]), norm.max(row[1])]);
    Ok(CommonScale { scale: e4m3::scale_for(largest), max_norm })
}

/// The rows of x (bf16 or f32) as e4m3 with one scale.
pub(crate) fn quantize(x: &CudaTensor, by: CommonScale) -> Result<CudaTensor, CudaError> {
    let out = CudaTensor::uninit_scaled(x.cuda(), x.rows(), x.cols(), by)?;
    let count = x.rows() * x.cols();
    let arguments = kernel_args![x.pointer(), x.dtype(), out.pointer(), by.inverse(), count as u64];
    let config = LaunchConfig::for_threads(count.div_ceil(4));
    // SAFETY: both have `count` elements, in rows of whole groups.
    unsafe { x.cuda().launch("quantize", config, arguments) }?;
    Ok(out)
}

/// The rows of x (bf16 or f32) as e4m3 with a scale per row.
pub(crate) fn quantize_rows(x: &CudaTensor) -> Result<CudaTensor, CudaError> {
    let rows = x.rows();
    let cols = x.cols();
    assert!(
        cols.is_multiple_of(E4M3_GROUP),
        "quantize: rows of {cols} are not a multiple of the group size"
    );
    let out = CudaTensor::uninit(x.cuda(), rows, cols, CudaDtype::E4m3)?;
    let scales = out.scales_pointer();
    let arguments =
        kernel_args![x.pointer(), x.dtype(), out.pointer(), scales, int(rows), int(cols)];
    // SAFETY: x and out are (rows, cols), and there is a scale for each row.
    unsafe {
        x.cuda().launch("quantize_rows", LaunchConfig::new(rows.div_ceil(4), 128), arguments)
    }?;
    Ok(out)
}

/// The rows of x (e4m3) as bf16.
pub(crate) fn dequantize_rows(x: &CudaTensor) -> Result<CudaTensor, CudaError> {
    let out = CudaTensor::uninit(x.cuda(), x.rows(), x.cols(), CudaDtype::Bf16)?;
    let count = x.rows() * x.cols();
    let (scales, by) = x.scales();
    let arguments =
        kernel_args![x.pointer(), scales, by, out.pointer(), count as u64, int(x.cols())];
    let config = LaunchConfig::for_threads(count.div_ceil(4));
    // SAFETY: both have `count` elements in rows of whole groups, with a scale for each or for all.
    unsafe { x.cuda().launch("dequantize_rows", config, arguments) }?;
    Ok(out)
}

/// Whether `swiglu` supports results with this number of columns.
pub(crate) fn supports_swiglu(cols: usize) -> bool {
    cols.is_multiple_of(E4M3_GROUP) && cols <= MAX_SWIGLU
}

/// `silu(x[r, c]) * x[r, n + c]` as e4m3: x is (rows, 2n) of bf16.
pub(crate) fn swiglu(x: &CudaTensor) -> Result<CudaTensor, CudaError> {
    let rows = x.rows();
    let n = x.cols() / 2;
    assert!(
        supports_swiglu(n) && x.cols() == 2 * n && x.dtype() == CudaDtype::Bf16,
        "swiglu: two halves of {n} in bf16"
    );
    let out = CudaTensor::uninit(x.cuda(), rows, n, CudaDtype::E4m3)?;
    let arguments = kernel_args![x.pointer(), out.pointer(), out.scales_pointer(), int(n)];
    // SAFETY: x is (rows, 2n) of bf16, out (rows, n) of e4m3 with a scale for each row.
    unsafe { x.cuda().launch("swiglu_fp8", LaunchConfig::new(rows, 256), arguments) }?;
    Ok(out)
}

/// Whether it is faster to round bf16 rows to e4m3 before this map multiplies them.
pub(crate) fn should_quantize(x: &CudaTensor, map: &CudaLinear) -> bool {
    x.dtype() == CudaDtype::Bf16
        && map.fp8().is_some()
        && map.outputs() >= MIN_OUTPUTS_TO_QUANTIZE
        && map.outputs().is_multiple_of(8)
}

/// The scale of GELU's results from e4m3 rows. The CTAs that write them do not know a row's
/// maximum, so the scale must fit any row: no result is larger than the product of a row's and an
/// output's norms (Cauchy-Schwarz) plus a bias. `None` if that exceeds f16's range, or if the rows
/// have no bound.
pub(crate) fn gelu_scale(x: &CudaTensor, map: &CudaLinear) -> Option<CommonScale> {
    let rows = x.common_scale()?;
    let weights = map.fp8()?;
    let norms = ROUNDED_NORMS * rows.max_norm * weights.scale.max_norm;
    let bound = norms + weights.max_bias;
    let scale = || e4m3::scale_for(bound.max(LEAST_GELU));
    (bound < F16_MAX).then(|| CommonScale { scale: scale(), max_norm: f32::INFINITY })
}

/// `activation(x W + b)` in the given dtype for e4m3 x, with or without the bias. GELU's result is
/// e4m3 in one kernel if it has a known bound; other results are computed in bf16 first.
pub(crate) fn linear(
    x: &CudaTensor,
    map: &CudaLinear,
    with_bias: bool,
    activation: Activation,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    let outputs = map.outputs();
    assert_eq!(
        x.cols(),
        map.inputs(),
        "linear: rows of {} into a map of {}",
        x.cols(),
        map.inputs()
    );
    let dtype = dtype.of_rows(outputs);
    let bias = map.padded_bias().filter(|_| with_bias);
    let gelu_scale = match activation {
        Activation::GeluTanh if dtype == CudaDtype::E4m3 => gelu_scale(x, map),
        _ => None,
    };
    if let Some(by) = gelu_scale.filter(|_| hopper_gemm::supports_store(x, map, dtype)) {
        let out = CudaTensor::uninit_scaled(x.cuda(), x.rows(), outputs, by)?;
        hopper_gemm::store(x, map, bias, true, &out)?;
        return Ok(out);
    }
    if dtype == CudaDtype::F32 || !hopper_gemm::supports_store(x, map, CudaDtype::Bf16) {
        let x = dequantize_rows(x)?;
        return linear::matmul_bias_activation(&x, map, with_bias, activation, dtype);
    }
    let out = CudaTensor::uninit(x.cuda(), x.rows(), outputs, CudaDtype::Bf16)?;
    hopper_gemm::store(x, map, bias, false, &out)?;
    if activation != Activation::None {
        linear::bias_activation(&out, None, activation)?;
    }
    if dtype == CudaDtype::E4m3 { quantize_rows(&out) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use crate::cuda::{CudaDevice, CudaError, Precision, fp8_checks};

    /// Prints all results before it fails.
    #[test]
    fn every_kernel_agrees_with_the_host() {
        if let Err(why) = CudaDevice::availability() {
            println!("skipped on a gpu: {why}");
            return;
        }
        let mut lines = Vec::new();
        // A deterministic device has fused kernels for any number of rows.
        for deterministic in [false, true] {
            let cuda = match CudaDevice::open(0, Precision::Fp8, deterministic) {
                Err(why @ CudaError::NoFp8 { .. }) => {
                    println!("skipped on this gpu: {why}");
                    return;
                }
                opened => opened.unwrap(),
            };
            lines.extend(fp8_checks::all(&cuda, false).unwrap());
        }
        let verdict = |good| if good { "ok  " } else { "MISS" };
        lines.iter().for_each(|l| println!("{}  {}: {}", verdict(l.good), l.name, l.what));
        let missed: Vec<&str> = lines.iter().filter(|l| !l.good).map(|l| l.name.as_str()).collect();
        assert!(missed.is_empty(), "{} of {} missed: {missed:?}", missed.len(), lines.len());
    }
}
