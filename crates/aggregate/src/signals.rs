//! The names of signals: values of a trajectory other than its rewards and its log-probability.

/// The score of a probe on the reasoner's hidden states: a logit, larger for better trajectories.
pub const PROBE: &str = "probe";
/// The share of a trajectory's equations that are correct; see [`crate::check_steps`].
pub const ARITHMETIC: &str = "arithmetic";
/// The share of their operands that come from the question or an earlier equation.
pub const GROUNDING: &str = "grounding";
/// 1 if the answer is the last equation's result, else 0.
pub const CONCLUSION: &str = "conclusion";
