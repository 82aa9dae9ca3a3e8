//! State shared by all handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crate::auth::ApiKeys;
use crate::error::ApiError;
use crate::metering;
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
    /// Collects the spans of requests, if tracing is enabled.
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// The upstream server, if this is a gateway.
    pub(crate) upstream: Option<Arc<Upstream>>,
    /// Number of queued or running upstream completions.
    pub(crate) upstream_queued: AtomicUsize,
    /// The recorded runs that can be viewed.
    pub(crate) runs: Option<Arc<RunFolder>>,
    /// The start time in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) draining: AtomicBool,
    /// Number of accepted requests whose responses are not complete.
    active: AtomicUsize,
    /// Bytes reserved by bodies and pages in progress.
    reserved: AtomicUsize,
    ids: AtomicU64,
}

/// Memory reserved for a request, released on drop.
pub(crate) struct MemoryReservation<'a> {
    reserved: &'a AtomicUsize,
    bytes: usize,
}

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Minimum memory for requests, besides models and key-value cache.
const LEAST_MEMORY: usize = 64 << 20;

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
            reserved: AtomicUsize::new(0),
            ids: AtomicU64::new(0),
        })
    }

    /// Used bytes, counting the entire key-value cache, which fills while requests run.
    fn taken_memory(&self) -> usize {
        metering::live_bytes().saturating_add(self.models.cache_bytes())
    }

    /// Fails if the limit leaves no room for requests.
    pub(crate) fn check_memory_limit(&self) -> Result<(), ServeError> {
        let needed = self.taken_memory().saturating_add(LEAST_MEMORY);
        match self.options.max_memory {
            Some(limit) if limit < needed => Err(ServeError::MemoryLimit { limit, needed }),
            _ => Ok(()),
        }
    }

    /// Reserves memory for a request, if the server's limit allows it.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<MemoryReservation<'_>, ApiError> {
        let reserved = self.reserved.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        let reservation = MemoryReservation { reserved: &self.reserved, bytes };
        match self.options.max_memory {
            Some(limit) if self.taken_memory().saturating_add(reserved) > limit => {
                Err(ApiError::memory_limit())
            }
            _ => Ok(reservation),
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Number of accepted requests whose responses are not complete.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// An id that is unique on this server and very likely unique globally.
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
