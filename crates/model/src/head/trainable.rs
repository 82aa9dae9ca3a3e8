//! Trainable heads: forward and backward with gradients.

use tensor::ops::{self, Activation, Linear, Normalization, OutputDtype};
use tensor::{Device, DeviceError, Tensor};

use super::{MlpNames, hidden_size};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::parameters::{LinearParameters, NormParameters, Parameter, Tuning};
use crate::source::TensorSource;
use crate::weights::{LinearSpec, NormSpec};

/// A trainable linear layer: the kernels' copy and the master weights.
#[derive(Debug)]
pub struct TrainableLinear {
    linear: Linear,
    parameters: LinearParameters,
}

impl TrainableLinear {
    /// Loads an `nn.Linear`, with a bias if the source has one.
    pub fn load(
        device: &Device,
        source: &impl TensorSource,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self, ModelError> {
        let spec = LinearSpec::nn_linear(source, name, inputs, outputs);
        let parameters = LinearParameters::load(device, &spec, source, Tuning::Full)?;
        Ok(Self { linear: parameters.to_linear(device)?, parameters })
    }

    /// x W^T + b, in float32.
    pub fn forward(&self, device: &Device, x: &Tensor) -> Result<Tensor, DeviceError> {
        let mut out = Tensor::default();
        ops::linear(device, x, &self.linear, Activation::None, OutputDtype::F32, &mut out)?;
        Ok(out)
    }

    /// Adds to the gradients of the parameters and returns the gradient of x.
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

    /// Copies the parameters to the kernels' layers; needed after every change.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.parameters.sync_linear(device, &mut self.linear)
    }

    /// The parameters, in a fixed order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter()
    }

    /// The parameters, mutably; call [`Self::sync_weights`] after a change.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.parameters.iter_mut()
    }
}

/// A trainable [`LatentHead`](super::LatentHead).
#[derive(Debug)]
pub enum TrainableHead {
    /// The hidden state itself (COCONUT).
    Identity,
    /// Linear, GELU, linear, LayerNorm (CODI).
    Mlp(Box<TrainableMlp>),
}

/// The layers of [`TrainableHead::Mlp`].
#[derive(Debug)]
pub struct TrainableMlp {
    up: TrainableLinear,
    down: TrainableLinear,
    norm: Normalization,
    norm_parameters: NormParameters,
}

/// The activations that the backward of a head needs.
#[derive(Debug, Default)]
pub struct HeadActivations {
    hidden: Tensor,         // (rows, width)
    pre_activation: Tensor, // (rows, inner), before the GELU
    inner: Tensor,          // (rows, inner)
    out: Tensor,            // (rows, width), before the norm
}

impl TrainableHead {
    /// Loads the head of [`LatentHead::mlp`](super::LatentHead::mlp) for training.
    pub fn mlp(
        device: &Device,
        checkpoint: &Checkpoint,
        names: &MlpNames,
    ) -> Result<Self, ModelError> {
        let (width, hidden) = (checkpoint.config().width, hidden_size(checkpoint, names.up));
        let norm = NormSpec::layer_norm(names.norm, width, 1e-5);
        Ok(Self::Mlp(Box::new(TrainableMlp {
            up: TrainableLinear::load(device, checkpoint, names.up, width, hidden)?,
            down: TrainableLinear::load(device, checkpoint, names.down, hidden, width)?,
            norm: norm.load(device, checkpoint)?,
            norm_parameters: NormParameters::load(device, &norm, checkpoint, Tuning::Full)?,
        })))
    }

    /// Thoughts (rows, width) of hidden states (rows, width), and the activations for the backward.
    pub fn forward(
        &self,
        device: &Device,
        hidden: Tensor,
    ) -> Result<(Tensor, HeadActivations), DeviceError> {
        let Self::Mlp(mlp) = self else { return Ok((hidden, HeadActivations::default())) };
        let pre_activation = mlp.up.forward(device, &hidden)?;
        let mut saved = HeadActivations { hidden, pre_activation, ..HeadActivations::default() };
        ops::activate(
            device,
            &saved.pre_activation,
            Activation::GeluErf,
            OutputDtype::F32,
            &mut saved.inner,
        )?;
        saved.out = mlp.down.forward(device, &saved.inner)?;
        let mut thoughts = Tensor::default();
        ops::norm(device, &saved.out, &mlp.norm, OutputDtype::F32, &mut thoughts)?;
        Ok((thoughts, saved))
    }

    /// The gradient of the hidden states, given that of the thoughts; adds to the gradients of the
    /// parameters.
    pub fn backward(
        &mut self,
        device: &Device,
        saved: &HeadActivations,
        dthoughts: Tensor,
    ) -> Result<Tensor, DeviceError> {
        let Self::Mlp(mlp) = self else { return Ok(dthoughts) };
        let mut dout = Tensor::zeros_on(device, saved.out.rows(), saved.out.cols())?;
        mlp.norm_parameters
            .accumulate_gradients(device, &mlp.norm, &saved.out, &dthoughts, &mut dout)?;
        let dinner = mlp.down.backward(device, &saved.inner, &dout)?;
        let mut dbefore = Tensor::default();
        ops::activate_backward(
            device,
            &saved.pre_activation,
            Activation::GeluErf,
            &dinner,
            OutputDtype::F32,
            &mut dbefore,
        )?;
        mlp.up.backward(device, &saved.hidden, &dbefore)
    }

    /// The parameters, in a fixed order.
    pub fn parameters(&self) -> Vec<&Parameter> {
        match self {
            Self::Identity => Vec::new(),
            Self::Mlp(mlp) => {
                let linears = mlp.up.parameters().chain(mlp.down.parameters());
                linears.chain(mlp.norm_parameters.iter()).collect()
            }
        }
    }

    /// The parameters, mutably; call [`Self::sync_weights`] after a change.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        match self {
            Self::Identity => Vec::new(),
            Self::Mlp(mlp) => {
                let linears = mlp.up.parameters_mut().chain(mlp.down.parameters_mut());
                linears.chain(mlp.norm_parameters.iter_mut()).collect()
            }
        }
    }

    /// Copies the parameters to the kernels' layers; needed after every change.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        let Self::Mlp(mlp) = self else { return Ok(()) };
        mlp.up.sync_weights(device)?;
        mlp.down.sync_weights(device)?;
        mlp.norm_parameters.sync_norm(device, &mut mlp.norm)
    }
}
