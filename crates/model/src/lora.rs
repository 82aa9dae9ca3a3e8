//! Low-rank adapters that were saved unmerged, merged when their weight is read.
//!
//! An adapted module holds its base weight W and two factors, A (rank, in) and B (out, rank); it
//! computes with W + scale B A. [`crate::names`] finds the parts, [`Scale`] finds the number,
//! [`merge`] adds the product.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::Value;

use crate::config::Architecture;
use crate::error::{self, ModelError};
use crate::model_files::ModelFiles;

/// Rank and alpha that a family trains with when no file says, for the architectures that it is
/// published on.
const FAMILY_DEFAULTS: [(&[Architecture], usize, f32); 2] = [
    // CODI (LoraConfig r=128, alpha=32) and CoLaR (the same).
    (&[Architecture::Gpt2, Architecture::Llama], 128, 32.0),
    // Render-of-Thought (r=16, alpha=32).
    (&[Architecture::Qwen3], 16, 32.0),
];

/// How a weight is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orientation {
    /// (out, in), as `nn.Linear` stores it.
    Linear,
    /// (in, out), as GPT-2's `Conv1D` stores it.
    Conv1D,
}

impl Orientation {
    /// The layout of the weight of a module.
    pub fn of(architecture: Architecture, module: &str) -> Orientation {
        let conv = [".c_attn", ".c_proj", ".c_fc"];
        if architecture == Architecture::Gpt2 && conv.iter().any(|name| module.ends_with(name)) {
            Orientation::Conv1D
        } else {
            Orientation::Linear
        }
    }
}

/// The factors of one module.
#[derive(Debug, Clone, Copy)]
pub struct LoraFactors<'a> {
    /// (rank, in).
    pub a: &'a [f32],
    /// (out, rank).
    pub b: &'a [f32],
    /// Inner dimension of the product.
    pub rank: usize,
    /// What the product is multiplied by.
    pub scale: f32,
}

/// Adds `scale B A` to a weight in place; `weight` has `rows` rows in its own layout.
///
/// Each row is computed by one thread in one order, so the result does not depend on the number of
/// threads.
pub fn merge(weight: &mut [f32], rows: usize, orientation: Orientation, factors: LoraFactors) {
    let LoraFactors { a, b, rank, scale } = factors;
    if rows == 0 || rank == 0 || weight.is_empty() {
        return;
    }
    let columns = weight.len() / rows;
    // delta[row, :] = sum_k left[row, k] right[k, :]; for Conv1D the whole product is transposed.
    let (left, right) = match orientation {
        Orientation::Linear => (b.to_vec(), a.to_vec()),
        Orientation::Conv1D => (transposed(a, rank, rows), transposed(b, columns, rank)),
    };
    weight.par_chunks_mut(columns).zip(left.par_chunks(rank)).for_each(|(row, left)| {
        let mut delta = vec![0.0f32; columns];
        for (l, right) in left.iter().zip(right.chunks(columns)) {
            for (d, r) in delta.iter_mut().zip(right) {
                *d += l * r;
            }
        }
        for (w, d) in row.iter_mut().zip(delta) {
            *w += scale * d;
        }
    });
}

/// (rows, columns) to (columns, rows).
fn transposed(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * columns + c])).collect()
}

/// Where the scale of a directory's adapters comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum LoraScale {
    /// adapter_config.json says.
    Configured {
        /// `lora_alpha`.
        alpha: f32,
        /// `use_rslora`: divide by the root of the rank rather than by the rank.
        rank_stabilized: bool,
    },
    /// No adapter_config.json: the training scripts of the family that is published on this
    /// architecture say.
    FamilyDefault(Architecture),
}

impl LoraScale {
    /// Reads `adapter_config.json`, if the directory has one.
    pub fn read(folder: &ModelFiles, architecture: Architecture) -> Result<LoraScale, ModelError> {
        let file = folder.file_path("adapter_config.json");
        if !folder.contains(&file) {
            return Ok(LoraScale::FamilyDefault(architecture));
        }
        let config: Value = error::parse_json(&file, &folder.read_text(&file)?)?;
        reject_unmergeable(&file, &config)?;
        let alpha = config.get("lora_alpha").and_then(Value::as_f64).filter(|a| a.is_finite());
        let alpha = alpha
            .ok_or_else(|| ModelError::MissingField { file, field: "lora_alpha".to_owned() })?;
        let rank_stabilized = config.get("use_rslora").and_then(Value::as_bool).unwrap_or(false);
        Ok(LoraScale::Configured { alpha: alpha as f32, rank_stabilized })
    }

    /// The scale for a rank; `None` when nothing says.
    pub fn for_rank(&self, rank: usize) -> Option<f32> {
        match self {
            LoraScale::Configured { alpha, rank_stabilized: false } => Some(alpha / rank as f32),
            LoraScale::Configured { alpha, rank_stabilized: true } => {
                Some(alpha / (rank as f32).sqrt())
            }
            LoraScale::FamilyDefault(architecture) => FAMILY_DEFAULTS
                .iter()
                .find(|(architectures, r, _)| architectures.contains(architecture) && *r == rank)
                .map(|(_, r, alpha)| alpha / *r as f32),
        }
    }
}

/// Variants of LoRA whose merge is not `W + scale B A` with one scale.
fn reject_unmergeable(file: &Path, config: &Value) -> Result<(), ModelError> {
    let refuse =
        |what: String| Err(ModelError::UnsupportedAdapter { file: PathBuf::from(file), what });
    match config.get("peft_type").and_then(Value::as_str) {
        None | Some("LORA") => {}
        Some(other) => return refuse(format!("peft_type {other}")),
    }
    if config.get("use_dora").and_then(Value::as_bool) == Some(true) {
        return refuse("use_dora".to_owned());
    }
    for pattern in ["rank_pattern", "alpha_pattern"] {
        if config.get(pattern).and_then(Value::as_object).is_some_and(|p| !p.is_empty()) {
            return refuse(pattern.to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| {
                ((i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 20) as f32 - 2048.0) / 1024.0
            })
            .collect()
    }

    /// Element (o, i) of W + scale B A, by the definition.
    fn naive(w: f32, factors: &LoraFactors, (o, i): (usize, usize), inputs: usize) -> f32 {
        let product: f32 = (0..factors.rank)
            .map(|k| factors.b[o * factors.rank + k] * factors.a[k * inputs + i])
            .sum();
        w + factors.scale * product
    }

    #[test]
    fn merge_matches_definition_in_both_layouts() {
        let (inputs, outputs, rank) = (7, 5, 3);
        let (a, b, w) =
            (numbers(rank * inputs, 1), numbers(outputs * rank, 2), numbers(inputs * outputs, 3));
        let factors = LoraFactors { a: &a, b: &b, rank, scale: 0.25 };
        let mut linear = w.clone();
        merge(&mut linear, outputs, Orientation::Linear, factors);
        let mut conv = w.clone();
        merge(&mut conv, inputs, Orientation::Conv1D, factors);
        for o in 0..outputs {
            for i in 0..inputs {
                let at = o * inputs + i;
                assert!((linear[at] - naive(w[at], &factors, (o, i), inputs)).abs() < 1e-5);
                let at = i * outputs + o;
                assert!((conv[at] - naive(w[at], &factors, (o, i), inputs)).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn scale_from_config_or_family_default() {
        assert_eq!(LoraScale::FamilyDefault(Architecture::Gpt2).for_rank(128), Some(0.25));
        assert_eq!(LoraScale::FamilyDefault(Architecture::Llama).for_rank(128), Some(0.25));
        assert_eq!(LoraScale::FamilyDefault(Architecture::Qwen3).for_rank(16), Some(2.0));
        assert_eq!(LoraScale::FamilyDefault(Architecture::Llama).for_rank(8), None);
        assert_eq!(
            LoraScale::Configured { alpha: 16.0, rank_stabilized: false }.for_rank(64),
            Some(0.25)
        );
        assert_eq!(
            LoraScale::Configured { alpha: 16.0, rank_stabilized: true }.for_rank(64),
            Some(2.0)
        );
    }

    #[test]
    fn only_gpt2_uses_conv1d() {
        assert_eq!(Orientation::of(Architecture::Gpt2, "h.0.mlp.c_fc"), Orientation::Conv1D);
        assert_eq!(Orientation::of(Architecture::Gpt2, "lm_head"), Orientation::Linear);
        assert_eq!(
            Orientation::of(Architecture::Llama, "layers.0.self_attn.q_proj"),
            Orientation::Linear
        );
    }
}
