//! Writes files: regular files are replaced atomically, all others are written to directly.
//!
//! Symbolic links are followed: the target is replaced and the link remains. The new file has the
//! mode and, where permitted, the owner of the old one. Devices are written to directly, and so is
//! standard output under a name such as /dev/stdout. A pipe is written to only if the user
//! specified it: opening one blocks until there is a reader, which must not happen for a file of a
//! run directory.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::model_dir::is_weights;

/// Maximum symbolic links followed from a path that does not exist yet.
const MAX_LINKS: usize = 40;

/// Replaces the file at `path` atomically by the output of `write`.
///
/// The content is written to a temporary file in the same directory, which is synced and renamed: a
/// concurrent reader, or a process killed halfway, sees the old file or the new one, never a
/// partial one. The name of the temporary file contains the process id, so two processes may write
/// the same path; it is removed on any failure.
///
/// # Errors
///
/// The first error of `write` or of the file system; for a directory, a pipe or a socket, an error
/// that it is not a regular file.
pub fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    write_to(OutputTarget::of(path, false)?, write, true)
}

/// [`replace`] with bytes in memory.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, |out| out.write_all(bytes))
}

/// Writes the output file specified by the user: as [`replace`], but a pipe is written to directly,
/// a regular file is not replaced by an empty one, and the weights of a model are never replaced.
///
/// # Errors
///
/// As [`replace`]; [`io::ErrorKind::InvalidData`] if nothing was written.
pub fn write_output(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let destination = OutputTarget::of(path, true)?;
    match &destination {
        OutputTarget::File { path, old: Some(_) } if is_weights(path) => {
            let why = "it contains the weights of a model";
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
        _ => write_to(destination, write, false),
    }
}

/// Opens a file for appending, creating it if it is missing.
///
/// # Errors
///
/// Errors of the file system; for a pipe, which may never have a reader, an error that it is not a
/// regular file.
pub fn open_append(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !is_device(&found)) {
        return Err(not_regular());
    }
    OpenOptions::new().append(true).create(true).open(path)
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// Whether a path, e.g. /dev/stdout, resolves to the standard output of this process.
pub fn is_standard_output(path: &Path) -> bool {
    let found = fs::metadata(path);
    found.is_ok_and(|found| standard_streams().first().is_some_and(|out| is_same(&found, out)))
}

/// The destination of the content.
enum OutputTarget {
    /// A device, a pipe or a standard stream.
    Stream(File),
    /// A regular file, or one that does not exist yet.
    File { path: PathBuf, old: Option<Metadata> },
}

impl OutputTarget {
    fn of(path: &Path, pipes: bool) -> io::Result<Self> {
        let old = match fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::File { path: follow_missing(path)?, old: None });
            }
            Err(error) => return Err(error),
        };
        // A shell's `> FILE` keeps the file open: a new file under its name would miss later
        // output.
        if let Some(stream) = standard_streams().into_iter().find(|stream| is_same(&old, stream)) {
            return Ok(Self::Stream(stream));
        }
        if old.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if old.is_file() {
            let linked = fs::symlink_metadata(path)?.is_symlink();
            let path = if linked { path.canonicalize()? } else { path.to_owned() };
            return Ok(Self::File { path, old: Some(old) });
        }
        if !pipes && !is_device(&old) {
            return Err(not_regular());
        }
        OpenOptions::new().write(true).open(path).map(Self::Stream)
    }
}

/// The path at which a new file will be created: a link to a missing file is followed.
fn follow_missing(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(next) = fs::read_link(&target) else { return Ok(target) };
        target = target.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "too many levels of symbolic links"))
}

fn write_to(
    destination: OutputTarget,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    may_be_empty: bool,
) -> io::Result<()> {
    let (path, old) = match destination {
        OutputTarget::Stream(file) => {
            let mut out = BufWriter::new(file);
            return write(&mut out).and_then(|()| out.flush());
        }
        OutputTarget::File { path, old } => (path, old),
    };
    let temp = temp_path(&path);
    let written = create(&temp, old.as_ref()).and_then(|file| write_synced(file, write));
    let replaced = written.and_then(|length| match length {
        0 if !may_be_empty => Err(io::Error::new(io::ErrorKind::InvalidData, "nothing to write")),
        _ => fs::rename(&temp, &path),
    });
    sync_dir(&path);
    if replaced.is_err() {
        // Best effort: only the first error is reported.
        let _ = fs::remove_file(&temp);
    }
    replaced
}

/// Creates a temporary file with the mode and owner of the file that it will replace.
fn create(temp: &Path, old: Option<&Metadata>) -> io::Result<File> {
    // A leftover of a killed process with the same id, or a link whose target must not be written.
    match fs::remove_file(temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    let Some(old) = old else { return options.open(temp) };
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};

        // Never more widely readable than the old file, not even while it is written.
        let file = options.mode(old.permissions().mode() & 0o700).open(temp)?;
        // Only root may change a file's owner.
        let _ = std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()));
        file.set_permissions(old.permissions())?;
        Ok(file)
    }
    #[cfg(not(unix))]
    {
        let _ = old;
        options.open(temp)
    }
}

/// Writes and syncs a file; returns the number of bytes.
fn write_synced(
    file: File,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<u64> {
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    // Without a sync a power failure could leave the new name on an empty file.
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// Makes the new name durable: files that are removed afterwards must not outlive it. Not every
/// file system can sync a directory.
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

/// Standard output and standard error, if open.
#[cfg(unix)]
fn standard_streams() -> Vec<File> {
    use std::os::fd::AsFd;

    let out = io::stdout();
    let err = io::stderr();
    let streams = [out.as_fd().try_clone_to_owned(), err.as_fd().try_clone_to_owned()];
    streams.into_iter().flatten().map(File::from).collect()
}

#[cfg(not(unix))]
fn standard_streams() -> Vec<File> {
    Vec::new()
}

#[cfg(unix)]
fn is_same(found: &Metadata, stream: &File) -> bool {
    use std::os::unix::fs::MetadataExt;

    let id = |file: &Metadata| (file.dev(), file.ino());
    stream.metadata().is_ok_and(|stream| id(&stream) == id(found))
}

#[cfg(not(unix))]
fn is_same(_: &Metadata, _: &File) -> bool {
    false
}

#[cfg(unix)]
fn is_device(found: &Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;

    found.file_type().is_char_device() || found.file_type().is_block_device()
}

#[cfg(not(unix))]
fn is_device(_: &Metadata) -> bool {
    false
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
        let empty = write_output(&path, |_| Ok(()));
        assert_eq!(empty.unwrap_err().to_string(), "nothing to write");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_the_mode_is_kept() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let link = dir.path().join("link");
        let dangling = dir.path().join("dangling");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        symlink("new", &dangling).unwrap();
        write_atomic(&link, b"one").unwrap();
        write_atomic(&dangling, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"one");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"two");
        for link in [&link, &dangling] {
            assert!(fs::symlink_metadata(link).unwrap().is_symlink());
        }
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(write_atomic(&dir.path().join("loop"), b"").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn devices_are_written_into() {
        use std::os::unix::fs::FileTypeExt;

        write_atomic(Path::new("/dev/null"), b"gone").unwrap();
        write_output(Path::new("/dev/null"), |out| out.write_all(b"gone")).unwrap();
        let full = write_output(Path::new("/dev/full"), |out| out.write_all(b"no room"));
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        for device in ["/dev/null", "/dev/full"] {
            assert!(fs::metadata(device).unwrap().file_type().is_char_device(), "{device}");
        }
        let error = write_atomic(Path::new("/dev"), b"").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }
}
