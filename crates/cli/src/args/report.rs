//! Flags of `report`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

/// Flags of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run directories that `eval` wrote, or directories that `sweep` wrote
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// Where to write [default: the run directory; of several, a folder `report` beside the first]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Report runs that are not finished as well
    #[arg(long)]
    pub partial: bool,

    /// Write the page alone, without the pictures
    #[arg(long)]
    pub page_only: bool,

    /// How to print.
    #[command(flatten)]
    pub output: OutputArgs,
}
