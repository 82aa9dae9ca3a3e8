//! Relations between a problem's numbers that every variant preserves.
//!
//! Numbers of the same unit keep their order: numbers with the same noun, amounts of money, and
//! numbers that a step adds or subtracts. A number that is the sum of two others in the question,
//! or a result stated in the question, remains so.

use std::cmp::Ordering;

use super::derivation::{Assignment, Derivation, NumberNode};
use super::expression::BinaryOp;
use super::graph::SolutionGraph;
use super::mention::{MentionUnit, QuestionNumbers};
use super::rational::Rational;
use super::units::UnitClasses;

/// An order relation between two numbers.
#[derive(Debug, Clone, Copy)]
struct OrderRelation {
    left: NumberNode,
    right: NumberNode,
    order: Ordering,
}

/// Relations that must hold in every variant.
#[derive(Debug, Clone, Default)]
pub(super) struct NumberRelations {
    orders: Vec<OrderRelation>,
    equalities: Vec<(Derivation, NumberNode)>,
    /// How the sum of these numbers compares with 100 or, for fractions, with 1.
    sums: Vec<(Vec<NumberNode>, Rational, Ordering)>,
    /// Numerators and denominators that must stay coprime.
    reduced: Vec<(usize, usize)>,
}

impl NumberRelations {
    /// The relations of a problem.
    pub(super) fn of(
        graph: &SolutionGraph,
        numbers: &QuestionNumbers,
        original: &Assignment,
    ) -> Self {
        let mut relations = Self::default();
        let classes = unit_classes(graph, numbers);
        let addends = Addends::of(graph);
        relations.add_orders(&classes, &addends, original);
        relations.add_sums(graph, numbers, original);
        relations.add_equalities(&mention_nodes(graph, numbers).collect::<Vec<_>>(), original);
        relations
            .equalities
            .retain(|(sum, total)| !sum.nodes().any(|node| addends.are_together(node, *total)));
        relations.add_stated_results(graph, numbers, original);
        relations
    }

    /// Whether an assignment satisfies all relations.
    pub(super) fn hold(&self, assignment: &Assignment) -> bool {
        let ordered = |relation: &OrderRelation| match (
            assignment.value(relation.left),
            assignment.value(relation.right),
        ) {
            (Some(left), Some(right)) => left.cmp(&right) == relation.order,
            _ => false,
        };
        let equal = |(derivation, node): &(Derivation, NumberNode)| {
            assignment.derive(*derivation) == assignment.value(*node)
        };
        let summed = |(nodes, limit, order): &(Vec<NumberNode>, Rational, Ordering)| {
            sum(nodes, assignment).is_some_and(|sum| sum.cmp(limit) == *order)
        };
        let reduced = |(top, bottom): &(usize, usize)| {
            let value = assignment.value(NumberNode::Fraction(*top, *bottom));
            let bottom = assignment.value(NumberNode::Variable(*bottom));
            value.zip(bottom).is_some_and(|(v, b)| Rational::whole(v.denominator()) == b)
        };
        self.orders.iter().all(ordered)
            && self.equalities.iter().all(equal)
            && self.sums.iter().all(summed)
            && self.reduced.iter().all(reduced)
    }

    /// Whether variable `index` satisfies its order relations with earlier variables and constants.
    pub(super) fn allow(&self, index: usize, assignment: &Assignment) -> bool {
        let known = |node: NumberNode| match node {
            NumberNode::Variable(other) => other <= index,
            NumberNode::Constant(_) => true,
            _ => false,
        };
        let variable = NumberNode::Variable(index);
        self.orders.iter().all(|relation| {
            let concerns = relation.left == variable || relation.right == variable;
            if !concerns || !known(relation.left) || !known(relation.right) {
                return true;
            }
            let values = [relation.left, relation.right].map(|node| assignment.value(node));
            matches!(values, [Some(left), Some(right)] if left.cmp(&right) == relation.order)
        })
    }

    fn add_orders(
        &mut self,
        classes: &[Vec<NumberNode>],
        addends: &Addends,
        original: &Assignment,
    ) {
        for class in classes {
            for (i, &left) in class.iter().enumerate() {
                for &right in &class[..i] {
                    let values = [left, right].map(|node| original.value(node));
                    let [Some(a), Some(b)] = values else { continue };
                    let steps = |node| matches!(node, NumberNode::StepResult(_));
                    // No relation between two results, between numbers that are equal by chance,
                    // and between addends of the same sum.
                    let free = steps(left) && steps(right)
                        || a == b && (steps(left) || steps(right))
                        || is_constant(left) && is_constant(right)
                        || addends.are_together(left, right);
                    if !free {
                        self.orders.push(OrderRelation { left, right, order: a.cmp(&b) });
                    }
                }
            }
        }
    }

    fn add_sums(
        &mut self,
        graph: &SolutionGraph,
        numbers: &QuestionNumbers,
        original: &Assignment,
    ) {
        let percent: Vec<NumberNode> = mention_nodes(graph, numbers)
            .filter(|(_, unit)| unit.percent)
            .map(|(node, _)| node)
            .collect();
        let fractions = numbers.fractions.iter().filter_map(|fraction| {
            let top = graph.mention_variables[fraction.numerator]?;
            Some(NumberNode::Fraction(top, graph.mention_variables[fraction.denominator]?))
        });
        let fractions: Vec<NumberNode> = fractions.collect();
        for (nodes, limit) in [(percent, Rational::whole(100)), (fractions.clone(), Rational::ONE)]
        {
            if let Some(total) = sum(&nodes, original).filter(|_| !nodes.is_empty()) {
                self.sums.push((nodes, limit, total.cmp(&limit)));
            }
        }
        for fraction in fractions {
            if let NumberNode::Fraction(top, bottom) = fraction
                && original.value(fraction).map(|value| Rational::whole(value.denominator()))
                    == original.value(NumberNode::Variable(bottom))
            {
                self.reduced.push((top, bottom));
            }
            self.sums.push((vec![fraction], Rational::ONE, Ordering::Less));
        }
    }

    /// Results that equal a fixed number of the question above 2 must keep this value.
    fn add_stated_results(
        &mut self,
        graph: &SolutionGraph,
        numbers: &QuestionNumbers,
        original: &Assignment,
    ) {
        for (fixed, _) in mention_nodes(graph, numbers).filter(|(node, _)| is_constant(*node)) {
            let value = original.value(fixed).filter(|value| *value > Rational::whole(2));
            for step in 0..graph.steps.len() {
                let result = NumberNode::StepResult(step);
                if value.is_some() && original.value(result) == value {
                    self.equalities.push((Derivation::direct(result), fixed));
                }
            }
        }
    }

    /// A number that is the sum of two others of its unit, or of two others if it is unused,
    /// remains their sum.
    fn add_equalities(&mut self, nodes: &[(NumberNode, &MentionUnit)], original: &Assignment) {
        let is_large = |node: NumberNode| original.value(node) >= Some(Rational::whole(2));
        for (i, (left, left_unit)) in nodes.iter().enumerate() {
            for (right, right_unit) in &nodes[..i] {
                let pair = Derivation::Pair { op: BinaryOp::Add, left: *left, right: *right };
                if !is_large(*left) || !is_large(*right) {
                    continue;
                }
                let is_sum = |(total, unit): &&(NumberNode, &MentionUnit)| {
                    let all_fixed = [*left, *right, *total].into_iter().all(is_constant);
                    let one_unit = same_unit(left_unit, unit) && same_unit(right_unit, unit);
                    original.derive(pair) == original.value(*total)
                        && !all_fixed
                        && (is_constant(*total) || one_unit)
                };
                let totals = nodes.iter().filter(is_sum).map(|(total, _)| (pair, *total));
                self.equalities.extend(totals);
            }
        }
    }
}

fn is_constant(node: NumberNode) -> bool {
    matches!(node, NumberNode::Constant(_))
}

/// Per step, the numbers that it adds and the numbers that it subtracts.
struct Addends(Vec<[Vec<NumberNode>; 2]>);

impl Addends {
    fn of(graph: &SolutionGraph) -> Self {
        let mut sums = Vec::new();
        for step in &graph.steps {
            let mut sum = [Vec::new(), Vec::new()];
            let signs = step.expression.signs().unwrap_or_default();
            for (added, sources) in signs.iter().zip(&step.sources) {
                let node = sources.first().and_then(|source| source.as_direct());
                sum[usize::from(*added)].extend(node);
            }
            sums.push(sum);
        }
        Self(sums)
    }

    /// Whether some step adds both or subtracts both.
    fn are_together(&self, left: NumberNode, right: NumberNode) -> bool {
        let holds = |nodes: &Vec<NumberNode>| nodes.contains(&left) && nodes.contains(&right);
        left != right && self.0.iter().flatten().any(holds)
    }
}

fn sum(nodes: &[NumberNode], assignment: &Assignment) -> Option<Rational> {
    nodes.iter().try_fold(Rational::ZERO, |sum, node| sum.add(assignment.value(*node)?))
}

/// The node of every mention; fixed mentions are constants, parts of fractions have no node.
fn mention_nodes<'a>(
    graph: &'a SolutionGraph,
    numbers: &'a QuestionNumbers,
) -> impl Iterator<Item = (NumberNode, &'a MentionUnit)> {
    let mentions = numbers.mentions.iter().zip(&graph.mention_variables);
    mentions.filter(|(mention, _)| !mention.in_fraction).map(|(mention, variable)| {
        let fixed = NumberNode::Constant(mention.value);
        (variable.map_or(fixed, NumberNode::Variable), &mention.unit)
    })
}

/// Whether two numbers certainly count the same thing.
fn same_unit(left: &MentionUnit, right: &MentionUnit) -> bool {
    left.percent == right.percent
        && (left.dollars && right.dollars || !left.noun.is_empty() && left.noun == right.noun)
}

/// Groups of numbers with the same unit, from the words of the question and the sums in steps.
fn unit_classes(graph: &SolutionGraph, numbers: &QuestionNumbers) -> Vec<Vec<NumberNode>> {
    let mut classes = UnitClasses::of(graph);
    let mentions: Vec<(NumberNode, &MentionUnit)> = mention_nodes(graph, numbers).collect();
    for (i, (left, left_unit)) in mentions.iter().enumerate() {
        let left = classes.id(*left);
        for (right, right_unit) in &mentions[..i] {
            if same_unit(left_unit, right_unit) {
                let right = classes.id(*right);
                classes.merge(left, right);
            }
        }
    }
    classes.groups()
}
