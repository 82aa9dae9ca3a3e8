//! The LoRA factors of one adapter, or of a full model's own files.

use std::collections::BTreeMap;
use std::path::Path;

use super::StoredTensor;
use crate::config::Architecture;
use crate::error::ModelError;
use crate::lora::LoraScale;
use crate::model_files::ModelFiles;

/// The factors of one adapter.
pub(super) struct LoraLayer {
    files: ModelFiles,
    /// The first of the checkpoint's weight files that belongs to it.
    pub(super) first_file: usize,
    /// Factors by module.
    pub(super) pairs: BTreeMap<String, LoraPair>,
    scale: Option<LoraScale>,
}

/// The LoRA factors of one module; opening a checkpoint fails if one of them is missing.
#[derive(Default)]
pub(super) struct LoraPair {
    pub(super) a: Option<StoredTensor>,
    pub(super) b: Option<StoredTensor>,
}

impl LoraPair {
    /// Both factors, A and B.
    pub(super) fn both(&self) -> Option<(&StoredTensor, &StoredTensor)> {
        self.a.as_ref().zip(self.b.as_ref())
    }
}

impl LoraLayer {
    /// A layer without factors.
    pub(super) fn new(files: &ModelFiles, first_file: usize) -> Self {
        Self { files: files.clone(), first_file, pairs: BTreeMap::new(), scale: None }
    }

    /// All factors by `<module>.lora_A.weight` or `<module>.lora_B.weight`.
    pub(super) fn factors(&self) -> impl Iterator<Item = (String, &StoredTensor)> {
        self.pairs.iter().flat_map(|(module, pair)| {
            let halves = [("lora_A", &pair.a), ("lora_B", &pair.b)];
            halves
                .into_iter()
                .filter_map(move |(half, s)| Some((format!("{module}.{half}.weight"), s.as_ref()?)))
        })
    }

    /// A factor by its name.
    pub(super) fn factor(&self, name: &str) -> Option<&StoredTensor> {
        let pair = |suffix| self.pairs.get(name.strip_suffix(suffix)?);
        let a = pair(".lora_A.weight").and_then(|pair| pair.a.as_ref());
        a.or_else(|| pair(".lora_B.weight").and_then(|pair| pair.b.as_ref()))
    }

    /// Checks that every module has both factors, and reads their scale. adapter_config.json is
    /// read only if there are factors: a merged model may still have the file.
    pub(super) fn check_pairs(&mut self, architecture: Architecture) -> Result<(), ModelError> {
        if !self.pairs.is_empty() {
            self.scale = Some(LoraScale::read(&self.files, architecture)?);
        }
        for (module, pair) in &self.pairs {
            let (present, missing) = match (&pair.a, &pair.b) {
                (Some(_), None) => ("lora_A", "lora_B"),
                (None, Some(_)) => ("lora_B", "lora_A"),
                _ => continue,
            };
            return Err(ModelError::IncompleteAdapter {
                dir: self.files.path().to_owned(),
                module: module.clone(),
                present,
                missing,
            });
        }
        Ok(())
    }

    /// Checks the factors' rank against adapter_config.json's.
    pub(super) fn check_ranks<'a>(
        &'a self,
        path: impl Fn(&'a StoredTensor) -> &'a Path,
    ) -> Result<(), ModelError> {
        let Some(rank) = self.scale.as_ref().and_then(LoraScale::rank) else { return Ok(()) };
        let reason = "from `r` in adapter_config.json; save the adapter again";
        for (a, b) in self.pairs.values().filter_map(LoraPair::both) {
            for (factor, axis) in [(a, 0), (b, 1)] {
                let mut expected = factor.shape.clone();
                expected.resize(2, 1);
                expected[axis] = rank;
                factor.check_shape(expected, path(factor), reason)?;
            }
        }
        Ok(())
    }

    /// The scale of a module's product.
    pub(super) fn scale(&self, module: &str, a: &StoredTensor) -> Result<f32, ModelError> {
        let rank = a.shape.first().copied().unwrap_or(0);
        let scale = self.scale.as_ref().and_then(|scale| scale.for_rank(rank));
        scale.ok_or_else(|| ModelError::UnknownAdapterScale {
            dir: self.files.path().to_owned(),
            module: module.to_owned(),
            rank,
        })
    }
}

impl StoredTensor {
    /// Fails if a factor has another shape.
    pub(super) fn check_shape(
        &self,
        expected: Vec<usize>,
        file: &Path,
        reason: &'static str,
    ) -> Result<(), ModelError> {
        if self.shape == expected {
            return Ok(());
        }
        let file = file.to_path_buf();
        let tensor = self.original.clone();
        Err(ModelError::FactorShape { file, tensor, found: self.shape.clone(), expected, reason })
    }
}
