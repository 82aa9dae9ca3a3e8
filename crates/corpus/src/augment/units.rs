//! Which of a problem's numbers have the same unit, inferred from sums and differences in steps.

use super::derivation::NumberNode;
use super::expression::{BinaryOp, Instruction};
use super::graph::SolutionGraph;

/// A union-find over nodes and anonymous quantities.
#[derive(Debug, Default)]
pub(super) struct UnitClasses {
    nodes: Vec<Option<NumberNode>>,
    parents: Vec<usize>,
    products: Vec<UnitProduct>,
}

/// A product or quotient: the classes of its operands and of its result.
#[derive(Debug, Clone, Copy)]
struct UnitProduct {
    operands: [usize; 2],
    result: usize,
}

impl UnitClasses {
    /// The classes implied by the steps of a graph.
    pub(super) fn of(graph: &SolutionGraph) -> Self {
        let mut classes = Self::default();
        for (index, step) in graph.steps.iter().enumerate() {
            let operands: Vec<Option<NumberNode>> =
                step.sources.iter().map(|sources| sources.first()?.as_direct()).collect();
            let class = classes.of_step(step.expression.program(), &operands);
            let result = classes.id(NumberNode::StepResult(index));
            classes.merge(class, result);
        }
        classes
    }

    /// Whether two numbers and their product or quotient have the same unit, and one of the two is
    /// a variable for which `once` holds.
    pub(super) fn multiplies_alike(
        &self,
        graph: &SolutionGraph,
        once: impl Fn(usize) -> bool,
    ) -> bool {
        let is_once = |id: usize| match self.nodes[id] {
            Some(NumberNode::Variable(variable)) => {
                variable < graph.variables.len() && once(variable)
            }
            _ => false,
        };
        self.products.iter().any(|product| {
            let [left, right] = product.operands.map(|id| self.root(id));
            left == right
                && left == self.root(product.result)
                && product.operands.iter().any(|id| is_once(*id))
        })
    }

    fn add(&mut self, node: Option<NumberNode>) -> usize {
        self.nodes.push(node);
        self.parents.push(self.parents.len());
        self.parents.len() - 1
    }

    /// The class of a node.
    pub(super) fn id(&mut self, node: NumberNode) -> usize {
        let found = self.nodes.iter().position(|known| *known == Some(node));
        found.unwrap_or_else(|| self.add(Some(node)))
    }

    fn root(&self, mut id: usize) -> usize {
        while self.parents[id] != id {
            id = self.parents[id];
        }
        id
    }

    /// Merges two classes, which have the same unit.
    pub(super) fn merge(&mut self, left: usize, right: usize) {
        let left = self.root(left);
        let right = self.root(right);
        self.parents[left] = right;
    }

    /// The class of a step's result: sums and differences have their operands' unit.
    fn of_step(&mut self, program: &[Instruction], operands: &[Option<NumberNode>]) -> usize {
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
                    let right = stack.pop();
                    let left = stack.pop();
                    match (op, left, right) {
                        (BinaryOp::Add | BinaryOp::Sub, Some(left), Some(right)) => {
                            self.merge(left, right);
                            left
                        }
                        (_, Some(left), Some(right)) => {
                            let result = self.add(None);
                            self.products.push(UnitProduct { operands: [left, right], result });
                            result
                        }
                        _ => self.add(None),
                    }
                }
            };
            stack.push(class);
        }
        stack.pop().unwrap_or_else(|| self.add(None))
    }

    /// Groups of several nodes with the same unit.
    pub(super) fn groups(&self) -> Vec<Vec<NumberNode>> {
        let mut groups = vec![Vec::new(); self.parents.len()];
        for (id, node) in self.nodes.iter().enumerate() {
            groups[self.root(id)].extend(*node);
        }
        groups.retain(|group| group.len() > 1);
        groups
    }
}
