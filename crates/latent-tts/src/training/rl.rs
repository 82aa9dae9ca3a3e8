//! Trains a reasoner by reinforcement learning: converts options to a task.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use data::TrainExample;
use engine::family::CODI_PROJECTOR;
use engine::{CancelToken, FamilyParts, Reasoner, RewardModel};
use model::{LatentHead, ModelFiles, Tokenizer, TrainableHead};
use record::Fingerprint;
use record::files::InputPaths;
use serde_json::{Value, json};
use tensor::Device;
use train::TrainError;
use train::data_loader::ExampleSource;
use train::model_dir::{self, AdapterStart, ContinuedModel, TuningSpec};
use train::rl::policy::PolicyStep;
use train::rl::task::{RlSetup, RlTask};

use super::reasoner::data_setting;
use super::{
    RlTrainerOptions, TrainControl, TrainObserver, TrainOutput, TrainReport, examples,
    lora_settings, model_paths, run_loop, train_config, train_settings,
};
use crate::model::{files_over, reward_model_files};
use crate::{Error, fingerprint};

/// Trains a reasoner by reinforcement learning on its own sampled trajectories.
///
/// ```no_run
/// use latent_tts::training::{RlTrainer, RlTrainerOptions};
/// use latent_tts::{CancelToken, DeviceOptions};
///
/// let mut options = RlTrainerOptions::default();
/// options.rollout.samples = 32.try_into().unwrap();
/// let device = DeviceOptions::default().open()?;
/// let trained =
///     RlTrainer::new("models/rl", options)?.run(&device, &mut (), &CancelToken::default())?;
/// println!("{:?}", trained.kept);
/// # Ok::<(), latent_tts::Error>(())
/// ```
#[derive(Clone)]
pub struct RlTrainer {
    out: PathBuf,
    options: RlTrainerOptions,
    questions: Option<Arc<Vec<TrainExample>>>,
    held_out: Option<Vec<TrainExample>>,
}

impl RlTrainer {
    /// A training into a directory. Fails if an option is out of range.
    pub fn new(out: impl Into<PathBuf>, options: RlTrainerOptions) -> Result<Self, Error> {
        options.check()?;
        Ok(Self { out: out.into(), options, questions: None, held_out: None })
    }

    /// Uses these questions and answers instead of the data in the options. Steps are not needed.
    #[must_use]
    pub fn with_questions(self, questions: Vec<TrainExample>) -> Self {
        Self { questions: Some(Arc::new(questions)), ..self }
    }

    /// Uses these held-out problems instead of those in the options.
    #[must_use]
    pub fn with_held_out(self, problems: Vec<TrainExample>) -> Self {
        Self { held_out: Some(problems), ..self }
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
        let files = files_over(&options.model, options.lora.base.as_deref())?;
        let name = options.policy.reward_model.as_deref();
        let reward_files = name.map(reward_model_files).transpose()?;
        let models: Vec<&ModelFiles> = std::iter::once(&files).chain(&reward_files).collect();
        let output = TrainOutput::check(&self.out, &options.training, self.input_paths(&models)?)?;
        let settings =
            train_settings(self.model_settings(), &options.training, self.inputs(&models)?);
        let config = train_config(&self.out, &options.training, settings);
        output.check_settings(&config)?;
        let source = self.source()?;
        let held_out = match &self.held_out {
            Some(problems) => problems.clone(),
            None => {
                let RlTrainerOptions { data, fields, held_out, held_out_count, .. } = options;
                examples::held_out(data, fields, held_out.as_deref(), *held_out_count)?
            }
        };
        examples::check_questions(&Tokenizer::read(&files)?, &source, observer)?;
        if held_out.is_empty() {
            let note = "note: no held-out data; pass `held_out` to measure accuracy";
            observer.note(note);
        }
        let _dir = output.claim()?;
        let mut setup = self.setup(device, &files, source, held_out)?;
        if let Some(reward_files) = reward_files {
            // Its reference reasoner may be the initial one, whose weights do not change.
            let initial = Reasoner::load(device, &files, None)?;
            let model = RewardModel::load(device, &reward_files, &initial)?;
            setup.reward_model = Some(Arc::new(model));
        }
        let mut task = RlTask::new(setup);
        run_loop(&self.out, &mut task, device, &config, TrainControl { observer, cancel })
    }

    /// Writes the initial model to the output directory, and returns the objects of its training.
    fn setup(
        &self,
        device: &Device,
        files: &ModelFiles,
        source: ExampleSource,
        held_out: Vec<TrainExample>,
    ) -> Result<RlSetup, Error> {
        let training = &self.options.training;
        let tuning = TuningSpec {
            lora: self.options.lora.spec(training.seed, AdapterStart::Continue),
            dtype: training.save_dtype,
        };
        let ContinuedModel { mut decoder, tokenizer, writer, checkpoint } =
            model_dir::continue_model(device, files, &self.out, &tuning)?;
        decoder.set_recompute(training.recompute);
        let parts = FamilyParts::read(device, &checkpoint, &tokenizer, None)?;
        if !parts.marker_embeddings.is_empty() {
            return Err(unsupported("marker tokens outside its embedding table", &parts));
        }
        if parts.method.looped.is_some() {
            return Err(unsupported("thoughts that are computed in parallel", &parts));
        }
        let head = || match parts.head {
            LatentHead::Identity => Ok(TrainableHead::Identity),
            LatentHead::Mlp { .. } => Ok(TrainableHead::mlp(device, &checkpoint, &CODI_PROJECTOR)?),
            _ => Err(unsupported("a latent head that rewards cannot train", &parts)),
        };
        let settings = self.options.settings(&parts.method)?;
        let reference = match settings.kl_coef > 0.0 {
            true => {
                let copy = model_dir::load_continued(device, &checkpoint, None)?;
                Some(PolicyStep::new(copy, head()?))
            }
            false => None,
        };
        Ok(RlSetup {
            device: device.clone(),
            policy: PolicyStep::new(decoder, head()?),
            reference,
            reward_model: None,
            method: parts.method.clone(),
            tokenizer,
            writer,
            source,
            held_out,
            out: self.out.clone(),
            settings,
        })
    }

    fn source(&self) -> Result<ExampleSource, Error> {
        let seed = self.options.training.seed;
        match &self.questions {
            Some(questions) if questions.is_empty() => {
                let reason = "no questions to train on".to_owned();
                Err(TrainError::Options { reason }.into())
            }
            Some(questions) => Ok(ExampleSource::List { examples: Arc::clone(questions), seed }),
            None => examples::source(&self.options.data, &self.options.fields, seed),
        }
    }

    /// The digest of the models and the data.
    fn inputs(&self, models: &[&ModelFiles]) -> Result<String, Error> {
        let data = self.data_files()?;
        let paths = data.iter().map(PathBuf::as_path);
        let digest = fingerprint::of_files(models.iter().copied(), paths)?;
        let given = self.questions.iter().flat_map(|questions| questions.iter());
        let given: Vec<&TrainExample> = given.chain(self.held_out.iter().flatten()).collect();
        if given.is_empty() {
            return Ok(digest);
        }
        let digest = Fingerprint::default().with("files", digest.as_bytes());
        let add = |digest: Fingerprint, example: &TrainExample| {
            digest.with(&example.question, example.answer.as_bytes())
        };
        Ok(given.into_iter().fold(digest, add).finish())
    }

    /// The question files that are read.
    fn data_files(&self) -> Result<Vec<PathBuf>, Error> {
        let mut files = match self.questions {
            Some(_) => Vec::new(),
            None => examples::files(&self.options.data)?,
        };
        files.extend(self.options.held_out.iter().filter(|_| self.held_out.is_none()).cloned());
        Ok(files)
    }

    fn input_paths(&self, models: &[&ModelFiles]) -> Result<InputPaths, Error> {
        Ok(model_paths(models.iter().copied())?.into_iter().chain(self.data_files()?).collect())
    }

    /// The settings that determine the weights, except those of the loop.
    fn model_settings(&self) -> Value {
        let RlTrainerOptions { model, data, rollout, policy, lora, .. } = &self.options;
        json!({
            "method": "rl",
            "model": model,
            "data": data_setting(data),
            "rollout": rollout,
            "policy": policy,
            "lora": lora_settings(lora),
        })
    }

    /// The directory of the model.
    pub fn out(&self) -> &Path {
        &self.out
    }
}

/// The error for a model with a component that this training does not support.
fn unsupported(what: &str, parts: &FamilyParts) -> Error {
    let reason = format!(
        "`model`: a {} model has {what}; train one of coconut, codi or cot",
        parts.method.family
    );
    TrainError::Options { reason }.into()
}
