//! Converts arguments to library options. Contradictions are detected here, before anything is
//! loaded.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroUsize};

use anyhow::{Result, bail};
use corpus::Split;
use latent_tts::{
    AblationKind, DataSource, FieldNames, OnExisting, SamplingError, SamplingOptions,
};

/// Sampling options over a command's defaults. Fails if fields contradict one another.
pub fn sampling(given: &SamplingOptions, defaults: SamplingOptions) -> Result<SamplingOptions> {
    given.sampler_kind().map_err(flag_error)?;
    Ok(given.clone().or(defaults))
}

/// The message for contradicting options, with flags instead of field names.
pub fn flag_error(error: SamplingError) -> anyhow::Error {
    let fields = error.fields();
    let words = error.to_string();
    let words = words.split(' ').map(|word| match fields.contains(&word) {
        true => format!("--{}", word.replace('_', "-")),
        false => word.to_owned(),
    });
    anyhow::anyhow!("{}", words.collect::<Vec<String>>().join(" "))
}

/// The sampling options that are rejected for annotations and probes, which do not vote.
pub(crate) const AGGREGATION_FIELDS: [&str; 14] = [
    "greedy",
    "rule",
    "check_steps",
    "calibration",
    "vote_temperature",
    "likelihood_weight",
    "lcb_coefficient",
    "beam",
    "search",
    "beam_width",
    "beam_candidates",
    "search_temperature",
    "adaptive",
    "target_confidence",
];

/// Rejects options that only affect voting.
pub fn refuse_aggregation(options: &SamplingOptions) -> Result<()> {
    let given = serde_json::to_value(options)?;
    match AGGREGATION_FIELDS.iter().find(|field| given.get(field).is_some()) {
        Some(field) => {
            bail!("--{} has no effect here; omit it", field.replace('_', "-"))
        }
        None => Ok(()),
    }
}

pub(crate) fn to_usize(n: NonZeroU32) -> NonZeroUsize {
    NonZeroUsize::try_from(n).unwrap_or(NonZeroUsize::MAX)
}

/// The handling of existing results selected by `--resume` and `--overwrite`.
pub fn on_existing(resume: bool, overwrite: bool) -> Result<OnExisting> {
    match (resume, overwrite) {
        (true, true) => {
            bail!("--resume continues a run and --overwrite replaces it; pass only one of them")
        }
        (true, false) => Ok(OnExisting::Resume),
        (false, true) => Ok(OnExisting::Overwrite),
        (false, false) => Ok(OnExisting::Refuse),
    }
}

/// The replacements of thoughts in `--ablate`, without duplicates, in table order.
pub fn ablations(requested: Option<&[AblationKind]>) -> Vec<AblationKind> {
    let kinds: BTreeSet<AblationKind> = requested.unwrap_or_default().iter().copied().collect();
    kinds.into_iter().collect()
}

/// Maximum number of seeds of a run, each of which repeats all questions.
const MAX_SEEDS: u64 = 100_000;

/// The seeds of a run: `count` consecutive ones from `seed`.
pub fn seeds(seed: u64, count: Option<NonZeroU32>) -> Result<Vec<u64>> {
    let count = u64::from(count.map_or(1, NonZeroU32::get));
    if count > MAX_SEEDS {
        bail!("--seeds {count} exceeds the maximum of {MAX_SEEDS}");
    }
    match seed.checked_add(count - 1) {
        Some(last) => Ok((seed..=last).collect()),
        None => bail!("--seed {seed} plus --seeds {count} exceeds the largest seed, {}", u64::MAX),
    }
}

/// The numbers of trajectories to report, each of which must be at most `samples`.
pub fn ks(requested: Option<&[NonZeroUsize]>, samples: NonZeroU32) -> Result<Vec<usize>> {
    let samples = to_usize(samples);
    let requested = requested.unwrap_or_default();
    match requested.iter().find(|k| **k > samples) {
        Some(k) => bail!("--k {k} exceeds --samples {samples}"),
        None => Ok(requested.iter().map(|k| k.get()).collect()),
    }
}

/// The data source given by `--data`, with its field names, or else the split `default` of the
/// embedded corpus.
pub fn data_source(name: Option<&str>, fields: &FieldNames, default: Split) -> Result<DataSource> {
    let source = match name {
        Some(name) => DataSource::parse(name)?,
        None => DataSource::Corpus(default, None),
    };
    Ok(source.with_fields(fields.clone())?)
}
