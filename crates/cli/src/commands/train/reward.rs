//! `latent-tts train reward`: a latent reward model on annotations.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use latent_tts::engine::{Family, Method, REFERENCE_DIR, ReferenceTracer, RewardModel};
use latent_tts::{file_fingerprint, files_over};
use model::config::ReferenceRecord;
use model::source::InitialWeights;
use model::{Checkpoint, DecoderTuning, LmHead, ModelFiles, Tokenizer, TrainableDecoder, adapter};
use record::files::{ExistingModel, InputPaths, ModelDir};
use serde_json::{Value, json};
use train::annotate::Annotations;
use train::digit_head::DigitHead;
use train::loss::Objective;
use train::model_dir::{self, AdapterStart, TuningSpec, WeightWriter, read_json, write_json};
use train::reward::RewardTask;
use train::reward_step::{
    DigitHeads, OutcomeHead, RewardHeadKind, RewardTrainStep, TrainableRewardHead,
};
use train::trainer::{TrainTask, check_state};

use super::{
    Destination, existing_model, model_paths, open_device, run_training, train_config,
    train_settings, weight_dtype,
};
use crate::args::{ObjectiveKind, RewardArgs, ScoreHeadKind};
use crate::interrupt::shell_quoted;
use crate::printer::Printer;

/// Runs `train reward`.
pub(super) fn run(args: &RewardArgs, printer: &Printer) -> Result<ExitCode> {
    let training = &args.training;
    ensure!(
        args.objective != ObjectiveKind::Untrained || !training.resume,
        "--objective untrained has no training to resume; leave --resume out"
    );
    let annotations =
        args.annotations.iter().map(|dir| Annotations::open(dir)).collect::<Result<Vec<_>, _>>()?;
    let held_out = args.held_out.as_deref().map(Annotations::open).transpose()?;
    let base = args.lora.base.as_deref();
    let reasoner = files_over(&args.model, base)?;
    let init = args.init.as_ref().map(|init| files_over(init, base)).transpose()?;
    let reference = Reference::of(args, &reasoner)?;
    let models = [Some(&reasoner), init.as_ref(), reference.as_ref().map(Reference::files)];
    let data = args.annotations.iter().chain(&args.held_out);
    let existing = existing_model(training);
    let paths = model_paths(models.into_iter().flatten())?;
    let paths: InputPaths = paths.iter().chain(data.clone()).collect();
    ModelDir::check(&args.out, &paths, existing)?;
    let inputs = file_fingerprint(models.into_iter().flatten(), data.map(PathBuf::as_path))?;
    let settings = train_settings(model_settings(args), training, inputs);
    let train_config = train_config(training, &args.out, settings);
    if existing == ExistingModel::Resume {
        check_state(&train_config)?;
    }
    let device = open_device(&args.device, printer)?;
    printer.note(&format!("on {}", device.describe()));
    let checkpoint = Checkpoint::open(init.as_ref().unwrap_or(&reasoner))?;
    printer.warnings(checkpoint.warnings());
    let config = checkpoint.config().clone();
    for part in annotations.iter().chain(&held_out) {
        let width = part.index().width;
        ensure!(
            width == config.width,
            "the annotations' thoughts are {width} wide, the model is {}; annotate with it",
            config.width
        );
    }
    let initial_weights = InitialWeights { seed: training.seed, layers: config.layers };
    let kind = match args.head {
        ScoreHeadKind::Linear => RewardHeadKind::Linear,
        ScoreHeadKind::Compare => RewardHeadKind::Compare,
    };
    let tuning = TuningSpec {
        lora: args.lora.spec(training.seed, AdapterStart::Over),
        dtype: weight_dtype(training.save_dtype),
    };
    let mut decoder = device.run(|| match &tuning.lora {
        None => TrainableDecoder::load(&device, &config, &checkpoint, LmHead::Without),
        Some(lora) => {
            let (source, new_tokens) = (lora.source(&checkpoint), checkpoint.added_tokens());
            let tuning = DecoderTuning::Lora { config: &lora.config, new_tokens };
            TrainableDecoder::load_tuned(&device, &config, &source, LmHead::Without, tuning)
        }
    })?;
    decoder.set_recompute(training.recompute);
    let head = TrainableRewardHead::load(&device, &initial_weights, kind, config.width)?;
    let digit_head =
        |name| DigitHead::new(&device, &initial_weights, name, config.width, args.digits);
    let digit_heads = match args.digits {
        weight if weight > 0.0 => Some(DigitHeads {
            current: digit_head("digits.current")?,
            next: digit_head("digits.next")?,
            answer: digit_head("digits.answer")?,
        }),
        _ => None,
    };
    let mut train_step = RewardTrainStep::new(decoder, head, digit_heads);
    if args.reads_answers {
        let head = TrainableRewardHead::outcome(&device, &initial_weights, config.width)?;
        train_step = train_step
            .with_outcome_head(OutcomeHead { head, end_latent: end_latent_tokens(&reasoner)? });
    }
    let reference_reasoner = reference.as_ref().map(Reference::files);
    let reference_reasoner = reference_reasoner
        .map(|files| RewardModel::load_reference(&device, files, config.width))
        .transpose()?;
    let write_files = || write_model_files(args, &reasoner, reference.as_ref());
    let mut task = RewardTask {
        train_step,
        reference_reasoner,
        reference_tracer: ReferenceTracer::default(),
        annotations,
        held_out,
        objective: match args.objective {
            ObjectiveKind::Bce => Objective::Bce,
            ObjectiveKind::Pairwise => Objective::Pairwise,
            ObjectiveKind::Contrastive | ObjectiveKind::Untrained => Objective::Contrastive,
        },
        last_step_weight: args.late,
        dropout: training.dropout,
        seed: training.seed,
        batch_size: training.batch.get(),
        accumulation_steps: training.accumulate.get(),
        out: args.out.clone(),
        writer: WeightWriter::new(&tuning, &checkpoint)?,
        device: device.clone(),
    };
    task.check()?;
    if args.objective != ObjectiveKind::Untrained {
        check_labels(args, &task.annotations)?;
    }
    let _dir = ModelDir::claim(&args.out, &paths, existing)?;
    if args.objective == ObjectiveKind::Untrained {
        write_files()?;
        task.save()?;
        printer.result(&json!({ "out": args.out }), || {
            format!("{} is written, untrained", args.out.display())
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.held_out.is_none() {
        let why = "no held-out annotations, so how well it ranks is not measured";
        printer.note(&format!("note: {why}; --held-out DIR gives it"));
    }
    write_files()?;
    let [model, out] = [&args.model, &args.out.display().to_string()].map(|dir| shell_quoted(dir));
    let next = format!("latent-tts eval --model {model} --reward-model {out}");
    run_training(&mut task, &device, &train_config, printer, Destination { out: &args.out, next })
}

/// Refuses to train on no labels, before anything is written.
fn check_labels(args: &RewardArgs, annotations: &[Annotations]) -> Result<()> {
    ensure!(
        !args.annotations.is_empty(),
        "nothing to learn from; pass --annotations DIR, which `annotate` writes"
    );
    if annotations.iter().all(Annotations::is_empty) {
        let dirs: Vec<String> =
            args.annotations.iter().map(|dir| dir.display().to_string()).collect();
        bail!(train::TrainError::EmptyAnnotations { what: dirs.join(", ") });
    }
    Ok(())
}

/// The reference reasoner that the flags name.
enum Reference {
    /// The reasoner: recorded.
    Reasoner(ModelFiles),
    /// Another one: copied.
    Copied(ModelFiles),
}

impl Reference {
    fn of(args: &RewardArgs, reasoner: &ModelFiles) -> Result<Option<Self>> {
        Ok(match args.reference.as_deref() {
            None | Some("none") => None,
            Some("reasoner") => Some(Self::Reasoner(reasoner.clone())),
            Some(other) => Some(Self::Copied(files_over(other, args.lora.base.as_deref())?)),
        })
    }

    fn files(&self) -> &ModelFiles {
        let (Self::Reasoner(files) | Self::Copied(files)) = self;
        files
    }
}

/// Writes the files beside the weights: the reasoner's configuration with the class of a reward
/// model, its tokenizer, and the reference reasoner.
fn write_model_files(
    args: &RewardArgs,
    reasoner: &ModelFiles,
    reference: Option<&Reference>,
) -> Result<()> {
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("{}: cannot be made", args.out.display()))?;
    model_dir::copy_description(reasoner, &args.out)?;
    let mut config = read_json(&args.out.join("config.json"))?;
    let class = match config["model_type"].as_str() {
        Some("llama") => "LlamaForTokenClassification",
        Some("qwen2") => "Qwen2ForTokenClassification",
        _ => "COCONUTGPT2ForTokenClassification",
    };
    config["architectures"] = json!([class]);
    if let Some(config) = config.as_object_mut() {
        config.remove("latent_tts");
    }
    match reference {
        Some(Reference::Reasoner(files)) => {
            let path = adapter::path_from(&args.out, files.path())
                .with_context(|| format!("{}: cannot be found", files.path().display()))?;
            let record = ReferenceRecord { path, digest: Checkpoint::open(files)?.digest()? };
            config["latent_tts"] = json!({ "reference": record });
        }
        Some(Reference::Copied(files)) => {
            model_dir::copy_model(files, &args.out.join(REFERENCE_DIR))?;
        }
        None => {}
    }
    Ok(write_json(&args.out.join("config.json"), &config)?)
}

/// The reasoner's end-latent tokens, which stand between its thoughts and its answer.
fn end_latent_tokens(reasoner: &ModelFiles) -> Result<Vec<u32>> {
    let (checkpoint, tokenizer) = (Checkpoint::open(reasoner)?, Tokenizer::read(reasoner)?);
    let family = Family::detect(&checkpoint, &tokenizer)?;
    Ok(Method::resolve(family, &checkpoint, &tokenizer)?.end_latent)
}

/// The settings of the fingerprint that are not those of the training loop.
fn model_settings(args: &RewardArgs) -> Value {
    json!({
        "model": args.model,
        "init": args.init,
        "annotations": args.annotations,
        "late": args.late,
        "digits": args.digits,
        "objective": format!("{:?}", args.objective),
        "head": format!("{:?}", args.head),
        "reads_answers": args.reads_answers,
        "mind": args.reference,
        "lora": args.lora.settings(),
    })
}
