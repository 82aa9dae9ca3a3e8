//! CoLaR's supervised stage: groups of step tokens are compressed into one embedding vector each;
//! the model learns to predict the next vector and one of its tokens.
//!
//! ```text
//! Question: … (Thinking speed: 2)  [###] [a b] [c d] [e]  ###  Answer:18 [eos]
//!                                  └─ groups: sums of embeddings / sqrt(count)
//! ```
//!
//! From the prompt's last position on, every position predicts a token: a random token of the next
//! group, then the separator and the answer. At each group's position the latent head predicts a
//! Gaussian over the next input vector, in units of the embeddings' standard deviation; the loss
//! compares a sample of it with that vector, without a gradient into the vector. The speed (tokens
//! per group) is sampled for each example, so that the model learns to reason at every speed.

use std::sync::Arc;

use data::TrainExample;
use engine::family::COLAR_HEAD;
use model::{Cache, ModelError, Parameter, Tokenizer, TrainableDecoder, TrainableGaussianHead};
use record::Losses;
use serde::Serialize;
use serde_json::{Value, json};
use tensor::ops::{self, GaussianLoss, PerturbedRows, RowPerturbation, SiteSet};
use tensor::rng::{RngKey, Site};
use tensor::{Device, DeviceError, Tensor};

use super::compressed::{
    CompressedBatch, CompressedPass, CompressedSequence, FactorNorm, GroupFactors, mean,
};
use super::{
    ExampleEncoder, ExamplePlace, ExampleRows, MethodEntry, OptionCheck, TrainStep, TrainingMethod,
    guarded,
};
use crate::dropout::DropoutConfig;
use crate::error::TrainError;
use crate::model_dir::{self, ModelUsage};
use crate::options::MethodOptions;
use crate::reasoner::TaskSetup;
use crate::rows::{assemble_rows, reuse_cache};
use crate::trainer::TrainTask;

/// CoLaR's entry.
pub const METHOD: MethodEntry = MethodEntry {
    name: "colar",
    about: "Compressed steps; a Gaussian head predicts the next one, the model decides when to stop",
    configure: |options, tokenizer| Ok(Box::new(ColarMethod::new(options, tokenizer)?)),
};

/// Settings of CoLaR's supervised stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "method", rename = "colar")]
pub struct ColarMethod {
    /// Minimum and maximum number of tokens per thought.
    pub speeds: (usize, usize),
    /// Whether later tokens of a thought have smaller weights, so that their order can be
    /// recovered.
    pub ordered: bool,
    /// Inner width of the latent head.
    pub latent_head: usize,
}

impl ColarMethod {
    fn new(options: &MethodOptions, tokenizer: &Tokenizer) -> Result<Self, TrainError> {
        OptionCheck::latent(METHOD.name, options)?
            .no_step_decoder()?
            .no_blocks()?
            .no_compression()?;
        let MethodOptions { min_speed, max_speed, .. } = options;
        if min_speed > max_speed {
            let reason = format!("`min_speed` {min_speed} is greater than `max_speed` {max_speed}");
            return Err(TrainError::Options { reason });
        }
        check_vocabulary(tokenizer)?;
        Ok(Self {
            speeds: (min_speed.get(), max_speed.get()),
            ordered: options.ordered,
            latent_head: options.latent_head.get(),
        })
    }
}

impl TrainingMethod for ColarMethod {
    fn usage(&self) -> ModelUsage {
        ModelUsage::from(json!({ "family": "colar", "max_new_tokens": 24 }))
    }

    fn settings(&self) -> Value {
        json!(self)
    }

    fn task(&self, setup: TaskSetup) -> Result<Box<dyn TrainTask>, TrainError> {
        check_vocabulary(&setup.model.tokenizer)?;
        let source = setup.head_source()?;
        let config = setup.model.decoder.decoder.config();
        let hidden = source.rows(&format!("{}.weight", COLAR_HEAD.up));
        let shape = (config.width, hidden.unwrap_or(self.latent_head));
        let head = TrainableGaussianHead::load(&setup.device, &source, &COLAR_HEAD, shape)?;
        let std = match config.latent.embedding_std {
            Some(std) => std,
            None => setup.model.decoder.embedding_std()?,
        };
        model_dir::set_embedding_std(&setup.training.out, std)?;
        let seed = setup.training.seed;
        let encoder = ColarEncoder {
            tokenizer: setup.tokenizer(),
            eos: setup.model.markers.eos,
            speeds: self.speeds,
            seed,
        };
        setup.task(encoder, |model| {
            let step = ColarTrainStep::new(model, head, std);
            ColarTrainStep { ordered: self.ordered, seed, ..step }
        })
    }
}

/// The text that ends the prompt and the thoughts.
pub const SEPARATOR: &str = "###";

/// An example with compressed steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColarExample {
    /// Index in the data; part of the RNG key of noise and dropout masks.
    pub id: u32,
    /// Prompt tokens, without the separator at the end.
    pub prompt: Vec<u32>,
    /// The tokens of each group; the first group is the separator.
    pub groups: Vec<Vec<u32>>,
    /// The target token of each group.
    pub labels: Vec<u32>,
    /// The separator's tokens, and the answer with its end.
    pub completion: Vec<u32>,
    /// Standard normal noise of the latent loss, (groups, width); drawn by the train step unless
    /// all examples of a batch provide it.
    pub noise: Option<Tensor>,
}

impl ColarExample {
    fn sequence(&self) -> CompressedSequence<'_> {
        let Self { id, prompt, groups, completion, .. } = self;
        CompressedSequence { id: *id, prompt, groups, completion }
    }

    /// The numbers of rows of this example.
    pub fn rows(&self) -> ExampleRows {
        self.sequence().rows(self.labels.len() + self.completion.len())
    }
}

/// Prefix and suffix of a question's prompt at a speed, identical to the engine's CoLaR family.
pub fn prompt_parts(speed: usize) -> (&'static str, String) {
    ("Question: ", format!(" Let's think step by step:(Thinking speed: {speed}){SEPARATOR}"))
}

/// Rejects a vocabulary without the words of CoLaR's layout.
pub fn check_vocabulary(tokenizer: &Tokenizer) -> Result<(), TrainError> {
    let layout = format!("{SEPARATOR}Answer:7");
    let read = tokenizer.decode(&tokenizer.encode(&layout)?)?;
    let separator = tokenizer.encode(SEPARATOR)?;
    if read.replace(' ', "") == layout && separator.len() == 1 {
        return Ok(());
    }
    let how = "CoLaR's layout needs it; start from a pretrained model with a subword vocabulary";
    Err(TrainError::MissingToken { token: layout, how })
}

/// Tokenizes and compresses examples.
#[derive(Clone)]
pub struct ColarEncoder {
    /// Tokenizes text.
    pub tokenizer: Arc<Tokenizer>,
    /// End-of-text token.
    pub eos: u32,
    /// Minimum and maximum speed; each example samples its own.
    pub speeds: (usize, usize),
    /// Seed of the sampled target tokens.
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

/// A trainable CoLaR reasoner and its losses.
#[derive(Debug)]
pub struct ColarTrainStep {
    /// The decoder and its language-model head.
    pub model: TrainableDecoder,
    /// Head that predicts the next compressed embedding.
    pub head: TrainableGaussianHead,
    /// Standard deviation of the embeddings, the unit of the latent loss.
    pub embedding_std: f32,
    /// Whether later tokens of a group have smaller weights, so that their order can be recovered;
    /// otherwise all weights are equal, as published.
    pub ordered: bool,
    /// Seed of the latent loss's noise, which is also keyed by the example's index in the stream.
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

impl ColarTrainStep {
    /// A train step on these modules.
    pub fn new(model: TrainableDecoder, head: TrainableGaussianHead, embedding_std: f32) -> Self {
        Self { model, head, embedding_std, ordered: false, seed: 0, cache: None }
    }

    /// Adds the gradients of a batch's loss to all parameters; returns its terms.
    pub fn batch_losses(
        &mut self,
        examples: &[ColarExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<ColarLosses, DeviceError> {
        let device = self.model.decoder.device().clone();
        let batch = CompressedBatch {
            sequences: examples.iter().map(ColarExample::sequence).collect(),
            factors: GroupFactors { norm: FactorNorm::Squares, ordered: self.ordered },
            dropout,
        };
        let mut cache = reuse_cache(self.cache.take(), &self.model.decoder, batch.slots())?;
        let pass = batch.forward(&self.model, &mut cache, None)?;
        let (tokens, dtokens) = self.token_losses(&pass.hidden, examples)?;
        let noise = self.noise(&device, examples)?;
        let at_groups: Vec<usize> = pass.rows.before_groups.iter().map(|at| at + 1).collect();
        let (latent, dlatent) = self.latent_losses(&pass, &at_groups, noise)?;
        let all = (0..pass.hidden.rows()).collect();
        let parts = vec![(dtokens, all), (dlatent, at_groups)];
        let dhidden = assemble_rows(&device, parts, &pass.hidden)?;
        pass.backward(&mut self.model, &cache, &dhidden)?;
        self.cache = Some(cache);
        Ok(ColarLosses { tokens: mean(tokens)?, latent: mean(latent)? })
    }

    /// The losses of all predicted tokens, and the gradients of the hidden states; every hidden
    /// state predicts a token.
    fn token_losses(
        &mut self,
        hidden: &Tensor,
        examples: &[ColarExample],
    ) -> Result<(Tensor, Tensor), DeviceError> {
        let targets = examples.iter().flat_map(|of| of.labels.iter().chain(&of.completion));
        let targets: Vec<u32> = targets.copied().collect();
        let weights = vec![1.0 / targets.len() as f32; targets.len()];
        self.model.cross_entropy(hidden, targets, &weights)
    }

    /// The latent losses of all groups, and the gradients of the hidden states at the groups.
    fn latent_losses(
        &mut self,
        pass: &CompressedPass,
        at_groups: &[usize],
        noise: Tensor,
    ) -> Result<(Tensor, Tensor), DeviceError> {
        let device = self.model.decoder.device().clone();
        let at_groups = ops::select(&device, [&pass.hidden], at_groups)?;
        let of = self.head.forward(&device, at_groups)?;
        let next_rows: Vec<usize> = pass.rows.groups.iter().map(|row| row + 1).collect();
        let mut target = ops::select(&device, [&pass.inputs], &next_rows)?;
        ops::scale(&device, &mut target, 1.0 / self.embedding_std)?;
        let mut dmean = Tensor::default();
        let mut dlog_std = Tensor::default();
        let weight = 1.0 / next_rows.len() as f32;
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

    /// The noise of the latent loss, (groups, width): from the examples if provided, else sampled.
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

impl TrainStep for ColarTrainStep {
    type Example = ColarExample;

    fn accumulate_gradients(
        &mut self,
        examples: &[ColarExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<Losses, DeviceError> {
        let ColarLosses { tokens, latent } = self.batch_losses(examples, dropout)?;
        Ok(Losses::new(tokens).with("latent", latent))
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
