//! The stages one by one, for comparison with another implementation: its prompt, its masks, its
//! noise, its thoughts.

use std::num::NonZeroUsize;

use model::{Cache, Pass, Sequence, head};
use tensor::{DeviceError, Tensor};

use crate::batch_plan::row_positions;
use crate::decode::{AnswerTokens, decode};
use crate::method::LatentLength;
use crate::perturb::{Perturbation, RandomSource, RowId, Sampler};
use crate::prefill::{RowSpec, prefill};
use crate::prompt::Prompt;
use crate::reasoner::{LatentModel, RewardModel};
use crate::reference_trace::ReferenceTracer;
use crate::score::{AnswerBatch, Rewards, score};
use crate::think::{Row, ThinkParams, ThoughtBatch, think};

/// How rows are run again.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceRun<'a> {
    /// How many rows.
    pub rows: usize,
    /// How long they think.
    pub length: LatentLength,
    /// What makes them differ.
    pub perturbation: Perturbation,
    /// Where its random numbers come from.
    pub source: RandomSource<'a>,
    /// Answer tokens at most.
    pub max_new_tokens: NonZeroUsize,
    /// Thoughts to feed instead of one's own, row by row: (thoughts, width). Thought t is then
    /// computed from the given ones before it, so that differences do not grow from thought to
    /// thought.
    pub forced_thoughts: Option<&'a [Tensor]>,
}

/// What a row did.
#[derive(Clone, Debug)]
pub struct ReferenceRow {
    /// The vectors that were computed, perturbation included: (thoughts, width). They were fed,
    /// unless others were given.
    pub thoughts: Tensor,
    /// The answer's tokens.
    pub tokens: AnswerTokens,
    /// The sum of their log-probabilities.
    pub logprob: f32,
    /// Logits at the last position before the answer.
    pub first_logits: Vec<f32>,
}

/// Hidden states of all tokens after the final norm: (tokens, width).
pub fn prompt_hidden(mind: &LatentModel, tokens: &[u32]) -> Result<Tensor, DeviceError> {
    let decoder = &mind.decoder;
    let mut cache = Cache::new(decoder.device(), decoder.config(), Cache::slots_for(tokens.len()))?;
    let (mut pass, mut sequence) = (Pass::default(), Sequence::default());
    tokens.iter().for_each(|_| pass.push(&mut cache, &mut sequence, true));
    decoder
        .device()
        .run(|| decoder.forward(&mut cache, &pass, mind.embed(tokens)?, None)?.to_host())
}

/// Runs the rows of one prompt through prefill, thoughts and answer.
pub fn run_rows(
    mind: &LatentModel,
    prompt: &Prompt,
    how: ReferenceRun<'_>,
) -> Result<Vec<ReferenceRow>, DeviceError> {
    let own = row_positions(mind, how.length.limit(), how.max_new_tokens.get());
    let slots = (how.rows + 1) * Cache::slots_for(prompt.tokens.len() + own);
    let mut cache = Cache::new(mind.decoder.device(), mind.decoder.config(), slots)?;
    let chance = Sampler { perturbation: how.perturbation, source: how.source };
    let starts: Vec<RowSpec> = (0..how.rows).map(|r| row_spec(prompt, r)).collect();
    let mut made = vec![Tensor::zeros(0, mind.decoder.config().width); how.rows];
    let mut steer = |row: &Row, thought: &mut [f32]| {
        let r = row.spec.id.trajectory as usize;
        made[r].push(thought);
        if let Some(given) = how
            .forced_thoughts
            .map(|rows| &rows[r])
            .filter(|given| row.thoughts.len() < given.rows())
        {
            thought.copy_from_slice(given.row(row.thoughts.len()));
        }
    };
    let thinking = ThinkParams {
        length: how.length,
        sampler: chance,
        hook: Some(&mut steer),
        keep_noiseless: false,
    };
    let (spoken, logits) = mind.decoder.device().run(|| {
        let started = prefill(mind, &mut cache, &[prompt], &starts, chance)?;
        let mut thoughts = think(mind, &mut cache, started, thinking)?;
        let spoken = decode(mind, &mut cache, &mut thoughts, how.max_new_tokens.get(), chance)?;
        let logits = head::logits(&mind.decoder, &spoken.first)?.to_host()?;
        Ok::<_, DeviceError>((spoken, logits))
    })?;
    let said = spoken.tokens.into_iter().zip(spoken.logprobs);
    let row = |(r, (thoughts, (tokens, logprob)))| ReferenceRow {
        thoughts,
        tokens,
        logprob,
        first_logits: logits.row(r).to_vec(),
    };
    Ok(made.into_iter().zip(said).enumerate().map(row).collect())
}

/// Step rewards of given thoughts, row by row.
pub fn rewards(
    judge: &RewardModel,
    prompt: &Prompt,
    thoughts: &[Tensor],
) -> Result<Vec<Vec<f32>>, DeviceError> {
    Ok(rewards_with_answers(judge, prompt, thoughts, None)?
        .into_iter()
        .map(|reading| reading.process)
        .collect())
}

/// What a judge says of given thoughts and answers, row by row.
pub fn rewards_with_answers(
    judge: &RewardModel,
    prompt: &Prompt,
    thoughts: &[Tensor],
    said: Option<AnswerBatch<'_>>,
) -> Result<Vec<Rewards>, DeviceError> {
    let (mut all, mut rows) = (Tensor::zeros(0, judge.decoder.config().width), Vec::new());
    for (r, own) in thoughts.iter().enumerate() {
        let places = all.rows()..all.rows() + own.rows();
        rows.push(Row {
            thoughts: places.collect(),
            ..Row::new(row_spec(prompt, r), Sequence::default())
        });
        all.extend(own);
    }
    let longest = said.map_or(0, |said| {
        said.end_latent.len() + said.answers.iter().map(|answer| answer.len()).max().unwrap_or(0)
    });
    let own: usize = thoughts.iter().map(|t| Cache::slots_for(t.rows() + longest)).sum();
    let slots = own + Cache::slots_for(prompt.tokens.len() + judge.reference_thoughts());
    let mut cache = Cache::new(judge.decoder.device(), judge.decoder.config(), slots)?;
    let all = vec![all.to_device(judge.decoder.device())?];
    let thoughts = ThoughtBatch { rows, steps: all, after_prompt: None, noiseless: None };
    judge.decoder.device().run(|| {
        let own = judge
            .reference
            .as_ref()
            .map(|mind| ReferenceTracer::default().trace(mind, &[prompt]))
            .transpose()?;
        score(judge, &mut cache, (&[prompt], own.as_ref()), &thoughts, said)
    })
}

fn row_spec(prompt: &Prompt, row: usize) -> RowSpec {
    RowSpec {
        prompt: 0,
        id: RowId { question: prompt.id, trajectory: row as u32 },
        perturbed: true,
    }
}
