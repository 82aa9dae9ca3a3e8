//! Versioned JSON documents (`manifest.json`, `results.json`), written atomically.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::RecordError;
use schema::{FORMAT, OLDEST_FORMAT};

/// Writes `content` to `path` as indented JSON, atomically.
///
/// # Errors
///
/// [`RecordError::Write`] if the file cannot be written.
pub fn write_document(path: &Path, content: &impl Serialize) -> Result<(), RecordError> {
    let named = |source| RecordError::Write { path: path.into(), source };
    let mut text = serde_json::to_vec_pretty(content).map_err(|e| named(e.into()))?;
    text.push(b'\n');
    write_atomic(path, &text)
}

/// Writes `bytes` to `path` atomically; see [`crate::files::replace`].
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let named = |source| RecordError::Write { path: path.into(), source };
    crate::files::write_atomic(path, bytes).map_err(named)
}

/// Reads the document at `path` after checking its format version.
///
/// # Errors
///
/// [`RecordError::Read`], [`RecordError::Version`] or [`RecordError::Json`].
pub fn read_document<T: DeserializeOwned>(path: &Path) -> Result<T, RecordError> {
    let text = crate::files::read_regular(path)
        .map_err(|source| RecordError::Read { path: path.into(), source })?;
    let VersionHeader { version } = parse(path, &text)?;
    if !(u64::from(OLDEST_FORMAT)..=u64::from(FORMAT)).contains(&version) {
        return Err(RecordError::Version { path: path.into(), found: version });
    }
    parse(path, &text)
}

/// The field that every format version has. It is read first: otherwise a document of another
/// version would be reported as having a missing field.
#[derive(Deserialize)]
struct VersionHeader {
    version: u64,
}

fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, RecordError> {
    serde_json::from_slice(text).map_err(|source| RecordError::Json {
        path: path.into(),
        line: source.line(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Results;

    #[test]
    fn a_document_replaces_the_old_one_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.json");
        for questions in [1, 2] {
            let results = Results { questions, ..Results::default() };
            write_document(&path, &results).unwrap();
            assert_eq!(read_document::<Results>(&path).unwrap(), results);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_unsupported_version_is_reported_before_missing_fields() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.json");
        fs::write(&path, r#"{"version": 99}"#).unwrap();
        let error = read_document::<Results>(&path).unwrap_err();
        assert!(matches!(error, RecordError::Version { found: 99, .. }), "{error}");
        assert!(error.to_string().contains("format version 99"), "{error}");
    }

    #[test]
    fn a_write_that_fails_names_the_path_and_keeps_the_cause() {
        let path = Path::new("/dev/null/results.json");
        let Err(RecordError::Write { path: named, source }) =
            write_document(path, &Results::default())
        else {
            panic!("writing below a file succeeded");
        };
        assert_eq!((named.as_path(), source.kind()), (path, std::io::ErrorKind::NotADirectory));
    }
}
