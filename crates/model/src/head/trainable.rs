//! Trainable heads: forward and backward with gradients.

mod swiglu;

use tensor::ops::{self, Activation, Linear, Normalization, OutputDtype};
use tensor::{Device, DeviceError, Tensor};

use super::{GaussianMeanNames, LatentHead, MlpNames, hidden_size};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::parameters::{LinearParameters, NormParameters, Parameter, Tuning};
use crate::source::TensorSource;
use crate::weights::{LinearSpec, NormSpec};

pub use swiglu::{SwiGluActivations, TrainableSwiGlu};

/// Added to the variance in the LayerNorm of a [`TrainableMlp`].
const NORM_EPS: f32 = 1e-5;

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
        Self::new(device, source, &LinearSpec::nn_linear(source, name, inputs, outputs))
    }

    fn new(
        device: &Device,
        source: &impl TensorSource,
        spec: &LinearSpec,
    ) -> Result<Self, ModelError> {
        let parameters = LinearParameters::load(device, spec, source, Tuning::Full)?;
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

/// Linear, GELU, linear, LayerNorm: a latent head, or the first part of one.
#[derive(Debug)]
pub struct TrainableMlp {
    up: TrainableLinear,
    down: TrainableLinear,
    norm: Normalization,
    norm_parameters: NormParameters,
}

/// The sizes of a [`TrainableMlp`].
#[derive(Clone, Copy, Debug)]
pub struct MlpShape {
    /// Width of its input.
    pub inputs: usize,
    /// Width between its linear layers.
    pub hidden: usize,
    /// Width of its output.
    pub outputs: usize,
}

/// The activations that the backward of a head needs.
#[derive(Debug, Default)]
pub struct HeadActivations {
    hidden: Tensor,         // (rows, inputs)
    pre_activation: Tensor, // (rows, hidden), before the GELU
    inner: Tensor,          // (rows, hidden)
    out: Tensor,            // (rows, outputs), before the norm
}

impl TrainableMlp {
    /// Loads the modules `names` of a source.
    pub fn load(
        device: &Device,
        source: &impl TensorSource,
        names: &MlpNames,
        shape: MlpShape,
    ) -> Result<Self, ModelError> {
        let MlpShape { inputs, hidden, outputs } = shape;
        let norm = NormSpec::layer_norm(names.norm, outputs, NORM_EPS);
        Ok(Self {
            up: TrainableLinear::load(device, source, names.up, inputs, hidden)?,
            down: TrainableLinear::load(device, source, names.down, hidden, outputs)?,
            norm: norm.load(device, source)?,
            norm_parameters: NormParameters::load(device, &norm, source, Tuning::Full)?,
        })
    }

    /// The output (rows, outputs) for hidden states (rows, inputs), and the activations for the
    /// backward.
    pub fn forward(
        &self,
        device: &Device,
        hidden: Tensor,
    ) -> Result<(Tensor, HeadActivations), DeviceError> {
        let pre_activation = self.up.forward(device, &hidden)?;
        let mut saved = HeadActivations { hidden, pre_activation, ..HeadActivations::default() };
        ops::activate(
            device,
            &saved.pre_activation,
            Activation::GeluErf,
            OutputDtype::F32,
            &mut saved.inner,
        )?;
        saved.out = self.down.forward(device, &saved.inner)?;
        let mut normed = Tensor::default();
        ops::norm(device, &saved.out, &self.norm, OutputDtype::F32, &mut normed)?;
        Ok((normed, saved))
    }

    /// The gradient of the hidden states, given that of the output; adds to the gradients of the
    /// parameters.
    pub fn backward(
        &mut self,
        device: &Device,
        saved: &HeadActivations,
        dnormed: &Tensor,
    ) -> Result<Tensor, DeviceError> {
        let mut dout = Tensor::zeros_on(device, saved.out.rows(), saved.out.cols())?;
        let norm = &self.norm;
        self.norm_parameters.accumulate_gradients(device, norm, &saved.out, dnormed, &mut dout)?;
        let dinner = self.down.backward(device, &saved.inner, &dout)?;
        let mut dbefore = Tensor::default();
        ops::activate_backward(
            device,
            &saved.pre_activation,
            Activation::GeluErf,
            &dinner,
            OutputDtype::F32,
            &mut dbefore,
        )?;
        self.up.backward(device, &saved.hidden, &dbefore)
    }

    /// The inference head with a copy of the weights.
    fn to_latent_head(&self, device: &Device) -> Result<LatentHead, DeviceError> {
        let width = self.norm.width();
        let scale = vec![1.0; width];
        let shift = vec![0.0; width];
        let mut norm = Normalization::layer(device, NORM_EPS, scale, shift)?;
        self.norm_parameters.sync_norm(device, &mut norm)?;
        let up = self.up.parameters.to_linear(device)?;
        let down = self.down.parameters.to_linear(device)?;
        Ok(LatentHead::Mlp { up, down, norm })
    }

    /// The parameters, in a fixed order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let linears = self.up.parameters().chain(self.down.parameters());
        linears.chain(self.norm_parameters.iter())
    }

    /// The parameters, mutably; call [`Self::sync_weights`] after a change.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let linears = self.up.parameters_mut().chain(self.down.parameters_mut());
        linears.chain(self.norm_parameters.iter_mut())
    }

    /// Copies the parameters to the kernels' layers; needed after every change.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.up.sync_weights(device)?;
        self.down.sync_weights(device)?;
        self.norm_parameters.sync_norm(device, &mut self.norm)
    }
}

impl TrainableHead {
    /// Loads the head of [`LatentHead::mlp`](super::LatentHead::mlp) for training.
    pub fn mlp(
        device: &Device,
        checkpoint: &Checkpoint,
        names: &MlpNames,
    ) -> Result<Self, ModelError> {
        let width = checkpoint.config().width;
        let hidden = hidden_size(checkpoint, names.up);
        let shape = MlpShape { inputs: width, hidden, outputs: width };
        Ok(Self::Mlp(Box::new(TrainableMlp::load(device, checkpoint, names, shape)?)))
    }

    /// Thoughts (rows, width) of hidden states (rows, width), and the activations for the backward.
    pub fn forward(
        &self,
        device: &Device,
        hidden: Tensor,
    ) -> Result<(Tensor, HeadActivations), DeviceError> {
        match self {
            Self::Identity => Ok((hidden, HeadActivations::default())),
            Self::Mlp(mlp) => mlp.forward(device, hidden),
        }
    }

    /// The gradient of the hidden states, given that of the thoughts; adds to the gradients of the
    /// parameters.
    pub fn backward(
        &mut self,
        device: &Device,
        saved: &HeadActivations,
        dthoughts: Tensor,
    ) -> Result<Tensor, DeviceError> {
        match self {
            Self::Identity => Ok(dthoughts),
            Self::Mlp(mlp) => mlp.backward(device, saved, &dthoughts),
        }
    }

    /// The inference head, with a copy of the weights.
    pub fn to_latent_head(&self, device: &Device) -> Result<LatentHead, DeviceError> {
        match self {
            Self::Identity => Ok(LatentHead::Identity),
            Self::Mlp(mlp) => mlp.to_latent_head(device),
        }
    }

    fn module(&self) -> Option<&TrainableMlp> {
        match self {
            Self::Identity => None,
            Self::Mlp(mlp) => Some(mlp),
        }
    }

    fn module_mut(&mut self) -> Option<&mut TrainableMlp> {
        match self {
            Self::Identity => None,
            Self::Mlp(mlp) => Some(mlp),
        }
    }

    /// The parameters, in a fixed order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.module().into_iter().flat_map(TrainableMlp::parameters)
    }

    /// The parameters, mutably; call [`Self::sync_weights`] after a change.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.module_mut().into_iter().flat_map(TrainableMlp::parameters_mut)
    }

    /// Copies the parameters to the kernels' layers; needed after every change.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.module_mut().map_or(Ok(()), |mlp| mlp.sync_weights(device))
    }
}

/// The trainable form of [`LatentHead::GaussianMean`](super::LatentHead::GaussianMean), with the
/// standard deviation of the Gaussian, which inference does not need (CoLaR).
#[derive(Debug)]
pub struct TrainableGaussianHead {
    trunk: TrainableMlp,      // width -> hidden
    mean: TrainableLinear,    // hidden -> width
    log_std: TrainableLinear, // hidden -> width
}

/// The Gaussian of each row, in units of the embeddings' standard deviation: (rows, width) each.
#[derive(Debug)]
pub struct GaussianOutput {
    /// Mean of each element.
    pub mean: Tensor,
    /// Logarithm of the standard deviation of each element.
    pub log_std: Tensor,
    features: Tensor, // (rows, hidden)
    activations: HeadActivations,
}

impl TrainableGaussianHead {
    /// Loads the modules `names` of a source, and `log_std`, of a model of this width.
    pub fn load(
        device: &Device,
        source: &impl TensorSource,
        names: &GaussianMeanNames,
        (width, hidden): (usize, usize),
    ) -> Result<Self, ModelError> {
        let trunk = MlpNames { up: names.up, down: names.down, norm: names.norm };
        let shape = MlpShape { inputs: width, hidden, outputs: hidden };
        Ok(Self {
            trunk: TrainableMlp::load(device, source, &trunk, shape)?,
            mean: TrainableLinear::load(device, source, names.mean, hidden, width)?,
            log_std: TrainableLinear::load(device, source, names.log_std, hidden, width)?,
        })
    }

    /// The Gaussians of hidden states (rows, width).
    pub fn forward(&self, device: &Device, hidden: Tensor) -> Result<GaussianOutput, DeviceError> {
        let (features, activations) = self.trunk.forward(device, hidden)?;
        let mean = self.mean.forward(device, &features)?;
        let log_std = self.log_std.forward(device, &features)?;
        Ok(GaussianOutput { mean, log_std, features, activations })
    }

    /// The gradient of the hidden states, given those of the Gaussians; adds to the gradients of
    /// the parameters.
    pub fn backward(
        &mut self,
        device: &Device,
        of: &GaussianOutput,
        dmean: &Tensor,
        dlog_std: &Tensor,
    ) -> Result<Tensor, DeviceError> {
        let mut dfeatures = self.mean.backward(device, &of.features, dmean)?;
        let spread = self.log_std.backward(device, &of.features, dlog_std)?;
        ops::add(device, &mut dfeatures, &spread)?;
        self.trunk.backward(device, &of.activations, &dfeatures)
    }

    /// The parameters, in a fixed order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let linears = self.mean.parameters().chain(self.log_std.parameters());
        self.trunk.parameters().chain(linears)
    }

    /// The parameters, mutably; call [`Self::sync_weights`] after a change.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let linears = self.mean.parameters_mut().chain(self.log_std.parameters_mut());
        self.trunk.parameters_mut().chain(linears)
    }

    /// Copies the parameters to the kernels' layers; needed after every change.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.trunk.sync_weights(device)?;
        self.mean.sync_weights(device)?;
        self.log_std.sync_weights(device)
    }
}
