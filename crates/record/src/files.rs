//! Whole files, digests and locks: the one place where files are replaced atomically, content is
//! fingerprinted and directories have one writer.

mod fingerprint;
mod lock;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

pub use crc32fast::Hasher as Checksum;
pub use fingerprint::Fingerprint;
pub use lock::{DirLock, remove_strays};

/// Opens a file for reading; pipes and devices, on which reading may never end, are refused.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

/// The content of a file that [`open_regular`] opens.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the file at `path` by what `write` puts out, atomically.
///
/// The content goes to a temporary file in the same directory, which is synced and renamed: a
/// concurrent reader, or a process killed halfway, sees the old file or the new one, never a part.
/// The temporary file is named by the process id, so two processes may write the same path; it is
/// removed if anything fails.
///
/// # Errors
///
/// The first error of `write` or of the file system.
pub fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let temp = temp_path(path);
    let replaced = write_synced(&temp, write).and_then(|()| fs::rename(&temp, path));
    sync_dir(path);
    if replaced.is_err() {
        // Best effort: the first error is the one to report.
        let _ = fs::remove_file(&temp);
    }
    replaced
}

/// [`replace`] by bytes that are in memory.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, |out| out.write_all(bytes))
}

fn write_synced(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    write(&mut out)?;
    // Without a sync a power failure could leave the new name on an empty file.
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// Makes the new name last: files that are removed afterwards must not outlive it. Not every file
/// system can sync a directory.
fn sync_dir(path: &Path) {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(dir) = File::open(dir) {
        let _ = dir.sync_all();
    }
}

fn temp_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{}.tmp", std::process::id()));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for content in [b"one", b"two"] {
            write_atomic(&path, content).unwrap();
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_write_that_fails_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write_atomic(&path, b"old").unwrap();
        let failed = replace(&path, |out| {
            out.write_all(b"half of the new")?;
            Err(io::Error::other("disk full"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "disk full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
