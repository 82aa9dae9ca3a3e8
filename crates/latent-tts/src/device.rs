//! Selects the device, and the share of its memory for keys and values.

use std::num::NonZeroUsize;

use engine::Engine;
use tensor::{Device, DeviceError, Isa, Precision};

/// The kind of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// A GPU if a usable one is present, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU, by index.
    Cuda(usize),
}

/// Options for opening a device.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DeviceOptions {
    /// The kind of device.
    pub kind: DeviceKind,
    /// The precision; by default bf16 on a GPU and f32 on a CPU. With [`DeviceKind::Auto`], int8
    /// selects the CPU and fp8 a GPU.
    pub precision: Option<Precision>,
    /// Number of CPU worker threads; all cores by default. With [`DeviceKind::Auto`], setting it
    /// selects the CPU.
    pub threads: Option<NonZeroUsize>,
    /// The CPU instruction set; by default the best one supported.
    pub isa: Option<Isa>,
    /// Whether GPU results are independent of the batch, bit for bit. CPU results always are.
    pub deterministic: bool,
}

impl DeviceOptions {
    /// Opens the device.
    pub fn open(&self) -> Result<Device, DeviceError> {
        self.open_telling(|_| ())
    }

    /// Opens the device. Calls `tell` with the reason if a GPU that was not explicitly requested is
    /// not used.
    pub fn open_telling(&self, tell: impl FnOnce(&str)) -> Result<Device, DeviceError> {
        let precision = self.precision.unwrap_or(Precision::Bf16);
        let int8 = precision == Precision::Int8;
        let for_cpu = self.threads.is_some() || self.isa.is_some() || int8;
        match self.kind {
            DeviceKind::Cuda(ordinal) => Device::cuda_with(ordinal, precision, self.deterministic),
            // fp8 has no CPU fallback, so any problem with the GPU is an error.
            DeviceKind::Auto
                if !for_cpu
                    && precision == Precision::Fp8
                    && Device::cuda_availability().is_ok() =>
            {
                Device::cuda_with(0, precision, self.deterministic)
            }
            // With automatic selection, an unusable GPU is not an error.
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

/// Default size of the key-value cache in bytes: fixed on a CPU, most of the free memory on a GPU.
/// Call this after the weights are loaded.
pub fn default_memory(device: &Device) -> Result<usize, DeviceError> {
    Ok(match device.memory()? {
        None => Engine::DEFAULT_MEMORY,
        Some((free, _)) => free / 10 * 6,
    })
}
