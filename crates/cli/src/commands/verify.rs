//! `latent-tts verify`: not here yet.

use std::process::ExitCode;

use crate::args::VerifyArgs;
use crate::printer::Printer;

/// Runs the command.
pub fn run(_args: &VerifyArgs, _printer: &Printer) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`verify` is not part of this build")
}
