//! LayerNorm and RMSNorm, fused with the addition to the residual stream.

use super::args::{CudaLearnedPositions, NormGradients, ResidualAddend};
use super::context::{LaunchConfig, int, kernel_args};
use super::dropout::DropoutArgs;
use super::memory::{CommonScale, DTYPE_NONE, DeviceBuffer};
use super::{CudaDevice, CudaDtype, CudaError, CudaIndices, CudaTensor, e4m3};
use crate::params::Precision;

/// A LayerNorm or RMSNorm with its parameters on the GPU.
#[derive(Debug)]
pub(crate) struct CudaNorm {
    width: usize,
    eps: f32,
    scale: DeviceBuffer,         // (width) of f32
    shift: Option<DeviceBuffer>, // (width) of f32; `None` for RMSNorm
    result_scale: CommonScale,   // scale of its results as e4m3
}

/// The scale of a norm's results as e4m3: a common one that fits any row, so that a CTA with a part
/// of a row needs no data of the others. For n elements before scale and shift, the sum of squares
/// is at most n, and none is larger than the square root of n, or of n - 1 if the mean was
/// subtracted.
fn result_scale(scale: &[f32], shift: Option<&[f32]>) -> CommonScale {
    let magnitude = |x: &[f32]| x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let n = scale.len() as f32;
    let largest = match shift {
        Some(shift) => {
            let root = (n - 1.0).max(0.0).sqrt();
            let element = |(g, b): (&f32, &f32)| root * g.abs() + b.abs();
            scale.iter().zip(shift).map(element).fold(0.0, f32::max)
        }
        None => n.sqrt() * magnitude(scale),
    };
    let shift_norm = shift.unwrap_or_default().iter().map(|b| b * b).sum::<f32>().sqrt();
    let max_norm = n.sqrt() * magnitude(scale) + shift_norm;
    CommonScale { scale: e4m3::scale_for(largest), max_norm }
}

impl CudaNorm {
    pub(crate) fn layer(
        cuda: &CudaDevice,
        eps: f32,
        scale: &[f32],
        shift: &[f32],
    ) -> Result<Self, CudaError> {
        assert_eq!(
            scale.len(),
            shift.len(),
            "layer norm: {} scales, {} shifts",
            scale.len(),
            shift.len()
        );
        Self::new(cuda, eps, scale, Some(shift))
    }

    pub(crate) fn rms(cuda: &CudaDevice, eps: f32, scale: &[f32]) -> Result<Self, CudaError> {
        Self::new(cuda, eps, scale, None)
    }

    fn new(
        cuda: &CudaDevice,
        eps: f32,
        scale: &[f32],
        shift: Option<&[f32]>,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            width: scale.len(),
            eps,
            scale: DeviceBuffer::upload(cuda, scale)?,
            shift: shift.map(|shift| DeviceBuffer::upload(cuda, shift)).transpose()?,
            result_scale: result_scale(scale, shift),
        })
    }

    /// Replaces the parameters by others, (1, width) of f32.
    pub(crate) fn assign(
        &mut self,
        scale: &CudaTensor,
        shift: Option<&CudaTensor>,
    ) -> Result<(), CudaError> {
        assert_eq!(self.shift.is_some(), shift.is_some(), "assign: parameters of another norm");
        assert_ne!(scale.cuda().precision(), Precision::Fp8, "assign: fp8 cannot be trained");
        for (to, from) in [(Some(&mut self.scale), Some(scale)), (self.shift.as_mut(), shift)] {
            if let (Some(to), Some(from)) = (to, from) {
                let shape = (from.rows(), from.cols(), from.dtype());
                assert_eq!(
                    shape,
                    (1, self.width, CudaDtype::F32),
                    "assign: a norm of {}",
                    self.width
                );
                to.copy_from(0, from.buffer())?;
            }
        }
        Ok(())
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn eps(&self) -> f32 {
        self.eps
    }

    pub(crate) fn is_rms(&self) -> bool {
        self.shift.is_none()
    }

    pub(crate) fn scale(&self) -> u64 {
        self.scale.pointer()
    }

    /// Allocates rows for its results in the given dtype.
    pub(crate) fn uninit_results(
        &self,
        cuda: &CudaDevice,
        rows: usize,
        dtype: CudaDtype,
    ) -> Result<CudaTensor, CudaError> {
        match dtype.of_rows(self.width) {
            CudaDtype::E4m3 => CudaTensor::uninit_scaled(cuda, rows, self.width, self.result_scale),
            other => CudaTensor::uninit(cuda, rows, self.width, other),
        }
    }

    /// Address of the shift; null for RMSNorm.
    pub(crate) fn shift(&self) -> u64 {
        self.shift.as_ref().map_or(0, DeviceBuffer::pointer)
    }
}

/// `x += dropout(y + bias)`; x is f32.
pub(crate) fn add(x: &mut CudaTensor, addend: ResidualAddend<'_>) -> Result<(), CudaError> {
    AddNorm { addend: Some(addend), ..AddNorm::new(x, x) }.launch()
}

/// `x += dropout(y + bias)`, then the norm of the new x in the given dtype, in one pass over the
/// rows.
pub(crate) fn add_norm(
    x: &mut CudaTensor,
    addend: ResidualAddend<'_>,
    by: &CudaNorm,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    let out = by.uninit_results(x.cuda(), x.rows(), dtype)?;
    let norm = Some((by, &out));
    AddNorm { addend: Some(addend), norm, ..AddNorm::new(x, x) }.launch()?;
    Ok(out)
}

/// `to = from + position embeddings`, then the norm of `to` in the given dtype; `to` may be `from`.
pub(crate) fn add_positions_norm(
    from: &CudaTensor,
    to: &CudaTensor,
    positions: Option<CudaLearnedPositions<'_>>,
    by: &CudaNorm,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    let out = by.uninit_results(to.cuda(), to.rows(), dtype)?;
    let addend = positions.map(|p| ResidualAddend { y: p.table, bias: None, mask: None });
    let gathered = positions.map(|p| p.positions);
    let norm = Some((by, &out));
    AddNorm { from, to, addend, gathered, norm }.launch()?;
    Ok(out)
}

/// The norm of each row of x (f32), in the given dtype.
pub(crate) fn norm(
    x: &CudaTensor,
    by: &CudaNorm,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    let out = by.uninit_results(x.cuda(), x.rows(), dtype)?;
    AddNorm { norm: Some((by, &out)), ..AddNorm::new(x, x) }.launch()?;
    Ok(out)
}

/// `to = from + addend`, then `out = norm(to)`: the arguments of the `add_norm_*` kernels.
#[derive(Clone, Copy)]
struct AddNorm<'a> {
    from: &'a CudaTensor, // (rows, cols) of f32
    to: &'a CudaTensor,   // (rows, cols) of f32, maybe the same
    addend: Option<ResidualAddend<'a>>,
    gathered: Option<&'a CudaIndices>, // indices of the added rows of the addend; `None`: all, in order
    norm: Option<(&'a CudaNorm, &'a CudaTensor)>, // with its output (rows, cols)
}

impl<'a> AddNorm<'a> {
    fn new(from: &'a CudaTensor, to: &'a CudaTensor) -> Self {
        Self { from, to, addend: None, gathered: None, norm: None }
    }

    fn launch(self) -> Result<(), CudaError> {
        let Self { from, to: x, addend, gathered, norm } = self;
        let rows = x.rows();
        let cols = x.cols();
        assert_eq!(
            (x.dtype(), from.dtype()),
            (CudaDtype::F32, CudaDtype::F32),
            "norm: the residual stream is f32"
        );
        assert_eq!((from.rows(), from.cols()), (rows, cols), "norm: the stream has another shape");
        let (y, y_type, bias) = addend.map_or((0, DTYPE_NONE, 0), |a| {
            match gathered {
                None => assert_eq!(
                    (a.y.rows(), a.y.cols()),
                    (rows, cols),
                    "add: the addend has another shape"
                ),
                Some(gathered) => {
                    assert_eq!(
                        (gathered.len(), a.y.cols()),
                        (rows, cols),
                        "add: gathered rows of another shape"
                    );
                    assert_eq!(a.y.dtype(), CudaDtype::F32, "add: gathered rows are f32");
                    assert!(gathered.all_below(a.y.rows()), "add: a row beyond {}", a.y.rows());
                }
            }
            assert!(
                a.bias.is_none_or(|b| b.bytes() >= cols * 4),
                "add: the bias is not {cols} wide"
            );
            (a.y.pointer(), a.y.dtype().code(), a.bias.map_or(0, DeviceBuffer::pointer))
        });
        let mask = addend.and_then(|a| a.mask);
        let DropoutArgs { kind, pointer: masks, site, keep_scale } =
            DropoutArgs::new(mask.as_ref(), rows, cols);
        let out_scale = norm.and_then(|(_, out)| out.common_scale());
        let (out, out_type, rms, eps, scale, shift) =
            norm.map_or((0, DTYPE_NONE, true, 0.0, 0, 0), |(by, out)| {
                assert_eq!(
                    cols, by.width,
                    "norm: rows of {cols} against parameters of {}",
                    by.width
                );
                let out_type = out_scale.map_or_else(|| out.dtype().code(), |_| E4M3_OUT);
                (out.pointer(), out_type, by.is_rms(), by.eps, by.scale(), by.shift())
            });
        let (kernel, config) = select_kernel(rows, cols, y_type);
        let arguments = kernel_args![
            from.pointer(),
            x.pointer(),
            y,
            gathered.map_or(0, CudaIndices::pointer),
            bias,
            kind,
            masks,
            site,
            keep_scale,
            out,
            out_type,
            rms,
            eps,
            scale,
            shift,
            int(rows),
            int(cols),
            out_scale.map_or(1.0, CommonScale::inverse),
        ];
        // SAFETY: from, x, y or the rows gathered of it, the mask and out were checked to be
        // (rows, cols), the bias, scale and shift (cols).
        unsafe { x.cuda().launch(kernel, config, arguments) }
    }
}

/// The code of e4m3 outputs, as in norm.cu.
const E4M3_OUT: u64 = 3;

/// The kernel whose threads hold a row of `cols` columns in registers, for an addend of the given
/// dtype.
fn select_kernel(rows: usize, cols: usize, y_type: u64) -> (&'static str, LaunchConfig) {
    let (names, blocks, threads) = match cols {
        0..=768 => (KERNELS_1, rows.div_ceil(4), 128),
        769..=2048 => (KERNELS_4, rows, 128),
        2049..=16384 => (KERNELS_16, rows, 512),
        _ => panic!("norm: rows of {cols} exceed the maximum width"),
    };
    (names[y_type as usize], LaunchConfig::new(blocks, threads))
}

/// Kernels by number of warps per row and dtype of the addend.
const KERNELS_1: [&str; 3] = ["add_norm_1_0", "add_norm_1_1", "add_norm_1_2"];
const KERNELS_4: [&str; 3] = ["add_norm_4_0", "add_norm_4_1", "add_norm_4_2"];
const KERNELS_16: [&str; 3] = ["add_norm_16_0", "add_norm_16_1", "add_norm_16_2"];

/// Number of threads of the grid: enough to fill a GPU, few enough that adding the blocks' partial
/// sums is cheap.
const THREADS: usize = 1 << 17;
/// From this many rows on, several short rows share a block.
const MANY_ROWS: usize = 2048;

/// Adds the gradients of the norm's input x (f32) and of its parameters.
pub(crate) fn norm_backward(
    x: &CudaTensor,
    by: &CudaNorm,
    to: NormGradients<'_>,
) -> Result<(), CudaError> {
    let rows = x.rows();
    let cols = x.cols();
    assert_eq!(cols, by.width, "norm_backward: rows of {cols} against parameters of {}", by.width);
    assert_eq!(
        (to.dy.rows(), to.dy.cols()),
        (rows, cols),
        "norm_backward: gradients of another shape"
    );
    assert_eq!(
        (to.dx.rows(), to.dx.cols()),
        (rows, cols),
        "norm_backward: gradients of another shape"
    );
    let sums = [Some(&to.dscale), to.dshift.as_ref()].into_iter().flatten();
    assert!(
        sums.into_iter().all(|d| d.cols() == cols && d.dtype() == CudaDtype::F32),
        "norm_backward: sums of {cols} in f32"
    );
    assert_eq!(
        (x.dtype(), to.dx.dtype()),
        (CudaDtype::F32, CudaDtype::F32),
        "norm_backward: the residual stream is f32"
    );
    let few = rows < MANY_ROWS;
    let (kernel, rows_per_block, threads) = match cols {
        0..=256 if few => ("norm_backward_1_2", 2, 64),
        0..=256 => ("norm_backward_1_2", 8, 256),
        257..=1024 => ("norm_backward_4_2", 1, 128),
        1025..=2048 => ("norm_backward_4_4", 1, 128),
        2049..=16384 => ("norm_backward_16_8", 1, 512),
        _ => panic!("norm_backward: rows of {cols} exceed the maximum width"),
    };
    let blocks = rows.div_ceil(rows_per_block).min(THREADS / threads);
    let dshift = to.dshift.map_or(0, |d| d.pointer());
    let arguments = kernel_args![
        x.pointer(),
        to.dy.pointer(),
        to.dy.dtype(),
        to.dx.pointer(),
        to.dscale.pointer(),
        dshift,
        by.is_rms(),
        by.eps,
        by.scale(),
        int(rows),
        int(cols),
    ];
    // SAFETY: x, dy and dx were checked to be (rows, cols), the parameters and their gradients
    // (cols).
    unsafe { x.cuda().launch(kernel, LaunchConfig::new(blocks, threads), arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RngKey;

    /// The norm of a row in f64, without eps.
    fn normalised(x: &[f32], scale: &[f32], shift: Option<&[f32]>) -> Vec<f64> {
        let n = x.len() as f64;
        let mean = shift.map_or(0.0, |_| x.iter().map(|x| f64::from(*x)).sum::<f64>() / n);
        let square = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        let element = |c: usize| {
            let z = (f64::from(x[c]) - mean) / square.sqrt();
            z * f64::from(scale[c]) + shift.map_or(0.0, |shift| f64::from(shift[c]))
        };
        (0..x.len()).map(element).collect()
    }

    /// Rows with a single large element attain the bound; the norm of others is within it.
    #[test]
    fn results_are_within_the_scale_and_the_norm_that_are_told() {
        let numbers = |n: usize, salt: u64| {
            let mut x = vec![0.0; n];
            let key = RngKey { seed: salt, question: 0, trajectory: 0, position: 0 };
            key.add_noise(1.0, &mut x);
            x
        };
        for n in [16, 48, 768, 2048] {
            let scale = numbers(n, 1);
            let shift = numbers(n, 2);
            for shift in [Some(&shift[..]), None] {
                let by = result_scale(&scale, shift);
                let bound = f64::from(by.scale * e4m3::MAX);
                let one_hot = |at: usize| (0..n).map(|c| f32::from(u8::from(c == at))).collect();
                let rows = (0..n.min(64)).map(one_hot).chain((3..9).map(|salt| numbers(n, salt)));
                let mut largest = 0.0f64;
                for row in rows {
                    let y = normalised(&row, &scale, shift);
                    let norm = y.iter().map(|y| y * y).sum::<f64>().sqrt();
                    largest = y.iter().fold(largest, |m, y| m.max(y.abs()));
                    assert!(norm <= f64::from(by.max_norm) * 1.000_001, "{n}: {norm}, {by:?}");
                }
                assert!(largest <= bound, "{n}: {largest} beyond {bound}");
            }
            // Without outliers in the parameters, the scale is the smallest that fits.
            let plain = result_scale(&vec![1.0; n], Some(&vec![0.0; n]));
            assert_eq!(plain.scale, e4m3::scale_for((n as f32 - 1.0).sqrt()));
        }
    }
}
