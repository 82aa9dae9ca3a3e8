//! Grade-school word problems without end, each a pure function of split, seed and index.
//!
//! ```text
//! draws -> tale (a chain of sentence makers over a running quantity) -> draft (text, exact steps) -> split
//! ```
//!
//! `effect` is the arithmetic that a sentence does, `phrases` the sentences by what they do, `lexicon` the words that fill
//! them, `story` and `comparison` the families that chain them, `scale` the size of numbers. Nothing is said that is not in
//! `phrases` or `lexicon`, so [`texts`] yields every word there is (see [`crate::vocabulary`]).
//!
//! Splits are disjoint by construction: the numbers of a question, in the order of the text, decide by their hash which
//! split the question may appear in ([`Split::of_question`]), and a draft that belongs elsewhere is drawn again. So no
//! question of another split, nor the same numbers in another story, can come up in training under any seed or index.

mod comparison;
mod draft;
mod draws;
mod effect;
mod lexicon;
mod phrases;
mod scale;
mod split;
mod story;

use std::fmt;

pub use split::Split;

use draft::Draft;
use draws::Draws;
use scale::Scale;

/// A word problem.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The text, in English, its numbers in digits without separators.
    pub question: String,
    /// The calculations that lead to the answer: two to six.
    pub steps: Vec<Step>,
    /// The last step's result.
    pub answer: i64,
}

/// One exact calculation. It prints as `7*15=105`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// The left operand.
    pub left: i64,
    /// What is done.
    pub op: Op,
    /// The right operand.
    pub right: i64,
    /// What comes out: never negative, never rounded.
    pub result: i64,
}

/// The four operations of arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`, without remainder
    Div,
}

impl Op {
    /// The sign that is written.
    pub fn sign(self) -> char {
        match self {
            Op::Add => '+',
            Op::Sub => '-',
            Op::Mul => '*',
            Op::Div => '/',
        }
    }

    /// What comes out, where it is a whole number that is not negative.
    pub fn apply(self, left: i64, right: i64) -> Option<i64> {
        let result = match self {
            Op::Add => left.checked_add(right),
            Op::Sub => left.checked_sub(right),
            Op::Mul => left.checked_mul(right),
            Op::Div if right == 0 || left % right != 0 => None,
            Op::Div => Some(left / right),
        };
        result.filter(|result| *result >= 0)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}={}", self.left, self.op.sign(), self.right, self.result)
    }
}

/// Problem number `index` of a split under a seed.
pub fn problem(split: Split, seed: u64, index: u64) -> Problem {
    // The scale is drawn once: small numbers fit more easily, and would win if every attempt drew its own.
    let scale = Scale::draw(split, &mut Draws::new(seed, index, split as u32, 0));
    let mut attempt = 1;
    loop {
        let draft = Draft::new(split, scale, Draws::new(seed, index, split as u32, attempt));
        if let Some(problem) = tale(draft).filter(|p| Split::of_question(&p.question) == split) {
            return problem;
        }
        attempt += 1;
    }
}

/// Every text that problems are made of: phrases with their `{slots}`, and words.
pub fn texts() -> impl Iterator<Item = &'static str> {
    story::phrases().chain(comparison::phrases()).chain(lexicon::words())
}

/// One try at a problem; `None` where the numbers do not work out.
fn tale(mut draft: Draft) -> Option<Problem> {
    match draft.split() {
        Split::Ood => story::out_of_distribution(&mut draft)?,
        _ => match draft.draws.below(100) {
            0..18 => comparison::tell(&mut draft)?,
            18..32 => story::tell_simple(&mut draft)?,
            _ => story::tell(&mut draft)?,
        },
    }
    draft.finish()
}
