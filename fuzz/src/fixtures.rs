//! Fixtures of fuzzed inputs: valid files of tiny models, and temporary files.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use model::{EmbeddedFiles, ModelFiles};
use tempfile::TempDir;

/// Names and contents of the files of a model.
pub(crate) type FileList = Vec<(String, Vec<u8>)>;

/// The directory of a tiny checkpoint.
pub(crate) fn checkpoint_dir(family: CheckpointFamily) -> TempDir {
    let dir = scratch_dir();
    write_checkpoint(dir.path(), &CheckpointSpec::tiny(family))
        .expect("a valid checkpoint can be written");
    dir
}

/// The files of a tiny checkpoint.
fn checkpoint(family: CheckpointFamily) -> FileList {
    let dir = checkpoint_dir(family);
    let entries = fs::read_dir(dir.path()).expect("the directory can be read");
    let paths = entries.map(|entry| entry.expect("an entry can be read").path());
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, fs::read(&path).expect("a file can be read"))
    };
    paths.map(read).collect()
}

/// A reasoner over GPT-2.
pub(crate) static GPT2: LazyLock<FileList> =
    LazyLock::new(|| checkpoint(CheckpointFamily::Coconut));
/// A plain Llama, the base of adapters.
pub(crate) static LLAMA: LazyLock<FileList> = LazyLock::new(|| checkpoint(CheckpointFamily::Llama));

/// Calls `use_files` with a model that has these files, some of them replaced by `replaced`.
pub(crate) fn with_files(
    files: &[(String, Vec<u8>)],
    replaced: &[(&str, &[u8])],
    use_files: impl FnOnce(ModelFiles),
) {
    let own = files.iter().map(|(name, content)| (name.as_str(), content.as_slice()));
    let is_replaced = |name: &str| replaced.iter().any(|(other, _)| *other == name);
    let all: Vec<(&str, &[u8])> =
        own.filter(|(name, _)| !is_replaced(name)).chain(replaced.iter().copied()).collect();
    // SAFETY: embedded files have static lifetimes in programs. Here they outlive every use:
    // `use_files` returns nothing, and the bodies that call this function keep nothing.
    let files: &'static [(&'static str, &'static [u8])] =
        unsafe { std::mem::transmute(all.as_slice()) };
    use_files(ModelFiles::Embedded(EmbeddedFiles { name: "fuzzed", files, subdirs: &[] }))
}

/// A temporary directory, in memory if the system supports it.
pub(crate) fn scratch_dir() -> TempDir {
    let shared_memory = Path::new("/dev/shm");
    let dir = if shared_memory.is_dir() { TempDir::new_in(shared_memory) } else { TempDir::new() };
    dir.expect("a directory can be created")
}

/// Calls `use_path` with the path of a temporary file with this content.
pub(crate) fn with_file<R>(name: &str, content: &[u8], use_path: impl FnOnce(&Path) -> R) -> R {
    thread_local! {
        static DIR: RefCell<Option<TempDir>> = const { RefCell::new(None) };
    }
    let path = DIR.with_borrow_mut(|dir| dir.get_or_insert_with(scratch_dir).path().join(name));
    write(&path, content);
    use_path(&path)
}

/// Replaces a file's content.
pub(crate) fn write(path: &Path, content: &[u8]) {
    let written = fs::File::create(path).and_then(|mut file| file.write_all(content));
    written.expect("a file of a few kilobytes can be written");
}
