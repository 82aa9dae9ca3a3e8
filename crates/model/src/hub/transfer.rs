//! Downloads one file into the cache: `blobs/ETAG.incomplete` grows, is resumed after a lost
//! connection, and becomes `blobs/ETAG` with a link in the snapshot.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::{HeaderMap, Response};
use ureq::{Body, http};

use crate::hub::client::{HubClient, HubEvent, create_parent};
use crate::hub::error::HubError;

/// Maximum connections per file.
const ATTEMPTS: u32 = 5;
/// Pause before the second connection; doubles each time.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum redirects per request.
const REDIRECTS: usize = 5;

/// The Hub's metadata of a file.
struct RemoteFile {
    /// The name of its blob.
    etag: String,
    size: Option<u64>,
}

impl HubClient {
    /// Downloads a file of a repository to its path in a snapshot.
    pub(crate) fn download(
        &self,
        url: &str,
        name: &str,
        repo: &Path,
        path: &Path,
        progress: &mut dyn FnMut(HubEvent<'_>),
    ) -> Result<(), HubError> {
        let remote = self.remote_file(url)?;
        let blob = repo.join("blobs").join(&remote.etag);
        create_parent(&blob)?;
        if !blob.exists() {
            let incomplete = blob.with_file_name(format!("{}.incomplete", remote.etag));
            let there = length(&incomplete);
            let size = remote.size.unwrap_or(0);
            tracing::info!(file = name, bytes = size, resumed = there, "downloading");
            progress(HubEvent::File { name, size, resumed: there });
            self.transfer(url, name, &incomplete, remote.size, progress)?;
            std::fs::rename(&incomplete, &blob).map_err(HubError::io(&blob))?;
        }
        create_parent(path)?;
        link(repo, &blob, path)
    }

    /// Requests a file's headers. Large files are redirected to another host; the Hub's metadata
    /// are in the first response.
    fn remote_file(&self, url: &str) -> Result<RemoteFile, HubError> {
        let answer = self.request(url, HttpMethod::Head, 0)?;
        let headers = answer.headers();
        let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
        let etag = text("x-linked-etag").or_else(|| text("etag")).unwrap_or_default();
        let etag: String = etag.trim_start_matches("W/").trim_matches('"').to_owned();
        if etag.is_empty() || !etag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let what = "without an etag".to_owned();
            return Err(HubError::Answer { url: url.to_owned(), what });
        }
        let is_redirect = answer.status().is_redirection();
        let length = || (!is_redirect).then(|| text("content-length")).flatten();
        let size = text("x-linked-size").or_else(length).and_then(|size| size.parse().ok());
        Ok(RemoteFile { etag, size })
    }

    /// Appends to a file until it is complete, over several connections if they are lost.
    fn transfer(
        &self,
        url: &str,
        name: &str,
        incomplete: &Path,
        size: Option<u64>,
        progress: &mut dyn FnMut(HubEvent<'_>),
    ) -> Result<(), HubError> {
        for attempt in 0..ATTEMPTS {
            let there = length(incomplete);
            if attempt > 0 {
                tracing::warn!(
                    file = name,
                    attempt,
                    bytes = there,
                    "download interrupted; retrying"
                );
                std::thread::sleep(PAUSE * 2u32.pow(attempt - 1));
                progress(HubEvent::Resumed(there));
            }
            if size.is_none_or(|size| there < size) {
                let whole = self.append(url, incomplete, there, progress)?;
                if size.is_none() && whole {
                    return Ok(());
                }
            }
            let have = length(incomplete);
            let file = name.to_owned();
            match size {
                Some(size) if have == size => return Ok(()),
                Some(size) if have > size => {
                    // The file cannot be resumed.
                    std::fs::remove_file(incomplete).map_err(HubError::io(incomplete))?;
                    return Err(HubError::WrongSize { file, have, size });
                }
                _ => {}
            }
        }
        let have = length(incomplete);
        let size = size.unwrap_or(0);
        Err(HubError::Cut { file: name.to_owned(), have, size })
    }

    /// Downloads over one connection; returns whether it was read to its end.
    fn append(
        &self,
        url: &str,
        incomplete: &Path,
        there: u64,
        progress: &mut dyn FnMut(HubEvent<'_>),
    ) -> Result<bool, HubError> {
        let mut answer = match self.request(url, HttpMethod::Get, there) {
            Ok(answer) => answer,
            Err(HubError::Unreachable { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let resumes = answer.status() == http::StatusCode::PARTIAL_CONTENT;
        let mut file = OpenOptions::new()
            .create(true)
            .append(resumes)
            .write(true)
            .truncate(!resumes)
            .open(incomplete)
            .map_err(HubError::io(incomplete))?;
        let start = if resumes { there } else { 0 };
        let reader = &mut answer.body_mut().as_reader();
        copy(reader, &mut file, start, progress).map_err(HubError::io(incomplete))
    }

    /// Sends a request, following redirects; refusals are errors. The token is sent only to the
    /// Hub.
    fn request(
        &self,
        url: &str,
        method: HttpMethod,
        from: u64,
    ) -> Result<Response<Body>, HubError> {
        let mut target = url.to_owned();
        for _ in 0..REDIRECTS {
            let mut headers = Vec::new();
            if let Some(token) = self.token.as_ref().filter(|_| self.is_own(&target)) {
                headers.push(("authorization", format!("Bearer {token}")));
            }
            if from > 0 {
                headers.push(("range", format!("bytes={from}-")));
            }
            let answer = match method {
                HttpMethod::Head => with(self.agent.head(&target), headers).call(),
                HttpMethod::Get => with(self.agent.get(&target), headers).call(),
            };
            let answer = answer.map_err(|error| HubError::Unreachable {
                id: url.to_owned(),
                endpoint: self.endpoint.clone(),
                why: error.to_string(),
            })?;
            let status = answer.status();
            let next = status.is_redirection().then(|| location(&target, answer.headers()));
            match (next.flatten(), method) {
                // A redirect within the Hub is a renamed repository; others lead to the content.
                (Some(next), HttpMethod::Head) if !self.is_own(&next) => return Ok(answer),
                (Some(_), HttpMethod::Head) if answer.headers().contains_key("x-linked-etag") => {
                    return Ok(answer);
                }
                (Some(next), _) => target = next,
                (None, _) if status.is_success() => return Ok(answer),
                (None, _) => return Err(self.refusal(url, status.as_u16())),
            }
        }
        Err(HubError::Answer { url: url.to_owned(), what: "too many redirects".to_owned() })
    }

    fn refusal(&self, url: &str, status: u16) -> HubError {
        let page = url.split("/resolve/").next().unwrap_or(url).to_owned();
        match status {
            401 | 403 => HubError::Refused {
                id: url.to_owned(),
                status,
                has_token: self.token.is_some(),
                page,
            },
            404 => HubError::NoRepository { id: url.to_owned(), page },
            status => HubError::Answer { url: url.to_owned(), what: status.to_string() },
        }
    }

    fn is_own(&self, url: &str) -> bool {
        url.strip_prefix(&self.endpoint).is_some_and(|rest| rest.starts_with('/'))
    }
}

#[derive(Clone, Copy)]
enum HttpMethod {
    Head,
    Get,
}

fn with(
    request: ureq::RequestBuilder<ureq::typestate::WithoutBody>,
    headers: Vec<(&'static str, String)>,
) -> ureq::RequestBuilder<ureq::typestate::WithoutBody> {
    headers.into_iter().fold(request, |request, (name, value)| request.header(name, value))
}

/// The target of a redirect.
fn location(from: &str, headers: &HeaderMap) -> Option<String> {
    let to = headers.get("location")?.to_str().ok()?;
    if !to.starts_with('/') {
        return Some(to.to_owned());
    }
    let scheme = from.find("://")? + 3;
    let host_end = from[scheme..].find('/').map_or(from.len(), |i| scheme + i);
    Some(format!("{}{to}", &from[..host_end]))
}

/// Copies the received data; `false` if the connection ended early. Errors are those of writing.
fn copy(
    from: &mut impl Read,
    to: &mut File,
    start: u64,
    progress: &mut dyn FnMut(HubEvent<'_>),
) -> std::io::Result<bool> {
    let mut buffer = vec![0; 1 << 16];
    let mut done = start;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(count) => {
                to.write_all(&buffer[..count])?;
                done += count as u64;
                progress(HubEvent::Bytes(done));
            }
            Err(_) => return Ok(false),
        }
    }
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Makes a snapshot's file a link to its blob, relative as in Python tools; a copy where links are
/// not supported.
fn link(repo: &Path, blob: &Path, path: &Path) -> Result<(), HubError> {
    let depth = path.strip_prefix(repo).map_or(0, |path| path.components().count());
    let up: PathBuf = std::iter::repeat_n("..", depth.saturating_sub(1)).collect();
    let target = up.join(blob.strip_prefix(repo).unwrap_or(blob));
    // A dangling link, from a cache that was cleaned up.
    if path.is_symlink() {
        std::fs::remove_file(path).map_err(HubError::io(path))?;
    }
    #[cfg(unix)]
    let made = std::os::unix::fs::symlink(&target, path);
    #[cfg(not(unix))]
    let made = std::fs::copy(blob, path).map(|_| drop(target));
    made.map_err(HubError::io(path))
}
