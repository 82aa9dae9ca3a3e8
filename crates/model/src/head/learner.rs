//! Heads that learn: the backward of what makes a thought of a hidden state.

use tensor::ops::{self, Activation, Format, Linear, Norm};
use tensor::{Device, DeviceError, Tensor};

use crate::config::{self, Config};
use crate::error::Error;
use crate::parameters::{LinearParameters, NormParameters, Parameter};
use crate::source::TensorSource;
use crate::weights::StoredNorm;

/// A linear map that learns: what computes, and the weights behind it.
#[derive(Debug)]
pub struct LearnedLinear {
    map: Linear,
    parameters: LinearParameters,
}

impl LearnedLinear {
    /// An `nn.Linear` of that name, with a bias if the source has one.
    pub fn load(device: &Device, source: &impl TensorSource, name: &str, shape: (usize, usize)) -> Result<Self, Error> {
        let parameters = LinearParameters::module(device, source, name, shape)?;
        Ok(Self { map: parameters.linear(device)?, parameters })
    }

    /// x W + b, in single precision.
    pub fn forward(&self, device: &Device, x: &Tensor) -> Result<Tensor, DeviceError> {
        let mut out = Tensor::default();
        ops::linear(device, x, &self.map, (Activation::None, Format::Single), &mut out)?;
        Ok(out)
    }

    /// Adds to the gradients and returns that of x.
    pub fn backward(&mut self, device: &Device, x: &Tensor, dy: &Tensor) -> Result<Tensor, DeviceError> {
        self.parameters.learn(device, x, dy)?;
        let mut dx = Tensor::default();
        ops::linear_dx(device, dy, &self.map, Format::Single, &mut dx)?;
        Ok(dx)
    }

    /// Makes a change of the parameters known to what computes.
    pub fn refresh(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.parameters.write(device, &mut self.map)
    }

    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.all()
    }

    /// Its parameters, to be changed.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.parameters.all_mut()
    }
}

/// A [`LatentHead`](super::LatentHead) that learns.
#[derive(Debug)]
pub enum HeadLearner {
    /// The hidden state itself (COCONUT).
    Identity,
    /// Linear, GELU, linear, layer norm (CODI).
    Projector(Box<Projector>),
}

/// CODI's projector.
#[derive(Debug)]
pub struct Projector {
    up: LearnedLinear,
    down: LearnedLinear,
    norm: (Norm, NormParameters),
}

/// What a head's backward needs.
#[derive(Debug, Default)]
pub struct HeadKept {
    hidden: Tensor, // (rows, width)
    before: Tensor, // (rows, inner), before the GELU
    inner: Tensor,  // (rows, inner)
    out: Tensor,    // (rows, width), before the norm
}

impl HeadLearner {
    /// CODI's projector.
    pub fn projector(device: &Device, config: &Config, source: &impl TensorSource, hidden: usize) -> Result<Self, Error> {
        let kind = config::Norm::LayerNorm { eps: 1e-5 };
        let stored = StoredNorm { name: "projector.4".to_owned(), width: config.width, kind };
        Ok(Self::Projector(Box::new(Projector {
            up: LearnedLinear::load(device, source, "projector.1", (config.width, hidden))?,
            down: LearnedLinear::load(device, source, "projector.3", (hidden, config.width))?,
            norm: (stored.load(device, source)?, NormParameters::read(device, &stored, source)?),
        })))
    }

    /// Thoughts of hidden states (rows, width).
    pub fn forward(&self, device: &Device, hidden: Tensor) -> Result<(Tensor, HeadKept), DeviceError> {
        let Self::Projector(of) = self else { return Ok((hidden, HeadKept::default())) };
        let before = of.up.forward(device, &hidden)?;
        let mut kept = HeadKept { hidden, before, ..HeadKept::default() };
        ops::activate(device, &kept.before, Activation::GeluErf, Format::Single, &mut kept.inner)?;
        kept.out = of.down.forward(device, &kept.inner)?;
        let mut thoughts = Tensor::default();
        ops::norm(device, &kept.out, &of.norm.0, Format::Single, &mut thoughts)?;
        Ok((thoughts, kept))
    }

    /// From the gradient of the thoughts to that of the hidden states.
    pub fn backward(&mut self, device: &Device, kept: &HeadKept, dthoughts: Tensor) -> Result<Tensor, DeviceError> {
        let Self::Projector(of) = self else { return Ok(dthoughts) };
        let mut dout = Tensor::zeros_on(device, kept.out.rows(), kept.out.cols())?;
        of.norm.1.learn(device, (&kept.out, &of.norm.0, &dthoughts), &mut dout)?;
        let dinner = of.down.backward(device, &kept.inner, &dout)?;
        let mut dbefore = Tensor::default();
        ops::activate_backward(device, &kept.before, Activation::GeluErf, &dinner, Format::Single, &mut dbefore)?;
        of.up.backward(device, &kept.hidden, &dbefore)
    }

    /// Its parameters.
    pub fn parameters(&self) -> Vec<&Parameter> {
        match self {
            Self::Identity => Vec::new(),
            Self::Projector(of) => of.up.parameters().chain(of.down.parameters()).chain(of.norm.1.all()).collect(),
        }
    }

    /// Its parameters, to be changed.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        match self {
            Self::Identity => Vec::new(),
            Self::Projector(of) => {
                of.up.parameters_mut().chain(of.down.parameters_mut()).chain(of.norm.1.all_mut()).collect()
            }
        }
    }

    /// Makes a change of the parameters known to what computes.
    pub fn refresh(&mut self, device: &Device) -> Result<(), DeviceError> {
        let Self::Projector(of) = self else { return Ok(()) };
        of.up.refresh(device)?;
        of.down.refresh(device)?;
        of.norm.1.write(device, &mut of.norm.0)
    }
}
