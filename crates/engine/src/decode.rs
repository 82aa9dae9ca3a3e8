//! After the last thought: the end tokens, then the answer, greedy or sampled, until it ends. Rows
//! that finish leave the batch. Rows that neither think nor have end tokens answer from the hidden
//! state at their prompt's last token.
//!
//! While a GPU computes the next tokens, the step after them is prepared as if no row ended, and
//! launched speculatively before the host has read them. Where few rows end, their results are
//! ignored; where more do, the step is called off and the others go on in one of their own.

use model::{Cache, DeferredInputs, Dropout, ForwardOptions, Pass};
use smallvec::SmallVec;
use tensor::ops::{self, OutputDtype, PendingTokens, TokenLogprob};
use tensor::{DeviceError, Tensor};

use crate::prefill::{DeferredStep, step};
use crate::reasoner::LatentModel;
use crate::sampler::{PassStage, Sampler};
use crate::think::{Row, ThoughtBatch, select_rows};

/// The tokens of an answer, stored in place while they are few.
pub type AnswerTokens = SmallVec<[u32; 16]>;

/// The answers of a batch, in the order of its rows.
pub(crate) struct DecodeOutput {
    /// Each row's tokens, the EOS token included.
    pub(crate) tokens: Vec<AnswerTokens>,
    /// The sum of each row's tokens' log-probabilities.
    pub(crate) logprobs: Vec<f32>,
    /// The hidden state from which each row's first token was read: (rows, width).
    pub(crate) first_hidden: Tensor,
}

/// Decodes the answers of all rows: each as far as its request allows, and never past the model's
/// context. A row whose request is cancelled ends with what it has.
pub(crate) fn decode(
    model: &LatentModel,
    cache: &mut Cache,
    thoughts: &mut ThoughtBatch,
    sampler: Sampler<'_>,
) -> Result<DecodeOutput, DeviceError> {
    let first_hidden = end_thoughts(model, cache, thoughts, sampler)?;
    let rows = &mut thoughts.rows;
    let mut answers = vec![AnswerTokens::new(); rows.len()];
    let mut logprobs = vec![0.0; rows.len()];
    let (mut live, mut hidden): (Vec<usize>, _) = ((0..rows.len()).collect(), first_hidden.clone());
    for count in 1.. {
        if live.is_empty() {
            break;
        }
        let live_rows = live.iter().map(|&r| &rows[r]);
        let pending = sampler.next_tokens(&model.decoder, &hidden, live_rows)?;
        let cancelled = sampler.cancelled_items();
        let goes_on = |&(_, r): &(usize, usize)| {
            let row = &rows[r];
            count < sampler.params(row).max_new_tokens.get()
                && row.sequence.len() < model.decoder.config().context
                && !cancelled[row.spec.item]
        };
        let (mut places, mut next): (Vec<usize>, Vec<usize>) =
            live.iter().copied().enumerate().filter(goes_on).unzip();
        let mut next_rows = select_rows(rows, &next);
        let speculative = SpeculativeStep { model, sampler, places: &places };
        let (tokens, stepped) = speculative.run(cache, &mut next_rows, pending)?;
        // If all rows go on, the device already computes the token after these.
        for (&r, token) in live.iter().zip(&tokens) {
            answers[r].push(token.token);
            logprobs[r] += token.logprob;
        }
        hidden = match stepped {
            Some(hidden) => {
                let stay = |&i: &usize| !model.method.eos.contains(&tokens[places[i]].token);
                let (stay, ended): (Vec<usize>, Vec<usize>) = (0..places.len()).partition(stay);
                for i in ended {
                    let sequence = &mut rows[next[i]].sequence;
                    *sequence = sequence.fork_at(sequence.len() - 1);
                }
                next = stay.iter().map(|&i| next[i]).collect();
                ops::select(model.decoder.device(), [&hidden], &stay)?
            }
            None => {
                let stays = |&(i, _): &(usize, usize)| !model.method.eos.contains(&tokens[i].token);
                (places, next) = places.into_iter().zip(next).filter(stays).unzip();
                if next.is_empty() {
                    break;
                }
                let x = model.embed(&token_ids(&tokens, &places))?;
                let next_rows = &mut select_rows(rows, &next);
                step(model, cache, next_rows, x, sampler, PassStage::Answer)?
            }
        };
        live = next;
    }
    Ok(DecodeOutput { tokens: answers, logprobs, first_hidden })
}

fn token_ids(tokens: &[TokenLogprob], places: &[usize]) -> Vec<u32> {
    places.iter().map(|&i| tokens[i].token).collect()
}

/// One in so many rows may end without the speculative step being called off: ignoring a few
/// results costs less than preparing another step.
const MAX_ENDED_SHARE: usize = 16;

/// Why a speculative step was not completed.
enum StepAborted {
    /// Too many of its rows ended with the tokens it was to feed.
    Ended,
    Failed(DeviceError),
}

impl From<DeviceError> for StepAborted {
    fn from(e: DeviceError) -> Self {
        Self::Failed(e)
    }
}

/// The step after tokens that the host has not read yet.
struct SpeculativeStep<'a> {
    model: &'a LatentModel,
    sampler: Sampler<'a>,
    /// Which of the pending tokens the rows of the step feed, one each.
    places: &'a [usize],
}

impl SpeculativeStep<'_> {
    /// Reads the pending tokens and steps `rows` over theirs, unless too many of them end.
    fn run(
        &self,
        cache: &mut Cache,
        rows: &mut [&mut Row],
        pending: PendingTokens,
    ) -> Result<(Vec<TokenLogprob>, Option<Tensor>), DeviceError> {
        let Self { model, sampler, places } = *self;
        if rows.is_empty() || pending.is_ready() {
            return Ok((pending.read()?, None));
        }
        let embedded = model.embed_pending(&pending)?.filter(|x| x.rows() == places.len());
        let mut tokens = Vec::new();
        let read = |max_ended: usize| {
            tokens = pending.read()?;
            let ends = |&&i: &&usize| model.method.eos.contains(&tokens[i].token);
            let ended = places.iter().filter(ends).count();
            if ended > max_ended { Err(StepAborted::Ended) } else { Ok(&tokens) }
        };
        // Only the LM head reads these hidden states.
        let step = DeferredStep { sampler, stage: PassStage::Answer, dtype: OutputDtype::Compute };
        let stepped = match embedded {
            Some(x) => {
                let proceed = || read(places.len() / MAX_ENDED_SHARE).map(drop);
                step.run(model, cache, rows, || Ok(x), proceed)
            }
            None => {
                let input = || Ok(model.embed(&token_ids(read(0)?, places))?);
                step.run(model, cache, rows, input, || Ok(()))
            }
        };
        match stepped {
            Ok(hidden) => Ok((tokens, Some(hidden))),
            Err(StepAborted::Ended) => Ok((tokens, None)),
            Err(StepAborted::Failed(e)) => Err(e),
        }
    }
}

/// Feeds pending thoughts and the end tokens in one pass. Returns the hidden state at each row's
/// last position: (rows, width).
fn end_thoughts(
    model: &LatentModel,
    cache: &mut Cache,
    thoughts: &mut ThoughtBatch,
    sampler: Sampler<'_>,
) -> Result<Tensor, DeviceError> {
    let (device, end) = (model.decoder.device(), &model.method.end_latent);
    let (mut pass, mut dropout, mut order) = (Pass::default(), Vec::new(), Vec::new());
    let mut hidden_rows = Vec::with_capacity(thoughts.rows.len());
    let (mut fed, mut silent) = (0, 0);
    for row in &mut thoughts.rows {
        // Input vectors: the end tokens', then all thoughts'.
        let pending =
            row.thoughts.last().filter(|_| row.pending).map(|thought| end.len() + thought);
        let count = usize::from(pending.is_some()) + end.len();
        for (i, vector) in pending.into_iter().chain(0..end.len()).enumerate() {
            dropout.push(sampler.dropout_row(row, PassStage::Answer));
            pass.push(cache, &mut row.sequence, i + 1 == count);
            order.push(vector);
        }
        row.pending = false;
        hidden_rows.push(if count > 0 { Ok(fed) } else { Err(silent) });
        *(if count > 0 { &mut fed } else { &mut silent }) += 1;
    }
    let after_prompt = thoughts.after_prompt.take();
    if fed == 0 {
        return Ok(after_prompt.unwrap_or_default());
    }
    let x = ops::select(device, [&model.embed(end)?].into_iter().chain(&thoughts.steps), &order)?;
    let dropout = dropout.iter().any(Option::is_some).then_some(Dropout::Sampled(&dropout));
    let options = ForwardOptions { dropout, output: OutputDtype::Compute };
    let inputs = DeferredInputs { x: || Ok::<_, DeviceError>(x), proceed: || Ok(()) };
    let hidden = model.decoder.forward_deferred(cache, &pass, options, inputs)?;
    match after_prompt.filter(|_| silent > 0) {
        None => Ok(hidden),
        Some(after_prompt) => {
            let place = |row: Result<usize, usize>| row.unwrap_or_else(|silent| fed + silent);
            let places: Vec<usize> = hidden_rows.into_iter().map(place).collect();
            ops::select(device, [&hidden, &after_prompt], &places)
        }
    }
}
