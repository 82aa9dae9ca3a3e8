//! Cases in one pass: what is fed at each position, and where the heads read.

use model::{Cache, Dropout, Masks, Pass, Segment, Sequence};
use tensor::rng::Draw;
use tensor::{DeviceError, Tensor, ops};

use super::{Case, Judge, Judged};
use crate::study::Droppings;

/// What a head has read.
pub(super) struct Reading {
    /// Per thought or answer: the place of the hidden state at its end among all that were wanted.
    pub(super) at: Vec<usize>,
    /// The same of the position before it.
    pub(super) before: Vec<usize>,
    /// The same of the last thought, where that is a hidden state of the judge and not what was given.
    pub(super) thoughts: Option<Vec<usize>>,
    pub(super) judged: Judged,
    /// (thoughts or answers, 1)
    pub(super) scores: Tensor,
    pub(super) kept: [Tensor; 2],
}

/// Cases that were passed.
pub(super) struct Heard {
    pub(super) hidden: Tensor, // (wanted, width)
    pub(super) segment: Segment,
    pub(super) tokens: Vec<u32>,
    pub(super) token_rows: Vec<usize>, // where each was fed
    pub(super) thoughts: Reading,
    pub(super) answers: Option<Reading>,
}

/// What is fed, position by position.
#[derive(Default)]
struct Script {
    pass: Pass,
    draws: Vec<Option<Draw>>,
    tokens: Vec<u32>,
    token_rows: Vec<usize>,
    vector_rows: Vec<usize>, // where vectors are fed, in the order of all own thoughts, then all others
    wanted: usize,
}

/// What goes to a position.
#[derive(Clone, Copy)]
enum Fed {
    Token(u32),
    Vector,
}

impl Script {
    /// One more position of a sequence; returns the place of its hidden state among the wanted ones, if it is one of them.
    fn push(&mut self, (cache, sequence): (&mut Cache, &mut Sequence), fed: Fed, draw: Option<Draw>, wanted: bool) -> usize {
        let row = self.draws.len();
        match fed {
            Fed::Token(token) => {
                self.tokens.push(token);
                self.token_rows.push(row);
            }
            Fed::Vector => self.vector_rows.push(row),
        }
        self.pass.push(cache, sequence, wanted);
        self.draws.push(draw);
        self.wanted += usize::from(wanted);
        self.wanted - usize::from(wanted)
    }

    /// For each position the row of [tokens, vectors] that is fed there.
    fn order(&self) -> Vec<usize> {
        let mut order = vec![0; self.draws.len()];
        let rows = self.token_rows.iter().chain(&self.vector_rows);
        rows.enumerate().for_each(|(i, &row)| order[row] = i);
        order
    }
}

impl Judge {
    pub(super) fn hear(&self, cache: &mut Cache, cases: &[Case], droppings: Option<Droppings>) -> Result<Heard, DeviceError> {
        let device = self.learner.decoder.device();
        let mut script = Script::default();
        let draw = |case: &Case, trajectory: usize, sequence: &Sequence| {
            let position = sequence.len() as u32;
            // Steps and trajectories share a number; 4096 trajectories a problem are more than anyone has.
            droppings.map(|d| Draw { seed: d.seed, question: case.id, trajectory: d.step << 12 | trajectory as u32, position })
        };
        let mut prefixes = Vec::with_capacity(cases.len());
        for case in cases {
            let (mut sequence, mut last, count) = (Sequence::default(), 0, case.prompt.len() + case.own.rows());
            let own = std::iter::repeat_n(Fed::Vector, case.own.rows());
            for (i, fed) in case.prompt.iter().map(|&token| Fed::Token(token)).chain(own).enumerate() {
                let draw = draw(case, 0, &sequence);
                last = script.push((cache, &mut sequence), fed, draw, i + 1 == count);
            }
            prefixes.push((sequence, last));
        }
        let (mut at, mut before) = (Vec::new(), Vec::new());
        let mut answers = self.verdicts.as_ref().map(|_| (Vec::new(), Vec::new(), Vec::new()));
        for (case, (prefix, start)) in cases.iter().zip(&prefixes) {
            for (n, &length) in case.lengths.iter().enumerate() {
                let (mut sequence, mut last) = (prefix.fork(), *start);
                for _ in 0..length {
                    let draw = draw(case, n + 1, &sequence);
                    before.push(last);
                    last = script.push((cache, &mut sequence), Fed::Vector, draw, true);
                    at.push(last);
                }
                let (Some(verdicts), Some((ends, starts, thoughts))) = (&self.verdicts, &mut answers) else { continue };
                thoughts.push(last);
                for (part, places) in [(&verdicts.end, &mut *starts), (&case.answers[n], &mut *ends)] {
                    for (i, &token) in part.iter().enumerate() {
                        let (draw, is_last) = (draw(case, n + 1, &sequence), i + 1 == part.len());
                        let place = script.push((cache, &mut sequence), Fed::Token(token), draw, is_last);
                        last = if is_last { place } else { last };
                    }
                    places.push(last);
                }
            }
        }
        let width = self.learner.decoder.config().width;
        let gather = |of: fn(&Case) -> &Tensor| {
            let mut all = Tensor::zeros(0, width);
            cases.iter().map(of).filter(|part| part.rows() > 0).for_each(|part| all.extend(part));
            all.to_device(device)
        };
        let (own, thoughts) = (gather(|case| &case.own)?, gather(|case| &case.thoughts)?);
        let parts = [&self.learner.decoder.embed(&script.tokens)?, &own, &thoughts];
        let x = ops::select(device, parts, &script.order())?;
        let dropout = droppings.map(|d| Dropout { p: d.p, attn_out: true, mlp_out: true, masks: Masks::Drawn(&script.draws) });
        let (hidden, segment) = self.learner.forward(cache, &script.pass, x, dropout)?;
        let of = |places: &[usize]| ops::select(device, [&hidden], places);
        let judged = Judged { at: of(&at)?, before: of(&before)?, thought: thoughts };
        let (scores, kept) = self.head.forward(device, &judged)?;
        let read = Reading { at, before, thoughts: None, judged, scores, kept };
        let answers = match (&self.verdicts, answers) {
            (Some(verdicts), Some((at, before, thoughts))) => {
                let judged = Judged { at: of(&at)?, before: of(&before)?, thought: of(&thoughts)? };
                let (scores, kept) = verdicts.head.forward(device, &judged)?;
                Some(Reading { at, before, thoughts: Some(thoughts), judged, scores, kept })
            }
            _ => None,
        };
        let Script { tokens, token_rows, .. } = script;
        Ok(Heard { hidden, segment, tokens, token_rows, thoughts: read, answers })
    }
}
