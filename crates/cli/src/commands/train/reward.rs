//! `train reward`.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use model::source::InitialWeights;
use model::{Checkpoint, Learner, LmHead};
use serde_json::json;
use train::annotate::Annotations;
use train::course::Course;
use train::digits::Digits;
use train::directory::{self, read_json, write_json};
use train::judge::{Expectations, HeadKind, Judge, ScoreLearner};
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
    describe(args)?;
    let fresh = InitialWeights { seed: learning.seed, layers: config.layers };
    let kind = match args.head {
        ScoreHeadKind::Linear => HeadKind::Linear,
        ScoreHeadKind::Compare => HeadKind::Compare,
    };
    let learner = device.run(|| Learner::load(&device, &config, &checkpoint, LmHead::Without))?;
    let head = ScoreLearner::load(&device, &fresh, kind, config.width)?;
    let reader = |name: &str| Digits::new(&device, &fresh, name, config.width);
    let expectations = match args.digits {
        weight if weight > 0.0 => Some(Expectations { current: reader("digits.current")?, next: reader("digits.next")?, weight }),
        _ => None,
    };
    let mut course = RewardCourse {
        judge: Judge::new(learner, head, expectations),
        annotations,
        held_out,
        objective: if args.objective == ObjectiveKind::Bce { Objective::Bce } else { Objective::Contrastive },
        late: args.late,
        dropout: learning.dropout,
        seed: learning.seed,
        batch: learning.batch.get(),
        accumulate: learning.accumulate.get(),
        out: args.out.clone(),
        saved: saved(learning.save_dtype),
        device: device.clone(),
    };
    if args.objective == ObjectiveKind::Untrained {
        course.save()?;
        printer.result(&json!({ "out": args.out }), || format!("{} is written, untrained", args.out.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!args.annotations.is_empty(), "nothing to learn from; pass --annotations DIR");
    ensure!(
        course.annotations.iter().any(|part| !part.is_empty()),
        "{}: nothing to learn from: of no problem some trajectories are right and others wrong; annotate more problems",
        args.annotations.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ")
    );
    follow(&mut course, &device, &plan, printer, &args.out)
}

/// Writes what the directory holds beside the weights: the reasoner's configuration under a judge's class, its tokenizer.
fn describe(args: &RewardArgs) -> Result<()> {
    std::fs::create_dir_all(&args.out).with_context(|| format!("{}: cannot be made", args.out.display()))?;
    let mut config = read_json(&args.model.join("config.json"))?;
    config["architectures"] = json!(["COCONUTGPT2ForTokenClassification"]);
    if let Some(config) = config.as_object_mut() {
        config.remove("latent_tts");
    }
    directory::copy_tokenizer(&args.model, &args.out)?;
    Ok(write_json(&args.out.join("config.json"), &config)?)
}

/// Everything that changes what is learned.
fn fingerprint(args: &RewardArgs) -> String {
    let learning = &args.learning;
    json!({
        "model": args.model, "init": args.init, "annotations": args.annotations, "late": args.late, "digits": args.digits,
        "objective": format!("{:?}", args.objective), "head": format!("{:?}", args.head),
        "steps": learning.steps, "batch": learning.batch, "accumulate": learning.accumulate, "lr": learning.lr,
        "warmup": learning.warmup, "floor": learning.floor, "weight_decay": learning.weight_decay, "beta2": learning.beta2,
        "clip": learning.clip, "dropout": learning.dropout, "seed": learning.seed,
    })
    .to_string()
}
