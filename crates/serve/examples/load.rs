//! The server under load, in one process and over loopback: throughput beside the engine's own, ten
//! times more than it can do, clients that go in mid-stream, and a drain.
//!
//! ```text
//! cargo run --release -p serve --example load -- [QUESTIONS] [SAMPLES] [CLIENTS]
//! ```
//!
//! Every 200 is compared with what the engine says for the same seed. Ends with exit code 1 where
//! one differs or a request is lost.

#![expect(clippy::unwrap_used, reason = "what fails to run fails the measurement")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use latent_tts::{
    DataSource, Engine, EngineError, Model, Question, Reply, Request, SamplingOptions,
};
use serde_json::{Value, json};
use serve::{ServeOptions, Server};
use tokio::sync::oneshot;

/// What a server does for one request, as the client sees it.
struct Answered {
    question: usize,
    status: u16,
    text: String,
    seconds: f64,
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|arg| arg.parse().unwrap()).collect();
    let of = |i: usize, default: usize| numbers.get(i).copied().unwrap_or(default);
    let (count, samples, clients) = (of(0, 200), of(1, 16), of(2, 64));
    let engine = Model::load("embedded").unwrap().engine().unwrap();
    let questions: Vec<Question> =
        DataSource::parse("embedded:valid").unwrap().read(count.try_into().ok(), count).unwrap();
    let load = Load { engine, questions, samples };

    let start = Instant::now();
    let expected = load.expected();
    let alone = start.elapsed().as_secs_f64();
    println!("engine: {count} questions x {samples} in {alone:.2} s");

    let server = Running::start(&load.engine, ServeOptions::default());
    let start = Instant::now();
    let answered = load.ask(server.address, clients);
    let served = start.elapsed().as_secs_f64();
    let share = 100.0 * alone / served;
    println!("server: the same by {clients} clients in {served:.2} s, {share:.0}% of the engine");
    let mut wrong = load.count_wrong(&answered, &expected);
    assert!(answered.iter().all(|a| a.status == 200), "all fit the queue");

    let options = ServeOptions { max_waiting_rows: 8 * samples, ..ServeOptions::default() };
    let small = Running::start(&load.engine, options);
    let start = Instant::now();
    let answered = load.ask(small.address, 10 * clients.min(answered.len()));
    let of_status = |status| answered.iter().filter(|a| a.status == status).count();
    let slowest = answered.iter().map(|a| a.seconds).fold(0.0, f64::max);
    println!(
        "overload: {} requests in {:.2} s: {} x 200, {} x 429; the slowest took {slowest:.2} s",
        answered.len(),
        start.elapsed().as_secs_f64(),
        of_status(200),
        of_status(429),
    );
    assert_eq!(of_status(200) + of_status(429), count, "requests were lost");
    wrong += load.count_wrong(&answered, &expected);

    for i in 0..100 {
        let mut stream = load.open(server.address, i % count, true);
        let mut head = [0; 256];
        stream.read_exact(&mut head).unwrap();
    }
    let start = Instant::now();
    while metric(server.address, "num_rows_running") + metric(server.address, "num_rows_waiting")
        > 0.0
    {
        assert!(start.elapsed() < Duration::from_secs(60), "rows were left behind");
        std::thread::sleep(Duration::from_millis(5));
    }
    let usage = metric(server.address, "kv_cache_usage_perc");
    println!("disconnects: 100 in mid-stream; KV cache in use: {usage}");
    assert_eq!(usage, 0.0);

    let streams: Vec<(usize, TcpStream)> =
        (0..count.min(100)).map(|q| (q, load.open(small.address, q, false))).collect();
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    small.stop();
    let answered: Vec<Answered> =
        streams.into_iter().filter_map(|(q, stream)| read_answer(q, stream, start)).collect();
    let taken = answered.iter().filter(|a| a.status == 200).count();
    let drained = start.elapsed().as_secs_f64();
    println!("drain: {taken} requests answered after the signal, in {drained:.2} s");
    wrong += load.count_wrong(&answered, &expected);
    println!("wrong answers: {wrong}");
    std::process::exit(i32::from(wrong > 0));
}

struct Load {
    engine: Engine,
    questions: Vec<Question>,
    samples: usize,
}

impl Load {
    /// What the engine says, all questions in one run.
    fn expected(&self) -> Vec<Reply> {
        let options = SamplingOptions::new(self.samples.try_into().unwrap());
        let params = latent_tts::SamplingParams {
            greedy: false,
            ..options.resolve(&self.engine.reasoner().method)
        };
        let request = |question: &Question| Request::new(question.text.trim(), params);
        let requests: Vec<Request> = self.questions.iter().map(request).collect();
        let mut replies = Vec::new();
        let take = |_, reply: Result<Reply, EngineError>| -> Result<(), EngineError> {
            replies.push(reply?);
            Ok(())
        };
        self.engine.run(&requests, take).unwrap();
        replies
    }

    fn open(&self, address: SocketAddr, question: usize, stream: bool) -> TcpStream {
        let body = json!({
            "prompt": self.questions[question].text,
            "latent": { "samples": self.samples, "seed": 0, "return": [] },
            "stream": stream,
        });
        open(address, "POST", "/v1/completions", &body.to_string())
    }

    /// All questions, by so many clients at once.
    fn ask(&self, address: SocketAddr, clients: usize) -> Vec<Answered> {
        let queue: Mutex<VecDeque<usize>> = Mutex::new((0..self.questions.len()).collect());
        let answered = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..clients.min(self.questions.len()) {
                scope.spawn(|| {
                    loop {
                        let Some(question) = queue.lock().unwrap().pop_front() else { return };
                        let start = Instant::now();
                        let stream = self.open(address, question, false);
                        let answer = read_answer(question, stream, start).unwrap();
                        answered.lock().unwrap().push(answer);
                    }
                });
            }
        });
        answered.into_inner().unwrap()
    }

    fn count_wrong(&self, answered: &[Answered], expected: &[Reply]) -> usize {
        let is_wrong = |answer: &&Answered| {
            let reply = &expected[answer.question];
            let text = &reply.trajectories[reply.chosen.unwrap_or(0)].text;
            answer.status == 200 && answer.text != *text
        };
        answered.iter().filter(is_wrong).count()
    }
}

/// A server on a thread.
struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
}

impl Running {
    fn start(engine: &Engine, options: ServeOptions) -> Self {
        let (engine, (stop, stopped)) = (engine.clone(), oneshot::channel::<()>());
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let options = ServeOptions { address: "127.0.0.1:0".parse().unwrap(), ..options };
                let files = latent_tts::model_files("embedded").unwrap();
                let server = Server::bind(engine, &files, options).await.unwrap();
                sender.send(server.address().unwrap()).unwrap();
                server.run(async { drop(stopped.await) }).await;
            });
        });
        Self { address: receiver.recv().unwrap(), stop }
    }

    fn stop(self) {
        drop(self.stop);
    }
}

fn open(address: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}");
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    stream
}

/// `None` where the connection was closed before it was accepted.
fn read_answer(question: usize, mut stream: TcpStream, start: Instant) -> Option<Answered> {
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let status = response.split(' ').nth(1)?.parse().ok()?;
    let body = response.split_once("\r\n\r\n")?.1;
    let json: Value = serde_json::from_str(body).unwrap_or_default();
    let text = json["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    Some(Answered { question, status, text, seconds: start.elapsed().as_secs_f64() })
}

fn metric(address: SocketAddr, name: &str) -> f64 {
    let mut text = String::new();
    open(address, "GET", "/metrics", "").read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.trim().parse().unwrap())
}
