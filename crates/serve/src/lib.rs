//! An OpenAI-compatible HTTP server for latent reasoners, with a thinking budget.
//!
//! ```text
//! HTTP body -> fields -> generation, prompts -> Scheduler -> reply -> response | stream
//! ```
//!
//! `server` has the connections and the drain, `layers`, `cors` and `auth` what is around every
//! request, `routes` the paths, `models` the models in memory, `generation`, `budget`,
//! `answer_format`, `inspection` and `prompts` what the fields mean, `work` the way to the engine
//! and back. `responses` and `score` are chats in other shapes, `openapi` describes all of them.
//! `gateway` votes over completions of another server, whose client is `upstream`. `traces` sends
//! spans. `web_ui` is the page at `/`, `runs` the recorded runs that it opens.
//! docs/serving.md describes every field, limit, metric and error.

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

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use model::ModelError;

pub use chat_template::JinjaTemplate;
pub use models::{LoadError, LoadedModel, ModelSource};
pub use prompts::ChatTemplate;
pub use server::{Server, run};
pub use upstream::UpstreamOptions;

/// How a server behaves; see docs/serving.md.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where it listens; port 0 is any that is free.
    pub address: SocketAddr,
    /// The model's name in requests and replies.
    pub model_name: String,
    /// The key that requests must carry.
    pub api_key: Option<String>,
    /// A file of further keys, one a line.
    pub api_keys_file: Option<PathBuf>,
    /// Serve `/metrics` without a key, for a scraper that has none.
    pub open_metrics: bool,
    /// Origins whose web pages may call the server; `*` is every origin.
    pub allowed_origins: Vec<String>,
    /// Host names that requests may be addressed to, beside the loopback ones. Empty: any host
    /// where the server has an API key or listens beyond the loopback interface, else loopback
    /// hosts only.
    pub allowed_hosts: Vec<String>,
    /// Bytes of all models in memory at most; idle ones are unloaded for others.
    pub model_memory: Option<u64>,
    /// Trajectories of all waiting requests at most, of each model.
    pub max_waiting_rows: usize,
    /// Trajectories of one prompt at most.
    pub max_samples: usize,
    /// Connections at most.
    pub max_connections: usize,
    /// Bytes of a request's body at most.
    pub max_body_bytes: usize,
    /// Bytes of memory that the process may hold: models, the whole key-value cache and requests.
    /// Beyond, requests are refused with 503. Counted where the program's allocator calls
    /// [`metering::charge`]; `None` for no limit.
    pub max_memory: Option<usize>,
    /// The deadline of a request.
    pub request_timeout: Duration,
    /// How long a client may take to send its head or its body, or to read a part of the reply.
    pub io_timeout: Duration,
    /// How long running requests have after the signal to stop.
    pub shutdown_timeout: Duration,
    /// Which template makes a prompt of chat messages.
    pub chat_template: ChatTemplate,
    /// Log the texts of prompts.
    pub log_prompts: bool,
    /// The base URL of an OpenTelemetry collector that gets the traces of requests.
    pub otlp_endpoint: Option<String>,
    /// Votes over completions of this server instead of a model's trajectories.
    pub upstream: Option<UpstreamOptions>,
    /// A run directory, or a folder with such in it, to be looked at.
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
            max_waiting_rows: 4096,
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
            upstream: None,
            runs: None,
        }
    }
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {error}; choose another address or port")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// The folder of runs is none.
    #[error("{} is no directory; name a run directory, or a folder with such in it", path.display())]
    Runs {
        /// What was named.
        path: PathBuf,
    },
    /// The file of API keys cannot be used.
    #[error("cannot use the API keys file {}: {reason}", path.display())]
    ApiKeys {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system gives no threads or signals.
    #[error("cannot start the server's threads: {0}")]
    Runtime(std::io::Error),
    /// The upstream's address is not one of HTTP.
    #[error("`{url}` is not the URL of a server; it begins with http:// or https://")]
    Upstream {
        /// What was given.
        url: String,
    },
    /// The collector's address is not one of HTTP.
    #[error("`{url}` is not the URL of a collector; it begins with http:// or https://")]
    Collector {
        /// What was given.
        url: String,
    },
    /// Two models have one name.
    #[error("two models are called `{name}`; give one of them another name")]
    DuplicateModel {
        /// The name.
        name: String,
    },
    /// A model does not fit the memory of all models.
    #[error("the model `{name}` takes {bytes} bytes and all models may take {limit}; allow more")]
    ModelMemory {
        /// The model.
        name: String,
        /// What it takes.
        bytes: u64,
        /// What all models may take.
        limit: u64,
    },
    /// The first model could not be loaded.
    #[error("cannot load the model `{name}`: {error}")]
    Load {
        /// The model.
        name: String,
        /// Why.
        error: LoadError,
    },
    /// The model's files could not be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The memory limit leaves no room for requests.
    #[error(
        "the limit of {limit} bytes of memory is below the {needed} that models, key-value cache \
         and a few requests need; raise it, or make the key-value cache smaller"
    )]
    MemoryLimit {
        /// The limit.
        limit: usize,
        /// The least.
        needed: usize,
    },
    /// The chat template is no Jinja.
    #[error("the chat template cannot be used: {why}")]
    ChatTemplate {
        /// What is wrong with it.
        why: String,
    },
}
