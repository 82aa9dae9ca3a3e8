//! An OpenAI-compatible HTTP server for latent reasoners, with a thinking budget.
//!
//! ```text
//! HTTP body -> fields -> generation, prompts -> Scheduler -> reply -> response | stream
//! ```
//!
//! `server` manages connections and draining, `layers`, `cors` and `auth` wrap every request,
//! `routes` defines the paths, `models` manages the models in memory, `generation`, `budget`,
//! `answer_format`, `inspection` and `prompts` parse fields, and `work` connects requests to the
//! engine. `responses` and `score` are variants of chats, `openapi` describes all of them.
//! `gateway` votes over completions of another server, whose client is `upstream`. `traces` sends
//! spans. `web_ui` is the page at `/`, `runs` the recorded runs that it opens.
//! docs/reference/http.md describes every field, limit, metric and error.

mod admin;
mod answer_format;
mod auth;
mod budget;
mod chat_template;
mod cors;
mod error;
mod fields;
mod gateway;
mod generation;
mod inspection;
mod layers;
pub mod metering;
mod metrics;
mod model_name;
mod models;
mod openapi;
mod progress;
mod prompts;
mod reply;
mod response;
mod responses;
mod routes;
mod runs;
mod score;
mod server;
mod state;
mod stream;
#[cfg(feature = "testkit")]
pub mod testkit;
mod text_stream;
mod traces;
mod upstream;
mod web_ui;
mod work;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use latent_tts::Scorer;
use model::ModelError;

pub use chat_template::JinjaTemplate;
pub use models::{LoadError, LoadedModel, ModelSource};
pub use openapi::openapi;
pub use prompts::ChatTemplate;
pub use server::{Server, run};
pub use upstream::UpstreamOptions;

/// A scorer that requests share.
#[derive(Clone)]
pub struct SharedScorer(pub Arc<dyn Scorer>);

impl fmt::Debug for SharedScorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedScorer").field(&self.0.name()).finish()
    }
}

/// Server options; see docs/reference/http.md.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The address to listen on; port 0 selects a free port.
    pub address: SocketAddr,
    /// The model name in requests and replies.
    pub model_name: String,
    /// The key that requests must send.
    pub api_key: Option<String>,
    /// A file of further keys, one per line.
    pub api_keys_file: Option<PathBuf>,
    /// Serve `/metrics` without a key.
    pub open_metrics: bool,
    /// Origins whose web pages may call the server; `*` allows every origin.
    pub allowed_origins: Vec<String>,
    /// Host names that requests may be addressed to, in addition to loopback names. If empty, any
    /// host is allowed if the server has an API key or listens beyond the loopback interface,
    /// otherwise only loopback names.
    pub allowed_hosts: Vec<String>,
    /// Maximum bytes of all models in memory; idle models are unloaded for others.
    pub model_memory: Option<u64>,
    /// Maximum number of trajectories of all queued requests, per model.
    pub max_waiting_sequences: usize,
    /// Maximum number of trajectories per prompt.
    pub max_samples: usize,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Maximum bytes of a request body.
    pub max_body_bytes: usize,
    /// Memory limit of the process in bytes: models, the entire key-value cache and requests.
    /// Requests beyond it are rejected with 503. Measured if the program's allocator calls
    /// [`metering::charge`]; `None` for no limit.
    pub max_memory: Option<usize>,
    /// The time limit of a request.
    pub request_timeout: Duration,
    /// The time limit for a client to send its head or body, or to read a part of the response.
    pub io_timeout: Duration,
    /// The time that running requests have to finish after a stop signal.
    pub shutdown_timeout: Duration,
    /// The template that converts chat messages to a prompt.
    pub chat_template: ChatTemplate,
    /// Whether to log the text of prompts.
    pub log_prompts: bool,
    /// The base URL of an OpenTelemetry collector for traces of requests.
    pub otlp_endpoint: Option<String>,
    /// Rewards of trajectories from outside, in place of a reward model's.
    pub scorer: Option<SharedScorer>,
    /// Run as a gateway that votes over completions of this server.
    pub upstream: Option<UpstreamOptions>,
    /// A run directory or a directory of runs, for viewing.
    pub runs: Option<PathBuf>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            model_name: latent_tts::EMBEDDED.to_owned(),
            api_key: None,
            api_keys_file: None,
            open_metrics: false,
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            model_memory: None,
            max_waiting_sequences: 4096,
            max_samples: 512,
            max_connections: 1024,
            max_body_bytes: 1 << 20,
            max_memory: None,
            request_timeout: Duration::from_secs(300),
            io_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(30),
            chat_template: ChatTemplate::Auto,
            log_prompts: false,
            otlp_endpoint: None,
            scorer: None,
            upstream: None,
            runs: None,
        }
    }
}

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {error}; choose another address or port")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The path for runs is not a directory.
    #[error("{}: not a directory; pass a run directory or a directory of runs", path.display())]
    Runs {
        /// The given path.
        path: PathBuf,
    },
    /// The file of API keys is invalid or cannot be read.
    #[error("cannot use the API keys file {}: {reason}", path.display())]
    ApiKeys {
        /// The path of the file.
        path: PathBuf,
        /// The problem with the file.
        reason: String,
    },
    /// The system cannot start threads or register signals.
    #[error("cannot start the server's threads: {0}")]
    Runtime(std::io::Error),
    /// The upstream is not an HTTP URL.
    #[error("`{url}` is not a server URL; it must start with http:// or https://")]
    Upstream {
        /// The given URL.
        url: String,
    },
    /// The collector is not an HTTP URL.
    #[error("`{url}` is not a collector URL; it must start with http:// or https://")]
    Collector {
        /// The given URL.
        url: String,
    },
    /// Two models have the same name.
    #[error("duplicate model name `{name}`; rename one of the models")]
    DuplicateModel {
        /// The duplicate name.
        name: String,
    },
    /// A model exceeds the memory limit of all models.
    #[error("model `{name}` needs {bytes} bytes, more than the limit of {limit}; raise the limit")]
    ModelMemory {
        /// The name of the model.
        name: String,
        /// Bytes that the model needs.
        bytes: u64,
        /// The limit for all models in bytes.
        limit: u64,
    },
    /// The first model cannot be loaded.
    #[error("cannot load model `{name}`: {error}")]
    Load {
        /// The name of the model.
        name: String,
        /// The cause.
        error: LoadError,
    },
    /// The model's files cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The memory limit leaves no room for requests.
    #[error(
        "the memory limit of {limit} bytes is below the {needed} that models, key-value cache and \
         a few requests need; raise it, or reduce the key-value cache"
    )]
    MemoryLimit {
        /// The limit in bytes.
        limit: usize,
        /// The required bytes.
        needed: usize,
    },
    /// The chat template is invalid.
    #[error("invalid chat template: {why}")]
    ChatTemplate {
        /// The problem with the template.
        why: String,
    },
}
