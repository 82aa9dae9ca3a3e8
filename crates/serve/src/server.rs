//! Connections: accepted, bounded, cut when they are slow, and drained at the end.

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

/// Headers of a request.
const MAX_HEADERS: usize = 64;
/// Threads that a server starts: two for connections, the engine's two, and a few that read files.
const SPARE_THREADS: usize = 8;
/// How long threads have to end after the connections are closed, those that make pages among them.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a drain looks whether requests are left; also the pause after a failed accept.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);

/// Serves until SIGTERM or SIGINT, and drains. `listening` is told the address.
///
/// # Errors
///
/// When the server cannot start.
pub fn run(
    models: Vec<ModelSource>,
    options: ServeOptions,
    listening: impl FnOnce(SocketAddr),
) -> Result<(), ServeError> {
    latent_tts::tensor::check_spare_threads(SPARE_THREADS)
        .map_err(|error| ServeError::Runtime(std::io::Error::other(error)))?;
    // The engine has a thread and a pool of its own; handlers only read and write JSON.
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
    // A call of an upstream, or a disk that does not answer, must not keep the process.
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    served
}

/// Ends at the first SIGTERM or SIGINT from now on.
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

/// Ends at Ctrl-C.
#[cfg(not(unix))]
fn stop_signal() -> Result<impl Future<Output = ()>, ServeError> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    state: Arc<AppState>,
    reload_signal: ReloadSignal,
}

impl Server {
    /// Listens, and starts the engine's thread. `files` are the reasoner's.
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

    /// Listens, and loads the first of some models. The others are loaded by the first request
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

    /// The address it listens at, with the port that was free.
    pub fn address(&self) -> Result<SocketAddr, ServeError> {
        let address = self.state.options.address;
        self.listener.local_addr().map_err(|error| ServeError::Bind { address, error })
    }

    /// Serves until `shutdown`, then drains: `/ready` says 503, new requests are refused, those
    /// that were taken run to their ends, or to the shutdown timeout.
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
                // Reset before it was accepted, or no file descriptor is left: others must end.
                tokio::time::sleep(DRAIN_INTERVAL).await;
                continue;
            };
            let connection = graceful.watch(connection(&state, stream, router.clone()));
            tokio::spawn(async move {
                // A client that breaks off, or the protocol, ends its own connection only.
                let _ = connection.await;
                drop(free);
            });
        };
        reloads.abort();
        drop(listener);
        let left = deadline.saturating_duration_since(Instant::now());
        let closed = tokio::time::timeout(left + DRAIN_INTERVAL, graceful.shutdown());
        if closed.await.is_err() {
            tracing::warn!("connections were cut at the shutdown timeout");
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
    // Small events of a stream must not wait for each other.
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

/// Refuses new requests and waits for those that were taken. Returns the time at which connections
/// are cut.
async fn drain(state: &AppState) -> Instant {
    let deadline = Instant::now() + state.options.shutdown_timeout;
    state.draining.store(true, Ordering::Relaxed);
    tracing::info!(active = state.active(), "draining");
    while state.active() > 0 && Instant::now() < deadline {
        tokio::time::sleep(DRAIN_INTERVAL).await;
    }
    state.models.close();
    if state.active() > 0 {
        tracing::warn!(active = state.active(), "requests are cut at the shutdown timeout");
        state.models.cancel_all();
        // They are told, if their clients read.
        let told = Instant::now() + Duration::from_secs(1);
        while state.active() > 0 && Instant::now() < told {
            tokio::time::sleep(DRAIN_INTERVAL).await;
        }
        return Instant::now() + Duration::from_millis(100);
    }
    deadline
}

/// Warns about a server that every machine of its network can use.
fn warn_if_open(state: &AppState) {
    let ip = state.options.address.ip();
    if !ip.to_canonical().is_loopback() && !state.keys.is_required() {
        tracing::warn!(
            %ip,
            "no API key is set: everyone who can reach this address can use the server; set \
             --api-key or --api-keys-file, or listen at 127.0.0.1"
        );
    }
}
