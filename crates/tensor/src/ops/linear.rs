//! Linear maps with what follows them fused in: bias, activation, dropout, residual.

use super::{Activation, Format, Mask, Norm};
use crate::cpu::linear::{Epilogue, Packed, TILE_COLS, product};
use crate::cpu::math;
use crate::cuda::linear::Weights as DeviceWeights;
use crate::cuda::norm::Addend;
use crate::device::Kind;
use crate::rng::{Draw, drop_threshold, philox_lanes, site_word};
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// A linear map `x W + b`, its weights in the form that the device's kernels read.
#[derive(Debug)]
pub struct Linear(Weights);

#[derive(Debug)]
enum Weights {
    Cpu { packed: Packed, bias: Option<Vec<f32>> }, // bias: (outputs)
    Cuda(DeviceWeights),
}

impl Linear {
    /// From a matrix stored (outputs, inputs), as `nn.Linear` and embedding tables are.
    pub fn from_output_major(
        device: &Device,
        (inputs, outputs): (usize, usize),
        matrix: &[f32],
        bias: Option<Vec<f32>>,
    ) -> Result<Self, DeviceError> {
        check(inputs, outputs, matrix, bias.as_deref());
        Ok(Self(match device.kind() {
            Kind::Cpu(_) => Weights::Cpu { packed: Packed::new(inputs, outputs, |k, j| matrix[j * inputs + k]), bias },
            Kind::Cuda(cuda) => {
                Weights::Cuda(DeviceWeights::from_output_major(cuda, (inputs, outputs), matrix, bias.as_deref())?)
            }
        }))
    }

    /// From a matrix stored (inputs, outputs), as GPT-2's `Conv1D` is.
    pub fn from_input_major(
        device: &Device,
        (inputs, outputs): (usize, usize),
        matrix: &[f32],
        bias: Option<Vec<f32>>,
    ) -> Result<Self, DeviceError> {
        check(inputs, outputs, matrix, bias.as_deref());
        Ok(Self(match device.kind() {
            Kind::Cpu(_) => Weights::Cpu { packed: Packed::new(inputs, outputs, |k, j| matrix[k * outputs + j]), bias },
            Kind::Cuda(cuda) => Weights::Cuda(DeviceWeights::from_input_major(cuda, (inputs, outputs), matrix, bias.as_deref())?),
        }))
    }

    /// The width of x.
    pub fn inputs(&self) -> usize {
        match &self.0 {
            Weights::Cpu { packed, .. } => packed.inputs(),
            Weights::Cuda(weights) => weights.inputs(),
        }
    }

    /// The width of the result.
    pub fn outputs(&self) -> usize {
        match &self.0 {
            Weights::Cpu { packed, .. } => packed.outputs(),
            Weights::Cuda(weights) => weights.outputs(),
        }
    }

    /// Writes the weights of output `j`, in the order of the inputs.
    pub(crate) fn output_weights(&self, j: usize, out: &mut [f32]) {
        assert!(j < self.outputs() && out.len() == self.inputs(), "linear: no output {j} of {}", self.outputs());
        self.cpu().0.column(j, out);
    }

    pub(crate) fn cpu(&self) -> (&Packed, Option<&[f32]>) {
        match &self.0 {
            Weights::Cpu { packed, bias } => (packed, bias.as_deref()),
            Weights::Cuda(_) => panic!("these weights are on a gpu"),
        }
    }

    pub(crate) fn gpu(&self) -> &DeviceWeights {
        match &self.0 {
            Weights::Cuda(weights) => weights,
            Weights::Cpu { .. } => panic!("these weights are not on the gpu"),
        }
    }
}

fn check(inputs: usize, outputs: usize, matrix: &[f32], bias: Option<&[f32]>) {
    assert_eq!(matrix.len(), inputs * outputs, "linear: {} weights for {inputs} x {outputs}", matrix.len());
    assert!(bias.is_none_or(|b| b.len() == outputs), "linear: the bias is not {outputs} wide");
}

/// `out = activation(x W + b)`: x is (rows, inputs), out becomes (rows, outputs).
pub fn linear(
    device: &Device,
    x: &Tensor,
    map: &Linear,
    (activation, format): (Activation, Format),
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    assert_eq!(x.cols(), map.inputs(), "linear: rows of {} into a map of {}", x.cols(), map.inputs());
    match device.kind() {
        Kind::Cpu(cpu) => {
            out.reshape(x.rows(), map.outputs());
            let (packed, bias) = map.cpu();
            let store =
                Store { out: out.data_mut().as_mut_ptr(), cols: packed.outputs(), bias, finish: Finish::Write(activation) };
            product(cpu.isa, x.data(), packed, &store);
        }
        Kind::Cuda(cuda) => *out = cuda::linear::linear(x.array(), map.gpu(), activation.into(), format.on(cuda))?.into(),
    }
    Ok(())
}

/// `stream += dropout(x W + b)`, then `out = norm(stream)` as an operand: x is (rows, inputs), the stream and out are
/// (rows, outputs).
pub fn residual(
    device: &Device,
    x: &Tensor,
    map: &Linear,
    mask: Option<Mask<'_>>,
    stream: &mut Tensor,
    (norm, format, out): (&Norm, Format, &mut Tensor),
) -> Result<(), DeviceError> {
    let (rows, cols) = (x.rows(), map.outputs());
    assert_eq!(x.cols(), map.inputs(), "residual: rows of {} into a map of {}", x.cols(), map.inputs());
    assert_eq!((stream.rows(), stream.cols()), (rows, cols), "residual: the stream has another shape");
    if let Some(mask) = &mask {
        mask.check(rows, cols);
    }
    match device.kind() {
        Kind::Cpu(cpu) => {
            let (packed, bias) = map.cpu();
            let store = Store { out: stream.data_mut().as_mut_ptr(), cols, bias, finish: Finish::Residual(mask) };
            product(cpu.isa, x.data(), packed, &store);
            out.reshape(rows, cols);
            cpu::norm::norm(cpu.isa, stream, norm, out);
        }
        Kind::Cuda(cuda) => {
            let y = cuda::linear::product(x.array(), map.gpu(), cuda.operand())?;
            let addend = Addend { y: &y, bias: map.gpu().bias(), mask: mask.map(Mask::gpu) };
            *out = cuda::norm::add_norm(stream.array_mut()?, addend, norm.gpu(), format.on(cuda))?.into();
        }
    }
    Ok(())
}

/// What the processor's product does with its result.
#[derive(Clone, Copy)]
enum Finish<'a> {
    /// `out = activation(result)`
    Write(Activation),
    /// `out += dropout(result)`
    Residual(Option<Mask<'a>>),
}

struct Store<'a> {
    out: *mut f32, // (rows, cols)
    cols: usize,
    bias: Option<&'a [f32]>,
    finish: Finish<'a>,
}

// SAFETY: `product` never lets two calls at the same time write one element.
unsafe impl Sync for Store<'_> {}

impl Epilogue for Store<'_> {
    #[inline(always)]
    unsafe fn finish<const FUSED: bool>(&self, row: usize, col: usize, values: &mut [f32]) {
        // SAFETY: `linear` gave out the shape of the product, and each element is passed once.
        let out = unsafe { std::slice::from_raw_parts_mut(self.out.add(row * self.cols + col), values.len()) };
        if let Some(bias) = self.bias {
            values.iter_mut().zip(&bias[col..]).for_each(|(x, b)| *x += b);
        }
        match self.finish {
            Finish::Write(activation) => {
                match activation {
                    Activation::None => {}
                    Activation::GeluTanh => values.iter_mut().for_each(|x| *x = math::gelu_tanh::<FUSED>(*x)),
                    Activation::GeluErf => values.iter_mut().for_each(|x| *x = math::gelu_erf::<FUSED>(*x)),
                }
                out.copy_from_slice(values);
            }
            Finish::Residual(mask) => {
                match mask {
                    Some(Mask::Drawn { p, layer, site, draws }) => {
                        if let Some(draw) = &draws.rows()[row] {
                            drop_drawn(values, draw, site_word(layer, site), col, p);
                        }
                    }
                    Some(Mask::Recorded { p, keep }) => {
                        let keep = &keep.host()[row * self.cols + col..];
                        let scale = 1.0 / (1.0 - p);
                        values.iter_mut().zip(keep).for_each(|(x, &k)| *x = if k != 0 { *x * scale } else { 0.0 });
                    }
                    None => {}
                }
                out.iter_mut().zip(values).for_each(|(o, x)| *o += *x);
            }
        }
    }
}

/// Inverted dropout of columns `col ..` (a multiple of 4) of a row.
#[inline(always)]
fn drop_drawn(values: &mut [f32], draw: &Draw, site: u32, col: usize, p: f32) {
    const LANES: usize = TILE_COLS / 4;
    let (key, rest) = draw.words();
    let (threshold, scale) = (drop_threshold(p), 1.0 / (1.0 - p));
    let first = site | (col / 4) as u32;
    let words: [u32; LANES] = std::array::from_fn(|l| first + l as u32);
    let bits = philox_lanes(words, rest, key);
    for (x, &b) in values.iter_mut().zip(bits.as_flattened()) {
        *x = if b >= threshold { *x * scale } else { 0.0 };
    }
}
