//! Relations between a problem's numbers that every variant keeps.
//!
//! Numbers of one unit keep their order: those with the same noun, amounts of money, and whatever a
//! step adds or subtracts. A number that is the sum of two others in the question, or a result that
//! the question states, stays so.

use std::cmp::Ordering;

use super::derivation::{Assignment, Derivation, NumberNode};
use super::expression::BinaryOp;
use super::graph::SolutionGraph;
use super::mention::{MentionUnit, QuestionNumbers};
use super::rational::Rational;
use super::units::UnitClasses;

/// Two numbers and how they compare.
#[derive(Debug, Clone, Copy)]
struct OrderRelation {
    left: NumberNode,
    right: NumberNode,
    order: Ordering,
}

/// What has to hold of every variant.
#[derive(Debug, Clone, Default)]
pub(super) struct NumberRelations {
    orders: Vec<OrderRelation>,
    equalities: Vec<(Derivation, NumberNode)>,
    /// How the sum of these compares with 100 or, for fractions, with 1.
    sums: Vec<(Vec<NumberNode>, Rational, Ordering)>,
    /// Numerators and denominators that stay without a common divisor.
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
        relations.add_orders(&classes, original);
        relations.add_sums(graph, numbers, original);
        relations.add_equalities(graph, numbers, original);
        relations
    }

    /// Whether an assignment keeps them.
    pub(super) fn hold(&self, assignment: &Assignment) -> bool {
        let ordered = |relation: &OrderRelation| {
            match (assignment.value(relation.left), assignment.value(relation.right)) {
                (Some(left), Some(right)) => left.cmp(&right) == relation.order,
                _ => false,
            }
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

    /// Whether variable `index` is in order with the variables before it and with constants.
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

    fn add_orders(&mut self, classes: &[Vec<NumberNode>], original: &Assignment) {
        for class in classes {
            for (i, &left) in class.iter().enumerate() {
                for &right in &class[..i] {
                    let values = [left, right].map(|node| original.value(node));
                    let [Some(a), Some(b)] = values else { continue };
                    let is_fixed = |node| matches!(node, NumberNode::Constant(_));
                    let steps = |node| matches!(node, NumberNode::StepResult(_));
                    // Results among themselves, and those equal by chance, are free.
                    let free = steps(left) && steps(right)
                        || a == b && (steps(left) || steps(right))
                        || is_fixed(left) && is_fixed(right);
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
        for (nodes, limit) in [(percent, Rational::whole(100)), (fractions.clone(), Rational::ONE)] {
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

    fn add_equalities(
        &mut self,
        graph: &SolutionGraph,
        numbers: &QuestionNumbers,
        original: &Assignment,
    ) {
        let nodes: Vec<(NumberNode, &MentionUnit)> = mention_nodes(graph, numbers).collect();
        let small = Rational::whole(2);
        let value = |node: NumberNode| original.value(node).unwrap_or(Rational::ZERO);
        let unused = nodes.iter().filter(|(node, _)| matches!(node, NumberNode::Constant(_)));
        for (fixed, _) in unused.filter(|(node, _)| value(*node) > small) {
            for step in 0..graph.steps.len() {
                let result = NumberNode::StepResult(step);
                if value(result) == value(*fixed) {
                    self.equalities.push((Derivation::direct(result), *fixed));
                }
            }
        }
        for (i, (left, left_unit)) in nodes.iter().enumerate() {
            for (right, right_unit) in &nodes[..i] {
                for (total, unit) in &nodes {
                    let pair = Derivation::Pair { op: BinaryOp::Add, left: *left, right: *right };
                    let related = matches!(total, NumberNode::Constant(_))
                        || same_unit(left_unit, unit) && same_unit(right_unit, unit);
                    let all_fixed = [left, right, total]
                        .iter()
                        .all(|node| matches!(node, NumberNode::Constant(_)));
                    if related
                        && !all_fixed
                        && value(*left) >= small
                        && value(*right) >= small
                        && original.derive(pair) == Some(value(*total))
                    {
                        self.equalities.push((pair, *total));
                    }
                }
            }
        }
    }
}

fn sum(nodes: &[NumberNode], assignment: &Assignment) -> Option<Rational> {
    nodes.iter().try_fold(Rational::ZERO, |sum, node| sum.add(assignment.value(*node)?))
}

/// The node of every mention, fixed ones as constants; parts of fractions have none.
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

/// Groups of numbers with one unit: by the question's words and by what steps add.
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
