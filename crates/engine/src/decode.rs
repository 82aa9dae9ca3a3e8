//! After the last thought: the end tokens, then the answer, greedily, until it ends. Rows that finish leave the batch.

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
    /// The hidden state at each row's last end token, from which its first token was read: (rows, width).
    pub(crate) first: Tensor,
}

/// Decodes the answers of all rows, at most `limit` tokens each and never past the model's context.
pub(crate) fn decode(
    mind: &Mind,
    cache: &mut Cache,
    thoughts: &mut Thoughts,
    limit: usize,
    chance: Chance<'_>,
) -> Result<Spoken, DeviceError> {
    let chance = chance.perturbation.reaches_the_answer().then_some((chance, usize::MAX));
    let first = end_thoughts(mind, cache, thoughts, chance.map(|(c, _)| c))?;
    let rows = &mut thoughts.rows;
    let mut spoken = vec![Vec::new(); rows.len()];
    let (mut live, mut hidden): (Vec<usize>, _) = ((0..rows.len()).collect(), first.clone());
    for _ in 0..limit {
        let tokens = ops::argmax(mind.decoder.device(), &hidden, mind.decoder.head())?;
        live.iter().zip(&tokens).for_each(|(&r, &token)| spoken[r].push(token));
        let goes_on = |&(i, r): &(usize, usize)| {
            let has_room = spoken[r].len() < limit && rows[r].sequence.len() < mind.decoder.config().context;
            has_room && !mind.method.eos.contains(&tokens[i])
        };
        let (stay, next): (Vec<usize>, Vec<usize>) = live.iter().copied().enumerate().filter(goes_on).unzip();
        if next.is_empty() {
            break;
        }
        let x = mind.embed(&stay.iter().map(|&i| tokens[i]).collect::<Vec<_>>())?;
        hidden = step(mind, cache, &mut pick(rows, &next), x, chance)?;
        live = next;
    }
    Ok(Spoken { tokens: spoken, first })
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
