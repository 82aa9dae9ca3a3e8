//! Ctrl-C and SIGTERM end a run between two records, never within one.
//!
//! What was recorded is kept and everything else can be computed again, so there is no reason to
//! make the user wait for the batch at hand: the first signal ends the process as soon as no line
//! is being written, with exit code 3. Should even that hang (a dead network disk), a second signal
//! ends it at once. A hang-up is left alone, so that `nohup` works.

use std::ffi::OsString;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::Result;

/// The exit code of a run that can be resumed.
#[cfg(unix)]
const INTERRUPTED: i32 = 3;

/// Writing goes through here; a signal waits until nothing is inside.
#[derive(Debug, Clone)]
pub struct InterruptGuard(Arc<Mutex<()>>);

impl InterruptGuard {
    /// From here on a signal says `farewell` and ends the process.
    ///
    /// There is one gate in a process: a second would let a signal through while something is
    /// inside the first.
    pub fn install(message: String) -> Result<Self> {
        static GUARD: OnceLock<InterruptGuard> = OnceLock::new();
        if let Some(guard) = GUARD.get() {
            return Ok(guard.clone());
        }
        let guard = Self::listen(message)?;
        Ok(GUARD.get_or_init(|| guard).clone())
    }

    #[cfg(unix)]
    fn listen(message: String) -> Result<Self> {
        use anyhow::Context;
        use signal_hook::consts::{SIGINT, SIGTERM};

        let guard = Self(Arc::default());
        let inner = guard.clone();
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
            .context("cannot listen for Ctrl-C")?;
        std::thread::spawn(move || {
            let mut message = Some(message);
            for signal in signals.forever() {
                let Some(message) = message.take() else { std::process::exit(128 + signal) };
                let guard = inner.clone();
                std::thread::spawn(move || guard.uninterrupted(|| exit_interrupted(&message)));
            }
        });
        Ok(guard)
    }

    /// Elsewhere the system's own way of ending a process is kept; what was recorded can be resumed
    /// all the same.
    #[cfg(not(unix))]
    fn listen(_message: String) -> Result<Self> {
        Ok(Self(Arc::default()))
    }

    /// The lock that keeps a signal waiting while it is held.
    pub fn lock(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.0)
    }

    /// Runs `work`, which no signal then cuts in two.
    fn uninterrupted<R>(&self, work: impl FnOnce() -> R) -> R {
        // A poisoned lock only says that a thread died inside; a signal must end the process even
        // then.
        let _inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work()
    }
}

#[cfg(unix)]
fn exit_interrupted(message: &str) -> ! {
    crate::printer::stderr_line(message);
    std::process::exit(INTERRUPTED)
}

/// From here on a signal raises `flag`, for work that saves its state before it ends; a second
/// signal ends the process.
#[cfg(unix)]
pub fn set_flag_on_signal(flag: &Arc<AtomicBool>) -> Result<()> {
    use anyhow::Context;
    use signal_hook::consts::{SIGINT, SIGTERM};

    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag down.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(flag)))
            .context("cannot listen for Ctrl-C")?;
    }
    Ok(())
}

/// Elsewhere the system's own way of ending a process is kept.
#[cfg(not(unix))]
pub fn set_flag_on_signal(_flag: &Arc<AtomicBool>) -> Result<()> {
    Ok(())
}

/// The command that continues what `argv` began.
pub fn resume_command(argv: impl Iterator<Item = OsString>) -> String {
    let argv = argv.map(|arg| arg.to_string_lossy().into_owned());
    let kept = argv.filter(|arg| arg != "--overwrite" && arg != "--resume");
    let words: Vec<String> = kept.map(|arg| shell_quoted(&arg)).collect();
    format!("{} --resume", words.join(" "))
}

/// A word that a shell reads back as it was.
fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resume_commands_are_shell_quoted() {
        let argv =
            ["latent-tts", "eval", "--data", "it's here", "--overwrite", "--thoughts", "<=6"];
        let command = resume_command(argv.iter().map(|s| (*s).to_owned()));
        assert_eq!(command, r"latent-tts eval --data 'it'\''s here' --thoughts '<=6' --resume");
    }
}
