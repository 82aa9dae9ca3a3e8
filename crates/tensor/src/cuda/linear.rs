//! Linear maps: the choice between the Hopper GEMM and cuBLASLt, and their gradients.
//!
//! On a deterministic device the choice depends on the map and the result's dtype, never on the
//! rows.

use super::blas::{BlasEpilogue, Gemm, GemmOperand, GemmPointers, GemmShape};
use super::context::{LaunchConfig, int, kernel_args};
use super::fp8::{self, Fp8Weights};
use super::memory::DeviceBuffer;
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor, Precision, hopper_gemm};
use crate::params::Activation;

impl Activation {
    /// The activation's code in activation.cu.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::None => 0,
            Self::GeluTanh => 1,
            Self::GeluErf => 2,
        }
    }
}

/// Weights are padded with rows of zeros to a multiple of this, so that a GEMM over all of them,
/// e.g. for a vocabulary of 50257, writes aligned rows.
pub(crate) const ROW_ALIGNMENT: usize = 128;

/// The weights of a linear map `x W + b`, stored (outputs, inputs) in the compute dtype.
#[derive(Debug)]
pub(crate) struct CudaLinear {
    inputs: usize,
    outputs: usize,
    matrix: CudaTensor, // (padded outputs, inputs), zeros beyond the outputs
    bias: Option<DeviceBuffer>, // (padded outputs) of f32, zeros beyond the outputs
    bias_bf16: Option<DeviceBuffer>, // the same as bf16, for cuBLASLt's epilogue
    fp8: Option<Box<Fp8Weights>>, // the same as e4m3, on a device of precision fp8
    is_constant: bool,  // never assigned
}

impl CudaLinear {
    /// From a matrix stored (outputs, inputs), as in `nn.Linear` and embedding tables.
    pub(crate) fn from_output_major(
        cuda: &CudaDevice,
        inputs: usize,
        outputs: usize,
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
        cast_into(&staged, out.pointer(), out.dtype())?;
        Self::with_bias(out, outputs, bias)
    }

    /// From a matrix stored (inputs, outputs), as in GPT-2's `Conv1D`.
    pub(crate) fn from_input_major(
        cuda: &CudaDevice,
        inputs: usize,
        outputs: usize,
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
        let config = LaunchConfig {
            blocks: (outputs.div_ceil(32), inputs.div_ceil(32), 1),
            threads: 256,
            shared_bytes: 0,
        };
        let arguments =
            kernel_args![staged.pointer(), out.pointer(), out.dtype(), int(inputs), int(outputs)];
        // SAFETY: `transpose` reads (inputs, outputs) and writes (outputs, inputs).
        unsafe { cuda.launch("transpose", config, arguments) }?;
        Self::with_bias(out, outputs, bias)
    }

    fn with_bias(
        matrix: CudaTensor,
        outputs: usize,
        bias: Option<&[f32]>,
    ) -> Result<Self, CudaError> {
        let cuda = &matrix.cuda().clone();
        let inputs = matrix.cols();
        assert!(bias.is_none_or(|b| b.len() == outputs), "linear: the bias is not {outputs} wide");
        let fp8 = match cuda.precision() {
            Precision::Fp8 => Fp8Weights::new(&matrix, bias)?.map(Box::new),
            _ => None,
        };
        let mut map =
            Self { inputs, outputs, matrix, bias: None, bias_bf16: None, fp8, is_constant: true };
        if let Some(bias) = bias {
            let mut padded = bias.to_vec();
            padded.resize(map.matrix.rows(), 0.0);
            let bf16: Vec<half::bf16> = padded.iter().map(|&x| half::bf16::from_f32(x)).collect();
            map.bias = Some(DeviceBuffer::upload(cuda, &padded)?);
            map.bias_bf16 = Some(DeviceBuffer::upload(cuda, &bf16)?);
        }
        // The next kernel may read constant weights early.
        cuda.synchronize()?;
        Ok(map)
    }

    /// Replaces the weights by a matrix (outputs, inputs) and a bias (1, outputs) of f32.
    pub(crate) fn assign(
        &mut self,
        matrix: &CudaTensor,
        bias: Option<&CudaTensor>,
    ) -> Result<(), CudaError> {
        assert!(self.fp8.is_none(), "assign: fp8 weights cannot be trained");
        self.is_constant = false;
        assert_eq!(
            (matrix.rows(), matrix.cols()),
            (self.outputs, self.inputs),
            "assign: a matrix of another shape"
        );
        cast_into(matrix, self.matrix.pointer(), self.matrix.dtype())?;
        assert_eq!(self.bias.is_some(), bias.is_some(), "assign: a bias on one side");
        if let (Some(from), Some(exact), Some(bf16)) = (bias, &self.bias, &self.bias_bf16) {
            assert_eq!(
                (from.rows(), from.cols()),
                (1, self.outputs),
                "assign: the bias is not {} wide",
                self.outputs
            );
            cast_into(from, exact.pointer(), CudaDtype::F32)?;
            cast_into(from, bf16.pointer(), CudaDtype::Bf16)?;
        }
        Ok(())
    }

    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// The matrix with its padding: (>= outputs, inputs).
    pub(crate) fn matrix(&self) -> &CudaTensor {
        &self.matrix
    }

    /// The weights as e4m3, if the device has precision fp8 and the map's inputs are whole groups.
    pub(crate) fn fp8(&self) -> Option<&Fp8Weights> {
        self.fp8.as_deref()
    }

    /// The f32 bias with its padding: (>= outputs).
    pub(crate) fn padded_bias(&self) -> Option<&DeviceBuffer> {
        self.bias.as_ref()
    }

    /// Whether weights and bias are unchanged since they were created while the device was idle: a
    /// kernel may then read them before the previous kernel has ended.
    pub(crate) fn is_constant(&self) -> bool {
        self.is_constant
    }

    fn cuda(&self) -> &CudaDevice {
        self.matrix.cuda()
    }
}

/// Writes x as another dtype to memory that is at least as long.
fn cast_into(x: &CudaTensor, to: u64, dtype: CudaDtype) -> Result<(), CudaError> {
    let count = x.rows() * x.cols();
    let arguments = kernel_args![x.pointer(), x.dtype(), to, dtype, 1.0f32, count as u64];
    // SAFETY: `scale` reads and writes `count` elements, which x and the callers' memory have.
    unsafe { x.cuda().launch("scale", LaunchConfig::for_threads(count.div_ceil(4)), arguments) }
}

impl CudaTensor {
    /// The tensor as another dtype; `None` if it has that dtype.
    pub(crate) fn cast_if_needed(&self, dtype: CudaDtype) -> Result<Option<Self>, CudaError> {
        if self.dtype() == dtype { Ok(None) } else { self.cast(dtype).map(Some) }
    }

    /// The tensor in the dtype in which `map` multiplies; `None` if it has that dtype, or is e4m3.
    pub(crate) fn cast_operand(&self, map: &CudaLinear) -> Result<Option<Self>, CudaError> {
        if self.dtype() == CudaDtype::E4m3 {
            return Ok(None);
        }
        self.cast_if_needed(map.matrix.dtype())
    }
}

/// `activation(x W + b)` in the given dtype: x is (rows, inputs) of any dtype, the result (rows,
/// outputs).
///
/// Bias and tanh-GELU are fused into the Hopper GEMM (`hopper_gemm`), and into cuBLASLt's where it
/// supports them and the result is bf16 (its f32 GELU is less accurate than ours); otherwise they
/// are a separate kernel.
pub(crate) fn linear(
    x: &CudaTensor,
    map: &CudaLinear,
    activation: Activation,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    matmul_bias_activation(x, map, true, activation, dtype)
}

/// `x W` in the given dtype, without the bias.
pub(crate) fn matmul(
    x: &CudaTensor,
    map: &CudaLinear,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    matmul_bias_activation(x, map, false, Activation::None, dtype)
}

/// `out += x W`, without the bias: out is (rows, outputs) of f32 or bf16.
pub(crate) fn linear_add(
    x: &CudaTensor,
    map: &CudaLinear,
    out: &mut CudaTensor,
) -> Result<(), CudaError> {
    assert_eq!(
        (out.rows(), out.cols(), x.cols()),
        (x.rows(), map.outputs, map.inputs),
        "linear_add: shapes differ"
    );
    if x.rows() == 0 {
        return Ok(());
    }
    let cast = x.cast_operand(map)?;
    let x = cast.as_ref().unwrap_or(x);
    let (out_at, stride) = out.ptr_and_stride();
    let shape = GemmShape {
        rows: x.rows(),
        inputs: map.inputs,
        outputs: map.outputs,
        stride,
        operand: map.matrix.dtype(),
        out: out.dtype(),
        epilogue: BlasEpilogue::None,
    };
    let gemm = Gemm { accumulate: true, ..Gemm::from(shape) };
    let weights = map.matrix.pointer();
    let at = GemmPointers { x: x.pointer(), weights, bias: 0, out: out_at };
    // SAFETY: x is (rows, inputs) and the weights (>= outputs, inputs), both of the compute dtype;
    // out is (rows, outputs) with its stride.
    unsafe { map.cuda().blas().gemm(x.cuda(), gemm, at) }
}

pub(super) fn matmul_bias_activation(
    x: &CudaTensor,
    map: &CudaLinear,
    with_bias: bool,
    activation: Activation,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    assert_eq!(x.cols(), map.inputs, "linear: rows of {} into a map of {}", x.cols(), map.inputs);
    if x.dtype() == CudaDtype::E4m3 {
        return fp8::linear(x, map, with_bias, activation, dtype);
    }
    let dtype = dtype.of_rows(map.outputs);
    if dtype == CudaDtype::E4m3 {
        let bf16 = matmul_bias_activation(x, map, with_bias, activation, CudaDtype::Bf16)?;
        return fp8::quantize_rows(&bf16);
    }
    let out = CudaTensor::uninit(x.cuda(), x.rows(), map.outputs, dtype)?;
    let cast = x.cast_operand(map)?;
    let x = cast.as_ref().unwrap_or(x);
    if hopper_gemm::supports_store(x, map, dtype) {
        let bias = map.bias.as_ref().filter(|_| with_bias);
        hopper_gemm::store(x, map, bias, activation == Activation::GeluTanh, &out)?;
        if activation == Activation::GeluErf {
            bias_activation(&out, None, activation)?;
        }
        return Ok(out);
    }
    let bias = match dtype {
        _ if !with_bias => None,
        CudaDtype::F32 => map.bias.as_ref(),
        CudaDtype::Bf16 | CudaDtype::E4m3 => map.bias_bf16.as_ref(),
    };
    let shape = |epilogue| GemmShape {
        rows: x.rows(),
        inputs: map.inputs,
        outputs: map.outputs,
        stride: map.outputs,
        operand: map.matrix.dtype(),
        out: dtype,
        epilogue,
    };
    let fused = bias.is_some() && activation == Activation::GeluTanh && dtype == CudaDtype::Bf16;
    let candidates: &[BlasEpilogue] = match bias {
        Some(_) if fused => &[BlasEpilogue::BiasGelu, BlasEpilogue::Bias, BlasEpilogue::None],
        Some(_) => &[BlasEpilogue::Bias, BlasEpilogue::None],
        None => &[BlasEpilogue::None],
    };
    let blas = map.cuda().blas();
    let epilogue = candidates
        .iter()
        .copied()
        .find(|&e| x.rows() == 0 || blas.supports(x.cuda(), shape(e)))
        .unwrap_or(BlasEpilogue::None);
    let bias_at = bias.map_or(0, DeviceBuffer::pointer);
    let at = GemmPointers {
        x: x.pointer(),
        weights: map.matrix.pointer(),
        bias: bias_at,
        out: out.pointer(),
    };
    // SAFETY: x is (rows, inputs) and the weights (>= outputs, inputs), both of the compute dtype;
    // out is (rows, outputs).
    unsafe { blas.gemm(x.cuda(), shape(epilogue), at) }?;
    let bias_left = map.bias.as_ref().filter(|_| with_bias && epilogue == BlasEpilogue::None);
    let activation_left =
        if epilogue == BlasEpilogue::BiasGelu { Activation::None } else { activation };
    if bias_left.is_some() || activation_left != Activation::None {
        bias_activation(&out, bias_left, activation_left)?;
    }
    Ok(out)
}

pub(super) fn bias_activation(
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

/// `x W + b` in f32 for the cross entropy: (rows, outputs), with a stride that aligns rows of any
/// width.
pub(crate) fn logits(x: &CudaTensor, map: &CudaLinear) -> Result<CudaTensor, CudaError> {
    if padded_stride(map.outputs) == map.outputs {
        return linear(x, map, Activation::None, CudaDtype::F32);
    }
    assert_eq!(x.cols(), map.inputs, "logits: rows of {} into a map of {}", x.cols(), map.inputs);
    let padded = map.matrix.rows();
    let out = CudaTensor::uninit_strided(x.cuda(), x.rows(), map.outputs, padded, CudaDtype::F32)?;
    let cast = x.cast_operand(map)?;
    let x = cast.as_ref().unwrap_or(x);
    let shape = GemmShape {
        rows: x.rows(),
        inputs: map.inputs,
        outputs: padded,
        stride: padded,
        operand: map.matrix.dtype(),
        out: CudaDtype::F32,
        epilogue: BlasEpilogue::None,
    };
    let at = GemmPointers {
        x: x.pointer(),
        weights: map.matrix.pointer(),
        bias: 0,
        out: out.ptr_and_stride().0,
    };
    // SAFETY: the weights are (padded, inputs), zeros beyond the outputs, and out is (rows,
    // padded).
    unsafe { map.cuda().blas().gemm(x.cuda(), shape, at) }?;
    if map.bias.is_some() {
        bias_activation(&out, map.bias.as_ref(), Activation::None)?;
    }
    Ok(out)
}

/// The stride that aligns rows of `cols` elements: `cols` if that is aligned, else the padded rows
/// of the weights.
pub(crate) fn padded_stride(cols: usize) -> usize {
    if cols.is_multiple_of(8) { cols } else { cols.next_multiple_of(ROW_ALIGNMENT) }
}

/// `dy W^T` in the given dtype: dy is (rows, outputs) of any dtype, the result (rows, inputs).
pub(crate) fn linear_dx(
    dy: &CudaTensor,
    map: &CudaLinear,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    assert_eq!(
        dy.cols(),
        map.outputs,
        "linear_dx: rows of {} from a map to {}",
        dy.cols(),
        map.outputs
    );
    let out = CudaTensor::uninit(dy.cuda(), dy.rows(), map.inputs, dtype)?;
    let cast = dy.cast_operand(map)?;
    let (from, stride) = cast.as_ref().unwrap_or(dy).ptr_and_stride();
    // The zero padding of dy's rows is multiplied by the weights' rows of zeros.
    let summed = if stride == map.matrix.rows() { stride } else { map.outputs };
    let shape = GemmShape {
        rows: dy.rows(),
        inputs: summed,
        outputs: map.inputs,
        stride: map.inputs,
        operand: map.matrix.dtype(),
        out: dtype,
        epilogue: BlasEpilogue::None,
    };
    let x = GemmOperand { transposed: false, stride };
    let weights = GemmOperand { transposed: true, stride: map.inputs };
    let at = GemmPointers { x: from, weights: map.matrix.pointer(), bias: 0, out: out.pointer() };
    // SAFETY: dy is (rows, summed) with its stride, the weights (>= summed, inputs), out (rows,
    // inputs).
    unsafe {
        map.cuda().blas().gemm(dy.cuda(), Gemm { shape, x, weights, accumulate: false }, at)
    }?;
    Ok(out)
}

/// `dw += dy^T x`, `db +=` the sum of dy's rows: x (rows, inputs) and dy (rows, outputs) of any
/// dtype, dw (outputs, inputs) and db (1, outputs) of f32.
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
    let cast_x = x.cast_if_needed(operand)?;
    let cast_dy = dy.cast_if_needed(operand)?;
    let (x_at, x_stride) = cast_x.as_ref().unwrap_or(x).ptr_and_stride();
    let (dy_at, dy_stride) = cast_dy.as_ref().unwrap_or(dy).ptr_and_stride();
    let shape = GemmShape {
        rows: dy.cols(),
        inputs: x.rows(),
        outputs: x.cols(),
        stride: x.cols(),
        operand,
        out: CudaDtype::F32,
        epilogue: BlasEpilogue::None,
    };
    let at = GemmPointers { x: dy_at, weights: x_at, bias: 0, out: dw.pointer() };
    let transposed = |stride| GemmOperand { transposed: true, stride };
    let x_operand = transposed(dy_stride);
    let weights = transposed(x_stride);
    let gemm = Gemm { shape, x: x_operand, weights, accumulate: true };
    // SAFETY: both operands have as many rows as are summed, dw is (outputs, inputs).
    unsafe { x.cuda().blas().gemm(x.cuda(), gemm, at) }?;
    db.map_or(Ok(()), |db| column_sums(dy, db))
}

/// Number of blocks that fills a GPU.
const FULL_GRID: usize = 1024;

/// `to +=` the sum of x's rows; to is (1, cols) of f32.
fn column_sums(x: &CudaTensor, to: &mut CudaTensor) -> Result<(), CudaError> {
    assert_eq!(
        (to.rows(), to.cols(), to.dtype()),
        (1, x.cols(), CudaDtype::F32),
        "column sums: of {} columns",
        x.cols()
    );
    let (at, stride) = x.ptr_and_stride();
    let wide = x.cols().div_ceil(128);
    let config = LaunchConfig {
        blocks: (wide, x.rows().div_ceil(32).clamp(1, FULL_GRID.div_ceil(wide)), 1),
        threads: 256,
        shared_bytes: 0,
    };
    let arguments =
        kernel_args![at, x.dtype(), int(stride), int(x.rows()), int(x.cols()), to.pointer()];
    // SAFETY: x is (rows, cols) with its stride, to (cols).
    unsafe { x.cuda().launch("column_sums", config, arguments) }
}
