//! An OpenAI-compatible HTTP server for latent reasoners, with a thinking budget.
//!
//! ```text
//! HTTP body -> fields -> generation, prompts -> Scheduler -> reply -> response | stream
//! ```
//!
//! `server` has the connections and the drain, `layers` what is around every request, `routes` the
//! paths, `generation`, `inspection` and `prompts` what the fields mean, `work` the way to the
//! engine and back. `web_ui` is the page at `/`, `runs` the recorded runs that it opens.
//! docs/serving.md describes every field, limit, metric and error.

mod chat_template;
mod error;
mod fields;
mod generation;
mod inspection;
mod layers;
pub mod metering;
mod metrics;
mod prompts;
mod reply;
mod response;
mod routes;
mod runs;
mod server;
mod state;
mod stream;
#[cfg(feature = "testkit")]
pub mod testkit;
mod web_ui;
mod work;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use model::ModelError;

pub use chat_template::JinjaTemplate;
pub use prompts::ChatTemplate;
pub use server::{Server, run};

/// How a server behaves; see docs/serving.md.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where it listens; port 0 is any that is free.
    pub address: SocketAddr,
    /// The model's name in requests and replies.
    pub model_name: String,
    /// The key that requests must carry.
    pub api_key: Option<String>,
    /// Host names that requests may be addressed to, beside the loopback ones. Empty: any host
    /// where the server has an API key or listens beyond the loopback interface, else loopback
    /// hosts only.
    pub allowed_hosts: Vec<String>,
    /// Trajectories of all waiting requests at most.
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
    /// A run directory, or a folder with such in it, to be looked at.
    pub runs: Option<PathBuf>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            model_name: latent_tts::EMBEDDED.to_owned(),
            api_key: None,
            allowed_hosts: Vec::new(),
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
    /// The system gives no threads or signals.
    #[error("cannot start the server's threads: {0}")]
    Runtime(std::io::Error),
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
