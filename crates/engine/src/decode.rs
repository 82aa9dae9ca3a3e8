//! After the last thought: the end tokens, then the answer, greedily or drawn, until it ends. Rows that finish leave the
//! batch. Rows that neither think nor have end tokens answer from their prompt's last hidden state.

use model::{Cache, Masks, Pass};
use tensor::{DeviceError, Tensor, ops};

use crate::perturb::Chance;
use crate::prefill::step;
use crate::reasoner::Mind;
use crate::think::{Thoughts, pick};

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
    for _ in 0..limit {
        let draws = || live.iter().map(|&r| rows[r].draw(chance.randomness)).collect();
        let words = chance.words(&mind.decoder, &hidden, draws)?;
        for (&r, word) in live.iter().zip(&words) {
            spoken[r].push(word.token);
            logprobs[r] += word.logprob;
        }
        let goes_on = |&(i, r): &(usize, usize)| {
            let has_room = spoken[r].len() < limit && rows[r].sequence.len() < mind.decoder.config().context;
            has_room && !mind.method.eos.contains(&words[i].token)
        };
        let (stay, next): (Vec<usize>, Vec<usize>) = live.iter().copied().enumerate().filter(goes_on).unzip();
        if next.is_empty() {
            break;
        }
        let x = mind.embed(&stay.iter().map(|&i| words[i].token).collect::<Vec<_>>())?;
        hidden = step(mind, cache, &mut pick(rows, &next), x, dropout)?;
        live = next;
    }
    Ok(Spoken { tokens: spoken, logprobs, first })
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
