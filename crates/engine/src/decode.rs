//! After the last thought: the end tokens, then the answer, greedily, until it ends. Rows that finish leave the batch.

use model::{Cache, Masks, Pass};
use tensor::{Tensor, ops};

use crate::perturb::Chance;
use crate::prefill::step;
use crate::reasoner::Mind;
use crate::think::{Row, pick};

/// What a row said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spoken {
    /// Its tokens, the ending one included.
    pub(crate) tokens: Vec<u32>,
}

/// Decodes the answers of all rows, at most `limit` tokens each and never past the model's context.
///
/// Also returns the hidden state at the last end token of each row, from which the first token was read: (rows, width).
pub(crate) fn decode(
    mind: &Mind,
    cache: &mut Cache,
    rows: &mut [Row],
    limit: usize,
    chance: Chance<'_>,
) -> (Vec<Spoken>, Tensor) {
    let chance = chance.perturbation.reaches_the_answer().then_some((chance, usize::MAX));
    let first = end_thoughts(mind, cache, rows, chance.map(|(c, _)| c));
    let mut spoken = vec![Spoken::default(); rows.len()];
    let (mut live, mut hidden): (Vec<usize>, _) = ((0..rows.len()).collect(), first.clone());
    for _ in 0..limit {
        let tokens = ops::argmax(mind.decoder.device(), &hidden, mind.decoder.head());
        live.iter().zip(&tokens).for_each(|(&r, &token)| spoken[r].tokens.push(token));
        let goes_on = |&(i, r): &(usize, usize)| {
            let said = spoken[r].tokens.len() < limit && rows[r].sequence.len() < mind.decoder.config().context;
            said && !mind.method.eos.contains(&tokens[i])
        };
        let (stay, next): (Vec<usize>, Vec<usize>) = live.iter().copied().enumerate().filter(goes_on).unzip();
        if next.is_empty() {
            break;
        }
        let x = mind.embed(&stay.iter().map(|&i| tokens[i]).collect::<Vec<_>>());
        hidden = step(mind, cache, &mut pick(rows, &next), &x, chance);
        live = next;
    }
    (spoken, first)
}

/// Feeds what is left of the thoughts and the end tokens, in one pass; clean unless there is a `chance`.
fn end_thoughts(mind: &Mind, cache: &mut Cache, rows: &mut [Row], chance: Option<Chance<'_>>) -> Tensor {
    let end = mind.embed(&mind.method.end);
    let (mut pass, mut x, mut draws) = (Pass::default(), Tensor::zeros(0, end.cols()), Vec::new());
    for row in rows {
        if row.pending {
            draws.push(chance.and_then(|c| row.draw(c.randomness)));
            pass.push(cache, &mut row.sequence, false);
            x.push(row.thoughts.row(row.thoughts.rows() - 1));
            row.pending = false;
        }
        for i in 0..end.rows() {
            draws.push(chance.and_then(|c| row.draw(c.randomness)));
            pass.push(cache, &mut row.sequence, i + 1 == end.rows());
            x.push(end.row(i));
        }
    }
    mind.decoder.forward(cache, &pass, &x, chance.and_then(|c| c.dropout(Masks::Drawn(&draws))))
}
