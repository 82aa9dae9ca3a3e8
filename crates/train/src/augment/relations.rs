//! Relations between a problem's numbers that every variant keeps.
//!
//! Numbers of one unit keep their order: those with the same noun, amounts of money, and whatever a
//! step adds or subtracts. A number that is the sum of two others in the question, or a result that
//! the question states, stays so.

use std::cmp::Ordering;

use super::derivation::{Assignment, Derivation, NumberNode};
use super::expression::{BinaryOp, Instruction};
use super::graph::SolutionGraph;
use super::mention::{MentionUnit, QuestionNumbers};
use super::rational::Rational;

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
        self.orders.iter().all(ordered)
            && self.equalities.iter().all(equal)
            && self.sums.iter().all(summed)
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
                    // Results that are equal by chance need not stay so.
                    let by_chance = a == b && (steps(left) || steps(right));
                    if !(is_fixed(left) && is_fixed(right)) && !by_chance {
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
                        || same_unit(left_unit, unit)
                        || same_unit(right_unit, unit);
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

/// Groups of numbers with one unit.
fn unit_classes(graph: &SolutionGraph, numbers: &QuestionNumbers) -> Vec<Vec<NumberNode>> {
    let mut classes = UnitClasses::default();
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
    for (index, step) in graph.steps.iter().enumerate() {
        let operands = step.sources.iter().map(|sources| sources.first()?.as_direct()).collect();
        let class = classes.of_step(step.expression.program(), operands);
        let result = classes.id(NumberNode::StepResult(index));
        classes.merge(class, result);
    }
    classes.groups()
}

/// A union-find over nodes and anonymous quantities.
#[derive(Default)]
struct UnitClasses {
    nodes: Vec<Option<NumberNode>>,
    parents: Vec<usize>,
}

impl UnitClasses {
    fn add(&mut self, node: Option<NumberNode>) -> usize {
        self.nodes.push(node);
        self.parents.push(self.parents.len());
        self.parents.len() - 1
    }

    fn id(&mut self, node: NumberNode) -> usize {
        let found = self.nodes.iter().position(|known| *known == Some(node));
        found.unwrap_or_else(|| self.add(Some(node)))
    }

    fn root(&self, mut id: usize) -> usize {
        while self.parents[id] != id {
            id = self.parents[id];
        }
        id
    }

    fn merge(&mut self, left: usize, right: usize) {
        let (left, right) = (self.root(left), self.root(right));
        self.parents[left] = right;
    }

    /// The class of a step's result: sums and differences have their operands' unit.
    fn of_step(
        &mut self,
        program: &[Instruction],
        operands: Vec<Option<NumberNode>>,
    ) -> usize {
        let mut stack = Vec::new();
        for instruction in program {
            let class = match *instruction {
                Instruction::Push(operand) => match operands.get(operand).copied().flatten() {
                    Some(NumberNode::Constant(_)) | None => self.add(None),
                    Some(node) => self.id(node),
                },
                Instruction::Negate => stack.pop().unwrap_or_else(|| self.add(None)),
                Instruction::Percent => {
                    stack.pop();
                    self.add(None)
                }
                Instruction::Binary(op) => {
                    let (right, left) = (stack.pop(), stack.pop());
                    match (op, left, right) {
                        (BinaryOp::Add | BinaryOp::Sub, Some(left), Some(right)) => {
                            self.merge(left, right);
                            left
                        }
                        _ => self.add(None),
                    }
                }
            };
            stack.push(class);
        }
        stack.pop().unwrap_or_else(|| self.add(None))
    }

    fn groups(&self) -> Vec<Vec<NumberNode>> {
        let mut groups = vec![Vec::new(); self.parents.len()];
        for (id, node) in self.nodes.iter().enumerate() {
            groups[self.root(id)].extend(*node);
        }
        groups.retain(|group| group.len() > 1);
        groups
    }
}
