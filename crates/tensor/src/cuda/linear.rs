//! Linear maps on the GPU.

use super::array::Buffer;
use super::blas::{Epilogue, Pointers, Shape};
use super::context::{Grid, int, slots};
use super::{Array, Cuda, CudaError, Dtype};

/// A function that a linear map's result passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    None,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU with the error function.
    GeluErf,
}

/// Rows of weights are followed by rows of zeros up to a multiple of this, so that products over all of them, as of a
/// vocabulary of 50257, keep their results aligned.
pub(crate) const ROW_MULTIPLE: usize = 128;

/// The weights of a linear map `x W + b`, stored (outputs, inputs), in the GPU's operand format.
#[derive(Debug)]
pub(crate) struct Weights {
    inputs: usize,
    outputs: usize,
    matrix: Array,              // (outputs padded, inputs)
    bias: Option<Buffer>,       // (padded outputs) of f32, zeros beyond
    bias_low: Option<Buffer>,   // the same in bf16, for products that write bf16
    bias_exact: Option<Buffer>, // (outputs) of f32, for `add`
}

impl Weights {
    /// From a matrix stored (outputs, inputs), as `nn.Linear` and embedding tables are.
    pub(crate) fn from_output_major(
        cuda: &Cuda,
        (inputs, outputs): (usize, usize),
        matrix: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<Self, CudaError> {
        let staged = Array::from_host(cuda, outputs, inputs, matrix)?;
        let out = Array::zeros(cuda, outputs.next_multiple_of(ROW_MULTIPLE), inputs, cuda.operand())?;
        let count = outputs * inputs;
        let arguments = slots![staged.pointer(), Dtype::F32, out.pointer(), out.dtype(), 1.0f32, count as u64];
        // SAFETY: `scale` reads and writes the first `count` elements, which both have.
        unsafe { cuda.launch("scale", Grid::over(count.div_ceil(4)), arguments) }?;
        Self::with_bias(cuda, (inputs, outputs), out, bias)
    }

    /// From a matrix stored (inputs, outputs), as GPT-2's `Conv1D` is.
    pub(crate) fn from_input_major(
        cuda: &Cuda,
        (inputs, outputs): (usize, usize),
        matrix: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<Self, CudaError> {
        let staged = Array::from_host(cuda, inputs, outputs, matrix)?;
        let out = Array::zeros(cuda, outputs.next_multiple_of(ROW_MULTIPLE), inputs, cuda.operand())?;
        let grid = Grid { blocks: (outputs.div_ceil(32), inputs.div_ceil(32), 1), threads: 256, shared: 0 };
        let arguments = slots![staged.pointer(), out.pointer(), out.dtype(), int(inputs), int(outputs)];
        // SAFETY: `transpose` reads (inputs, outputs) and writes (outputs, inputs), which both have.
        unsafe { cuda.launch("transpose", grid, arguments) }?;
        Self::with_bias(cuda, (inputs, outputs), out, bias)
    }

    fn with_bias(cuda: &Cuda, (inputs, outputs): (usize, usize), matrix: Array, bias: Option<&[f32]>) -> Result<Self, CudaError> {
        assert!(bias.is_none_or(|b| b.len() == outputs), "linear: the bias is not {outputs} wide");
        let Some(bias) = bias else { return Ok(Self { inputs, outputs, matrix, bias: None, bias_low: None, bias_exact: None }) };
        let mut padded = bias.to_vec();
        padded.resize(matrix.rows(), 0.0);
        let low: Vec<half::bf16> = padded.iter().map(|&x| half::bf16::from_f32(x)).collect();
        Ok(Self {
            inputs,
            outputs,
            matrix,
            bias: Some(Buffer::upload(cuda, &padded)?),
            bias_low: Some(Buffer::upload(cuda, &low)?),
            bias_exact: Some(Buffer::upload(cuda, bias)?),
        })
    }

    /// The width of x.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// The width of the result.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// The bias (outputs) in f32, for `norm::Addend`.
    pub(crate) fn bias(&self) -> Option<&Buffer> {
        self.bias_exact.as_ref()
    }

    /// All rows, those of padding included: (>= outputs, inputs).
    pub(crate) fn matrix(&self) -> &Array {
        &self.matrix
    }

    pub(crate) fn padded_bias(&self) -> Option<&Buffer> {
        self.bias.as_ref()
    }

    fn cuda(&self) -> &Cuda {
        self.matrix.cuda()
    }
}

impl Array {
    /// This as an operand for `by`, if it is not one as it is.
    pub(crate) fn as_operand(&self, by: &Weights) -> Result<Option<Self>, CudaError> {
        if self.dtype() == by.matrix.dtype() { Ok(None) } else { self.cast(by.matrix.dtype()).map(Some) }
    }
}

/// `activation(x W + b)` in format `want`: x is (rows, inputs) in any format, the result (rows, outputs).
///
/// Bias and tanh-GELU are part of the product where cuBLASLt can (a bf16 GELU; an f32 one is computed more exactly than
/// its own), else a pass of their own.
pub(crate) fn linear(x: &Array, by: &Weights, activation: Activation, want: Dtype) -> Result<Array, CudaError> {
    run(x, by, true, activation, want)
}

/// `x W` in format `want`, without the bias.
pub(crate) fn product(x: &Array, by: &Weights, want: Dtype) -> Result<Array, CudaError> {
    run(x, by, false, Activation::None, want)
}

fn run(x: &Array, by: &Weights, with_bias: bool, activation: Activation, want: Dtype) -> Result<Array, CudaError> {
    assert_eq!(x.cols(), by.inputs, "linear: rows of {} into a map of {}", x.cols(), by.inputs);
    let out = Array::uninit(x.cuda(), x.rows(), by.outputs, want)?;
    let bias = match want {
        _ if !with_bias => None,
        Dtype::F32 => by.bias.as_ref(),
        Dtype::Bf16 => by.bias_low.as_ref(),
    };
    let shape = |epilogue| Shape {
        rows: x.rows(),
        inputs: by.inputs,
        outputs: by.outputs,
        stride: by.outputs,
        operand: by.matrix.dtype(),
        out: want,
        epilogue,
    };
    let fused = bias.is_some() && activation == Activation::GeluTanh && want == Dtype::Bf16;
    let wanted: &[Epilogue] = match bias {
        Some(_) if fused => &[Epilogue::BiasGelu, Epilogue::Bias, Epilogue::None],
        Some(_) => &[Epilogue::Bias, Epilogue::None],
        None => &[Epilogue::None],
    };
    let blas = by.cuda().blas();
    let epilogue = wanted.iter().copied().find(|&e| x.rows() == 0 || blas.can(shape(e))).unwrap_or(Epilogue::None);
    let cast = x.as_operand(by)?;
    let x = cast.as_ref().unwrap_or(x);
    let bias_at = bias.map_or(0, Buffer::pointer);
    let at = Pointers { x: x.pointer(), weights: by.matrix.pointer(), bias: bias_at, out: out.pointer() };
    // SAFETY: x is (rows, inputs) and the weights (>= outputs, inputs) in the operand format; out is (rows, outputs).
    unsafe { blas.product(x.cuda(), shape(epilogue), at) }?;
    let bias_left = by.bias.as_ref().filter(|_| with_bias && epilogue == Epilogue::None);
    let activation_left = if epilogue == Epilogue::BiasGelu { Activation::None } else { activation };
    if bias_left.is_some() || activation_left != Activation::None {
        finish(&out, bias_left, activation_left)?;
    }
    Ok(out)
}

fn finish(x: &Array, bias: Option<&Buffer>, activation: Activation) -> Result<(), CudaError> {
    let count = x.rows() * x.cols();
    let code = match activation {
        Activation::None => 0u32,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
    };
    let bias = bias.map_or(0, Buffer::pointer);
    let arguments = slots![x.pointer(), x.dtype(), bias, code, count as u64, int(x.cols())];
    // SAFETY: x has `count` elements in rows of its width, and the bias is at least as wide.
    unsafe { x.cuda().launch("bias_activation", Grid::over(count.div_ceil(4)), arguments) }
}
