//! A run directory, read once and kept small: what it was, what came of it, and each question in
//! brief.
//!
//! Figures and page see only this. Metrics come from the samples, never from `results.json`, so
//! that they can be had at every k; that file is only asked whether it is of this format.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use record::{Metric, MetricName, Results, RunDir, Sample};
use serde_json::Value;

use crate::error::ReportError;
use crate::interval::{Bootstrap, Interval};
use crate::latents::LatentsReader;
use crate::metrics::{MetricSettings, QuestionMetrics};
use crate::question_summary::QuestionSummary;

/// What makes trajectories differ.
#[derive(Debug, Clone, PartialEq)]
pub enum SamplerInfo {
    /// Monte Carlo dropout.
    Dropout {
        /// The share of elements dropped.
        p: f64,
        /// Where and when it falls, as the settings say it.
        sites: String,
    },
    /// Gaussian noise on every thought.
    Noise {
        /// Its standard deviation.
        sigma: f64,
    },
    /// Nothing, or something that this version does not know; by its name.
    Other(String),
}

impl SamplerInfo {
    fn from_settings(settings: &Value) -> Self {
        let field = |name: &str| settings[name].as_str().unwrap_or_default();
        match (field("kind"), settings["p"].as_f64(), settings["sigma"].as_f64()) {
            ("dropout", Some(p), _) => {
                Self::Dropout { p, sites: format!("{}, {}", field("sites"), field("scope")) }
            }
            ("noise", _, Some(sigma)) => Self::Noise { sigma },
            ("", ..) => Self::Other("unknown sampler".into()),
            ("none", ..) => Self::Other("no perturbation".into()),
            // The baselines in words.
            ("tokens", ..) => {
                Self::Other(format!("tokens at temperature {}", settings["temperature"]))
            }
            (kind, ..) => Self::Other(kind.into()),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> &str {
        match self {
            Self::Dropout { .. } => "dropout",
            Self::Noise { .. } => "noise",
            Self::Other(name) => name,
        }
    }

    /// Its kind with its strength.
    pub fn name(&self) -> String {
        if self.strength().is_some() {
            format!("{} {}", self.kind(), self.strength_label())
        } else {
            self.kind().into()
        }
    }

    /// How strong it is: p or sigma.
    pub fn strength(&self) -> Option<f64> {
        match self {
            Self::Dropout { p, .. } => Some(*p),
            Self::Noise { sigma } => Some(*sigma),
            Self::Other(_) => None,
        }
    }

    /// Its strength with its sign.
    pub fn strength_label(&self) -> String {
        match self {
            Self::Dropout { p, .. } => format!("p = {p}"),
            Self::Noise { sigma } => format!("σ = {sigma}"),
            Self::Other(name) => name.clone(),
        }
    }

    fn sites_label(&self) -> &str {
        if let Self::Dropout { sites: place, .. } = self { place } else { "" }
    }
}

/// What sets a run apart from others.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTraits {
    /// The reasoner.
    pub model: String,
    /// The questions.
    pub split: String,
    /// How trajectories were made to differ.
    pub sampler: SamplerInfo,
    /// Trajectories of each question.
    pub n: usize,
}

impl RunTraits {
    fn of_run(run: &RunDir, n: usize) -> Self {
        let (host, settings) = (&run.manifest().host, &run.manifest().settings);
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
            sampler: SamplerInfo::from_settings(&settings["sampler"]),
            n,
        }
    }
}

/// The part of a model's path that says something: of a cached model, its id and not its commit.
pub fn model_name(dir: &Path) -> String {
    let cached = dir.iter().find_map(|part| part.to_str()?.strip_prefix("models--"));
    match (cached, dir.file_name()) {
        (Some(id), _) => id.into(),
        (None, Some(name)) => name.to_string_lossy().into_owned(),
        (None, None) => "model".into(),
    }
}

/// A run that was read.
#[derive(Debug)]
pub struct RunData {
    /// Where it is and what was asked.
    pub run: RunDir,
    /// What sets it apart.
    pub traits: RunTraits,
    /// Its name among the runs it is shown with; the directory's until [`label`] is called.
    pub label: String,
    /// The figures.
    pub results: Results,
    /// The values behind them, by question.
    pub columns: QuestionMetrics,
    /// d_t of each thought.
    pub step_diversity: Vec<Interval>,
    /// Every question under the first seed.
    pub questions: Vec<QuestionSummary>,
    /// The thoughts, where they were kept.
    pub latents: Option<LatentsReader>,
}

impl RunData {
    /// Reads a run. An unfinished one is refused unless `partial` is set.
    pub fn load(run: RunDir, partial: bool) -> Result<Self, ReportError> {
        check_results_version(&run)?;
        let settings = MetricSettings::default();
        let mut gathered = SampleAccumulator::default();
        let samples =
            run.samples()?.inspect(|sample| sample.iter().for_each(|sample| gathered.add(sample)));
        let columns = QuestionMetrics::collect(samples, &settings)
            .map_err(|error| error.in_run(run.path()))?;
        gathered.check_complete(&run, partial)?;

        let mut results = columns.results(&settings.bootstrap);
        results.cost.seconds = run.seconds()?;
        Ok(Self {
            traits: RunTraits::of_run(&run, results.trajectories),
            label: run
                .path()
                .file_name()
                .map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned()),
            results,
            columns,
            step_diversity: gathered.step_diversity(&settings.bootstrap),
            questions: gathered.questions,
            latents: LatentsReader::open(run.path())?,
            run,
        })
    }

    /// One figure.
    pub fn metric(&self, name: MetricName, k: usize) -> Option<Interval> {
        let found = self.results.metrics.iter().find(|metric| metric.name == name && metric.k == k);
        found.map(|&Metric { value, low, high, .. }| Interval { value, low, high })
    }

    /// One figure at every k there is, ascending.
    pub fn curve(&self, name: MetricName) -> Vec<(usize, Interval)> {
        let found = self.results.metrics.iter().filter(|metric| metric.name == name);
        let mut curve: Vec<_> = found
            .map(|&Metric { k, value, low, high, .. }| (k, Interval { value, low, high }))
            .collect();
        curve.sort_by_key(|(k, _)| *k);
        curve
    }

    /// The share of questions covered by all trajectories.
    pub fn coverage(&self) -> f64 {
        self.metric(MetricName::Coverage, self.traits.n).map_or(0.0, |coverage| coverage.value)
    }

    /// Seconds a question under one seed took, over the whole run.
    pub fn seconds(&self) -> f64 {
        self.results.cost.seconds.total
            / (self.results.questions * self.results.seeds).max(1) as f64
    }
}

/// Results of another format beside samples of this one are a mixture that nobody should be shown
/// figures of.
fn check_results_version(run: &RunDir) -> Result<(), ReportError> {
    match run.results() {
        Err(record::RecordError::Read { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(())
        }
        results => Ok(results.map(|_| ())?),
    }
}

/// What is kept of the samples beside their metrics.
#[derive(Default)]
struct SampleAccumulator {
    count: usize,
    seeds: BTreeSet<u64>,
    first_seed: Option<u64>,
    /// By step and question, the sum over seeds and their number.
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

    /// A manifest that names no questions promises nothing; others must be kept.
    fn check_complete(&self, run: &RunDir, partial: bool) -> Result<(), ReportError> {
        let (manifest, path) = (run.manifest(), run.path().to_owned());
        let (found, expected) = (self.count, manifest.questions * manifest.seeds.len());
        if expected == 0 {
            return Ok(());
        }
        let foreign = self.seeds.iter().find(|seed| !manifest.seeds.contains(seed));
        match foreign {
            Some(&seed) => Err(ReportError::ForeignSeed { path, seed }),
            None if found > expected => Err(ReportError::Surplus { path, found, expected }),
            None if found < expected && !partial => {
                Err(ReportError::Incomplete { path, found, expected })
            }
            None => Ok(()),
        }
    }
}

/// Names the runs by what sets them apart.
pub fn assign_labels(studies: &mut [RunData]) {
    // What a run has nothing to say of (a place of noise) does not set it apart.
    let said = |part: fn(&RunTraits) -> String| {
        studies.iter().map(move |s| part(&s.traits)).filter(|word| !word.is_empty())
    };
    let differ = |part: fn(&RunTraits) -> String| said(part).collect::<BTreeSet<_>>().len() > 1;
    let parts: [fn(&RunTraits) -> String; 5] = [
        |t| t.model.clone(),
        |t| t.split.clone(),
        |t| t.sampler.name(),
        |t| t.sampler.sites_label().into(),
        |t| format!("N = {}", t.n),
    ];
    let telling: Vec<fn(&RunTraits) -> String> =
        parts.into_iter().filter(|part| differ(*part)).collect();
    let telling = if telling.is_empty() { vec![parts[0], parts[1]] } else { telling };
    let name = |study: &RunData| {
        let words: Vec<String> = telling
            .iter()
            .map(|part| part(&study.traits))
            .filter(|word| !word.is_empty())
            .collect();
        words.join(", ")
    };
    let names: Vec<String> = studies.iter().map(name).collect();
    for (i, study) in studies.iter_mut().enumerate() {
        let twin = names.iter().filter(|name| **name == names[i]).count() > 1;
        study.label =
            if twin { format!("{} ({})", names[i], study.label) } else { names[i].clone() };
    }
}
