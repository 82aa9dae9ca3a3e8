//! Signal handling: SIGINT and SIGTERM end a run between two records, never within one.
//!
//! Records on disk are kept and everything else can be recomputed, so the current batch is not
//! awaited: the first signal ends the process with exit code 3 as soon as no record is being
//! written. If that write hangs (a dead network disk), a second signal ends the process at once.
//! SIGHUP is not handled, so that `nohup` works.

use std::ffi::OsString;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::Result;

/// Exit code of an interrupted run, which `--resume` continues.
#[cfg(unix)]
const INTERRUPTED: i32 = 3;

/// A process-wide lock that writers hold; a signal ends the process only while it is free.
#[derive(Debug, Clone)]
pub struct InterruptGuard(Arc<Mutex<()>>);

impl InterruptGuard {
    /// Installs the signal handler, which prints `message` and ends the process.
    ///
    /// Later calls return the first guard: with two locks, a signal could end the process while a
    /// writer holds the other one.
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

    /// Other systems keep their default handling; records on disk can be resumed there as well.
    #[cfg(not(unix))]
    fn listen(_message: String) -> Result<Self> {
        Ok(Self(Arc::default()))
    }

    /// The lock; while it is held, a signal waits.
    pub fn lock(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.0)
    }

    /// Runs `work` with the lock held, so that no signal ends the process before it returns.
    fn uninterrupted<R>(&self, work: impl FnOnce() -> R) -> R {
        // A poisoned lock means that a holder panicked; a signal must end the process even then.
        let _held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work()
    }
}

#[cfg(unix)]
fn exit_interrupted(message: &str) -> ! {
    crate::printer::stderr_line(message);
    std::process::exit(INTERRUPTED)
}

/// Makes a signal set `flag`, for work that saves its state before it ends; a second signal ends
/// the process.
#[cfg(unix)]
pub fn set_flag_on_signal(flag: &Arc<AtomicBool>) -> Result<()> {
    use anyhow::Context;
    use signal_hook::consts::{SIGINT, SIGTERM};

    for signal in [SIGINT, SIGTERM] {
        // The order matters: the first signal must find the flag unset.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(flag)))
            .context("cannot listen for Ctrl-C")?;
    }
    Ok(())
}

/// Other systems keep their default handling.
#[cfg(not(unix))]
pub fn set_flag_on_signal(_flag: &Arc<AtomicBool>) -> Result<()> {
    Ok(())
}

/// The command line that resumes the run started by `argv`.
pub fn resume_command(argv: impl Iterator<Item = OsString>) -> String {
    let argv = argv.map(|arg| arg.to_string_lossy().into_owned());
    let kept = argv.filter(|arg| arg != "--overwrite" && arg != "--resume");
    let words: Vec<String> = kept.map(|arg| shell_quoted(&arg)).collect();
    format!("{} --resume", words.join(" "))
}

/// A word quoted for a POSIX shell, where it needs quotes.
pub fn shell_quoted(word: &str) -> String {
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
        let command = resume_command(argv.iter().map(OsString::from));
        assert_eq!(command, r"latent-tts eval --data 'it'\''s here' --thoughts '<=6' --resume");
    }
}
