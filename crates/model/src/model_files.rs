//! Where a model's files are: a directory on disk, or files that a program carries inside itself.
//!
//! Everything that reads a checkpoint asks here, so that both are read by the same code and say the
//! same errors. A file goes by the folder's path with its name behind; of files in memory that path
//! exists only in messages.

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
    /// The same files in memory.
    Embedded(EmbeddedFiles),
}

/// Files that a program carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedFiles {
    /// What messages call the folder.
    pub name: &'static str,
    /// Each file's name and content.
    pub files: &'static [(&'static str, &'static [u8])],
    /// Folders inside, by name.
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
    fn from(folder: &ModelFiles) -> Self {
        folder.clone()
    }
}

impl ModelFiles {
    /// The directory, or the name of what is in memory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(dir) => dir,
            Self::Embedded(packed) => Path::new(packed.name),
        }
    }

    /// The folder `name` inside, if there is one.
    pub fn subdir(&self, name: &str) -> Option<Self> {
        match self {
            Self::Directory(dir) => {
                Some(dir.join(name)).filter(|dir| dir.is_dir()).map(Self::Directory)
            }
            Self::Embedded(packed) => packed
                .subdirs
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, inner)| Self::Embedded(*inner)),
        }
    }

    /// How the file `name` is called in messages and by the other functions here.
    pub(crate) fn file_path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// It has to be there before anything in it can be missing.
    pub(crate) fn check_exists(&self) -> Result<(), ModelError> {
        match self {
            Self::Directory(dir) if !dir.is_dir() => {
                Err(ModelError::MissingDirectory { dir: dir.clone() })
            }
            _ => Ok(()),
        }
    }

    /// The names of its plain files, sorted.
    pub(crate) fn file_names(&self) -> Result<Vec<String>, ModelError> {
        let mut names = match self {
            Self::Directory(dir) => list_files(dir)?,
            Self::Embedded(packed) => {
                packed.files.iter().map(|(name, _)| (*name).to_owned()).collect()
            }
        };
        names.sort();
        Ok(names)
    }

    pub(crate) fn contains(&self, file: &Path) -> bool {
        match self {
            Self::Directory(_) => file.is_file(),
            Self::Embedded(packed) => packed.find(file).is_some(),
        }
    }

    /// A text file, whole.
    pub(crate) fn read_text(&self, file: &Path) -> Result<String, ModelError> {
        let bytes = match self {
            Self::Directory(_) => std::fs::read(file).map_err(|e| ModelError::io(file, e))?,
            Self::Embedded(packed) => packed.get(file)?.to_vec(),
        };
        error::parse_utf8(file, bytes)
    }

    /// A file that is mapped, not read: its pages are touched when they are asked for.
    pub(crate) fn map(&self, file: &Path) -> Result<FileBytes, ModelError> {
        let opened = match self {
            Self::Embedded(packed) => return packed.get(file).map(FileBytes::Static),
            Self::Directory(_) => File::open(file).map_err(|e| ModelError::io(file, e))?,
        };
        // SAFETY: the map is read-only and private to the checkpoint. Like every reader of mapped
        // weights this trusts that nobody truncates the file while the model runs; a
        // changed byte gives a wrong number, not undefined behaviour of ours, since every
        // bit pattern is a valid u8 and values are copied out before they are checked.
        let map = unsafe { Mmap::map(&opened) }.map_err(|e| ModelError::io(file, e))?;
        Ok(FileBytes::Mapped(map))
    }
}

fn list_files(dir: &Path) -> Result<Vec<String>, ModelError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| ModelError::io(dir, e))? {
        let entry = entry.map_err(|e| ModelError::io(dir, e))?;
        // Follows links: the model hub's cache is made of them.
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
