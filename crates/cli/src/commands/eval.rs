//! `latent-tts eval`: a benchmark under parallel scaling.
//!
//! Everything that can be wrong is found before the run directory is touched. Then each question is
//! recorded as soon as it is done, and whatever ends the process, `--resume` goes on after the last
//! record.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use engine::{Engine, Outcome, Question};
use model::ModelFiles;
use record::{LatentsWriter, Manifest, Results, RunDir, RunWriter, Sample, Seconds};
use report::ReportOptions;
use report::metrics::{self, MetricSettings};
use report::table::TableOptions;
use serde_json::{Value, json};
use tensor::Tensor;
use train::corpus::Split;

use crate::aggregation::AggregationSettings;
use crate::args::EvalArgs;
use crate::data::DataSource;
use crate::interrupt::{InterruptGuard, resume_command};
use crate::load::{LoadedModels, ModelSelection};
use crate::printer::{Printer, Progress, format_duration};
use crate::settings::{self, OnExisting, SamplingSettings};
use crate::{fingerprint, manifest};

/// Trajectories of each question.
const DEFAULT_SAMPLES: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Questions of the embedded corpus where nobody says how many: about a minute's work on two cores.
const DEFAULT_QUESTIONS: usize = 300;
/// Seconds that a batch should take: long enough to fill the machine, short enough to show progress
/// and to lose little.
const TARGET_BATCH_SECONDS: f64 = 10.0;

/// Runs the command.
pub fn run(args: &EvalArgs, printer: &Printer) -> Result<ExitCode> {
    let job = EvalJob::from_args(args)?;
    let questions = job.data.read(args.limit, DEFAULT_QUESTIONS)?;
    let device = args.run.machine.device.open()?;
    let loaded = job.models.load(&device, printer)?;
    let engine = job.engine(&loaded, args.run.machine.kv_cache_bytes(&device)?);
    let EvalOutput { out, run, results } = job.evaluate(&engine, &questions, printer)?;
    let page = if args.run.no_report {
        None
    } else {
        Some(report::write(std::slice::from_ref(&run), &out, ReportOptions::default())?.page)
    };
    let look =
        TableOptions { width: printer.width(), all_rules: args.aggregation.aggregate.is_some() };
    let text = || {
        format!(
            "{}\n{}",
            report::table::render(&results, look),
            output_paths(&out, page.as_deref())
        )
    };
    let mut document = result_json(&out, run.manifest(), &results)?;
    document["page"] = json!(page);
    printer.result(&document, text)?;
    Ok(ExitCode::SUCCESS)
}

fn output_paths(out: &Path, page: Option<&Path>) -> String {
    let page = page
        .map(|page| format!("the page is {}: open it in a browser\n", page.display()))
        .unwrap_or_default();
    format!("{page}samples and results are in {}", out.display())
}

/// A finished run.
pub struct EvalOutput {
    /// Its directory.
    pub out: PathBuf,
    /// Its records.
    pub run: RunDir,
    /// What came of it.
    pub results: Results,
}

/// What the flags mean, as far as it can be known before anything is read.
pub struct EvalJob {
    models: ModelSelection,
    data: DataSource,
    sampling: SamplingSettings,
    aggregation: AggregationSettings,
    seeds: Vec<u64>,
    ks: Vec<usize>,
    out: Option<PathBuf>,
    on_existing: OnExisting,
    keep_latents: bool,
}

impl EvalJob {
    /// What the flags say.
    pub fn from_args(args: &EvalArgs) -> Result<Self> {
        let sampling = SamplingSettings::from_args(&args.sampling, DEFAULT_SAMPLES)?;
        let models = ModelSelection::from_args(&args.model)?;
        Ok(Self {
            aggregation: AggregationSettings::from_args(
                &args.aggregation,
                sampling.samples,
                models.reward_model.is_some(),
            )?,
            on_existing: OnExisting::from_flags(args.run.resume, args.overwrite)?,
            seeds: settings::seeds(sampling.seed, args.run.seeds)?,
            ks: settings::ks(args.k.as_deref(), sampling.samples)?,
            models,
            data: DataSource::from_arg(args.data.as_deref(), Split::Test)?,
            sampling,
            out: args.out.clone(),
            keep_latents: args.run.latents,
        })
    }

    /// The engine with these models, told what to do.
    pub fn engine<'a>(&self, loaded: &'a LoadedModels, memory: usize) -> Engine<'a> {
        loaded
            .engine(self.aggregation.apply(self.sampling.resolve(&loaded.reasoner.method, memory)))
    }

    /// Samples and measures all questions; what is on file is not sampled again.
    pub fn evaluate(
        &self,
        engine: &Engine<'_>,
        questions: &[Question],
        printer: &Printer,
    ) -> Result<EvalOutput> {
        engine.check(questions)?;
        let manifest = self.manifest(engine, questions)?;
        let name = || {
            Path::new("runs").join(manifest::default_run_name(
                self.models.reasoner.path(),
                &self.data,
                &manifest,
            ))
        };
        let out = self.out.clone().unwrap_or_else(name);
        let writer = open_run_dir(self.on_existing, &out, &manifest)?;
        printer.note(&format!("run directory {}", out.display()));
        let width = engine.reasoner.decoder.config().width;
        let keep = self.keep_latents && writer.done_count() < self.seeds.len() * questions.len();
        let latents = if keep { Some(LatentsWriter::open(&out, width)?) } else { None };
        let run = sample_missing(
            engine,
            questions,
            &self.seeds,
            RunRecorder { writer, latents },
            printer,
        )?;
        let AggregationSettings { rules: aggregators, tuning, .. } = self.aggregation.clone();
        let settings = MetricSettings {
            ks: self.ks.clone(),
            aggregators,
            vote_params: tuning,
            ..MetricSettings::default()
        };
        let results = metrics::results_of_run(&run, &settings)?;
        run.write_results(&results)?;
        Ok(EvalOutput { out, run, results })
    }

    fn manifest(&self, engine: &Engine<'_>, questions: &[Question]) -> Result<Manifest> {
        let ModelSelection { reasoner, reward_model, .. } = &self.models;
        let mut host = manifest::host_json(engine.reasoner.decoder.device(), engine.params.memory);
        // Paths say where the inputs were; what they held is in the fingerprint.
        host["model"] = json!(reasoner.path());
        host["reward_model"] = json!(reward_model.as_ref().map(ModelFiles::path));
        host["data"] = json!(self.data.to_string());
        Ok(Manifest {
            program: manifest::program(),
            commit: manifest::commit(),
            created: manifest::now(),
            host,
            settings: manifest::settings_json(
                &engine.reasoner.method,
                &engine.params,
                engine.reward_model.is_some(),
            ),
            seeds: self.seeds.clone(),
            questions: questions.len(),
            fingerprint: fingerprint::compute(
                [reasoner].into_iter().chain(reward_model),
                &self.data,
                questions,
            )?,
            ..Manifest::default()
        })
    }
}

/// Opens the run directory.
fn open_run_dir(on_existing: OnExisting, out: &Path, manifest: &Manifest) -> Result<RunWriter> {
    let opened = match on_existing {
        OnExisting::Refuse => RunDir::create(out, manifest),
        OnExisting::Resume => RunDir::resume(out, manifest),
        OnExisting::Overwrite => RunDir::overwrite(out, manifest),
    };
    let changed = matches!(&opened, Err(record::RecordError::Mismatch { field, .. }) if field == "fingerprint");
    opened.with_context(|| match changed {
        true => "a file of the model, the reward model or the data is not what it was",
        false => "run directory",
    })
}

/// Samples what is not on file yet and records it.
fn sample_missing(
    engine: &Engine<'_>,
    questions: &[Question],
    seeds: &[u64],
    mut records: RunRecorder,
    printer: &Printer,
) -> Result<RunDir> {
    let command = resume_command(std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()));
    let guard = InterruptGuard::install(format!(
        "\ninterrupted; what is done is kept, continue with:\n  {command}"
    ))?;
    let mut progress =
        EvalProgress::new(records.writer.done_count(), seeds.len() * questions.len(), printer);
    for &seed in seeds {
        let mut engine = *engine;
        engine.params.seed = seed;
        let left: Vec<Question> =
            questions.iter().filter(|q| !records.writer.is_done(seed, q.id)).cloned().collect();
        let mut rest = left.as_slice();
        while !rest.is_empty() {
            let batch;
            (batch, rest) = rest.split_at(progress.next_batch_size().min(rest.len()));
            let mut failure = None;
            engine.run(
                batch,
                &mut |outcome| match guard.uninterrupted(|| records.append(&outcome)) {
                    Ok(()) => {
                        progress.record(&outcome.sample);
                        ControlFlow::Continue(())
                    }
                    Err(error) => {
                        failure = Some(error);
                        ControlFlow::Break(())
                    }
                },
            )?;
            failure.map_or(Ok(()), Err)?;
            progress.report();
        }
    }
    records.finish()
}

/// What is written of a run.
struct RunRecorder {
    writer: RunWriter,
    latents: Option<LatentsWriter>,
}

impl RunRecorder {
    fn append(&mut self, outcome: &Outcome) -> Result<(), record::RecordError> {
        if let Some(latents) = &mut self.latents {
            latents.append(
                &outcome.sample,
                outcome.thoughts.iter().chain(&outcome.greedy_thoughts).map(Tensor::data),
            )?;
        }
        self.writer.append(&outcome.sample)?;
        if outcome.seconds == Seconds::default() {
            Ok(())
        } else {
            self.writer.append_timing(&outcome.seconds)
        }
    }

    fn finish(self) -> Result<RunDir> {
        let run = self.writer.finish()?;
        self.latents.map_or(Ok(()), LatentsWriter::finish)?;
        Ok(run)
    }
}

/// How it goes, over the questions of this process.
struct EvalProgress {
    start: Instant,
    questions: usize,
    trajectories: usize,
    greedy: usize,
    majority: usize,
    covered: usize,
    remaining: usize,
    progress: Progress,
}

impl EvalProgress {
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
            remaining: total.saturating_sub(done),
            progress: printer.progress(done, total),
        }
    }

    /// How many questions to hand over next: one at first, so that a figure appears soon, then as
    /// many as take as long again.
    fn next_batch_size(&self) -> usize {
        let seconds = self.start.elapsed().as_secs_f64();
        let pace = seconds / self.questions.max(1) as f64;
        if self.questions == 0 {
            1
        } else {
            ((seconds.clamp(1.0, TARGET_BATCH_SECONDS) / pace) as usize).max(1)
        }
    }

    fn record(&mut self, sample: &Sample) {
        let trajectories = &sample.trajectories;
        self.questions += 1;
        self.remaining = self.remaining.saturating_sub(1);
        self.trajectories += trajectories.len();
        self.greedy += usize::from(sample.greedy.as_ref().is_some_and(|t| t.correct));
        self.majority +=
            usize::from(aggregate::majority(trajectories).is_some_and(|i| trajectories[i].correct));
        self.covered += usize::from(trajectories.iter().any(|t| t.correct));
        self.progress.advance();
    }

    /// Questions that were thought about together arrive together, so the pace is only known after
    /// a batch.
    fn report(&mut self) {
        let seconds = self.start.elapsed().as_secs_f64();
        let share = |n: usize| 100.0 * n as f64 / self.questions as f64;
        let line = format!(
            "greedy {:.1}%, majority {:.1}%, coverage {:.1}%, {:.0} trajectories/s, {} left",
            share(self.greedy),
            share(self.majority),
            share(self.covered),
            self.trajectories as f64 / seconds.max(1e-9),
            format_duration(seconds / self.questions as f64 * self.remaining as f64)
        );
        self.progress.report(&line);
    }
}

/// The results, and where they came from.
fn result_json(out: &Path, manifest: &Manifest, results: &Results) -> Result<Value> {
    let mut document =
        json!({ "run": out, "settings": manifest.settings, "fingerprint": manifest.fingerprint });
    if let (Value::Object(document), Value::Object(results)) =
        (&mut document, serde_json::to_value(results)?)
    {
        document.extend(results);
    }
    Ok(document)
}
