//! N latent trajectories: hidden states become thoughts and thoughts are fed back, until each row
//! has reached its length.

use model::{Cache, Sequence};
use smallvec::SmallVec;
use tensor::ops::TokenLogprob;
use tensor::{DeviceError, Tensor, ops};

use crate::method::LatentLength;
use crate::prefill::{PrefillOutput, RowSpec, step};
use crate::reasoner::LatentModel;
use crate::sampler::{PassStage, Sampler};

/// One trajectory in progress.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) spec: RowSpec,
    pub(crate) sequence: Sequence,
    /// Its thoughts, as row indices into [`ThoughtBatch::steps`].
    pub(crate) thoughts: SmallVec<[usize; 8]>,
    /// The tokens that the LM head predicts where each thought is made, if its request has a lens.
    pub(crate) lens: Vec<Vec<TokenLogprob>>,
    /// The last thought has not been fed yet; it goes with the end tokens, in a clean pass.
    pub(crate) pending: bool,
}

impl Row {
    pub(crate) fn new(spec: RowSpec) -> Self {
        Self::with_sequence(spec, Sequence::default())
    }

    pub(crate) fn with_sequence(spec: RowSpec, sequence: Sequence) -> Self {
        Self { spec, sequence, thoughts: SmallVec::new(), lens: Vec::new(), pending: false }
    }
}

/// Rows that have finished thinking, and all their thoughts.
#[derive(Default)]
pub(crate) struct ThoughtBatch {
    pub(crate) rows: Vec<Row>,
    /// The vectors that are fed, step after step, on the device: (thoughts of all rows, width)
    /// when concatenated.
    pub(crate) steps: Vec<Tensor>,
    /// The hidden state at the last prompt token of each row whose request has no thoughts:
    /// (such rows, width).
    pub(crate) after_prompt: Option<Tensor>,
    /// The thoughts before noise was added, if they were asked for.
    pub(crate) noiseless: Option<Vec<Tensor>>,
}

impl ThoughtBatch {
    /// All vectors on the host: (thoughts of all rows, width).
    pub(crate) fn to_host(&self, width: usize) -> Result<Tensor, DeviceError> {
        let mut all = Tensor::zeros(0, width);
        self.steps
            .iter()
            .try_for_each(|step| step.clone().to_host().map(|step| all.extend(&step)))?;
        Ok(all)
    }

    /// Drops the rows of cancelled requests.
    pub(crate) fn drop_cancelled(
        &mut self,
        model: &LatentModel,
        sampler: Sampler<'_>,
    ) -> Result<(), DeviceError> {
        let cancelled = sampler.cancelled_items();
        if !cancelled.contains(&true) {
            return Ok(());
        }
        let keep: Vec<bool> = self.rows.iter().map(|row| !cancelled[row.spec.item]).collect();
        if let Some(hidden) = self.after_prompt.take() {
            let without =
                self.rows.iter().zip(&keep).filter(|(row, _)| !has_thoughts(sampler, row));
            let kept: Vec<usize> =
                without.enumerate().filter(|(_, (_, kept))| **kept).map(|(i, _)| i).collect();
            self.after_prompt = Some(ops::select(model.decoder.device(), [&hidden], &kept)?);
        }
        let mut keep = keep.into_iter();
        self.rows.retain(|_| keep.next().unwrap_or(true));
        Ok(())
    }
}

/// Sees, and may replace, the next thought of a row before it is stored and fed.
pub(crate) type LatentHook<'a> = dyn FnMut(&Row, &mut [f32]) + Send + 'a;

/// What thinking needs beside the rows.
pub(crate) struct ThinkParams<'a> {
    pub(crate) sampler: Sampler<'a>,
    pub(crate) hook: Option<&'a mut LatentHook<'a>>,
    /// Keep thoughts as they were before noise, too.
    pub(crate) keep_noiseless: bool,
}

impl<'a> ThinkParams<'a> {
    pub(crate) fn new(sampler: Sampler<'a>) -> Self {
        Self { sampler, hook: None, keep_noiseless: false }
    }
}

/// Whether a row's request thinks at all.
pub(crate) fn has_thoughts(sampler: Sampler<'_>, row: &Row) -> bool {
    sampler.params(row).length != LatentLength::None
}

/// Thinks until every row has ended: at its length, by its own decision, or at the limit.
pub(crate) fn think(
    model: &LatentModel,
    cache: &mut Cache,
    start: PrefillOutput,
    params: ThinkParams<'_>,
) -> Result<ThoughtBatch, DeviceError> {
    let sampler = params.sampler;
    let limits: Vec<usize> = start.rows.iter().map(|row| sampler.max_thoughts(row)).collect();
    continue_thinking(model, cache, start, &limits, params)
}

/// [`think`] for rows of which each has `limits` thoughts left; 0 only where its request has none.
pub(crate) fn continue_thinking(
    model: &LatentModel,
    cache: &mut Cache,
    start: PrefillOutput,
    limits: &[usize],
    params: ThinkParams<'_>,
) -> Result<ThoughtBatch, DeviceError> {
    let PrefillOutput { mut rows, mut hidden } = start;
    let ThinkParams { sampler, mut hook, keep_noiseless } = params;
    let device = model.decoder.device();
    let (mut live, silent): (Vec<usize>, Vec<usize>) =
        (0..rows.len()).partition(|&r| has_thoughts(sampler, &rows[r]));
    let mut batch = ThoughtBatch::default();
    if live.is_empty() {
        return Ok(ThoughtBatch { rows, after_prompt: Some(hidden), ..batch });
    }
    if !silent.is_empty() {
        batch.after_prompt = Some(ops::select(device, [&hidden], &silent)?);
        hidden = ops::select(device, [&hidden], &live)?;
    }
    let (mut noiseless, mut count) = (Vec::new(), 0);
    for t in 0..limits.iter().copied().max().unwrap_or(0) {
        let mut thoughts = make_thoughts(model, sampler, &hidden, &mut rows, &mut live)?;
        if keep_noiseless {
            noiseless.push(thoughts.clone());
        }
        sampler.add_noise(device, live.iter().map(|&r| &rows[r]), t, &mut thoughts)?;
        thoughts = force_thoughts(model, sampler, thoughts, live.iter().map(|&r| &rows[r]))?;
        if let Some(hook) = &mut hook {
            thoughts = thoughts.to_host()?;
            live.iter().enumerate().for_each(|(i, &r)| hook(&rows[r], thoughts.row_mut(i)));
            thoughts = thoughts.to_device(device)?;
        }
        for &r in &live {
            rows[r].thoughts.push(count);
            rows[r].pending = t + 1 == limits[r];
            count += 1;
        }
        let cancelled = sampler.cancelled_items();
        let goes_on = |_, r: usize| !rows[r].pending && !cancelled[rows[r].spec.item];
        let stay = retain_live(&mut live, goes_on);
        let x = ops::select(device, [&thoughts], &stay)?;
        batch.steps.push(thoughts);
        if live.is_empty() {
            break;
        }
        let stage = PassStage::Thought(t + 1);
        hidden = step(model, cache, &mut select_rows(&mut rows, &live), x, sampler, stage)?;
    }
    Ok(ThoughtBatch { rows, noiseless: keep_noiseless.then_some(noiseless), ..batch })
}

/// The next thought of each `live` row, without noise, from hidden states (live, width): (live
/// rows that go on, width). Rows that end here leave `live`.
pub(crate) fn make_thoughts(
    model: &LatentModel,
    sampler: Sampler<'_>,
    hidden: &Tensor,
    rows: &mut [Row],
    live: &mut Vec<usize>,
) -> Result<Tensor, DeviceError> {
    let device = model.decoder.device();
    let noise = sampler.mixture_noise(device, live.iter().map(|&r| &rows[r]))?;
    let made = model.head.forward_perturbed(&model.decoder, hidden, noise.as_ref())?;
    let Some(stay) = undecided(model, sampler, hidden, made.argmax, rows, live)? else {
        read_lens(model, sampler, hidden, rows, live)?;
        return Ok(made.thoughts);
    };
    if sampler.has_lens() {
        read_lens(model, sampler, &ops::select(device, [hidden], &stay)?, rows, live)?;
    }
    ops::select(device, [&made.thoughts], &stay)
}

/// Lets rows end before their limit: those of open length where the model's argmax at their
/// position is the end token, those with forced thoughts after the last of these.
///
/// Removes them from `live` and returns the places of the others; `None` where no row of the batch
/// can end early.
fn undecided(
    model: &LatentModel,
    sampler: Sampler<'_>,
    hidden: &Tensor,
    argmax: Option<Vec<u32>>,
    rows: &[Row],
    live: &mut Vec<usize>,
) -> Result<Option<Vec<usize>>, DeviceError> {
    let forced = |r: usize| sampler.forced_thoughts(&rows[r]);
    let is_open = |r: usize| {
        matches!(sampler.params(&rows[r]).length, LatentLength::AtMost(_)) && forced(r).is_none()
    };
    let any_open = live.iter().any(|&r| is_open(r));
    if !any_open && !live.iter().any(|&r| forced(r).is_some()) {
        return Ok(None);
    }
    let decoder = &model.decoder;
    let argmax = match argmax {
        None if any_open => ops::argmax(decoder.device(), hidden, decoder.lm_head())?,
        known => known.unwrap_or_default(),
    };
    let end = model.method.end_latent.first();
    Ok(Some(retain_live(live, |i, r| match forced(r) {
        Some(forced) => rows[r].thoughts.len() < forced.rows(),
        None => !is_open(r) || end != Some(&argmax[i]),
    })))
}

/// Reads the hidden states (live, width) from which the next thoughts are made through the LM head,
/// for the rows whose requests ask for it.
fn read_lens(
    model: &LatentModel,
    sampler: Sampler<'_>,
    hidden: &Tensor,
    rows: &mut [Row],
    live: &[usize],
) -> Result<(), DeviceError> {
    if !sampler.has_lens() {
        return Ok(());
    }
    let wanted = |(i, &r): (usize, &usize)| Some((i, r, sampler.lens_tokens(&rows[r])?));
    let wanted: Vec<_> = live.iter().enumerate().filter_map(wanted).collect();
    let Some(most) = wanted.iter().map(|&(_, _, count)| count).max() else { return Ok(()) };
    let (decoder, device) = (&model.decoder, model.decoder.device());
    let places: Vec<usize> = wanted.iter().map(|&(i, ..)| i).collect();
    let hidden = ops::select(device, [hidden], &places)?;
    let found = ops::top_tokens(device, &hidden, decoder.lm_head(), most)?;
    for ((_, r, count), mut tokens) in wanted.into_iter().zip(found) {
        tokens.truncate(count);
        rows[r].lens.push(tokens);
    }
    Ok(())
}

/// The next thoughts (rows, width) of some rows with those that their requests force in their
/// places.
pub(crate) fn force_thoughts<'r>(
    model: &LatentModel,
    sampler: Sampler<'_>,
    thoughts: Tensor,
    rows: impl Iterator<Item = &'r Row>,
) -> Result<Tensor, DeviceError> {
    if !sampler.forces_thoughts() {
        return Ok(thoughts);
    }
    let mut forced = Tensor::zeros(0, thoughts.cols());
    let place = |(i, row): (usize, &Row)| match sampler.forced_thoughts(row) {
        Some(own) => {
            forced.push(own.row(row.thoughts.len()));
            thoughts.rows() + forced.rows() - 1
        }
        None => i,
    };
    let places: Vec<usize> = rows.enumerate().map(place).collect();
    if forced.rows() == 0 {
        return Ok(thoughts);
    }
    let device = model.decoder.device();
    ops::select(device, [&thoughts, &forced.to_device(device)?], &places)
}

/// Leaves rows out of `live`; returns the places in it of those that stay.
fn retain_live(live: &mut Vec<usize>, stays: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let (places, rows) = live.iter().copied().enumerate().filter(|&(i, r)| stays(i, r)).unzip();
    *live = rows;
    places
}

/// Mutable references to the rows of ascending indices.
pub(crate) fn select_rows<'a>(rows: &'a mut [Row], indices: &[usize]) -> Vec<&'a mut Row> {
    let mut indices = indices.iter().peekable();
    rows.iter_mut()
        .enumerate()
        .filter(|(i, _)| indices.next_if_eq(&i).is_some())
        .map(|(_, row)| row)
        .collect()
}
