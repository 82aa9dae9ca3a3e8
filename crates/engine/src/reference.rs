//! Single stages for comparison with another implementation, with its prompt, masks, noise and
//! thoughts.

use std::num::NonZeroUsize;
use std::sync::Arc;

use model::{Cache, Pass, Sequence, head};
use tensor::{DeviceError, Tensor};

use crate::batch::BatchItem;
use crate::batch_plan::row_positions;
use crate::executor::{
    AnswerTokens, Executor, MadeThoughts, SequenceSpec, SequenceState, StepObserver, ThoughtRef,
};
use crate::method::LatentLength;
use crate::perturb::Perturbation;
use crate::prompt::Prompt;
use crate::reasoner::{LatentModel, RewardModel};
use crate::reference_trace::ReferenceTracer;
use crate::request::{CancelToken, Lens};
use crate::sampler::{RecordedNoise, Sampler, SequenceId};
use crate::sampling_params::SamplingParams;
use crate::score::{AnswerBatch, Rewards, ScoreBatch, ScoredSequence, score};

/// The source of a comparison's random numbers.
#[derive(Clone, Copy, Debug)]
pub enum RandomSource<'a> {
    /// The engine's random number generator with a seed.
    Seeded(u64),
    /// Another implementation's masks and noise, for the sequences of one question.
    Recorded(&'a RecordedNoise),
}

/// How sequences are run for a comparison.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceRun<'a> {
    /// Number of sequences.
    pub rows: usize,
    /// Number of thoughts of each sequence.
    pub length: LatentLength,
    /// The perturbation of the sequences.
    pub perturbation: Perturbation,
    /// The source of the random numbers.
    pub source: RandomSource<'a>,
    /// Maximum answer tokens of each sequence.
    pub max_new_tokens: NonZeroUsize,
    /// Thoughts to feed instead of the computed ones, per sequence: (thoughts, width). Thought t is
    /// then computed from the given thoughts before it, so that differences do not accumulate.
    pub forced_thoughts: Option<&'a [Tensor]>,
}

/// The results of a sequence.
#[derive(Clone, Debug)]
pub struct ReferenceRow {
    /// The computed thoughts, including the perturbation: (thoughts, width), those of each loop in
    /// turn. They are fed unless others are forced.
    pub thoughts: Tensor,
    /// The answer's tokens.
    pub tokens: AnswerTokens,
    /// Sum of their log-probabilities.
    pub logprob: f32,
    /// Logits at the last position before the answer: (vocabulary).
    pub first_logits: Vec<f32>,
    /// The token that the LM head predicts at each looped latent position, in the last pass.
    pub reading: Vec<u32>,
}

/// Hidden states of all tokens after the final norm: (tokens, width).
pub fn prompt_hidden(model: &LatentModel, tokens: &[u32]) -> Result<Tensor, DeviceError> {
    let decoder = &model.decoder;
    let slots = Cache::slots_for(tokens.len());
    let mut cache = Cache::new(decoder.device(), decoder.config(), slots)?;
    let mut pass = Pass::default();
    let mut sequence = Sequence::default();
    tokens.iter().for_each(|_| pass.push(&mut cache, &mut sequence, true));
    decoder
        .device()
        .run(|| decoder.forward(&mut cache, &pass, model.embed(tokens)?, None)?.to_host())
}

/// Runs the sequences of one prompt through prefill, thoughts and answer.
pub fn run_sequences(
    model: &LatentModel,
    prompt: &Prompt,
    run: ReferenceRun<'_>,
) -> Result<Vec<ReferenceRow>, DeviceError> {
    let positions = row_positions(model, run.length.limit(), run.max_new_tokens.get());
    let slots = (run.rows + 1) * Cache::slots_for(prompt.tokens.len() + positions);
    let mut cache = Cache::new(model.decoder.device(), model.decoder.config(), slots)?;
    let (seed, recorded) = match run.source {
        RandomSource::Seeded(seed) => (seed, None),
        RandomSource::Recorded(noise) => (0, Some(noise)),
    };
    let params = SamplingParams {
        perturbation: run.perturbation,
        length: run.length,
        max_new_tokens: run.max_new_tokens,
        seed,
        ..SamplingParams::defaults_for(&model.method)
    };
    let cancel = CancelToken::default();
    let lens = model.method.looped.map(|_| Lens { tokens: NonZeroUsize::MIN, sampled: true });
    let items = [BatchItem { lens, ..BatchItem::new(prompt, &params, &cancel) }];
    let sampler = Sampler { items: &items, recorded };
    let specs: Vec<SequenceSpec> = (0..run.rows).map(|r| row_spec(prompt, r)).collect();
    let mut observed = Observed {
        computed: vec![Tensor::zeros(0, model.decoder.config().width); run.rows],
        forced: run.forced_thoughts,
        first_hidden: Tensor::default(),
    };
    let mut executor = Executor::aligned(model, &specs);
    executor.observer = Some(&mut observed);
    model.decoder.device().run(|| executor.run(&mut cache, sampler))?;
    let sequences = std::mem::take(&mut executor.sequences);
    let logits = || head::logits(&model.decoder, &observed.first_hidden)?.to_host();
    let logits = model.decoder.device().run(logits)?;
    let row = |(r, (sequence, thoughts)): (usize, (SequenceState, Tensor))| ReferenceRow {
        thoughts,
        reading: sequence.lens.iter().filter_map(|tokens| Some(tokens.first()?.token)).collect(),
        tokens: sequence.tokens,
        logprob: sequence.logprob,
        first_logits: logits.row(r).to_vec(),
    };
    Ok(sequences.into_iter().zip(observed.computed).enumerate().map(row).collect())
}

/// Values that a comparison records between the steps.
struct Observed<'a> {
    /// The computed thoughts of each sequence.
    computed: Vec<Tensor>,
    forced: Option<&'a [Tensor]>,
    first_hidden: Tensor,
}

impl StepObserver for Observed<'_> {
    fn thought(&mut self, sequence: &SequenceState, thought: &mut [f32]) {
        let r = sequence.spec.id.trajectory as usize;
        self.computed[r].push(thought);
        let forced = self.forced.map(|rows| &rows[r]);
        let t = self.computed[r].rows() - 1;
        if let Some(forced) = forced.filter(|forced| t < forced.rows()) {
            thought.copy_from_slice(forced.row(t));
        }
    }

    fn first_hidden(&mut self, hidden: &Tensor) {
        self.first_hidden = hidden.clone();
    }
}

/// Process rewards of given thoughts, per sequence.
pub fn rewards(
    reward_model: &RewardModel,
    prompt: &Prompt,
    thoughts: &[Tensor],
) -> Result<Vec<Vec<f32>>, DeviceError> {
    let rewards = rewards_with_answers(reward_model, prompt, thoughts, None)?;
    Ok(rewards.into_iter().map(|rewards| rewards.process).collect())
}

/// Rewards of given thoughts and answers, per sequence.
pub fn rewards_with_answers(
    reward_model: &RewardModel,
    prompt: &Prompt,
    thoughts: &[Tensor],
    answers: Option<AnswerBatch<'_>>,
) -> Result<Vec<Rewards>, DeviceError> {
    let decoder = &reward_model.decoder;
    let longest = answers.map_or(0, |batch| {
        let longest = batch.answers.iter().map(|answer| answer.len()).max().unwrap_or(0);
        batch.end_latent.len() + longest
    });
    let own: usize = thoughts.iter().map(|t| Cache::slots_for(t.rows() + longest)).sum();
    let slots = own + Cache::slots_for(prompt.tokens.len() + reward_model.reference_thoughts());
    let mut cache = Cache::new(decoder.device(), decoder.config(), slots)?;
    let refs = |own: &Tensor| -> Result<Vec<ThoughtRef>, DeviceError> {
        let fed = own.clone().to_device(decoder.device())?;
        let made = Arc::new(MadeThoughts { fed, noiseless: None });
        Ok((0..own.rows()).map(|row| ThoughtRef { made: Arc::clone(&made), row }).collect())
    };
    let thoughts = thoughts.iter().map(refs).collect::<Result<Vec<_>, _>>()?;
    let sequences: Vec<ScoredSequence<'_>> =
        thoughts.iter().map(|thoughts| ScoredSequence { item: 0, thoughts }).collect();
    decoder.device().run(|| {
        let trace = |model| ReferenceTracer::default().trace(model, &[prompt]);
        let trace = reward_model.reference.as_ref().map(trace).transpose()?;
        let batch = ScoreBatch {
            prompts: &[prompt],
            trace: trace.as_ref(),
            sequences: &sequences,
            answers,
        };
        Ok(score(reward_model, &mut cache, batch)?.rewards)
    })
}

fn row_spec(prompt: &Prompt, row: usize) -> SequenceSpec {
    let id = SequenceId { question: prompt.id, trajectory: row as u32 };
    SequenceSpec { item: 0, id, perturbed: true }
}
