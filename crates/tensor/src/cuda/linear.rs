//! Linear maps on the GPU.

use super::blas::{BlasEpilogue, Gemm, GemmOperand, GemmPointers, GemmShape};
use super::context::{LaunchConfig, int, kernel_args};
use super::memory::DeviceBuffer;
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor, hopper_gemm as hopper};
use crate::params::Activation;

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

/// Rows of weights are followed by rows of zeros up to a multiple of this, so that products over
/// all of them, as of a vocabulary of 50257, keep their results aligned.
pub(crate) const ROW_ALIGNMENT: usize = 128;

/// The weights of a linear map `x W + b`, stored (outputs, inputs), in the GPU's operand format.
#[derive(Debug)]
pub(crate) struct CudaLinear {
    inputs: usize,
    outputs: usize,
    matrix: CudaTensor,              // (outputs padded, inputs)
    bias: Option<DeviceBuffer>,      // (padded outputs) of f32, zeros beyond
    bias_bf16: Option<DeviceBuffer>, // the same in bf16, for products that write bf16
}

impl CudaLinear {
    /// From a matrix stored (outputs, inputs), as `nn.Linear` and embedding tables are.
    pub(crate) fn from_output_major(
        cuda: &CudaDevice,
        (inputs, outputs): (usize, usize),
        matrix: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<Self, CudaError> {
        let staged = CudaTensor::from_host(cuda, outputs, inputs, matrix)?;
        let out = CudaTensor::zeros(
            cuda,
            outputs.next_multiple_of(ROW_ALIGNMENT),
            inputs,
            cuda.compute_dtype(),
        )?;
        cast_into(&staged, (out.pointer(), out.dtype()))?;
        Self::with_bias(cuda, (inputs, outputs), out, bias)
    }

    /// From a matrix stored (inputs, outputs), as GPT-2's `Conv1D` is.
    pub(crate) fn from_input_major(
        cuda: &CudaDevice,
        (inputs, outputs): (usize, usize),
        matrix: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<Self, CudaError> {
        let staged = CudaTensor::from_host(cuda, inputs, outputs, matrix)?;
        let out = CudaTensor::zeros(
            cuda,
            outputs.next_multiple_of(ROW_ALIGNMENT),
            inputs,
            cuda.compute_dtype(),
        )?;
        let grid = LaunchConfig {
            blocks: (outputs.div_ceil(32), inputs.div_ceil(32), 1),
            threads: 256,
            shared_bytes: 0,
        };
        let arguments =
            kernel_args![staged.pointer(), out.pointer(), out.dtype(), int(inputs), int(outputs)];
        // SAFETY: `transpose` reads (inputs, outputs) and writes (outputs, inputs), which both
        // have.
        unsafe { cuda.launch("transpose", grid, arguments) }?;
        Self::with_bias(cuda, (inputs, outputs), out, bias)
    }

    fn with_bias(
        cuda: &CudaDevice,
        (inputs, outputs): (usize, usize),
        matrix: CudaTensor,
        bias: Option<&[f32]>,
    ) -> Result<Self, CudaError> {
        assert!(bias.is_none_or(|b| b.len() == outputs), "linear: the bias is not {outputs} wide");
        let Some(bias) = bias else {
            return Ok(Self { inputs, outputs, matrix, bias: None, bias_bf16: None });
        };
        let mut padded = bias.to_vec();
        padded.resize(matrix.rows(), 0.0);
        let low: Vec<half::bf16> = padded.iter().map(|&x| half::bf16::from_f32(x)).collect();
        Ok(Self {
            inputs,
            outputs,
            matrix,
            bias: Some(DeviceBuffer::upload(cuda, &padded)?),
            bias_bf16: Some(DeviceBuffer::upload(cuda, &low)?),
        })
    }

    /// Takes a matrix (outputs, inputs) and a bias (1, outputs) of f32 in the place of what there
    /// is.
    pub(crate) fn assign(
        &mut self,
        matrix: &CudaTensor,
        bias: Option<&CudaTensor>,
    ) -> Result<(), CudaError> {
        assert_eq!(
            (matrix.rows(), matrix.cols()),
            (self.outputs, self.inputs),
            "assign: a map of another shape"
        );
        cast_into(matrix, (self.matrix.pointer(), self.matrix.dtype()))?;
        assert_eq!(
            self.bias.is_some(),
            bias.is_some(),
            "assign: the map and what it takes differ in their bias"
        );
        if let (Some(from), Some(exact), Some(low)) = (bias, &self.bias, &self.bias_bf16) {
            assert_eq!(
                (from.rows(), from.cols()),
                (1, self.outputs),
                "assign: the bias is not {} wide",
                self.outputs
            );
            cast_into(from, (exact.pointer(), CudaDtype::F32))?;
            cast_into(from, (low.pointer(), CudaDtype::Bf16))?;
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
    pub(crate) fn matrix(&self) -> &CudaTensor {
        &self.matrix
    }

    /// The bias in f32 (>= outputs).
    pub(crate) fn padded_bias(&self) -> Option<&DeviceBuffer> {
        self.bias.as_ref()
    }

    fn cuda(&self) -> &CudaDevice {
        self.matrix.cuda()
    }
}

/// Writes x in another format to memory that is at least as long.
fn cast_into(x: &CudaTensor, (to, dtype): (u64, CudaDtype)) -> Result<(), CudaError> {
    let count = x.rows() * x.cols();
    let arguments = kernel_args![x.pointer(), x.dtype(), to, dtype, 1.0f32, count as u64];
    // SAFETY: `scale` reads and writes `count` elements, which x has, and the callers' memory too.
    unsafe { x.cuda().launch("scale", LaunchConfig::for_threads(count.div_ceil(4)), arguments) }
}

impl CudaTensor {
    /// This in another format, if it is not in it already.
    pub(crate) fn cast_if_needed(&self, dtype: CudaDtype) -> Result<Option<Self>, CudaError> {
        if self.dtype() == dtype { Ok(None) } else { self.cast(dtype).map(Some) }
    }

    /// This as an operand for `by`, if it is not one as it is.
    pub(crate) fn cast_operand(&self, by: &CudaLinear) -> Result<Option<Self>, CudaError> {
        self.cast_if_needed(by.matrix.dtype())
    }
}

/// `activation(x W + b)` in format `want`: x is (rows, inputs) in any format, the result (rows,
/// outputs).
///
/// Bias and tanh-GELU are part of the product where ours is used (`product.rs`) or cuBLASLt can (a
/// bf16 GELU; an f32 one is computed more exactly than its own), else a pass of their own.
pub(crate) fn linear(
    x: &CudaTensor,
    by: &CudaLinear,
    activation: Activation,
    want: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    matmul_bias_activation(x, by, true, activation, want)
}

/// `x W` in format `want`, without the bias.
pub(crate) fn matmul(
    x: &CudaTensor,
    by: &CudaLinear,
    want: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    matmul_bias_activation(x, by, false, Activation::None, want)
}

fn matmul_bias_activation(
    x: &CudaTensor,
    by: &CudaLinear,
    with_bias: bool,
    activation: Activation,
    want: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    assert_eq!(x.cols(), by.inputs, "linear: rows of {} into a map of {}", x.cols(), by.inputs);
    let out = CudaTensor::uninit(x.cuda(), x.rows(), by.outputs, want)?;
    let cast = x.cast_operand(by)?;
    let x = cast.as_ref().unwrap_or(x);
    if hopper::supports_store(x, by, want) {
        let bias = by.bias.as_ref().filter(|_| with_bias);
        hopper::store(x, by, (bias, activation == Activation::GeluTanh), &out)?;
        if activation == Activation::GeluErf {
            bias_activation(&out, None, activation)?;
        }
        return Ok(out);
    }
    let bias = match want {
        _ if !with_bias => None,
        CudaDtype::F32 => by.bias.as_ref(),
        CudaDtype::Bf16 => by.bias_bf16.as_ref(),
    };
    let shape = |epilogue| GemmShape {
        rows: x.rows(),
        inputs: by.inputs,
        outputs: by.outputs,
        stride: by.outputs,
        operand: by.matrix.dtype(),
        out: want,
        epilogue,
    };
    let fused = bias.is_some() && activation == Activation::GeluTanh && want == CudaDtype::Bf16;
    let wanted: &[BlasEpilogue] = match bias {
        Some(_) if fused => &[BlasEpilogue::BiasGelu, BlasEpilogue::Bias, BlasEpilogue::None],
        Some(_) => &[BlasEpilogue::Bias, BlasEpilogue::None],
        None => &[BlasEpilogue::None],
    };
    let blas = by.cuda().blas();
    let epilogue = wanted
        .iter()
        .copied()
        .find(|&e| x.rows() == 0 || blas.supports(shape(e)))
        .unwrap_or(BlasEpilogue::None);
    let bias_at = bias.map_or(0, DeviceBuffer::pointer);
    let at = GemmPointers {
        x: x.pointer(),
        weights: by.matrix.pointer(),
        bias: bias_at,
        out: out.pointer(),
    };
    // SAFETY: x is (rows, inputs) and the weights (>= outputs, inputs) in the operand format; out
    // is (rows, outputs).
    unsafe { blas.gemm(x.cuda(), shape(epilogue), at) }?;
    let bias_left = by.bias.as_ref().filter(|_| with_bias && epilogue == BlasEpilogue::None);
    let activation_left =
        if epilogue == BlasEpilogue::BiasGelu { Activation::None } else { activation };
    if bias_left.is_some() || activation_left != Activation::None {
        bias_activation(&out, bias_left, activation_left)?;
    }
    Ok(out)
}

fn bias_activation(
    x: &CudaTensor,
    bias: Option<&DeviceBuffer>,
    activation: Activation,
) -> Result<(), CudaError> {
    let (at, stride) = x.ptr_and_stride();
    let count = x.rows() * stride;
    let bias = bias.map_or(0, DeviceBuffer::pointer);
    let arguments = kernel_args![at, x.dtype(), bias, activation.code(), count as u64, int(stride)];
    // SAFETY: x has `count` elements in rows of its stride, and the bias is at least as wide.
    unsafe {
        x.cuda().launch("bias_activation", LaunchConfig::for_threads(count.div_ceil(4)), arguments)
    }
}

/// `x W + b` in f32 for the losses: (rows, outputs), apart so that rows of any width are aligned.
pub(crate) fn logits(x: &CudaTensor, by: &CudaLinear) -> Result<CudaTensor, CudaError> {
    if padded_stride(by.outputs) == by.outputs {
        return linear(x, by, Activation::None, CudaDtype::F32);
    }
    assert_eq!(x.cols(), by.inputs, "logits: rows of {} into a map of {}", x.cols(), by.inputs);
    let padded = by.matrix.rows();
    let out = CudaTensor::uninit_strided(x.cuda(), x.rows(), (by.outputs, padded), CudaDtype::F32)?;
    let cast = x.cast_operand(by)?;
    let x = cast.as_ref().unwrap_or(x);
    let shape = GemmShape {
        rows: x.rows(),
        inputs: by.inputs,
        outputs: padded,
        stride: padded,
        operand: by.matrix.dtype(),
        out: CudaDtype::F32,
        epilogue: BlasEpilogue::None,
    };
    let at = GemmPointers {
        x: x.pointer(),
        weights: by.matrix.pointer(),
        bias: 0,
        out: out.ptr_and_stride().0,
    };
    // SAFETY: the weights are (padded, inputs), zeros beyond the outputs, and out is (rows,
    // padded).
    unsafe { by.cuda().blas().gemm(x.cuda(), shape, at) }?;
    if by.bias.is_some() {
        bias_activation(&out, by.bias.as_ref(), Activation::None)?;
    }
    Ok(out)
}

/// Numbers from one row to the next, for rows of `cols` to be aligned: as many as weights have
/// rows, unless it fits as it is.
pub(crate) fn padded_stride(cols: usize) -> usize {
    if cols.is_multiple_of(8) { cols } else { cols.next_multiple_of(ROW_ALIGNMENT) }
}

/// `dy W^T` in format `want`: dy is (rows, outputs) in any format, the result (rows, inputs).
pub(crate) fn linear_dx(
    dy: &CudaTensor,
    by: &CudaLinear,
    want: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    assert_eq!(
        dy.cols(),
        by.outputs,
        "linear_dx: rows of {} from a map to {}",
        dy.cols(),
        by.outputs
    );
    let out = CudaTensor::uninit(dy.cuda(), dy.rows(), by.inputs, want)?;
    let cast = dy.cast_operand(by)?;
    let (from, stride) = cast.as_ref().unwrap_or(dy).ptr_and_stride();
    // Zeros between rows meet the weights' rows of zeros.
    let summed = if stride == by.matrix.rows() { stride } else { by.outputs };
    let shape = GemmShape {
        rows: dy.rows(),
        inputs: summed,
        outputs: by.inputs,
        stride: by.inputs,
        operand: by.matrix.dtype(),
        out: want,
        epilogue: BlasEpilogue::None,
    };
    let (x, weights) = (
        GemmOperand { transposed: false, stride },
        GemmOperand { transposed: true, stride: by.inputs },
    );
    let at = GemmPointers { x: from, weights: by.matrix.pointer(), bias: 0, out: out.pointer() };
    // SAFETY: dy is (rows, summed) with its stride, the weights (>= summed, inputs), out (rows,
    // inputs).
    unsafe { by.cuda().blas().gemm(dy.cuda(), Gemm { shape, x, weights, accumulate: false }, at) }?;
    Ok(out)
}

/// `dw += dy^T x`, `db += sum of dy's rows`: x (rows, inputs) and dy (rows, outputs) in any format,
/// dw (outputs, inputs) and db (1, outputs) f32.
pub(crate) fn linear_dw(
    x: &CudaTensor,
    dy: &CudaTensor,
    dw: &mut CudaTensor,
    db: Option<&mut CudaTensor>,
) -> Result<(), CudaError> {
    assert_eq!(
        x.rows(),
        dy.rows(),
        "linear_dw: {} rows of inputs, {} of gradients",
        x.rows(),
        dy.rows()
    );
    assert_eq!(
        (dw.rows(), dw.cols(), dw.dtype()),
        (dy.cols(), x.cols(), CudaDtype::F32),
        "linear_dw: weights of another shape"
    );
    if x.rows() == 0 {
        return Ok(());
    }
    let operand = x.cuda().compute_dtype();
    let (cast_x, cast_dy) = (x.cast_if_needed(operand)?, dy.cast_if_needed(operand)?);
    let ((x_at, x_stride), (dy_at, dy_stride)) = (
        cast_x.as_ref().unwrap_or(x).ptr_and_stride(),
        cast_dy.as_ref().unwrap_or(dy).ptr_and_stride(),
    );
    let shape = GemmShape {
        rows: dy.cols(),
        inputs: x.rows(),
        outputs: x.cols(),
        stride: x.cols(),
        operand,
        out: CudaDtype::F32,
        epilogue: BlasEpilogue::None,
    };
    let sides = (
        GemmOperand { transposed: true, stride: dy_stride },
        GemmOperand { transposed: true, stride: x_stride },
    );
    let at = GemmPointers { x: dy_at, weights: x_at, bias: 0, out: dw.pointer() };
    let product = Gemm { shape, x: sides.0, weights: sides.1, accumulate: true };
    // SAFETY: both operands have as many rows as are summed, dw is (outputs, inputs).
    unsafe { x.cuda().blas().gemm(x.cuda(), product, at) }?;
    db.map_or(Ok(()), |db| column_sums(dy, db))
}

/// Blocks that keep a GPU busy.
const FULL_GRID: usize = 1024;

/// `to += the sum of x's rows`; to is (1, cols) of f32.
fn column_sums(x: &CudaTensor, to: &mut CudaTensor) -> Result<(), CudaError> {
    assert_eq!(
        (to.rows(), to.cols(), to.dtype()),
        (1, x.cols(), CudaDtype::F32),
        "column sums: of {} columns",
        x.cols()
    );
    let (at, stride) = x.ptr_and_stride();
    let wide = x.cols().div_ceil(128);
    let grid = LaunchConfig {
        blocks: (wide, x.rows().div_ceil(32).clamp(1, FULL_GRID.div_ceil(wide)), 1),
        threads: 256,
        shared_bytes: 0,
    };
    let arguments =
        kernel_args![at, x.dtype(), int(stride), int(x.rows()), int(x.cols()), to.pointer()];
    // SAFETY: x is (rows, cols) with its stride, to (cols).
    unsafe { x.cuda().launch("column_sums", grid, arguments) }
}
