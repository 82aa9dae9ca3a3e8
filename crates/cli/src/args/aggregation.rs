//! Aggregation flags, shared by `eval` and `solve`.

use std::num::NonZeroU32;

use clap::Args;

use super::values;

/// Flags that choose and tune the aggregation of trajectories into one answer.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Aggregation")]
pub struct AggregationArgs {
    /// The aggregation rules to report; a beam search runs only if it is among them [default: all
    /// that the models allow, but of best_of only the first; results.json has all, the table those
    /// of the paper]
    #[arg(long, value_name = "RULE,...", value_delimiter = ',', value_parser = values::rule())]
    pub aggregate: Option<Vec<values::AggregateRule>>,

    /// Beam search: beams kept at each step [default: the rounded root of --samples]
    #[arg(long, value_name = "B")]
    pub beam_width: Option<NonZeroU32>,

    /// Beam search: extensions tried for each beam [default: the rounded root of --samples]
    #[arg(long, value_name = "K")]
    pub beam_candidates: Option<NonZeroU32>,

    /// Stop sampling a question when its vote can no longer change, or when the lead of its
    /// majority answer is large enough (see --confidence)
    #[arg(long)]
    pub adaptive: bool,

    /// With --adaptive: the confidence in the leading answer at which to stop, above 0.5 and at
    /// most 1; 1 stops only where no further trajectory can change the vote [default: 0.95]
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = values::confidence,
        allow_negative_numbers = true
    )]
    pub confidence: Option<aggregate::Confidence>,

    /// Softmax temperature of the rules normalized, likely and combined: small follows the signal,
    /// large the plain vote [default: 1]
    #[arg(long, value_name = "T", value_parser = values::above_zero, allow_negative_numbers = true)]
    pub vote_temperature: Option<f64>,

    /// The rule combined: the weight of the log-probability relative to the reward [default: 1]
    #[arg(long, value_name = "L", value_parser = values::weight, allow_negative_numbers = true)]
    pub likelihood_weight: Option<f64>,

    /// The rule pessimistic: its lower bound is this many standard errors below the mean reward
    /// [default: 1]
    #[arg(long, value_name = "C", value_parser = values::weight, allow_negative_numbers = true)]
    pub caution: Option<f64>,
}
