//! Trains a reward model on annotations: converts options to a task.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use engine::{CancelToken, Family, Method, REFERENCE_DIR, ReferenceTracer, RewardModel};
use model::config::ReferenceRecord;
use model::source::InitialWeights;
use model::{
    Checkpoint, Config, DecoderTuning, LmHead, ModelFiles, Tokenizer, TrainableDecoder, adapter,
};
use record::files::InputPaths;
use serde_json::{Value, json};
use tensor::Device;
use train::TrainError;
use train::annotate::Annotations;
use train::digit_head::DigitHead;
use train::loss::Objective;
use train::model_dir::{self, AdapterStart, TuningSpec, WeightWriter, read_json, write_json};
use train::reward::RewardTask;
use train::reward_step::{DigitHeads, OutcomeHead, RewardTrainStep, TrainableRewardHead};
use train::trainer::TrainTask;

use super::{
    RewardTrainerOptions, TrainControl, TrainObserver, TrainOutput, TrainReport, lora_settings,
    model_paths, run_loop, train_config, train_settings,
};
use crate::model::files_over;
use crate::{Error, fingerprint};

/// Trains a latent reward model on the output of an [`Annotator`](crate::Annotator).
///
/// ```no_run
/// use latent_tts::{CancelToken, DeviceOptions, RewardTrainer, RewardTrainerOptions};
///
/// let mut options = RewardTrainerOptions::default();
/// options.annotations = vec!["annotations/mine".into()];
/// let trainer = RewardTrainer::new("models/reward", options)?;
/// let device = DeviceOptions::default().open()?;
/// let report = trainer.run(&device, &mut (), &CancelToken::default())?;
/// println!("kept: {:?}", report.kept);
/// # Ok::<(), latent_tts::Error>(())
/// ```
#[derive(Clone)]
pub struct RewardTrainer {
    out: PathBuf,
    options: RewardTrainerOptions,
}

/// The inputs of a training.
struct RewardSources {
    reasoner: ModelFiles,
    init: Option<ModelFiles>,
    reference: Option<Reference>,
    annotations: Vec<Annotations>,
    held_out: Option<Annotations>,
}

impl RewardSources {
    fn models(&self) -> impl Iterator<Item = &ModelFiles> {
        let reference = self.reference.as_ref().map(Reference::files);
        [Some(&self.reasoner), self.init.as_ref(), reference].into_iter().flatten()
    }
}

/// The reference reasoner selected by the options.
enum Reference {
    /// The reasoner itself, recorded by path.
    Reasoner(ModelFiles),
    /// Another model, which is copied.
    Copied(ModelFiles),
}

impl Reference {
    fn files(&self) -> &ModelFiles {
        let (Self::Reasoner(files) | Self::Copied(files)) = self;
        files
    }
}

impl RewardTrainer {
    /// A training into a directory. Fails if an option is out of range.
    pub fn new(out: impl Into<PathBuf>, options: RewardTrainerOptions) -> Result<Self, Error> {
        options.check()?;
        Ok(Self { out: out.into(), options })
    }

    /// Trains from the start or, with [`TrainingOptions::resume`](super::TrainingOptions), from the
    /// saved state. If cancelled, it saves its state and returns after the current step. With
    /// [`Objective::Untrained`] the initial model is written without training.
    pub fn run(
        &self,
        device: &Device,
        observer: &mut dyn TrainObserver,
        cancel: &CancelToken,
    ) -> Result<TrainReport, Error> {
        let is_trained = self.options.objective != Objective::Untrained;
        if !is_trained && self.options.training.resume {
            let reason = "the objective `untrained` has no training to resume; omit `resume`";
            return Err(TrainError::Options { reason: reason.to_owned() }.into());
        }
        let inputs = self.inputs()?;
        let paths = self.input_paths(&inputs)?;
        let output = TrainOutput::check(&self.out, &self.options.training, paths)?;
        let mut training = self.options.training.clone();
        training.batch = self.batch(&inputs, observer);
        let digest = self.digest(&inputs)?;
        let settings = train_settings(self.model_settings(), &training, digest);
        let config = train_config(&self.out, &training, settings);
        output.check_settings(&config)?;
        let checkpoint = Checkpoint::open(inputs.init.as_ref().unwrap_or(&inputs.reasoner))?;
        checkpoint.warnings().iter().for_each(|warning| observer.warning(warning));
        check_width(&inputs, checkpoint.config())?;
        let train_step = self.train_step(device, &inputs, &checkpoint)?;
        let reference_reasoner = match &inputs.reference {
            Some(reference) => {
                let width = checkpoint.config().width;
                Some(RewardModel::load_reference(device, reference.files(), width)?)
            }
            None => None,
        };
        if is_trained {
            self.check_labels(&inputs.annotations)?;
        }
        let mut task = RewardTask {
            train_step,
            reference_reasoner,
            reference_tracer: ReferenceTracer::default(),
            objective: self.options.objective,
            last_step_weight: self.options.last_step_weight,
            order_preference: self.options.order_preference,
            dropout: training.dropout,
            seed: training.seed,
            batch_size: training.batch.get(),
            accumulation_steps: training.accumulate.get(),
            out: self.out.clone(),
            writer: WeightWriter::new(&self.tuning(), &checkpoint)?,
            device: device.clone(),
            annotations: inputs.annotations,
            held_out: inputs.held_out,
        };
        task.check()?;
        if is_trained && task.held_out.is_none() {
            let note = "note: no held-out annotations; pass `held_out` to measure ranking accuracy";
            observer.note(note);
        }
        let _dir = output.claim()?;
        self.write_description(&inputs.reasoner, inputs.reference.as_ref())?;
        if !is_trained {
            task.save()?;
            let out = self.out.clone();
            return Ok(TrainReport { out, finished: true, seconds: 0.0, kept: None });
        }
        run_loop(&self.out, &mut task, device, &config, TrainControl { observer, cancel })
    }

    fn inputs(&self) -> Result<RewardSources, Error> {
        let RewardTrainerOptions { model, init, annotations, held_out, .. } = &self.options;
        let base = self.options.lora.base.as_deref();
        let annotations = annotations.iter().map(|dir| Annotations::open(dir));
        let annotations = annotations.collect::<Result<_, _>>()?;
        let held_out = held_out.as_deref().map(Annotations::open).transpose()?;
        let reasoner = files_over(model, base)?;
        let reference = match self.options.reference.as_deref() {
            None | Some("none") => None,
            Some("reasoner") => Some(Reference::Reasoner(reasoner.clone())),
            Some(other) => Some(Reference::Copied(files_over(other, base)?)),
        };
        let init = init.as_ref().map(|init| files_over(init, base)).transpose()?;
        Ok(RewardSources { reasoner, init, reference, annotations, held_out })
    }

    /// Number of problems per batch, at most the number of problems.
    fn batch(&self, inputs: &RewardSources, observer: &mut dyn TrainObserver) -> NonZeroUsize {
        let batch = self.options.training.batch;
        let problems = inputs.annotations.iter().map(Annotations::len).sum();
        match NonZeroUsize::new(problems) {
            Some(problems) if problems < batch => {
                observer.note(&format!(
                    "only {problems} annotated problems: using `batch` {problems}, not {batch}"
                ));
                problems
            }
            _ => batch,
        }
    }

    /// The digest of the inputs.
    fn digest(&self, inputs: &RewardSources) -> Result<String, Error> {
        fingerprint::of_files(inputs.models(), self.data().map(PathBuf::as_path))
    }

    /// The annotation directories that are read.
    fn data(&self) -> impl Iterator<Item = &PathBuf> {
        self.options.annotations.iter().chain(&self.options.held_out)
    }

    fn input_paths(&self, inputs: &RewardSources) -> Result<InputPaths, Error> {
        Ok(model_paths(inputs.models())?.into_iter().chain(self.data().cloned()).collect())
    }

    fn tuning(&self) -> TuningSpec {
        let training = &self.options.training;
        TuningSpec {
            lora: self.options.lora.spec(training.seed, AdapterStart::Over),
            dtype: training.save_dtype,
        }
    }

    /// The decoder and the heads with their initial weights.
    fn train_step(
        &self,
        device: &Device,
        inputs: &RewardSources,
        checkpoint: &Checkpoint,
    ) -> Result<RewardTrainStep, Error> {
        let config = checkpoint.config();
        let mut decoder = device.run(|| match &self.tuning().lora {
            None => TrainableDecoder::load(device, config, checkpoint, LmHead::Without),
            Some(lora) => {
                let source = lora.source(checkpoint);
                let new_tokens = checkpoint.added_tokens();
                let tuning = DecoderTuning::Lora { config: &lora.config, new_tokens };
                TrainableDecoder::load_tuned(device, config, &source, LmHead::Without, tuning)
            }
        })?;
        decoder.set_recompute(self.options.training.recompute);
        let seed = self.options.training.seed;
        let weights = InitialWeights { seed, layers: config.layers };
        let head = TrainableRewardHead::load(device, &weights, self.options.head, config.width)?;
        let digit_weight = self.options.digit_loss_weight;
        let digit_head = |name| DigitHead::new(device, &weights, name, config.width, digit_weight);
        let digit_heads = match digit_weight > 0.0 {
            true => Some(DigitHeads {
                current: digit_head("digits.current")?,
                next: digit_head("digits.next")?,
                answer: digit_head("digits.answer")?,
            }),
            false => None,
        };
        let step = RewardTrainStep::new(decoder, head, digit_heads);
        if !self.options.reads_answers {
            return Ok(step);
        }
        let head = TrainableRewardHead::outcome(device, &weights, config.width)?;
        let end_latent = end_latent_tokens(&inputs.reasoner)?;
        Ok(step.with_outcome_head(OutcomeHead { head, end_latent }))
    }

    /// Fails if there are no labels, before anything is written.
    fn check_labels(&self, annotations: &[Annotations]) -> Result<(), Error> {
        let dirs = &self.options.annotations;
        if dirs.is_empty() {
            let reason = "no training data; pass `annotations` DIR, written by `annotate`";
            return Err(TrainError::Options { reason: reason.to_owned() }.into());
        }
        if annotations.iter().all(Annotations::is_empty) {
            let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            return Err(TrainError::EmptyAnnotations { what: dirs.join(", ") }.into());
        }
        Ok(())
    }

    /// Writes the files beside the weights: the reasoner's configuration with the class of a reward
    /// model, its tokenizer, and the reference reasoner.
    fn write_description(
        &self,
        reasoner: &ModelFiles,
        reference: Option<&Reference>,
    ) -> Result<(), Error> {
        let failed =
            |path: &std::path::Path, error| Error::Unreadable { path: path.to_owned(), error };
        std::fs::create_dir_all(&self.out).map_err(|error| failed(&self.out, error))?;
        model_dir::copy_description(reasoner, &self.out)?;
        let path = self.out.join("config.json");
        let mut config = read_json(&path)?;
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
                let path = adapter::path_from(&self.out, files.path())
                    .map_err(|error| failed(files.path(), error))?;
                let record = ReferenceRecord { path, digest: Checkpoint::open(files)?.digest()? };
                config["latent_tts"] = json!({ "reference": record });
            }
            Some(Reference::Copied(files)) => {
                model_dir::copy_model(files, &self.out.join(REFERENCE_DIR))?;
            }
            None => {}
        }
        Ok(write_json(&path, &config)?)
    }

    /// The settings that determine the weights, except those of the loop.
    fn model_settings(&self) -> Value {
        let options = &self.options;
        let mut settings = json!({
            "model": options.model,
            "init": options.init,
            "annotations": options.annotations,
            "last_step_weight": options.last_step_weight,
            "digit_loss_weight": options.digit_loss_weight,
            "objective": options.objective,
            "head": options.head,
            "reads_answers": options.reads_answers,
            "reference": options.reference,
            "lora": lora_settings(&options.lora),
        });
        if options.order_preference > 0.0 {
            settings["order_preference"] = json!(options.order_preference);
        }
        settings
    }
}

/// Fails unless the annotated thoughts have the width of the model.
fn check_width(inputs: &RewardSources, config: &Config) -> Result<(), Error> {
    for part in inputs.annotations.iter().chain(&inputs.held_out) {
        let width = part.index().width;
        if width != config.width {
            let reason = format!(
                "the annotated thoughts have width {width}, the model {}; annotate with this model",
                config.width
            );
            return Err(TrainError::Options { reason }.into());
        }
    }
    Ok(())
}

/// The reasoner's end-latent tokens, which separate its thoughts from its answer.
fn end_latent_tokens(reasoner: &ModelFiles) -> Result<Vec<u32>, Error> {
    let checkpoint = Checkpoint::open(reasoner)?;
    let tokenizer = Tokenizer::read(reasoner)?;
    let family = Family::detect(&checkpoint, &tokenizer)?;
    Ok(Method::resolve(family, &checkpoint, &tokenizer)?.end_latent)
}
