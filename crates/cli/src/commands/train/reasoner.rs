//! `latent-tts train reasoner`: a latent reasoner, or a baseline with or without chain of thought.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use model::TrainableHead;
use model::source::InitialWeights;
use serde_json::{Value, json};
use train::corpus::{self, Split};
use train::curriculum::{Curriculum, Removal};
use train::data_loader::{BatchSpec, DataLoader, ExampleMixture, ExampleSource};
use train::dataset::{self, TrainExample};
use train::digit_head::DigitHead;
use train::latent_step::LatentTrainStep;
use train::model_dir::{self, ModelInit, ScratchShape};
use train::reasoner::ReasonerTask;

use super::{run_training, settings_fingerprint, train_config, weight_dtype};
use crate::args::values::WeightedData;
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
    let fingerprint = settings_fingerprint(model_settings(args, &curriculum), training);
    let train_config = train_config(training, &args.out, fingerprint)?;
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
        tokenizer: Arc::new(init.tokenizer),
        markers: init.markers,
        curriculum,
        batch_size: training.batch.get(),
        batches: u64::from(training.steps.get()) * u64::from(training.accumulate.get()),
        seed: training.seed,
        context: config.context,
    };
    let mut task = ReasonerTask {
        train_step: LatentTrainStep::new(init.decoder, TrainableHead::Identity, digits),
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
    let mut sources = args.data.iter().map(|data| data.open(seed)).collect::<Result<Vec<_>>>()?;
    match sources.len() {
        0 => Ok(ExampleSource::Corpus { seed }),
        1 => Ok(sources.remove(0).0),
        _ => {
            let weighted = args.data.iter().zip(sources).map(|(data, (source, size))| {
                let weight = data.weight.or(size);
                let hint = "corpus has no size; give it a weight, e.g. --data corpus:5000";
                weight.map(|weight| (source, weight)).context(hint)
            });
            let mixture = ExampleMixture::new(weighted.collect::<Result<_>>()?, seed);
            Ok(ExampleSource::Mixture(mixture.context("--data: too many sources")?))
        }
    }
}

impl WeightedData {
    /// The examples, and how many there are unless that is unbounded.
    fn open(&self, seed: u64) -> Result<(ExampleSource, Option<f64>)> {
        let Some(file) = self.file() else { return Ok((ExampleSource::Corpus { seed }, None)) };
        let examples = dataset::read(file, None)?;
        ensure!(!examples.is_empty(), "{}: no examples", file.display());
        let size = examples.len() as f64;
        Ok((ExampleSource::List { examples: Arc::new(examples), seed }, Some(size)))
    }
}

fn held_out(args: &ReasonerArgs) -> Result<Vec<TrainExample>> {
    let count = args.held_out_count;
    let only_corpus = args.data.iter().all(|data| data.file().is_none());
    match &args.held_out {
        Some(file) => Ok(dataset::read(file, Some(count))?),
        None if only_corpus => {
            Ok((0..count as u64).map(|i| corpus::problem(Split::Valid, 0, i).into()).collect())
        }
        None => Ok(Vec::new()),
    }
}

/// The data in the fingerprint: nothing for the corpus alone, a name, or a list.
fn data_setting(data: &[WeightedData]) -> Value {
    match data {
        [] => Value::Null,
        [only] => json!(only.to_string()),
        several => several.iter().map(ToString::to_string).collect(),
    }
}

/// The settings of the fingerprint that are not those of the training loop.
fn model_settings(args: &ReasonerArgs, curriculum: &Curriculum) -> Value {
    json!({
        "curriculum": curriculum,
        "init": args.init,
        "data": data_setting(&args.data),
        "digits": args.digits,
        "shape": [args.width.get(), args.layers.get(), args.heads.get(), args.context.get()],
    })
}
