//! N latent paths: hidden states become thoughts, thoughts are fed back, until each row has thought enough.

use model::{Cache, Sequence};
use tensor::Tensor;
use tensor::ops;
use tensor::rng::Draw;

use crate::method::LatentLength;
use crate::perturb::{Chance, Randomness};
use crate::prefill::{Start, Started, step};
use crate::reasoner::Mind;

/// One trajectory on its way.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) start: Start,
    pub(crate) sequence: Sequence,
    pub(crate) thoughts: Tensor, // (thoughts, width): the vectors that are fed
    /// Whether the last thought has not been fed yet. It goes with the end tokens, in a clean pass.
    pub(crate) pending: bool,
}

impl Row {
    pub(crate) fn new(start: Start, sequence: Sequence) -> Self {
        Self { start, sequence, thoughts: Tensor::default(), pending: false }
    }

    /// Where the masks of this row's next position are drawn; a clean row has none.
    pub(crate) fn draw(&self, randomness: Randomness<'_>) -> Option<Draw> {
        match randomness {
            Randomness::Seeded(seed) if self.start.perturbed => Some(self.start.id.draw(seed, self.sequence.len())),
            _ => None,
        }
    }

    fn add_thought(&mut self, thought: &[f32]) {
        if self.thoughts.rows() == 0 {
            self.thoughts = Tensor::zeros(0, thought.len());
        }
        self.thoughts.push(thought);
    }
}

/// How to think.
pub(crate) struct Thinking<'a> {
    pub(crate) length: LatentLength,
    pub(crate) chance: Chance<'a>,
    /// Sees, and may replace, the next thought of a row before it is stored and fed.
    pub(crate) steer: Option<&'a mut dyn FnMut(&Row, &mut [f32])>,
}

/// Thinks until every row has ended: by its length, by its own decision, or at the limit.
pub(crate) fn think(mind: &Mind, cache: &mut Cache, started: Started, how: Thinking<'_>) -> Vec<Row> {
    let Started { mut rows, mut hidden } = started;
    let Thinking { length, chance, mut steer } = how;
    let limits: Vec<usize> = rows.iter().map(|row| limit(row, length, chance.randomness)).collect();
    let mut live: Vec<usize> = (0..rows.len()).collect();
    for t in 0..length.limit() {
        let made = mind.head.thoughts(&mind.decoder, &hidden);
        if matches!(length, LatentLength::AtMost(_)) {
            let likeliest = made.likeliest.unwrap_or_else(|| ops::argmax(mind.decoder.device(), &hidden, mind.decoder.head()));
            let stay: Vec<usize> = (0..live.len()).filter(|&i| likeliest[i] != mind.method.end[0]).collect();
            live = stay.iter().map(|&i| live[i]).collect();
            hidden = made.thoughts.select(stay.into_iter());
        } else {
            hidden = made.thoughts;
        }
        for (i, &r) in live.iter().enumerate() {
            let row = &mut rows[r];
            if row.start.perturbed {
                chance.add_noise(row.start.id, (t, row.sequence.len()), hidden.row_mut(i));
            }
            if let Some(steer) = &mut steer {
                steer(row, hidden.row_mut(i));
            }
            row.add_thought(hidden.row(i));
            row.pending = t + 1 == limits[r];
        }
        let stay: Vec<usize> = (0..live.len()).filter(|&i| !rows[live[i]].pending).collect();
        live = stay.iter().map(|&i| live[i]).collect();
        if live.is_empty() {
            break;
        }
        let x = hidden.select(stay.into_iter());
        hidden = step(mind, cache, &mut pick(&mut rows, &live), &x, Some((chance, t + 1)));
    }
    rows
}

fn limit(row: &Row, length: LatentLength, randomness: Randomness<'_>) -> usize {
    match (length, randomness) {
        (LatentLength::Between(low, high), Randomness::Seeded(seed)) if row.start.perturbed => {
            row.start.id.length(seed, low.get(), high.get())
        }
        _ => length.limit(),
    }
}

/// Some rows, by ascending index.
pub(crate) fn pick<'a>(rows: &'a mut [Row], wanted: &[usize]) -> Vec<&'a mut Row> {
    let mut wanted = wanted.iter().peekable();
    rows.iter_mut().enumerate().filter(|(i, _)| wanted.next_if_eq(&i).is_some()).map(|(_, row)| row).collect()
}
