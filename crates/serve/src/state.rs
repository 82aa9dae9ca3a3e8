//! What all handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crate::auth::ApiKeys;
use crate::metrics::Metrics;
use crate::models::ModelPool;
use crate::runs::RunFolder;
use crate::traces::Tracer;
use crate::upstream::Upstream;
use crate::{ServeError, ServeOptions};

/// The server's state.
pub(crate) struct AppState {
    pub(crate) models: Arc<ModelPool>,
    pub(crate) options: ServeOptions,
    pub(crate) keys: ApiKeys,
    pub(crate) metrics: Arc<Metrics>,
    /// Takes the spans of requests, where they are traced.
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// The server whose completions are voted on, where this is a gateway.
    pub(crate) upstream: Option<Arc<Upstream>>,
    /// Completions of it that wait or run.
    pub(crate) upstream_queued: AtomicUsize,
    /// Recorded runs that can be looked at.
    pub(crate) runs: Option<Arc<RunFolder>>,
    /// Seconds since 1970 at the start.
    pub(crate) created: u64,
    pub(crate) draining: AtomicBool,
    /// Requests that were taken and whose responses are not complete.
    active: AtomicUsize,
    ids: AtomicU64,
}

impl AppState {
    pub(crate) fn new(
        models: ModelPool,
        options: ServeOptions,
        runs: Option<RunFolder>,
    ) -> Result<Self, ServeError> {
        let keys = ApiKeys::new(options.api_key.clone(), options.api_keys_file.clone())?;
        let metrics = Arc::new(Metrics::new());
        let upstream = options.upstream.clone();
        let upstream = upstream.map(|options| Upstream::new(options, Arc::clone(&metrics)));
        let tracer = options.otlp_endpoint.as_deref();
        let tracer = tracer.map(|endpoint| Tracer::new(endpoint, Arc::clone(&metrics)));
        Ok(Self {
            models: Arc::new(models),
            options,
            keys,
            metrics,
            tracer: tracer.transpose()?.map(Arc::new),
            upstream: upstream.transpose()?.map(Arc::new),
            upstream_queued: AtomicUsize::new(0),
            runs: runs.map(Arc::new),
            created: unix_seconds(),
            draining: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            ids: AtomicU64::new(0),
        })
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Requests that were taken and whose responses are not complete.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// A name that no other request of this server has, and hardly one of another.
    pub(crate) fn new_id(&self) -> String {
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = since.unwrap_or(Duration::ZERO).as_nanos() as u64;
        format!("{:016x}{count:08x}", now.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Counts a request as active while it lives.
pub(crate) struct ActiveRequest(Arc<AppState>);

impl ActiveRequest {
    pub(crate) fn new(state: &Arc<AppState>) -> Self {
        state.active.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(state))
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::AcqRel);
    }
}
