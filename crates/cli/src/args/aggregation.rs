//! Flags about how many trajectories become one answer; `eval` and `solve` share them.

use std::num::NonZeroU32;

use clap::Args;

use super::values;

/// How trajectories become one answer.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Aggregation")]
pub struct AggregationArgs {
    /// The rules that make one answer of many trajectories; a beam search runs only if it is among
    /// them [default: all that the models allow, but of best_of only the first; results.json
    /// has all, the table those of the paper]
    #[arg(long, value_name = "RULE,...", value_delimiter = ',', value_parser = values::rule())]
    pub aggregate: Option<Vec<values::AggregateRule>>,

    /// Beam search: beams kept at each step [default: the rounded root of --samples]
    #[arg(long, value_name = "B")]
    pub beam_width: Option<NonZeroU32>,

    /// Beam search: extensions tried for each beam [default: the rounded root of --samples]
    #[arg(long, value_name = "K")]
    pub beam_candidates: Option<NonZeroU32>,

    /// Stop sampling a question when its vote can no longer change, or when its lead is large
    /// enough (see --confidence)
    #[arg(long)]
    pub adaptive: bool,

    /// With --adaptive: how sure of the leading answer to be, above 0.5 and at most 1; 1 stops
    /// only where no further trajectory can change the vote [default: 0.95]
    #[arg(long, value_name = "SHARE", value_parser = values::confidence, allow_negative_numbers = true)]
    pub confidence: Option<aggregate::Confidence>,

    /// Votes weighted by normalized, likely, combined: what the signal is divided by; small trusts
    /// it, large trusts the plain vote [default: 1]
    #[arg(long, value_name = "T", value_parser = values::above_zero, allow_negative_numbers = true)]
    pub vote_temperature: Option<f64>,

    /// Votes weighted by combined: the weight of the log-probability beside the reward [default:
    /// 1]
    #[arg(long, value_name = "L", value_parser = values::weight, allow_negative_numbers = true)]
    pub likelihood_weight: Option<f64>,

    /// The pessimistic rule: standard errors that its bound lies below the mean reward [default:
    /// 1]
    #[arg(long, value_name = "C", value_parser = values::weight, allow_negative_numbers = true)]
    pub caution: Option<f64>,
}
