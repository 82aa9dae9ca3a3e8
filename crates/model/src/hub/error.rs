//! Why something of the Hub could not be had. Messages are one line and end with the next step.

use std::path::{Path, PathBuf};

/// Every way in which fetching from the Hub fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Neither HF_HUB_CACHE nor a home directory.
    #[error("{id}: no place for the Hugging Face cache; set HF_HOME")]
    NoCache {
        /// What was asked for.
        id: String,
    },

    /// Not in the cache, and downloads are off.
    #[error(
        "{id}: not in {}, and HF_HUB_OFFLINE is set; unset it, or run `{command}` where there is \
         a network and copy the cache",
        cache.display()
    )]
    Offline {
        /// What was asked for.
        id: String,
        /// The cache.
        cache: PathBuf,
        /// What downloads it.
        command: String,
    },

    /// The Hub cannot be reached.
    #[error(
        "{id}: not in the cache, and {endpoint} cannot be reached: {why}; check the network, \
             HF_ENDPOINT and proxies"
    )]
    Unreachable {
        /// What was asked for.
        id: String,
        /// The Hub's address.
        endpoint: String,
        /// Why.
        why: String,
    },

    /// Private, gated, or not there: the Hub does not say which without a token.
    #[error(
        "{id}: the Hub refuses it ({status}), {}; a gated model also wants its terms accepted at \
         {page}",
        if *has_token { "the token is wrong or has no access: set another HF_TOKEN" }
        else { "and no token is set: check the name, or set HF_TOKEN" }
    )]
    Refused {
        /// What was asked for.
        id: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        has_token: bool,
        /// The repository's page.
        page: String,
    },

    /// No such repository or revision.
    #[error("{id}: the Hub has no such repository or revision; check the name at {page}")]
    NoRepository {
        /// What was asked for.
        id: String,
        /// Where it would be.
        page: String,
    },

    /// The repository has no such file.
    #[error("{id}: no such file in the repository; it has {}", several(files))]
    NoFile {
        /// What was asked for.
        id: String,
        /// The files of that kind.
        files: Vec<String>,
    },

    /// Several files, and none was named.
    #[error("{id}: several files, {}; name one: {id}/{}", several(files), first(files))]
    SeveralFiles {
        /// What was asked for.
        id: String,
        /// The files.
        files: Vec<String>,
    },

    /// Weights in Python's pickle format alone.
    #[error(
        "{id}: only pickled weights ({file}), which can execute code when loaded and are not read; \
         look for a safetensors version (often the revision refs/pr/1), or load it with \
         transformers and save_pretrained() it to a directory"
    )]
    PickleOnly {
        /// What was asked for.
        id: String,
        /// One of the pickle files.
        file: String,
    },

    /// Nothing of the kind that is read.
    #[error("{id}: no file that is read among {}; expected {expected}", several(files))]
    NothingToRead {
        /// What was asked for.
        id: String,
        /// The files.
        files: Vec<String>,
        /// What is read.
        expected: &'static str,
    },

    /// The connection ended again and again.
    #[error(
        "{file}: the connection ended after {have} of {size} bytes; what is there is kept, run the \
         command again to go on"
    )]
    Cut {
        /// The file.
        file: String,
        /// Bytes that are there.
        have: u64,
        /// Bytes of the whole.
        size: u64,
    },

    /// More bytes than the Hub had said.
    #[error("{file}: {have} bytes came, {size} were announced; run the command again")]
    WrongSize {
        /// The file.
        file: String,
        /// Bytes that came.
        have: u64,
        /// Bytes that were announced.
        size: u64,
    },

    /// An answer that is none of the above.
    #[error("{url}: the Hub answers {what}; try again later")]
    Answer {
        /// What was asked.
        url: String,
        /// The status, or what is wrong with the answer.
        what: String,
    },

    /// The cache cannot be written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why. Part of the message, and therefore not its source as well.
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

/// Some names of a list.
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
