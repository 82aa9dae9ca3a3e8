//! Cases in one pass: what is fed at each position, and where the heads read.

use model::{Cache, Dropout, Pass, Segment, Sequence};
use tensor::ops::{self, RowPerturbation, SiteSet};
use tensor::rng::RngKey;
use tensor::{DeviceError, Tensor};

use super::{RewardExample, RewardHeadRows, RewardTrainStep};
use crate::latent_step::DropoutConfig;

/// What a head has read.
pub(super) struct HeadForward {
    /// Per thought or answer: the place of the hidden state at its end among all that were wanted.
    pub(super) at: Vec<usize>,
    /// The same of the position before it.
    pub(super) before: Vec<usize>,
    /// The same of the last thought, where that is a hidden state of the judge and not what was
    /// given.
    pub(super) thoughts: Option<Vec<usize>>,
    pub(super) input: RewardHeadRows,
    /// (thoughts or answers, 1)
    pub(super) scores: Tensor,
    pub(super) saved: [Tensor; 2],
}

/// Cases that were passed.
pub(super) struct RewardForward {
    pub(super) hidden: Tensor, // (wanted, width)
    pub(super) segment: Segment,
    pub(super) tokens: Vec<u32>,
    pub(super) token_rows: Vec<usize>, // where each was fed
    pub(super) thoughts: HeadForward,
    pub(super) answers: Option<HeadForward>,
}

/// What is fed, position by position.
#[derive(Default)]
struct RewardBatchLayout {
    pass: Pass,
    rng_keys: Vec<Option<RngKey>>,
    tokens: Vec<u32>,
    token_rows: Vec<usize>,
    vector_rows: Vec<usize>, /* where vectors are fed, in the order of all own thoughts, then
                              * all others */
    outputs: usize,
}

/// What goes to a position.
#[derive(Clone, Copy)]
enum LayoutInput {
    Token(u32),
    Vector,
}

impl RewardBatchLayout {
    /// One more position of a sequence; returns the place of its hidden state among the wanted
    /// ones, if it is one of them.
    fn push(
        &mut self,
        (cache, sequence): (&mut Cache, &mut Sequence),
        fed: LayoutInput,
        draw: Option<RngKey>,
        wanted: bool,
    ) -> usize {
        let row = self.rng_keys.len();
        match fed {
            LayoutInput::Token(token) => {
                self.tokens.push(token);
                self.token_rows.push(row);
            }
            LayoutInput::Vector => self.vector_rows.push(row),
        }
        self.pass.push(cache, sequence, wanted);
        self.rng_keys.push(draw);
        self.outputs += usize::from(wanted);
        self.outputs - usize::from(wanted)
    }

    /// For each position the row of [tokens, vectors] that is fed there.
    fn input_order(&self) -> Vec<usize> {
        let mut order = vec![0; self.rng_keys.len()];
        let rows = self.token_rows.iter().chain(&self.vector_rows);
        rows.enumerate().for_each(|(i, &row)| order[row] = i);
        order
    }
}

impl RewardTrainStep {
    pub(super) fn forward(
        &self,
        cache: &mut Cache,
        cases: &[RewardExample],
        droppings: Option<DropoutConfig>,
    ) -> Result<RewardForward, DeviceError> {
        let device = self.model.decoder.device();
        let mut script = RewardBatchLayout::default();
        let draw = |case: &RewardExample, trajectory: usize, sequence: &Sequence| {
            let position = sequence.len() as u32;
            // Steps and trajectories share a number; 4096 trajectories a problem are more than
            // anyone has.
            droppings.map(|d| RngKey {
                seed: d.seed,
                question: case.id,
                trajectory: d.step << 12 | trajectory as u32,
                position,
            })
        };
        let mut prefixes = Vec::with_capacity(cases.len());
        for case in cases {
            let (mut sequence, mut last, count) =
                (Sequence::default(), 0, case.prompt.len() + case.reference_trace.rows());
            let own = std::iter::repeat_n(LayoutInput::Vector, case.reference_trace.rows());
            for (i, fed) in
                case.prompt.iter().map(|&token| LayoutInput::Token(token)).chain(own).enumerate()
            {
                let draw = draw(case, 0, &sequence);
                last = script.push((cache, &mut sequence), fed, draw, i + 1 == count);
            }
            prefixes.push((sequence, last));
        }
        let (mut at, mut before) = (Vec::new(), Vec::new());
        let mut answers = self.outcome.as_ref().map(|_| (Vec::new(), Vec::new(), Vec::new()));
        for (case, (prefix, start)) in cases.iter().zip(&prefixes) {
            for (n, &length) in case.lengths.iter().enumerate() {
                let (mut sequence, mut last) = (prefix.fork(), *start);
                for _ in 0..length {
                    let draw = draw(case, n + 1, &sequence);
                    before.push(last);
                    last = script.push((cache, &mut sequence), LayoutInput::Vector, draw, true);
                    at.push(last);
                }
                let (Some(verdicts), Some((ends, starts, thoughts))) =
                    (&self.outcome, &mut answers)
                else {
                    continue;
                };
                thoughts.push(last);
                for (part, places) in
                    [(&verdicts.end_latent, &mut *starts), (&case.answers[n], &mut *ends)]
                {
                    for (i, &token) in part.iter().enumerate() {
                        let (draw, is_last) = (draw(case, n + 1, &sequence), i + 1 == part.len());
                        let place = script.push(
                            (cache, &mut sequence),
                            LayoutInput::Token(token),
                            draw,
                            is_last,
                        );
                        last = if is_last { place } else { last };
                    }
                    places.push(last);
                }
            }
        }
        let width = self.model.decoder.config().width;
        let gather = |of: fn(&RewardExample) -> &Tensor| {
            let mut all = Tensor::zeros(0, width);
            cases.iter().map(of).filter(|part| part.rows() > 0).for_each(|part| all.extend(part));
            all.to_device(device)
        };
        let (own, thoughts) =
            (gather(|case| &case.reference_trace)?, gather(|case| &case.thoughts)?);
        let parts = [&self.model.decoder.embed(&script.tokens)?, &own, &thoughts];
        let x = ops::select(device, parts, &script.input_order())?;
        let dropout = droppings.map(|d| {
            let row = |key| RowPerturbation { key, strength: d.p, sites: SiteSet::DROPOUT };
            script.rng_keys.iter().map(|key| key.map(row)).collect::<Vec<_>>()
        });
        let dropout = dropout.as_deref().map(Dropout::Sampled);
        let (hidden, segment) = self.model.forward(cache, &script.pass, x, dropout)?;
        let of = |places: &[usize]| ops::select(device, [&hidden], places);
        let judged = RewardHeadRows { at: of(&at)?, before: of(&before)?, thought: thoughts };
        let (scores, kept) = self.head.forward(device, &judged)?;
        let read = HeadForward { at, before, thoughts: None, input: judged, scores, saved: kept };
        let answers = match (&self.outcome, answers) {
            (Some(verdicts), Some((at, before, thoughts))) => {
                let judged =
                    RewardHeadRows { at: of(&at)?, before: of(&before)?, thought: of(&thoughts)? };
                let (scores, kept) = verdicts.head.forward(device, &judged)?;
                Some(HeadForward {
                    at,
                    before,
                    thoughts: Some(thoughts),
                    input: judged,
                    scores,
                    saved: kept,
                })
            }
            _ => None,
        };
        let RewardBatchLayout { tokens, token_rows, .. } = script;
        Ok(RewardForward { hidden, segment, tokens, token_rows, thoughts: read, answers })
    }
}
