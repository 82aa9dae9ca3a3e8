//! The parameters of a linear layer: all of its weights, a LoRA adapter, some rows, or none.

use tensor::ops::{self, Activation, Indices, Linear, OutputDtype};
use tensor::{Device, DeviceError, Tensor};

use super::adapter::{AdapterInput, LoraAdapter};
use super::{FrozenElements, Parameter, ParameterLayout, Tuning};
use crate::error::ModelError;
use crate::source::TensorSource;
use crate::weights::{LinearSpec, WeightLayout, transpose};

/// The name prefix of tensors with the embeddings of new tokens.
pub(crate) const NEW_ROWS: &str = "new_rows";

/// The parameters of a linear layer.
#[derive(Debug)]
pub(crate) struct LinearParameters {
    weight: Parameter,       // (outputs, inputs)
    bias: Option<Parameter>, // (1, outputs)
    trained: TrainedPart,
}

/// The trained part of a linear layer.
#[derive(Debug)]
enum TrainedPart {
    All,
    /// An adapter; the weight is frozen, and its gradient is converted to the adapter's.
    Adapter(LoraAdapter),
    /// Some rows, likewise.
    Rows(TrainedRows),
    Nothing,
}

/// The last rows of a weight, trained while those before them are frozen.
#[derive(Debug)]
struct TrainedRows {
    frozen: Tensor,  // (outputs - rows, inputs)
    rows: Parameter, // (rows, inputs)
}

impl TrainedRows {
    fn new(
        device: &Device,
        name: &str,
        weight: &Tensor,
        count: usize,
    ) -> Result<Self, DeviceError> {
        let first = weight.rows() - count;
        let outputs = weight.rows();
        let part = |range: std::ops::Range<usize>| {
            ops::select(device, [weight], &range.collect::<Vec<_>>())
        };
        let parts = vec![(format!("{NEW_ROWS}.{name}.weight"), count)];
        let layout = ParameterLayout::Matrix { parts, layout: WeightLayout::OutputMajor };
        let rows = Parameter::new(device, layout, part(first..outputs)?)?;
        Ok(Self { frozen: part(0..first)?, rows })
    }

    fn collect_gradients(
        &mut self,
        device: &Device,
        dweight: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let own: Vec<usize> = (self.frozen.rows()..dweight.rows()).collect();
        let own = ops::select(device, [&*dweight], &own)?;
        ops::add(device, &mut self.rows.gradient, &own)?;
        ops::fill_zero(device, dweight)
    }
}

impl LinearParameters {
    pub(crate) fn load(
        device: &Device,
        spec: &LinearSpec,
        source: &impl TensorSource,
        tuning: Tuning<'_>,
    ) -> Result<Self, ModelError> {
        let inputs = spec.inputs;
        let outputs = spec.outputs();
        let matrix = spec.matrix(source)?;
        let matrix = match spec.layout {
            WeightLayout::InputMajor => transpose(&matrix, inputs, outputs),
            WeightLayout::OutputMajor => matrix,
        };
        let names = |suffix: &str| {
            spec.parts.iter().map(|(name, n)| (format!("{name}.{suffix}"), *n)).collect::<Vec<_>>()
        };
        let trained = match tuning {
            Tuning::Full => TrainedPart::All,
            Tuning::Lora(config) => LoraAdapter::load(device, spec, source, config)?
                .map_or(TrainedPart::Nothing, TrainedPart::Adapter),
            Tuning::LastRows(0) => TrainedPart::Nothing,
            Tuning::LastRows(count) => {
                let matrix = Tensor::from_vec(outputs, inputs, matrix.clone()).to_device(device)?;
                TrainedPart::Rows(TrainedRows::new(device, &spec.parts[0].0, &matrix, count)?)
            }
        };
        let parameter = |layout, value| match tuning {
            Tuning::Full => Parameter::new(device, layout, value),
            _ => Parameter::frozen(device, layout, value),
        };
        let layout = ParameterLayout::Matrix { parts: names("weight"), layout: spec.layout };
        let mut weight = parameter(layout, Tensor::from_vec(outputs, inputs, matrix))?;
        let needs_gradient = match &trained {
            TrainedPart::Adapter(adapter) => adapter.is_merged,
            TrainedPart::Rows(_) => true,
            TrainedPart::All | TrainedPart::Nothing => false, // its own, or none
        };
        if needs_gradient {
            weight.gradient = Tensor::zeros_on(device, outputs, inputs)?;
        }
        let bias = spec.bias(source)?.map(|values| {
            let layout = ParameterLayout::Vector { parts: names("bias") };
            parameter(layout, Tensor::from_vec(1, outputs, values))
        });
        Ok(Self { weight, bias: bias.transpose()?, trained })
    }

    /// The weight (outputs, inputs), without an adapter.
    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight.value
    }

    /// The layer in the layout of the kernels, prepared for its backward.
    pub(crate) fn to_linear(&self, device: &Device) -> Result<Linear, DeviceError> {
        let rows = self.weight.value.rows();
        let cols = self.weight.value.cols();
        let zeros = vec![0.0; rows * cols];
        let bias = self.bias.as_ref().map(|_| vec![0.0; rows]);
        let mut linear = Linear::from_output_major(device, cols, rows, &zeros, bias)?;
        self.assign(device, &mut linear)?;
        Ok(linear)
    }

    /// Copies changed values to the kernels' layer.
    pub(crate) fn sync_linear(
        &mut self,
        device: &Device,
        linear: &mut Linear,
    ) -> Result<(), DeviceError> {
        match &mut self.trained {
            TrainedPart::Nothing => return Ok(()),
            TrainedPart::All => {}
            TrainedPart::Adapter(adapter) => {
                adapter.sync_weights(device)?;
                if !adapter.is_merged {
                    return Ok(());
                }
            }
            TrainedPart::Rows(TrainedRows { frozen, rows }) => {
                self.weight.value = ops::concat(device, &[frozen, &rows.value])?;
            }
        }
        self.assign(device, linear)
    }

    /// Copies the values, adapter included, to the kernels' layer.
    pub(crate) fn assign(&self, device: &Device, linear: &mut Linear) -> Result<(), DeviceError> {
        let bias = self.bias.as_ref().map(|b| &b.value);
        let merged = match &self.trained {
            TrainedPart::Adapter(adapter) if adapter.is_merged => {
                Some(adapter.merged(device, &self.weight.value)?)
            }
            _ => None,
        };
        let weight = merged.as_ref().unwrap_or(&self.weight.value);
        linear.assign(device, weight, bias)?;
        linear.prepare_backward(device, weight)
    }

    /// The unmerged adapter, which every pass adds separately because of its dropout.
    fn adapter(&self) -> Option<&LoraAdapter> {
        match &self.trained {
            TrainedPart::Adapter(adapter) if !adapter.is_merged => Some(adapter),
            _ => None,
        }
    }

    /// Whether every pass adds an adapter separately.
    pub(crate) fn has_adapter_pass(&self) -> bool {
        self.adapter().is_some()
    }

    /// `out = x W + b`, including an unmerged adapter; `linear` holds W and b.
    pub(crate) fn forward(
        &self,
        device: &Device,
        linear: &Linear,
        input: AdapterInput<'_>,
        dtype: OutputDtype,
        out: &mut Tensor,
    ) -> Result<(), DeviceError> {
        ops::linear(device, input.x, linear, Activation::None, dtype, out)?;
        self.adapter().map_or(Ok(()), |adapter| adapter.add_output(device, input, out))
    }

    /// The backward of [`Self::forward`], given the gradient dy of its result: adds to the
    /// gradients of the parameters and writes that of x.
    pub(crate) fn backward(
        &mut self,
        device: &Device,
        linear: &Linear,
        LinearBackward { input, dy, dtype }: LinearBackward<'_>,
        dx: &mut Tensor,
    ) -> Result<(), DeviceError> {
        self.accumulate_gradients(device, input.x, dy)?;
        let adapter = match &mut self.trained {
            TrainedPart::Adapter(adapter) if !adapter.is_merged => adapter,
            _ => return ops::linear_dx(device, dy, linear, dtype, dx),
        };
        let mut sum = Tensor::default();
        ops::linear_dx(device, dy, linear, OutputDtype::F32, &mut sum)?;
        adapter.backward(device, input, dy, &mut sum)?;
        cast(device, sum, dtype, dx)
    }

    /// Adds to the gradients, given the input x and the gradient dy of the output.
    pub(crate) fn accumulate_gradients(
        &mut self,
        device: &Device,
        x: &Tensor,
        dy: &Tensor,
    ) -> Result<(), DeviceError> {
        let bias = match self.trained {
            TrainedPart::Nothing => return Ok(()),
            TrainedPart::Adapter(ref adapter) if !adapter.is_merged => return Ok(()),
            TrainedPart::Adapter(_) | TrainedPart::Rows(_) => None,
            TrainedPart::All => self.bias.as_mut().map(|b| &mut b.gradient),
        };
        ops::linear_dw(device, x, dy, &mut self.weight.gradient, bias)
    }

    /// Adds `dx[i]` to the gradient of row `tokens[i]`: the layer as an embedding table.
    pub(crate) fn accumulate_rows(
        &mut self,
        device: &Device,
        tokens: &Indices,
        dx: &Tensor,
    ) -> Result<(), DeviceError> {
        match self.trained {
            TrainedPart::Nothing => Ok(()),
            _ => ops::scatter_add(device, dx, tokens, &mut self.weight.gradient),
        }
    }

    /// Converts the gradient of a frozen weight to those of the parameters trained instead.
    pub(crate) fn collect_gradients(&mut self, device: &Device) -> Result<(), DeviceError> {
        match &mut self.trained {
            TrainedPart::Adapter(adapter) if adapter.is_merged => {
                adapter.collect_gradients(device, &mut self.weight.gradient)
            }
            TrainedPart::Rows(rows) => rows.collect_gradients(device, &mut self.weight.gradient),
            _ => Ok(()),
        }
    }

    /// The elements that no optimizer updates.
    pub(crate) fn frozen(&self) -> FrozenElements {
        let elements = |tensor: &Tensor| tensor.rows() * tensor.cols();
        let bias = self.bias.as_ref().map_or(0, |bias| elements(&bias.value));
        let weights = match &self.trained {
            TrainedPart::All => return FrozenElements::default(),
            TrainedPart::Rows(rows) => elements(&rows.frozen) + bias,
            TrainedPart::Adapter(_) | TrainedPart::Nothing => elements(self.weight()) + bias,
        };
        FrozenElements { weights, gradients: elements(&self.weight.gradient) }
    }

    /// The trained parameters.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Parameter> {
        match &self.trained {
            TrainedPart::All => std::iter::once(&self.weight).chain(&self.bias).collect(),
            TrainedPart::Adapter(adapter) => adapter.iter().collect(),
            TrainedPart::Rows(trained) => vec![&trained.rows],
            TrainedPart::Nothing => Vec::new(),
        }
        .into_iter()
    }

    /// The trained parameters, mutably.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        match &mut self.trained {
            TrainedPart::All => std::iter::once(&mut self.weight).chain(&mut self.bias).collect(),
            TrainedPart::Adapter(adapter) => adapter.iter_mut().collect(),
            TrainedPart::Rows(trained) => vec![&mut trained.rows],
            TrainedPart::Nothing => Vec::new(),
        }
        .into_iter()
    }
}

/// The read-only arguments of [`LinearParameters::backward`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearBackward<'a> {
    pub(crate) input: AdapterInput<'a>,
    pub(crate) dy: &'a Tensor, // (rows, outputs)
    /// Dtype of the gradient of x.
    pub(crate) dtype: OutputDtype,
}

/// Converts an f32 tensor to another dtype.
fn cast(
    device: &Device,
    x: Tensor,
    dtype: OutputDtype,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    match dtype {
        OutputDtype::F32 => *out = x,
        // Training does not support fp8, the only case in which the two differ.
        OutputDtype::Compute | OutputDtype::Operand => {
            ops::dropout(device, &x, None, OutputDtype::Compute, out)?
        }
    }
    Ok(())
}
