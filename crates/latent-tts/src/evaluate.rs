//! Evaluation: a benchmark with parallel sampling, recorded question by question.
//!
//! All inputs are validated before the run directory is modified. Each question is recorded as soon
//! as it is done. If the process ends early for any reason, [`OnExisting::Resume`] continues after
//! the last record and produces the same bytes.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use aggregate::Rule;
use data::Question;
use engine::{CancelToken, Engine, Lens, Request, SamplingParams};
use model::ModelFiles;
use record::{
    Ablation, AblationKind, LatentsWriter, Manifest, QuestionRecord, RecordError, Results, RunDir,
    RunWriter, Sample, StageSeconds,
};
use report::metrics::{self, MetricSettings};
use serde_json::json;

use crate::ablation::Ablator;
use crate::data_source::DataSource;
use crate::model::ModelSelection;
use crate::rescore::check_rules;
use crate::sampling::check_sampler;
use crate::scorer::{Scorer, apply_scorer};
use crate::{Error, fingerprint, grade, manifest};

/// How to handle existing results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnExisting {
    /// Keep them and return an error.
    #[default]
    Refuse,
    /// Continue after them.
    Resume,
    /// Replace them.
    Overwrite,
}

/// An evaluation: [`Evaluation::new`] with defaults, and methods that change them.
///
/// ```no_run
/// use latent_tts::{DataSource, DeviceOptions, Evaluation, ModelSelection, RewardModelChoice};
/// use latent_tts::{SamplingOptions, evaluation_params};
///
/// let models = ModelSelection::new("embedded", RewardModelChoice::Default)?;
/// let engine = models.load(&DeviceOptions::default().open()?)?.engine()?;
/// let data = DataSource::parse("embedded:test")?;
/// let params = evaluation_params(&SamplingOptions::new(64.try_into()?), &engine)?;
/// let evaluation = Evaluation::new(&models, &data, params).seeds([0, 1]).out("runs/two-seeds");
/// let output = evaluation.run(&engine, &data.read(None, 300)?, &mut ())?;
/// println!("{} metrics in {}", output.results.metrics.len(), output.out.display());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Evaluation<'a> {
    /// The models, for the manifest.
    pub models: &'a ModelSelection,
    /// The source of the questions, for the manifest.
    pub data: &'a DataSource,
    /// The parameters of every question; the seed is replaced by each of `seeds`.
    pub params: SamplingParams,
    /// The seeds; all questions are sampled under each. Defaults to the seed of the parameters.
    pub seeds: Vec<u64>,
    /// Numbers of trajectories to report; powers of two up to N if empty.
    pub ks: Vec<usize>,
    /// Voting rules to report; `None` for the default ones.
    pub rules: Option<Vec<Rule>>,
    /// The run directory; by default a directory in `runs/` named after inputs and settings.
    pub out: Option<PathBuf>,
    /// How to handle an existing run.
    pub on_existing: OnExisting,
    /// Whether to store all thoughts in `latents.safetensors`.
    pub keep_latents: bool,
    /// Number of tokens to record per thought of the greedy run, as decoded by the LM head.
    pub lens: Option<NonZeroUsize>,
    /// A scorer that replaces the reward model.
    pub scorer: Option<Arc<dyn Scorer>>,
    /// Replacements of the greedy run's thoughts to measure, written to `ablation.json`. This part
    /// is not resumed but recomputed; it takes only one trajectory per question and kind.
    pub ablations: Vec<AblationKind>,
    /// Ends the evaluation with [`EngineError::Cancelled`](engine::EngineError::Cancelled);
    /// recorded samples are kept.
    pub cancel: CancelToken,
}

/// A finished evaluation.
#[derive(Debug)]
pub struct EvalOutput {
    /// The run directory.
    pub out: PathBuf,
    /// The records of the run.
    pub run: RunDir,
    /// Metrics and cost.
    pub results: Results,
    /// The ablation of the greedy run, if requested.
    pub ablation: Option<Ablation>,
}

/// Callbacks for evaluation progress.
pub trait EvalObserver {
    /// The run directory was opened and contains `done` of `total` questions.
    fn opened(&mut self, _out: &Path, _done: usize, _total: usize) {}

    /// A question was recorded.
    fn recorded(&mut self, _sample: &Sample) {}

    /// A batch of questions was completed.
    fn batch_done(&mut self) {}

    /// All questions are recorded; the ablation starts.
    fn ablation_started(&mut self) {}
}

/// Ignores all events.
impl EvalObserver for () {}

/// Target duration of a batch in seconds: long enough to fill the device, short enough to show
/// progress and to lose little work.
const BATCH_SECONDS: f64 = 10.0;

impl<'a> Evaluation<'a> {
    /// An evaluation under the seed of the parameters, into a new directory.
    pub fn new(models: &'a ModelSelection, data: &'a DataSource, params: SamplingParams) -> Self {
        Self {
            models,
            data,
            params,
            seeds: vec![params.seed],
            ks: Vec::new(),
            rules: None,
            out: None,
            on_existing: OnExisting::default(),
            keep_latents: false,
            lens: None,
            scorer: None,
            ablations: Vec::new(),
            cancel: CancelToken::default(),
        }
    }

    /// Sets the seeds.
    #[must_use]
    pub fn seeds(self, seeds: impl Into<Vec<u64>>) -> Self {
        Self { seeds: seeds.into(), ..self }
    }

    /// Sets the numbers of trajectories to report.
    #[must_use]
    pub fn ks(self, ks: impl Into<Vec<usize>>) -> Self {
        Self { ks: ks.into(), ..self }
    }

    /// Sets the voting rules to report.
    #[must_use]
    pub fn rules(self, rules: impl Into<Option<Vec<Rule>>>) -> Self {
        Self { rules: rules.into(), ..self }
    }

    /// Sets the run directory.
    #[must_use]
    pub fn out(self, out: impl Into<PathBuf>) -> Self {
        Self { out: Some(out.into()), ..self }
    }

    /// Sets how to handle an existing run.
    #[must_use]
    pub fn on_existing(self, on_existing: OnExisting) -> Self {
        Self { on_existing, ..self }
    }

    /// Sets whether to store all thoughts.
    #[must_use]
    pub fn keep_latents(self, keep_latents: bool) -> Self {
        Self { keep_latents, ..self }
    }

    /// Sets the number of tokens to record per thought of the greedy run.
    #[must_use]
    pub fn lens(self, tokens: impl Into<Option<NonZeroUsize>>) -> Self {
        Self { lens: tokens.into(), ..self }
    }

    /// Sets the scorer.
    #[must_use]
    pub fn scorer(self, scorer: impl Into<Option<Arc<dyn Scorer>>>) -> Self {
        Self { scorer: scorer.into(), ..self }
    }

    /// Sets the replacements of the greedy run's thoughts to measure.
    #[must_use]
    pub fn ablations(self, kinds: impl Into<Vec<AblationKind>>) -> Self {
        Self { ablations: kinds.into(), ..self }
    }

    /// Sets the token that cancels the evaluation.
    #[must_use]
    pub fn cancel(self, cancel: CancelToken) -> Self {
        Self { cancel, ..self }
    }

    /// Samples and measures all questions; recorded ones are not sampled again.
    pub fn run(
        &self,
        engine: &Engine,
        questions: &[Question],
        observer: &mut dyn EvalObserver,
    ) -> Result<EvalOutput, Error> {
        let ablator = Ablator { kinds: &self.ablations, params: self.ablation_params() };
        ablator.check(engine)?;
        let mut recorder = self.open(engine, questions)?;
        observer.opened(recorder.out(), recorder.done_count(), recorder.total());
        self.sample_missing(engine, questions, &mut recorder, observer)?;
        let mut output = self.finish(recorder)?;
        if !self.ablations.is_empty() {
            observer.ablation_started();
            let ablation = ablator.run(engine, questions)?;
            output.run.write_ablation(&ablation)?;
            output.ablation = Some(ablation);
        }
        Ok(output)
    }

    /// Opens the run directory, after validating all inputs.
    ///
    /// [`Evaluation::sample`] produces records, possibly in other processes, [`RunRecorder::add`]
    /// writes them in the order of seeds and questions, and [`Evaluation::finish`] computes the
    /// metrics. Several machines therefore produce the same run as a single one.
    pub fn open(&self, engine: &Engine, questions: &[Question]) -> Result<RunRecorder, Error> {
        let request = |question| grade::request(question, self.params);
        engine.check(&questions.iter().map(request).collect::<Vec<_>>())?;
        let manifest = self.manifest(engine, questions)?;
        let out = self.out.clone().unwrap_or_else(|| self.default_out(&manifest));
        record::files::check_no_weights(&out)?;
        let writer = self.open_writer(&out, &manifest)?;
        self.check_records(&out, questions)?;
        let total = self.seeds.len() * questions.len();
        let width = engine.reasoner().decoder.config().width;
        let latents = match self.keep_latents {
            true => Some(LatentsWriter::open(&out, width)?),
            false => LatentsWriter::check_none(&out).map(|()| None)?,
        };
        Ok(RunRecorder { out, total, writer, latents })
    }

    /// Samples questions under one seed in one batch, and passes on the record of each.
    pub fn sample(
        &self,
        engine: &Engine,
        questions: &[&Question],
        seed: u64,
        mut take: impl FnMut(QuestionRecord) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let params = SamplingParams { seed, ..self.params };
        let lens = self.lens.map(|tokens| Lens { tokens, sampled: false });
        let request = |question: &&Question| Request {
            lens,
            cancel: self.cancel.clone(),
            ..grade::request(question, params)
        };
        let requests: Vec<Request> = questions.iter().map(request).collect();
        engine.run(&requests, |index, reply| {
            let mut reply = reply?;
            check_sampler(&params.perturbation)?;
            if let Some(scorer) = &self.scorer {
                apply_scorer(scorer.as_ref(), &questions[index].text, &params, &mut reply)?;
            }
            let kept = reply.trajectories.iter().chain(&reply.greedy).filter(|_| self.keep_latents);
            take(QuestionRecord {
                sample: grade::grade(questions[index], &params, &reply),
                seconds: reply.seconds,
                latents: kept.flat_map(|trajectory| trajectory.latents.data()).copied().collect(),
            })
        })
    }

    /// Computes the metrics of a completely recorded run.
    pub fn finish(&self, recorder: RunRecorder) -> Result<EvalOutput, Error> {
        let out = recorder.out.clone();
        let run = recorder.finish()?;
        let settings = MetricSettings {
            ks: self.ks.clone(),
            aggregators: self.rules.clone(),
            vote_params: self.params.vote,
            ..MetricSettings::default()
        };
        let results = metrics::results_of_run(&run, &settings)?;
        check_rules(self.rules.as_deref().unwrap_or_default())?;
        run.write_results(&results)?;
        Ok(EvalOutput { out, run, results, ablation: None })
    }

    /// The parameters of the ablation. The greedy run is the same under every seed; the first seed
    /// determines the shuffled orders.
    fn ablation_params(&self) -> SamplingParams {
        let seed = self.seeds.first().copied().unwrap_or_default();
        SamplingParams { seed, ..self.params }
    }

    fn default_out(&self, manifest: &Manifest) -> PathBuf {
        let model = self.models.reasoner.path();
        Path::new("runs").join(manifest::default_run_name(model, self.data, manifest))
    }

    /// The manifest of the run: settings, seeds, and the digest of models and questions.
    pub fn manifest(&self, engine: &Engine, questions: &[Question]) -> Result<Manifest, Error> {
        let ModelSelection { reasoner, reward_model, probe, .. } = self.models;
        let model = engine.reasoner();
        let mut host = manifest::host_json(model.decoder.device(), engine.memory());
        // Paths record where the inputs were; the fingerprint covers their contents.
        host["model"] = json!(reasoner.path());
        host["reward_model"] = json!(reward_model.as_ref().map(ModelFiles::path));
        if let Some(probe) = probe {
            host["probe"] = json!(probe);
        }
        host["data"] = json!(self.data.to_string());
        let has_rewards = engine.reward_model().is_some() || self.scorer.is_some();
        let models = [reasoner].into_iter().chain(reward_model);
        let device = model.decoder.device();
        let mut settings =
            manifest::settings_json(&model.method, &self.params, has_rewards, device);
        if let Some(probe) = probe {
            let files = fingerprint::of_files([], [probe.as_path()])?;
            settings["probe"] = json!(files);
        }
        if let Some(scorer) = &self.scorer {
            settings["scorer"] = json!(scorer.name());
        }
        if let Some(tokens) = self.lens {
            settings["lens"] = json!(tokens);
        }
        Ok(Manifest {
            program: manifest::program(),
            commit: manifest::commit(),
            created: manifest::now(),
            host,
            settings,
            seeds: self.seeds.clone(),
            questions: questions.len(),
            fingerprint: fingerprint::compute(models, self.data, questions)?,
            ..Manifest::default()
        })
    }

    /// Checks that the existing records belong to these questions, in order.
    fn check_records(&self, out: &Path, questions: &[Question]) -> Result<(), Error> {
        let run = RunDir::open(out)?;
        let expected = self.seeds.iter().flat_map(|&seed| questions.iter().map(move |q| (seed, q)));
        let mut expected = expected.map(Some).chain(std::iter::repeat(None));
        for (line, sample) in (1..).zip(run.samples()?) {
            let Sample { seed, id, question, gold, .. } = sample?;
            let what = match expected.next().flatten() {
                Some((of, q)) if (of, q.id) != (seed, id) => "another question is expected here",
                Some((_, q)) if q.text != question => "its text differs",
                Some((_, q)) if q.gold != gold => "its gold answer differs",
                Some(_) => continue,
                None => "the data has no such question",
            };
            let path = run.samples_file();
            return Err(RecordError::OtherQuestion { path, line, seed, id, what }.into());
        }
        Ok(())
    }

    fn open_writer(&self, out: &Path, manifest: &Manifest) -> Result<RunWriter, Error> {
        let opened = match self.on_existing {
            OnExisting::Refuse => RunDir::create(out, manifest),
            OnExisting::Resume => RunDir::resume(out, manifest),
            OnExisting::Overwrite => RunDir::overwrite(out, manifest),
        };
        opened.map_err(|error| match &error {
            RecordError::Mismatch { field, .. } if field == "fingerprint" => {
                Error::InputsChanged(error)
            }
            _ => Error::Record(error),
        })
    }

    /// Samples the questions without a record, in batches of a few seconds.
    fn sample_missing(
        &self,
        engine: &Engine,
        questions: &[Question],
        recorder: &mut RunRecorder,
        observer: &mut dyn EvalObserver,
    ) -> Result<(), Error> {
        let mut pace = BatchPace::start();
        for &seed in &self.seeds {
            let missing = recorder.missing(seed, questions);
            let mut rest = missing.as_slice();
            while !rest.is_empty() {
                let batch;
                (batch, rest) = rest.split_at(pace.batch_size().min(rest.len()));
                self.sample(engine, batch, seed, |record| {
                    {
                        let _guard = record::files::write_guard();
                        recorder.add(&record)?;
                    }
                    pace.questions += 1;
                    observer.recorded(&record.sample);
                    Ok(())
                })?;
                observer.batch_done();
            }
        }
        Ok(())
    }
}

/// Determines batch sizes from the speed so far.
struct BatchPace {
    start: Instant,
    questions: usize,
}

impl BatchPace {
    fn start() -> Self {
        Self { start: Instant::now(), questions: 0 }
    }

    /// The next batch size: one question at first, so that progress appears soon, then as many as
    /// take about as long as the run so far, from 1 to [`BATCH_SECONDS`] seconds.
    fn batch_size(&self) -> usize {
        if self.questions == 0 {
            return 1;
        }
        let seconds = self.start.elapsed().as_secs_f64();
        let pace = seconds / self.questions as f64;
        ((seconds.clamp(1.0, BATCH_SECONDS) / pace) as usize).max(1)
    }
}

/// A run directory in progress.
pub struct RunRecorder {
    out: PathBuf,
    total: usize,
    writer: RunWriter,
    latents: Option<LatentsWriter>,
}

impl RunRecorder {
    /// The run directory.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// Number of samples of the complete run, under all seeds.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of recorded samples.
    pub fn done_count(&self) -> usize {
        self.writer.done_count()
    }

    /// The questions without a record under a seed.
    pub fn missing<'q>(&self, seed: u64, questions: &'q [Question]) -> Vec<&'q Question> {
        questions.iter().filter(|question| !self.writer.is_done(seed, question.id)).collect()
    }

    /// Records a question. Seeds must be added in order, and the questions of each seed in order.
    pub fn add(&mut self, record: &QuestionRecord) -> Result<(), Error> {
        if let Some(latents) = &mut self.latents {
            latents.append(&record.sample, [record.latents.as_slice()])?;
        }
        self.writer.append(&record.sample)?;
        if record.seconds != StageSeconds::default() {
            self.writer.append_timing(&record.seconds)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<RunDir, RecordError> {
        let run = self.writer.finish()?;
        self.latents.map_or(Ok(()), LatentsWriter::finish)?;
        Ok(run)
    }
}
