//! Derivations of a solution's numbers from the question, an earlier step, or general knowledge.

use super::expression::BinaryOp;
use super::rational::Rational;

/// A number from which others are derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberNode {
    /// A number that never changes.
    Constant(Rational),
    /// The index of a number of the question that is resampled.
    Variable(usize),
    /// A fraction of two numbers of the question: the indices of numerator and denominator.
    Fraction(usize, usize),
    /// The index of a step, for its result.
    StepResult(usize),
}

/// How a number follows from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Derivation {
    /// `offset + scale * node`: the number itself, its hundredth, or its complement to one.
    Affine { node: NumberNode, scale: Rational, offset: Rational },
    /// One operation on two numbers.
    Pair { op: BinaryOp, left: NumberNode, right: NumberNode },
}

impl Derivation {
    /// The number itself.
    pub(super) fn direct(node: NumberNode) -> Self {
        Self::Affine { node, scale: Rational::ONE, offset: Rational::ZERO }
    }

    /// The node, if the derivation is the node itself.
    pub(super) fn as_direct(self) -> Option<NumberNode> {
        match self {
            Self::Affine { node, scale: Rational::ONE, offset: Rational::ZERO } => Some(node),
            _ => None,
        }
    }

    /// The nodes that it reads.
    pub(super) fn nodes(self) -> impl Iterator<Item = NumberNode> {
        let nodes = match self {
            Self::Affine { node, .. } => [Some(node), None],
            Self::Pair { left, right, .. } => [Some(left), Some(right)],
        };
        nodes.into_iter().flatten()
    }
}

/// Values of the variables and of the steps so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Assignment {
    /// Values of the variables.
    pub(super) variables: Vec<Rational>,
    /// Results of the steps so far.
    pub(super) results: Vec<Rational>,
}

impl Assignment {
    /// A node's value; `None` for a later step.
    pub(super) fn value(&self, node: NumberNode) -> Option<Rational> {
        match node {
            NumberNode::Constant(value) => Some(value),
            NumberNode::Variable(index) => self.variables.get(index).copied(),
            NumberNode::Fraction(top, bottom) => {
                self.variables.get(top)?.div(*self.variables.get(bottom)?)
            }
            NumberNode::StepResult(index) => self.results.get(index).copied(),
        }
    }

    /// A derived number's value; `None` on overflow or division by zero.
    pub(super) fn derive(&self, derivation: Derivation) -> Option<Rational> {
        match derivation {
            Derivation::Affine { node, scale, offset } => offset.add(scale.mul(self.value(node)?)?),
            Derivation::Pair { op, left, right } => op.apply(self.value(left)?, self.value(right)?),
        }
    }
}
