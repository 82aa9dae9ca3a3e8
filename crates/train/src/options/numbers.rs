//! Ranges of the numeric options, in one table for the command line, TOML files and Python.

use serde::Serialize;
use serde_json::Value;
use tensor::rng::{MAX_ELEMENTS, MAX_LAYERS};

use crate::error::TrainError;

/// The valid values of an option.
#[derive(Clone, Copy)]
enum Range {
    /// [0, 1)
    Probability,
    /// [0, 1]
    Share,
    /// Finite and at least 0.
    NonNegative,
    /// Finite and above 0.
    Positive,
    /// Integers up to a limit, which catches typing errors such as an extra digit.
    UpTo(usize),
}

/// Maximum number of examples in a batch.
const MAX_BATCH: usize = 1 << 20;
/// Maximum number of thoughts of an example, and of related counts such as tokens per thought.
const MAX_THOUGHTS: usize = 1 << 16;
/// Maximum context of a new model, in positions.
const MAX_POSITIONS: usize = 1 << 24;
/// Maximum LoRA rank.
const MAX_RANK: usize = 1 << 16;

/// Maximum number of trajectories per question.
const MAX_TRAJECTORIES: usize = 1 << 16;
/// Maximum clipping bound of an importance ratio.
const MAX_RATIO: usize = 1 << 10;

/// The ranges by option name.
const RANGES: [(&str, Range); 42] = [
    ("held_out_count", Range::UpTo(MAX_BATCH)),
    ("thoughts", Range::UpTo(MAX_THOUGHTS)),
    ("curriculum_end", Range::Probability),
    ("no_cot_fraction", Range::Probability),
    ("uniform_stage_prob", Range::Probability),
    ("stages", Range::UpTo(MAX_THOUGHTS)),
    ("thoughts_per_step", Range::UpTo(MAX_THOUGHTS)),
    ("digit_loss_weight", Range::NonNegative),
    ("step_decoder", Range::NonNegative),
    ("gamma", Range::NonNegative),
    ("projector", Range::UpTo(MAX_ELEMENTS)),
    ("min_speed", Range::UpTo(MAX_THOUGHTS)),
    ("max_speed", Range::UpTo(MAX_THOUGHTS)),
    ("compression", Range::UpTo(MAX_THOUGHTS)),
    ("scheduled_sampling", Range::Share),
    ("blocks", Range::UpTo(MAX_THOUGHTS)),
    ("block_width", Range::UpTo(MAX_THOUGHTS)),
    ("loops", Range::UpTo(MAX_THOUGHTS)),
    ("latent_head", Range::UpTo(MAX_ELEMENTS)),
    ("lora", Range::UpTo(MAX_RANK)),
    ("lora_alpha", Range::Positive),
    ("lora_dropout", Range::Probability),
    ("width", Range::UpTo(MAX_ELEMENTS)),
    ("layers", Range::UpTo(MAX_LAYERS)),
    ("heads", Range::UpTo(MAX_ELEMENTS)),
    ("context", Range::UpTo(MAX_POSITIONS)),
    ("batch", Range::UpTo(MAX_BATCH)),
    ("lr", Range::Positive),
    ("min_lr_ratio", Range::Share),
    ("weight_decay", Range::NonNegative),
    ("beta2", Range::Probability),
    ("clip", Range::NonNegative),
    ("dropout", Range::Probability),
    ("max_loss_ratio", Range::NonNegative),
    ("last_step_weight", Range::NonNegative),
    ("order_preference", Range::NonNegative),
    ("length_penalty", Range::NonNegative),
    ("clip_ratio", Range::Probability),
    ("clip_ratio_high", Range::UpTo(MAX_RATIO)),
    ("kl_coef", Range::NonNegative),
    ("samples", Range::UpTo(MAX_TRAJECTORIES)),
    ("eval_samples", Range::UpTo(MAX_TRAJECTORIES)),
];

impl Range {
    fn contains(self, number: f64) -> bool {
        number.is_finite()
            && match self {
                Self::Probability => (0.0..1.0).contains(&number),
                Self::Share => (0.0..=1.0).contains(&number),
                Self::NonNegative => number >= 0.0,
                Self::Positive => number > 0.0,
                Self::UpTo(limit) => number <= limit as f64,
            }
    }

    fn expected(self) -> String {
        match self {
            Self::Probability => "must be at least 0 and below 1".to_owned(),
            Self::Share => "must be at least 0 and at most 1".to_owned(),
            Self::NonNegative => "must be finite and at least 0".to_owned(),
            Self::Positive => "must be a finite number above 0".to_owned(),
            Self::UpTo(limit) => format!("must be at most {limit}"),
        }
    }
}

/// Checks the numeric fields of `options` against [`RANGES`].
pub(super) fn check(options: &impl Serialize) -> Result<(), TrainError> {
    let fields = serde_json::to_value(options).map_err(invalid)?;
    for (name, range) in RANGES {
        let number = match (fields.get(name), range) {
            // An option of another command, or one that was omitted.
            (None, _) | (Some(Value::Null), Range::UpTo(_)) => continue,
            // Infinite and NaN values are null in JSON.
            (Some(value), _) => value.as_f64().unwrap_or(f64::NAN),
        };
        if !range.contains(number) {
            let shown = if number.is_nan() { String::new() } else { format!(" {}", number as f32) };
            let reason = format!("`{name}`{shown} {}", range.expected());
            return Err(TrainError::Options { reason });
        }
    }
    Ok(())
}

/// Converts a deserialization error of options.
pub(crate) fn invalid(error: serde_json::Error) -> TrainError {
    TrainError::Options { reason: error.to_string() }
}
