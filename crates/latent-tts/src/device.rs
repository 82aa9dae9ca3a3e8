//! Which device computes, and how much of its memory keys and values may take.

use std::num::NonZeroUsize;

use engine::Engine;
use tensor::{Device, DeviceError, Isa, Precision};

/// A device by what it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// A GPU if there is one that can be used, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU, by its number.
    Cuda(usize),
}

/// How to open a device.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DeviceOptions {
    /// Which one.
    pub kind: DeviceKind,
    /// The precision; bf16 on a GPU and f32 on a processor unless given. With
    /// [`DeviceKind::Auto`] int8 asks for the processor and fp8 for a GPU.
    pub precision: Option<Precision>,
    /// Worker threads of a processor; all cores unless given. With [`DeviceKind::Auto`] they ask
    /// for the processor.
    pub threads: Option<NonZeroUsize>,
    /// The instruction set of a processor; the best one it has unless given.
    pub isa: Option<Isa>,
    /// Whether a GPU gives a trajectory the same bits whatever its batch. A processor always does.
    pub deterministic: bool,
}

impl DeviceOptions {
    /// Opens the device.
    pub fn open(&self) -> Result<Device, DeviceError> {
        self.open_telling(|_| ())
    }

    /// Opens the device; `tell` is told why a GPU that was not asked for by name is not used.
    pub fn open_telling(&self, tell: impl FnOnce(&str)) -> Result<Device, DeviceError> {
        let precision = self.precision.unwrap_or(Precision::Bf16);
        let int8 = precision == Precision::Int8;
        let for_cpu = self.threads.is_some() || self.isa.is_some() || int8;
        match self.kind {
            DeviceKind::Cuda(ordinal) => Device::cuda_with(ordinal, precision, self.deterministic),
            // There is no processor's fp8 to fall back to: whatever is wrong with the GPU is told.
            DeviceKind::Auto
                if !for_cpu
                    && precision == Precision::Fp8
                    && Device::cuda_availability().is_ok() =>
            {
                Device::cuda_with(0, precision, self.deterministic)
            }
            // A GPU that cannot be used is no reason to stop.
            DeviceKind::Auto if !for_cpu => {
                let opened = Device::cuda_availability().and_then(|()| {
                    Device::cuda_with(0, precision, self.deterministic)
                        .map_err(|error| error.to_string())
                });
                opened.or_else(|why| {
                    tell(&why);
                    self.open_cpu()
                })
            }
            DeviceKind::Auto | DeviceKind::Cpu => self.open_cpu(),
        }
    }

    fn open_cpu(&self) -> Result<Device, DeviceError> {
        let isa = self.isa.unwrap_or_else(Isa::detect);
        Device::cpu_in(self.threads, isa, self.precision.unwrap_or(Precision::F32))
    }
}

/// Bytes of keys and values unless told otherwise: a fixed amount on a processor, most of what a
/// GPU has free. To be asked when the weights are loaded.
pub fn default_memory(device: &Device) -> Result<usize, DeviceError> {
    Ok(match device.memory()? {
        None => Engine::DEFAULT_MEMORY,
        Some((free, _)) => free / 10 * 6,
    })
}
