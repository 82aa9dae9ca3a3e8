//! Prompts become prefixes in the cache: computed once, shared by all rows of a question.
//!
//! How much is shared depends on the perturbation. Without one, or with noise, all of the prompt
//! and the first hidden state; with dropout on thoughts, all but the last token, which every row
//! passes with masks of its own; with dropout in the prompt, nothing. Where rows are few, all of
//! this is one pass: rows see the prefixes that are computed beside them.

use model::{Cache, DeferredInputs, Dropout, ForwardOptions, Pass, Sequence};
use tensor::ops::{self, OutputDtype};
use tensor::{DeviceError, Tensor};

use crate::perturb::{RandomSource, RowId, Sampler};
use crate::prompt::Prompt;
use crate::reasoner::LatentModel;
use crate::think::Row;

/// Rows that have passed their prompt, and the hidden state at its last token of each: (rows,
/// width).
pub(crate) struct PrefillOutput {
    pub(crate) rows: Vec<Row>,
    pub(crate) hidden: Tensor,
}

/// A row to start: its prompt, its name, and whether it is perturbed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSpec {
    pub(crate) prompt: usize,
    pub(crate) id: RowId,
    pub(crate) perturbed: bool,
}

/// Passes the prompts and forks their rows. Rows of one prompt are neighbours.
pub(crate) fn prefill(
    mind: &LatentModel,
    cache: &mut Cache,
    prompts: &[&Prompt],
    starts: &[RowSpec],
    chance: Sampler<'_>,
) -> Result<PrefillOutput, DeviceError> {
    let prefill = PrefillBatch { mind, prompts, starts, chance };
    if chance.perturbation.prompt_is_private() {
        prefill.private(cache)
    } else if chance.perturbation.last_token_is_private() {
        prefill.forked(cache)
    } else {
        prefill.shared(cache)
    }
}

/// Prefixes and rows that pass together, at most: more fill a GPU as well in two passes, and two
/// fit its rounds of tiles better.
const MAX_SINGLE_PASS: usize = 2048;
/// Rows whose private prompts are passed together: enough for full speed, few enough to keep the
/// inputs small.
const PRIVATE_PROMPT_ROWS: usize = 16;

/// What is passed, and how.
#[derive(Clone, Copy)]
struct PrefillBatch<'a> {
    mind: &'a LatentModel,
    prompts: &'a [&'a Prompt],
    starts: &'a [RowSpec],
    chance: Sampler<'a>,
}

impl PrefillBatch<'_> {
    /// Rows differ after their prompts alone.
    fn shared(self, cache: &mut Cache) -> Result<PrefillOutput, DeviceError> {
        let Self { mind, starts, .. } = self;
        let x = mind.embed(&self.tokens(0))?; // the device is at it while the pass is made
        let (pass, sequences) = self.prefixes(cache, 0);
        let hidden = mind.decoder.forward(cache, &pass, x, None)?;
        let hidden = ops::select(
            mind.decoder.device(),
            [&hidden],
            &starts.iter().map(|s| s.prompt).collect::<Vec<_>>(),
        )?;
        Ok(PrefillOutput { rows: self.rows(&sequences), hidden })
    }

    /// Every row passes the last token by itself: beside the prefixes where they are few, else
    /// after them.
    fn forked(self, cache: &mut Cache) -> Result<PrefillOutput, DeviceError> {
        let Self { mind, prompts, starts, chance } = self;
        let mut tokens = self.tokens(1);
        let last = starts.iter().filter_map(|s| prompts[s.prompt].tokens.last());
        // Recorded masks fall on all rows of a pass, which prefixes must not be among.
        let is_recorded = matches!(chance.source, RandomSource::Recorded(_));
        if is_recorded || tokens.len() + starts.len() > MAX_SINGLE_PASS {
            let x = mind.embed(&tokens)?; // the device is at it while the pass is made
            let (pass, sequences) = self.prefixes(cache, 1);
            mind.decoder.forward(cache, &pass, x, None)?;
            let mut rows = self.rows(&sequences);
            let x = mind.embed(&last.copied().collect::<Vec<_>>())?;
            let hidden =
                step(mind, cache, &mut rows.iter_mut().collect::<Vec<_>>(), x, Some((chance, 0)))?;
            return Ok(PrefillOutput { rows, hidden });
        }
        let (mut pass, sequences) = self.prefixes(cache, 1);
        let mut rows = self.rows(&sequences);
        let own = rows.iter().map(|row| row.rng_key(chance.source));
        let dropout = chance.dropout_rows(std::iter::repeat_n(None, pass.rows()).chain(own));
        rows.iter_mut().for_each(|row| pass.push(cache, &mut row.sequence, true));
        tokens.extend(last);
        let hidden = mind.decoder.forward(
            cache,
            &pass,
            mind.embed(&tokens)?,
            dropout.as_deref().map(Dropout::Sampled),
        )?;
        Ok(PrefillOutput { rows, hidden })
    }

    /// Every row passes the whole prompt by itself.
    fn private(self, cache: &mut Cache) -> Result<PrefillOutput, DeviceError> {
        let Self { mind, prompts, starts, chance } = self;
        let mut rows: Vec<Row> = starts.iter().map(|s| Row::new(*s, Sequence::default())).collect();
        let mut hidden = Vec::new();
        for some in rows.chunks_mut(PRIVATE_PROMPT_ROWS) {
            let (mut pass, mut draws, mut tokens) = (Pass::default(), Vec::new(), Vec::new());
            for row in some {
                let prompt = &prompts[row.spec.prompt].tokens;
                for (i, &token) in prompt.iter().enumerate() {
                    draws.push(row.rng_key(chance.source));
                    pass.push(cache, &mut row.sequence, i + 1 == prompt.len());
                    tokens.push(token);
                }
            }
            let dropout = chance.dropout_rows(draws);
            hidden.push(mind.decoder.forward(
                cache,
                &pass,
                mind.embed(&tokens)?,
                dropout.as_deref().map(Dropout::Sampled),
            )?);
        }
        let hidden = ops::concat(mind.decoder.device(), &hidden.iter().collect::<Vec<_>>())?;
        Ok(PrefillOutput { rows, hidden })
    }

    /// The tokens of all prompts without so many of their last.
    fn tokens(self, without: usize) -> Vec<u32> {
        self.prompts
            .iter()
            .map(|prompt| &prompt.tokens[..prompt.tokens.len() - without])
            .collect::<Vec<_>>()
            .concat()
    }

    /// A pass over these tokens, and the sequence of each prompt. Hidden states at last tokens, if
    /// they are there, are wanted.
    fn prefixes(self, cache: &mut Cache, without: usize) -> (Pass, Vec<Sequence>) {
        let rows = self.prompts.iter().map(|prompt| prompt.tokens.len() - without).sum();
        let (mut pass, mut sequences) =
            (Pass::with_capacity(rows), vec![Sequence::default(); self.prompts.len()]);
        for (prompt, sequence) in self.prompts.iter().zip(&mut sequences) {
            let length = prompt.tokens.len();
            (1..=length - without).for_each(|n| pass.push(cache, sequence, n == length));
        }
        (pass, sequences)
    }

    /// Rows that go on from their prompts.
    fn rows(self, prefixes: &[Sequence]) -> Vec<Row> {
        self.starts.iter().map(|s| Row::new(*s, prefixes[s.prompt].fork())).collect()
    }
}

/// One position of each row: x (rows, width) to the hidden states (rows, width).
///
/// `perturbed` gives the pass its number for replayed masks, counted from the one over the last
/// prompt token; `None` is a clean pass.
pub(crate) fn step(
    mind: &LatentModel,
    cache: &mut Cache,
    rows: &mut [&mut Row],
    x: Tensor,
    perturbed: Option<(Sampler<'_>, usize)>,
) -> Result<Tensor, DeviceError> {
    step_deferred(mind, cache, rows, (perturbed, OutputDtype::F32), (|| Ok(x), || Ok(())))
}

/// [`step`] that may turn out not to be wanted, or whose input vectors are not known yet; see
/// [`model::Decoder::forward_when`]. If it fails, the rows are where they were.
pub(crate) fn step_deferred<E: From<DeviceError>>(
    mind: &LatentModel,
    cache: &mut Cache,
    rows: &mut [&mut Row],
    (perturbed, format): (Option<(Sampler<'_>, usize)>, OutputDtype),
    when: (impl FnOnce() -> Result<Tensor, E>, impl FnOnce() -> Result<(), E>),
) -> Result<Tensor, E> {
    let mark = cache.mark();
    let sampled = perturbed.and_then(|(chance, _)| {
        chance.dropout_rows(rows.iter().map(|row| row.rng_key(chance.source)))
    });
    let mut pass = Pass::with_capacity(rows.len());
    rows.iter_mut().for_each(|row| pass.push(cache, &mut row.sequence, true));
    let recorded = perturbed.and_then(|(chance, t)| match chance.source {
        RandomSource::Recorded(recording) if chance.perturbation.last_token_is_private() => Some(
            recording.masks(t, &rows.iter().map(|row| row.spec.id.trajectory).collect::<Vec<_>>()),
        ),
        _ => None,
    });
    let dropout = perturbed
        .zip(recorded.as_deref())
        .and_then(|((chance, _), masks)| chance.recorded_dropout(masks))
        .or(sampled.as_deref().map(Dropout::Sampled));
    let options = ForwardOptions { dropout, output: format };
    let inputs = DeferredInputs { x: when.0, proceed: when.1 };
    let hidden = mind.decoder.forward_deferred(cache, &pass, options, inputs);
    if hidden.is_err() {
        cache.rollback(mark, rows.iter_mut().map(|row| &mut row.sequence));
    }
    hidden
}
