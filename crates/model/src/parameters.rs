//! What learns: single-precision weights with their gradients and moments, named and shaped as
//! files hold them.
//!
//! The kernels read copies of these in their own formats ([`Linear`], [`Norm`]); after every step
//! the copies are written anew. A matrix is (outputs, inputs) here, whatever a file has.

use tensor::ops::{self, AdamW, Linear, Moments, NormBackward, Normalization};
use tensor::{Device, DeviceError, Tensor};

use crate::error::ModelError;
use crate::source::TensorSource;
use crate::weights::{LinearSpec, NormSpec, WeightLayout};

/// A tensor that learns.
#[derive(Debug)]
pub struct Parameter {
    layout: ParameterLayout,
    /// What it is now.
    pub value: Tensor,
    /// What the loss says; sums up until a step is taken.
    pub gradient: Tensor,
    /// What AdamW remembers.
    pub moments: Moments,
}

/// How files hold a parameter.
#[derive(Clone, Debug)]
enum ParameterLayout {
    /// Names, and how many outputs each has.
    Matrix {
        parts: Vec<(String, usize)>,
        layout: WeightLayout,
    },
    Vector {
        parts: Vec<(String, usize)>,
    },
}

/// A tensor by the name and shape that files have.
#[derive(Clone, Debug)]
pub struct NamedTensor {
    /// The canonical name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its numbers.
    pub values: Vec<f32>,
}

impl Parameter {
    fn new(device: &Device, stored: ParameterLayout, value: Tensor) -> Result<Self, DeviceError> {
        let zeros = || Tensor::zeros_on(device, value.rows(), value.cols());
        let (gradient, moments) = (zeros()?, Moments { first: zeros()?, second: zeros()? });
        Ok(Self { layout: stored, value: value.to_device(device)?, gradient, moments })
    }

    /// From a matrix that files hold as it is here.
    pub fn matrix(device: &Device, name: &str, value: Tensor) -> Result<Self, DeviceError> {
        let parts = vec![(name.to_owned(), value.rows())];
        Self::new(
            device,
            ParameterLayout::Matrix { parts, layout: WeightLayout::OutputMajor },
            value,
        )
    }

    fn vector(
        device: &Device,
        parts: Vec<(String, usize)>,
        values: Vec<f32>,
    ) -> Result<Self, DeviceError> {
        Self::new(
            device,
            ParameterLayout::Vector { parts },
            Tensor::from_vec(1, values.len(), values),
        )
    }

    /// Whether weight decay applies to it by custom: matrices decay, norms and biases do not.
    pub fn is_matrix(&self) -> bool {
        matches!(self.layout, ParameterLayout::Matrix { .. })
    }

    /// Its first name, for messages and for the files of a run.
    pub fn name(&self) -> &str {
        match &self.layout {
            ParameterLayout::Matrix { parts, .. } | ParameterLayout::Vector { parts } => {
                &parts[0].0
            }
        }
    }

    /// Its value as files hold it.
    pub fn named_values(&self) -> Result<Vec<NamedTensor>, DeviceError> {
        self.split_named(&self.value)
    }

    /// Its gradient under the names and in the shapes of files.
    pub fn named_gradients(&self) -> Result<Vec<NamedTensor>, DeviceError> {
        self.split_named(&self.gradient)
    }

    fn split_named(&self, tensor: &Tensor) -> Result<Vec<NamedTensor>, DeviceError> {
        let (host, cols) = (tensor.clone().to_host()?, tensor.cols());
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
            ParameterLayout::Matrix { parts, layout: order } => {
                let part = |(name, outputs): &(String, usize)| {
                    let (values, name) = (cut(outputs * cols), name.clone());
                    match order {
                        WeightLayout::OutputMajor => {
                            NamedTensor { name, shape: vec![*outputs, cols], values }
                        }
                        WeightLayout::InputMajor => NamedTensor {
                            name,
                            shape: vec![cols, *outputs],
                            values: transposed(&values, *outputs, cols),
                        },
                    }
                };
                parts.iter().map(part).collect()
            }
        })
    }
}

/// (rows, cols) to (cols, rows).
fn transposed(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| values[(i % rows) * cols + i / rows]).collect()
}

/// A linear map's parameters.
#[derive(Debug)]
pub struct LinearParameters {
    /// (outputs, inputs)
    pub weight: Parameter,
    /// (1, outputs)
    pub bias: Option<Parameter>,
}

impl LinearParameters {
    pub(crate) fn load(
        device: &Device,
        spec: &LinearSpec,
        source: &impl TensorSource,
    ) -> Result<Self, ModelError> {
        let (inputs, outputs) = (spec.inputs, spec.outputs());
        let matrix = spec.matrix(source)?;
        let matrix = if spec.layout == WeightLayout::InputMajor {
            transposed(&matrix, inputs, outputs)
        } else {
            matrix
        };
        let named = |end: &str| {
            spec.parts.iter().map(|(name, n)| (format!("{name}.{end}"), *n)).collect::<Vec<_>>()
        };
        let how = ParameterLayout::Matrix { parts: named("weight"), layout: spec.layout };
        let weight = Parameter::new(device, how, Tensor::from_vec(outputs, inputs, matrix))?;
        let bias = spec
            .bias(source)?
            .map(|values| Parameter::vector(device, named("bias"), values))
            .transpose()?;
        Ok(Self { weight, bias })
    }

    /// An `nn.Linear` beside the decoder, with a bias if the source has one.
    pub fn nn_linear(
        device: &Device,
        source: &impl TensorSource,
        name: &str,
        (inputs, outputs): (usize, usize),
    ) -> Result<Self, ModelError> {
        Self::load(device, &LinearSpec::nn_linear(source, name, inputs, outputs), source)
    }

    /// The map that the kernels read, ready for its backward.
    pub fn to_linear(&self, device: &Device) -> Result<Linear, DeviceError> {
        let (rows, cols) = (self.weight.value.rows(), self.weight.value.cols());
        let zeros = vec![0.0; rows * cols];
        let mut map = Linear::from_output_major(
            device,
            cols,
            rows,
            &zeros,
            self.bias.as_ref().map(|_| vec![0.0; rows]),
        )?;
        self.sync_linear(device, &mut map)?;
        Ok(map)
    }

    /// Writes the values to where the kernels read them.
    pub fn sync_linear(&self, device: &Device, map: &mut Linear) -> Result<(), DeviceError> {
        map.assign(device, &self.weight.value, self.bias.as_ref().map(|b| &b.value))?;
        map.prepare_backward(device, &self.weight.value)
    }

    /// Adds to the gradients, for x that went in and dy that came back.
    pub fn accumulate_gradients(
        &mut self,
        device: &Device,
        x: &Tensor,
        dy: &Tensor,
    ) -> Result<(), DeviceError> {
        ops::linear_dw(
            device,
            x,
            dy,
            &mut self.weight.gradient,
            self.bias.as_mut().map(|b| &mut b.gradient),
        )
    }

    /// Its parameters.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        std::iter::once(&self.weight).chain(&self.bias)
    }

    /// Its parameters, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        std::iter::once(&mut self.weight).chain(&mut self.bias)
    }
}

/// A norm's parameters.
#[derive(Debug)]
pub struct NormParameters {
    /// (1, width)
    pub weight: Parameter,
    /// (1, width) of a layer norm.
    pub bias: Option<Parameter>,
}

impl NormParameters {
    pub(crate) fn load(
        device: &Device,
        spec: &NormSpec,
        source: &impl TensorSource,
    ) -> Result<Self, ModelError> {
        let vector = |end: &str, values| {
            Parameter::vector(device, vec![(format!("{}.{end}", spec.name), spec.width)], values)
        };
        Ok(Self {
            weight: vector("weight", spec.weight(source)?)?,
            bias: spec.bias(source)?.map(|values| vector("bias", values)).transpose()?,
        })
    }

    pub(crate) fn sync_norm(
        &self,
        device: &Device,
        norm: &mut Normalization,
    ) -> Result<(), DeviceError> {
        norm.assign(device, &self.weight.value, self.bias.as_ref().map(|s| &s.value))
    }

    /// Adds to dx and to the gradients, for x that went in and dy that came back.
    pub(crate) fn accumulate_gradients(
        &mut self,
        device: &Device,
        (x, by, dy): (&Tensor, &Normalization, &Tensor),
        dx: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let shift = self.bias.as_mut().map(|s| &mut s.gradient);
        let of = NormBackward { x, norm: by, dy };
        ops::norm_backward(device, of, dx, &mut self.weight.gradient, shift)
    }

    /// Its parameters.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        std::iter::once(&self.weight).chain(&self.bias)
    }

    /// Its parameters, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        std::iter::once(&mut self.weight).chain(&mut self.bias)
    }
}

/// One step of AdamW over all parameters. With `decay_all`, norms and biases decay as well, as
/// PyTorch's default does.
pub fn adamw_step(
    device: &Device,
    optimizer: &AdamW,
    decay_all: bool,
    parameters: impl Iterator<Item = impl std::ops::DerefMut<Target = Parameter>>,
) -> Result<(), DeviceError> {
    for mut parameter in parameters {
        let parameter = &mut *parameter;
        let decays = decay_all || parameter.is_matrix();
        let by =
            AdamW { weight_decay: if decays { optimizer.weight_decay } else { 0.0 }, ..*optimizer };
        ops::adamw(
            device,
            &by,
            &mut parameter.value,
            &mut parameter.gradient,
            &mut parameter.moments,
        )?;
    }
    Ok(())
}
