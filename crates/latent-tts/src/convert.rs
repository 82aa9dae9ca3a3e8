//! Conversion of checkpoints that their authors saved with `torch.save`: CODI's pytorch_model.bin
//! and prj.pt, SIM-CoT's and COCONUT's state dictionaries, CoLaR's Lightning file, the heads of
//! Render-of-Thought. Tensors are read without executing the pickle ([`model::pickle`]) and written
//! as safetensors in the layout that is loaded.
//!
//! What only training uses is left out, by [`model::names`]. Weights without an embedding are an
//! adapter's: their low-rank factors and heads are written as one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use model::ModelFiles;
use model::names::{TensorRole, classify};
use model::pickle::{PickledTensors, TensorBytes, write_tensors};
use record::files;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Error, model_files};

/// Files that are kept beside the weights under their stem; others make up the weights.
const SIDE_STEMS: [&str; 4] = ["prj", "projector", "projection_head", "special_tokens"];
/// Endings of files that hold tensors. A file without an ending does if it is an archive.
const ENDINGS: [&str; 4] = ["bin", "pt", "pth", "ckpt"];
/// Files of trainers that hold no weights.
const TRAINER_STEMS: [&str; 4] = ["training_args", "optimizer", "scheduler", "rng_state"];
/// The texts of a model that are kept beside its weights.
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
/// The scale's numerator of CODI, SIM-CoT, CoLaR and Render-of-Thought.
const LORA_ALPHA: f64 = 32.0;

/// What is converted, and into what.
#[derive(Debug, Clone)]
pub struct Converter<'a> {
    /// Files, and directories of them.
    pub inputs: &'a [PathBuf],
    /// The directory that is written.
    pub out: &'a Path,
    /// The model that has the configuration and the tokenizer, or that an adapter is added to.
    pub base: Option<&'a str>,
    /// An adapter's alpha: its products are scaled by alpha / rank. 32 unless given.
    pub lora_alpha: Option<f64>,
    /// Whether files in the output directory are replaced.
    pub overwrite: bool,
}

/// What a conversion did.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ConversionReport {
    /// The directory.
    pub out: PathBuf,
    /// The written weight files.
    pub files: Vec<ConvertedFile>,
    /// Texts that were copied or made.
    pub texts: Vec<String>,
    /// Tensors that only training uses.
    pub left_out: usize,
    /// Classes of the pickles that were not followed: settings of trainers, most often.
    pub skipped_classes: Vec<String>,
    /// What is missing, and what to do about it.
    pub notes: Vec<String>,
}

/// A written weight file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConvertedFile {
    /// Its name.
    pub name: String,
    /// Its tensors.
    pub tensors: usize,
    /// Their size.
    pub bytes: usize,
}

/// Tensors for one file.
struct Weights<'a> {
    name: String,
    tensors: Vec<(String, TensorBytes<'a>)>,
}

impl Converter<'_> {
    /// Converts everything, or writes nothing where an input cannot be read.
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
            let reason = "no file of tensors saved by PyTorch (.bin, .pt, .pth, .ckpt) in it";
            let path = self.inputs.first().cloned().unwrap_or_default();
            return Err(Error::Conversion { path, reason: reason.to_owned() });
        }
        paths.iter().map(|path| Ok(PickledTensors::open(path)?)).collect()
    }

    /// adapter_config.json of an adapter of this rank.
    fn adapter_config(&self, rank: usize) -> Result<(String, Vec<u8>), Error> {
        let Some(base) = self.base else {
            let reason = "its weights are those of an adapter alone; name the base model that they \
                          were trained on";
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

    /// The texts of a whole model: those beside its weights, else the base's.
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
            let note = "no configuration or no tokenizer beside the weights; name the base model \
                        that has them, here or where the model is loaded";
            notes.push(note.to_owned());
        }
        Ok(texts)
    }

    /// Refuses to replace a file, before anything is written.
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
                let reason = "is there already; pass `overwrite` to replace it, or name another \
                              directory";
                Err(Error::Conversion { path, reason: reason.to_owned() })
            }
            _ => Ok(()),
        }
    }
}

/// The weights of a whole model.
const MODEL_FILE: &str = "model.safetensors";

fn is_needed(name: &str) -> bool {
    !matches!(classify(name), TensorRole::Ignored(_))
}

/// The files of a directory that hold tensors, those of DeepSpeed's steps included.
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

/// DeepSpeed's optimizer states lie beside the model's.
fn is_model_states(path: &Path) -> bool {
    path.to_string_lossy().ends_with("model_states.pt")
}

fn is_pickle(path: &Path, name: &str) -> bool {
    match path.extension() {
        Some(ending) => {
            ENDINGS.iter().any(|known| ending == *known)
                && !TRAINER_STEMS.iter().any(|stem| name.starts_with(stem))
        }
        // COCONUT's and SIM-CoT's `checkpoint_28`.
        None => name.starts_with("checkpoint"),
    }
}

/// The name of the file that the tensors of a pickle go to.
fn target(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match SIDE_STEMS.contains(&stem.as_ref()) {
        true => format!("{stem}.safetensors"),
        false => MODEL_FILE.to_owned(),
    }
}

/// Adds tensors to the file of this name.
fn add<'a>(weights: &mut Vec<Weights<'a>>, name: String, kept: Vec<(String, TensorBytes<'a>)>) {
    match weights.iter_mut().find(|weights| weights.name == name) {
        Some(weights) => weights.tensors.extend(kept),
        None => weights.push(Weights { name, tensors: kept }),
    }
}

/// Splits weights without an embedding into low-rank factors and heads; gives their rank.
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

/// A base's config.json with as many tokens as the weights have embeddings, and with the markers
/// that COCONUT's training adds; `None` where it is not an object.
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
    // COCONUT's training adds start, end and placeholder, in this order.
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
