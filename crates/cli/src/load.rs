//! Settings become parts: a device, a reasoner, perhaps a reward model.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use engine::{Engine, Family, Reasoner, RewardModel, Settings};
use model::Folder;
use tensor::{Device, DeviceError, Isa, Precision};

use crate::args::{DeviceArgs, DeviceKind, DtypeKind, IsaKind, MachineArgs, ModelArgs};
use crate::embedded;
use crate::printer::{Printer, show_seconds};
use crate::settings::model_dir;

/// What `--reward-model` takes for nobody.
pub const NO_JUDGE: &str = "none";

/// Which models to load.
#[derive(Debug, Clone)]
pub struct Models {
    /// The reasoner's files.
    pub reasoner: Folder,
    /// The reward model's files.
    pub judge: Option<Folder>,
    family: Option<Family>,
}

impl Models {
    /// What the flags name. The embedded reasoner brings its judge along.
    pub fn of(args: &ModelArgs) -> Result<Self> {
        let reasoner = match args.model.as_deref() {
            None | Some(embedded::NAME) => embedded::reasoner(),
            Some(name) => Folder::Disk(model_dir("--model", name)?),
        };
        let judge = match (args.reward_model.as_deref(), &reasoner) {
            (Some(NO_JUDGE), _) | (None, Folder::Disk(_)) => None,
            (Some(embedded::NAME), _) | (None, Folder::Memory(_)) => Some(embedded::reward()),
            (Some(name), _) => Some(Folder::Disk(model_dir("--reward-model", name)?)),
        };
        Ok(Self { reasoner, judge, family: args.method })
    }

    /// Reads the weights.
    pub fn load(&self, device: &Device, printer: &Printer) -> Result<Loaded> {
        let start = Instant::now();
        let reasoner = Reasoner::load(device, &self.reasoner, self.family)?;
        let judge = self
            .judge
            .as_ref()
            .map(|from| RewardModel::load(device, from, &reasoner).with_context(|| format!("reward model {}", name(from))));
        let judge = judge.transpose()?;
        let with = if judge.is_some() { " and its reward model" } else { "" };
        let took = show_seconds(start.elapsed().as_secs_f64());
        printer.note(&format!("loaded {} model {}{with} in {took}", reasoner.method.family, name(&self.reasoner)));
        Ok(Loaded { reasoner, judge })
    }
}

fn name(folder: &Folder) -> std::path::Display<'_> {
    folder.path().display()
}

/// Models in memory.
pub struct Loaded {
    /// Who thinks.
    pub reasoner: Reasoner,
    /// Who scores.
    pub judge: Option<RewardModel>,
}

impl Loaded {
    /// An engine with these models.
    pub fn engine(&self, settings: Settings) -> Engine<'_> {
        Engine { reasoner: &self.reasoner, judge: self.judge.as_ref(), settings }
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
            DeviceKind::Cuda(_) if for_cpu => bail!("--threads is for the processor; leave it out, or pass --device cpu"),
            DeviceKind::Cuda(ordinal) => Ok(Device::cuda(ordinal, precision)?),
            // A GPU that cannot be used is no reason to stop; `doctor` says why it was left alone.
            DeviceKind::Auto if !for_cpu && Device::cuda_presence().is_ok() => {
                Ok(Device::cuda(0, precision).or_else(|_| self.open_cpu())?)
            }
            DeviceKind::Auto | DeviceKind::Cpu => {
                if self.dtype == Some(DtypeKind::Bf16) {
                    bail!("--dtype bf16 is for a GPU; the processor computes in f32, so leave --dtype out");
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
    /// Memory for keys and values: what was asked for, else a fixed share of the processor's or most of what a GPU has free.
    pub fn memory(&self, device: &Device) -> Result<usize> {
        Ok(match (self.memory, device.memory()?) {
            (Some(bytes), _) => bytes,
            (None, None) => Settings::MEMORY,
            (None, Some((free, _))) => free / 10 * 6,
        })
    }
}
