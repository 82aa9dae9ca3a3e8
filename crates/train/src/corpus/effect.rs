//! The arithmetic that a sentence does to the running quantity.
//!
//! An effect draws the numbers that its sentence will say, writes its steps, and leaves the
//! quantity that comes out. It knows no words; `phrases` says which sentences have which effect.

use super::ArithOp;
use super::draft::ProblemDraft;

/// The numbers that a phrase says, as `{0}` to `{3}`.
pub(super) type SlotNumbers = [i64; 4];

/// What happens to the running quantity `v`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// `v` becomes `{0}`; no step.
    Start,
    /// `{0} * {1}`: groups, and how many in each.
    Product,
    /// `{0} + {1}`
    Sum,
    /// `{0} - {1}`
    Left,
    /// `{0} * {1}`, times `{2}`.
    Product3,
    /// `{0} * {1}`, `{2} * {3}`, and their sum.
    TwoProducts,
    /// Nothing: a question about `v` itself.
    Ask,
    /// `v + {0}`
    Add,
    /// `v - {0}`
    Take,
    /// `{1} * {0}` is added.
    AddEach,
    /// `{1} * {0}` is taken.
    TakeEach,
    /// `v / {0}` is what remains, `{0}` a part from half to a fifth.
    Keep,
    /// `v / {0}` is taken, `{0}` a part from a third to a fifth.
    TakePart,
    /// `v * {0}`, a few times.
    Times,
    /// `v * {0}`, a price or the size of a group.
    Price,
    /// `v / {0}`
    Divide,
    /// `{0} - v`
    Missing,
    /// `v * {0}`, and both together.
    JoinTimes,
    /// `v + {0}`, and both together.
    JoinMore,
    /// `v / {0}` groups, times the price `{1}`.
    PackAndSell,
    /// `v * {0}` less `{1}`.
    SellAndSpend,
    /// What `{0}` exceeds `v` by, divided by `{1}`.
    MissingDivide,
}

impl Effect {
    /// How many steps it takes.
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

    /// Whether something is gone afterwards.
    pub(super) fn is_loss(self) -> bool {
        matches!(
            self,
            Effect::Left | Effect::Take | Effect::TakeEach | Effect::Keep | Effect::TakePart
        )
    }

    /// Draws the numbers and writes the steps. `None`, with some steps perhaps written, where no
    /// numbers fit.
    pub(super) fn apply(self, draft: &mut ProblemDraft) -> Option<SlotNumbers> {
        match self.steps() {
            0 | 1 => self.one_step(draft),
            _ => self.more_steps(draft),
        }
    }

    fn one_step(self, draft: &mut ProblemDraft) -> Option<SlotNumbers> {
        let v = draft.value;
        let (a, b, op, left, right) = match self {
            Effect::Start => {
                draft.value = draft.amount();
                return Some([draft.value, 0, 0, 0]);
            }
            Effect::Product => {
                let (a, b) = (draft.factor(), draft.each());
                (a, b, ArithOp::Mul, a, b)
            }
            Effect::Sum => {
                let (a, b) = (draft.amount(), draft.amount());
                (a, b, ArithOp::Add, a, b)
            }
            Effect::Left => {
                let a = draft.amount();
                let b = draft.amount_below(a)?;
                (a, b, ArithOp::Sub, a, b)
            }
            Effect::Add => one(draft.amount(), ArithOp::Add, v),
            Effect::Take => one(draft.amount_below(v)?, ArithOp::Sub, v),
            Effect::Keep => one(draft.part_of(v, 2)?, ArithOp::Div, v),
            Effect::Times => one(draft.times(), ArithOp::Mul, v),
            Effect::Price => one(draft.factor(), ArithOp::Mul, v),
            Effect::Divide => one(draft.divisor_of(v)?, ArithOp::Div, v),
            Effect::Missing => {
                let a = v + draft.amount();
                (a, 0, ArithOp::Sub, a, v)
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
                let (first, second) =
                    (draft.step(n[0], ArithOp::Mul, n[1])?, draft.step(n[2], ArithOp::Mul, n[3])?);
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
                let (k, price) = (draft.divisor_of(v)?, draft.factor());
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
                let (k, quotient) = (draft.factor(), draft.each());
                let missing = draft.step(v + k * quotient, ArithOp::Sub, v)?;
                draft.value = draft.step(missing, ArithOp::Div, k)?;
                [v + k * quotient, k, 0, 0]
            }
        };
        Some(numbers)
    }
}

/// A step on the running quantity with one number of its own.
fn one(a: i64, op: ArithOp, v: i64) -> (i64, i64, ArithOp, i64, i64) {
    (a, 0, op, v, a)
}
