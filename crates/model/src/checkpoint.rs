//! A checkpoint as `save_pretrained` writes it, or a GGUF file: tensors by canonical name, as f32.
//!
//! `files` finds and memory-maps the files, [`crate::names`] classifies the tensors, `lora` merges
//! adapters, `convert` decodes dtypes and `gguf` quantised blocks. Opening reads headers only;
//! [`Checkpoint::tensor`] reads the bytes of one tensor.
//!
//! Invariants: a canonical name identifies one tensor; a returned tensor has the requested shape
//! and only finite values.

pub(crate) mod convert;
mod files;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use safetensors::Dtype;

use crate::config::Config;
use crate::error::ModelError;
use crate::gguf::{self, GgmlType, RowOrder};
use crate::lora::{self, LoraFactors, LoraScale};
use crate::model_files::ModelFiles;
use crate::names::TensorRole;
use crate::parameters::NEW_ROWS;
use crate::source::TensorSource;
use crate::weights::WeightLayout;
pub use files::ADAPTER_HEADS_FILE;
use files::{MappedFile, TensorHeader, WeightFiles};

/// An opened checkpoint.
pub struct Checkpoint {
    model_files: ModelFiles,
    config: Config,
    weight_files: Vec<MappedFile>,
    weights: BTreeMap<String, StoredTensor>,
    adapters: BTreeMap<String, LoraPair>,
    lora_scale: LoraScale,
    ignored: Vec<(StoredTensor, &'static str)>,
    pickles: Vec<PathBuf>,
    base: Option<ModelFiles>,
}

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
    /// The values of a tensor; `None` if this encoding is not read.
    fn to_f32(self, shape: &[usize], bytes: &[u8]) -> Option<Vec<f32>> {
        match self {
            Self::Safetensors(dtype) => convert::to_f32(dtype, bytes),
            Self::Ggml { kind, rows } => Some(gguf::dequantize(kind, rows, shape, bytes)),
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

/// The LoRA factors of one module; [`Checkpoint::open`] fails if only one is there.
#[derive(Default)]
struct LoraPair {
    a: Option<StoredTensor>,
    b: Option<StoredTensor>,
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
    /// The dtype, as safetensors or ggml spells it.
    pub dtype: String,
    /// The shape in the file.
    pub shape: &'a [usize],
    /// Size in the file, in bytes.
    pub bytes: usize,
    /// Whether it has been read.
    pub used: bool,
    /// Why it need not be read, if so.
    pub ignored: Option<&'static str>,
}

impl Checkpoint {
    /// Reads config.json and the headers of all weight files.
    pub fn open(model_files: impl Into<ModelFiles>) -> Result<Checkpoint, ModelError> {
        let model_files = model_files.into();
        model_files.check_exists()?;
        let has_config = model_files.contains(&model_files.file_path("config.json"));
        let base = if has_config { None } else { lora::adapter_base(&model_files)? };
        let config = Config::read(base.as_ref().unwrap_or(&model_files))?;
        let weights = files::find_weights(&model_files)?;
        let lora_scale = LoraScale::FamilyDefault(config.architecture);
        let mut checkpoint = Checkpoint {
            model_files,
            config,
            weight_files: Vec::new(),
            weights: BTreeMap::new(),
            adapters: BTreeMap::new(),
            lora_scale,
            ignored: Vec::new(),
            pickles: weights.pickles.clone(),
            base: weights.base.clone(),
        };
        if let Some(base) = &weights.base {
            checkpoint.register_files(base, &files::find_weights(base)?)?;
        }
        checkpoint.register_files(&checkpoint.model_files.clone(), &weights)?;
        checkpoint.check_adapters()?;
        checkpoint.check_vocabulary()?;
        Ok(checkpoint)
    }

    /// Registers all tensors of some weight files.
    fn register_files(
        &mut self,
        model_files: &ModelFiles,
        WeightFiles { files, index, .. }: &WeightFiles,
    ) -> Result<(), ModelError> {
        for file in files {
            let (mapped, tensors) = MappedFile::open(model_files, file)?;
            if let Some((index, map)) = index {
                check_index(model_files.path(), &mapped.path, &tensors, index, map)?;
            }
            self.weight_files.push(mapped);
            tensors.into_iter().try_for_each(|tensor| self.register(tensor))?;
        }
        Ok(())
    }

    /// The parsed config.json.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The files that it was opened from.
    pub fn model_files(&self) -> &ModelFiles {
        &self.model_files
    }

    /// The model that an adapter without weights of its own belongs to; `None` for other models.
    pub fn base(&self) -> Option<&ModelFiles> {
        self.base.as_ref()
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

    /// Rows at the end of the embedding that an adapter brings with it, in place of its base's or
    /// beyond them: those of new tokens.
    pub fn added_tokens(&self) -> usize {
        let name = format!("{NEW_ROWS}.{}.weight", self.config.embedding_name());
        self.shape(&name).and_then(|shape| shape.first().copied()).unwrap_or(0)
    }

    /// Reads a weight by canonical name, with its adapter merged, in the layout of its file:
    /// GPT-2's `Conv1D` stays (in, out).
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let stored = self.weights.get(name).ok_or_else(|| self.missing_error(name))?;
        let mut values = self.unmerged_tensor(name, shape)?;
        let module = name.strip_suffix(".weight");
        if let Some((module, adapter)) = module.and_then(|m| Some((m, self.adapters.get(m)?))) {
            self.merge_adapter(&mut values, shape, module, adapter)?;
            self.check_finite(stored, &values)?;
        }
        Ok(values)
    }

    /// Reads a weight without its adapter. The last rows of a table are those that the adapter
    /// brings with it.
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

    /// A LoRA factor by `<module>.lora_A.weight` or `<module>.lora_B.weight`.
    fn factor(&self, name: &str) -> Option<&StoredTensor> {
        let pair = |suffix| self.adapters.get(name.strip_suffix(suffix)?);
        let a = pair(".lora_A.weight").and_then(|pair| pair.a.as_ref());
        a.or_else(|| pair(".lora_B.weight").and_then(|pair| pair.b.as_ref()))
    }

    /// Tensors that were not read and are not known to be unnecessary, as `canonical (original in
    /// file)`.
    pub fn unused_tensors(&self) -> Vec<String> {
        self.tensors().filter(|e| !e.used && e.ignored.is_none()).map(|e| e.describe()).collect()
    }

    /// All tensors of all files: weights, then LoRA factors, then ignored tensors.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        let weights = self
            .weights
            .iter()
            .map(|(name, s)| self.info(name.clone(), s, self.redundant_reason(name)));
        let factors = self.adapters.iter().flat_map(|(module, adapter)| {
            let halves = [("lora_A", &adapter.a), ("lora_B", &adapter.b)];
            halves
                .into_iter()
                .filter_map(move |(half, s)| Some((format!("{module}.{half}.weight"), s.as_ref()?)))
        });
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
            ignored,
        }
    }

    /// Why a weight need not be read although it has a canonical name.
    fn redundant_reason(&self, name: &str) -> Option<&'static str> {
        (name == "lm_head.weight" && self.config.tied).then_some("tied to the token embedding")
    }

    /// Registers a tensor of the last of `weight_files` by its role.
    fn register(&mut self, tensor: TensorHeader) -> Result<(), ModelError> {
        let TensorHeader { name, role, encoding, shape, range } = tensor;
        let file = self.weight_files.len() - 1;
        let stored = StoredTensor {
            original: name,
            file,
            encoding,
            shape,
            range,
            used: AtomicBool::new(false),
        };
        let slot = match role {
            TensorRole::Ignored(why) => {
                self.ignored.push((stored, why));
                return Ok(());
            }
            TensorRole::Unmergeable(what) => {
                let (file, what) =
                    (self.path(&stored).to_path_buf(), format!("`{}`, {what},", stored.original));
                return Err(ModelError::UnsupportedAdapter { file, what });
            }
            TensorRole::Weight(name) => return self.register_weight(name, stored),
            TensorRole::LoraA(module) => &mut self.adapters.entry(module).or_default().a,
            TensorRole::LoraB(module) => &mut self.adapters.entry(module).or_default().b,
        };
        match slot.take() {
            None => *slot = Some(stored),
            Some(first) => {
                let tensor = "one low-rank factor".to_owned();
                return Err(self.duplicate_error(tensor, &first, &stored));
            }
        }
        Ok(())
    }

    /// Training scripts save some weights twice: an equal copy is ignored, a different one is an
    /// error.
    fn register_weight(&mut self, name: String, stored: StoredTensor) -> Result<(), ModelError> {
        match self.weights.get(&name) {
            None => {
                self.weights.insert(name, stored);
            }
            Some(first) if self.same_content(first, &stored) => {
                self.ignored.push((stored, "a second copy, equal to the first"))
            }
            Some(first) => return Err(self.duplicate_error(name, first, &stored)),
        }
        Ok(())
    }

    fn same_content(&self, a: &StoredTensor, b: &StoredTensor) -> bool {
        a.encoding == b.encoding && a.shape == b.shape && self.bytes(a) == self.bytes(b)
    }

    fn duplicate_error(
        &self,
        tensor: String,
        first: &StoredTensor,
        second: &StoredTensor,
    ) -> ModelError {
        ModelError::DuplicateTensor {
            file: self.path(second).to_path_buf(),
            tensor,
            first: first.original.clone(),
            second: second.original.clone(),
        }
    }

    /// Checks that every module has both factors. adapter_config.json is read only if there are
    /// factors: a merged model may still have the file.
    fn check_adapters(&mut self) -> Result<(), ModelError> {
        if !self.adapters.is_empty() {
            self.lora_scale = LoraScale::read(&self.model_files, self.config.architecture)?;
        }
        for (module, adapter) in &self.adapters {
            let (present, missing) = match (&adapter.a, &adapter.b) {
                (Some(_), None) => ("lora_A", "lora_B"),
                (None, Some(_)) => ("lora_B", "lora_A"),
                _ => continue,
            };
            return Err(ModelError::IncompleteAdapter {
                dir: self.dir().to_owned(),
                module: module.clone(),
                present,
                missing,
            });
        }
        Ok(())
    }

    /// The rows of the token embedding must be config.json's `vocab_size`.
    fn check_vocabulary(&self) -> Result<(), ModelError> {
        let name = format!("{}.weight", self.config.embedding_name());
        let Some(stored) = self.weights.get(&name) else {
            return Ok(());
        };
        let (vocab, added) = (self.config.vocab, self.added_tokens());
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
        adapter: &LoraPair,
    ) -> Result<(), ModelError> {
        let (Some(a), Some(b)) = (&adapter.a, &adapter.b) else {
            return Ok(());
        };
        let &[rows, columns] = shape else {
            return Err(ModelError::UnsupportedAdapter {
                file: self.path(a).to_path_buf(),
                what: format!("`{}` on a weight that is no matrix", a.original),
            });
        };
        let layout = WeightLayout::of(self.config.architecture, module);
        let (inputs, outputs) = match layout {
            WeightLayout::OutputMajor => (columns, rows),
            WeightLayout::InputMajor => (rows, columns),
        };
        let rank = a.shape.first().copied().unwrap_or(0);
        let scale =
            self.lora_scale.for_rank(rank).ok_or_else(|| ModelError::UnknownAdapterScale {
                dir: self.dir().to_owned(),
                module: module.to_owned(),
                rank,
            })?;
        let (a, b) =
            (self.read_values(a, &[rank, inputs])?, self.read_values(b, &[outputs, rank])?);
        lora::merge(values, rows, layout, LoraFactors { a: &a, b: &b, rank, scale });
        Ok(())
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

/// A checkpoint whose adapter is not merged: its factors are tensors of their own. For training
/// that goes on with an adapter.
#[derive(Clone, Copy)]
pub struct UnmergedCheckpoint<'a>(pub &'a Checkpoint);

impl TensorSource for UnmergedCheckpoint<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.has(name) || self.0.factor(name).is_some()
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        match self.0.factor(name) {
            Some(factor) => self.0.read_values(factor, shape),
            None => self.0.unmerged_tensor(name, shape),
        }
    }
}

impl TensorInfo<'_> {
    fn describe(&self) -> String {
        format!("{} ({} in {})", self.canonical, self.original, self.file.display())
    }
}

/// Checks that a shard holds all tensors that the index assigns to it.
fn check_index(
    dir: &Path,
    shard: &Path,
    tensors: &[TensorHeader],
    index: &Path,
    map: &BTreeMap<String, String>,
) -> Result<(), ModelError> {
    let held: HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    let expected = map.iter().filter(|(_, file)| dir.join(file) == shard);
    for (tensor, file) in expected {
        if !held.contains(tensor.as_str()) {
            return Err(ModelError::MissingInShard {
                index: index.to_path_buf(),
                shard: file.clone(),
                tensor: tensor.clone(),
            });
        }
    }
    Ok(())
}
