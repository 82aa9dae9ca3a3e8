//! What all handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use engine::Reasoner;
use engine::scheduler::Scheduler;
use serde_json::Value;

use crate::error::ApiError;
use crate::metering;
use crate::metrics::Metrics;
use crate::prompts::ChatPrompts;
use crate::runs::RunFolder;
use crate::{ServeError, ServeOptions};

/// The server's state.
pub(crate) struct AppState {
    pub(crate) scheduler: Scheduler,
    pub(crate) options: ServeOptions,
    pub(crate) metrics: Metrics,
    pub(crate) chat: ChatPrompts,
    /// What `/tokenizer_info` says.
    pub(crate) tokenizer_info: Value,
    /// Recorded runs that can be looked at.
    pub(crate) runs: Option<Arc<RunFolder>>,
    /// Seconds since 1970 at the start.
    pub(crate) created: u64,
    pub(crate) draining: AtomicBool,
    /// Requests that were taken and whose responses are not complete.
    active: AtomicUsize,
    /// Bytes that bodies and pages in the making may still take.
    reserved: AtomicUsize,
    ids: AtomicU64,
}

/// Memory that a request may take, given back when it is dropped.
pub(crate) struct MemoryReservation<'a> {
    reserved: &'a AtomicUsize,
    bytes: usize,
}

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Memory that requests need beside models and key-value cache, at least.
const LEAST_MEMORY: usize = 64 << 20;

impl AppState {
    pub(crate) fn new(
        scheduler: Scheduler,
        options: ServeOptions,
        chat: ChatPrompts,
        tokenizer_info: Value,
        runs: Option<RunFolder>,
    ) -> Self {
        Self {
            scheduler,
            options,
            metrics: Metrics::new(),
            chat,
            tokenizer_info,
            runs: runs.map(Arc::new),
            created: unix_seconds(),
            draining: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            ids: AtomicU64::new(0),
        }
    }

    /// Bytes that are taken, the whole key-value cache included: it fills while requests run.
    fn taken_memory(&self) -> usize {
        metering::live_bytes().saturating_add(self.scheduler.engine().memory())
    }

    /// Refuses a limit that leaves no room for requests.
    pub(crate) fn check_memory_limit(&self) -> Result<(), ServeError> {
        let needed = self.taken_memory().saturating_add(LEAST_MEMORY);
        match self.options.max_memory {
            Some(limit) if limit < needed => Err(ServeError::MemoryLimit { limit, needed }),
            _ => Ok(()),
        }
    }

    /// Reserves memory for a request, if the server's limit leaves as much.
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

    pub(crate) fn reasoner(&self) -> &Reasoner {
        self.scheduler.engine().reasoner()
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
