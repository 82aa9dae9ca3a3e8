//! Flags of `serve`.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{MachineArgs, ModelArgs, OutputArgs, values};

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
    pub upstream: UpstreamArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Where and how the server listens.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct HttpArgs {
    /// The address to listen at; 0.0.0.0 is every one of this machine
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// The port to listen at; 0 is any that is free
    #[arg(long, value_name = "PORT", default_value = "8000")]
    pub port: u16,

    /// The model's name in requests and replies [default: what --model says]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,

    /// A further model, loaded by the first request that names it: NAME=DIR, or NAME=DIR,REWARD_DIR
    /// with a reward model; directories, GGUF files or ids as --model takes them; repeatable
    #[arg(long, value_name = "NAME=DIR[,REWARD_DIR]")]
    pub add_model: Vec<String>,

    /// Memory of all models together (weights, keys and values): idle ones are unloaded, the least
    /// recently used first [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub model_memory: Option<usize>,

    /// Refuse requests without this key; better set by LATENT_TTS_API_KEY than here, where every
    /// user of the machine can read it [default: none is needed]
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,

    /// A file of keys, one a line, of which a request must carry one; read again on SIGHUP [default:
    /// none]
    #[arg(long, value_name = "FILE")]
    pub api_keys_file: Option<PathBuf>,

    /// Serve /metrics without a key where the other paths need one
    #[arg(long)]
    pub open_metrics: bool,

    /// Origins whose web pages may call the server, such as https://example.com; * for all
    /// [default: none]
    #[arg(long, value_name = "ORIGIN,...", value_delimiter = ',')]
    pub allowed_origins: Vec<String>,

    /// Further host names that requests may be addressed to, behind a reverse proxy for instance
    /// [default: loopback names on a loopback address without an API key, else any]
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    pub allowed_hosts: Vec<String>,

    /// The chat template: auto, family (the prompt that the model's family was trained with) or a
    /// Jinja file [default: auto, the tokenizer's for a cot model, else family]
    #[arg(long, value_name = "TEMPLATE")]
    pub chat_template: Option<PathBuf>,

    /// A run directory, or a folder with such in it: the page at / lists them and opens each as its
    /// report [default: none]
    #[arg(long, value_name = "DIR")]
    pub runs: Option<PathBuf>,

    /// Send traces of requests to this OpenTelemetry collector, as OTLP over HTTP in JSON: its base
    /// URL, such as http://127.0.0.1:4318 [default: none]
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Lines of the log
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,

    /// Log the texts of questions, too
    #[arg(long)]
    pub log_prompts: bool,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// What a server refuses.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Trajectories of all waiting requests; beyond, requests are refused with 429
    #[arg(long, value_name = "COUNT", default_value = "4096")]
    pub max_queue: NonZeroUsize,

    /// Trajectories of one prompt
    #[arg(long, value_name = "COUNT", default_value = "512")]
    pub max_samples: NonZeroUsize,

    /// Open connections
    #[arg(long, value_name = "COUNT", default_value = "1024")]
    pub max_connections: NonZeroUsize,

    /// Size of a request's body
    #[arg(long, value_name = "SIZE", value_parser = values::size, default_value = "1MiB")]
    pub max_body: usize,

    /// Memory of the process, e.g. 4GiB: models, the whole key-value cache (--memory) and requests;
    /// beyond, requests are refused with 503 [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub max_memory: Option<usize>,

    /// Seconds that a request may take
    #[arg(long, value_name = "S", value_parser = values::above_zero, default_value = "300")]
    pub request_timeout: f64,

    /// Seconds that a client may take to send a request, or to read a part of its reply
    #[arg(long, value_name = "S", value_parser = values::above_zero, default_value = "30")]
    pub io_timeout: f64,

    /// Seconds that running requests have after SIGTERM or Ctrl-C
    #[arg(long, value_name = "S", value_parser = values::above_zero, default_value = "30")]
    pub shutdown_timeout: f64,
}

/// The server that a gateway asks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Gateway")]
pub struct UpstreamArgs {
    /// Load no model, and vote over completions of this OpenAI-compatible server: the base URL of
    /// its API, such as https://api.example.com/v1
    #[arg(long, value_name = "URL")]
    pub upstream: Option<String>,

    /// The key that requests to the upstream carry; better set by LATENT_TTS_UPSTREAM_API_KEY
    #[arg(long, value_name = "KEY", requires = "upstream")]
    pub upstream_api_key: Option<String>,

    /// The upstream's model for requests that name none
    #[arg(long, value_name = "NAME", requires = "upstream")]
    pub upstream_model: Option<String>,

    /// Calls of the upstream at a time
    #[arg(long, value_name = "COUNT", default_value = "32")]
    pub upstream_concurrency: NonZeroUsize,

    /// Seconds that one call of the upstream may take
    #[arg(long, value_name = "S", value_parser = values::above_zero, default_value = "120")]
    pub upstream_timeout: f64,
}
