//! Times the parts of a training step, and all blocks of a whole step, at the shapes of a small
//! reasoner and of GPT-2 124M.

use crate::cuda::args::{
    CudaAttentionBackward, CudaGaussianLoss, CudaQkvTransform, CudaSlotMapping, NormGradients,
    ResidualAddend,
};
use crate::cuda::attention::{
    CudaAttentionMetadata, CudaKv, CudaKvGrads, attention, attention_backward,
};
use crate::cuda::linear::{CudaLinear, linear, linear_dw, linear_dx, logits};
use crate::cuda::norm::{CudaNorm, add_norm, norm, norm_backward};
use crate::cuda::optimizer::{adamw, sum_of_squares};
use crate::cuda::qkv::{project_qkv, qk_norm_backward, rope_and_cache_backward};
use crate::cuda::regression::{gaussian_loss, smooth_l1};
use crate::cuda::{
    CudaDevice, CudaDtype, CudaError, CudaIndices, CudaTensor, activation, dropout, embedding, loss,
};
use crate::params::{Activation, AdamWCoefficients};
use crate::timing::{random, report_bandwidth, report_flops, time, time_by, weights};
use crate::{CheckResult, numbers, small};

/// A model and its training batch.
struct KernelBenchShape {
    name: &'static str,
    layers: usize,
    width: usize,
    heads: usize,
    ffn: usize,
    vocabulary: usize,
    sequences: u32,
    prompt: u32,
    thoughts: u32,
    tail: u32,
}

const SHAPES: [KernelBenchShape; 2] = [
    KernelBenchShape {
        name: "reasoner",
        layers: 6,
        width: 256,
        heads: 8,
        ffn: 1024,
        vocabulary: 400,
        sequences: 512,
        prompt: 75,
        thoughts: 6,
        tail: 8,
    },
    KernelBenchShape {
        name: "gpt2",
        layers: 12,
        width: 768,
        heads: 12,
        ffn: 3072,
        vocabulary: 50257,
        sequences: 256,
        prompt: 72,
        thoughts: 6,
        tail: 16,
    },
];

/// Shapes with head sizes 32, 64, 128 and 24.
fn small_shapes() -> Vec<KernelBenchShape> {
    let of = |width: usize, heads: usize| KernelBenchShape {
        name: "small",
        layers: 1,
        width,
        heads,
        ffn: 2 * width,
        vocabulary: 400,
        sequences: 3,
        prompt: 21,
        thoughts: 2,
        tail: 5,
    };
    vec![of(64, 2), of(128, 2), of(128, 1), of(48, 2)]
}

pub(crate) fn all(cuda: &CudaDevice) -> CheckResult {
    if small() {
        let of = |shape: &KernelBenchShape| KernelBench::new(cuda, shape)?.run();
        small_shapes().iter().try_for_each(of)?;
        return wide_norms(cuda);
    }
    SHAPES.iter().try_for_each(|shape| KernelBench::new(cuda, shape)?.run())?;
    losses(cuda)?;
    qk_norms(cuda)
}

/// The norms' backward at the widths of kernels that no small shape uses.
fn wide_norms(cuda: &CudaDevice) -> CheckResult {
    for width in [512, 1280, 2304] {
        let x = random(cuda, 5, width)?;
        let dy = x.cast(cuda.compute_dtype())?;
        let mut dx = x.copy()?;
        let by = CudaNorm::layer(cuda, 1e-5, &numbers(width, 1), &numbers(width, 2))?;
        let zeros = || CudaTensor::zeros(cuda, 1, width, CudaDtype::F32);
        add_norm_grads(&x, &by, &dy, &mut dx, &mut (zeros()?, zeros()?))?;
    }
    cuda.synchronize()
}

/// The losses between hidden states: 12 layers of GPT-2's, and 28 of a model of width 2048, for one
/// position of 128 sequences.
fn losses(cuda: &CudaDevice) -> CheckResult {
    for (layers, width) in [(12, 768), (28, 2048)] {
        let rows = 128 * layers;
        let student = random(cuda, rows, width)?;
        let teacher = random(cuda, rows, width)?;
        let bytes = rows * width * 4;
        let t = time(cuda, || smooth_l1(&student, &teacher, layers, 1.0))?;
        report_bandwidth(&format!("smooth_l1 of {layers} x 128 x {width}"), t, 4 * bytes);
        let mean = &student;
        let log_std = &teacher;
        let of = CudaGaussianLoss { mean, log_std, noise: mean, target: log_std, weight: 1.0 };
        let t = time(cuda, || gaussian_loss(of))?;
        report_bandwidth(&format!("gaussian_loss of {rows} x {width}"), t, 6 * bytes);
    }
    Ok(())
}

/// The backward of QK norms, of 4096 rows of Qwen3's 16 and 8 heads of 128.
fn qk_norms(cuda: &CudaDevice) -> CheckResult {
    let rows = 4096;
    let heads = 16;
    let kv_heads = 8;
    let dim = 128;
    let qkv = random(cuda, rows, (heads + 2 * kv_heads) * dim)?.cast(cuda.compute_dtype())?;
    let norm = CudaNorm::rms(cuda, 1e-6, &numbers(dim, 6))?;
    let transform = CudaQkvTransform { heads, qk_norms: Some((&norm, &norm)), rope: None };
    let zeros = || CudaTensor::zeros(cuda, 1, dim, CudaDtype::F32);
    let mut dqkv = qkv.copy()?;
    let mut dq = zeros()?;
    let mut dk = zeros()?;
    let t = time(cuda, || qk_norm_backward(&qkv, transform, &mut dqkv, [&mut dq, &mut dk]))?;
    let bytes = 3 * rows * (heads + kv_heads) * dim * cuda.compute_dtype().size();
    report_bandwidth(&format!("qk_norm_backward of {rows} rows of Qwen3"), t, bytes);
    Ok(())
}

/// The linear maps of a layer and their gradients: qkv, attention output, MLP in and out.
struct KernelBenchLayer {
    maps: Vec<CudaLinear>,
    grads: Vec<(CudaTensor, CudaTensor)>,
    norm_grads: Vec<(CudaTensor, CudaTensor)>,
}

/// The rows of one pass.
struct KernelBenchSegment {
    rows: usize,
    positions: CudaIndices,
    slots: CudaIndices,
    metadata: CudaAttentionMetadata,
}

/// The activations that a layer's backward needs.
struct KernelBenchActivations {
    stream: CudaTensor,
    normed: CudaTensor,
    qkv: CudaTensor,
    attended: CudaTensor,
    middle: CudaTensor,
    normed_again: CudaTensor,
    inner: CudaTensor,
    active: CudaTensor,
}

struct KernelBench<'a> {
    cuda: &'a CudaDevice,
    shape: &'a KernelBenchShape,
    by: CudaNorm,
    layers: Vec<KernelBenchLayer>,
    segments: Vec<KernelBenchSegment>,
    kv: CudaKv,
    dkv: CudaKvGrads,
}

impl<'a> KernelBench<'a> {
    fn new(cuda: &'a CudaDevice, shape: &'a KernelBenchShape) -> Result<Self, CudaError> {
        let width = shape.width;
        let ffn = shape.ffn;
        let sizes = [(width, 3 * width), (width, width), (width, ffn), (ffn, width)];
        let zeros = |rows, cols| CudaTensor::zeros(cuda, rows, cols, CudaDtype::F32);
        let layer = || {
            Ok(KernelBenchLayer {
                maps: sizes.iter().map(|&(i, o)| weights(cuda, i, o)).collect::<Result<_, _>>()?,
                grads: sizes
                    .iter()
                    .map(|&(i, o)| Ok((zeros(o, i)?, zeros(1, o)?)))
                    .collect::<Result<_, CudaError>>()?,
                norm_grads: (0..2)
                    .map(|_| Ok((zeros(1, width)?, zeros(1, width)?)))
                    .collect::<Result<_, CudaError>>()?,
            })
        };
        let (segments, slots) = segments(cuda, shape)?;
        let kv = CudaKv::new(cuda, shape.layers, shape.heads, width / shape.heads, slots)?;
        Ok(Self {
            cuda,
            shape,
            by: CudaNorm::layer(cuda, 1e-5, &numbers(width, 4), &numbers(width, 5))?,
            layers: (0..shape.layers).map(|_| layer()).collect::<Result<_, CudaError>>()?,
            segments,
            dkv: CudaKvGrads::zeros(cuda, &kv)?,
            kv,
        })
    }

    fn forward(
        &mut self,
        s: usize,
        layer: usize,
        stream: &CudaTensor,
    ) -> Result<(KernelBenchActivations, CudaTensor), CudaError> {
        let operand = self.cuda.compute_dtype();
        let heads = self.shape.heads;
        let by = &self.by;
        let segment = &self.segments[s];
        let maps = &self.layers[layer].maps;
        let normed = norm(stream, by, operand)?;
        let slot_mapping = CudaSlotMapping { positions: &segment.positions, slots: &segment.slots };
        let qkv = project_qkv(
            &normed,
            &maps[0],
            CudaQkvTransform { heads, qk_norms: None, rope: None },
            &mut self.kv,
            layer,
            slot_mapping,
        )?;
        let attended = attention(&qkv, &self.kv, layer, heads, &segment.metadata)?;
        let y = linear(&attended, &maps[1], Activation::None, operand)?;
        let mut middle = stream.copy()?;
        let normed_again =
            add_norm(&mut middle, ResidualAddend { y: &y, bias: None, mask: None }, by, operand)?;
        let inner = linear(&normed_again, &maps[2], Activation::None, operand)?;
        let active = activation::activate(&inner, Activation::GeluTanh, operand)?;
        let y = linear(&active, &maps[3], Activation::None, operand)?;
        let mut next = middle.copy()?;
        crate::cuda::norm::add(&mut next, ResidualAddend { y: &y, bias: None, mask: None })?;
        let saved = KernelBenchActivations {
            stream: stream.copy()?,
            normed,
            qkv,
            attended,
            middle,
            normed_again,
            inner,
            active,
        };
        Ok((saved, next))
    }

    fn backward(
        &mut self,
        s: usize,
        layer: usize,
        saved: &KernelBenchActivations,
        dx: &mut CudaTensor,
    ) -> CheckResult {
        let operand = self.cuda.compute_dtype();
        let heads = self.shape.heads;
        let segment = &self.segments[s];
        let KernelBenchLayer { maps, grads, norm_grads } = &mut self.layers[layer];
        let dy = dropout::dropout(dx, None, operand)?;
        add_dw(&saved.active, &dy, &mut grads[3])?;
        let dinner = activation::activate_backward(
            &saved.inner,
            Activation::GeluTanh,
            &linear_dx(&dy, &maps[3], operand)?,
            operand,
        )?;
        add_dw(&saved.normed_again, &dinner, &mut grads[2])?;
        let dnormed = linear_dx(&dinner, &maps[2], operand)?;
        add_norm_grads(&saved.middle, &self.by, &dnormed, dx, &mut norm_grads[1])?;
        let dy = dropout::dropout(dx, None, operand)?;
        add_dw(&saved.attended, &dy, &mut grads[1])?;
        let dout = linear_dx(&dy, &maps[1], operand)?;
        let of = CudaAttentionBackward {
            q: &saved.qkv,
            kv: &self.kv,
            layer,
            heads,
            metadata: &segment.metadata,
            out: &saved.attended,
            dout: &dout,
        };
        let mut dqkv = attention_backward(of, &mut self.dkv)?;
        let slot_mapping = CudaSlotMapping { positions: &segment.positions, slots: &segment.slots };
        rope_and_cache_backward(
            &mut dqkv,
            CudaQkvTransform { heads, qk_norms: None, rope: None },
            &self.dkv,
            layer,
            slot_mapping,
        )?;
        add_dw(&saved.normed, &dqkv, &mut grads[0])?;
        let dnormed = linear_dx(&dqkv, &maps[0], operand)?;
        add_norm_grads(&saved.stream, &self.by, &dnormed, dx, &mut norm_grads[0])
    }

    fn run(&mut self) -> CheckResult {
        if !small() {
            self.parts()?; // all of them are in a whole step
        }
        self.ends()?;
        let parameters: usize = self
            .layers
            .iter()
            .flat_map(|l| &l.grads)
            .map(|(w, b)| w.rows() * w.cols() + b.cols())
            .sum();
        let inputs: Vec<CudaTensor> = self
            .segments
            .iter()
            .map(|s| random(self.cuda, s.rows, self.shape.width))
            .collect::<Result<_, _>>()?;
        let cuda = self.cuda;
        let name = self.shape.name;
        let t = time_by(cuda, 4, || self.blocks(&inputs))?;
        report_bandwidth(&format!("{name} blocks of a whole step, forward and backward"), t, 0);
        println!("      {parameters} parameters in the blocks");
        Ok(())
    }

    /// All passes forward and, in reverse, backward through all layers.
    fn blocks(&mut self, inputs: &[CudaTensor]) -> CheckResult {
        self.dkv.clear()?;
        let mut saved = Vec::new();
        for (s, x) in inputs.iter().enumerate() {
            let mut stream = x.copy()?;
            let mut all = Vec::new();
            for layer in 0..self.shape.layers {
                let (k, next) = self.forward(s, layer, &stream)?;
                all.push(k);
                stream = next;
            }
            saved.push(all);
        }
        for (s, x) in inputs.iter().enumerate().rev() {
            let mut dx = x.scaled(1e-3, CudaDtype::F32)?;
            for layer in (0..self.shape.layers).rev() {
                self.backward(s, layer, &saved[s][layer], &mut dx)?;
            }
        }
        Ok(())
    }

    /// One layer's kernels, one by one, for the prompts, the last thought and the tail.
    fn parts(&mut self) -> CheckResult {
        let cuda = self.cuda;
        let operand = self.cuda.compute_dtype();
        let heads = self.shape.heads;
        let last = self.segments.len() - 1;
        for (what, s) in [("prompts", 0), ("thought", last - 1), ("tail", last)] {
            let x = random(cuda, self.segments[s].rows, self.shape.width)?;
            let (saved, _) = self.forward(s, 0, &x)?;
            let mut dx = x.scaled(1e-3, CudaDtype::F32)?;
            let size = x.rows() * x.cols();
            let name =
                |kernel: &str| format!("{} {what} of {} rows: {kernel}", self.shape.name, x.rows());
            let f = name("a layer forward");
            let b = name("a layer backward");
            let names = [
                "attention",
                "attention_backward",
                "rope_and_cache_backward",
                "norm_backward",
                "activate_backward",
            ]
            .map(name);
            let dy = x.cast(operand)?;
            report_bandwidth(&f, time(cuda, || self.forward(s, 0, &x))?, 0);
            report_bandwidth(&b, time(cuda, || self.backward(s, 0, &saved, &mut dx))?, 0);
            let segment = &self.segments[s];
            let slot_mapping = &self.segments[s];
            let t = time(cuda, || attention(&saved.qkv, &self.kv, 0, heads, &segment.metadata))?;
            report_bandwidth(&names[0], t, 4 * size * operand.size());
            let of = CudaAttentionBackward {
                q: &saved.qkv,
                kv: &self.kv,
                layer: 0,
                heads,
                metadata: &segment.metadata,
                out: &saved.attended,
                dout: &dy,
            };
            let mut dqkv = attention_backward(of, &mut self.dkv)?;
            let t = time(cuda, || attention_backward(of, &mut self.dkv))?;
            report_bandwidth(&names[1], t, size * (6 * operand.size() + 16));
            let slot_mapping =
                CudaSlotMapping { positions: &slot_mapping.positions, slots: &slot_mapping.slots };
            let transform = CudaQkvTransform { heads, qk_norms: None, rope: None };
            let t = time(cuda, || {
                rope_and_cache_backward(&mut dqkv, transform, &self.dkv, 0, slot_mapping)
            })?;
            report_bandwidth(&names[2], t, size * (8 + 2 * operand.size()));
            let sums = &mut self.layers[0].norm_grads[0];
            let t = time(cuda, || add_norm_grads(&x, &self.by, &dy, &mut dx, sums))?;
            report_bandwidth(&names[3], t, size * (12 + operand.size()));
            let t = time(cuda, || {
                activation::activate_backward(
                    &saved.inner,
                    Activation::GeluTanh,
                    &saved.active,
                    operand,
                )
            })?;
            report_bandwidth(
                &names[4],
                t,
                3 * saved.inner.rows() * saved.inner.cols() * operand.size(),
            );
            for (m, (input, dy_out)) in [
                (&saved.normed, &saved.qkv),
                (&saved.attended, &dy),
                (&saved.normed_again, &saved.inner),
                (&saved.active, &dy),
            ]
            .into_iter()
            .enumerate()
            {
                let KernelBenchLayer { maps, grads, .. } = &mut self.layers[0];
                let t = time(cuda, || linear_dx(dy_out, &maps[m], operand))?;
                let flops = 2.0 * (input.rows() * input.cols() * dy_out.cols()) as f64;
                let shape = format!(
                    "{} {what} {} x {} -> {}",
                    self.shape.name,
                    input.rows(),
                    input.cols(),
                    dy_out.cols()
                );
                report_flops(&format!("linear_dx {shape}"), t, flops);
                let (dw, db) = &mut grads[m];
                let t = time(cuda, || linear_dw(input, dy_out, dw, None))?;
                report_flops(&format!("linear_dw {shape}"), t, flops);
                let t = time(cuda, || linear_dw(input, dy_out, dw, Some(&mut *db)))?;
                report_flops(&format!("linear_dw with its bias {shape}"), t, flops);
            }
        }
        Ok(())
    }

    /// The embedding table, the head with its loss, the optimizer.
    fn ends(&mut self) -> CheckResult {
        let cuda = self.cuda;
        let shape = self.shape;
        let rows = (shape.sequences * shape.tail) as usize;
        let width = shape.width;
        let vocabulary = shape.vocabulary;
        let head = weights(cuda, width, vocabulary)?;
        let mut dw = CudaTensor::zeros(cuda, vocabulary, width, CudaDtype::F32)?;
        let x = random(cuda, rows, width)?.cast(cuda.compute_dtype())?;
        let targets =
            CudaIndices::new(cuda, &(0..rows as u32).map(|r| r % 400).collect::<Vec<_>>())?;
        let row_weights = vec![1.0; rows];
        let given = logits(&x, &head)?;
        let (_, dy_out) = loss::cross_entropy(&given, &targets, &row_weights)?;
        let flops = 2.0 * (rows * width * vocabulary) as f64;
        let name = |what: &str| format!("{} {what} of {rows} x {vocabulary}", shape.name);
        report_flops(&name("logits"), time(cuda, || logits(&x, &head))?, flops);
        let t = time(cuda, || loss::cross_entropy(&given, &targets, &row_weights))?;
        report_bandwidth(
            &name("cross_entropy"),
            t,
            rows * vocabulary * (4 + cuda.compute_dtype().size()),
        );
        report_flops(
            &name("linear_dx"),
            time(cuda, || linear_dx(&dy_out, &head, cuda.compute_dtype()))?,
            flops,
        );
        report_flops(
            &name("linear_dw"),
            time(cuda, || linear_dw(&x, &dy_out, &mut dw, None))?,
            flops,
        );
        let prompts = random(cuda, self.segments[0].rows, width)?;
        let tokens = (0..prompts.rows() as u32).map(|r| r * 7 % 400).collect::<Vec<_>>();
        let tokens = CudaIndices::new(cuda, &tokens)?;
        let t = time(cuda, || embedding::scatter_add(&prompts, &tokens, &mut dw))?;
        report_bandwidth(
            &format!("{} scatter_add of {} rows into 400", shape.name, prompts.rows()),
            t,
            prompts.rows() * width * 4,
        );
        let mut value = random(cuda, vocabulary, width)?;
        let mut moments = [dw.copy()?, dw.copy()?];
        let step = AdamWCoefficients {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            gradient_scale: 1.0,
            keep: 0.999,
            rate: 1e-3,
            second_scale: 1.0,
        };
        let [first, second] = &mut moments;
        let t = time(cuda, || adamw(&step, &mut value, &mut dw, [first, second]))?;
        report_bandwidth(
            &format!("{} adamw of {vocabulary} x {width}", shape.name),
            t,
            vocabulary * width * 32,
        );
        let t = time(cuda, || sum_of_squares(&[&value]))?;
        report_bandwidth(
            &format!("{} sum_of_squares of {vocabulary} x {width}", shape.name),
            t,
            vocabulary * width * 4,
        );
        Ok(())
    }
}

fn add_dw(x: &CudaTensor, dy: &CudaTensor, (dw, db): &mut (CudaTensor, CudaTensor)) -> CheckResult {
    linear_dw(x, dy, dw, Some(db))
}

fn add_norm_grads(
    x: &CudaTensor,
    by: &CudaNorm,
    dy: &CudaTensor,
    dx: &mut CudaTensor,
    (dscale, dshift): &mut (CudaTensor, CudaTensor),
) -> CheckResult {
    norm_backward(x, by, NormGradients { dy, dx, dscale, dshift: Some(dshift) })
}

/// Passes over prompts, thoughts and tails, in slots as the KV cache allocates them; and the number
/// of slots.
fn segments(
    cuda: &CudaDevice,
    shape: &KernelBenchShape,
) -> Result<(Vec<KernelBenchSegment>, usize), CudaError> {
    let &KernelBenchShape { sequences, prompt, thoughts, tail, .. } = shape;
    let room = (prompt + thoughts).next_multiple_of(16);
    let own = tail.next_multiple_of(16);
    let segment = |rows: Vec<(u32, u32)>, spans: Vec<Vec<(u32, u32)>>| {
        Ok::<_, CudaError>(KernelBenchSegment {
            rows: rows.len(),
            positions: CudaIndices::new(cuda, &rows.iter().map(|r| r.1).collect::<Vec<_>>())?,
            slots: CudaIndices::new(cuda, &rows.iter().map(|r| r.0).collect::<Vec<_>>())?,
            metadata: CudaAttentionMetadata::new(cuda, rows.len(), |r| spans[r].iter().copied())?,
        })
    };
    let each = |count: u32, at: &dyn Fn(u32, u32) -> (u32, u32)| {
        (0..sequences).flat_map(|q| (0..count).map(move |k| at(q, k))).collect::<Vec<_>>()
    };
    let spans = |count: u32, at: &dyn Fn(u32, u32) -> Vec<(u32, u32)>| {
        (0..sequences).flat_map(|q| (0..count).map(move |k| at(q, k))).collect::<Vec<_>>()
    };
    let mut all = vec![segment(
        each(prompt, &|q, k| (q * room + k, k)),
        spans(prompt, &|q, k| vec![(q * room, k + 1)]),
    )?];
    for t in 0..thoughts {
        let at = prompt + t;
        all.push(segment(
            each(1, &|q, _| (q * room + at, at)),
            spans(1, &|q, _| vec![(q * room, at + 1)]),
        )?);
    }
    let begun = sequences * room;
    let rows = each(tail, &|q, k| (begun + q * own + k, prompt + thoughts + k));
    all.push(segment(
        rows,
        spans(tail, &|q, k| vec![(q * room, prompt + thoughts), (begun + q * own, k + 1)]),
    )?);
    Ok((all, (begun + sequences * own) as usize))
}
