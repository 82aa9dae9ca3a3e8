//! Gates that decide when a model stops thinking.

use tensor::ops::{Activation, Linear};
use tensor::{Device, DeviceError, Tensor};

use super::apply_linear;
use crate::checkpoint::Checkpoint;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::weights::ModuleLoader;

/// Module names of known gates.
const GATE_MODULES: [&str; 4] = ["stop_gate", "stop_head", "gate_head", "latent_gate"];
/// Above the number of layers of any gate.
const MAX_GATE_LAYERS: usize = 16;

/// A gate that decides when open-ended thoughts stop.
#[derive(Debug)]
pub enum StopGate {
    /// A perceptron over the thought: a thought whose logit exceeds the threshold is the last
    /// (SLPO).
    Perceptron {
        /// Linear layers with GELU between them; the last one has one output.
        layers: Vec<Linear>,
        /// The logit of the threshold probability.
        threshold: f32,
    },
    /// Two rows of the LM head: the model stops, before another thought, if the row of the stop
    /// token has the larger logit (adaptive latent reasoning).
    Rows {
        /// The token for continuing.
        go_on: u32,
        /// The token for stopping.
        stop: u32,
    },
}

impl StopGate {
    /// Loads the perceptron of a checkpoint, if any, with a threshold in (0, 1).
    pub fn perceptron(
        device: &Device,
        checkpoint: &Checkpoint,
        threshold: f32,
    ) -> Result<Option<Self>, ModelError> {
        let Some(names) = layer_names(checkpoint) else { return Ok(None) };
        let modules = ModuleLoader::new(device, checkpoint);
        let mut layers = Vec::new();
        let mut inputs = checkpoint.config().width;
        for name in &names {
            let outputs = outputs_of(checkpoint, name).unwrap_or(1);
            layers.push(modules.linear(name, inputs, outputs)?);
            inputs = outputs;
        }
        if inputs != 1 {
            let tensor = format!("{}.weight", names.last().map_or("", String::as_str));
            let shape = checkpoint.shape(&tensor).unwrap_or_default().to_vec();
            return Err(ModelError::BadGate { dir: checkpoint.dir().to_owned(), tensor, shape });
        }
        let threshold = (threshold / (1.0 - threshold)).ln();
        Ok(Some(Self::Perceptron { layers, threshold }))
    }

    /// Whether a checkpoint has the tensors of a perceptron.
    pub fn has_perceptron(checkpoint: &Checkpoint) -> bool {
        layer_names(checkpoint).is_some()
    }

    /// Whether the thought computed from each hidden state (rows, width) is the last one.
    pub fn ends_with(&self, device: &Device, hidden: &Tensor) -> Result<Vec<bool>, DeviceError> {
        let Self::Perceptron { layers, threshold } = self else {
            return Ok(vec![false; hidden.rows()]);
        };
        let mut x = hidden.clone();
        for (i, layer) in layers.iter().enumerate() {
            let is_last = i + 1 == layers.len();
            let activation = if is_last { Activation::None } else { Activation::GeluErf };
            x = apply_linear(device, &x, layer, activation)?;
        }
        Ok(x.to_host()?.data().iter().map(|logit| logit > threshold).collect())
    }

    /// Whether thinking stops before another thought is computed from each hidden state (rows,
    /// width).
    pub fn ends_before(
        &self,
        decoder: &Decoder,
        hidden: &Tensor,
    ) -> Result<Vec<bool>, DeviceError> {
        let &Self::Rows { go_on, stop } = self else { return Ok(vec![false; hidden.rows()]) };
        let logits = super::logits(decoder, hidden)?.to_host()?;
        let stops = |row: usize| logits.row(row)[stop as usize] > logits.row(row)[go_on as usize];
        Ok((0..hidden.rows()).map(stops).collect())
    }
}

/// The linear layers of a gate: a single module, or those of an `nn.Sequential` by their index.
fn layer_names(checkpoint: &Checkpoint) -> Option<Vec<String>> {
    let has = |name: &str| checkpoint.has(&format!("{name}.weight"));
    GATE_MODULES.iter().find_map(|module| {
        if has(module) {
            return Some(vec![(*module).to_owned()]);
        }
        let inner = ["", ".net", ".mlp", ".layers"].map(|part| format!("{module}{part}"));
        inner.iter().find_map(|module| {
            let names = (0..MAX_GATE_LAYERS).map(|i| format!("{module}.{i}"));
            let names: Vec<String> = names.filter(|name| has(name)).collect();
            (!names.is_empty()).then_some(names)
        })
    })
}

fn outputs_of(checkpoint: &Checkpoint, name: &str) -> Option<usize> {
    checkpoint.shape(&format!("{name}.weight"))?.first().copied()
}
