//! A server on a free port of the loopback interface, and a minimal client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use latent_tts::{Engine, Model, Output, Request, SamplingOptions, SamplingParams};
use latent_tts_serve::{LoadedModel, ModelSource, ServeError, ServeOptions, Server};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// A question in the vocabulary of the embedded model.
pub const QUESTION: &str = "Grace has 484 muffins. Fiona has a quarter as many muffins as Grace. \
                            How many muffins do they have together?";
pub const SHORT: &str =
    "Tom has 3 boxes with 4 pens in each. He gives away 5 pens. How many pens does Tom have?";

/// The embedded models, loaded once.
pub fn model() -> &'static Model {
    static MODEL: LazyLock<Model> = LazyLock::new(|| Model::load("embedded").unwrap());
    &MODEL
}

/// An engine with the reward model and little memory.
pub fn engine() -> Engine {
    model().engine().unwrap().with_memory(256 << 20)
}

/// Starts a server and drops it.
pub fn try_start(models: Vec<ModelSource>, options: ServeOptions) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(Server::with_models(models, options)).map(drop)
}

/// A server in this process.
pub struct TestServer {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    pub fn start() -> Self {
        Self::with(ServeOptions::default())
    }

    pub fn with(options: ServeOptions) -> Self {
        Self::of(engine(), options)
    }

    pub fn of(engine: Engine, options: ServeOptions) -> Self {
        let name = options.model_name.clone();
        let load = move || {
            let files = latent_tts::model_files("embedded").unwrap();
            Ok(LoadedModel { engine: engine.clone(), files })
        };
        Self::of_models(vec![ModelSource { name, bytes: 0, load: Box::new(load) }], options)
    }

    pub fn of_models(models: Vec<ModelSource>, options: ServeOptions) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        let options = ServeOptions { address: "127.0.0.1:0".parse().unwrap(), ..options };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let server = Server::with_models(models, options).await.unwrap();
                sender.send(server.address().unwrap()).unwrap();
                server.run(async { drop(stopped.await) }).await;
            });
            runtime.shutdown_background();
        });
        let address = receiver.recv().unwrap();
        Self { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Simulates SIGTERM.
    pub fn shut_down(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until the server has ended.
    pub fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, &[], &body.to_string())
    }

    pub fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], "")
    }

    pub fn send(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Response {
        Response::read(self.open(method, path, headers, body))
    }

    /// Sends a request without waiting for the response.
    pub fn open(&self, method: &str, path: &str, headers: &[&str], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        let given = |name: &str| headers.iter().any(|header| header.starts_with(name));
        let host = if given("host:") { "" } else { "host: localhost\r\n" };
        let kind = match (body, given("content-type:")) {
            ("", _) | (_, true) => "",
            _ => "content-type: application/json\r\n",
        };
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}{kind}connection: close\r\n{headers}\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    }

    /// The value of a metric, without labels or with the given ones.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Waits until a condition holds.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(300), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no sequence is left in the batch, the queue and the cache.
    pub fn wait_until_empty(&self) {
        self.wait_until("sequences were left behind", |server| {
            ["num_rows_running", "num_rows_waiting", "num_requests_running", "kv_cache_usage_perc"]
                .iter()
                .all(|name| server.metric(name) == 0.0)
        });
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shut_down();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}

/// A response, read to its end.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub text: String,
}

impl Response {
    pub fn read(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let (status, headers) = read_head(&mut reader);
        let mut body = Vec::new();
        reader.read_to_end(&mut body).unwrap();
        let chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
        let body = if chunked { unchunk(&body) } else { body };
        Self { status, headers, text: String::from_utf8(body).unwrap() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The JSON of a successful response.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The field named in the error of a rejected request.
    pub fn refused_field(&self) -> String {
        assert_eq!(self.status, 400, "{self:?}");
        let error = &self.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
        error["param"].as_str().unwrap_or_default().to_owned()
    }

    /// The data of a stream's events.
    pub fn events(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let events = self.text.split("\n\n").filter(|event| !event.is_empty());
        let events = events.filter(|event| !event.starts_with(':'));
        events.map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
    }
}

fn read_head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status: {line:?}"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            return (status, headers);
        };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|pair| pair == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        whole.extend(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
    }
    whole
}

/// A chat request for a question.
pub fn chat(question: &str, more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": question }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The engine's own answer.
pub fn solve(question: &str, samples: usize, seed: u64) -> Output {
    let samples = u32::try_from(samples).unwrap().try_into().unwrap();
    let options =
        SamplingOptions { seed: Some(seed), greedy: Some(true), ..SamplingOptions::new(samples) };
    solve_with(question, options.resolve(&model().reasoner().method).unwrap())
}

pub fn solve_with(question: &str, params: SamplingParams) -> Output {
    engine().solve(&Request::new(question, params)).unwrap()
}

/// A text as a chat returns it: without the marker that the embedded model writes first.
pub fn without_marker(text: &str) -> &str {
    text.trim_start_matches('#').trim()
}

/// The text selected by the vote.
pub fn chosen_text(reply: &Output) -> &str {
    &reply.trajectories[reply.chosen.unwrap()].text
}
