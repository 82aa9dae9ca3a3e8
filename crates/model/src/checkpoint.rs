//! A folder as `save_pretrained` writes it, opened: tensors by canonical name, as f32.
//!
//! `files` finds and maps the files, [`crate::names`] says what each tensor is, [`crate::adapter`]
//! merges low-rank parts, `convert` makes numbers. Opening reads headers only;
//! [`Checkpoint::tensor`] touches the bytes of one tensor.
//!
//! Invariants: one canonical name is one tensor; a returned tensor has the shape that was asked for
//! and only finite values.

mod convert;
mod files;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use safetensors::Dtype;

use crate::config::{Architecture, Config};
use crate::error::ModelError;
use crate::lora::{self, LoraFactors, LoraScale, Orientation};
use crate::model_files::ModelFiles;
use crate::names::{self, TensorRole};
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
}

/// A tensor in one of the files.
struct StoredTensor {
    original: String,
    /// Index into `Checkpoint::files`.
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
    used: AtomicBool,
}

/// The low-rank factors of one module; both are there once a checkpoint is open.
#[derive(Default)]
struct LoraPair {
    a: Option<StoredTensor>,
    b: Option<StoredTensor>,
}

/// One tensor of a checkpoint, for those who list it.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo<'a> {
    /// The name that the decoder asks for; of a low-rank factor, its module and `lora_A` or
    /// `lora_B`.
    pub canonical: String,
    /// The name in the file.
    pub original: &'a str,
    /// The file.
    pub file: &'a Path,
    /// The number format, as safetensors spells it.
    pub dtype: String,
    /// The shape in the file.
    pub shape: &'a [usize],
    /// Size in the file.
    pub bytes: usize,
    /// Whether somebody has asked for it.
    pub used: bool,
    /// Why nobody needs to ask for it, if so.
    pub ignored: Option<&'static str>,
}

impl Checkpoint {
    /// Reads config.json and the headers of all weight files.
    pub fn open(folder: impl Into<ModelFiles>) -> Result<Checkpoint, ModelError> {
        let folder = folder.into();
        let config = Config::read(&folder)?;
        let WeightFiles { files: sources, index, pickles } = files::find_weights(&folder)?;
        let scale = LoraScale::FamilyDefault(config.architecture);
        let mut checkpoint = Checkpoint {
            model_files: folder,
            config,
            weight_files: Vec::new(),
            weights: BTreeMap::new(),
            adapters: BTreeMap::new(),
            lora_scale: scale,
            ignored: Vec::new(),
            pickles,
        };
        for source in &sources {
            let (mapped, described) = MappedFile::open(&checkpoint.model_files, source)?;
            if let Some((index, map)) = &index {
                check_index(checkpoint.dir(), &mapped.path, &described, index, map)?;
            }
            checkpoint.weight_files.push(mapped);
            for tensor in described {
                checkpoint.register(tensor)?;
            }
        }
        checkpoint.check_adapters()?;
        checkpoint.check_vocabulary()?;
        Ok(checkpoint)
    }

    /// What config.json says.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where its files are.
    pub fn model_files(&self) -> &ModelFiles {
        &self.model_files
    }

    /// What its folder is called.
    pub fn dir(&self) -> &Path {
        self.model_files.path()
    }

    /// Whether a weight is there, by canonical name.
    pub fn has(&self, name: &str) -> bool {
        self.weights.contains_key(name)
    }

    /// The shape of a weight, by canonical name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.weights.get(name).map(|stored| stored.shape.as_slice())
    }

    /// Reads a weight by canonical name, in the layout of its file (GPT-2's `Conv1D` stays (in,
    /// out)), with its adapter merged.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let stored = self.weights.get(name).ok_or_else(|| self.missing_error(name))?;
        let mut values = self.read_values(stored, shape)?;
        let module = name.strip_suffix(".weight");
        if let Some((module, adapter)) = module.and_then(|m| Some((m, self.adapters.get(m)?))) {
            self.merge_adapter(&mut values, shape, module, adapter)?;
            self.check_finite(stored, &values)?;
        }
        Ok(values)
    }

    /// Tensors that nobody asked for and that are not known to be harmless, as `canonical (original
    /// in file)`.
    pub fn unused_tensors(&self) -> Vec<String> {
        self.tensors().filter(|e| !e.used && e.ignored.is_none()).map(|e| e.describe()).collect()
    }

    /// Every tensor of every file: weights, then low-rank factors, then what is ignored.
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
            dtype: stored.dtype.to_string(),
            shape: &stored.shape,
            bytes: stored.range.len(),
            used: stored.used.load(Ordering::Relaxed),
            ignored,
        }
    }

    /// Why a weight with a canonical name is not needed after all.
    fn redundant_reason(&self, name: &str) -> Option<&'static str> {
        (name == "lm_head.weight" && self.config.tied).then_some("tied to the token embedding")
    }

    /// Files a tensor of the newest file under what it is.
    fn register(&mut self, tensor: TensorHeader) -> Result<(), ModelError> {
        let TensorHeader { name, dtype, shape, range } = tensor;
        let file = self.weight_files.len() - 1;
        let role = names::classify(&name);
        let stored = StoredTensor {
            original: name,
            file,
            dtype,
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
                return Err(self.duplicate_error(
                    "one low-rank factor".to_owned(),
                    &first,
                    &stored,
                ));
            }
        }
        Ok(())
    }

    /// Training scripts save some weights twice; equal copies are one weight, unlike ones an error.
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
        a.dtype == b.dtype && a.shape == b.shape && self.bytes(a) == self.bytes(b)
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

    /// Both halves of each pair must be there. Only then does adapter_config.json matter: a merged
    /// model may keep its own.
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

    fn check_vocabulary(&self) -> Result<(), ModelError> {
        let name = match self.config.architecture {
            Architecture::Gpt2 => "wte.weight",
            Architecture::Llama | Architecture::Qwen3 => "embed_tokens.weight",
        };
        let Some(stored) = self.weights.get(name) else {
            return Ok(());
        };
        match stored.shape.first() {
            Some(&rows) if rows != self.config.vocab => Err(ModelError::VocabMismatch {
                file: self.path(stored).to_path_buf(),
                tensor: stored.original.clone(),
                rows,
                vocab: self.config.vocab,
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
        let orientation = Orientation::of(self.config.architecture, module);
        let (inputs, outputs) = match orientation {
            Orientation::Linear => (columns, rows),
            Orientation::Conv1D => (rows, columns),
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
        lora::merge(values, rows, orientation, LoraFactors { a: &a, b: &b, rank, scale });
        Ok(())
    }

    /// One stored tensor as f32, checked, and marked as used.
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
        let values = convert::to_f32(stored.dtype, self.bytes(stored)).ok_or_else(|| {
            ModelError::UnsupportedDtype {
                file: self.path(stored).to_path_buf(),
                tensor: stored.original.clone(),
                dtype: stored.dtype.to_string(),
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

impl TensorInfo<'_> {
    fn describe(&self) -> String {
        format!("{} ({} in {})", self.canonical, self.original, self.file.display())
    }
}

/// Each tensor that the index puts into this shard must be in it.
fn check_index(
    dir: &Path,
    shard: &Path,
    described: &[TensorHeader],
    index: &Path,
    map: &BTreeMap<String, String>,
) -> Result<(), ModelError> {
    let held: std::collections::HashSet<&str> = described.iter().map(|d| d.name.as_str()).collect();
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
