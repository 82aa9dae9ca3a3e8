//! GEMM in int8: weights with a scale per output, activations with a scale per row.
//!
//! Both are rounded to integers from -127 to 127 and multiplied exactly: a sum of products is an
//! integer that does not depend on tile, batch or instruction set. Its value in f32 is `sum * scale
//! of the row * scale of the output`, in that order. Before rounding, rows and weights are rotated
//! (`rotation`), which does not change their product.
//!
//! The dot-product instructions of x86-64 multiply unsigned by signed bytes, so weights are stored
//! with an offset of 128, and 128 times the sum of a row's numbers is subtracted again. Panels are
//! 16 columns wide like those of f32; four consecutive inputs of a column are adjacent.

use std::fmt;

use rayon::prelude::*;

use super::aligned::{AlignedVec, ScratchVec};
use super::isa::{Isa, per_isa};
use super::linear::{
    MAX_TILE, OutputTile, PANEL, ROW_BLOCK, TILE_COLS, TaskGrid, TaskRange, TileEpilogue,
    TileHeight, TilePlace, for_each_task, sweep,
};
use rotation::rotate;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod neon;
mod rotation;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Inputs of each column consumed by one dot-product instruction.
const QUAD: usize = 4;
/// Inputs are padded to a multiple of this: the depth of an AMX tile.
const DEPTH: usize = 64;
/// The largest rounded number.
const LIMIT: f32 = 127.0;
/// The offset that makes weights non-negative.
const OFFSET: i32 = 128;

/// A weight matrix (inputs, outputs) in int8, in the layout of the micro-kernels.
#[derive(Clone, Debug)]
pub(crate) struct Int8Weights {
    inputs: usize,
    outputs: usize,
    /// (ceil(outputs / PANEL), padded inputs / QUAD, PANEL, QUAD); zero is stored as OFFSET.
    panels: AlignedVec<u8>,
    scales: Vec<f32>, // of each column of a panel
}

impl Int8Weights {
    /// Rounds and packs a matrix whose element (input, output) is `at(input, output)`.
    pub(crate) fn new(
        inputs: usize,
        outputs: usize,
        at: impl Fn(usize, usize) -> f32 + Sync,
    ) -> Self {
        let columns = outputs.next_multiple_of(PANEL);
        let panels = AlignedVec::filled(OFFSET as u8, columns * inputs.next_multiple_of(DEPTH));
        let mut packed = Self { inputs, outputs, panels, scales: vec![0.0; columns] };
        packed.fill(at);
        packed
    }

    /// Packs another matrix of the same shape in place.
    pub(crate) fn fill(&mut self, at: impl Fn(usize, usize) -> f32 + Sync) {
        let inputs = self.inputs;
        let outputs = self.outputs;
        let size = self.panel_size();
        let isa = Isa::detect(); // any kernel gives the same numbers
        let panels = self.panels.par_chunks_mut(size.max(1)).zip(self.scales.par_chunks_mut(PANEL));
        panels.enumerate().for_each(|(p, (panel, scales))| {
            // Each column is read once: `at` may be expensive, and rounding is fast on contiguous
            // numbers.
            let mut column = vec![0.0; inputs];
            let mut values = vec![0; inputs];
            for (j, scale) in scales.iter_mut().enumerate().take(outputs - p * PANEL) {
                column.iter_mut().enumerate().for_each(|(k, x)| *x = at(k, p * PANEL + j));
                rotate(isa, &mut column);
                let from = &column;
                let to = &mut values;
                (*scale, _) = per_isa!(isa, quantize(from: &[f32], to: &mut [i8]) -> (f32, i32));
                let quads = panel.chunks_exact_mut(QUAD).skip(j).step_by(PANEL);
                for (quad, values) in quads.zip(values.chunks(QUAD)) {
                    for (stored, &value) in quad.iter_mut().zip(values) {
                        *stored = (i32::from(value) + OFFSET) as u8;
                    }
                }
            }
        });
    }

    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Writes column `j` of the rounded matrix.
    pub(crate) fn column(&self, j: usize, out: &mut [f32]) {
        let panel = &self.panels[j / PANEL * self.panel_size()..];
        for (k, x) in out.iter_mut().enumerate() {
            let stored = panel[(k / QUAD * PANEL + j % PANEL) * QUAD + k % QUAD];
            *x = (i32::from(stored) - OFFSET) as f32 * self.scales[j];
        }
        rotate(Isa::detect(), out);
    }

    fn panel_size(&self) -> usize {
        self.inputs.next_multiple_of(DEPTH) * PANEL
    }
}

/// The bits of a number's magnitude. As integers they are ordered like the magnitudes, with NaN
/// largest, so that it propagates to the result; and compilers vectorize integer maxima.
#[inline(always)]
fn magnitude(x: f32) -> u32 {
    x.abs().to_bits()
}

/// The inverse scale used in rounding; 0 for a scale of 0.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// `x` in units of the scale, rounded to the nearest integer, ties to even; 0 for NaN.
#[inline(always)]
fn rounded(x: f32, inverse: f32) -> i8 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer in the low bits
    let value = (x * inverse).clamp(-LIMIT, LIMIT);
    let value = if value.is_nan() { 0.0 } else { value };
    (value + ROUND).to_bits() as i8
}

/// Rows of x, rotated and rounded to integers.
struct QuantizedRows {
    quads: usize,           // of a row
    values: ScratchVec<i8>, // (rows, quads * QUAD), plus rows of zeros that a tile may read
    scales: Vec<f32>,       // of each row
    offsets: Vec<i32>,      // OFFSET times the sum of each row's numbers
}

impl QuantizedRows {
    fn new(isa: Isa, x: &[f32], inputs: usize) -> Self {
        let rows = x.len().checked_div(inputs).unwrap_or(0);
        let quads = inputs.next_multiple_of(DEPTH) / QUAD;
        let mut values = ScratchVec::filled(0, (rows + READ_AHEAD) * quads * QUAD);
        let mut scales = vec![0.0; rows];
        let mut offsets = vec![0; rows];
        let parts = values
            .par_chunks_mut((quads * QUAD).max(1))
            .zip(x.par_chunks(inputs.max(1)))
            .zip(scales.par_iter_mut().zip(&mut offsets));
        let parts = parts.with_min_len(ROWS_PER_TASK);
        parts.for_each_init(Vec::new, |rotated: &mut Vec<f32>, ((to, from), (scale, offset))| {
            rotated.clear();
            rotated.extend_from_slice(from);
            rotate(isa, rotated);
            let from = &rotated[..];
            (*scale, *offset) = per_isa!(isa, quantize(from: &[f32], to: &mut [i8]) -> (f32, i32));
        });
        Self { quads, values, scales, offsets }
    }
}

/// Rows that an AMX tile may read beyond the last one.
const READ_AHEAD: usize = 15;
/// Rows that are rounded by one task: fewer are not worth waking a thread.
const ROWS_PER_TASK: usize = 16;

/// Rounds a row; returns its scale and OFFSET times the sum of its numbers.
#[inline(always)]
fn quantize<const FUSED: bool>(from: &[f32], to: &mut [i8]) -> (f32, i32) {
    // In lanes, so that the loop is vectorized; the order does not matter for a maximum.
    let mut lanes = [0; PANEL];
    let (whole, rest) = from.as_chunks::<PANEL>();
    for chunk in whole {
        for (most, &x) in lanes.iter_mut().zip(chunk) {
            *most = magnitude(x).max(*most);
        }
    }
    let most = lanes.into_iter().chain(rest.iter().map(|&x| magnitude(x))).fold(0, u32::max);
    let scale = f32::from_bits(most) / LIMIT;
    let inverse = inverse(scale);
    let mut sum = 0;
    for (value, &x) in to.iter_mut().zip(from) {
        *value = rounded(x, inverse);
        sum += i32::from(*value);
    }
    (scale, OFFSET * sum)
}

/// Multiplies x (rows, inputs), rounded row by row, by the weights on the current pool's threads.
pub(crate) fn gemm<E: TileEpilogue>(isa: Isa, x: &[f32], weights: &Int8Weights, epilogue: &E) {
    gemm_by(ByteKernel::for_isa(isa), isa, x, weights, epilogue);
}

fn gemm_by<E: TileEpilogue>(
    kernel: ByteKernel,
    isa: Isa,
    x: &[f32],
    weights: &Int8Weights,
    epilogue: &E,
) {
    let rows = QuantizedRows::new(isa, x, weights.inputs);
    let count = rows.scales.len();
    let outputs = weights.outputs;
    let height = kernel.tile_height().of(count);
    let grid = TaskGrid { rows: count, outputs, height, cached_rows: ROW_BLOCK };
    for_each_task(grid, |range| {
        run_task(kernel, &Int8Task { rows: &rows, weights, range }, epilogue);
    });
}

/// The instruction set for int8 products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteKernel {
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

impl ByteKernel {
    /// The fastest one that this CPU has and the instruction set allows.
    pub(crate) fn for_isa(isa: Isa) -> Self {
        Self::of_isa(isa).find(|kernel| kernel.is_present()).unwrap_or(Self::Portable)
    }

    /// Those that an instruction set allows, fastest first.
    fn of_isa(isa: Isa) -> impl Iterator<Item = Self> {
        let kernels: &[Self] = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => &[Self::Amx],
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &[Self::Avx512Vnni, Self::AvxVnni, Self::Avx2],
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &[Self::AvxVnni, Self::Avx2],
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &[Self::Neon, Self::Portable],
            _ => &[Self::Portable],
        };
        kernels.iter().copied()
    }

    /// The rows of its tiles.
    pub(crate) fn tile_height(self) -> TileHeight {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => TileHeight::REGISTERS,
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => TileHeight::up_to(6),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => TileHeight::up_to(3),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => TileHeight::up_to(6),
            _ => TileHeight::up_to(MAX_TILE),
        }
    }

    fn is_present(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Isa::Amx.is_present(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Isa::Avx512.is_present() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Isa::Avx2.is_present() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Isa::Avx2.is_present(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            Self::Portable => true,
        }
    }
}

impl fmt::Display for ByteKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => "AMX",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => "AVX-512 VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => "AVX-VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "AVX2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "NEON dot products",
            Self::Portable => "portable",
        })
    }
}

struct Int8Task<'a> {
    rows: &'a QuantizedRows,
    weights: &'a Int8Weights,
    range: TaskRange,
}

/// The arguments of a micro-kernel: rows of bytes at `a`, `quads` quads apart, times panels at `b`.
/// The memory at `fetched`, a panel or beyond the last one, is only prefetched.
#[derive(Clone, Copy)]
struct Int8Call<'a> {
    a: *const i8,
    b: *const u8,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fetched: *const u8,
    quads: usize,
    rows: usize,
    panels: usize,
    row_scales: &'a [f32],
    offsets: &'a [i32],
    scales: &'a [f32], // of the panels' columns
}

impl Int8Task<'_> {
    #[inline(always)]
    fn call(&self, tile: TilePlace) -> Int8Call<'_> {
        let quads = self.rows.quads;
        let panels = &self.weights.panels;
        let size = self.weights.panel_size();
        let fetched = self.range.fetched_panel(tile).unwrap_or(tile.panel);
        Int8Call {
            a: self.rows.values[tile.row * quads * QUAD..].as_ptr(),
            b: panels[tile.panel * size..].as_ptr(),
            fetched: panels.as_ptr().wrapping_add(fetched * size),
            quads,
            rows: tile.rows,
            panels: tile.panels,
            row_scales: &self.rows.scales[tile.row..],
            offsets: &self.rows.offsets[tile.row..],
            scales: &self.weights.scales[tile.panel * PANEL..],
        }
    }
}

fn run_task<E: TileEpilogue>(kernel: ByteKernel, task: &Int8Task<'_>, epilogue: &E) {
    match kernel {
        // SAFETY: `ByteKernel::for_isa` has checked the CPU.
        #[cfg(target_arch = "x86_64")]
        ByteKernel::Amx => unsafe { amx::run(task, epilogue) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        ByteKernel::Avx512Vnni => unsafe { x86::run_avx512_vnni(task, epilogue) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        ByteKernel::AvxVnni => unsafe { x86::run_avx_vnni(task, epilogue) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        ByteKernel::Avx2 => unsafe { x86::run_avx2(task, epilogue) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        ByteKernel::Neon => unsafe { neon::run(task, epilogue) },
        ByteKernel::Portable => {
            sweep::<false, MAX_TILE, E>(&task.range, epilogue, |place, tile| {
                portable_tile(task.call(place), tile);
            })
        }
    }
}

impl Int8Call<'_> {
    /// Writes row `r` of panel `p` from its sums of products with the offset weights.
    #[inline(always)]
    fn finish(&self, r: usize, p: usize, sums: [i32; PANEL], out: &mut [f32; TILE_COLS]) {
        let out = &mut out.as_chunks_mut().0[p];
        let scales = &self.scales.as_chunks().0[p];
        let (out, scales): (&mut [f32; PANEL], &[f32; PANEL]) = (out, scales);
        let offset = self.offsets[r];
        let row_scale = self.row_scales[r];
        for j in 0..PANEL {
            out[j] = (sums[j] - offset) as f32 * row_scale * scales[j];
        }
    }
}

fn portable_tile(call: Int8Call<'_>, tile: &mut OutputTile) {
    for (r, out) in tile[..call.rows].iter_mut().enumerate() {
        for p in 0..call.panels {
            let mut sums = [0; PANEL];
            for q in 0..call.quads {
                for (j, sum) in sums.iter_mut().enumerate() {
                    for i in 0..QUAD {
                        // SAFETY: the call's pointers cover its rows and panels.
                        let (a, b) = unsafe {
                            (
                                *call.a.add((r * call.quads + q) * QUAD + i),
                                *call.b.add(((p * call.quads + q) * PANEL + j) * QUAD + i),
                            )
                        };
                        *sum += i32::from(a) * i32::from(b);
                    }
                }
            }
            call.finish(r, p, sums, out);
        }
    }
}

#[cfg(test)]
mod tests;
