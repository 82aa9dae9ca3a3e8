//! GEMM in int8: weights with a scale per output, activations with a scale per row.
//!
//! Both are rounded to whole numbers from -127 to 127 and multiplied exactly: a sum of products is
//! one integer, whatever the tile, the batch or the instruction set. Its value in f32 is
//! `sum * scale of the row * scale of the output`, in that order.
//!
//! The dot-product instructions multiply unsigned by signed bytes, so weights are stored with 128
//! added, and 128 times the sum of a row's numbers is taken away again. Panels are 16 columns wide
//! as those of f32; four consecutive inputs of a column are neighbours.

use rayon::prelude::*;

use super::isa::{Isa, per_isa};
use super::linear::{
    MAX_TILE, OutputTile, PANEL, TaskRange, TileEpilogue, TilePlace, for_each_task, sweep,
};

/// Inputs that one dot-product instruction takes of each column.
const QUAD: usize = 4;
/// The largest rounded number.
const LIMIT: f32 = 127.0;
/// What is added to a weight so that it is not negative.
const OFFSET: i32 = 128;

/// A weight matrix (inputs, outputs) in int8, in the layout of the micro-kernels.
#[derive(Clone, Debug)]
pub(crate) struct Int8Weights {
    inputs: usize,
    outputs: usize,
    /// (ceil(outputs / PANEL), ceil(inputs / QUAD), PANEL, QUAD); zero is stored as OFFSET.
    panels: Vec<u8>,
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
        let panels = vec![OFFSET as u8; columns * inputs.next_multiple_of(QUAD)];
        let mut packed = Self { inputs, outputs, panels, scales: vec![0.0; columns] };
        packed.fill(at);
        packed
    }

    /// Packs another matrix of the same shape.
    pub(crate) fn fill(&mut self, at: impl Fn(usize, usize) -> f32 + Sync) {
        let (inputs, outputs, size) = (self.inputs, self.outputs, self.panel_size());
        let panels = self.panels.par_chunks_mut(size.max(1)).zip(self.scales.par_chunks_mut(PANEL));
        panels.enumerate().for_each(|(p, (panel, scales))| {
            for (j, scale) in scales.iter_mut().enumerate().take(outputs - p * PANEL) {
                let column = |k: usize| at(k, p * PANEL + j);
                *scale = (0..inputs).fold(0.0, |most: f32, k| largest(most, column(k))) / LIMIT;
                for k in 0..inputs {
                    let value = i32::from(rounded(column(k), inverse(*scale)));
                    panel[(k / QUAD * PANEL + j) * QUAD + k % QUAD] = (value + OFFSET) as u8;
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

    /// Writes column `j` of the matrix as it is after rounding.
    pub(crate) fn column(&self, j: usize, out: &mut [f32]) {
        let panel = &self.panels[j / PANEL * self.panel_size()..];
        for (k, x) in out.iter_mut().enumerate() {
            let stored = panel[(k / QUAD * PANEL + j % PANEL) * QUAD + k % QUAD];
            *x = (i32::from(stored) - OFFSET) as f32 * self.scales[j];
        }
    }

    fn panel_size(&self) -> usize {
        self.inputs.next_multiple_of(QUAD) * PANEL
    }
}

/// The larger magnitude; NaN if either is, so that it reaches the result.
#[inline(always)]
fn largest(most: f32, x: f32) -> f32 {
    if x.is_nan() || x.abs() > most { x.abs() } else { most }
}

/// What rounding multiplies by; 0 for a scale of 0.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// `x` in units of the scale, rounded to the nearest whole number, halves to the even one.
#[inline(always)]
fn rounded(x: f32, inverse: f32) -> i8 {
    (x * inverse).round_ties_even().clamp(-LIMIT, LIMIT) as i8
}

/// Rows of x as whole numbers.
struct QuantizedRows {
    quads: usize,      // of a row
    values: Vec<i8>,   // (rows, quads * QUAD)
    scales: Vec<f32>,  // of each row
    offsets: Vec<i32>, // OFFSET times the sum of each row's numbers
}

impl QuantizedRows {
    fn new(isa: Isa, x: &[f32], inputs: usize) -> Self {
        let rows = x.len().checked_div(inputs).unwrap_or(0);
        let quads = inputs.div_ceil(QUAD);
        let mut values = vec![0; rows * quads * QUAD];
        let (mut scales, mut offsets) = (vec![0.0; rows], vec![0; rows]);
        let parts = values
            .par_chunks_mut((quads * QUAD).max(1))
            .zip(x.par_chunks(inputs.max(1)))
            .zip(scales.par_iter_mut().zip(&mut offsets));
        parts.with_min_len(ROWS_PER_TASK).for_each(|((to, from), (scale, offset))| {
            (*scale, *offset) = per_isa!(isa, quantize(from: &[f32], to: &mut [i8]) -> (f32, i32));
        });
        Self { quads, values, scales, offsets }
    }
}

/// Rows that are rounded by one task: fewer are not worth a thread's waking.
const ROWS_PER_TASK: usize = 16;

/// Rounds a row; returns its scale and OFFSET times the sum of its numbers.
#[inline(always)]
fn quantize<const FUSED: bool>(from: &[f32], to: &mut [i8]) -> (f32, i32) {
    // In lanes, so that the loop is vectorised; the order does not matter for a maximum.
    let mut lanes = [0.0f32; PANEL];
    let (whole, rest) = from.as_chunks::<PANEL>();
    for chunk in whole {
        for (most, &x) in lanes.iter_mut().zip(chunk) {
            *most = largest(*most, x);
        }
    }
    let most = lanes.iter().chain(rest).fold(0.0, |most, &x| largest(most, x));
    let scale = most / LIMIT;
    let inverse = inverse(scale);
    let mut sum = 0;
    for (value, &x) in to.iter_mut().zip(from) {
        *value = rounded(x, inverse);
        sum += i32::from(*value);
    }
    (scale, OFFSET * sum)
}

/// Multiplies x (rows, inputs), rounded row by row, with the weights on the current pool's threads.
pub(crate) fn gemm<E: TileEpilogue>(isa: Isa, x: &[f32], weights: &Int8Weights, epilogue: &E) {
    let rows = QuantizedRows::new(isa, x, weights.inputs);
    let kernel = ByteKernel::for_isa(isa);
    for_each_task(rows.scales.len(), weights.outputs, |range| {
        run_task(kernel, &Int8Task { rows: &rows, weights, range }, epilogue);
    });
}

/// The instructions that multiply bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteKernel {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl ByteKernel {
    fn for_isa(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => Self::Avx512Vnni,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => Self::Avx2,
            _ => Self::Portable,
        }
    }
}

struct Int8Task<'a> {
    rows: &'a QuantizedRows,
    weights: &'a Int8Weights,
    range: TaskRange,
}

/// The arguments of a micro-kernel: rows of bytes at `a`, `quads` quads apart, times panels at `b`.
#[derive(Clone, Copy)]
struct Int8Call<'a> {
    a: *const i8,
    b: *const u8,
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
        Int8Call {
            a: self.rows.values[tile.row * quads * QUAD..].as_ptr(),
            b: self.weights.panels[tile.panel * self.weights.panel_size()..].as_ptr(),
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
        // SAFETY: `ByteKernel::for_isa` has asked the CPU.
        #[cfg(target_arch = "x86_64")]
        ByteKernel::Avx512Vnni => unsafe { x86::run_avx512_vnni(task, epilogue) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        ByteKernel::Avx2 => unsafe { x86::run_avx2(task, epilogue) },
        ByteKernel::Portable => {
            sweep::<false, E>(&task.range, epilogue, MAX_TILE, |place, tile| {
                portable_tile(task.call(place), tile);
            })
        }
    }
}

/// A sum of products as f32.
#[inline(always)]
fn scaled(sum: i32, row_scale: f32, scale: f32) -> f32 {
    sum as f32 * row_scale * scale
}

fn portable_tile(call: Int8Call<'_>, tile: &mut OutputTile) {
    for (r, out) in tile[..call.rows].iter_mut().enumerate() {
        for p in 0..call.panels {
            let mut sums = [-call.offsets[r]; PANEL];
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
            for (j, sum) in sums.into_iter().enumerate() {
                let column = p * PANEL + j;
                out[column] = scaled(sum, call.row_scales[r], call.scales[column]);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::linear::by_size;
    use super::{Int8Call, Int8Task, MAX_TILE, OutputTile, PANEL, QUAD, TileEpilogue, sweep};
    use std::arch::x86_64::*;

    /// # Safety
    /// The CPU has AVX-512 F, DQ and VNNI, AVX2 and FMA.
    #[target_feature(enable = "avx512f,avx512dq,avx512vnni,avx2,fma")]
    pub(super) unsafe fn run_avx512_vnni<E: TileEpilogue>(task: &Int8Task<'_>, epilogue: &E) {
        sweep::<true, E>(&task.range, epilogue, MAX_TILE, |place, tile| {
            let call = task.call(place);
            // SAFETY: the features are those of this function; the call covers its operands.
            unsafe { by_size!(call, tile, avx512_vnni, [1 2 3 4 5 6 7 8 9 10 11 12]) }
        });
    }

    /// # Safety
    /// The CPU has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run_avx2<E: TileEpilogue>(task: &Int8Task<'_>, epilogue: &E) {
        sweep::<true, E>(&task.range, epilogue, 3, |place, tile| {
            let call = task.call(place);
            for p in 0..call.panels {
                // SAFETY: as above.
                unsafe {
                    match call.rows {
                        1 => avx2::<1>(call, tile, p),
                        2 => avx2::<2>(call, tile, p),
                        _ => avx2::<3>(call, tile, p),
                    }
                }
            }
        });
    }

    /// # Safety
    /// The CPU has AVX-512 F and VNNI; the call's pointers cover `R` rows and `P` panels.
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn avx512_vnni<const R: usize, const P: usize>(
        call: Int8Call<'_>,
        tile: &mut OutputTile,
    ) {
        let mut sums = [[_mm512_setzero_si512(); P]; R];
        let (row, panel) = (call.quads * QUAD, call.quads * QUAD * PANEL);
        for q in 0..call.quads {
            // SAFETY: by the contract.
            unsafe {
                let b: [__m512i; P] = std::array::from_fn(|p| {
                    _mm512_loadu_si512(call.b.add(p * panel + q * QUAD * PANEL).cast())
                });
                for (r, sums) in sums.iter_mut().enumerate() {
                    let a = call.a.add(r * row + q * QUAD).cast::<i32>().read_unaligned();
                    let a = _mm512_set1_epi32(a);
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = _mm512_dpbusd_epi32(*sum, b, a);
                    }
                }
            }
        }
        for (r, (sums, out)) in sums.iter().zip(tile).enumerate() {
            let offset = _mm512_set1_epi32(call.offsets[r]);
            let row_scale = _mm512_set1_ps(call.row_scales[r]);
            for (p, sum) in sums.iter().enumerate() {
                let sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(*sum, offset));
                // SAFETY: scales and a tile's row hold `P` panels.
                unsafe {
                    let scale = _mm512_loadu_ps(call.scales.as_ptr().add(p * PANEL));
                    let value = _mm512_mul_ps(_mm512_mul_ps(sum, row_scale), scale);
                    _mm512_storeu_ps(out.as_mut_ptr().add(p * PANEL), value);
                }
            }
        }
    }

    /// Bytes are widened to 16 bits, since the instruction for bytes saturates.
    ///
    /// # Safety
    /// The CPU has AVX2; the call's pointers cover `R` rows and panel `p`.
    #[target_feature(enable = "avx2")]
    unsafe fn avx2<const R: usize>(call: Int8Call<'_>, tile: &mut OutputTile, p: usize) {
        const PARTS: usize = 4; // of a panel: four columns, each as two sums of pairs
        let mut sums = [[_mm256_setzero_si256(); PARTS]; R];
        for q in 0..call.quads {
            // SAFETY: by the contract.
            unsafe {
                let b = call.b.add((p * call.quads + q) * QUAD * PANEL);
                let b: [__m256i; PARTS] = std::array::from_fn(|part| {
                    _mm256_cvtepu8_epi16(_mm_loadu_si128(b.add(part * 16).cast()))
                });
                for (r, sums) in sums.iter_mut().enumerate() {
                    let a = call.a.add((r * call.quads + q) * QUAD).cast::<i32>().read_unaligned();
                    let a = _mm256_cvtepi8_epi16(_mm_set1_epi32(a));
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(a, b));
                    }
                }
            }
        }
        for (r, (sums, out)) in sums.iter().zip(tile).enumerate() {
            for (part, sum) in sums.iter().enumerate() {
                let mut pairs = [0i32; 8];
                // SAFETY: eight numbers of 32 bits.
                unsafe { _mm256_storeu_si256(pairs.as_mut_ptr().cast(), *sum) };
                for (i, pair) in pairs.chunks(2).enumerate() {
                    let column = p * PANEL + part * 4 + i;
                    let sum = pair[0] + pair[1] - call.offsets[r];
                    out[column] = super::scaled(sum, call.row_scales[r], call.scales[column]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Store(*mut f32, usize);
    // SAFETY: no two concurrent calls of `gemm`'s epilogue write the same element.
    unsafe impl Sync for Store {}
    impl TileEpilogue for Store {
        unsafe fn finish<const FUSED: bool>(&self, row: usize, col: usize, values: &mut [f32]) {
            // SAFETY: the tests' outputs have the product's shape.
            let out = unsafe {
                std::slice::from_raw_parts_mut(self.0.add(row * self.1 + col), values.len())
            };
            out.copy_from_slice(values);
        }
    }

    fn product(isa: Isa, x: &[f32], weights: &Int8Weights) -> Vec<f32> {
        let mut out = vec![f32::NAN; x.len() / weights.inputs * weights.outputs];
        gemm(isa, x, weights, &Store(out.as_mut_ptr(), weights.outputs));
        out
    }

    fn numbers(count: usize, salt: u32) -> Vec<f32> {
        (0..count as u32)
            .map(|i| ((i * 7919 + salt * 104_729) % 2003) as f32 / 1001.0 - 1.0)
            .collect()
    }

    fn present() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_present())
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits_near_the_exact_product() {
        for (rows, inputs, outputs) in [(1, 4, 16), (3, 7, 5), (13, 66, 50), (40, 130, 33)] {
            let (x, w) = (numbers(rows * inputs, 1), numbers(inputs * outputs, 2));
            let weights = Int8Weights::new(inputs, outputs, |k, j| w[k * outputs + j]);
            let expected = product(Isa::Portable, &x, &weights);
            for isa in present() {
                let got = product(isa, &x, &weights);
                let same = got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{isa} at {rows} x {inputs} x {outputs}");
            }
            for (i, got) in expected.iter().enumerate() {
                let (r, j) = (i / outputs, i % outputs);
                let exact: f32 = (0..inputs).map(|k| x[r * inputs + k] * w[k * outputs + j]).sum();
                // Each factor is off by at most half a step of 1 / 127.
                let tolerance = inputs as f32 / 127.0;
                assert!((got - exact).abs() <= tolerance, "{got} for {exact}");
            }
        }
    }

    #[test]
    fn the_largest_sums_do_not_overflow_or_saturate() {
        let inputs = 4096;
        let weights = Int8Weights::new(inputs, 16, |_, j| if j % 2 == 0 { 1.0 } else { -1.0 });
        for isa in present() {
            let got = product(isa, &vec![1.0; inputs], &weights);
            for (j, &value) in got.iter().enumerate() {
                let sign = if j % 2 == 0 { 1.0 } else { -1.0 };
                assert!((value - sign * inputs as f32).abs() < 0.01, "{isa}: {value}");
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_batch_and_nan_stays_in_its_row() {
        let (inputs, outputs) = (30, 20);
        let (mut x, w) = (numbers(9 * inputs, 3), numbers(inputs * outputs, 4));
        x[4 * inputs + 3] = f32::NAN;
        let weights = Int8Weights::new(inputs, outputs, |k, j| w[k * outputs + j]);
        for isa in present() {
            let all = product(isa, &x, &weights);
            for (r, row) in x.chunks(inputs).enumerate() {
                let alone = product(isa, row, &weights);
                let own = &all[r * outputs..][..outputs];
                if r == 4 {
                    assert!(own.iter().all(|value| value.is_nan()));
                } else {
                    assert_eq!(own, alone, "{isa}, row {r}");
                }
            }
        }
    }

    #[test]
    fn columns_come_back_rounded() {
        let w = numbers(10 * 21, 5);
        let weights = Int8Weights::new(10, 21, |k, j| w[k * 21 + j]);
        let mut column = [0.0; 10];
        for j in 0..21 {
            weights.column(j, &mut column);
            for (k, got) in column.iter().enumerate() {
                assert!((got - w[k * 21 + j]).abs() <= 0.5 / 127.0 + 1e-6);
            }
        }
        assert_eq!((weights.inputs(), weights.outputs()), (10, 21));
    }
}
