//! Signal handling: SIGINT, SIGTERM and SIGHUP end a run between two records, never within one.
//!
//! Records on disk are kept and everything else can be recomputed, so the current batch is not
//! finished: the first signal ends the process with exit code 3 as soon as no record is being
//! written. If that write hangs (for example on an unavailable network disk), a second signal, at
//! least a second later, ends the process immediately. Commands that can be resumed call [`listen`]
//! first; a training is then cancelled instead, and saves its state. SIGHUP stays ignored under
//! `nohup`. SIGXFSZ (file size limit) causes an error in the write that exceeds the limit, and ends
//! the process as a signal does.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
#[cfg(unix)]
use std::time::{Duration, Instant};

use anyhow::Result;
use latent_tts::CancelToken;

/// Exit code of an interrupted run, which `--resume` continues.
pub const INTERRUPTED: u8 = 3;

/// Signals within this time of the first are treated as one: `timeout`, shells and schedulers
/// signal a process and then its group, and a training must still save its state.
#[cfg(unix)]
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// The effect of the first signal.
#[derive(Debug)]
enum OnSignal {
    /// Prints the message and ends the process.
    Exit(String),
    /// Cancels work that saves its state before it ends.
    Cancel(CancelToken),
}

/// The signal listener of the process.
#[derive(Debug)]
struct SignalListener {
    on_signal: Mutex<OnSignal>,
}

/// Set when a file reached the file size limit.
static FILE_LIMIT: OnceLock<Arc<AtomicBool>> = OnceLock::new();

static LISTENER: OnceLock<SignalListener> = OnceLock::new();

/// Starts listening for signals; the first one prints the command that resumes the run and ends the
/// process.
pub fn listen() -> Result<()> {
    listener().map(drop)
}

/// Whether the process listens for signals, which it does if the command can be resumed.
pub fn is_listening() -> bool {
    LISTENER.get().is_some()
}

fn listener() -> Result<&'static SignalListener> {
    if let Some(listener) = LISTENER.get() {
        return Ok(listener);
    }
    let listener = LISTENER.get_or_init(|| SignalListener {
        on_signal: Mutex::new(OnSignal::Exit(message("interrupted"))),
    });
    listener.start()?;
    Ok(listener)
}

/// A message with the command that resumes this run.
pub fn message(what: &str) -> String {
    format!("\n{what}; continue with:\n  {}", resume_command(std::env::args_os()))
}

/// Whether a write failed because of the file size limit.
pub fn file_limit_reached() -> bool {
    FILE_LIMIT.get().is_some_and(|reached| reached.load(Ordering::Relaxed))
}

/// Turns a write beyond the file size limit into an error, which is reported and leaves no
/// temporary file, instead of a fatal signal.
#[cfg(unix)]
pub fn report_file_limit() -> Result<()> {
    use anyhow::Context;
    use signal_hook::consts::SIGXFSZ;

    // If the signal is ignored, the write that exceeds the limit returns an ordinary error.
    if !is_ignored(SIGXFSZ) {
        let reached = FILE_LIMIT.get_or_init(Arc::default);
        signal_hook::flag::register(SIGXFSZ, Arc::clone(reached))
            .context("cannot listen for signals")?;
    }
    Ok(())
}

/// Other systems have no such limit.
#[cfg(not(unix))]
pub fn report_file_limit() -> Result<()> {
    Ok(())
}

impl SignalListener {
    #[cfg(unix)]
    fn start(&'static self) -> Result<()> {
        use anyhow::Context;
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

        let failed = "cannot listen for Ctrl-C";
        let mut handled = vec![SIGINT, SIGTERM];
        if !is_ignored(SIGHUP) {
            handled.push(SIGHUP);
        }
        let mut signals = signal_hook::iterator::Signals::new(handled).context(failed)?;
        let listen = move || {
            let mut first: Option<Instant> = None;
            for signal in signals.forever() {
                match first {
                    None => {
                        first = Some(Instant::now());
                        self.handle();
                    }
                    Some(at) if at.elapsed() < ONE_REQUEST => {}
                    Some(_) => std::process::exit(128 + signal),
                }
            }
        };
        let started = std::thread::Builder::new().name("signals".into()).spawn(listen);
        started.context("cannot start a thread (--threads)").map(drop)
    }

    /// Other systems keep their default handling; records on disk can be resumed there as well.
    #[cfg(not(unix))]
    fn start(&'static self) -> Result<()> {
        Ok(())
    }

    #[cfg(unix)]
    fn handle(&self) {
        let on_signal = self.on_signal.lock().unwrap_or_else(PoisonError::into_inner);
        match &*on_signal {
            OnSignal::Cancel(token) => {
                token.cancel();
                crate::printer::stderr_line(
                    "interrupted; saving the state after this step (signal again to exit now)",
                );
            }
            OnSignal::Exit(message) => {
                let message = message.clone();
                let exit = move || exit_interrupted(&message);
                if std::thread::Builder::new().spawn(exit).is_err() {
                    // Without a thread that waits for the end of a record, a record may be cut off;
                    // a resumed run discards it.
                    std::process::exit(i32::from(INTERRUPTED));
                }
            }
        }
    }

    fn set(&self, on_signal: OnSignal) {
        *self.on_signal.lock().unwrap_or_else(PoisonError::into_inner) = on_signal;
    }
}

/// Makes the first signal print `message` and end the process once no record is being written.
pub fn exit_on_signal(message: String) -> Result<()> {
    listener()?.set(OnSignal::Exit(message));
    Ok(())
}

#[cfg(unix)]
fn exit_interrupted(message: &str) {
    let _guard = record::files::write_guard();
    crate::printer::stderr_line(message);
    std::process::exit(i32::from(INTERRUPTED))
}

/// Whether a signal was ignored when the process started, as `nohup` does with SIGHUP. Assumed if
/// the system cannot report it.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Makes a signal cancel work that saves its state before it ends; a second signal ends the
/// process.
pub fn cancel_on_signal(token: &CancelToken) -> Result<()> {
    listener()?.set(OnSignal::Cancel(token.clone()));
    Ok(())
}

/// The command line that resumes the run started with `argv`.
pub fn resume_command(argv: impl Iterator<Item = OsString>) -> String {
    let argv = argv.map(|arg| arg.to_string_lossy().into_owned());
    let kept = argv.filter(|arg| arg != "--overwrite" && arg != "--resume");
    let words: Vec<String> = kept.map(|arg| shell_quoted(&arg)).collect();
    format!("{} --resume", words.join(" "))
}

/// A word quoted for a POSIX shell if necessary.
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
