//! Times the main kernels and GEMMs at GPT-2's and Qwen3's shapes, and reports bandwidth or FLOP/s.

use std::time::Instant;

use crate::cuda::args::{
    CudaDropoutMask, CudaLinearResidualNorm, CudaQkvTransform, CudaSlotMapping, ResidualAddend,
};
use crate::cuda::attention::{CudaAttentionMetadata, CudaKv, attention};
use crate::cuda::dropout::CudaPerturbedRows;
use crate::cuda::linear::{CudaLinear, linear};
use crate::cuda::memory::CommonScale;
use crate::cuda::norm::{CudaNorm, add_norm, norm};
use crate::cuda::qkv::{CudaRope, project_qkv, rope_and_cache};
use crate::cuda::residual::linear_residual_norm;
use crate::cuda::{
    CudaDevice, CudaDtype, CudaError, CudaIndices, CudaTensor, activation, e4m3, embedding, fp8,
    linear, topk,
};
use crate::params::Activation;
use crate::params::SiteSet;
use crate::rng::Site;
use crate::{CheckResult, numbers, perturbed_rows, small};

const ROWS: usize = 4096;
/// Layers that attention cycles through, so that keys and values exceed the L2 cache.
const LAYERS: usize = 4;

/// The mean time of a call.
#[derive(Clone, Copy)]
pub(crate) struct KernelTime {
    seconds: f64,
    host: f64, // time to queue it
}

pub(crate) fn time<T>(
    cuda: &CudaDevice,
    work: impl FnMut() -> Result<T, CudaError>,
) -> Result<KernelTime, CudaError> {
    time_by(cuda, 40, work)
}

/// The best of five means of `count` calls.
pub(crate) fn time_by<T>(
    cuda: &CudaDevice,
    count: u32,
    mut work: impl FnMut() -> Result<T, CudaError>,
) -> Result<KernelTime, CudaError> {
    if small() {
        work()?;
        cuda.synchronize()?;
        return Ok(KernelTime { seconds: f64::NAN, host: f64::NAN });
    }
    for _ in 0..3 {
        work()?;
    }
    cuda.synchronize()?;
    let mut best = KernelTime { seconds: f64::INFINITY, host: 0.0 };
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..count {
            work()?;
        }
        let host = start.elapsed().as_secs_f64() / f64::from(count);
        cuda.synchronize()?;
        let seconds = start.elapsed().as_secs_f64() / f64::from(count);
        if seconds < best.seconds {
            best = KernelTime { seconds, host };
        }
    }
    Ok(best)
}

pub(crate) fn report_bandwidth(name: &str, t: KernelTime, bytes: usize) {
    println!(
        "time  {name}: {:.1} us ({:.1} to queue), {:.2} TB/s",
        t.seconds * 1e6,
        t.host * 1e6,
        bytes as f64 / t.seconds / 1e12
    );
}

pub(crate) fn report_flops(name: &str, t: KernelTime, flops: f64) {
    println!(
        "time  {name}: {:.1} us ({:.1} to queue), {:.0} TFLOP/s",
        t.seconds * 1e6,
        t.host * 1e6,
        flops / t.seconds / 1e12
    );
}

pub(crate) fn all(cuda: &CudaDevice) -> CheckResult {
    kernels(cuda)?;
    attentions(cuda)?;
    logits(cuda)?;
    passes(cuda)
}

/// The fp8 kernels at GPT-2's and Llama 1B's shapes, and whole passes; docs/explanation/kernels.md
/// has estimates.
pub(crate) fn fp8(cuda: &CudaDevice) -> CheckResult {
    for (inputs, outputs, function, out) in [
        (768, 2304, Activation::None, CudaDtype::Bf16),
        (768, 768, Activation::None, CudaDtype::Bf16),
        (768, 3072, Activation::GeluTanh, CudaDtype::E4m3),
        (3072, 768, Activation::None, CudaDtype::Bf16),
        (2048, 3072, Activation::None, CudaDtype::Bf16),
        (2048, 2048, Activation::None, CudaDtype::Bf16),
        (2048, 16384, Activation::None, CudaDtype::Bf16),
        (8192, 2048, Activation::None, CudaDtype::Bf16),
    ] {
        let map = weights(cuda, inputs, outputs)?;
        let x = e4m3_rows(cuda, inputs)?;
        let t = time(cuda, || linear(&x, &map, function, out))?;
        report_flops(
            &format!("fp8 linear {ROWS} x {inputs} -> {outputs} {function:?}"),
            t,
            2.0 * (ROWS * inputs * outputs) as f64,
        );
    }
    for width in [768, 2048] {
        let rows = random(cuda, ROWS, width)?.cast(CudaDtype::Bf16)?;
        let t = time(cuda, || fp8::quantize_rows(&rows))?;
        report_bandwidth(&format!("fp8 quantize_rows {ROWS} x {width}"), t, ROWS * width * 3);
        let mut x = random(cuda, ROWS, width)?;
        let y = rows.scaled(1e-4, CudaDtype::Bf16)?;
        let by = CudaNorm::layer(cuda, 1e-5, &numbers(width, 4), &numbers(width, 5))?;
        let uploaded = CudaPerturbedRows::new(cuda, &perturbed_rows(ROWS, 0.2, SiteSet::DROPOUT))?;
        let mask = CudaDropoutMask::Sampled { layer: 1, site: Site::MlpOut, rows: &uploaded };
        for (name, mask) in [("clean", None), ("dropout", Some(mask))] {
            let addend = ResidualAddend { y: &y, bias: None, mask };
            let t = time(cuda, || add_norm(&mut x, addend, &by, CudaDtype::E4m3))?;
            report_bandwidth(
                &format!("fp8 add_norm {ROWS} x {width} {name}"),
                t,
                ROWS * width * 11,
            );
        }
    }
    let width = 768;
    let dtype = CudaDtype::E4m3;
    let by = CudaNorm::layer(cuda, 1e-5, &numbers(width, 4), &numbers(width, 5))?;
    let mut stream = random(cuda, ROWS, width)?;
    let attended = random(cuda, ROWS, width)?.cast(CudaDtype::Bf16)?;
    for (x, name) in [(attended, "bf16"), (e4m3_rows(cuda, 3072)?, "e4m3")] {
        let map = weights(cuda, x.cols(), width)?;
        let uploaded = CudaPerturbedRows::new(cuda, &perturbed_rows(ROWS, 0.2, SiteSet::DROPOUT))?;
        let mask = Some(CudaDropoutMask::Sampled { layer: 1, site: Site::MlpOut, rows: &uploaded });
        let of = CudaLinearResidualNorm { x: &x, map: &map, mask, norm: &by, dtype };
        report_flops(
            &format!("fp8 residual {ROWS} x {} of {name} -> {width} dropout", x.cols()),
            time(cuda, || linear_residual_norm(of, &mut stream))?,
            2.0 * (ROWS * x.cols() * width) as f64,
        );
    }
    attentions(cuda)?;
    let gates = random(cuda, ROWS, 16384)?.cast(CudaDtype::Bf16)?;
    let t = time(cuda, || activation::swiglu(cuda, &gates))?;
    report_bandwidth("fp8 swiglu 4096 x 16384", t, ROWS * 8192 * 5);
    let width = 768;
    let vocab = 50257;
    let table: Vec<f32> =
        numbers(1 << 16, 1).into_iter().cycle().take(width * vocab).map(|x| 0.02 * x).collect();
    let head = CudaLinear::from_output_major(cuda, width, vocab, &table, None)?;
    for rows in [64, 1024, ROWS] {
        let x = random(cuda, rows, width)?.cast(CudaDtype::Bf16)?;
        report_flops(
            &format!("fp8 greedy tokens {rows} x {width} -> {vocab}"),
            time(cuda, || topk::PendingRowTokens::launch(&x, &head)?.read())?,
            2.0 * (rows * width * vocab) as f64,
        );
    }
    passes(cuda)
}

/// Random e4m3 rows with one scale, like those written by norms and GELU.
fn e4m3_rows(cuda: &CudaDevice, cols: usize) -> Result<CudaTensor, CudaError> {
    let max_norm = 2.0 * (cols as f32).sqrt();
    let by = CommonScale { scale: e4m3::scale_for(max_norm), max_norm };
    fp8::quantize(&random(cuda, ROWS, cols)?.cast(CudaDtype::Bf16)?, by)
}

/// Whole passes of several sizes.
pub(crate) fn passes(cuda: &CudaDevice) -> CheckResult {
    [32, 1024, 2048, ROWS].into_iter().try_for_each(|rows| pass(cuda, rows))
}

pub(crate) fn weights(
    cuda: &CudaDevice,
    inputs: usize,
    outputs: usize,
) -> Result<CudaLinear, CudaError> {
    let w: Vec<f32> =
        numbers(1 << 16, 1).into_iter().cycle().take(inputs * outputs).map(|x| 0.02 * x).collect();
    CudaLinear::from_output_major(cuda, inputs, outputs, &w, Some(&numbers(outputs, 2)))
}

pub(crate) fn random(cuda: &CudaDevice, rows: usize, cols: usize) -> Result<CudaTensor, CudaError> {
    let x: Vec<f32> = numbers(1 << 16, 3).into_iter().cycle().take(rows * cols).collect();
    CudaTensor::from_host(cuda, rows, cols, &x)
}

fn kernels(cuda: &CudaDevice) -> CheckResult {
    let operand = cuda.compute_dtype();
    let width = 768;
    for (inputs, outputs, function) in [
        (768, 2304, Activation::None),
        (768, 768, Activation::None),
        (768, 3072, Activation::GeluTanh),
        (3072, 768, Activation::None),
    ] {
        let map = weights(cuda, inputs, outputs)?;
        let x = random(cuda, ROWS, inputs)?.cast(operand)?;
        let t = time(cuda, || linear(&x, &map, function, operand))?;
        report_flops(
            &format!("linear {ROWS} x {inputs} -> {outputs} {function:?}"),
            t,
            2.0 * (ROWS * inputs * outputs) as f64,
        );
    }
    let mut x = random(cuda, ROWS, width)?;
    let y = random(cuda, ROWS, width)?.scaled(1e-4, operand)?;
    let by = CudaNorm::layer(cuda, 1e-5, &numbers(width, 4), &numbers(width, 5))?;
    let uploaded = CudaPerturbedRows::new(cuda, &perturbed_rows(ROWS, 0.2, SiteSet::DROPOUT))?;
    let bytes = ROWS * width * (8 + 2 * operand.size());
    for (name, mask) in [
        ("clean", None),
        (
            "dropout",
            Some(CudaDropoutMask::Sampled { layer: 1, site: Site::MlpOut, rows: &uploaded }),
        ),
    ] {
        let t = time(cuda, || {
            add_norm(&mut x, ResidualAddend { y: &y, bias: None, mask }, &by, operand)
        })?;
        report_bandwidth(&format!("add_norm {ROWS} x {width} {name}"), t, bytes);
    }
    for inputs in [768, 3072] {
        let map = weights(cuda, inputs, width)?;
        let from = random(cuda, ROWS, inputs)?.scaled(1e-4, operand)?;
        let mask = Some(CudaDropoutMask::Sampled { layer: 1, site: Site::MlpOut, rows: &uploaded });
        let t = time(cuda, || {
            let of =
                CudaLinearResidualNorm { x: &from, map: &map, mask, norm: &by, dtype: operand };
            linear_residual_norm(of, &mut x)
        })?;
        report_flops(
            &format!("residual {ROWS} x {inputs} -> {width} dropout"),
            t,
            2.0 * (ROWS * inputs * width) as f64,
        );
    }
    report_bandwidth(
        "norm",
        time(cuda, || norm(&x, &by, operand))?,
        ROWS * width * (4 + operand.size()),
    );
    let gates = random(cuda, ROWS, 6144)?.cast(operand)?;
    report_bandwidth(
        "swiglu 4096 x 6144",
        time(cuda, || activation::swiglu(cuda, &gates))?,
        ROWS * 6144 * operand.size() * 3 / 2,
    );
    let picked = CudaIndices::new(cuda, &(0..ROWS as u32).rev().collect::<Vec<_>>())?;
    report_bandwidth(
        "select 4096 x 768",
        time(cuda, || embedding::select(&[&x], &picked))?,
        ROWS * width * 8,
    );
    Ok(())
}

/// `samples` rows for each of `questions` prefixes, with `own` unshared slots, aligned to 16; and
/// the number of slots.
fn forked_rows(
    questions: usize,
    samples: usize,
    prefix: u32,
    own: u32,
) -> (Vec<[(u32, u32); 2]>, usize) {
    let mut next = 0;
    let mut rows = Vec::new();
    for _ in 0..questions {
        let shared = (next, prefix);
        next += prefix.next_multiple_of(16);
        for _ in 0..samples {
            rows.push([shared, (next, own)]);
            next += own.next_multiple_of(16);
        }
    }
    (rows, next as usize)
}

fn attentions(cuda: &CudaDevice) -> CheckResult {
    for (name, heads, kv_heads, dim, is_rotary) in
        [("gpt2", 12, 12, 64, false), ("qwen3", 16, 8, 128, true)]
    {
        for (prefix, own) in [(72, 1), (72, 6), (72, 12), (512, 64)] {
            let (spans, slots) = forked_rows(64, 64, prefix, own);
            let mut kv = CudaKv::new(cuda, LAYERS, kv_heads, dim, slots)?;
            let metadata = CudaAttentionMetadata::new(cuda, ROWS, |r| spans[r])?;
            let mut qkv =
                random(cuda, ROWS, (heads + 2 * kv_heads) * dim)?.cast(cuda.compute_dtype())?;
            let positions = CudaIndices::new(cuda, &vec![prefix + own; ROWS])?;
            let to = CudaIndices::new(
                cuda,
                &spans.iter().map(|s| s[1].0 + own - 1).collect::<Vec<_>>(),
            )?;
            let cells = 64 * prefix as usize + ROWS * own as usize;
            let bytes = 2 * ROWS * heads * dim * cuda.compute_dtype().size()
                + 2 * cells * kv_heads * dim * kv.dtype().size();
            let mut layers = (0..LAYERS).cycle();
            let t =
                time(cuda, || attention(&qkv, &kv, layers.next().unwrap_or(0), heads, &metadata))?;
            report_bandwidth(
                &format!("attention {name} {ROWS} rows, prefix {prefix}, own {own}"),
                t,
                bytes,
            );
            if own == 6 {
                let rope = CudaRope::new(cuda, &numbers(dim / 2, 6))?;
                let scale = CudaNorm::rms(cuda, 1e-6, &numbers(dim, 7))?;
                let by = CudaQkvTransform {
                    heads,
                    qk_norms: is_rotary.then_some((&scale, &scale)),
                    rope: is_rotary.then_some(&rope),
                };
                let t = time(cuda, || {
                    rope_and_cache(
                        &mut qkv,
                        by,
                        &mut kv,
                        0,
                        CudaSlotMapping { positions: &positions, slots: &to },
                    )
                })?;
                let read = if is_rotary { 2 * heads + 4 * kv_heads } else { 4 * kv_heads };
                report_bandwidth(
                    &format!("place {name} {ROWS} rows"),
                    t,
                    ROWS * read * dim * cuda.compute_dtype().size(),
                );
                let wide = (heads + 2 * kv_heads) * dim;
                let width = heads * dim;
                let map = weights(cuda, width, wide)?;
                let x = random(cuda, ROWS, width)?.cast(cuda.compute_dtype())?;
                let t = time(cuda, || {
                    project_qkv(
                        &x,
                        &map,
                        by,
                        &mut kv,
                        0,
                        CudaSlotMapping { positions: &positions, slots: &to },
                    )
                })?;
                report_flops(
                    &format!("linear and place {name} {ROWS} x {width} -> {wide}"),
                    t,
                    2.0 * (ROWS * width * wide) as f64,
                );
            }
        }
        let lengths = vec![72u32; 64];
        let mut spans = Vec::new();
        for q in 0..64u32 {
            spans.extend((1..=lengths[q as usize]).map(|n| [(q * 80, n)]));
        }
        let kv = CudaKv::new(cuda, 1, kv_heads, dim, 64 * 80)?;
        let metadata = CudaAttentionMetadata::new(cuda, spans.len(), |r| spans[r])?;
        let q =
            random(cuda, spans.len(), (heads + 2 * kv_heads) * dim)?.cast(cuda.compute_dtype())?;
        let flops = 4.0 * (64 * 72 * 73 / 2 * heads * dim) as f64;
        report_flops(
            &format!("attention {name} 64 prompts of 72"),
            time(cuda, || attention(&q, &kv, 0, heads, &metadata))?,
            flops,
        );
    }
    let (spans, _) = forked_rows(64, 64, 72, 6);
    report_bandwidth(
        "attention metadata of 4096 rows",
        time(cuda, || CudaAttentionMetadata::new(cuda, ROWS, |r| spans[r]))?,
        ROWS * 24,
    );
    let all = perturbed_rows(ROWS, 0.2, SiteSet::DROPOUT);
    report_bandwidth(
        "perturbations of 4096 rows",
        time(cuda, || CudaPerturbedRows::new(cuda, &all))?,
        ROWS * 32,
    );
    Ok(())
}

fn logits(cuda: &CudaDevice) -> CheckResult {
    let width = 768;
    let vocab = 50257;
    let head = weights(cuda, width, vocab)?;
    let bare: Vec<f32> =
        numbers(1 << 16, 1).into_iter().cycle().take(width * vocab).map(|x| 0.02 * x).collect();
    let bare = CudaLinear::from_output_major(cuda, width, vocab, &bare, None)?;
    for rows in [64, 1024, ROWS] {
        let x = random(cuda, rows, width)?.cast(cuda.compute_dtype())?;
        let flops = 2.0 * (rows * width * vocab) as f64;
        report_flops(
            &format!("logits {rows} x {width} -> {vocab}, f32"),
            time(cuda, || linear::logits(&x, &bare))?,
            flops,
        );
        report_flops(
            &format!("likeliest {rows} x {width} -> {vocab}, bias"),
            time(cuda, || topk::PendingRowTokens::launch(&x, &head)?.read())?,
            flops,
        );
        report_flops(
            &format!("likeliest {rows} x {width} -> {vocab}"),
            time(cuda, || topk::PendingRowTokens::launch(&x, &bare)?.read())?,
            flops,
        );
        report_flops(
            &format!("mixture {rows} x {width} -> {vocab}, k 10"),
            time(cuda, || {
                topk::top_k_mixture(
                    &x,
                    &head,
                    &head,
                    crate::cuda::args::CudaMixture { k: 10, noise: None },
                )
            })?,
            flops,
        );
    }
    Ok(())
}

/// A whole pass of GPT-2 124M over single positions of forked rows with dropout, without the LM
/// head.
fn pass(cuda: &CudaDevice, rows: usize) -> CheckResult {
    // Operands read only by maps are e4m3 on a device of precision fp8.
    let rounded = cuda.operand_dtype();
    let width = 768;
    let heads = 12;
    let dim = 64;
    let layers = 12;
    let maps = |i, o| (0..layers).map(|_| weights(cuda, i, o)).collect::<Result<Vec<_>, _>>();
    let qkv = maps(768, 2304)?;
    let out = maps(768, 768)?;
    let up = maps(768, 3072)?;
    let down = maps(3072, 768)?;
    let by = CudaNorm::layer(cuda, 1e-5, &numbers(width, 4), &numbers(width, 5))?;
    let questions = rows.div_ceil(64);
    let (spans, slots) = forked_rows(questions, rows / questions, 72, 6);
    let mut kv = CudaKv::new(cuda, layers, heads, dim, slots)?;
    let x = random(cuda, rows, width)?;
    let positions = vec![77u32; rows];
    let to = spans.iter().map(|s| s[1].0 + 5).collect::<Vec<_>>();
    let all = perturbed_rows(rows, 0.2, SiteSet::DROPOUT);
    let mut pass = || -> Result<CudaTensor, CudaError> {
        let metadata = CudaAttentionMetadata::new(cuda, rows, |r| spans[r])?;
        let positions = CudaIndices::new(cuda, &positions)?;
        let to = CudaIndices::new(cuda, &to)?;
        let uploaded = CudaPerturbedRows::new(cuda, &all)?;
        let mask = |layer, site| Some(CudaDropoutMask::Sampled { layer, site, rows: &uploaded });
        let mut x = x.copy()?;
        let mut normed = norm(&x, &by, rounded)?;
        for layer in 0..layers {
            let transform = CudaQkvTransform { heads, qk_norms: None, rope: None };
            let slots = CudaSlotMapping { positions: &positions, slots: &to };
            let q = project_qkv(&normed, &qkv[layer], transform, &mut kv, layer, slots)?;
            let attended = attention(&q, &kv, layer, heads, &metadata)?;
            let of = CudaLinearResidualNorm {
                x: &attended,
                map: &out[layer],
                mask: mask(layer, Site::AttnOut),
                norm: &by,
                dtype: rounded,
            };
            normed = linear_residual_norm(of, &mut x)?;
            let inner = linear(&normed, &up[layer], Activation::GeluTanh, rounded)?;
            let of = CudaLinearResidualNorm {
                x: &inner,
                map: &down[layer],
                mask: mask(layer, Site::MlpOut),
                norm: &by,
                dtype: if layer + 1 == layers { CudaDtype::F32 } else { rounded },
            };
            normed = linear_residual_norm(of, &mut x)?;
        }
        Ok(normed)
    };
    let flops = 2.0 * (rows * layers * (768 * 2304 + 768 * 768 + 2 * 768 * 3072)) as f64;
    let precision = cuda.precision();
    report_flops(
        &format!("gpt2 pass of {rows} rows in {precision}"),
        time(cuda, &mut pass)?,
        flops,
    );
    Ok(())
}
