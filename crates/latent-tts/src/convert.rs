//! Conversion of checkpoints saved with `torch.save`: CODI's pytorch_model.bin and prj.pt, the
//! state dictionaries of SIM-CoT and COCONUT, CoLaR's Lightning file, and the heads of
//! Render-of-Thought. Tensors are read without executing the pickle ([`model::pickle`]) and written
//! as safetensors in a layout that can be loaded.
//!
//! Tensors used only in training are dropped according to [`model::names`]. Weights without an
//! embedding are treated as an adapter: their low-rank factors and heads are written to one
//! adapter.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use model::ModelFiles;
use model::names::{TensorRole, classify};
use model::pickle::{PickledTensors, TensorBytes, write_tensors};
use record::files;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Error, model_files};

/// Stems of files that are written beside the weights under the same stem; all other files are
/// merged into the weights.
const SIDE_STEMS: [&str; 4] = ["prj", "projector", "projection_head", "special_tokens"];
/// Extensions of files that hold tensors. A file without extension is included if it is an archive.
const ENDINGS: [&str; 4] = ["bin", "pt", "pth", "ckpt"];
/// Files of trainers without weights.
const TRAINER_STEMS: [&str; 4] = ["training_args", "optimizer", "scheduler", "rng_state"];
/// Text files of a model that are kept beside its weights.
const TEXTS: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];
/// The LoRA alpha of CODI, SIM-CoT, CoLaR and Render-of-Thought.
const LORA_ALPHA: f64 = 32.0;

/// The inputs and the output of a conversion.
#[derive(Debug, Clone)]
pub struct Converter<'a> {
    /// Files, or directories with such files.
    pub inputs: &'a [PathBuf],
    /// The output directory.
    pub out: &'a Path,
    /// The model that provides the configuration and the tokenizer, or the base of an adapter.
    pub base: Option<&'a str>,
    /// The alpha of an adapter, which scales its products by alpha / rank. Defaults to 32.
    pub lora_alpha: Option<f64>,
    /// Whether to replace files in the output directory.
    pub overwrite: bool,
}

/// The result of a conversion.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ConversionReport {
    /// The output directory.
    pub out: PathBuf,
    /// The written weight files.
    pub files: Vec<ConvertedFile>,
    /// Text files that were copied or generated.
    pub texts: Vec<String>,
    /// Number of tensors dropped because only training uses them.
    pub left_out: usize,
    /// Classes in the pickles that were skipped, mostly trainer settings.
    pub skipped_classes: Vec<String>,
    /// Missing parts, and how to provide them.
    pub notes: Vec<String>,
}

/// A written weight file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConvertedFile {
    /// The file name.
    pub name: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Total size of the tensors in bytes.
    pub bytes: usize,
}

/// The tensors of one output file.
struct Weights<'a> {
    name: String,
    tensors: Vec<(String, TensorBytes<'a>)>,
}

impl Converter<'_> {
    /// Converts all inputs. Writes nothing if an input cannot be read.
    pub fn run(&self) -> Result<ConversionReport, Error> {
        let pickles = self.open_all()?;
        let mut left_out = 0;
        let mut weights: Vec<Weights<'_>> = Vec::new();
        for pickle in &pickles {
            let tensors = pickle.renamed(|name| Some(name.to_owned()));
            let all = tensors.len();
            let kept: Vec<_> = tensors.into_iter().filter(|(name, _)| is_needed(name)).collect();
            left_out += all - kept.len();
            add(&mut weights, target(pickle.path()), kept);
        }
        let is_adapter = split_adapter(&mut weights);
        let mut report = ConversionReport {
            out: self.out.to_owned(),
            files: Vec::new(),
            texts: Vec::new(),
            left_out,
            skipped_classes: skipped(&pickles),
            notes: Vec::new(),
        };
        let texts = match is_adapter {
            Some(rank) => vec![self.adapter_config(rank)?],
            None => self.texts(&weights, &mut report.notes)?,
        };
        self.check_free(&weights, &texts)?;
        std::fs::create_dir_all(self.out).map_err(|e| unreadable(self.out, e))?;
        for Weights { name, tensors } in weights {
            let path = self.out.join(&name);
            let bytes = tensors.iter().map(|(_, tensor)| safetensors::View::data_len(tensor)).sum();
            report.files.push(ConvertedFile { name, tensors: tensors.len(), bytes });
            write_tensors(&path, tensors)?;
        }
        for (name, content) in texts {
            let path = self.out.join(&name);
            files::write_atomic(&path, &content).map_err(|e| unreadable(&path, e))?;
            report.texts.push(name);
        }
        Ok(report)
    }

    fn open_all(&self) -> Result<Vec<PickledTensors>, Error> {
        let mut paths = BTreeSet::new();
        for input in self.inputs {
            match input.is_dir() {
                true => paths.extend(pickles_of(input)?),
                false => drop(paths.insert(input.clone())),
            }
        }
        if paths.is_empty() {
            let reason = "no PyTorch tensor files (.bin, .pt, .pth, .ckpt) found";
            let path = self.inputs.first().cloned().unwrap_or_default();
            return Err(Error::Conversion { path, reason: reason.to_owned() });
        }
        paths.iter().map(|path| Ok(PickledTensors::open(path)?)).collect()
    }

    /// The adapter_config.json of an adapter with this rank.
    fn adapter_config(&self, rank: usize) -> Result<(String, Vec<u8>), Error> {
        let Some(base) = self.base else {
            let reason = "the weights are an adapter without its base model; pass the base model \
                          that they were trained on";
            let path = self.inputs.first().cloned().unwrap_or_default();
            return Err(Error::Conversion { path, reason: reason.to_owned() });
        };
        let path = Path::new(base);
        let base = match path.exists() {
            true => std::path::absolute(path).map_err(|e| unreadable(path, e))?,
            false => path.to_owned(),
        };
        let config = json!({
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": self.lora_alpha.unwrap_or(LORA_ALPHA),
            "base_model_name_or_path": base,
        });
        Ok(("adapter_config.json".to_owned(), pretty(&config)))
    }

    /// The text files of a complete model: those beside its weights, otherwise those of the base.
    fn texts(
        &self,
        weights: &[Weights<'_>],
        notes: &mut Vec<String>,
    ) -> Result<Vec<(String, Vec<u8>)>, Error> {
        if !weights.iter().any(|weights| weights.name == MODEL_FILE) {
            return Ok(Vec::new());
        }
        let mut sources: Vec<ModelFiles> = Vec::new();
        for input in self.inputs {
            let dir = if input.is_dir() { input.as_path() } else { parent(input) };
            sources.push(ModelFiles::Directory(dir.to_owned()));
        }
        let base = self.base.map(model_files).transpose()?;
        let mut texts = Vec::new();
        for name in TEXTS {
            let own = sources.iter().find_map(|files| files.read_optional(name).transpose());
            let own = own.transpose()?;
            let is_own = own.is_some();
            let inherited = match (&own, &base) {
                (None, Some(base)) => base.read_inherited(name)?,
                _ => None,
            };
            let Some(content) = own.or(inherited) else { continue };
            let content = match name == "config.json" && !is_own {
                true => with_vocabulary(&content, weights).unwrap_or(content),
                false => content,
            };
            texts.push((name.to_owned(), content));
        }
        let has = |name: &str| texts.iter().any(|(known, _)| known == name);
        if !has("config.json") || !(has("tokenizer.json") || has("vocab.json")) {
            let note = "no configuration or no tokenizer beside the weights; pass the base model \
                        that has them, here or when loading the model";
            notes.push(note.to_owned());
        }
        Ok(texts)
    }

    /// Fails if a file would be replaced, before anything is written.
    fn check_free(
        &self,
        weights: &[Weights<'_>],
        texts: &[(String, Vec<u8>)],
    ) -> Result<(), Error> {
        let names = weights.iter().map(|weights| &weights.name);
        let names = names.chain(texts.iter().map(|(name, _)| name));
        let taken = names.map(|name| self.out.join(name)).find(|path| path.exists());
        match taken {
            Some(path) if !self.overwrite => {
                let reason = "already exists; pass `overwrite` to replace it, or choose another \
                              directory";
                Err(Error::Conversion { path, reason: reason.to_owned() })
            }
            _ => Ok(()),
        }
    }
}

/// The weights file of a complete model.
const MODEL_FILE: &str = "model.safetensors";

fn is_needed(name: &str) -> bool {
    !matches!(classify(name), TensorRole::Ignored(_))
}

/// The files of a directory that hold tensors, including those of DeepSpeed checkpoints.
fn pickles_of(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(dir).map_err(|e| unreadable(dir, e))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| unreadable(dir, e))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name.starts_with("global_step") {
            found.extend(pickles_of(&path)?.into_iter().filter(|path| is_model_states(path)));
        } else if path.is_file() && is_pickle(&path, &name) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whether a DeepSpeed file holds model states; optimizer states have the same extension.
fn is_model_states(path: &Path) -> bool {
    path.to_string_lossy().ends_with("model_states.pt")
}

fn is_pickle(path: &Path, name: &str) -> bool {
    match path.extension() {
        Some(ending) => {
            ENDINGS.iter().any(|known| ending == *known)
                && !TRAINER_STEMS.iter().any(|stem| name.starts_with(stem))
        }
        // `checkpoint_28` of COCONUT and SIM-CoT.
        None => name.starts_with("checkpoint"),
    }
}

/// The name of the output file for the tensors of a pickle.
fn target(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match SIDE_STEMS.contains(&stem.as_ref()) {
        true => format!("{stem}.safetensors"),
        false => MODEL_FILE.to_owned(),
    }
}

/// Adds tensors to the output file `name`.
fn add<'a>(weights: &mut Vec<Weights<'a>>, name: String, kept: Vec<(String, TensorBytes<'a>)>) {
    match weights.iter_mut().find(|weights| weights.name == name) {
        Some(weights) => weights.tensors.extend(kept),
        None => weights.push(Weights { name, tensors: kept }),
    }
}

/// Splits weights without an embedding into low-rank factors and heads; returns the rank.
fn split_adapter(weights: &mut Vec<Weights<'_>>) -> Option<usize> {
    let at = weights.iter().position(|weights| weights.name == MODEL_FILE)?;
    let is_factor =
        |name: &str| matches!(classify(name), TensorRole::LoraA(_) | TensorRole::LoraB(_));
    let is_embedding = |name: &str| {
        let role = classify(name);
        ["wte.weight", "embed_tokens.weight"]
            .iter()
            .any(|embedding| role == TensorRole::Weight((*embedding).to_owned()))
    };
    let tensors = &weights[at].tensors;
    let factor = tensors.iter().find(|(name, _)| matches!(classify(name), TensorRole::LoraA(_)));
    let rank = factor.and_then(|(_, tensor)| safetensors::View::shape(tensor).first().copied())?;
    if tensors.iter().any(|(name, _)| is_embedding(name)) {
        return None;
    }
    let whole = weights.remove(at);
    let (factors, heads): (Vec<_>, Vec<_>) =
        whole.tensors.into_iter().partition(|(name, _)| is_factor(name));
    add(weights, model::adapter::ADAPTER_WEIGHTS.to_owned(), factors);
    if !heads.is_empty() {
        add(weights, "heads.safetensors".to_owned(), heads);
    }
    Some(rank)
}

/// The config.json of a base, with the vocabulary size of the weights and the marker tokens that
/// COCONUT's training adds; `None` if it is not an object.
fn with_vocabulary(config: &[u8], weights: &[Weights<'_>]) -> Option<Vec<u8>> {
    let mut config: Value = serde_json::from_slice(config).ok()?;
    let tensors = &weights.iter().find(|weights| weights.name == MODEL_FILE)?.tensors;
    let embedding = |role: &TensorRole| matches!(role, TensorRole::Weight(name) if ["wte.weight", "embed_tokens.weight"].contains(&name.as_str()));
    let (name, table) = tensors.iter().find(|(name, _)| embedding(&classify(name)))?;
    let rows = *safetensors::View::shape(table).first()?;
    let fields = config.as_object_mut()?;
    let known =
        fields.get("vocab_size").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    fields.insert("vocab_size".to_owned(), json!(rows));
    // COCONUT's training adds start, end and placeholder tokens, in this order.
    if let (Some(known), true) = (known, name.starts_with("base_causallm."))
        && known + 3 == rows
    {
        fields.insert("latent_start_id".to_owned(), json!(known));
        fields.insert("latent_end_id".to_owned(), json!(known + 1));
    }
    Some(pretty(&config))
}

fn skipped(pickles: &[PickledTensors]) -> Vec<String> {
    let classes = pickles.iter().flat_map(|pickle| pickle.skipped_classes.iter().cloned());
    classes.collect::<BTreeSet<String>>().into_iter().collect()
}

fn parent(file: &Path) -> &Path {
    match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut text = format!("{value:#}");
    text.push('\n');
    text.into_bytes()
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    Error::Unreadable { path: path.to_owned(), error }
}
