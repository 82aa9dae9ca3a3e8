//! `latent-tts sweep`: one eval for each strength of the sampler, and which is best.
//!
//! ```text
//! grid (values, or an interval to search) -> points (one run directory each) -> sweep.json, table, page
//! ```
//!
//! Every point is an eval of its own under the same seeds, so that points are compared question by question. What is on
//! file is read, not run again; a search that is continued therefore takes the same way.

mod band;
mod search;
mod table;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use engine::{Probability, Question};
use record::{MetricName, Results, RunDir};
use report::Options;
use report::interval::{Bootstrap, Interval};
use report::metrics::{MetricSettings, PerQuestion, difference};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use train::corpus::Split;

use self::band::Band;
use self::search::Search;
use super::eval;
use crate::args::{EvalArgs, Grid, ModelArgs, SamplerKind, ScopeKind, SitesKind, SweepArgs, bare_eval, rounded};
use crate::data::Source;
use crate::embedded;
use crate::load::{Loaded, Models, NO_JUDGE};
use crate::manifest;
use crate::printer::Printer;
use crate::settings;

const SUMMARY: &str = "sweep.json";
/// Trajectories of each question.
const SAMPLES: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Questions of the embedded corpus where nobody says how many.
const QUESTIONS: usize = 200;
/// What the paper searches dropout within, less the end where nothing is left of a thought.
const DROPOUT: Grid = Grid::Interval(0.0, 0.9);
/// A search knows its best value to this share of the interval unless told otherwise.
const TOLERANCE: f64 = 0.02;

/// Runs the command.
pub fn run(args: &SweepArgs, printer: &Printer) -> Result<ExitCode> {
    let (axes, ks) = (axes(args), ks(args)?);
    let base = base(args);
    // Whatever is wrong with the flags is said before a model is read.
    eval::Job::of(&base)?;
    let source = Source::of(args.data.as_deref(), Split::Test)?;
    let questions = source.read(args.limit, QUESTIONS)?;
    let device = args.run.machine.device.open()?;
    let loaded = Models::of(&base.model)?.load(&device, printer)?;
    let memory = args.run.machine.memory(&device)?;
    let out = args.out.clone().unwrap_or_else(|| default_folder(&base.model, &source));

    let mut sweep = Sweep { loaded: &loaded, questions: &questions, memory, out: &out, ks, base, printer, points: Vec::new() };
    for axis in &axes {
        sweep.along(axis, args)?;
    }
    let judged = sweep.judge()?;
    record::write_document(&out.join(SUMMARY), &judged)?;
    let page = if args.run.no_report { None } else { Some(sweep.page()?) };
    printer.result(&judged, || {
        let page = page.map(|page| format!("\nthe page is {}", page.display())).unwrap_or_default();
        format!("{}\n{} and the runs are in {}{page}", table::render(&judged), SUMMARY, out.display())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The run directories of the sweep in `dir`, if it is one.
pub fn runs(dir: &Path) -> Result<Option<Vec<PathBuf>>> {
    let path = dir.join(SUMMARY);
    if !path.is_file() {
        return Ok(None);
    }
    let read = || -> Result<Summary> {
        let summary: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        match summary["version"].as_u64() {
            Some(version) if version == u64::from(record::FORMAT) => Ok(serde_json::from_value(summary)?),
            _ => bail!("it is not of format version {}", record::FORMAT),
        }
    };
    let summary = read().with_context(|| format!("cannot use {}; sweep again with --resume", path.display()))?;
    Ok(Some(summary.points.into_iter().map(|point| dir.join(point.run)).collect()))
}

/// A way to perturb whose strength is gone over.
struct Axis {
    sampler: SamplerKind,
    sites: Option<SitesKind>,
    scope: Option<ScopeKind>,
    grid: Grid,
}

impl Axis {
    /// The name of a point's run directory.
    fn name(&self, strength: f64) -> String {
        match self.sampler {
            SamplerKind::Noise => format!("noise-{strength}"),
            _ => {
                let words = [self.sites.map(word), self.scope.map(word)];
                let words: String = words.into_iter().flatten().map(|word| format!("-{word}")).collect();
                format!("dropout-{strength}{words}")
            }
        }
    }

    /// Its sign, as the flags call it.
    fn sign(&self) -> &'static str {
        if self.sampler == SamplerKind::Noise { "sigma" } else { "p" }
    }
}

fn word(kind: impl clap::ValueEnum) -> String {
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn axes(args: &SweepArgs) -> Vec<Axis> {
    let mut axes = Vec::new();
    let dropout = args.p.clone().or_else(|| args.sigma.is_none().then_some(DROPOUT));
    if let Some(grid) = dropout {
        for sites in each(args.sites.as_deref()) {
            let scopes = each(args.scope.as_deref()).into_iter();
            axes.extend(scopes.map(|scope| Axis { sampler: SamplerKind::Dropout, sites, scope, grid: grid.clone() }));
        }
    }
    let noise = |grid: &Grid| Axis { sampler: SamplerKind::Noise, sites: None, scope: None, grid: grid.clone() };
    axes.extend(args.sigma.as_ref().map(noise));
    axes
}

/// Each that was named, or the one that nobody named.
fn each<T: Copy>(kinds: Option<&[T]>) -> Vec<Option<T>> {
    kinds.map_or_else(|| vec![None], |kinds| kinds.iter().map(|kind| Some(*kind)).collect())
}

/// The numbers of trajectories of the table: those asked for, or powers of four and N.
fn ks(args: &SweepArgs) -> Result<Vec<usize>> {
    let samples = args.samples.map_or(SAMPLES, |n| NonZeroUsize::try_from(n).unwrap_or(SAMPLES));
    let mut ks = settings::ks(args.k.as_deref(), samples)?;
    if ks.is_empty() {
        ks.extend((0..).map(|power| 4usize.pow(power)).take_while(|k| *k < samples.get()));
        ks.push(samples.get());
    }
    ks.sort_unstable();
    ks.dedup();
    Ok(ks)
}

/// The eval that every point is, but for its sampler and its folder.
fn base(args: &SweepArgs) -> EvalArgs {
    let mut eval = bare_eval();
    (eval.model, eval.data, eval.limit) = (args.model.clone(), args.data.clone(), args.limit);
    // Coverage needs no judge, so nobody waits for one that was not asked for.
    eval.model.reward_model.get_or_insert_with(|| NO_JUDGE.to_owned());
    eval.run = args.run.clone();
    (eval.sampling.samples, eval.sampling.seed) = (args.samples, args.seed);
    (eval.sampling.thoughts, eval.sampling.max_new_tokens) = (args.thoughts, args.max_new_tokens);
    eval
}

fn default_folder(model: &ModelArgs, data: &Source) -> PathBuf {
    let model = report::study::model_name(Path::new(model.model.as_deref().unwrap_or(embedded::NAME)));
    Path::new("runs").join(format!("sweep-{}-{}", manifest::plain(model), manifest::plain(data.stem())))
}

/// A sweep on its way.
struct Sweep<'a> {
    loaded: &'a Loaded,
    questions: &'a [Question],
    memory: usize,
    out: &'a Path,
    ks: Vec<usize>,
    base: EvalArgs,
    printer: &'a Printer,
    points: Vec<Point>,
}

/// One value that was run.
struct Point {
    name: String,
    strength: f64,
    run: RunDir,
    results: Results,
    columns: PerQuestion,
}

impl Point {
    fn kind(&self) -> &str {
        self.run.manifest().settings["sampler"]["kind"].as_str().unwrap_or_default()
    }
}

impl Sweep<'_> {
    fn along(&mut self, axis: &Axis, args: &SweepArgs) -> Result<()> {
        let before = self.points.len();
        self.go(axis, args)?;
        self.points[before..].sort_by(|a, b| a.strength.total_cmp(&b.strength));
        Ok(())
    }

    fn go(&mut self, axis: &Axis, args: &SweepArgs) -> Result<()> {
        match &axis.grid {
            Grid::Values(values) => values.iter().try_for_each(|value| self.coverage(axis, *value).map(|_| ())),
            Grid::Interval(low, high) => {
                let tolerance = args.tolerance.unwrap_or((high - low) * TOLERANCE);
                let search = Search::new(*low, *high, tolerance, args.evaluations.map(NonZeroUsize::get));
                self.printer.note(&format!(
                    "searching {} in {low} to {high} for the largest coverage@{}: {} evaluations to a tolerance of {}",
                    axis.sign(),
                    self.largest(),
                    search.evaluations(),
                    rounded(search.tolerance()),
                ));
                search.run(|value| self.coverage(axis, rounded(value)))
            }
        }
    }

    fn largest(&self) -> usize {
        self.ks.last().copied().unwrap_or(1)
    }

    /// Runs the eval at one strength, unless it was, and gives what is to be made large.
    fn coverage(&mut self, axis: &Axis, strength: f64) -> Result<f64> {
        let (name, k) = (axis.name(strength), self.largest());
        if self.points.iter().all(|point| point.name != name) {
            let point = self.point(axis, name.clone(), strength).with_context(|| format!("point {name}"))?;
            let coverage = metric(&point.results, MetricName::Coverage, k).map_or(0.0, |interval| interval.value);
            let count = self.points.len() + 1;
            self.printer.note(&format!("{count}. {} = {strength}: coverage@{k} {:.1}%", axis.sign(), 100.0 * coverage));
            self.points.push(point);
        }
        let found = self.points.iter().find(|point| point.name == name);
        Ok(found.and_then(|point| metric(&point.results, MetricName::Coverage, k)).map_or(0.0, |interval| interval.value))
    }

    fn point(&self, axis: &Axis, name: String, strength: f64) -> Result<Point> {
        let mut args = self.base.clone();
        args.out = Some(self.out.join(&name));
        let sampling = &mut args.sampling;
        (sampling.sampler, sampling.sites, sampling.scope) = (Some(axis.sampler), axis.sites, axis.scope);
        match axis.sampler {
            SamplerKind::Noise => sampling.sigma = Some(strength as f32),
            _ => sampling.p = Probability::new(strength as f32),
        }
        let job = eval::Job::of(&args)?;
        let done = job.evaluate(&job.engine(self.loaded, self.memory), self.questions, self.printer)?;
        let settings = MetricSettings { ks: self.ks.clone(), ..MetricSettings::default() };
        let columns = PerQuestion::collect(done.run.samples()?, &settings)?;
        Ok(Point { name, strength, run: done.run, results: columns.results(&settings.bootstrap), columns })
    }

    /// Which point is best, and what that means.
    fn judge(&self) -> Result<Summary> {
        let Some(best) = self.best(|_| true) else { bail!("there is no value to go over; give --p or --sigma") };
        let points = self.points.iter().map(|point| self.told(point, self.is_alike(point, best))).collect();
        let samplers = ["dropout", "noise"].into_iter().filter_map(|kind| self.verdict(kind)).collect();
        Ok(Summary {
            version: record::FORMAT,
            metric: MetricName::Coverage,
            k: self.largest(),
            points,
            best: best.name.clone(),
            samplers,
        })
    }

    /// The largest coverage; of equals the first, which on each axis is the weakest.
    fn best(&self, among: impl Fn(&Point) -> bool) -> Option<&Point> {
        let k = self.largest();
        let value = |point: &Point| metric(&point.results, MetricName::Coverage, k).map_or(0.0, |interval| interval.value);
        self.points
            .iter()
            .filter(|point| among(point))
            .reduce(|best, point| if value(point) > value(best) { point } else { best })
    }

    /// Whether the paired interval of the difference to the best holds zero.
    fn is_alike(&self, point: &Point, best: &Point) -> bool {
        let column = |point: &Point| point.columns.column(MetricName::Coverage, self.largest()).cloned();
        let columns = column(best).zip(column(point));
        let apart = columns.and_then(|(best, point)| difference(&best, &point, &Bootstrap::default()));
        point.name == best.name || apart.is_none_or(|apart| apart.low <= 0.0)
    }

    fn verdict(&self, kind: &str) -> Option<Verdict> {
        let best = self.best(|point| point.kind() == kind)?;
        let architecture = self.loaded.reasoner.decoder.config().architecture;
        let band = Band::of(architecture, kind == "noise").map(|band| {
            let inside = |point: &&Point| point.kind() == kind && band.holds(point.strength);
            let alike = self.points.iter().filter(inside).any(|point| self.is_alike(point, best));
            Band { contains_best: band.holds(best.strength), contains_as_good: alike, ..band }
        });
        Some(Verdict { kind: kind.into(), best: best.name.clone(), band })
    }

    fn told(&self, point: &Point, alike: bool) -> Told {
        let results = &point.results;
        let curve = |name| self.ks.iter().filter_map(|k| Some((*k, metric(results, name, *k)?))).collect::<Vec<_>>();
        let told = |interval: Interval| json!({ "value": interval.value, "low": interval.low, "high": interval.high });
        let curve = |name| curve(name).into_iter().map(|(k, interval)| (k.to_string(), told(interval))).collect();
        Told {
            run: point.name.clone(),
            sampler: point.run.manifest().settings["sampler"].clone(),
            strength: point.strength,
            coverage: curve(MetricName::Coverage),
            majority: curve(MetricName::Maj),
            diversity: metric(results, MetricName::Diversity, results.trajectories).map_or(Value::Null, told),
            as_good_as_best: alike,
        }
    }

    fn page(&self) -> Result<PathBuf> {
        let runs: Vec<RunDir> = self.points.iter().map(|point| point.run.clone()).collect();
        Ok(report::write(&runs, self.out, Options::default())?.page)
    }
}

fn metric(results: &Results, name: MetricName, k: usize) -> Option<Interval> {
    let found = results.metrics.iter().find(|metric| metric.name == name && metric.k == k)?;
    Some(Interval { value: found.value, low: found.low, high: found.high })
}

/// The content of `sweep.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Summary {
    version: u32,
    /// What was made large, and with how many trajectories.
    metric: MetricName,
    k: usize,
    points: Vec<Told>,
    /// The run directory of the best point.
    best: String,
    /// The same for each sampler.
    samplers: Vec<Verdict>,
}

/// What came out for one sampler.
#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    kind: String,
    /// The run directory of its best point.
    best: String,
    /// The paper's band for this backbone, where it gives one.
    band: Option<Band>,
}

/// One point of `sweep.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// The run directory, from the sweep's folder.
    run: String,
    sampler: Value,
    strength: f64,
    /// By number of trajectories.
    coverage: serde_json::Map<String, Value>,
    majority: serde_json::Map<String, Value>,
    diversity: Value,
    /// Whether the paired 95% interval of its difference to the best holds zero.
    as_good_as_best: bool,
}
