//! Opens the device, the models and the engine selected by the flags.

use std::time::Instant;

use anyhow::{Result, bail};
use latent_tts::tensor::{Isa, Precision};
use latent_tts::{
    Device, DeviceKind, DeviceOptions, EMBEDDED, Engine, Family, Model, ModelSelection,
    RewardModelChoice, default_memory,
};

use crate::args::{DeviceArgs, DtypeKind, IsaKind, MachineArgs, ModelArgs};
use crate::printer::{Printer, format_duration};

/// The value of `--reward-model` that disables the reward model.
pub const NO_REWARD_MODEL: &str = "none";

/// The models selected by the flags. The embedded reasoner defaults to the embedded reward model.
pub fn select_models(args: &ModelArgs) -> Result<ModelSelection> {
    let reward_model = match args.reward_model.as_deref() {
        None => RewardModelChoice::Default,
        Some(NO_REWARD_MODEL) => RewardModelChoice::None,
        Some(name) => RewardModelChoice::Named(name),
    };
    let selection = ModelSelection::new(args.model.as_deref().unwrap_or(EMBEDDED), reward_model)?;
    let selection = match &args.base {
        Some(base) => selection.with_base(base)?,
        None => selection,
    };
    Ok(ModelSelection { family: args.method, probe: args.probe.clone(), ..selection })
}

/// Loads the weights onto `device` and prints the time it took.
pub fn load_models(
    selection: &ModelSelection,
    device: &Device,
    printer: &Printer,
) -> Result<Model> {
    let start = Instant::now();
    let model = selection.load(device)?;
    printer.warnings(model.warnings());
    let with = if model.reward_model().is_some() { " and its reward model" } else { "" };
    let took = format_duration(start.elapsed().as_secs_f64());
    let (family, path) = (model.reasoner().method.family, selection.reasoner.path().display());
    let on = device.describe();
    printer.note(&format!("loaded {family} model {path}{with} in {took}, on {on}"));
    let named =
        selection.family.is_some() || model.reasoner().decoder.config().defaults.family.is_some();
    if family == Family::LATENT_SFT && !named {
        printer.note(&assumed_family_note(family));
    }
    Ok(model)
}

/// Latent-SFT has no distinguishing tensors or tokens, so every plain Llama model is detected as
/// one.
pub fn assumed_family_note(family: Family) -> String {
    format!(
        "note: the checkpoint does not name its family; assuming {family}, as for every plain \
         Llama. For a language model that writes its reasoning as text, pass --method cot"
    )
}

impl DeviceArgs {
    /// Opens the device selected by the flags, and prints why the CPU is used if a GPU is not.
    pub fn open(&self, printer: &Printer) -> Result<Device> {
        let kind = self.device.unwrap_or_default();
        let for_cpu = self.threads.is_some() || self.isa.is_some();
        if matches!(kind, DeviceKind::Cuda(_)) && for_cpu {
            bail!("--threads and --isa apply to the CPU; omit them or pass --device cpu");
        }
        let options = DeviceOptions {
            kind,
            precision: self.dtype.map(|dtype| match dtype {
                DtypeKind::F32 => Precision::F32,
                DtypeKind::Bf16 => Precision::Bf16,
                DtypeKind::Int8 => Precision::Int8,
                DtypeKind::Fp8 => Precision::Fp8,
            }),
            threads: self.threads,
            isa: self.isa.and_then(|isa| match isa {
                IsaKind::Auto => None,
                IsaKind::Amx => Some(Isa::Amx),
                IsaKind::Avx512 => Some(Isa::Avx512),
                IsaKind::Avx2 => Some(Isa::Avx2),
                IsaKind::Neon => Some(Isa::Neon),
                IsaKind::Portable => Some(Isa::Portable),
            }),
            deterministic: self.deterministic,
        };
        let tell = |why: &str| {
            printer.note(&format!("note: no GPU available ({why}); using the CPU"));
        };
        Ok(options.open_telling(tell)?)
    }
}

impl MachineArgs {
    /// Size of the key-value cache in bytes: `--memory`, otherwise the device's default, which
    /// depends on its free memory. Call this after the weights are loaded.
    pub fn kv_cache_bytes(&self, device: &Device) -> Result<usize> {
        Ok(self.memory.map_or_else(|| default_memory(device), Ok)?)
    }

    /// An engine for `model` with a key-value cache of [`Self::kv_cache_bytes`].
    pub fn engine(&self, model: &Model) -> Result<Engine> {
        Ok(model.engine()?.with_memory(self.kv_cache_bytes(model.device())?))
    }
}
