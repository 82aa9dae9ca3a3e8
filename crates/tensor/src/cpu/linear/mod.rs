//! GEMM with packed weights: `out = x W`, then an epilogue on each tile while it is in cache.
//!
//! Weights are packed into panels of 16 columns, each row-major, and x into tiles of rows, each
//! column-major, so that a micro-kernel reads both as streams; x is packed once for all panels. A
//! micro-kernel computes a tile of up to `MAX_TILE` rows by one or two panels, which stays in
//! registers over all of k. Each element is one chain of multiply-adds in the order of k for every
//! tile shape, so a row's result does not depend on the number of rows; AVX2, AVX-512 and NEON
//! agree with each other to the bit.
//!
//! Rows are processed in blocks that fit the L2 cache, panels in groups that give every thread
//! several tasks.

use std::mem::MaybeUninit;
use std::ops::Range;

use rayon::prelude::*;

use super::aligned::{AlignedVec, ScratchVec};
use super::isa::Isa;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Columns of a panel: one AVX-512 register, two of AVX2, four of NEON.
pub(crate) const PANEL: usize = 16;
/// Maximum panels of a tile.
const PANELS_PER_TILE: usize = 2;
/// Columns of the widest tile.
pub(crate) const TILE_COLS: usize = PANEL * PANELS_PER_TILE;
/// Rows that share one pass over the weights: their part of x stays in the L2 cache.
pub(crate) const ROW_BLOCK: usize = 384;

/// A weight matrix (inputs, outputs) in the layout of the micro-kernels.
#[derive(Clone, Debug)]
pub struct PackedWeights {
    inputs: usize,
    outputs: usize,
    panels: AlignedVec<f32>, // (ceil(outputs / PANEL), inputs, PANEL); columns beyond the last are zero
}

impl PackedWeights {
    /// Packs a matrix whose element (input, output) is `at(input, output)`.
    pub(crate) fn new(
        inputs: usize,
        outputs: usize,
        at: impl Fn(usize, usize) -> f32 + Sync,
    ) -> Self {
        let panels = AlignedVec::filled(0.0, outputs.div_ceil(PANEL) * inputs * PANEL);
        let mut packed = Self { inputs, outputs, panels };
        packed.fill(at);
        packed
    }

    /// Packs another matrix of the same shape in place.
    pub(crate) fn fill(&mut self, at: impl Fn(usize, usize) -> f32 + Sync) {
        let inputs = self.inputs;
        let outputs = self.outputs;
        self.panels.par_chunks_mut((inputs * PANEL).max(1)).enumerate().for_each(|(p, panel)| {
            let width = PANEL.min(outputs - p * PANEL);
            for (k, row) in panel.chunks_mut(PANEL).enumerate() {
                for (j, x) in row[..width].iter_mut().enumerate() {
                    *x = at(k, p * PANEL + j);
                }
            }
        });
    }

    /// The width of x.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The width of the result.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Writes column `j` of the matrix: row `j` of a tied embedding table.
    pub(crate) fn column(&self, j: usize, out: &mut [f32]) {
        let panel = &self.panels[j / PANEL * self.inputs * PANEL..][..self.inputs * PANEL];
        for (x, row) in out.iter_mut().zip(panel.chunks(PANEL)) {
            *x = row[j % PANEL];
        }
    }
}

/// x (rows, cols) as (cols, rows).
pub(crate) fn transposed(x: &[f32], cols: usize) -> Vec<f32> {
    const TOGETHER: usize = 16; // columns of a task: they share cache lines of x
    let rows = x.len().checked_div(cols).unwrap_or(0);
    let mut out = vec![0.0; x.len()];
    out.par_chunks_mut((TOGETHER * rows).max(1)).enumerate().for_each(|(i, part)| {
        let first = i * TOGETHER;
        for (r, row) in x.chunks(cols).enumerate() {
            for (c, &value) in row[first..cols.min(first + TOGETHER)].iter().enumerate() {
                part[c * rows + r] = value;
            }
        }
    });
    out
}

/// Consumes finished tiles. Implementations are `#[inline(always)]`, so that they are compiled for
/// the micro-kernel's instruction set.
pub(crate) trait TileEpilogue: Sync {
    /// The address to which results from `(row, col)` on will be written, if it is worth
    /// prefetching during the computation.
    #[inline(always)]
    fn destination(&self, _row: usize, _col: usize) -> Option<*const f32> {
        None
    }

    /// Receives a tile's results.
    ///
    /// # Safety
    /// Each element is passed once; no two concurrent calls share one.
    unsafe fn finish_tile<const FUSED: bool, const ROWS: usize>(
        &self,
        bounds: TileBounds,
        tile: &mut OutputTile<ROWS>,
    );
}

/// The part of a product that a tile holds.
#[derive(Clone, Copy)]
pub(crate) struct TileBounds {
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) col: usize,
    pub(crate) width: usize,
    pub(crate) height: usize, // rows of every tile of the product but the last
}

/// A [`TileEpilogue`] that processes the rows of a tile independently.
pub(crate) trait RowEpilogue: Sync {
    /// See [`TileEpilogue::destination`].
    fn row_destination(&self, row: usize, col: usize) -> Option<*const f32>;

    /// Receives the results of columns `col .. col + values.len()` of `row`.
    ///
    /// # Safety
    /// Each element is passed once; no two concurrent calls share one.
    unsafe fn finish<const FUSED: bool>(&self, row: usize, col: usize, values: &mut [f32]);
}

impl<E: RowEpilogue> TileEpilogue for E {
    #[inline(always)]
    fn destination(&self, row: usize, col: usize) -> Option<*const f32> {
        self.row_destination(row, col)
    }

    #[inline(always)]
    unsafe fn finish_tile<const FUSED: bool, const ROWS: usize>(
        &self,
        bounds: TileBounds,
        tile: &mut OutputTile<ROWS>,
    ) {
        let TileBounds { row, rows, col, width, .. } = bounds;
        for (r, values) in tile[..rows].iter_mut().enumerate() {
            // SAFETY: by this function's own contract.
            unsafe {
                if width == TILE_COLS {
                    // A width known at compile time: whole registers, and no loops.
                    self.finish::<FUSED>(row + r, col, values);
                } else {
                    self.finish::<FUSED>(row + r, col, &mut values[..width]);
                }
            }
        }
    }
}

/// Writes results unchanged, for tests.
#[cfg(test)]
pub(super) struct StoreEpilogue {
    out: *mut f32, // (rows, cols)
    cols: usize,
}

// SAFETY: no two concurrent calls of `gemm`'s epilogue write the same element.
#[cfg(test)]
unsafe impl Sync for StoreEpilogue {}

#[cfg(test)]
impl StoreEpilogue {
    /// The product of this shape that `gemm` computes.
    pub(super) fn product(rows: usize, cols: usize, gemm: impl FnOnce(&Self)) -> Vec<f32> {
        let mut out = vec![f32::NAN; rows * cols];
        gemm(&Self { out: out.as_mut_ptr(), cols });
        out
    }
}

#[cfg(test)]
impl RowEpilogue for StoreEpilogue {
    fn row_destination(&self, _row: usize, _col: usize) -> Option<*const f32> {
        None
    }

    unsafe fn finish<const FUSED: bool>(&self, row: usize, col: usize, values: &mut [f32]) {
        // SAFETY: the output has the product's shape, and each element is passed once.
        let out = unsafe {
            std::slice::from_raw_parts_mut(self.out.add(row * self.cols + col), values.len())
        };
        out.copy_from_slice(values);
    }
}

/// Multiplies x (rows, inputs) by the weights on the current pool's threads.
pub(crate) fn gemm<E: TileEpilogue>(isa: Isa, x: &[f32], weights: &PackedWeights, epilogue: &E) {
    let rows = PackedRows::new(isa, x, weights.inputs);
    let count = rows.count;
    let outputs = weights.outputs;
    let height = rows.height;
    let grid = TaskGrid { rows: count, outputs, height, cached_rows: ROW_BLOCK };
    for_each_task(grid, |range| {
        run_task(isa, &GemmTask { rows: &rows, weights, range }, epilogue);
    });
}

/// Numbers that are packed by one task: fewer are not worth waking a thread.
const NUMBERS_PER_TASK: usize = 1 << 15;

/// x in tiles of rows, as the micro-kernels read it.
struct PackedRows {
    count: usize,           // of rows
    height: usize,          // of the tiles
    tiles: ScratchVec<f32>, // (ceil(count / height), inputs, height); rows beyond the last are 0
}

impl PackedRows {
    fn new(isa: Isa, x: &[f32], inputs: usize) -> Self {
        let count = x.len().checked_div(inputs).unwrap_or(0);
        let height = tile_height(isa).of(count);
        let len = count.next_multiple_of(height) * inputs;
        let size = (height * inputs).max(1);
        let pack = |to: &mut [MaybeUninit<f32>]| {
            let parts = to.par_chunks_mut(size).zip(x.par_chunks(size));
            parts.with_min_len(NUMBERS_PER_TASK.div_ceil(size)).for_each(|(tile, x)| {
                let rows = TileRows { data: x, count: x.len() / inputs, stride: inputs };
                pack_tile(isa, &mut PackedTile { values: tile, height, inputs }, rows);
            });
        };
        // SAFETY: there are as many tiles as chunks of x, and each is written whole.
        let tiles = unsafe { ScratchVec::written_by(len, pack) };
        Self { count, height, tiles }
    }
}

/// A tile of x that is being packed.
struct PackedTile<'a> {
    values: &'a mut [MaybeUninit<f32>], // (inputs, height)
    height: usize,
    inputs: usize,
}

/// The rows of x that are packed into a tile.
#[derive(Clone, Copy)]
pub(super) struct TileRows<'a> {
    pub(super) data: &'a [f32], // begins with the first row
    pub(super) count: usize,
    pub(super) stride: usize, // from row to row
}

/// Writes rows (up to height, inputs) as (inputs, height); lanes without a row become 0.
fn pack_tile(isa: Isa, tile: &mut PackedTile<'_>, rows: TileRows<'_>) {
    let whole = match isa {
        // SAFETY: a device is only created for an instruction set that the CPU has.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512 => unsafe { x86::pack_avx512(tile, rows) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::pack_avx2(tile, rows) },
        _ => 0,
    };
    let inputs = tile.inputs;
    let height = tile.height;
    let rest = &mut tile.values[whole * height..];
    for r in 0..height {
        let to = rest.iter_mut().skip(r).step_by(height);
        if r < rows.count {
            let row = &rows.data[r * rows.stride..][whole..inputs];
            to.zip(row).for_each(|(to, &value)| _ = to.write(value));
        } else {
            to.for_each(|to| _ = to.write(0.0));
        }
    }
}

/// [`pack_tile`] with a row in each lane.
pub(super) fn pack_lanes<const L: usize>(isa: Isa, rows: TileRows<'_>, to: &mut [[f32; L]]) {
    let inputs = to.len();
    let values = to.as_flattened_mut();
    // SAFETY: what is written through it are numbers.
    let values = unsafe { &mut *(std::ptr::from_mut(values) as *mut [MaybeUninit<f32>]) };
    pack_tile(isa, &mut PackedTile { values, height: L, inputs }, rows);
}

/// Tile height of an instruction set: as many rows as its registers hold beside a panel's row.
pub(crate) fn tile_height(isa: Isa) -> TileHeight {
    TileHeight::up_to(match isa {
        Isa::Amx | Isa::Avx512 => MAX_TILE,
        Isa::Avx2 | Isa::Neon => 6,
        Isa::Portable => 4,
    })
}

/// The part of a product that one task computes.
pub(super) struct TaskRange {
    rows: Range<usize>, // begins with a tile
    height: usize,      // of the tiles
    panels: Range<usize>,
    outputs: usize,
}

impl TaskRange {
    /// The panel that a tile's micro-kernel prefetches from memory into the L2 cache, line by line,
    /// while it computes: the tiles of the first rows prefetch the following panels. `None` if
    /// there is nothing to prefetch, or only one tile per panel, which is memory-bound in any case.
    #[inline(always)]
    pub(super) fn fetched_panel(&self, tile: TilePlace) -> Option<usize> {
        let i = (tile.row - self.rows.start) / self.height;
        let fetches = i < PANELS_PER_TILE && self.rows.len() > self.height;
        fetches.then_some(tile.panel + tile.panels + i)
    }
}

/// A product of (rows, outputs) that is divided into tasks of whole tiles.
pub(super) struct TaskGrid {
    pub(super) rows: usize,
    pub(super) outputs: usize,
    pub(super) height: usize,      // of the tiles
    pub(super) cached_rows: usize, // maximum per task, at least one tile
}

/// Runs a product's tasks on the current pool's threads.
pub(super) fn for_each_task(grid: TaskGrid, run: impl Fn(TaskRange) + Sync) {
    let TaskGrid { rows, outputs, height, cached_rows } = grid;
    if rows == 0 || outputs == 0 {
        return;
    }
    let panels = outputs.div_ceil(PANEL);
    let group = group_size(panels);
    let groups = panels.div_ceil(group);
    let block_rows = (cached_rows / height).max(1) * height;
    // The tasks of all blocks are scheduled at once, those of a block consecutively: with a barrier
    // after every block threads would idle for a good part of a task each time.
    let task = |i: usize| {
        let first = i / groups * block_rows;
        let g = i % groups;
        let block = first..rows.min(first + block_rows);
        let columns = g * group..panels.min((g + 1) * group);
        run(TaskRange { rows: block, height, panels: columns, outputs });
    };
    match rows.div_ceil(block_rows) * groups {
        1 => task(0),
        tasks => (0..tasks).into_par_iter().for_each(task),
    }
}

/// Panels per task: several tasks per thread for load balance, and an even number of panels, so
/// that tiles of two stay whole.
fn group_size(panels: usize) -> usize {
    let threads = rayon::current_num_threads();
    if threads == 1 {
        return panels;
    }
    panels.div_ceil(threads * 4).next_multiple_of(PANELS_PER_TILE)
}

/// A block of rows times a group of panels.
struct GemmTask<'a> {
    rows: &'a PackedRows,
    weights: &'a PackedWeights,
    range: TaskRange,
}

impl GemmTask<'_> {
    /// The arguments of the micro-kernel for a tile.
    #[inline(always)]
    fn call(&self, tile: TilePlace) -> TileCall {
        let inputs = self.weights.inputs;
        let panels = &self.weights.panels;
        let fetched = self.range.fetched_panel(tile).unwrap_or(tile.panel);
        TileCall {
            a: self.rows.tiles[tile.row * inputs..].as_ptr(),
            b: panels[tile.panel * inputs * PANEL..].as_ptr(),
            fetched: panels.as_ptr().wrapping_add(fetched * inputs * PANEL),
            inputs,
            height: self.rows.height,
            rows: tile.rows,
            panels: tile.panels,
        }
    }
}

fn run_task<E: TileEpilogue>(isa: Isa, task: &GemmTask<'_>, epilogue: &E) {
    match isa {
        // SAFETY: a device is only created for an instruction set that the CPU has.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512 => unsafe { x86::run_avx512(task, epilogue) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::run_avx2(task, epilogue) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => neon::run(task, epilogue),
        _ => sweep::<false, MAX_TILE, E>(&task.range, epilogue, |place, tile| {
            portable_tile(task.call(place), tile);
        }),
    }
}

/// The arguments of a micro-kernel: the first `rows` of a tile of x at `a`, which is (inputs,
/// height), times `panels` (1 or 2) panels at `b`. The memory at `fetched`, a panel or beyond the
/// last one, is only prefetched.
#[derive(Clone, Copy)]
struct TileCall {
    a: *const f32,
    b: *const f32,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fetched: *const f32,
    inputs: usize,
    height: usize,
    rows: usize,
    panels: usize,
}

/// The rows and panels (1 or 2) of a tile.
#[derive(Clone, Copy)]
pub(super) struct TilePlace {
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) panel: usize,
    pub(super) panels: usize,
}

/// A micro-kernel's result: row r of the tile at `[r]`.
pub(crate) type OutputTile<const ROWS: usize = MAX_TILE> = [[f32; TILE_COLS]; ROWS];
/// Maximum rows of a tile in vector registers.
pub(super) const MAX_TILE: usize = 14;

/// Rows of an AMX tile register.
pub(crate) const REGISTER_ROWS: usize = 16;
/// Maximum rows of a tile in tile registers.
pub(super) const MAX_REGISTER_TILE: usize = 2 * REGISTER_ROWS;

/// The rows of a micro-kernel's tiles.
#[derive(Clone, Copy)]
pub(crate) struct TileHeight {
    /// Maximum rows.
    pub(super) most: usize,
    /// The number of rows is a multiple of this.
    pub(super) step: usize,
}

impl TileHeight {
    /// Tiles in tile registers, which are split between registers.
    pub(crate) const REGISTERS: Self = Self { most: MAX_REGISTER_TILE, step: REGISTER_ROWS };

    pub(super) fn up_to(most: usize) -> Self {
        Self { most, step: 1 }
    }

    /// The height that divides `rows` into nearly equal tiles: 16 rows are 8 + 8, not 14 + 2.
    pub(crate) fn of(self, rows: usize) -> usize {
        let rows = rows.max(1);
        rows.div_ceil(rows.div_ceil(self.most)).next_multiple_of(self.step)
    }
}

/// Computes the task's tiles, with panels in the outer loop so that they stay in cache over all
/// rows.
#[inline(always)]
pub(super) fn sweep<const FUSED: bool, const ROWS: usize, E: TileEpilogue>(
    range: &TaskRange,
    epilogue: &E,
    kernel: impl Fn(TilePlace, &mut OutputTile<ROWS>),
) {
    let TaskRange { rows: all, height, panels: columns, outputs } = range;
    let mut tile: OutputTile<ROWS> = [[0.0; TILE_COLS]; ROWS];
    for panel in columns.clone().step_by(PANELS_PER_TILE) {
        let panels = PANELS_PER_TILE.min(columns.end - panel);
        let col = panel * PANEL;
        let width = (panels * PANEL).min(outputs - col);
        for row in all.clone().step_by(*height) {
            let rows = (*height).min(all.end - row);
            for r in 0..rows {
                fetch_for_writing(epilogue.destination(row + r, col), width);
            }
            kernel(TilePlace { row, rows, panel, panels }, &mut tile);
            let bounds = TileBounds { row, rows, col, width, height: *height };
            // SAFETY: tasks have no row and panel in common, and each tile is finished once.
            unsafe { epilogue.finish_tile::<FUSED, ROWS>(bounds, &mut tile) };
        }
    }
}

/// Prefetches the cache lines of `numbers` numbers for writing: results are written all at once,
/// and far apart, so that the CPU would wait for each line.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
fn fetch_for_writing(at: Option<*const f32>, numbers: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(at) = at {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        for i in (0..numbers).step_by(PANEL) {
            // SAFETY: every x86-64 CPU has the instruction or ignores it, and a prefetch may point
            // anywhere.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.wrapping_add(i).cast()) };
        }
    }
}

#[inline(always)]
fn portable_tile(call: TileCall, tile: &mut OutputTile) {
    for (r, out) in tile[..call.rows].iter_mut().enumerate() {
        for p in 0..call.panels {
            let mut acc = [0.0f32; PANEL];
            for k in 0..call.inputs {
                // SAFETY: the call's pointers cover a tile of x and `panels` whole panels.
                let (a, b) = unsafe {
                    (*call.a.add(k * call.height + r), call.b.add((p * call.inputs + k) * PANEL))
                };
                for (j, x) in acc.iter_mut().enumerate() {
                    // SAFETY: as above.
                    *x += a * unsafe { *b.add(j) };
                }
            }
            out[p * PANEL..][..PANEL].copy_from_slice(&acc);
        }
    }
}

/// Calls `$kernel::<R, P>` for the call's rows and panels.
#[cfg(target_arch = "x86_64")]
macro_rules! by_size {
    ($call:expr, $tile:expr, $kernel:ident, [$($r:literal)*]) => {
        match ($call.rows, $call.panels) {
            $(
                ($r, 1) => $kernel::<$r, 1>($call, $tile),
                ($r, _) => $kernel::<$r, 2>($call, $tile),
            )*
            _ => unreachable!("tiles have 1 to {MAX_TILE} rows"),
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use by_size;

/// Calls `$kernel::<R>` for the call's rows, one panel after the other.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! panel_by_panel {
    ($call:expr, $tile:expr, $kernel:ident, [$($r:literal)*]) => {
        for p in 0..$call.panels {
            match $call.rows {
                $($r => $kernel::<$r>($call, $tile, p),)*
                rows => unreachable!("a tile of {rows} rows for the kernel of another height"),
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use panel_by_panel;
