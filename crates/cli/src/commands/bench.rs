//! `latent-tts bench`: not here yet.

use std::process::ExitCode;

use crate::args::BenchArgs;
use crate::printer::Printer;

/// Runs the command.
pub fn run(_args: &BenchArgs, _printer: &Printer) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`bench` is not part of this build")
}
