//! An infinite stream of grade-school word problems, each a pure function of split, seed and index.
//!
//! ```text
//! rng -> chain of sentence templates over a running quantity -> draft (text, steps) -> split
//! ```
//!
//! `effect` is the arithmetic of a sentence, `phrases` the templates by effect, `lexicon` the words
//! that fill their slots, `story` and `comparison` the families of problems, `scale` the size of
//! numbers. All text comes from `phrases` and `lexicon`, so [`texts`] yields every word that can
//! occur.
//!
//! Splits are disjoint by construction: a hash of the question's numbers, in text order, determines
//! the split of the question ([`Split::of_question`]), and attempts that belong to another split
//! are rejected. Therefore no question of another split, and no other story with the same numbers,
//! can occur in training, for any seed and index.

pub mod augment;
mod comparison;
mod draft;
mod effect;
mod lexicon;
mod phrases;
mod range;
mod rng;
mod scale;
mod split;
mod story;

use std::fmt;

use data::TrainExample;

pub use range::{OutOfRange, out_of_range};
pub use split::Split;

use draft::ProblemDraft;
use rng::CorpusRng;
use scale::NumberScale;

/// A word problem.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WordProblem {
    /// English text, with numbers as digits without separators.
    pub question: String,
    /// The two to six calculations of the solution.
    pub steps: Vec<Calculation>,
    /// The last step's result.
    pub answer: i64,
}

impl From<WordProblem> for TrainExample {
    fn from(problem: WordProblem) -> Self {
        let steps = problem.steps.iter().map(|step| format!("<<{step}>>")).collect();
        Self { question: problem.question, steps, answer: problem.answer.to_string() }
    }
}

/// An exact calculation, displayed as `7*15=105`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Calculation {
    /// The left operand.
    pub left: i64,
    /// The operation.
    pub op: ArithOp,
    /// The right operand.
    pub right: i64,
    /// The exact result, never negative.
    pub result: i64,
}

/// The four operations of arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArithOp {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`, without remainder
    Div,
}

impl ArithOp {
    /// The operator's sign.
    pub fn sign(self) -> char {
        match self {
            ArithOp::Add => '+',
            ArithOp::Sub => '-',
            ArithOp::Mul => '*',
            ArithOp::Div => '/',
        }
    }

    /// The result, if it is a non-negative integer.
    pub fn apply(self, left: i64, right: i64) -> Option<i64> {
        let result = match self {
            ArithOp::Add => left.checked_add(right),
            ArithOp::Sub => left.checked_sub(right),
            ArithOp::Mul => left.checked_mul(right),
            ArithOp::Div if right == 0 || left % right != 0 => None,
            ArithOp::Div => Some(left / right),
        };
        result.filter(|result| *result >= 0)
    }
}

impl fmt::Display for Calculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}={}", self.left, self.op.sign(), self.right, self.result)
    }
}

/// Problem number `index` of a split with a seed.
pub fn problem(split: Split, seed: u64, index: u64) -> WordProblem {
    // The scale is sampled once per problem: small numbers are accepted more often and would be
    // overrepresented if every attempt sampled a new scale.
    let scale = NumberScale::sample(split, &mut CorpusRng::new(seed, index, split as u32, 0));
    let mut attempt = 1;
    loop {
        let draft =
            ProblemDraft::new(split, scale, CorpusRng::new(seed, index, split as u32, attempt));
        if let Some(problem) =
            attempt_problem(draft).filter(|p| Split::of_question(&p.question) == split)
        {
            return problem;
        }
        attempt += 1;
    }
}

/// All text that can occur in problems: phrases with `{slots}`, and words.
pub fn texts() -> impl Iterator<Item = &'static str> {
    story::phrases().chain(comparison::phrases()).chain(lexicon::words())
}

/// One attempt at a problem; `None` if the numbers do not fit.
fn attempt_problem(mut draft: ProblemDraft) -> Option<WordProblem> {
    match draft.split() {
        Split::Ood => story::generate_ood(&mut draft)?,
        _ => match draft.rng.below(100) {
            0..18 => comparison::generate(&mut draft)?,
            18..32 => story::generate_two_step(&mut draft)?,
            _ => story::generate(&mut draft)?,
        },
    }
    draft.finish()
}
