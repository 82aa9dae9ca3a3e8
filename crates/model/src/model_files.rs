//! The files of a model: a directory on disk, one GGUF file, or bytes embedded in the program or
//! in memory.
//!
//! All reading of checkpoints goes through [`ModelFiles`], so the sources share one code path and
//! its errors. A file is identified by its path under [`ModelFiles::path`]; the paths of embedded
//! files, and of the virtual files of a GGUF file, exist in messages only.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{self, ModelError};
use crate::gguf;

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// A directory, as `save_pretrained` writes it.
    Directory(PathBuf),
    /// A GGUF file. Its metadata are read as the config.json, tokenizer.json and
    /// tokenizer_config.json of a directory.
    Gguf(PathBuf),
    /// The same files, embedded in the program.
    Embedded(EmbeddedFiles),
    /// The same files, in memory: a model that is being trained.
    Memory(Arc<MemoryFiles>),
    /// An adapter with an explicit base model, which overrides the recorded one.
    Adapter(Box<AdapterFiles>),
    /// The weights of a full model that was published without a configuration, and the model that
    /// provides configuration and tokenizer.
    Described(Box<AdapterFiles>),
}

/// An adapter, or a model without a configuration, with its base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterFiles {
    /// The adapter's own files.
    pub files: ModelFiles,
    /// The base model.
    pub base: ModelFiles,
}

/// Files embedded in the program, as by `include_bytes!`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedFiles {
    /// The name of the directory in messages.
    pub name: &'static str,
    /// Name and content of each file.
    pub files: &'static [(&'static str, &'static [u8])],
    /// Name and content of each subdirectory.
    pub subdirs: &'static [(&'static str, EmbeddedFiles)],
}

/// Files in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryFiles {
    /// The directory that they belong to, for messages and for the paths that they record.
    pub dir: PathBuf,
    /// Content by name.
    pub files: BTreeMap<String, Arc<[u8]>>,
}

impl MemoryFiles {
    fn find(&self, file: &Path) -> Option<&Arc<[u8]>> {
        self.files.get(file.strip_prefix(&self.dir).ok()?.to_str()?)
    }

    fn get(&self, file: &Path) -> Result<&Arc<[u8]>, ModelError> {
        self.find(file).ok_or_else(|| ModelError::io(file, std::io::ErrorKind::NotFound.into()))
    }
}

impl From<&Path> for ModelFiles {
    /// A GGUF file by its extension, else a directory.
    fn from(path: &Path) -> Self {
        match gguf::is_gguf(path) {
            true => Self::Gguf(path.to_owned()),
            false => Self::Directory(path.to_owned()),
        }
    }
}

impl From<&PathBuf> for ModelFiles {
    fn from(path: &PathBuf) -> Self {
        Self::from(path.as_path())
    }
}

impl From<&ModelFiles> for ModelFiles {
    fn from(files: &ModelFiles) -> Self {
        files.clone()
    }
}

impl ModelFiles {
    /// The directory, the GGUF file, or the name of the embedded files.
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(path) | Self::Gguf(path) => path,
            Self::Embedded(embedded) => Path::new(embedded.name),
            Self::Memory(memory) => &memory.dir,
            Self::Adapter(adapter) | Self::Described(adapter) => adapter.files.path(),
        }
    }

    /// The subdirectory `name`, if there is one.
    pub fn subdir(&self, name: &str) -> Option<Self> {
        match self {
            Self::Directory(dir) => {
                Some(dir.join(name)).filter(|dir| dir.is_dir()).map(Self::Directory)
            }
            Self::Gguf(_) | Self::Memory(_) => None,
            Self::Embedded(embedded) => embedded
                .subdirs
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, inner)| Self::Embedded(*inner)),
            Self::Adapter(adapter) | Self::Described(adapter) => adapter.files.subdir(name),
        }
    }

    /// The path of the file `name`, for messages and for the other functions here.
    pub(crate) fn file_path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Fails if the directory is missing, so that its absence is not reported as a missing file.
    pub(crate) fn check_exists(&self) -> Result<(), ModelError> {
        match self {
            Self::Directory(dir) if !dir.is_dir() => {
                Err(ModelError::MissingDirectory { dir: dir.clone() })
            }
            Self::Adapter(adapter) | Self::Described(adapter) => adapter.files.check_exists(),
            _ => Ok(()),
        }
    }

    /// The names of the regular files, sorted; subdirectories are not listed.
    pub(crate) fn file_names(&self) -> Result<Vec<String>, ModelError> {
        let mut names = match self {
            Self::Directory(dir) => list_files(dir)?,
            Self::Gguf(_) => gguf::TEXT_NAMES.map(str::to_owned).to_vec(),
            Self::Embedded(embedded) => {
                embedded.files.iter().map(|(name, _)| (*name).to_owned()).collect()
            }
            Self::Memory(memory) => memory.files.keys().cloned().collect(),
            Self::Adapter(adapter) | Self::Described(adapter) => adapter.files.file_names()?,
        };
        names.sort();
        Ok(names)
    }

    pub(crate) fn contains(&self, file: &Path) -> bool {
        match self {
            Self::Directory(_) => file.is_file() && !is_empty_json(file),
            Self::Gguf(path) => {
                gguf::TEXT_NAMES.iter().any(|name| file.strip_prefix(path) == Ok(Path::new(name)))
            }
            Self::Embedded(embedded) => embedded.find(file).is_some(),
            Self::Memory(memory) => memory.find(file).is_some(),
            Self::Adapter(adapter) | Self::Described(adapter) => adapter.files.contains(file),
        }
    }

    /// The content of the file `name`, if there is one.
    pub fn read_optional(&self, name: &str) -> Result<Option<Vec<u8>>, ModelError> {
        let file = self.file_path(name);
        self.contains(&file).then(|| self.read_bytes(&file)).transpose()
    }

    /// Reads a UTF-8 text file.
    pub(crate) fn read_text(&self, file: &Path) -> Result<String, ModelError> {
        error::parse_utf8(file, self.read_bytes(file)?)
    }

    fn read_bytes(&self, file: &Path) -> Result<Vec<u8>, ModelError> {
        match self {
            Self::Directory(_) => {
                record::files::read_regular(file).map_err(|e| ModelError::io(file, e))
            }
            Self::Gguf(path) => {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let missing = || ModelError::io(file, std::io::ErrorKind::NotFound.into());
                gguf::text(path, &name)?.map(String::into_bytes).ok_or_else(missing)
            }
            Self::Embedded(embedded) => embedded.get(file).map(<[u8]>::to_vec),
            Self::Memory(memory) => memory.get(file).map(|bytes| bytes.to_vec()),
            Self::Adapter(adapter) | Self::Described(adapter) => adapter.files.read_bytes(file),
        }
    }

    /// Memory-maps a file: its pages are read when they are touched.
    pub(crate) fn map(&self, file: &Path) -> Result<FileBytes, ModelError> {
        let opened = match self {
            Self::Embedded(embedded) => return embedded.get(file).map(FileBytes::Static),
            Self::Memory(memory) => return memory.get(file).cloned().map(FileBytes::Shared),
            Self::Adapter(adapter) | Self::Described(adapter) => return adapter.files.map(file),
            Self::Directory(_) | Self::Gguf(_) => {
                // Opening a pipe waits for its writer.
                record::files::open_regular(file).map_err(|e| ModelError::io(file, e))?
            }
        };
        // SAFETY: the map is read-only and private to the checkpoint. Like every reader of mapped
        // weights this assumes that the file is not truncated while the model runs. A changed byte
        // gives a wrong number, not undefined behavior: every bit pattern is a valid u8, and values
        // are copied out before they are checked.
        let map = unsafe { Mmap::map(&opened) }.map_err(|e| ModelError::io(file, e))?;
        Ok(FileBytes::Mapped(map))
    }
}

/// Some published models have an empty config.json: it counts as missing.
fn is_empty_json(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "json")
        && file.metadata().is_ok_and(|metadata| metadata.len() == 0)
}

fn list_files(dir: &Path) -> Result<Vec<String>, ModelError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| ModelError::io(dir, e))? {
        let entry = entry.map_err(|e| ModelError::io(dir, e))?;
        // `is_file` follows symbolic links: the Hugging Face hub cache consists of them.
        if entry.path().is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

impl EmbeddedFiles {
    fn find(&self, file: &Path) -> Option<&'static [u8]> {
        let name = file.strip_prefix(self.name).ok()?;
        self.files.iter().find(|(known, _)| Path::new(known) == name).map(|(_, content)| *content)
    }

    fn get(&self, file: &Path) -> Result<&'static [u8], ModelError> {
        self.find(file).ok_or_else(|| ModelError::io(file, std::io::ErrorKind::NotFound.into()))
    }
}

/// The content of a file.
pub(crate) enum FileBytes {
    Mapped(Mmap),
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}
