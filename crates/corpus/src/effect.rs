//! The arithmetic of a sentence.
//!
//! An effect samples the numbers of its sentence, records its steps, and updates the running
//! quantity. It has no text; `phrases` lists the sentences of each effect.

use super::ArithOp;
use super::draft::ProblemDraft;

/// The numbers of a phrase's slots `{0}` to `{3}`.
pub(super) type SlotNumbers = [i64; 4];

/// A change of the running quantity `v`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// `v` becomes `{0}`; no step.
    Start,
    /// `{0} * {1}`: groups, and items per group.
    Product,
    /// `{0} + {1}`
    Sum,
    /// `{0} - {1}`
    Left,
    /// `{0} * {1}`, times `{2}`.
    Product3,
    /// `{0} * {1}`, `{2} * {3}`, and their sum.
    TwoProducts,
    /// A question about `v`, which is unchanged.
    Ask,
    /// `v + {0}`
    Add,
    /// `v - {0}`
    Take,
    /// `{1} * {0}`, then `v` plus that.
    AddEach,
    /// `{1} * {0}`, then `v` minus that.
    TakeEach,
    /// `v / {0}`, a fraction from a half to a fifth that remains.
    Keep,
    /// `v / {0}`, a fraction from a third to a fifth, then `v` minus that.
    TakePart,
    /// `v * {0}`, a small multiple.
    Times,
    /// `v * {0}`, a price or the size of a group.
    Price,
    /// `v / {0}`
    Divide,
    /// `{0} - v`
    Missing,
    /// `v * {0}`, then `v` plus that.
    JoinTimes,
    /// `v + {0}`, then `v` plus that.
    JoinMore,
    /// `v / {0}` groups, then times the price `{1}`.
    PackAndSell,
    /// `v * {0}`, then minus `{1}`.
    SellAndSpend,
    /// `{0} - v`, then divided by `{1}`.
    MissingDivide,
}

impl Effect {
    /// Number of steps.
    pub(super) fn steps(self) -> usize {
        use Effect::*;
        match self {
            Start | Ask => 0,
            Product | Sum | Left | Add | Take | Keep | Times | Price | Divide | Missing => 1,
            Product3 | AddEach | TakeEach | TakePart | JoinTimes | JoinMore | PackAndSell
            | SellAndSpend | MissingDivide => 2,
            TwoProducts => 3,
        }
    }

    /// Whether items are lost.
    pub(super) fn is_loss(self) -> bool {
        matches!(
            self,
            Effect::Left | Effect::Take | Effect::TakeEach | Effect::Keep | Effect::TakePart
        )
    }

    /// Samples the numbers and records the steps. `None` if no numbers fit; some steps may already
    /// be recorded.
    pub(super) fn apply(self, draft: &mut ProblemDraft) -> Option<SlotNumbers> {
        match self.steps() {
            0 | 1 => self.one_step(draft),
            _ => self.more_steps(draft),
        }
    }

    fn one_step(self, draft: &mut ProblemDraft) -> Option<SlotNumbers> {
        let v = draft.value;
        // Most effects combine `v` with one new number.
        let with_v = |number, op| ([number, 0], v, op, number);
        let ([a, b], left, op, right) = match self {
            Effect::Start => {
                draft.value = draft.amount();
                return Some([draft.value, 0, 0, 0]);
            }
            Effect::Product => {
                let a = draft.factor();
                let b = draft.each();
                ([a, b], a, ArithOp::Mul, b)
            }
            Effect::Sum => {
                let a = draft.amount();
                let b = draft.amount();
                ([a, b], a, ArithOp::Add, b)
            }
            Effect::Left => {
                let a = draft.amount();
                let b = draft.amount_below(a)?;
                ([a, b], a, ArithOp::Sub, b)
            }
            Effect::Add => with_v(draft.amount(), ArithOp::Add),
            Effect::Take => with_v(draft.amount_below(v)?, ArithOp::Sub),
            Effect::Keep => with_v(draft.part_of(v, 2)?, ArithOp::Div),
            Effect::Times => with_v(draft.times(), ArithOp::Mul),
            Effect::Price => with_v(draft.factor(), ArithOp::Mul),
            Effect::Divide => with_v(draft.divisor_of(v)?, ArithOp::Div),
            Effect::Missing => {
                let a = v + draft.amount();
                ([a, 0], a, ArithOp::Sub, v)
            }
            _ => return Some([0; 4]),
        };
        draft.value = draft.step(left, op, right)?;
        Some([a, b, 0, 0])
    }

    fn more_steps(self, draft: &mut ProblemDraft) -> Option<SlotNumbers> {
        let v = draft.value;
        let numbers = match self {
            Effect::Product3 => {
                let n = [draft.factor(), draft.each(), draft.times() + 1, 0];
                let product = draft.step(n[0], ArithOp::Mul, n[1])?;
                draft.value = draft.step(product, ArithOp::Mul, n[2])?;
                n
            }
            Effect::TwoProducts => {
                let n = [draft.factor(), draft.each(), draft.factor(), draft.each()];
                let first = draft.step(n[0], ArithOp::Mul, n[1])?;
                let second = draft.step(n[2], ArithOp::Mul, n[3])?;
                draft.value = draft.step(first, ArithOp::Add, second)?;
                n
            }
            Effect::AddEach => {
                let n = [draft.each(), draft.factor(), 0, 0];
                let product = draft.step(n[1], ArithOp::Mul, n[0])?;
                draft.value = draft.step(v, ArithOp::Add, product)?;
                n
            }
            Effect::TakeEach => {
                let n = draft.groups_within(v)?;
                let product = draft.step(n[1], ArithOp::Mul, n[0])?;
                draft.value = draft.step(v, ArithOp::Sub, product)?;
                n
            }
            Effect::TakePart => {
                let k = draft.part_of(v, 3)?;
                let part = draft.step(v, ArithOp::Div, k)?;
                draft.value = draft.step(v, ArithOp::Sub, part)?;
                [k, 0, 0, 0]
            }
            Effect::JoinTimes => {
                let k = draft.times();
                let other = draft.step(v, ArithOp::Mul, k)?;
                draft.value = draft.step(v, ArithOp::Add, other)?;
                [k, 0, 0, 0]
            }
            Effect::JoinMore => {
                let a = draft.amount();
                let other = draft.step(v, ArithOp::Add, a)?;
                draft.value = draft.step(v, ArithOp::Add, other)?;
                [a, 0, 0, 0]
            }
            Effect::PackAndSell => {
                let k = draft.divisor_of(v)?;
                let price = draft.factor();
                let groups = draft.step(v, ArithOp::Div, k)?;
                draft.value = draft.step(groups, ArithOp::Mul, price)?;
                [k, price, 0, 0]
            }
            Effect::SellAndSpend => {
                let price = draft.factor();
                let money = draft.step(v, ArithOp::Mul, price)?;
                let spent = draft.amount_below(money)?;
                draft.value = draft.step(money, ArithOp::Sub, spent)?;
                [price, spent, 0, 0]
            }
            _ => {
                let k = draft.factor();
                let quotient = draft.each();
                let missing = draft.step(v + k * quotient, ArithOp::Sub, v)?;
                draft.value = draft.step(missing, ArithOp::Div, k)?;
                [v + k * quotient, k, 0, 0]
            }
        };
        Some(numbers)
    }
}
