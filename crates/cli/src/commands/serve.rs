//! `latent-tts serve`: an OpenAI-compatible server.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use latent_tts::EMBEDDED;
use serde_json::json;
use serve::{ChatTemplate, ServeOptions};
use tracing_subscriber::EnvFilter;

use crate::args::{HttpArgs, LimitArgs, LogFormat, ServeArgs};
use crate::load::{load_models, select_models};
use crate::printer::Printer;

/// Longer times are most likely another unit; a week is no deadline.
const MAX_SECONDS: f64 = 7.0 * 86_400.0;

/// Runs `serve`.
pub fn run(args: &ServeArgs, printer: &Printer) -> Result<ExitCode> {
    let models = select_models(&args.model)?;
    let options = options(args)?;
    let device = args.machine.device.open(printer)?;
    let model = load_models(&models, &device, printer)?;
    let engine = args.machine.engine(&model)?;
    start_log(&args.http, args.output.quiet);
    serve::run(engine, &models.reasoner, options, |address| {
        let url = format!("http://{address}");
        // Nothing can be done about a closed standard output, and clients do not need it.
        let _ = printer.result(&json!({ "url": url }), || format!("listening at {url}"));
    })?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &ServeArgs) -> Result<ServeOptions> {
    let ServeArgs { http, limits, .. } = args;
    let LimitArgs { max_queue, max_samples, max_connections, max_body, .. } = *limits;
    let model = args.model.model.as_deref().unwrap_or(EMBEDDED);
    if http.api_key.as_deref().is_some_and(str::is_empty) {
        bail!("--api-key is empty; give a key, or leave it out");
    }
    if http.api_key.as_deref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        bail!(
            "--api-key has white space or characters that are not ASCII, which no request can send; \
             give a key of letters, digits and signs"
        );
    }
    Ok(ServeOptions {
        address: SocketAddr::new(http.host, http.port),
        model_name: http.model_name.clone().unwrap_or_else(|| model.to_owned()),
        api_key: http.api_key.clone(),
        allowed_hosts: http.allowed_hosts.clone(),
        max_waiting_rows: max_queue.get(),
        max_samples: max_samples.get().min(max_queue.get()),
        max_connections: max_connections.get(),
        max_body_bytes: max_body,
        max_memory: limits.max_memory,
        request_timeout: seconds("--request-timeout", limits.request_timeout)?,
        io_timeout: seconds("--io-timeout", limits.io_timeout)?,
        shutdown_timeout: seconds("--shutdown-timeout", limits.shutdown_timeout)?,
        chat_template: chat_template(http.chat_template.as_deref())?,
        log_prompts: http.log_prompts,
        runs: http.runs.clone(),
    })
}

fn seconds(flag: &str, seconds: f64) -> Result<Duration> {
    if seconds > MAX_SECONDS {
        bail!("{flag} is {seconds} seconds; give at most {MAX_SECONDS}");
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn chat_template(given: Option<&Path>) -> Result<ChatTemplate> {
    match given.and_then(Path::to_str) {
        None | Some("auto") => Ok(ChatTemplate::Auto),
        Some("family") => Ok(ChatTemplate::Family),
        Some(file) => {
            let text = record::files::read_regular(Path::new(file));
            let text = text.with_context(|| format!("cannot read the chat template {file}"))?;
            let text = String::from_utf8(text)
                .with_context(|| format!("the chat template {file} is not UTF-8"))?;
            Ok(ChatTemplate::Jinja(text))
        }
    }
}

/// Log lines go to standard error; `RUST_LOG` chooses them.
fn start_log(args: &HttpArgs, quiet: bool) {
    let default = if quiet { "error" } else { "info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|error| {
        if std::env::var_os(EnvFilter::DEFAULT_ENV).is_some() {
            crate::printer::stderr_line(&format!(
                "note: {} is not used: {error}",
                EnvFilter::DEFAULT_ENV
            ));
        }
        EnvFilter::new(default)
    });
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second server in one process keeps the first one's log.
    let _ = match args.log_format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}
