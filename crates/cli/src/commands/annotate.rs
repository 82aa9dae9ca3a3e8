//! `latent-tts annotate`: trajectories and rollouts become labelled thoughts.
//!
//! As in `eval`, everything that can be wrong is found before the directory is touched. Each shard is computed by itself and
//! written in one piece, so that its bytes do not depend on what was done before it or on another machine.

use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use engine::Question;
use engine::rollout::{Annotated, Annotator, Labels};
use model::Folder;
use record::Manifest;
use serde_json::{Value, json};
use train::annotate::{Counts, Error, Index, Shard, Store, ThoughtsDtype};
use train::corpus::Split;

use crate::args::{AnnotateArgs, LabelsKind, ModelArgs, ThoughtsKind};
use crate::data::Source;
use crate::interrupt::{Gate, resume_command};
use crate::load::{Models, NO_JUDGE};
use crate::printer::{Printer, Progress, show_seconds};
use crate::settings::{Sampling, Start};
use crate::{fingerprint, manifest};

/// Trajectories of each question.
const TRAJECTORIES: NonZeroUsize = NonZeroUsize::new(8).unwrap();
/// Rollouts from every thought.
const ROLLOUTS: NonZeroUsize = NonZeroUsize::new(4).unwrap();
/// Questions of a shard: enough to fill a GPU, few enough to lose little. Of the embedded corpus one shard is taken where
/// nobody says how many.
const PER_SHARD: usize = 1024;

/// Runs the command.
pub fn run(args: &AnnotateArgs, printer: &Printer) -> Result<ExitCode> {
    let job = Job::of(args)?;
    let data = Data::read(args)?;
    let device = args.machine.device.open()?;
    let loaded = job.models.load(&device, printer)?;
    let reasoner = &loaded.reasoner;
    let memory = args.machine.memory(&device)?;
    let annotator = Annotator { reasoner, settings: job.sampling.settings(&reasoner.method, memory), labels: job.labels };
    annotator.check(&data.questions)?;

    let index = job.index(&annotator, &data)?;
    let out = args.out.clone().unwrap_or_else(|| job.default_out(&data, &index));
    let store = open(job.start, &out, &index)?;
    printer.note(&format!("labels go to {}", out.display()));
    let mut tally = Tally::new(&store, &index, job.part, printer);
    make(&annotator, &data, (&store, &index, job.part), &mut tally)?;
    printer.result(&tally.document(&out, &index), || tally.text(&out))?;
    Ok(ExitCode::SUCCESS)
}

/// What the flags mean, as far as it can be known before anything is read.
struct Job {
    models: Models,
    sampling: Sampling,
    labels: Labels,
    per_shard: usize,
    dtype: ThoughtsDtype,
    part: (usize, usize), // counted from 0
    start: Start,
}

impl Job {
    fn of(args: &AnnotateArgs) -> Result<Self> {
        let models = ModelArgs { model: args.model.clone(), reward_model: Some(NO_JUDGE.to_owned()), method: args.method };
        let (part, of) = args.shard.unwrap_or((1, 1));
        Ok(Self {
            start: Start::of(args.resume, args.overwrite)?,
            labels: labels(args)?,
            sampling: Sampling::of(&args.sampling, TRAJECTORIES)?,
            models: Models::of(&models)?,
            per_shard: args.per_shard.map_or(PER_SHARD, |n| n.get() as usize),
            dtype: match args.thoughts_dtype {
                Some(ThoughtsKind::Bf16) => ThoughtsDtype::Bf16,
                Some(ThoughtsKind::F32) | None => ThoughtsDtype::F32,
            },
            part: (part - 1, of),
        })
    }

    fn index(&self, annotator: &Annotator<'_>, data: &Data) -> Result<Index> {
        let (method, settings) = (&annotator.reasoner.method, &annotator.settings);
        let labels = match self.labels {
            Labels::Final => json!({ "kind": "final" }),
            Labels::Rollouts(count) => json!({ "kind": "rollouts", "rollouts": count }),
        };
        Ok(Index {
            version: Index::VERSION,
            program: manifest::program(),
            commit: manifest::commit(),
            settings: json!({
                "method": method.family.name(),
                "labels": labels,
                "sampler": manifest::sampler(settings.perturbation),
                "thoughts": crate::args::values::show_thoughts(settings.length),
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
    fn default_out(&self, data: &Data, index: &Index) -> PathBuf {
        let settings = json!([index.settings, index.trajectories, index.per_shard, index.dtype]);
        let (questions, fingerprint) = (index.questions, index.fingerprint.clone());
        let manifest = Manifest { settings, questions, fingerprint, ..Manifest::default() };
        Path::new("annotations").join(manifest::default_name(self.models.reasoner.path(), &data.source, &manifest))
    }
}

fn labels(args: &AnnotateArgs) -> Result<Labels> {
    match (args.labels, args.rollouts) {
        (Some(LabelsKind::Final), Some(_)) => {
            bail!("--rollouts has no meaning with --labels final, which needs none; leave one of them out")
        }
        (Some(LabelsKind::Final), None) => Ok(Labels::Final),
        (_, count) => Ok(Labels::Rollouts(count.map_or(Ok(ROLLOUTS), NonZeroUsize::try_from)?)),
    }
}

/// The questions.
struct Data {
    source: Source,
    questions: Vec<Question>,
}

impl Data {
    fn read(args: &AnnotateArgs) -> Result<Self> {
        let source = Source::of(args.data.as_deref(), Split::Train)?;
        let questions = source.read(args.limit, PER_SHARD)?;
        Ok(Self { source, questions })
    }

    /// A digest of them and of the reasoner.
    fn fingerprint(&self, reasoner: &Folder) -> Result<String> {
        fingerprint::of([reasoner], &self.source, &self.questions)
    }

    /// Those of a shard.
    fn part(&self, range: Range<usize>) -> &[Question] {
        &self.questions[range]
    }
}

/// Opens the directory.
fn open(start: Start, out: &Path, index: &Index) -> Result<Store> {
    let opened = match start {
        Start::Create => Store::create(out, index),
        Start::Resume => Store::resume(out, index),
        Start::Overwrite => Store::overwrite(out, index),
    };
    let changed = matches!(&opened, Err(Error::Differs { by, .. }) if by.field == "index.fingerprint");
    opened.with_context(|| match changed {
        true => "a file of the model or the data is not what it was",
        false => "annotations",
    })
}

/// Makes the shards that are missing.
fn make(
    annotator: &Annotator<'_>,
    data: &Data,
    (store, index, part): (&Store, &Index, (usize, usize)),
    tally: &mut Tally,
) -> Result<()> {
    let command = resume_command(std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()));
    let gate = Gate::install(format!("\ninterrupted; finished shards are kept, continue with:\n  {command}"))?;
    for number in store.missing(part.0, part.1) {
        let questions = data.part(index.questions_of(number));
        let (mut shard, mut next, mut failure) = (Shard::new(index), questions.iter(), None);
        annotator.run(questions, &mut |annotated| {
            let Some(question) = next.next() else { return ControlFlow::Break(()) };
            tally.add(&annotated);
            match shard.add(question, &annotated) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failure.map_or(Ok(()), Err)?;
        gate.write(|| store.write(number, &shard))?;
        tally.finish(&shard);
    }
    Ok(())
}

/// How it goes, over the questions of this process.
struct Tally {
    start: Instant,
    questions: usize,
    left: usize,
    kept: usize,
    rollouts: usize,
    thoughts: usize,
    shards: usize,
    counts: Counts, // of finished shards
    progress: Progress,
}

impl Tally {
    fn new(store: &Store, index: &Index, (part, of): (usize, usize), printer: &Printer) -> Self {
        let count = |shards: &mut dyn Iterator<Item = usize>| shards.map(|s| index.questions_of(s).len()).sum::<usize>();
        let left = count(&mut store.missing(part, of).into_iter());
        let all = count(&mut (0..index.shards()).filter(|s| s % of == part));
        if left < all {
            printer.note(&format!("{} of {all} questions are on file", all - left));
        }
        Self {
            start: Instant::now(),
            questions: 0,
            left,
            kept: 0,
            rollouts: 0,
            thoughts: 0,
            shards: 0,
            counts: Counts::default(),
            progress: printer.progress(all - left, all),
        }
    }

    fn add(&mut self, annotated: &Annotated) {
        self.questions += 1;
        self.left = self.left.saturating_sub(1);
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
            show_seconds(seconds / self.questions as f64 * self.left as f64)
        );
        self.progress.report(&line);
    }

    fn finish(&mut self, shard: &Shard) {
        let counts = shard.counts();
        self.shards += 1;
        self.thoughts += shard.thoughts();
        self.counts.all_right += counts.all_right;
        self.counts.all_wrong += counts.all_wrong;
    }

    /// What this process did.
    fn document(&self, out: &Path, index: &Index) -> Value {
        let seconds = self.start.elapsed().as_secs_f64();
        json!({
            "out": out, "settings": index.settings, "fingerprint": index.fingerprint, "shards": self.shards,
            "questions": self.questions, "kept": self.kept, "all_right": self.counts.all_right, "all_wrong": self.counts.all_wrong,
            "trajectories": self.questions * index.trajectories, "thoughts": self.thoughts, "rollouts": self.rollouts,
            "seconds": seconds, "rollouts_per_s": self.rollouts as f64 / seconds.max(1e-9),
        })
    }

    fn text(&self, out: &Path) -> String {
        let Self { questions, kept, rollouts, thoughts, counts: Counts { all_right, all_wrong, .. }, .. } = self;
        let took = show_seconds(self.start.elapsed().as_secs_f64());
        format!(
            "{kept} of {questions} questions kept ({all_right} all right, {all_wrong} all wrong): {thoughts} labelled thoughts from \
             {rollouts} rollouts in {took}\nlabels are in {}",
            out.display()
        )
    }
}
