//! Registers the tensors of a checkpoint's files, layer by layer, and checks their consistency.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::files::{self, MappedFile, TensorHeader, WeightFiles};
use super::layer::LoraLayer;
use super::{Checkpoint, StoredTensor};
use crate::adapter::{ADAPTER_CONFIG, ADAPTER_WEIGHTS};
use crate::error::ModelError;
use crate::model_files::ModelFiles;
use crate::names::TensorRole;
use crate::parameters::NEW_ROWS;
use crate::weights::WeightLayout;

impl Checkpoint {
    /// Registers the files of a full model, or of an adapter on top of the registered layers.
    pub(super) fn add_layer(&mut self, model_files: &ModelFiles) -> Result<(), ModelError> {
        let weights = files::find_weights(model_files)?;
        self.layers.push(LoraLayer::new(model_files, self.weight_files.len()));
        self.register_files(model_files, &weights)?;
        self.pickles = weights.pickles;
        let architecture = self.config.architecture;
        self.layers.last_mut().map_or(Ok(()), |layer| layer.check_pairs(architecture))?;
        let Some(layer) = self.layers.last() else { return Ok(()) };
        layer.check_ranks(|factor| self.path(factor))
    }

    /// Rejects a full model next to the configuration of an adapter whose weights are missing: it
    /// would run as the base model.
    pub(super) fn check_described_adapter(&self, whole: &ModelFiles) -> Result<(), ModelError> {
        let in_directory = !matches!(whole, ModelFiles::Gguf(_));
        let described = in_directory && whole.contains(&whole.file_path(ADAPTER_CONFIG));
        if !described || self.layers.last().is_some_and(|layer| !layer.pairs.is_empty()) {
            return Ok(());
        }
        let weights = whole.file_path(ADAPTER_WEIGHTS);
        let pickle = self.pickles.iter().find(|file| file.ends_with("adapter_model.bin"));
        Err(match pickle {
            _ if whole.contains(&weights) => ModelError::EmptyAdapter { file: weights },
            Some(file) => ModelError::PickleWeights { file: file.clone() },
            None => ModelError::MissingAdapterWeights { dir: whole.path().to_owned() },
        })
    }

    /// Checks the factors of the topmost layer, an adapter's, against the weights below.
    pub(super) fn check_adapter(
        &self,
        adapter: &ModelFiles,
        base: &ModelFiles,
    ) -> Result<(), ModelError> {
        let Some(layer) = self.layers.last() else { return Ok(()) };
        if layer.pairs.is_empty() {
            return Err(ModelError::EmptyAdapter { file: adapter.file_path(ADAPTER_WEIGHTS) });
        }
        for (module, pair) in &layer.pairs {
            let Some((a, b)) = pair.both() else { continue };
            let file = || self.path(a).to_path_buf();
            let Some(weight) = self.weights.get(&format!("{module}.weight")) else {
                let module = module.clone();
                let base = base.path().to_owned();
                let tensor = a.original.clone();
                return Err(ModelError::UnknownModule { file: file(), tensor, module, base });
            };
            let &[rows, columns] = weight.shape.as_slice() else {
                let what = format!("`{}` on a weight that is not a matrix", a.original);
                return Err(ModelError::UnsupportedAdapter { file: file(), what });
            };
            let layout = WeightLayout::of(self.config.architecture, module);
            let (inputs, outputs) = layout.inputs_and_outputs(rows, columns);
            let rank = a.shape.first().copied().unwrap_or(0);
            for (factor, expected) in [(a, vec![rank, inputs]), (b, vec![outputs, rank])] {
                let reason = "from the base; pass the model that it was trained on";
                factor.check_shape(expected, self.path(factor), reason)?;
            }
        }
        Ok(())
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
        let (module, is_a) = match role {
            TensorRole::Ignored(why) => {
                self.ignored.push((stored, why));
                return Ok(());
            }
            TensorRole::Unmergeable(what) => {
                let file = self.path(&stored).to_path_buf();
                let what = format!("`{}`, {what},", stored.original);
                return Err(ModelError::UnsupportedAdapter { file, what });
            }
            TensorRole::Weight(name) => return self.register_weight(name, stored),
            TensorRole::LoraA(module) => (module, true),
            TensorRole::LoraB(module) => (module, false),
        };
        let Some(layer) = self.layers.last_mut() else { return Ok(()) };
        let pair = layer.pairs.entry(module).or_default();
        let slot = if is_a { &mut pair.a } else { &mut pair.b };
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
    /// error. An adapter's weights replace those below.
    fn register_weight(&mut self, name: String, stored: StoredTensor) -> Result<(), ModelError> {
        match self.weights.get(&name) {
            None => {
                self.weights.insert(name, stored);
            }
            Some(below) if below.file < self.first_own_file() => {
                self.check_new_rows(&name, below, &stored)?;
                if let Some(below) = self.weights.insert(name, stored) {
                    self.ignored.push((below, "replaced by an adapter"));
                }
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

    /// The rows of new tokens are the last of their table: those of an adapter must include those
    /// of the adapters below.
    fn check_new_rows(
        &self,
        name: &str,
        below: &StoredTensor,
        stored: &StoredTensor,
    ) -> Result<(), ModelError> {
        if name.starts_with(NEW_ROWS) && stored.shape.first() < below.shape.first() {
            let what = format!("`{}` with fewer rows than the base's", stored.original);
            let file = self.path(stored).to_path_buf();
            return Err(ModelError::UnsupportedAdapter { file, what });
        }
        Ok(())
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
