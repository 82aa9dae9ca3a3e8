//! CoLaR's supervised stage: the steps' token embeddings are compressed, several at a time, into
//! one vector each; the model learns to predict the next vector and one of its tokens.
//!
//! ```text
//! Question: … (Thinking speed: 2)  [###] [a b] [c d] [e]  ###  Answer:18 [eos]
//!                                  └─ groups: sums of embeddings / sqrt(count)
//! ```
//!
//! From the prompt's last position on, every position predicts a token: of the next group one that
//! is drawn at random, then the separator and the answer. At each group's position the latent head
//! gives a Gaussian over the next input vector, in units of the embeddings' standard deviation; a
//! sample of it is compared with that vector, which is a constant of this loss. The speed, the
//! tokens of a group, is drawn for each example, so the model learns to think at any of them.

use std::sync::Arc;

use model::{
    Cache, ModelError, Parameter, Sequence, Tokenizer, TrainableDecoder, TrainableGaussianHead,
};
use tensor::ops::{self, GaussianLoss, Indices, PerturbedRows, RowPerturbation, SiteSet};
use tensor::rng::{RngKey, Site};
use tensor::{Device, DeviceError, Tensor};

use super::{ExampleEncoder, ExamplePlace, ExampleRows, TrainStep, guarded};
use crate::dataset::TrainExample;
use crate::dropout::DropoutConfig;
use crate::error::TrainError;
use crate::rows::{PassRows, RowInput, assemble_rows, reuse_cache};

/// The text around thoughts: the prompt ends with it, and so do the thoughts.
pub const SEPARATOR: &str = "###";

/// An example with compressed steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColarExample {
    /// Index in the data; part of the RNG key of noise and dropout masks.
    pub id: u32,
    /// Prompt tokens, without the separator at their end.
    pub prompt: Vec<u32>,
    /// The tokens of each group; the first group is the separator.
    pub groups: Vec<Vec<u32>>,
    /// The token of each group that is predicted.
    pub labels: Vec<u32>,
    /// The separator's tokens, and the answer with its end.
    pub completion: Vec<u32>,
    /// Standard normal numbers of the latent loss, (groups, width); drawn by the train step unless
    /// every example of a batch has them.
    pub noise: Option<Tensor>,
}

impl ColarExample {
    fn positions(&self) -> usize {
        self.prompt.len() + self.groups.len() + self.completion.len().saturating_sub(1)
    }

    /// The rows that it takes.
    pub fn rows(&self) -> ExampleRows {
        let logits = self.labels.len() + self.completion.len();
        ExampleRows { fed: self.positions(), output: logits, logits }
    }
}

/// The prompt of a question at a speed, as the engine's CoLaR family writes it.
pub fn prompt_parts(speed: usize) -> (&'static str, String) {
    ("Question: ", format!(" Let's think step by step:(Thinking speed: {speed}){SEPARATOR}"))
}

/// Refuses a vocabulary in which the words of the layout have no tokens.
pub fn check_vocabulary(tokenizer: &Tokenizer) -> Result<(), TrainError> {
    let layout = format!("{SEPARATOR}Answer:7");
    let read = tokenizer.decode(&tokenizer.encode(&layout)?)?;
    let separator = tokenizer.encode(SEPARATOR)?;
    if read.replace(' ', "") == layout && separator.len() == 1 {
        return Ok(());
    }
    let how = "CoLaR's layout needs it; start from a pretrained model with its own vocabulary";
    Err(TrainError::MissingToken { token: layout, how })
}

/// Tokenizes and compresses examples.
#[derive(Clone)]
pub struct ColarEncoder {
    /// Tokenizes text.
    pub tokenizer: Arc<Tokenizer>,
    /// Ends an answer.
    pub eos: u32,
    /// The smallest and the largest speed; each example has one between them.
    pub speeds: (usize, usize),
    /// Seed of the labels that are drawn.
    pub seed: u64,
}

impl ExampleEncoder for ColarEncoder {
    type Encoded = ColarExample;

    fn encode(
        &self,
        example: &TrainExample,
        place: ExamplePlace,
    ) -> Result<Vec<ColarExample>, ModelError> {
        let example = &guarded(&self.tokenizer, example);
        let encode = |text: &str| self.tokenizer.encode(text);
        let (slowest, fastest) = self.speeds;
        let speed = slowest + (place.uniforms[0] * (fastest + 1 - slowest) as f64) as usize;
        let (prefix, suffix) = prompt_parts(speed);
        let mut prompt = encode(&format!("{prefix}{}{suffix}", example.question))?;
        let separator = prompt.pop().unwrap_or(self.eos);
        let steps = encode(&example.steps.join("\n"))?;
        let groups: Vec<Vec<u32>> =
            [vec![separator]].into_iter().chain(steps.chunks(speed).map(<[u32]>::to_vec)).collect();
        let draw = |(group, tokens): (usize, &Vec<u32>)| {
            let key = RngKey {
                seed: self.seed,
                question: place.id as u32,
                trajectory: (place.id >> 32) as u32,
                position: group as u32,
            };
            tokens[key.uniform_int(Site::Token, 0, tokens.len() - 1)]
        };
        let labels = groups.iter().enumerate().map(draw).collect();
        let mut completion = encode(SEPARATOR)?;
        completion.extend(encode(&format!("Answer:{}", example.answer))?);
        completion.push(self.eos);
        let id = place.id as u32;
        Ok(vec![ColarExample { id, prompt, groups, labels, completion, noise: None }])
    }

    fn rows(&self, encoded: &ColarExample) -> ExampleRows {
        encoded.rows()
    }
}

/// A reasoner with its gradients.
#[derive(Debug)]
pub struct ColarTrainStep {
    /// The decoder and its language-model head.
    pub model: TrainableDecoder,
    /// Predicts the next compressed embedding.
    pub head: TrainableGaussianHead,
    /// The embeddings' standard deviation.
    pub embedding_std: f32,
    /// Whether a later token of a group weighs less, so that a thought tells their order; all alike
    /// as published if not.
    pub ordered: bool,
    /// Seed of the latent loss's noise; the rest of its key is the example's index in the stream.
    pub seed: u64,
    cache: Option<Cache>,
}

/// Mean losses of a batch, unweighted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ColarLosses {
    /// Cross entropy per predicted token, in nats.
    pub tokens: f64,
    /// Squared error per element of the next compressed embedding, in units of the embeddings'
    /// variance.
    pub latent: f64,
}

/// The groups of a batch as vectors.
struct CompressedGroups {
    vectors: Tensor, // (groups, width)
    tokens: Vec<u32>,
    /// Per token: its group, and the factor of its embedding.
    group_of_token: Vec<usize>,
    factors: Vec<f32>,
}

/// The rows of a batch's pass and the use of their hidden states, all of them outputs.
struct ColarRows {
    input: PassRows,
    /// Rows that predict a token; the tokens.
    predicting: Vec<usize>,
    targets: Vec<u32>,
    /// Rows that are fed a group, and the row after each.
    group_rows: Vec<usize>,
    next_rows: Vec<usize>,
}

impl ColarTrainStep {
    /// A step over these modules.
    pub fn new(model: TrainableDecoder, head: TrainableGaussianHead, embedding_std: f32) -> Self {
        Self { model, head, embedding_std, ordered: false, seed: 0, cache: None }
    }

    /// Adds the gradients of a batch's loss to all parameters; returns its parts.
    pub fn batch_losses(
        &mut self,
        examples: &[ColarExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<ColarLosses, DeviceError> {
        let device = self.model.decoder.device().clone();
        let slots = examples.iter().map(|example| Cache::slots_for(example.positions())).sum();
        let mut cache = reuse_cache(self.cache.take(), &self.model.decoder, slots)?;
        let groups = CompressedGroups::new(&self.model, examples, self.ordered)?;
        let rows = ColarRows::new(&mut cache, examples, dropout);
        let x = rows.input.embed(&self.model.decoder, Some(groups.vectors.clone()))?;
        let masks = dropout.map(|_| rows.input.dropout());
        let inputs = x.clone();
        let (hidden, segment) = self.model.forward(&mut cache, &rows.input.pass, x, masks)?;
        let outputs = ColarOutputs::new(&rows);
        let (tokens, dtokens) = self.token_losses(&hidden, &rows, &outputs)?;
        let noise = self.noise(&device, examples)?;
        let (latent, dlatent) = self.latent_losses(&hidden, &inputs, noise, &rows, &outputs)?;
        let parts = vec![(dtokens, outputs.predicting), (dlatent, outputs.groups)];
        let dhidden = assemble_rows(&device, parts, &hidden)?;
        let mut dkv = cache.gradients(&device)?;
        let dx = self.model.backward(&cache, &mut dkv, segment, &dhidden)?;
        let dgroups = rows.input.accumulate_embedding_gradients(&mut self.model, &dx)?;
        groups.accumulate_gradients(&mut self.model, &dgroups)?;
        self.model.collect_gradients()?;
        self.cache = Some(cache);
        Ok(ColarLosses { tokens: mean(tokens)?, latent: mean(latent)? })
    }

    /// The losses of all predicted tokens, and the gradients of the hidden states.
    fn token_losses(
        &mut self,
        hidden: &Tensor,
        rows: &ColarRows,
        outputs: &ColarOutputs,
    ) -> Result<(Tensor, Tensor), DeviceError> {
        let device = self.model.decoder.device().clone();
        let predicting = ops::select(&device, [hidden], &outputs.predicting)?;
        let weights = vec![1.0 / rows.targets.len() as f32; rows.targets.len()];
        self.model.cross_entropy(&predicting, rows.targets.clone(), &weights)
    }

    /// The latent losses of all groups, and the gradients of the hidden states.
    fn latent_losses(
        &mut self,
        hidden: &Tensor,
        inputs: &Tensor,
        noise: Tensor,
        rows: &ColarRows,
        outputs: &ColarOutputs,
    ) -> Result<(Tensor, Tensor), DeviceError> {
        let device = self.model.decoder.device().clone();
        let at_groups = ops::select(&device, [hidden], &outputs.groups)?;
        let of = self.head.forward(&device, at_groups)?;
        let mut target = ops::select(&device, [inputs], &rows.next_rows)?;
        ops::scale(&device, &mut target, 1.0 / self.embedding_std)?;
        let (mut dmean, mut dlog_std) = (Tensor::default(), Tensor::default());
        let weight = 1.0 / rows.group_rows.len() as f32;
        let loss = GaussianLoss {
            mean: &of.mean,
            log_std: &of.log_std,
            noise: &noise,
            target: &target,
            weight,
        };
        let losses = ops::gaussian_loss(&device, loss, &mut dmean, &mut dlog_std)?;
        Ok((losses, self.head.backward(&device, &of, &dmean, &dlog_std)?))
    }

    /// The noise of the latent loss, (groups, width): given with the examples, or drawn.
    fn noise(&self, device: &Device, examples: &[ColarExample]) -> Result<Tensor, DeviceError> {
        let width = self.model.decoder.config().width;
        if let Some(given) = examples.iter().map(|of| of.noise.as_ref()).collect::<Option<Vec<_>>>()
        {
            let mut noise = Tensor::zeros(0, width);
            given.into_iter().for_each(|own| noise.extend(own));
            return noise.to_device(device);
        }
        let keys = examples.iter().flat_map(|example| {
            let key = |group: usize| RngKey {
                seed: self.seed,
                question: example.id,
                trajectory: 0,
                position: group as u32,
            };
            (0..example.groups.len()).map(key)
        });
        let sites = SiteSet::NOISE;
        let rows: Vec<_> =
            keys.map(|key| Some(RowPerturbation { key, strength: 1.0, sites })).collect();
        let mut noise = Tensor::zeros_on(device, rows.len(), width)?;
        ops::add_noise(device, &mut noise, &PerturbedRows::new(device, rows)?)?;
        Ok(noise)
    }
}

/// The sum of losses (rows, 1) over their number.
fn mean(losses: Tensor) -> Result<f64, DeviceError> {
    let losses = losses.to_host()?;
    let sum: f64 = losses.data().iter().map(|&loss| f64::from(loss)).sum();
    Ok(sum / losses.rows().max(1) as f64)
}

/// The factors of a group's embeddings in its vector: their squares sum to 1.
fn group_factors(count: usize, ordered: bool) -> Vec<f32> {
    if !ordered {
        // The published code adds 1e-5 to the root.
        return vec![1.0 / ((count as f32).sqrt() + 1e-5); count];
    }
    let weights: Vec<f32> = (0..count).map(|at| ORDER_DECAY.powi(at as i32)).collect();
    let norm = weights.iter().map(|weight| weight * weight).sum::<f32>().sqrt();
    weights.into_iter().map(|weight| weight / norm).collect()
}

/// What a token of an ordered group weighs beside the one before it: 0.8 and 0.6 for two.
const ORDER_DECAY: f32 = 0.75;

impl CompressedGroups {
    /// A group's vector is the sum of its embeddings, each times its factor.
    fn new(
        model: &TrainableDecoder,
        examples: &[ColarExample],
        ordered: bool,
    ) -> Result<Self, DeviceError> {
        let (device, width) = (model.decoder.device(), model.decoder.config().width);
        let groups: Vec<&Vec<u32>> = examples.iter().flat_map(|example| &example.groups).collect();
        let tokens: Vec<u32> = groups.iter().flat_map(|group| group.iter().copied()).collect();
        let each = |(at, group): (usize, &&Vec<u32>)| {
            let factors = group_factors(group.len(), ordered);
            factors.into_iter().map(move |factor| (at, factor))
        };
        let (group_of_token, factors): (Vec<usize>, Vec<f32>) =
            groups.iter().enumerate().flat_map(each).unzip();
        let mut embeddings = model.decoder.embed(&tokens)?;
        ops::scale_rows(device, &mut embeddings, &factors)?;
        let mut vectors = Tensor::zeros_on(device, groups.len(), width)?;
        let rows = group_of_token.iter().map(|&group| group as u32).collect();
        ops::scatter_add(device, &embeddings, &Indices::new(device, rows)?, &mut vectors)?;
        Ok(Self { vectors, tokens, group_of_token, factors })
    }

    /// Adds the embeddings' gradients, given those of the vectors.
    fn accumulate_gradients(
        self,
        model: &mut TrainableDecoder,
        dvectors: &Tensor,
    ) -> Result<(), DeviceError> {
        let device = model.decoder.device().clone();
        let mut dtokens = ops::select(&device, [dvectors], &self.group_of_token)?;
        ops::scale_rows(&device, &mut dtokens, &self.factors)?;
        model.accumulate_embedding_gradients(self.tokens, &dtokens)
    }
}

impl ColarRows {
    fn new(cache: &mut Cache, examples: &[ColarExample], dropout: Option<DropoutConfig>) -> Self {
        let mut rows = Self {
            input: PassRows::default(),
            predicting: Vec::new(),
            targets: Vec::new(),
            group_rows: Vec::new(),
            next_rows: Vec::new(),
        };
        for example in examples {
            let mut sequence = Sequence::default();
            let fed = &example.completion[..example.completion.len() - 1];
            let tokens = |tokens: &[u32]| {
                tokens.iter().map(|&token| RowInput::Token(token)).collect::<Vec<_>>()
            };
            let groups = vec![RowInput::Vector; example.groups.len()];
            let inputs = [tokens(&example.prompt), groups, tokens(fed)].concat();
            let first = example.prompt.len() - 1; // predicts the first group's label
            for (at, input) in inputs.into_iter().enumerate() {
                let row = rows.input.len();
                if matches!(input, RowInput::Vector) {
                    rows.group_rows.push(row);
                    rows.next_rows.push(row + 1);
                }
                if at >= first {
                    rows.predicting.push(row);
                }
                let dropout = dropout.map(|of| of.row(example.id, of.step, &sequence));
                rows.input.push(cache, &mut sequence, input, dropout, at >= first);
            }
            rows.targets.extend(example.labels.iter().chain(&example.completion));
        }
        rows
    }
}

/// The rows of [`ColarRows`] as indices among the output rows.
struct ColarOutputs {
    predicting: Vec<usize>,
    groups: Vec<usize>,
}

impl ColarOutputs {
    fn new(rows: &ColarRows) -> Self {
        // Every output row predicts a token, so a group's output is its place among those.
        let place = |row: &usize| rows.predicting.binary_search(row).unwrap_or(0);
        Self {
            predicting: (0..rows.predicting.len()).collect(),
            groups: rows.group_rows.iter().map(place).collect(),
        }
    }
}

impl TrainStep for ColarTrainStep {
    type Example = ColarExample;

    fn accumulate_gradients(
        &mut self,
        examples: &[ColarExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<Vec<(&'static str, f64)>, DeviceError> {
        let ColarLosses { tokens, latent } = self.batch_losses(examples, dropout)?;
        Ok(vec![("loss", tokens), ("latent", latent)])
    }

    fn model(&self) -> &TrainableDecoder {
        &self.model
    }

    fn head_parameters(&self) -> Vec<&Parameter> {
        self.head.parameters().collect()
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.model.parameters().chain(self.head.parameters()).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.model.parameters_mut().chain(self.head.parameters_mut()).collect()
    }

    fn sync_weights(&mut self) -> Result<(), DeviceError> {
        let device = self.model.decoder.device().clone();
        self.model.sync_weights()?;
        self.head.sync_weights(&device)
    }
}

#[cfg(test)]
mod tests {
    use super::group_factors;

    #[test]
    fn factors_keep_the_length_of_unrelated_embeddings() {
        for count in 1..6 {
            for ordered in [false, true] {
                let factors = group_factors(count, ordered);
                let squares: f32 = factors.iter().map(|factor| factor * factor).sum();
                assert!((squares - 1.0).abs() < 1e-4, "{count} tokens: {squares}");
                assert_eq!(factors.is_sorted_by(|a, b| a > b), ordered || count == 1);
            }
        }
        assert_eq!(group_factors(2, true), [0.8, 0.6]);
    }
}
