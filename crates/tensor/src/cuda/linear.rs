//! Linear maps on the GPU.

use super::array::Buffer;
use super::blas::{Epilogue, Pointers, Product, Shape, Side};
use super::context::{Grid, int, slots};
use super::{Array, Cuda, CudaError, Dtype, product as hopper};

/// A function that a linear map's result passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    None,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU with the error function.
    GeluErf,
}

impl Activation {
    /// What kernels call it (activation.cu).
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::None => 0,
            Self::GeluTanh => 1,
            Self::GeluErf => 2,
        }
    }
}

/// Rows of weights are followed by rows of zeros up to a multiple of this, so that products over all of them, as of a
/// vocabulary of 50257, keep their results aligned.
pub(crate) const ROW_MULTIPLE: usize = 128;

/// The weights of a linear map `x W + b`, stored (outputs, inputs), in the GPU's operand format.
#[derive(Debug)]
pub(crate) struct Weights {
    inputs: usize,
    outputs: usize,
    matrix: Array,            // (outputs padded, inputs)
    bias: Option<Buffer>,     // (padded outputs) of f32, zeros beyond
    bias_low: Option<Buffer>, // the same in bf16, for products that write bf16
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
        convert(&staged, (out.pointer(), out.dtype()))?;
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
        let Some(bias) = bias else { return Ok(Self { inputs, outputs, matrix, bias: None, bias_low: None }) };
        let mut padded = bias.to_vec();
        padded.resize(matrix.rows(), 0.0);
        let low: Vec<half::bf16> = padded.iter().map(|&x| half::bf16::from_f32(x)).collect();
        Ok(Self {
            inputs,
            outputs,
            matrix,
            bias: Some(Buffer::upload(cuda, &padded)?),
            bias_low: Some(Buffer::upload(cuda, &low)?),
        })
    }

    /// Takes a matrix (outputs, inputs) and a bias (1, outputs) of f32 in the place of what there is.
    pub(crate) fn assign(&mut self, matrix: &Array, bias: Option<&Array>) -> Result<(), CudaError> {
        assert_eq!((matrix.rows(), matrix.cols()), (self.outputs, self.inputs), "assign: a map of another shape");
        convert(matrix, (self.matrix.pointer(), self.matrix.dtype()))?;
        assert_eq!(self.bias.is_some(), bias.is_some(), "assign: the map and what it takes differ in their bias");
        if let (Some(from), Some(exact), Some(low)) = (bias, &self.bias, &self.bias_low) {
            assert_eq!((from.rows(), from.cols()), (1, self.outputs), "assign: the bias is not {} wide", self.outputs);
            convert(from, (exact.pointer(), Dtype::F32))?;
            convert(from, (low.pointer(), Dtype::Bf16))?;
        }
        Ok(())
    }

    /// The width of x.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// The width of the result.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// All rows, those of padding included: (>= outputs, inputs).
    pub(crate) fn matrix(&self) -> &Array {
        &self.matrix
    }

    /// The bias in f32 (>= outputs).
    pub(crate) fn padded_bias(&self) -> Option<&Buffer> {
        self.bias.as_ref()
    }

    fn cuda(&self) -> &Cuda {
        self.matrix.cuda()
    }
}

/// Writes x in another format to memory that is at least as long.
fn convert(x: &Array, (to, dtype): (u64, Dtype)) -> Result<(), CudaError> {
    let count = x.rows() * x.cols();
    let arguments = slots![x.pointer(), x.dtype(), to, dtype, 1.0f32, count as u64];
    // SAFETY: `scale` reads and writes `count` elements, which x has, and the callers' memory too.
    unsafe { x.cuda().launch("scale", Grid::over(count.div_ceil(4)), arguments) }
}

impl Array {
    /// This in another format, if it is not in it already.
    pub(crate) fn in_format(&self, dtype: Dtype) -> Result<Option<Self>, CudaError> {
        if self.dtype() == dtype { Ok(None) } else { self.cast(dtype).map(Some) }
    }

    /// This as an operand for `by`, if it is not one as it is.
    pub(crate) fn as_operand(&self, by: &Weights) -> Result<Option<Self>, CudaError> {
        self.in_format(by.matrix.dtype())
    }
}

/// `activation(x W + b)` in format `want`: x is (rows, inputs) in any format, the result (rows, outputs).
///
/// Bias and tanh-GELU are part of the product where ours is used (`product.rs`) or cuBLASLt can (a bf16 GELU; an f32 one is
/// computed more exactly than its own), else a pass of their own.
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
    let cast = x.as_operand(by)?;
    let x = cast.as_ref().unwrap_or(x);
    if hopper::can_store(x, by, want) {
        let bias = by.bias.as_ref().filter(|_| with_bias);
        hopper::stored(x, by, (bias, activation == Activation::GeluTanh), &out)?;
        if activation == Activation::GeluErf {
            finish(&out, None, activation)?;
        }
        return Ok(out);
    }
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
    let (at, stride) = x.rows_at();
    let count = x.rows() * stride;
    let bias = bias.map_or(0, Buffer::pointer);
    let arguments = slots![at, x.dtype(), bias, activation.code(), count as u64, int(stride)];
    // SAFETY: x has `count` elements in rows of its stride, and the bias is at least as wide.
    unsafe { x.cuda().launch("bias_activation", Grid::over(count.div_ceil(4)), arguments) }
}

/// `x W + b` in f32 for the losses: (rows, outputs), apart so that rows of any width are aligned.
pub(crate) fn logits(x: &Array, by: &Weights) -> Result<Array, CudaError> {
    if apart(by.outputs) == by.outputs {
        return linear(x, by, Activation::None, Dtype::F32);
    }
    assert_eq!(x.cols(), by.inputs, "logits: rows of {} into a map of {}", x.cols(), by.inputs);
    let padded = by.matrix.rows();
    let out = Array::uninit_apart(x.cuda(), x.rows(), (by.outputs, padded), Dtype::F32)?;
    let cast = x.as_operand(by)?;
    let x = cast.as_ref().unwrap_or(x);
    let shape = Shape {
        rows: x.rows(),
        inputs: by.inputs,
        outputs: padded,
        stride: padded,
        operand: by.matrix.dtype(),
        out: Dtype::F32,
        epilogue: Epilogue::None,
    };
    let at = Pointers { x: x.pointer(), weights: by.matrix.pointer(), bias: 0, out: out.rows_at().0 };
    // SAFETY: the weights are (padded, inputs), zeros beyond the outputs, and out is (rows, padded).
    unsafe { by.cuda().blas().product(x.cuda(), shape, at) }?;
    if by.bias.is_some() {
        finish(&out, by.bias.as_ref(), Activation::None)?;
    }
    Ok(out)
}

/// Numbers from one row to the next, for rows of `cols` to be aligned: as many as weights have rows, unless it fits as it is.
pub(crate) fn apart(cols: usize) -> usize {
    if cols.is_multiple_of(8) { cols } else { cols.next_multiple_of(ROW_MULTIPLE) }
}

/// `dy W^T` in format `want`: dy is (rows, outputs) in any format, the result (rows, inputs).
pub(crate) fn linear_dx(dy: &Array, by: &Weights, want: Dtype) -> Result<Array, CudaError> {
    assert_eq!(dy.cols(), by.outputs, "linear_dx: rows of {} from a map to {}", dy.cols(), by.outputs);
    let out = Array::uninit(dy.cuda(), dy.rows(), by.inputs, want)?;
    let cast = dy.as_operand(by)?;
    let (from, stride) = cast.as_ref().unwrap_or(dy).rows_at();
    // Zeros between rows meet the weights' rows of zeros.
    let summed = if stride == by.matrix.rows() { stride } else { by.outputs };
    let shape = Shape {
        rows: dy.rows(),
        inputs: summed,
        outputs: by.inputs,
        stride: by.inputs,
        operand: by.matrix.dtype(),
        out: want,
        epilogue: Epilogue::None,
    };
    let (x, weights) = (Side { turned: false, stride }, Side { turned: true, stride: by.inputs });
    let at = Pointers { x: from, weights: by.matrix.pointer(), bias: 0, out: out.pointer() };
    // SAFETY: dy is (rows, summed) with its stride, the weights (>= summed, inputs), out (rows, inputs).
    unsafe { by.cuda().blas().product(dy.cuda(), Product { shape, x, weights, adds: false }, at) }?;
    Ok(out)
}

/// `dw += dy^T x`, `db += sum of dy's rows`: x (rows, inputs) and dy (rows, outputs) in any format, dw (outputs, inputs) and
/// db (1, outputs) f32.
pub(crate) fn linear_dw(x: &Array, dy: &Array, dw: &mut Array, db: Option<&mut Array>) -> Result<(), CudaError> {
    assert_eq!(x.rows(), dy.rows(), "linear_dw: {} rows of inputs, {} of gradients", x.rows(), dy.rows());
    assert_eq!((dw.rows(), dw.cols(), dw.dtype()), (dy.cols(), x.cols(), Dtype::F32), "linear_dw: weights of another shape");
    if x.rows() == 0 {
        return Ok(());
    }
    let operand = x.cuda().operand();
    let (cast_x, cast_dy) = (x.in_format(operand)?, dy.in_format(operand)?);
    let ((x_at, x_stride), (dy_at, dy_stride)) =
        (cast_x.as_ref().unwrap_or(x).rows_at(), cast_dy.as_ref().unwrap_or(dy).rows_at());
    let shape = Shape {
        rows: dy.cols(),
        inputs: x.rows(),
        outputs: x.cols(),
        stride: x.cols(),
        operand,
        out: Dtype::F32,
        epilogue: Epilogue::None,
    };
    let sides = (Side { turned: true, stride: dy_stride }, Side { turned: true, stride: x_stride });
    let at = Pointers { x: dy_at, weights: x_at, bias: 0, out: dw.pointer() };
    let product = Product { shape, x: sides.0, weights: sides.1, adds: true };
    // SAFETY: both operands have as many rows as are summed, dw is (outputs, inputs).
    unsafe { x.cuda().blas().product(x.cuda(), product, at) }?;
    db.map_or(Ok(()), |db| column_sums(dy, db))
}

/// Blocks that keep a GPU busy.
const BLOCKS: usize = 1024;

/// `to += the sum of x's rows`; to is (1, cols) of f32.
fn column_sums(x: &Array, to: &mut Array) -> Result<(), CudaError> {
    assert_eq!((to.rows(), to.cols(), to.dtype()), (1, x.cols(), Dtype::F32), "column sums: of {} columns", x.cols());
    let (at, stride) = x.rows_at();
    let wide = x.cols().div_ceil(128);
    let grid = Grid { blocks: (wide, x.rows().div_ceil(32).clamp(1, BLOCKS.div_ceil(wide)), 1), threads: 256, shared: 0 };
    let arguments = slots![at, x.dtype(), int(stride), int(x.rows()), int(x.cols()), to.pointer()];
    // SAFETY: x is (rows, cols) with its stride, to (cols).
    unsafe { x.cuda().launch("column_sums", grid, arguments) }
}
