//! The calculation of an annotated step: parsed once, then evaluated and written with new operands.
//!
//! Operands are numbers; operators are `+ - * / ( )`, a leading minus and a trailing `%`. Other
//! multiplication and division signs are read as `*` and `/`; currency signs are ignored.

use super::rational::Rational;

/// Maximum number of operands of a step; longer steps are corrupt or not calculations.
const MAX_OPERANDS: usize = 32;

/// A step `expression = result` whose operands can be replaced.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepExpression {
    /// Values of the operands, from left to right.
    pub(super) operands: Vec<Rational>,
    /// The annotated result.
    pub(super) result: Rational,
    /// The symbols in text order.
    symbols: Vec<StepSymbol>,
    /// The expression in reverse Polish notation.
    program: Vec<Instruction>,
}

/// A piece of the written expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepSymbol {
    Operand(usize),
    Sign(char),
}

/// One instruction of an expression in reverse Polish notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instruction {
    /// Pushes an operand.
    Push(usize),
    /// Replaces the two topmost values by the result of an operation.
    Binary(BinaryOp),
    /// Negates the topmost value.
    Negate,
    /// Divides the topmost value by 100.
    Percent,
}

/// A binary operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
}

impl BinaryOp {
    /// The result; `None` on overflow or division by zero.
    pub(super) fn apply(self, left: Rational, right: Rational) -> Option<Rational> {
        match self {
            Self::Add => left.add(right),
            Self::Sub => left.sub(right),
            Self::Mul => left.mul(right),
            Self::Div => left.div(right),
        }
    }

    /// The operator's sign.
    pub(super) fn sign(self) -> char {
        match self {
            Self::Add => '+',
            Self::Sub => '-',
            Self::Mul => '*',
            Self::Div => '/',
        }
    }

    fn from_sign(sign: char) -> Option<Self> {
        Some(match sign {
            '+' => Self::Add,
            '-' => Self::Sub,
            '*' => Self::Mul,
            '/' => Self::Div,
            _ => return None,
        })
    }

    fn precedence(self) -> u8 {
        match self {
            Self::Add | Self::Sub => 1,
            Self::Mul | Self::Div => 2,
        }
    }
}

impl StepExpression {
    /// Parses a step with its brackets, such as `<<48/2=24>>`.
    pub(super) fn parse(step: &str) -> Option<Self> {
        let inside = step.trim().strip_prefix("<<")?.strip_suffix(">>")?;
        let (expression, result) = inside.split_once('=')?;
        let result = result.trim().trim_matches(['$', '%', ' ']);
        let result = match result.strip_prefix('-') {
            Some(positive) => Rational::parse(positive)?.neg(),
            None => Rational::parse(result)?,
        };
        let (symbols, operands) = symbols(expression)?;
        let program = program(&symbols)?;
        Some(Self { operands, result, symbols, program })
    }

    /// The value with these operands; `None` on overflow or division by zero.
    pub(super) fn evaluate(&self, operands: &[Rational]) -> Option<Rational> {
        let mut stack = Vec::with_capacity(self.operands.len());
        for instruction in &self.program {
            let value = match *instruction {
                Instruction::Push(operand) => *operands.get(operand)?,
                Instruction::Negate => stack.pop().map(Rational::neg)?,
                Instruction::Percent => Rational::div(stack.pop()?, Rational::whole(100))?,
                Instruction::Binary(op) => {
                    let right = stack.pop()?;
                    op.apply(stack.pop()?, right)?
                }
            };
            stack.push(value);
        }
        stack.pop().filter(|_| stack.is_empty())
    }

    /// The instructions, for interpretations other than evaluation.
    pub(super) fn program(&self) -> &[Instruction] {
        &self.program
    }

    /// Per operand: whether it is added (true) or subtracted; `None` with multiplications.
    pub(super) fn signs(&self) -> Option<Vec<bool>> {
        let is_linear = self.program.iter().all(|instruction| {
            !matches!(
                instruction,
                Instruction::Binary(BinaryOp::Mul | BinaryOp::Div) | Instruction::Percent
            )
        });
        let value = self.evaluate(&self.operands).filter(|_| is_linear)?;
        let is_added = |operand: usize| {
            let mut more = self.operands.clone();
            more[operand] = more[operand].add(Rational::ONE)?;
            Some(self.evaluate(&more)? > value)
        };
        (0..self.operands.len()).map(is_added).collect()
    }

    /// The number of addends, if the expression is a sum of operands.
    pub(super) fn addends(&self) -> Option<usize> {
        let is_sum = self.program.iter().all(|instruction| {
            matches!(instruction, Instruction::Push(_) | Instruction::Binary(BinaryOp::Add))
        });
        is_sum.then_some(self.operands.len())
    }

    /// The step with its brackets; `None` if a number has no short decimal form.
    pub(super) fn write(&self, operands: &[Rational], result: Rational) -> Option<String> {
        let mut text = String::from("<<");
        for symbol in &self.symbols {
            match *symbol {
                StepSymbol::Operand(operand) => text.push_str(&operands[operand].to_decimal()?),
                StepSymbol::Sign(sign) => text.push(sign),
            }
        }
        Some(format!("{text}={}>>", result.to_decimal()?))
    }
}

/// Splits an expression into signs and operands.
fn symbols(expression: &str) -> Option<(Vec<StepSymbol>, Vec<Rational>)> {
    let mut symbols = Vec::new();
    let mut operands = Vec::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let length = rest
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','))
            .unwrap_or(rest.len());
        if length > 0 {
            symbols.push(StepSymbol::Operand(operands.len()));
            operands.push(Rational::parse(rest[..length].trim_end_matches(['.', ',']))?);
            rest = &rest[length..];
            continue;
        }
        match first {
            ' ' | '$' | '€' | '£' => {}
            'x' | 'X' | '×' => symbols.push(StepSymbol::Sign('*')),
            '÷' => symbols.push(StepSymbol::Sign('/')),
            '+' | '-' | '*' | '/' | '(' | ')' | '%' => symbols.push(StepSymbol::Sign(first)),
            _ => return None,
        }
        rest = &rest[first.len_utf8()..];
    }
    let fits = !operands.is_empty() && operands.len() <= MAX_OPERANDS;
    fits.then_some((symbols, operands))
}

/// The expression in reverse Polish notation (Dijkstra's shunting yard).
fn program(symbols: &[StepSymbol]) -> Option<Vec<Instruction>> {
    let mut yard = ShuntingYard::default();
    symbols.iter().try_for_each(|symbol| yard.push(*symbol))?;
    yard.finish()
}

/// An operator on the stack of the shunting-yard algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PendingSign {
    Parenthesis,
    Minus,
    Binary(BinaryOp),
}

#[derive(Default)]
struct ShuntingYard {
    output: Vec<Instruction>,
    pending: Vec<PendingSign>,
    /// Whether the last symbol ended an operand.
    has_left: bool,
}

impl ShuntingYard {
    fn push(&mut self, symbol: StepSymbol) -> Option<()> {
        match symbol {
            StepSymbol::Operand(_) | StepSymbol::Sign('(') if self.has_left => return None,
            StepSymbol::Operand(operand) => {
                self.output.push(Instruction::Push(operand));
                self.has_left = true;
            }
            StepSymbol::Sign('(') => self.pending.push(PendingSign::Parenthesis),
            StepSymbol::Sign('-') if !self.has_left => self.pending.push(PendingSign::Minus),
            StepSymbol::Sign('+') if !self.has_left && self.output.is_empty() => {}
            StepSymbol::Sign(_) if !self.has_left => return None,
            StepSymbol::Sign(')') => self.close()?,
            StepSymbol::Sign('%') => self.output.push(Instruction::Percent),
            StepSymbol::Sign(sign) => self.binary(BinaryOp::from_sign(sign)?),
        }
        Some(())
    }

    fn binary(&mut self, op: BinaryOp) {
        while let Some(&top) = self.pending.last() {
            let binds = match top {
                PendingSign::Parenthesis => false,
                PendingSign::Minus => true,
                PendingSign::Binary(other) => other.precedence() >= op.precedence(),
            };
            if !binds {
                break;
            }
            self.pop();
        }
        self.pending.push(PendingSign::Binary(op));
        self.has_left = false;
    }

    fn close(&mut self) -> Option<()> {
        while *self.pending.last()? != PendingSign::Parenthesis {
            self.pop();
        }
        self.pending.pop();
        Some(())
    }

    fn pop(&mut self) {
        match self.pending.pop() {
            Some(PendingSign::Minus) => self.output.push(Instruction::Negate),
            Some(PendingSign::Binary(op)) => self.output.push(Instruction::Binary(op)),
            Some(PendingSign::Parenthesis) | None => {}
        }
    }

    fn finish(mut self) -> Option<Vec<Instruction>> {
        if !self.has_left || self.pending.contains(&PendingSign::Parenthesis) {
            return None;
        }
        while !self.pending.is_empty() {
            self.pop();
        }
        Some(self.output)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(step: &str) -> Option<Rational> {
        let step = StepExpression::parse(step)?;
        step.evaluate(&step.operands)
    }

    #[test]
    fn steps_are_evaluated_as_written() {
        for (step, result) in [
            ("<<48/2=24>>", "24"),
            ("<<100-50-30-15=5>>", "5"),
            ("<<2+3*4=14>>", "14"),
            ("<<(2+3)*4=20>>", "20"),
            ("<<$1,200 x .5=600>>", "600"),
            ("<<20%*50=10>>", "10"),
            ("<<-3+5=2>>", "2"),
            ("<<1800*20*.01=360>>", "360"),
            ("<<12/(2-1/2)=8>>", "8"),
            ("<<28-7=21.00>>", "21"),
        ] {
            assert_eq!(value(step).unwrap().to_string(), result, "{step}");
        }
    }

    #[test]
    fn what_is_no_calculation_is_refused() {
        for step in [
            "48/2=24",
            "<<24>>",
            "<<=24>>",
            "<<2 3=6>>",
            "<<2(3)=6>>",
            "<<(2+3=5>>",
            "<<2+3)=5>>",
            "<<x+1=2>>",
            "<<2^3=8>>",
            "<<2+=2>>",
            "<<*2=2>>",
            "<<2=two>>",
            "<<1+1=2=2>>",
        ] {
            assert_eq!(StepExpression::parse(step), None, "{step}");
        }
        assert_eq!(value("<<1/0=1>>"), None);
    }

    #[test]
    fn steps_are_written_with_other_operands() {
        let step = StepExpression::parse("<<$48.00 / (1+1) = 24>>").unwrap();
        let operands = [Rational::parse("2.5").unwrap(), Rational::ONE, Rational::ONE];
        let result = step.evaluate(&operands).unwrap();
        assert_eq!(step.write(&operands, result).unwrap(), "<<2.5/(1+1)=1.25>>");
        assert_eq!(step.write(&operands, Rational::new(1, 3).unwrap()), None);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "<<[-0-9+*/()%.,=$ x]{0,24}>>") {
            if let Some(step) = StepExpression::parse(&text) {
                let _ = step.evaluate(&step.operands);
            }
        }
    }
}
