//! A sweep: one evaluation per perturbation strength, and the best of them.
//!
//! ```text
//! grid (values, or an interval) -> points (one run directory each) -> sweep.json
//! ```
//!
//! All points are evaluated under the same seeds, so they can be compared question by question.
//! Recorded points are read instead of rerun, so a resumed search follows the same path. The caller
//! implements the evaluation of a point ([`PointRunner`]), in this process or on a cluster.

mod band;
mod grid;
mod resume;
mod search;
mod summary;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use engine::{DropoutScope, DropoutSites, MaskLifetime, Probability, Temperature};
use model::config::Architecture;
use record::{Manifest, MetricName, Results, RunDir};
use report::interval::Bootstrap;
use report::metrics::{MetricSettings, QuestionMetrics, paired_difference};
use report::rules::display_name;
use schema::{NoiseStd, SamplerKind, SamplingOptions};
use serde_json::Value;

pub use self::band::RecommendedBand;
pub use self::grid::{SweepGrid, parse_width, rounded};
pub use self::resume::read_summary;
use self::search::GoldenSectionSearch;
pub use self::summary::{SamplerSummary, SweepPointSummary, SweepSummary};
use self::summary::{interval_json, metric_interval};
use crate::{DataSource, Error, manifest};

/// The file in a sweep's directory that lists its runs.
pub const SUMMARY_FILE: &str = "sweep.json";
/// Default strengths of dropout: the paper's interval, without p close to 1, where dropout leaves
/// no signal.
pub const DEFAULT_DROPOUT_GRID: SweepGrid = SweepGrid::Interval(0.0, 0.9);
/// Default strengths of noise: the paper's interval.
pub const DEFAULT_NOISE_GRID: SweepGrid = SweepGrid::Interval(0.01, 1.5);
/// Default temperatures of mixtures: around 1, the default of an evaluation.
pub const DEFAULT_GUMBEL_GRID: SweepGrid = SweepGrid::Interval(0.1, 3.0);
/// Default tolerance, as a fraction of the interval.
const DEFAULT_TOLERANCE: f64 = 0.02;

/// The values that a sweep evaluates.
#[derive(Debug, Clone, Default)]
pub struct SweepSpec {
    /// Dropout probabilities; 0 to 0.9 if no strength of any kind is given.
    pub p: Option<SweepGrid>,
    /// Standard deviations of noise.
    pub sigma: Option<SweepGrid>,
    /// Temperatures of mixtures.
    pub tau: Option<SweepGrid>,
    /// Block outputs to apply dropout to, each swept; empty for the model's default.
    pub sites: Vec<DropoutSites>,
    /// Forward passes to apply dropout in, each swept; empty for thoughts.
    pub scopes: Vec<DropoutScope>,
    /// Lifetimes of dropout masks, each swept; empty for a step.
    pub masks: Vec<MaskLifetime>,
    /// Width of the interval at which a search ends; defaults to 1/50 of the initial interval.
    pub tolerance: Option<f64>,
    /// Maximum number of evaluations of a search.
    pub evaluations: Option<NonZeroUsize>,
    /// The metric that a search maximizes and that selects the best point: coverage by default, or
    /// the accuracy of a rule in [`METRICS`].
    pub metric: Option<MetricName>,
}

/// The metrics that a sweep can maximize, with their names in results.json.
pub const METRICS: [(&str, MetricName); 4] = [
    ("coverage", MetricName::Coverage),
    ("majority", MetricName::MAJORITY),
    ("weighted", MetricName::WEIGHTED),
    ("best_of", MetricName::BEST_OF),
];

/// The sampler of a point, without its strength.
#[derive(Debug, Clone, Copy)]
enum SweptSampler {
    Dropout { sites: Option<DropoutSites>, scope: Option<DropoutScope>, mask: Option<MaskLifetime> },
    Noise,
    Gumbel,
}

/// A kind of perturbation and the strengths to evaluate.
struct SweepAxis {
    sampler: SweptSampler,
    grid: SweepGrid,
}

impl SweepSpec {
    /// Whether the metric requires a reward model.
    pub fn needs_rewards(&self) -> bool {
        matches!(self.metric(), MetricName::WEIGHTED | MetricName::BEST_OF)
    }

    fn metric(&self) -> MetricName {
        self.metric.unwrap_or(MetricName::Coverage)
    }

    fn axes(&self) -> Vec<SweepAxis> {
        let mut axes = Vec::new();
        let others = self.sigma.is_some() || self.tau.is_some();
        let dropout = self.p.clone().or_else(|| (!others).then_some(DEFAULT_DROPOUT_GRID));
        if let Some(grid) = dropout {
            for sites in each_or_default(&self.sites) {
                for scope in each_or_default(&self.scopes) {
                    let samplers = each_or_default(&self.masks)
                        .into_iter()
                        .map(|mask| SweptSampler::Dropout { sites, scope, mask });
                    let axis = |sampler| SweepAxis { sampler, grid: grid.clone() };
                    axes.extend(samplers.map(axis));
                }
            }
        }
        let axis = |sampler| move |grid: &SweepGrid| SweepAxis { sampler, grid: grid.clone() };
        axes.extend(self.sigma.as_ref().map(axis(SweptSampler::Noise)));
        axes.extend(self.tau.as_ref().map(axis(SweptSampler::Gumbel)));
        axes
    }
}

/// Each given value, or `None` for the default if none is given.
fn each_or_default<T: Copy>(given: &[T]) -> Vec<Option<T>> {
    if given.is_empty() { vec![None] } else { given.iter().copied().map(Some).collect() }
}

impl SweepAxis {
    /// The name of a point's run directory.
    fn name(&self, strength: f64) -> String {
        match self.sampler {
            SweptSampler::Noise => format!("noise-{strength}"),
            SweptSampler::Gumbel => format!("gumbel-{strength}"),
            SweptSampler::Dropout { sites, scope, mask } => {
                let words = [
                    sites.map(DropoutSites::name),
                    scope.map(DropoutScope::name),
                    mask.map(MaskLifetime::name),
                ];
                let words: String =
                    words.into_iter().flatten().map(|word| format!("-{word}")).collect();
                format!("dropout-{strength}{words}")
            }
        }
    }

    /// The sampling options at one strength; only the fields of the sampler are set.
    fn sampling(&self, strength: f64) -> SamplingOptions {
        let open = SamplingOptions::default();
        match self.sampler {
            SweptSampler::Noise => SamplingOptions {
                sampler: Some(SamplerKind::Noise),
                noise_std: NoiseStd::new(strength as f32),
                ..open
            },
            SweptSampler::Gumbel => SamplingOptions {
                sampler: Some(SamplerKind::Gumbel),
                gumbel_tau: Temperature::new(strength as f32),
                ..open
            },
            SweptSampler::Dropout { sites, scope, mask } => SamplingOptions {
                sampler: Some(SamplerKind::Dropout),
                dropout_p: Probability::new(strength as f32),
                sites,
                scope,
                mask,
                ..open
            },
        }
    }

    /// The symbol of the strength.
    fn parameter_name(&self) -> &'static str {
        match self.sampler {
            SweptSampler::Noise => "sigma",
            SweptSampler::Gumbel => "tau",
            SweptSampler::Dropout { .. } => "p",
        }
    }
}

/// The numbers of trajectories that a sweep compares: the given ones, otherwise powers of four and
/// N.
pub fn ks(given: &[usize], samples: NonZeroUsize) -> Vec<usize> {
    let mut ks = given.to_vec();
    if ks.is_empty() {
        ks.extend((0..).map(|power| 4usize.pow(power)).take_while(|k| *k < samples.get()));
        ks.push(samples.get());
    }
    ks.sort_unstable();
    ks.dedup();
    ks
}

/// The default directory of a sweep. Like that of an evaluation, its name ends with a digest of the
/// settings, so that other sweeps of the same model and data use other directories.
pub fn default_out(model: &Path, data: &DataSource, sweep: &Sweep<'_>) -> PathBuf {
    let settings = sweep.settings().to_string();
    Path::new("runs").join(format!("sweep-{}", manifest::name_with_digest(model, data, &settings)))
}

/// Evaluates the points of a sweep.
pub trait PointRunner {
    /// The error of a point that cannot be evaluated.
    type Error: From<Error>;

    /// Evaluates all questions with the given sampler, into the run directory `out`.
    fn evaluate(&mut self, out: &Path, sampling: SamplingOptions) -> Result<RunDir, Self::Error>;

    /// Reports progress of the sweep.
    fn note(&mut self, _text: &str) {}
}

/// A sweep to run.
#[derive(Debug, Clone)]
pub struct Sweep<'a> {
    /// The values to evaluate.
    pub spec: &'a SweepSpec,
    /// The directory of the sweep, with one run directory per point and [`SUMMARY_FILE`].
    pub out: &'a Path,
    /// The numbers of trajectories to compare; the best point is selected at the last one. See
    /// [`ks`].
    pub ks: Vec<usize>,
    /// The architecture of the reasoner, for which the paper recommends strengths.
    pub architecture: Architecture,
    /// The manifest of an evaluation of any point. All points share it, except for the sampler.
    pub evaluation: &'a Manifest,
    /// Whether to continue an existing sweep in the directory.
    pub resume: bool,
}

/// A finished sweep.
pub struct SweepOutput {
    /// The content of `sweep.json`.
    pub summary: SweepSummary,
    /// The runs of its points, in order.
    pub runs: Vec<RunDir>,
}

impl Sweep<'_> {
    /// Evaluates all points and writes the summary. An existing sweep is only continued if
    /// requested and if its settings are equal.
    pub fn run<R: PointRunner>(&self, runner: &mut R) -> Result<SweepOutput, R::Error> {
        let _lock = self.begin()?;
        let mut points = SweepPoints { sweep: self, points: Vec::new() };
        for axis in self.spec.axes() {
            let before = points.points.len();
            points.evaluate_axis(&axis, runner)?;
            points.points[before..].sort_by(|a, b| a.strength.total_cmp(&b.strength));
        }
        let summary = points.summarize()?;
        record::write_document(&self.out.join(SUMMARY_FILE), &summary).map_err(Error::from)?;
        let runs = points.points.into_iter().map(|point| point.run).collect();
        Ok(SweepOutput { summary, runs })
    }

    fn max_k(&self) -> usize {
        self.ks.last().copied().unwrap_or(1)
    }

    /// The summary of a sweep without points.
    fn empty_summary(&self) -> SweepSummary {
        SweepSummary {
            version: record::FORMAT,
            settings: self.settings(),
            metric: self.spec.metric(),
            k: self.max_k(),
            points: Vec::new(),
            best: String::new(),
            ties: Vec::new(),
            samplers: Vec::new(),
        }
    }
}

/// The points of a sweep in progress.
struct SweepPoints<'a> {
    sweep: &'a Sweep<'a>,
    points: Vec<SweepPoint>,
}

/// One evaluated strength.
struct SweepPoint {
    name: String,
    strength: f64,
    run: RunDir,
    results: Results,
    columns: QuestionMetrics,
}

impl SweepPoint {
    fn kind(&self) -> &'static str {
        self.run.manifest().sampling().sampler.map_or("", SamplerKind::name)
    }

    /// A metric at k; 0 if it was not measured.
    fn value(&self, name: MetricName, k: usize) -> f64 {
        metric_interval(&self.results, name, k).map_or(0.0, |interval| interval.value)
    }
}

impl SweepPoints<'_> {
    fn evaluate_axis<R: PointRunner>(
        &mut self,
        axis: &SweepAxis,
        runner: &mut R,
    ) -> Result<(), R::Error> {
        let (low, high) = match &axis.grid {
            SweepGrid::Values(values) => {
                return values
                    .iter()
                    .try_for_each(|value| self.value_at(axis, *value, runner).map(drop));
            }
            SweepGrid::Interval(low, high) => (*low, *high),
        };
        let SweepSpec { tolerance, evaluations, .. } = self.sweep.spec;
        let tolerance = tolerance.unwrap_or((high - low) * DEFAULT_TOLERANCE);
        let evaluations = evaluations.map(NonZeroUsize::get);
        let search = GoldenSectionSearch::new(low, high, tolerance, evaluations);
        runner.note(&format!(
            "searching {} from {low} to {high} for the highest {}@{}: {} evaluations, tolerance {}",
            axis.parameter_name(),
            display_name(self.sweep.spec.metric()),
            self.sweep.max_k(),
            search.evaluations(),
            rounded(search.tolerance()),
        ));
        search.maximize(|value| self.value_at(axis, rounded(value), runner))
    }

    /// The metric at one strength, which is evaluated unless it was before.
    fn value_at<R: PointRunner>(
        &mut self,
        axis: &SweepAxis,
        strength: f64,
        runner: &mut R,
    ) -> Result<f64, R::Error> {
        let (name, metric, k) = (axis.name(strength), self.sweep.spec.metric(), self.sweep.max_k());
        if let Some(point) = self.points.iter().find(|point| point.name == name) {
            return Ok(point.value(metric, k));
        }
        let run = runner.evaluate(&self.sweep.out.join(&name), axis.sampling(strength))?;
        let point = self.measure(name, strength, run)?;
        let value = point.value(metric, k);
        runner.note(&format!(
            "{}. {} = {strength}: {}@{k} {:.1}%",
            self.points.len() + 1,
            axis.parameter_name(),
            display_name(metric),
            100.0 * value
        ));
        self.points.push(point);
        Ok(value)
    }

    fn measure(&self, name: String, strength: f64, run: RunDir) -> Result<SweepPoint, Error> {
        let settings = MetricSettings { ks: self.sweep.ks.clone(), ..MetricSettings::default() };
        let columns = QuestionMetrics::collect(run.samples()?, &settings)?;
        let results = columns.results(&settings.bootstrap);
        Ok(SweepPoint { name, strength, run, results, columns })
    }

    /// Selects the best point and compares the others with it.
    fn summarize(&self) -> Result<SweepSummary, Error> {
        let best = self.best(|_| true).ok_or(Error::EmptySweep)?;
        let points = self
            .points
            .iter()
            .map(|point| self.summarize_point(point, self.is_indistinguishable(point, best)))
            .collect();
        let samplers = ["dropout", "noise", "gumbel"]
            .into_iter()
            .filter_map(|kind| self.sampler_summary(kind))
            .collect();
        let value = |point: &SweepPoint| point.value(self.sweep.spec.metric(), self.sweep.max_k());
        let ties = self.points.iter().filter(|point| value(point) == value(best));
        let ties = ties.map(|point| point.name.clone()).filter(|name| *name != best.name);
        Ok(SweepSummary {
            points,
            best: best.name.clone(),
            ties: ties.collect(),
            samplers,
            ..self.sweep.empty_summary()
        })
    }

    /// The point with the highest metric. Ties are decided by the higher majority accuracy, then by
    /// the first, which is the weakest on each axis.
    fn best(&self, among: impl Fn(&SweepPoint) -> bool) -> Option<&SweepPoint> {
        let k = self.sweep.max_k();
        let key = |point: &SweepPoint| {
            [self.sweep.spec.metric(), MetricName::MAJORITY].map(|name| point.value(name, k))
        };
        self.points
            .iter()
            .filter(|point| among(point))
            .reduce(|best, point| if key(point) > key(best) { point } else { best })
    }

    /// Whether the paired 95% confidence interval of the difference to the best contains zero.
    fn is_indistinguishable(&self, point: &SweepPoint, best: &SweepPoint) -> bool {
        let k = self.sweep.max_k();
        let column =
            |point: &SweepPoint| point.columns.column(self.sweep.spec.metric(), k).cloned();
        let columns = column(best).zip(column(point));
        let interval = columns
            .and_then(|(best, point)| paired_difference(&best, &point, &Bootstrap::default()));
        point.name == best.name || interval.is_none_or(|interval| interval.low <= 0.0)
    }

    fn sampler_summary(&self, kind: &str) -> Option<SamplerSummary> {
        let best = self.best(|point| point.kind() == kind)?;
        let band = RecommendedBand::of_sampler(self.sweep.architecture, kind).map(|band| {
            let inside =
                |point: &&SweepPoint| point.kind() == kind && band.contains(point.strength);
            let indistinguishable = self
                .points
                .iter()
                .filter(inside)
                .any(|point| self.is_indistinguishable(point, best));
            RecommendedBand {
                contains_best: band.contains(best.strength),
                contains_as_good: indistinguishable,
                ..band
            }
        });
        Some(SamplerSummary { kind: kind.into(), best: best.name.clone(), band })
    }

    fn summarize_point(&self, point: &SweepPoint, indistinguishable: bool) -> SweepPointSummary {
        let results = &point.results;
        let curve = |name| {
            let ks = self.sweep.ks.iter();
            ks.filter_map(|k| {
                Some((k.to_string(), interval_json(metric_interval(results, name, *k)?)))
            })
            .collect()
        };
        SweepPointSummary {
            run: point.name.clone(),
            sampling: point.run.manifest().sampling().of_sampler(),
            strength: point.strength,
            coverage: curve(MetricName::Coverage),
            majority: curve(MetricName::MAJORITY),
            weighted: curve(MetricName::WEIGHTED),
            best_of: curve(MetricName::BEST_OF),
            diversity: metric_interval(results, MetricName::Diversity, results.trajectories)
                .map_or(Value::Null, interval_json),
            as_good_as_best: indistinguishable,
        }
    }
}
