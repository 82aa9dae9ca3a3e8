//! Linear maps with fused bias, activation, dropout, residual and norm.

use super::{Activation, DropoutMask, Normalization, OutputDtype};
use crate::cpu::int8::{self, ByteKernel, Int8Weights};
use crate::cpu::isa::Isa;
use crate::cpu::linear::{
    PANEL, PackedWeights, RowEpilogue, TileEpilogue, TileHeight, gemm, tile_height, transposed,
};
use crate::cpu::math::sum_lanes;
use crate::cpu::split::{self, Bf16Weights};
use crate::cuda::linear::CudaLinear;
use crate::device::{Backend, CpuDevice};
use crate::{Device, DeviceError, Precision, Tensor, cpu, cuda};

/// A linear map `x W + b`, with its weights in the layout of the device's kernels.
#[derive(Debug)]
pub struct Linear(Box<LinearWeights>);

#[derive(Debug)]
enum LinearWeights {
    Cpu(CpuLinear),
    Cuda(CudaLinear),
}

#[derive(Debug)]
struct CpuLinear {
    weights: CpuWeights,             // (inputs, outputs)
    bias: Option<Vec<f32>>,          // (outputs)
    backward: Option<PackedWeights>, // (outputs, inputs), for the gradient of x
}

/// Weights in the layouts of the CPU kernels.
#[derive(Debug)]
pub(crate) enum CpuWeights {
    F32(PackedWeights),
    Bf16(Bf16Weights), // multiplied by f32 rows, as exactly as f32
    Int8(Int8Weights),
}

impl CpuWeights {
    fn new(
        cpu: &CpuDevice,
        inputs: usize,
        outputs: usize,
        at: impl Fn(usize, usize) -> f32 + Sync,
    ) -> Self {
        match (cpu.precision, cpu.isa) {
            (Precision::Int8, _) => Self::Int8(Int8Weights::new(inputs, outputs, at)),
            (_, Isa::Amx) => Self::bf16_or_f32(inputs, outputs, at),
            _ => Self::F32(PackedWeights::new(inputs, outputs, at)),
        }
    }

    fn bf16_or_f32(inputs: usize, outputs: usize, at: impl Fn(usize, usize) -> f32 + Sync) -> Self {
        match Bf16Weights::new(inputs, outputs, &at) {
            Some(weights) => Self::Bf16(weights),
            None => Self::F32(PackedWeights::new(inputs, outputs, at)),
        }
    }

    fn fill(&mut self, at: impl Fn(usize, usize) -> f32 + Sync) {
        match self {
            Self::F32(weights) => weights.fill(at),
            Self::Bf16(weights) => {
                *self = Self::bf16_or_f32(weights.inputs(), weights.outputs(), at);
            }
            Self::Int8(weights) => weights.fill(at),
        }
    }

    pub(crate) fn inputs(&self) -> usize {
        match self {
            Self::F32(weights) => weights.inputs(),
            Self::Bf16(weights) => weights.inputs(),
            Self::Int8(weights) => weights.inputs(),
        }
    }

    pub(crate) fn outputs(&self) -> usize {
        match self {
            Self::F32(weights) => weights.outputs(),
            Self::Bf16(weights) => weights.outputs(),
            Self::Int8(weights) => weights.outputs(),
        }
    }

    fn column(&self, j: usize, out: &mut [f32]) {
        match self {
            Self::F32(weights) => weights.column(j, out),
            Self::Bf16(weights) => weights.column(j, out),
            Self::Int8(weights) => weights.column(j, out),
        }
    }

    /// The tile height used for `rows` rows.
    pub(crate) fn tile_height(&self, isa: Isa, rows: usize) -> usize {
        let height = match self {
            Self::F32(_) => tile_height(isa),
            Self::Bf16(_) => TileHeight::REGISTERS,
            Self::Int8(_) => ByteKernel::for_isa(isa).tile_height(),
        };
        height.of(rows)
    }

    /// Multiplies x (rows, inputs) by them.
    pub(crate) fn gemm<E: TileEpilogue>(&self, isa: Isa, x: &[f32], epilogue: &E) {
        match self {
            Self::F32(weights) => gemm(isa, x, weights, epilogue),
            Self::Bf16(weights) => split::gemm(isa, x, weights, epilogue),
            Self::Int8(weights) => int8::gemm(isa, x, weights, epilogue),
        }
    }
}

impl LinearWeights {
    fn on_cpu(weights: CpuWeights, bias: Option<Vec<f32>>) -> Self {
        Self::Cpu(CpuLinear { weights, bias, backward: None })
    }
}

impl Linear {
    /// From a matrix stored (outputs, inputs), as in `nn.Linear` and embedding tables.
    pub fn from_output_major(
        device: &Device,
        inputs: usize,
        outputs: usize,
        matrix: &[f32],
        bias: Option<Vec<f32>>,
    ) -> Result<Self, DeviceError> {
        check_shapes(inputs, outputs, matrix, bias.as_deref());
        Ok(Self(Box::new(match device.backend() {
            Backend::Cpu(cpu) => {
                let at = |k: usize, j: usize| matrix[j * inputs + k];
                LinearWeights::on_cpu(CpuWeights::new(cpu, inputs, outputs, at), bias)
            }
            Backend::Cuda(cuda) => {
                let bias = bias.as_deref();
                let weights = CudaLinear::from_output_major(cuda, inputs, outputs, matrix, bias)?;
                LinearWeights::Cuda(weights)
            }
        })))
    }

    /// From a matrix stored (inputs, outputs), as in GPT-2's `Conv1D`.
    pub fn from_input_major(
        device: &Device,
        inputs: usize,
        outputs: usize,
        matrix: &[f32],
        bias: Option<Vec<f32>>,
    ) -> Result<Self, DeviceError> {
        check_shapes(inputs, outputs, matrix, bias.as_deref());
        Ok(Self(Box::new(match device.backend() {
            Backend::Cpu(cpu) => {
                let at = |k: usize, j: usize| matrix[k * outputs + j];
                LinearWeights::on_cpu(CpuWeights::new(cpu, inputs, outputs, at), bias)
            }
            Backend::Cuda(cuda) => {
                let bias = bias.as_deref();
                let weights = CudaLinear::from_input_major(cuda, inputs, outputs, matrix, bias)?;
                LinearWeights::Cuda(weights)
            }
        })))
    }

    /// The width of x.
    pub fn inputs(&self) -> usize {
        match &*self.0 {
            LinearWeights::Cpu(map) => map.weights.inputs(),
            LinearWeights::Cuda(weights) => weights.inputs(),
        }
    }

    /// The width of the result.
    pub fn outputs(&self) -> usize {
        match &*self.0 {
            LinearWeights::Cpu(map) => map.weights.outputs(),
            LinearWeights::Cuda(weights) => weights.outputs(),
        }
    }

    /// Replaces the weights by a matrix (outputs, inputs) and, if the map has one, a bias
    /// (1, outputs), both f32 on the device.
    pub fn assign(
        &mut self,
        device: &Device,
        matrix: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<(), DeviceError> {
        let inputs = self.inputs();
        let outputs = self.outputs();
        assert_eq!(
            (matrix.rows(), matrix.cols()),
            (outputs, inputs),
            "assign: a matrix of another shape"
        );
        assert!(
            bias.is_none_or(|b| (b.rows(), b.cols()) == (1, outputs)),
            "assign: the bias is not {outputs} wide"
        );
        match (device.backend(), &mut *self.0) {
            (Backend::Cpu(_), LinearWeights::Cpu(map)) => {
                assert_eq!(map.bias.is_some(), bias.is_some(), "assign: a bias on one side");
                let matrix = matrix.data();
                map.weights.fill(|k, j| matrix[j * inputs + k]);
                if let Some(backward) = &mut map.backward {
                    backward.fill(|j, k| matrix[j * inputs + k]);
                }
                if let (Some(to), Some(from)) = (&mut map.bias, bias) {
                    to.copy_from_slice(from.data());
                }
            }
            (Backend::Cuda(_), LinearWeights::Cuda(weights)) => {
                weights.assign(matrix.gpu(), bias.map(Tensor::gpu))?
            }
            _ => panic!("assign: the weights are not on the device"),
        }
        Ok(())
    }

    /// Prepares for [`linear_dx`], given the map's weights (outputs, inputs). The CPU packs them a
    /// second time, transposed; a GPU reads the copy it has.
    pub fn prepare_backward(
        &mut self,
        device: &Device,
        matrix: &Tensor,
    ) -> Result<(), DeviceError> {
        let inputs = self.inputs();
        let outputs = self.outputs();
        assert_eq!(
            (matrix.rows(), matrix.cols()),
            (outputs, inputs),
            "prepare_backward: a matrix of another shape"
        );
        if let (Backend::Cpu(_), LinearWeights::Cpu(map)) = (device.backend(), &mut *self.0) {
            let matrix = matrix.data();
            map.backward = Some(PackedWeights::new(outputs, inputs, |j, k| matrix[j * inputs + k]));
        }
        Ok(())
    }

    /// Writes the weights of output `j` (inputs): row `j` of a tied embedding table.
    pub(crate) fn output_weights(&self, j: usize, out: &mut [f32]) {
        assert!(
            j < self.outputs() && out.len() == self.inputs(),
            "linear: no output {j} of {}",
            self.outputs()
        );
        self.cpu().0.column(j, out);
    }

    /// Weights and bias on the CPU.
    pub(crate) fn cpu(&self) -> (&CpuWeights, Option<&[f32]>) {
        match &*self.0 {
            LinearWeights::Cpu(map) => (&map.weights, map.bias.as_deref()),
            LinearWeights::Cuda(_) => panic!("these weights are on a gpu"),
        }
    }

    pub(crate) fn gpu(&self) -> &CudaLinear {
        match &*self.0 {
            LinearWeights::Cuda(weights) => weights,
            LinearWeights::Cpu(_) => panic!("these weights are not on the gpu"),
        }
    }
}

fn check_shapes(inputs: usize, outputs: usize, matrix: &[f32], bias: Option<&[f32]>) {
    assert_eq!(
        matrix.len(),
        inputs * outputs,
        "linear: {} weights for {inputs} x {outputs}",
        matrix.len()
    );
    assert!(bias.is_none_or(|b| b.len() == outputs), "linear: the bias is not {outputs} wide");
}

/// `out = activation(x W + b)`: x is (rows, inputs), out becomes (rows, outputs).
pub fn linear(
    device: &Device,
    x: &Tensor,
    map: &Linear,
    activation: Activation,
    dtype: OutputDtype,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    assert_eq!(
        x.cols(),
        map.inputs(),
        "linear: rows of {} into a map of {}",
        x.cols(),
        map.inputs()
    );
    match device.backend() {
        Backend::Cpu(cpu) => {
            out.reshape(x.rows(), map.outputs());
            let (weights, bias) = map.cpu();
            let epilogue = OutputEpilogue {
                out: out.data_mut().as_mut_ptr(),
                cols: weights.outputs(),
                bias,
                op: EpilogueOp::Write(activation),
            };
            weights.gemm(cpu.isa, x.data(), &epilogue);
        }
        Backend::Cuda(cuda) => {
            let dtype = dtype.cuda_dtype(cuda);
            *out = cuda::linear::linear(x.gpu(), map.gpu(), activation, dtype)?.into();
        }
    }
    Ok(())
}

/// `out += x W`, without the map's bias: x is (rows, inputs), out (rows, outputs) of any dtype.
pub fn linear_add(
    device: &Device,
    x: &Tensor,
    map: &Linear,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    let shape = (x.cols(), out.rows(), out.cols());
    let expected = (map.inputs(), x.rows());
    assert_eq!(shape, (expected.0, expected.1, map.outputs()), "linear_add: shapes differ");
    match device.backend() {
        Backend::Cpu(cpu) => {
            let (weights, _) = map.cpu();
            let epilogue = OutputEpilogue {
                out: out.data_mut().as_mut_ptr(),
                cols: weights.outputs(),
                bias: None,
                op: EpilogueOp::Residual(None),
            };
            weights.gemm(cpu.isa, x.data(), &epilogue);
        }
        Backend::Cuda(_) => cuda::linear::linear_add(x.gpu(), map.gpu(), out.gpu_mut()?)?,
    }
    Ok(())
}

/// The read-only arguments of [`linear_residual_norm`].
#[derive(Clone, Copy, Debug)]
pub struct LinearResidualNorm<'a> {
    /// (rows, inputs)
    pub x: &'a Tensor,
    /// inputs -> outputs
    pub map: &'a Linear,
    /// Dropout of the map's result.
    pub mask: Option<DropoutMask<'a>>,
    /// The norm of the new residual stream.
    pub norm: &'a Normalization,
    /// Dtype of the normalized rows.
    pub dtype: OutputDtype,
}

/// `stream += dropout(x W + b)`, then `out = norm(stream)`: stream and out are (rows, outputs).
pub fn linear_residual_norm(
    device: &Device,
    of: LinearResidualNorm<'_>,
    stream: &mut Tensor,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    let LinearResidualNorm { x, map, mask, norm, dtype } = of;
    let rows = x.rows();
    let cols = map.outputs();
    assert_eq!(
        x.cols(),
        map.inputs(),
        "residual: rows of {} into a map of {}",
        x.cols(),
        map.inputs()
    );
    assert_eq!(
        (stream.rows(), stream.cols()),
        (rows, cols),
        "residual: the stream has another shape"
    );
    if let Some(mask) = &mask {
        mask.check(rows, cols);
    }
    match device.backend() {
        Backend::Cpu(cpu) => {
            let (weights, bias) = map.cpu();
            let epilogue = OutputEpilogue {
                out: stream.data_mut().as_mut_ptr(),
                cols,
                bias,
                op: EpilogueOp::Residual(mask),
            };
            weights.gemm(cpu.isa, x.data(), &epilogue);
            out.reshape(rows, cols);
            cpu::norm::norm(cpu.isa, stream, norm.cpu(), out);
        }
        Backend::Cuda(cuda) => {
            let of = cuda::args::CudaLinearResidualNorm {
                x: x.gpu(),
                map: map.gpu(),
                mask: mask.map(DropoutMask::gpu),
                norm: norm.gpu(),
                dtype: dtype.cuda_dtype(cuda),
            };
            *out = cuda::residual::linear_residual_norm(of, stream.gpu_mut()?)?.into();
        }
    }
    Ok(())
}

/// `dx = dy W^T`, the gradient of the map's input: dy is (rows, outputs), dx becomes
/// (rows, inputs).
///
/// # Panics
/// On the CPU without [`Linear::prepare_backward`].
pub fn linear_dx(
    device: &Device,
    dy: &Tensor,
    map: &Linear,
    dtype: OutputDtype,
    dx: &mut Tensor,
) -> Result<(), DeviceError> {
    assert_eq!(
        dy.cols(),
        map.outputs(),
        "linear_dx: rows of {} from a map to {}",
        dy.cols(),
        map.outputs()
    );
    match (device.backend(), &*map.0) {
        (Backend::Cpu(cpu), LinearWeights::Cpu(own)) => {
            let Some(backward) = &own.backward else {
                panic!("linear_dx: the map was not prepared for its backward")
            };
            dx.reshape(dy.rows(), map.inputs());
            let epilogue = OutputEpilogue {
                out: dx.data_mut().as_mut_ptr(),
                cols: map.inputs(),
                bias: None,
                op: EpilogueOp::Write(Activation::None),
            };
            gemm(cpu.isa, dy.data(), backward, &epilogue);
        }
        (Backend::Cuda(cuda), LinearWeights::Cuda(weights)) => {
            *dx = cuda::linear::linear_dx(dy.gpu(), weights, dtype.cuda_dtype(cuda))?.into();
        }
        _ => panic!("linear_dx: the weights are not on the device"),
    }
    Ok(())
}

/// `dw += dy^T x` and `db +=` the sum of dy's rows: x is (rows, inputs), dy (rows, outputs), dw
/// (outputs, inputs), db (1, outputs).
pub fn linear_dw(
    device: &Device,
    x: &Tensor,
    dy: &Tensor,
    dw: &mut Tensor,
    db: Option<&mut Tensor>,
) -> Result<(), DeviceError> {
    assert_eq!(
        x.rows(),
        dy.rows(),
        "linear_dw: {} rows of inputs, {} of gradients",
        x.rows(),
        dy.rows()
    );
    assert_eq!(
        (dw.rows(), dw.cols()),
        (dy.cols(), x.cols()),
        "linear_dw: weights of another shape"
    );
    assert!(
        db.as_ref().is_none_or(|b| (b.rows(), b.cols()) == (1, dy.cols())),
        "linear_dw: a bias of another width"
    );
    match device.backend() {
        Backend::Cpu(cpu) => cpu_dw(cpu, x, dy, dw, db),
        Backend::Cuda(_) => {
            let db = db.map(Tensor::gpu_mut).transpose()?;
            cuda::linear::linear_dw(x.gpu(), dy.gpu(), dw.gpu_mut()?, db)?;
        }
    }
    Ok(())
}

/// Rows summed by one GEMM in the CPU's `linear_dw`: bounds the packed copy of x and the length of
/// the sums, which are added to dw.
const DW_CHUNK_ROWS: usize = 1024;

fn cpu_dw(cpu: &CpuDevice, x: &Tensor, dy: &Tensor, dw: &mut Tensor, mut db: Option<&mut Tensor>) {
    let inputs = x.cols();
    let outputs = dy.cols();
    let chunks =
        x.data().chunks(DW_CHUNK_ROWS * inputs).zip(dy.data().chunks(DW_CHUNK_ROWS * outputs));
    for (x, dy) in chunks {
        let rows = x.len() / inputs;
        let packed = PackedWeights::new(rows, inputs, |r, k| x[r * inputs + k]);
        let dy_transposed = transposed(dy, outputs);
        let epilogue = OutputEpilogue {
            out: dw.data_mut().as_mut_ptr(),
            cols: inputs,
            bias: None,
            op: EpilogueOp::Residual(None),
        };
        gemm(cpu.isa, &dy_transposed, &packed, &epilogue);
        if let Some(db) = &mut db {
            let sums = dy_transposed.chunks(rows).map(|row| sum_lanes(rows, |i, s| s + row[i]));
            db.data_mut().iter_mut().zip(sums).for_each(|(d, sum)| *d += sum);
        }
    }
}

/// The operation of the CPU's GEMM on a result, after the bias.
#[derive(Clone, Copy)]
enum EpilogueOp<'a> {
    /// `out = activation(result)`
    Write(Activation),
    /// `out += dropout(result)`
    Residual(Option<DropoutMask<'a>>),
}

struct OutputEpilogue<'a> {
    out: *mut f32, // (rows, cols)
    cols: usize,
    bias: Option<&'a [f32]>, // (cols)
    op: EpilogueOp<'a>,
}

// SAFETY: no two concurrent calls of `gemm`'s epilogue write the same element.
unsafe impl Sync for OutputEpilogue<'_> {}

impl RowEpilogue for OutputEpilogue<'_> {
    #[inline(always)]
    fn row_destination(&self, row: usize, col: usize) -> Option<*const f32> {
        Some(self.out.wrapping_add(row * self.cols + col))
    }

    #[inline(always)]
    unsafe fn finish<const FUSED: bool>(&self, row: usize, col: usize, values: &mut [f32]) {
        // SAFETY: `out` has the shape of the GEMM's result, and each element is passed once.
        let out = unsafe {
            std::slice::from_raw_parts_mut(self.out.add(row * self.cols + col), values.len())
        };
        if let Some(bias) = self.bias {
            let bias = &bias[col..col + values.len()];
            by_registers(values, bias, |x, b| x + b);
        }
        match self.op {
            EpilogueOp::Write(activation) => {
                cpu::activation::apply::<FUSED>(values, activation);
                out.copy_from_slice(values);
            }
            EpilogueOp::Residual(mask) => {
                if let Some(mask) = mask {
                    mask.apply::<FUSED>(row, col, self.cols, values);
                }
                by_registers(out, values, |o, x| o + x);
            }
        }
    }
}

/// `x = f(x, y)`, both of equal length. Processes arrays of a register's length: compilers would
/// unroll a loop over a tile's row and process its numbers one by one.
#[inline(always)]
fn by_registers(x: &mut [f32], y: &[f32], f: impl Fn(f32, f32) -> f32) {
    let (x, x_rest) = x.as_chunks_mut::<PANEL>();
    let (y, y_rest) = y.as_chunks::<PANEL>();
    for (x, y) in x.iter_mut().zip(y) {
        *x = std::array::from_fn(|l| f(x[l], y[l]));
    }
    x_rest.iter_mut().zip(y_rest).for_each(|(x, &y)| *x = f(*x, y));
}
