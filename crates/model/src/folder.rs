//! Where a model's files are: a directory on disk, or files that a program carries inside itself.
//!
//! Everything that reads a checkpoint asks here, so that both are read by the same code and say the same errors. A file goes by
//! the folder's path with its name behind; of files in memory that path exists only in messages.

use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{self, Error};

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Folder {
    /// A directory, as `save_pretrained` writes it.
    Disk(PathBuf),
    /// The same files in memory.
    Memory(Packed),
}

/// Files that a program carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// What messages call the folder.
    pub name: &'static str,
    /// Each file's name and content.
    pub files: &'static [(&'static str, &'static [u8])],
    /// Folders inside, by name.
    pub folders: &'static [(&'static str, Packed)],
}

impl From<&Path> for Folder {
    fn from(dir: &Path) -> Self {
        Self::Disk(dir.to_owned())
    }
}

impl From<&PathBuf> for Folder {
    fn from(dir: &PathBuf) -> Self {
        Self::Disk(dir.clone())
    }
}

impl From<&Folder> for Folder {
    fn from(folder: &Folder) -> Self {
        folder.clone()
    }
}

impl Folder {
    /// The directory, or the name of what is in memory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Disk(dir) => dir,
            Self::Memory(packed) => Path::new(packed.name),
        }
    }

    /// The folder `name` inside, if there is one.
    pub fn folder(&self, name: &str) -> Option<Self> {
        match self {
            Self::Disk(dir) => Some(dir.join(name)).filter(|dir| dir.is_dir()).map(Self::Disk),
            Self::Memory(packed) => {
                packed.folders.iter().find(|(known, _)| *known == name).map(|(_, inner)| Self::Memory(*inner))
            }
        }
    }

    /// How the file `name` is called in messages and by the other functions here.
    pub(crate) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// It has to be there before anything in it can be missing.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Disk(dir) if !dir.is_dir() => Err(Error::MissingDirectory { dir: dir.clone() }),
            _ => Ok(()),
        }
    }

    /// The names of its plain files, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>, Error> {
        let mut names = match self {
            Self::Disk(dir) => on_disk(dir)?,
            Self::Memory(packed) => packed.files.iter().map(|(name, _)| (*name).to_owned()).collect(),
        };
        names.sort();
        Ok(names)
    }

    pub(crate) fn has(&self, file: &Path) -> bool {
        match self {
            Self::Disk(_) => file.is_file(),
            Self::Memory(packed) => packed.find(file).is_some(),
        }
    }

    /// A text file, whole.
    pub(crate) fn text(&self, file: &Path) -> Result<String, Error> {
        let bytes = match self {
            Self::Disk(_) => std::fs::read(file).map_err(|e| Error::io(file, e))?,
            Self::Memory(packed) => packed.get(file)?.to_vec(),
        };
        error::utf8(file, bytes)
    }

    /// A file that is mapped, not read: its pages are touched when they are asked for.
    pub(crate) fn map(&self, file: &Path) -> Result<Bytes, Error> {
        let opened = match self {
            Self::Memory(packed) => return packed.get(file).map(Bytes::Static),
            Self::Disk(_) => File::open(file).map_err(|e| Error::io(file, e))?,
        };
        // SAFETY: the map is read-only and private to the checkpoint. Like every reader of mapped weights this trusts that
        // nobody truncates the file while the model runs; a changed byte gives a wrong number, not undefined behaviour
        // of ours, since every bit pattern is a valid u8 and values are copied out before they are checked.
        let map = unsafe { Mmap::map(&opened) }.map_err(|e| Error::io(file, e))?;
        Ok(Bytes::Mapped(map))
    }
}

fn on_disk(dir: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, e))? {
        let entry = entry.map_err(|e| Error::io(dir, e))?;
        // Follows links: the model hub's cache is made of them.
        if entry.path().is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

impl Packed {
    fn find(&self, file: &Path) -> Option<&'static [u8]> {
        let name = file.strip_prefix(self.name).ok()?;
        self.files.iter().find(|(known, _)| Path::new(known) == name).map(|(_, content)| *content)
    }

    fn get(&self, file: &Path) -> Result<&'static [u8], Error> {
        self.find(file).ok_or_else(|| Error::io(file, std::io::ErrorKind::NotFound.into()))
    }
}

/// The content of a file.
pub(crate) enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}
