//! ggml's tensor types, and their values as f32.
//!
//! A quantized type stores a row as blocks of 32 or 256 values: integers of a few bits with a
//! common scale and optionally a common offset. Values are computed product by product in f32, as
//! in ggml and its Python package, so that they are equal to the bit.

use half::f16;
use rayon::prelude::*;
use safetensors::Dtype;

use crate::checkpoint::convert;

/// A supported tensor type of ggml.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgmlType {
    /// float32.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of 32 4-bit values with a scale.
    Q4_0,
    /// Blocks of 32 4-bit values with a scale and a minimum.
    Q4_1,
    /// Blocks of 32 5-bit values with a scale.
    Q5_0,
    /// Blocks of 32 5-bit values with a scale and a minimum.
    Q5_1,
    /// Blocks of 32 8-bit values with a scale.
    Q8_0,
    /// Blocks of 256 4-bit values in groups with scales and minima.
    Q4K,
    /// Blocks of 256 5-bit values in groups with scales and minima.
    Q5K,
    /// Blocks of 256 6-bit values in groups with scales.
    Q6K,
}

/// Type number in files, name, values per block, bytes per block.
struct TypeInfo {
    number: u32,
    name: &'static str,
    block: usize,
    bytes: usize,
}

/// The names of unsupported types, by number.
const OTHER_NAMES: [(u32, &str); 20] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
];

impl GgmlType {
    /// All supported types.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    const fn info(self) -> TypeInfo {
        let (number, name, block, bytes) = match self {
            Self::F32 => (0, "F32", 1, 4),
            Self::F16 => (1, "F16", 1, 2),
            Self::Bf16 => (30, "BF16", 1, 2),
            Self::Q4_0 => (2, "Q4_0", 32, 18),
            Self::Q4_1 => (3, "Q4_1", 32, 20),
            Self::Q5_0 => (6, "Q5_0", 32, 22),
            Self::Q5_1 => (7, "Q5_1", 32, 24),
            Self::Q8_0 => (8, "Q8_0", 32, 34),
            Self::Q4K => (12, "Q4_K", 256, 144),
            Self::Q5K => (13, "Q5_K", 256, 176),
            Self::Q6K => (14, "Q6_K", 256, 210),
        };
        TypeInfo { number, name, block, bytes }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.info().number == number)
    }

    /// ggml's type number.
    #[cfg(any(test, feature = "testkit"))]
    pub fn number(self) -> u32 {
        self.info().number
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.info().bytes
    }

    /// ggml's name.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// The name of any type of the format, for errors.
    pub(super) fn name_of_number(number: u32) -> String {
        match OTHER_NAMES.iter().find(|(known, _)| *known == number) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("number {number}"),
        }
    }

    /// Values per block.
    pub fn block(self) -> usize {
        self.info().block
    }

    /// The size of a tensor in bytes; `None` if a row is not a multiple of a block, or on overflow.
    pub(super) fn bytes_of(self, shape: &[usize]) -> Option<u64> {
        let TypeInfo { block, bytes, .. } = self.info();
        let (columns, rows) = shape.split_last()?;
        let rows = rows.iter().try_fold(1u64, |n, size| n.checked_mul(*size as u64))?;
        let blocks = columns.is_multiple_of(block).then_some((columns / block) as u64)?;
        rows.checked_mul(blocks)?.checked_mul(bytes as u64)
    }
}

/// The order of a matrix's rows in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// The order of transformers.
    Plain,
    /// Within each head, rows of the first and second rotary half alternate.
    Interleaved {
        /// Number of heads of the matrix.
        heads: usize,
    },
}

impl RowOrder {
    /// The row in the file that is row `row` of `rows` in canonical order.
    pub(crate) fn stored_row(self, row: usize, rows: usize) -> usize {
        match self {
            Self::Plain => row,
            Self::Interleaved { heads } => {
                let head_dim = rows / heads;
                let head = row / head_dim;
                let within = row % head_dim;
                let half = within / (head_dim / 2);
                let i = within % (head_dim / 2);
                head * head_dim + 2 * i + half
            }
        }
    }

    /// Whether a matrix of this many rows can have the order.
    pub(super) fn fits(self, rows: usize) -> bool {
        match self {
            Self::Plain => true,
            Self::Interleaved { heads } => heads > 0 && rows.is_multiple_of(2 * heads),
        }
    }
}

/// The values of a tensor, row-major; rows are independent and shared among threads.
pub(crate) fn dequantize(
    kind: GgmlType,
    order: RowOrder,
    shape: &[usize],
    bytes: &[u8],
) -> Vec<f32> {
    let columns = shape.last().copied().unwrap_or(1).max(1);
    let rows = shape.iter().product::<usize>() / columns;
    let mut values = vec![0.0; rows * columns];
    let row_bytes = bytes.len().checked_div(rows).unwrap_or(0);
    values.par_chunks_mut(columns).enumerate().for_each(|(row, out)| {
        let stored = order.stored_row(row, rows) * row_bytes;
        dequantize_row(kind, &bytes[stored..stored + row_bytes], out);
    });
    values
}

/// Widens whole blocks.
fn dequantize_row(kind: GgmlType, bytes: &[u8], out: &mut [f32]) {
    match kind {
        GgmlType::F32 => convert::decode(Dtype::F32, bytes, out),
        GgmlType::F16 => convert::decode(Dtype::F16, bytes, out),
        GgmlType::Bf16 => convert::decode(Dtype::BF16, bytes, out),
        GgmlType::Q4_0 => each_block(bytes, out, q4_0),
        GgmlType::Q4_1 => each_block(bytes, out, q4_1),
        GgmlType::Q5_0 => each_block(bytes, out, q5_0),
        GgmlType::Q5_1 => each_block(bytes, out, q5_1),
        GgmlType::Q8_0 => each_block(bytes, out, q8_0),
        GgmlType::Q4K => each_block(bytes, out, q4_k),
        GgmlType::Q5K => each_block(bytes, out, q5_k),
        GgmlType::Q6K => each_block(bytes, out, q6_k),
    }
}

/// Applies `widen` to every block of B bytes and its N values.
fn each_block<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    widen: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (blocks, _) = bytes.as_chunks::<B>();
    let (values, _) = out.as_chunks_mut::<N>();
    blocks.iter().zip(values).for_each(|(block, values)| widen(block, values));
}

/// The half-precision number at a byte of a block.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Scale, 16 bytes of nibbles: low ones are the first 16 values, high ones the last.
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (i, byte) in block[2..].iter().enumerate() {
        out[i] = scale * f32::from(i16::from(byte & 15) - 8);
        out[i + 16] = scale * f32::from(i16::from(byte >> 4) - 8);
    }
}

/// Scale, minimum, nibbles.
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let min = half_at(block, 2);
    for (i, byte) in block[4..].iter().enumerate() {
        out[i] = scale * f32::from(byte & 15) + min;
        out[i + 16] = scale * f32::from(byte >> 4) + min;
    }
}

/// The values of a block of nibbles whose fifth bits are in a 32-bit word.
fn five_bits(high: [u8; 4], nibbles: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    let high = u32::from_le_bytes(high);
    let fifth = move |i: usize| ((high >> i & 1) as u8) << 4;
    nibbles.iter().enumerate().flat_map(move |(i, byte)| {
        [(i, (byte & 15) | fifth(i)), (i + 16, (byte >> 4) | fifth(i + 16))]
    })
}

/// Scale, fifth bits, nibbles.
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let high = [block[2], block[3], block[4], block[5]];
    for (i, q) in five_bits(high, &block[6..]) {
        out[i] = scale * f32::from(i16::from(q) - 16);
    }
}

/// Scale, minimum, fifth bits, nibbles.
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let min = half_at(block, 2);
    let high = [block[4], block[5], block[6], block[7]];
    for (i, q) in five_bits(high, &block[8..]) {
        out[i] = scale * f32::from(q) + min;
    }
}

/// Scale, 32 signed bytes.
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (value, q) in out.iter_mut().zip(&block[2..]) {
        *value = scale * f32::from(*q as i8);
    }
}

/// Scale and minimum of the j-th of eight groups of a K block: 6 bits each, packed in 12 bytes.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = match j {
        0..4 => (packed[j] & 63, packed[j + 4] & 63),
        _ => (
            (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4,
            (packed[j + 4] >> 4) | (packed[j] >> 6) << 4,
        ),
    };
    (f32::from(scale), f32::from(min))
}

/// Scale of scales, scale of minima, eight 6-bit scales and minima, 128 bytes of nibbles.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    k_groups(block, &[0; 32], &block[16..], out);
}

/// As [`q4_k`], with the fifth bits before the nibbles: bit j of byte i is value i of group j.
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    k_groups(block, &block[16..48], &block[48..], out);
}

/// Eight groups of 32 values; two groups share 32 bytes of nibbles.
fn k_groups(header: &[u8], fifth_bits: &[u8], nibbles: &[u8], out: &mut [f32; 256]) {
    let scale = half_at(header, 0);
    let min = half_at(header, 2);
    for (j, group) in out.chunks_exact_mut(32).enumerate() {
        let (group_scale, group_min) = scale_and_min(&header[4..16], j);
        let scale = scale * group_scale;
        let min = min * group_min;
        let shift = 4 * (j % 2);
        let bytes = nibbles[32 * (j / 2)..].iter().zip(fifth_bits);
        for (value, (byte, high)) in group.iter_mut().zip(bytes) {
            let q = (byte >> shift & 15) | (high >> j & 1) << 4;
            *value = scale * f32::from(q) - min;
        }
    }
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, scale of scales.
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half_at(block, 208);
    for (n, half) in out.chunks_exact_mut(128).enumerate() {
        let low = &block[64 * n..];
        let high = &block[128 + 32 * n..];
        let scales = &block[192 + 8 * n..];
        for (i, value) in half.iter_mut().enumerate() {
            // Values 0..64 are low nibbles, 64..128 high ones; every 32 take the next bit pair.
            let nibble = low[i % 64] >> (4 * (i / 64)) & 15;
            let pair = high[i % 32] >> (2 * (i / 32)) & 3;
            let q = i16::from(nibble | pair << 4) - 32;
            *value = scale * f32::from(scales[i / 16] as i8) * f32::from(q);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct ReferenceBlocks {
        bytes: String,
        values: Vec<u32>,
    }

    /// The reference values were generated by `tests/data/gguf_blocks.py` with llama.cpp's Python
    /// package.
    #[test]
    fn every_type_gives_the_reference_values() {
        let json = include_str!("../../tests/data/gguf_blocks.json");
        let reference: BTreeMap<String, ReferenceBlocks> = serde_json::from_str(json).unwrap();
        assert_eq!(reference.len(), GgmlType::ALL.len());
        for kind in GgmlType::ALL {
            let ReferenceBlocks { bytes, values } = &reference[kind.name()];
            let (pairs, _) = bytes.as_bytes().as_chunks::<2>();
            let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16);
            let bytes: Vec<u8> = pairs.iter().map(|pair| byte(pair).unwrap()).collect();
            let shape = [values.len()];
            assert_eq!(kind.bytes_of(&shape), Some(bytes.len() as u64));
            let ours = dequantize(kind, RowOrder::Plain, &shape, &bytes);
            let bits: Vec<u32> = ours.iter().map(|x| x.to_bits()).collect();
            assert_eq!(&bits, values, "{}", kind.name());
        }
    }

    #[test]
    fn interleaved_rows_are_put_back() {
        let order = RowOrder::Interleaved { heads: 2 };
        let stored: Vec<usize> = (0..8).map(|row| order.stored_row(row, 8)).collect();
        assert_eq!(stored, [0, 2, 1, 3, 4, 6, 5, 7]);
        assert!(order.fits(8) && !order.fits(6) && !RowOrder::Interleaved { heads: 0 }.fits(8));
    }

    #[test]
    fn sizes_are_whole_blocks() {
        assert_eq!(GgmlType::Q4_1.bytes_of(&[3, 64]), Some(120));
        assert_eq!(GgmlType::Q4_1.bytes_of(&[3, 33]), None);
        assert_eq!(GgmlType::F32.bytes_of(&[usize::MAX, usize::MAX]), None);
    }
}
