//! Linear maps with what follows them fused in: bias, activation, dropout, residual.

use super::{Activation, DropoutMask, Normalization, OutputDtype};
use crate::cpu::linear::{PackedWeights, TileEpilogue, gemm, transposed};
use crate::cpu::math::sum_lanes;
use crate::cuda::linear::CudaLinear as DeviceWeights;
use crate::device::{Backend, CpuDevice};
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// A linear map `x W + b`, its weights in the form that the device's kernels read.
#[derive(Debug)]
pub struct Linear(LinearWeights);

#[derive(Debug)]
enum LinearWeights {
    Cpu(CpuLinear),
    Cuda(DeviceWeights),
}

#[derive(Debug)]
struct CpuLinear {
    packed: PackedWeights,           // (inputs, outputs)
    bias: Option<Vec<f32>>,          // (outputs)
    backward: Option<PackedWeights>, // (outputs, inputs), if gradients are to pass
}

impl LinearWeights {
    fn packed(packed: PackedWeights, bias: Option<Vec<f32>>) -> Self {
        Self::Cpu(CpuLinear { packed, bias, backward: None })
    }
}

impl Linear {
    /// From a matrix stored (outputs, inputs), as `nn.Linear` and embedding tables are.
    pub fn from_output_major(
        device: &Device,
        (inputs, outputs): (usize, usize),
        matrix: &[f32],
        bias: Option<Vec<f32>>,
    ) -> Result<Self, DeviceError> {
        check_shapes(inputs, outputs, matrix, bias.as_deref());
        Ok(Self(match device.backend() {
            Backend::Cpu(_) => LinearWeights::packed(
                PackedWeights::new(inputs, outputs, |k, j| matrix[j * inputs + k]),
                bias,
            ),
            Backend::Cuda(cuda) => LinearWeights::Cuda(DeviceWeights::from_output_major(
                cuda,
                (inputs, outputs),
                matrix,
                bias.as_deref(),
            )?),
        }))
    }

    /// From a matrix stored (inputs, outputs), as GPT-2's `Conv1D` is.
    pub fn from_input_major(
        device: &Device,
        (inputs, outputs): (usize, usize),
        matrix: &[f32],
        bias: Option<Vec<f32>>,
    ) -> Result<Self, DeviceError> {
        check_shapes(inputs, outputs, matrix, bias.as_deref());
        Ok(Self(match device.backend() {
            Backend::Cpu(_) => LinearWeights::packed(
                PackedWeights::new(inputs, outputs, |k, j| matrix[k * outputs + j]),
                bias,
            ),
            Backend::Cuda(cuda) => LinearWeights::Cuda(DeviceWeights::from_input_major(
                cuda,
                (inputs, outputs),
                matrix,
                bias.as_deref(),
            )?),
        }))
    }

    /// The width of x.
    pub fn inputs(&self) -> usize {
        match &self.0 {
            LinearWeights::Cpu(weights) => weights.packed.inputs(),
            LinearWeights::Cuda(weights) => weights.inputs(),
        }
    }

    /// The width of the result.
    pub fn outputs(&self) -> usize {
        match &self.0 {
            LinearWeights::Cpu(weights) => weights.packed.outputs(),
            LinearWeights::Cuda(weights) => weights.outputs(),
        }
    }

    /// Takes new weights in the place of the old: the matrix (outputs, inputs), the bias (1,
    /// outputs) if there is one, both in single precision on the device.
    pub fn assign(
        &mut self,
        device: &Device,
        matrix: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<(), DeviceError> {
        let (inputs, outputs) = (self.inputs(), self.outputs());
        assert_eq!(
            (matrix.rows(), matrix.cols()),
            (outputs, inputs),
            "assign: a map of another shape"
        );
        assert!(
            bias.is_none_or(|b| (b.rows(), b.cols()) == (1, outputs)),
            "assign: the bias is not {outputs} wide"
        );
        match (device.backend(), &mut self.0) {
            (Backend::Cpu(_), LinearWeights::Cpu(weights)) => {
                assert_eq!(
                    weights.bias.is_some(),
                    bias.is_some(),
                    "assign: the map and what it takes differ in their bias"
                );
                let matrix = matrix.data();
                weights.packed.fill(|k, j| matrix[j * inputs + k]);
                if let Some(backward) = &mut weights.backward {
                    backward.fill(|j, k| matrix[j * inputs + k]);
                }
                if let (Some(to), Some(from)) = (&mut weights.bias, bias) {
                    to.copy_from_slice(from.data());
                }
            }
            (Backend::Cuda(_), LinearWeights::Cuda(weights)) => {
                weights.assign(matrix.gpu(), bias.map(Tensor::gpu))?
            }
            _ => panic!("assign: the map is not on the device"),
        }
        Ok(())
    }

    /// Makes [`linear_dx`] possible, given the weights that the map has, (outputs, inputs). The
    /// processor keeps them in a second order from here on; a GPU reads the one it has.
    pub fn prepare_backward(
        &mut self,
        device: &Device,
        matrix: &Tensor,
    ) -> Result<(), DeviceError> {
        let (inputs, outputs) = (self.inputs(), self.outputs());
        assert_eq!(
            (matrix.rows(), matrix.cols()),
            (outputs, inputs),
            "prepare_backward: a map of another shape"
        );
        if let (Backend::Cpu(_), LinearWeights::Cpu(weights)) = (device.backend(), &mut self.0) {
            let matrix = matrix.data();
            weights.backward =
                Some(PackedWeights::new(outputs, inputs, |j, k| matrix[j * inputs + k]));
        }
        Ok(())
    }

    /// Writes the weights of output `j`, in the order of the inputs.
    pub(crate) fn output_weights(&self, j: usize, out: &mut [f32]) {
        assert!(
            j < self.outputs() && out.len() == self.inputs(),
            "linear: no output {j} of {}",
            self.outputs()
        );
        self.cpu().0.column(j, out);
    }

    pub(crate) fn cpu(&self) -> (&PackedWeights, Option<&[f32]>) {
        match &self.0 {
            LinearWeights::Cpu(weights) => (&weights.packed, weights.bias.as_deref()),
            LinearWeights::Cuda(_) => panic!("these weights are on a gpu"),
        }
    }

    pub(crate) fn gpu(&self) -> &DeviceWeights {
        match &self.0 {
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
    (activation, format): (Activation, OutputDtype),
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
            let (packed, bias) = map.cpu();
            let store = OutputEpilogue {
                out: out.data_mut().as_mut_ptr(),
                cols: packed.outputs(),
                bias,
                op: EpilogueOp::Write(activation),
            };
            gemm(cpu.isa, x.data(), packed, &store);
        }
        Backend::Cuda(cuda) => {
            *out = cuda::linear::linear(x.gpu(), map.gpu(), activation, format.cuda_dtype(cuda))?
                .into()
        }
    }
    Ok(())
}

/// `stream += dropout(x W + b)`, then `out = norm(stream)` as an operand: x is (rows, inputs), the
/// stream and out are (rows, outputs).
pub fn linear_residual_norm(
    device: &Device,
    x: &Tensor,
    map: &Linear,
    mask: Option<DropoutMask<'_>>,
    stream: &mut Tensor,
    (norm, format, out): (&Normalization, OutputDtype, &mut Tensor),
) -> Result<(), DeviceError> {
    let (rows, cols) = (x.rows(), map.outputs());
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
            let (packed, bias) = map.cpu();
            let store = OutputEpilogue {
                out: stream.data_mut().as_mut_ptr(),
                cols,
                bias,
                op: EpilogueOp::Residual(mask),
            };
            gemm(cpu.isa, x.data(), packed, &store);
            out.reshape(rows, cols);
            cpu::norm::norm(cpu.isa, stream, norm.cpu(), out);
        }
        Backend::Cuda(cuda) => {
            let into = (norm.gpu(), format.cuda_dtype(cuda));
            *out = cuda::residual::linear_residual_norm(
                x.gpu(),
                map.gpu(),
                mask.map(DropoutMask::gpu),
                stream.gpu_mut()?,
                into,
            )?
            .into();
        }
    }
    Ok(())
}

/// `dx = dy W^T`, what reaches the map's input: dy is (rows, outputs), dx becomes (rows, inputs).
///
/// # Panics
/// On the processor without [`Linear::prepare_backward`].
pub fn linear_dx(
    device: &Device,
    dy: &Tensor,
    map: &Linear,
    format: OutputDtype,
    dx: &mut Tensor,
) -> Result<(), DeviceError> {
    assert_eq!(
        dy.cols(),
        map.outputs(),
        "linear_dx: rows of {} from a map to {}",
        dy.cols(),
        map.outputs()
    );
    match (device.backend(), &map.0) {
        (Backend::Cpu(cpu), LinearWeights::Cpu(weights)) => {
            let Some(backward) = &weights.backward else {
                panic!("linear_dx: the map was not prepared for gradients")
            };
            dx.reshape(dy.rows(), map.inputs());
            let cols = map.inputs();
            let store = OutputEpilogue {
                out: dx.data_mut().as_mut_ptr(),
                cols,
                bias: None,
                op: EpilogueOp::Write(Activation::None),
            };
            gemm(cpu.isa, dy.data(), backward, &store);
        }
        (Backend::Cuda(cuda), LinearWeights::Cuda(weights)) => {
            *dx = cuda::linear::linear_dx(dy.gpu(), weights, format.cuda_dtype(cuda))?.into();
        }
        _ => panic!("linear_dx: the map is not on the device"),
    }
    Ok(())
}

/// `dw += dy^T x` and `db += sum of dy's rows`: x is (rows, inputs), dy (rows, outputs), dw
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

/// Rows that are summed by one product on the processor: what is packed for it stays small, and so
/// do rounding errors.
const DW_CHUNK_ROWS: usize = 1024;

fn cpu_dw(cpu: &CpuDevice, x: &Tensor, dy: &Tensor, dw: &mut Tensor, mut db: Option<&mut Tensor>) {
    let (inputs, outputs) = (x.cols(), dy.cols());
    for (x, dy) in
        x.data().chunks(DW_CHUNK_ROWS * inputs).zip(dy.data().chunks(DW_CHUNK_ROWS * outputs))
    {
        let rows = x.len() / inputs;
        let (packed, turned) =
            (PackedWeights::new(rows, inputs, |r, k| x[r * inputs + k]), transposed(dy, outputs));
        let store = OutputEpilogue {
            out: dw.data_mut().as_mut_ptr(),
            cols: inputs,
            bias: None,
            op: EpilogueOp::Residual(None),
        };
        gemm(cpu.isa, &turned, &packed, &store);
        if let Some(db) = &mut db {
            let sums = turned.chunks(rows).map(|row| sum_lanes(rows, |i, s| s + row[i]));
            db.data_mut().iter_mut().zip(sums).for_each(|(d, sum)| *d += sum);
        }
    }
}

/// What the processor's product does with its result.
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
    bias: Option<&'a [f32]>,
    op: EpilogueOp<'a>,
}

// SAFETY: `product` never lets two calls at the same time write one element.
unsafe impl Sync for OutputEpilogue<'_> {}

impl TileEpilogue for OutputEpilogue<'_> {
    #[inline(always)]
    unsafe fn finish<const FUSED: bool>(&self, row: usize, col: usize, values: &mut [f32]) {
        // SAFETY: `linear` gave out the shape of the product, and each element is passed once.
        let out = unsafe {
            std::slice::from_raw_parts_mut(self.out.add(row * self.cols + col), values.len())
        };
        if let Some(bias) = self.bias {
            values.iter_mut().zip(&bias[col..]).for_each(|(x, b)| *x += b);
        }
        match self.op {
            EpilogueOp::Write(activation) => {
                cpu::activation::apply::<FUSED>(values, activation);
                out.copy_from_slice(values);
            }
            EpilogueOp::Residual(mask) => {
                if let Some(mask) = mask {
                    mask.apply(row, col, self.cols, values);
                }
                out.iter_mut().zip(values).for_each(|(o, x)| *o += *x);
            }
        }
    }
}
