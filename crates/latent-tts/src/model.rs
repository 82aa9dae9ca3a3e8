//! A reasoner and its reward model, loaded on a device.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Engine, EngineError, Family, Reasoner, RewardModel};
use model::head::RewardHead;
use model::{Checkpoint, ModelFiles, ModelWarning, Probe};
use tensor::Device;

use crate::device::{DeviceOptions, default_memory};
use crate::source::{EMBEDDED, reasoner_files};
use crate::{Error, source};

/// The models to load, as resolved but unread files.
#[derive(Debug, Clone)]
pub struct ModelSelection {
    /// The reasoner's files.
    pub reasoner: ModelFiles,
    /// The reward model's files.
    pub reward_model: Option<ModelFiles>,
    /// The directory of a probe on the reasoner's hidden states.
    pub probe: Option<PathBuf>,
    /// The family of the reasoner; detected from the checkpoint by default.
    pub family: Option<Family>,
}

/// The reward model to use with a reasoner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RewardModelChoice<'a> {
    /// The embedded one for the embedded reasoner, otherwise none.
    #[default]
    Default,
    /// No reward model.
    None,
    /// The reward model with this name.
    Named(&'a str),
}

impl ModelSelection {
    /// The models with these names: [`EMBEDDED`], a directory, a GGUF file, or a Hugging Face Hub
    /// id.
    pub fn new(reasoner: &str, reward_model: RewardModelChoice<'_>) -> Result<Self, Error> {
        let reward_model = match reward_model {
            RewardModelChoice::Default if reasoner == EMBEDDED => Some(EMBEDDED),
            RewardModelChoice::Default | RewardModelChoice::None => None,
            RewardModelChoice::Named(name) => Some(name),
        };
        Ok(Self {
            reasoner: source::reasoner_files(reasoner)?,
            reward_model: reward_model.map(source::reward_model_files).transpose()?,
            probe: None,
            family: None,
        })
    }

    /// The same models, with `base` as the base of those that are adapters.
    pub fn with_base(self, base: &str) -> Result<Self, Error> {
        let mut models = std::iter::once(&self.reasoner).chain(&self.reward_model);
        let is_adapter = |files: &ModelFiles| files.is_adapter();
        if !models.try_fold(false, |any, files| Ok::<_, Error>(any || is_adapter(files)?))? {
            return Err(Error::NoAdapter { base: base.to_owned() });
        }
        let over = |files| source::with_base(files, Some(base));
        Ok(Self {
            reasoner: over(self.reasoner)?,
            reward_model: self.reward_model.map(over).transpose()?,
            probe: self.probe,
            family: self.family,
        })
    }

    /// Reads the weights onto a device.
    pub fn load(&self, device: &Device) -> Result<Model, Error> {
        std::iter::once(&self.reasoner)
            .chain(&self.reward_model)
            .try_for_each(source::find_bases)?;
        // Reading and converting weights runs on the device's threads.
        device.run(|| self.load_files(device))
    }

    fn load_files(&self, device: &Device) -> Result<Model, Error> {
        let reasoner = Reasoner::load(device, &self.reasoner, self.family)?;
        let reward_model = self.reward_model.as_ref().map(|files| {
            RewardModel::load(device, files, &reasoner).map_err(|error| Error::RewardModel {
                path: files.path().to_owned(),
                error: Box::new(error),
            })
        });
        let probe = self.probe.as_deref().map(|dir| load_probe(device, dir, &reasoner));
        Ok(Model {
            probe: probe.transpose()?.map(Arc::new),
            reward_model: reward_model.transpose()?.map(Arc::new),
            reasoner: Arc::new(reasoner),
        })
    }
}

/// A reasoner and optionally a reward model, in memory. Clones share the weights.
#[derive(Clone)]
pub struct Model {
    reasoner: Arc<Reasoner>,
    reward_model: Option<Arc<RewardModel>>,
    probe: Option<Arc<Probe>>,
}

impl Model {
    /// Loads `"embedded"` (with its reward model), a checkpoint directory, a GGUF file, or a
    /// Hugging Face Hub id, on a GPU if one is present and on the CPU otherwise.
    ///
    /// ```no_run
    /// use latent_tts::Model;
    /// let published = Model::load("./coconut-gpt2")?;
    /// # Ok::<(), latent_tts::Error>(())
    /// ```
    pub fn load(name: &str) -> Result<Self, Error> {
        let selection = ModelSelection::new(name, RewardModelChoice::Default)?;
        selection.load(&DeviceOptions::default().open()?)
    }

    /// A model from an already loaded reasoner and reward model.
    pub fn new(reasoner: Reasoner, reward_model: Option<RewardModel>) -> Self {
        let reward_model = reward_model.map(Arc::new);
        Self { reasoner: Arc::new(reasoner), reward_model, probe: None }
    }

    /// Sets the reward model by name.
    pub fn with_reward_model(self, name: &str) -> Result<Self, Error> {
        let files = source::reward_model_files(name)?;
        source::find_bases(&files)?;
        let device = self.reasoner.decoder.device();
        let reward_model = RewardModel::load(device, &files, &self.reasoner)?;
        Ok(Self { reward_model: Some(Arc::new(reward_model)), ..self })
    }

    /// The same reasoner without a reward model.
    #[must_use]
    pub fn without_reward_model(self) -> Self {
        Self { reward_model: None, ..self }
    }

    /// Adds the probe in this directory, which `train probe` wrote for the reasoner.
    pub fn with_probe(self, dir: &Path) -> Result<Self, Error> {
        let probe = load_probe(self.reasoner.decoder.device(), dir, &self.reasoner)?;
        Ok(Self { probe: Some(Arc::new(probe)), ..self })
    }

    /// The reasoner.
    pub fn reasoner(&self) -> &Reasoner {
        &self.reasoner
    }

    /// The reward model, if there is one.
    pub fn reward_model(&self) -> Option<&RewardModel> {
        self.reward_model.as_deref()
    }

    /// Problems of the checkpoints that do not prevent their use.
    pub fn warnings(&self) -> impl Iterator<Item = &ModelWarning> {
        let reward_model = self.reward_model.iter().flat_map(|model| &model.warnings);
        self.reasoner.warnings.iter().chain(reward_model)
    }

    /// The device that holds the weights.
    pub fn device(&self) -> &Device {
        self.reasoner.decoder.device()
    }

    /// An engine with these models and the device's default memory.
    pub fn engine(&self) -> Result<Engine, Error> {
        let engine = Engine::new(Arc::clone(&self.reasoner));
        let engine = match &self.reward_model {
            Some(model) => engine.with_reward_model(Arc::clone(model)),
            None => engine,
        };
        let engine = match &self.probe {
            Some(probe) => engine.with_probe(Arc::clone(probe)),
            None => engine,
        };
        Ok(engine.with_memory(default_memory(self.device())?))
    }
}

/// Loads a probe for the states of a reasoner.
fn load_probe(device: &Device, dir: &Path, reasoner: &Reasoner) -> Result<Probe, Error> {
    let probe = Probe::load(device, dir)?;
    let width = reasoner.decoder.config().width;
    let family = reasoner.method.family.name();
    let config = probe.config();
    if config.width != width || config.family != family {
        return Err(Error::UnfitProbe {
            path: dir.to_owned(),
            of: format!("{} (width {})", config.family, config.width),
            reasoner: format!("{family} (width {width})"),
        });
    }
    Ok(probe)
}

/// The files of a reward model by name. Fails for a checkpoint that is not a reward model, before
/// loading it.
pub fn reward_model_files(name: &str) -> Result<ModelFiles, Error> {
    let files = source::reward_model_files(name)?;
    let checkpoint = Checkpoint::open(&files)?;
    match RewardHead::detect(&checkpoint) {
        Some(_) => Ok(files),
        None => Err(EngineError::NotARewardModel { dir: files.path().to_owned() }.into()),
    }
}

/// The files of a reasoner by name, for tools that read a checkpoint without loading it.
pub fn files(name: &str) -> Result<ModelFiles, Error> {
    source::embedded_files(name).map_or_else(|| reasoner_files(name), Ok)
}

/// Like [`files`], with an optional base for an adapter.
pub fn files_over(name: &str, base: Option<&str>) -> Result<ModelFiles, Error> {
    source::with_base(files(name)?, base)
}
