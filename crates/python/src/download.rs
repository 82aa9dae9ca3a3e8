//! Downloads files of Hugging Face Hub ids into the cache before they are loaded.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use latent_tts::hub::HubEvent;
use latent_tts::{Error, fetch_bases, fetch_data, fetch_model};
use pyo3::prelude::*;

use crate::errors::{raise, raise_loading};
use crate::waiting::POLL;

/// The progress of a file: its name, the bytes downloaded so far, and its size.
type DownloadProgress = (String, u64, u64);

/// Downloads models, the base of adapters and data, unless they are paths or cached. Without a
/// given base it is the one that an adapter records.
/// `progress(file, done, size)` is called several times per second.
///
/// Ctrl-C is raised immediately; partial downloads are kept and resumed later.
#[pyfunction]
pub fn fetch(
    py: Python<'_>,
    models: Vec<String>,
    base: Option<String>,
    data: Option<String>,
    progress: Py<PyAny>,
) -> PyResult<()> {
    let (sender, events) = channel();
    let of_data = data.is_some();
    let worker =
        std::thread::spawn(move || download(&models, base.as_deref(), data.as_deref(), &sender));
    // Only shared values may be moved into the section without the GIL.
    let events = Mutex::new(events);
    let mut running = true;
    while running {
        let last = py.detach(|| latest(&events, &mut running));
        py.check_signals()?;
        last.map_or(Ok(()), |event| progress.call1(py, event).map(drop))?;
    }
    match py.detach(|| worker.join()) {
        Ok(result) => result.map_err(if of_data { raise } else { raise_loading }),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The last event within a tenth of a second; `running` is false if there will be no more.
fn latest(
    events: &Mutex<Receiver<DownloadProgress>>,
    running: &mut bool,
) -> Option<DownloadProgress> {
    let events = events.lock().unwrap_or_else(PoisonError::into_inner);
    let (deadline, mut last) = (Instant::now() + POLL, None);
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => last = Some(event),
            Err(error) => {
                *running = error == RecvTimeoutError::Timeout;
                return last;
            }
        }
    }
}

fn download(
    models: &[String],
    base: Option<&str>,
    data: Option<&str>,
    events: &Sender<DownloadProgress>,
) -> Result<(), Error> {
    let (mut name, mut size) = (String::new(), 0);
    let mut tell = |event: HubEvent<'_>| {
        let done = match event {
            HubEvent::File { name: file, size: bytes, resumed } => {
                (name, size) = (file.to_owned(), bytes);
                resumed
            }
            HubEvent::Bytes(done) | HubEvent::Resumed(done) => done,
            _ => return,
        };
        if events.send((name.clone(), done, size)).is_err() {
            // The caller was interrupted; this thread exits without a message.
            std::panic::resume_unwind(Box::new(()));
        }
    };
    for model in models {
        fetch_model(model, &mut tell)?;
        if base.is_none() {
            fetch_bases(model, &mut tell)?;
        }
    }
    base.map_or(Ok(()), |base| fetch_model(base, &mut tell))?;
    data.map_or(Ok(()), |data| fetch_data(data, &mut tell))
}
