//! The command line, for the console script of the wheel.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use pyo3::prelude::*;

/// Runs a command line, including the program name, without the GIL. Returns the exit code.
#[pyfunction]
pub fn run_command_line(py: Python<'_>, argv: Vec<OsString>) -> u8 {
    let code = py.detach(|| latent_tts_cli::run_command_line(&argv));
    // The interpreter exits without the cleanup of a Rust program. A closed output cannot be
    // reported anywhere.
    let _ = std::io::stdout().flush();
    // An `ExitCode` can only be compared, not read.
    (0..=u8::MAX).find(|&number| ExitCode::from(number) == code).unwrap_or(u8::MAX)
}
