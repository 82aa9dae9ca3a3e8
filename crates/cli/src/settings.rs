//! What the flags mean. The one place where defaults are resolved and contradictions found, before
//! anything is loaded.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use engine::{
    DropoutScope, DropoutSites, LatentLength, Method, Perturbation, Probability, SamplingParams,
    TokenSampling,
};

use crate::args::{SamplerKind, SamplingArgs, ScopeKind, SitesKind};

/// How to sample, as far as it can be known without a model.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingSettings {
    /// Trajectories of each question.
    pub samples: NonZeroUsize,
    /// The first seed.
    pub seed: u64,
    perturbation: Option<PerturbationSpec>, // none: the family's
    length: Option<LatentLength>,
    max_new_tokens: Option<NonZeroUsize>,
}

/// A perturbation whose open parts the model fills in.
#[derive(Debug, Clone, Copy, PartialEq)]
enum PerturbationSpec {
    None,
    Dropout { p: Option<Probability>, sites: Option<DropoutSites>, scope: DropoutScope },
    Noise { sigma: Option<f32> },
    Tokens(TokenSampling),
}

impl SamplingSettings {
    /// What the flags say; `samples` where they say nothing.
    pub fn from_args(args: &SamplingArgs, default_samples: NonZeroUsize) -> Result<Self> {
        Ok(Self {
            samples: args.samples.map_or(default_samples, to_usize),
            seed: args.seed.unwrap_or_default(),
            perturbation: PerturbationSpec::from_args(args)?,
            length: args.thoughts,
            max_new_tokens: args.max_new_tokens.map(to_usize),
        })
    }

    /// The same for a model, with its family's defaults.
    pub fn resolve(&self, method: &Method, memory: usize) -> SamplingParams {
        let length = self.length.unwrap_or(method.length);
        let defaults = SamplingParams::defaults_for(&Method { length, ..method.clone() });
        SamplingParams {
            samples: self.samples,
            greedy: true,
            perturbation: self
                .perturbation
                .map_or(defaults.perturbation, |sampler| sampler.resolve(method)),
            length,
            max_new_tokens: self.max_new_tokens.unwrap_or(defaults.max_new_tokens),
            seed: self.seed,
            memory,
            ..defaults
        }
    }
}

impl PerturbationSpec {
    /// What is asked for, if anything is.
    fn from_args(args: &SamplingArgs) -> Result<Option<Self>> {
        let flags = [
            ("--p", SamplerKind::Dropout, args.p.is_some()),
            ("--sites", SamplerKind::Dropout, args.sites.is_some()),
            ("--scope", SamplerKind::Dropout, args.scope.is_some()),
            ("--sigma", SamplerKind::Noise, args.sigma.is_some()),
            ("--temperature", SamplerKind::Tokens, args.temperature.is_some()),
            ("--top-p", SamplerKind::Tokens, args.top_p.is_some()),
        ];
        let mut given = flags.iter().filter(|(_, _, given)| *given);
        let first = given.clone().next();
        let Some(kind) = args.sampler.or(first.map(|(_, kind, _)| *kind)) else { return Ok(None) };
        match (args.sampler, first, given.find(|(_, of, _)| *of != kind)) {
            (None, Some((a, of, _)), Some((b, other, _))) => {
                bail!(
                    "{a} belongs to --sampler {} and {b} to --sampler {}; give one of them",
                    sampler_name(*of),
                    sampler_name(*other)
                )
            }
            (_, _, Some((flag, ..))) => bail!(
                "{flag} has no meaning with --sampler {}; leave one of them out",
                sampler_name(kind)
            ),
            (_, _, None) => Self::for_kind(kind, args).map(Some),
        }
    }

    fn for_kind(kind: SamplerKind, args: &SamplingArgs) -> Result<Self> {
        Ok(match kind {
            SamplerKind::None => Self::None,
            SamplerKind::Noise => Self::Noise { sigma: args.sigma },
            SamplerKind::Dropout => Self::Dropout {
                p: args.p,
                sites: args.sites.map(sites),
                scope: args.scope.map_or(DropoutScope::Thoughts, scope),
            },
            SamplerKind::Tokens => {
                let (temperature, top_p) =
                    (args.temperature.unwrap_or(1.0), args.top_p.unwrap_or(1.0));
                let token_sampling = TokenSampling::new(temperature, top_p);
                Self::Tokens(
                    token_sampling.with_context(|| {
                        format!("--temperature {temperature} with --top-p {top_p}")
                    })?,
                )
            }
        })
    }

    fn resolve(self, method: &Method) -> Perturbation {
        match self {
            Self::None => Perturbation::None,
            Self::Tokens(from) => Perturbation::Tokens(from),
            Self::Noise { sigma } => Perturbation::Gaussian { std: sigma.unwrap_or(method.sigma) },
            Self::Dropout { p, sites, scope } => match p.or_else(|| Probability::new(method.p)) {
                Some(p) => Perturbation::Dropout { p, sites: sites.unwrap_or(method.sites), scope },
                None => Perturbation::None,
            },
        }
    }
}

/// A sampler as `--sampler` takes it.
fn sampler_name(kind: SamplerKind) -> String {
    kind.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn to_usize(n: NonZeroU32) -> NonZeroUsize {
    NonZeroUsize::try_from(n).unwrap_or(NonZeroUsize::MAX)
}

fn sites(kind: SitesKind) -> DropoutSites {
    match kind {
        SitesKind::Both => DropoutSites::BOTH,
        SitesKind::Attn => DropoutSites::ATTN,
        SitesKind::Mlp => DropoutSites::MLP,
    }
}

fn scope(kind: ScopeKind) -> DropoutScope {
    match kind {
        ScopeKind::Thoughts => DropoutScope::Thoughts,
        ScopeKind::Prompt => DropoutScope::Prompt,
        ScopeKind::All => DropoutScope::All,
    }
}

/// What to do with results that are there already.
#[derive(Debug, Clone, Copy)]
pub enum OnExisting {
    /// Leave them alone and stop.
    Refuse,
    /// Go on after them.
    Resume,
    /// Replace them.
    Overwrite,
}

impl OnExisting {
    /// What the flags say.
    pub fn from_flags(resume: bool, overwrite: bool) -> Result<Self> {
        match (resume, overwrite) {
            (true, true) => {
                bail!("--resume continues a run and --overwrite replaces it; give one of them")
            }
            (true, false) => Ok(Self::Resume),
            (false, true) => Ok(Self::Overwrite),
            (false, false) => Ok(Self::Refuse),
        }
    }
}

/// The seeds of a run: `count` of them, counted up from `seed`.
pub fn seeds(seed: u64, count: Option<NonZeroU32>) -> Result<Vec<u64>> {
    let count = u64::from(count.map_or(1, NonZeroU32::get));
    match seed.checked_add(count) {
        Some(end) => Ok((seed..end).collect()),
        None => bail!("--seed {seed} and --seeds {count} go beyond the largest seed, {}", u64::MAX),
    }
}

/// A number of trajectories to report must be one that was sampled.
pub fn ks(requested: Option<&[NonZeroUsize]>, samples: NonZeroUsize) -> Result<Vec<usize>> {
    let requested = requested.unwrap_or_default();
    match requested.iter().find(|k| **k > samples) {
        Some(k) => bail!("--k {k} asks for more trajectories than --samples {samples} gives"),
        None => Ok(requested.iter().map(|k| k.get()).collect()),
    }
}

/// The directory that `--model` or `--reward-model` names.
pub fn resolve_model_dir(flag: &str, name: &str) -> Result<PathBuf> {
    let dir = Path::new(name);
    // A path is taken as it is, so that what is wrong with it is said of the path that was given.
    let is_id =
        name.split('/').count() == 2 && !name.starts_with(['/', '.', '~']) && !name.ends_with('/');
    if dir.exists() || !is_id { Ok(dir.to_owned()) } else { cached_snapshot(flag, name) }
}

/// The newest snapshot of a Hugging Face model in the local cache. Nothing is ever downloaded.
fn cached_snapshot(flag: &str, id: &str) -> Result<PathBuf> {
    let Some(hub) = hub_cache_dir() else {
        bail!(
            "{flag} {id}: no such directory, and no HF_HOME or HOME to look for a cached model in"
        )
    };
    let model = hub.join(format!("models--{}", id.replace('/', "--")));
    let snapshots = model.join("snapshots");
    let main = std::fs::read_to_string(model.join("refs/main"))
        .ok()
        .map(|commit| snapshots.join(commit.trim()));
    match main.filter(|dir| dir.is_dir()).or_else(|| newest_snapshot(&snapshots)) {
        Some(dir) => Ok(dir),
        None => bail!(
            "{flag} {id}: no such directory, and not in {}; fetch it with `hf download {id}`",
            hub.display()
        ),
    }
}

/// Where huggingface_hub keeps models.
fn hub_cache_dir() -> Option<PathBuf> {
    let variable =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || {
        Some(
            variable("XDG_CACHE_HOME")
                .or_else(|| Some(variable("HOME")?.join(".cache")))?
                .join("huggingface"),
        )
    };
    variable("HF_HUB_CACHE").or_else(|| Some(variable("HF_HOME").or_else(home)?.join("hub")))
}

fn newest_snapshot(dir: &Path) -> Option<PathBuf> {
    let entries =
        std::fs::read_dir(dir).ok()?.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
    let dated =
        entries.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())));
    dated.max().map(|(_, path)| path)
}
