//! `train reward`.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::args::RewardArgs;
use crate::printer::Printer;

/// Trains a reward model.
pub(super) fn run(_args: &RewardArgs, _printer: &Printer) -> Result<ExitCode> {
    bail!("not there yet")
}
