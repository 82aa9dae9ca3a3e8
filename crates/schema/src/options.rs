//! Sampling options, accepted by every interface. Fields are declared only here.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::str::FromStr;

use aggregate::{Calibration, Confidence, Rule, VoteParams};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::defaults::ModelDefaults;
use crate::latent_length::LatentLength;
use crate::latent_sampler::CustomSampler;
use crate::number::{NoiseStd, PositiveWeight, Probability, Temperature, TopP, Weight};
use crate::params::{AdaptiveSampling, ColdStop, SamplingParams, Search, SearchMethod};
use crate::perturbation::{DropoutScope, DropoutSites, MaskLifetime, OneSidedNoise, Perturbation};

/// How to sample and aggregate. Omitted fields take the model's defaults.
///
/// The doc comment of a field is its help text on the command line and its description in the
/// JSON schema.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Sampling"))]
pub struct SamplingOptions {
    /// Number of trajectories per question, N
    #[serde(alias = "n", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "clap",
        arg(long, short = 'n', value_name = "N", visible_alias = "trajectories")
    )]
    pub samples: Option<NonZeroU32>,

    /// The sampler that makes trajectories differ: dropout, noise, gumbel, multiplex, tokens or
    /// none [default: the sampler of the given options, otherwise dropout; tokens for models
    /// without thoughts, gumbel for soft thoughts]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_enum))]
    pub sampler: Option<SamplerKind>,

    /// Dropout: probability of dropping an element, at least 0 and below 1 [default: the value in
    /// the model's config.json (`latent_tts`), otherwise the paper's for the backbone]
    #[serde(alias = "p", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "clap",
        arg(long, alias = "p", value_name = "P", allow_negative_numbers = true)
    )]
    pub dropout_p: Option<Probability>,

    /// Dropout: block outputs to apply it to [default: both for GPT-2, mlp for Llama and Qwen]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_enum))]
    pub sites: Option<DropoutSites>,

    /// Dropout: forward passes to apply it in [default: thoughts, or generated for models without
    /// thoughts]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_enum))]
    pub scope: Option<DropoutScope>,

    /// Dropout: how long a trajectory keeps its masks [default: step]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_enum))]
    pub mask: Option<MaskLifetime>,

    /// Noise: standard deviation of the Gaussian noise on every thought [default: the value in the
    /// model's config.json, otherwise the paper's for the backbone]
    #[serde(alias = "sigma", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "clap",
        arg(long, alias = "sigma", value_name = "STD", allow_negative_numbers = true)
    )]
    pub noise_std: Option<NoiseStd>,

    /// Gumbel: temperature of the mixtures, above 0; low values approach single tokens, high values
    /// even weights [default: 1]
    #[serde(alias = "tau", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "clap",
        arg(long, alias = "tau", value_name = "TAU", allow_negative_numbers = true)
    )]
    pub gumbel_tau: Option<Temperature>,

    /// Gumbel: use one-sided noise on the nucleus (top_p) and the tokens of the mixture, as in
    /// Latent-GRPO [default: false]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(),
    ))]
    pub one_sided: Option<bool>,

    /// Gumbel: scale of one-sided noise, above 0 [default: 1]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "FACTOR", allow_negative_numbers = true))]
    pub gumbel_scale: Option<Temperature>,

    /// Multiplex: number of sampled tokens averaged per thought [default: 3]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "K"))]
    pub multiplex_width: Option<NonZeroU32>,

    /// Tokens, multiplex: softmax temperature, above 0 [default: 1]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "T", allow_negative_numbers = true))]
    pub temperature: Option<Temperature>,

    /// Tokens, multiplex, one-sided gumbel: sample from the smallest set of tokens with this total
    /// probability, above 0 and at most 1 [default: 1, or 0.95 for one-sided gumbel]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SHARE", allow_negative_numbers = true))]
    pub top_p: Option<TopP>,

    /// Number of thoughts per trajectory: 6 for exactly six, <=64 to let the model end them, 4-6
    /// for a random number in the range, 0 for none [default: the value in the model's config.json,
    /// otherwise the family's]
    #[serde(alias = "thoughts", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, visible_alias = "thoughts", value_name = "T"))]
    pub latent_length: Option<LatentLength>,

    /// Soft thinking: end the thoughts when the entropy of the next token, in nats, stays below
    /// this threshold (Cold Stop); 0 disables it [default: the method's]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NATS", allow_negative_numbers = true))]
    pub cold_stop_entropy: Option<Weight>,

    /// Soft thinking: number of consecutive low-entropy thoughts that end thinking [default: the
    /// method's]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "COUNT"))]
    pub cold_stop_steps: Option<NonZeroU32>,

    /// Maximum number of answer tokens [default: the value in the model's config.json, otherwise
    /// the family's]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "COUNT"))]
    pub max_new_tokens: Option<NonZeroU32>,

    /// Also run the greedy (unperturbed) trajectory
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(),
    ))]
    pub greedy: Option<bool>,

    /// Random seed [default: 0]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long))]
    pub seed: Option<u64>,

    /// Voting rule that selects the returned answer [default: weighted with outcome rewards,
    /// normalized with process rewards, majority without rewards]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    #[cfg_attr(feature = "clap", arg(long, value_name = "RULE", help_heading = "Aggregation"))]
    pub rule: Option<Rule>,

    /// Softmax temperature of the rules normalized, likelihood and combined; low values follow the
    /// signal, high values approach a majority vote [default: 1]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "T", allow_negative_numbers = true, help_heading = "Aggregation",)
    )]
    pub vote_temperature: Option<PositiveWeight>,

    /// Rule combined: weight of the log-probability relative to the reward [default: 1]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "clap",
        arg(
            long,
            value_name = "WEIGHT",
            allow_negative_numbers = true,
            help_heading = "Aggregation",
        )
    )]
    pub likelihood_weight: Option<Weight>,

    /// Rule lcb: number of standard errors between the mean reward and its lower bound [default: 1]
    #[serde(alias = "caution", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "clap",
        arg(
            long,
            alias = "caution",
            value_name = "C",
            allow_negative_numbers = true,
            help_heading = "Aggregation",
        )
    )]
    pub lcb_coefficient: Option<Weight>,

    /// Verify the arithmetic of equations in written steps, or in thoughts decoded by the LM head;
    /// adds the signals arithmetic, grounding and conclusion to each trajectory
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(),
        help_heading = "Aggregation",
    ))]
    pub check_steps: Option<bool>,

    /// Weights of the rule calibrated and parameters of the confidence (the probability that the
    /// answer is correct), written by `calibrate`: a JSON file, or an object with weights, slope
    /// and intercept
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<CalibrationSchema>"))]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "FILE.json", value_parser = read_calibration, help_heading = "Aggregation")
    )]
    pub calibration: Option<Calibration>,

    /// Also run a search over thoughts guided by rewards (see search)
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(),
        help_heading = "Aggregation",
    ))]
    pub beam: Option<bool>,

    /// How the search selects the paths that it continues; giving a method also runs the search
    /// [default: beam]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_enum, help_heading = "Aggregation"))]
    pub search: Option<SearchMethod>,

    /// Search: number of beams, particles or subtrees kept per step [default: sqrt(samples),
    /// rounded; samples with particles]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "B", help_heading = "Aggregation"))]
    pub beam_width: Option<NonZeroU32>,

    /// Search: number of candidate extensions per beam or subtree [default: sqrt(samples), rounded]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "K", help_heading = "Aggregation"))]
    pub beam_candidates: Option<NonZeroU32>,

    /// Particles: temperature of the softmax over rewards by which they are resampled, above 0
    /// [default: 1]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "T", allow_negative_numbers = true, help_heading = "Aggregation")
    )]
    pub search_temperature: Option<PositiveWeight>,

    /// Stop sampling a question when its vote can no longer change, or when the majority answer
    /// leads by enough (see target confidence)
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(),
        help_heading = "Aggregation",
    ))]
    pub adaptive: Option<bool>,

    /// Adaptive sampling: confidence in the leading answer at which to stop, above 0.5 and at most
    /// 1; 1 stops only when no further trajectory can change the vote [default: 0.95]
    #[serde(alias = "confidence", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<f64>"))]
    #[cfg_attr(
        feature = "clap",
        arg(
            long,
            alias = "confidence",
            value_name = "SHARE",
            allow_negative_numbers = true,
            help_heading = "Aggregation",
        )
    )]
    pub target_confidence: Option<Confidence>,
}

/// The fields of [`Calibration`], for the JSON schema.
#[cfg(feature = "json-schema")]
#[derive(schemars::JsonSchema)]
#[schemars(rename = "Calibration")]
#[expect(dead_code, reason = "only its schema is used")]
struct CalibrationSchema {
    /// The weight of each signal: votes, likelihood, reward, probe, arithmetic, grounding,
    /// conclusion.
    weights: std::collections::BTreeMap<String, f64>,
    /// The confidence is sigmoid(intercept + slope * logit(P)), where P is the selected answer's
    /// weight in the vote.
    slope: f64,
    /// See `slope`.
    intercept: f64,
}

/// Parses a calibration from a file or from inline JSON. Only the command line reads files; other
/// interfaces take the object.
#[cfg(feature = "clap")]
fn read_calibration(text: &str) -> Result<Calibration, String> {
    let json = match text.trim_start().starts_with('{') {
        true => text.to_owned(),
        false => std::fs::read_to_string(text)
            .map_err(|error| format!("{error}; pass a file that `calibrate` wrote"))?,
    };
    serde_json::from_str(&json)
        .map_err(|error| format!("not a calibration: {error}; pass a file that `calibrate` wrote"))
}

/// The sampler that makes trajectories differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "json-schema",
    derive(schemars::JsonSchema),
    schemars(inline, rename_all = "snake_case")
)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum SamplerKind {
    /// Monte Carlo dropout (dropout_p, sites, scope, mask)
    Dropout,
    /// Gaussian noise on every thought (noise_std)
    Noise,
    /// Gumbel noise on thoughts that are mixtures of token embeddings (gumbel_tau, one_sided)
    Gumbel,
    /// Thoughts that average the embeddings of sampled tokens (multiplex_width, temperature, top_p)
    Multiplex,
    /// Sampled answer tokens (temperature, top_p)
    Tokens,
    /// No perturbation: all trajectories are identical
    None,
    /// A registered user-defined sampler, selected by name
    #[cfg_attr(feature = "json-schema", schemars(skip))]
    #[cfg_attr(feature = "clap", value(skip))]
    Custom(CustomSampler),
}

impl SamplerKind {
    /// All built-in samplers.
    pub const BUILT_IN: [Self; 6] =
        [Self::Dropout, Self::Noise, Self::Gumbel, Self::Multiplex, Self::Tokens, Self::None];

    /// The name in every interface.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dropout => "dropout",
            Self::Noise => "noise",
            Self::Gumbel => "gumbel",
            Self::Multiplex => "multiplex",
            Self::Tokens => "tokens",
            Self::None => "none",
            Self::Custom(sampler) => sampler.name(),
        }
    }
}

impl Serialize for SamplerKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for SamplerKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SamplerKind {
    type Err = SamplingError;

    fn from_str(name: &str) -> Result<Self, SamplingError> {
        let built_in = Self::BUILT_IN.into_iter().find(|kind| kind.name() == name);
        let known = built_in.or_else(|| CustomSampler::from_name(name).map(Self::Custom));
        known.ok_or_else(|| SamplingError::UnknownSampler(name.to_owned()))
    }
}

/// Contradicting options. Messages name fields as in JSON; interfaces with another spelling use
/// [`SamplingError::fields`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A field that the requested sampler does not have.
    #[error("{field} has no effect with sampler {sampler}; omit one of them")]
    Misplaced {
        /// The name of the field.
        field: &'static str,
        /// The requested sampler.
        sampler: SamplerKind,
    },
    /// Fields of two different samplers.
    #[error("{first} belongs to sampler {of} and {second} to sampler {other}; omit one of them")]
    Ambiguous {
        /// The name of the first field.
        first: &'static str,
        /// The sampler of the first field.
        of: SamplerKind,
        /// The name of the second field.
        second: &'static str,
        /// The sampler of the second field.
        other: SamplerKind,
    },
    /// A field of a feature that is disabled.
    #[error("{field} has no effect with {switch} off; omit one of them")]
    SwitchedOff {
        /// The name of the field.
        field: &'static str,
        /// The option that disables the feature.
        switch: &'static str,
    },
    /// A field that the requested search method does not have.
    #[error("{field} has no effect with search {search}; omit one of them")]
    NotOfSearch {
        /// The name of the field.
        field: &'static str,
        /// The name of the search method.
        search: &'static str,
    },
    /// Not the name of a sampler.
    #[error("unknown sampler {0:?}; use one of dropout, noise, gumbel, multiplex, tokens, none")]
    UnknownSampler(String),
}

impl SamplingError {
    /// The fields named in the message.
    pub fn fields(&self) -> Vec<&'static str> {
        match self {
            Self::Misplaced { field, .. } => vec![field, "sampler"],
            Self::Ambiguous { first, second, .. } => vec![first, second],
            Self::SwitchedOff { field, switch } => vec![field, switch],
            Self::NotOfSearch { field, .. } => vec![field, "search"],
            Self::UnknownSampler(_) => vec!["sampler"],
        }
    }
}

/// The default target confidence of adaptive sampling.
const DEFAULT_CONFIDENCE: f64 = 0.95;
/// The default number of tokens averaged per multiplexed thought, as published.
const DEFAULT_MULTIPLEX: NonZeroU32 = NonZeroU32::new(3).unwrap();

impl SamplingOptions {
    /// The model's defaults with `samples` trajectories.
    pub fn new(samples: NonZeroU32) -> Self {
        Self { samples: Some(samples), ..Self::default() }
    }

    /// The same options, with omitted fields taken from `defaults`.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        Self {
            samples: self.samples.or(defaults.samples),
            sampler: self.sampler.or(defaults.sampler),
            dropout_p: self.dropout_p.or(defaults.dropout_p),
            sites: self.sites.or(defaults.sites),
            scope: self.scope.or(defaults.scope),
            mask: self.mask.or(defaults.mask),
            noise_std: self.noise_std.or(defaults.noise_std),
            gumbel_tau: self.gumbel_tau.or(defaults.gumbel_tau),
            one_sided: self.one_sided.or(defaults.one_sided),
            gumbel_scale: self.gumbel_scale.or(defaults.gumbel_scale),
            multiplex_width: self.multiplex_width.or(defaults.multiplex_width),
            temperature: self.temperature.or(defaults.temperature),
            top_p: self.top_p.or(defaults.top_p),
            latent_length: self.latent_length.or(defaults.latent_length),
            cold_stop_entropy: self.cold_stop_entropy.or(defaults.cold_stop_entropy),
            cold_stop_steps: self.cold_stop_steps.or(defaults.cold_stop_steps),
            max_new_tokens: self.max_new_tokens.or(defaults.max_new_tokens),
            greedy: self.greedy.or(defaults.greedy),
            seed: self.seed.or(defaults.seed),
            rule: self.rule.or(defaults.rule),
            vote_temperature: self.vote_temperature.or(defaults.vote_temperature),
            likelihood_weight: self.likelihood_weight.or(defaults.likelihood_weight),
            lcb_coefficient: self.lcb_coefficient.or(defaults.lcb_coefficient),
            check_steps: self.check_steps.or(defaults.check_steps),
            calibration: self.calibration.or(defaults.calibration),
            beam: self.beam.or(defaults.beam),
            search: self.search.or(defaults.search),
            beam_width: self.beam_width.or(defaults.beam_width),
            beam_candidates: self.beam_candidates.or(defaults.beam_candidates),
            search_temperature: self.search_temperature.or(defaults.search_temperature),
            adaptive: self.adaptive.or(defaults.adaptive),
            target_confidence: self.target_confidence.or(defaults.target_confidence),
        }
    }

    /// Only the sampler and its fields.
    #[must_use]
    pub fn of_sampler(&self) -> Self {
        Self {
            sampler: self.sampler,
            dropout_p: self.dropout_p,
            sites: self.sites,
            scope: self.scope,
            mask: self.mask,
            noise_std: self.noise_std,
            gumbel_tau: self.gumbel_tau,
            one_sided: self.one_sided,
            gumbel_scale: self.gumbel_scale,
            multiplex_width: self.multiplex_width,
            temperature: self.temperature,
            top_p: self.top_p,
            ..Self::default()
        }
    }

    /// The fields that belong to samplers, each with the samplers that read it.
    const SAMPLER_FIELDS: [(&str, &[SamplerKind]); 11] = {
        use SamplerKind::{Dropout, Gumbel, Multiplex, Noise, Tokens};
        [
            ("dropout_p", &[Dropout]),
            ("sites", &[Dropout]),
            ("scope", &[Dropout]),
            ("mask", &[Dropout]),
            ("noise_std", &[Noise]),
            ("gumbel_tau", &[Gumbel]),
            ("one_sided", &[Gumbel]),
            ("gumbel_scale", &[Gumbel]),
            ("multiplex_width", &[Multiplex]),
            ("temperature", &[Tokens, Multiplex]),
            ("top_p", &[Tokens, Multiplex, Gumbel]),
        ]
    };

    /// The fields that a sampler reads, by name.
    pub fn fields_of(kind: SamplerKind) -> Vec<&'static str> {
        let fields = Self::SAMPLER_FIELDS.into_iter();
        fields.filter(|(_, kinds)| kinds.contains(&kind)).map(|(field, _)| field).collect()
    }

    /// The given sampler fields, each with the samplers that use it.
    fn sampler_fields(&self) -> impl Iterator<Item = (&'static str, &'static [SamplerKind])> {
        let given = [
            self.dropout_p.is_some(),
            self.sites.is_some(),
            self.scope.is_some(),
            self.mask.is_some(),
            self.noise_std.is_some(),
            self.gumbel_tau.is_some(),
            self.one_sided.is_some(),
            self.gumbel_scale.is_some(),
            self.multiplex_width.is_some(),
            self.temperature.is_some(),
            self.top_p.is_some(),
        ];
        let fields = Self::SAMPLER_FIELDS.into_iter().zip(given);
        fields.filter(|(_, given)| *given).map(|(field, _)| field)
    }

    /// The requested sampler, or the sampler of the given fields.
    ///
    /// # Errors
    ///
    /// If a given field belongs to another sampler, or if `top_p` or `gumbel_scale` is given for
    /// Gumbel noise that is not one-sided.
    pub fn sampler_kind(&self) -> Result<Option<SamplerKind>, SamplingError> {
        let Some((first, kinds)) = self.sampler_fields().next() else { return Ok(self.sampler) };
        let admits = |kind: SamplerKind| self.sampler_fields().all(|(_, of)| of.contains(&kind));
        let kind = match self.sampler {
            Some(kind) => kind,
            None => kinds.iter().copied().find(|kind| admits(*kind)).unwrap_or(kinds[0]),
        };
        let stranger = self.sampler_fields().find(|(_, of)| !of.contains(&kind));
        match (stranger, self.sampler) {
            (None, _) => self.check_one_sided(kind),
            (Some((field, _)), Some(sampler)) => Err(SamplingError::Misplaced { field, sampler }),
            (Some((second, of)), None) => {
                Err(SamplingError::Ambiguous { first, of: kind, second, other: of[0] })
            }
        }
    }

    /// Rejects `top_p` and `gumbel_scale` unless Gumbel noise is one-sided.
    fn check_one_sided(&self, kind: SamplerKind) -> Result<Option<SamplerKind>, SamplingError> {
        let is_plain = kind == SamplerKind::Gumbel && self.one_sided != Some(true);
        let needs =
            [("top_p", self.top_p.is_some()), ("gumbel_scale", self.gumbel_scale.is_some())];
        match needs.into_iter().find(|(_, given)| is_plain && *given) {
            Some((field, _)) => Err(SamplingError::SwitchedOff { field, switch: "one_sided" }),
            None => Ok(Some(kind)),
        }
    }

    /// The perturbation for a model; the model's default if the options select no sampler.
    ///
    /// # Errors
    ///
    /// If a given field belongs to another sampler.
    pub fn perturbation(&self, model: &ModelDefaults) -> Result<Perturbation, SamplingError> {
        let model = ModelDefaults {
            latent_length: self.latent_length.unwrap_or(model.latent_length),
            ..*model
        };
        let dropout = |p| Perturbation::Dropout {
            p,
            sites: self.sites.unwrap_or(model.sites),
            scope: self.scope.unwrap_or_else(|| DropoutScope::default_for(model.latent_length)),
            mask: self.mask.unwrap_or_default(),
        };
        Ok(match self.sampler_kind()? {
            None => SamplingParams::defaults_for(model).perturbation,
            Some(SamplerKind::None) => Perturbation::None,
            Some(SamplerKind::Custom(sampler)) => Perturbation::Custom(sampler),
            Some(SamplerKind::Dropout) => {
                let p = self.dropout_p.or_else(|| Probability::new(model.dropout_p));
                p.map_or(Perturbation::None, dropout)
            }
            Some(SamplerKind::Noise) => Perturbation::Gaussian {
                std: self.noise_std.map_or(model.noise_std, NoiseStd::get),
            },
            Some(SamplerKind::Gumbel) => Perturbation::Gumbel {
                tau: self.gumbel_tau.unwrap_or(Temperature::ONE),
                one_sided: self.one_sided.filter(|one_sided| *one_sided).map(|_| OneSidedNoise {
                    scale: self.gumbel_scale.unwrap_or(Temperature::ONE),
                    top_p: self.top_p.unwrap_or(OneSidedNoise::TOP_P),
                }),
            },
            Some(SamplerKind::Multiplex) => Perturbation::Multiplex {
                width: self.multiplex_width.unwrap_or(DEFAULT_MULTIPLEX),
                temperature: self.temperature.unwrap_or(Temperature::ONE),
                top_p: self.top_p.unwrap_or(TopP::ONE),
            },
            Some(SamplerKind::Tokens) => Perturbation::Tokens {
                temperature: self.temperature.unwrap_or(Temperature::ONE),
                top_p: self.top_p.unwrap_or(TopP::ONE),
            },
        })
    }

    /// The parameters of the voting rules.
    pub fn vote_params(&self) -> VoteParams {
        let defaults = VoteParams::default();
        VoteParams {
            temperature: self.vote_temperature.map_or(defaults.temperature, PositiveWeight::get),
            likelihood_weight: self
                .likelihood_weight
                .map_or(defaults.likelihood_weight, Weight::get),
            lcb_coefficient: self.lcb_coefficient.map_or(defaults.lcb_coefficient, Weight::get),
            calibration: self.calibration,
        }
    }

    /// The Cold Stop parameters: given values over the model's defaults.
    fn cold_stop(&self, model: &ModelDefaults) -> Option<ColdStop> {
        let given = self.cold_stop_entropy.is_some() || self.cold_stop_steps.is_some();
        let base = model.cold_stop.or(given.then_some(ColdStop::PUBLISHED))?;
        let entropy = self.cold_stop_entropy.map_or(base.entropy, |nats| nats.get() as f32);
        let steps = self.cold_stop_steps.unwrap_or(base.steps);
        Some(ColdStop { entropy, steps })
    }

    /// The given fields of the search.
    fn search_fields(&self) -> [(&'static str, bool); 4] {
        [
            ("search", self.search.is_some()),
            ("beam_width", self.beam_width.is_some()),
            ("beam_candidates", self.beam_candidates.is_some()),
            ("search_temperature", self.search_temperature.is_some()),
        ]
    }

    /// Whether the options ask for a search.
    pub fn searches(&self) -> bool {
        self.beam == Some(true) || self.search_fields().iter().any(|(_, given)| *given)
    }

    fn search_params(&self, samples: NonZeroUsize) -> Result<Option<Search>, SamplingError> {
        let given = self.search_fields().into_iter().find(|(_, given)| *given);
        match (self.beam, given) {
            (Some(false), Some((field, _))) => {
                return Err(SamplingError::SwitchedOff { field, switch: "beam" });
            }
            (Some(false), None) | (None, None) => return Ok(None),
            (Some(true), _) | (None, Some(_)) => {}
        }
        let implied = match self.search_temperature {
            Some(_) => SearchMethod::Particles,
            None => SearchMethod::Beam,
        };
        let method = self.search.unwrap_or(implied);
        let is_particles = method == SearchMethod::Particles;
        let foreign = match is_particles {
            true => ("beam_candidates", self.beam_candidates.is_some_and(|k| k.get() > 1)),
            false => ("search_temperature", self.search_temperature.is_some()),
        };
        if let (field, true) = foreign {
            return Err(SamplingError::NotOfSearch { field, search: method.name() });
        }
        let default = Search::for_samples(method, samples);
        Ok(Some(Search {
            method,
            width: self.beam_width.map_or(default.width, to_usize),
            candidates: self.beam_candidates.map_or(default.candidates, to_usize),
            temperature: self.search_temperature.map_or(1.0, PositiveWeight::get),
        }))
    }

    fn adaptive_sampling(&self) -> Result<Option<AdaptiveSampling>, SamplingError> {
        match (self.adaptive, self.target_confidence) {
            (Some(false), Some(_)) => {
                Err(SamplingError::SwitchedOff { field: "target_confidence", switch: "adaptive" })
            }
            (None | Some(true), Some(confidence)) => Ok(Some(AdaptiveSampling { confidence })),
            (Some(true), None) => {
                let confidence = Confidence::new(DEFAULT_CONFIDENCE);
                Ok(confidence.map(|confidence| AdaptiveSampling { confidence }))
            }
            (None | Some(false), None) => Ok(None),
        }
    }

    /// The complete parameters for a model: given values over the model's defaults.
    ///
    /// # Errors
    ///
    /// If fields contradict one another.
    pub fn resolve(
        &self,
        model: impl Into<ModelDefaults>,
    ) -> Result<SamplingParams, SamplingError> {
        let model = model.into();
        let samples = self.samples.map_or(NonZeroUsize::MIN, to_usize);
        Ok(SamplingParams {
            samples,
            greedy: self.greedy.unwrap_or(false),
            adaptive: self.adaptive_sampling()?,
            search: self.search_params(samples)?,
            perturbation: self.perturbation(&model)?,
            length: self.latent_length.unwrap_or(model.latent_length),
            cold_stop: self.cold_stop(&model),
            max_new_tokens: self.max_new_tokens.map_or(model.max_new_tokens, to_usize),
            seed: self.seed.unwrap_or(0),
            check_steps: self.check_steps.unwrap_or(false),
            rule: self.rule,
            vote: self.vote_params(),
        })
    }
}

fn to_usize(n: NonZeroU32) -> NonZeroUsize {
    NonZeroUsize::try_from(n).unwrap_or(NonZeroUsize::MAX)
}

/// The shortest decimal of an f32, because widening adds digits.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

fn to_u32(n: NonZeroUsize) -> NonZeroU32 {
    NonZeroU32::try_from(n).unwrap_or(NonZeroU32::MAX)
}

impl From<Perturbation> for SamplingOptions {
    fn from(perturbation: Perturbation) -> Self {
        let open = Self::default();
        match perturbation {
            Perturbation::None => Self { sampler: Some(SamplerKind::None), ..open },
            Perturbation::Custom(sampler) => {
                Self { sampler: Some(SamplerKind::Custom(sampler)), ..open }
            }
            Perturbation::Dropout { p, sites, scope, mask } => Self {
                sampler: Some(SamplerKind::Dropout),
                dropout_p: Some(p),
                sites: Some(sites),
                scope: Some(scope),
                mask: Some(mask),
                ..open
            },
            Perturbation::Gaussian { std } => {
                Self { sampler: Some(SamplerKind::Noise), noise_std: NoiseStd::new(std), ..open }
            }
            Perturbation::Gumbel { tau, one_sided } => Self {
                sampler: Some(SamplerKind::Gumbel),
                gumbel_tau: Some(tau),
                one_sided: one_sided.map(|_| true),
                gumbel_scale: one_sided.map(|noise| noise.scale),
                top_p: one_sided.map(|noise| noise.top_p),
                ..open
            },
            Perturbation::Multiplex { width, temperature, top_p } => Self {
                sampler: Some(SamplerKind::Multiplex),
                multiplex_width: Some(width),
                temperature: Some(temperature),
                top_p: Some(top_p),
                ..open
            },
            Perturbation::Tokens { temperature, top_p } => Self {
                sampler: Some(SamplerKind::Tokens),
                temperature: Some(temperature),
                top_p: Some(top_p),
                ..open
            },
        }
    }
}

/// Complete options, which resolve to the same parameters for every model.
impl From<SamplingParams> for SamplingOptions {
    fn from(params: SamplingParams) -> Self {
        Self {
            samples: Some(to_u32(params.samples)),
            latent_length: Some(params.length),
            cold_stop_entropy: params.cold_stop.and_then(|stop| Weight::new(decimal(stop.entropy))),
            cold_stop_steps: params.cold_stop.map(|stop| stop.steps),
            max_new_tokens: Some(to_u32(params.max_new_tokens)),
            greedy: Some(params.greedy),
            seed: Some(params.seed),
            rule: params.rule,
            vote_temperature: PositiveWeight::new(params.vote.temperature),
            likelihood_weight: Weight::new(params.vote.likelihood_weight),
            lcb_coefficient: Weight::new(params.vote.lcb_coefficient),
            check_steps: params.check_steps.then_some(true),
            calibration: params.vote.calibration,
            beam: Some(params.search.is_some()),
            // A plain beam search is recorded as by earlier versions.
            search: params.search.map(|search| search.method).filter(|&m| m != SearchMethod::Beam),
            beam_width: params.search.map(|search| to_u32(search.width)),
            beam_candidates: params.search.map(|search| to_u32(search.candidates)),
            search_temperature: params
                .search
                .filter(|search| search.method == SearchMethod::Particles)
                .and_then(|search| PositiveWeight::new(search.temperature)),
            adaptive: Some(params.adaptive.is_some()),
            target_confidence: params.adaptive.map(|adaptive| adaptive.confidence),
            ..Self::from(params.perturbation)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MODEL: ModelDefaults = ModelDefaults {
        latent_length: LatentLength::Exactly(NonZeroUsize::new(6).unwrap()),
        max_new_tokens: NonZeroUsize::new(64).unwrap(),
        dropout_p: 0.2,
        noise_std: 0.6,
        sites: DropoutSites::BOTH,
        cold_stop: None,
        soft_thoughts: false,
    };

    fn resolve(options: Value) -> Result<SamplingParams, String> {
        let options: SamplingOptions =
            serde_json::from_value(options).map_err(|error| error.to_string())?;
        options.resolve(MODEL).map_err(|error| error.to_string())
    }

    #[test]
    fn open_fields_are_the_models() {
        let params = resolve(json!({})).unwrap();
        assert_eq!(params, SamplingParams::defaults_for(MODEL));
        assert!(matches!(params.perturbation, Perturbation::Dropout { p, .. } if p.get() == 0.2));
        let noise = resolve(json!({ "sampler": "noise" })).unwrap();
        assert_eq!(noise.perturbation, Perturbation::Gaussian { std: 0.6 });
        let text = resolve(json!({ "latent_length": 0 })).unwrap();
        assert!(matches!(text.perturbation, Perturbation::Tokens { .. }));
    }

    #[test]
    fn a_field_selects_its_sampler_and_excludes_the_others() {
        let noise = resolve(json!({ "noise_std": 0.5 })).unwrap();
        assert_eq!(noise.perturbation, Perturbation::Gaussian { std: 0.5 });
        let misplaced = resolve(json!({ "sampler": "noise", "dropout_p": 0.1 })).unwrap_err();
        assert_eq!(misplaced, "dropout_p has no effect with sampler noise; omit one of them");
        let ambiguous = resolve(json!({ "top_p": 0.9, "mask": "step" })).unwrap_err();
        assert!(ambiguous.contains("mask belongs to sampler dropout and top_p"), "{ambiguous}");
        let off = resolve(json!({ "beam": false, "beam_width": 4 })).unwrap_err();
        assert_eq!(off, "beam_width has no effect with beam off; omit one of them");
        assert!(resolve(json!({ "adaptive": false, "target_confidence": 0.9 })).is_err());
    }

    #[test]
    fn fields_of_several_samplers_follow_the_others() {
        let of = |options: Value| resolve(options).unwrap().perturbation;
        assert!(matches!(of(json!({ "top_p": 0.9 })), Perturbation::Tokens { .. }));
        let multiplex = of(json!({ "top_p": 0.9, "multiplex_width": 2 }));
        assert!(matches!(multiplex, Perturbation::Multiplex { .. }), "{multiplex:?}");
        let one_sided = of(json!({ "one_sided": true }));
        let expected = OneSidedNoise { scale: Temperature::ONE, top_p: OneSidedNoise::TOP_P };
        let expected = Perturbation::Gumbel { tau: Temperature::ONE, one_sided: Some(expected) };
        assert_eq!(one_sided, expected);
        for field in ["top_p", "gumbel_scale"] {
            let error = resolve(json!({ "sampler": "gumbel", field: 0.9 })).unwrap_err();
            assert!(error.contains(field) && error.contains("one_sided off"), "{error}");
        }
        assert!(resolve(json!({ "temperature": 0.5, "gumbel_tau": 1 })).is_err());
    }

    #[test]
    fn dropout_without_thoughts_applies_to_the_answer() {
        let params = resolve(json!({ "sampler": "dropout", "latent_length": 0 })).unwrap();
        let Perturbation::Dropout { scope, .. } = params.perturbation else { panic!("{params:?}") };
        assert_eq!(scope, DropoutScope::Generated);
        assert!(params.perturbation.affects_answer());
    }

    #[test]
    fn cold_stop_is_the_models_unless_given() {
        let soft = ModelDefaults { cold_stop: Some(ColdStop::PUBLISHED), ..MODEL };
        let of = |options: Value, model: ModelDefaults| {
            let options: SamplingOptions = serde_json::from_value(options).unwrap();
            options.resolve(model).unwrap().cold_stop
        };
        assert_eq!(of(json!({}), MODEL), None);
        assert_eq!(of(json!({}), soft), Some(ColdStop::PUBLISHED));
        assert!(!of(json!({ "cold_stop_entropy": 0 }), soft).unwrap().is_on());
        let given = of(json!({ "cold_stop_steps": 3 }), MODEL).unwrap();
        assert_eq!((given.steps.get(), given.entropy), (3, ColdStop::PUBLISHED.entropy));
    }

    #[test]
    fn unknown_fields_and_values_are_refused() {
        for (options, expected) in [
            (json!({ "sampels": 3 }), "unknown field `sampels`"),
            (json!({ "samples": 0 }), "nonzero"),
            (json!({ "dropout_p": 1 }), "at least 0 and below 1"),
            (json!({ "latent_length": "few" }), "is not a count"),
            (json!({ "rule": "best" }), "unknown rule"),
            (json!({ "sites": "none" }), "unknown variant"),
            (json!({ "target_confidence": 0.5 }), "above 0.5"),
        ] {
            let error = resolve(options).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn names_of_earlier_versions_are_read() {
        let old = json!({ "p": 0.1, "thoughts": 4, "caution": 2, "confidence": 0.9 });
        let new = json!({ "dropout_p": 0.1, "latent_length": 4, "lcb_coefficient": 2,
            "target_confidence": 0.9 });
        assert_eq!(resolve(old).unwrap(), resolve(new).unwrap());
    }

    #[test]
    fn parameters_are_complete_options() {
        for options in [
            json!({ "samples": 16, "dropout_p": 0.1, "sites": "mlp", "scope": "all",
                "mask": "trajectory", "seed": 7, "greedy": true }),
            json!({ "noise_std": 0.25, "latent_length": "<=64", "beam": true, "samples": 64 }),
            json!({ "gumbel_tau": 0.5, "rule": "lcb", "lcb_coefficient": 2.5, "adaptive": true }),
            json!({ "temperature": 0.7, "top_p": 0.95, "max_new_tokens": 9, "beam_width": 3 }),
            json!({ "one_sided": true, "gumbel_scale": 0.5, "top_p": 0.9, "gumbel_tau": 2 }),
            json!({ "multiplex_width": 4, "temperature": 0.6, "top_p": 0.9 }),
            json!({ "sampler": "none", "cold_stop_entropy": 0.05, "cold_stop_steps": 12 }),
            json!({ "scope": "generated", "latent_length": 0 }),
            json!({ "sampler": "none", "vote_temperature": 0.5, "likelihood_weight": 0 }),
            json!({ "check_steps": true, "calibration": {
                "weights": { "votes": 0.5, "probe": 1.5 }, "slope": 0.75, "intercept": -0.5 } }),
        ] {
            let params = resolve(options).unwrap();
            let recorded = serde_json::to_value(params).unwrap();
            let other_model = ModelDefaults { dropout_p: 0.9, noise_std: 9.0, ..MODEL };
            let read: SamplingOptions = serde_json::from_value(recorded.clone()).unwrap();
            assert_eq!(read.resolve(other_model).unwrap(), params, "{recorded}");
        }
    }

    #[test]
    fn defaults_fill_open_fields_only() {
        let given = SamplingOptions { seed: Some(3), ..SamplingOptions::default() };
        let defaults = SamplingOptions { seed: Some(4), greedy: Some(true), ..given.clone() };
        let merged = given.or(defaults);
        assert_eq!((merged.seed, merged.greedy), (Some(3), Some(true)));
    }
}
