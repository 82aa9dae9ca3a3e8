//! Trains a reasoner: converts options, and optionally a custom method and custom examples, to a
//! task.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use data::TrainExample;
use engine::CancelToken;
use model::{ModelFiles, Tokenizer};
use record::Fingerprint;
use record::files::InputPaths;
use serde_json::{Value, json};
use tensor::Device;
use train::data_loader::ExampleSource;
use train::methods::{MethodEntry, TrainingMethod};
use train::model_dir::{self, AdapterStart, ModelInit, ScratchShape, TuningSpec};
use train::reasoner::{ReasonerTraining, TaskSetup};
use train::vocabulary;

use super::{
    TrainControl, TrainObserver, TrainOutput, TrainReport, TrainerOptions, WeightedData, examples,
    lora_settings, model_paths, run_loop, train_config, train_settings,
};
use crate::model::files_over;
use crate::{Error, fingerprint};

/// Trains a latent reasoner, or a baseline with or without a chain of thought as text.
///
/// ```no_run
/// use latent_tts::{CancelToken, DeviceOptions, Trainer, TrainerOptions};
///
/// let mut options = TrainerOptions::preset("tiny")?;
/// options.training.seed = 7;
/// let trainer = Trainer::new("models/tiny", options)?;
/// let device = DeviceOptions::default().open()?;
/// let report = trainer.run(&device, &mut (), &CancelToken::default())?;
/// println!("{} after {:.0} s", report.out.display(), report.seconds);
/// # Ok::<(), latent_tts::Error>(())
/// ```
#[derive(Clone)]
pub struct Trainer {
    out: PathBuf,
    options: TrainerOptions,
    method: Option<MethodEntry>,
    examples: Option<Arc<Vec<TrainExample>>>,
    held_out: Option<Vec<TrainExample>>,
}

impl Trainer {
    /// A training into a directory. Fails if an option is out of range.
    pub fn new(out: impl Into<PathBuf>, options: TrainerOptions) -> Result<Self, Error> {
        options.check()?;
        Ok(Self { out: out.into(), options, method: None, examples: None, held_out: None })
    }

    /// Uses a method that is not in [`METHODS`](super::METHODS), instead of the one in the options.
    #[must_use]
    pub fn with_method(self, method: MethodEntry) -> Self {
        Self { method: Some(method), ..self }
    }

    /// Uses these examples instead of the data in the options.
    #[must_use]
    pub fn with_examples(self, examples: Vec<TrainExample>) -> Self {
        Self { examples: Some(Arc::new(examples)), ..self }
    }

    /// Uses these held-out examples instead of those in the options.
    #[must_use]
    pub fn with_held_out(self, examples: Vec<TrainExample>) -> Self {
        Self { held_out: Some(examples), ..self }
    }

    /// Trains from the start or, with [`TrainingOptions::resume`](super::TrainingOptions), from the
    /// saved state. If cancelled, it saves its state and returns after the current step.
    pub fn run(
        &self,
        device: &Device,
        observer: &mut dyn TrainObserver,
        cancel: &CancelToken,
    ) -> Result<TrainReport, Error> {
        let options = &self.options;
        let init = self.init_files()?;
        let output =
            TrainOutput::check(&self.out, &options.training, self.input_paths(init.as_ref())?)?;
        let tokenizer = match &init {
            Some(files) => Tokenizer::read(files)?,
            None => vocabulary::tokenizer()?,
        };
        let method = match self.method {
            Some(entry) => entry,
            None => MethodEntry::named(&options.method)?,
        };
        let method = (method.configure)(&options.thinking, &tokenizer)?;
        let settings = self.model_settings(&*method);
        let settings = train_settings(settings, &options.training, self.inputs(init.as_ref())?);
        let config = train_config(&self.out, &options.training, settings);
        output.check_settings(&config)?;
        let source = self.source()?;
        let held_out = match &self.held_out {
            Some(examples) => examples.clone(),
            None => {
                let TrainerOptions { data, fields, held_out, held_out_count, .. } = options;
                examples::held_out(data, fields, held_out.as_deref(), *held_out_count)?
            }
        };
        examples::check(options, &tokenizer, &source, observer)?;
        if held_out.is_empty() {
            let note = "note: no held-out data; pass `held_out` to measure accuracy";
            observer.note(note);
        }
        let _dir = output.claim()?;
        let setup = self.setup(device, init, source, held_out, &*method)?;
        setup.model.initial.warnings.iter().for_each(|warning| observer.warning(warning));
        let mut task = method.task(setup)?;
        run_loop(&self.out, &mut *task, device, &config, TrainControl { observer, cancel })
    }

    /// Writes the initial model to the output directory, and returns the settings of its training.
    fn setup(
        &self,
        device: &Device,
        init: Option<ModelFiles>,
        source: ExampleSource,
        held_out: Vec<TrainExample>,
        method: &dyn TrainingMethod,
    ) -> Result<TaskSetup, Error> {
        let training = &self.options.training;
        let init = match init {
            Some(files) => ModelInit::Pretrained(files),
            None => ModelInit::Scratch(ScratchShape {
                width: self.options.width.get(),
                layers: self.options.layers.get(),
                heads: self.options.heads.get(),
                context: self.options.context.get(),
                seed: training.seed,
            }),
        };
        let tuning = TuningSpec {
            lora: self.options.lora.spec(training.seed, AdapterStart::Continue),
            dtype: training.save_dtype,
        };
        let mut model = model_dir::init_model(device, &init, &self.out, method.usage(), &tuning)?;
        model.decoder.set_recompute(training.recompute);
        let training = ReasonerTraining {
            source,
            batch_size: training.batch.get(),
            steps: training.steps.get(),
            accumulation_steps: training.accumulate.get(),
            dropout: training.dropout,
            seed: training.seed,
            out: self.out.clone(),
            held_out,
        };
        Ok(TaskSetup { device: device.clone(), model, training })
    }

    /// The files of the initial model.
    fn init_files(&self) -> Result<Option<ModelFiles>, Error> {
        let base = self.options.lora.base.as_deref();
        self.options.init.as_ref().map(|init| files_over(init, base)).transpose()
    }

    fn source(&self) -> Result<ExampleSource, Error> {
        match &self.examples {
            Some(examples) if examples.is_empty() => {
                let reason = "no examples to train on".to_owned();
                Err(train::TrainError::Options { reason }.into())
            }
            Some(examples) => Ok(ExampleSource::List {
                examples: Arc::clone(examples),
                seed: self.options.training.seed,
            }),
            None => examples::source(
                &self.options.data,
                &self.options.fields,
                self.options.training.seed,
            ),
        }
    }

    /// The digest of the initial model and the data.
    fn inputs(&self, init: Option<&ModelFiles>) -> Result<String, Error> {
        let files = self.data_files()?;
        let digest = fingerprint::of_files(init, files.iter().map(PathBuf::as_path))?;
        let given = self.examples.iter().flat_map(|examples| examples.iter());
        let given: Vec<&TrainExample> = given.chain(self.held_out.iter().flatten()).collect();
        if given.is_empty() {
            return Ok(digest);
        }
        let digest = Fingerprint::default().with("files", digest.as_bytes());
        let digest = given.into_iter().fold(digest, |digest, example| {
            let solution = format!("{}\n{}", example.steps.join("\n"), example.answer);
            digest.with(&example.question, solution.as_bytes())
        });
        Ok(digest.finish())
    }

    /// The data files that are read.
    fn data_files(&self) -> Result<Vec<PathBuf>, Error> {
        let mut files = match self.examples {
            Some(_) => Vec::new(),
            None => examples::files(&self.options.data)?,
        };
        files.extend(self.options.held_out.iter().filter(|_| self.held_out.is_none()).cloned());
        Ok(files)
    }

    fn input_paths(&self, init: Option<&ModelFiles>) -> Result<InputPaths, Error> {
        Ok(model_paths(init)?.into_iter().chain(self.data_files()?).collect())
    }

    /// The settings that determine the weights, except those of the loop.
    fn model_settings(&self, method: &dyn TrainingMethod) -> Value {
        let TrainerOptions { init, data, width, layers, heads, context, lora, .. } = &self.options;
        let mut settings = json!({
            "method": method.settings(),
            "init": init,
            "data": data_setting(data),
            "shape": [width, layers, heads, context],
            "lora": lora_settings(lora),
        });
        if !self.options.fields.is_empty() {
            settings["fields"] = json!(self.options.fields);
        }
        settings
    }

    /// The directory of the model.
    pub fn out(&self) -> &Path {
        &self.out
    }
}

/// The data in the settings: null for only the corpus, a name, or a list.
pub(super) fn data_setting(data: &[WeightedData]) -> Value {
    match data {
        [] => Value::Null,
        [only] => json!(only),
        several => json!(several),
    }
}
