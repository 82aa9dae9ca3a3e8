//! The stages one by one, for comparison with another implementation: its prompt, its masks, its
//! noise, its thoughts.

use std::num::NonZeroUsize;

use model::{Cache, Pass, Sequence, head};
use tensor::{DeviceError, Tensor};

use crate::batch::BatchItem;
use crate::batch_plan::row_positions;
use crate::decode::{AnswerTokens, decode};
use crate::method::LatentLength;
use crate::perturb::Perturbation;
use crate::prefill::{RowSpec, prefill};
use crate::prompt::Prompt;
use crate::reasoner::{LatentModel, RewardModel};
use crate::reference_trace::ReferenceTracer;
use crate::request::CancelToken;
use crate::sampler::{RecordedNoise, RowId, Sampler};
use crate::sampling_params::SamplingParams;
use crate::score::{AnswerBatch, Rewards, ScoreBatch, score};
use crate::think::{Row, ThinkParams, ThoughtBatch, think};

/// Where a comparison's random numbers come from.
#[derive(Clone, Copy, Debug)]
pub enum RandomSource<'a> {
    /// The random function under a seed.
    Seeded(u64),
    /// Another implementation's masks and noise, for one question's rows.
    Recorded(&'a RecordedNoise),
}

/// How rows are run for a comparison.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceRun<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Thoughts of each row.
    pub length: LatentLength,
    /// What makes the rows differ.
    pub perturbation: Perturbation,
    /// Where its random numbers come from.
    pub source: RandomSource<'a>,
    /// Answer tokens of each row, at most.
    pub max_new_tokens: NonZeroUsize,
    /// Thoughts to feed instead of the computed ones, row by row: (thoughts, width). Thought t is
    /// then computed from the given ones before it, so that differences do not grow from thought
    /// to thought.
    pub forced_thoughts: Option<&'a [Tensor]>,
}

/// The results of a row.
#[derive(Clone, Debug)]
pub struct ReferenceRow {
    /// The thoughts that were computed, perturbation included: (thoughts, width). They were fed,
    /// unless others were forced.
    pub thoughts: Tensor,
    /// The answer's tokens.
    pub tokens: AnswerTokens,
    /// The sum of their log-probabilities.
    pub logprob: f32,
    /// Logits at the last position before the answer: (vocabulary).
    pub first_logits: Vec<f32>,
}

/// Hidden states of all tokens after the final norm: (tokens, width).
pub fn prompt_hidden(model: &LatentModel, tokens: &[u32]) -> Result<Tensor, DeviceError> {
    let decoder = &model.decoder;
    let slots = Cache::slots_for(tokens.len());
    let mut cache = Cache::new(decoder.device(), decoder.config(), slots)?;
    let (mut pass, mut sequence) = (Pass::default(), Sequence::default());
    tokens.iter().for_each(|_| pass.push(&mut cache, &mut sequence, true));
    let forward = || decoder.forward(&mut cache, &pass, model.embed(tokens)?, None)?.to_host();
    decoder.device().run(forward)
}

/// Runs the rows of one prompt through prefill, thoughts and answer.
pub fn run_rows(
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
    let items = [BatchItem::new(prompt, &params, &cancel)];
    let sampler = Sampler { items: &items, recorded };
    let specs: Vec<RowSpec> = (0..run.rows).map(|r| row_spec(prompt, r)).collect();
    let mut computed = vec![Tensor::zeros(0, model.decoder.config().width); run.rows];
    let mut hook = |row: &Row, thought: &mut [f32]| {
        let (r, t) = (row.spec.id.trajectory as usize, row.thoughts.len());
        computed[r].push(thought);
        let forced = run.forced_thoughts.map(|rows| &rows[r]);
        if let Some(forced) = forced.filter(|forced| t < forced.rows()) {
            thought.copy_from_slice(forced.row(t));
        }
    };
    let params = ThinkParams { hook: Some(&mut hook), ..ThinkParams::new(sampler) };
    let (answers, logits) = model.decoder.device().run(|| {
        let start = prefill(model, &mut cache, &specs, sampler)?;
        let mut thoughts = think(model, &mut cache, start, params)?;
        let answers = decode(model, &mut cache, &mut thoughts, sampler)?;
        let logits = head::logits(&model.decoder, &answers.first_hidden)?.to_host()?;
        Ok::<_, DeviceError>((answers, logits))
    })?;
    let decoded = answers.tokens.into_iter().zip(answers.logprobs);
    let row = |(r, (thoughts, (tokens, logprob)))| ReferenceRow {
        thoughts,
        tokens,
        logprob,
        first_logits: logits.row(r).to_vec(),
    };
    Ok(computed.into_iter().zip(decoded).enumerate().map(row).collect())
}

/// Process rewards of given thoughts, row by row.
pub fn rewards(
    reward_model: &RewardModel,
    prompt: &Prompt,
    thoughts: &[Tensor],
) -> Result<Vec<Vec<f32>>, DeviceError> {
    let rewards = rewards_with_answers(reward_model, prompt, thoughts, None)?;
    Ok(rewards.into_iter().map(|rewards| rewards.process).collect())
}

/// Rewards of given thoughts and answers, row by row.
pub fn rewards_with_answers(
    reward_model: &RewardModel,
    prompt: &Prompt,
    thoughts: &[Tensor],
    answers: Option<AnswerBatch<'_>>,
) -> Result<Vec<Rewards>, DeviceError> {
    let decoder = &reward_model.decoder;
    let (mut all, mut rows) = (Tensor::zeros(0, decoder.config().width), Vec::new());
    for (r, own) in thoughts.iter().enumerate() {
        let places = all.rows()..all.rows() + own.rows();
        rows.push(Row { thoughts: places.collect(), ..Row::new(row_spec(prompt, r)) });
        all.extend(own);
    }
    let longest = answers.map_or(0, |batch| {
        let longest = batch.answers.iter().map(|answer| answer.len()).max().unwrap_or(0);
        batch.end_latent.len() + longest
    });
    let own: usize = thoughts.iter().map(|t| Cache::slots_for(t.rows() + longest)).sum();
    let slots = own + Cache::slots_for(prompt.tokens.len() + reward_model.reference_thoughts());
    let mut cache = Cache::new(decoder.device(), decoder.config(), slots)?;
    let steps = vec![all.to_device(decoder.device())?];
    let thoughts = &ThoughtBatch { rows, steps, ..ThoughtBatch::default() };
    decoder.device().run(|| {
        let trace = |model| ReferenceTracer::default().trace(model, &[prompt]);
        let trace = reward_model.reference.as_ref().map(trace).transpose()?;
        let batch = ScoreBatch { prompts: &[prompt], trace: trace.as_ref(), thoughts, answers };
        Ok(score(reward_model, &mut cache, batch)?.rewards)
    })
}

fn row_spec(prompt: &Prompt, row: usize) -> RowSpec {
    let id = RowId { question: prompt.id, trajectory: row as u32 };
    RowSpec { item: 0, id, perturbed: true }
}
