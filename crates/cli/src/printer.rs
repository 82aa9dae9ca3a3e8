//! Output: data on standard output, progress and errors on standard error.
//!
//! A closed pipe (`| head`) is not an error. Progress is a bar on a terminal and otherwise a plain
//! line every few seconds, which keeps logs short. Output has no colors, so `NO_COLOR` has no
//! effect.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::args::OutputArgs;
use crate::hints;

/// Interval between plain lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum length of a message in characters.
const MAX_MESSAGE: usize = 1000;
/// Width of a table in columns if `COLUMNS` is not set.
const DEFAULT_COLUMNS: usize = 100;

/// Prints results as text or as JSON.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    json: bool,
    quiet: bool,
}

impl Printer {
    /// A printer configured by `--json` and `--quiet`.
    pub fn new(args: &OutputArgs) -> Self {
        Self { json: args.json, quiet: args.quiet }
    }

    /// A printer without notes, for commands that print their own output.
    pub fn silent() -> Self {
        Self { json: false, quiet: true }
    }

    /// Whether `--json` was given.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints one JSON object on standard output.
    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        self.line(&serde_json::to_string(value)?)
    }

    /// Prints a line on standard output.
    pub fn line(&self, line: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error).context("cannot write to standard output")
            }
            _ => Ok(()),
        }
    }

    /// Prints the command's result: `value` under `--json`, else the text.
    pub fn result(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { self.json(value) } else { self.line(text().trim_end()) }
    }

    /// Prints a line on standard error unless `--quiet` was given.
    pub fn note(&self, line: &str) {
        if !self.quiet {
            stderr_line(&cut(line));
        }
    }

    /// Prints warnings on standard error unless `--quiet` was given.
    pub fn warnings(&self, warnings: impl IntoIterator<Item = impl Display>) {
        warnings.into_iter().for_each(|warning| self.note(&format!("warning: {warning}")));
    }

    /// Width of a table, in columns.
    pub fn width(&self) -> usize {
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        columns.filter(|&columns| columns >= 20).unwrap_or(DEFAULT_COLUMNS)
    }

    /// Progress over `total` steps, of which `done` are already done.
    pub fn progress(&self, done: usize, total: usize) -> Progress {
        let terminal = !self.quiet && io::stderr().is_terminal();
        let bar = terminal.then(|| {
            let style = ProgressStyle::with_template("[{elapsed}] {bar:20} {pos}/{len} {msg}");
            let bar =
                ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
            let bar = style.map(|style| bar.clone().with_style(style)).unwrap_or(bar);
            bar.set_position(done as u64);
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Progress { bar, plain: !self.quiet && !terminal, last_report: None, done, total }
    }
}

/// Progress of a command: a bar on a terminal, otherwise plain lines.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    plain: bool,
    last_report: Option<Instant>,
    done: usize,
    total: usize,
}

impl Progress {
    /// Counts one finished step.
    pub fn advance(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done as u64);
        }
    }

    /// Sets the number of finished steps.
    pub fn set(&mut self, done: usize) {
        self.done = done;
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
        }
    }

    /// Updates the message. Plain lines are printed for the first and the last step, and every
    /// [`PROGRESS_INTERVAL`] in between.
    pub fn report(&mut self, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(message.to_owned());
        } else if self.plain
            && (self.done == self.total
                || self.last_report.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL))
        {
            stderr_line(&format!("{}/{} {message}", self.done, self.total));
            self.last_report = Some(Instant::now());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

/// Prints an error with its causes and a hint.
pub fn print_error(error: &anyhow::Error) {
    let flags = hints::flags(error).map(|flags| format!(" ({flags})")).unwrap_or_default();
    stderr_line(&format!("error: {}{flags}", error_text(error)));
}

/// The error and its causes, without repeating causes that a message already ends with.
fn error_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| cut(&cause.to_string())) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Truncates a text to [`MAX_MESSAGE`] characters; a message may quote a line of a file.
fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Prints a line on standard error. Unlike `eprintln!`, it does not panic if that is closed.
pub fn stderr_line(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Formats a duration with a suitable unit.
pub fn format_duration(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => "?".to_owned(),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_are_printed_once_and_long_texts_truncated() {
        let cause = io::Error::from_raw_os_error(17);
        let message = format!("m: {cause}");
        assert_eq!(error_text(&anyhow!(cause).context(message.clone())), message);
        let error = anyhow!("why").context("what");
        assert_eq!(error_text(&error), "what: why");
        let long = error_text(&anyhow!("x".repeat(5000)));
        assert!(long.ends_with("...") && long.len() == MAX_MESSAGE + 3, "{}", long.len());
    }
}
