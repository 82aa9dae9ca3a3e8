//! Sampling parameters without open fields: what a request runs with and a manifest records.

use std::num::{NonZeroU32, NonZeroUsize};

use aggregate::{Confidence, Rule, VoteParams};
use serde::Serialize;

use crate::defaults::ModelDefaults;
use crate::latent_length::LatentLength;
use crate::number::{Probability, Temperature, TopP};
use crate::options::SamplingOptions;
use crate::perturbation::{DropoutScope, MaskLifetime, Perturbation};

/// How one request is sampled and aggregated.
///
/// ```
/// use latent_tts_schema::{ModelDefaults, SamplingOptions, SamplingParams};
///
/// # let model = ModelDefaults {
/// #     latent_length: "6".parse()?, max_new_tokens: 64.try_into()?, dropout_p: 0.2,
/// #     noise_std: 0.6, sites: latent_tts_schema::DropoutSites::BOTH, cold_stop: None,
/// #     soft_thoughts: false,
/// # };
/// let options: SamplingOptions =
///     serde_json::from_str(r#"{"samples": 16, "noise_std": 0.3, "rule": "weighted"}"#)?;
/// let params = options.resolve(model)?;
/// assert_eq!(params.samples.get(), 16);
/// // Recorded, they are options that resolve to the same for every model.
/// let recorded = serde_json::to_value(params)?;
/// assert_eq!((&recorded["sampler"], &recorded["latent_length"]), (&"noise".into(), &6.into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(into = "SamplingOptions")]
pub struct SamplingParams {
    /// Trajectories, N.
    pub samples: NonZeroUsize,
    /// Adds the unperturbed trajectory.
    pub greedy: bool,
    /// Stops sampling before all N trajectories once the vote is decided.
    pub adaptive: Option<AdaptiveSampling>,
    /// Runs a beam search beside the samples; it needs a reward model.
    pub beam: Option<BeamSize>,
    /// What makes the trajectories differ.
    pub perturbation: Perturbation,
    /// Thoughts of each trajectory.
    pub length: LatentLength,
    /// When low entropy ends the thoughts of mixtures.
    pub cold_stop: Option<ColdStop>,
    /// Answer tokens of each trajectory, at most.
    pub max_new_tokens: NonZeroUsize,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Verifies the equations of written steps and of thoughts as the LM head reads them.
    pub check_steps: bool,
    /// The rule that chooses the answer; `None` is the best rule that the reward model allows.
    pub rule: Option<Rule>,
    /// The constants of the voting rules.
    pub vote: VoteParams,
}

/// The size of a beam search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeamSize {
    /// Beams kept at each step, B.
    pub width: NonZeroUsize,
    /// Extensions tried for each beam, K.
    pub candidates: NonZeroUsize,
}

impl BeamSize {
    /// The size that costs about what `samples` trajectories do: B = K = round(sqrt(N)).
    pub fn for_samples(samples: NonZeroUsize) -> Self {
        let root = (samples.get() as f64).sqrt().round() as usize;
        let root = NonZeroUsize::new(root).unwrap_or(NonZeroUsize::MIN);
        Self { width: root, candidates: root }
    }

    /// Extensions tried at each step of a question, B x K.
    pub fn extensions(self) -> usize {
        self.width.get() * self.candidates.get()
    }
}

/// Cold Stop of Soft Thinking: thoughts end when the next token has been almost certain for long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColdStop {
    /// In nats: the entropy below which a thought counts.
    pub entropy: f32,
    /// Consecutive thoughts that count, at which thinking ends.
    pub steps: NonZeroU32,
}

impl ColdStop {
    /// Whether any entropy is below its threshold.
    pub fn is_on(self) -> bool {
        self.entropy > 0.0
    }

    /// The published values.
    pub const PUBLISHED: Self = Self { entropy: 0.01, steps: NonZeroU32::new(256).unwrap() };
}

/// Samples are drawn in rounds; after each the vote is looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveSampling {
    /// How sure of the leading answer to be; 1 waits until no further sample can change the vote.
    pub confidence: Confidence,
}

impl AdaptiveSampling {
    /// Samples of the first round; each further round doubles the samples drawn so far.
    pub const FIRST_ROUND: usize = 4;
}

impl SamplingParams {
    /// The model's defaults with one sample: dropout on thoughts, Gumbel noise where thoughts are
    /// soft, or sampled tokens for a model without thoughts.
    pub fn defaults_for(model: impl Into<ModelDefaults>) -> Self {
        let model = model.into();
        let perturbation = match (model.latent_length, Probability::new(model.dropout_p)) {
            (LatentLength::None, _) => {
                Perturbation::Tokens { temperature: Temperature::ONE, top_p: TopP::ONE }
            }
            _ if model.soft_thoughts => {
                Perturbation::Gumbel { tau: Temperature::ONE, one_sided: None }
            }
            (_, Some(p)) => Perturbation::Dropout {
                p,
                sites: model.sites,
                scope: DropoutScope::Thoughts,
                mask: MaskLifetime::Step,
            },
            (_, None) => Perturbation::None,
        };
        Self {
            samples: NonZeroUsize::MIN,
            greedy: false,
            adaptive: None,
            beam: None,
            perturbation,
            length: model.latent_length,
            cold_stop: model.cold_stop,
            max_new_tokens: model.max_new_tokens,
            seed: 0,
            check_steps: false,
            rule: None,
            vote: VoteParams::default(),
        }
    }

    /// Trajectories of a request: the samples, and the greedy one if it was requested.
    pub fn rows(&self) -> usize {
        self.samples.get() + usize::from(self.greedy)
    }
}
