//! Traces each number in the steps of a solution to its sources.

use std::cmp::Ordering;

use super::constants::KnownConstants;
use super::derivation::{Assignment, Derivation, NumberNode};
use super::expression::{BinaryOp, StepExpression};
use super::graph::{GraphStep, GraphVariable, SolutionGraph, percent_forms};
use super::mention::{FractionMention, QuestionNumbers};
use super::rational::Rational;
use super::refusal::Refusal;

/// Numbers above this are unlikely to equal a combination of two others by chance.
const COINCIDENCE: Rational = Rational::whole(12);

/// A graph under construction.
pub(super) struct GraphBuilder<'a> {
    numbers: &'a QuestionNumbers,
    known: KnownConstants,
    variables: Vec<GraphVariable>,
    mention_variables: Vec<Option<usize>>,
    steps: Vec<GraphStep>,
    /// The values of the original problem.
    original: Assignment,
}

impl<'a> GraphBuilder<'a> {
    /// An empty graph. Equal numbers of the question are one variable.
    pub(super) fn new(numbers: &'a QuestionNumbers, mut known: KnownConstants) -> Self {
        let mut variables: Vec<GraphVariable> = Vec::new();
        let mut mention_variables = Vec::new();
        numbers.stated.iter().for_each(|value| known.add(*value));
        for mention in &numbers.mentions {
            if mention.fixed {
                known.add(mention.value);
                if mention.unit.percent {
                    let forms = percent_forms(NumberNode::Constant(mention.value));
                    let values = forms.into_iter().filter_map(|f| Assignment::default().derive(f));
                    values.for_each(|value| known.add(value));
                }
                mention_variables.push(None);
                continue;
            }
            let found = variables.iter().position(|variable| variable.value == mention.value);
            let index = found.unwrap_or(variables.len());
            if found.is_none() {
                variables.push(GraphVariable {
                    value: mention.value,
                    units: Vec::new(),
                    in_fraction: false,
                    decimals: 0,
                    in_words: false,
                });
            }
            variables[index].add(mention);
            mention_variables.push(Some(index));
        }
        let values = variables.iter().map(|variable| variable.value).collect();
        let original = Assignment { variables: values, results: Vec::new() };
        Self { numbers, known, variables, mention_variables, steps: Vec::new(), original }
    }

    /// Traces one step.
    pub(super) fn push(&mut self, expression: StepExpression) -> Result<(), Refusal> {
        if expression.evaluate(&expression.operands) != Some(expression.result) {
            return Err(Refusal::InexactStep);
        }
        let mut sources = Vec::new();
        for &operand in &expression.operands {
            sources.push(self.sources(operand).ok_or(Refusal::UnexplainedNumber)?);
        }
        self.original.results.push(expression.result);
        self.steps.push(GraphStep { expression, sources });
        Ok(())
    }

    /// Makes the answer the last result, adding an implicit calculation if necessary.
    pub(super) fn end_with(&mut self, answer: Rational) -> Option<()> {
        if self.original.results.last() != Some(&answer) {
            let pair = self.hidden_pair(answer)?;
            self.push_hidden(pair, answer)?;
        }
        Some(())
    }

    /// The possible sources of a number; an implicit calculation is added as a step.
    fn sources(&mut self, value: Rational) -> Option<Vec<Derivation>> {
        let direct = self.direct(value);
        if !direct.is_empty() {
            return Some(direct);
        }
        let derived = self.derived(value);
        if !derived.is_empty() {
            return Some(derived);
        }
        let constant = vec![Derivation::direct(NumberNode::Constant(value))];
        if self.known.is_possible(value) || self.counts_addends(value) {
            return Some(constant);
        }
        let node = match self.hidden_pair(value) {
            Some(pair) => self.push_hidden(pair, value),
            None => self.push_hidden_sum(value).or_else(|| self.push_hidden_percent(value)),
        }?;
        Some(vec![Derivation::direct(node)])
    }

    /// Numbers of the question, results and constants with this value.
    fn direct(&self, value: Rational) -> Vec<Derivation> {
        let results = self.original.results.iter().enumerate().rev();
        let results =
            results.filter(|(_, result)| **result == value).map(|(i, _)| NumberNode::StepResult(i));
        let variables = (0..self.variables.len()).filter(|i| self.variables[*i].value == value);
        let certain = self.known.is_certain(value).then_some(NumberNode::Constant(value));
        let nodes = results.chain(variables.map(NumberNode::Variable)).chain(certain);
        let rests = self.fraction_rests(value);
        nodes.map(Derivation::direct).chain(rests).collect()
    }

    /// Fractions whose remaining parts equal this number: 2 for 3/5.
    fn fraction_rests(&self, value: Rational) -> impl Iterator<Item = Derivation> {
        let rest = move |fraction: &FractionMention| {
            let [left, right] = [fraction.denominator, fraction.numerator].map(|mention| {
                let fixed = NumberNode::Constant(self.numbers.mentions[mention].value);
                self.mention_variables[mention].map_or(fixed, NumberNode::Variable)
            });
            let rest = Derivation::Pair { op: BinaryOp::Sub, left, right };
            let is_fixed = [left, right].iter().all(|n| matches!(n, NumberNode::Constant(_)));
            (self.original.derive(rest) == Some(value) && !is_fixed).then_some(rest)
        };
        self.numbers.fractions.iter().filter_map(rest)
    }

    /// Percentages, fractions and parts of units that have this value.
    fn derived(&self, value: Rational) -> Vec<Derivation> {
        let has_value = |derivation: &Derivation| self.original.derive(*derivation) == Some(value);
        let mut candidates = Vec::new();
        for (index, variable) in self.variables.iter().enumerate() {
            candidates.extend(variable.forms(NumberNode::Variable(index)));
        }
        for fraction in &self.numbers.fractions {
            let parts = [fraction.numerator, fraction.denominator];
            let [top, bottom] = parts.map(|mention| self.mention_variables[mention]);
            let fixed = || {
                let [top, bottom] = parts.map(|mention| self.numbers.mentions[mention].value);
                Some(NumberNode::Constant(top.div(bottom)?))
            };
            let node = match (top, bottom) {
                (Some(top), Some(bottom)) => Some(NumberNode::Fraction(top, bottom)),
                (None, None) => fixed(),
                _ => None,
            };
            candidates.extend(node.into_iter().flat_map(fraction_forms));
        }
        for index in 0..self.original.results.len() {
            candidates.extend(percent_forms(NumberNode::StepResult(index)));
        }
        candidates.retain(has_value);
        candidates
    }

    /// Whether the number is the number of addends of an earlier step.
    fn counts_addends(&self, value: Rational) -> bool {
        let counts = self.steps.iter().filter_map(|step| step.expression.addends());
        counts.into_iter().any(|count| value == Rational::whole(count as i128))
    }

    /// The only operation on two known numbers that has this value.
    fn hidden_pair(&self, value: Rational) -> Option<Derivation> {
        if value <= COINCIDENCE {
            return None;
        }
        let fixed = self.numbers.mentions.iter().filter(|mention| mention.fixed);
        let fixed = fixed.map(|mention| NumberNode::Constant(mention.value));
        let mut nodes: Vec<NumberNode> = self.known_nodes().chain(fixed).collect();
        let factors = self.known.factors().into_iter().map(NumberNode::Constant);
        nodes.extend(factors.filter(|node| !nodes.contains(node)).collect::<Vec<_>>());
        let mut found = Vec::new();
        for (i, &left) in nodes.iter().enumerate() {
            for (j, &right) in nodes.iter().enumerate() {
                let ops: &[BinaryOp] = match i.cmp(&j) {
                    Ordering::Less => &[BinaryOp::Add, BinaryOp::Mul, BinaryOp::Sub, BinaryOp::Div],
                    Ordering::Greater => &[BinaryOp::Sub, BinaryOp::Div],
                    Ordering::Equal => &[],
                };
                let pairs = ops.iter().map(|&op| Derivation::Pair { op, left, right });
                found.extend(pairs.filter(|pair| self.original.derive(*pair) == Some(value)));
            }
        }
        match found[..] {
            [only] if self.is_certain_pair(only) => Some(only),
            _ => None,
        }
    }

    /// Variables and results.
    fn known_nodes(&self) -> impl Iterator<Item = NumberNode> {
        let variables = (0..self.variables.len()).map(NumberNode::Variable);
        variables.chain((0..self.original.results.len()).map(NumberNode::StepResult))
    }

    /// Whether a pair is unambiguous. A small factor of the question could also be a coefficient of
    /// an equation; factors given by words, large factors and sums are unambiguous.
    fn is_certain_pair(&self, pair: Derivation) -> bool {
        let is_safe = |node: NumberNode| match node {
            NumberNode::Constant(_) => true,
            _ => self.original.value(node) > Some(COINCIDENCE),
        };
        match pair {
            Derivation::Pair { op: BinaryOp::Mul | BinaryOp::Div, left, right } => {
                is_safe(left) && is_safe(right)
            }
            _ => true,
        }
    }

    /// Adds the only percentage of a known number with this value as a step.
    fn push_hidden_percent(&mut self, value: Rational) -> Option<NumberNode> {
        let hundred = Rational::whole(100);
        let mut found = Vec::new();
        for variable in self.variables.iter().filter(|variable| variable.is_percent()) {
            for of in self.known_nodes().filter_map(|node| self.original.value(node)) {
                if of.mul(variable.value)?.div(hundred)? == value && of != variable.value {
                    found.push((of, variable.value));
                }
            }
        }
        let [(of, percent)] = found[..] else { return None };
        let text = format!("<<{of}*{percent}/100={value}>>");
        self.push(StepExpression::parse(&text)?).ok()?;
        Some(NumberNode::StepResult(self.steps.len() - 1))
    }

    /// Adds an implicit calculation as a step.
    fn push_hidden(&mut self, pair: Derivation, value: Rational) -> Option<NumberNode> {
        let Derivation::Pair { op, left, right } = pair else { return None };
        let [left, right] = [left, right].map(|node| self.original.value(node));
        let text = format!("<<{}{}{}={value}>>", left?, op.sign(), right?);
        self.push(StepExpression::parse(&text)?).ok()?;
        Some(NumberNode::StepResult(self.steps.len() - 1))
    }

    /// Adds the sum of all unused results as a step, if it has this value.
    fn push_hidden_sum(&mut self, value: Rational) -> Option<NumberNode> {
        let used: Vec<NumberNode> = self
            .steps
            .iter()
            .flat_map(|step| &step.sources)
            .flatten()
            .flat_map(|s| s.nodes())
            .collect();
        let results = self.original.results.iter().enumerate();
        let unused = results.filter(|(index, _)| !used.contains(&NumberNode::StepResult(*index)));
        let terms: Vec<Rational> = unused.map(|(_, result)| *result).collect();
        let sum = terms.iter().try_fold(Rational::ZERO, |sum, term| sum.add(*term))?;
        if sum != value || terms.len() < 2 || value <= COINCIDENCE {
            return None;
        }
        let terms: Vec<String> = terms.iter().map(Rational::to_string).collect();
        let text = format!("<<{}={value}>>", terms.join("+"));
        self.push(StepExpression::parse(&text)?).ok()?;
        Some(NumberNode::StepResult(self.steps.len() - 1))
    }

    /// The finished graph, if it is consistent.
    pub(super) fn finish(mut self) -> Result<SolutionGraph, Refusal> {
        self.doubt_twos();
        self.prune();
        let Self { variables, steps, mention_variables, numbers, .. } = self;
        let mut graph = SolutionGraph { variables, steps, mention_variables };
        graph.fix_partial_fractions(&numbers.fractions);
        let last = graph.steps.len() - 1;
        let is_used = |step: usize| {
            let sources = graph.steps.iter().flat_map(|step| &step.sources).flatten();
            sources.flat_map(|s| s.nodes()).any(|node| node == NumberNode::StepResult(step))
        };
        if !(0..last).all(is_used) {
            return Err(Refusal::UnusedResult);
        }
        let graph = graph.without_unused();
        if graph.mixes_units() {
            return Err(Refusal::MixedUnits);
        }
        if graph.variables.is_empty() { Err(Refusal::NothingToChange) } else { Ok(graph) }
    }

    /// Adds the constant 2 as a source if steps use a 2 more often than the question mentions it,
    /// because it may be a pair of people.
    fn doubt_twos(&mut self) {
        let two = Rational::whole(2);
        let Some(index) = self.variables.iter().position(|variable| variable.value == two) else {
            return;
        };
        let direct = Derivation::direct(NumberNode::Variable(index));
        let all = self.steps.iter_mut().flat_map(|step| &mut step.sources);
        let mut uses: Vec<_> = all.filter(|sources| sources.contains(&direct)).collect();
        if uses.len() > self.variables[index].units.len() {
            let constant = Derivation::direct(NumberNode::Constant(two));
            uses.iter_mut().for_each(|sources| sources.push(constant));
        }
    }

    /// Resolves an ambiguous operand to a step result if that is its only otherwise unused source.
    fn prune(&mut self) {
        let Some((answer, before)) = self.original.results.split_last() else { return };
        let by_chance = |value: &Rational| value == answer;
        if before.iter().chain(&self.original.variables).any(by_chance) {
            // The last step may be missing, so its result is not conclusive.
            return;
        }
        let certain = |steps: &[GraphStep]| -> Vec<NumberNode> {
            let sources = steps.iter().flat_map(|step| &step.sources);
            sources.filter(|sources| sources.len() == 1).flat_map(|s| s[0].nodes()).collect()
        };
        let used = certain(&self.steps);
        let all: Vec<Derivation> =
            self.steps.iter().flat_map(|step| &step.sources).flatten().copied().collect();
        let is_single = |source| all.iter().filter(|other| **other == source).count() == 1;
        for step in &mut self.steps {
            for sources in step.sources.iter_mut().filter(|sources| sources.len() > 1) {
                let is_unused = |source: &&Derivation| {
                    let node = source.as_direct();
                    node.is_some_and(|node| match node {
                        NumberNode::Constant(_) => false,
                        _ => !used.contains(&node),
                    })
                };
                let unused: Vec<Derivation> = sources.iter().filter(is_unused).copied().collect();
                if let [only] = unused[..]
                    && matches!(only.as_direct(), Some(NumberNode::StepResult(_)))
                    && is_single(only)
                {
                    *sources = vec![only];
                }
            }
        }
    }
}

/// The ways in which a fraction enters a calculation as one number.
fn fraction_forms(node: NumberNode) -> Vec<Derivation> {
    let affine = |scale, offset| Derivation::Affine { node, scale, offset };
    vec![
        affine(Rational::ONE, Rational::ZERO),
        affine(Rational::ONE.neg(), Rational::ONE),
        affine(Rational::ONE, Rational::ONE),
    ]
}
