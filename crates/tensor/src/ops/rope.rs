//! Rotary positions.

use crate::{Device, Tensor, cpu};

/// The rotation frequencies of a head: pair i turns by `position * frequencies[i]`, a product in single precision.
///
/// Pairs are (i, i + head_dim / 2), as Llama's and Qwen's checkpoints have them.
#[derive(Clone, Debug)]
pub struct Rope {
    /// (head_dim / 2)
    pub frequencies: Vec<f32>,
}

/// Turns, in place, the first `heads` heads of each row of x by that row's position. x is (rows, >= heads * head_dim).
pub fn rope(device: &Device, x: &mut Tensor, by: &Rope, positions: &[u32], heads: usize) {
    let head_dim = 2 * by.frequencies.len();
    assert_eq!(x.rows(), positions.len(), "rope: {} rows against {} positions", x.rows(), positions.len());
    assert!(heads * head_dim <= x.cols(), "rope: {heads} heads of {head_dim} do not fit {}", x.cols());
    cpu::rope::rope(device.isa(), x, by, positions, heads);
}
