//! Settings become parts: a device, a reasoner, perhaps a reward model.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use engine::{Engine, Family, Reasoner, RewardModel, Settings};
use tensor::{Device, Isa};

use crate::args::{DeviceArgs, DeviceKind, IsaKind, ModelArgs};
use crate::printer::{Printer, show_seconds};
use crate::settings::model_dir;

/// Which models to load.
#[derive(Debug, Clone)]
pub struct Models {
    /// The reasoner's directory.
    pub reasoner: PathBuf,
    /// The reward model's directory.
    pub judge: Option<PathBuf>,
    family: Option<Family>,
}

impl Models {
    /// What the flags name.
    pub fn of(args: &ModelArgs) -> Result<Self> {
        let reasoner = model_dir("--model", args.model.as_deref())?;
        let judge = args.reward_model.as_deref().map(|name| model_dir("--reward-model", Some(name))).transpose()?;
        Ok(Self { reasoner, judge, family: args.method })
    }

    /// Reads the weights.
    pub fn load(&self, device: &Device, printer: &Printer) -> Result<Loaded> {
        let start = Instant::now();
        let reasoner = Reasoner::load(device, &self.reasoner, self.family)?;
        let judge = self
            .judge
            .as_deref()
            .map(|dir| RewardModel::load(device, dir, &reasoner).with_context(|| format!("reward model {}", dir.display())));
        let judge = judge.transpose()?;
        let with = if judge.is_some() { " and its reward model" } else { "" };
        let took = show_seconds(start.elapsed().as_secs_f64());
        printer.note(&format!("loaded {} model {}{with} in {took}", reasoner.method.family, self.reasoner.display()));
        Ok(Loaded { reasoner, judge })
    }
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
        if self.device == Some(DeviceKind::Cuda) {
            bail!("this build has no CUDA device; use --device cpu");
        }
        let isa = match self.isa.unwrap_or(IsaKind::Auto) {
            IsaKind::Auto => Isa::detect(),
            IsaKind::Avx512 => Isa::Avx512,
            IsaKind::Avx2 => Isa::Avx2,
            IsaKind::Portable => Isa::Portable,
        };
        Ok(Device::cpu_with(self.threads, isa)?)
    }
}
