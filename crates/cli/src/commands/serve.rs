//! `latent-tts serve`: an OpenAI-compatible server.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use latent_tts::tensor::Precision;
use latent_tts::{Device, EMBEDDED, Engine, ModelSelection, RewardModelChoice};
use model::Config;
use serde_json::json;
use serve::{ChatTemplate, LoadedModel, ModelSource, ServeOptions, SharedScorer, UpstreamOptions};
use tracing_subscriber::EnvFilter;

use crate::args::{HttpArgs, LimitArgs, LogFormat, ServeArgs, UpstreamArgs};
use crate::load::{load_models, select_models};
use crate::printer::Printer;
use crate::scorer;

/// Maximum timeout in seconds (a week); a longer one is most likely in the wrong unit.
const MAX_SECONDS: f64 = 7.0 * 86_400.0;

/// Runs `serve`.
pub fn run(args: &ServeArgs, printer: &Printer) -> Result<ExitCode> {
    let options = options(args)?;
    let models = served_models(args, &options.model_name, printer)?;
    start_log(&args.http, args.output.quiet);
    serve::run(models, options, |address| {
        let url = format!("http://{address}");
        // A closed standard output is ignored; clients do not need it.
        let _ = printer.result(&json!({ "url": url }), || format!("listening at {url}"));
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The model of `--model`, loaded, and the models of `--add-model`, loaded on first use.
fn served_models(args: &ServeArgs, name: &str, printer: &Printer) -> Result<Vec<ModelSource>> {
    if args.upstream.upstream.is_some() {
        if args.model.model.is_some() || !args.http.add_model.is_empty() {
            bail!("a gateway loads no model; omit --upstream, or --model and --add-model");
        }
        return Ok(Vec::new());
    }
    let device = args.machine.device.open(printer)?;
    let selection = select_models(&args.model)?;
    let first = load_models(&selection, &device, printer)?;
    let memory = args.machine.kv_cache_bytes(&device)?;
    let first = first.engine()?.with_memory(memory);
    let mut models = vec![
        ModelLoader { selection, device: device.clone(), memory }
            .into_source(name.to_owned(), Some(first)),
    ];
    for given in &args.http.add_model {
        let (name, selection) = further_model(given)?;
        let loader = ModelLoader { selection, device: device.clone(), memory };
        models.push(loader.into_source(name, None));
    }
    Ok(models)
}

/// Parses a value of `--add-model` into the name and the files of a model.
fn further_model(given: &str) -> Result<(String, ModelSelection)> {
    let Some((name, paths)) = given.split_once('=') else {
        bail!("--add-model {given}: expected NAME=DIR or NAME=DIR,REWARD_DIR");
    };
    let (reasoner, reward_model) = match paths.split_once(',') {
        Some((reasoner, reward_model)) => (reasoner, RewardModelChoice::Named(reward_model)),
        None => (paths, RewardModelChoice::Default),
    };
    if name.is_empty() || reasoner.is_empty() {
        bail!("--add-model {given}: the name and the directory must not be empty");
    }
    let selection = ModelSelection::new(reasoner, reward_model)
        .with_context(|| format!("--add-model {given}"))?;
    Ok((name.to_owned(), selection))
}

/// The files of a model and the device to load it on.
struct ModelLoader {
    selection: ModelSelection,
    device: Device,
    /// Size of the key-value cache in bytes.
    memory: usize,
}

impl ModelLoader {
    /// A model source. The first load returns `first`, an engine that is already in memory, if
    /// given.
    fn into_source(self, name: String, first: Option<Engine>) -> ModelSource {
        let bytes = self.bytes();
        let first = Mutex::new(first);
        let load = move || {
            let loaded = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let engine = match loaded {
                Some(engine) => engine,
                None => self.selection.load(&self.device)?.engine()?.with_memory(self.memory),
            };
            Ok(LoadedModel { engine, files: self.selection.reasoner.clone() })
        };
        ModelSource { name, bytes, load: Box::new(load) }
    }

    /// Memory of the weights and the key-value cache in bytes. If the configuration cannot be read,
    /// only the cache is counted; loading the model then fails with the reason.
    fn bytes(&self) -> u64 {
        let element = match self.device.precision() {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
            Precision::Int8 | Precision::Fp8 => 1,
        };
        let files = std::iter::once(&self.selection.reasoner).chain(&self.selection.reward_model);
        let configs = files.filter_map(|files| Config::read(files.clone()).ok());
        let parameters: u64 = configs.map(|config| config.parameters()).sum();
        parameters * element + self.memory as u64
    }
}

fn options(args: &ServeArgs) -> Result<ServeOptions> {
    let ServeArgs { http, limits, .. } = args;
    let LimitArgs { max_queue, max_samples, max_connections, max_body, .. } = *limits;
    let model = args.model.model.as_deref().unwrap_or(EMBEDDED);
    if http.api_key.as_deref().is_some_and(str::is_empty) {
        bail!("--api-key is empty; pass a key or omit the flag");
    }
    if http.api_key.as_deref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        bail!(
            "--api-key contains whitespace or non-ASCII characters, which requests cannot send; \
             use letters, digits and ASCII punctuation"
        );
    }
    Ok(ServeOptions {
        address: SocketAddr::new(http.host, http.port),
        model_name: http.model_name.clone().unwrap_or_else(|| model.to_owned()),
        api_key: http.api_key.clone(),
        api_keys_file: http.api_keys_file.clone(),
        open_metrics: http.open_metrics,
        allowed_origins: http.allowed_origins.clone(),
        allowed_hosts: http.allowed_hosts.clone(),
        model_memory: http.model_memory.map(|bytes| bytes as u64),
        max_waiting_sequences: max_queue.get(),
        max_samples: max_samples.get().min(max_queue.get()),
        max_connections: max_connections.get(),
        max_body_bytes: max_body,
        max_memory: limits.max_memory,
        request_timeout: seconds("--request-timeout", limits.request_timeout)?,
        io_timeout: seconds("--io-timeout", limits.io_timeout)?,
        shutdown_timeout: seconds("--shutdown-timeout", limits.shutdown_timeout)?,
        chat_template: chat_template(http.chat_template.as_deref())?,
        log_prompts: http.log_prompts,
        otlp_endpoint: http.otlp_endpoint.clone(),
        scorer: scorer::open(&args.scorer)?.map(SharedScorer),
        upstream: upstream(&args.upstream)?,
        runs: http.runs.clone(),
    })
}

fn upstream(args: &UpstreamArgs) -> Result<Option<UpstreamOptions>> {
    let Some(url) = args.upstream.clone() else { return Ok(None) };
    Ok(Some(UpstreamOptions {
        url,
        api_key: args.upstream_api_key.clone(),
        model: args.upstream_model.clone(),
        concurrency: args.upstream_concurrency.get(),
        timeout: seconds("--upstream-timeout", args.upstream_timeout)?,
    }))
}

fn seconds(flag: &str, seconds: f64) -> Result<Duration> {
    if seconds > MAX_SECONDS {
        bail!("{flag} is {seconds} seconds; the maximum is {MAX_SECONDS}");
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn chat_template(given: Option<&Path>) -> Result<ChatTemplate> {
    match given.and_then(Path::to_str) {
        None | Some("auto") => Ok(ChatTemplate::Auto),
        Some("family") => Ok(ChatTemplate::Family),
        Some(file) => {
            let text = record::files::read_regular(Path::new(file));
            let text = text.with_context(|| format!("cannot read chat template {file}"))?;
            let text = String::from_utf8(text)
                .with_context(|| format!("chat template {file} is not valid UTF-8"))?;
            Ok(ChatTemplate::Jinja(text))
        }
    }
}

/// Starts logging to standard error, filtered by `RUST_LOG`.
fn start_log(args: &HttpArgs, quiet: bool) {
    let default = if quiet { "error" } else { "info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|error| {
        if std::env::var_os(EnvFilter::DEFAULT_ENV).is_some() {
            crate::printer::stderr_line(&format!(
                "note: ignoring {}: {error}",
                EnvFilter::DEFAULT_ENV
            ));
        }
        EnvFilter::new(default)
    });
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second server in the same process keeps the log of the first one.
    let _ = match args.log_format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}
