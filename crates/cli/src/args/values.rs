//! Parsers of single values. A message states what is accepted; clap adds the flag and its value.

use std::num::NonZeroUsize;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use latent_tts::engine::family::FAMILIES;
use latent_tts::{DeviceKind, Family, Probability, Rule, SearchMethod};

/// Parses the name of a family.
pub fn family() -> impl TypedValueParser<Value = Family> {
    PossibleValuesParser::new(FAMILIES.map(Family::name))
        .try_map(|name| Family::from_name(&name).ok_or_else(|| format!("unknown family {name:?}")))
}

/// A value of `--aggregate`: a rule over sampled trajectories, or a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateRule {
    /// A vote or a selection among sampled trajectories.
    Sampled(Rule),
    /// A search guided by process rewards.
    Search(SearchMethod),
}

impl AggregateRule {
    /// The rule's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sampled(rule) => rule.name(),
            Self::Search(method) => method.name(),
        }
    }
}

/// Parses the name of an aggregation rule, including names from earlier versions.
pub fn rule() -> impl TypedValueParser<Value = AggregateRule> {
    let names = Rule::ALL.iter().map(|rule| PossibleValue::new(rule.name()));
    let old = Rule::ALL.iter().flat_map(|rule| rule.aliases());
    let old = old.map(|name| PossibleValue::new(*name).hide(true));
    let searches = SearchMethod::value_variants();
    let search_names = searches.iter().map(|method| PossibleValue::new(method.name()));
    let all: Vec<PossibleValue> = names.chain(search_names).chain(old).collect();
    PossibleValuesParser::new(all).try_map(|name| {
        let search = searches.iter().find(|method| method.name() == name);
        match search {
            Some(method) => Ok(AggregateRule::Search(*method)),
            None => name.parse().map(AggregateRule::Sampled),
        }
    })
}

/// Parses a finite number above 0.
pub fn above_zero(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0)
        .ok_or_else(|| "must be a number above 0".to_owned())
}

/// Parses a probability in [0, 1).
pub fn probability(text: &str) -> Result<Probability, String> {
    let number: f32 = text.parse().map_err(|_| "not a number".to_owned())?;
    Probability::new(number).ok_or_else(|| "must be at least 0 and below 1".to_owned())
}

/// Parses a number in [0, 1).
pub fn share(text: &str) -> Result<f32, String> {
    probability(text).map(Probability::get)
}

/// Parses the number of tokens of the lens.
pub fn lens(text: &str) -> Result<NonZeroUsize, String> {
    let number = text.parse().ok().filter(|count: &NonZeroUsize| count.get() <= MAX_LENS_TOKENS);
    number.ok_or_else(|| format!("must be an integer from 1 to {MAX_LENS_TOKENS}"))
}

/// The maximum number of recorded tokens per thought, which bounds the size of samples.
const MAX_LENS_TOKENS: usize = 20;

/// Parses `auto`, `cpu`, `cuda` or `cuda:1`.
pub fn device(text: &str) -> Result<DeviceKind, String> {
    match (text, text.strip_prefix("cuda:")) {
        ("auto", _) => Ok(DeviceKind::Auto),
        ("cpu", _) => Ok(DeviceKind::Cpu),
        ("cuda", _) => Ok(DeviceKind::Cuda(0)),
        (_, Some(number)) => number
            .parse()
            .map(DeviceKind::Cuda)
            .map_err(|_| format!("invalid GPU index {number:?}")),
        _ => Err("expected auto, cpu, cuda or cuda:INDEX".to_owned()),
    }
}

/// Parses `2/8`, the second of eight parts, into `(2, 8)`.
pub fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers =
        text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
    match numbers {
        Some((part, of)) if (1..=of).contains(&part) => Ok((part, of)),
        _ => Err("expected PART/PARTS, e.g. 1/4 for the first of four parts".to_owned()),
    }
}

/// Units of memory in bytes. Units with an `i` and bare letters are powers of 1024.
const UNITS: [(&str, u64); 14] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
    ("", 1),
];

/// Parses a size in bytes such as `1GiB`, `1.5G` or `800MB`.
pub fn size(text: &str) -> Result<usize, String> {
    let lower = text.trim().to_ascii_lowercase();
    let wrong = || "expected a size such as 512MiB or 2GiB".to_owned();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((lower.strip_suffix(name)?.trim(), *unit)))
        .ok_or_else(wrong)?;
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let size = number * unit as f64;
    if !(1.0..=(1u64 << 50) as f64).contains(&size) {
        return Err("must be at least one byte and at most 1024 TiB".to_owned());
    }
    Ok(size as usize)
}

/// Formats a number of bytes with a binary unit.
pub fn format_bytes(size: u64) -> String {
    let (mut value, mut unit) = (size as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" { format!("{size} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_parts_are_one_based() {
        assert_eq!((part("1/1"), part("3/8")), (Ok((1, 1)), Ok((3, 8))));
        assert!(
            ["", "1", "0/4", "5/4", "1/0", "a/b", "-1/4", "1/4/2"]
                .iter()
                .all(|text| part(text).is_err())
        );
    }

    #[test]
    fn memory_sizes_are_parsed() {
        for (text, size) in [
            ("1GiB", 1 << 30),
            ("1.5G", 3 << 29),
            ("800MB", 800_000_000),
            ("64 kib", 65536),
            ("1000", 1000),
            ("7b", 7),
        ] {
            assert_eq!(super::size(text), Ok(size), "{text}");
        }
        for text in ["", "GiB", "0", "-1G", "nan", "inf", "1e300", "1 giga"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert_eq!((format_bytes(12), format_bytes(3 << 29)), ("12 B".into(), "1.5 GiB".into()));
    }

    #[test]
    fn numbers_out_of_range_are_rejected() {
        assert!(probability("0").is_ok() && probability("0.999").is_ok());
        assert!(["1", "-0.1", "NaN", "x", "inf"].iter().all(|p| probability(p).is_err()));
        assert!(above_zero("1e-3").is_ok());
        assert!(["0", "-1", "NaN", "inf", ""].iter().all(|number| above_zero(number).is_err()));
    }
}
