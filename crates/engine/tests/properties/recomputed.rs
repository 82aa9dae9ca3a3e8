//! Forked rows equal whole sequences computed from scratch: no cache, no sharing, one row, every
//! step anew.
//!
//! The recomputation here knows the method (which vector comes next, which positions are
//! stochastic) and leaves only the decoder and the latent head to the crates under test. Sums run
//! in the order of positions whatever the slots, so that the two agree to the bit.

use engine::perturb::{RandomSource, RecordedNoise, RowId};
use engine::prompt::Prompt;
use engine::reference::ReferenceRun;
use engine::{DropoutScope, DropoutSites, LatentLength, Perturbation, Reasoner, SamplingParams};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use model::{Cache, Dropout, Pass, Sequence, head};
use tensor::Tensor;
use tensor::ops::RowPerturbation;
use tensor::rng::{RngKey, Site};

use crate::common::*;
use crate::words;

/// A row computed without any cleverness.
#[derive(Clone)]
pub struct NaiveEngine<'a> {
    reasoner: &'a Reasoner,
    settings: &'a SamplingParams,
    pub row: RowId,
    limit: usize,   // thoughts at most
    inputs: Tensor, // (positions, width): everything that was fed
    draws: Vec<Option<RngKey>>, /* (positions): where its masks are drawn, if its pass is
                     * stochastic */
}

/// What it did.
pub struct NaiveRow {
    pub thoughts: Tensor,
    pub tokens: Vec<u32>,
    pub logprob: f64,
    first_logits: Vec<f32>,
}

impl<'a> NaiveEngine<'a> {
    pub fn new(
        reasoner: &'a Reasoner,
        settings: &'a SamplingParams,
        row: RowId,
        limit: usize,
    ) -> Self {
        let inputs = Tensor::zeros(0, reasoner.decoder.config().width);
        Self { reasoner, settings, row, limit, inputs, draws: Vec::new() }
    }

    fn feed(&mut self, vector: &[f32], stochastic: bool) {
        let position = self.draws.len();
        self.draws.push(stochastic.then(|| self.row.rng_key(self.settings.seed, position)));
        self.inputs.push(vector);
    }

    fn feed_tokens(&mut self, tokens: &[u32], stochastic: bool) {
        let vectors = self.reasoner.embed(tokens).unwrap();
        (0..vectors.rows()).for_each(|i| self.feed(vectors.row(i), stochastic));
    }

    /// The hidden state at the last position, from nothing.
    fn hidden(&self) -> Tensor {
        let decoder = &self.reasoner.decoder;
        let mut cache =
            Cache::new(decoder.device(), decoder.config(), Cache::slots_for(self.inputs.rows()))
                .unwrap();
        let (mut pass, mut sequence) = (Pass::default(), Sequence::default());
        (0..self.inputs.rows())
            .for_each(|i| pass.push(&mut cache, &mut sequence, i + 1 == self.inputs.rows()));
        let rows = match self.settings.perturbation {
            Perturbation::Dropout { p, sites, .. } => {
                let row = |key| RowPerturbation { key, strength: p.get(), sites: sites.into() };
                Some(self.draws.iter().map(|key| key.map(row)).collect::<Vec<_>>())
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

    /// The thought that follows what was fed.
    pub fn thought(&self) -> Vec<f32> {
        let mut thought = self
            .reasoner
            .head
            .forward(&self.reasoner.decoder, &self.hidden())
            .unwrap()
            .thoughts
            .data()
            .to_vec();
        if let Perturbation::Gaussian { std } = self.settings.perturbation {
            self.row.rng_key(self.settings.seed, self.draws.len()).add_noise(std, &mut thought);
        }
        thought
    }

    /// When its passes are stochastic, if any is.
    pub fn scope(&self) -> Option<DropoutScope> {
        match self.settings.perturbation {
            Perturbation::Dropout { scope, .. } => Some(scope),
            _ => None,
        }
    }

    pub fn run(mut self, prompt: &[u32]) -> NaiveRow {
        self.feed_prompt(prompt);
        let thoughts = Tensor::zeros(0, self.inputs.cols());
        self.go_on(thoughts)
    }

    /// Thoughts 1 to `t` of its path are given; with fresh numbers after them, those of `rollout`.
    pub fn roll(mut self, prompt: &[u32], given: &Tensor, rollout: RowId) -> NaiveRow {
        self.feed_prompt(prompt);
        let mut thoughts = Tensor::zeros(0, self.inputs.cols());
        for t in 0..given.rows() {
            if t + 1 == given.rows() {
                self.row = rollout;
            }
            thoughts.push(given.row(t));
            self.feed_thought(given.row(t), t + 1);
        }
        self.go_on(thoughts)
    }

    pub fn feed_prompt(&mut self, prompt: &[u32]) {
        let (last, before) = prompt.split_last().unwrap();
        self.feed_tokens(
            before,
            matches!(self.scope(), Some(DropoutScope::Prompt | DropoutScope::All)),
        );
        self.feed_tokens(&[*last], self.scope().is_some());
    }

    /// The pass over the last thought makes no thought.
    pub fn feed_thought(&mut self, thought: &[f32], number: usize) {
        self.feed(
            thought,
            self.scope().is_some_and(|scope| number < self.limit || scope == DropoutScope::All),
        );
    }

    fn go_on(mut self, mut thoughts: Tensor) -> NaiveRow {
        let method = &self.reasoner.method;
        let open = matches!(self.settings.length, LatentLength::AtMost(_));
        while thoughts.rows() < self.limit
            && !(open && likeliest(&self.logits()) == method.end_latent[0])
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
        let (method, stochastic) = (&self.reasoner.method, self.scope() == Some(DropoutScope::All));
        self.feed_tokens(&method.end_latent, stochastic);
        let first_logits = self.logits();
        let (token, mut logprob) = self.say(&first_logits);
        let mut tokens = vec![token];
        while tokens.len() < self.settings.max_new_tokens.get()
            && !method.eos.contains(&tokens[tokens.len() - 1])
        {
            self.feed_tokens(&tokens[tokens.len() - 1..], stochastic);
            let (token, more) = self.say(&self.logits());
            tokens.push(token);
            logprob += more;
        }
        (tokens, logprob, first_logits)
    }

    /// The next token, by definition and in double precision, and its log-probability.
    fn say(&self, logits: &[f32]) -> (u32, f64) {
        let token = match self.settings.perturbation {
            Perturbation::Tokens(from) => {
                let at =
                    self.row.rng_key(self.settings.seed, self.draws.len()).uniform(Site::Token);
                draw_from(
                    &softmax(logits, f64::from(from.temperature())),
                    f64::from(from.top_p()),
                    at,
                )
            }
            _ => likeliest(logits),
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

/// The token at `at` of the shares in the order of tokens, of the fewest tokens that have `top_p`
/// together.
fn draw_from(shares: &[f64], top_p: f64, at: f64) -> u32 {
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]).then(a.cmp(&b)));
    let mut mass = 0.0;
    let enough = |&i: &usize| {
        mass += shares[i];
        mass >= top_p
    };
    // All of them may sum to a little less than 1.
    let mut kept = order[..order.iter().position(enough).map_or(order.len(), |at| at + 1)].to_vec();
    kept.sort_unstable();
    let mut left = at * kept.iter().map(|&i| shares[i]).sum::<f64>();
    let passes = |&&i: &&usize| {
        left -= shares[i];
        left < 0.0
    };
    *kept.iter().find(passes).unwrap() as u32
}

/// The index of the largest element, the lowest among equals.
pub fn likeliest(logits: &[f32]) -> u32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&x| x == largest).unwrap() as u32
}

fn check(reasoner: &Reasoner, settings: &SamplingParams, what: &str) {
    for question in &questions()[2..4] {
        let prompt = prompted(reasoner, question);
        let rows = replayed(reasoner, settings, &prompt);
        let outcome = ask(
            engine::Engine { reasoner, reward_model: None, params: *settings },
            std::slice::from_ref(question),
        )
        .unwrap()
        .remove(0);
        for (k, found) in rows.iter().enumerate() {
            let expected =
                NaiveEngine::new(reasoner, settings, row(question.id, k), settings.length.limit())
                    .run(&prompt.tokens);
            let what = format!("{what}, trajectory {k}");
            assert_eq!(found.tokens[..], expected.tokens, "{what}");
            assert_eq!(found.first_logits, expected.first_logits, "{what}");
            let logprob = outcome.sample.trajectories[k].logprob.unwrap();
            assert_eq!(logprob, found.logprob, "{what}");
            assert!(
                (f64::from(logprob) - expected.logprob).abs()
                    < 1e-5 * expected.logprob.abs().max(1.0),
                "{what}: {logprob}"
            );
            assert_eq!(found.thoughts.rows(), expected.thoughts.rows(), "{what}");
            if expected.thoughts.rows() > 0 {
                assert_same_bits(&found.thoughts, &expected.thoughts, &what);
                assert_same_bits(&outcome.thoughts[k], &expected.thoughts, &what);
            }
            assert_eq!(
                outcome.sample.trajectories[k].text,
                reasoner.tokenizer.decode(&expected.tokens).unwrap(),
                "{what}"
            );
        }
    }
}

#[test]
fn every_family_forked_is_the_family_recomputed() {
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        for perturbation in perturbations() {
            check(
                &reasoner,
                &settings(&reasoner, 3, perturbation),
                &format!("{family:?}, {perturbation:?}"),
            );
        }
    }
}

/// Without thoughts and end tokens, answers are read off the prompt; with either, off what follows
/// it.
#[test]
fn every_family_without_thoughts_is_the_family_recomputed() {
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        for perturbation in [
            Perturbation::None,
            drawn(1.0, 1.0),
            dropout(0.2, DropoutSites::BOTH, DropoutScope::All),
        ] {
            let settings = SamplingParams {
                length: LatentLength::None,
                ..settings(&reasoner, 3, perturbation)
            };
            check(&reasoner, &settings, &format!("{family:?}, {perturbation:?}, no thoughts"));
        }
    }
    for spec in [
        CheckpointSpec::default(),
        CheckpointSpec { family: CheckpointFamily::CodiLlama, ..CheckpointSpec::default() },
    ] {
        let reasoner = words::reasoner(device(), &spec);
        for perturbation in [
            Perturbation::None,
            drawn(0.7, 0.8),
            dropout(0.2, DropoutSites::BOTH, DropoutScope::All),
        ] {
            check(
                &reasoner,
                &settings(&reasoner, 3, perturbation),
                &format!("words, {perturbation:?}"),
            );
        }
        check(
            &reasoner,
            &SamplingParams { length: exactly(2), ..settings(&reasoner, 3, thoughtful(0.2)) },
            "thoughts without end tokens",
        );
    }
}

#[test]
fn every_scope_and_site_is_the_one_recomputed() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        for scope in [DropoutScope::Thoughts, DropoutScope::Prompt, DropoutScope::All] {
            for sites in [
                DropoutSites::BOTH,
                DropoutSites::MLP,
                DropoutSites::ATTN,
                DropoutSites { attn_out: false, mlp_out: false },
            ] {
                let settings = settings(&reasoner, 2, dropout(0.25, sites, scope));
                check(&reasoner, &settings, &format!("{family:?}, {scope:?}, {sites:?}"));
            }
        }
    }
}

/// Masks and noise written out as another implementation would record them, for rows of one length.
fn recorded(reasoner: &Reasoner, settings: &SamplingParams, prompt: &Prompt) -> RecordedNoise {
    let (thoughts, rows) = (settings.length.limit(), settings.samples.get());
    let (layers, width) = (reasoner.decoder.config().layers, reasoner.decoder.config().width);
    let mut recording =
        RecordedNoise { shape: [thoughts, layers, rows, width], ..RecordedNoise::default() };
    for t in 0..thoughts {
        // Pass t runs over the position before thought t, which is fed at the next one.
        let draw = |k: usize, position: usize| row(prompt.id, k).rng_key(settings.seed, position);
        let at = prompt.tokens.len() + t;
        if let Perturbation::Dropout { p, .. } = settings.perturbation {
            for (layer, site) in (0..layers).flat_map(|l| [(l, Site::AttnOut), (l, Site::MlpOut)]) {
                let keep = |k: usize| {
                    (0..width)
                        .map(move |i| u8::from(draw(k, at - 1).keeps(layer, site, i, p.get())))
                };
                recording.keep_masks.extend((0..rows).flat_map(keep));
            }
        }
        if let Perturbation::Gaussian { std } = settings.perturbation {
            for k in 0..rows {
                let mut noise = vec![0.0; width];
                draw(k, at).add_noise(std, &mut noise);
                recording.noise.extend(noise);
            }
        }
    }
    recording
}

/// Replaying another implementation's masks, noise or thoughts is what a run of one's own is
/// compared by; so replaying one's own must change nothing.
#[test]
fn replaying_what_was_drawn_changes_nothing() {
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        let prompt = prompted(&reasoner, &questions()[0]);
        for perturbation in [
            thoughtful(0.2),
            dropout(0.3, DropoutSites::MLP, DropoutScope::Thoughts),
            Perturbation::Gaussian { std: 0.3 },
        ] {
            let settings =
                SamplingParams { length: exactly(4), ..settings(&reasoner, 3, perturbation) };
            let drawn = replayed(&reasoner, &settings, &prompt);
            let recording = recorded(&reasoner, &settings, &prompt);
            let own: Vec<Tensor> = drawn.iter().map(|row| row.thoughts.clone()).collect();
            let how = replay_of(&settings);
            for how in [
                ReferenceRun { source: RandomSource::Recorded(&recording), ..how },
                ReferenceRun { forced_thoughts: Some(&own), ..how },
            ] {
                for (a, b) in
                    drawn.iter().zip(engine::reference::run_rows(&reasoner, &prompt, how).unwrap())
                {
                    let what = format!(
                        "{family:?}, {perturbation:?}, follows {}",
                        how.forced_thoughts.is_some()
                    );
                    assert_same_bits(&a.thoughts, &b.thoughts, &what);
                    assert_eq!(
                        (&a.tokens, &a.first_logits),
                        (&b.tokens, &b.first_logits),
                        "{what}"
                    );
                }
            }
        }
    }
}

/// A prompt of one token: nothing is left to share when its last token is private.
#[test]
fn a_prompt_of_one_token_is_a_prompt() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let empty = question(5, "");
    let prompt = prompted(&pair.reasoner, &empty);
    assert_eq!(prompt.tokens.len(), 1);
    for perturbation in perturbations() {
        let settings = settings(&pair.reasoner, 2, perturbation);
        let outcome = pair.ask_one(settings, &empty);
        let naive = NaiveEngine::new(&pair.reasoner, &settings, row(5, 1), settings.length.limit());
        assert_same_bits(
            &outcome.thoughts[1],
            &naive.run(&prompt.tokens).thoughts,
            &format!("{perturbation:?}"),
        );
    }
}
