//! Linear maps with what follows them fused in: bias, activation, dropout, residual.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Activation;
use crate::cpu::linear::{Epilogue, Packed, TILE_COLS, product};
use crate::cpu::math;
use crate::rng::{Draw, MAX_ELEMENTS, Site, drop_threshold, philox_lanes, site_word};
use crate::{Device, Tensor};

/// A linear map `x W + b`, its weights packed for the kernels.
#[derive(Clone, Debug)]
pub struct Linear {
    weights: Packed,
    bias: Option<Vec<f32>>, // (outputs)
}

impl Linear {
    /// From a matrix stored (outputs, inputs), as `nn.Linear` and embedding tables are.
    pub fn from_output_major(inputs: usize, outputs: usize, matrix: &[f32], bias: Option<Vec<f32>>) -> Self {
        Self::new(inputs, outputs, bias, matrix.len(), |k, j| matrix[j * inputs + k])
    }

    /// From a matrix stored (inputs, outputs), as GPT-2's `Conv1D` is.
    pub fn from_input_major(inputs: usize, outputs: usize, matrix: &[f32], bias: Option<Vec<f32>>) -> Self {
        Self::new(inputs, outputs, bias, matrix.len(), |k, j| matrix[k * outputs + j])
    }

    fn new(inputs: usize, outputs: usize, bias: Option<Vec<f32>>, len: usize, at: impl Fn(usize, usize) -> f32 + Sync) -> Self {
        assert_eq!(len, inputs * outputs, "linear: {len} weights for {inputs} x {outputs}");
        assert!(bias.as_ref().is_none_or(|b| b.len() == outputs), "linear: the bias is not {outputs} wide");
        Self { weights: Packed::new(inputs, outputs, at), bias }
    }

    /// The width of x.
    pub fn inputs(&self) -> usize {
        self.weights.inputs()
    }

    /// The width of the result.
    pub fn outputs(&self) -> usize {
        self.weights.outputs()
    }

    /// Writes the weights of output `j`, in the order of the inputs: row `j` of a tied embedding table.
    pub fn output_weights(&self, j: usize, out: &mut [f32]) {
        assert!(j < self.outputs() && out.len() == self.inputs(), "linear: no output {j} of {}", self.outputs());
        self.weights.column(j, out);
    }
}

/// What dropout does to each row of a result.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// Masks drawn from the random function.
    Drawn {
        /// The share of elements dropped.
        p: f32,
        /// The layer in the name of the random numbers.
        layer: usize,
        /// The site in the name of the random numbers.
        site: Site,
        /// Row by row, where its numbers are drawn; `None` leaves a row as it is. (rows)
        rows: &'a [Option<Draw>],
    },
    /// Masks given from outside, to replay another implementation's.
    Recorded {
        /// The share of elements dropped.
        p: f32,
        /// 1 keeps, 0 drops. (rows, outputs)
        keep: &'a [u8],
    },
}

/// What is done with the result of a linear map.
#[derive(Clone, Copy, Debug)]
pub enum Finish<'a> {
    /// `out = activation(x W + b)`; out becomes (rows, outputs).
    Write(Activation),
    /// `out += dropout(x W + b)`; out is (rows, outputs).
    Residual(Option<Mask<'a>>),
}

/// Applies a linear map to x (rows, inputs) and finishes into out.
pub fn linear(device: &Device, x: &Tensor, map: &Linear, finish: Finish<'_>, out: &mut Tensor) {
    assert_eq!(x.cols(), map.inputs(), "linear: rows of {} into a map of {}", x.cols(), map.inputs());
    match finish {
        Finish::Write(_) => out.reshape(x.rows(), map.outputs()),
        Finish::Residual(mask) => {
            assert_eq!((out.rows(), out.cols()), (x.rows(), map.outputs()), "linear: the residual has another shape");
            check_mask(mask, x.rows(), map.outputs());
        }
    }
    let store = Store { out: out.data_mut().as_mut_ptr(), cols: map.outputs(), bias: map.bias.as_deref(), finish };
    product(device.isa(), x.data(), &map.weights, &store);
}

fn check_mask(mask: Option<Mask<'_>>, rows: usize, cols: usize) {
    match mask {
        Some(Mask::Drawn { rows: draws, .. }) => {
            assert_eq!(draws.len(), rows, "dropout: {} draws for {rows} rows", draws.len());
            assert!(cols <= MAX_ELEMENTS, "dropout: {cols} elements cannot be named");
        }
        Some(Mask::Recorded { keep, .. }) => assert_eq!(keep.len(), rows * cols, "dropout: a recorded mask of another shape"),
        None => {}
    }
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
                    Some(Mask::Drawn { p, layer, site, rows }) => {
                        if let Some(draw) = &rows[row] {
                            drop_drawn(values, draw, site_word(layer, site), col, p);
                        }
                    }
                    Some(Mask::Recorded { p, keep }) => {
                        let keep = &keep[row * self.cols + col..];
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

/// For each row of x (rows, inputs) the index of the largest element of `x W + b`; the lowest index among equals.
///
/// Not-a-number counts as smaller than everything; a row of nothing else has index 0, so that an index is always one.
/// The results themselves, a row of which may be a whole vocabulary, are never stored.
pub fn argmax(device: &Device, x: &Tensor, map: &Linear) -> Vec<u32> {
    assert_eq!(x.cols(), map.inputs(), "argmax: rows of {} into a map of {}", x.cols(), map.inputs());
    let best = Best { bias: map.bias.as_deref(), rows: (0..x.rows()).map(|_| AtomicU64::new(NOTHING)).collect() };
    product(device.isa(), x.data(), &map.weights, &best);
    best.rows.into_iter().map(|b| !(b.into_inner() as u32)).collect()
}

/// Index 0, below every value.
const NOTHING: u64 = !0u32 as u64;

struct Best<'a> {
    bias: Option<&'a [f32]>,
    rows: Vec<AtomicU64>, // per row: the value in an order-preserving form, then the index inverted
}

impl Epilogue for Best<'_> {
    #[inline(always)]
    unsafe fn finish<const FUSED: bool>(&self, row: usize, col: usize, values: &mut [f32]) {
        if let Some(bias) = self.bias {
            values.iter_mut().zip(&bias[col..]).for_each(|(x, b)| *x += b);
        }
        let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let Some(at) = values.iter().position(|&x| x == largest) else { return };
        let candidate = u64::from(ordered(largest)) << 32 | u64::from(!((col + at) as u32));
        // A look before the exchange: nearly every tile loses, and a load does not take the line from the others.
        if candidate > self.rows[row].load(Ordering::Relaxed) {
            self.rows[row].fetch_max(candidate, Ordering::Relaxed);
        }
    }
}

/// Bits that compare as the numbers do.
#[inline(always)]
fn ordered(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
#[path = "linear_tests.rs"]
mod tests;
