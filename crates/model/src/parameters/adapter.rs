//! LoRA adapters in training: a frozen weight W becomes W + scale B A, with A (rank, inputs) and
//! B (outputs, rank) trained.
//!
//! Without dropout the kernels multiply by the merged weight, so a pass costs the same as without
//! an adapter. The backward of a pass accumulates the gradient of the merged weight, G; at the end
//! of a batch `dA += scale B^T G` and `dB += scale G A^T`, which is exact because both are linear
//! in G. With dropout on the adapter's input it is not merged: every pass adds `scale B A
//! dropout(x)` to the frozen layer's result.

use std::ops::Range;

use tensor::ops::{self, Activation, DropoutMask, Linear, OutputDtype};
use tensor::rng::philox;
use tensor::{Device, DeviceError, Tensor};

use super::{Parameter, ParameterLayout};
use crate::error::ModelError;
use crate::source::TensorSource;
use crate::weights::{LinearSpec, WeightLayout, transpose};

/// The settings of LoRA, as in peft's `LoraConfig`.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// Inner dimension of B A.
    pub rank: usize,
    /// The scale of B A is `alpha / rank`.
    pub alpha: f32,
    /// The adapted layers.
    pub targets: LoraTargets,
    /// Probability of dropout on the adapters' inputs; 0 for none. The matrices of one layer share
    /// their mask.
    pub dropout: f32,
    /// Seed of A's initial values; B begins at zero.
    pub seed: u64,
}

/// The layers that LoRA adapts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoraTargets {
    /// Every linear layer of the blocks.
    All,
    /// Layers whose module name has one of these suffixes, such as `q_proj` or `c_attn`.
    Named(Vec<String>),
}

impl LoraTargets {
    fn contains(&self, module: &str) -> bool {
        let last = module.rsplit('.').next().unwrap_or(module);
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|name| name == last),
        }
    }
}

/// The adapter of a linear layer, one pair of factors for each adapted matrix of it.
#[derive(Debug)]
pub(super) struct LoraAdapter {
    parts: Vec<AdaptedMatrix>,
    scale: f32,
    /// Whether the kernels multiply by the merged weight.
    pub(super) is_merged: bool,
}

/// The input of a layer, and its dropout on the way into the adapter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdapterInput<'a> {
    pub(crate) x: &'a Tensor, // (rows, inputs)
    pub(crate) mask: Option<DropoutMask<'a>>,
}

impl AdapterInput<'_> {
    fn dropped(&self, device: &Device) -> Result<Tensor, DeviceError> {
        let mut dropped = Tensor::default();
        ops::dropout(device, self.x, self.mask, OutputDtype::Compute, &mut dropped)?;
        Ok(dropped)
    }
}

#[derive(Debug)]
struct AdaptedMatrix {
    outputs: Range<usize>, // of the layer
    a: Parameter,          // (inputs, rank): A transposed
    b: Parameter,          // (outputs, rank)
    a_map: Linear,         // rank -> inputs: the copy of A that products read
    b_map: Option<Linear>, // rank -> all outputs of the layer, scale B; `None` if merged
}

impl LoraAdapter {
    /// The adapter of a layer, `None` if none of its matrices is a target. Factors in the source
    /// are loaded, others are initialized as in peft: B A is zero.
    pub(super) fn load(
        device: &Device,
        spec: &LinearSpec,
        source: &impl TensorSource,
        config: &LoraConfig,
    ) -> Result<Option<Self>, ModelError> {
        let mut parts = Vec::new();
        let mut start = 0;
        for (module, outputs) in &spec.parts {
            let rows = start..start + outputs;
            start = rows.end;
            if config.targets.contains(module) {
                let factors = InitialFactors::read(module, spec.inputs, *outputs, source, config)?;
                parts.push(AdaptedMatrix::new(device, module, rows, factors)?);
            }
        }
        let scale = config.alpha / config.rank as f32;
        let is_merged = config.dropout == 0.0;
        if !is_merged {
            for part in &mut parts {
                let rank = config.rank;
                let outputs = spec.outputs();
                let zeros = vec![0.0; rank * outputs];
                let b_map = Linear::from_output_major(device, rank, outputs, &zeros, None)?;
                part.b_map = Some(b_map);
                part.sync_weights(device, scale)?;
            }
        }
        Ok((!parts.is_empty()).then_some(Self { parts, scale, is_merged }))
    }

    /// `y += scale B A dropout(x)`: y is (rows, outputs of the layer), of any dtype.
    pub(super) fn add_output(
        &self,
        device: &Device,
        input: AdapterInput<'_>,
        y: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let x = input.dropped(device)?;
        for (part, b_map) in self.parts.iter().filter_map(|part| Some((part, part.b_map.as_ref()?)))
        {
            let mut u = Tensor::default();
            ops::linear_dx(device, &x, &part.a_map, OutputDtype::Compute, &mut u)?;
            ops::linear_add(device, &u, b_map, y)?;
        }
        Ok(())
    }

    /// The backward of [`Self::add_output`]: adds to the factors' gradients and to dx, f32.
    pub(super) fn backward(
        &mut self,
        device: &Device,
        input: AdapterInput<'_>,
        dy: &Tensor,
        dx: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let x = input.dropped(device)?;
        let compute = OutputDtype::Compute;
        let mut dinput = Tensor::default();
        for part in &mut self.parts {
            let AdaptedMatrix { outputs, a, b, a_map, b_map: Some(b_map) } = part else { continue };
            let mut u = Tensor::default();
            let mut du = Tensor::default();
            ops::linear_dx(device, &x, a_map, compute, &mut u)?;
            let mut db = Tensor::zeros_on(device, b_map.outputs(), b_map.inputs())?;
            ops::linear_dw(device, &u, dy, &mut db, None)?;
            let own: Vec<usize> = outputs.clone().collect();
            let own = ops::select(device, [&db], &own)?;
            ops::add_scaled(device, &mut b.gradient, &own, self.scale)?;
            ops::linear_dx(device, dy, b_map, compute, &mut du)?; // the map holds scale B
            ops::linear_dw(device, &du, &x, &mut a.gradient, None)?;
            match dinput.rows() {
                0 => ops::linear(device, &du, a_map, Activation::None, compute, &mut dinput)?,
                _ => ops::linear_add(device, &du, a_map, &mut dinput)?,
            }
        }
        let mut dropped = Tensor::default();
        ops::dropout(device, &dinput, input.mask, OutputDtype::F32, &mut dropped)?;
        ops::add(device, dx, &dropped)
    }

    /// `weight + scale B A`, (outputs, inputs).
    pub(super) fn merged(&self, device: &Device, weight: &Tensor) -> Result<Tensor, DeviceError> {
        let mut pieces = Vec::new();
        let mut end = 0;
        for part in &self.parts {
            if part.outputs.start > end {
                pieces.push(Tensor::zeros_on(device, part.outputs.start - end, weight.cols())?);
            }
            pieces.push(part.product(device)?);
            end = part.outputs.end;
        }
        if end < weight.rows() {
            pieces.push(Tensor::zeros_on(device, weight.rows() - end, weight.cols())?);
        }
        let mut merged = ops::concat(device, &pieces.iter().collect::<Vec<_>>())?;
        ops::scale(device, &mut merged, self.scale)?;
        ops::add(device, &mut merged, weight)?;
        Ok(merged)
    }

    /// Adds the contribution of the weight's gradient to the factors' gradients, and clears it.
    pub(super) fn collect_gradients(
        &mut self,
        device: &Device,
        dweight: &mut Tensor,
    ) -> Result<(), DeviceError> {
        ops::scale(device, dweight, self.scale)?;
        for part in &mut self.parts {
            let rows: Vec<usize> = part.outputs.clone().collect();
            part.collect_gradients(device, &ops::select(device, [&*dweight], &rows)?)?;
        }
        ops::fill_zero(device, dweight)
    }

    /// Copies A to the map that products read; needed after every change.
    pub(super) fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.parts.iter_mut().try_for_each(|part| part.sync_weights(device, self.scale))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.parts.iter().flat_map(|part| [&part.a, &part.b])
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.parts.iter_mut().flat_map(|part| [&mut part.a, &mut part.b])
    }
}

impl AdaptedMatrix {
    fn new(
        device: &Device,
        module: &str,
        outputs: Range<usize>,
        InitialFactors { inputs, rank, a, b }: InitialFactors,
    ) -> Result<Self, DeviceError> {
        let a = transpose(&a, rank, inputs);
        let a_map = Linear::from_output_major(device, rank, inputs, &a, None)?;
        let factor = |which: &str, value: Tensor, layout| {
            let parts = vec![(format!("{module}.{which}.weight"), value.rows())];
            Parameter::new(device, ParameterLayout::Matrix { parts, layout }, value)
        };
        let a = factor("lora_A", Tensor::from_vec(inputs, rank, a), WeightLayout::InputMajor)?;
        let b = Tensor::from_vec(outputs.len(), rank, b);
        let b = factor("lora_B", b, WeightLayout::OutputMajor)?;
        let mut adapted = Self { outputs, a, b, a_map, b_map: None };
        adapted.sync_weights(device, 1.0)?;
        Ok(adapted)
    }

    fn sync_weights(&mut self, device: &Device, scale: f32) -> Result<(), DeviceError> {
        self.a_map.assign(device, &self.a.value, None)?;
        self.a_map.prepare_backward(device, &self.a.value)?;
        let Some(b_map) = &mut self.b_map else { return Ok(()) };
        // B between zeros for the outputs of the layer's other matrices.
        let outputs = b_map.outputs();
        let rank = b_map.inputs();
        let before = Tensor::zeros_on(device, self.outputs.start, rank)?;
        let after = Tensor::zeros_on(device, outputs - self.outputs.end, rank)?;
        let parts = [&before, &self.b.value, &after];
        let parts: Vec<&Tensor> = parts.into_iter().filter(|part| part.rows() > 0).collect();
        let mut padded = ops::concat(device, &parts)?;
        ops::scale(device, &mut padded, scale)?;
        b_map.assign(device, &padded, None)?;
        b_map.prepare_backward(device, &padded)
    }

    /// B A, (outputs, inputs).
    fn product(&self, device: &Device) -> Result<Tensor, DeviceError> {
        let mut product = Tensor::default();
        let b = &self.b.value;
        let none = Activation::None;
        ops::linear(device, b, &self.a_map, none, OutputDtype::F32, &mut product)?;
        Ok(product)
    }

    /// `dA += B^T G` and `dB += G A^T` for a gradient G (outputs, inputs).
    fn collect_gradients(&mut self, device: &Device, g: &Tensor) -> Result<(), DeviceError> {
        ops::linear_dw(device, &self.b.value, g, &mut self.a.gradient, None)?;
        let mut db = Tensor::default();
        ops::linear_dx(device, g, &self.a_map, OutputDtype::F32, &mut db)?;
        ops::add(device, &mut self.b.gradient, &db)
    }
}

/// The factors of one matrix on the host.
struct InitialFactors {
    inputs: usize,
    rank: usize,
    a: Vec<f32>, // (rank, inputs)
    b: Vec<f32>, // (outputs, rank)
}

impl InitialFactors {
    fn read(
        module: &str,
        inputs: usize,
        outputs: usize,
        source: &impl TensorSource,
        config: &LoraConfig,
    ) -> Result<Self, ModelError> {
        let rank = config.rank;
        let [a, b] = ["lora_A", "lora_B"].map(|factor| format!("{module}.{factor}.weight"));
        if source.has(&a) {
            let a = source.tensor(&a, &[rank, inputs])?;
            return Ok(Self { inputs, rank, a, b: source.tensor(&b, &[outputs, rank])? });
        }
        let a = uniform_values(config.seed, &a, rank * inputs, 1.0 / (inputs as f32).sqrt());
        Ok(Self { inputs, rank, a, b: vec![0.0; outputs * rank] })
    }
}

/// Uniform random numbers in `-bound .. bound`, a function of the seed and the tensor's name: with
/// the bound 1 / sqrt(inputs), the initialization of `nn.Linear` and of LoRA's A.
fn uniform_values(seed: u64, name: &str, count: usize, bound: f32) -> Vec<f32> {
    let salt = crate::source::name_salt(name);
    let key = [seed as u32, (seed >> 32) as u32];
    let four = |block: usize| {
        let words = philox([block as u32, salt, 0, u32::MAX], key);
        words.map(|word| (f64::from(word) / 2_147_483_648.0 - 1.0) as f32 * bound)
    };
    (0..count.div_ceil(4)).flat_map(four).take(count).collect()
}
