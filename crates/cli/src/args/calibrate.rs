//! Arguments of `calibrate`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

/// Flags of `calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Run directories written by `eval`, on problems that the models were not trained on
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// Run directories on which to evaluate the calibration
    #[arg(long, value_name = "RUN", value_delimiter = ',')]
    pub measure: Vec<PathBuf>,

    /// Signals to use in addition to the votes [default: all signals of the runs]
    #[arg(
        long,
        value_name = "SIGNAL,...",
        value_delimiter = ',',
        value_parser = clap::builder::PossibleValuesParser::new(
            ["likelihood", "reward", "probe", "arithmetic", "grounding", "conclusion"]
        )
    )]
    pub signals: Option<Vec<String>>,

    /// The file to write
    #[arg(long, value_name = "FILE.json", default_value = "calibration.json")]
    pub out: PathBuf,

    #[command(flatten)]
    pub output: OutputArgs,
}
