//! Flags of `serve`.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{MachineArgs, ModelArgs, OutputArgs, ScorerArgs, values};

/// Arguments of `latent-tts serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub machine: MachineArgs,

    #[command(flatten)]
    pub http: HttpArgs,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub scorer: ScorerArgs,

    #[command(flatten)]
    pub upstream: UpstreamArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// The address and behavior of the server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct HttpArgs {
    /// The address to listen on; 0.0.0.0 listens on all interfaces
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// The port to listen on; 0 selects a free port
    #[arg(long, value_name = "PORT", default_value = "8000")]
    pub port: u16,

    /// The model name in requests and responses [default: the value of --model]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,

    /// An additional model, loaded by the first request that names it: NAME=DIR, or
    /// NAME=DIR,REWARD_DIR with a reward model; directories, GGUF files or ids as for --model;
    /// repeatable
    #[arg(long, value_name = "NAME=DIR[,REWARD_DIR]")]
    pub add_model: Vec<String>,

    /// Memory limit for all models together (weights, keys and values); the least recently used
    /// idle models are unloaded first [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub model_memory: Option<usize>,

    /// Require this key in requests; prefer LATENT_TTS_API_KEY, because every user of the machine
    /// can read command lines [default: no key required]
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,

    /// A file of API keys, one per line, one of which a request must send; SIGHUP reloads it
    /// [default: none]
    #[arg(long, value_name = "FILE")]
    pub api_keys_file: Option<PathBuf>,

    /// Serve /metrics without a key even if other paths require one
    #[arg(long)]
    pub open_metrics: bool,

    /// Origins whose web pages may call the server, such as https://example.com; * allows all
    /// [default: none]
    #[arg(long, value_name = "ORIGIN,...", value_delimiter = ',')]
    pub allowed_origins: Vec<String>,

    /// Additional host names that requests may be addressed to, e.g. behind a reverse proxy
    /// [default: loopback names on a loopback address without an API key, otherwise any]
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    pub allowed_hosts: Vec<String>,

    /// The chat template: auto, family (the prompt format that the model's family was trained with)
    /// or a Jinja file [default: auto, which is the tokenizer's template for a cot model and family
    /// for others]
    #[arg(long, value_name = "TEMPLATE")]
    pub chat_template: Option<PathBuf>,

    /// A run directory or a directory of runs, listed on the page at /, which opens each as its
    /// report [default: none]
    #[arg(long, value_name = "DIR")]
    pub runs: Option<PathBuf>,

    /// Send traces of requests to this OpenTelemetry collector as OTLP over HTTP with JSON
    /// encoding; its base URL, such as http://127.0.0.1:4318 [default: none]
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// The format of log lines
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,

    /// Also log the text of questions
    #[arg(long)]
    pub log_prompts: bool,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

/// Limits above which the server rejects requests.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Maximum number of trajectories of all queued requests; further requests are rejected with
    /// status 429
    #[arg(long, value_name = "COUNT", default_value = "4096")]
    pub max_queue: NonZeroUsize,

    /// Maximum number of trajectories per prompt
    #[arg(long, value_name = "COUNT", default_value = "512")]
    pub max_samples: NonZeroUsize,

    /// Maximum number of open connections
    #[arg(long, value_name = "COUNT", default_value = "1024")]
    pub max_connections: NonZeroUsize,

    /// Maximum size of a request body
    #[arg(long, value_name = "SIZE", value_parser = values::size, default_value = "1MiB")]
    pub max_body: usize,

    /// Memory limit of the process, e.g. 4GiB: models, the entire key-value cache (--memory) and
    /// requests; requests beyond it are rejected with status 503 [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub max_memory: Option<usize>,

    /// Time limit of a request, in seconds
    #[arg(long, value_name = "S", value_parser = values::above_zero, default_value = "300")]
    pub request_timeout: f64,

    /// Time limit, in seconds, for a client to send a request or to read a part of its response
    #[arg(long, value_name = "S", value_parser = values::above_zero, default_value = "30")]
    pub io_timeout: f64,

    /// Time, in seconds, that running requests have to finish after SIGTERM or Ctrl-C
    #[arg(long, value_name = "S", value_parser = values::above_zero, default_value = "30")]
    pub shutdown_timeout: f64,
}

/// The upstream server of a gateway.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Gateway")]
pub struct UpstreamArgs {
    /// Run as a gateway: load no model, and vote over completions of this OpenAI-compatible server;
    /// the base URL of its API, such as https://api.example.com/v1
    #[arg(long, value_name = "URL")]
    pub upstream: Option<String>,

    /// The API key sent to the upstream; prefer LATENT_TTS_UPSTREAM_API_KEY
    #[arg(long, value_name = "KEY", requires = "upstream")]
    pub upstream_api_key: Option<String>,

    /// The upstream model for requests that name none
    #[arg(long, value_name = "NAME", requires = "upstream")]
    pub upstream_model: Option<String>,

    /// Maximum number of concurrent calls to the upstream
    #[arg(long, value_name = "COUNT", default_value = "32")]
    pub upstream_concurrency: NonZeroUsize,

    /// Time limit of one call to the upstream, in seconds
    #[arg(long, value_name = "S", value_parser = values::above_zero, default_value = "120")]
    pub upstream_timeout: f64,
}
