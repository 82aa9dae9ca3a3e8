//! Downloads missing files into the cache: first the listing of a revision, then file by file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use ureq::Agent;

use crate::hub::cache::HubCache;
use crate::hub::error::HubError;
use crate::hub::id::{HubId, RepoKind};
use crate::hub::select;

/// The URL of the Hub.
const ENDPOINT: &str = "https://huggingface.co";

/// A client of the Hub.
#[derive(Debug, Clone)]
pub struct HubClient {
    pub(crate) agent: Agent,
    pub(crate) endpoint: String,
    pub(crate) token: Option<String>,
    cache: HubCache,
    offline: bool,
}

/// The progress of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HubEvent<'a> {
    /// The download of a file starts.
    File {
        /// Path of the file in the repository.
        name: &'a str,
        /// Size of the file in bytes.
        size: u64,
        /// Bytes already present from an interrupted download.
        resumed: u64,
    },
    /// Progress: bytes of the file downloaded so far.
    Bytes(u64),
    /// The connection was lost; the download resumes after this number of bytes.
    Resumed(u64),
}

/// A revision's commit and files, as the Hub's API lists them.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<ListedFile>,
}

#[derive(Deserialize)]
struct ListedFile {
    rfilename: String,
}

impl HubClient {
    /// A client for a cache, configured by the environment: HF_ENDPOINT, HF_TOKEN (else the token
    /// file of `hf auth login`), HF_HUB_OFFLINE.
    pub fn from_env(cache: HubCache) -> Self {
        let variable = |name: &str| {
            let value = std::env::var(name).ok()?;
            Some(value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let token_file = variable("HF_TOKEN_PATH")
            .map(PathBuf::from)
            .or_else(|| Some(cache.home()?.join("token")));
        let stored = || {
            let text = std::fs::read_to_string(token_file?).ok()?;
            Some(text.trim().to_owned()).filter(|token| !token.is_empty())
        };
        let is_on = |value: String| ["1", "true", "yes", "on"].contains(&&*value.to_lowercase());
        Self {
            token: variable("HF_TOKEN").or_else(stored),
            offline: variable("HF_HUB_OFFLINE").is_some_and(is_on),
            ..Self::new(&variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned()), cache)
        }
    }

    /// A client of the Hub at a URL, without a token.
    pub fn new(endpoint: &str, cache: HubCache) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed manually: the headers of the first response are needed, and
            // the token must not be sent to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(Duration::from_secs(30)))
            .user_agent(concat!("latent-tts/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            agent: config.into(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: None,
            cache,
            offline: false,
        }
    }

    /// Sets the access token.
    #[must_use]
    pub fn with_token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }

    /// Disables network access.
    #[must_use]
    pub fn offline(self) -> Self {
        Self { offline: true, ..self }
    }

    /// The model of an id: from the cache, else downloaded.
    pub fn model(
        &self,
        id: &HubId,
        progress: &mut dyn FnMut(HubEvent<'_>),
    ) -> Result<PathBuf, HubError> {
        let cached = self.cache.model(id).filter(|path| is_complete(path));
        match cached {
            Some(path) => Ok(path),
            None => {
                self.fetch(RepoKind::Model, id, progress)?;
                self.cache.model(id).ok_or_else(|| self.lost(id))
            }
        }
    }

    /// The data file of an id: from the cache, else downloaded.
    pub fn data(
        &self,
        id: &HubId,
        progress: &mut dyn FnMut(HubEvent<'_>),
    ) -> Result<PathBuf, HubError> {
        let kind = RepoKind::Dataset;
        let cached = || {
            let snapshot = self.cache.snapshot(kind, id)?;
            let files = file_names(&snapshot);
            let file = select::needed(kind, id, &files).ok()?.pop()?;
            Some(snapshot.join(file)).filter(|path| path.is_file())
        };
        match cached() {
            Some(path) => Ok(path),
            None => {
                let mut files = self.fetch(kind, id, progress)?;
                files.pop().ok_or_else(|| self.lost(id))
            }
        }
    }

    /// Downloads the files of an id; returns their paths.
    fn fetch(
        &self,
        kind: RepoKind,
        id: &HubId,
        progress: &mut dyn FnMut(HubEvent<'_>),
    ) -> Result<Vec<PathBuf>, HubError> {
        if self.offline {
            return Err(HubError::Offline {
                id: id.to_string(),
                cache: self.cache.dir().to_owned(),
                command: id.download_command(),
            });
        }
        let Listing { sha, siblings } = self.listing(kind, id)?;
        let files: Vec<String> = siblings.into_iter().map(|file| file.rfilename).collect();
        let repo = self.cache.repo_dir(kind, &id.repo);
        let snapshot = repo.join("snapshots").join(&sha);
        let mut paths = Vec::new();
        for file in select::needed(kind, id, &files)? {
            let path = snapshot.join(&file);
            if !path.exists() {
                let url = format!("{}/resolve/{sha}/{file}", self.page(kind, id));
                self.download(&url, &file, &repo, &path, progress)?;
            }
            paths.push(path);
        }
        if id.revision() != sha {
            let reference = repo.join("refs").join(id.revision());
            create_parent(&reference)?;
            std::fs::write(&reference, &sha).map_err(HubError::io(&reference))?;
        }
        Ok(paths)
    }

    /// The URL of a repository's page; its files are below it.
    fn page(&self, kind: RepoKind, id: &HubId) -> String {
        match kind {
            RepoKind::Model => format!("{}/{}", self.endpoint, id.repo),
            RepoKind::Dataset => format!("{}/datasets/{}", self.endpoint, id.repo),
        }
    }

    fn listing(&self, kind: RepoKind, id: &HubId) -> Result<Listing, HubError> {
        let kind_name = match kind {
            RepoKind::Model => "models",
            RepoKind::Dataset => "datasets",
        };
        // A revision such as refs/pr/1 is a single path segment.
        let revision = id.revision().replace('/', "%2F");
        let url = format!("{}/api/{kind_name}/{}/revision/{revision}", self.endpoint, id.repo);
        let mut request = self.agent.get(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut answer = request.call().map_err(|error| HubError::Unreachable {
            id: id.to_string(),
            endpoint: self.endpoint.clone(),
            why: error.to_string(),
        })?;
        let status = answer.status().as_u16();
        let page = self.page(kind, id);
        match status {
            200 => {}
            401 | 403 => {
                let has_token = self.token.is_some();
                return Err(HubError::Refused { id: id.to_string(), status, has_token, page });
            }
            404 => return Err(HubError::NoRepository { id: id.to_string(), page }),
            status => return Err(HubError::Answer { url, what: status.to_string() }),
        }
        let text = answer.body_mut().read_to_string();
        let text = text.map_err(|e| HubError::Answer { url: url.clone(), what: e.to_string() })?;
        let listing: Listing = serde_json::from_str(&text)
            .map_err(|e| HubError::Answer { url: url.clone(), what: e.to_string() })?;
        // Both become parts of file paths.
        let is_hash = |sha: &str| !sha.is_empty() && sha.bytes().all(|b| b.is_ascii_alphanumeric());
        let stays_inside = |file: &ListedFile| {
            let parts = Path::new(&file.rfilename).components();
            parts.into_iter().all(|part| matches!(part, std::path::Component::Normal(_)))
        };
        if !is_hash(&listing.sha) || !listing.siblings.iter().all(stays_inside) {
            let what = "file names outside the repository".to_owned();
            return Err(HubError::Answer { url, what });
        }
        Ok(listing)
    }

    /// The error for a file that another process removed from the cache after the download.
    fn lost(&self, id: &HubId) -> HubError {
        let what = "the downloaded file is not in the cache".to_owned();
        HubError::Answer { url: id.to_string(), what }
    }
}

pub(crate) fn create_parent(path: &Path) -> Result<(), HubError> {
    let Some(dir) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(dir).map_err(HubError::io(dir))
}

/// Whether a cached model has its weights: Python tools may have downloaded only some files.
fn is_complete(path: &Path) -> bool {
    if path.is_file() {
        return true;
    }
    let mut files = file_names(path);
    files.retain(|file| !file.contains('/'));
    let index = files.iter().find(|file| file.ends_with(".safetensors.index.json"));
    let shards = index.and_then(|index| {
        let text = std::fs::read_to_string(path.join(index)).ok()?;
        let index: serde_json::Value = serde_json::from_str(&text).ok()?;
        let shards = index.get("weight_map")?.as_object()?.values();
        Some(shards.filter_map(|shard| Some(shard.as_str()?.to_owned())).collect::<Vec<_>>())
    });
    match shards {
        Some(shards) => shards.iter().all(|shard| path.join(shard).is_file()),
        None => files.iter().any(|file| file.ends_with(".safetensors")),
    }
}

/// The files below a directory, as relative paths.
fn file_names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let names = |entry: std::fs::DirEntry| {
        let Ok(name) = entry.file_name().into_string() else { return Vec::new() };
        // Files are links to blobs; the cache contains no links to directories.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                let below = file_names(&entry.path());
                below.into_iter().map(|file| format!("{name}/{file}")).collect()
            }
            _ if entry.path().is_file() => vec![name],
            _ => Vec::new(),
        }
    };
    entries.flat_map(names).collect()
}
