//! N latent paths: hidden states become thoughts, thoughts are fed back, until each row has thought enough.

use model::{Cache, Sequence};
use smallvec::SmallVec;
use tensor::rng::Draw;
use tensor::{DeviceError, Tensor, ops};

use crate::method::LatentLength;
use crate::perturb::{Chance, Randomness, RowId};
use crate::prefill::{Start, Started, step};
use crate::reasoner::Mind;

/// One trajectory on its way.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) start: Start,
    pub(crate) sequence: Sequence,
    /// Its thoughts, as rows of the wave's [`Thoughts::all`].
    pub(crate) thoughts: SmallVec<[usize; 8]>,
    /// Whether the last thought has not been fed yet. It goes with the end tokens, in a clean pass.
    pub(crate) pending: bool,
}

impl Row {
    pub(crate) fn new(start: Start, sequence: Sequence) -> Self {
        Self { start, sequence, thoughts: SmallVec::new(), pending: false }
    }

    /// Where this row's numbers at its next position are drawn; a clean row has none.
    pub(crate) fn draw(&self, randomness: Randomness<'_>) -> Option<Draw> {
        match randomness {
            Randomness::Seeded(seed) if self.start.perturbed => Some(self.start.id.draw(seed, self.sequence.len())),
            _ => None,
        }
    }
}

/// Rows that have thought, and all their thoughts.
pub(crate) struct Thoughts {
    pub(crate) rows: Vec<Row>,
    /// The vectors that are fed, step after step: (thoughts of all rows, width) together. They stay on the device.
    pub(crate) all: Vec<Tensor>,
    /// The hidden state at each row's last prompt token, where rows do not think and may answer from it: (rows, width).
    pub(crate) after_prompt: Option<Tensor>,
    /// The same before noise was added, if that was asked for.
    pub(crate) clean: Option<Vec<Tensor>>,
}

impl Thoughts {
    /// All vectors on the host, of that width.
    pub(crate) fn to_host(&self, width: usize) -> Result<Tensor, DeviceError> {
        let mut all = Tensor::zeros(0, width);
        self.all.iter().try_for_each(|step| step.clone().to_host().map(|step| all.extend(&step)))?;
        Ok(all)
    }
}

/// How to think.
pub(crate) struct Thinking<'a> {
    pub(crate) length: LatentLength,
    pub(crate) chance: Chance<'a>,
    pub(crate) steer: Option<&'a mut Steer<'a>>,
    /// Whether thoughts are wanted as they were before noise, too.
    pub(crate) keep_clean: bool,
}

/// Sees, and may replace, the next thought of a row before it is stored and fed.
pub(crate) type Steer<'a> = dyn FnMut(&Row, &mut [f32]) + Send + 'a;

/// Thinks until every row has ended: by its length, by its own decision, or at the limit.
pub(crate) fn think(mind: &Mind, cache: &mut Cache, started: Started, how: Thinking<'_>) -> Result<Thoughts, DeviceError> {
    let limits: Vec<usize> = started.rows.iter().map(|row| limit(row, how.length, how.chance.randomness)).collect();
    think_on(mind, cache, started, &limits, how)
}

/// [`think`] of rows that may have so many thoughts more, each at least one.
pub(crate) fn think_on(
    mind: &Mind,
    cache: &mut Cache,
    started: Started,
    limits: &[usize],
    how: Thinking<'_>,
) -> Result<Thoughts, DeviceError> {
    let Started { mut rows, mut hidden } = started;
    let Thinking { length, chance, mut steer, keep_clean } = how;
    let device = mind.decoder.device();
    if length == LatentLength::None {
        return Ok(Thoughts { rows, all: Vec::new(), after_prompt: Some(hidden), clean: None });
    }
    let mut live: Vec<usize> = (0..rows.len()).collect();
    let (mut steps, mut clean, mut count) = (Vec::new(), Vec::new(), 0);
    for t in 0..limits.iter().copied().max().unwrap_or(0) {
        let made = mind.head.thoughts(&mind.decoder, &hidden)?;
        let mut thoughts = made.thoughts;
        if matches!(length, LatentLength::AtMost(_)) {
            let likeliest = made.likeliest.map_or_else(|| ops::argmax(device, &hidden, mind.decoder.head()), Ok)?;
            let stay = keep(&mut live, |i, _| mind.method.end.first() != Some(&likeliest[i]));
            thoughts = ops::select(device, [&thoughts], &stay)?;
        }
        if keep_clean {
            clean.push(thoughts.clone());
        }
        let ids: Vec<RowId> = live.iter().map(|&r| rows[r].start.id).collect();
        let draws = || live.iter().map(|&r| rows[r].draw(chance.randomness)).collect();
        chance.add_noise(device, &ids, draws, t, &mut thoughts)?;
        if let Some(steer) = &mut steer {
            thoughts = thoughts.to_host()?;
            live.iter().enumerate().for_each(|(i, &r)| steer(&rows[r], thoughts.row_mut(i)));
            thoughts = thoughts.to_device(device)?;
        }
        for &r in &live {
            rows[r].thoughts.push(count);
            rows[r].pending = t + 1 == limits[r];
            count += 1;
        }
        let stay = keep(&mut live, |_, r| !rows[r].pending);
        let x = ops::select(device, [&thoughts], &stay)?;
        steps.push(thoughts);
        if live.is_empty() {
            break;
        }
        hidden = step(mind, cache, &mut pick(&mut rows, &live), x, Some((chance, t + 1)))?;
    }
    Ok(Thoughts { rows, all: steps, after_prompt: None, clean: keep_clean.then_some(clean) })
}

/// Leaves rows out of `live`; returns the places in it of those that stay.
fn keep(live: &mut Vec<usize>, stays: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let (places, rows) = live.iter().copied().enumerate().filter(|&(i, r)| stays(i, r)).unzip();
    *live = rows;
    places
}

/// The most thoughts that a row may have.
pub(crate) fn limit(row: &Row, length: LatentLength, randomness: Randomness<'_>) -> usize {
    match (length, randomness) {
        (LatentLength::Between(range), Randomness::Seeded(seed)) if row.start.perturbed => row.start.id.length(seed, range),
        _ => length.limit(),
    }
}

/// Some rows, by ascending index.
pub(crate) fn pick<'a>(rows: &'a mut [Row], wanted: &[usize]) -> Vec<&'a mut Row> {
    let mut wanted = wanted.iter().peekable();
    rows.iter_mut().enumerate().filter(|(i, _)| wanted.next_if_eq(&i).is_some()).map(|(_, row)| row).collect()
}
