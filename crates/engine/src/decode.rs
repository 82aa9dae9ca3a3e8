//! After the last thought: the end tokens, then the answer, greedily or drawn, until it ends. Rows
//! that finish leave the batch. Rows that neither think nor have end tokens answer from their
//! prompt's last hidden state.
//!
//! While a GPU looks for the next tokens, the pass after them is made ready as if no row ended with
//! its token, and begun before the host has read them. Where a few rows end, they go along and are
//! left out of what follows; where more do, the pass is taken back, and the others go on in one of
//! their own.

use model::{Cache, DeferredInputs, Dropout, ForwardOptions, Pass};
use smallvec::SmallVec;
use tensor::ops::{self, OutputDtype, PendingTokens, TokenLogprob};
use tensor::{DeviceError, Tensor};

use crate::perturb::Sampler;
use crate::prefill::{step, step_deferred};
use crate::reasoner::LatentModel;
use crate::think::{Row, ThoughtBatch, select_rows};

/// The tokens of an answer; most are as short as this has room for.
pub type AnswerTokens = SmallVec<[u32; 16]>;

/// What the rows said.
pub(crate) struct DecodeOutput {
    /// Each row's tokens, the ending one included.
    pub(crate) tokens: Vec<AnswerTokens>,
    /// The sum of each row's tokens' log-probabilities.
    pub(crate) logprobs: Vec<f32>,
    /// The hidden state at each row's last position before the answer, from which its first token
    /// was read: (rows, width).
    pub(crate) first: Tensor,
}

/// Decodes the answers of all rows, at most `limit` tokens each and never past the model's context.
pub(crate) fn decode(
    mind: &LatentModel,
    cache: &mut Cache,
    thoughts: &mut ThoughtBatch,
    limit: usize,
    chance: Sampler<'_>,
) -> Result<DecodeOutput, DeviceError> {
    let dropout = chance.perturbation.affects_answer().then_some((chance, usize::MAX));
    let first = match thoughts.after_prompt.take() {
        Some(hidden) if mind.method.end_latent.is_empty() => hidden,
        _ => end_thoughts(mind, cache, thoughts, dropout.map(|(c, _)| c))?,
    };
    let rows = &mut thoughts.rows;
    let (mut spoken, mut logprobs) = (vec![AnswerTokens::new(); rows.len()], vec![0.0; rows.len()]);
    let (mut live, mut hidden): (Vec<usize>, _) = ((0..rows.len()).collect(), first.clone());
    for count in 1..=limit {
        let draws = || live.iter().map(|&r| rows[r].rng_key(chance.source)).collect();
        let asked = chance.next_tokens(&mind.decoder, &hidden, draws)?;
        let has_room = |&(_, r): &(usize, usize)| {
            count < limit && rows[r].sequence.len() < mind.decoder.config().context
        };
        let (mut places, mut next): (Vec<usize>, Vec<usize>) =
            live.iter().copied().enumerate().filter(has_room).unzip();
        let (words, passed) =
            read_and_step(mind, cache, &mut select_rows(rows, &next), (asked, &places), dropout)?;
        // If all go on, the device is already busy with the next token.
        for (&r, word) in live.iter().zip(&words) {
            spoken[r].push(word.token);
            logprobs[r] += word.logprob;
        }
        hidden = match passed {
            Some(hidden) => {
                let stay = |&i: &usize| !ends(mind, words[places[i]]);
                let (stay, ended): (Vec<usize>, Vec<usize>) = (0..places.len()).partition(stay);
                for i in ended {
                    let sequence = &mut rows[next[i]].sequence;
                    *sequence = sequence.fork_at(sequence.len() - 1);
                }
                next = stay.iter().map(|&i| next[i]).collect();
                ops::select(mind.decoder.device(), [&hidden], &stay)?
            }
            None => {
                (places, next) =
                    places.into_iter().zip(next).filter(|&(i, _)| !ends(mind, words[i])).unzip();
                if next.is_empty() {
                    break;
                }
                let x = mind.embed(&tokens(&words, &places))?;
                step(mind, cache, &mut select_rows(rows, &next), x, dropout)?
            }
        };
        live = next;
    }
    Ok(DecodeOutput { tokens: spoken, logprobs, first })
}

fn ends(mind: &LatentModel, word: TokenLogprob) -> bool {
    mind.method.eos.contains(&word.token)
}

fn tokens(words: &[TokenLogprob], places: &[usize]) -> Vec<u32> {
    places.iter().map(|&i| words[i].token).collect()
}

/// One of so many rows may end and go along nevertheless: less than it takes to make another pass
/// ready.
const MAX_ENDED_SHARE: usize = 16;

/// Why the pass after some tokens was not made.
enum StepAborted {
    /// It was made ready for rows of which too many ended.
    Ended,
    Failed(DeviceError),
}

impl From<DeviceError> for StepAborted {
    fn from(e: DeviceError) -> Self {
        Self::Failed(e)
    }
}

/// Reads the tokens that were asked for, and passes those at `places`, one of each of `rows`,
/// unless too many of them end their rows.
///
/// The device has everything ready by the time the tokens are there.
fn read_and_step(
    mind: &LatentModel,
    cache: &mut Cache,
    rows: &mut [&mut Row],
    (asked, places): (PendingTokens, &[usize]),
    dropout: Option<(Sampler<'_>, usize)>,
) -> Result<(Vec<TokenLogprob>, Option<Tensor>), DeviceError> {
    if rows.is_empty() || asked.is_ready() {
        return Ok((asked.read()?, None));
    }
    let (embedded, mut words) =
        (mind.embed_pending(&asked)?.filter(|x| x.rows() == places.len()), Vec::new());
    let read = |most: usize| {
        words = asked.read()?;
        let ended = places.iter().filter(|&&i| ends(mind, words[i])).count();
        if ended > most { Err(StepAborted::Ended) } else { Ok(&words) }
    };
    let how = (dropout, OutputDtype::Compute); // their hidden states are for the head alone
    let passed = match embedded {
        Some(x) => step_deferred(
            mind,
            cache,
            rows,
            how,
            (|| Ok(x), || read(places.len() / MAX_ENDED_SHARE).map(drop)),
        ),
        None => step_deferred(
            mind,
            cache,
            rows,
            how,
            (|| Ok(mind.embed(&tokens(read(0)?, places))?), || Ok(())),
        ),
    };
    match passed {
        Ok(hidden) => Ok((words, Some(hidden))),
        Err(StepAborted::Ended) => Ok((words, None)),
        Err(StepAborted::Failed(e)) => Err(e),
    }
}

/// Feeds what is left of the thoughts and the end tokens, in one pass; clean unless there is a
/// `chance`.
fn end_thoughts(
    mind: &LatentModel,
    cache: &mut Cache,
    thoughts: &mut ThoughtBatch,
    chance: Option<Sampler<'_>>,
) -> Result<Tensor, DeviceError> {
    let (device, end) = (mind.decoder.device(), &mind.method.end_latent);
    let mut pass = Pass::default();
    let (mut draws, mut order) = (Vec::new(), Vec::new());
    for row in &mut thoughts.rows {
        // Vectors: the end tokens', then all thoughts'.
        let left = row.thoughts.last().filter(|_| row.pending).map(|thought| end.len() + thought);
        let vectors = left.into_iter().chain(0..end.len());
        let count = usize::from(row.pending) + end.len();
        for (i, vector) in vectors.enumerate() {
            draws.push(chance.and_then(|c| row.rng_key(c.source)));
            pass.push(cache, &mut row.sequence, i + 1 == count);
            order.push(vector);
        }
        row.pending = false;
    }
    let x = ops::select(device, [&mind.embed(end)?].into_iter().chain(&thoughts.steps), &order)?;
    let dropout = chance.and_then(|c| c.dropout_rows(draws));
    let dropout = dropout.as_deref().map(Dropout::Sampled);
    let options = ForwardOptions { dropout, output: OutputDtype::Compute };
    let inputs = DeferredInputs { x: || Ok(x), proceed: || Ok(()) };
    mind.decoder.forward_deferred(cache, &pass, options, inputs)
}
