//! A linear map, dropout, the addition to the residual stream and its norm: in one kernel for many
//! rows of width 768 on Hopper, else a GEMM and the `add_norm` kernel.

use super::args::{CudaDropoutMask, CudaLinearResidualNorm, ResidualAddend};
use super::context::{LaunchConfig, int};
use super::dropout::DropoutArgs;
use super::memory::{CommonScale, DeviceBuffer};
use super::stream::MAILBOX_BYTES;
use super::tma::{TENSOR_MAP_WORDS, tensor_map, tensor_map_interleaved};
use super::{CudaDtype, CudaError, CudaTensor, fp8, hopper_gemm, linear, norm};
use crate::params::GPU_STREAMS;

// As in residual.cu.
const WIDTH: usize = 768; // width of the residual stream
const ROW_CTAS: usize = 4; // CTAs that share a row
const CLUSTER_ROWS: usize = 256;
const CLUSTER: usize = 2;
const PUBLISHED_BYTES: usize = 16; // bytes of a row's statistics from one CTA
const THREADS: usize = 512;
const DEPTH_BYTES: usize = 128; // bytes of a row in a stage
const SHARED_BYTES: usize = 210_288;
const PARAM_WORDS: usize = 80; // of `ResidualParams`

/// Maximum rows whose statistics fit the mailbox.
const MAX_ROWS: usize = MAILBOX_BYTES / (ROW_CTAS * PUBLISHED_BYTES) / CLUSTER_ROWS * CLUSTER_ROWS;

/// `stream += dropout(x W + b)`, then the norm of the new stream: x is (rows, inputs), the stream
/// (rows, outputs) of f32.
pub(crate) fn linear_residual_norm(
    of: CudaLinearResidualNorm<'_>,
    stream: &mut CudaTensor,
) -> Result<CudaTensor, CudaError> {
    let CudaLinearResidualNorm { x, map, mask, norm, dtype } = of;
    let Some(kernel) = select_kernel(&of) else {
        // Attention's result; all other fp8 operands were written as e4m3.
        let quantized = fp8::should_quantize(x, map).then(|| fp8::quantize_rows(x)).transpose()?;
        let x = quantized.as_ref().unwrap_or(x);
        let y = linear::matmul(x, map, x.cuda().compute_dtype())?;
        let addend = ResidualAddend { y: &y, bias: map.padded_bias(), mask };
        return norm::add_norm(stream, addend, norm, dtype);
    };
    let cuda = x.cuda();
    let rows = x.rows();
    assert_eq!(
        (x.cols(), norm.width()),
        (map.inputs(), WIDTH),
        "residual: rows or a norm of another width"
    );
    assert_eq!(
        (stream.rows(), stream.cols(), stream.dtype()),
        (rows, WIDTH, CudaDtype::F32),
        "residual: the stream has another shape"
    );
    let DropoutArgs { pointer: perturbations, site, .. } =
        DropoutArgs::new(mask.as_ref(), rows, WIDTH);
    let out = norm.uninit_results(cuda, rows, dtype)?;
    // bf16 is stored by TMA, the others by plain stores.
    let (out_map, out_f32, out_codes) = match dtype {
        CudaDtype::Bf16 => (tensor_map(&out, [64, 16])?, 0, 0),
        CudaDtype::F32 => ([0; TENSOR_MAP_WORDS], out.pointer(), 0),
        CudaDtype::E4m3 => ([0; TENSOR_MAP_WORDS], 0, out.pointer()),
    };
    let e4m3 = map.fp8().zip(x.common_scale());
    let weights = e4m3.map_or(map.matrix(), |(weights, _)| &weights.matrix);
    let by = e4m3.map_or(1.0, |(weights, x)| weights.scale.scale * x.scale);
    let out_inverse = out.common_scale().map_or(1.0, CommonScale::inverse);
    let depth = (DEPTH_BYTES / x.dtype().size()) as u32; // columns of one TMA load
    let tensor_maps = [
        tensor_map_interleaved(x, [depth, 16])?,
        tensor_map(weights, [depth, 96])?,
        tensor_map(stream, [32, 16])?,
        out_map,
    ];
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let clusters = rows.div_ceil(CLUSTER_ROWS);
    let (mailbox, counter) = cuda.current_stream().mailbox();
    let bias = map.padded_bias().map_or(0, DeviceBuffer::pointer);
    let mut arguments = [0u64; PARAM_WORDS];
    arguments[..4 * TENSOR_MAP_WORDS].copy_from_slice(tensor_maps.as_flattened());
    arguments[4 * TENSOR_MAP_WORDS..4 * TENSOR_MAP_WORDS + 11].copy_from_slice(&[
        bias,
        norm.scale(),
        norm.shift(),
        perturbations,
        out_f32,
        out_codes,
        pair(int(rows), int(x.cols())),
        pair(site, norm.eps().to_bits()),
        pair(by.to_bits(), out_inverse.to_bits()),
        mailbox,
        counter,
    ]);
    let config = LaunchConfig {
        blocks: (clusters * ROW_CTAS * CLUSTER, 1, 1),
        threads: THREADS,
        shared_bytes: SHARED_BYTES,
    };
    // SAFETY: the kernel's only parameter consists of these words; the tensor maps cover their
    // matrices, vectors are as wide as the stream, there is a perturbation for each row, and room
    // in the mailbox for each row's statistics.
    unsafe { cuda.launch(kernel, config, &mut arguments) }?;
    Ok(out)
}

/// The fused kernel, if it is supported and faster than two kernels. On a deterministic device it
/// is used whenever supported; no pass has more rows than it supports (`Device::max_batch_rows`).
pub(crate) fn select_kernel(of: &CudaLinearResidualNorm<'_>) -> Option<&'static str> {
    let x = of.x;
    let map = of.map;
    let kernel = match x.dtype() {
        CudaDtype::Bf16 if fp8::should_quantize(x, map) => return None,
        CudaDtype::Bf16 if map.matrix().dtype() == CudaDtype::Bf16 => "residual_768",
        // Per-row scales would be needed in the epilogue, which has no registers to spare.
        CudaDtype::E4m3 if x.common_scale().is_some() && map.fp8().is_some() => "residual_fp8_768",
        _ => return None,
    };
    let rows = (1..=MAX_ROWS).contains(&x.rows());
    let shape = map.outputs() == WIDTH && map.inputs().is_multiple_of(8) && rows;
    // Clusters of a launch that wait for one that is not running yet, plus that one.
    let room = GPU_STREAMS * ROW_CTAS * CLUSTER;
    let supported = shape
        && !matches!(of.mask, Some(CudaDropoutMask::Recorded { .. }))
        && x.cuda().capability() == (9, 0)
        && x.cuda().sm_count().is_ok_and(|count| count >= room)
        && (x.cuda().is_deterministic() || hopper_gemm::fills_waves(x, map));
    supported.then_some(kernel)
}
