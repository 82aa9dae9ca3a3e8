//! Decodes tensors to f32 and finds non-finite values.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;

/// Elements converted at a time: the buffer fits the L1 cache.
const BLOCK: usize = 2048;

/// Converts little-endian values to f32; `None` for unsupported dtypes.
///
/// Allocates one f32 per element, so at most twice the size of the bytes.
pub(crate) fn to_f32(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    let size = match dtype {
        Dtype::F64 => 8,
        Dtype::F32 => 4,
        Dtype::F16 | Dtype::BF16 => 2,
        _ => return None,
    };
    let mut values = vec![0.0; bytes.len() / size];
    decode(dtype, bytes, &mut values);
    Some(values)
}

/// Converts little-endian values into `out`, one for each; leaves it unchanged for dtypes that
/// [`to_f32`] rejects.
pub(crate) fn decode(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => plain(bytes, out, f32::from_le_bytes),
        Dtype::F64 => plain(bytes, out, |b| f64::from_le_bytes(b) as f32),
        Dtype::F16 => halves(bytes, out, f16::from_le_bytes),
        Dtype::BF16 => halves(bytes, out, bf16::from_le_bytes),
        _ => {}
    }
}

fn plain<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(chunks).for_each(|(out, chunk)| *out = value(*chunk));
}

/// Converts block by block: the half crate uses F16C for slices but not for single values.
fn halves<T: Copy + Default>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; 2]) -> T)
where
    [T]: HalfFloatSliceExt,
{
    let (chunks, _) = bytes.as_chunks::<2>();
    let mut block = [T::default(); BLOCK];
    for (out, chunks) in out.chunks_mut(BLOCK).zip(chunks.chunks(BLOCK)) {
        let block = &mut block[..chunks.len()];
        for (to, from) in block.iter_mut().zip(chunks) {
            *to = value(*from);
        }
        block.convert_to_f32_slice(out);
    }
}

/// Index and value of the first infinity or NaN.
pub(super) fn first_non_finite(values: &[f32]) -> Option<(usize, f32)> {
    // Whole blocks first: a loop without early exit is vectorized.
    let is_broken = |block: &[f32]| !block.iter().fold(true, |ok, v| ok & v.is_finite());
    let block = values.par_chunks(BLOCK).position_first(is_broken)?;
    let start = block * BLOCK;
    let offset = values[start..].iter().position(|v| !v.is_finite())?;
    Some((start + offset, values[start + offset]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_dtypes_give_the_same_values() {
        let values: Vec<f32> = (0..5000).map(|i| ((i % 1000) as f32 - 500.0) * 0.25).collect();
        let f64s: Vec<u8> = values.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect();
        let f16s: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        assert!(to_f32(Dtype::F64, &f64s).unwrap() == values);
        assert!(to_f32(Dtype::F16, &f16s).unwrap() == values);
        let bf16s: Vec<u8> = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        let rounded: Vec<f32> = values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
        assert!(to_f32(Dtype::BF16, &bf16s).unwrap() == rounded);
        assert_eq!(to_f32(Dtype::I64, &f64s), None);
    }

    #[test]
    fn finds_the_first_non_finite_value() {
        for at in [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 3, 3 * BLOCK - 1] {
            let mut values = vec![1.0; 3 * BLOCK];
            values[at] = f32::NAN;
            assert_eq!(first_non_finite(&values).unwrap().0, at);
        }
        assert!(first_non_finite(&vec![1.0; 3 * BLOCK]).is_none());
    }
}
