//! Normalisation of rows.

use crate::{Device, DeviceError, Tensor, cpu};

/// A normalisation and its parameters.
#[derive(Clone, Debug)]
pub enum Norm {
    /// Subtract the mean, divide by the standard deviation, scale and shift.
    Layer {
        /// Added to the variance.
        eps: f32,
        /// (width)
        scale: Vec<f32>,
        /// (width)
        shift: Vec<f32>,
    },
    /// Divide by the root of the mean square and scale.
    Rms {
        /// Added to the mean square.
        eps: f32,
        /// (width)
        scale: Vec<f32>,
    },
}

impl Norm {
    /// How many numbers are normalised together.
    pub fn width(&self) -> usize {
        match self {
            Self::Layer { scale, .. } | Self::Rms { scale, .. } => scale.len(),
        }
    }
}

/// Normalises each row of x (rows, width) into out (rows, width).
pub fn norm(device: &Device, x: &Tensor, by: &Norm, out: &mut Tensor) -> Result<(), DeviceError> {
    assert_eq!(x.cols(), by.width(), "norm: rows of {} against parameters of {}", x.cols(), by.width());
    out.reshape(x.rows(), x.cols());
    cpu::norm::norm(device.isa(), x, by, out);
    Ok(())
}

/// Normalises, in place, each of `heads` neighbouring groups of columns from column `first` on, each as wide as the norm.
pub fn norm_heads(device: &Device, x: &mut Tensor, by: &Norm, first: usize, heads: usize) -> Result<(), DeviceError> {
    assert!(first + heads * by.width() <= x.cols(), "norm_heads: {heads} heads of {} do not fit {}", by.width(), x.cols());
    cpu::norm::norm_heads(device.isa(), x, by, first..first + heads * by.width());
    Ok(())
}
