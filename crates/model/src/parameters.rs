//! Trainable parameters: float32 master weights with gradients and AdamW moments, and their names
//! and shapes in files.
//!
//! The kernels read copies of the weights in their own layout and dtype ([`ops::Linear`],
//! [`Normalization`]); the copies are synchronized after every optimizer step. Matrices are
//! (outputs, inputs) here in every architecture. `linear` has the parameters of a linear layer,
//! `adapter` those of a LoRA adapter on a frozen one.

mod adapter;
mod linear;

use tensor::ops::{self, AdamW, Moments, NormBackward, Normalization};
use tensor::{Device, DeviceError, Tensor};

use crate::error::ModelError;
use crate::source::TensorSource;
use crate::weights::{NormSpec, WeightLayout, transpose};

pub(crate) use adapter::AdapterInput;
pub use adapter::{LoraConfig, LoraTargets};
pub(crate) use linear::{LinearBackward, LinearParameters, NEW_ROWS};

/// The trained part of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tuning<'a> {
    /// Every weight.
    Full,
    /// A LoRA adapter if the configuration targets the layer; its weights are frozen.
    Lora(&'a LoraConfig),
    /// The weights of this many last outputs: embeddings of new tokens.
    LastRows(usize),
}

/// Number of stored elements that no optimizer updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrozenElements {
    /// Frozen weights.
    pub weights: usize,
    /// Gradients of frozen weights, from which those of adapters are computed.
    pub gradients: usize,
}

/// A trainable tensor.
#[derive(Debug)]
pub struct Parameter {
    layout: ParameterLayout,
    /// The float32 master weights.
    pub value: Tensor,
    /// The gradient; accumulates until the next optimizer step.
    pub gradient: Tensor,
    /// AdamW's first and second moments.
    pub moments: Moments,
}

/// The tensors of a file that a parameter consists of: (name, outputs) each.
#[derive(Clone, Debug)]
enum ParameterLayout {
    Matrix { parts: Vec<(String, usize)>, layout: WeightLayout },
    Vector { parts: Vec<(String, usize)> },
}

/// A tensor with the name and shape that it has in files.
#[derive(Clone, Debug)]
pub struct NamedTensor {
    /// The canonical name.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// The values, row-major.
    pub values: Vec<f32>,
}

impl Parameter {
    fn new(device: &Device, layout: ParameterLayout, value: Tensor) -> Result<Self, DeviceError> {
        let zeros = || Tensor::zeros_on(device, value.rows(), value.cols());
        let gradient = zeros()?;
        let moments = Moments { first: zeros()?, second: zeros()? };
        Ok(Self { layout, value: value.to_device(device)?, gradient, moments })
    }

    /// A tensor that no optimizer updates: it has neither gradient nor moments.
    fn frozen(
        device: &Device,
        layout: ParameterLayout,
        value: Tensor,
    ) -> Result<Self, DeviceError> {
        let moments = Moments { first: Tensor::default(), second: Tensor::default() };
        let value = value.to_device(device)?;
        Ok(Self { layout, value, gradient: Tensor::default(), moments })
    }

    /// A matrix that is stored as one tensor of the same shape.
    pub(crate) fn matrix(device: &Device, name: &str, value: Tensor) -> Result<Self, DeviceError> {
        let parts = vec![(name.to_owned(), value.rows())];
        let layout = ParameterLayout::Matrix { parts, layout: WeightLayout::OutputMajor };
        Self::new(device, layout, value)
    }

    fn vector(
        device: &Device,
        parts: Vec<(String, usize)>,
        values: Vec<f32>,
    ) -> Result<Self, DeviceError> {
        let value = Tensor::from_vec(1, values.len(), values);
        Self::new(device, ParameterLayout::Vector { parts }, value)
    }

    /// Whether it is a matrix. By convention weight decay applies to matrices, not to norms and
    /// biases.
    fn is_matrix(&self) -> bool {
        matches!(self.layout, ParameterLayout::Matrix { .. })
    }

    /// The name of its first tensor; identifies it in messages and training state.
    pub fn name(&self) -> &str {
        match &self.layout {
            ParameterLayout::Matrix { parts, .. } | ParameterLayout::Vector { parts } => {
                &parts[0].0
            }
        }
    }

    /// The value as the tensors of a file.
    pub fn named_values(&self) -> Result<Vec<NamedTensor>, DeviceError> {
        self.split_named(&self.value)
    }

    /// The gradient, with the names and shapes of [`Self::named_values`].
    pub fn named_gradients(&self) -> Result<Vec<NamedTensor>, DeviceError> {
        self.split_named(&self.gradient)
    }

    fn split_named(&self, tensor: &Tensor) -> Result<Vec<NamedTensor>, DeviceError> {
        let host = tensor.clone().to_host()?;
        let cols = tensor.cols();
        let mut start = 0;
        let mut cut = |len: usize| {
            start += len;
            host.data()[start - len..start].to_vec()
        };
        Ok(match &self.layout {
            ParameterLayout::Vector { parts } => {
                let part = |(name, len): &(String, usize)| NamedTensor {
                    name: name.clone(),
                    shape: vec![*len],
                    values: cut(*len),
                };
                parts.iter().map(part).collect()
            }
            ParameterLayout::Matrix { parts, layout } => {
                let part = |(name, outputs): &(String, usize)| {
                    let values = cut(outputs * cols);
                    let name = name.clone();
                    match layout {
                        WeightLayout::OutputMajor => {
                            NamedTensor { name, shape: vec![*outputs, cols], values }
                        }
                        WeightLayout::InputMajor => NamedTensor {
                            name,
                            shape: vec![cols, *outputs],
                            values: transpose(&values, *outputs, cols),
                        },
                    }
                };
                parts.iter().map(part).collect()
            }
        })
    }
}

/// The parameters of a normalization layer.
#[derive(Debug)]
pub(crate) struct NormParameters {
    pub(crate) weight: Parameter, // (1, width)
    bias: Option<Parameter>,      // (1, width), LayerNorm only
    is_frozen: bool,
}

impl NormParameters {
    pub(crate) fn load(
        device: &Device,
        spec: &NormSpec,
        source: &impl TensorSource,
        tuning: Tuning<'_>,
    ) -> Result<Self, ModelError> {
        let vector = |suffix: &str, values| {
            let name = format!("{}.{suffix}", spec.name);
            Parameter::vector(device, vec![(name, spec.width)], values)
        };
        Ok(Self {
            weight: vector("weight", spec.weight(source)?)?,
            bias: spec.bias(source)?.map(|values| vector("bias", values)).transpose()?,
            is_frozen: !matches!(tuning, Tuning::Full),
        })
    }

    /// Copies the values to the kernels' layer.
    pub(crate) fn sync_norm(
        &self,
        device: &Device,
        norm: &mut Normalization,
    ) -> Result<(), DeviceError> {
        norm.assign(device, &self.weight.value, self.bias.as_ref().map(|b| &b.value))
    }

    /// Adds to the gradients and to dx, given the input x and the gradient dy of the output.
    pub(crate) fn accumulate_gradients(
        &mut self,
        device: &Device,
        norm: &Normalization,
        x: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let bias = self.bias.as_mut().map(|b| &mut b.gradient);
        let of = NormBackward { x, norm, dy };
        ops::norm_backward(device, of, dx, &mut self.weight.gradient, bias)
    }

    /// Clears the gradients of a frozen layer: the kernel accumulates them, but nothing reads them.
    pub(crate) fn collect_gradients(&mut self, device: &Device) -> Result<(), DeviceError> {
        if self.is_frozen {
            ops::fill_zero(device, &mut self.weight.gradient)?;
            if let Some(bias) = &mut self.bias {
                ops::fill_zero(device, &mut bias.gradient)?;
            }
        }
        Ok(())
    }

    /// The trained parameters.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Parameter> {
        let all = std::iter::once(&self.weight).chain(&self.bias);
        all.filter(|_| !self.is_frozen)
    }

    /// The trained parameters, mutably.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let is_frozen = self.is_frozen;
        let all = std::iter::once(&mut self.weight).chain(&mut self.bias);
        all.filter(move |_| !is_frozen)
    }
}

/// One AdamW step over all parameters. With `decay_all`, weight decay applies to norms and biases
/// too, PyTorch's default.
pub fn adamw_step(
    device: &Device,
    optimizer: &AdamW,
    decay_all: bool,
    parameters: impl Iterator<Item = impl std::ops::DerefMut<Target = Parameter>>,
) -> Result<(), DeviceError> {
    for mut parameter in parameters {
        let parameter = &mut *parameter;
        let decays = decay_all || parameter.is_matrix();
        let config =
            AdamW { weight_decay: if decays { optimizer.weight_decay } else { 0.0 }, ..*optimizer };
        ops::adamw(
            device,
            &config,
            &mut parameter.value,
            &mut parameter.gradient,
            &mut parameter.moments,
        )?;
    }
    Ok(())
}
