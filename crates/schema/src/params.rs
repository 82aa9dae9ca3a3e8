//! Complete sampling parameters, as used by a request and recorded in the manifest.

use std::num::{NonZeroU32, NonZeroUsize};

use aggregate::{Confidence, Rule, VoteParams};
use serde::{Deserialize, Serialize};

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
    /// Number of trajectories, N.
    pub samples: NonZeroUsize,
    /// Whether to run the greedy (unperturbed) trajectory as well.
    pub greedy: bool,
    /// Stops before all N trajectories are sampled once the vote is decided.
    pub adaptive: Option<AdaptiveSampling>,
    /// Also runs a search guided by rewards, which needs a reward model.
    pub search: Option<Search>,
    /// How trajectories are perturbed.
    pub perturbation: Perturbation,
    /// Number of thoughts per trajectory.
    pub length: LatentLength,
    /// When low entropy ends the thoughts of mixtures; `None` disables Cold Stop.
    pub cold_stop: Option<ColdStop>,
    /// Maximum number of answer tokens per trajectory.
    pub max_new_tokens: NonZeroUsize,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Whether to verify the equations of written steps, or of thoughts decoded by the LM head.
    pub check_steps: bool,
    /// The rule that selects the answer; `None` selects the best rule that the reward model allows.
    pub rule: Option<Rule>,
    /// The parameters of the voting rules.
    pub vote: VoteParams,
}

/// A search over thoughts that rewards guide.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// How paths are selected at each step.
    pub method: SearchMethod,
    /// Number of paths retained per step: beams, particles or subtrees.
    pub width: NonZeroUsize,
    /// Number of candidate extensions per path; 1 with particles.
    pub candidates: NonZeroUsize,
    /// Temperature of the softmax over rewards by which particles are resampled.
    pub temperature: f64,
}

impl Search {
    /// A beam search.
    pub fn beam(width: NonZeroUsize, candidates: NonZeroUsize) -> Self {
        Self { method: SearchMethod::Beam, width, candidates, temperature: 1.0 }
    }

    /// A search that costs about as much as `samples` trajectories: B = K = round(sqrt(N)), or N
    /// particles.
    pub fn for_samples(method: SearchMethod, samples: NonZeroUsize) -> Self {
        let root = (samples.get() as f64).sqrt().round() as usize;
        let root = NonZeroUsize::new(root).unwrap_or(NonZeroUsize::MIN);
        let (width, candidates) = match method {
            SearchMethod::Particles => (samples, NonZeroUsize::MIN),
            SearchMethod::Beam | SearchMethod::Dvts => (root, root),
        };
        Self { method, ..Self::beam(width, candidates) }
    }

    /// Number of extensions per step of a question, B x K.
    pub fn extensions(self) -> usize {
        self.width.get() * self.candidates.get()
    }
}

/// How a search selects the paths that it continues.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema), schemars(inline))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum SearchMethod {
    /// Beam search: the paths with the largest cumulative reward
    #[default]
    Beam,
    /// Particle filtering: paths resampled in proportion to exp(reward / temperature)
    Particles,
    /// Diverse verifier tree search: the best extension of each of several independent subtrees
    Dvts,
}

impl SearchMethod {
    /// The name in options, results and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Beam => "beam",
            Self::Particles => "particles",
            Self::Dvts => "dvts",
        }
    }
}

/// Cold Stop of Soft Thinking: ends the thoughts after a run of low-entropy next tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColdStop {
    /// The entropy, in nats, below which a thought counts as low-entropy.
    pub entropy: f32,
    /// The number of consecutive low-entropy thoughts that end thinking.
    pub steps: NonZeroU32,
}

impl ColdStop {
    /// Whether Cold Stop can trigger: no entropy is below a threshold of 0.
    pub fn is_on(self) -> bool {
        self.entropy > 0.0
    }

    /// The published values.
    pub const PUBLISHED: Self = Self { entropy: 0.01, steps: NonZeroU32::new(256).unwrap() };
}

/// Samples are drawn in rounds; the vote is checked after each round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveSampling {
    /// The confidence in the leading answer at which to stop; 1 stops only when no further sample
    /// can change the vote.
    pub confidence: Confidence,
}

impl AdaptiveSampling {
    /// Number of samples of the first round; each further round doubles the total.
    pub const FIRST_ROUND: usize = 4;
}

impl SamplingParams {
    /// The model's defaults with one sample: dropout on thoughts, Gumbel noise for soft thoughts,
    /// or sampled tokens for a model without thoughts.
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
            search: None,
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

    /// The number of sequences of a request: the samples, plus the greedy one if requested.
    pub fn rows(&self) -> usize {
        self.samples.get() + usize::from(self.greedy)
    }
}
