//! Exact rational numbers: fractions of `i128`; operations return `None` on overflow.

use std::cmp::Ordering;
use std::fmt;

/// Maximum number of decimals of a number in text.
const MAX_DECIMALS: u32 = 4;

/// A fraction in lowest terms with a positive denominator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rational {
    numerator: i128,
    denominator: i128,
}

impl Rational {
    /// The number 0.
    pub(super) const ZERO: Self = Self::whole(0);
    /// The number 1.
    pub(super) const ONE: Self = Self::whole(1);

    /// An integer.
    pub(super) const fn whole(value: i128) -> Self {
        Self { numerator: value, denominator: 1 }
    }

    /// `numerator / denominator`; `None` on division by zero.
    pub(super) fn new(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator == 0 || numerator == i128::MIN || denominator == i128::MIN {
            return None;
        }
        let divisor = gcd(numerator.unsigned_abs(), denominator.unsigned_abs()) as i128;
        let sign = denominator.signum();
        Some(Self {
            numerator: sign * numerator / divisor,
            denominator: denominator.abs() / divisor,
        })
    }

    /// Parses a decimal number such as `1,200`, `.5` or `21.00`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.replace(',', "");
        let (whole, decimals) = digits.split_once('.').unwrap_or((&digits, ""));
        let all = format!("{whole}{decimals}");
        if all.is_empty() || all.len() > 30 || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Self::new(all.parse().ok()?, 10i128.checked_pow(decimals.len() as u32)?)
    }

    /// The numerator in lowest terms; it has the number's sign.
    pub(super) fn numerator(self) -> i128 {
        self.numerator
    }

    /// The denominator in lowest terms, positive.
    pub(super) fn denominator(self) -> i128 {
        self.denominator
    }

    /// The number as an integer, if it is one.
    pub(super) fn as_whole(self) -> Option<i128> {
        (self.denominator == 1).then_some(self.numerator)
    }

    /// Whether the number is an integer.
    pub(super) fn is_whole(self) -> bool {
        self.denominator == 1
    }

    /// Whether the number is above 0.
    pub(super) fn is_positive(self) -> bool {
        self.numerator > 0
    }

    /// The sum.
    pub(super) fn add(self, other: Self) -> Option<Self> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        Self::new(left.checked_add(right)?, self.denominator.checked_mul(other.denominator)?)
    }

    /// The difference.
    pub(super) fn sub(self, other: Self) -> Option<Self> {
        self.add(other.neg())
    }

    /// The product.
    pub(super) fn mul(self, other: Self) -> Option<Self> {
        let numerator = self.numerator.checked_mul(other.numerator)?;
        Self::new(numerator, self.denominator.checked_mul(other.denominator)?)
    }

    /// The quotient; `None` on division by zero.
    pub(super) fn div(self, other: Self) -> Option<Self> {
        let numerator = self.numerator.checked_mul(other.denominator)?;
        Self::new(numerator, self.denominator.checked_mul(other.numerator)?)
    }

    /// The negated number.
    pub(super) fn neg(self) -> Self {
        Self { numerator: -self.numerator, denominator: self.denominator }
    }

    /// The number of decimals, if the decimal expansion has at most [`MAX_DECIMALS`].
    pub(super) fn decimals(self) -> Option<u32> {
        (0..=MAX_DECIMALS).find(|&digits| 10i128.pow(digits) % self.denominator == 0)
    }

    /// The shortest decimal form, if it has at most [`MAX_DECIMALS`] decimals.
    pub(super) fn to_decimal(self) -> Option<String> {
        self.to_decimal_with(self.decimals()?)
    }

    /// The decimal form with exactly `decimals` decimals.
    pub(super) fn to_decimal_with(self, decimals: u32) -> Option<String> {
        let scale = 10i128.checked_pow(decimals)?;
        let scaled = self.mul(Self::whole(scale))?.as_whole()?;
        let sign = if scaled < 0 { "-" } else { "" };
        let whole = scaled.abs() / scale;
        let rest = scaled.abs() % scale;
        Some(match decimals {
            0 => format!("{sign}{whole}"),
            _ => format!("{sign}{whole}.{rest:0width$}", width = decimals as usize),
        })
    }
}

impl Ord for Rational {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = self.numerator.checked_mul(other.denominator);
        let right = other.numerator.checked_mul(self.denominator);
        match (left, right) {
            (Some(left), Some(right)) => left.cmp(&right),
            // The products overflow: compare integer parts, then reciprocals of the remainders.
            _ => self.cmp_by_parts(other),
        }
    }
}

impl PartialOrd for Rational {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Rational {
    fn cmp_by_parts(&self, other: &Self) -> Ordering {
        let parts = |x: &Self| {
            (x.numerator.div_euclid(x.denominator), x.numerator.rem_euclid(x.denominator))
        };
        let ((whole, rest), (other_whole, other_rest)) = (parts(self), parts(other));
        whole.cmp(&other_whole).then_with(|| match (rest, other_rest) {
            (0, _) | (_, 0) => rest.cmp(&other_rest),
            _ => {
                let reciprocal = |n, d| Self { numerator: d, denominator: n };
                reciprocal(other_rest, other.denominator).cmp(&reciprocal(rest, self.denominator))
            }
        })
    }
}

impl fmt::Display for Rational {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_decimal() {
            Some(decimal) => f.write_str(&decimal),
            None => write!(f, "{}/{}", self.numerator, self.denominator),
        }
    }
}

/// The greatest common divisor; 1 for 0 and 0, so that it is a valid divisor.
fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimals_are_parsed_and_written() {
        for (text, written) in
            [("1,200", "1200"), (".5", "0.5"), ("21.00", "21"), ("0.125", "0.125"), ("7.", "7")]
        {
            assert_eq!(Rational::parse(text).unwrap().to_string(), written, "{text}");
        }
        for text in ["", ".", "1.2.3", "-4", "1e5", "9999999999999999999999999999999999"] {
            assert_eq!(Rational::parse(text), None, "{text}");
        }
        assert_eq!(Rational::new(1, 3).unwrap().to_decimal(), None);
        assert_eq!(Rational::whole(3).to_decimal_with(2).unwrap(), "3.00");
        assert_eq!(Rational::new(-1, 4).unwrap().to_decimal().unwrap(), "-0.25");
    }

    #[test]
    fn overflow_has_no_result() {
        let huge = Rational::whole(i128::MAX);
        assert_eq!(huge.add(Rational::ONE), None);
        assert_eq!(huge.mul(huge), None);
        assert_eq!(Rational::ONE.div(Rational::ZERO), None);
        let tiny = Rational::new(1, i128::MAX - 1);
        let tinier = Rational::new(1, i128::MAX);
        assert!(tiny > tinier && Rational::new(i128::MAX - 1, 3) < Rational::new(i128::MAX, 2));
    }

    proptest! {
        #[test]
        fn arithmetic_is_that_of_fractions(a in -999i128..999, b in 1i128..99, c in -999i128..999, d in 1i128..99) {
            let x = Rational::new(a, b).unwrap();
            let y = Rational::new(c, d).unwrap();
            prop_assert_eq!(x.add(y).unwrap(), Rational::new(a * d + c * b, b * d).unwrap());
            prop_assert_eq!(x.add(y).unwrap().sub(y).unwrap(), x);
            prop_assert_eq!(x.cmp(&y), (a * d).cmp(&(c * b)));
            prop_assert_eq!(x.cmp_by_parts(&y), (a * d).cmp(&(c * b)));
            if c != 0 {
                prop_assert_eq!(x.mul(y).unwrap().div(y).unwrap(), x);
            }
        }

        #[test]
        fn parsing_never_panics(text in ".{0,40}") {
            let _ = Rational::parse(&text);
        }
    }
}
