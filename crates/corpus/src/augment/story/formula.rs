//! Formulas over a story's numbers: a step, or one side of a condition.

use super::super::expression::StepExpression;
use super::super::rational::Rational;

/// An operand of a formula.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Operand {
    /// A number of the text, counted from `a`.
    Number(usize),
    /// The result of an earlier step, counted from 0.
    Step(usize),
    Constant(Rational),
}

/// A calculation such as `$1*c/100`.
#[derive(Debug, Clone)]
pub(super) struct StoryFormula {
    operands: Vec<Operand>,
    expression: StepExpression,
}

impl StoryFormula {
    /// Parses a formula that may use the results of the first `steps` steps.
    pub(super) fn parse(text: &str, steps: usize) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a calculation; expected a form such as a*b or $1-c");
        let mut operands = Vec::new();
        let mut skeleton = String::new();
        let mut rest = text.trim();
        while let Some(first) = rest.chars().next() {
            let digits = |text: &str| {
                text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len())
            };
            let length = match first {
                'a'..='h' => {
                    operands.push(Operand::Number(number_index(first)));
                    1
                }
                '$' => {
                    let end = 1 + digits(&rest[1..]);
                    let step: usize = rest[1..end].parse().map_err(|_| bad())?;
                    if step == 0 || step > steps {
                        return Err(format!(
                            "${step} in `{text}` does not refer to an earlier step"
                        ));
                    }
                    operands.push(Operand::Step(step - 1));
                    end
                }
                '0'..='9' => {
                    let end = digits(rest);
                    let constant = Rational::parse(&rest[..end]).ok_or_else(bad)?;
                    operands.push(Operand::Constant(constant));
                    end
                }
                _ => {
                    skeleton.push(first);
                    rest = &rest[first.len_utf8()..];
                    continue;
                }
            };
            skeleton.push('1');
            rest = &rest[length..];
        }
        // Operands are replaced by 1 to parse the expression; their values are set in `evaluate`.
        let expression = StepExpression::parse(&format!("<<{skeleton}=1>>")).ok_or_else(bad)?;
        match expression.operands.len() == operands.len() {
            true => Ok(Self { operands, expression }),
            false => Err(bad()),
        }
    }

    /// The numbers of the text that the formula uses.
    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.operands.iter().filter_map(|operand| match operand {
            Operand::Number(number) => Some(*number),
            _ => None,
        })
    }

    /// The value, unless it divides by zero.
    pub(super) fn evaluate(&self, numbers: &[Rational], results: &[Rational]) -> Option<Rational> {
        self.expression.evaluate(&self.values(numbers, results)?)
    }

    /// The step with its result in brackets, if its numbers have short decimal forms.
    pub(super) fn write(&self, numbers: &[Rational], results: &[Rational]) -> Option<String> {
        let values = self.values(numbers, results)?;
        self.expression.write(&values, self.expression.evaluate(&values)?)
    }

    fn values(&self, numbers: &[Rational], results: &[Rational]) -> Option<Vec<Rational>> {
        let value = |operand: &Operand| match *operand {
            Operand::Number(number) => numbers.get(number).copied(),
            Operand::Step(step) => results.get(step).copied(),
            Operand::Constant(value) => Some(value),
        };
        self.operands.iter().map(value).collect()
    }
}

/// The index of number `a`, `b`, ...
pub(super) fn number_index(letter: char) -> usize {
    letter as usize - 'a' as usize
}
