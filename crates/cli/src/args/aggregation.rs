//! Flags that select the aggregation rules that `eval` and `solve` report.

use clap::Args;

use super::values;

/// The rules to report. Their parameters are in [`SamplingOptions`](latent_tts::SamplingOptions).
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Aggregation")]
pub struct AggregationArgs {
    /// Aggregation rules to report; a beam search runs only if beam is among them [default: all
    /// rules that the models support, with only the first variant of best_of; results.json lists
    /// all rules, the table those of the paper]
    #[arg(long, value_name = "RULE,...", value_delimiter = ',', value_parser = values::rule())]
    pub aggregate: Option<Vec<values::AggregateRule>>,
}
