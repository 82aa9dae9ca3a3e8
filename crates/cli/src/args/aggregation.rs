//! Which aggregation rules `eval` and `solve` report.

use clap::Args;

use super::values;

/// The rules to report; [`SamplingOptions`](latent_tts::SamplingOptions) has their constants.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Aggregation")]
pub struct AggregationArgs {
    /// The aggregation rules to report; a beam search runs only if it is among them [default: all
    /// that the models allow, but of best_of only the first; results.json has all, the table those
    /// of the paper]
    #[arg(long, value_name = "RULE,...", value_delimiter = ',', value_parser = values::rule())]
    pub aggregate: Option<Vec<values::AggregateRule>>,
}
