//! `latent-tts train reasoner`: a latent reasoner, or a baseline with or without chain of thought.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use latent_tts::engine::family::{CODI_PROJECTOR, COLAR_HEAD};
use model::source::InitialWeights;
use model::{MlpShape, Tokenizer, TrainableGaussianHead, TrainableHead, TrainableMlp};
use serde_json::{Value, json};
use tensor::Device;
use train::corpus::{self, Split};
use train::curriculum::{Curriculum, Removal};
use train::data_loader::{BatchSpec, DataLoader, ExampleSource};
use train::dataset::{self, TrainExample};
use train::digit_head::DigitHead;
use train::latent_step::{AuxiliaryLosses, LatentTrainStep};
use train::methods::coconut::CoconutEncoder;
use train::methods::codi::{CodiEncoder, Distillation};
use train::methods::colar::{ColarEncoder, ColarTrainStep};
use train::methods::simcot::StepDecoder;
use train::methods::{ExampleEncoder, TrainStep};
use train::model_dir::{self, ModelInit, ScratchShape, TrainableModel, TuningSpec, WeightWriter};
use train::reasoner::ReasonerTask;
use train::trainer::TrainConfig;

use super::{run_training, train_config, train_settings, weight_dtype};
use crate::args::{LoraArgs, MethodKind, ReasonerArgs, ReasonerMode, RemovalKind};
use crate::printer::Printer;

/// Runs `train reasoner`.
pub(super) fn run(args: &ReasonerArgs, printer: &Printer) -> Result<ExitCode> {
    let training = &args.training;
    check(args)?;
    let settings = train_settings(model_settings(args), training);
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
    let tuning = TuningSpec {
        lora: args.lora.config(training.seed),
        dtype: weight_dtype(training.save_dtype),
    };
    let prompt_prefix = prompt_prefix(args)?;
    let usage = family_config(args, &prompt_prefix);
    let model = model_dir::init_model(&device, &init, &args.out, usage, &tuning)?;
    let run = MethodRun { args, device, data, held_out, prompt_prefix, train_config, printer };
    match (args.mode, args.method) {
        (ReasonerMode::Latent, MethodKind::Colar) => run.colar(model),
        (ReasonerMode::Latent, MethodKind::Codi) => run.codi(model),
        _ => run.coconut(model),
    }
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
    let explicit = args.mode != ReasonerMode::Latent;
    ensure!(
        !explicit || args.method == MethodKind::Coconut,
        "--method {:?} learns latent thoughts; leave --mode out",
        args.method
    );
    let has_steps = !explicit && args.method != MethodKind::Colar;
    ensure!(
        has_steps || args.step_decoder == 0.0,
        "--step-decoder reads steps from the thoughts of coconut and codi; leave it out"
    );
    Ok(())
}

/// Everything but the model that a method's training is made of.
struct MethodRun<'a> {
    args: &'a ReasonerArgs,
    device: Device,
    data: ExampleSource,
    held_out: Vec<TrainExample>,
    prompt_prefix: String,
    train_config: TrainConfig,
    printer: &'a Printer,
}

impl MethodRun<'_> {
    fn coconut(self, model: TrainableModel) -> Result<ExitCode> {
        let (args, curriculum) = (self.args, curriculum(self.args));
        let config = model.decoder.decoder.config().clone();
        let is_latent = matches!(curriculum, Curriculum::Latent { .. });
        let digit_head = (is_latent && args.digits > 0.0).then(|| {
            let source = InitialWeights { seed: args.training.seed, layers: config.layers };
            DigitHead::new(&self.device, &source, "digits", config.width, args.digits)
        });
        let auxiliary = AuxiliaryLosses {
            digit_head: digit_head.transpose()?,
            step_decoder: self.step_decoder(&model, args.thoughts_per_step)?,
            ..AuxiliaryLosses::default()
        };
        let encoder = CoconutEncoder {
            tokenizer: Arc::new(model.tokenizer),
            markers: model.markers,
            curriculum,
        };
        let step = LatentTrainStep::new(model.decoder, TrainableHead::Identity, auxiliary);
        self.train(step, encoder, model.writer)
    }

    fn codi(self, model: TrainableModel) -> Result<ExitCode> {
        let args = self.args;
        let config = model.decoder.decoder.config().clone();
        let source = model.initial.head_source(args.training.seed, config.layers)?;
        let known = source.rows(&format!("{}.weight", CODI_PROJECTOR.up));
        let hidden = known.unwrap_or(args.projector.map_or(config.width, NonZeroUsize::get));
        let shape = MlpShape { inputs: config.width, hidden, outputs: config.width };
        let projector = TrainableMlp::load(&self.device, &source, &CODI_PROJECTOR, shape)?;
        let auxiliary = AuxiliaryLosses {
            distillation: Some(Distillation { loss_weight: args.gamma }),
            step_decoder: self.step_decoder(&model, 1)?,
            ..AuxiliaryLosses::default()
        };
        let encoder = CodiEncoder {
            tokenizer: Arc::new(model.tokenizer),
            markers: model.markers,
            prompt_prefix: self.prompt_prefix.clone(),
            thoughts: args.thoughts.get(),
            keeps_last_step: args.keep_last_step,
        };
        let head = TrainableHead::Mlp(Box::new(projector));
        let step = LatentTrainStep::new(model.decoder, head, auxiliary);
        self.train(step, encoder, model.writer)
    }

    fn colar(self, model: TrainableModel) -> Result<ExitCode> {
        let (args, seed) = (self.args, self.args.training.seed);
        let config = model.decoder.decoder.config().clone();
        let source = model.initial.head_source(seed, config.layers)?;
        let known = source.rows(&format!("{}.weight", COLAR_HEAD.up));
        let shape = (config.width, known.unwrap_or(args.latent_head.get()));
        let head = TrainableGaussianHead::load(&self.device, &source, &COLAR_HEAD, shape)?;
        let std = match config.latent.embedding_std {
            Some(std) => std,
            None => model.decoder.embedding_std()?,
        };
        model_dir::set_embedding_std(&args.out, std)?;
        let encoder = ColarEncoder {
            tokenizer: Arc::new(model.tokenizer),
            eos: model.markers.eos,
            max_speed: args.max_speed.get(),
            seed,
        };
        let mut step = ColarTrainStep::new(model.decoder, head, std);
        step.seed = seed;
        self.train(step, encoder, model.writer)
    }

    /// SIM-CoT's decoder, which begins as a copy of the model.
    fn step_decoder(
        &self,
        model: &TrainableModel,
        thoughts_per_step: usize,
    ) -> Result<Option<StepDecoder>> {
        if self.args.step_decoder == 0.0 {
            return Ok(None);
        }
        let config = model.decoder.decoder.config();
        let copy = model.initial.load_copy(&self.device, config)?;
        let mut decoder = StepDecoder::new(copy, thoughts_per_step.max(1), model.markers.eos);
        decoder.loss_weight = self.args.step_decoder;
        Ok(Some(decoder))
    }

    /// Trains a method's step on its encoder's batches.
    fn train<S, E>(self, train_step: S, encoder: E, writer: WeightWriter) -> Result<ExitCode>
    where
        S: TrainStep,
        E: ExampleEncoder<Encoded = S::Example> + 'static,
    {
        let Self { args, device, data, held_out, train_config, printer, .. } = self;
        let training = &args.training;
        let batches = BatchSpec {
            source: data,
            encoder,
            batch_size: training.batch.get(),
            batches: u64::from(training.steps.get()) * u64::from(training.accumulate.get()),
            seed: training.seed,
            context: train_step.model().decoder.config().context,
        };
        let mut task = ReasonerTask {
            train_step,
            loader: DataLoader::new(batches),
            dropout: training.dropout,
            seed: training.seed,
            accumulation_steps: training.accumulate.get(),
            out: args.out.clone(),
            writer,
            held_out,
            device: device.clone(),
        };
        run_training(&mut task, &device, &train_config, printer, &args.out)
    }
}

/// Text before the question: CODI's on Llama, if the vocabulary has it.
fn prompt_prefix(args: &ReasonerArgs) -> Result<String> {
    let tokenizer = args.init.as_ref().map(Tokenizer::read).transpose()?;
    let has = tokenizer.is_some_and(|tokenizer| tokenizer.token_to_id(BEGIN_OF_TEXT).is_some());
    Ok(if has { BEGIN_OF_TEXT } else { "" }.to_owned())
}

/// The token that Llama 3's prompts begin with.
const BEGIN_OF_TEXT: &str = "<|begin_of_text|>";

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
fn family_config(args: &ReasonerArgs, prompt_prefix: &str) -> Value {
    let thoughts = args.thoughts;
    match (args.mode, args.method) {
        (ReasonerMode::Cot, _) => json!({ "family": "cot", "max_new_tokens": 128 }),
        (ReasonerMode::NoCot, _) => json!({ "family": "cot", "max_new_tokens": 24 }),
        (ReasonerMode::Latent, MethodKind::Coconut) => {
            json!({ "family": "coconut", "thoughts": thoughts, "max_new_tokens": 24 })
        }
        (ReasonerMode::Latent, MethodKind::Codi) => json!({
            "family": "codi", "thoughts": thoughts, "max_new_tokens": 24,
            "prompt_prefix": prompt_prefix,
        }),
        (ReasonerMode::Latent, MethodKind::Colar) => {
            json!({ "family": "colar", "max_new_tokens": 24 })
        }
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

/// The settings that determine the weights and are not those of the training loop.
fn model_settings(args: &ReasonerArgs) -> Value {
    let LoraArgs { rank, alpha, targets, .. } = &args.lora;
    json!({
        "method": format!("{:?}", args.method),
        "curriculum": curriculum(args),
        "init": args.init,
        "data": args.data,
        "digits": args.digits,
        "shape": [args.width.get(), args.layers.get(), args.heads.get(), args.context.get()],
        "codi": [json!(args.gamma), json!(args.projector), json!(args.keep_last_step)],
        "step_decoder": args.step_decoder,
        "colar": [args.max_speed.get(), args.latent_head.get()],
        "lora": [json!(rank), json!(alpha), json!(targets)],
    })
}
