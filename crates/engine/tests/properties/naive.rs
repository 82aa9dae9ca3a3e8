//! Forked rows equal whole sequences computed from scratch: no cache, no sharing, one row at a
//! time, every step from the first position on.
//!
//! The naive engine implements the method (the order of input vectors, the stochastic positions)
//! and uses only the decoder and the latent head of the crates under test. Sums run in position
//! order for any cache slots, so the two agree bitwise.

use std::sync::Arc;

use latent_tts_engine::reference::{self, RandomSource, ReferenceRun};
use latent_tts_engine::{
    DropoutScope, DropoutSites, Engine, LatentLength, MaskLifetime, Perturbation, Prompt, Reasoner,
    RecordedNoise, SamplingParams, SequenceId,
};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use model::{Cache, Dropout, Pass, Sequence, head};
use tensor::Tensor;
use tensor::ops::{PerturbedRows, RowPerturbation, SiteSet};
use tensor::rng::{RngKey, Site};

use crate::common::*;
use crate::token_sampling;

/// One sequence, computed by definition.
#[derive(Clone)]
pub struct NaiveEngine<'a> {
    reasoner: &'a Reasoner,
    params: &'a SamplingParams,
    pub row: SequenceId,
    max_thoughts: usize,
    /// All inputs so far: (positions, width).
    inputs: Tensor,
    /// The key of each position's masks, where its pass is stochastic: (positions).
    keys: Vec<Option<RngKey>>,
}

/// The results of a sequence.
pub struct NaiveRow {
    pub thoughts: Tensor,
    pub tokens: Vec<u32>,
    pub logprob: f64,
    first_logits: Vec<f32>,
}

impl<'a> NaiveEngine<'a> {
    pub fn new(
        reasoner: &'a Reasoner,
        params: &'a SamplingParams,
        row: SequenceId,
        max_thoughts: usize,
    ) -> Self {
        let inputs = Tensor::zeros(0, reasoner.decoder.config().width);
        Self { reasoner, params, row, max_thoughts, inputs, keys: Vec::new() }
    }

    /// The key of the row's random numbers at its next position.
    fn next_key(&self) -> RngKey {
        self.row.rng_key(self.params.seed, self.keys.len())
    }

    fn feed(&mut self, vector: &[f32], stochastic: bool) {
        let keeps_masks = matches!(
            self.params.perturbation,
            Perturbation::Dropout { mask: MaskLifetime::Trajectory, .. }
        );
        let key = self.next_key();
        let key = if keeps_masks { RngKey { position: 0, ..key } } else { key };
        self.keys.push(stochastic.then_some(key));
        self.inputs.push(vector);
    }

    fn feed_tokens(&mut self, tokens: &[u32], stochastic: bool) {
        let vectors = self.reasoner.embed(tokens).unwrap();
        (0..vectors.rows()).for_each(|i| self.feed(vectors.row(i), stochastic));
    }

    /// The hidden state at the last position, with every position computed again.
    fn hidden(&self) -> Tensor {
        let decoder = &self.reasoner.decoder;
        let positions = self.inputs.rows();
        let slots = Cache::slots_for(positions);
        let mut cache = Cache::new(decoder.device(), decoder.config(), slots).unwrap();
        let mut pass = Pass::default();
        let mut sequence = Sequence::default();
        (1..=positions).for_each(|n| pass.push(&mut cache, &mut sequence, n == positions));
        let rows = match self.params.perturbation {
            Perturbation::Dropout { p, sites, .. } => {
                let attn_out = if sites.attn_out { SiteSet::ATTN_OUT } else { SiteSet::EMPTY };
                let mlp_out = if sites.mlp_out { SiteSet::MLP_OUT } else { SiteSet::EMPTY };
                let sites = attn_out.union(mlp_out);
                Some(
                    self.keys
                        .iter()
                        .map(|key| key.map(|key| RowPerturbation { key, strength: p.get(), sites }))
                        .collect::<Vec<_>>(),
                )
            }
            _ => None,
        };
        let dropout = rows.as_deref().map(Dropout::Sampled);
        decoder
            .device()
            .run(|| decoder.forward(&mut cache, &pass, self.inputs.clone(), dropout))
            .unwrap()
    }

    pub fn logits(&self) -> Vec<f32> {
        head::logits(&self.reasoner.decoder, &self.hidden()).unwrap().data().to_vec()
    }

    /// The thought that follows the inputs so far.
    pub fn thought(&self) -> Vec<f32> {
        let noise = match self.params.perturbation {
            Perturbation::Gumbel { tau, .. } => {
                let key = self.next_key();
                let strength = tau.get();
                let row = RowPerturbation { key, strength, sites: SiteSet::GUMBEL };
                Some(PerturbedRows::new(self.reasoner.decoder.device(), vec![Some(row)]).unwrap())
            }
            _ => None,
        };
        let head = &self.reasoner.head;
        let decoder = &self.reasoner.decoder;
        let made = head.forward_perturbed(decoder, &self.hidden(), noise.as_ref()).unwrap();
        let mut thought = made.thoughts.data().to_vec();
        if let Perturbation::Gaussian { std } = self.params.perturbation {
            self.next_key().add_noise(std, &mut thought);
        }
        thought
    }

    /// The scope of dropout, if any.
    pub fn scope(&self) -> Option<DropoutScope> {
        match self.params.perturbation {
            Perturbation::Dropout { scope, .. } => Some(scope),
            _ => None,
        }
    }

    pub fn run(mut self, prompt: &[u32]) -> NaiveRow {
        self.feed_prompt(prompt);
        let thoughts = Tensor::zeros(0, self.inputs.cols());
        self.continue_from(thoughts)
    }

    /// A rollout: the given thoughts are fed, and from the last of them on the random numbers are
    /// those of `rollout`.
    pub fn roll_out(mut self, prompt: &[u32], given: &Tensor, rollout: SequenceId) -> NaiveRow {
        self.feed_prompt(prompt);
        let mut thoughts = Tensor::zeros(0, self.inputs.cols());
        for t in 0..given.rows() {
            if t + 1 == given.rows() {
                self.row = rollout;
            }
            thoughts.push(given.row(t));
            self.feed_thought(given.row(t), t + 1);
        }
        self.continue_from(thoughts)
    }

    pub fn feed_prompt(&mut self, prompt: &[u32]) {
        let (last, before) = prompt.split_last().unwrap();
        let whole_prompt = matches!(self.scope(), Some(DropoutScope::Prompt | DropoutScope::All));
        self.feed_tokens(before, whole_prompt);
        self.feed_tokens(&[*last], self.scope().is_some());
    }

    /// Feeds thought `number`, counted from 1. The pass over the last thought computes no thought,
    /// so it is stochastic only if the answer's passes are.
    pub fn feed_thought(&mut self, thought: &[f32], number: usize) {
        let makes_thought = number < self.max_thoughts;
        let stochastic =
            self.scope().is_some_and(|scope| makes_thought || scope == DropoutScope::All);
        self.feed(thought, stochastic);
    }

    fn continue_from(mut self, mut thoughts: Tensor) -> NaiveRow {
        let method = &self.reasoner.method;
        let is_open = matches!(self.params.length, LatentLength::AtMost(_));
        while thoughts.rows() < self.max_thoughts
            && !(is_open && argmax(&self.logits()) == method.end_latent[0])
        {
            let thought = self.thought();
            thoughts.push(&thought);
            self.feed_thought(&thought, thoughts.rows());
        }
        let (tokens, logprob, first_logits) = self.answer();
        NaiveRow { thoughts, tokens, logprob, first_logits }
    }

    /// The answer after all thoughts were fed: its tokens, their log-probability, and the logits of
    /// the first one.
    pub fn answer(mut self) -> (Vec<u32>, f64, Vec<f32>) {
        let method = &self.reasoner.method;
        let stochastic = self.scope() == Some(DropoutScope::All);
        self.feed_tokens(&method.end_latent, stochastic);
        let first_logits = self.logits();
        let (token, mut logprob) = self.next_token(&first_logits);
        let mut tokens = vec![token];
        while tokens.len() < self.params.max_new_tokens.get()
            && !method.eos.contains(&tokens[tokens.len() - 1])
        {
            self.feed_tokens(&tokens[tokens.len() - 1..], stochastic);
            let (token, more) = self.next_token(&self.logits());
            tokens.push(token);
            logprob += more;
        }
        (tokens, logprob, first_logits)
    }

    /// The next token and its log-probability, in double precision.
    fn next_token(&self, logits: &[f32]) -> (u32, f64) {
        let token = match self.params.perturbation {
            Perturbation::Tokens { temperature, top_p } => {
                let at = self.next_key().uniform(Site::Token);
                let probabilities = softmax(logits, f64::from(temperature.get()));
                sample_top_p(&probabilities, f64::from(top_p.get()), at)
            }
            _ => argmax(logits),
        };
        (token, softmax(logits, 1.0)[token as usize].ln())
    }
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> =
        logits.iter().map(|&x| ((f64::from(x) - f64::from(largest)) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// Restricts the distribution to the smallest set of tokens whose probabilities sum to `top_p`, and
/// returns the token at `at` (in `[0, 1)`) of the cumulative distribution in the order of token
/// ids.
fn sample_top_p(probabilities: &[f64], top_p: f64, at: f64) -> u32 {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]).then(a.cmp(&b)));
    let mut mass = 0.0;
    let is_enough = |&i: &usize| {
        mass += probabilities[i];
        mass >= top_p
    };
    // The total may be slightly less than 1.
    let count = order.iter().position(is_enough).map_or(order.len(), |last| last + 1);
    let mut kept = order[..count].to_vec();
    kept.sort_unstable();
    let mut left = at * kept.iter().map(|&i| probabilities[i]).sum::<f64>();
    let is_reached = |&&i: &&usize| {
        left -= probabilities[i];
        left < 0.0
    };
    *kept.iter().find(is_reached).unwrap() as u32
}

/// The index of the largest element, the lowest one of a tie.
pub fn argmax(logits: &[f32]) -> u32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&x| x == largest).unwrap() as u32
}

/// Fails unless the engine's sequences equal those of the naive engine.
pub fn assert_naive(reasoner: &Arc<Reasoner>, params: &SamplingParams, what: &str) {
    let engine = Engine::new(Arc::clone(reasoner));
    for question in &questions()[2..4] {
        let prompt = prompt_of(reasoner, question);
        let rows = run_sequences(reasoner, params, &prompt);
        let reply = engine.solve(&question.request(*params)).unwrap();
        for (k, (found, trajectory)) in rows.iter().zip(&reply.trajectories).enumerate() {
            let id = row_id(question.id, k);
            let naive = NaiveEngine::new(reasoner, params, id, params.length.limit());
            let expected = naive.run(&prompt.tokens);
            let what = format!("{what}, trajectory {k}");
            assert_eq!(found.tokens[..], expected.tokens, "{what}");
            assert_eq!(trajectory.tokens[..], expected.tokens, "{what}");
            assert_eq!(found.first_logits, expected.first_logits, "{what}");
            let logprob = trajectory.logprob.unwrap();
            assert_eq!(logprob, found.logprob, "{what}");
            let error = (f64::from(logprob) - expected.logprob).abs();
            assert!(error < 1e-5 * expected.logprob.abs().max(1.0), "{what}: {logprob}");
            assert_eq!(found.thoughts.rows(), expected.thoughts.rows(), "{what}");
            assert_eq!(trajectory.thoughts, expected.thoughts.rows(), "{what}");
            if expected.thoughts.rows() > 0 {
                assert_same_bits(&found.thoughts, &expected.thoughts, &what);
                assert_same_bits(&trajectory.latents, &expected.thoughts, &what);
            }
            let text = reasoner.tokenizer.decode(&expected.tokens).unwrap();
            assert_eq!(trajectory.text, text, "{what}");
        }
    }
}

#[test]
fn every_family_is_the_naive_one() {
    for family in FAMILIES {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let reasoner = Arc::new(reasoner(device(), &spec));
        for perturbation in perturbations() {
            let params = short_params(&reasoner, 3, perturbation);
            assert_naive(&reasoner, &params, &format!("{family:?}, {perturbation:?}"));
        }
    }
}

/// Without thoughts and end tokens, answers start from the prompt's last position; with either,
/// from the last position after it.
#[test]
fn every_family_without_thoughts_is_the_naive_one() {
    let everywhere = dropout(0.2, DropoutSites::BOTH, DropoutScope::All);
    for family in FAMILIES {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let reasoner = Arc::new(reasoner(device(), &spec));
        for perturbation in [Perturbation::None, sampled(1.0, 1.0), everywhere] {
            let params = short_params(&reasoner, 3, perturbation);
            let params = SamplingParams { length: LatentLength::None, ..params };
            let what = format!("{family:?}, {perturbation:?}, no thoughts");
            assert_naive(&reasoner, &params, &what);
        }
    }
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiLlama] {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let reasoner = Arc::new(token_sampling::cot_reasoner(device(), &spec));
        for perturbation in [Perturbation::None, sampled(0.7, 0.8), everywhere] {
            let params = short_params(&reasoner, 3, perturbation);
            assert_naive(&reasoner, &params, &format!("cot, {perturbation:?}"));
        }
        let params = short_params(&reasoner, 3, thought_dropout(0.2));
        let params = SamplingParams { length: exactly(2), ..params };
        assert_naive(&reasoner, &params, "thoughts without end tokens");
    }
}

#[test]
fn every_scope_and_site_is_the_naive_one() {
    let no_sites = DropoutSites { attn_out: false, mlp_out: false };
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let reasoner = Arc::new(reasoner(device(), &spec));
        for scope in [DropoutScope::Thoughts, DropoutScope::Prompt, DropoutScope::All] {
            for sites in [DropoutSites::BOTH, DropoutSites::MLP, DropoutSites::ATTN, no_sites] {
                let params = short_params(&reasoner, 2, dropout(0.25, sites, scope));
                assert_naive(&reasoner, &params, &format!("{family:?}, {scope:?}, {sites:?}"));
            }
        }
    }
}

/// Masks and noise as another implementation would record them, for rows of one length.
fn record_noise(reasoner: &Reasoner, params: &SamplingParams, prompt: &Prompt) -> RecordedNoise {
    let thoughts = params.length.limit();
    let rows = params.samples.get();
    let layers = reasoner.decoder.config().layers;
    let width = reasoner.decoder.config().width;
    let shape = [thoughts, layers, rows, 1, width];
    let mut recorded = RecordedNoise { shape, ..RecordedNoise::default() };
    let key = |k: usize, position: usize| row_id(prompt.id, k).rng_key(params.seed, position);
    for t in 0..thoughts {
        // Pass t runs over the position before thought t, which is fed at the next one.
        let at = prompt.tokens.len() + t;
        if let Perturbation::Dropout { p, .. } = params.perturbation {
            for (layer, site) in (0..layers).flat_map(|l| [(l, Site::AttnOut), (l, Site::MlpOut)]) {
                let keeps =
                    |k: usize, i: usize| u8::from(key(k, at - 1).keeps(layer, site, i, p.get()));
                for k in 0..rows {
                    recorded.keep_masks.extend((0..width).map(|i| keeps(k, i)));
                }
            }
        }
        if let Perturbation::Gaussian { std } = params.perturbation {
            for k in 0..rows {
                let mut noise = vec![0.0; width];
                key(k, at).add_noise(std, &mut noise);
                recorded.noise.extend(noise);
            }
        }
    }
    recorded
}

/// Comparisons with another implementation run with its masks, noise or thoughts; so a run with
/// recordings of itself must change nothing.
#[test]
fn recorded_noise_and_forced_thoughts_of_ones_own_change_nothing() {
    let mlp_only = dropout(0.3, DropoutSites::MLP, DropoutScope::Thoughts);
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        let prompt = prompt_of(&reasoner, &questions()[0]);
        for perturbation in [thought_dropout(0.2), mlp_only, Perturbation::Gaussian { std: 0.3 }] {
            let params = short_params(&reasoner, 3, perturbation);
            let params = SamplingParams { length: exactly(4), ..params };
            let expected = run_sequences(&reasoner, &params, &prompt);
            let noise = record_noise(&reasoner, &params, &prompt);
            let own: Vec<Tensor> = expected.iter().map(|row| row.thoughts.clone()).collect();
            let run = reference_run(&params);
            let recorded = ReferenceRun { source: RandomSource::Recorded(&noise), ..run };
            let forced = ReferenceRun { forced_thoughts: Some(&own), ..run };
            for (run, how) in [(recorded, "recorded"), (forced, "forced")] {
                let found = reference::run_sequences(&reasoner, &prompt, run).unwrap();
                for (a, b) in expected.iter().zip(&found) {
                    let what = format!("{family:?}, {perturbation:?}, {how}");
                    assert_same_bits(&a.thoughts, &b.thoughts, &what);
                    assert_eq!(a.tokens, b.tokens, "{what}");
                    assert_eq!(a.first_logits, b.first_logits, "{what}");
                }
            }
        }
    }
}

/// A prompt of one token: if sequences compute the last token separately, nothing is left to share.
#[test]
fn a_prompt_of_one_token_is_the_naive_one() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let empty = question(5, "");
    let prompt = prompt_of(&pair.reasoner, &empty);
    assert_eq!(prompt.tokens.len(), 1);
    for perturbation in perturbations() {
        let params = short_params(&pair.reasoner, 2, perturbation);
        let reply = pair.solve(params, &empty);
        let id = row_id(5, 1);
        let naive = NaiveEngine::new(&pair.reasoner, &params, id, params.length.limit());
        let expected = naive.run(&prompt.tokens).thoughts;
        assert_same_bits(&reply.trajectories[1].latents, &expected, &format!("{perturbation:?}"));
    }
}
