//! Converts text to tokens, and evaluates tokens.

use super::fraction::Fraction;

/// Maximum nesting of parentheses: deeper expressions have no value.
const MAX_DEPTH: usize = 32;
/// Maximum digits of a number: longer ones cannot be checked.
const MAX_DIGITS: usize = 18;

/// A number with its notation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Number {
    pub(super) value: Fraction,
    /// Number of decimals.
    pub(super) decimals: u32,
}

/// A part of an equation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Token {
    Number(Number),
    /// One of + - * /.
    Operator(char),
    Percent,
    Open,
    Close,
    Equals,
    /// A separator of expressions: words and punctuation.
    Break,
}

impl Token {
    pub(super) fn value(&self) -> Option<Fraction> {
        match self {
            Self::Number(number) => Some(number.value),
            _ => None,
        }
    }
}

/// The tokens of a text. Spaces and currency signs are skipped.
pub(super) fn tokenize(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        let token = match first {
            '0'..='9' => Some(number(rest, &mut length)),
            '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                Some(number(rest, &mut length))
            }
            '+' => Some(Token::Operator('+')),
            '-' | '\u{2212}' => Some(Token::Operator('-')),
            '*' | '\u{d7}' => Some(Token::Operator('*')),
            '/' | '\u{f7}' => Some(Token::Operator('/')),
            '=' => Some(Token::Equals),
            '(' => Some(Token::Open),
            ')' => Some(Token::Close),
            '%' => Some(Token::Percent),
            '$' | '\u{20ac}' | '\u{a3}' | ' ' | '\t' => None,
            c if c.is_alphabetic() => {
                length = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
                let is_times = matches!(&rest[..length], "x" | "X");
                Some(if is_times { Token::Operator('*') } else { Token::Break })
            }
            _ => Some(Token::Break),
        };
        tokens.extend(token);
        rest = &rest[length..];
    }
    tokens
}

/// The number at the start of a text, and its length in bytes.
fn number(text: &str, length: &mut usize) -> Token {
    let bytes = text.as_bytes();
    let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let mut value: i128 = 0;
    let mut digits = 0;
    let mut decimals = None;
    let mut i = 0;
    loop {
        match bytes.get(i) {
            Some(byte @ b'0'..=b'9') => {
                digits += 1;
                if digits <= MAX_DIGITS {
                    value = value * 10 + i128::from(byte - b'0');
                }
                decimals = decimals.map(|count: u32| count + 1);
            }
            Some(b'.') if decimals.is_none() && digit(i + 1) => decimals = Some(0),
            // A comma followed by exactly three digits separates thousands.
            Some(b',')
                if decimals.is_none()
                    && (i + 1..i + 4).all(digit)
                    && !digit(i + 4)
                    && digits > 0 => {}
            _ => break,
        }
        i += 1;
    }
    *length = i;
    if digits > MAX_DIGITS {
        return Token::Break;
    }
    let decimals = decimals.unwrap_or(0);
    // At most 18 digits: the power of ten is in range.
    let value = Fraction::new(value, 10_i128.pow(decimals));
    value.map_or(Token::Break, |value| Token::Number(Number { value, decimals }))
}

/// The value of an expression; `None` if it is malformed, divides by zero or overflows.
pub(super) fn evaluate(tokens: &[Token]) -> Option<Fraction> {
    let mut parser = Parser { tokens, next: 0, depth: 0 };
    let value = parser.sum()?;
    (parser.next == tokens.len()).then_some(value)
}

/// A recursive-descent parser; each method consumes the tokens that it parses.
struct Parser<'a> {
    tokens: &'a [Token],
    next: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<Token> {
        self.tokens.get(self.next).copied()
    }

    fn operator(&mut self, of: [char; 2]) -> Option<char> {
        match self.peek() {
            Some(Token::Operator(operator)) if of.contains(&operator) => {
                self.next += 1;
                Some(operator)
            }
            _ => None,
        }
    }

    fn sum(&mut self) -> Option<Fraction> {
        let mut value = self.product()?;
        while let Some(operator) = self.operator(['+', '-']) {
            let other = self.product()?;
            value = match operator {
                '+' => value.plus(other)?,
                _ => value.minus(other)?,
            };
        }
        Some(value)
    }

    fn product(&mut self) -> Option<Fraction> {
        let mut value = self.factor()?;
        while let Some(operator) = self.operator(['*', '/']) {
            let other = self.factor()?;
            value = match operator {
                '*' => value.times(other)?,
                _ => value.divided_by(other)?,
            };
        }
        Some(value)
    }

    fn factor(&mut self) -> Option<Fraction> {
        let mut is_negative = false;
        while let Some(sign) = self.operator(['+', '-']) {
            is_negative ^= sign == '-';
        }
        let token = self.peek()?;
        self.next += 1;
        let mut value = match token {
            Token::Number(number) => number.value,
            Token::Open if self.depth < MAX_DEPTH => {
                self.depth += 1;
                let value = self.sum()?;
                self.depth -= 1;
                if self.peek() != Some(Token::Close) {
                    return None;
                }
                self.next += 1;
                value
            }
            _ => return None,
        };
        while self.peek() == Some(Token::Percent) {
            self.next += 1;
            value = value.divided_by(Fraction::integer(100))?;
        }
        if is_negative { value.negated() } else { Some(value) }
    }
}
