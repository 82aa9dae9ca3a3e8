//! Numbers with a range. Every interface rejects values out of range when it parses them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A value is outside the range of its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidNumber(&'static str);

/// Conversion to and from JSON numbers. An `f32` is written as its shortest decimal, because
/// widening to `f64` adds digits.
trait Decimal: Copy {
    fn decimal(self) -> f64;
    fn of(decimal: f64) -> Self;
}

impl Decimal for f32 {
    fn decimal(self) -> f64 {
        self.to_string().parse().unwrap_or(f64::from(self))
    }

    fn of(decimal: f64) -> Self {
        decimal as f32
    }
}

impl Decimal for f64 {
    fn decimal(self) -> f64 {
        self
    }

    fn of(decimal: f64) -> Self {
        decimal
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $value:ident => $check:expr, $range:literal, $schema:tt) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name($inner);

        impl $name {
            /// The number; `None` if it is out of range or NaN.
            pub fn new($value: $inner) -> Option<Self> {
                ($check).then_some(Self($value))
            }

            /// The value.
            pub fn get(self) -> $inner {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = InvalidNumber;

            fn try_from(decimal: f64) -> Result<Self, InvalidNumber> {
                Self::new(Decimal::of(decimal)).ok_or(InvalidNumber(concat!("must be ", $range)))
            }
        }

        impl From<$name> for f64 {
            fn from(number: $name) -> f64 {
                number.0.decimal()
            }
        }

        impl FromStr for $name {
            type Err = InvalidNumber;

            fn from_str(text: &str) -> Result<Self, InvalidNumber> {
                let number = text.trim().parse::<$inner>().ok().and_then(Self::new);
                number.ok_or(InvalidNumber(concat!("must be ", $range)))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        #[cfg(feature = "json-schema")]
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}

number! {
    /// A probability in `[0, 1)`.
    Probability(f32), p => (0.0..1.0).contains(&p), "at least 0 and below 1",
    { "type": "number", "minimum": 0, "exclusiveMaximum": 1 }
}
number! {
    /// A softmax temperature: finite and above 0.
    Temperature(f32), t => t.is_finite() && t > 0.0, "finite and above 0",
    { "type": "number", "exclusiveMinimum": 0 }
}
number! {
    /// The probability mass of a nucleus, in `(0, 1]`.
    TopP(f32), p => p > 0.0 && p <= 1.0, "above 0 and at most 1",
    { "type": "number", "exclusiveMinimum": 0, "maximum": 1 }
}
number! {
    /// A standard deviation: finite and at least 0.
    NoiseStd(f32), s => s.is_finite() && s >= 0.0, "finite and at least 0",
    { "type": "number", "minimum": 0 }
}
number! {
    /// A weight: finite and at least 0.
    Weight(f64), w => w.is_finite() && w >= 0.0, "finite and at least 0",
    { "type": "number", "minimum": 0 }
}
number! {
    /// A weight used as a divisor: finite and above 0.
    PositiveWeight(f64), w => w.is_finite() && w > 0.0, "finite and above 0",
    { "type": "number", "exclusiveMinimum": 0 }
}

impl Temperature {
    /// A temperature of 1.
    pub const ONE: Self = Self(1.0);
}

impl TopP {
    /// The whole distribution.
    pub const ONE: Self = Self(1.0);
    /// The nucleus size of most published samplers.
    pub const PUBLISHED: Self = Self(0.95);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_with_the_digits_that_were_given() {
        for text in ["0", "0.1", "0.02", "0.999"] {
            let p: Probability = text.parse().unwrap();
            assert_eq!(serde_json::to_value(p).unwrap().to_string().trim_end_matches(".0"), text);
            assert_eq!(serde_json::from_str::<Probability>(text).unwrap(), p);
        }
    }

    #[test]
    fn numbers_out_of_range_are_rejected() {
        for text in ["1", "-0.1", "NaN", "x", "inf", ""] {
            assert!(text.parse::<Probability>().is_err(), "{text}");
        }
        for text in ["0", "-1", "NaN", "inf", ""] {
            assert!(text.parse::<Temperature>().is_err(), "{text}");
            assert!(text.parse::<PositiveWeight>().is_err(), "{text}");
        }
        for text in ["0", "1.1", "NaN", "-0.5"] {
            assert!(text.parse::<TopP>().is_err(), "{text}");
        }
        for text in ["-1", "NaN", "inf", "1e39"] {
            assert!(text.parse::<NoiseStd>().is_err(), "{text}");
        }
        let error = serde_json::from_str::<Probability>("1.5").unwrap_err().to_string();
        assert!(error.contains("must be at least 0 and below 1"), "{error}");
    }
}
