//! A run in memory: settings, metrics and question summaries, without the samples themselves.
//!
//! Figures and page are computed from this data. Metrics are computed from the samples, at every k;
//! `results.json` is used only to check its format version and for the numbers of custom rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use aggregate::{Rule, VoteParams};
use record::{Ablation, Metric, MetricName, Results, RunDir, Sample};
use schema::{DropoutSites, MaskLifetime, SamplerKind, SamplingOptions, Temperature};

use crate::error::ReportError;
use crate::interval::{Bootstrap, Interval};
use crate::latents::LatentsReader;
use crate::metrics::{MetricSettings, QuestionMetrics};
use crate::question_summary::QuestionSummary;

/// The perturbation or sampling that makes trajectories differ, from the manifest.
#[derive(Debug, Clone, PartialEq)]
pub enum SamplerInfo {
    /// Monte Carlo dropout.
    Dropout {
        /// The dropout probability.
        p: f64,
        /// Sites and scope as in the settings, and the mask lifetime.
        sites: String,
    },
    /// Gaussian noise on every thought.
    Noise {
        /// The standard deviation.
        sigma: f64,
    },
    /// Gumbel noise on mixtures of token embeddings.
    Gumbel {
        /// The temperature of the Gumbel noise.
        tau: f64,
    },
    /// Any other sampler, by its display name.
    Other(String),
}

impl SamplerInfo {
    fn new(sampling: &SamplingOptions) -> Self {
        let strength = match sampling.sampler {
            Some(SamplerKind::Dropout) => sampling.dropout_p.map(f64::from),
            Some(SamplerKind::Noise) => sampling.noise_std.map(f64::from),
            Some(SamplerKind::Gumbel) => sampling.gumbel_tau.map(f64::from),
            Some(
                SamplerKind::Multiplex
                | SamplerKind::Tokens
                | SamplerKind::None
                | SamplerKind::Custom(_),
            )
            | None => None,
        };
        match (sampling.sampler, strength) {
            (Some(SamplerKind::Dropout), Some(p)) => {
                let sites = sampling.sites.map_or("", DropoutSites::name);
                let scope = sampling.scope.unwrap_or_default().name();
                let kept = match sampling.mask.unwrap_or_default() {
                    MaskLifetime::Trajectory => ", masks kept",
                    MaskLifetime::Step => "",
                };
                Self::Dropout { p, sites: format!("{sites}, {scope}{kept}") }
            }
            (Some(SamplerKind::Noise), Some(sigma)) => Self::Noise { sigma },
            (Some(SamplerKind::Gumbel), Some(tau)) => Self::Gumbel { tau },
            (Some(SamplerKind::None), _) => Self::Other("no perturbation".into()),
            // Baselines that reason in text.
            (Some(SamplerKind::Tokens), _) => {
                let temperature = sampling.temperature.unwrap_or(Temperature::ONE);
                Self::Other(format!("tokens at temperature {temperature}"))
            }
            (Some(other), _) => Self::Other(other.name().into()),
            (None, _) => Self::Other("unknown sampler".into()),
        }
    }

    /// The kind: `dropout`, `noise`, `gumbel` or the name of another sampler.
    pub fn kind(&self) -> &str {
        match self {
            Self::Dropout { .. } => "dropout",
            Self::Noise { .. } => "noise",
            Self::Gumbel { .. } => "gumbel",
            Self::Other(name) => name,
        }
    }

    /// Kind and strength, e.g. `dropout p = 0.1`.
    pub fn name(&self) -> String {
        if self.strength().is_some() {
            format!("{} {}", self.kind(), self.strength_label())
        } else {
            self.kind().into()
        }
    }

    /// The strength: p, sigma or tau.
    pub fn strength(&self) -> Option<f64> {
        match self {
            Self::Dropout { p, .. } => Some(*p),
            Self::Noise { sigma } => Some(*sigma),
            Self::Gumbel { tau } => Some(*tau),
            Self::Other(_) => None,
        }
    }

    /// The strength with its symbol, e.g. `p = 0.1`.
    pub fn strength_label(&self) -> String {
        match self {
            Self::Dropout { p, .. } => format!("p = {p}"),
            Self::Noise { sigma } => format!("σ = {sigma}"),
            Self::Gumbel { tau } => format!("τ = {tau}"),
            Self::Other(name) => name.clone(),
        }
    }

    /// Sites, scope and mask lifetime of dropout; empty for other samplers.
    pub fn sites_label(&self) -> &str {
        if let Self::Dropout { sites, .. } = self { sites } else { "" }
    }
}

/// The properties by which runs are grouped and labelled.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTraits {
    /// The model's name.
    pub model: String,
    /// The name of the data split.
    pub split: String,
    /// The sampler.
    pub sampler: SamplerInfo,
    /// Requested trajectories per question, N.
    pub n: usize,
}

impl RunTraits {
    fn of_run(run: &RunDir, n: usize) -> Self {
        let host = &run.manifest().host;
        let settings = &run.manifest().settings;
        let method = settings["method"].as_str().unwrap_or("model");
        let data = host["data"].as_str().unwrap_or("questions");
        let file =
            || Path::new(data).file_stem().map_or(data.into(), |stem| stem.to_string_lossy());
        let split = data.strip_prefix("embedded:").map_or_else(file, Into::into);
        Self {
            model: host["model"]
                .as_str()
                .map_or_else(|| method.into(), |dir| model_name(Path::new(dir))),
            split: split.into_owned(),
            sampler: SamplerInfo::new(&run.manifest().sampling()),
            n,
        }
    }
}

/// A display name for a model directory: its last component, or the model id in a Hugging Face
/// cache.
pub fn model_name(dir: &Path) -> String {
    let cached = dir.iter().find_map(|part| part.to_str()?.strip_prefix("models--"));
    match (cached, dir.file_name()) {
        (Some(id), _) => id.into(),
        (None, Some(name)) => name.to_string_lossy().into_owned(),
        (None, None) => "model".into(),
    }
}

/// A loaded run.
#[derive(Debug)]
pub struct RunData {
    /// The run directory and its manifest.
    pub dir: RunDir,
    /// Model, split, sampler and N.
    pub traits: RunTraits,
    /// The display name: the directory's name until [`assign_labels`] is called.
    pub label: String,
    /// The metrics.
    pub results: Results,
    /// The metrics per question.
    pub columns: QuestionMetrics,
    /// Diversity d_t at each step.
    pub step_diversity: Vec<Interval>,
    /// The questions with the first seed.
    pub questions: Vec<QuestionSummary>,
    /// The thoughts, if they were recorded.
    pub latents: Option<LatentsReader>,
    /// Accuracy with replaced thoughts, if it was measured.
    pub ablation: Option<Ablation>,
    /// Whether it is the run selected by [`BestRun`](crate::BestRun).
    pub best: bool,
}

impl RunData {
    /// Loads a run. An incomplete run is an error unless `partial` is set.
    pub fn load(dir: RunDir, partial: bool) -> Result<Self, ReportError> {
        let recorded = recorded_results(&dir)?;
        let params = recorded.as_ref().and_then(|recorded| recorded.vote_params);
        let calibration = params.and_then(|params| params.calibration);
        let vote_params = VoteParams { calibration, ..VoteParams::default() };
        let settings = MetricSettings { vote_params, ..MetricSettings::default() };
        let mut accumulator = SampleAccumulator::default();
        let samples = dir
            .samples()?
            .inspect(|sample| sample.iter().for_each(|sample| accumulator.add(sample)));
        let columns = QuestionMetrics::collect(samples, &settings)
            .map_err(|error| error.in_run(dir.path()))?;
        accumulator.check_complete(&dir, partial)?;

        let mut results = columns.results(&settings.bootstrap);
        results.cost.seconds = dir.seconds()?;
        add_registered_rules(&mut results, recorded);
        Ok(Self {
            traits: RunTraits::of_run(&dir, results.trajectories),
            label: dir
                .path()
                .file_name()
                .map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned()),
            results,
            columns,
            step_diversity: accumulator.step_diversity(&settings.bootstrap),
            questions: accumulator.questions,
            latents: LatentsReader::open(dir.path())?,
            ablation: dir.ablation()?,
            best: false,
            dir,
        })
    }

    /// A metric at one k.
    pub fn metric(&self, name: MetricName, k: usize) -> Option<Interval> {
        let found = self.results.metrics.iter().find(|metric| metric.name == name && metric.k == k);
        found.map(|&Metric { value, low, high, .. }| Interval { value, low, high })
    }

    /// A metric at every k, ascending.
    pub fn curve(&self, name: MetricName) -> Vec<(usize, Interval)> {
        let found = self.results.metrics.iter().filter(|metric| metric.name == name);
        let mut curve: Vec<_> = found
            .map(|&Metric { k, value, low, high, .. }| (k, Interval { value, low, high }))
            .collect();
        curve.sort_by_key(|(k, _)| *k);
        curve
    }

    /// Coverage at k = N.
    pub fn coverage(&self) -> f64 {
        self.metric(MetricName::Coverage, self.traits.n).map_or(0.0, |coverage| coverage.value)
    }

    /// Whether it precedes `other` in the order of runs: the selected best run first, then by
    /// coverage, then by majority.
    pub fn is_better(&self, other: &Self) -> bool {
        let key = |run: &Self| {
            let majority = run.metric(MetricName::MAJORITY, run.traits.n);
            (run.best, run.coverage(), majority.map_or(0.0, |majority| majority.value))
        };
        key(self) > key(other)
    }

    /// Mean seconds per question and seed.
    pub fn seconds(&self) -> f64 {
        self.results.cost.seconds.total
            / (self.results.questions * self.results.seeds).max(1) as f64
    }
}

/// The content of `results.json`, if it exists; an error if its format version differs from that of
/// the samples.
fn recorded_results(run: &RunDir) -> Result<Option<Results>, ReportError> {
    match run.results() {
        Err(record::RecordError::Read { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(None)
        }
        results => Ok(results.map(Some)?),
    }
}

/// Adds the recorded numbers of custom rules, which may have been registered by another program.
fn add_registered_rules(results: &mut Results, recorded: Option<Results>) {
    let registered = |name| matches!(name, MetricName::Rule(rule) if !Rule::ALL.contains(&rule));
    let Some(recorded) = recorded else { return };
    results.metrics.extend(recorded.metrics.into_iter().filter(|metric| registered(metric.name)));
    results.gains.extend(recorded.gains.into_iter().filter(|gain| registered(gain.name)));
}

/// Accumulates data of the samples other than metrics.
#[derive(Default)]
struct SampleAccumulator {
    count: usize,
    seeds: BTreeSet<u64>,
    first_seed: Option<u64>,
    /// Per step and question: the sum of d_t over seeds, and the number of seeds.
    step_sums: Vec<BTreeMap<u32, (f64, u32)>>,
    questions: Vec<QuestionSummary>,
}

impl SampleAccumulator {
    fn add(&mut self, sample: &Sample) {
        self.count += 1;
        self.seeds.insert(sample.seed);
        for (t, &d) in sample.diversity.iter().flatten().enumerate() {
            if self.step_sums.len() == t {
                self.step_sums.push(BTreeMap::new());
            }
            let (sum, seeds) = self.step_sums[t].entry(sample.id).or_default();
            *sum += d;
            *seeds += 1;
        }
        if *self.first_seed.get_or_insert(sample.seed) == sample.seed {
            self.questions.push(QuestionSummary::from_sample(sample));
        }
    }

    fn step_diversity(&self, bootstrap: &Bootstrap) -> Vec<Interval> {
        let step = |questions: &BTreeMap<u32, (f64, u32)>| {
            let values: Vec<f64> =
                questions.values().map(|&(sum, seeds)| sum / f64::from(seeds)).collect();
            bootstrap.mean(&values)
        };
        self.step_sums.iter().filter_map(step).collect()
    }

    /// Checks the number of samples and their seeds against the manifest, unless the manifest has
    /// no questions.
    fn check_complete(&self, run: &RunDir, partial: bool) -> Result<(), ReportError> {
        let manifest = run.manifest();
        let path = run.path().to_owned();
        let found = self.count;
        let expected = manifest.questions * manifest.seeds.len();
        if expected == 0 {
            return Ok(());
        }
        let foreign_seed = self.seeds.iter().find(|seed| !manifest.seeds.contains(seed));
        match foreign_seed {
            Some(&seed) => Err(ReportError::ForeignSeed { path, seed }),
            None if found > expected => Err(ReportError::Surplus { path, found, expected }),
            None if found < expected && !partial => {
                Err(ReportError::Incomplete { path, found, expected })
            }
            None => Ok(()),
        }
    }
}

/// Adds parent directories to the names of models with equal names, until they are distinct.
fn distinguish_models(runs: &mut [RunData]) {
    let path = |run: &RunData| run.dir.manifest().host["model"].as_str().map(PathBuf::from);
    let named: Vec<(String, Option<PathBuf>)> =
        runs.iter().map(|run| (run.traits.model.clone(), path(run))).collect();
    for (index, run) in runs.iter_mut().enumerate() {
        let (model, Some(own)) = &named[index] else { continue };
        let others: Vec<&PathBuf> = named
            .iter()
            .filter(|(name, other)| name == model && other.as_ref() != Some(own))
            .filter_map(|(_, other)| other.as_ref())
            .collect();
        let depth = own.iter().count();
        let tail = |path: &PathBuf, parts: usize| -> PathBuf {
            path.iter().skip(path.iter().count().saturating_sub(parts)).collect()
        };
        let apart =
            |parts: &usize| others.iter().all(|other| tail(other, *parts) != tail(own, *parts));
        if !others.is_empty() {
            let parts = (2..=depth).find(apart).unwrap_or(depth);
            run.traits.model = tail(own, parts).display().to_string();
        }
    }
}

/// Labels each run by the properties in which the runs differ.
pub fn assign_labels(runs: &mut [RunData]) {
    distinguish_models(runs);
    // An empty property (the sites of noise) does not count as a difference.
    let values = |part: fn(&RunTraits) -> String| {
        runs.iter().map(move |s| part(&s.traits)).filter(|value| !value.is_empty())
    };
    let differ = |part: fn(&RunTraits) -> String| values(part).collect::<BTreeSet<_>>().len() > 1;
    let parts: [fn(&RunTraits) -> String; 5] = [
        |t| t.model.clone(),
        |t| t.split.clone(),
        |t| t.sampler.name(),
        |t| t.sampler.sites_label().into(),
        |t| format!("N = {}", t.n),
    ];
    let differing: Vec<fn(&RunTraits) -> String> =
        parts.into_iter().filter(|part| differ(*part)).collect();
    let differing = if differing.is_empty() { vec![parts[0], parts[1]] } else { differing };
    let name = |run: &RunData| {
        let values = differing.iter().map(|part| part(&run.traits));
        values.filter(|value| !value.is_empty()).collect::<Vec<_>>().join(", ")
    };
    let names: Vec<String> = runs.iter().map(name).collect();
    for (i, run) in runs.iter_mut().enumerate() {
        let ambiguous = names.iter().filter(|name| **name == names[i]).count() > 1;
        run.label =
            if ambiguous { format!("{} ({})", names[i], run.label) } else { names[i].clone() };
    }
}
