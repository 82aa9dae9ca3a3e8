//! Arguments of `report`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

/// Flags of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run directories that `eval` wrote, directories that `sweep` wrote, or models that `train`
    /// wrote, whose learning curves are drawn
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// The output directory [default: the run directory, or the model's directory `training`; for
    /// several, `report` beside the first]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Accept unfinished runs
    #[arg(long)]
    pub partial: bool,

    /// Write the HTML page only, without image files
    #[arg(long)]
    pub page_only: bool,

    #[command(flatten)]
    pub output: OutputArgs,
}
