//! Data augmentation of annotated problems: samples new numbers for a question, recomputes every
//! step exactly, and drops variants that no longer make sense.
//!
//! ```text
//! question -> lexer -> mention (context) ─┐
//! steps -> expression ────────────────────┴-> trace -> graph -> sampler -> render
//! ```
//!
//! Story templates (`story`) are a second source of problems.
//!
//! `range` and `relations` define the valid numbers. `constants` has numbers from general
//! knowledge, `names` swaps first names, `overlap` finds text shared with benchmarks. Arithmetic is
//! exact (`rational`); a variant is a pure function of seed, problem and variant number (`stream`),
//! independent of threads and order.

mod constants;
mod context;
mod derivation;
mod expression;
mod graph;
mod lexer;
mod mention;
mod names;
mod number_words;
mod overlap;
mod pipeline;
mod range;
mod rational;
mod refusal;
mod relations;
mod render;
mod sampler;
pub mod story;
mod stream;
#[cfg(test)]
mod tests;
mod trace;
mod units;

use std::collections::HashSet;

pub use overlap::{OVERLAP_WORDS, OverlapIndex};
pub use pipeline::{
    AugmentOptions, AugmentReport, AugmentSource, AugmentedExample, ProblemOutcome, VariantCount,
    augment,
};
pub use refusal::Refusal;

use constants::KnownConstants;
use data::TrainExample;
use graph::SolutionGraph;
use lexer::{TokenKind, tokens};
use mention::QuestionNumbers;
use names::SwappableNames;
use rational::Rational;
use sampler::NumberSampler;
use stream::VariantRng;

/// Maximum number of consecutive failed or repeated variants of a problem.
const MAX_FAILURES: u32 = 12;

/// A source of variants.
pub trait VariantSource {
    /// Variant number `variant` of problem number `problem`; `None` if no sensible one was sampled.
    fn variant(&self, seed: u64, problem: u32, variant: u32) -> Option<TrainExample>;

    /// The first `count` distinct variants with their numbers, counted from 1; fewer if sampling
    /// fails repeatedly.
    fn variants(&self, seed: u64, problem: u32, count: usize) -> Vec<(u32, TrainExample)> {
        let mut variants = Vec::new();
        let mut seen = HashSet::new();
        let mut failures = 0;
        for number in 1.. {
            if variants.len() == count || failures == MAX_FAILURES {
                break;
            }
            failures += 1;
            let Some(example) = self.variant(seed, problem, number) else { continue };
            if seen.insert((example.steps.clone(), example.question.len())) {
                variants.push((number, example));
                failures = 0;
            }
        }
        variants
    }
}

/// A problem whose numbers can be resampled.
#[derive(Debug, Clone)]
pub struct RenumberedProblem {
    question: String,
    numbers: QuestionNumbers,
    graph: SolutionGraph,
    sampler: NumberSampler,
    names: SwappableNames,
}

impl RenumberedProblem {
    /// Traces a problem's solution to the numbers of its question.
    ///
    /// # Errors
    ///
    /// The reason why the numbers cannot be changed safely.
    pub fn new(example: &TrainExample) -> Result<Self, Refusal> {
        let tokens = tokens(&example.question);
        let numbers = QuestionNumbers::scan(&tokens);
        let answer = Rational::parse(&example.answer).ok_or(Refusal::AnswerNotLast)?;
        let known = KnownConstants::of(&tokens);
        let graph = SolutionGraph::build(&numbers, &known, &example.steps, answer)?;
        if is_unsuitable(&tokens) {
            return Err(Refusal::UnsuitableText);
        }
        let sampler =
            NumberSampler::new(&graph, &numbers, &tokens).ok_or(Refusal::NoSensibleDraw)?;
        let names = SwappableNames::find(&tokens);
        Ok(Self { question: example.question.clone(), numbers, graph, sampler, names })
    }
}

impl VariantSource for RenumberedProblem {
    fn variant(&self, seed: u64, problem: u32, variant: u32) -> Option<TrainExample> {
        let mut rng = VariantRng::new(seed, problem, variant);
        let assignment = self.sampler.draw(&self.graph, &mut rng)?;
        let mentions = &self.numbers.mentions;
        let variables = &self.graph.mention_variables;
        let question = render::question(&self.question, mentions, variables, &assignment)?;
        let mut steps = Vec::with_capacity(self.graph.steps.len());
        for (step, result) in self.graph.steps.iter().zip(&assignment.results) {
            steps.push(step.expression.write(&step.operands(&assignment)?, *result)?);
        }
        let answer = assignment.results.last()?.to_decimal()?;
        let question = self.names.draw(&mut rng).apply(&question);
        Some(TrainExample { question, steps, answer })
    }
}

/// Whether a text is about the digits of numbers.
fn is_unsuitable(tokens: &[lexer::QuestionToken]) -> bool {
    const WORDS: &[&str] = &[
        "digit",
        "digits",
        "prime",
        "divisible",
        "multiple",
        "multiples",
        "consecutive",
        "even",
        "odd",
        "factor",
        "factors",
        "remainder",
        "integer",
        "integers",
    ];
    tokens.iter().any(|t| t.kind == TokenKind::Word && WORDS.contains(&t.text.as_str()))
}
