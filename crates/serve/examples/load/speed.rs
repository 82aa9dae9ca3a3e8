//! Measures the time of a single question, and the trajectories per second for many clients.

use std::net::SocketAddr;
use std::time::Instant;

use clap::Args;
use latent_tts::{
    DeviceKind, DeviceOptions, DropoutScope, Engine, LatentLength, MaskLifetime, ModelSelection,
    Perturbation, Probability, Request, RewardModelChoice, SamplingParams, default_memory,
};
use latent_tts_serve::ServeOptions;
use serde_json::{Value, json};

use crate::ServerArgs;
use crate::client::Client;
use crate::running::Running;

/// Words with one token each in GPT-2's vocabulary, including the preceding space.
const WORDS: [&str; 16] = [
    " the", " box", " three", " pens", " gives", " away", " five", " many", " each", " more",
    " has", " four", " books", " school", " week", " days",
];

#[derive(Args)]
pub struct LatencyArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Number of trajectories of the question
    #[arg(long, default_value_t = 32)]
    samples: usize,
    /// Number of repetitions
    #[arg(long, default_value_t = 50)]
    repeat: usize,
}

#[derive(Args)]
pub struct ClientsArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Number of trajectories per question
    #[arg(long, default_value_t = 64)]
    samples: usize,
    /// Number of concurrent clients, each with its own connection
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Number of questions per client in one measurement
    #[arg(long, default_value_t = 20)]
    requests: usize,
    /// Number of measurements
    #[arg(long, default_value_t = 3)]
    repeat: usize,
}

impl ServerArgs {
    /// Words in an order that is unique to the number.
    fn question(&self, number: usize) -> String {
        let mut state = number as u64;
        let mut word = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            WORDS[(state >> 33) as usize % WORDS.len()]
        };
        let text: String = (0..self.words).map(|_| word()).collect();
        text.trim_start().to_owned()
    }

    fn body(&self, number: usize, samples: usize) -> Value {
        json!({
            "prompt": self.question(number),
            "max_tokens": self.answer,
            "latent": {
                "samples": samples, "thoughts": self.thoughts, "sampler": "dropout", "p": self.p,
                "seed": 0, "return": [],
            },
        })
    }

    /// The engine of a server started in this process.
    fn engine(&self) -> Engine {
        let kind = if self.cuda { DeviceKind::Cuda(0) } else { DeviceKind::Cpu };
        let device = DeviceOptions { kind, ..DeviceOptions::default() }.open().unwrap();
        let selection = ModelSelection::new(&self.model, RewardModelChoice::None).unwrap();
        let model = selection.load(&device).unwrap();
        let memory = default_memory(&device).unwrap();
        model.engine().unwrap().without_reward_model().with_memory(memory)
    }

    fn start(&self, engine: &Engine) -> Running {
        // The queue fits all clients of every measurement.
        let options = ServeOptions { max_waiting_sequences: 1 << 20, ..ServeOptions::default() };
        Running::start(engine, &self.model, options)
    }

    /// The server that runs elsewhere.
    fn remote(&self) -> Option<SocketAddr> {
        let url = self.url.as_ref()?;
        Some(url.trim_start_matches("http://").trim_end_matches('/').parse().unwrap())
    }

    /// The request parameters that the server derives from [`Self::body`].
    fn request(&self, engine: &Engine, number: usize, samples: usize) -> Request {
        let sites = engine.reasoner().method.sites;
        let p = Probability::new(self.p).unwrap();
        let (scope, mask) = (DropoutScope::Thoughts, MaskLifetime::Step);
        let params = SamplingParams {
            samples: samples.try_into().unwrap(),
            perturbation: Perturbation::Dropout { p, sites, scope, mask },
            length: LatentLength::Exactly(self.thoughts.try_into().unwrap()),
            max_new_tokens: self.answer.try_into().unwrap(),
            greedy: false,
            ..engine.default_params()
        };
        Request::new(self.question(number), params)
    }
}

/// The engine and the server alternate, so that both run under the same conditions.
pub fn latency(args: &LatencyArgs) {
    let LatencyArgs { server, samples, repeat } = args;
    let engine = server.url.is_none().then(|| server.engine());
    let own = engine.as_ref().map(|engine| server.start(engine));
    let address = server.remote().or(own.as_ref().map(|own| own.address));
    let mut client = Client::connect(address.unwrap());
    let (mut alone, mut served) = (Vec::new(), Vec::new());
    // The first of each is a warm-up.
    for number in 0..=*repeat {
        if let Some(engine) = &engine {
            let request = server.request(engine, number, *samples);
            let start = Instant::now();
            engine.solve(&request).unwrap();
            alone.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let body = server.body(number, *samples);
        let start = Instant::now();
        let answered = client.ask(&body).unwrap();
        served.push(start.elapsed().as_secs_f64() * 1e3);
        assert_eq!(answered.status, 200, "{}", answered.body);
        if number == 0 {
            let json: Value = serde_json::from_str(&answered.body).unwrap();
            println!("usage of one question: {}", json["usage"]);
        }
    }
    let [engine, server] = [&mut alone, &mut served].map(Times::of);
    println!("one question x {samples}, {repeat} times, in ms");
    println!("server, end to end:  best {:.3}, median {:.3}", server.best, server.median);
    if args.server.url.is_none() {
        println!("Engine::solve:       best {:.3}, median {:.3}", engine.best, engine.median);
        let above = [server.best - engine.best, server.median - engine.median];
        println!("the server is above: best {:.3}, median {:.3}", above[0], above[1]);
    }
}

/// Statistics of several times, in milliseconds.
#[derive(Default)]
struct Times {
    best: f64,
    median: f64,
}

impl Times {
    fn of(times: &mut Vec<f64>) -> Self {
        if times.len() < 2 {
            return Self::default();
        }
        times.remove(0);
        times.sort_by(f64::total_cmp);
        Self { best: times[0], median: times[times.len() / 2] }
    }
}

pub fn clients(args: &ClientsArgs) {
    let ClientsArgs { server, samples, clients, requests, repeat } = args;
    let own = server.url.is_none().then(|| server.start(&server.engine()));
    let address = server.remote().or(own.as_ref().map(|own| own.address)).unwrap();
    let trajectories = clients * requests * samples;
    println!("{clients} clients x {requests} questions x {samples} trajectories");
    let mut latencies = Vec::new();
    // The first is a warm-up.
    for round in 0..=*repeat {
        let start = Instant::now();
        let times: Vec<f64> = std::thread::scope(|scope| {
            let client = |c: usize| {
                move || {
                    let mut client = Client::connect(address);
                    let ask = |r: usize| {
                        let start = Instant::now();
                        let answered = client.ask(&server.body(c * requests + r, *samples));
                        let answered = answered.unwrap();
                        assert_eq!(answered.status, 200, "{}", answered.body);
                        start.elapsed().as_secs_f64() * 1e3
                    };
                    (0..*requests).map(ask).collect::<Vec<f64>>()
                }
            };
            let threads: Vec<_> = (0..*clients).map(|c| scope.spawn(client(c))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let seconds = start.elapsed().as_secs_f64();
        if round == 0 {
            continue;
        }
        latencies.extend(times);
        println!("{:.1} trajectories/s ({seconds:.3} s)", trajectories as f64 / seconds);
    }
    latencies.sort_by(f64::total_cmp);
    let percentile = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    let [middle, most] = [0.5, 0.99].map(percentile);
    println!("a question took {middle:.1} ms in the median, {most:.1} ms at the 99th percentile");
}
