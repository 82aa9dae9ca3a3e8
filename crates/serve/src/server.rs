//! Connections: accepted within limits, closed if they are slow, and drained on shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use latent_tts::Engine;
use model::ModelFiles;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

use crate::admin::ReloadSignal;
use crate::layers::MAX_HEAD_BYTES;
use crate::models::{LoadedModel, ModelPool, ModelSource};
use crate::routes;
use crate::runs::RunFolder;
use crate::state::AppState;
use crate::{ServeError, ServeOptions};

/// Maximum number of request headers.
const MAX_HEADERS: usize = 64;
/// Number of threads that a server needs: two for connections, two of the engine, and some that
/// read files.
const SPARE_THREADS: usize = 8;
/// The time that threads, including rendering ones, have to end after the connections are closed.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a drain checks for remaining requests; also the pause after a failed accept.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);

/// Serves until SIGTERM or SIGINT, then drains. Calls `listening` with the bound address.
///
/// # Errors
///
/// If the server cannot start.
pub fn run(
    models: Vec<ModelSource>,
    options: ServeOptions,
    listening: impl FnOnce(SocketAddr),
) -> Result<(), ServeError> {
    latent_tts::tensor::check_spare_threads(SPARE_THREADS)
        .map_err(|error| ServeError::Runtime(std::io::Error::other(error)))?;
    // The engine has its own threads; handlers only parse and write JSON.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?;
    let served = runtime.block_on(async {
        let shutdown = stop_signal()?;
        let server = Server::with_models(models, options).await?;
        listening(server.address()?);
        server.run(shutdown).await;
        Ok(())
    });
    // An upstream call, or a disk that does not respond, must not keep the process alive.
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    served
}

/// Resolves at the first SIGTERM or SIGINT after this call.
#[cfg(unix)]
fn stop_signal() -> Result<impl Future<Output = ()>, ServeError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Runtime)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Resolves at Ctrl-C.
#[cfg(not(unix))]
fn stop_signal() -> Result<impl Future<Output = ()>, ServeError> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}

/// A server with a bound listener.
pub struct Server {
    listener: TcpListener,
    state: Arc<AppState>,
    reload_signal: ReloadSignal,
}

impl Server {
    /// Binds the listener and starts the engine's thread. `files` are the reasoner's.
    pub async fn bind(
        engine: Engine,
        files: &ModelFiles,
        options: ServeOptions,
    ) -> Result<Self, ServeError> {
        let files = files.clone();
        let load = move || Ok(LoadedModel { engine: engine.clone(), files: files.clone() });
        let name = options.model_name.clone();
        let source = ModelSource { name, bytes: 0, load: Box::new(load) };
        Self::with_models(vec![source], options).await
    }

    /// Binds the listener and loads the first model. The others are loaded by the first request
    /// that names them.
    pub async fn with_models(
        models: Vec<ModelSource>,
        options: ServeOptions,
    ) -> Result<Self, ServeError> {
        let address = options.address;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|error| ServeError::Bind { address, error })?;
        let runs = options.runs.clone().map(RunFolder::open).transpose()?;
        let models = ModelPool::new(models, &options)?;
        let state = Arc::new(AppState::new(models, options, runs)?);
        if state.models.names().next().is_some() {
            state.models.load_first().await?;
        }
        warn_if_open(&state);
        state.check_memory_limit()?;
        Ok(Self { listener, state, reload_signal: ReloadSignal::listen() })
    }

    /// The bound address, including the selected port.
    pub fn address(&self) -> Result<SocketAddr, ServeError> {
        let address = self.state.options.address;
        self.listener.local_addr().map_err(|error| ServeError::Bind { address, error })
    }

    /// Serves until `shutdown` resolves, then drains: `/ready` returns 503, new requests are
    /// rejected, and accepted requests run to completion or until the shutdown timeout.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { listener, state, reload_signal } = self;
        let graceful = GracefulShutdown::new();
        let mut drained = std::pin::pin!(async {
            shutdown.await;
            drain(&state).await
        });
        let router = routes::router(Arc::clone(&state));
        let connections = Arc::new(Semaphore::new(state.options.max_connections));
        let reloads = tokio::spawn(reload_signal.reload(Arc::clone(&state)));
        let deadline = loop {
            // Further connections wait in the listener's backlog.
            let free = Arc::clone(&connections).acquire_owned();
            let accepted = async { (free.await, listener.accept().await) };
            let (free, stream) = tokio::select! {
                deadline = &mut drained => break deadline,
                (free, stream) = accepted => (free, stream),
            };
            let Ok((stream, _)) = stream else {
                // The connection was reset before it was accepted, or no file descriptor is
                // available.
                tokio::time::sleep(DRAIN_INTERVAL).await;
                continue;
            };
            let connection = graceful.watch(connection(&state, stream, router.clone()));
            tokio::spawn(async move {
                // A disconnecting client or a protocol error only ends its own connection.
                let _ = connection.await;
                drop(free);
            });
        };
        reloads.abort();
        drop(listener);
        let left = deadline.saturating_duration_since(Instant::now());
        let closed = tokio::time::timeout(left + DRAIN_INTERVAL, graceful.shutdown());
        if closed.await.is_err() {
            tracing::warn!("connections closed at the shutdown timeout");
        }
        if let Some(tracer) = state.tracer.clone() {
            // A panic was printed by the thread itself.
            let _ = tokio::task::spawn_blocking(move || tracer.close()).await;
        }
        tracing::info!("stopped");
    }
}

type Connection = http1::Connection<
    TokioIo<std::pin::Pin<Box<TimeoutStream<TcpStream>>>>,
    TowerToHyperService<axum::Router>,
>;

fn connection(state: &AppState, stream: TcpStream, router: axum::Router) -> Connection {
    // Small events of a stream must be sent without delay.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(state.options.io_timeout));
    let service = TowerToHyperService::new(router);
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(state.options.io_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(Box::pin(stream)), service)
}

/// Rejects new requests and waits for accepted ones. Returns the time at which connections are
/// closed.
async fn drain(state: &AppState) -> Instant {
    let deadline = Instant::now() + state.options.shutdown_timeout;
    state.draining.store(true, Ordering::Relaxed);
    tracing::info!(active = state.active(), "draining");
    while state.active() > 0 && Instant::now() < deadline {
        tokio::time::sleep(DRAIN_INTERVAL).await;
    }
    state.models.close();
    if state.active() > 0 {
        tracing::warn!(active = state.active(), "requests cancelled at the shutdown timeout");
        state.models.cancel_all();
        // Clients that still read receive an error.
        let told = Instant::now() + Duration::from_secs(1);
        while state.active() > 0 && Instant::now() < told {
            tokio::time::sleep(DRAIN_INTERVAL).await;
        }
        return Instant::now() + Duration::from_millis(100);
    }
    deadline
}

/// Warns if every machine in the network can use the server.
fn warn_if_open(state: &AppState) {
    let ip = state.options.address.ip();
    if !ip.to_canonical().is_loopback() && !state.keys.is_required() {
        tracing::warn!(
            %ip,
            "no API key is set: anyone who can reach this address can use the server; set \
             --api-key or --api-keys-file, or listen on 127.0.0.1"
        );
    }
}
