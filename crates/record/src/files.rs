//! File handling: atomic replacement, content digests, single-writer locks, and the protection of a
//! command's inputs and of models that it did not train.

mod fingerprint;
mod inputs;
mod lock;
mod model_dir;
mod replace;
mod write_guard;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

pub use crc32fast::Hasher as Checksum;
pub use fingerprint::Fingerprint;
pub use inputs::InputPaths;
pub use lock::{DirLock, remove_strays};
pub use model_dir::{ExistingModel, ModelDir, check_no_weights};
pub use replace::{is_standard_output, open_append, replace, write_atomic, write_output};
pub use write_guard::{WriteGuard, write_guard};

/// Opens a file for reading; pipes and devices, on which reading may never end, are rejected.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

/// Reads a file opened by [`open_regular`].
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
