//! Arguments of `report`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

/// Flags of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run directories written by `eval`, directories written by `sweep`, or models written by
    /// `train`, whose learning curves are plotted
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// The output directory [default: the run directory, or `training` in the model directory; for
    /// several, `report` beside the first]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Accept incomplete runs
    #[arg(long)]
    pub partial: bool,

    /// Write the HTML page only, without image files
    #[arg(long)]
    pub page_only: bool,

    #[command(flatten)]
    pub output: OutputArgs,
}
