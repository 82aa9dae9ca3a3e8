//! The server under load, over loopback.
//!
//! ```text
//! cargo run --release -p latent-tts-serve --example load -- proof
//! cargo run --release -p serve --features cuda --example load -- latency --model DIR --cuda
//! load latency --url http://127.0.0.1:8000        # against a server that runs elsewhere
//! load clients --url http://127.0.0.1:8000 --clients 64 --samples 64
//! ```
//!
//! `proof` starts a server on the embedded models in this process and compares every answer with
//! the engine's own; it ends with exit code 1 where one differs or a request is lost. `latency` and
//! `clients` measure any model: how long one question takes, and how many trajectories a second
//! many clients get. Their questions are synthetic and have as many tokens as `bench`'s.

#![expect(clippy::unwrap_used, reason = "what fails to run fails the measurement")]

mod client;
mod proof;
mod running;
mod speed;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// The server under load
#[derive(Parser)]
struct LoadCli {
    #[command(subcommand)]
    command: LoadCommand,
}

#[derive(Subcommand)]
enum LoadCommand {
    /// Throughput beside the engine's, overload, disconnects and a drain, on the embedded models
    Proof(proof::ProofArgs),
    /// One question at a time: the engine's own time and the server's, interleaved
    Latency(speed::LatencyArgs),
    /// Many clients at once: trajectories a second
    Clients(speed::ClientsArgs),
}

/// Which server, and what it is asked.
#[derive(Args, Clone)]
struct ServerArgs {
    /// A server that runs already; without, one is started in this process
    #[arg(long)]
    url: Option<String>,
    /// The model of a server that is started here
    #[arg(long, default_value = "embedded")]
    model: String,
    /// On the first GPU, and not on the processor
    #[arg(long)]
    cuda: bool,
    /// Words of a question; its prompt has two or three tokens more
    #[arg(long, default_value_t = 70)]
    words: usize,
    /// Thoughts of a trajectory
    #[arg(long, default_value_t = 6)]
    thoughts: usize,
    /// Answer tokens of a trajectory
    #[arg(long, default_value_t = 6)]
    answer: usize,
    /// The share of dropout
    #[arg(long, default_value_t = 0.2)]
    p: f32,
}

fn main() -> ExitCode {
    match LoadCli::parse().command {
        LoadCommand::Proof(args) => return proof::run(&args),
        LoadCommand::Latency(args) => speed::latency(&args),
        LoadCommand::Clients(args) => speed::clients(&args),
    }
    ExitCode::SUCCESS
}
