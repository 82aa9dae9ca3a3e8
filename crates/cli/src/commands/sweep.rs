//! `latent-tts sweep`: runs an eval for each strength of the perturbation and finds the best.
//!
//! ```text
//! grid (values, or an interval) -> points (one run directory each) -> sweep.json, table, page
//! ```
//!
//! All points are evaluated under the same seeds, so that they are compared question by question.
//! Recorded points are read, not run again; a resumed search therefore takes the same path.

mod band;
mod search;
mod summary;
mod table;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use latent_tts::record::{self, MetricName, Results, RunDir};
use latent_tts::report::interval::Bootstrap;
use latent_tts::report::metrics::{MetricSettings, QuestionMetrics, paired_difference};
use latent_tts::report::{self, BestRun, ReportOptions};
use latent_tts::{
    DataSource, DropoutScope, EMBEDDED, Engine, MaskLifetime, PerturbationOptions, Probability,
    Question, Temperature, manifest,
};
use serde_json::{Value, json};

use self::band::RecommendedBand;
use self::search::GoldenSectionSearch;
use self::summary::{
    SamplerSummary, SweepPointSummary, SweepSummary, interval_json, metric_interval,
};
use super::eval::EvalJob;
use crate::args::{
    EvalArgs, MaskKind, ModelArgs, SamplerKind, ScopeKind, SitesKind, SweepArgs, SweepGrid,
    SweepMetric, default_eval_args, rounded,
};
use crate::load::{NO_REWARD_MODEL, load_models};
use crate::printer::Printer;
use crate::settings;

/// Default of `--samples`.
const DEFAULT_SAMPLES: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Default number of questions of the built-in corpus.
const DEFAULT_QUESTIONS: usize = 200;
/// Default of `--p`: the paper's interval without p close to 1, where dropout leaves no signal.
const DEFAULT_DROPOUT_GRID: SweepGrid = SweepGrid::Interval(0.0, 0.9);
/// Default of `--tolerance`, as a share of the interval.
const DEFAULT_TOLERANCE: f64 = 0.02;

/// Runs `sweep`.
pub fn run(args: &SweepArgs, printer: &Printer) -> Result<ExitCode> {
    let (axes, ks) = (axes(args), ks(args)?);
    let base = EvalJob::from_args(&base_eval_args(args))?;
    if args.metric.needs_rewards() && base.models.reward_model.is_none() {
        bail!("--metric {} needs rewards; give --reward-model", value_name(args.metric));
    }
    let questions = base.data.read(args.limit, DEFAULT_QUESTIONS)?;
    let device = args.run.machine.device.open()?;
    let model = load_models(&base.models, &device, printer)?;
    let engine = args.run.machine.engine(&model)?;
    let (questions, _) = base.fitting(args.run.too_long, questions, &engine, printer)?;
    let out = args.out.clone().unwrap_or_else(|| default_out_dir(&args.model, &base.data));

    let mut sweep = Sweep {
        engine: &engine,
        questions: &questions,
        out: &out,
        ks,
        metric: args.metric,
        base,
        printer,
        points: Vec::new(),
    };
    let settings = sweep.settings(args)?;
    summary::start(&out, &sweep.empty_summary(settings.clone()), args.run.resume)?;
    for axis in &axes {
        sweep.run_axis(axis, args)?;
    }
    let summary = sweep.summarize(settings)?;
    record::write_document(&out.join(summary::FILE), &summary)?;
    let page = if args.run.no_report { None } else { Some(sweep.write_page(&summary)?) };
    printer.result(&summary, || {
        let page = page.map(|page| format!("\nthe page is {}", page.display())).unwrap_or_default();
        format!(
            "{}\n{} and the runs are in {}{page}",
            table::render(&summary),
            summary::FILE,
            out.display()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The run directories of the sweep in `dir` and the best of them; `None` if `dir` is not a sweep's.
pub fn read(dir: &Path) -> Result<Option<(Vec<PathBuf>, BestRun)>> {
    let Some(summary) = summary::read(dir)? else { return Ok(None) };
    let best_run = summary.best_run();
    Ok(Some((summary.points.into_iter().map(|point| dir.join(point.run)).collect(), best_run)))
}

/// A kind of perturbation, and the strengths to evaluate.
struct SweepAxis {
    sampler: SamplerKind,
    sites: Option<SitesKind>,
    scope: Option<ScopeKind>,
    mask: Option<MaskKind>,
    grid: SweepGrid,
}

impl SweepAxis {
    fn new(sampler: SamplerKind, grid: &SweepGrid) -> Self {
        Self { sampler, sites: None, scope: None, mask: None, grid: grid.clone() }
    }

    /// The name of a point's run directory.
    fn name(&self, strength: f64) -> String {
        match self.sampler {
            SamplerKind::Noise => format!("noise-{strength}"),
            SamplerKind::Gumbel => format!("gumbel-{strength}"),
            _ => {
                let words = [
                    self.sites.map(value_name),
                    self.scope.map(value_name),
                    self.mask.map(value_name),
                ];
                let words: String =
                    words.into_iter().flatten().map(|word| format!("-{word}")).collect();
                format!("dropout-{strength}{words}")
            }
        }
    }

    /// The perturbation at one strength.
    fn perturbation(&self, strength: f64) -> PerturbationOptions {
        match self.sampler {
            SamplerKind::Noise => PerturbationOptions::Noise { sigma: Some(strength as f32) },
            SamplerKind::Gumbel => {
                PerturbationOptions::Gumbel { tau: Temperature::new(strength as f32) }
            }
            _ => PerturbationOptions::Dropout {
                p: Probability::new(strength as f32),
                sites: self.sites.map(settings::sites),
                scope: self.scope.map_or(DropoutScope::Thoughts, settings::scope),
                mask: self.mask.map_or(MaskLifetime::Step, settings::mask),
            },
        }
    }

    /// The name of the strength's flag.
    fn parameter_name(&self) -> &'static str {
        match self.sampler {
            SamplerKind::Noise => "sigma",
            SamplerKind::Gumbel => "tau",
            _ => "p",
        }
    }
}

fn value_name(kind: impl clap::ValueEnum) -> String {
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn value_names<T: clap::ValueEnum>(kinds: &[T]) -> Vec<String> {
    kinds.iter().cloned().map(value_name).collect()
}

fn axes(args: &SweepArgs) -> Vec<SweepAxis> {
    let mut axes = Vec::new();
    let others = args.sigma.is_some() || args.tau.is_some();
    let dropout = args.p.clone().or_else(|| (!others).then_some(DEFAULT_DROPOUT_GRID));
    if let Some(grid) = dropout {
        for sites in each_or_default(args.sites.as_deref()) {
            for scope in each_or_default(args.scope.as_deref()) {
                let masks = each_or_default(args.mask.as_deref()).into_iter();
                let axis = |mask| SweepAxis {
                    sites,
                    scope,
                    mask,
                    ..SweepAxis::new(SamplerKind::Dropout, &grid)
                };
                axes.extend(masks.map(axis));
            }
        }
    }
    axes.extend(args.sigma.as_ref().map(|grid| SweepAxis::new(SamplerKind::Noise, grid)));
    axes.extend(args.tau.as_ref().map(|grid| SweepAxis::new(SamplerKind::Gumbel, grid)));
    axes
}

/// Each given value, or `None` for the default if none is given.
fn each_or_default<T: Copy>(kinds: Option<&[T]>) -> Vec<Option<T>> {
    kinds.map_or_else(|| vec![None], |kinds| kinds.iter().map(|kind| Some(*kind)).collect())
}

/// The numbers of trajectories in the table: those of `--k`, else powers of four and N.
fn ks(args: &SweepArgs) -> Result<Vec<usize>> {
    let samples = args
        .samples
        .map_or(DEFAULT_SAMPLES, |n| NonZeroUsize::try_from(n).unwrap_or(DEFAULT_SAMPLES));
    let mut ks = settings::ks(args.k.as_deref(), samples)?;
    if ks.is_empty() {
        ks.extend((0..).map(|power| 4usize.pow(power)).take_while(|k| *k < samples.get()));
        ks.push(samples.get());
    }
    ks.sort_unstable();
    ks.dedup();
    Ok(ks)
}

/// The arguments that the evals of all points share: all but the sampler and the directory.
fn base_eval_args(args: &SweepArgs) -> EvalArgs {
    let mut eval = default_eval_args();
    (eval.model, eval.data, eval.limit) = (args.model.clone(), args.data.clone(), args.limit);
    // Coverage and majority need no rewards: none are computed unless a reward model is named.
    if !args.metric.needs_rewards() {
        eval.model.reward_model.get_or_insert_with(|| NO_REWARD_MODEL.to_owned());
    }
    eval.run = args.run.clone();
    (eval.sampling.samples, eval.sampling.seed) = (args.samples, args.seed);
    (eval.sampling.thoughts, eval.sampling.max_new_tokens) = (args.thoughts, args.max_new_tokens);
    eval
}

fn default_out_dir(model: &ModelArgs, data: &DataSource) -> PathBuf {
    let model = report::run_data::model_name(Path::new(model.model.as_deref().unwrap_or(EMBEDDED)));
    Path::new("runs").join(format!(
        "sweep-{}-{}",
        manifest::sanitize(model),
        manifest::sanitize(data.stem())
    ))
}

/// A sweep in progress.
struct Sweep<'a> {
    engine: &'a Engine,
    questions: &'a [Question],
    out: &'a Path,
    ks: Vec<usize>,
    metric: SweepMetric,
    /// The evaluation that all points share, but for the sampler and the directory.
    base: EvalJob,
    printer: &'a Printer,
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
    fn kind(&self) -> &str {
        self.run.manifest().settings["sampler"]["kind"].as_str().unwrap_or_default()
    }
}

impl Sweep<'_> {
    fn run_axis(&mut self, axis: &SweepAxis, args: &SweepArgs) -> Result<()> {
        let before = self.points.len();
        self.evaluate_axis(axis, args)?;
        self.points[before..].sort_by(|a, b| a.strength.total_cmp(&b.strength));
        Ok(())
    }

    fn evaluate_axis(&mut self, axis: &SweepAxis, args: &SweepArgs) -> Result<()> {
        match &axis.grid {
            SweepGrid::Values(values) => {
                values.iter().try_for_each(|value| self.value_at(axis, *value).map(|_| ()))
            }
            SweepGrid::Interval(low, high) => {
                let tolerance = args.tolerance.unwrap_or((high - low) * DEFAULT_TOLERANCE);
                let search = GoldenSectionSearch::new(
                    *low,
                    *high,
                    tolerance,
                    args.evaluations.map(NonZeroUsize::get),
                );
                self.printer.note(&format!(
                    "searching {} in {low} to {high} for the largest {}@{}: {} evaluations \
                     to a tolerance of {}",
                    axis.parameter_name(),
                    value_name(self.metric),
                    self.max_k(),
                    search.evaluations(),
                    rounded(search.tolerance()),
                ));
                search.maximize(|value| self.value_at(axis, rounded(value)))
            }
        }
    }

    fn max_k(&self) -> usize {
        self.ks.last().copied().unwrap_or(1)
    }

    /// The metric at one strength, which is evaluated unless it was before.
    fn value_at(&mut self, axis: &SweepAxis, strength: f64) -> Result<f64> {
        let name = axis.name(strength);
        if let Some(known) = self.points.iter().find(|point| point.name == name) {
            return Ok(self.value(known, self.metric.name()));
        }
        let point = self
            .evaluate_point(axis, name.clone(), strength)
            .with_context(|| format!("point {name}"))?;
        let value = self.value(&point, self.metric.name());
        self.printer.note(&format!(
            "{}. {} = {strength}: {}@{} {:.1}%",
            self.points.len() + 1,
            axis.parameter_name(),
            value_name(self.metric),
            self.max_k(),
            100.0 * value
        ));
        self.points.push(point);
        Ok(value)
    }

    /// A metric of a point at the largest k; 0 if it was not measured.
    fn value(&self, point: &SweepPoint, name: MetricName) -> f64 {
        metric_interval(&point.results, name, self.max_k()).map_or(0.0, |interval| interval.value)
    }

    fn evaluate_point(&self, axis: &SweepAxis, name: String, strength: f64) -> Result<SweepPoint> {
        let mut job = EvalJob { out: Some(self.out.join(&name)), ..self.base.clone() };
        job.sampling.perturbation = Some(axis.perturbation(strength));
        let done = job.evaluate(self.engine, self.questions, self.printer)?;
        let settings = MetricSettings { ks: self.ks.clone(), ..MetricSettings::default() };
        let columns = QuestionMetrics::collect(done.run.samples()?, &settings)?;
        Ok(SweepPoint {
            name,
            strength,
            run: done.run,
            results: columns.results(&settings.bootstrap),
            columns,
        })
    }

    /// Every setting that all points share, and the values to go over: what a resumed sweep must
    /// have in common with the one before. The metric only belongs to them where it leads a search.
    fn settings(&self, args: &SweepArgs) -> Result<Value> {
        let evaluation = self.base.evaluation(self.engine, Default::default());
        let manifest = evaluation.manifest(self.engine, self.questions)?;
        let mut settings = manifest.settings;
        if let Value::Object(settings) = &mut settings {
            settings.remove("sampler");
        }
        let names = |kinds: Option<Vec<String>>| kinds.unwrap_or_default();
        settings["seeds"] = json!(manifest.seeds);
        settings["questions"] = json!(manifest.questions);
        settings["fingerprint"] = json!(manifest.fingerprint);
        for (flag, grid) in [("p", &args.p), ("sigma", &args.sigma), ("tau", &args.tau)] {
            settings[flag] = json!(grid.as_ref().map(ToString::to_string));
        }
        settings["sites"] = json!(names(args.sites.as_deref().map(value_names)));
        settings["scope"] = json!(names(args.scope.as_deref().map(value_names)));
        settings["mask"] = json!(names(args.mask.as_deref().map(value_names)));
        if axes(args).iter().any(|axis| matches!(axis.grid, SweepGrid::Interval(..))) {
            settings["search"] = json!({
                "metric": self.metric.name(),
                "k": self.max_k(),
                "tolerance": args.tolerance,
                "evaluations": args.evaluations,
            });
        }
        Ok(settings)
    }

    /// The summary of a sweep that has just begun.
    fn empty_summary(&self, settings: Value) -> SweepSummary {
        SweepSummary {
            version: record::FORMAT,
            settings,
            metric: self.metric.name(),
            k: self.max_k(),
            points: Vec::new(),
            best: String::new(),
            ties: Vec::new(),
            samplers: Vec::new(),
        }
    }

    /// The best point, and how the others compare with it.
    fn summarize(&self, settings: Value) -> Result<SweepSummary> {
        let Some(best) = self.best(|_| true) else {
            bail!("there is no value to go over; give --p, --sigma or --tau")
        };
        let points = self
            .points
            .iter()
            .map(|point| self.summarize_point(point, self.is_indistinguishable(point, best)))
            .collect();
        let samplers = ["dropout", "noise", "gumbel"]
            .into_iter()
            .filter_map(|kind| self.sampler_summary(kind))
            .collect();
        let value = |point: &SweepPoint| self.value(point, self.metric.name());
        let ties = self.points.iter().filter(|point| value(point) == value(best));
        let ties = ties.map(|point| point.name.clone()).filter(|name| *name != best.name);
        Ok(SweepSummary {
            points,
            best: best.name.clone(),
            ties: ties.collect(),
            samplers,
            ..self.empty_summary(settings)
        })
    }

    /// The point with the largest metric; of ties that with the largest majority, then the first,
    /// which on each axis is the weakest.
    fn best(&self, among: impl Fn(&SweepPoint) -> bool) -> Option<&SweepPoint> {
        let key = |point| [self.metric.name(), MetricName::Majority].map(|m| self.value(point, m));
        self.points
            .iter()
            .filter(|point| among(point))
            .reduce(|best, point| if key(point) > key(best) { point } else { best })
    }

    /// Whether the paired 95% interval of the difference to the best contains zero.
    fn is_indistinguishable(&self, point: &SweepPoint, best: &SweepPoint) -> bool {
        let column =
            |point: &SweepPoint| point.columns.column(self.metric.name(), self.max_k()).cloned();
        let columns = column(best).zip(column(point));
        let interval = columns
            .and_then(|(best, point)| paired_difference(&best, &point, &Bootstrap::default()));
        point.name == best.name || interval.is_none_or(|interval| interval.low <= 0.0)
    }

    fn sampler_summary(&self, kind: &str) -> Option<SamplerSummary> {
        let best = self.best(|point| point.kind() == kind)?;
        let architecture = self.engine.reasoner().decoder.config().architecture;
        let band = RecommendedBand::of_sampler(architecture, kind).map(|band| {
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
            let ks = self.ks.iter();
            ks.filter_map(|k| {
                Some((k.to_string(), interval_json(metric_interval(results, name, *k)?)))
            })
            .collect()
        };
        SweepPointSummary {
            run: point.name.clone(),
            sampler: point.run.manifest().settings["sampler"].clone(),
            strength: point.strength,
            coverage: curve(MetricName::Coverage),
            majority: curve(MetricName::Majority),
            weighted: curve(MetricName::Weighted),
            best_of: curve(MetricName::BestOf),
            diversity: metric_interval(results, MetricName::Diversity, results.trajectories)
                .map_or(Value::Null, interval_json),
            as_good_as_best: indistinguishable,
        }
    }

    fn write_page(&self, summary: &SweepSummary) -> Result<PathBuf> {
        let runs: Vec<RunDir> = self.points.iter().map(|point| point.run.clone()).collect();
        let options =
            ReportOptions { best_run: Some(summary.best_run()), ..ReportOptions::default() };
        Ok(report::write(&runs, self.out, options)?.page)
    }
}
