//! `latent-tts annotate`: trajectories and rollouts become labelled thoughts.
//!
//! As in `eval`, everything that can be wrong is found before the directory is touched. Each shard
//! is computed by itself and written in one piece, so that its bytes do not depend on what was done
//! before it or on another machine.

use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use engine::Question;
use engine::rollout::{AnnotatedQuestion, Annotator, ThoughtLabels};
use model::ModelFiles;
use record::Manifest;
use serde_json::{Value, json};
use train::annotate::{
    AnnotationCounts, AnnotationError, AnnotationIndex, AnnotationShard, AnnotationStore,
    ThoughtsDtype,
};
use train::corpus::Split;

use crate::args::{AnnotateArgs, LabelsKind, ModelArgs, ThoughtsDtypeKind};
use crate::data::DataSource;
use crate::interrupt::{InterruptGuard, resume_command};
use crate::load::{ModelSelection, NO_REWARD_MODEL};
use crate::printer::{Printer, Progress, format_duration};
use crate::settings::{OnExisting, SamplingSettings};
use crate::{fingerprint, manifest};

/// Trajectories of each question.
const DEFAULT_TRAJECTORIES: NonZeroUsize = NonZeroUsize::new(8).unwrap();
/// Rollouts from every thought.
const DEFAULT_ROLLOUTS: NonZeroUsize = NonZeroUsize::new(4).unwrap();
/// Questions of a shard: enough to fill a GPU, few enough to lose little. Of the embedded corpus
/// one shard is taken where nobody says how many.
const DEFAULT_PER_SHARD: usize = 1024;

/// Runs the command.
pub fn run(args: &AnnotateArgs, printer: &Printer) -> Result<ExitCode> {
    let job = AnnotateJob::from_args(args)?;
    let data = QuestionSet::read(args)?;
    let device = args.machine.device.open()?;
    let loaded = job.models.load(&device, printer)?;
    let reasoner = &loaded.reasoner;
    let memory = args.machine.kv_cache_bytes(&device)?;
    let annotator = Annotator {
        reasoner,
        settings: job.sampling.resolve(&reasoner.method, memory),
        labels: job.labels,
    };
    annotator.check(&data.questions)?;

    let index = job.build_index(&annotator, &data)?;
    let out = args.out.clone().unwrap_or_else(|| job.default_out(&data, &index));
    let store = open_store(job.on_existing, &out, &index)?;
    printer.note(&format!("labels go to {}", out.display()));
    let mut progress = AnnotateProgress::new(&store, &index, job.part, printer);
    annotate_missing_shards(&annotator, &data, (&store, &index, job.part), &mut progress)?;
    printer.result(&progress.to_json(&out, &index), || progress.text(&out))?;
    Ok(ExitCode::SUCCESS)
}

/// What the flags mean, as far as it can be known before anything is read.
struct AnnotateJob {
    models: ModelSelection,
    sampling: SamplingSettings,
    labels: ThoughtLabels,
    per_shard: usize,
    dtype: ThoughtsDtype,
    part: (usize, usize), // counted from 0
    on_existing: OnExisting,
}

impl AnnotateJob {
    fn from_args(args: &AnnotateArgs) -> Result<Self> {
        let models = ModelArgs {
            model: args.model.clone(),
            reward_model: Some(NO_REWARD_MODEL.to_owned()),
            method: args.method,
        };
        let (part, of) = args.shard.unwrap_or((1, 1));
        Ok(Self {
            on_existing: OnExisting::from_flags(args.resume, args.overwrite)?,
            labels: labels(args)?,
            sampling: SamplingSettings::from_args(&args.sampling, DEFAULT_TRAJECTORIES)?,
            models: ModelSelection::from_args(&models)?,
            per_shard: args.per_shard.map_or(DEFAULT_PER_SHARD, |n| n.get() as usize),
            dtype: match args.thoughts_dtype {
                Some(ThoughtsDtypeKind::Bf16) => ThoughtsDtype::Bf16,
                Some(ThoughtsDtypeKind::F32) | None => ThoughtsDtype::F32,
            },
            part: (part - 1, of),
        })
    }

    fn build_index(
        &self,
        annotator: &Annotator<'_>,
        data: &QuestionSet,
    ) -> Result<AnnotationIndex> {
        let (method, settings) = (&annotator.reasoner.method, &annotator.settings);
        let labels = match self.labels {
            ThoughtLabels::Final => json!({ "kind": "final" }),
            ThoughtLabels::Rollouts(count) => json!({ "kind": "rollouts", "rollouts": count }),
        };
        Ok(AnnotationIndex {
            version: AnnotationIndex::VERSION,
            program: manifest::program(),
            commit: manifest::commit(),
            settings: json!({
                "method": method.family.name(),
                "labels": labels,
                "sampler": manifest::perturbation_json(settings.perturbation),
                "thoughts": crate::args::values::format_latent_length(settings.length),
                "max_new_tokens": settings.max_new_tokens,
                "seed": settings.seed,
            }),
            fingerprint: data.fingerprint(&self.models.reasoner)?,
            questions: data.questions.len(),
            per_shard: self.per_shard,
            trajectories: settings.samples.get(),
            width: annotator.reasoner.decoder.config().width,
            dtype: self.dtype,
        })
    }

    /// A name that the same inputs and settings always get, so that `--resume` finds it.
    fn default_out(&self, data: &QuestionSet, index: &AnnotationIndex) -> PathBuf {
        let settings = json!([index.settings, index.trajectories, index.per_shard, index.dtype]);
        let (questions, fingerprint) = (index.questions, index.fingerprint.clone());
        let manifest = Manifest { settings, questions, fingerprint, ..Manifest::default() };
        Path::new("annotations").join(manifest::default_run_name(
            self.models.reasoner.path(),
            &data.source,
            &manifest,
        ))
    }
}

fn labels(args: &AnnotateArgs) -> Result<ThoughtLabels> {
    match (args.labels, args.rollouts) {
        (Some(LabelsKind::Final), Some(_)) => {
            bail!(
                "--rollouts has no meaning with --labels final, which needs none; leave one of them out"
            )
        }
        (Some(LabelsKind::Final), None) => Ok(ThoughtLabels::Final),
        (_, count) => {
            Ok(ThoughtLabels::Rollouts(count.map_or(Ok(DEFAULT_ROLLOUTS), NonZeroUsize::try_from)?))
        }
    }
}

/// The questions.
struct QuestionSet {
    source: DataSource,
    questions: Vec<Question>,
}

impl QuestionSet {
    fn read(args: &AnnotateArgs) -> Result<Self> {
        let source = DataSource::from_arg(args.data.as_deref(), Split::Train)?;
        let questions = source.read(args.limit, DEFAULT_PER_SHARD)?;
        Ok(Self { source, questions })
    }

    /// A digest of them and of the reasoner.
    fn fingerprint(&self, reasoner: &ModelFiles) -> Result<String> {
        fingerprint::compute([reasoner], &self.source, &self.questions)
    }

    /// Those of a shard.
    fn slice(&self, range: Range<usize>) -> &[Question] {
        &self.questions[range]
    }
}

/// Opens the directory.
fn open_store(
    on_existing: OnExisting,
    out: &Path,
    index: &AnnotationIndex,
) -> Result<AnnotationStore> {
    let opened = match on_existing {
        OnExisting::Refuse => AnnotationStore::create(out, index),
        OnExisting::Resume => AnnotationStore::resume(out, index),
        OnExisting::Overwrite => AnnotationStore::overwrite(out, index),
    };
    let changed = matches!(&opened, Err(AnnotationError::SettingsDiffer { by, .. }) if by.field == "index.fingerprint");
    opened.with_context(|| match changed {
        true => "a file of the model or the data is not what it was",
        false => "annotations",
    })
}

/// Makes the shards that are missing.
fn annotate_missing_shards(
    annotator: &Annotator<'_>,
    data: &QuestionSet,
    (store, index, part): (&AnnotationStore, &AnnotationIndex, (usize, usize)),
    progress: &mut AnnotateProgress,
) -> Result<()> {
    let command = resume_command(std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()));
    let guard = InterruptGuard::install(format!(
        "\ninterrupted; finished shards are kept, continue with:\n  {command}"
    ))?;
    for number in store.missing(part.0, part.1) {
        let questions = data.slice(index.questions_of(number));
        let (mut shard, mut next, mut failure) =
            (AnnotationShard::new(index), questions.iter(), None);
        annotator.run(questions, &mut |annotated| {
            let Some(question) = next.next() else { return ControlFlow::Break(()) };
            progress.record(&annotated);
            match shard.add(question, &annotated) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failure.map_or(Ok(()), Err)?;
        guard.uninterrupted(|| store.write(number, &shard))?;
        progress.finish_shard(&shard);
    }
    Ok(())
}

/// How it goes, over the questions of this process.
struct AnnotateProgress {
    start: Instant,
    questions: usize,
    remaining: usize,
    kept: usize,
    rollouts: usize,
    thoughts: usize,
    shards: usize,
    counts: AnnotationCounts, // of finished shards
    progress: Progress,
}

impl AnnotateProgress {
    fn new(
        store: &AnnotationStore,
        index: &AnnotationIndex,
        (part, of): (usize, usize),
        printer: &Printer,
    ) -> Self {
        let count = |shards: &mut dyn Iterator<Item = usize>| {
            shards.map(|s| index.questions_of(s).len()).sum::<usize>()
        };
        let remaining = count(&mut store.missing(part, of).into_iter());
        let all = count(&mut (0..index.shards()).filter(|s| s % of == part));
        if remaining < all {
            printer.note(&format!("{} of {all} questions are on file", all - remaining));
        }
        Self {
            start: Instant::now(),
            questions: 0,
            remaining,
            kept: 0,
            rollouts: 0,
            thoughts: 0,
            shards: 0,
            counts: AnnotationCounts::default(),
            progress: printer.progress(all - remaining, all),
        }
    }

    fn record(&mut self, annotated: &AnnotatedQuestion) {
        self.questions += 1;
        self.remaining = self.remaining.saturating_sub(1);
        self.kept += usize::from(annotated.kept);
        self.rollouts += annotated.rollouts;
        self.progress.advance();
        self.report();
    }

    /// Questions that are followed together arrive together: the pace is that of the last batch.
    fn report(&mut self) {
        let seconds = self.start.elapsed().as_secs_f64();
        let line = format!(
            "kept {:.1}%, {:.1} rollouts/s, {} left",
            100.0 * self.kept as f64 / self.questions as f64,
            self.rollouts as f64 / seconds.max(1e-9),
            format_duration(seconds / self.questions as f64 * self.remaining as f64)
        );
        self.progress.report(&line);
    }

    fn finish_shard(&mut self, shard: &AnnotationShard) {
        let counts = shard.counts();
        self.shards += 1;
        self.thoughts += shard.thoughts();
        self.counts.all_right += counts.all_right;
        self.counts.all_wrong += counts.all_wrong;
    }

    /// What this process did.
    fn to_json(&self, out: &Path, index: &AnnotationIndex) -> Value {
        let seconds = self.start.elapsed().as_secs_f64();
        json!({
            "out": out, "settings": index.settings, "fingerprint": index.fingerprint, "shards": self.shards,
            "questions": self.questions, "kept": self.kept, "all_right": self.counts.all_right, "all_wrong": self.counts.all_wrong,
            "trajectories": self.questions * index.trajectories, "thoughts": self.thoughts, "rollouts": self.rollouts,
            "seconds": seconds, "rollouts_per_s": self.rollouts as f64 / seconds.max(1e-9),
        })
    }

    fn text(&self, out: &Path) -> String {
        let Self {
            questions,
            kept,
            rollouts,
            thoughts,
            counts: AnnotationCounts { all_right, all_wrong, .. },
            ..
        } = self;
        let took = format_duration(self.start.elapsed().as_secs_f64());
        format!(
            "{kept} of {questions} questions kept ({all_right} all right, {all_wrong} all wrong): {thoughts} labelled thoughts from \
             {rollouts} rollouts in {took}\nlabels are in {}",
            out.display()
        )
    }
}
