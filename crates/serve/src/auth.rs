//! API keys: one given directly, and any number in a file that can be reloaded.
//!
//! A key is compared with every known key in constant time, so the time of a rejection reveals
//! nothing about them. Keys never appear in errors or log lines.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use subtle::{Choice as ConstantTimeChoice, ConstantTimeEq};

use crate::ServeError;

/// The API keys, one of which a request must send.
pub(crate) struct ApiKeys {
    /// The key of `--api-key`.
    single: Option<String>,
    file: Option<PathBuf>,
    /// The keys of the file, as last read.
    listed: RwLock<Vec<String>>,
}

impl ApiKeys {
    /// Reads the keys file, if there is one.
    pub(crate) fn new(single: Option<String>, file: Option<PathBuf>) -> Result<Self, ServeError> {
        let keys = Self { single, file, listed: RwLock::default() };
        keys.reload()?;
        Ok(keys)
    }

    /// Rereads the file. If that fails, the keys are unchanged.
    pub(crate) fn reload(&self) -> Result<(), ServeError> {
        if let Some(path) = &self.file {
            let keys = read_keys(path)?;
            *self.listed.write().unwrap_or_else(PoisonError::into_inner) = keys;
        }
        Ok(())
    }

    /// The number of keys.
    pub(crate) fn count(&self) -> usize {
        let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner);
        usize::from(self.single.is_some()) + listed.len()
    }

    /// Whether requests must send a key.
    pub(crate) fn is_required(&self) -> bool {
        self.single.is_some() || self.file.is_some()
    }

    /// Whether a request is authorized: no key is required, or it sends a known one.
    pub(crate) fn accepts(&self, headers: &HeaderMap) -> bool {
        if !self.is_required() {
            return true;
        }
        let given = headers.get(AUTHORIZATION).and_then(|value| bearer_token(value.as_bytes()));
        given.is_some_and(|given| self.is_known(given))
    }

    fn is_known(&self, given: &[u8]) -> bool {
        let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner);
        let mut known = ConstantTimeChoice::from(0);
        for key in self.single.iter().chain(listed.iter()) {
            known |= given.ct_eq(key.as_bytes());
        }
        known.into()
    }
}

/// Reads one key per line. Blank lines and lines starting with `#` are skipped.
fn read_keys(path: &Path) -> Result<Vec<String>, ServeError> {
    let wrong = |reason: String| ServeError::ApiKeys { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let lines = text.lines().map(str::trim);
    let keys: Vec<String> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    if keys.is_empty() {
        return Err(wrong("no keys found; write one per line".to_owned()));
    }
    if let Some(index) = keys.iter().position(|key| !key.bytes().all(|b| b.is_ascii_graphic())) {
        return Err(wrong(format!(
            "key {} contains spaces or non-ASCII characters, which headers cannot contain",
            index + 1
        )));
    }
    Ok(keys)
}

/// The credentials of the scheme `Bearer`, matched case-insensitively (RFC 9110).
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keys_file_has_one_key_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        std::fs::write(&path, "# team a\nalpha\n\n  beta  \n").unwrap();
        let keys = ApiKeys::new(Some("gamma".into()), Some(path.clone())).unwrap();
        for (key, known) in [("alpha", true), ("beta", true), ("gamma", true), ("# team a", false)]
        {
            assert_eq!(keys.is_known(key.as_bytes()), known, "{key}");
        }
        std::fs::write(&path, "delta\n").unwrap();
        keys.reload().unwrap();
        assert!(keys.is_known(b"delta") && !keys.is_known(b"alpha"));
        for broken in ["", "# nothing\n", "two words\n", "schlüssel\n"] {
            std::fs::write(&path, broken).unwrap();
            assert!(keys.reload().is_err(), "{broken:?}");
            assert!(keys.is_known(b"delta"), "a broken file changes nothing");
        }
    }

    #[test]
    fn without_keys_everything_is_accepted() {
        let keys = ApiKeys::new(None, None).unwrap();
        assert!(!keys.is_required() && keys.accepts(&HeaderMap::new()));
    }
}
