//! The files of a model: a directory on disk, or bytes embedded in the program.
//!
//! All reading of checkpoints goes through [`ModelFiles`], so both sources share one code path and
//! its errors. A file is identified by its path under [`ModelFiles::path`]; the paths of embedded
//! files exist in messages only.

use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{self, ModelError};

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// A directory, as `save_pretrained` writes it.
    Directory(PathBuf),
    /// The same files, embedded in the program.
    Embedded(EmbeddedFiles),
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

impl From<&Path> for ModelFiles {
    fn from(dir: &Path) -> Self {
        Self::Directory(dir.to_owned())
    }
}

impl From<&PathBuf> for ModelFiles {
    fn from(dir: &PathBuf) -> Self {
        Self::Directory(dir.clone())
    }
}

impl From<&ModelFiles> for ModelFiles {
    fn from(files: &ModelFiles) -> Self {
        files.clone()
    }
}

impl ModelFiles {
    /// The directory, or the name of the embedded files.
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(dir) => dir,
            Self::Embedded(embedded) => Path::new(embedded.name),
        }
    }

    /// The subdirectory `name`, if there is one.
    pub fn subdir(&self, name: &str) -> Option<Self> {
        match self {
            Self::Directory(dir) => {
                Some(dir.join(name)).filter(|dir| dir.is_dir()).map(Self::Directory)
            }
            Self::Embedded(embedded) => embedded
                .subdirs
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, inner)| Self::Embedded(*inner)),
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
            _ => Ok(()),
        }
    }

    /// The names of the regular files, sorted; subdirectories are not listed.
    pub(crate) fn file_names(&self) -> Result<Vec<String>, ModelError> {
        let mut names = match self {
            Self::Directory(dir) => list_files(dir)?,
            Self::Embedded(embedded) => {
                embedded.files.iter().map(|(name, _)| (*name).to_owned()).collect()
            }
        };
        names.sort();
        Ok(names)
    }

    pub(crate) fn contains(&self, file: &Path) -> bool {
        match self {
            Self::Directory(_) => file.is_file(),
            Self::Embedded(embedded) => embedded.find(file).is_some(),
        }
    }

    /// Reads a UTF-8 text file.
    pub(crate) fn read_text(&self, file: &Path) -> Result<String, ModelError> {
        let bytes = match self {
            Self::Directory(_) => std::fs::read(file).map_err(|e| ModelError::io(file, e))?,
            Self::Embedded(embedded) => embedded.get(file)?.to_vec(),
        };
        error::parse_utf8(file, bytes)
    }

    /// Memory-maps a file: its pages are read when they are touched.
    pub(crate) fn map(&self, file: &Path) -> Result<FileBytes, ModelError> {
        let opened = match self {
            Self::Embedded(embedded) => return embedded.get(file).map(FileBytes::Static),
            Self::Directory(_) => File::open(file).map_err(|e| ModelError::io(file, e))?,
        };
        // SAFETY: the map is read-only and private to the checkpoint. Like every reader of mapped
        // weights this assumes that the file is not truncated while the model runs. A changed byte
        // gives a wrong number, not undefined behaviour: every bit pattern is a valid u8, and
        // values are copied out before they are checked.
        let map = unsafe { Mmap::map(&opened) }.map_err(|e| ModelError::io(file, e))?;
        Ok(FileBytes::Mapped(map))
    }
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
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}
