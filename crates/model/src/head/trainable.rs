//! Heads that learn: the backward of what makes a thought of a hidden state.

use tensor::ops::{self, Activation, Linear, Normalization, OutputDtype};
use tensor::{Device, DeviceError, Tensor};

use crate::config::{self, Config};
use crate::error::ModelError;
use crate::parameters::{LinearParameters, NormParameters, Parameter};
use crate::source::TensorSource;
use crate::weights::NormSpec;

/// A linear map that learns: what computes, and the weights behind it.
#[derive(Debug)]
pub struct TrainableLinear {
    linear: Linear,
    parameters: LinearParameters,
}

impl TrainableLinear {
    /// An `nn.Linear` of that name, with a bias if the source has one.
    pub fn load(
        device: &Device,
        source: &impl TensorSource,
        name: &str,
        shape: (usize, usize),
    ) -> Result<Self, ModelError> {
        let parameters = LinearParameters::nn_linear(device, source, name, shape)?;
        Ok(Self { linear: parameters.to_linear(device)?, parameters })
    }

    /// x W + b, in single precision.
    pub fn forward(&self, device: &Device, x: &Tensor) -> Result<Tensor, DeviceError> {
        let mut out = Tensor::default();
        ops::linear(device, x, &self.linear, Activation::None, OutputDtype::F32, &mut out)?;
        Ok(out)
    }

    /// Adds to the gradients and returns that of x.
    pub fn backward(
        &mut self,
        device: &Device,
        x: &Tensor,
        dy: &Tensor,
    ) -> Result<Tensor, DeviceError> {
        self.parameters.accumulate_gradients(device, x, dy)?;
        let mut dx = Tensor::default();
        ops::linear_dx(device, dy, &self.linear, OutputDtype::F32, &mut dx)?;
        Ok(dx)
    }

    /// Makes a change of the parameters known to what computes.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.parameters.sync_linear(device, &mut self.linear)
    }

    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter()
    }

    /// Its parameters, to be changed.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.parameters.iter_mut()
    }
}

/// A [`LatentHead`](super::LatentHead) that learns.
#[derive(Debug)]
pub enum TrainableHead {
    /// The hidden state itself (COCONUT).
    Identity,
    /// Linear, GELU, linear, layer norm (CODI).
    Mlp(Box<TrainableMlp>),
}

/// CODI's projector.
#[derive(Debug)]
pub struct TrainableMlp {
    up: TrainableLinear,
    down: TrainableLinear,
    norm: (Normalization, NormParameters),
}

/// What a head's backward needs.
#[derive(Debug, Default)]
pub struct HeadActivations {
    hidden: Tensor,         // (rows, width)
    pre_activation: Tensor, // (rows, inner), before the GELU
    inner: Tensor,          // (rows, inner)
    out: Tensor,            // (rows, width), before the norm
}

impl TrainableHead {
    /// CODI's projector.
    pub fn mlp(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let kind = config::NormConfig::LayerNorm { eps: 1e-5 };
        let stored = NormSpec { name: "projector.4".to_owned(), width: config.width, kind };
        Ok(Self::Mlp(Box::new(TrainableMlp {
            up: TrainableLinear::load(device, source, "projector.1", (config.width, hidden))?,
            down: TrainableLinear::load(device, source, "projector.3", (hidden, config.width))?,
            norm: (stored.load(device, source)?, NormParameters::load(device, &stored, source)?),
        })))
    }

    /// Thoughts of hidden states (rows, width).
    pub fn forward(
        &self,
        device: &Device,
        hidden: Tensor,
    ) -> Result<(Tensor, HeadActivations), DeviceError> {
        let Self::Mlp(of) = self else { return Ok((hidden, HeadActivations::default())) };
        let before = of.up.forward(device, &hidden)?;
        let mut kept =
            HeadActivations { hidden, pre_activation: before, ..HeadActivations::default() };
        ops::activate(
            device,
            &kept.pre_activation,
            Activation::GeluErf,
            OutputDtype::F32,
            &mut kept.inner,
        )?;
        kept.out = of.down.forward(device, &kept.inner)?;
        let mut thoughts = Tensor::default();
        ops::norm(device, &kept.out, &of.norm.0, OutputDtype::F32, &mut thoughts)?;
        Ok((thoughts, kept))
    }

    /// From the gradient of the thoughts to that of the hidden states.
    pub fn backward(
        &mut self,
        device: &Device,
        kept: &HeadActivations,
        dthoughts: Tensor,
    ) -> Result<Tensor, DeviceError> {
        let Self::Mlp(of) = self else { return Ok(dthoughts) };
        let mut dout = Tensor::zeros_on(device, kept.out.rows(), kept.out.cols())?;
        of.norm.1.accumulate_gradients(device, (&kept.out, &of.norm.0, &dthoughts), &mut dout)?;
        let dinner = of.down.backward(device, &kept.inner, &dout)?;
        let mut dbefore = Tensor::default();
        ops::activate_backward(
            device,
            &kept.pre_activation,
            Activation::GeluErf,
            &dinner,
            OutputDtype::F32,
            &mut dbefore,
        )?;
        of.up.backward(device, &kept.hidden, &dbefore)
    }

    /// Its parameters.
    pub fn parameters(&self) -> Vec<&Parameter> {
        match self {
            Self::Identity => Vec::new(),
            Self::Mlp(of) => {
                of.up.parameters().chain(of.down.parameters()).chain(of.norm.1.iter()).collect()
            }
        }
    }

    /// Its parameters, to be changed.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        match self {
            Self::Identity => Vec::new(),
            Self::Mlp(of) => of
                .up
                .parameters_mut()
                .chain(of.down.parameters_mut())
                .chain(of.norm.1.iter_mut())
                .collect(),
        }
    }

    /// Makes a change of the parameters known to what computes.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        let Self::Mlp(of) = self else { return Ok(()) };
        of.up.sync_weights(device)?;
        of.down.sync_weights(device)?;
        of.norm.1.sync_norm(device, &mut of.norm.0)
    }
}
