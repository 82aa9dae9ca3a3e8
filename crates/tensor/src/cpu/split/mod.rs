//! GEMM of f32 rows with bf16 weights, for CPUs that multiply bf16 many times faster than f32.
//!
//! A significand of 24 bits is three of eight: every f32 number is the sum of three bf16 numbers,
//! its parts. So a product with a bf16 weight is the sum of three products of bf16 numbers, which
//! are exact in f32.
//!
//! The order of the sums is that of the instruction: over each [`DEPTH`] inputs, for each part,
//! smallest first, even and odd inputs are summed separately starting from zero, and the sum of
//! both is added to the result. It depends on neither the tile nor the batch. Numbers below 2^-126
//! are flushed to zero, and an infinite one makes its products NaN.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::aligned::{AlignedVec, ScratchVec};
use super::isa::{Isa, per_isa};
use super::linear::{
    MAX_REGISTER_TILE, OutputTile, PANEL, REGISTER_ROWS, ROW_BLOCK, TaskGrid, TaskRange,
    TileEpilogue, TileHeight, TilePlace, for_each_task, sweep,
};

#[cfg(target_arch = "x86_64")]
mod amx;

/// Number of parts.
const PARTS: usize = 3;
/// Inputs per instruction; inputs are zero-padded to a multiple of it.
const DEPTH: usize = 32;
/// Numbers per register, for both x and weights.
const REGISTER: usize = REGISTER_ROWS * DEPTH;
const _: () = assert!(REGISTER == PANEL * DEPTH);
/// Bytes of x that stay in the L2 cache together with a panel of weights.
const CACHED_BYTES: usize = 1 << 20;
/// Numbers that are split by one task: fewer are not worth waking a thread.
const NUMBERS_PER_TASK: usize = 1 << 15;
/// The parts of a number: its first eight significand bits, the next eight, the rest.
#[inline(always)]
fn parts_of(x: f32) -> [u16; PARTS] {
    let leading = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
    let first = leading(x);
    let rest = x - first;
    let second = leading(rest);
    [first, second, rest - second].map(|part| (part.to_bits() >> 16) as u16)
}

/// A bf16 number as f32.
#[inline(always)]
fn widened(part: u16) -> f32 {
    f32::from_bits(u32::from(part) << 16)
}

/// A matrix (inputs, outputs) of bf16 numbers in the layout of the micro-kernels.
#[derive(Clone, Debug)]
pub(crate) struct Bf16Weights {
    inputs: usize,
    outputs: usize,
    /// (ceil(outputs / PANEL), blocks of DEPTH inputs, DEPTH / 2, PANEL, 2)
    panels: AlignedVec<u16>,
}

impl Bf16Weights {
    /// Packs a matrix whose element (input, output) is `at(input, output)`, if all are bf16
    /// numbers.
    pub(crate) fn new(
        inputs: usize,
        outputs: usize,
        at: impl Fn(usize, usize) -> f32 + Sync,
    ) -> Option<Self> {
        let panels = AlignedVec::filled(0, outputs.div_ceil(PANEL) * panel_size(inputs));
        let mut packed = Self { inputs, outputs, panels };
        let pack = |(p, panel): (usize, &mut [u16])| {
            let width = PANEL.min(outputs - p * PANEL);
            (0..inputs).all(|k| {
                (0..width).all(|j| {
                    let bits = at(k, p * PANEL + j).to_bits();
                    panel[place_in_panel(k, j)] = (bits >> 16) as u16;
                    bits & 0xffff == 0
                })
            })
        };
        let panels = packed.panels.par_chunks_mut(panel_size(inputs).max(1)).enumerate();
        (inputs > 0 && panels.map(pack).all(|is_bf16| is_bf16)).then_some(packed)
    }

    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Writes column `j` of the matrix.
    pub(crate) fn column(&self, j: usize, out: &mut [f32]) {
        let panel = &self.panels[j / PANEL * panel_size(self.inputs)..];
        for (k, x) in out.iter_mut().enumerate() {
            *x = widened(panel[place_in_panel(k, j % PANEL)]);
        }
    }
}

/// Size of a panel of weights in numbers.
fn panel_size(inputs: usize) -> usize {
    inputs.div_ceil(DEPTH) * REGISTER
}

/// Index of weight (k, j) within a panel.
#[inline(always)]
fn place_in_panel(k: usize, j: usize) -> usize {
    k / DEPTH * REGISTER + (k % DEPTH / 2 * PANEL + j) * 2 + k % 2
}

/// x in tiles of rows, split into parts.
struct SplitRows {
    count: usize,     // of rows
    registers: usize, // of a tile's rows
    blocks: usize,    // of DEPTH inputs
    /// (tiles, blocks, registers, PARTS, REGISTER_ROWS, DEPTH); rows beyond the last are 0
    tiles: ScratchVec<u16>,
}

impl SplitRows {
    fn new(isa: Isa, x: &[f32], inputs: usize) -> Self {
        let count = x.len().checked_div(inputs).unwrap_or(0);
        let height = TileHeight::REGISTERS.of(count);
        let registers = height / REGISTER_ROWS;
        let blocks = inputs.div_ceil(DEPTH);
        let size = blocks * registers * PARTS * REGISTER;
        let len = count.div_ceil(height) * size;
        let split = |to: &mut [MaybeUninit<u16>]| {
            let tiles = to.par_chunks_mut(size.max(1)).zip(x.par_chunks((height * inputs).max(1)));
            tiles.with_min_len(NUMBERS_PER_TASK.div_ceil(size.max(1))).for_each(|(values, x)| {
                let tile = &mut SplitTile { values, registers, blocks };
                per_isa!(isa, split_tile(tile: &mut SplitTile<'_>, x: &[f32], inputs: usize));
            });
        };
        // SAFETY: there are as many tiles as chunks of x, and each is written whole.
        let tiles = unsafe { ScratchVec::written_by(len, split) };
        Self { count, registers, blocks, tiles }
    }

    fn tile_size(&self) -> usize {
        self.blocks * self.registers * PARTS * REGISTER
    }
}

/// A tile of x that is being written.
struct SplitTile<'a> {
    values: &'a mut [MaybeUninit<u16>],
    registers: usize,
    blocks: usize,
}

/// Writes the parts of rows of x, and zeros for the remaining rows of the tile.
#[inline(always)]
fn split_tile<const FUSED: bool>(tile: &mut SplitTile<'_>, x: &[f32], inputs: usize) {
    for r in 0..tile.registers * REGISTER_ROWS {
        let row = x.get(r * inputs..(r + 1) * inputs).unwrap_or_default();
        let (whole, rest) = row.as_chunks::<DEPTH>();
        whole.iter().enumerate().for_each(|(block, x)| tile.write(block, r, x));
        for block in whole.len()..tile.blocks {
            let mut padded = [0.0; DEPTH];
            if block == whole.len() {
                padded[..rest.len()].copy_from_slice(rest);
            }
            tile.write(block, r, &padded);
        }
    }
}

impl SplitTile<'_> {
    #[inline(always)]
    fn write(&mut self, block: usize, row: usize, x: &[f32; DEPTH]) {
        let mut split = [[0; DEPTH]; PARTS];
        for k in 0..DEPTH {
            let parts = parts_of(x[k]);
            for part in 0..PARTS {
                split[part][k] = parts[part];
            }
        }
        let register = (block * self.registers + row / REGISTER_ROWS) * PARTS;
        for (part, split) in split.iter().enumerate() {
            let at = (register + part) * REGISTER + row % REGISTER_ROWS * DEPTH;
            let to = &mut self.values[at..at + DEPTH];
            to.iter_mut().zip(split).for_each(|(to, &value)| _ = to.write(value));
        }
    }
}

/// Multiplies x (rows, inputs) by the weights on the current pool's threads.
pub(crate) fn gemm<E: TileEpilogue>(isa: Isa, x: &[f32], weights: &Bf16Weights, epilogue: &E) {
    let kernel = match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => SplitKernel::Amx,
        _ => SplitKernel::Portable,
    };
    gemm_by(kernel, isa, x, weights, epilogue);
}

/// The implementation of the products of parts.
#[derive(Clone, Copy, Debug)]
enum SplitKernel {
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// Plain loops with the same bits, as a reference for tests.
    Portable,
}

fn gemm_by<E: TileEpilogue>(
    kernel: SplitKernel,
    isa: Isa,
    x: &[f32],
    weights: &Bf16Weights,
    epilogue: &E,
) {
    let rows = SplitRows::new(isa, x, weights.inputs);
    let count = rows.count;
    let outputs = weights.outputs;
    let height = rows.registers * REGISTER_ROWS;
    let row_bytes = (rows.blocks * DEPTH * PARTS * size_of::<u16>()).max(1);
    let cached_rows = ROW_BLOCK.min(CACHED_BYTES / row_bytes);
    let grid = TaskGrid { rows: count, outputs, height, cached_rows };
    for_each_task(grid, |range| {
        let task = SplitTask { rows: &rows, weights, range };
        match kernel {
            // SAFETY: the caller of `gemm` has checked the instruction set.
            #[cfg(target_arch = "x86_64")]
            SplitKernel::Amx => unsafe { amx::run(&task, epilogue) },
            SplitKernel::Portable => {
                sweep::<false, MAX_REGISTER_TILE, E>(&task.range, epilogue, |place, tile| {
                    portable_tile(task.call(place), tile);
                })
            }
        }
    });
}

struct SplitTask<'a> {
    rows: &'a SplitRows,
    weights: &'a Bf16Weights,
    range: TaskRange,
}

/// The arguments of a micro-kernel: a tile of x at `a` times panels at `b`. The memory at
/// `fetched`, a panel or beyond the last one, is only prefetched.
#[derive(Clone, Copy)]
struct SplitCall {
    a: *const u16,
    b: *const u16,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fetched: *const u16,
    blocks: usize,
    registers: usize, // of rows that the tile of x has; those from `rows` on are not needed
    rows: usize,
    panels: usize,
}

impl SplitTask<'_> {
    #[inline(always)]
    fn call(&self, tile: TilePlace) -> SplitCall {
        let rows = self.rows;
        let weights = self.weights;
        let of_x = tile.row / (rows.registers * REGISTER_ROWS);
        let size = panel_size(weights.inputs);
        let fetched = self.range.fetched_panel(tile).unwrap_or(tile.panel);
        SplitCall {
            a: rows.tiles[of_x * rows.tile_size()..].as_ptr(),
            b: weights.panels[tile.panel * size..].as_ptr(),
            fetched: weights.panels.as_ptr().wrapping_add(fetched * size),
            blocks: rows.blocks,
            registers: rows.registers,
            rows: tile.rows,
            panels: tile.panels,
        }
    }
}

fn portable_tile(call: SplitCall, tile: &mut OutputTile<MAX_REGISTER_TILE>) {
    for (r, out) in tile[..call.rows].iter_mut().enumerate() {
        for (j, out) in out[..call.panels * PANEL].iter_mut().enumerate() {
            *out = 0.0;
            for block in 0..call.blocks {
                for part in (0..PARTS).rev() {
                    let mut sums = [0.0; 2];
                    for k in 0..DEPTH {
                        sums[k % 2] += call.x(block, r, part, k) * call.weight(block, j, k);
                    }
                    *out += sums[0] + sums[1];
                }
            }
        }
    }
}

impl SplitCall {
    /// A part of input `k` of a block, in row `r`.
    fn x(&self, block: usize, r: usize, part: usize, k: usize) -> f32 {
        let register = (block * self.registers + r / REGISTER_ROWS) * PARTS + part;
        // SAFETY: the call's pointers cover a tile of x.
        widened(unsafe { *self.a.add(register * REGISTER + r % REGISTER_ROWS * DEPTH + k) })
    }

    /// The weight of input `k` of a block for output `j`.
    fn weight(&self, block: usize, j: usize, k: usize) -> f32 {
        let panel = j / PANEL * self.blocks * REGISTER;
        // SAFETY: the call's pointers cover its panels.
        widened(unsafe { *self.b.add(panel + place_in_panel(block * DEPTH + k, j % PANEL)) })
    }
}

#[cfg(test)]
mod tests;
