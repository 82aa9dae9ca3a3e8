//! The cache of `huggingface_hub`:
//!
//! ```text
//! models--owner--name/refs/main                 the commit that a revision names
//! models--owner--name/snapshots/COMMIT/FILE     a link to a blob
//! models--owner--name/blobs/ETAG                the content
//! ```

use std::path::{Path, PathBuf};

use crate::hub::id::{HubId, RepoKind};

/// The cache directory of `huggingface_hub`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubCache {
    dir: PathBuf,
}

impl HubCache {
    /// A cache in the given directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The cache given by the environment: HF_HUB_CACHE, else HF_HOME/hub, else
    /// ~/.cache/huggingface/hub. `None` without a home directory.
    pub fn from_env() -> Option<Self> {
        let variable = |name: &str| {
            std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        let cache =
            || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let home = || Some(cache()?.join("huggingface"));
        let hub = || Some(variable("HF_HOME").or_else(home)?.join("hub"));
        Some(Self { dir: variable("HF_HUB_CACHE").or_else(hub)? })
    }

    /// Hugging Face's home directory, which contains the token: HF_HOME, else the parent of the
    /// cache.
    #[cfg(feature = "hub")]
    pub(crate) fn home(&self) -> Option<PathBuf> {
        let named = std::env::var_os("HF_HOME").filter(|value| !value.is_empty());
        named.map(PathBuf::from).or_else(|| self.dir.parent().map(Path::to_owned))
    }

    /// The cache directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of a repository.
    pub fn repo_dir(&self, kind: RepoKind, repo: &str) -> PathBuf {
        let kind = match kind {
            RepoKind::Model => "models",
            RepoKind::Dataset => "datasets",
        };
        self.dir.join(format!("{kind}--{}", repo.replace('/', "--")))
    }

    /// The snapshot of an id's revision; without a revision that of `main`, else the newest.
    pub fn snapshot(&self, kind: RepoKind, id: &HubId) -> Option<PathBuf> {
        let repo = self.repo_dir(kind, &id.repo);
        let snapshots = repo.join("snapshots");
        let commit = std::fs::read_to_string(repo.join("refs").join(id.revision())).ok();
        let named = commit.map(|commit| snapshots.join(commit.trim()));
        let named = named.or_else(|| Some(snapshots.join(id.revision.as_ref()?)));
        let newest = || id.revision.is_none().then(|| newest_dir(&snapshots))?;
        named.filter(|dir| dir.is_dir()).or_else(newest)
    }

    /// A cached model: a directory, or the GGUF file that the id names or that is the only one of
    /// its repository.
    pub fn model(&self, id: &HubId) -> Option<PathBuf> {
        let snapshot = self.snapshot(RepoKind::Model, id)?;
        if let Some(file) = &id.file {
            return Some(snapshot.join(file)).filter(|path| path.is_file());
        }
        let described = |name: &&str| snapshot.join(name).is_file();
        if ["config.json", "adapter_config.json"].iter().any(described) {
            return Some(snapshot);
        }
        let mut files = gguf_files(&snapshot).into_iter();
        match (files.next(), files.next()) {
            (Some(only), None) => Some(only),
            _ => Some(snapshot),
        }
    }
}

fn gguf_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))).collect()
}

fn newest_dir(dir: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?.filter_map(Result::ok);
    let dirs = entries.filter(|entry| entry.path().is_dir());
    let dated =
        dirs.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())));
    dated.max().map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn a_revision_names_a_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let cache = HubCache::new(dir.path());
        let repo = cache.repo_dir(RepoKind::Model, "a/b");
        assert!(repo.ends_with("models--a--b"));
        write(repo.join("refs/main"), "111\n");
        write(repo.join("refs/v2"), "222");
        write(repo.join("snapshots/111/config.json"), "{}");
        write(repo.join("snapshots/222/one.gguf"), "");
        write(repo.join("snapshots/333/one.gguf"), "");
        write(repo.join("snapshots/333/two.gguf"), "");
        let model = |text| {
            let found = cache.model(&HubId::parse(text, &["gguf"]).unwrap())?;
            Some(found.strip_prefix(repo.join("snapshots")).unwrap().to_owned())
        };
        let found = |path: &str| Some(PathBuf::from(path));
        assert_eq!(model("a/b"), found("111"));
        assert_eq!(model("a/b@v2"), found("222/one.gguf"));
        assert_eq!(model("a/b@333"), found("333"));
        assert_eq!(model("a/b/two.gguf@333"), found("333/two.gguf"));
        assert_eq!(model("a/b/two.gguf"), None, "main has no such file");
        assert_eq!(model("a/b@v3"), None);
        assert_eq!(model("a/c"), None);
    }
}
