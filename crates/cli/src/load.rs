//! Settings become parts: a device, a reasoner, perhaps a reward model.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use engine::{Engine, Family, Reasoner, RewardModel, SamplingParams};
use model::ModelFiles;
use tensor::{Device, DeviceError, Isa, Precision};

use crate::args::{DeviceArgs, DeviceKind, DtypeKind, IsaKind, MachineArgs, ModelArgs};
use crate::embedded;
use crate::printer::{Printer, format_duration};
use crate::settings::resolve_model_dir;

/// What `--reward-model` takes for nobody.
pub const NO_REWARD_MODEL: &str = "none";

/// Which models to load.
#[derive(Debug, Clone)]
pub struct ModelSelection {
    /// The reasoner's files.
    pub reasoner: ModelFiles,
    /// The reward model's files.
    pub reward_model: Option<ModelFiles>,
    family: Option<Family>,
}

impl ModelSelection {
    /// What the flags name. The embedded reasoner brings its judge along.
    pub fn from_args(args: &ModelArgs) -> Result<Self> {
        let reasoner = match args.model.as_deref() {
            None | Some(embedded::NAME) => embedded::reasoner(),
            Some(name) => ModelFiles::Directory(resolve_model_dir("--model", name)?),
        };
        let reward_model = match (args.reward_model.as_deref(), &reasoner) {
            (Some(NO_REWARD_MODEL), _) | (None, ModelFiles::Directory(_)) => None,
            (Some(embedded::NAME), _) | (None, ModelFiles::Embedded(_)) => {
                Some(embedded::reward_model())
            }
            (Some(name), _) => {
                Some(ModelFiles::Directory(resolve_model_dir("--reward-model", name)?))
            }
        };
        Ok(Self { reasoner, reward_model, family: args.method })
    }

    /// Reads the weights.
    pub fn load(&self, device: &Device, printer: &Printer) -> Result<LoadedModels> {
        let start = Instant::now();
        let reasoner = Reasoner::load(device, &self.reasoner, self.family)?;
        let reward_model = self.reward_model.as_ref().map(|from| {
            RewardModel::load(device, from, &reasoner)
                .with_context(|| format!("reward model {}", display_path(from)))
        });
        let reward_model = reward_model.transpose()?;
        let with = if reward_model.is_some() { " and its reward model" } else { "" };
        let took = format_duration(start.elapsed().as_secs_f64());
        printer.note(&format!(
            "loaded {} model {}{with} in {took}",
            reasoner.method.family,
            display_path(&self.reasoner)
        ));
        Ok(LoadedModels { reasoner, reward_model })
    }
}

fn display_path(folder: &ModelFiles) -> std::path::Display<'_> {
    folder.path().display()
}

/// Models in memory.
pub struct LoadedModels {
    /// Who thinks.
    pub reasoner: Reasoner,
    /// Who scores.
    pub reward_model: Option<RewardModel>,
}

impl LoadedModels {
    /// An engine with these models.
    pub fn engine(&self, params: SamplingParams) -> Engine<'_> {
        Engine { reasoner: &self.reasoner, reward_model: self.reward_model.as_ref(), params }
    }
}

impl DeviceArgs {
    /// The device that the flags name.
    pub fn open(&self) -> Result<Device> {
        let precision = match self.dtype {
            Some(DtypeKind::F32) => Precision::F32,
            Some(DtypeKind::Bf16) | None => Precision::Bf16,
        };
        let named = self.device.unwrap_or(DeviceKind::Auto);
        // Flags that only a processor understands ask for one.
        let for_cpu = self.threads.is_some() || self.isa.is_some();
        match named {
            DeviceKind::Cuda(_) if for_cpu => {
                bail!("--threads is for the processor; leave it out, or pass --device cpu")
            }
            DeviceKind::Cuda(ordinal) => Ok(Device::cuda(ordinal, precision)?),
            // A GPU that cannot be used is no reason to stop; `doctor` says why it was left alone.
            DeviceKind::Auto if !for_cpu && Device::cuda_availability().is_ok() => {
                Ok(Device::cuda(0, precision).or_else(|_| self.open_cpu())?)
            }
            DeviceKind::Auto | DeviceKind::Cpu => {
                if self.dtype == Some(DtypeKind::Bf16) {
                    bail!(
                        "--dtype bf16 is for a GPU; the processor computes in f32, so leave --dtype out"
                    );
                }
                Ok(self.open_cpu()?)
            }
        }
    }

    fn open_cpu(&self) -> Result<Device, DeviceError> {
        let isa = match self.isa.unwrap_or(IsaKind::Auto) {
            IsaKind::Auto => Isa::detect(),
            IsaKind::Avx512 => Isa::Avx512,
            IsaKind::Avx2 => Isa::Avx2,
            IsaKind::Portable => Isa::Portable,
        };
        Device::cpu_with(self.threads, isa)
    }
}

impl MachineArgs {
    /// Memory for keys and values: what was asked for, else a fixed share of the processor's or
    /// most of what a GPU has free.
    pub fn kv_cache_bytes(&self, device: &Device) -> Result<usize> {
        Ok(match (self.memory, device.memory()?) {
            (Some(bytes), _) => bytes,
            (None, None) => SamplingParams::DEFAULT_MEMORY,
            (None, Some((free, _))) => free / 10 * 6,
        })
    }
}
