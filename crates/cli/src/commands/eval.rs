//! `latent-tts eval`: a benchmark under parallel scaling.
//!
//! Everything that can be wrong is found before the run directory is touched. Then each question is recorded as soon as it is
//! done, and whatever ends the process, `--resume` goes on after the last record.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use engine::{Engine, Outcome, Question};
use model::Folder;
use record::{Latents, Manifest, Results, RunDir, Sample, Seconds, Writer, aggregate};
use report::Options;
use report::metrics::{self, MetricSettings};
use report::table::Look;
use serde_json::{Value, json};
use tensor::Tensor;
use train::corpus::Split;

use crate::aggregation::Aggregation;
use crate::args::EvalArgs;
use crate::data::Source;
use crate::interrupt::{Gate, resume_command};
use crate::load::{Loaded, Models};
use crate::printer::{Printer, Progress, show_seconds};
use crate::settings::{self, Sampling, Start};
use crate::{fingerprint, manifest};

/// Trajectories of each question.
const SAMPLES: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Questions of the embedded corpus where nobody says how many: about a minute's work on two cores.
const QUESTIONS: usize = 300;
/// Seconds that a batch should take: long enough to fill the machine, short enough to show progress and to lose little.
const BATCH: f64 = 10.0;

/// Runs the command.
pub fn run(args: &EvalArgs, printer: &Printer) -> Result<ExitCode> {
    let job = Job::of(args)?;
    let questions = job.data.read(args.limit, QUESTIONS)?;
    let device = args.run.machine.device.open()?;
    let loaded = job.models.load(&device, printer)?;
    let engine = job.engine(&loaded, args.run.machine.memory(&device)?);
    let Evaluated { out, run, results } = job.evaluate(&engine, &questions, printer)?;
    let page =
        if args.run.no_report { None } else { Some(report::write(std::slice::from_ref(&run), &out, Options::default())?.page) };
    let look = Look { width: printer.width(), every_rule: args.aggregation.aggregate.is_some() };
    let text = || format!("{}\n{}", report::table::render(&results, look), whereabouts(&out, page.as_deref()));
    let mut document = document(&out, run.manifest(), &results)?;
    document["page"] = json!(page);
    printer.result(&document, text)?;
    Ok(ExitCode::SUCCESS)
}

fn whereabouts(out: &Path, page: Option<&Path>) -> String {
    let page = page.map(|page| format!("the page is {}: open it in a browser\n", page.display())).unwrap_or_default();
    format!("{page}samples and results are in {}", out.display())
}

/// A finished run.
pub struct Evaluated {
    /// Its directory.
    pub out: PathBuf,
    /// Its records.
    pub run: RunDir,
    /// What came of it.
    pub results: Results,
}

/// What the flags mean, as far as it can be known before anything is read.
pub struct Job {
    models: Models,
    data: Source,
    sampling: Sampling,
    aggregation: Aggregation,
    seeds: Vec<u64>,
    ks: Vec<usize>,
    out: Option<PathBuf>,
    start: Start,
    keep_latents: bool,
}

impl Job {
    /// What the flags say.
    pub fn of(args: &EvalArgs) -> Result<Self> {
        let sampling = Sampling::of(&args.sampling, SAMPLES)?;
        let models = Models::of(&args.model)?;
        Ok(Self {
            aggregation: Aggregation::of(&args.aggregation, sampling.samples, models.judge.is_some())?,
            start: Start::of(args.run.resume, args.overwrite)?,
            seeds: settings::seeds(sampling.seed, args.run.seeds)?,
            ks: settings::ks(args.k.as_deref(), sampling.samples)?,
            models,
            data: Source::of(args.data.as_deref(), Split::Test)?,
            sampling,
            out: args.out.clone(),
            keep_latents: args.run.latents,
        })
    }

    /// The engine with these models, told what to do.
    pub fn engine<'a>(&self, loaded: &'a Loaded, memory: usize) -> Engine<'a> {
        loaded.engine(self.aggregation.apply(self.sampling.settings(&loaded.reasoner.method, memory)))
    }

    /// Samples and measures all questions; what is on file is not sampled again.
    pub fn evaluate(&self, engine: &Engine<'_>, questions: &[Question], printer: &Printer) -> Result<Evaluated> {
        engine.check(questions)?;
        let manifest = self.manifest(engine, questions)?;
        let name = || Path::new("runs").join(manifest::default_name(self.models.reasoner.path(), &self.data, &manifest));
        let out = self.out.clone().unwrap_or_else(name);
        let writer = open(self.start, &out, &manifest)?;
        printer.note(&format!("run directory {}", out.display()));
        let width = engine.reasoner.decoder.config().width;
        let keep = self.keep_latents && writer.done() < self.seeds.len() * questions.len();
        let latents = if keep { Some(Latents::open(&out, width)?) } else { None };
        let run = sample(engine, questions, &self.seeds, Records { writer, latents }, printer)?;
        let Aggregation { rules: aggregators, tuning, .. } = self.aggregation.clone();
        let settings = MetricSettings { ks: self.ks.clone(), aggregators, tuning, ..MetricSettings::default() };
        let results = metrics::of_run(&run, &settings)?;
        run.write_results(&results)?;
        Ok(Evaluated { out, run, results })
    }

    fn manifest(&self, engine: &Engine<'_>, questions: &[Question]) -> Result<Manifest> {
        let Models { reasoner, judge, .. } = &self.models;
        let mut host = manifest::host(engine.reasoner.decoder.device(), engine.settings.memory);
        // Paths say where the inputs were; what they held is in the fingerprint.
        host["model"] = json!(reasoner.path());
        host["reward_model"] = json!(judge.as_ref().map(Folder::path));
        host["data"] = json!(self.data.to_string());
        Ok(Manifest {
            program: manifest::program(),
            commit: manifest::commit(),
            created: manifest::now(),
            host,
            settings: manifest::settings(&engine.reasoner.method, &engine.settings, engine.judge.is_some()),
            seeds: self.seeds.clone(),
            questions: questions.len(),
            fingerprint: fingerprint::of([reasoner].into_iter().chain(judge), &self.data, questions)?,
            ..Manifest::default()
        })
    }
}

/// Opens the run directory.
fn open(start: Start, out: &Path, manifest: &Manifest) -> Result<Writer> {
    let opened = match start {
        Start::Create => RunDir::create(out, manifest),
        Start::Resume => RunDir::resume(out, manifest),
        Start::Overwrite => RunDir::overwrite(out, manifest),
    };
    let changed = matches!(&opened, Err(record::Error::Differs { field, .. }) if field == "fingerprint");
    opened.with_context(|| match changed {
        true => "a file of the model, the reward model or the data is not what it was",
        false => "run directory",
    })
}

/// Samples what is not on file yet and records it.
fn sample(engine: &Engine<'_>, questions: &[Question], seeds: &[u64], mut records: Records, printer: &Printer) -> Result<RunDir> {
    let command = resume_command(std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()));
    let gate = Gate::install(format!("\ninterrupted; what is done is kept, continue with:\n  {command}"))?;
    let mut tally = Tally::new(records.writer.done(), seeds.len() * questions.len(), printer);
    for &seed in seeds {
        let mut engine = *engine;
        engine.settings.seed = seed;
        let left: Vec<Question> = questions.iter().filter(|q| !records.writer.is_done(seed, q.id)).cloned().collect();
        let mut rest = left.as_slice();
        while !rest.is_empty() {
            let batch;
            (batch, rest) = rest.split_at(tally.batch().min(rest.len()));
            let mut failure = None;
            engine.run(batch, &mut |outcome| match gate.write(|| records.add(&outcome)) {
                Ok(()) => {
                    tally.add(&outcome.sample);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            })?;
            failure.map_or(Ok(()), Err)?;
            tally.report();
        }
    }
    records.finish()
}

/// What is written of a run.
struct Records {
    writer: Writer,
    latents: Option<Latents>,
}

impl Records {
    fn add(&mut self, outcome: &Outcome) -> Result<(), record::Error> {
        if let Some(latents) = &mut self.latents {
            latents.append(&outcome.sample, outcome.thoughts.iter().chain(&outcome.greedy_thoughts).map(Tensor::data))?;
        }
        self.writer.append(&outcome.sample)?;
        if outcome.seconds == Seconds::default() { Ok(()) } else { self.writer.time(&outcome.seconds) }
    }

    fn finish(self) -> Result<RunDir> {
        let run = self.writer.finish()?;
        self.latents.map_or(Ok(()), Latents::finish)?;
        Ok(run)
    }
}

/// How it goes, over the questions of this process.
struct Tally {
    start: Instant,
    questions: usize,
    trajectories: usize,
    greedy: usize,
    majority: usize,
    covered: usize,
    left: usize,
    progress: Progress,
}

impl Tally {
    fn new(done: usize, total: usize, printer: &Printer) -> Self {
        if done > 0 {
            printer.note(&format!("{done} of {total} questions are on file"));
        }
        Self {
            start: Instant::now(),
            questions: 0,
            trajectories: 0,
            greedy: 0,
            majority: 0,
            covered: 0,
            left: total.saturating_sub(done),
            progress: printer.progress(done, total),
        }
    }

    /// How many questions to hand over next: one at first, so that a figure appears soon, then as many as take as long again.
    fn batch(&self) -> usize {
        let seconds = self.start.elapsed().as_secs_f64();
        let pace = seconds / self.questions.max(1) as f64;
        if self.questions == 0 { 1 } else { ((seconds.clamp(1.0, BATCH) / pace) as usize).max(1) }
    }

    fn add(&mut self, sample: &Sample) {
        let trajectories = &sample.trajectories;
        self.questions += 1;
        self.left = self.left.saturating_sub(1);
        self.trajectories += trajectories.len();
        self.greedy += usize::from(sample.greedy.as_ref().is_some_and(|t| t.correct));
        self.majority += usize::from(aggregate::majority(trajectories).is_some_and(|i| trajectories[i].correct));
        self.covered += usize::from(trajectories.iter().any(|t| t.correct));
        self.progress.advance();
    }

    /// Questions that were thought about together arrive together, so the pace is only known after a batch.
    fn report(&mut self) {
        let seconds = self.start.elapsed().as_secs_f64();
        let share = |n: usize| 100.0 * n as f64 / self.questions as f64;
        let line = format!(
            "greedy {:.1}%, majority {:.1}%, coverage {:.1}%, {:.0} trajectories/s, {} left",
            share(self.greedy),
            share(self.majority),
            share(self.covered),
            self.trajectories as f64 / seconds.max(1e-9),
            show_seconds(seconds / self.questions as f64 * self.left as f64)
        );
        self.progress.report(&line);
    }
}

/// The results, and where they came from.
fn document(out: &Path, manifest: &Manifest, results: &Results) -> Result<Value> {
    let mut document = json!({ "run": out, "settings": manifest.settings, "fingerprint": manifest.fingerprint });
    if let (Value::Object(document), Value::Object(results)) = (&mut document, serde_json::to_value(results)?) {
        document.extend(results);
    }
    Ok(document)
}
