//! Tests of the server under load, with the embedded models: throughput, correct answers at ten
//! times its capacity, no sequences left behind by disconnected clients, and no accepted request
//! lost by draining.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use clap::Args;
use latent_tts::scheduler::Event;
use latent_tts::{
    DataSource, Engine, EngineError, Model, Output, Question, Request, SamplingOptions, Scheduler,
};
use latent_tts_serve::ServeOptions;
use serde_json::{Value, json};

use crate::client::{Answered, Client, metric};
use crate::running::Running;

const MODEL: &str = "embedded";

#[derive(Args)]
pub struct ProofArgs {
    /// Number of questions of the embedded validation set
    #[arg(long, default_value_t = 200)]
    questions: usize,
    /// Number of trajectories per question
    #[arg(long, default_value_t = 16)]
    samples: usize,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Number of throughput measurements, alternating between engine and server
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

pub fn run(args: &ProofArgs) -> ExitCode {
    let load = Load::new(args);
    let expected = load.run_engine();
    let server = Running::start(&load.engine, MODEL, ServeOptions::default());
    let mut wrong = throughput(&load, args, server.address, &expected);
    wrong += overload(&load, args, &expected);
    disconnects(&load, server.address);
    wrong += drain(&load, server, &expected);
    println!("wrong answers: {wrong}");
    ExitCode::from(u8::from(wrong > 0))
}

/// The same work in one run of the engine (like `eval`), with its scheduler, and by many clients.
fn throughput(load: &Load, args: &ProofArgs, server: SocketAddr, expected: &[Output]) -> usize {
    let (questions, samples) = (load.questions.len(), load.samples);
    println!("throughput: {questions} questions x {samples}, {} clients", args.clients);
    let mut wrong = 0;
    for _ in 0..args.rounds {
        let (alone, _) = WorkTime::measure(|| load.run_engine());
        let (scheduled, ()) = WorkTime::measure(|| load.run_scheduler());
        let (served, asked) = WorkTime::measure(|| load.ask_all(server, args.clients, 1));
        println!("  engine    {alone}");
        println!("  scheduler {scheduled}, {}", scheduled.beside(alone));
        println!("  server    {served}, {}", served.beside(alone));
        assert!(asked.iter().all(|asked| asked.answered.status == 200), "all fit the queue");
        wrong += load.count_wrong(&asked, expected);
    }
    wrong
}

/// Ten times as many clients as the queue has room for.
fn overload(load: &Load, args: &ProofArgs, expected: &[Output]) -> usize {
    let room = 8;
    let options =
        ServeOptions { max_waiting_sequences: room * load.samples, ..ServeOptions::default() };
    let server = Running::start(&load.engine, MODEL, options);
    let before = resident_mib();
    let start = Instant::now();
    let asked = load.ask_all(server.address, (10 * room).max(args.clients), 10);
    let seconds = start.elapsed().as_secs_f64();
    let of_status = |status| asked.iter().filter(|a| a.answered.status == status).count();
    let (taken, refused) = (of_status(200), of_status(429));
    let slowest = asked.iter().map(|a| a.seconds).fold(0.0, f64::max);
    let hints = asked.iter().filter_map(|a| a.answered.retry_after);
    println!(
        "overload: {} requests in {seconds:.2} s: {taken} x 200, {refused} x 429 (Retry-After up \
         to {} s); the slowest took {slowest:.2} s; resident memory {before} -> {} MiB",
        asked.len(),
        hints.max().unwrap_or(0),
        resident_mib(),
    );
    assert_eq!(taken + refused, asked.len(), "requests were lost");
    drop(server.stop());
    load.count_wrong(&asked, expected)
}

/// Clients that disconnect in the middle of a stream.
fn disconnects(load: &Load, server: SocketAddr) {
    for i in 0..100 {
        let mut client = Client::connect(server);
        let body = load.body(i % load.questions.len(), true);
        client.send("POST", "/v1/completions", &body.to_string());
        client.read_some();
    }
    let start = Instant::now();
    while metric(server, "num_rows_running") + metric(server, "num_rows_waiting") > 0.0 {
        assert!(start.elapsed() < Duration::from_secs(60), "rows were left behind");
        std::thread::sleep(Duration::from_millis(5));
    }
    let usage = metric(server, "kv_cache_usage_perc");
    println!("disconnects: 100 in mid-stream; KV cache in use: {usage}");
    assert_eq!(usage, 0.0);
}

/// Draining in the middle of the work: accepted requests are answered.
fn drain(load: &Load, server: Running, expected: &[Output]) -> usize {
    let address = server.address;
    let mut clients: Vec<(usize, Client)> = Vec::new();
    for question in 0..load.questions.len().min(100) {
        let mut client = Client::connect(address);
        client.send("POST", "/v1/completions", &load.body(question, false).to_string());
        clients.push((question, client));
    }
    let accepted = || {
        let names = ["num_requests_running", "num_requests_waiting"];
        names.map(|name| metric(address, name)).iter().sum::<f64>()
            + metric(address, "e2e_request_latency_seconds_count")
    };
    let (start, before) = (Instant::now(), metric(address, "e2e_request_latency_seconds_count"));
    while accepted() - before < clients.len() as f64 {
        assert!(start.elapsed() < Duration::from_secs(60), "requests were not accepted");
    }
    let (start, thread) = (Instant::now(), server.stop());
    let asked: Vec<QuestionResult> = clients
        .into_iter()
        .filter_map(|(question, mut client)| {
            let answered = client.read()?;
            Some(QuestionResult { question, answered, seconds: start.elapsed().as_secs_f64() })
        })
        .collect();
    thread.join().unwrap();
    let answered = asked.iter().filter(|asked| asked.answered.status == 200).count();
    let sent = load.questions.len().min(100);
    let seconds = start.elapsed().as_secs_f64();
    println!("drain: {answered} of {sent} accepted requests answered, in {seconds:.2} s");
    assert_eq!(answered, sent, "accepted requests were lost");
    load.count_wrong(&asked, expected)
}

/// The cost of some work.
#[derive(Clone, Copy)]
struct WorkTime {
    seconds: f64,
    /// CPU time of this process including clients, which is independent of other processes on the
    /// machine. 0 if the system does not report it.
    cpu: f64,
}

impl WorkTime {
    fn measure<T>(work: impl FnOnce() -> T) -> (Self, T) {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let done = work();
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        (Self { seconds, cpu }, done)
    }

    /// The throughput relative to another one.
    fn beside(self, other: Self) -> String {
        let [time, cpu] = [other.seconds / self.seconds, other.cpu / self.cpu];
        format!("{:.0}% of the engine by time, {:.0}% by processor time", 100.0 * time, 100.0 * cpu)
    }
}

impl fmt::Display for WorkTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} s, {:.2} s of processor time", self.seconds, self.cpu)
    }
}

/// CPU time of this process in user and system mode.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may contain spaces; times are in hundredths of a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    fields.take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

struct Load {
    engine: Engine,
    questions: Vec<Question>,
    samples: usize,
}

/// A question that was sent.
struct QuestionResult {
    question: usize,
    answered: Answered,
    seconds: f64,
}

impl Load {
    fn new(args: &ProofArgs) -> Self {
        let engine = Model::load(MODEL).unwrap().engine().unwrap();
        let count = args.questions;
        let data = DataSource::parse("embedded:valid").unwrap();
        let questions = data.read(count.try_into().ok(), count).unwrap();
        Self { engine, questions, samples: args.samples }
    }

    fn requests(&self) -> Vec<Request> {
        let samples = u32::try_from(self.samples).unwrap();
        let options = SamplingOptions::new(samples.try_into().unwrap());
        let params = options.resolve(&self.engine.reasoner().method).unwrap();
        let request = |question: &Question| Request::new(question.text.trim(), params);
        self.questions.iter().map(request).collect()
    }

    /// Submits all questions at once.
    fn run_scheduler(&self) {
        let scheduler = Scheduler::start(self.engine.clone(), self.questions.len() * self.samples);
        let (sender, receiver) = channel();
        for request in self.requests() {
            let sender = sender.clone();
            let tell = move |event| {
                if let Event::Done(reply) = event {
                    sender.send(reply.unwrap()).unwrap();
                }
            };
            scheduler.submit(request, tell).unwrap();
        }
        drop(sender);
        assert_eq!(receiver.into_iter().count(), self.questions.len());
    }

    /// Runs all questions in one batch, like `eval`.
    fn run_engine(&self) -> Vec<Output> {
        let requests = self.requests();
        let mut replies = Vec::new();
        let take = |_, reply: Result<Output, EngineError>| -> Result<(), EngineError> {
            replies.push(reply?);
            Ok(())
        };
        self.engine.run(&requests, take).unwrap();
        replies
    }

    fn body(&self, question: usize, stream: bool) -> Value {
        json!({
            "prompt": self.questions[question].text,
            "latent": { "samples": self.samples, "seed": 0, "return": [] },
            "stream": stream,
        })
    }

    /// Sends all questions `times` times, with `clients` concurrent clients.
    fn ask_all(&self, address: SocketAddr, clients: usize, times: usize) -> Vec<QuestionResult> {
        let count = self.questions.len();
        let queue: Mutex<VecDeque<usize>> =
            Mutex::new((0..times * count).map(|i| i % count).collect());
        let asked = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    let mut client = Client::connect(address);
                    loop {
                        let Some(question) = queue.lock().unwrap().pop_front() else { return };
                        let start = Instant::now();
                        let answered = client.ask(&self.body(question, false)).unwrap();
                        let seconds = start.elapsed().as_secs_f64();
                        asked.lock().unwrap().push(QuestionResult { question, answered, seconds });
                    }
                });
            }
        });
        asked.into_inner().unwrap()
    }

    fn count_wrong(&self, asked: &[QuestionResult], expected: &[Output]) -> usize {
        let is_wrong = |asked: &&QuestionResult| {
            let reply = &expected[asked.question];
            let text = &reply.trajectories[reply.chosen.unwrap_or(0)].text;
            asked.answered.status == 200 && asked.answered.text() != *text
        };
        asked.iter().filter(is_wrong).count()
    }
}

/// Resident memory of this process including clients; 0 if the system does not report it.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kib.map_or(0, |kib: u64| kib / 1024)
}
