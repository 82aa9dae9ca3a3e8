//! After the last thought: the end tokens, then the answer, greedily or drawn, until it ends. Rows that finish leave the
//! batch. Rows that neither think nor have end tokens answer from their prompt's last hidden state.
//!
//! While the device looks for the next tokens, the pass after them is made ready as if no row ended with its token. Where
//! some do, that is taken back, and the others go on in a pass of their own.

use model::{Cache, Masks, Pass};
use tensor::ops::{self, Asked, Word};
use tensor::{DeviceError, Tensor};

use crate::perturb::Chance;
use crate::prefill::{step, step_when};
use crate::reasoner::Mind;
use crate::think::{Row, Thoughts, pick};

/// What the rows said.
pub(crate) struct Spoken {
    /// Each row's tokens, the ending one included.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// The sum of each row's tokens' log-probabilities.
    pub(crate) logprobs: Vec<f32>,
    /// The hidden state at each row's last position before the answer, from which its first token was read: (rows, width).
    pub(crate) first: Tensor,
}

/// Tokens of most answers, at most.
const SHORT: usize = 16;

/// Decodes the answers of all rows, at most `limit` tokens each and never past the model's context.
pub(crate) fn decode(
    mind: &Mind,
    cache: &mut Cache,
    thoughts: &mut Thoughts,
    limit: usize,
    chance: Chance<'_>,
) -> Result<Spoken, DeviceError> {
    let dropout = chance.perturbation.reaches_the_answer().then_some((chance, usize::MAX));
    let first = match thoughts.after_prompt.take() {
        Some(hidden) if mind.method.end.is_empty() => hidden,
        _ => end_thoughts(mind, cache, thoughts, dropout.map(|(c, _)| c))?,
    };
    let rows = &mut thoughts.rows;
    // Room for short answers is made now, while the device is busy; between two tokens it waits for the host.
    let mut spoken: Vec<Vec<u32>> = rows.iter().map(|_| Vec::with_capacity(limit.min(SHORT))).collect();
    let mut logprobs = vec![0.0; rows.len()];
    let (mut live, mut hidden): (Vec<usize>, _) = ((0..rows.len()).collect(), first.clone());
    for count in 1..=limit {
        let draws = || live.iter().map(|&r| rows[r].draw(chance.randomness)).collect();
        let asked = chance.ask(&mind.decoder, &hidden, draws)?;
        let has_room = |&(_, r): &(usize, usize)| count < limit && rows[r].sequence.len() < mind.decoder.config().context;
        let (mut places, mut next): (Vec<usize>, Vec<usize>) = live.iter().copied().enumerate().filter(has_room).unzip();
        let (words, passed) = read_and_pass(mind, cache, &mut pick(rows, &next), (asked, &places), dropout)?;
        // If all go on, the device is already busy with the next token.
        for (&r, word) in live.iter().zip(&words) {
            spoken[r].push(word.token);
            logprobs[r] += word.logprob;
        }
        hidden = match passed {
            Some(hidden) => hidden,
            None => {
                (places, next) = places.into_iter().zip(next).filter(|&(i, _)| !ends(mind, words[i])).unzip();
                if next.is_empty() {
                    break;
                }
                let x = mind.embed(&tokens(&words, &places))?;
                step(mind, cache, &mut pick(rows, &next), x, dropout)?
            }
        };
        live = next;
    }
    Ok(Spoken { tokens: spoken, logprobs, first })
}

fn ends(mind: &Mind, word: Word) -> bool {
    mind.method.eos.contains(&word.token)
}

fn tokens(words: &[Word], places: &[usize]) -> Vec<u32> {
    places.iter().map(|&i| words[i].token).collect()
}

/// Why the pass after some tokens was not made.
enum Halt {
    /// It was made ready for rows of which some ended.
    Ended,
    Failed(DeviceError),
}

impl From<DeviceError> for Halt {
    fn from(e: DeviceError) -> Self {
        Self::Failed(e)
    }
}

/// Reads the tokens that were asked for, and passes those at `places`, one of each of `rows`, if none of them ends its row.
///
/// The host has everything ready by the time the tokens are there.
fn read_and_pass(
    mind: &Mind,
    cache: &mut Cache,
    rows: &mut [&mut Row],
    (asked, places): (Asked, &[usize]),
    dropout: Option<(Chance<'_>, usize)>,
) -> Result<(Vec<Word>, Option<Tensor>), DeviceError> {
    if rows.is_empty() {
        return Ok((asked.read()?, None));
    }
    let (embedded, mut words) = (mind.embed_asked(&asked)?, Vec::new());
    let x = || {
        words = asked.read()?;
        if places.iter().any(|&i| ends(mind, words[i])) {
            return Err(Halt::Ended);
        }
        match embedded {
            Some(x) if x.rows() == places.len() => Ok(x),
            _ => Ok(mind.embed(&tokens(&words, places))?),
        }
    };
    match step_when(mind, cache, rows, dropout, x) {
        Ok(hidden) => Ok((words, Some(hidden))),
        Err(Halt::Ended) => Ok((words, None)),
        Err(Halt::Failed(e)) => Err(e),
    }
}

/// Feeds what is left of the thoughts and the end tokens, in one pass; clean unless there is a `chance`.
fn end_thoughts(
    mind: &Mind,
    cache: &mut Cache,
    thoughts: &mut Thoughts,
    chance: Option<Chance<'_>>,
) -> Result<Tensor, DeviceError> {
    let (device, end) = (mind.decoder.device(), &mind.method.end);
    let mut pass = Pass::default();
    let (mut draws, mut order, mut pending) = (Vec::new(), Vec::new(), Vec::new());
    for row in &mut thoughts.rows {
        let left = row.thoughts.last().filter(|_| row.pending).copied();
        // Rows of x: a pending thought by its place among the pending ones, an end token by its place before them.
        let vectors = left.map(|_| end.len() + pending.len()).into_iter().chain(0..end.len());
        let count = usize::from(row.pending) + end.len();
        for (i, vector) in vectors.enumerate() {
            draws.push(chance.and_then(|c| row.draw(c.randomness)));
            pass.push(cache, &mut row.sequence, i + 1 == count);
            order.push(vector);
        }
        pending.extend(left);
        row.pending = false;
    }
    let parts = [&mind.embed(end)?, &ops::select(device, &thoughts.all, &pending)?];
    let x = ops::select(device, &ops::concat(device, &parts)?, &order)?;
    mind.decoder.forward(cache, &pass, x, chance.and_then(|c| c.dropout(Masks::Drawn(&draws))))
}
