//! `train reasoner`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use model::HeadLearner;
use model::source::InitialWeights;
use serde_json::json;
use train::corpus::{self, Split};
use train::curriculum::{Curriculum, Removal};
use train::dataset::{self, Example};
use train::digits::Digits;
use train::directory::{self, Shape, Start};
use train::feed::{Data, Feed, Recipe};
use train::reasoner::ReasonerCourse;
use train::study::Study;

use super::{follow, plan, saved};
use crate::args::{Mode, ReasonerArgs, RemovalKind};
use crate::printer::Printer;

/// Trains a reasoner.
pub(super) fn run(args: &ReasonerArgs, printer: &Printer) -> Result<ExitCode> {
    let learning = &args.learning;
    ensure!(args.width.get().is_multiple_of(args.heads.get()), "--width {} is not a multiple of --heads {}", args.width, args.heads);
    let curriculum = curriculum(args);
    let fingerprint = fingerprint(args, &curriculum);
    let plan = plan(learning, &args.out, fingerprint)?;
    let (data, held_out) = (data(args)?, held_out(args)?);
    let device = args.device.open()?;
    printer.note(&format!("on {}", device.describe()));
    let start = match &args.init {
        Some(dir) => Start::From(dir.clone()),
        None => Start::Scratch(Shape {
            width: args.width.get(),
            layers: args.layers.get(),
            heads: args.heads.get(),
            context: args.context.get(),
            seed: learning.seed,
        }),
    };
    let begun = directory::begin(&device, &start, &args.out, usage(args))?;
    let config = begun.learner.decoder.config().clone();
    let digits = matches!(curriculum, Curriculum::Latent { .. }) && args.digits > 0.0;
    let fresh = InitialWeights { seed: learning.seed, layers: config.layers };
    let digits = digits.then(|| Digits::new(&device, &fresh, "digits", config.width)).transpose()?;
    let recipe = Recipe {
        data,
        tokenizer: Arc::new(begun.tokenizer),
        markers: begun.markers,
        curriculum,
        batch: learning.batch.get(),
        batches: u64::from(learning.steps.get()) * u64::from(learning.accumulate.get()),
        seed: learning.seed,
        context: config.context,
    };
    let mut course = ReasonerCourse {
        study: Study::new(begun.learner, HeadLearner::Identity, digits.map(|d| (d, args.digits))),
        feed: Feed::new(recipe),
        dropout: learning.dropout,
        seed: learning.seed,
        accumulate: learning.accumulate.get(),
        out: args.out.clone(),
        saved: saved(learning.save_dtype),
        held_out,
        device: device.clone(),
    };
    follow(&mut course, &device, &plan, printer, &args.out)
}

fn curriculum(args: &ReasonerArgs) -> Curriculum {
    let (rise, mixed) = (f64::from(args.rise), f64::from(args.mixed));
    match args.mode {
        Mode::Cot => Curriculum::Cot,
        Mode::NoCot => Curriculum::NoCot,
        Mode::Latent => Curriculum::Latent {
            thoughts: args.thoughts.get(),
            removal: match args.removal {
                RemovalKind::Smooth => Removal::Smooth { rise, all: f64::from(args.ahead), random: mixed },
                RemovalKind::Stages => {
                    Removal::Stages { stages: args.stages, per_step: args.thoughts_per_step, until: rise, uniform: mixed }
                }
            },
        },
    }
}

/// How the model is meant to be used: config.json's `latent_tts`.
fn usage(args: &ReasonerArgs) -> serde_json::Value {
    match args.mode {
        Mode::Latent => json!({ "family": "coconut", "thoughts": args.thoughts, "max_new_tokens": 24 }),
        Mode::Cot => json!({ "family": "cot", "max_new_tokens": 128 }),
        Mode::NoCot => json!({ "family": "cot", "max_new_tokens": 24 }),
    }
}

fn data(args: &ReasonerArgs) -> Result<Data> {
    let seed = args.learning.seed;
    Ok(match &args.data {
        None => Data::Corpus { seed },
        Some(file) => {
            let examples = dataset::read(file, None)?;
            ensure!(!examples.is_empty(), "{}: no examples", file.display());
            Data::List { examples: Arc::new(examples), seed }
        }
    })
}

fn held_out(args: &ReasonerArgs) -> Result<Vec<Example>> {
    let count = args.held_out_count;
    match (&args.held_out, &args.data) {
        (Some(file), _) => Ok(dataset::read(file, Some(count))?),
        (None, None) => Ok((0..count as u64).map(|i| corpus::problem(Split::Valid, 0, i).into()).collect()),
        (None, Some(_)) => Ok(Vec::new()),
    }
}

/// Everything that changes what is learned.
fn fingerprint(args: &ReasonerArgs, curriculum: &Curriculum) -> String {
    let learning = &args.learning;
    json!({
        "curriculum": curriculum, "init": args.init, "data": args.data, "digits": args.digits,
        "shape": [args.width.get(), args.layers.get(), args.heads.get(), args.context.get()],
        "steps": learning.steps, "batch": learning.batch, "accumulate": learning.accumulate, "lr": learning.lr,
        "warmup": learning.warmup, "floor": learning.floor, "weight_decay": learning.weight_decay, "beta2": learning.beta2,
        "clip": learning.clip, "dropout": learning.dropout, "seed": learning.seed,
    })
    .to_string()
}
