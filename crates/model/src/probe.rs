//! A probe: a small network that scores a trajectory from the reasoner's hidden states.
//!
//! The reasoner computes these states anyway, after its final norm: one from which each thought is
//! computed and one from which each answer token is decoded. Each position t gets a reward r_t and
//! a gate g_t, and the score is the gated mean
//!
//! ```text
//! score = sum_t sigmoid(g_t) r_t / sum_t sigmoid(g_t)
//! ```
//!
//! * [`ProbeKind::Linear`]: r_t and g_t are linear in the state (ELHSR, SWIFT).
//! * [`ProbeKind::Encoder`]: a linear map to a narrow width, plus an embedding of the kind of
//!   position, a few causal transformer blocks over the positions, and then the same (HSRM).
//!
//! A probe is a directory with `probe.json` and `probe.safetensors`. Inference and training share
//! the weights' types: at this size the memory of gradients is negligible.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use tensor::ops::{self, KvGrads};
use tensor::rng::MAX_ELEMENTS;
use tensor::{Device, DeviceError, Precision, Tensor};

use crate::cache::{Cache, Pass, Sequence};
use crate::config::{
    Architecture, Config, GenerationDefaults, LatentConfig, Mlp, NormConfig, PositionEncoding,
};
use crate::decoder::{LmHead, Segment, TrainableDecoder};
use crate::error::ModelError;
use crate::head::TrainableLinear;
use crate::parameters::{NamedTensor, Parameter};
use crate::save::{PT_METADATA, SaveDtype, write_safetensors};
use crate::source::{InitialWeights, TensorSource};

const CONFIG_FILE: &str = "probe.json";
const WEIGHTS_FILE: &str = "probe.safetensors";
const VERSION: u32 = 1;
/// Maximum positions per pass: enough to fill a GPU, few enough that their keys and values take
/// about ten MiB.
const MAX_ROWS: usize = 8192;
/// Maximum positions of a trajectory.
const CONTEXT: usize = 1 << 20;

/// The architecture of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeKind {
    /// A linear reward and gate of each state.
    Linear,
    /// A narrow transformer over the states.
    #[default]
    Encoder,
}

/// The configuration of a probe, stored in `probe.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeConfig {
    /// Format version.
    pub version: u32,
    /// The architecture of the probe.
    pub kind: ProbeKind,
    /// The width of the reasoner's hidden states.
    pub width: usize,
    /// The encoder's width; unused by a linear probe.
    pub inner: usize,
    /// The encoder's number of blocks; unused by a linear probe.
    pub layers: usize,
    /// The reasoner's family.
    pub family: String,
}

/// Maximum elements of one matrix: a damaged file must not cause larger allocations.
const MAX_MATRIX: usize = MAX_ELEMENTS << 4;
const HEAD_DIM: usize = 64;

impl ProbeConfig {
    /// The configuration of a new probe for states of this width.
    pub fn new(kind: ProbeKind, width: usize, family: impl Into<String>) -> Self {
        Self { version: VERSION, kind, width, inner: 256, layers: 2, family: family.into() }
    }

    fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!(
                "`version` is {}, but this program reads version {VERSION}",
                self.version
            ));
        }
        if self.width == 0 || self.width > MAX_MATRIX / HEAD_DIM {
            return Err(format!("`width` is {}", self.width));
        }
        let is_encoder = self.kind == ProbeKind::Encoder;
        let fits = self.inner > 0
            && self.inner.is_multiple_of(HEAD_DIM)
            && self.inner <= 4096
            && self.width.saturating_mul(self.inner) <= MAX_MATRIX
            && (1..=16).contains(&self.layers);
        match is_encoder && !fits {
            true => Err(format!(
                "an encoder of `inner` {} and `layers` {} is not supported",
                self.inner, self.layers
            )),
            false => Ok(()),
        }
    }

    /// The configuration of the encoder as a decoder whose vocabulary consists of the kinds of
    /// positions.
    fn decoder(&self) -> Config {
        let heads = self.inner / HEAD_DIM;
        Config {
            architecture: Architecture::Llama,
            class_name: None,
            layers: self.layers,
            width: self.inner,
            heads,
            kv_heads: heads,
            head_dim: HEAD_DIM,
            ffn: 2 * self.inner,
            vocab: PositionKind::COUNT,
            context: CONTEXT,
            norm: NormConfig::RmsNorm { eps: 1e-5 },
            positions: PositionEncoding::Rope { theta: 10_000.0, scaling: None },
            mlp: Mlp::SwiGlu,
            qk_norm: false,
            qkv_bias: false,
            tied: true,
            eos: Vec::new(),
            latent: LatentConfig::default(),
            defaults: GenerationDefaults::default(),
            reference: None,
        }
    }
}

/// The kind of a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PositionKind {
    /// A state from which a thought is computed.
    Thought,
    /// A state from which an answer token is decoded, including EOS.
    Answer,
}

impl PositionKind {
    /// Rows of the embedding table of kinds, padded to the number that kernels process at once.
    const COUNT: usize = 16;

    fn token(self) -> u32 {
        match self {
            Self::Thought => 0,
            Self::Answer => 1,
        }
    }
}

/// The number of positions of a trajectory; thoughts precede answer tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Positions from which a thought is computed.
    pub thoughts: usize,
    /// Positions from which an answer token is decoded.
    pub answer: usize,
}

impl StateCounts {
    /// Total number of positions.
    pub fn total(self) -> usize {
        self.thoughts + self.answer
    }

    fn kinds(self) -> impl Iterator<Item = u32> {
        let thoughts = std::iter::repeat_n(PositionKind::Thought.token(), self.thoughts);
        thoughts.chain(std::iter::repeat_n(PositionKind::Answer.token(), self.answer))
    }
}

/// A probe with its gradients.
#[derive(Debug)]
pub struct Probe {
    config: ProbeConfig,
    device: Device,
    encoder: Option<ProbeEncoder>,
    head: TrainableLinear, // inner or width -> gate and reward
    /// The encoder's KV cache, reused between calls.
    cache: Mutex<Option<Cache>>,
}

#[derive(Debug)]
struct ProbeEncoder {
    input: TrainableLinear, // width -> inner
    blocks: TrainableDecoder,
}

/// The scores of some trajectories, with the activations for their backward.
pub struct ProbeForward {
    /// One score per trajectory.
    pub scores: Vec<f32>,
    counts: Vec<StateCounts>,
    outputs: Vec<f32>, // (positions, 2): gate and reward
    hidden: Tensor,    // (positions, inner or width)
    encoded: Option<(Segment, Cache)>,
}

impl Probe {
    /// A probe with random weights.
    pub fn initial(device: &Device, config: ProbeConfig, seed: u64) -> Result<Self, ModelError> {
        let weights = InitialWeights { seed, layers: config.layers };
        Self::from_source(device, config, &weights)
    }

    /// Loads a directory that [`Self::save`] wrote.
    pub fn load(device: &Device, dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join(CONFIG_FILE);
        let invalid =
            |path: &Path, reason: String| ModelError::InvalidProbe { path: path.into(), reason };
        if !path.is_file() {
            return Err(ModelError::MissingProbe { dir: dir.into() });
        }
        let text = record::files::read_regular(&path).map_err(|e| ModelError::io(&path, e))?;
        let config: ProbeConfig =
            serde_json::from_slice(&text).map_err(|e| invalid(&path, e.to_string()))?;
        config.check().map_err(|reason| invalid(&path, reason))?;
        let path = dir.join(WEIGHTS_FILE);
        let bytes = record::files::read_regular(&path).map_err(|e| ModelError::io(&path, e))?;
        let tensors =
            SafeTensors::deserialize(&bytes).map_err(|e| invalid(&path, e.to_string()))?;
        let mut source = ProbeTensors { path: &path, tensors: HashMap::new() };
        for (name, view) in tensors.iter() {
            let values = finite_values(&view)
                .map_err(|reason| invalid(&path, format!("tensor {name}: {reason}")))?;
            source.tensors.insert(name.to_owned(), (view.shape().to_vec(), values));
        }
        Self::from_source(device, config, &source)
    }

    fn from_source(
        device: &Device,
        config: ProbeConfig,
        source: &impl TensorSource,
    ) -> Result<Self, ModelError> {
        config
            .check()
            .map_err(|reason| ModelError::InvalidProbe { path: CONFIG_FILE.into(), reason })?;
        let device = probe_device(device)?;
        let encoder = match config.kind {
            ProbeKind::Linear => None,
            ProbeKind::Encoder => Some(ProbeEncoder {
                input: TrainableLinear::load(
                    &device,
                    source,
                    "probe.input",
                    config.width,
                    config.inner,
                )?,
                blocks: TrainableDecoder::load(
                    &device,
                    &config.decoder(),
                    source,
                    LmHead::Without,
                )?,
            }),
        };
        let inner = if encoder.is_some() { config.inner } else { config.width };
        let head = TrainableLinear::load(&device, source, "probe.head", inner, 2)?;
        Ok(Self { config, device, encoder, head, cache: Mutex::default() })
    }

    /// The configuration.
    pub fn config(&self) -> &ProbeConfig {
        &self.config
    }

    /// The device that holds the weights.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Writes the directory. The probe was trained on normalized states, (state - mean) / std; the
    /// first layer is written such that it takes unnormalized ones.
    pub fn save(&self, dir: &Path, states: &StateScale) -> Result<(), ModelError> {
        let mut tensors = Vec::new();
        for parameter in self.parameters() {
            tensors.extend(parameter.named_values()?);
        }
        let first = if self.encoder.is_some() { "probe.input" } else { "probe.head" };
        states.fold(&mut tensors, first);
        write_safetensors(&dir.join(WEIGHTS_FILE), &tensors, SaveDtype::F32, PT_METADATA)?;
        let path = dir.join(CONFIG_FILE);
        let mut text = serde_json::to_vec_pretty(&self.config)
            .map_err(|e| ModelError::io(&path, std::io::Error::other(e)))?;
        text.push(b'\n');
        record::files::write_atomic(&path, &text).map_err(|e| ModelError::io(&path, e))
    }

    /// All parameters, in a fixed order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let encoder = self.encoder.iter();
        let encoder = encoder.flat_map(|of| of.input.parameters().chain(of.blocks.parameters()));
        encoder.chain(self.head.parameters())
    }

    /// All parameters, mutably. Call [`Self::sync_weights`] after a change.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let encoder = self.encoder.iter_mut();
        let encoder =
            encoder.flat_map(|of| of.input.parameters_mut().chain(of.blocks.parameters_mut()));
        encoder.chain(self.head.parameters_mut())
    }

    /// Copies changed parameters to the weights that the forward pass uses.
    pub fn sync_weights(&mut self) -> Result<(), DeviceError> {
        if let Some(encoder) = &mut self.encoder {
            encoder.input.sync_weights(&self.device)?;
            encoder.blocks.sync_weights()?;
        }
        self.head.sync_weights(&self.device)
    }

    /// The score of each trajectory. `states` contains those of all trajectories, concatenated:
    /// (positions, width), on the reasoner's device. A trajectory without positions scores 0.
    pub fn scores(&self, states: &Tensor, counts: &[StateCounts]) -> Result<Vec<f32>, DeviceError> {
        let mut scores = Vec::with_capacity(counts.len());
        let mut start = 0;
        let mut rest = counts;
        while !rest.is_empty() {
            let mut rows = rest[0].total();
            let mut taken = 1;
            while taken < rest.len() && rows + rest[taken].total() <= MAX_ROWS {
                rows += rest[taken].total();
                taken += 1;
            }
            let indices: Vec<usize> = (start..start + rows).collect();
            let part = ops::select(&self.device, [states], &indices)?;
            scores.extend(self.scores_of_part(&part, &rest[..taken])?);
            start += rows;
            rest = &rest[taken..];
        }
        Ok(scores)
    }

    fn scores_of_part(
        &self,
        states: &Tensor,
        counts: &[StateCounts],
    ) -> Result<Vec<f32>, DeviceError> {
        if states.rows() == 0 {
            return Ok(vec![0.0; counts.len()]);
        }
        // Hold the lock until the scores are on the host: then the cache is free.
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let outputs = match &self.encoder {
            None => self.head.forward(&self.device, states)?,
            Some(encoder) => {
                let mut of_pass = encoder.cache(&self.device, cache.take(), counts)?;
                let (pass, x) = encoder.inputs(&self.device, &mut of_pass, states, counts)?;
                let hidden = encoder.blocks.decoder.forward(&mut of_pass, &pass, x, None)?;
                *cache = Some(of_pass);
                self.head.forward(&self.device, &hidden)?
            }
        };
        Ok(pool(outputs.to_host()?.data(), counts))
    }

    /// [`Self::scores`] with the activations that [`Self::backward`] needs.
    pub fn forward(
        &self,
        states: &Tensor,
        counts: &[StateCounts],
    ) -> Result<ProbeForward, DeviceError> {
        let (hidden, encoded) = match &self.encoder {
            None => (states.clone(), None),
            Some(encoder) => {
                let previous = self.cache.lock().unwrap_or_else(PoisonError::into_inner).take();
                let mut cache = encoder.cache(&self.device, previous, counts)?;
                let (pass, x) = encoder.inputs(&self.device, &mut cache, states, counts)?;
                let (hidden, segment) = encoder.blocks.forward(&mut cache, &pass, x, None)?;
                (hidden, Some((segment, cache)))
            }
        };
        let outputs = self.head.forward(&self.device, &hidden)?.to_host()?.into_data();
        let scores = pool(&outputs, counts);
        Ok(ProbeForward { scores, counts: counts.to_vec(), outputs, hidden, encoded })
    }

    /// Adds the gradients of all parameters, given those of the scores.
    pub fn backward(
        &mut self,
        states: &Tensor,
        forward: ProbeForward,
        dscores: &[f32],
    ) -> Result<(), DeviceError> {
        let ProbeForward { counts, outputs, hidden, encoded, .. } = forward;
        let doutputs = pool_backward(&outputs, &counts, dscores);
        let doutputs = Tensor::from_vec(hidden.rows(), 2, doutputs).to_device(&self.device)?;
        let dhidden = self.head.backward(&self.device, &hidden, &doutputs)?;
        let (Some(encoder), Some((segment, cache))) = (&mut self.encoder, encoded) else {
            return Ok(());
        };
        let mut dkv: KvGrads = cache.gradients(&self.device)?;
        let dx = encoder.blocks.backward(&cache, &mut dkv, segment, &dhidden)?;
        let kinds = counts.iter().flat_map(|counts| counts.kinds()).collect();
        encoder.blocks.accumulate_embedding_gradients(kinds, &dx)?;
        encoder.input.backward(&self.device, states, &dx)?;
        encoder.blocks.collect_gradients()?;
        *self.cache.lock().unwrap_or_else(PoisonError::into_inner) = Some(cache);
        Ok(())
    }
}

impl ProbeEncoder {
    /// An empty cache for some trajectories, reusing that of an earlier call if it is large enough.
    fn cache(
        &self,
        device: &Device,
        previous: Option<Cache>,
        counts: &[StateCounts],
    ) -> Result<Cache, DeviceError> {
        let slots = counts.iter().map(|counts| Cache::slots_for(counts.total())).sum();
        match previous {
            Some(mut cache) if cache.slots() >= slots => {
                cache.clear();
                Ok(cache)
            }
            _ => Cache::new(device, self.blocks.decoder.config(), slots),
        }
    }

    /// The pass over all positions, each of which is an output, and its input vectors.
    fn inputs(
        &self,
        device: &Device,
        cache: &mut Cache,
        states: &Tensor,
        counts: &[StateCounts],
    ) -> Result<(Pass, Tensor), DeviceError> {
        let mut pass = Pass::with_capacity(states.rows());
        for counts in counts {
            let mut sequence = Sequence::default();
            (0..counts.total()).for_each(|_| pass.push(cache, &mut sequence, true));
        }
        let mut x = self.input.forward(device, states)?;
        let kinds: Vec<u32> = counts.iter().flat_map(|counts| counts.kinds()).collect();
        ops::add(device, &mut x, &self.blocks.decoder.embed(&kinds)?)?;
        Ok((pass, x))
    }
}

/// The device of a probe, without 8-bit precision: its rounding would cost more accuracy than the
/// time that it saves in such a small network.
fn probe_device(device: &Device) -> Result<Device, DeviceError> {
    match device.precision() {
        Precision::Int8 => Device::cpu(std::num::NonZeroUsize::new(device.threads())),
        _ => Ok(device.without_fp8()),
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The range of each trajectory within the concatenated positions.
fn ranges(counts: &[StateCounts]) -> impl Iterator<Item = std::ops::Range<usize>> {
    counts.iter().scan(0, |start, counts| {
        let range = *start..*start + counts.total();
        *start = range.end;
        Some(range)
    })
}

/// The gated mean of each trajectory's rewards, from (positions, 2).
fn pool(outputs: &[f32], counts: &[StateCounts]) -> Vec<f32> {
    let score = |range: std::ops::Range<usize>| {
        let mut weighted = 0.0;
        let mut total = 0.0;
        for [gate, reward] in outputs[2 * range.start..2 * range.end].as_chunks::<2>().0 {
            let gate = sigmoid(f64::from(*gate));
            weighted += gate * f64::from(*reward);
            total += gate;
        }
        if total > 0.0 { (weighted / total) as f32 } else { 0.0 }
    };
    ranges(counts).map(score).collect()
}

fn pool_backward(outputs: &[f32], counts: &[StateCounts], dscores: &[f32]) -> Vec<f32> {
    let scores = pool(outputs, counts);
    let mut doutputs = vec![0.0; outputs.len()];
    for ((range, score), dscore) in ranges(counts).zip(scores).zip(dscores) {
        let own = &outputs[2 * range.start..2 * range.end];
        let total: f64 = own.as_chunks::<2>().0.iter().map(|[g, _]| sigmoid(f64::from(*g))).sum();
        let target = doutputs[2 * range.start..2 * range.end].as_chunks_mut::<2>().0;
        for ([gate, reward], [dgate, dreward]) in own.as_chunks::<2>().0.iter().zip(target) {
            let gate = sigmoid(f64::from(*gate));
            let share = f64::from(*dscore) * gate / total;
            *dreward = share as f32;
            *dgate = (share * (1.0 - gate) * f64::from(*reward - score)) as f32;
        }
    }
    doutputs
}

/// Mean and standard deviation of each element of the states.
#[derive(Debug, Clone, PartialEq)]
pub struct StateScale {
    mean: Vec<f32>,
    std: Vec<f32>,
}

impl StateScale {
    /// Computes the statistics of states, row-major (positions, width).
    pub fn of(states: &[f32], width: usize) -> Self {
        let count = (states.len() / width.max(1)).max(1) as f64;
        let mut sums = vec![[0.0_f64; 2]; width];
        for row in states.chunks_exact(width.max(1)) {
            for (sum, &x) in sums.iter_mut().zip(row) {
                sum[0] += f64::from(x);
                sum[1] += f64::from(x) * f64::from(x);
            }
        }
        let std = |[sum, squares]: &[f64; 2]| {
            let variance = squares / count - (sum / count) * (sum / count);
            (variance.max(0.0).sqrt() + 1e-6) as f32
        };
        Self {
            mean: sums.iter().map(|[sum, _]| (sum / count) as f32).collect(),
            std: sums.iter().map(std).collect(),
        }
    }

    /// Normalizes each row: (state - mean) / std.
    pub fn apply(&self, states: &mut [f32]) {
        for row in states.chunks_exact_mut(self.mean.len().max(1)) {
            for ((x, mean), std) in row.iter_mut().zip(&self.mean).zip(&self.std) {
                *x = (*x - mean) / std;
            }
        }
    }

    /// Converts a linear layer of normalized states to one of unnormalized states: W / std and b -
    /// W mean / std.
    fn fold(&self, tensors: &mut [NamedTensor], layer: &str) {
        let weight = format!("{layer}.weight");
        let mut shift = Vec::new();
        for tensor in tensors.iter_mut().filter(|tensor| tensor.name == weight) {
            for row in tensor.values.chunks_exact_mut(self.mean.len().max(1)) {
                row.iter_mut().zip(&self.std).for_each(|(w, std)| *w /= std);
                let product = |(w, mean): (&f32, &f32)| f64::from(*w) * f64::from(*mean);
                shift.push(row.iter().zip(&self.mean).map(product).sum::<f64>() as f32);
            }
        }
        let bias = format!("{layer}.bias");
        for tensor in tensors.iter_mut().filter(|tensor| tensor.name == bias) {
            tensor.values.iter_mut().zip(&shift).for_each(|(b, shift)| *b -= shift);
        }
    }
}

/// A probe's file in memory.
struct ProbeTensors<'a> {
    path: &'a Path,
    tensors: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl TensorSource for ProbeTensors<'_> {
    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let invalid = |reason| ModelError::InvalidProbe { path: self.path.into(), reason };
        let (found, values) =
            self.tensors.get(name).ok_or_else(|| invalid(format!("no tensor {name}")))?;
        match found == shape {
            true => Ok(values.clone()),
            false => Err(invalid(format!("tensor {name} has shape {found:?}, expected {shape:?}"))),
        }
    }
}

fn finite_values(view: &safetensors::tensor::TensorView<'_>) -> Result<Vec<f32>, String> {
    if view.dtype() != Dtype::F32 {
        return Err(format!("{:?} where F32 belongs", view.dtype()));
    }
    let bytes = view.data().as_chunks::<4>().0;
    let values: Vec<f32> = bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err("a value is not finite".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 24;

    fn probe(kind: ProbeKind) -> Probe {
        let device = Device::cpu(None).unwrap();
        let config = ProbeConfig { inner: 64, ..ProbeConfig::new(kind, WIDTH, "coconut") };
        Probe::initial(&device, config, 3).unwrap()
    }

    fn counts() -> Vec<StateCounts> {
        [(3, 2), (0, 1), (6, 4), (0, 0), (2, 0)]
            .map(|(thoughts, answer)| StateCounts { thoughts, answer })
            .to_vec()
    }

    fn states(rows: usize) -> Tensor {
        let mut data = vec![0.0; rows * WIDTH];
        tensor::rng::RngKey { seed: 1, question: 2, trajectory: 3, position: 4 }
            .add_noise(1.0, &mut data);
        Tensor::from_vec(rows, WIDTH, data)
    }

    fn rows(counts: &[StateCounts]) -> usize {
        counts.iter().map(|counts| counts.total()).sum()
    }

    #[test]
    fn a_trajectory_scores_the_same_in_every_batch() {
        for kind in [ProbeKind::Linear, ProbeKind::Encoder] {
            let probe = probe(kind);
            let counts = counts();
            let states = states(rows(&counts));
            let together = probe.scores(&states, &counts).unwrap();
            assert_eq!(together[3], 0.0);
            for (range, (of, score)) in ranges(&counts).zip(counts.iter().zip(&together)) {
                let own = states.select(range);
                let alone = probe.scores(&own, &[*of]).unwrap();
                assert_eq!(alone, [*score], "{kind:?} {of:?}");
            }
            assert_eq!(probe.forward(&states, &counts).unwrap().scores, together);
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        for kind in [ProbeKind::Linear, ProbeKind::Encoder] {
            let mut probe = probe(kind);
            let counts: Vec<StateCounts> =
                counts().into_iter().filter(|counts| counts.total() > 0).collect();
            let states = states(rows(&counts));
            let weights = [0.7, -1.0, 0.5, 0.3];
            let loss = |probe: &Probe| -> f64 {
                let scores = probe.scores(&states, &counts).unwrap();
                scores.iter().zip(weights).map(|(s, w)| f64::from(*s) * f64::from(w)).sum()
            };
            // Larger weights than the initial ones, so that differences are above rounding.
            for parameter in probe.parameters_mut() {
                parameter.value.data_mut().iter_mut().for_each(|x| *x *= 5.0);
            }
            probe.sync_weights().unwrap();
            let forward = probe.forward(&states, &counts).unwrap();
            probe.backward(&states, forward, &weights).unwrap();
            let count = probe.parameters().count();
            for p in 0..count {
                let gradient = probe.parameters().nth(p).unwrap().gradient.clone();
                let largest = (0..gradient.data().len())
                    .max_by(|a, b| gradient.data()[*a].abs().total_cmp(&gradient.data()[*b].abs()))
                    .unwrap();
                let mut moved = |by: f32| {
                    let parameter = probe.parameters_mut().nth(p).unwrap();
                    parameter.value.data_mut()[largest] += by;
                    probe.sync_weights().unwrap();
                    loss(&probe)
                };
                let above = moved(1e-2);
                let slope = (above - moved(-2e-2)) / 2e-2;
                moved(1e-2);
                let expected = f64::from(gradient.data()[largest]);
                let tolerance = 2e-3 + 0.03 * expected.abs();
                assert!((slope - expected).abs() < tolerance, "{kind:?} {p}: {slope} {expected}");
            }
        }
    }

    #[test]
    fn a_saved_probe_takes_states_as_they_are() {
        for kind in [ProbeKind::Linear, ProbeKind::Encoder] {
            let probe = probe(kind);
            let counts = counts();
            let mut raw = states(rows(&counts));
            raw.data_mut().iter_mut().enumerate().for_each(|(i, x)| *x = 3.0 * *x + (i % 5) as f32);
            let scale = StateScale::of(raw.data(), WIDTH);
            let mut scaled = raw.clone();
            scale.apply(scaled.data_mut());
            let expected = probe.scores(&scaled, &counts).unwrap();
            let dir = tempfile::tempdir().unwrap();
            probe.save(dir.path(), &scale).unwrap();
            let loaded = Probe::load(probe.device(), dir.path()).unwrap();
            assert_eq!(loaded.config(), probe.config());
            let found = loaded.scores(&raw, &counts).unwrap();
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-4, "{found} {expected}");
            }
        }
    }

    #[test]
    fn damaged_directories_are_refused() {
        let device = Device::cpu(None).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let load = || Probe::load(&device, dir.path()).map(drop).unwrap_err().to_string();
        assert!(load().contains("train probe"), "{}", load());
        let probe = probe(ProbeKind::Encoder);
        probe.save(dir.path(), &StateScale::of(&[], WIDTH)).unwrap();
        let config = dir.path().join(CONFIG_FILE);
        let text = std::fs::read_to_string(&config).unwrap();
        for (from, to) in [
            ("\"version\": 1", "\"version\": 2"),
            ("\"inner\": 64", "\"inner\": 65"),
            ("\"width\": 24", "\"width\": 18446744073709551615"),
            ("\"width\": 24", "\"width\": 25"),
            ("\"layers\": 2", "\"layers\": 1000000"),
            ("\"layers\": 2", "\"layers\": 3"),
        ] {
            assert!(text.contains(from), "{text}");
            std::fs::write(&config, text.replace(from, to)).unwrap();
            assert!(load().contains("probe"), "{to}: {}", load());
        }
        std::fs::write(&config, &text).unwrap();
        std::fs::write(dir.path().join(WEIGHTS_FILE), b"short").unwrap();
        load();
    }
}
