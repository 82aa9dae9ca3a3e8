//! `train reward`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use engine::reasoner::MIND;
use engine::reflect::Reflections;
use engine::{Family, Method, RewardModel};
use model::source::InitialWeights;
use model::{Checkpoint, Learner, LmHead, Tokenizer};
use serde_json::json;
use train::annotate::Annotations;
use train::course::Course;
use train::digits::Digits;
use train::directory::{self, read_json, write_json};
use train::judge::{Expectations, HeadKind, Judge, ScoreLearner, Verdicts};
use train::loss::Objective;
use train::reward::RewardCourse;

use super::{follow, plan, saved};
use crate::args::{ObjectiveKind, RewardArgs, ScoreHeadKind};
use crate::printer::Printer;

/// Trains a reward model.
pub(super) fn run(args: &RewardArgs, printer: &Printer) -> Result<ExitCode> {
    let learning = &args.learning;
    let plan = plan(learning, &args.out, fingerprint(args))?;
    let annotations = args.annotations.iter().map(|dir| Annotations::open(dir)).collect::<Result<Vec<_>, _>>()?;
    let held_out = args.held_out.as_deref().map(Annotations::open).transpose()?;
    let device = args.device.open()?;
    printer.note(&format!("on {}", device.describe()));
    let checkpoint = Checkpoint::open(args.init.as_ref().unwrap_or(&args.model))?;
    let config = checkpoint.config().clone();
    for part in annotations.iter().chain(&held_out) {
        let width = part.index().width;
        ensure!(
            width == config.width,
            "the annotations' thoughts are {width} wide, the model is {}; annotate with it",
            config.width
        );
    }
    let fresh = InitialWeights { seed: learning.seed, layers: config.layers };
    let kind = match args.head {
        ScoreHeadKind::Linear => HeadKind::Linear,
        ScoreHeadKind::Compare => HeadKind::Compare,
    };
    let learner = device.run(|| Learner::load(&device, &config, &checkpoint, LmHead::Without))?;
    let head = ScoreLearner::load(&device, &fresh, kind, config.width)?;
    let reader = |name: &str| Digits::new(&device, &fresh, name, config.width);
    let expectations = match args.digits {
        weight if weight > 0.0 => Some(Expectations {
            current: reader("digits.current")?,
            next: reader("digits.next")?,
            answer: reader("digits.answer")?,
            weight,
        }),
        _ => None,
    };
    let mut judge = Judge::new(learner, head, expectations);
    if args.reads_answers {
        let head = ScoreLearner::verdict(&device, &fresh, config.width)?;
        judge = judge.reading_answers(Verdicts { head, end: end_tokens(&args.model)? });
    }
    let mind = args.mind.as_deref().map(|dir| RewardModel::mind(&device, dir, config.width)).transpose()?;
    let mut course = RewardCourse {
        judge,
        mind,
        reflections: Reflections::default(),
        annotations,
        held_out,
        objective: match args.objective {
            ObjectiveKind::Bce => Objective::Bce,
            ObjectiveKind::Pairwise => Objective::Pairwise,
            ObjectiveKind::Contrastive | ObjectiveKind::Untrained => Objective::Contrastive,
        },
        late: args.late,
        dropout: learning.dropout,
        seed: learning.seed,
        batch: learning.batch.get(),
        accumulate: learning.accumulate.get(),
        out: args.out.clone(),
        saved: saved(learning.save_dtype),
        device: device.clone(),
    };
    course.check()?;
    if args.objective == ObjectiveKind::Untrained {
        describe(args)?;
        course.save()?;
        printer.result(&json!({ "out": args.out }), || format!("{} is written, untrained", args.out.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!args.annotations.is_empty(), "nothing to learn from; pass --annotations DIR");
    if course.annotations.iter().all(Annotations::is_empty) {
        let dirs: Vec<String> = args.annotations.iter().map(|dir| dir.display().to_string()).collect();
        bail!(train::Error::Empty { what: dirs.join(", ") });
    }
    describe(args)?;
    follow(&mut course, &device, &plan, printer, &args.out)
}

/// Writes what the directory holds beside the weights: the reasoner's configuration under a judge's class, its tokenizer.
fn describe(args: &RewardArgs) -> Result<()> {
    std::fs::create_dir_all(&args.out).with_context(|| format!("{}: cannot be made", args.out.display()))?;
    let mut config = read_json(&args.model.join("config.json"))?;
    let class = if config["model_type"] == "llama" { "LlamaForTokenClassification" } else { "COCONUTGPT2ForTokenClassification" };
    config["architectures"] = json!([class]);
    if let Some(config) = config.as_object_mut() {
        config.remove("latent_tts");
    }
    directory::copy_tokenizer(&args.model, &args.out)?;
    if let Some(mind) = &args.mind {
        directory::copy_model(mind, &args.out.join(MIND))?;
    }
    Ok(write_json(&args.out.join("config.json"), &config)?)
}

/// What a reasoner says between its thoughts and its answer.
fn end_tokens(dir: &Path) -> Result<Vec<u32>> {
    let (checkpoint, tokenizer) = (Checkpoint::open(dir)?, Tokenizer::read(dir)?);
    let family = Family::recognise(&checkpoint, &tokenizer)?;
    Ok(Method::resolve(family, &checkpoint, &tokenizer)?.end)
}

/// Everything that changes what is learned.
fn fingerprint(args: &RewardArgs) -> String {
    let learning = &args.learning;
    json!({
        "model": args.model, "init": args.init, "annotations": args.annotations, "late": args.late, "digits": args.digits,
        "objective": format!("{:?}", args.objective), "head": format!("{:?}", args.head),
        "reads_answers": args.reads_answers, "mind": args.mind,
        "steps": learning.steps, "batch": learning.batch, "accumulate": learning.accumulate, "lr": learning.lr,
        "warmup": learning.warmup, "floor": learning.floor, "weight_decay": learning.weight_decay, "beta2": learning.beta2,
        "clip": learning.clip, "dropout": learning.dropout, "seed": learning.seed,
    })
    .to_string()
}
