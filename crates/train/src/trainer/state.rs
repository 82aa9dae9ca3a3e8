//! `state.safetensors`: the state from which training resumes.
//!
//! Tensors `i.value`, `i.first` and `i.second` are parameter i and its AdamW moments, in f32. The
//! metadata of the header holds the rest as JSON, with a checksum of the whole state.

use std::io::{ErrorKind, Read};
use std::path::Path;

use model::NamedTensor;
use model::save::{self, SaveDtype};
use record::files::Checksum;
use record::{EvalRecord, STATE_FILE};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tensor::{Device, Tensor};

use super::{EvalResult, KeepPolicy, TrainConfig, TrainTask};
use crate::error::TrainError;

/// Names of the tensors of each parameter.
const PARTS: [&str; 3] = ["value", "first", "second"];
/// The key of the header's metadata.
const METADATA_KEY: &str = "training";

/// The progress of a training.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct TrainState {
    /// See [`TrainSettings::fixed`](super::TrainSettings::fixed).
    fingerprint: String,
    /// See [`TrainSettings::optimizer`](super::TrainSettings::optimizer).
    optimizer: String,
    pub(super) steps: u32,
    /// The best evaluation score so far.
    pub(super) best: Option<f64>,
    evals_since_best: u32,
    /// Steps completed when the kept model was saved.
    #[serde(default)]
    kept: Option<u32>,
    /// See [`TrainSettings::inputs`](super::TrainSettings::inputs); `None` in states of earlier
    /// versions.
    #[serde(default)]
    inputs: Option<String>,
    /// See [`TrainTask::unfinished`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unfinished: Option<Value>,
    /// Checksum of all other fields and all tensors; `None` in states of earlier versions.
    #[serde(default)]
    checksum: Option<u32>,
}

/// Fails if the output directory holds the state of a different training. Called before any file of
/// the model is written.
///
/// # Errors
///
/// [`TrainError::SettingsChanged`], [`TrainError::InputsChanged`],
/// [`TrainError::OptimizerChanged`], or an error if the state cannot be read.
pub fn check_state(config: &TrainConfig) -> Result<(), TrainError> {
    let path = config.dir.join(STATE_FILE);
    let header = match read_header(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        header => header.map_err(|source| TrainError::Io { path: path.clone(), source })?,
    };
    TrainState::parse_header(&header)
        .map_err(|reason| TrainError::BadState { path: path.clone(), reason })?
        .check_settings(config, &path)
}

/// The first bytes of a safetensors file: the length of its header, and the header.
fn read_header(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = record::files::open_regular(path)?;
    let mut bytes = Vec::new();
    file.by_ref().take(size_of::<u64>() as u64).read_to_end(&mut bytes)?;
    // A truncated file is rejected when the header is parsed.
    if let Ok(length) = <[u8; size_of::<u64>()]>::try_from(&bytes[..]) {
        file.take(u64::from_le_bytes(length)).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

impl TrainState {
    /// Restores the saved state into the task's parameters; returns a new state if there is none.
    pub(super) fn open(
        task: &mut dyn TrainTask,
        device: &Device,
        config: &TrainConfig,
    ) -> Result<Self, TrainError> {
        let path = config.dir.join(STATE_FILE);
        let bytes = match record::files::read_regular(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let (fingerprint, optimizer) = config.settings.fingerprints();
                let inputs = Some(config.settings.inputs.clone());
                return Ok(Self { fingerprint, optimizer, inputs, ..Self::default() });
            }
            Err(source) => return Err(TrainError::Io { path, source }),
        };
        let damaged = |reason: String| TrainError::BadState { path: path.clone(), reason };
        let mut state = Self::parse_header(&bytes).map_err(damaged)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
        if let Some(stored) = state.checksum.take() {
            let mut checksum = state.checksum_start().map_err(damaged)?;
            let count = task.parameters().len();
            let names = (0..count).flat_map(|i| PARTS.map(|what| format!("{i}.{what}")));
            // Missing tensors are reported below.
            names
                .filter_map(|name| file.tensor(&name).ok())
                .for_each(|t| checksum.update(t.data()));
            if stored != checksum.finalize() {
                return Err(damaged("checksum mismatch".into()));
            }
        }
        state.check_settings(config, &path)?;
        for (i, parameter) in task.parameters_mut().into_iter().enumerate() {
            let shape = [parameter.value.rows(), parameter.value.cols()];
            let restore = |what: &str| -> Result<Tensor, TrainError> {
                let tensor = read_tensor(&file, &format!("{i}.{what}"), shape).map_err(damaged)?;
                Ok(tensor.to_device(device)?)
            };
            [parameter.value, parameter.moments.first, parameter.moments.second] =
                [restore(PARTS[0])?, restore(PARTS[1])?, restore(PARTS[2])?];
        }
        task.sync_weights()?;
        if let Some(unfinished) = state.unfinished.take() {
            task.restore(state.steps, unfinished)?;
        }
        Ok(state)
    }

    /// Parses the header, without the tensors.
    fn parse_header(bytes: &[u8]) -> Result<Self, String> {
        let (length, rest) = bytes.split_first_chunk().ok_or("the file is empty")?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let header = rest.get(..length).ok_or("the header is truncated")?;
        let header: Value = serde_json::from_slice(header).map_err(|e| e.to_string())?;
        let metadata = header["__metadata__"][METADATA_KEY].as_str();
        let metadata = metadata.ok_or_else(|| format!("no `{METADATA_KEY}` in its header"))?;
        serde_json::from_str(metadata).map_err(|e| format!("`{METADATA_KEY}` in its header: {e}"))
    }

    /// Checks that the state belongs to this training. Adopts changed optimizer settings if that is
    /// allowed.
    fn check_settings(&mut self, config: &TrainConfig, path: &Path) -> Result<(), TrainError> {
        let (fingerprint, optimizer) = config.settings.fingerprints();
        let path = path.to_owned();
        if self.fingerprint != fingerprint {
            return Err(TrainError::SettingsChanged { path });
        }
        if self.inputs.as_ref().is_some_and(|inputs| *inputs != config.settings.inputs) {
            return Err(TrainError::InputsChanged { path });
        }
        if self.optimizer != optimizer && !config.change_optimizer {
            return Err(TrainError::OptimizerChanged { path });
        }
        self.optimizer = optimizer;
        self.inputs = Some(config.settings.inputs.clone());
        Ok(())
    }

    /// The checksum of the metadata, to be continued with the tensors. `self.checksum` must be
    /// `None`.
    fn checksum_start(&self) -> Result<Checksum, String> {
        debug_assert_eq!(self.checksum, None, "the checksum must not cover itself");
        let mut checksum = Checksum::new();
        checksum.update(&serde_json::to_vec(self).map_err(|e| e.to_string())?);
        Ok(checksum)
    }

    /// Whether the current parameters are those of the kept model.
    pub(super) fn is_kept(&self) -> bool {
        self.kept == Some(self.steps)
    }

    /// Whether all steps are done or early stopping has ended the training.
    pub(super) fn is_finished(&self, config: &TrainConfig) -> bool {
        let stopped = config.patience > 0 && self.evals_since_best >= config.patience;
        stopped || self.steps >= config.optimizer.schedule.steps
    }

    /// Whether an action is due that happens every `every` steps and at the end.
    pub(super) fn is_due(&self, config: &TrainConfig, every: u32) -> bool {
        self.is_finished(config) || (every > 0 && self.steps.is_multiple_of(every))
    }

    pub(super) fn save(
        &self,
        task: &dyn TrainTask,
        config: &TrainConfig,
    ) -> Result<(), TrainError> {
        let path = config.dir.join(STATE_FILE);
        let failed = |reason| TrainError::BadState { path: path.clone(), reason };
        let unfinished = task.unfinished(self.steps);
        let mut state = Self { checksum: None, unfinished, ..self.clone() };
        let mut checksum = state.checksum_start().map_err(failed)?;
        let mut tensors = Vec::new();
        for (i, parameter) in task.parameters().into_iter().enumerate() {
            let moments = &parameter.moments;
            for (what, tensor) in
                PARTS.into_iter().zip([&parameter.value, &moments.first, &moments.second])
            {
                let shape = vec![tensor.rows(), tensor.cols()];
                let host = tensor.clone().to_host()?;
                let name = format!("{i}.{what}");
                let values = host.data().to_vec();
                checksum.update(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
                tensors.push(NamedTensor { name, shape, values });
            }
        }
        state.checksum = Some(checksum.finalize());
        let metadata = serde_json::to_string(&state).map_err(|e| failed(e.to_string()))?;
        Ok(save::write_safetensors(&path, &tensors, SaveDtype::F32, (METADATA_KEY, &metadata))?)
    }

    /// Evaluates the task, and saves the model if it is the one to keep; `None` if there is no
    /// held-out data.
    pub(super) fn evaluate(
        &mut self,
        task: &mut dyn TrainTask,
        config: &TrainConfig,
    ) -> Result<Option<EvalRecord>, TrainError> {
        let Some(EvalResult { metrics, score }) = task.evaluate(self.steps)? else {
            return Ok(None);
        };
        let improved = self.best.is_none_or(|best| score > best);
        // Ties go to the later model, which has trained longer: a small held-out set may give the
        // same score, even 0, for a long time.
        let best = self.best.is_none_or(|best| score >= best);
        let kept = best || config.keep == KeepPolicy::Last;
        if kept {
            task.save()?;
            self.kept = Some(self.steps);
        }
        self.evals_since_best = if improved { 0 } else { self.evals_since_best + 1 };
        self.best = if improved { Some(score) } else { self.best };
        Ok(Some(EvalRecord { step: self.steps, score, kept, metrics }))
    }
}

/// A tensor of a state; an error unless it is f32 and has the given shape.
fn read_tensor(file: &SafeTensors<'_>, name: &str, shape: [usize; 2]) -> Result<Tensor, String> {
    let view = file.tensor(name).map_err(|e| format!("`{name}`: {e}"))?;
    if view.shape() != shape || view.dtype() != Dtype::F32 {
        let found = format!("{} {:?}", view.dtype(), view.shape());
        return Err(format!("`{name}` is {found}, expected F32 {shape:?}"));
    }
    let chunks = view.data().as_chunks::<4>().0;
    let numbers = chunks.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Ok(Tensor::from_vec(shape[0], shape[1], numbers))
}
