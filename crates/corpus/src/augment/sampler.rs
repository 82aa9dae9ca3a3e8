//! Samples new numbers for a problem until they make sense.

use super::derivation::Assignment;
use super::graph::SolutionGraph;
use super::lexer::QuestionToken;
use super::mention::QuestionNumbers;
use super::range::NumberRange;
use super::rational::Rational;
use super::relations::NumberRelations;
use super::stream::VariantRng;

/// Maximum number of attempts at a variant.
const MAX_ATTEMPTS: u32 = 400;
/// Maximum number of samples of a variable that violate its order relations.
const MAX_REDRAWS: u32 = 6;
/// Maximum factor by which a result may grow or shrink.
const MAX_FACTOR: Rational = Rational::whole(4);
/// Words of texts about ages, bodies and speeds, whose values are limited.
const BODY_WORDS: &[&str] = &[
    "tall",
    "taller",
    "height",
    "old",
    "older",
    "younger",
    "age",
    "ages",
    "aged",
    "weigh",
    "weighs",
    "weight",
    "heavier",
    "lighter",
    "mph",
    "speed",
    "shorter",
    "heartbeat",
    "birthday",
    "fast",
];

/// Samples assignments of a graph's variables.
#[derive(Debug, Clone)]
pub(super) struct NumberSampler {
    ranges: Vec<NumberRange>,
    relations: NumberRelations,
    /// Maximum factor by which a result may grow or shrink.
    max_factor: Rational,
    /// The original numbers of the problem.
    original: Assignment,
}

impl NumberSampler {
    /// The sampler of a graph; `None` if the original numbers violate its relations.
    pub(super) fn new(
        graph: &SolutionGraph,
        numbers: &QuestionNumbers,
        tokens: &[QuestionToken],
    ) -> Option<Self> {
        let variables = graph.variables.iter().map(|variable| variable.value).collect();
        let mut original = Assignment { variables, results: Vec::new() };
        graph.evaluate(&mut original)?;
        let relations = NumberRelations::of(graph, numbers, &original);
        let of_bodies = tokens.iter().any(|token| BODY_WORDS.contains(&token.text.as_str()));
        let range = |variable| match of_bodies {
            true => NumberRange::narrow(variable),
            false => NumberRange::of(variable),
        };
        let ranges = graph.variables.iter().map(range).collect();
        let max_factor =
            if of_bodies { Rational::new(8, 5).unwrap_or(MAX_FACTOR) } else { MAX_FACTOR };
        relations.hold(&original).then_some(Self { ranges, relations, max_factor, original })
    }

    /// Samples new numbers that make sense.
    pub(super) fn draw(&self, graph: &SolutionGraph, rng: &mut VariantRng) -> Option<Assignment> {
        let mut assignment = self.original.clone();
        for attempt in 0..MAX_ATTEMPTS {
            // Later attempts change fewer numbers, which succeeds more often.
            let percent = 100 - attempt * 75 / MAX_ATTEMPTS;
            if self.draw_variables(percent, rng, &mut assignment)
                && assignment.variables != self.original.variables
                && graph.evaluate(&mut assignment).is_some()
                && self.is_sensible(&assignment)
            {
                return Some(assignment);
            }
        }
        None
    }

    fn draw_variables(
        &self,
        percent: u32,
        rng: &mut VariantRng,
        assignment: &mut Assignment,
    ) -> bool {
        for (index, range) in self.ranges.iter().enumerate() {
            let before = self.original.variables[index];
            let changes = rng.chance(percent);
            let mut allowed = false;
            for _ in 0..MAX_REDRAWS {
                let drawn = if changes { range.draw(rng) } else { None };
                assignment.variables[index] = drawn.unwrap_or(before);
                allowed = self.relations.allow(index, assignment);
                if allowed || !changes {
                    break;
                }
            }
            if !allowed {
                return false;
            }
        }
        true
    }

    fn is_sensible(&self, assignment: &Assignment) -> bool {
        let results = assignment.results.iter().zip(&self.original.results);
        // Equal numbers of the question are one variable, so variables must stay distinct.
        let distinct = (0..assignment.variables.len())
            .all(|i| !assignment.variables[..i].contains(&assignment.variables[i]));
        distinct
            && results.into_iter().all(|(new, old)| is_like(*new, *old, self.max_factor))
            && self.relations.hold(assignment)
    }
}

/// Whether a result can replace another: an integer if the old one is, with the same sign and of
/// similar size and precision.
fn is_like(new: Rational, old: Rational, max_factor: Rational) -> bool {
    if new == old {
        return true;
    }
    let two = Rational::whole(2);
    let sign = new.is_positive() == old.is_positive()
        && (new == Rational::ZERO) == (old == Rational::ZERO);
    let whole = new.is_whole() || !old.is_whole();
    let precise = match (new.decimals(), old.decimals()) {
        (Some(new), Some(old)) => new <= old.max(2),
        _ => false,
    };
    let plural = old < two || new >= two;
    let bounded = |a: Rational, b: Rational| b.mul(max_factor).is_some_and(|limit| a <= limit);
    let magnitude = |x: Rational| if x < Rational::ZERO { x.neg() } else { x };
    let a = magnitude(new);
    let b = magnitude(old);
    // With narrow ranges, as for ages, 100 is an additional limit.
    let century = Rational::whole(100);
    let lives = max_factor == MAX_FACTOR || b > century || a <= century;
    lives && sign && whole && precise && plural && bounded(a, b) && bounded(b, a)
}
