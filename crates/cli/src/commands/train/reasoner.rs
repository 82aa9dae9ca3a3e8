//! `latent-tts train reasoner`: a latent reasoner, or a baseline with or without chain of thought.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use model::TrainableHead;
use model::source::InitialWeights;
use serde_json::{Value, json};
use train::corpus::{self, Split};
use train::curriculum::{Curriculum, Removal};
use train::data_loader::{BatchSpec, DataLoader, ExampleSource};
use train::dataset::{self, TrainExample};
use train::digit_head::DigitHead;
use train::latent_step::{AuxiliaryLosses, LatentTrainStep};
use train::methods::coconut::CoconutEncoder;
use train::model_dir::{self, ModelInit, ScratchShape};
use train::reasoner::ReasonerTask;

use super::{run_training, train_config, train_settings, weight_dtype};
use crate::args::{ReasonerArgs, ReasonerMode, RemovalKind};
use crate::printer::Printer;

/// Runs `train reasoner`.
pub(super) fn run(args: &ReasonerArgs, printer: &Printer) -> Result<ExitCode> {
    let training = &args.training;
    ensure!(
        args.width.get().is_multiple_of(args.heads.get()),
        "--width {} is not a multiple of --heads {}",
        args.width,
        args.heads
    );
    let curriculum = curriculum(args);
    let settings = train_settings(model_settings(args, &curriculum), training);
    let train_config = train_config(training, &args.out, settings)?;
    let (data, held_out) = (training_data(args)?, held_out(args)?);
    let device = args.device.open()?;
    printer.note(&format!("on {}", device.describe()));
    let init = match &args.init {
        Some(dir) => ModelInit::Pretrained(dir.clone()),
        None => ModelInit::Scratch(ScratchShape {
            width: args.width.get(),
            layers: args.layers.get(),
            heads: args.heads.get(),
            context: args.context.get(),
            seed: training.seed,
        }),
    };
    let init = model_dir::init_model(&device, &init, &args.out, family_config(args))?;
    let config = init.decoder.decoder.config().clone();
    let digits = matches!(curriculum, Curriculum::Latent { .. }) && args.digits > 0.0;
    let initial_weights = InitialWeights { seed: training.seed, layers: config.layers };
    let digits = digits
        .then(|| DigitHead::new(&device, &initial_weights, "digits", config.width, args.digits))
        .transpose()?;
    let batches = BatchSpec {
        source: data,
        encoder: CoconutEncoder {
            tokenizer: Arc::new(init.tokenizer),
            markers: init.markers,
            curriculum,
        },
        batch_size: training.batch.get(),
        batches: u64::from(training.steps.get()) * u64::from(training.accumulate.get()),
        seed: training.seed,
        context: config.context,
    };
    let mut task = ReasonerTask {
        train_step: LatentTrainStep::new(
            init.decoder,
            TrainableHead::Identity,
            AuxiliaryLosses { digit_head: digits, ..AuxiliaryLosses::default() },
        ),
        loader: DataLoader::new(batches),
        dropout: training.dropout,
        seed: training.seed,
        accumulation_steps: training.accumulate.get(),
        out: args.out.clone(),
        dtype: weight_dtype(training.save_dtype),
        held_out,
        device: device.clone(),
    };
    run_training(&mut task, &device, &train_config, printer, &args.out)
}

fn curriculum(args: &ReasonerArgs) -> Curriculum {
    let (rise, mixed) = (f64::from(args.rise), f64::from(args.mixed));
    match args.mode {
        ReasonerMode::Cot => Curriculum::Cot,
        ReasonerMode::NoCot => Curriculum::NoCot,
        ReasonerMode::Latent => Curriculum::Latent {
            thoughts: args.thoughts.get(),
            removal: match args.removal {
                RemovalKind::Smooth => {
                    Removal::Smooth { rise, all: f64::from(args.ahead), random: mixed }
                }
                RemovalKind::Stages => Removal::Stages {
                    stages: args.stages,
                    per_step: args.thoughts_per_step,
                    until: rise,
                    uniform: mixed,
                },
            },
        },
    }
}

/// The `latent_tts` section of config.json: the family and its generation defaults.
fn family_config(args: &ReasonerArgs) -> Value {
    match args.mode {
        ReasonerMode::Latent => {
            json!({ "family": "coconut", "thoughts": args.thoughts, "max_new_tokens": 24 })
        }
        ReasonerMode::Cot => json!({ "family": "cot", "max_new_tokens": 128 }),
        ReasonerMode::NoCot => json!({ "family": "cot", "max_new_tokens": 24 }),
    }
}

fn training_data(args: &ReasonerArgs) -> Result<ExampleSource> {
    let seed = args.training.seed;
    Ok(match &args.data {
        None => ExampleSource::Corpus { seed },
        Some(file) => {
            let examples = dataset::read(file, None)?;
            ensure!(!examples.is_empty(), "{}: no examples", file.display());
            ExampleSource::List { examples: Arc::new(examples), seed }
        }
    })
}

fn held_out(args: &ReasonerArgs) -> Result<Vec<TrainExample>> {
    let count = args.held_out_count;
    match (&args.held_out, &args.data) {
        (Some(file), _) => Ok(dataset::read(file, Some(count))?),
        (None, None) => {
            Ok((0..count as u64).map(|i| corpus::problem(Split::Valid, 0, i).into()).collect())
        }
        (None, Some(_)) => Ok(Vec::new()),
    }
}

/// The settings of the fingerprint that are not those of the training loop.
fn model_settings(args: &ReasonerArgs, curriculum: &Curriculum) -> Value {
    json!({
        "curriculum": curriculum,
        "init": args.init,
        "data": args.data,
        "digits": args.digits,
        "shape": [args.width.get(), args.layers.get(), args.heads.get(), args.context.get()],
    })
}
