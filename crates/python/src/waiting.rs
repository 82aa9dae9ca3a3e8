//! Long calls: the work runs on a separate thread without the GIL, while the calling thread checks
//! for Ctrl-C and forwards progress several times per second.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use latent_tts::CancelToken;
use pyo3::prelude::*;

/// The interval at which the GIL is briefly acquired during the work.
pub const POLL: Duration = Duration::from_millis(100);

/// Progress of the work.
pub enum ProgressEvent {
    /// A run directory or annotations were opened: path, recorded questions, all questions.
    Opened(String, usize, usize),
    /// The number of newly finished questions.
    Done(usize),
    /// A training event as JSON, the only argument of its callable.
    Json(String),
}

/// Runs `work` without the GIL. `progress` is a callable that receives (path, done, total), or None
/// and the number of newly finished questions.
///
/// Ctrl-C cancels the work, which ends after the current forward pass, and is then raised.
pub fn wait_for<T: Send>(
    py: Python<'_>,
    cancel: &CancelToken,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Sender<ProgressEvent>) -> T + Send,
) -> PyResult<T> {
    let mut failure = None;
    let failed = &mut failure;
    let result = py.detach(move || {
        std::thread::scope(|scope| {
            let (sender, events) = channel();
            let worker = scope.spawn(move || work(&sender));
            let mut running = true;
            while running {
                let (deadline, mut batch) = (Instant::now() + POLL, Vec::new());
                running = loop {
                    let left = deadline.saturating_duration_since(Instant::now());
                    match events.recv_timeout(left) {
                        Ok(event) => batch.push(event),
                        Err(RecvTimeoutError::Timeout) => break true,
                        Err(RecvTimeoutError::Disconnected) => break false,
                    }
                };
                if failed.is_some() {
                    continue;
                }
                let told = Python::attach(|py| {
                    py.check_signals()?;
                    progress.as_ref().map_or(Ok(()), |progress| tell(progress.bind(py), batch))
                });
                if let Err(error) = told {
                    cancel.cancel();
                    *failed = Some(error);
                }
            }
            worker.join()
        })
    });
    match (failure, result) {
        (Some(error), _) => Err(error),
        (None, Ok(result)) => Ok(result),
        (None, Err(panic)) => std::panic::resume_unwind(panic),
    }
}

fn tell(progress: &Bound<'_, PyAny>, batch: Vec<ProgressEvent>) -> PyResult<()> {
    let mut done = 0;
    for event in batch {
        match event {
            ProgressEvent::Opened(path, done, total) => {
                progress.call1(((path, done, total), 0))?;
            }
            ProgressEvent::Done(more) => done += more,
            ProgressEvent::Json(event) => {
                progress.call1((event,))?;
            }
        }
    }
    if done > 0 {
        progress.call1((progress.py().None(), done))?;
    }
    Ok(())
}
