//! The operations of a decoder's block on a device of precision fp8: compared with the CPU in f32,
//! and checked for batch invariance. Individual kernels are checked in `cuda/fp8_checks`.

use std::ops::Range;

use super::deterministic::{Misses, ROWS, weights};
use super::*;
use crate::{CudaError, DeviceError, peak_flops};

/// A device of precision fp8, if there is a GPU that supports it.
fn fp8_device(deterministic: bool) -> Option<Device> {
    if let Err(why) = Device::cuda_availability() {
        println!("skipped on a gpu: {why}");
        return None;
    }
    match Device::cuda_with(0, Precision::Fp8, deterministic) {
        Err(why @ DeviceError::Cuda(CudaError::NoFp8 { .. })) => {
            println!("skipped on this gpu: {why}");
            None
        }
        opened => Some(opened.unwrap()),
    }
}

/// A block's maps and norms on a device.
struct TestBlock {
    heads: usize,
    dim: usize,
    norms: [Normalization; 3], // before attention, before the MLP, after it
    maps: [Linear; 4],         // QKV, attention's output, MLP up and down
    gated: bool,
}

impl TestBlock {
    fn new(device: &Device, width: usize, inner: usize, gated: bool) -> Self {
        let dim = 64;
        let norm = |salt| match gated {
            true => Normalization::rms(device, 1e-6, numbers(width, salt)),
            false => {
                Normalization::layer(device, 1e-5, numbers(width, salt), numbers(width, salt + 9))
            }
        };
        let map = |inputs: usize, outputs: usize, salt| {
            let w = weights(outputs, inputs, salt);
            let bias = numbers(outputs, salt + 9);
            Linear::from_output_major(device, inputs, outputs, &w, (!gated).then_some(bias))
                .unwrap()
        };
        let up = if gated { 2 * inner } else { inner };
        Self {
            heads: width / dim,
            dim,
            norms: [51, 52, 53].map(|salt| norm(salt).unwrap()),
            maps: [
                map(width, 3 * width, 61),
                map(width, width, 62),
                map(width, up, 63),
                map(inner, width, 64),
            ],
            gated,
        }
    }

    /// The stream and its last norm, concatenated, for rows that attend only to themselves; some
    /// have dropout.
    fn run(&self, device: &Device, x: &Tensor, first: usize) -> Result<Tensor, DeviceError> {
        let heads = self.heads;
        let dim = self.dim;
        let rows = x.rows();
        let none = Activation::None;
        let operand = OutputDtype::Operand;
        let [mut normed, mut qkv, mut attended, mut gates, mut inner] =
            [(); 5].map(|()| Tensor::default());
        let x = upload(device, x);
        let mut stream = add_positions_norm(device, x, None, &self.norms[0], operand, &mut normed)?;
        let mut kv = KvStore::new(device, 1, heads, dim, rows)?;
        let slots = slot_mapping(device, vec![0; rows], (0..rows as u32).rev().collect());
        let transform = QkvTransform { heads, qk_norms: None, rope: None };
        let projection = QkvProjection { map: &self.maps[0], transform };
        let part = QkvRows { x: &normed, slot_mapping: &slots, qkv: &mut qkv };
        project_qkv(device, vec![part], projection, kv.layer_mut(0))?;
        let spans: Vec<_> = (0..rows as u32).rev().map(|slot| vec![(slot, 1)]).collect();
        attention(device, &qkv, kv.layer(0), heads, &metadata(device, &spans), &mut attended)?;
        let key = |r: usize| {
            let trajectory = (first + r) as u32;
            let key = RngKey { seed: 3, question: 1, trajectory, position: 80 };
            (!trajectory.is_multiple_of(3)).then_some(key)
        };
        let perturbed = dropout_rows(device, &(0..rows).map(key).collect::<Vec<_>>(), 0.25);
        let mask = |site| Some(DropoutMask::Sampled { layer: 0, site, rows: &perturbed });
        let map = &self.maps[1];
        let norm = &self.norms[1];
        let mask_of = mask(Site::AttnOut);
        let of = LinearResidualNorm { x: &attended, map, mask: mask_of, norm, dtype: operand };
        linear_residual_norm(device, of, &mut stream, &mut normed)?;
        if self.gated {
            linear(device, &normed, &self.maps[2], none, OutputDtype::Compute, &mut gates)?;
            swiglu(device, &gates, &mut inner)?;
        } else {
            linear(device, &normed, &self.maps[2], Activation::GeluTanh, operand, &mut inner)?;
        }
        let map = &self.maps[3];
        let norm = &self.norms[2];
        let mask = mask(Site::MlpOut);
        let dtype = OutputDtype::F32;
        let of = LinearResidualNorm { x: &inner, map, mask, norm, dtype };
        linear_residual_norm(device, of, &mut stream, &mut normed)?;
        let stream = stream.to_host()?;
        let normed = normed.to_host()?;
        let both = |r| stream.row(r).iter().chain(normed.row(r)).copied();
        Ok(Tensor::from_vec(rows, 2 * stream.cols(), (0..rows).flat_map(both).collect()))
    }
}

/// Widths, inner widths, gated: GPT-2's shape, one whose attention output is rounded to e4m3, one
/// with SwiGLU, and one whose rows are not whole groups.
const SHAPES: [(usize, usize, bool); 4] =
    [(768, 3072, false), (1024, 1536, true), (256, 1024, false), (192, 328, false)];

/// Two factors with 3-bit significands give a root-mean-square error of 3.7% of a product; a block
/// adds a few of them to its stream.
#[test]
fn a_block_in_fp8_is_near_the_block_in_f32() {
    let cpu = Device::cpu(None).unwrap();
    // A deterministic device has fused kernels for any number of rows.
    for deterministic in [false, true] {
        let Some(device) = fp8_device(deterministic) else { return };
        for (width, inner, gated) in SHAPES {
            let x = matrix(70, width, 71);
            let run = |on: &Device| TestBlock::new(on, width, inner, gated).run(on, &x, 0).unwrap();
            let found = run(&device);
            let exact = cpu.run(|| run(&cpu));
            let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>();
            let mut errors = found.data().iter().zip(exact.data()).map(|(a, b)| a - b);
            let error = (squares(&mut errors) / squares(&mut exact.data().iter().copied())).sqrt();
            println!("a block of {width} and {inner}, gated {gated}: error {error:.1e}");
            assert!(error < 6e-2, "{width} and {inner}, gated {gated}: error {error}");
        }
    }
}

#[test]
fn a_row_of_a_block_in_fp8_is_the_row_alone() {
    let Some(device) = fp8_device(true) else { return };
    let mut misses = Misses::default();
    for (width, inner, gated) in SHAPES {
        let block = TestBlock::new(&device, width, inner, gated);
        let x = matrix(ROWS, width, 72);
        misses.check(&device, &format!("a block of {width} and {inner}"), |rows: Range<usize>| {
            block.run(&device, &x.select(rows.clone()), rows.start)
        });
        let head = Linear::from_output_major(&device, width, 5003, &weights(5003, width, 73), None);
        let head = head.unwrap();
        misses.check(&device, &format!("greedy tokens of {width}"), |rows: Range<usize>| {
            let x = upload(&device, &x.select(rows.clone()));
            let tokens = greedy_tokens(&device, &x, &head)?;
            let data = tokens.iter().flat_map(|t| [t.token as f32, t.logprob]).collect();
            Ok(Tensor::from_vec(rows.len(), 2, data))
        });
    }
    misses.none();
}

#[test]
fn its_peak_is_measured_in_fp8() {
    let Some(device) = fp8_device(false) else { return };
    let peak = peak_flops(&device).unwrap();
    println!("8192-cubed in fp8: {:.0} TFLOP/s", peak / 1e12);
    assert!(peak > 0.0);
}

#[test]
fn the_processor_refuses_fp8_and_names_what_has_it() {
    let error = Device::cpu_in(None, Isa::detect(), Precision::Fp8).unwrap_err().to_string();
    assert!(error.contains("does not support fp8"), "{error}");
    assert!(error.contains("compute capability 9.0"), "{error}");
}
