//! N latent paths: hidden states become thoughts, thoughts are fed back, until each row has thought
//! enough.

use model::{Cache, Sequence};
use smallvec::SmallVec;
use tensor::rng::RngKey;
use tensor::{DeviceError, Tensor, ops};

use crate::method::LatentLength;
use crate::perturb::{RandomSource, RowId, Sampler};
use crate::prefill::{PrefillOutput, RowSpec, step};
use crate::reasoner::LatentModel;

/// One trajectory on its way.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) spec: RowSpec,
    pub(crate) sequence: Sequence,
    /// Its thoughts, as rows of the wave's [`Thoughts::all`].
    pub(crate) thoughts: SmallVec<[usize; 8]>,
    /// Whether the last thought has not been fed yet. It goes with the end tokens, in a clean
    /// pass.
    pub(crate) pending: bool,
}

impl Row {
    pub(crate) fn new(start: RowSpec, sequence: Sequence) -> Self {
        Self { spec: start, sequence, thoughts: SmallVec::new(), pending: false }
    }

    /// Where this row's numbers at its next position are drawn; a clean row has none.
    pub(crate) fn rng_key(&self, randomness: RandomSource<'_>) -> Option<RngKey> {
        match randomness {
            RandomSource::Seeded(seed) if self.spec.perturbed => {
                Some(self.spec.id.rng_key(seed, self.sequence.len()))
            }
            _ => None,
        }
    }
}

/// Rows that have thought, and all their thoughts.
pub(crate) struct ThoughtBatch {
    pub(crate) rows: Vec<Row>,
    /// The vectors that are fed, step after step: (thoughts of all rows, width) together. They
    /// stay on the device.
    pub(crate) steps: Vec<Tensor>,
    /// The hidden state at each row's last prompt token, where rows do not think and may answer
    /// from it: (rows, width).
    pub(crate) after_prompt: Option<Tensor>,
    /// The same before noise was added, if that was asked for.
    pub(crate) noiseless: Option<Vec<Tensor>>,
}

impl ThoughtBatch {
    /// All vectors on the host, of that width.
    pub(crate) fn to_host(&self, width: usize) -> Result<Tensor, DeviceError> {
        let mut all = Tensor::zeros(0, width);
        self.steps
            .iter()
            .try_for_each(|step| step.clone().to_host().map(|step| all.extend(&step)))?;
        Ok(all)
    }
}

/// How to think.
pub(crate) struct ThinkParams<'a> {
    pub(crate) length: LatentLength,
    pub(crate) sampler: Sampler<'a>,
    pub(crate) hook: Option<&'a mut LatentHook<'a>>,
    /// Whether thoughts are wanted as they were before noise, too.
    pub(crate) keep_noiseless: bool,
}

/// Sees, and may replace, the next thought of a row before it is stored and fed.
pub(crate) type LatentHook<'a> = dyn FnMut(&Row, &mut [f32]) + Send + 'a;

/// Thinks until every row has ended: by its length, by its own decision, or at the limit.
pub(crate) fn think(
    mind: &LatentModel,
    cache: &mut Cache,
    started: PrefillOutput,
    how: ThinkParams<'_>,
) -> Result<ThoughtBatch, DeviceError> {
    let limits: Vec<usize> =
        started.rows.iter().map(|row| max_thoughts(row, how.length, how.sampler.source)).collect();
    continue_thinking(mind, cache, started, &limits, how)
}

/// [`think`] of rows that may have so many thoughts more, each at least one.
pub(crate) fn continue_thinking(
    mind: &LatentModel,
    cache: &mut Cache,
    started: PrefillOutput,
    limits: &[usize],
    how: ThinkParams<'_>,
) -> Result<ThoughtBatch, DeviceError> {
    let PrefillOutput { mut rows, mut hidden } = started;
    let ThinkParams { length, sampler: chance, hook: mut steer, keep_noiseless: keep_clean } = how;
    let device = mind.decoder.device();
    if length == LatentLength::None {
        return Ok(ThoughtBatch {
            rows,
            steps: Vec::new(),
            after_prompt: Some(hidden),
            noiseless: None,
        });
    }
    let mut live: Vec<usize> = (0..rows.len()).collect();
    let (mut steps, mut clean, mut count) = (Vec::new(), Vec::new(), 0);
    for t in 0..limits.iter().copied().max().unwrap_or(0) {
        let made = mind.head.forward(&mind.decoder, &hidden)?;
        let mut thoughts = made.thoughts;
        if matches!(length, LatentLength::AtMost(_)) {
            let likeliest = made
                .argmax
                .map_or_else(|| ops::argmax(device, &hidden, mind.decoder.lm_head()), Ok)?;
            let stay = retain_live(&mut live, |i, _| {
                mind.method.end_latent.first() != Some(&likeliest[i])
            });
            thoughts = ops::select(device, [&thoughts], &stay)?;
        }
        if keep_clean {
            clean.push(thoughts.clone());
        }
        let ids: Vec<RowId> = live.iter().map(|&r| rows[r].spec.id).collect();
        let draws = || live.iter().map(|&r| rows[r].rng_key(chance.source)).collect();
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
        let stay = retain_live(&mut live, |_, r| !rows[r].pending);
        let x = ops::select(device, [&thoughts], &stay)?;
        steps.push(thoughts);
        if live.is_empty() {
            break;
        }
        hidden = step(mind, cache, &mut select_rows(&mut rows, &live), x, Some((chance, t + 1)))?;
    }
    Ok(ThoughtBatch { rows, steps, after_prompt: None, noiseless: keep_clean.then_some(clean) })
}

/// Leaves rows out of `live`; returns the places in it of those that stay.
fn retain_live(live: &mut Vec<usize>, stays: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let (places, rows) = live.iter().copied().enumerate().filter(|&(i, r)| stays(i, r)).unzip();
    *live = rows;
    places
}

/// The most thoughts that a row may have.
pub(crate) fn max_thoughts(row: &Row, length: LatentLength, randomness: RandomSource<'_>) -> usize {
    match (length, randomness) {
        (LatentLength::Between(range), RandomSource::Seeded(seed)) if row.spec.perturbed => {
            row.spec.id.length(seed, range)
        }
        _ => length.limit(),
    }
}

/// Some rows, by ascending index.
pub(crate) fn select_rows<'a>(rows: &'a mut [Row], wanted: &[usize]) -> Vec<&'a mut Row> {
    let mut wanted = wanted.iter().peekable();
    rows.iter_mut()
        .enumerate()
        .filter(|(i, _)| wanted.next_if_eq(&i).is_some())
        .map(|(_, row)| row)
        .collect()
}
