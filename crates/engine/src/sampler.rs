//! The random numbers of a batch's sequences: Philox numbers under each request's seed, or recorded
//! by another implementation.
//!
//! A random number is keyed by seed, question, trajectory, position, layer, site and element, so it
//! does not depend on which sequences share a forward pass. Masks that are fixed per trajectory
//! have position 0. Each sequence has the perturbation strength of its own request.

use model::{Decoder, Dropout, LatentHead};
use schema::{ColdStop, CustomSampler, OneSidedNoise, ThoughtKey};
use tensor::ops::{
    self, MixtureDraw, MixtureRule, PendingTokens, PerturbedRows, RowPerturbation, SiteSet,
    TokenDraw, TokenSampling,
};
use tensor::rng::{RngKey, Site};
use tensor::{Device, DeviceError, Tensor};

use crate::batch::BatchItem;
use crate::executor::{SequenceState, ThoughtRow};
use crate::method::{LatentLength, LengthRange};
use crate::perturb::{Perturbation, PromptSharing, site_set};
pub(crate) use crate::perturbation_keys::PassStage;
use crate::perturbation_keys::PerturbationKeys;
use crate::sampling_params::SamplingParams;

/// The part of a random number key that identifies a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceId {
    /// The request's id: the question's index in its data set.
    pub question: u32,
    /// The trajectory's index within the question.
    pub trajectory: u32,
}

impl SequenceId {
    /// The random number key of this trajectory at a position, counted from the first prompt token.
    pub fn rng_key(self, seed: u64, position: usize) -> RngKey {
        RngKey {
            seed,
            question: self.question,
            trajectory: self.trajectory,
            position: position as u32,
        }
    }

    /// The sampled number of thoughts of a trajectory of variable length.
    pub(crate) fn length(self, seed: u64, range: LengthRange) -> usize {
        self.rng_key(seed, 0).uniform_int(Site::Length, range.low().get(), range.high().get())
    }
}

/// Dropout masks and noise of another implementation, for the sequences of one question.
#[derive(Clone, Debug, Default)]
pub struct RecordedNoise {
    /// Thoughts or loops, layers, sequences, positions and width of the arrays. Each thought has
    /// one position, each loop those of all thoughts.
    pub shape: [usize; 5],
    /// 1 keeps, 0 drops: (thoughts, layers, 2 sites, sequences, positions, width).
    pub keep_masks: Vec<u8>,
    /// Noise: (thoughts, sequences, positions, width).
    pub noise: Vec<f32>,
}

impl RecordedNoise {
    /// The masks of pass `t` for some sequences: attention and MLP site of each layer in turn, each
    /// (rows, width). A sequence is listed once for each of its positions.
    fn masks(&self, t: usize, rows: &[u32]) -> Vec<Vec<u8>> {
        let [_, layers, n, positions, width] = self.shape;
        let site = |s: usize| {
            let start = (t * layers * 2 + s) * n * positions;
            let mask = |(at, &r): (usize, &u32)| {
                let first = (start + r as usize * positions + at % positions) * width;
                self.keep_masks[first..first + width].to_vec()
            };
            rows.iter().enumerate().flat_map(mask).collect()
        };
        (0..2 * layers).map(site).collect()
    }

    fn noise(&self, t: usize, thought: &ThoughtRow<'_>) -> &[f32] {
        let [_, _, n, positions, width] = self.shape;
        let row = t * n + thought.sequence.spec.id.trajectory as usize;
        &self.noise[(row * positions + thought.index) * width..][..width]
    }
}

/// Masks of one forward pass of another implementation.
pub(crate) struct RecordedMasks {
    p: f32,
    sites: SiteSet,
    masks: Vec<Vec<u8>>,
}

impl RecordedMasks {
    pub(crate) fn dropout(&self) -> Dropout<'_> {
        Dropout::Recorded { p: self.p, sites: self.sites, masks: &self.masks }
    }
}

/// Provides the sequences of a batch with their random numbers.
#[derive(Clone, Copy)]
pub(crate) struct Sampler<'a> {
    pub(crate) items: &'a [BatchItem<'a>],
    /// Replaces the generated numbers; for the sequences of one question.
    pub(crate) recorded: Option<&'a RecordedNoise>,
}

impl<'a> Sampler<'a> {
    /// Generates numbers under each item's seed.
    pub(crate) fn new(items: &'a [BatchItem<'a>]) -> Self {
        Self { items, recorded: None }
    }

    pub(crate) fn params(&self, row: &SequenceState) -> &'a SamplingParams {
        self.items[row.spec.item].params
    }

    /// The part of an item's prompt that its sequences share.
    pub(crate) fn prompt_sharing(&self, item: usize) -> PromptSharing {
        self.items[item].params.perturbation.prompt_sharing()
    }

    /// Which items are cancelled. Each token is checked once, however many sequences it has.
    pub(crate) fn cancelled_items(&self) -> Vec<bool> {
        self.items.iter().map(|item| item.cancel.is_cancelled()).collect()
    }

    /// Whether any request has such a perturbation. Batches have thousands of sequences and few
    /// requests, so this check avoids most work per sequence.
    fn any_perturbation(&self, is_such: impl Fn(&Perturbation) -> bool) -> bool {
        self.items.iter().any(|item| is_such(&item.params.perturbation))
    }

    /// The random number keys of a sequence; `None` for an unperturbed one.
    fn keys(&self, row: &SequenceState) -> Option<PerturbationKeys> {
        let is_sampled = row.spec.perturbed && self.recorded.is_none();
        is_sampled.then(|| self.items[row.spec.item].keys())
    }

    /// The key of a sequence's thoughts at a position; `None` for an unperturbed one.
    fn key(&self, row: &SequenceState, position: usize) -> Option<RngKey> {
        let keys = self.keys(row)?;
        Some(keys.thoughts_of(row.spec.id).rng_key(keys.seed, position))
    }

    /// The random number key of a sequence's next answer token.
    fn token_key(&self, row: &SequenceState) -> Option<RngKey> {
        Some(row.spec.id.rng_key(self.keys(row)?.seed, row.random_position()))
    }

    /// The distribution from which a sequence's answer tokens are sampled; `None` for argmax.
    fn token_sampling(&self, row: &SequenceState) -> Option<TokenSampling> {
        match self.params(row).perturbation {
            Perturbation::Tokens { temperature, top_p } => {
                TokenSampling::new(temperature.get(), top_p.get())
            }
            _ => self.items[row.spec.item].answer_sampling.map(|answers| answers.tokens),
        }
    }

    /// Whether any request samples its answer tokens.
    fn samples_tokens(&self) -> bool {
        let samples = |item: &BatchItem<'_>| {
            let is_tokens = matches!(item.params.perturbation, Perturbation::Tokens { .. });
            is_tokens || item.answer_sampling.is_some()
        };
        self.items.iter().any(samples)
    }

    /// Whether any request has a lens.
    pub(crate) fn has_lens(&self) -> bool {
        self.items.iter().any(|item| item.lens.is_some() || item.params.check_steps)
    }

    /// Number of lens tokens per thought of a sequence; `None` without a lens.
    pub(crate) fn lens_tokens(&self, row: &SequenceState) -> Option<usize> {
        let BatchItem { lens, params, .. } = &self.items[row.spec.item];
        let requested = lens.filter(|lens| lens.sampled || !row.spec.perturbed);
        // The arithmetic signals read each step as its most probable token.
        requested.map(|lens| lens.tokens.get()).or(params.check_steps.then_some(1))
    }

    /// Whether any request has forced thoughts.
    pub(crate) fn forces_thoughts(&self) -> bool {
        self.items.iter().any(|item| !item.forced_thoughts.is_empty())
    }

    /// The forced thoughts of a sequence, (thoughts, width), if its request has some for it.
    pub(crate) fn forced_thoughts(&self, row: &SequenceState) -> Option<&'a Tensor> {
        let forced = self.items[row.spec.item].forced_thoughts;
        forced.get(row.spec.id.trajectory as usize).filter(|_| row.spec.perturbed)
    }

    /// Maximum thoughts of a sequence.
    pub(crate) fn max_thoughts(&self, row: &SequenceState) -> usize {
        let params = self.params(row);
        let draws_length =
            row.spec.perturbed && self.recorded.is_none() && self.forced_thoughts(row).is_none();
        match params.length {
            LatentLength::Between(range) if draws_length => {
                let id = self.items[row.spec.item].keys().thoughts_of(row.spec.id);
                id.length(params.seed, range)
            }
            length => length.limit(),
        }
    }

    /// A sequence's dropout at its next position, if its request has dropout at this stage.
    pub(crate) fn dropout_row(
        &self,
        row: &SequenceState,
        stage: PassStage,
    ) -> Option<RowPerturbation> {
        self.dropout_at(row, row.random_position(), stage)
    }

    /// The same at a given position of the random number key.
    pub(crate) fn dropout_at(
        &self,
        row: &SequenceState,
        position: usize,
        stage: PassStage,
    ) -> Option<RowPerturbation> {
        self.keys(row)?.dropout(row.spec.id, position, stage)
    }

    /// The recorded masks of some sequences at a stage.
    pub(crate) fn recorded_masks<'r>(
        &self,
        sequences: impl Iterator<Item = &'r SequenceState>,
        stage: PassStage,
    ) -> Option<RecordedMasks> {
        let (recorded, PassStage::Thought(t)) = (self.recorded?, stage) else { return None };
        let mut sequences = sequences.peekable();
        let perturbation = self.params(sequences.peek()?).perturbation;
        let Perturbation::Dropout { p, sites, .. } = perturbation else { return None };
        let numbers: Vec<u32> = sequences.map(|row| row.spec.id.trajectory).collect();
        let masks = recorded.masks(t, &numbers);
        Some(RecordedMasks { p: p.get(), sites: site_set(sites), masks })
    }

    /// Adds noise to the thoughts, (thoughts, width), of sequences whose requests have noise. `t`
    /// counts the thoughts or loops of a sequence from 0.
    pub(crate) fn add_noise<'r>(
        &self,
        device: &Device,
        thoughts: impl Iterator<Item = ThoughtRow<'r>>,
        t: usize,
        x: &mut Tensor,
    ) -> Result<(), DeviceError> {
        if !self.any_perturbation(|p| matches!(p, Perturbation::Gaussian { .. })) {
            return Ok(());
        }
        if let Some(recorded) = self.recorded {
            let noise: Vec<f32> =
                thoughts.flat_map(|thought| recorded.noise(t, &thought).to_vec()).collect();
            let noise = Tensor::from_vec(x.rows(), x.cols(), noise).to_device(device)?;
            return ops::add(device, x, &noise);
        }
        let perturbed = |ThoughtRow { sequence, position, .. }: ThoughtRow<'_>| {
            self.keys(sequence)?.noise(sequence.spec.id, position)
        };
        ops::add_noise(device, x, &PerturbedRows::new(device, thoughts.map(perturbed).collect())?)
    }

    /// Passes the thoughts, (thoughts, width), of requests with a custom sampler to that sampler.
    pub(crate) fn perturb_thoughts<'r>(
        &self,
        device: &Device,
        rows: impl Iterator<Item = ThoughtRow<'r>>,
        thoughts: Tensor,
    ) -> Result<Tensor, DeviceError> {
        if !self.any_perturbation(|p| matches!(p, Perturbation::Custom(_))) {
            return Ok(thoughts);
        }
        let mut batches: Vec<(CustomSampler, Vec<ThoughtKey>, Vec<usize>)> = Vec::new();
        for (index, ThoughtRow { sequence, position, .. }) in rows.enumerate() {
            let Perturbation::Custom(sampler) = self.params(sequence).perturbation else {
                continue;
            };
            let Some(RngKey { seed, question, trajectory, position }) =
                self.key(sequence, position)
            else {
                continue;
            };
            let step = position - self.items[sequence.spec.item].prompt.tokens.len() as u32;
            let key = ThoughtKey { seed, question, trajectory, step };
            match batches.iter_mut().find(|(other, ..)| *other == sampler) {
                Some((_, keys, indices)) => {
                    keys.push(key);
                    indices.push(index);
                }
                None => batches.push((sampler, vec![key], vec![index])),
            }
        }
        let mut thoughts = thoughts.to_host()?;
        let width = thoughts.cols();
        for (sampler, keys, indices) in batches {
            let mut batch: Vec<f32> =
                indices.iter().flat_map(|&row| thoughts.row(row).to_vec()).collect();
            sampler.perturb(&keys, &mut batch, width);
            for (&row, changed) in indices.iter().zip(batch.chunks_exact(width)) {
                thoughts.row_mut(row).copy_from_slice(changed);
            }
        }
        thoughts.to_device(device)
    }

    /// The Gumbel noise on the mixtures that become the next thoughts of some sequences, each at
    /// the position where its thought is fed; `None` if no request has any.
    pub(crate) fn mixture_noise<'r>(
        &self,
        device: &Device,
        rows: impl Iterator<Item = &'r SequenceState>,
    ) -> Result<Option<PerturbedRows>, DeviceError> {
        if !self.any_perturbation(|p| matches!(p, Perturbation::Gumbel { one_sided: None, .. })) {
            return Ok(None);
        }
        let perturbed = |row: &SequenceState| {
            let Perturbation::Gumbel { tau, one_sided: None } = self.params(row).perturbation
            else {
                return None;
            };
            let key = self.key(row, row.random_position())?;
            Some(RowPerturbation { key, strength: tau.get(), sites: SiteSet::GUMBEL })
        };
        PerturbedRows::new(device, rows.map(perturbed).collect()).map(Some)
    }

    /// Whether a sequence's mixtures need a special rule: those of a sharpened distribution, of
    /// sampled tokens and of one-sided noise, and where entropy stops the thoughts.
    pub(crate) fn needs_rule(&self, head: &LatentHead, row: &SequenceState) -> bool {
        let SamplingParams { perturbation, cold_stop, .. } = self.params(row);
        let is_drawn = matches!(
            perturbation,
            Perturbation::Multiplex { .. } | Perturbation::Gumbel { one_sided: Some(_), .. }
        );
        let is_plain = matches!(head, LatentHead::TopKMixture { .. });
        head.is_mixture() && (!is_plain || is_drawn || cold_stop.is_some_and(ColdStop::is_on))
    }

    /// The rule of a sequence's mixture at the position where its thought is fed.
    pub(crate) fn mixture_rule(&self, rule: MixtureRule, row: &SequenceState) -> MixtureRule {
        let Some(key) = self.key(row, row.random_position()) else { return rule };
        let draw = match self.params(row).perturbation {
            Perturbation::Gumbel { tau, one_sided: None } => {
                MixtureDraw::Gumbel { key, tau: tau.get() }
            }
            Perturbation::Gumbel { tau, one_sided: Some(OneSidedNoise { scale, top_p }) } => {
                let tau = tau.get();
                let scale = scale.get();
                let top_p = top_p.get();
                MixtureDraw::OneSidedGumbel { key, tau, scale, top_p }
            }
            Perturbation::Multiplex { width, temperature, top_p } => {
                let sampling = TokenSampling::new(temperature.get(), top_p.get());
                let sampling = sampling.unwrap_or(TokenSampling::FULL_SOFTMAX);
                MixtureDraw::Sampled { key, count: width.get() as usize, sampling }
            }
            _ => MixtureDraw::None,
        };
        MixtureRule { draw, ..rule }
    }

    /// The Cold Stop parameters of a sequence.
    pub(crate) fn cold_stop(&self, row: &SequenceState) -> Option<ColdStop> {
        self.params(row).cold_stop.filter(|stop| stop.is_on())
    }

    /// The next token of each sequence, from their hidden states (sequences, width): the argmax, or
    /// sampled for requests that sample tokens.
    ///
    /// Sequences of different requests use the same operation as when run alone, so their
    /// log-probabilities are equal to the bit.
    pub(crate) fn next_tokens<'r>(
        &self,
        decoder: &Decoder,
        hidden: &Tensor,
        rows: impl Iterator<Item = &'r SequenceState>,
    ) -> Result<PendingTokens, DeviceError> {
        let device = decoder.device();
        if !self.samples_tokens() {
            return PendingTokens::greedy(device, hidden, decoder.lm_head());
        }
        let rows: Vec<&SequenceState> = rows.collect();
        let draws = |indices: &[usize]| -> Vec<Option<TokenDraw>> {
            let draw = |&i: &usize| {
                let (key, sampling) = self.token_key(rows[i]).zip(self.token_sampling(rows[i]))?;
                Some(TokenDraw { key, sampling })
            };
            indices.iter().map(draw).collect()
        };
        let (sampled, greedy): (Vec<usize>, Vec<usize>) =
            (0..rows.len()).partition(|&i| self.token_sampling(rows[i]).is_some());
        if sampled.is_empty() {
            return PendingTokens::greedy(device, hidden, decoder.lm_head());
        }
        if greedy.is_empty() {
            return PendingTokens::sampled(device, hidden, decoder.lm_head(), &draws(&sampled));
        }
        let of = |indices: &[usize]| ops::select(device, [hidden], indices);
        let argmax = PendingTokens::greedy(device, &of(&greedy)?, decoder.lm_head())?;
        let drawn =
            PendingTokens::sampled(device, &of(&sampled)?, decoder.lm_head(), &draws(&sampled))?;
        let mut all: Vec<_> = greedy.into_iter().zip(argmax.read()?).collect();
        all.extend(sampled.into_iter().zip(drawn.read()?));
        all.sort_unstable_by_key(|&(i, _)| i);
        Ok(PendingTokens::from(all.into_iter().map(|(_, token)| token).collect::<Vec<_>>()))
    }
}
