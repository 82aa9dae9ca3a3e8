//! Options for reinforcement learning.

use data::FieldNames;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use engine::{Method, Perturbation, SamplingParams};
use schema::{
    DropoutScope, DropoutSites, LatentLength, MaskLifetime, ModelDefaults, NoiseStd, Probability,
    SamplerKind, SamplingOptions, Temperature, TopP,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{LoraOptions, TrainingOptions, Warmup, WeightedData, count, names, numbers};
use crate::error::TrainError;
use crate::rl::RlSettings;
use crate::rl::estimator::{ClipRange, Estimator, LossNorm};
use crate::rl::evaluation::{EvaluationConfig, SelectionMetric};
use crate::rl::policy::ThoughtGradient;
use crate::rl::reward::{RewardConfig, RewardKind};
use crate::rl::rollout::RolloutConfig;

/// Options for training a reasoner by reinforcement learning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(
    mut_arg("steps", |arg| arg.default_value("200")),
    mut_arg("batch", |arg| arg.default_value("32").help("Questions per batch")),
    mut_arg("lr", |arg| arg.default_value("1e-5")),
    mut_arg("warmup", |arg| arg.default_value("10")),
    mut_arg("min_lr_ratio", |arg| arg.default_value("1")),
    mut_arg("weight_decay", |arg| arg.default_value("0")),
    mut_arg("beta2", |arg| arg.default_value("0.95")),
    mut_arg("dropout", |arg| arg.default_value("0").hide(true)),
    mut_arg("eval_every", |arg| arg.default_value("20")),
    mut_arg("max_loss_ratio", |arg| arg.default_value("2").help(
        "Stop when the reward has collapsed: when its mean over 20 steps has been below its best \
         value divided by this for 20 steps; 0 disables the check",
    )),
))]
#[serde(remote = "Self", default)]
#[non_exhaustive]
pub struct RlTrainerOptions {
    /// Reasoner to train (COCONUT, CODI or chain of thought): a directory, a GGUF file, a Hub id or
    /// `embedded`
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "DIR", default_value_t = Self::default().model
    ))]
    pub model: String,

    /// Questions with answers: one or more files, or `corpus` for the built-in corpus; steps are
    /// not needed. WEIGHT is the relative share of questions [default: corpus]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "FILE[:WEIGHT]", value_delimiter = ',', help_heading = "Data")
    )]
    #[serde(deserialize_with = "names::one_or_several")]
    pub data: Vec<WeightedData>,

    /// Held-out data file [default: the corpus's valid split when training on the corpus]
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE", help_heading = "Data"))]
    pub held_out: Option<PathBuf>,

    /// Number of held-out problems to evaluate on
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", help_heading = "Data",
        default_value_t = Self::default().held_out_count
    ))]
    pub held_out_count: usize,

    /// Names of the fields in the data files.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub fields: FieldNames,

    /// Sampling of trajectories.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub rollout: RolloutOptions,

    /// Rewards, estimator and policy updates.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub policy: PolicyOptions,

    /// LoRA adapters.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub lora: LoraOptions,

    /// The training loop and the optimizer.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub training: TrainingOptions,
}

/// Sampling options of the rollouts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "Sampling"))]
#[serde(default)]
#[non_exhaustive]
pub struct RolloutOptions {
    /// Trajectories per question: the group within which rewards are compared
    #[cfg_attr(feature = "clap", arg(
        long, short = 'n', value_name = "N", default_value_t = Self::default().samples
    ))]
    pub samples: NonZeroU32,

    /// Source of randomness of the policy: dropout or noise on thoughts, or tokens only
    /// [default: dropout; tokens for models without thoughts]
    #[cfg_attr(feature = "clap", arg(long, value_enum))]
    pub sampler: Option<SamplerKind>,

    /// Dropout: probability that an element is dropped [default: the model's]
    #[cfg_attr(feature = "clap", arg(long, value_name = "P"))]
    pub dropout_p: Option<Probability>,

    /// Dropout: block outputs it is applied to [default: the model's]
    #[cfg_attr(feature = "clap", arg(long, value_enum))]
    pub sites: Option<DropoutSites>,

    /// Dropout: forward passes it is applied in [default: thoughts]
    #[cfg_attr(feature = "clap", arg(long, value_enum))]
    pub scope: Option<DropoutScope>,

    /// Dropout: how long a trajectory keeps its masks [default: step]
    #[cfg_attr(feature = "clap", arg(long, value_enum))]
    pub mask: Option<MaskLifetime>,

    /// Noise: standard deviation of the Gaussian noise on every thought [default: the model's]
    #[cfg_attr(feature = "clap", arg(long, value_name = "STD"))]
    pub noise_std: Option<NoiseStd>,

    /// Softmax temperature of the answer tokens, which are sampled with every sampler
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "T", default_value_t = Self::default().temperature
    ))]
    pub temperature: Temperature,

    /// Answers sampled from each sequence of thoughts; must divide the number of samples
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "M", default_value_t = Self::default().answers_per_thoughts
    ))]
    pub answers_per_thoughts: NonZeroU32,

    /// Thoughts per trajectory [default: the model's]
    #[cfg_attr(feature = "clap", arg(long, visible_alias = "thoughts", value_name = "T"))]
    pub latent_length: Option<LatentLength>,

    /// Maximum number of answer tokens [default: the model's]
    #[cfg_attr(feature = "clap", arg(long, value_name = "COUNT"))]
    pub max_new_tokens: Option<NonZeroU32>,
}

/// Options of rewards, estimator and policy updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "Reinforcement learning"))]
#[serde(default)]
#[non_exhaustive]
pub struct PolicyOptions {
    /// Reward of a trajectory
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value = "correct"))]
    pub reward: RewardKind,

    /// Reward model for --reward model: a directory, a Hub id, or `embedded`
    #[cfg_attr(feature = "clap", arg(long, value_name = "DIR"))]
    pub reward_model: Option<String>,

    /// Penalty subtracted from the reward for each thought and each answer token
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "REWARD", default_value_t = Self::default().length_penalty
    ))]
    pub length_penalty: f32,

    /// Advantage estimator: how the rewards of a group become weights of its trajectories
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value = "rloo"))]
    pub estimator: Estimator,

    /// How the gradient reaches sampled thoughts
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value = "pathwise"))]
    pub thought_gradient: ThoughtGradient,

    /// Normalization of the loss: the unit that an optimizer step averages over
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value = "token"))]
    pub loss_norm: LossNorm,

    /// Optimizer steps per round of sampling; steps after the first are off-policy and use clipped
    /// importance ratios
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", default_value_t = Self::default().updates
    ))]
    pub updates: NonZeroU32,

    /// How far below 1 an importance ratio may be before its gradient is clipped
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "SHARE", default_value_t = Self::default().clip_ratio
    ))]
    pub clip_ratio: f32,

    /// How far above 1 an importance ratio may be before its gradient is clipped
    /// [default: --clip-ratio]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SHARE"))]
    pub clip_ratio_high: Option<f32>,

    /// Weight of the KL divergence from the initial model; 0 disables it and saves the memory of a
    /// second copy of the model
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "WEIGHT", default_value_t = Self::default().kl_coef
    ))]
    pub kl_coef: f32,

    /// Include groups whose rewards are all equal in averages, although their advantages are zero
    #[cfg_attr(feature = "clap", arg(long))]
    pub keep_equal_groups: bool,

    /// Exclude trajectories that reach --max-new-tokens from the loss, instead of rewarding them as
    /// wrong answers
    #[cfg_attr(feature = "clap", arg(long))]
    pub mask_truncated: bool,

    /// Maximum number of trajectories per forward and backward pass; fewer use less memory
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", default_value_t = Self::default().pass_trajectories
    ))]
    pub pass_trajectories: NonZeroUsize,

    /// Samples per held-out problem, for majority and coverage
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", default_value_t = Self::default().eval_samples
    ))]
    pub eval_samples: NonZeroUsize,

    /// Held-out metric that selects the best model
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value = "greedy"))]
    pub select: SelectionMetric,
}

impl Default for RlTrainerOptions {
    fn default() -> Self {
        Self {
            model: "embedded".to_owned(),
            data: Vec::new(),
            held_out: None,
            held_out_count: 200,
            fields: FieldNames::default(),
            rollout: RolloutOptions::default(),
            policy: PolicyOptions::default(),
            lora: LoraOptions::default(),
            training: TrainingOptions {
                steps: NonZeroU32::MIN.saturating_add(199),
                batch: count(32),
                lr: 1e-5,
                warmup: Warmup::Steps(10),
                min_lr_ratio: 1.0,
                weight_decay: 0.0,
                beta2: 0.95,
                dropout: 0.0,
                eval_every: 20,
                max_loss_ratio: 2.0,
                ..TrainingOptions::default()
            },
        }
    }
}

impl Default for RolloutOptions {
    fn default() -> Self {
        Self {
            samples: NonZeroU32::MIN.saturating_add(15),
            sampler: None,
            dropout_p: None,
            sites: None,
            scope: None,
            mask: None,
            noise_std: None,
            temperature: Temperature::ONE,
            answers_per_thoughts: NonZeroU32::MIN,
            latent_length: None,
            max_new_tokens: None,
        }
    }
}

impl Default for PolicyOptions {
    fn default() -> Self {
        Self {
            reward: RewardKind::Correct,
            reward_model: None,
            length_penalty: 0.0,
            estimator: Estimator::Rloo,
            thought_gradient: ThoughtGradient::Pathwise,
            loss_norm: LossNorm::Token,
            updates: NonZeroU32::MIN,
            clip_ratio: 0.2,
            clip_ratio_high: None,
            kl_coef: 0.0,
            keep_equal_groups: false,
            mask_truncated: false,
            pass_trajectories: count(1024),
            eval_samples: count(16),
            select: SelectionMetric::Greedy,
        }
    }
}

impl Serialize for RlTrainerOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// The defaults with the given fields. The flattened options have other defaults than in
/// [`super::TrainerOptions`], so serde's own defaults cannot be used.
impl<'de> Deserialize<'de> for RlTrainerOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = Map::<String, Value>::deserialize(deserializer)?;
        let defaults = Self::default();
        names::check_fields(&given, &defaults).map_err(D::Error::custom)?;
        let defaults = serde_json::to_value(&defaults).map_err(D::Error::custom)?;
        let defaults = defaults.as_object().cloned().unwrap_or_default();
        let merge = |given: Map<String, Value>| {
            let mut fields = defaults.clone();
            fields.extend(given);
            Self::deserialize(Value::Object(fields))
        };
        merge(given.clone()).map_err(|error| {
            let field_error = |(name, value): (&String, &Value)| {
                let error = merge(Map::from_iter([(name.clone(), value.clone())])).err()?;
                Some(format!("`{name}`: {error}"))
            };
            let named = given.iter().find_map(field_error);
            D::Error::custom(named.unwrap_or_else(|| error.to_string()))
        })
    }
}

impl RlTrainerOptions {
    /// The defaults with the given fields. Unknown names and invalid values are errors.
    pub fn from_fields(fields: Map<String, Value>) -> Result<Self, TrainError> {
        serde_json::from_value(Value::Object(fields)).map_err(numbers::invalid)
    }

    /// Checks the range of every number and the combinations of options.
    pub fn check(&self) -> Result<(), TrainError> {
        numbers::check(self)?;
        self.lora.check()?;
        let samples = self.rollout.samples.get();
        let answers = self.rollout.answers_per_thoughts.get();
        refuse(
            samples < 2,
            "`samples` 1 leaves no group to compare rewards in; use at least 2".to_owned(),
        )?;
        refuse(
            !samples.is_multiple_of(answers),
            format!("`samples` {samples} is not a multiple of `answers_per_thoughts` {answers}"),
        )?;
        let policy = &self.policy;
        refuse(
            (policy.reward == RewardKind::Model) != policy.reward_model.is_some(),
            "`reward` model and `reward_model` require each other; pass both or neither".to_owned(),
        )?;
        refuse(
            policy.clip_ratio_high.is_some_and(|high| high.is_nan() || high < 0.0),
            "`clip_ratio_high` must be at least 0".to_owned(),
        )?;
        refuse(
            self.training.dropout > 0.0 || self.lora.dropout > 0.0,
            "`dropout` and `lora_dropout` would change the sampled trajectories when their \
             gradient is computed; omit them (the policy's dropout is `dropout_p`)"
                .to_owned(),
        )
    }

    /// The sampling parameters for a model.
    pub fn sampling_params(&self, method: &Method) -> Result<SamplingParams, TrainError> {
        let RolloutOptions { sampler, dropout_p, sites, scope, mask, noise_std, .. } = self.rollout;
        let options =
            SamplingOptions { sampler, dropout_p, sites, scope, mask, noise_std, ..<_>::default() };
        let length = self.rollout.latent_length.unwrap_or(method.length);
        let defaults = ModelDefaults { latent_length: length, ..ModelDefaults::from(method) };
        let perturbation = options
            .perturbation(&defaults)
            .map_err(|error| TrainError::Options { reason: error.to_string() })?;
        let temperature = self.rollout.temperature;
        let perturbation = match perturbation {
            Perturbation::Tokens { .. } => Perturbation::Tokens { temperature, top_p: TopP::ONE },
            other @ (Perturbation::Dropout { .. } | Perturbation::Gaussian { .. }) => other,
            _ => {
                let reason = "`sampler` must be dropout, noise or tokens: only their trajectories \
                              can be replayed for the gradient";
                return Err(TrainError::Options { reason: reason.to_owned() });
            }
        };
        refuse(
            self.policy.thought_gradient == ThoughtGradient::Density
                && !matches!(perturbation, Perturbation::Gaussian { .. }),
            "`thought_gradient` density requires noise on the thoughts; pass `sampler` noise, or \
             omit it"
                .to_owned(),
        )?;
        let tokens =
            self.rollout.max_new_tokens.map(|tokens| NonZeroUsize::new(tokens.get() as usize));
        let base = SamplingParams::defaults_for(method);
        Ok(SamplingParams {
            samples: count(self.rollout.samples.get() as usize),
            perturbation,
            length,
            max_new_tokens: tokens.flatten().unwrap_or(base.max_new_tokens),
            seed: self.training.seed,
            ..base
        })
    }

    /// The task's settings for a model.
    pub fn settings(&self, method: &Method) -> Result<RlSettings, TrainError> {
        let Self { rollout, policy, training, .. } = self;
        let params = self.sampling_params(method)?;
        Ok(RlSettings {
            rollout: RolloutConfig {
                params,
                temperature: rollout.temperature.get(),
                per_thoughts: rollout.answers_per_thoughts,
                reward: RewardConfig {
                    kind: policy.reward,
                    length_penalty: f64::from(policy.length_penalty),
                },
                estimator: policy.estimator,
                mask_truncated: policy.mask_truncated,
                thoughts: policy.thought_gradient,
            },
            batch_size: training.batch.get(),
            accumulation_steps: training.accumulate.get(),
            updates: policy.updates.get(),
            clip: ClipRange {
                low: policy.clip_ratio,
                high: policy.clip_ratio_high.unwrap_or(policy.clip_ratio),
            },
            kl_coef: policy.kl_coef,
            filter_groups: !policy.keep_equal_groups,
            loss_norm: policy.loss_norm,
            pass_trajectories: policy.pass_trajectories.get(),
            evaluation: EvaluationConfig {
                params,
                samples: policy.eval_samples,
                select: policy.select,
            },
        })
    }
}

fn refuse(is_wrong: bool, reason: String) -> Result<(), TrainError> {
    match is_wrong {
        true => Err(TrainError::Options { reason }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(value: Value) -> Result<RlTrainerOptions, TrainError> {
        RlTrainerOptions::from_fields(value.as_object().cloned().unwrap_or_default())
    }

    #[test]
    fn options_round_trip_over_their_own_defaults() {
        let defaults = RlTrainerOptions::default();
        assert_eq!(options(json!({})).unwrap(), defaults);
        assert_eq!(options(serde_json::to_value(&defaults).unwrap()).unwrap(), defaults);
        let given = options(json!({ "steps": 7, "sampler": "noise", "mask": null })).unwrap();
        assert_eq!((given.training.steps.get(), given.training.lr), (7, defaults.training.lr));
        assert!(defaults.check().is_ok());
    }

    #[test]
    fn conflicting_options_are_rejected() {
        for (given, expected) in [
            (json!({ "samples": 1 }), "`samples` 1"),
            (json!({ "samples": 8, "answers_per_thoughts": 3 }), "`answers_per_thoughts` 3"),
            (json!({ "dropout": 0.1 }), "`dropout_p`"),
            (json!({ "clip_ratio": 1.5 }), "`clip_ratio` 1.5"),
            (json!({ "kl_coef": -1 }), "`kl_coef` -1"),
            (json!({ "clip_ratio_high": -1 }), "`clip_ratio_high`"),
            (json!({ "reward": "model" }), "`reward_model`"),
        ] {
            let error = options(given).unwrap().check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = options(json!({ "estimatr": "rloo" })).unwrap_err().to_string();
        assert!(error.contains("did you mean `estimator`"), "{error}");
        let error = options(json!({ "temperature": 0 })).unwrap_err().to_string();
        assert!(error.contains("temperature"), "{error}");
    }
}
