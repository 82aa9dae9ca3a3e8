//! `latent-tts eval`: evaluates a model on a benchmark with parallel sampling.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use corpus::Split;
use latent_tts::record::{Manifest, Results, Sample};
use latent_tts::report::table::TableOptions;
use latent_tts::report::{self, ReportOptions};
use latent_tts::{
    AblationKind, DataSource, Engine, Error, EvalObserver, EvalOutput, Evaluation, ModelSelection,
    OnExisting, Question, Rule, SamplingOptions, SamplingParams, Scorer, aggregate,
    evaluation_params, grade, notes,
};
use serde_json::{Value, json};

use crate::aggregation::{self, RewardOrigins};
use crate::args::{EvalArgs, TooLongKind};
use crate::interrupt;
use crate::load::{load_models, select_models};
use crate::printer::{Printer, Progress, format_duration};
use crate::{scorer, settings, too_long};

/// Default of `--samples`.
const DEFAULT_SAMPLES: NonZeroU32 = NonZeroU32::new(64).unwrap();
/// Default number of questions of the embedded corpus; takes about a minute on two idle cores.
const DEFAULT_QUESTIONS: usize = 300;

/// Runs `eval`.
pub fn run(args: &EvalArgs, printer: &Printer) -> Result<ExitCode> {
    let job = EvalJob::from_args(args)?;
    let questions = job.data.read(args.limit, DEFAULT_QUESTIONS)?;
    let device = args.run.machine.device.open(printer)?;
    let model = load_models(&job.models, &device, printer)?;
    let is_embedded = notes::is_embedded(&job.models.reasoner);
    if let Some(note) = notes::of_questions(model.reasoner(), is_embedded, &questions)? {
        printer.note(&format!("note: {note}"));
    }
    let engine = args.run.machine.engine(&model)?;
    let (questions, skipped) = job.fitting(args.run.too_long, questions, &engine, printer)?;
    let EvalOutput { out, run, results, ablation } = job.evaluate(&engine, &questions, printer)?;
    let page = match args.run.no_report {
        true => None,
        false => {
            let runs = std::slice::from_ref(&run);
            Some(report::write(runs, &out, ReportOptions::default())?.page)
        }
    };
    let all_rules = args.aggregation.aggregate.is_some();
    let options = TableOptions { width: printer.width(), all_rules };
    let text = || {
        let table = report::table::render(&results, options);
        let ablation =
            ablation.as_ref().map(|ablation| format!("\n{}", report::ablation::render(ablation)));
        let paths = output_paths(&out, page.as_deref());
        format!("{table}{}\n{paths}", ablation.unwrap_or_default())
    };
    let mut document = result_json(&out, run.manifest(), &results)?;
    document["page"] = json!(page);
    document["skipped"] = json!(skipped);
    if let Some(ablation) = &ablation {
        document["ablation"] = json!({ "clean": ablation.clean, "ablations": ablation.ablations });
    }
    printer.result(&document, text)?;
    Ok(ExitCode::SUCCESS)
}

fn output_paths(out: &Path, page: Option<&Path>) -> String {
    let page = page.map(|page| format!("HTML report: {}\n", page.display())).unwrap_or_default();
    format!("{page}samples and results: {}", out.display())
}

/// The flags as options, resolved before any file is read.
#[derive(Clone)]
pub struct EvalJob {
    /// Files of the reasoner and the reward model.
    pub models: ModelSelection,
    /// Source of the questions.
    pub data: DataSource,
    /// Sampling options.
    pub sampling: SamplingOptions,
    /// Voting rules to report; `None` for the default ones.
    pub rules: Option<Vec<Rule>>,
    /// Seeds; all questions are sampled under each.
    pub seeds: Vec<u64>,
    /// Numbers of trajectories to report; powers of two if empty.
    pub ks: Vec<usize>,
    /// The run directory given by `--out`.
    pub out: Option<PathBuf>,
    /// How to treat an existing run.
    pub on_existing: OnExisting,
    /// Write all thoughts to latents.safetensors.
    pub keep_latents: bool,
    /// Number of tokens to record for each thought of the greedy run.
    pub lens: Option<NonZeroUsize>,
    /// Kinds of replacement of the greedy run's thoughts to measure.
    pub ablations: Vec<AblationKind>,
    /// Rewards from outside.
    pub scorer: Option<Arc<dyn Scorer>>,
}

impl EvalJob {
    /// Converts the flags of `eval`.
    pub fn from_args(args: &EvalArgs) -> Result<Self> {
        let models = select_models(&args.model)?;
        let scorer = scorer::open(&args.scorer)?;
        let sampling = settings::sampling(&args.sampling, SamplingOptions::new(DEFAULT_SAMPLES))?;
        let sampling = aggregation::apply(
            &args.aggregation,
            sampling,
            RewardOrigins { reward_model: models.reward_model.is_some(), scorer: scorer.is_some() },
        )?;
        let rules = aggregation::rules(&args.aggregation);
        aggregation::check_signals(rules.as_deref(), &sampling, models.probe.is_some())?;
        Ok(Self {
            rules,
            on_existing: settings::on_existing(args.run.resume, args.overwrite)?,
            seeds: settings::seeds(sampling.seed.unwrap_or(0), args.run.seeds)?,
            ks: settings::ks(args.k.as_deref(), sampling.samples.unwrap_or(DEFAULT_SAMPLES))?,
            models,
            data: settings::data_source(args.data.as_deref(), &args.fields, Split::Test)?,
            sampling,
            out: args.out.clone(),
            keep_latents: args.run.latents,
            lens: args.lens,
            ablations: settings::ablations(args.ablate.as_deref()),
            scorer,
        })
    }

    /// The questions that fit the model's context, and the ids of those skipped by `--too-long
    /// skip`.
    pub fn fitting(
        &self,
        kind: Option<TooLongKind>,
        questions: Vec<Question>,
        engine: &Engine,
        printer: &Printer,
    ) -> Result<(Vec<Question>, Vec<u32>)> {
        let params = self.params(engine)?;
        let check = |question: &Question| -> Result<(), Error> {
            Ok(engine.check(&[grade::request(question, params)])?)
        };
        too_long::fitting(kind, questions, check, printer)
    }

    /// Samples and grades all questions; recorded ones are not sampled again.
    pub fn evaluate(
        &self,
        engine: &Engine,
        questions: &[Question],
        printer: &Printer,
    ) -> Result<EvalOutput> {
        interrupt::exit_on_signal(interrupt::message("interrupted; recorded samples are kept"))?;
        let mut progress = EvalProgress::new(printer);
        let done = self.evaluation(engine)?.run(engine, questions, &mut progress)?;
        if let Some(why) = engine.reasoner().decoder.graph_failure() {
            printer.note(&format!("note: running without CUDA graphs, which is slower: {why}"));
        }
        Ok(done)
    }

    /// The evaluation described by the options.
    pub fn evaluation(&self, engine: &Engine) -> Result<Evaluation<'_>> {
        let mut evaluation = Evaluation::new(&self.models, &self.data, self.params(engine)?)
            .seeds(self.seeds.clone())
            .ks(self.ks.clone())
            .rules(self.rules.clone())
            .scorer(self.scorer.clone())
            .on_existing(self.on_existing)
            .keep_latents(self.keep_latents)
            .lens(self.lens)
            .ablations(self.ablations.clone());
        evaluation.out.clone_from(&self.out);
        Ok(evaluation)
    }

    fn params(&self, engine: &Engine) -> Result<SamplingParams> {
        evaluation_params(&self.sampling, engine).map_err(settings::flag_error)
    }
}

/// Progress of an evaluation, over the questions of this process.
struct EvalProgress<'a> {
    printer: &'a Printer,
    start: Instant,
    questions: usize,
    trajectories: usize,
    greedy: usize,
    majority: usize,
    covered: usize,
    remaining: usize,
    progress: Option<Progress>,
}

impl<'a> EvalProgress<'a> {
    fn new(printer: &'a Printer) -> Self {
        Self {
            printer,
            start: Instant::now(),
            questions: 0,
            trajectories: 0,
            greedy: 0,
            majority: 0,
            covered: 0,
            remaining: 0,
            progress: None,
        }
    }
}

impl EvalObserver for EvalProgress<'_> {
    fn opened(&mut self, out: &Path, done: usize, total: usize) {
        self.printer.note(&format!("run directory {}", out.display()));
        if done > 0 {
            self.printer.note(&format!("{done} of {total} questions already recorded"));
        }
        self.start = Instant::now();
        self.remaining = total.saturating_sub(done);
        self.progress = Some(self.printer.progress(done, total));
    }

    fn recorded(&mut self, sample: &Sample) {
        let trajectories = &sample.trajectories;
        self.questions += 1;
        self.remaining = self.remaining.saturating_sub(1);
        self.trajectories += trajectories.len();
        self.greedy += usize::from(sample.greedy.as_ref().is_some_and(|t| t.is_correct()));
        let majority = aggregate::majority(trajectories);
        self.majority += usize::from(majority.is_some_and(|i| trajectories[i].is_correct()));
        self.covered += usize::from(trajectories.iter().any(|t| t.is_correct()));
        if let Some(progress) = &mut self.progress {
            progress.advance();
        }
    }

    fn ablation_started(&mut self) {
        self.progress = None;
        self.printer.note("running all questions with replaced thoughts");
    }

    /// Prints the rate, which advances in steps because the questions of a batch finish together.
    fn batch_done(&mut self) {
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
        if let Some(progress) = &mut self.progress {
            progress.report(&line);
        }
    }
}

/// The JSON document of `--json`: results, settings and fingerprint.
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
