//! Repository ids: `owner/name`, optionally with a file and a revision.

use std::fmt;

/// A repository of the Hub, or one file of it: `owner/name`, `owner/name@revision`,
/// `owner/name/file.gguf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubId {
    /// `owner/name`.
    pub repo: String,
    /// Path of a file in the repository.
    pub file: Option<String>,
    /// A branch, a tag or a commit; `main` if not given.
    pub revision: Option<String>,
}

/// File extensions of models that an id may name.
pub const MODEL_EXTENSIONS: [&str; 1] = ["gguf"];
/// File extensions of datasets that an id may name.
pub const DATA_EXTENSIONS: [&str; 4] = ["json", "jsonl", "csv", "parquet"];

/// The kind of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepoKind {
    /// A model.
    Model,
    /// A dataset.
    Dataset,
}

impl HubId {
    /// Parses an id; a path such as `./dir` or `dir/file.gguf` is not one. A file follows
    /// `owner/name` and has one of `extensions`.
    pub fn parse(text: &str, extensions: &[&str]) -> Option<Self> {
        let (path, revision) = match text.rsplit_once('@') {
            Some((path, revision)) => (path, Some(revision)),
            None => (text, None),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let [owner, name, file @ ..] = parts.as_slice() else { return None };
        let has_extension = |name: &str| {
            name.rsplit_once('.')
                .is_some_and(|(_, e)| extensions.iter().any(|known| known.eq_ignore_ascii_case(e)))
        };
        let file = match file.last() {
            None if has_extension(name) => return None,
            None => None,
            Some(last) => Some(has_extension(last).then(|| file.join("/"))?),
        };
        let valid = parts.iter().all(|part| is_name(part)) && revision.is_none_or(is_revision);
        valid.then(|| Self {
            repo: format!("{owner}/{name}"),
            file,
            revision: revision.map(str::to_owned),
        })
    }

    /// The revision, by default `main`.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// The command of Hugging Face's CLI that downloads it.
    pub fn download_command(&self) -> String {
        let file = self.file.iter().map(|file| format!(" {file}"));
        let revision = self.revision.iter().map(|revision| format!(" --revision {revision}"));
        let rest: String = file.chain(revision).collect();
        format!("hf download {}{rest}", self.repo)
    }
}

impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        self.file.iter().try_for_each(|file| write!(f, "/{file}"))?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))
    }
}

/// A valid name on the Hub: letters, digits, `-`, `_` and `.`, not starting with a dot.
fn is_name(part: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
}

/// A revision becomes part of file paths, so it must not leave their directory.
fn is_revision(revision: &str) -> bool {
    revision.split('/').all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_from_paths() {
        let id = |text| HubId::parse(text, &["gguf"]);
        let parsed = id("owner/name@v1.0").unwrap();
        assert_eq!((parsed.repo.as_str(), parsed.revision()), ("owner/name", "v1.0"));
        let parsed = id("owner/name/sub/model.Q4_1.gguf").unwrap();
        assert_eq!(parsed.file.as_deref(), Some("sub/model.Q4_1.gguf"));
        assert_eq!(parsed.revision(), "main");
        for text in ["owner/name", "owner/name@abc", "o/n/f.gguf@refs/pr/1"] {
            assert_eq!(id(text).unwrap().to_string(), text);
        }
        for path in [
            "name",
            "/a/b",
            "./a",
            "../a/b",
            "a/..",
            "a/b/",
            "dir/file.gguf",
            "a/b/c",
            "~/a",
            "a/b@",
            "a/b@../x",
            "a b/c",
            "",
        ] {
            assert_eq!(id(path), None, "{path}");
        }
    }

    #[test]
    fn the_download_command_names_file_and_revision() {
        let command = |text| HubId::parse(text, &["gguf"]).unwrap().download_command();
        assert_eq!(command("a/b"), "hf download a/b");
        assert_eq!(command("a/b/c.gguf@v1"), "hf download a/b c.gguf --revision v1");
    }
}
