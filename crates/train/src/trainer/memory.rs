//! Estimates the memory of a training before it starts.

use std::fmt;

use model::FrozenElements;
use tensor::{Device, DeviceError};

use super::TrainTask;
use crate::error::TrainError;

/// Size of an f32 in bytes.
const F32: u64 = 4;
/// Estimates up to this multiple of the free memory are accepted, because they are not exact.
const TOLERANCE: f64 = 1.25;

/// The memory of a training, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainMemory {
    /// Number of trained parameters.
    pub trained: u64,
    /// Number of frozen parameters.
    pub frozen: u64,
    /// Bytes of the master weights and of the copies that the kernels read.
    pub weights: u64,
    /// Bytes of the gradients.
    pub gradients: u64,
    /// Bytes of AdamW's moments.
    pub optimizer: u64,
    /// Estimated bytes of a micro-batch's activations; `None` if the task has no estimate.
    pub activations: Option<u64>,
    /// Bytes currently free on the device, if known.
    pub free: Option<u64>,
}

impl TrainMemory {
    /// The memory for training `task` on `device`. All numbers except the activations are exact and
    /// already allocated.
    pub fn of(task: &mut dyn TrainTask, device: &Device) -> Result<Self, TrainError> {
        let count = |tensor: &tensor::Tensor| (tensor.rows() * tensor.cols()) as u64;
        let trained = task.parameters().iter().map(|p| count(&p.value)).sum();
        let FrozenElements { weights, gradients } = task.frozen();
        let frozen = weights as u64;
        let frozen_gradients = gradients as u64;
        let memory = Self {
            trained,
            frozen,
            weights: (trained + frozen) * (F32 + kernel_bytes(device)),
            gradients: (trained + frozen_gradients) * F32,
            optimizer: 2 * trained * F32,
            activations: task.activation_bytes()?,
            free: free_memory(device)?,
        };
        tracing::info!(
            weights = memory.weights,
            gradients = memory.gradients,
            optimizer = memory.optimizer,
            activations = memory.activations,
            free = memory.free,
            "training memory in bytes"
        );
        Ok(memory)
    }

    /// Fails if the estimated activations exceed the free memory by more than 25%.
    pub fn check(&self) -> Result<(), TrainError> {
        match (self.activations, self.free) {
            (Some(needed), Some(free)) if needed as f64 > TOLERANCE * free as f64 => {
                Err(TrainError::Memory { needed: gigabytes(needed), free: gigabytes(free) })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for TrainMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millions = |count: u64| format!("{:.1} M", count as f64 / 1e6);
        write!(
            f,
            "parameters {} (trained {}), weights {}, gradients {}, optimizer {}",
            millions(self.trained + self.frozen),
            millions(self.trained),
            gigabytes(self.weights),
            gigabytes(self.gradients),
            gigabytes(self.optimizer)
        )?;
        if let Some(activations) = self.activations {
            write!(f, ", activations about {}", gigabytes(activations))?;
        }
        match self.free {
            Some(free) => write!(f, "; {} free", gigabytes(free)),
            None => Ok(()),
        }
    }
}

/// Formats bytes in GB (10^9) with three significant digits.
fn gigabytes(bytes: u64) -> String {
    let gigabytes = bytes as f64 / 1e9;
    let digits = (2.0 - gigabytes.max(0.01).log10().floor()).clamp(0.0, 3.0) as usize;
    format!("{gigabytes:.digits$} GB")
}

/// Bytes per weight in the kernels' layout; the CPU has one copy each for forward and backward.
fn kernel_bytes(device: &Device) -> u64 {
    match (device.is_cuda(), device.is_f32()) {
        (false, _) => 2 * F32,
        (true, true) => F32,
        (true, false) => F32 / 2,
    }
}

/// Rejects a new model whose training needs far more than the free memory, before it is allocated.
/// Counts the weights and the kernels' copies, the gradients, and both moments of AdamW.
pub(crate) fn check_new_model(device: &Device, parameters: u64) -> Result<(), TrainError> {
    let needed = parameters.saturating_mul(4 * F32 + kernel_bytes(device));
    match free_memory(device)? {
        Some(free) if needed as f64 > TOLERANCE * free as f64 => {
            Err(TrainError::ModelMemory { needed: gigabytes(needed), free: gigabytes(free) })
        }
        _ => Ok(()),
    }
}

/// Bytes that can still be allocated; on the CPU, Linux's available memory.
fn free_memory(device: &Device) -> Result<Option<u64>, DeviceError> {
    if let Some((free, _)) = device.memory()? {
        return Ok(Some(free as u64));
    }
    let available = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let kilobytes = std::fs::read_to_string("/proc/meminfo").ok().and_then(available);
    Ok(kilobytes.map(|kilobytes| 1024 * kilobytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: TrainMemory = TrainMemory {
        trained: 9_200_000,
        frozen: 125_300_000,
        weights: 573_000_000,
        gradients: 36_800_000,
        optimizer: 73_600_000,
        activations: Some(2_340_000_000),
        free: Some(12_000_000_000),
    };

    #[test]
    fn memory_reads_as_a_sentence() {
        assert_eq!(
            MEMORY.to_string(),
            "parameters 134.5 M (trained 9.2 M), weights 0.573 GB, gradients 0.037 GB, optimizer \
             0.074 GB, activations about 2.34 GB; 12.0 GB free"
        );
    }

    #[test]
    fn only_what_exceeds_the_memory_by_far_is_refused() {
        assert!(MEMORY.check().is_ok());
        assert!(TrainMemory { activations: Some(14_000_000_000), ..MEMORY }.check().is_ok());
        let large = TrainMemory { activations: Some(16_000_000_000), ..MEMORY };
        let error = large.check().unwrap_err().to_string();
        assert!(error.contains("16.0 GB") && error.contains("12.0 GB"), "{error}");
        assert!(TrainMemory { free: None, ..large }.check().is_ok());
    }
}
