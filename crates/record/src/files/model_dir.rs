//! The output directory of a training run: protects existing models that the run did not create.
//!
//! A training run creates `training/` in its directory first, so a directory with a model but
//! without it was not created by a training run. This module only knows the names of the records;
//! the training state is defined in the crate `train`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::RecordError;
use crate::files::{DirLock, InputPaths, remove_strays};
use crate::training::{STATE_FILE, TRAINING_DIR};
use crate::writer::{create_dir, dir_error, lock_dir};

/// Subdirectories of a model directory.
const MODEL_SUBDIRS: [&str; 2] = [TRAINING_DIR, "reference"];
/// File name extensions of weights.
const WEIGHTS: [&str; 4] = [".safetensors", ".gguf", ".bin", ".pt"];
/// Metadata files of a model.
const DESCRIPTIONS: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "adapter_config.json",
    "base.json",
];

/// How to handle an existing model in the output directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExistingModel {
    /// Fail without changing it.
    #[default]
    Refuse,
    /// Continue its training.
    Resume,
    /// Remove it, with the records of its training.
    Overwrite,
}

/// The output directory of a training run, locked for this process.
#[derive(Debug)]
pub struct ModelDir {
    _lock: DirLock,
}

impl ModelDir {
    /// Fails if the training run must not write to `dir`; changes nothing.
    ///
    /// # Errors
    ///
    /// [`RecordError::OutputIsInput`], [`RecordError::TrainingExists`] or
    /// [`RecordError::ModelExists`].
    pub fn check(
        dir: &Path,
        inputs: &InputPaths,
        existing: ExistingModel,
    ) -> Result<(), RecordError> {
        inputs.check_output(dir)?;
        for subdir in MODEL_SUBDIRS {
            inputs.check_output(&dir.join(subdir))?;
        }
        let named = |input: &&Path| {
            input.file_name().is_some_and(|name| is_model_file(&name.to_string_lossy()))
        };
        if let Some(input) = inputs.inside(dir).find(named) {
            let output = dir.to_owned();
            let input = input.to_owned();
            return Err(RecordError::OutputIsInput { output, input });
        }
        let path = dir.to_owned();
        match existing {
            ExistingModel::Overwrite => Ok(()),
            ExistingModel::Resume if dir.join(TRAINING_DIR).is_dir() => Ok(()),
            ExistingModel::Refuse if dir.join(TRAINING_DIR).join(STATE_FILE).exists() => {
                Err(RecordError::TrainingExists { path })
            }
            // A run that was killed before its first save has already written the model's metadata.
            ExistingModel::Refuse if dir.join(TRAINING_DIR).is_dir() => match has_weights(dir)? {
                true => Err(RecordError::ModelExists { path }),
                false => Ok(()),
            },
            _ => match model_files(dir)?.is_empty() {
                true => Ok(()),
                false => Err(RecordError::ModelExists { path }),
            },
        }
    }

    /// Locks a directory that [passed the check](Self::check), creating it if it is missing;
    /// removes an old model if it is to be overwritten, and leftovers of killed processes.
    ///
    /// # Errors
    ///
    /// As [`ModelDir::check`]; if another process writes to the directory; or on file system
    /// errors.
    pub fn claim(
        dir: &Path,
        inputs: &InputPaths,
        existing: ExistingModel,
    ) -> Result<Self, RecordError> {
        Self::check(dir, inputs, existing)?;
        let lock = lock_dir(dir)?;
        // Another process may have written a model in the meantime.
        Self::check(dir, inputs, existing)?;
        if existing == ExistingModel::Overwrite {
            remove_model(dir)?;
        }
        let records = dir.join(TRAINING_DIR);
        create_dir(&records)?;
        remove_strays(&records).map_err(|source| RecordError::Write { path: records, source })?;
        Ok(Self { _lock: lock })
    }
}

/// Rejects a directory that contains the weights of a model as the output of a run.
///
/// # Errors
///
/// [`RecordError::WeightsInDirectory`].
pub fn check_no_weights(dir: &Path) -> Result<(), RecordError> {
    let described = DESCRIPTIONS.iter().any(|name| dir.join(name).is_file());
    match described && has_weights(dir)? {
        true => Err(RecordError::WeightsInDirectory { path: dir.to_owned() }),
        false => Ok(()),
    }
}

fn has_weights(dir: &Path) -> Result<bool, RecordError> {
    Ok(model_files(dir)?.iter().any(|path| is_weights(path)))
}

/// Whether a file contains weights, according to its name.
pub(super) fn is_weights(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    WEIGHTS.iter().any(|ending| name.ends_with(ending))
}

/// The files of a model in a directory: weights, their index, and metadata.
fn model_files(dir: &Path) -> Result<Vec<PathBuf>, RecordError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(dir_error(dir, error));
        }
        Err(source) => return Err(RecordError::Read { path: dir.to_owned(), source }),
        Ok(entries) => entries,
    };
    let paths = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        is_model_file(&entry.file_name().to_string_lossy()).then(|| entry.path())
    });
    Ok(paths.collect())
}

fn is_model_file(name: &str) -> bool {
    let name = name.strip_suffix(".index.json").unwrap_or(name);
    DESCRIPTIONS.contains(&name) || WEIGHTS.iter().any(|ending| name.ends_with(ending))
}

/// Removes the files of a model; links to files elsewhere are removed, not those files.
fn remove_model(dir: &Path) -> Result<(), RecordError> {
    let failed = |path: &Path, source| RecordError::Write { path: path.to_owned(), source };
    for path in model_files(dir)? {
        fs::remove_file(&path).map_err(|source| failed(&path, source))?;
    }
    for subdir in MODEL_SUBDIRS.map(|name| dir.join(name)) {
        match fs::remove_dir_all(&subdir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&subdir, error));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_with(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "content").unwrap();
        }
        dir
    }

    #[test]
    fn a_model_is_kept_unless_it_is_to_be_replaced() {
        use ExistingModel::{Overwrite, Refuse, Resume};

        let allowed = |files: &[&str]| {
            let dir = dir_with(files);
            [Refuse, Resume, Overwrite].map(|existing| {
                ModelDir::check(dir.path(), &InputPaths::default(), existing).is_ok()
            })
        };
        assert_eq!(allowed(&[]), [true, true, true]);
        assert_eq!(allowed(&["notes.txt"]), [true, true, true]);
        assert_eq!(allowed(&["model.safetensors", "config.json"]), [false, false, true]);
        assert_eq!(allowed(&["tokenizer.json"]), [false, false, true]);
        assert_eq!(allowed(&["model.safetensors.index.json"]), [false, false, true]);
        assert_eq!(allowed(&["config.json", "training/log.jsonl"]), [true, true, true]);
        assert_eq!(allowed(&["model.safetensors", "training/log.jsonl"]), [false, true, true]);
        assert_eq!(allowed(&["training/state.safetensors"]), [false, true, true]);
    }

    #[test]
    fn an_overwritten_model_leaves_nothing_of_itself() {
        let dir = dir_with(&[
            "adapter_model.safetensors",
            "base.json",
            "training/state.safetensors",
            "reference/config.json",
            "notes.txt",
        ]);
        let claimed =
            ModelDir::claim(dir.path(), &InputPaths::default(), ExistingModel::Overwrite).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["notes.txt", "training"]);
        assert_eq!(fs::read_dir(dir.path().join("training")).unwrap().count(), 0);
        drop(claimed);
    }

    #[test]
    fn an_input_in_the_directory_is_not_overwritten() {
        let dir = dir_with(&["base.gguf", "data.jsonl", "reference/config.json"]);
        let check = |input: &str| {
            let inputs = InputPaths::from_iter([dir.path().join(input)]);
            ModelDir::check(dir.path(), &inputs, ExistingModel::Overwrite)
        };
        for input in ["base.gguf", "", "reference"] {
            let error = check(input).unwrap_err();
            assert!(matches!(error, RecordError::OutputIsInput { .. }), "{error}");
        }
        check("data.jsonl").unwrap();
    }

    #[test]
    fn records_do_not_go_beside_weights() {
        let model = dir_with(&["config.json", "model.safetensors"]);
        assert!(check_no_weights(model.path()).is_err());
        check_no_weights(dir_with(&["latents.safetensors", "manifest.json"]).path()).unwrap();
        check_no_weights(&model.path().join("missing")).unwrap();
    }
}
