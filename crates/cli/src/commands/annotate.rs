//! `latent-tts annotate`: labels the thoughts of sampled trajectories, by rollouts or by outcome.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use corpus::Split;
use latent_tts::annotate::{AnnotationInputs, AnnotationJob, AnnotationObserver, ShardPart};
use latent_tts::engine::rollout::{AnnotatedQuestion, ThoughtLabels};
use latent_tts::report::table::count;
use latent_tts::train::annotate::{
    AnnotationCounts, AnnotationIndex, AnnotationShard, AnnotationStore, ThoughtsDtype,
};
use latent_tts::{Annotator, EMBEDDED, ModelSelection, OnExisting, Question, SamplingOptions};
use serde_json::{Value, json};

use crate::args::{AnnotateArgs, LabelsKind, ModelArgs, StoredDtypeKind};
use crate::interrupt::{self, shell_quoted};
use crate::load::{NO_REWARD_MODEL, load_models, select_models};
use crate::printer::{Printer, Progress, format_duration};
use crate::{settings, too_long};

/// Default of `--samples`.
const DEFAULT_TRAJECTORIES: NonZeroU32 = NonZeroU32::new(8).unwrap();
/// Default of `--rollouts`.
const DEFAULT_ROLLOUTS: NonZeroUsize = NonZeroUsize::new(4).unwrap();
/// Default of `--per-shard`: enough questions to fill a GPU, few enough to lose little work on an
/// interruption. Also the default number of questions of the embedded corpus.
const DEFAULT_PER_SHARD: usize = 1024;

/// Runs `annotate`.
pub fn run(args: &AnnotateArgs, printer: &Printer) -> Result<ExitCode> {
    settings::refuse_aggregation(&args.sampling)?;
    let job = AnnotateJob::from_args(args)?;
    let source = settings::data_source(args.data.as_deref(), &args.fields, Split::Train)?;
    let questions = source.read(args.limit, DEFAULT_PER_SHARD)?;
    let device = args.machine.device.open(printer)?;
    let model = load_models(&job.models, &device, printer)?;
    let reasoner = model.reasoner();
    let params = job.sampling.resolve(&reasoner.method).map_err(settings::flag_error)?;
    let annotator = Annotator::new(reasoner, params, job.labels)
        .with_memory(args.machine.kv_cache_bytes(&device)?);
    let check = |question: &Question| annotator.check(std::slice::from_ref(question));
    let (questions, _) = too_long::fitting(args.too_long, questions, check, printer)?;
    annotator.check(&questions)?;

    let inputs = AnnotationInputs {
        reasoner: &job.models.reasoner,
        data: &source,
        questions: &questions,
        per_shard: job.per_shard,
        dtype: job.dtype,
    };
    let index = inputs.index(&annotator)?;
    let out = args.out.clone().unwrap_or_else(|| inputs.default_out(&index));
    let store = AnnotationJob::open(&out, &index, job.on_existing)?;
    printer.note(&format!("writing labels to {}", out.display()));
    let mut progress = AnnotateProgress::new(&store, &index, job.part, printer);
    interrupt::exit_on_signal(interrupt::message("interrupted; finished shards are kept"))?;
    let annotation = AnnotationJob { annotator, index: &index, part: job.part };
    annotation.run(&store, &questions, &mut progress)?;
    progress.check_kept(&out)?;
    let next = (job.part.of == 1).then(|| next_command(args.model.as_deref(), &out));
    printer.result(&progress.to_json(&out, &index), || progress.text(&out, next))?;
    Ok(ExitCode::SUCCESS)
}

/// The command that trains a reward model on these labels.
fn next_command(model: Option<&str>, out: &Path) -> String {
    let [model, out] = [model.unwrap_or(EMBEDDED), &out.display().to_string()].map(shell_quoted);
    format!("latent-tts train reward --model {model} --annotations {out} --out models/reward")
}

/// The flags as options, resolved before any file is read.
struct AnnotateJob {
    models: ModelSelection,
    sampling: SamplingOptions,
    labels: ThoughtLabels,
    per_shard: usize,
    dtype: ThoughtsDtype,
    part: ShardPart,
    on_existing: OnExisting,
}

impl AnnotateJob {
    fn from_args(args: &AnnotateArgs) -> Result<Self> {
        let models = ModelArgs {
            model: args.model.clone(),
            reward_model: Some(NO_REWARD_MODEL.to_owned()),
            probe: None,
            base: args.base.clone(),
            method: args.method,
        };
        let (part, of) = args.shard.unwrap_or((1, 1));
        Ok(Self {
            on_existing: settings::on_existing(args.resume, args.overwrite)?,
            labels: labels(args)?,
            sampling: settings::sampling(
                &args.sampling,
                SamplingOptions::new(DEFAULT_TRAJECTORIES),
            )?,
            models: select_models(&models)?,
            per_shard: args.per_shard.map_or(DEFAULT_PER_SHARD, |n| n.get() as usize),
            dtype: match args.thoughts_dtype {
                Some(StoredDtypeKind::Bf16) => ThoughtsDtype::Bf16,
                Some(StoredDtypeKind::F32) | None => ThoughtsDtype::F32,
            },
            part: ShardPart { part: part - 1, of },
        })
    }
}

fn labels(args: &AnnotateArgs) -> Result<ThoughtLabels> {
    match (args.labels, args.rollouts) {
        // A preset also sets the number of rollouts, which final labels override.
        (Some(LabelsKind::Final), Some(_)) if args.preset.is_none() => {
            bail!(
                "--rollouts has no effect with --labels final, which uses no rollouts; omit one \
                 of them"
            )
        }
        (Some(LabelsKind::Final), _) => Ok(ThoughtLabels::Final),
        (_, count) => {
            Ok(ThoughtLabels::Rollouts(count.map_or(Ok(DEFAULT_ROLLOUTS), NonZeroUsize::try_from)?))
        }
    }
}

/// Progress of an annotation, over the questions of this process.
struct AnnotateProgress {
    start: Instant,
    questions: usize,
    /// Number of questions of this process's part, including recorded ones.
    total: usize,
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
        part: ShardPart,
        printer: &Printer,
    ) -> Self {
        let count = |shards: &mut dyn Iterator<Item = usize>| {
            shards.map(|s| index.questions_of(s).len()).sum::<usize>()
        };
        let remaining = count(&mut store.missing(part.part, part.of).into_iter());
        let all = count(&mut (0..index.shards()).filter(|s| s % part.of == part.part));
        if remaining < all {
            printer.note(&format!("{} of {all} questions already recorded", all - remaining));
        }
        Self {
            start: Instant::now(),
            questions: 0,
            total: all,
            remaining,
            kept: 0,
            rollouts: 0,
            thoughts: 0,
            shards: 0,
            counts: AnnotationCounts::default(),
            progress: printer.progress(all - remaining, all),
        }
    }

    /// Prints the rate, which advances in steps because the questions of a batch finish together.
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

    /// Fails if there are no labels, unless an earlier process may have written some.
    fn check_kept(&self, out: &Path) -> Result<()> {
        let AnnotationCounts { all_right, all_wrong, .. } = self.counts;
        if self.kept > 0 || self.questions < self.total {
            return Ok(());
        }
        bail!(
            "no labels in {}: of {}, {all_right} have only correct trajectories and {all_wrong} \
             only incorrect ones; use questions of intermediate difficulty (--data, --limit), \
             more trajectories (--samples) or a stronger perturbation (--dropout-p)",
            out.display(),
            count(self.questions, "question")
        )
    }

    /// A summary of the work done by this process.
    fn to_json(&self, out: &Path, index: &AnnotationIndex) -> Value {
        let seconds = self.start.elapsed().as_secs_f64();
        json!({
            "out": out,
            "settings": index.settings,
            "fingerprint": index.fingerprint,
            "shards": self.shards,
            "questions": self.questions,
            "kept": self.kept,
            "all_right": self.counts.all_right,
            "all_wrong": self.counts.all_wrong,
            "trajectories": self.questions * index.trajectories,
            "thoughts": self.thoughts,
            "rollouts": self.rollouts,
            "seconds": seconds,
            "rollouts_per_s": self.rollouts as f64 / seconds.max(1e-9),
        })
    }

    fn text(&self, out: &Path, next: Option<String>) -> String {
        let Self {
            questions,
            kept,
            rollouts,
            thoughts,
            counts: AnnotationCounts { all_right, all_wrong, .. },
            ..
        } = self;
        if *questions == 0 && self.total > 0 {
            return format!(
                "all {} were already annotated\nlabels: {}{}",
                count(self.total, "question"),
                out.display(),
                next.map(|next| format!("\nnext: {next}")).unwrap_or_default()
            );
        }
        let took = format_duration(self.start.elapsed().as_secs_f64());
        format!(
            "{kept} of {questions} questions kept ({all_right} all correct, {all_wrong} all \
             incorrect): {thoughts} labeled thoughts from {rollouts} rollouts in {took}\n\
             labels: {}{}",
            out.display(),
            next.map(|next| format!("\nnext: {next}")).unwrap_or_default()
        )
    }
}

impl AnnotationObserver for AnnotateProgress {
    fn annotated(&mut self, annotated: &AnnotatedQuestion) {
        self.questions += 1;
        self.remaining = self.remaining.saturating_sub(1);
        self.kept += usize::from(annotated.kept);
        self.rollouts += annotated.rollouts;
        self.progress.advance();
        self.report();
    }

    fn shard_done(&mut self, shard: &AnnotationShard) {
        let counts = shard.counts();
        self.shards += 1;
        self.thoughts += shard.thoughts();
        self.counts.all_right += counts.all_right;
        self.counts.all_wrong += counts.all_wrong;
    }
}
