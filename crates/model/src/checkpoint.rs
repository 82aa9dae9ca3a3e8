//! A checkpoint as `save_pretrained` writes it, or a GGUF file: tensors by canonical name, as f32.
//!
//! `files` finds and memory-maps the files, [`crate::names`] classifies the tensors, `layer`
//! contains an adapter's factors and `lora` merges them, `convert` decodes dtypes and `gguf`
//! quantized blocks. Opening reads headers only; [`Checkpoint::tensor`] reads the bytes of one
//! tensor.
//!
//! Adapters can be stacked: a weight is that of the full model at the bottom plus the sum of the
//! layers' products, added from the bottom up. Other tensors of a layer (heads, embeddings of new
//! tokens) replace those below.
//!
//! Invariants: a canonical name identifies one tensor; a returned tensor has the requested shape
//! and only finite values.

pub(crate) mod convert;
mod digest;
mod expected;
pub(crate) mod files;
mod layer;
mod register;
mod unmerged;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use safetensors::Dtype;

use crate::adapter::{BaseRecord, ModelWarning};
use crate::config::Config;
use crate::error::ModelError;
use crate::gguf::{self, GgmlType, RowOrder};
use crate::lora::{self, LoraFactors};
use crate::model_files::ModelFiles;
use crate::parameters::NEW_ROWS;
use crate::weights::WeightLayout;
pub use expected::ExpectedTensor;
pub use files::ADAPTER_HEADS_FILE;
use files::MappedFile;
use layer::{LoraLayer, LoraPair};
pub use unmerged::UnmergedCheckpoint;

/// An opened checkpoint.
pub struct Checkpoint {
    model_files: ModelFiles,
    config: Config,
    weight_files: Vec<MappedFile>,
    weights: BTreeMap<String, StoredTensor>,
    /// From the bottom up: factors in the full model's own files, then those of each adapter.
    layers: Vec<LoraLayer>,
    ignored: Vec<(StoredTensor, &'static str)>,
    pickles: Vec<PathBuf>,
    /// The base models, from the next one to the full model.
    below: Vec<ModelFiles>,
    warnings: Vec<ModelWarning>,
    /// Names and shapes of missing tensors that were requested, if these are collected.
    missing: Option<Mutex<MissingTensors>>,
}

/// Canonical names and requested shapes of tensors that a checkpoint lacks.
pub type MissingTensors = BTreeMap<String, Vec<usize>>;

/// A tensor in one of the files.
struct StoredTensor {
    original: String,
    /// Index into `Checkpoint::weight_files`.
    file: usize,
    encoding: TensorEncoding,
    shape: Vec<usize>,
    range: Range<usize>,
    used: AtomicBool,
}

/// How the values of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
enum TensorEncoding {
    Safetensors(Dtype),
    Ggml { kind: GgmlType, rows: RowOrder },
}

impl TensorEncoding {
    /// The values of a tensor; `None` if this encoding is not supported.
    fn to_f32(self, shape: &[usize], bytes: &[u8]) -> Option<Vec<f32>> {
        match self {
            Self::Safetensors(dtype) => convert::to_f32(dtype, bytes),
            Self::Ggml { kind, rows } => Some(gguf::dequantize(kind, rows, shape, bytes)),
        }
    }

    /// The values of one row of a tensor with `rows` rows.
    fn row_to_f32(self, row: usize, rows: usize, bytes: &[u8]) -> Option<Vec<f32>> {
        let row_bytes = bytes.len() / rows.max(1);
        match self {
            Self::Safetensors(dtype) => {
                convert::to_f32(dtype, &bytes[row * row_bytes..][..row_bytes])
            }
            Self::Ggml { kind, rows: order } => {
                let stored = order.stored_row(row, rows) * row_bytes;
                let values = row_bytes / kind.block_bytes() * kind.block();
                let bytes = &bytes[stored..][..row_bytes];
                Some(gguf::dequantize(kind, RowOrder::Plain, &[values], bytes))
            }
        }
    }
}

impl fmt::Display for TensorEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Safetensors(dtype) => write!(f, "{dtype}"),
            Self::Ggml { kind, .. } => f.write_str(kind.name()),
        }
    }
}

/// A tensor of a checkpoint, for listings.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo<'a> {
    /// The canonical name; for a LoRA factor `<module>.lora_A.weight` or `<module>.lora_B.weight`.
    pub canonical: String,
    /// The name in the file.
    pub original: &'a str,
    /// The file.
    pub file: &'a Path,
    /// The dtype, in the spelling of safetensors or ggml.
    pub dtype: String,
    /// The shape in the file.
    pub shape: &'a [usize],
    /// Size in the file, in bytes.
    pub bytes: usize,
    /// Whether it has been read.
    pub used: bool,
    /// Whether it belongs to an adapter's base model.
    pub of_base: bool,
    /// The reason that it need not be read, if so.
    pub ignored: Option<&'static str>,
}

impl Checkpoint {
    /// Reads config.json and the headers of all weight files.
    pub fn open(model_files: impl Into<ModelFiles>) -> Result<Checkpoint, ModelError> {
        let model_files = model_files.into();
        model_files.check_exists()?;
        let chain = model_files.chain()?;
        let mut checkpoint = Checkpoint {
            config: Config::read(&model_files)?,
            model_files,
            weight_files: Vec::new(),
            weights: BTreeMap::new(),
            layers: Vec::new(),
            ignored: Vec::new(),
            pickles: Vec::new(),
            below: chain[1..].to_vec(),
            missing: None,
            warnings: Vec::new(),
        };
        let whole = chain.len() - 1;
        checkpoint.add_layer(&chain[whole])?;
        checkpoint.check_described_adapter(&chain[whole])?;
        for (adapter, base) in chain.iter().zip(&checkpoint.below.clone()).rev() {
            let record = BaseRecord::read(adapter)?;
            let warning = record.map(|record| record.check(adapter, &checkpoint, base.path()));
            checkpoint.warnings.extend(warning.transpose()?.flatten());
            checkpoint.add_layer(adapter)?;
            checkpoint.check_adapter(adapter, base)?;
        }
        checkpoint.adopt_vocabulary();
        checkpoint.check_vocabulary()?;
        Ok(checkpoint)
    }

    /// A configuration taken from the base model lacks the rows of new tokens.
    fn adopt_vocabulary(&mut self) {
        let name = format!("{}.weight", self.config.embedding_name());
        let rows = self.weights.get(&name).and_then(|stored| stored.shape.first());
        if let (ModelFiles::Described(_), Some(&rows)) = (&self.model_files, rows) {
            self.config.vocab = rows;
        }
    }

    /// The parsed config.json.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The files that it was opened from.
    pub fn model_files(&self) -> &ModelFiles {
        &self.model_files
    }

    /// The base model of an adapter; `None` for a full model.
    pub fn base(&self) -> Option<&ModelFiles> {
        self.below.first()
    }

    /// Problems that do not prevent its use.
    pub fn warnings(&self) -> &[ModelWarning] {
        &self.warnings
    }

    /// The shapes of the weights by canonical name, sorted; those that need not be read are
    /// omitted.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let needed = self.weights.iter().filter(|(name, _)| self.redundant_reason(name).is_none());
        needed.map(|(name, stored)| (name.as_str(), stored.shape.as_slice()))
    }

    /// The directory, the GGUF file, or the name of the embedded files.
    pub fn dir(&self) -> &Path {
        self.model_files.path()
    }

    /// Whether there is a weight with this canonical name.
    pub fn has(&self, name: &str) -> bool {
        self.weights.contains_key(name)
    }

    /// The shape of a weight, by canonical name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.weights.get(name).map(|stored| stored.shape.as_slice())
    }

    /// Number of rows at the end of the embedding that an adapter provides, replacing or extending
    /// its base's: those of new tokens.
    pub fn added_tokens(&self) -> usize {
        let name = format!("{NEW_ROWS}.{}.weight", self.config.embedding_name());
        self.shape(&name).and_then(|shape| shape.first().copied()).unwrap_or(0)
    }

    /// Whether an adapter provides the last rows of a table.
    pub fn has_new_rows(&self, name: &str) -> bool {
        self.has(&format!("{NEW_ROWS}.{name}"))
    }

    /// Reads a weight by canonical name, with its adapters merged, in the layout of its file:
    /// GPT-2's `Conv1D` stays (in, out).
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        self.merged_tensor(name, shape, &self.layers)
    }

    /// From now on a missing tensor is read as zeros and collected, so that a listing can name all
    /// of them. Such a checkpoint must not be used as a model.
    pub fn collect_missing(&mut self) {
        self.missing = Some(Mutex::default());
    }

    /// The missing tensors that were requested since [`Checkpoint::collect_missing`].
    pub fn missing_tensors(&self) -> MissingTensors {
        let collected = self.missing.as_ref();
        collected
            .map(|missing| missing.lock().unwrap_or_else(PoisonError::into_inner).clone())
            .unwrap_or_default()
    }

    /// Reads a weight with the adapters of some layers merged.
    fn merged_tensor(
        &self,
        name: &str,
        shape: &[usize],
        layers: &[LoraLayer],
    ) -> Result<Vec<f32>, ModelError> {
        let Some(stored) = self.weights.get(name) else {
            return self.read_missing(name, shape);
        };
        let mut values = self.unmerged_tensor(name, shape)?;
        let Some(module) = name.strip_suffix(".weight") else { return Ok(values) };
        for layer in layers {
            if layer.pairs.contains_key(module) {
                self.merge_adapter(&mut values, shape, module, layer)?;
                self.check_finite(stored, &values)?;
            }
        }
        Ok(values)
    }

    /// Reads a weight without adapters. The last rows of a table are those that an adapter
    /// provides.
    fn unmerged_tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let stored = self.weights.get(name).ok_or_else(|| self.missing_error(name))?;
        let Some((new, &[rows, columns])) =
            self.weights.get(&format!("{NEW_ROWS}.{name}")).zip(shape.first_chunk::<2>())
        else {
            return self.read_values(stored, shape);
        };
        let added = new.shape.first().copied().unwrap_or(0);
        let kept = rows.saturating_sub(added);
        let own = stored.shape.first().copied().unwrap_or(0).max(kept);
        let mut values = self.read_values(stored, &[own, columns])?;
        values.truncate(kept * columns);
        values.extend(self.read_values(new, &[added, columns])?);
        Ok(values)
    }

    /// Tensors that were not read and are not known to be unnecessary, as `canonical (original in
    /// file)`. An adapter may leave heads of its base unused.
    pub fn unused_tensors(&self) -> Vec<String> {
        let unused = self.tensors().filter(|e| !e.used && !e.of_base && e.ignored.is_none());
        unused.map(|e| e.describe()).collect()
    }

    /// All tensors of all files: weights, then LoRA factors, then ignored tensors.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        let weights = self
            .weights
            .iter()
            .map(|(name, s)| self.info(name.clone(), s, self.redundant_reason(name)));
        let factors = self.layers.iter().flat_map(LoraLayer::factors);
        let factors = factors.map(|(name, s)| self.info(name, s, None));
        let ignored =
            self.ignored.iter().map(|(s, why)| self.info(s.original.clone(), s, Some(why)));
        weights.chain(factors).chain(ignored)
    }

    fn info<'a>(
        &'a self,
        canonical: String,
        stored: &'a StoredTensor,
        ignored: Option<&'static str>,
    ) -> TensorInfo<'a> {
        TensorInfo {
            canonical,
            original: &stored.original,
            file: self.path(stored),
            dtype: stored.encoding.to_string(),
            shape: &stored.shape,
            bytes: stored.range.len(),
            used: stored.used.load(Ordering::Relaxed),
            of_base: stored.file < self.first_own_file(),
            ignored,
        }
    }

    /// The first of `weight_files` that belongs to the topmost layer.
    fn first_own_file(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.first_file)
    }

    /// The reason that a weight with a canonical name need not be read.
    fn redundant_reason(&self, name: &str) -> Option<&'static str> {
        (name == "lm_head.weight" && self.config.tied).then_some("tied to the token embedding")
    }

    /// The rows of the token embedding must be config.json's `vocab_size`.
    fn check_vocabulary(&self) -> Result<(), ModelError> {
        let name = format!("{}.weight", self.config.embedding_name());
        let Some(stored) = self.weights.get(&name) else {
            return Ok(());
        };
        let vocab = self.config.vocab;
        let added = self.added_tokens();
        let fits = |rows: usize| match added {
            0 => rows == vocab,
            _ => added <= vocab && rows >= vocab - added,
        };
        match stored.shape.first() {
            Some(&rows) if !fits(rows) => Err(ModelError::VocabMismatch {
                file: self.path(stored).to_path_buf(),
                tensor: stored.original.clone(),
                rows,
                vocab,
            }),
            _ => Ok(()),
        }
    }

    fn merge_adapter(
        &self,
        values: &mut [f32],
        shape: &[usize],
        module: &str,
        layer: &LoraLayer,
    ) -> Result<(), ModelError> {
        let pair = layer.pairs.get(module).and_then(LoraPair::both);
        let Some((a, b)) = pair else { return Ok(()) };
        let &[rows, columns] = shape else {
            return Err(ModelError::UnsupportedAdapter {
                file: self.path(a).to_path_buf(),
                what: format!("`{}` on a weight that is not a matrix", a.original),
            });
        };
        let layout = WeightLayout::of(self.config.architecture, module);
        let (inputs, outputs) = layout.inputs_and_outputs(rows, columns);
        let rank = a.shape.first().copied().unwrap_or(0);
        let scale = layer.scale(module, a)?;
        let a = self.read_values(a, &[rank, inputs])?;
        let b = self.read_values(b, &[outputs, rank])?;
        Ok(lora::merge(values, rows, layout, LoraFactors { a: &a, b: &b, rank, scale })?)
    }

    /// Reads a tensor as f32, checks shape and values, and marks it as used.
    fn read_values(&self, stored: &StoredTensor, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        stored.used.store(true, Ordering::Relaxed);
        if stored.shape != shape {
            return Err(ModelError::WrongShape {
                file: self.path(stored).to_path_buf(),
                tensor: stored.original.clone(),
                expected: shape.to_vec(),
                found: stored.shape.clone(),
            });
        }
        let values = stored.encoding.to_f32(shape, self.bytes(stored)).ok_or_else(|| {
            ModelError::UnsupportedDtype {
                file: self.path(stored).to_path_buf(),
                tensor: stored.original.clone(),
                dtype: stored.encoding.to_string(),
            }
        })?;
        self.check_finite(stored, &values)?;
        Ok(values)
    }

    fn check_finite(&self, stored: &StoredTensor, values: &[f32]) -> Result<(), ModelError> {
        match convert::first_non_finite(values) {
            None => Ok(()),
            Some((index, value)) => Err(ModelError::NonFinite {
                file: self.path(stored).to_path_buf(),
                tensor: stored.original.clone(),
                index,
                value: f64::from(value),
            }),
        }
    }

    /// Zeros if missing tensors are collected, else an error.
    fn read_missing(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let Some(missing) = &self.missing else { return Err(self.missing_error(name)) };
        let mut missing = missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.insert(name.to_owned(), shape.to_vec());
        Ok(vec![0.0; shape.iter().product()])
    }

    fn missing_error(&self, name: &str) -> ModelError {
        let hint = if let Some(pickle) = self.pickles.first() {
            ModelError::PickleWeights { file: pickle.clone() }.to_string()
        } else if name == "lm_head.weight" {
            "set tie_word_embeddings to true if the embedding is the output matrix".to_owned()
        } else {
            format!(
                "{} tensors were read from {} files",
                self.tensors().count(),
                self.weight_files.len()
            )
        };
        ModelError::MissingTensor { dir: self.dir().to_owned(), tensor: name.to_owned(), hint }
    }

    fn path(&self, stored: &StoredTensor) -> &Path {
        &self.weight_files[stored.file].path
    }

    fn bytes(&self, stored: &StoredTensor) -> &[u8] {
        self.weight_files[stored.file].slice(&stored.range)
    }
}

impl TensorInfo<'_> {
    fn describe(&self) -> String {
        format!("{} ({} in {})", self.canonical, self.original, self.file.display())
    }
}
