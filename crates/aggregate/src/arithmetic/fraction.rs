//! Exact fractions. Operations that overflow have no result.

/// A fraction in lowest terms with a positive denominator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fraction {
    numerator: i128,
    denominator: i128,
}

impl Fraction {
    /// An integer as a fraction.
    pub fn integer(value: i128) -> Self {
        Self { numerator: value, denominator: 1 }
    }

    /// A fraction; `None` if the denominator is 0 or the terms overflow.
    pub fn new(numerator: i128, denominator: i128) -> Option<Self> {
        let divisor = gcd(numerator.unsigned_abs(), denominator.unsigned_abs());
        let divisor = i128::try_from(divisor).ok().filter(|_| denominator != 0)?;
        let sign = denominator.signum();
        Some(Self {
            numerator: (numerator / divisor).checked_mul(sign)?,
            denominator: (denominator / divisor).checked_mul(sign)?,
        })
    }

    pub(super) fn negated(self) -> Option<Self> {
        Some(Self { numerator: self.numerator.checked_neg()?, ..self })
    }

    /// The absolute value; `None` on overflow.
    pub(super) fn magnitude(self) -> Option<Self> {
        Some(Self { numerator: self.numerator.checked_abs()?, ..self })
    }

    pub(super) fn plus(self, other: Self) -> Option<Self> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        Self::new(left.checked_add(right)?, self.denominator.checked_mul(other.denominator)?)
    }

    pub(super) fn minus(self, other: Self) -> Option<Self> {
        self.plus(other.negated()?)
    }

    pub(super) fn times(self, other: Self) -> Option<Self> {
        Self::new(
            self.numerator.checked_mul(other.numerator)?,
            self.denominator.checked_mul(other.denominator)?,
        )
    }

    pub(super) fn divided_by(self, other: Self) -> Option<Self> {
        Self::new(
            self.numerator.checked_mul(other.denominator)?,
            self.denominator.checked_mul(other.numerator)?,
        )
    }

    /// Whether `stated`, which has `decimals` decimals, is this value: exactly, or rounded to them.
    pub(super) fn rounds_to(self, stated: Self, decimals: u32) -> bool {
        if self == stated || decimals == 0 {
            return self == stated;
        }
        let scale = 10_i128.checked_pow(decimals).and_then(|scale| scale.checked_mul(2));
        let error = self.minus(stated).zip(scale);
        let error = error.and_then(|(error, scale)| error.times(Self::integer(scale)));
        error
            .is_some_and(|error| error.numerator.unsigned_abs() <= error.denominator.unsigned_abs())
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
