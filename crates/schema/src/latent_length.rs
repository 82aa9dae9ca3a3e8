//! The number of thoughts per trajectory.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The number of thoughts per trajectory: `6`, `<=64`, `4-6` or `0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatentLength {
    /// No thoughts: the answer follows the prompt.
    None,
    /// Exactly this many thoughts.
    Exactly(NonZeroUsize),
    /// Thoughts until the model's argmax is the end token, possibly none. At the limit the end
    /// tokens are forced.
    AtMost(NonZeroUsize),
    /// A number drawn uniformly from the range for each trajectory.
    Between(LengthRange),
}

/// An inclusive, nonempty range of thought counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRange {
    low: NonZeroUsize,
    high: NonZeroUsize,
}

impl LengthRange {
    /// The range from `low` to `high`; `None` if `high < low`.
    pub fn new(low: NonZeroUsize, high: NonZeroUsize) -> Option<Self> {
        (low <= high).then_some(Self { low, high })
    }

    /// The smallest number.
    pub fn low(self) -> NonZeroUsize {
        self.low
    }

    /// The largest number.
    pub fn high(self) -> NonZeroUsize {
        self.high
    }
}

impl LatentLength {
    /// The maximum number of thoughts of a trajectory.
    pub fn limit(self) -> usize {
        match self {
            Self::None => 0,
            Self::Exactly(n) | Self::AtMost(n) => n.get(),
            Self::Between(range) => range.high.get(),
        }
    }

    /// The same kind of length with a limit of `thoughts`.
    #[must_use]
    pub fn with_limit(self, thoughts: usize) -> Self {
        match (self, NonZeroUsize::new(thoughts)) {
            (_, None) => Self::None,
            (Self::AtMost(_), Some(n)) => Self::AtMost(n),
            (_, Some(n)) => Self::Exactly(n),
        }
    }
}

/// The format that [`LatentLength::from_str`] parses.
impl fmt::Display for LatentLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("0"),
            Self::Exactly(n) => n.fmt(f),
            Self::AtMost(n) => write!(f, "<={n}"),
            Self::Between(range) => write!(f, "{}-{}", range.low, range.high),
        }
    }
}

/// Upper bound on the number of thoughts; no model has this many positions.
const MAX_THOUGHTS: usize = 1 << 20;

/// Why a text is not a valid [`LatentLength`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLength {
    /// Not a count from 1 to the maximum.
    #[error("{0:?} is not a count from 1 to {MAX_THOUGHTS}; write 6, <=64 or 4-6")]
    NotACount(String),
    /// A range whose upper end is below its lower end.
    #[error("the range is empty; write {high}-{low}")]
    EmptyRange {
        /// The first number.
        low: NonZeroUsize,
        /// The second number, which is smaller.
        high: NonZeroUsize,
    },
}

impl FromStr for LatentLength {
    type Err = InvalidLength;

    fn from_str(text: &str) -> Result<Self, InvalidLength> {
        if let Some(most) = text.trim().strip_prefix("<=") {
            return Ok(Self::AtMost(count(most)?));
        }
        if text.trim() == "0" {
            return Ok(Self::None);
        }
        let Some((low, high)) = text.split_once('-') else {
            return Ok(Self::Exactly(count(text)?));
        };
        let low = count(low)?;
        let high = count(high)?;
        let range = LengthRange::new(low, high);
        range.map(Self::Between).ok_or(InvalidLength::EmptyRange { low, high })
    }
}

fn count(text: &str) -> Result<NonZeroUsize, InvalidLength> {
    let number: Option<NonZeroUsize> = text.trim().parse().ok();
    number
        .filter(|number| number.get() <= MAX_THOUGHTS)
        .ok_or_else(|| InvalidLength::NotACount(text.trim().to_owned()))
}

impl Serialize for LatentLength {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_u64(0),
            Self::Exactly(n) => serializer.serialize_u64(n.get() as u64),
            Self::AtMost(_) | Self::Between(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for LatentLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LengthVisitor;

        impl Visitor<'_> for LengthVisitor {
            type Value = LatentLength;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of thoughts: 6, \"<=64\", \"4-6\" or 0")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<LatentLength, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<LatentLength, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<LatentLength, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(LengthVisitor)
    }
}

#[cfg(feature = "json-schema")]
impl schemars::JsonSchema for LatentLength {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LatentLength".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": "^(<=)?[0-9]+$|^[0-9]+-[0-9]+$" }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).unwrap()
    }

    #[test]
    fn lengths_round_trip() {
        let all = [
            ("6", LatentLength::Exactly(count(6))),
            ("<=64", LatentLength::AtMost(count(64))),
            ("4-6", LatentLength::Between(LengthRange::new(count(4), count(6)).unwrap())),
            ("5-5", LatentLength::Between(LengthRange::new(count(5), count(5)).unwrap())),
            ("0", LatentLength::None),
        ];
        for (text, length) in all {
            assert_eq!(text.parse(), Ok(length));
            assert_eq!(length.to_string(), text);
            let json = serde_json::to_string(&length).unwrap();
            assert_eq!(serde_json::from_str::<LatentLength>(&json).unwrap(), length);
            let quoted = format!("{text:?}");
            assert_eq!(serde_json::from_str::<LatentLength>(&quoted).unwrap(), length);
        }
        for text in
            ["", "00", "0-4", "6-4", "-3", "4-", "<=", "<=0", "six", "1-99999999", "1e3", "2.5"]
        {
            assert!(text.parse::<LatentLength>().is_err(), "{text}");
        }
        assert!(serde_json::from_str::<LatentLength>("-3").is_err());
        assert!(serde_json::from_str::<LatentLength>("2.5").is_err());
    }
}
