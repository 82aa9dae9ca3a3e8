//! Arguments become options of the library. Contradictions are found here, before anything is
//! loaded.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroUsize};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use corpus::Split;
use latent_tts::{
    AblationKind, DataSource, DropoutScope, DropoutSites, MaskLifetime, OnExisting,
    PerturbationOptions, SamplingOptions, TokenSampling,
};

use crate::args::{AblateKind, MaskKind, SamplerKind, SamplingArgs, ScopeKind, SitesKind};

/// Sampling options of the flags; `default_samples` is the default of `--samples`.
pub fn sampling(args: &SamplingArgs, default_samples: NonZeroUsize) -> Result<SamplingOptions> {
    Ok(SamplingOptions {
        seed: args.seed.unwrap_or_default(),
        perturbation: perturbation(args)?,
        length: args.thoughts,
        max_new_tokens: args.max_new_tokens.map(to_usize),
        ..SamplingOptions::new(args.samples.map_or(default_samples, to_usize))
    })
}

/// The perturbation that the flags describe; `None` if no flag does.
fn perturbation(args: &SamplingArgs) -> Result<Option<PerturbationOptions>> {
    let flags = [
        ("--p", SamplerKind::Dropout, args.p.is_some()),
        ("--sites", SamplerKind::Dropout, args.sites.is_some()),
        ("--scope", SamplerKind::Dropout, args.scope.is_some()),
        ("--mask", SamplerKind::Dropout, args.mask.is_some()),
        ("--sigma", SamplerKind::Noise, args.sigma.is_some()),
        ("--tau", SamplerKind::Gumbel, args.tau.is_some()),
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
        (_, _, None) => perturbation_of_kind(kind, args).map(Some),
    }
}

fn perturbation_of_kind(kind: SamplerKind, args: &SamplingArgs) -> Result<PerturbationOptions> {
    Ok(match kind {
        SamplerKind::None => PerturbationOptions::None,
        SamplerKind::Noise => PerturbationOptions::Noise { sigma: args.sigma },
        SamplerKind::Gumbel => PerturbationOptions::Gumbel { tau: args.tau },
        SamplerKind::Dropout => PerturbationOptions::Dropout {
            p: args.p,
            sites: args.sites.map(sites),
            scope: args.scope.map_or(DropoutScope::Thoughts, scope),
            mask: args.mask.map_or(MaskLifetime::Step, mask),
        },
        SamplerKind::Tokens => {
            let (temperature, top_p) = (args.temperature.unwrap_or(1.0), args.top_p.unwrap_or(1.0));
            let token_sampling = TokenSampling::new(temperature, top_p);
            PerturbationOptions::Tokens(
                token_sampling
                    .with_context(|| format!("--temperature {temperature} with --top-p {top_p}"))?,
            )
        }
    })
}

/// The name of a sampler as a value of `--sampler`.
fn sampler_name(kind: SamplerKind) -> String {
    kind.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

pub(crate) fn to_usize(n: NonZeroU32) -> NonZeroUsize {
    NonZeroUsize::try_from(n).unwrap_or(NonZeroUsize::MAX)
}

pub(crate) fn sites(kind: SitesKind) -> DropoutSites {
    match kind {
        SitesKind::Both => DropoutSites::BOTH,
        SitesKind::Attn => DropoutSites::ATTN,
        SitesKind::Mlp => DropoutSites::MLP,
    }
}

pub(crate) fn scope(kind: ScopeKind) -> DropoutScope {
    match kind {
        ScopeKind::Thoughts => DropoutScope::Thoughts,
        ScopeKind::Prompt => DropoutScope::Prompt,
        ScopeKind::All => DropoutScope::All,
    }
}

pub(crate) fn mask(kind: MaskKind) -> MaskLifetime {
    match kind {
        MaskKind::Step => MaskLifetime::Step,
        MaskKind::Trajectory => MaskLifetime::Trajectory,
    }
}

/// How to treat existing results, by `--resume` and `--overwrite`.
pub fn on_existing(resume: bool, overwrite: bool) -> Result<OnExisting> {
    match (resume, overwrite) {
        (true, true) => {
            bail!("--resume continues a run and --overwrite replaces it; give one of them")
        }
        (true, false) => Ok(OnExisting::Resume),
        (false, true) => Ok(OnExisting::Overwrite),
        (false, false) => Ok(OnExisting::Refuse),
    }
}

/// The replacements of thoughts that `--ablate` names, each once, in the order of their tables.
pub fn ablations(requested: Option<&[AblateKind]>) -> Vec<AblationKind> {
    let kind = |kind: &AblateKind| match kind {
        AblateKind::Zero => AblationKind::Zero,
        AblateKind::Mean => AblationKind::Mean,
        AblateKind::Swap => AblationKind::Swap,
        AblateKind::Freeze => AblationKind::Freeze,
        AblateKind::Shuffle => AblationKind::Shuffle,
    };
    let kinds: BTreeSet<AblationKind> = requested.unwrap_or_default().iter().map(kind).collect();
    kinds.into_iter().collect()
}

/// The most seeds of a run, each of which repeats all questions.
const MAX_SEEDS: u64 = 100_000;

/// The seeds of a run: `count` consecutive ones from `seed`.
pub fn seeds(seed: u64, count: Option<NonZeroU32>) -> Result<Vec<u64>> {
    let count = u64::from(count.map_or(1, NonZeroU32::get));
    if count > MAX_SEEDS {
        bail!("--seeds {count} are more than the {MAX_SEEDS} that one run takes");
    }
    match seed.checked_add(count - 1) {
        Some(last) => Ok((seed..=last).collect()),
        None => bail!("--seed {seed} and --seeds {count} go beyond the largest seed, {}", u64::MAX),
    }
}

/// The numbers of trajectories to report, each of which must be at most `samples`.
pub fn ks(requested: Option<&[NonZeroUsize]>, samples: NonZeroUsize) -> Result<Vec<usize>> {
    let requested = requested.unwrap_or_default();
    match requested.iter().find(|k| **k > samples) {
        Some(k) => bail!("--k {k} asks for more trajectories than --samples {samples} gives"),
        None => Ok(requested.iter().map(|k| k.get()).collect()),
    }
}

/// The data source that `--data` names, else the split `default` of the corpus.
pub fn data_source(name: Option<&str>, default: Split) -> Result<DataSource> {
    let Some(name) = name else { return Ok(DataSource::Corpus(default, None)) };
    Ok(DataSource::parse(name)?)
}
