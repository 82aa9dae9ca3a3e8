//! An in-process Hub, and the host of its large files.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use model::hub::{HubCache, HubClient};

/// The commit of every revision.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The contents and behavior of the server.
#[derive(Default)]
pub struct Behaviour {
    pub files: BTreeMap<&'static str, Vec<u8>>,
    /// The required token.
    pub token: Option<&'static str>,
    /// Connections of large files are closed after this number of bytes, `cuts` times.
    pub cut_after: Option<usize>,
    pub cuts: AtomicUsize,
    /// A wrong size announced for large files.
    pub announced: Option<usize>,
}

/// The running server with a cache.
pub struct TestHub {
    pub endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
    pub cache: tempfile::TempDir,
}

impl TestHub {
    pub fn start(behaviour: Behaviour) -> Self {
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener();
        let content = listener();
        let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let endpoint = address(&own);
        let content_host = address(&content);
        let behaviour = Arc::new(behaviour);
        let requests = Arc::new(Mutex::new(Vec::new()));
        for (listener, is_hub) in [(own, true), (content, false)] {
            let behaviour = Arc::clone(&behaviour);
            let requests = Arc::clone(&requests);
            let content_host = content_host.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let request = HttpRequest::read(stream.unwrap());
                    requests.lock().unwrap().push(request.summary());
                    match is_hub {
                        true => behaviour.answer(request, &content_host),
                        false => behaviour.content(request),
                    }
                }
            });
        }
        Self { endpoint, requests, cache: tempfile::tempdir().unwrap() }
    }

    pub fn client(&self) -> HubClient {
        HubClient::new(&self.endpoint, HubCache::new(self.cache.path()))
    }

    /// The requests since the last call: `METHOD path`, with ` token` and ` from BYTE`.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

struct HttpRequest {
    stream: TcpStream,
    method: String,
    path: String,
    token: Option<String>,
    from: usize,
}

impl HttpRequest {
    fn read(stream: TcpStream) -> Self {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let mut words = first.split(' ').map(str::to_owned);
        let method = words.next().unwrap();
        let path = words.next().unwrap();
        let mut request = Self { stream, method, path, token: None, from: 0 };
        for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").unwrap();
            match name.to_lowercase().as_str() {
                "authorization" => request.token = value.strip_prefix("Bearer ").map(str::to_owned),
                "range" => {
                    let from = value.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap();
                    request.from = from.parse().unwrap();
                }
                _ => {}
            }
        }
        request
    }

    fn summary(&self) -> String {
        let token = if self.token.is_some() { " token" } else { "" };
        let range = if self.from > 0 { format!(" from {}", self.from) } else { String::new() };
        format!("{} {}{token}{range}", self.method, self.path)
    }

    /// Answers with headers and a body, of which only `sent` bytes are sent.
    fn reply(mut self, status: &str, headers: &[(&str, String)], body: &[u8], sent: usize) {
        let length = body.len();
        let mut text =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n");
        headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        text.push_str("\r\n");
        // The client may be gone: it does not read data that it does not need.
        let _ = self.stream.write_all(text.as_bytes());
        if self.method != "HEAD" {
            let _ = self.stream.write_all(&body[..sent.min(length)]);
        }
    }

    fn refuse(self, status: &str) {
        self.reply(status, &[], b"", 0);
    }
}

impl Behaviour {
    /// A model with a small configuration, and weights on the other host.
    pub fn model() -> Self {
        let weights = (0..200_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let files = BTreeMap::from([
            ("README.md", b"# Read".to_vec()),
            ("config.json", b"{}".to_vec()),
            ("model.safetensors", weights),
        ]);
        Self { files, ..Self::default() }
    }

    /// Responds like huggingface.co.
    fn answer(&self, request: HttpRequest, content_host: &str) {
        if self.token.is_some() && request.token.as_deref() != self.token {
            return request.refuse("401 Unauthorized");
        }
        let path = request.path.clone();
        if let Some(rest) = path.strip_prefix("/api/") {
            let known = [
                "models/a/b/revision/main",
                "models/a/b/revision/refs%2Fpr%2F1",
                "datasets/a/b/revision/main",
            ];
            if !known.contains(&rest) {
                return request.refuse("404 Not Found");
            }
            let files = self.files.keys().map(|name| format!("{{\"rfilename\": \"{name}\"}}"));
            let siblings = files.collect::<Vec<_>>().join(",");
            let listing = format!("{{\"sha\": \"{COMMIT}\", \"siblings\": [{siblings}]}}");
            return request.reply("200 OK", &[], listing.as_bytes(), usize::MAX);
        }
        let name = path.split(&format!("/resolve/{COMMIT}/")).nth(1).unwrap();
        let Some(content) = self.files.get(name) else { return request.refuse("404 Not Found") };
        let commit = ("x-repo-commit", COMMIT.to_owned());
        if content.len() < 1000 {
            let etag = ("etag", format!("\"small{}\"", content.len()));
            return request.reply("200 OK", &[commit, etag], content, usize::MAX);
        }
        let size = self.announced.unwrap_or(content.len());
        let headers = [
            commit,
            ("x-linked-etag", "\"feedbeef\"".to_owned()),
            ("x-linked-size", size.to_string()),
            ("location", format!("{content_host}/blob/{name}")),
        ];
        request.reply("302 Found", &headers, b"", 0);
    }

    /// Responds like the host of large files.
    fn content(&self, request: HttpRequest) {
        let whole = &self.files[request.path.strip_prefix("/blob/").unwrap()];
        let part = &whole[request.from.min(whole.len())..];
        let cut = self.cut_after.filter(|_| {
            let down = |cuts: usize| cuts.checked_sub(1);
            self.cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, down).is_ok()
        });
        let status = if request.from > 0 { "206 Partial Content" } else { "200 OK" };
        request.reply(status, &[], part, cut.unwrap_or(usize::MAX));
    }
}
