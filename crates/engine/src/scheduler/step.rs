//! One pass over the rows of the continuous batch: what each feeds, and what becomes of its hidden
//! state.

use std::sync::Arc;

use model::{Cache, Sequence};
use smallvec::SmallVec;
use tensor::ops::{self, PendingTokens};
use tensor::{DeviceError, Tensor};

use super::job::{NextFeed, Prefix, RowProgress};
use super::pass::{Input, PassBuilder, ThoughtRef};
use crate::engine::Engine;
use crate::method::Method;
use crate::perturb::PromptSharing;
use crate::reasoner::LatentModel;
use crate::sampler::{PassStage, Sampler};
use crate::think::{Row, force_thoughts, has_thoughts, make_thoughts};

/// Where a row's hidden state is after a pass.
#[derive(Clone, Copy)]
pub(super) enum HiddenPlace {
    Output(usize),
    /// At the end of its request's shared prompt.
    Prefix,
    Nowhere,
}

/// The hidden states after a pass.
pub(super) struct HiddenStates {
    parts: Vec<Tensor>,
    /// Of each row, in the concatenation of the parts.
    places: Vec<usize>,
}

impl HiddenStates {
    pub(super) fn new(
        outputs: Option<Tensor>,
        prefixes: &[Option<Prefix>],
        rows: &[Row],
        places: &[HiddenPlace],
    ) -> Self {
        let mut count = outputs.as_ref().map_or(0, Tensor::rows);
        let mut parts: Vec<Tensor> = outputs.into_iter().collect();
        let mut of_prefixes = vec![None; prefixes.len()];
        let place = |(row, place): (&Row, &HiddenPlace)| match *place {
            HiddenPlace::Output(output) => output,
            HiddenPlace::Nowhere => 0,
            HiddenPlace::Prefix => *of_prefixes[row.spec.item].get_or_insert_with(|| {
                let prefix = prefixes[row.spec.item].as_ref();
                parts.extend(prefix.and_then(|prefix| prefix.hidden.clone()));
                count += 1;
                count - 1
            }),
        };
        let places = rows.iter().zip(places).map(place).collect();
        Self { parts, places }
    }

    /// (rows, width)
    fn select(&self, engine: &Engine, rows: &[usize]) -> Result<Tensor, DeviceError> {
        let places: Vec<usize> = rows.iter().map(|&row| self.places[row]).collect();
        ops::select(engine.reasoner().decoder.device(), &self.parts, &places)
    }
}

/// What one pass reads beside the rows.
pub(super) struct BatchStep<'s> {
    pub(super) engine: &'s Engine,
    pub(super) sampler: Sampler<'s>,
}

/// Where a row that begins puts its prompt.
pub(super) struct StartedRow<'s> {
    pub(super) pass: &'s mut PassBuilder,
    pub(super) prefix: &'s mut Option<Prefix>,
    /// Requests whose whole prompts end in this pass, with the outputs there.
    pub(super) outputs: &'s mut Vec<(usize, usize)>,
}

impl BatchStep<'_> {
    /// Passes what a row's prompt needs: the shared part unless it is there, and its own.
    pub(super) fn start(
        &self,
        cache: &mut Cache,
        row: &mut Row,
        start: StartedRow<'_>,
    ) -> HiddenPlace {
        let StartedRow { pass, prefix, outputs } = start;
        let item = &self.sampler.items[row.spec.item];
        let sharing = item.params.perturbation.prompt_sharing();
        let (shared, own) = item.prompt.tokens.split_at(item.shared_tokens());
        if sharing != PromptSharing::Nothing {
            let prefix = prefix.get_or_insert_with(|| {
                let mut sequence = Sequence::default();
                for (i, &token) in shared.iter().enumerate() {
                    let is_last = i + 1 == item.prompt_len();
                    let output =
                        pass.push(cache, &mut sequence, Input::Token(token), None, is_last);
                    outputs.extend(output.map(|output| (row.spec.item, output)));
                }
                Prefix { sequence, hidden: None }
            });
            row.sequence = prefix.sequence.fork();
        }
        let stage = match sharing {
            PromptSharing::Nothing => PassStage::Prompt,
            PromptSharing::Whole | PromptSharing::AllButLast => PassStage::Thought(0),
        };
        let mut place = HiddenPlace::Prefix;
        for (i, &token) in own.iter().enumerate() {
            let dropout = self.sampler.dropout_row(row, stage);
            let (input, is_last) = (Input::Token(token), i + 1 == own.len());
            let output = pass.push(cache, &mut row.sequence, input, dropout, is_last);
            place = output.map_or(place, HiddenPlace::Output);
        }
        place
    }

    /// Passes what a row feeds after its prompt.
    pub(super) fn feed(
        &self,
        cache: &mut Cache,
        row: &mut Row,
        progress: &RowProgress,
        pass: &mut PassBuilder,
    ) -> HiddenPlace {
        let thought = || progress.thoughts.last().cloned().map(Input::Thought);
        let end = &self.engine.reasoner().method.end_latent;
        let tokens = |tokens: &[u32]| -> SmallVec<[Input; 4]> {
            tokens.iter().map(|&token| Input::Token(token)).collect()
        };
        let (inputs, stage): (SmallVec<[Input; 4]>, PassStage) = match progress.next {
            NextFeed::Thought => {
                (thought().into_iter().collect(), PassStage::Thought(progress.thoughts.len()))
            }
            NextFeed::End => {
                let pending = thought().filter(|_| row.pending);
                (pending.into_iter().chain(tokens(end)).collect(), PassStage::Answer)
            }
            NextFeed::Token(token) => (tokens(&[token]), PassStage::Answer),
            NextFeed::PendingToken(place) => {
                (SmallVec::from_iter([Input::PendingToken(place)]), PassStage::Answer)
            }
            NextFeed::Prompt | NextFeed::AwaitLastToken | NextFeed::Done => {
                (SmallVec::new(), PassStage::Answer)
            }
        };
        row.pending = false;
        let (mut place, count) = (HiddenPlace::Nowhere, inputs.len());
        for (i, input) in inputs.into_iter().enumerate() {
            let dropout = self.sampler.dropout_row(row, stage);
            let output = pass.push(cache, &mut row.sequence, input, dropout, i + 1 == count);
            place = output.map_or(place, HiddenPlace::Output);
        }
        place
    }

    /// Makes the next thought of every row that thinks.
    pub(super) fn think(
        &self,
        hidden: &HiddenStates,
        rows: &mut [Row],
        progress: &mut [RowProgress],
    ) -> Result<(), DeviceError> {
        let model = &self.engine.reasoner().model;
        let thinks = |&r: &usize| {
            matches!(progress[r].next, NextFeed::Prompt | NextFeed::Thought)
                && has_thoughts(self.sampler, &rows[r])
        };
        let mut live: Vec<usize> = (0..rows.len()).filter(thinks).collect();
        if live.is_empty() {
            return Ok(());
        }
        let at = hidden.select(self.engine, &live)?;
        // A row that ends its thoughts by itself feeds the end tokens next.
        live.iter().for_each(|&r| progress[r].next = NextFeed::End);
        let mut thoughts = make_thoughts(model, self.sampler, &at, rows, &mut live)?;
        let device = model.decoder.device();
        self.sampler.add_noise(device, live.iter().map(|&r| &rows[r]), 0, &mut thoughts)?;
        let live_rows = live.iter().map(|&r| &rows[r]);
        let made = Arc::new(force_thoughts(model, self.sampler, thoughts, live_rows)?);
        for (row, &r) in live.iter().enumerate() {
            let progress = &mut progress[r];
            progress.thoughts.push(ThoughtRef { made: Arc::clone(&made), row });
            rows[r].thoughts.push(row); // counted by the sampler, and read by nobody here
            rows[r].pending = progress.thoughts.len() == progress.limit;
            progress.next = if rows[r].pending { NextFeed::End } else { NextFeed::Thought };
        }
        Ok(())
    }

    /// Asks for the next token of every row that answers, after what the rows fed.
    pub(super) fn answer(
        &self,
        hidden: &HiddenStates,
        fed: &[NextFeed],
        rows: &[Row],
        progress: &mut [RowProgress],
    ) -> Result<Option<PendingAnswers>, DeviceError> {
        let LatentModel { decoder, method, .. } = &self.engine.reasoner().model;
        let mut live = Vec::with_capacity(rows.len());
        for (r, fed) in fed.iter().enumerate() {
            match fed {
                // One that fed a pending token may turn out to have ended with it.
                _ if progress[r].next == NextFeed::Done => {}
                NextFeed::End | NextFeed::Token(_) | NextFeed::PendingToken(_) => live.push(r),
                NextFeed::Prompt if !has_thoughts(self.sampler, &rows[r]) => {
                    // Without end tokens the answer begins at the prompt's last position.
                    if method.end_latent.is_empty() {
                        live.push(r);
                    }
                    progress[r].next = NextFeed::End;
                }
                _ => {}
            }
        }
        if live.is_empty() {
            return Ok(None);
        }
        let at = hidden.select(self.engine, &live)?;
        let tokens = self.sampler.next_tokens(decoder, &at, live.iter().map(|&r| &rows[r]))?;
        for (place, &r) in live.iter().enumerate() {
            let ends = progress[r].tokens.len() + 1
                >= self.sampler.params(&rows[r]).max_new_tokens.get()
                || rows[r].sequence.len() >= decoder.config().context;
            progress[r].next =
                if ends { NextFeed::AwaitLastToken } else { NextFeed::PendingToken(place) };
        }
        Ok(Some(PendingAnswers { rows: live, tokens, embedded: None }))
    }
}

/// The next tokens of rows that answer. A GPU may still compute them.
pub(super) struct PendingAnswers {
    /// The rows, by index.
    rows: Vec<usize>,
    tokens: PendingTokens,
    /// Their input vectors, once the tokens are to be fed before they are read.
    embedded: Option<Tensor>,
}

impl PendingAnswers {
    /// Whether the tokens can be read without waiting.
    pub(super) fn is_ready(&self) -> bool {
        self.tokens.is_ready()
    }

    /// Makes the tokens' input vectors, so that the next pass can feed them before they are read.
    /// False where they have to be read first.
    pub(super) fn embed(&mut self, model: &LatentModel) -> Result<bool, DeviceError> {
        self.embedded = model.embed_pending(&self.tokens)?;
        Ok(self.embedded.is_some())
    }

    pub(super) fn embedded(&self) -> Option<&Tensor> {
        self.embedded.as_ref()
    }

    /// The rows have other indices now: `places` has that of each former one.
    pub(super) fn move_rows(&mut self, places: &[usize]) {
        self.rows.iter_mut().for_each(|r| *r = places[*r]);
    }

    /// Reads the tokens into the rows' answers; rows that end with theirs are done.
    pub(super) fn read(
        self,
        method: &Method,
        progress: &mut [RowProgress],
    ) -> Result<(), DeviceError> {
        for (r, token) in self.rows.into_iter().zip(self.tokens.read()?) {
            let progress = &mut progress[r];
            progress.tokens.push(token.token);
            progress.logprob += token.logprob;
            let ends =
                progress.next == NextFeed::AwaitLastToken || method.eos.contains(&token.token);
            progress.next = if ends { NextFeed::Done } else { NextFeed::Token(token.token) };
        }
        Ok(())
    }
}
