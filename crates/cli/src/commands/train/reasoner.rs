//! `latent-tts train reasoner`: a latent reasoner, or a baseline with or without chain of thought.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use ::data::{TrainExample, examples};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use corpus::{self, Split};
use latent_tts::{data_file, file_fingerprint, files_over};
use model::{ModelFiles, Tokenizer};
use record::files::{ExistingModel, InputPaths, ModelDir};
use serde_json::{Value, json};
use train::curriculum::{Curriculum, Removal};
use train::data_loader::{ExampleMixture, ExampleSource};
use train::methods::{latent_sft, rot};
use train::model_dir::{self, AdapterStart, ModelInit, ScratchShape, TuningSpec};
use train::reasoner::{MethodSpec, ReasonerTraining, StepDecoderSpec};
use train::trainer::check_state;
use train::vocabulary;

use super::{
    Destination, data, existing_model, model_paths, open_device, run_training, train_config,
    train_settings, weight_dtype,
};
use crate::args::values::WeightedData;
use crate::args::{MethodKind, PresetKind, ReasonerArgs, ReasonerMode, RemovalKind};
use crate::interrupt::shell_quoted;
use crate::printer::Printer;

/// Runs `train reasoner`.
pub(super) fn run(args: &ReasonerArgs, printer: &Printer) -> Result<ExitCode> {
    let training = &args.training;
    check(args)?;
    let inputs = inputs(args)?;
    let existing = existing_model(training);
    ModelDir::check(&args.out, &inputs.paths, existing)?;
    let method = method(args)?;
    let settings = train_settings(model_settings(args, &method), training, inputs.digest);
    let train_config = train_config(training, &args.out, settings);
    if existing == ExistingModel::Resume {
        check_state(&train_config)?;
    }
    let (source, held_out) = (training_data(args)?, held_out(args)?);
    data::check(args, &source, &held_out, printer)?;
    let device = open_device(&args.device, printer)?;
    printer.note(&format!("on {}", device.describe()));
    let init = match initial_files(args)? {
        Some(files) => ModelInit::Pretrained(files),
        None => ModelInit::Scratch(ScratchShape {
            width: args.width.get(),
            layers: args.layers.get(),
            heads: args.heads.get(),
            context: args.context.get(),
            seed: training.seed,
        }),
    };
    let tuning = TuningSpec {
        lora: args.lora.spec(training.seed, AdapterStart::Continue),
        dtype: weight_dtype(training.save_dtype),
    };
    let usage = method.usage();
    let _dir = ModelDir::claim(&args.out, &inputs.paths, existing)?;
    let mut model = model_dir::init_model(&device, &init, &args.out, usage, &tuning)?;
    model.decoder.set_recompute(training.recompute);
    printer.warnings(&model.initial.warnings);
    let training = ReasonerTraining {
        method,
        source,
        batch_size: training.batch.get(),
        steps: training.steps.get(),
        accumulation_steps: training.accumulate.get(),
        dropout: training.dropout,
        seed: training.seed,
        out: args.out.clone(),
        held_out,
    };
    let mut task = training.task(&device, model)?;
    let next = next_command(args);
    run_training(&mut *task, &device, &train_config, printer, Destination { out: &args.out, next })
}

/// What usually follows: a chain of thought becomes a latent reasoner, which is measured.
fn next_command(args: &ReasonerArgs) -> String {
    let out = shell_quoted(&args.out.display().to_string());
    // A model for a processor stays one, and is trained on the same data.
    let tiny = args.preset == Some(PresetKind::Tiny);
    let preset = if tiny { " --preset tiny" } else { "" };
    let files = args.data.iter().filter(|data| data.file().is_some() || args.data.len() > 1);
    let data = files.map(|data| format!(" --data {}", shell_quoted(&data.to_string())));
    let data: String = data.collect();
    match args.mode {
        ReasonerMode::Cot => format!(
            "latent-tts train reasoner{preset} --mode latent --init {out}{data} --out DIR, or \
             latent-tts eval --model {out}"
        ),
        _ => format!("latent-tts eval --model {out}, or latent-tts annotate --model {out}"),
    }
}

/// The files that are read: those of the initial model and of the data.
struct TrainInputs {
    paths: InputPaths,
    digest: String,
}

fn inputs(args: &ReasonerArgs) -> Result<TrainInputs> {
    let init = initial_files(args)?;
    let data = args.data.iter().filter_map(WeightedData::file);
    let mut data =
        data.map(|file| data_file(&file.to_string_lossy())).collect::<Result<Vec<_>, _>>()?;
    data.extend(args.held_out.clone());
    let digest = file_fingerprint(&init, data.iter().map(PathBuf::as_path))?;
    let paths = model_paths(&init)?.into_iter().chain(data).collect();
    Ok(TrainInputs { paths, digest })
}

/// The files of `--init`.
fn initial_files(args: &ReasonerArgs) -> Result<Option<ModelFiles>> {
    let files = args.init.as_ref().map(|init| files_over(init, args.lora.base.as_deref()));
    Ok(files.transpose()?)
}

/// Refuses flags that do not fit together.
fn check(args: &ReasonerArgs) -> Result<()> {
    ensure!(
        args.width.get().is_multiple_of(args.heads.get()),
        "--width {} is not a multiple of --heads {}",
        args.width,
        args.heads
    );
    ensure!(
        args.init.is_some() || args.lora.rank == 0,
        "--lora adapts a trained model; pass --init, or leave it out"
    );
    ensure!(
        args.min_speed <= args.max_speed,
        "--min-speed {} is above --max-speed {}",
        args.min_speed,
        args.max_speed
    );
    let explicit = args.mode != ReasonerMode::Latent;
    ensure!(
        !explicit || args.method == MethodKind::Coconut,
        "--method {} learns latent thoughts; leave --mode out",
        method_name(args.method)
    );
    let has_steps = !explicit && matches!(args.method, MethodKind::Coconut | MethodKind::Codi);
    ensure!(
        has_steps || args.step_decoder == 0.0,
        "--step-decoder reads steps from the thoughts of coconut and codi; leave it out"
    );
    let compresses = matches!(args.method, MethodKind::LatentSft | MethodKind::Rot);
    ensure!(
        compresses || args.compression.is_none(),
        "--compression is of latent-sft and rot; leave it out, or give --min-speed and --max-speed \
         to colar"
    );
    let orders = compresses || args.method == MethodKind::Colar;
    ensure!(
        orders || !args.ordered,
        "--ordered is of thoughts that stand for several tokens, those of colar, latent-sft and \
         rot; leave it out"
    );
    Ok(())
}

/// A method as the command line names it.
fn method_name(method: MethodKind) -> String {
    method.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn method(args: &ReasonerArgs) -> Result<MethodSpec> {
    let compression = args.compression.map_or(2, NonZeroUsize::get);
    let thoughts_per_step = thoughts_per_step(args);
    let step_decoder = StepDecoderSpec { loss_weight: args.step_decoder, thoughts_per_step };
    Ok(match args.method {
        MethodKind::Coconut => {
            let (curriculum, digits) = (curriculum(args), args.digits);
            MethodSpec::Coconut { curriculum, thoughts_per_step, digits, step_decoder }
        }
        MethodKind::Codi => MethodSpec::Codi {
            thoughts: thoughts(args),
            gamma: args.gamma,
            projector: args.projector.map(NonZeroUsize::get),
            keeps_last_step: args.keep_last_step,
            prompt_prefix: prompt_prefix(args)?,
            step_decoder: StepDecoderSpec { thoughts_per_step: 1, ..step_decoder },
        },
        MethodKind::Colar => MethodSpec::Colar {
            speeds: (args.min_speed.get(), args.max_speed.get()),
            ordered: args.ordered,
            latent_head: args.latent_head.get(),
        },
        MethodKind::LatentSft => MethodSpec::LatentSft {
            compression,
            ordered: args.ordered,
            scheduled_sampling: args.scheduled_sampling,
            thoughts: thoughts(args),
            layout: latent_sft::layout(&tokenizer(args)?)?,
        },
        MethodKind::Rot => MethodSpec::Rot {
            thoughts: thoughts(args),
            compression,
            ordered: args.ordered,
            gamma: args.gamma,
            scheduled_sampling: args.scheduled_sampling,
            latent_head: args.latent_head.get(),
            layout: rot::layout(&tokenizer(args)?)?,
        },
    })
}

/// `--thoughts`, or what the method has.
fn thoughts(args: &ReasonerArgs) -> usize {
    let default = match args.method {
        MethodKind::LatentSft => 64,
        MethodKind::Rot => 32,
        MethodKind::Coconut | MethodKind::Codi | MethodKind::Colar => 6,
    };
    args.thoughts.map_or(default, NonZeroUsize::get)
}

/// The tokenizer of `--init`, or of a new model.
pub(super) fn tokenizer(args: &ReasonerArgs) -> Result<Tokenizer> {
    Ok(match initial_files(args)? {
        Some(files) => Tokenizer::read(files)?,
        None => vocabulary::tokenizer()?,
    })
}

/// Text before the question: CODI's on Llama, if the vocabulary has it.
fn prompt_prefix(args: &ReasonerArgs) -> Result<String> {
    let has = tokenizer(args)?.token_to_id(BEGIN_OF_TEXT).is_some();
    Ok(if has { BEGIN_OF_TEXT } else { "" }.to_owned())
}

/// The token that Llama 3's prompts begin with.
const BEGIN_OF_TEXT: &str = "<|begin_of_text|>";

fn thoughts_per_step(args: &ReasonerArgs) -> usize {
    let default = match args.removal {
        RemovalKind::Smooth => 1,
        RemovalKind::Stages => 2,
    };
    args.thoughts_per_step.map_or(default, NonZeroUsize::get)
}

fn curriculum(args: &ReasonerArgs) -> Curriculum {
    let (rise, mixed) = (f64::from(args.rise), f64::from(args.mixed));
    match args.mode {
        ReasonerMode::Cot => Curriculum::Cot,
        ReasonerMode::NoCot => Curriculum::NoCot,
        ReasonerMode::Latent => Curriculum::Latent {
            thoughts: thoughts(args),
            removal: match args.removal {
                RemovalKind::Smooth => {
                    Removal::Smooth { rise, all: f64::from(args.ahead), random: mixed }
                }
                RemovalKind::Stages => Removal::Stages {
                    stages: args.stages,
                    per_step: thoughts_per_step(args),
                    until: rise,
                    uniform: mixed,
                },
            },
        },
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
        let file = &data_file(&file.to_string_lossy())?;
        let examples = examples::read(file, None)?;
        ensure!(!examples.is_empty(), "{}: no examples", file.display());
        let size = examples.len() as f64;
        Ok((ExampleSource::List { examples: Arc::new(examples), seed }, Some(size)))
    }
}

fn held_out(args: &ReasonerArgs) -> Result<Vec<TrainExample>> {
    let count = args.held_out_count;
    let only_corpus = args.data.iter().all(|data| data.file().is_none());
    match &args.held_out {
        Some(file) => Ok(examples::read(file, Some(count))?),
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

/// The settings that determine the weights and are not those of the training loop.
fn model_settings(args: &ReasonerArgs, method: &MethodSpec) -> Value {
    json!({
        "method": method,
        "init": args.init,
        "data": data_setting(&args.data),
        "shape": [args.width.get(), args.layers.get(), args.heads.get(), args.context.get()],
        "lora": args.lora.settings(),
    })
}
