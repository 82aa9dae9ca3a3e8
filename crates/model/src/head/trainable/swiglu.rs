//! The trainable projection head of Render-of-Thought.

use tensor::ops::{self, Normalization, OutputDtype};
use tensor::{Device, DeviceError, Tensor};

use super::TrainableLinear;
use crate::error::ModelError;
use crate::head::SwiGluNames;
use crate::parameters::{NormParameters, Parameter, Tuning};
use crate::source::TensorSource;
use crate::weights::{NormSpec, stacked};

/// The trainable form of [`LatentHead::SwiGlu`](crate::LatentHead::SwiGlu): LayerNorm, linear,
/// SwiGLU, linear.
#[derive(Debug)]
pub struct TrainableSwiGlu {
    norm: Normalization,
    norm_parameters: NormParameters,
    up: TrainableLinear,    // width -> hidden
    gates: TrainableLinear, // hidden -> 2 hidden: gate and value
    down: TrainableLinear,  // hidden -> hidden
    out: TrainableLinear,   // hidden -> width
}

/// The activations that its backward needs.
#[derive(Debug)]
pub struct SwiGluActivations {
    hidden: Tensor, // (rows, width)
    normed: Tensor, // (rows, width)
    up: Tensor,     // (rows, hidden)
    gates: Tensor,  // (rows, 2 hidden)
    gated: Tensor,  // (rows, hidden)
    down: Tensor,   // (rows, hidden)
}

impl TrainableSwiGlu {
    /// Loads the modules `names` of a source, of a model of this width.
    pub fn load(
        device: &Device,
        source: &impl TensorSource,
        names: &SwiGluNames,
        (width, hidden): (usize, usize),
    ) -> Result<Self, ModelError> {
        let norm = NormSpec::layer_norm(names.norm, width, 1e-6);
        let down = stacked(hidden, [(names.down.to_owned(), hidden)]);
        Ok(Self {
            norm: norm.load(device, source)?,
            norm_parameters: NormParameters::load(device, &norm, source, Tuning::Full)?,
            up: TrainableLinear::load(device, source, names.up, width, hidden)?,
            gates: TrainableLinear::new(device, source, &names.gates(hidden))?,
            down: TrainableLinear::new(device, source, &down)?,
            out: TrainableLinear::load(device, source, names.out, hidden, width)?,
        })
    }

    /// Thoughts (rows, width) of hidden states (rows, width), and the activations for the backward.
    pub fn forward(
        &self,
        device: &Device,
        hidden: Tensor,
    ) -> Result<(Tensor, SwiGluActivations), DeviceError> {
        let mut normed = Tensor::default();
        let mut gated = Tensor::default();
        ops::norm(device, &hidden, &self.norm, OutputDtype::F32, &mut normed)?;
        let up = self.up.forward(device, &normed)?;
        let gates = self.gates.forward(device, &up)?;
        ops::swiglu(device, &gates, &mut gated)?;
        let down = self.down.forward(device, &gated)?;
        let out = self.out.forward(device, &down)?;
        Ok((out, SwiGluActivations { hidden, normed, up, gates, gated, down }))
    }

    /// The gradient of the hidden states, given that of the thoughts; adds to the gradients of the
    /// parameters.
    pub fn backward(
        &mut self,
        device: &Device,
        saved: &SwiGluActivations,
        dout: &Tensor,
    ) -> Result<Tensor, DeviceError> {
        let ddown = self.out.backward(device, &saved.down, dout)?;
        let dgated = self.down.backward(device, &saved.gated, &ddown)?;
        let mut dgates = Tensor::default();
        ops::swiglu_backward(device, &saved.gates, &dgated, OutputDtype::F32, &mut dgates)?;
        let dup = self.gates.backward(device, &saved.up, &dgates)?;
        let dnormed = self.up.backward(device, &saved.normed, &dup)?;
        let mut dhidden = Tensor::zeros_on(device, saved.hidden.rows(), saved.hidden.cols())?;
        let norm = &self.norm;
        let parameters = &mut self.norm_parameters;
        parameters.accumulate_gradients(device, norm, &saved.hidden, &dnormed, &mut dhidden)?;
        Ok(dhidden)
    }

    /// The parameters, in a fixed order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let linears = [&self.up, &self.gates, &self.down, &self.out];
        let linears = linears.into_iter().flat_map(TrainableLinear::parameters);
        self.norm_parameters.iter().chain(linears)
    }

    /// The parameters, mutably; call [`Self::sync_weights`] after a change.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let linears = [&mut self.up, &mut self.gates, &mut self.down, &mut self.out];
        let linears = linears.into_iter().flat_map(TrainableLinear::parameters_mut);
        self.norm_parameters.iter_mut().chain(linears)
    }

    /// Copies the parameters to the kernels' layers; needed after every change.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.norm_parameters.sync_norm(device, &mut self.norm)?;
        let linears = [&mut self.up, &mut self.gates, &mut self.down, &mut self.out];
        linears.into_iter().try_for_each(|linear| linear.sync_weights(device))
    }
}
