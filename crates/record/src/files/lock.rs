//! Directory locks: one writer at a time.
//!
//! The lock is held by the operating system on the directory itself and ends with the process in
//! any case: no stale lock files have to be removed by hand.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A lock on a directory, held until it is dropped.
#[derive(Debug)]
pub struct DirLock {
    /// `None` if the system cannot lock directories; then two writers must not be started.
    _dir: Option<File>,
    /// The lock file of a part, which is removed at the end.
    part: Option<(PathBuf, File)>,
}

impl DirLock {
    /// Locks a directory for one writer, creating it if it is missing. Temporary files of killed
    /// writers of [replaced](crate::files::replace) files are removed.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::ResourceBusy`] if another process writes to the directory.
    pub fn exclusive(dir: &Path) -> io::Result<Self> {
        let lock = Self::lock(dir, File::try_lock)?;
        remove_strays(dir)?;
        Ok(lock)
    }

    /// Locks one of several parts of a directory's files, each of which has its own writer.
    ///
    /// # Errors
    ///
    /// As [`DirLock::exclusive`]; also if another process writes this part.
    pub fn part(dir: &Path, name: &str) -> io::Result<Self> {
        let mut lock = Self::lock(dir, File::try_lock_shared)?;
        let path = dir.join(format!("{name}.lock"));
        let file = File::create(&path)?;
        locked(file.try_lock())?;
        lock.part = Some((path, file));
        Ok(lock)
    }

    fn lock(dir: &Path, lock: fn(&File) -> Result<(), TryLockError>) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        // Not every system can open and lock a directory.
        let Ok(file) = File::open(dir) else { return Ok(Self { _dir: None, part: None }) };
        let held = locked(lock(&file))?;
        Ok(Self { _dir: held.then_some(file), part: None })
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.part {
            // A leftover empty file is locked again by the next writer of the part.
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a lock is held; false if the system does not support locks.
fn locked(result: Result<(), TryLockError>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::ResourceBusy.into()),
        Err(TryLockError::Error(_)) => Ok(false),
    }
}

/// Removes the temporary files of killed writers. The caller must be the only writer.
pub fn remove_strays(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if is_stray(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether a name is that of another process's temporary file: `NAME.PROCESS.tmp`.
fn is_stray(name: &str) -> bool {
    let process = name.strip_suffix(".tmp").and_then(|name| name.rsplit_once('.'));
    process.is_some_and(|(name, id)| {
        !name.is_empty() && id.parse::<u32>().is_ok_and(|id| id != std::process::id())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_writer_or_one_for_each_part() {
        let dir = tempfile::tempdir().unwrap();
        let busy = |result: io::Result<DirLock>| {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        };
        let whole = DirLock::exclusive(dir.path()).unwrap();
        busy(DirLock::exclusive(dir.path()));
        busy(DirLock::part(dir.path(), "1-of-2"));
        drop(whole);
        let first = DirLock::part(dir.path(), "1-of-2").unwrap();
        let second = DirLock::part(dir.path(), "2-of-2").unwrap();
        busy(DirLock::part(dir.path(), "1-of-2"));
        busy(DirLock::exclusive(dir.path()));
        drop((first, second));
        DirLock::exclusive(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn strays_are_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.json.123.tmp", "a.json", "notes.tmp", "x.1a.tmp", ".7.tmp"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        drop(DirLock::exclusive(dir.path()).unwrap());
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [".7.tmp", "a.json", "notes.tmp", "x.1a.tmp"]);
        assert!(remove_strays(&dir.path().join("missing")).is_ok());
    }
}
