//! Adapters: the weights their training starts from, and their configuration files.

use std::path::{Path, PathBuf};

use model::adapter::{self, BaseRecord};
use model::config::Architecture;
use model::{
    Checkpoint, Config, LoraConfig, LoraTargets, ModelError, TensorSource, UnmergedCheckpoint,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::TrainError;

/// An adapter to be trained.
#[derive(Clone, Debug)]
pub struct AdapterSpec {
    /// Rank, scale and targets.
    pub config: LoraConfig,
    /// How to treat an initial model that is itself an adapter.
    pub start: AdapterStart,
    /// Hub id of the base, for `base.json`.
    pub base_id: Option<String>,
    /// Where to get the base, for `base.json`.
    pub base_source: Option<String>,
}

/// How to treat an initial model that is itself an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum AdapterStart {
    /// Continue training its factors: an adapter of the same base and rank
    Continue,
    /// Train new factors on top: an adapter whose base is the initial adapter
    Over,
}

impl From<LoraConfig> for AdapterSpec {
    fn from(config: LoraConfig) -> Self {
        Self { config, start: AdapterStart::Continue, base_id: None, base_source: None }
    }
}

impl AdapterSpec {
    /// The weights that training starts from.
    pub fn source<'a>(&self, checkpoint: &'a Checkpoint) -> AdapterSource<'a> {
        match self.start {
            AdapterStart::Continue => AdapterSource::Continue(UnmergedCheckpoint(checkpoint)),
            AdapterStart::Over => AdapterSource::Over(checkpoint),
        }
    }
}

/// The weights that the training of an adapter starts from.
#[derive(Clone, Copy)]
pub enum AdapterSource<'a> {
    /// The weights of the base, and the factors of the topmost adapter.
    Continue(UnmergedCheckpoint<'a>),
    /// Merged weights without factors.
    Over(&'a Checkpoint),
}

impl TensorSource for AdapterSource<'_> {
    fn has(&self, name: &str) -> bool {
        match self {
            Self::Continue(source) => source.has(name),
            Self::Over(source) => source.has(name),
        }
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        match self {
            Self::Continue(source) => source.tensor(name, shape),
            Self::Over(source) => source.tensor(name, shape),
        }
    }
}

/// The configuration that is saved with an adapter's factors.
#[derive(Clone, Debug)]
pub struct SavedAdapter {
    /// Rank, scale and targets.
    pub config: LoraConfig,
    /// Absolute path of the base.
    pub base: PathBuf,
    /// The record of the base; its path is set when the adapter is written.
    pub record: BaseRecord,
}

impl SavedAdapter {
    pub(super) fn new(spec: &AdapterSpec, start: &Checkpoint) -> Result<Self, TrainError> {
        let (base, known) = match (spec.start, start.base()) {
            (AdapterStart::Continue, Some(base)) => (base, BaseRecord::read(start.model_files())?),
            _ => (start.model_files(), None),
        };
        let known = known.unwrap_or_default();
        let record = BaseRecord::of(&Checkpoint::open(base)?)?;
        let record = BaseRecord {
            id: spec.base_id.clone().or(known.id),
            source: spec.base_source.clone().or(known.source),
            ..record
        };
        let path = adapter::absolute_path(base.path())
            .map_err(|source| TrainError::Io { path: base.path().to_owned(), source })?;
        Ok(Self { config: spec.config.clone(), base: path, record })
    }

    /// peft's `LoraConfig` as adapter_config.json.
    pub(super) fn peft_config(&self, config: &Config) -> Value {
        let is_gpt2 = config.architecture == Architecture::Gpt2;
        let all: &[&str] = match is_gpt2 {
            true => &["c_attn", "c_proj", "c_fc"],
            false => &["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        };
        let targets = match &self.config.targets {
            LoraTargets::All => json!(all),
            LoraTargets::Named(names) => json!(names),
        };
        // A published adapter names its base by id instead of by a local path.
        let base = self.record.id.as_ref().map_or_else(|| json!(self.base), |id| json!(id));
        json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base,
            "r": self.config.rank, "lora_alpha": self.config.alpha, "lora_dropout": self.config.dropout,
            "target_modules": targets, "fan_in_fan_out": is_gpt2, "bias": "none",
            "inference_mode": true, "init_lora_weights": true,
        })
    }
}

/// The `base.json` of an adapter in `dir`, with the path to its base.
pub(super) fn base_record(
    dir: &Path,
    base: &Path,
    record: BaseRecord,
) -> Result<BaseRecord, TrainError> {
    let path = adapter::path_from(dir, base)
        .map_err(|source| TrainError::Io { path: base.to_owned(), source })?;
    Ok(BaseRecord { path: Some(path), ..record })
}
