//! Reads a reference dump: golden.json contains the inputs and settings, golden.safetensors the
//! tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::RecordedNoise;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::failure::{Context, Result};

/// The content of golden.json.
#[derive(Debug, Deserialize)]
pub(super) struct GoldenMeta {
    pub(super) family: String,
    pub(super) latents_exactly: Option<usize>,
    pub(super) latents_at_most: Option<usize>,
    /// For looped blocks of latent positions: their number, their width and the number of loops.
    pub(super) blocks: Option<usize>,
    pub(super) block_width: Option<usize>,
    pub(super) loops: Option<usize>,
    pub(super) n: usize,
    pub(super) p: f32,
    pub(super) std: f32,
    pub(super) end_ids: Vec<u32>,
    pub(super) eos_id: u32,
    pub(super) max_new_tokens: usize,
    pub(super) questions: Vec<GoldenQuestion>,
    pub(super) training: Option<GoldenTraining>,
    #[serde(rename = "rm.contrastive.loss")]
    pub(super) contrastive: Option<f64>,
    #[serde(rename = "rm.bce.loss")]
    pub(super) bce: Option<f64>,
    #[serde(rename = "rm.adamw")]
    pub(super) adamw: Option<GoldenAdamW>,
}

/// One batch of latent training.
#[derive(Debug, Deserialize)]
pub(super) struct GoldenTraining {
    #[serde(default)]
    pub(super) latents: usize,
    pub(super) items: Vec<GoldenExample>,
    pub(super) loss: f64,
    /// For looped blocks: the two parts of the loss, and the weight of the second.
    pub(super) answer: Option<f64>,
    pub(super) steps: Option<f64>,
    pub(super) weight: Option<f32>,
}

/// One training example, as token ids.
#[derive(Debug, Deserialize)]
pub(super) struct GoldenExample {
    pub(super) prompt_ids: Vec<u32>,
    pub(super) target_ids: Vec<u32>,
    #[serde(default)]
    pub(super) step_ids: Vec<Vec<u32>>,
}

/// Hyperparameters of AdamW steps on the reward model, and the loss before each step.
#[derive(Debug, Deserialize)]
pub(super) struct GoldenAdamW {
    pub(super) lr: f32,
    pub(super) betas: (f32, f32),
    pub(super) eps: f32,
    pub(super) weight_decay: f32,
    pub(super) losses: Vec<f64>,
}

/// A question with the reference's prompt and runs.
#[derive(Debug, Deserialize)]
pub(super) struct GoldenQuestion {
    pub(super) question: String,
    pub(super) prompt_ids: Vec<u32>,
    pub(super) runs: BTreeMap<String, Vec<GoldenRow>>,
}

/// The answer of one sequence.
#[derive(Debug, Deserialize)]
pub(super) struct GoldenRow {
    /// Number of thoughts; for looped blocks, the same for all sequences.
    #[serde(default)]
    pub(super) lengths: usize,
    pub(super) answer_ids: Vec<u32>,
    pub(super) text: String,
    /// The token predicted by the LM head at each looped position.
    pub(super) reading: Option<Vec<u32>>,
}

/// A reference dump in memory.
#[derive(Debug)]
pub(super) struct GoldenDump {
    pub(super) family: String,
    pub(super) meta: GoldenMeta,
    pub(super) tensors: GoldenTensors,
}

/// The tensors of a dump.
#[derive(Debug)]
pub(super) struct GoldenTensors {
    file: PathBuf,
    tensors: BTreeMap<String, GoldenTensor>,
}

/// A tensor of the dump, converted to f32.
#[derive(Debug)]
pub(super) struct GoldenTensor {
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f32>,
}

impl GoldenDump {
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join("golden.json");
        let mut meta: GoldenMeta = read_json(&path)?;
        if let (Some(blocks), Some(width), Some(loops)) =
            (meta.blocks, meta.block_width, meta.loops)
        {
            let positions = blocks.saturating_mul(width);
            meta.latents_exactly = Some(positions);
            let rows = meta.questions.iter_mut().flat_map(|question| question.runs.values_mut());
            rows.flatten().for_each(|row| row.lengths = positions.saturating_mul(loops));
        }
        let tensors = GoldenTensors::read(dir.join("golden.safetensors"))?;
        ensure!(
            !meta.questions.is_empty(),
            "{}: `questions` is empty; regenerate the dump",
            path.display()
        );
        Ok(Self { family: meta.family.clone(), meta, tensors })
    }

    /// Whether the dump contains a tensor.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.tensors.contains_key(name)
    }

    pub(super) fn has_reward_model(&self) -> bool {
        self.tensors.tensors.contains_key("rm.scores")
    }

    /// The tensor `name`, which must be present.
    pub(super) fn tensor(&self, name: &str) -> Result<&GoldenTensor> {
        self.tensors.tensor(name)
    }

    /// The dropout masks and the noise of question `i`.
    pub(super) fn recording(&self, i: usize) -> Result<RecordedNoise> {
        let (keep, noise) =
            (self.tensor(&format!("{i}.keep"))?, self.tensor(&format!("{i}.noise"))?);
        let shape = match keep.shape[..] {
            [thoughts, layers, 2, rows, width] => [thoughts, layers, rows, 1, width],
            [loops, layers, 2, rows, positions, width] => [loops, layers, rows, positions, width],
            _ => bail!(
                "{}: `{i}.keep` has shape {:?}, expected (thoughts, layers, 2, rows, width), or \
                 (loops, layers, 2, rows, positions, width)",
                self.tensors.file.display(),
                keep.shape
            ),
        };
        let [thoughts, _, rows, positions, width] = shape;
        let is_looped = keep.shape.len() == 6;
        let fits = match is_looped {
            true => noise.shape == [thoughts, rows, positions, width],
            false => noise.shape == [thoughts, rows, width],
        };
        ensure!(fits, "{}: `{i}.noise` does not fit `{i}.keep`", self.tensors.file.display());
        Ok(RecordedNoise {
            shape,
            keep_masks: keep.values.iter().map(|&x| u8::from(x != 0.0)).collect(),
            noise: noise.values.clone(),
        })
    }
}

impl GoldenTensors {
    pub(super) fn read(file: PathBuf) -> Result<Self> {
        let bytes =
            std::fs::read(&file).with_context(|| format!("{}: cannot read", file.display()))?;
        let parsed = SafeTensors::deserialize(&bytes)
            .with_context(|| format!("{}: invalid safetensors file", file.display()))?;
        let tensors = parsed
            .iter()
            .map(|(name, view)| Ok((name.to_owned(), parse_tensor(&view)?)))
            .collect::<Result<_>>();
        let tensors =
            tensors.with_context(|| format!("{}: unsupported tensors", file.display()))?;
        Ok(Self { file, tensors })
    }

    /// The tensor `name`, which must be present.
    pub(super) fn tensor(&self, name: &str) -> Result<&GoldenTensor> {
        self.tensors.get(name).with_context(|| {
            format!("{}: no tensor `{name}`; the dump is incomplete", self.file.display())
        })
    }

    /// All tensors whose name starts with `prefix`, with the rest of the name.
    pub(super) fn with_prefix<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a GoldenTensor)> {
        self.tensors
            .iter()
            .filter_map(move |(name, tensor)| Some((name.strip_prefix(prefix)?, tensor)))
    }
}

/// Reads a JSON file of a dump.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| {
        format!(
            "{}: cannot read; pass a directory with golden.json, golden.safetensors and \
             checkpoint/",
            path.display()
        )
    })?;
    serde_json::from_str(&text).with_context(|| format!("{}: not a reference dump", path.display()))
}

fn parse_tensor(view: &safetensors::tensor::TensorView<'_>) -> Result<GoldenTensor> {
    let values = match view.dtype() {
        Dtype::F32 => view
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect(),
        Dtype::U8 => view.data().iter().map(|&b| f32::from(b)).collect(),
        other => bail!("unsupported tensor type {other:?}; dumps contain F32 and U8"),
    };
    Ok(GoldenTensor { shape: view.shape().to_vec(), values })
}
