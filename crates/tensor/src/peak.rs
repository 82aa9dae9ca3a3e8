//! Measures the peak FLOP/s of a device, as a reference for throughput.

use std::time::Instant;

use crate::device::Backend;
use crate::ops::{Activation, Linear, OutputDtype, linear};
use crate::{Device, DeviceError, Tensor, cpu};

/// FLOP/s (a multiply-add counts as two): for the CPU the total of its threads on register
/// operands, for a GPU the throughput of a large GEMM.
///
/// The best of several short runs, because other load on the machine can only lower one.
pub fn peak_flops(device: &Device) -> Result<f64, DeviceError> {
    match device.backend() {
        Backend::Cpu(cpu) => Ok(cpu::peak::fma_flops(device, cpu.isa)),
        Backend::Cuda(_) => gemm_flops(device),
    }
}

fn gemm_flops(device: &Device) -> Result<f64, DeviceError> {
    const SIZE: usize = 8192;
    // Not zeros, on which a GPU runs faster than on real data.
    let numbers: Vec<f32> =
        (0..SIZE * SIZE).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0).collect();
    let map = Linear::from_output_major(device, SIZE, SIZE, &numbers, None)?;
    let x = Tensor::from_vec(SIZE, SIZE, numbers).to_device(device)?;
    let mut operand = Tensor::default();
    let mut out = Tensor::default();
    linear(device, &x, &map, Activation::None, OutputDtype::Operand, &mut operand)?;
    let mut best = f64::INFINITY;
    for _ in 0..8 {
        device.synchronize()?;
        let start = Instant::now();
        linear(device, &operand, &map, Activation::None, OutputDtype::Compute, &mut out)?;
        device.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(2.0 * (SIZE as f64).powi(3) / best)
}
