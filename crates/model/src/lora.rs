//! Unmerged LoRA adapters, merged into their weight when it is read.
//!
//! An adapted module has a base weight W and two factors, A (rank, in) and B (out, rank); its
//! effective weight is W + scale B A. [`crate::names`] identifies the factors, [`LoraScale`] finds
//! the scale, [`merge`] adds the product.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rayon::prelude::*;
use serde_json::Value;
use tensor::ops::{self, Activation, Linear, OutputDtype};
use tensor::{Device, DeviceError, Tensor};

use crate::adapter::ADAPTER_CONFIG;
use crate::config::Architecture;
use crate::error::{self, ModelError};
use crate::model_files::ModelFiles;
use crate::weights::{WeightLayout, transpose};

/// The `LoraConfig` of a family's training script, for the architectures that it is published on.
struct FamilyLora {
    architectures: &'static [Architecture],
    rank: usize,
    alpha: f32,
}

/// Used without an adapter_config.json.
const FAMILY_DEFAULTS: [FamilyLora; 2] = [
    // CODI and CoLaR.
    FamilyLora {
        architectures: &[Architecture::Gpt2, Architecture::Llama],
        rank: 128,
        alpha: 32.0,
    },
    // Render-of-Thought.
    FamilyLora { architectures: &[Architecture::Qwen3Vl], rank: 16, alpha: 32.0 },
];

/// The LoRA factors of one module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoraFactors<'a> {
    /// (rank, in).
    pub(crate) a: &'a [f32],
    /// (out, rank).
    pub(crate) b: &'a [f32],
    /// Inner dimension of B A.
    pub(crate) rank: usize,
    /// Factor of B A.
    pub(crate) scale: f32,
}

/// Adds `scale B A` to a weight in place; `rows` counts the rows of `weight` as it is stored.
///
/// The product is the CPU's matrix product, whose elements are sums in the order of the rank: the
/// result does not depend on the number of threads.
pub(crate) fn merge(
    weight: &mut [f32],
    rows: usize,
    layout: WeightLayout,
    factors: LoraFactors,
) -> Result<(), DeviceError> {
    let LoraFactors { a, b, rank, scale } = factors;
    if rows == 0 || rank == 0 || weight.is_empty() {
        return Ok(());
    }
    let device = kernels()?;
    let columns = weight.len() / rows;
    // Input-major weights take (B A)^T = A^T B^T.
    let (left, right) = match layout {
        WeightLayout::OutputMajor => {
            (b.to_vec(), Linear::from_input_major(device, rank, columns, a, None)?)
        }
        WeightLayout::InputMajor => {
            (transpose(a, rank, rows), Linear::from_output_major(device, rank, columns, b, None)?)
        }
    };
    let left = Tensor::from_vec(rows, rank, left);
    let mut product = Tensor::default();
    ops::linear(device, &left, &right, Activation::None, OutputDtype::F32, &mut product)?;
    let products = product.data().par_chunks(columns);
    weight.par_chunks_mut(columns).zip(products).for_each(|(row, product)| {
        row.iter_mut().zip(product).for_each(|(w, p)| *w += scale * p);
    });
    Ok(())
}

/// The CPU device, for its kernels: they run on the threads of the caller.
fn kernels() -> Result<&'static Device, DeviceError> {
    static CPU: OnceLock<Device> = OnceLock::new();
    if let Some(device) = CPU.get() {
        return Ok(device);
    }
    let device = Device::cpu(Some(NonZeroUsize::MIN))?;
    Ok(CPU.get_or_init(|| device))
}

/// The source of the scale of a checkpoint's adapters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LoraScale {
    /// adapter_config.json.
    Configured {
        /// `r`, if it is there.
        rank: Option<usize>,
        /// `lora_alpha`.
        alpha: f32,
        /// `use_rslora`: the scale is alpha / sqrt(rank) instead of alpha / rank.
        rank_stabilized: bool,
    },
    /// No adapter_config.json: the training script of the family published on this architecture.
    FamilyDefault(Architecture),
}

impl LoraScale {
    /// Reads `adapter_config.json`, if there is one.
    pub(crate) fn read(
        files: &ModelFiles,
        architecture: Architecture,
    ) -> Result<LoraScale, ModelError> {
        let file = files.file_path(ADAPTER_CONFIG);
        if !files.contains(&file) {
            return Ok(LoraScale::FamilyDefault(architecture));
        }
        let config: Value = error::parse_json(&file, &files.read_text(&file)?)?;
        reject_unmergeable(&file, &config)?;
        let bad = |field: &str, why: &str| ModelError::BadField {
            file: file.clone(),
            field: field.to_owned(),
            why: why.to_owned(),
        };
        let rank = match config.get("r") {
            None | Some(Value::Null) => None,
            Some(rank) => {
                let rank = rank.as_u64().and_then(|rank| usize::try_from(rank).ok());
                let whole = "must be a whole number above 0; save the adapter again";
                Some(rank.filter(|rank| *rank > 0).ok_or_else(|| bad("r", whole))?)
            }
        };
        let alpha = config.get("lora_alpha").and_then(Value::as_f64).ok_or_else(|| {
            ModelError::MissingField { file: file.clone(), field: "lora_alpha".to_owned() }
        })?;
        let alpha = Some(alpha as f32).filter(|alpha| alpha.is_finite()).ok_or_else(|| {
            bad("lora_alpha", "is not a finite f32 number; save the adapter again")
        })?;
        let rank_stabilized = config.get("use_rslora").and_then(Value::as_bool).unwrap_or(false);
        Ok(LoraScale::Configured { rank, alpha, rank_stabilized })
    }

    /// The rank that the configuration names.
    pub(crate) fn rank(&self) -> Option<usize> {
        match self {
            LoraScale::Configured { rank, .. } => *rank,
            LoraScale::FamilyDefault(_) => None,
        }
    }

    /// The scale for a rank; `None` if unknown.
    pub(crate) fn for_rank(&self, rank: usize) -> Option<f32> {
        match self {
            LoraScale::Configured { alpha, rank_stabilized: false, .. } => {
                Some(alpha / rank as f32)
            }
            LoraScale::Configured { alpha, rank_stabilized: true, .. } => {
                Some(alpha / (rank as f32).sqrt())
            }
            LoraScale::FamilyDefault(architecture) => FAMILY_DEFAULTS
                .iter()
                .find(|lora| lora.architectures.contains(architecture) && lora.rank == rank)
                .map(|lora| lora.alpha / lora.rank as f32),
        }
    }
}

/// Rejects variants of LoRA whose merge is not `W + scale B A` with one scale.
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

    /// Element (o, i) of scale B A, by the definition.
    fn naive_delta(factors: &LoraFactors, inputs: usize, o: usize, i: usize) -> f32 {
        let product: f32 = (0..factors.rank)
            .map(|k| factors.b[o * factors.rank + k] * factors.a[k * inputs + i])
            .sum();
        factors.scale * product
    }

    #[test]
    fn merge_matches_definition_in_both_layouts() {
        let inputs = 7;
        let outputs = 5;
        let rank = 3;
        let a = numbers(rank * inputs, 1);
        let b = numbers(outputs * rank, 2);
        let w = numbers(inputs * outputs, 3);
        let factors = LoraFactors { a: &a, b: &b, rank, scale: 0.25 };
        let mut linear = w.clone();
        merge(&mut linear, outputs, WeightLayout::OutputMajor, factors).unwrap();
        let mut conv = w.clone();
        merge(&mut conv, inputs, WeightLayout::InputMajor, factors).unwrap();
        for o in 0..outputs {
            for i in 0..inputs {
                let delta = naive_delta(&factors, inputs, o, i);
                let at = o * inputs + i;
                assert!((linear[at] - (w[at] + delta)).abs() < 1e-5);
                let at = i * outputs + o;
                assert!((conv[at] - (w[at] + delta)).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn scale_from_config_or_family_default() {
        assert_eq!(LoraScale::FamilyDefault(Architecture::Gpt2).for_rank(128), Some(0.25));
        assert_eq!(LoraScale::FamilyDefault(Architecture::Llama).for_rank(128), Some(0.25));
        assert_eq!(LoraScale::FamilyDefault(Architecture::Qwen3Vl).for_rank(16), Some(2.0));
        assert_eq!(LoraScale::FamilyDefault(Architecture::Llama).for_rank(8), None);
        assert_eq!(
            LoraScale::Configured { rank: None, alpha: 16.0, rank_stabilized: false }.for_rank(64),
            Some(0.25)
        );
        assert_eq!(
            LoraScale::Configured { rank: None, alpha: 16.0, rank_stabilized: true }.for_rank(64),
            Some(2.0)
        );
    }
}
