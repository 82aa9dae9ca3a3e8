//! The graph of a solution: each operand of each step is traced to its sources.
//!
//! A number with several possible sources keeps all of them, and a sample is accepted only if they
//! agree. Ambiguity therefore reduces the number of variants but never correctness.

use super::constants::KnownConstants;
use super::derivation::{Assignment, Derivation, NumberNode};
use super::expression::StepExpression;
use super::mention::{FractionMention, MentionUnit, NumberMention, NumberStyle, QuestionNumbers};
use super::rational::Rational;
use super::refusal::Refusal;
use super::trace::GraphBuilder;
use super::units::UnitClasses;

/// People with whom somebody shares: `he and his 4 friends` are 5.
const PEOPLE: &[&str] = &[
    "friend",
    "sibling",
    "brother",
    "sister",
    "kid",
    "child",
    "children",
    "people",
    "coworker",
    "cousin",
    "roommate",
    "classmate",
    "guest",
    "other",
    "colleague",
    "neighbor",
    "person",
    "teammate",
    "son",
    "daughter",
    "member",
    "men",
    "women",
    "boy",
    "girl",
    "student",
];

/// A number of the question that is resampled; equal numbers are one variable.
#[derive(Debug, Clone)]
pub(super) struct GraphVariable {
    /// The value in the question.
    pub(super) value: Rational,
    /// The unit of each mention.
    pub(super) units: Vec<MentionUnit>,
    /// Whether it is a part of a fraction.
    pub(super) in_fraction: bool,
    /// Maximum number of decimals of its mentions.
    pub(super) decimals: u32,
    /// Whether it is written in words.
    pub(super) in_words: bool,
}

/// One step with the possible sources of its operands.
#[derive(Debug, Clone)]
pub(super) struct GraphStep {
    pub(super) expression: StepExpression,
    /// Per operand: derivations that must all agree, the most likely first.
    pub(super) sources: Vec<Vec<Derivation>>,
}

/// A solution as a function of the numbers of the question.
#[derive(Debug, Clone)]
pub(super) struct SolutionGraph {
    pub(super) variables: Vec<GraphVariable>,
    pub(super) steps: Vec<GraphStep>,
    /// Per mention: its variable, if it is resampled.
    pub(super) mention_variables: Vec<Option<usize>>,
}

impl SolutionGraph {
    /// Traces a solution's steps.
    pub(super) fn build(
        numbers: &QuestionNumbers,
        known: &KnownConstants,
        steps: &[String],
        answer: Rational,
    ) -> Result<Self, Refusal> {
        if steps.is_empty() {
            return Err(Refusal::NoSteps);
        }
        let mut builder = GraphBuilder::new(numbers, known.clone());
        for step in steps {
            let expression = StepExpression::parse(step).ok_or(Refusal::NotACalculation)?;
            builder.push(expression)?;
        }
        builder.end_with(answer).ok_or(Refusal::AnswerNotLast)?;
        builder.finish()
    }

    /// Evaluates all steps; `None` if sources disagree or a step has no value.
    pub(super) fn evaluate(&self, assignment: &mut Assignment) -> Option<()> {
        assignment.results.clear();
        for step in &self.steps {
            let operands = step.operands(assignment)?;
            assignment.results.push(step.expression.evaluate(&operands)?);
        }
        Some(())
    }

    /// Whether any step may depend on a variable.
    pub(super) fn uses(&self, variable: usize) -> bool {
        let sources = self.steps.iter().flat_map(|step| &step.sources).flatten();
        sources.flat_map(|source| source.nodes()).any(|node| reads(node, variable))
    }
}

impl GraphStep {
    /// The operands' values, if their sources agree.
    pub(super) fn operands(&self, assignment: &Assignment) -> Option<Vec<Rational>> {
        let agreed = |sources: &Vec<Derivation>| {
            let value = assignment.derive(*sources.first()?)?;
            let agree = sources[1..].iter().all(|other| assignment.derive(*other) == Some(value));
            agree.then_some(value)
        };
        self.sources.iter().map(agreed).collect()
    }
}

fn reads(node: NumberNode, variable: usize) -> bool {
    match node {
        NumberNode::Variable(index) => index == variable,
        NumberNode::Fraction(top, bottom) => top == variable || bottom == variable,
        NumberNode::Constant(_) | NumberNode::StepResult(_) => false,
    }
}

impl GraphVariable {
    /// Adds a mention of the same value.
    pub(super) fn add(&mut self, mention: &NumberMention) {
        self.units.push(mention.unit.clone());
        self.in_fraction |= mention.in_fraction;
        match mention.style {
            NumberStyle::Digits { decimals, .. } => self.decimals = self.decimals.max(decimals),
            NumberStyle::Words { .. } => self.in_words = true,
        }
    }

    /// Whether any mention is a percentage.
    pub(super) fn is_percent(&self) -> bool {
        self.units.iter().any(|unit| unit.percent)
    }

    /// Whether any mention is a speed.
    pub(super) fn is_speed(&self) -> bool {
        let distance = ["mile", "kilometer", "km", "feet", "meter"];
        let per_time = |unit: &MentionUnit| {
            distance.contains(&unit.noun.as_str()) && matches!(&unit.after_noun[..], "per" | "an")
        };
        self.units.iter().any(|unit| unit.noun == "mph" || per_time(unit))
    }

    /// Whether any mention counts one of these things.
    pub(super) fn counts(&self, nouns: &[&str]) -> bool {
        self.units.iter().any(|unit| nouns.contains(&unit.noun.as_str()))
    }

    /// The forms in which it can enter a calculation, depending on its units.
    pub(super) fn forms(&self, node: NumberNode) -> Vec<Derivation> {
        let scaled = |scale: Rational| Derivation::Affine { node, scale, offset: Rational::ZERO };
        let mut forms = Vec::new();
        if self.is_percent() {
            forms.extend(percent_forms(node));
        }
        if self.counts(&["cent", "¢"]) {
            forms.extend(Rational::new(1, 100).map(scaled));
        }
        if self.counts(&["minute", "second"]) {
            forms.extend(Rational::new(1, 60).map(scaled));
        }
        if self.counts(PEOPLE) {
            forms.push(Derivation::Affine { node, scale: Rational::ONE, offset: Rational::ONE });
        }
        for (nouns, factor) in
            [(&["dozen"][..], 12), (&["week"], 7), (&["hour", "minute"], 60), (&["year"], 12)]
        {
            if self.counts(nouns) {
                forms.push(scaled(Rational::whole(factor)));
            }
        }
        forms
    }
}

impl SolutionGraph {
    /// Fixes fractions of which steps use only one part; other fractions change as a whole.
    pub(super) fn fix_partial_fractions(&mut self, fractions: &[FractionMention]) {
        for fraction in fractions {
            let parts = [fraction.numerator, fraction.denominator];
            let variables = parts.map(|mention| self.mention_variables[mention]);
            let [Some(top), Some(bottom)] = variables else { continue };
            let is_one = self.variables[top].value == Rational::ONE;
            if self.uses(bottom) && (is_one || self.uses(top)) {
                continue;
            }
            for variable in [top, bottom] {
                self.fix(variable);
            }
        }
    }

    /// Makes a variable a constant.
    fn fix(&mut self, variable: usize) {
        let value = self.variables[variable].value;
        let fixed = |node: &mut NumberNode| match *node {
            NumberNode::Variable(index) if index == variable => *node = NumberNode::Constant(value),
            _ => {}
        };
        for source in self.steps.iter_mut().flat_map(|step| &mut step.sources).flatten() {
            match source {
                Derivation::Affine { node, .. } => fixed(node),
                Derivation::Pair { left, right, .. } => {
                    fixed(left);
                    fixed(right);
                }
            }
        }
        let mentions = self.mention_variables.iter_mut().filter(|of| **of == Some(variable));
        mentions.for_each(|of| *of = None);
    }

    /// Whether a product or quotient has the unit of both operands, which means that a coefficient
    /// of an equation was mistaken for a number of the question.
    pub(super) fn mixes_units(&self) -> bool {
        UnitClasses::of(self)
            .multiplies_alike(self, |variable: usize| self.variables[variable].units.len() == 1)
    }

    /// Makes variables that no step depends on constants.
    pub(super) fn without_unused(self) -> Self {
        let kept: Vec<usize> =
            (0..self.variables.len()).filter(|&index| self.uses(index)).collect();
        let renamed = |index: usize| kept.iter().position(|kept| *kept == index);
        let rename = |node: NumberNode| match node {
            NumberNode::Variable(index) => renamed(index).map(NumberNode::Variable),
            NumberNode::Fraction(top, bottom) => {
                Some(NumberNode::Fraction(renamed(top)?, renamed(bottom)?))
            }
            other => Some(other),
        };
        let rename_source = |source: &mut Derivation| match source {
            Derivation::Affine { node, .. } => *node = rename(*node).unwrap_or(*node),
            Derivation::Pair { left, right, .. } => {
                *left = rename(*left).unwrap_or(*left);
                *right = rename(*right).unwrap_or(*right);
            }
        };
        let mut steps = self.steps;
        steps.iter_mut().flat_map(|step| &mut step.sources).flatten().for_each(rename_source);
        let mention_variables =
            self.mention_variables.iter().map(|variable| variable.and_then(renamed)).collect();
        let variables = kept.iter().map(|index| self.variables[*index].clone()).collect();
        Self { variables, steps, mention_variables }
    }
}

/// The forms in which a percentage can enter a calculation.
pub(super) fn percent_forms(node: NumberNode) -> Vec<Derivation> {
    let hundredth = Rational::new(1, 100).unwrap_or(Rational::ONE);
    let hundred = Rational::whole(100);
    let affine = |scale, offset| Derivation::Affine { node, scale, offset };
    vec![
        affine(hundredth, Rational::ZERO),
        affine(hundredth.neg(), Rational::ONE),
        affine(hundredth, Rational::ONE),
        affine(Rational::ONE.neg(), hundred),
        affine(Rational::ONE, hundred),
    ]
}
