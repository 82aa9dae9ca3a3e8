//! A digest of the inputs of a run, so that a resumed run detects that a file changed under the
//! same path.
//!
//! Small files are hashed entirely. Large weight files are hashed by size and by blocks spread over
//! them: the weights of another training run differ everywhere, and a truncated file differs in
//! size.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use data::{FieldNames, Question};
use engine::{OLD_REFERENCE_DIR, REFERENCE_DIR};
use model::{EmbeddedFiles, ModelFiles};
use record::Fingerprint;

use crate::Error;
use crate::data_source::DataSource;

/// Files larger than this are sampled.
const FULL_HASH_LIMIT: u64 = 32 << 20;
/// Number of sampled blocks per file.
const SAMPLED_BLOCKS: u64 = 64;
const BLOCK_BYTES: usize = 4096;
/// Extensions of the files in a checkpoint directory that can change results.
const HASHED_EXTENSIONS: [&str; 3] = ["safetensors", "json", "txt"];

/// The digest of models and questions; `source` is the name of the question source.
pub fn compute<'a>(
    models: impl IntoIterator<Item = &'a ModelFiles>,
    source: &DataSource,
    questions: &[Question],
) -> Result<String, Error> {
    let mut digest = Fingerprint::default();
    for model in models {
        // The base models of an adapter are read as well.
        for files in model.chain()? {
            digest = hash_model(digest, &files)?;
        }
    }
    let digest = match source {
        DataSource::File(path, fields) => with_fields(hash_file(digest, path)?, fields),
        DataSource::Corpus(..) => {
            questions.iter().fold(digest, |digest, q| digest.with(&q.text, q.gold.as_bytes()))
        }
    };
    Ok(digest.finish())
}

/// The digest, including the field names if any are given.
fn with_fields(digest: Fingerprint, fields: &FieldNames) -> Fingerprint {
    let given = [&fields.question_field, &fields.answer_field, &fields.steps_field];
    let roles = ["question_field", "answer_field", "steps_field"].into_iter().zip(given);
    roles.fold(digest, |digest, (role, name)| match name {
        Some(name) => digest.with(role, name.as_bytes()),
        None => digest,
    })
}

/// The digest of a training's inputs: models, and files and directories of data.
pub fn of_files<'a>(
    models: impl IntoIterator<Item = &'a ModelFiles>,
    data: impl IntoIterator<Item = &'a Path>,
) -> Result<String, Error> {
    let mut digest = Fingerprint::default();
    for model in models {
        for files in model.chain()? {
            digest = hash_model(digest, &files)?;
        }
    }
    for path in data {
        digest =
            if path.is_dir() { hash_directory(digest, path) } else { hash_file(digest, path) }?;
    }
    Ok(digest.finish())
}

fn hash_model(digest: Fingerprint, files: &ModelFiles) -> Result<Fingerprint, Error> {
    match files {
        ModelFiles::Directory(dir) => hash_directory(digest, dir),
        ModelFiles::Gguf(file) => hash_file(digest, file),
        ModelFiles::Embedded(packed) => Ok(hash_embedded(digest, packed)),
        ModelFiles::Memory(memory) => Ok(memory
            .files
            .iter()
            .fold(digest, |digest, (name, content)| digest.with(name, content))),
        ModelFiles::Adapter(adapter) => hash_model(digest, &adapter.files),
        ModelFiles::Described(described) => {
            hash_model(hash_model(digest, &described.files)?, &described.base)
        }
    }
}

fn hash_embedded(digest: Fingerprint, packed: &EmbeddedFiles) -> Fingerprint {
    let digest =
        packed.files.iter().fold(digest, |digest, (name, content)| digest.with(name, content));
    packed.subdirs.iter().fold(digest, |digest, (_, inner)| hash_embedded(digest, inner))
}

fn hash_directory(mut digest: Fingerprint, dir: &Path) -> Result<Fingerprint, Error> {
    // CODI may have its projector in a subdirectory, a reward model its reference reasoner.
    let inside = ["prj", REFERENCE_DIR, OLD_REFERENCE_DIR].map(|name| dir.join(name));
    for dir in
        [dir].into_iter().chain(inside.iter().map(PathBuf::as_path).filter(|inner| inner.is_dir()))
    {
        for file in hashed_files(dir)? {
            digest = hash_file(digest, &file)?;
        }
    }
    Ok(digest)
}

fn hashed_files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(dir).map_err(|e| unreadable(dir, e))?;
    let relevant = |path: &Path| {
        path.is_file()
            && path.extension().is_some_and(|e| HASHED_EXTENSIONS.iter().any(|known| e == *known))
    };
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| relevant(path))
        .collect();
    files.sort();
    Ok(files)
}

fn hash_file(digest: Fingerprint, path: &Path) -> Result<Fingerprint, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let content = hashed_content(path).map_err(|error| unreadable(path, error))?;
    Ok(digest.with(&name, &content))
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    Error::Unreadable { path: path.to_owned(), error }
}

fn hashed_content(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = record::files::open_regular(path)?;
    let size = file.metadata()?.len();
    let mut content = size.to_le_bytes().to_vec();
    if size <= FULL_HASH_LIMIT {
        file.read_to_end(&mut content)?;
        return Ok(content);
    }
    let mut block = [0; BLOCK_BYTES];
    for i in 0..SAMPLED_BLOCKS {
        file.seek(SeekFrom::Start((size - BLOCK_BYTES as u64) / (SAMPLED_BLOCKS - 1) * i))?;
        file.read_exact(&mut block)?;
        content.extend(block);
    }
    Ok(content)
}
