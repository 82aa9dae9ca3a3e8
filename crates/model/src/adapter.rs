//! Adapters: directories with low-rank factors instead of weights, and their base models.
//!
//! An adapter names its base in adapter_config.json, as in peft; `base.json` adds the path of the
//! base, its id on the Hub, how to download it, and how to recognize it. A base may be an adapter
//! itself. [`ModelFiles::chain`] lists an adapter and all of its base models.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::hub::{HubCache, HubId, MODEL_EXTENSIONS};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{Checkpoint, files};
use crate::error::{self, ModelError};
use crate::model_files::{AdapterFiles, ModelFiles};

/// peft's description of an adapter.
pub(crate) const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The factors of an adapter.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// The file in which an adapter records its base.
pub const BASE_RECORD: &str = "base.json";
/// Maximum length of a chain of adapters.
const MAX_ADAPTERS: usize = 16;

/// The record of an adapter's base: `base.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BaseRecord {
    /// Path of the base, relative to the adapter's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Id of the base on the Hugging Face Hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// How to download the base, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// [`Checkpoint::digest`] of the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Whether the base is an adapter itself.
    #[serde(default)]
    pub adapter: bool,
    /// Shapes of the base's tensors by canonical name; `*` replaces the block number.
    #[serde(default)]
    pub shapes: BTreeMap<String, Vec<usize>>,
}

/// Problems of a model that do not prevent its use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelWarning {
    /// The base of an adapter has the right shapes, but not the weights that it was trained on.
    OtherBase {
        /// The adapter's directory.
        dir: PathBuf,
        /// The base model.
        base: PathBuf,
    },
}

impl fmt::Display for ModelWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::OtherBase { dir, base } = self;
        let dir = dir.display();
        let base = base.display();
        write!(f, "{dir}: the adapter was trained on other weights than those of {base}")
    }
}

impl BaseRecord {
    /// Records a base: its digest and shapes.
    pub fn of(base: &Checkpoint) -> Result<Self, ModelError> {
        let mut shapes = BTreeMap::<String, Vec<usize>>::new();
        let mut single = BTreeMap::new();
        for (name, shape) in base.shapes() {
            match shapes.get(&block_pattern(name)) {
                Some(known) if known != shape => {
                    single.insert(name.to_owned(), shape.to_vec());
                }
                _ => {
                    shapes.insert(block_pattern(name), shape.to_vec());
                }
            }
        }
        shapes.extend(single);
        let digest = Some(base.digest()?);
        let adapter = base.base().is_some();
        Ok(Self { digest, adapter, shapes, ..Self::default() })
    }

    /// Reads the record of an adapter, if there is one.
    pub fn read(files: &ModelFiles) -> Result<Option<Self>, ModelError> {
        let file = files.file_path(BASE_RECORD);
        match files.contains(&file) {
            true => error::parse_json(&file, &files.read_text(&file)?).map(Some),
            false => Ok(None),
        }
    }

    /// Compares an adapter's base with the one that it was trained on: different shapes are an
    /// error, different weights a warning.
    pub(crate) fn check(
        &self,
        adapter: &ModelFiles,
        base: &Checkpoint,
        base_path: &Path,
    ) -> Result<Option<ModelWarning>, ModelError> {
        let dir = adapter.path().to_owned();
        let base_path = base_path.to_owned();
        let described = |name: &str, shape: &[usize]| format!("`{name}` of shape {shape:?}");
        for (name, found) in base.shapes() {
            let expected = self.shapes.get(name).or_else(|| self.shapes.get(&block_pattern(name)));
            if let Some(expected) = expected.filter(|expected| *expected != found) {
                let expected = described(name, expected);
                let found = described(name, found);
                return Err(ModelError::OtherBase { dir, base: base_path, expected, found });
            }
        }
        for (name, expected) in &self.shapes {
            if !base.has(&name.replacen('*', "0", 1)) {
                let expected = described(name, expected);
                let found = format!("no `{name}`");
                return Err(ModelError::OtherBase { dir, base: base_path, expected, found });
            }
        }
        Ok(match &self.digest {
            Some(digest) if *digest != base.digest()? => {
                Some(ModelWarning::OtherBase { dir, base: base_path })
            }
            _ => None,
        })
    }
}

/// A tensor's name with `*` replacing its block number.
fn block_pattern(name: &str) -> String {
    let is_number = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
    match name.split('.').find(is_number) {
        Some(number) if name.starts_with("layers.") || name.starts_with("h.") => {
            name.replacen(&format!(".{number}."), ".*.", 1)
        }
        _ => name.to_owned(),
    }
}

impl ModelFiles {
    /// Whether these are the files of an adapter: adapter_config.json, and no weights of a full
    /// model.
    pub fn is_adapter(&self) -> Result<bool, ModelError> {
        match self {
            Self::Adapter(_) => Ok(true),
            Self::Gguf(_) | Self::Described(_) => Ok(false),
            _ if !self.contains(&self.file_path(ADAPTER_CONFIG)) => Ok(false),
            _ => Ok(!files::has_whole_weights(&self.file_names()?)),
        }
    }

    /// The base of an adapter: the one that was passed with it, else the recorded one. `None` for a
    /// full model.
    pub fn base(&self) -> Result<Option<Self>, ModelError> {
        match self {
            Self::Adapter(adapter) => Ok(Some(adapter.base.clone())),
            _ if self.is_adapter()? => recorded_base(self).map(Some),
            _ => Ok(None),
        }
    }

    /// These files and those of all base models: adapters, then a full model.
    pub fn chain(&self) -> Result<Vec<Self>, ModelError> {
        let mut chain = vec![self.clone()];
        while let Some(base) = chain[chain.len() - 1].base()? {
            let is_base = |files: &Self| same_place(files.path(), base.path());
            if chain.iter().any(is_base) || chain.len() > MAX_ADAPTERS {
                return Err(ModelError::EndlessAdapters { dir: self.path().to_owned() });
            }
            chain.push(base);
        }
        Ok(chain)
    }

    /// Attaches a base to an adapter. A full model is returned unchanged, unless it has no
    /// configuration: then it uses that of the base, and the base's tokenizer.
    ///
    /// A full model replaces the one at the end of the chain: if the adapter's recorded base is an
    /// adapter, it is attached to that one. A base that is an adapter itself is attached directly.
    pub fn with_base(self, base: Self) -> Result<Self, ModelError> {
        base.check_exists()?;
        if !self.is_adapter()? {
            let is_described = self.contains(&self.file_path("config.json"));
            return Ok(match is_described {
                true => self,
                false => Self::Described(Box::new(AdapterFiles { files: self, base })),
            });
        }
        let over_adapter = BaseRecord::read(&self)?.is_some_and(|record| record.adapter);
        let base = match (base.is_adapter()?, over_adapter) {
            (false, true) => recorded_base(&self)?.with_base(base)?,
            (false, false) => match recorded_base(&self) {
                Ok(recorded) if recorded.is_adapter()? => recorded.with_base(base)?,
                _ => base,
            },
            (true, _) => base,
        };
        Ok(Self::Adapter(Box::new(AdapterFiles { files: self, base })))
    }

    /// The first model of the chain that has one of the given files; for files that an adapter may
    /// inherit from its base.
    pub fn first_with(&self, names: &[&str]) -> Result<Option<Self>, ModelError> {
        let has = |files: &Self| names.iter().any(|name| files.contains(&files.file_path(name)));
        // An adapter with its own files needs no base here.
        if has(self) {
            return Ok(Some(self.clone()));
        }
        if let Self::Described(described) = self {
            return described.base.first_with(names);
        }
        Ok(self.chain()?.into_iter().find(has))
    }

    /// Reads a file; an adapter without it inherits its base's.
    pub fn read_inherited(&self, name: &str) -> Result<Option<Vec<u8>>, ModelError> {
        match self.first_with(&[name])? {
            Some(files) => files.read_optional(name),
            None => Ok(None),
        }
    }
}

/// The absolute path of a model. A symbolic link to the model itself is not resolved: the Hub's
/// cache names files by links.
pub fn absolute_path(model: &Path) -> std::io::Result<PathBuf> {
    let model = std::path::absolute(model)?;
    match (model.parent(), model.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => model.canonicalize(),
    }
}

/// The path of a model as seen from an existing directory, with `..` where needed.
pub fn path_from(dir: &Path, model: &Path) -> std::io::Result<PathBuf> {
    let dir = dir.canonicalize()?;
    let model = absolute_path(model)?;
    let shared = dir.components().zip(model.components()).take_while(|(a, b)| a == b).count();
    let up = dir.components().skip(shared).map(|_| Component::ParentDir);
    Ok(up.chain(model.components().skip(shared)).collect())
}

fn same_place(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    place(a) == place(b)
}

/// The recorded base of an adapter: by path, else by id in the Hugging Face cache.
fn recorded_base(files: &ModelFiles) -> Result<ModelFiles, ModelError> {
    let file = files.file_path(ADAPTER_CONFIG);
    let config: Value = error::parse_json(&file, &files.read_text(&file)?)?;
    let name = config.get("base_model_name_or_path").and_then(Value::as_str).unwrap_or_default();
    let BaseRecord { path, id, source, .. } = BaseRecord::read(files)?.unwrap_or_default();
    let beside = path.and_then(|path| absolute_path(&files.path().join(path)).ok());
    let named = [files.path().join(name), PathBuf::from(name)];
    let named = named.into_iter().filter(|_| !name.is_empty());
    if let Some(path) = beside.into_iter().chain(named).find(|path| path.exists()) {
        return Ok(ModelFiles::from(&path));
    }
    let parse = |id: &str| HubId::parse(id, &MODEL_EXTENSIONS);
    let id = id.as_deref().and_then(parse).or_else(|| parse(name));
    if let Some(path) = id.as_ref().and_then(|id| HubCache::from_env()?.model(id)) {
        return Ok(ModelFiles::from(&path));
    }
    let how = match (source, &id) {
        (Some(source), _) => source,
        (None, Some(id)) => format!("download it with `{}`", id.download_command()),
        (None, None) => "put its directory or GGUF file at that path, or change \
                         `base_model_name_or_path`"
            .to_owned(),
    };
    let base = id.as_ref().map_or_else(|| name.to_owned(), HubId::to_string);
    Err(ModelError::MissingBase { file, base, id: id.map(Box::new), how })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_seen_from_a_directory() {
        let dir = std::env::temp_dir().canonicalize().unwrap_or_default();
        let from = |model: &str| path_from(&dir, &dir.join(model)).unwrap_or_default();
        assert_eq!(from("base"), Path::new("base"));
        assert!(absolute_path(Path::new("base")).is_ok_and(|path| path.is_absolute()));
        assert_eq!(from("../base.gguf"), Path::new("../base.gguf"));
    }

    #[test]
    fn block_numbers_become_a_star() {
        for (name, pattern) in [
            ("layers.12.mlp.up_proj.weight", "layers.*.mlp.up_proj.weight"),
            ("h.0.attn.c_attn.bias", "h.*.attn.c_attn.bias"),
            ("projector.1.weight", "projector.1.weight"),
            ("norm.weight", "norm.weight"),
        ] {
            assert_eq!(block_pattern(name), pattern);
        }
    }
}
