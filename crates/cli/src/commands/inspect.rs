//! `latent-tts inspect`.
use std::process::ExitCode;
use crate::args::InspectArgs;
use crate::printer::Printer;
/// Runs the command.
pub fn run(_args: &InspectArgs, _printer: &Printer) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
