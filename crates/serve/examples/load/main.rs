//! Load tests of the server on the loopback interface.
//!
//! ```text
//! cargo run --release -p latent-tts-serve --example load -- proof
//! cargo run --release -p serve --features cuda --example load -- latency --model DIR --cuda
//! load latency --url http://127.0.0.1:8000        # against a server that runs elsewhere
//! load clients --url http://127.0.0.1:8000 --clients 64 --samples 64
//! ```
//!
//! `proof` starts a server with the embedded models in this process and compares every answer with
//! that of the engine; it exits with status 1 if an answer differs or a request is lost. `latency`
//! and `clients` measure any model: the time of a single question, and the number of trajectories
//! per second for many clients. Their questions are synthetic, with as many tokens as those of
//! `bench`.

#![expect(clippy::unwrap_used, reason = "what fails to run fails the measurement")]

mod client;
mod proof;
mod running;
mod speed;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Load tests of the server
#[derive(Parser)]
struct LoadCli {
    #[command(subcommand)]
    command: LoadCommand,
}

#[derive(Subcommand)]
enum LoadCommand {
    /// Compare throughput with the engine, and test overload, disconnects and draining, on the
    /// embedded models
    Proof(proof::ProofArgs),
    /// Measure one question at a time on the engine and the server, interleaved
    Latency(speed::LatencyArgs),
    /// Measure trajectories per second for many concurrent clients
    Clients(speed::ClientsArgs),
}

/// The server to test, and the requests to send.
#[derive(Args, Clone)]
struct ServerArgs {
    /// The URL of a running server; by default one is started in this process
    #[arg(long)]
    url: Option<String>,
    /// The model of a server started in this process
    #[arg(long, default_value = "embedded")]
    model: String,
    /// Use the first GPU instead of the CPU
    #[arg(long)]
    cuda: bool,
    /// Number of words per question; its prompt has two or three more tokens
    #[arg(long, default_value_t = 70)]
    words: usize,
    /// Number of thoughts per trajectory
    #[arg(long, default_value_t = 6)]
    thoughts: usize,
    /// Number of answer tokens per trajectory
    #[arg(long, default_value_t = 6)]
    answer: usize,
    /// The dropout probability
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
