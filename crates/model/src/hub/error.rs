//! Errors of downloads from the Hugging Face Hub. Messages are one line and end with the remedy.

use std::path::{Path, PathBuf};

/// An error from a download or from the local Hub cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Neither HF_HUB_CACHE nor a home directory is set.
    #[error("{id}: no directory for the Hugging Face cache; set HF_HOME")]
    NoCache {
        /// The requested model or file.
        id: String,
    },

    /// Not in the cache, and downloads are off.
    #[error(
        "{id}: not in {}, and HF_HUB_OFFLINE is set; unset it, or run `{command}` on a machine \
         with network access and copy the cache",
        cache.display()
    )]
    Offline {
        /// The requested model or file.
        id: String,
        /// The cache directory.
        cache: PathBuf,
        /// A command that downloads it.
        command: String,
    },

    /// The Hub cannot be reached.
    #[error(
        "{id}: not in the cache, and {endpoint} cannot be reached: {why}; check the network, \
         HF_ENDPOINT and proxies"
    )]
    Unreachable {
        /// The requested model or file.
        id: String,
        /// The URL of the Hub.
        endpoint: String,
        /// The cause.
        why: String,
    },

    /// Private, gated or nonexistent: without a token the Hub does not distinguish them.
    #[error(
        "{id}: access denied by the Hub ({status}), {}; a gated model also requires accepting its \
         terms at {page}",
        if *has_token { "the token is invalid or has no access: set another HF_TOKEN" }
        else { "and no token is set: check the name, or set HF_TOKEN" }
    )]
    Refused {
        /// The requested model or file.
        id: String,
        /// The HTTP status, 401 or 403.
        status: u16,
        /// Whether a token was sent.
        has_token: bool,
        /// The repository's page.
        page: String,
    },

    /// No such repository or revision.
    #[error("{id}: no such repository or revision on the Hub; check the name at {page}")]
    NoRepository {
        /// The requested model or file.
        id: String,
        /// The URL of the repository.
        page: String,
    },

    /// The repository has no such file.
    #[error("{id}: no such file in the repository; it has {}", several(files))]
    NoFile {
        /// The requested model or file.
        id: String,
        /// The files of the requested kind.
        files: Vec<String>,
    },

    /// The repository has several candidate files, and none was specified.
    #[error("{id}: several files ({}); specify one: {id}/{}", several(files), first(files))]
    SeveralFiles {
        /// The requested model or file.
        id: String,
        /// The files.
        files: Vec<String>,
    },

    /// The only weights are in Python's pickle format.
    #[error(
        "{id}: only pickled weights ({file}), which can execute code and are not loaded; look for \
         a safetensors version (often in revision refs/pr/1), or load it with transformers and \
         save it with save_pretrained()"
    )]
    PickleOnly {
        /// The requested model or file.
        id: String,
        /// One of the pickle files.
        file: String,
    },

    /// The repository has no file of a supported kind.
    #[error("{id}: no supported file among {}; expected {expected}", several(files))]
    NothingToRead {
        /// The requested model or file.
        id: String,
        /// The files.
        files: Vec<String>,
        /// The supported kinds.
        expected: &'static str,
    },

    /// The connection was lost in every attempt.
    #[error(
        "{file}: the connection was lost after {have} of {size} bytes; run the command again to \
         resume the download"
    )]
    Cut {
        /// The file.
        file: String,
        /// Bytes downloaded so far.
        have: u64,
        /// Size of the file in bytes.
        size: u64,
    },

    /// More bytes than the announced size.
    #[error("{file}: received {have} bytes, expected {size}; run the command again")]
    WrongSize {
        /// The file.
        file: String,
        /// Received bytes.
        have: u64,
        /// The announced size in bytes.
        size: u64,
    },

    /// Any other unexpected response.
    #[error("{url}: unexpected response from the Hub: {what}; try again later")]
    Answer {
        /// The URL of the request, or the requested model or file.
        url: String,
        /// The HTTP status, or a description of the problem.
        what: String,
    },

    /// The cache cannot be written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause. Part of the message, and therefore not its source as well.
        error: std::io::Error,
    },
}

impl HubError {
    #[cfg_attr(not(feature = "hub"), expect(dead_code, reason = "nothing is written"))]
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        |error| Self::Io { path, error }
    }
}

/// The first names of a list, and the number of the others.
fn several(names: &[String]) -> String {
    const SHOWN: usize = 5;
    match names.len() {
        0 => "none".to_owned(),
        n if n <= SHOWN => names.join(", "),
        n => format!("{} and {} more", names[..SHOWN].join(", "), n - SHOWN),
    }
}

fn first(names: &[String]) -> &str {
    names.first().map_or("", String::as_str)
}
