//! The numbers of a story: ranges, conditions, and sampling of values that satisfy them.

use super::super::rational::Rational;
use super::super::stream::VariantRng;
use super::formula::{StoryFormula, number_index};

/// Maximum number of numbers, `a` to `h`.
pub(super) const MAX_NUMBERS: usize = 8;

/// Maximum number of attempts at a variant.
const MAX_DRAWS: usize = 2000;

/// Upper bound of results.
const MAX_RESULT: i128 = 100_000;

/// The range of a number.
#[derive(Debug, Clone, Default)]
enum StoryRange {
    /// Mostly up to 20, often up to 100, rarely up to 900.
    #[default]
    Any,
    Steps {
        first: Rational,
        step: Rational,
        count: u32,
    },
    OneOf(Vec<Rational>),
}

impl StoryRange {
    /// Parses `2-12`, `5-50/5`, `0.25-9.75/0.25` or `10|20|50`.
    fn parse(text: &str) -> Option<Self> {
        if text.contains('|') {
            let values = text.split('|').map(Rational::parse).collect::<Option<Vec<_>>>()?;
            return Some(Self::OneOf(values));
        }
        let (bounds, step) = text.split_once('/').unwrap_or((text, "1"));
        let (first, last) = bounds.split_once('-')?;
        let first = Rational::parse(first)?;
        let last = Rational::parse(last)?;
        let step = Rational::parse(step).filter(|step| step.is_positive())?;
        let steps = last.sub(first)?.div(step)?;
        let count = u32::try_from(steps.numerator() / steps.denominator()).ok()?.checked_add(1)?;
        Some(Self::Steps { first, step, count })
    }

    fn has_decimals(&self) -> bool {
        match self {
            Self::Any => false,
            Self::Steps { first, step, .. } => !first.is_whole() || !step.is_whole(),
            Self::OneOf(values) => values.iter().any(|value| !value.is_whole()),
        }
    }

    fn draw(&self, rng: &mut VariantRng) -> Option<Rational> {
        match self {
            Self::Any => {
                let (low, high) = match rng.below(10) {
                    0..5 => (2, 20),
                    5..9 => (10, 100),
                    _ => (50, 900),
                };
                Some(Rational::whole(i128::from(low + rng.below(high - low + 1))))
            }
            Self::Steps { first, step, count } => {
                first.add(step.mul(Rational::whole(i128::from(rng.below(*count))))?)
            }
            Self::OneOf(values) => values.get(rng.below(values.len() as u32) as usize).copied(),
        }
    }
}

/// A comparison between two formulas.
#[derive(Debug, Clone)]
struct Condition {
    left: StoryFormula,
    /// If given, `left % modulus` is compared.
    modulus: Option<StoryFormula>,
    accepted: Comparison,
    right: StoryFormula,
}

#[derive(Debug, Clone, Copy)]
enum Comparison {
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
    Different,
}

/// Operators with two characters come first, so that `<=` is not read as `<`.
const COMPARISONS: [(&str, Comparison); 7] = [
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("!=", Comparison::Different),
    ("==", Comparison::Equal),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
    ("=", Comparison::Equal),
];

impl Condition {
    fn parse(text: &str, steps: usize) -> Result<Self, String> {
        let split = |(sign, comparison): &(&str, Comparison)| {
            text.split_once(sign).map(|sides| (sides, *comparison))
        };
        let ((left, right), accepted) = COMPARISONS.iter().find_map(split).ok_or_else(|| {
            format!("`{text}` is neither a range (a 2-12) nor a comparison (b<a)")
        })?;
        let (left, modulus) = match left.split_once('%') {
            Some((left, modulus)) => (left, Some(StoryFormula::parse(modulus, steps)?)),
            None => (left, None),
        };
        let left = StoryFormula::parse(left, steps)?;
        let right = StoryFormula::parse(right, steps)?;
        Ok(Self { left, modulus, accepted, right })
    }

    fn holds(&self, numbers: &[Rational], results: &[Rational]) -> Option<bool> {
        let mut left = self.left.evaluate(numbers, results)?;
        if let Some(modulus) = &self.modulus {
            let modulus = modulus.evaluate(numbers, results)?.as_whole().filter(|m| *m > 0)?;
            left = Rational::whole(left.as_whole()?.rem_euclid(modulus));
        }
        let right = self.right.evaluate(numbers, results)?;
        Some(match self.accepted {
            Comparison::Less => left < right,
            Comparison::AtMost => left <= right,
            Comparison::Greater => left > right,
            Comparison::AtLeast => left >= right,
            Comparison::Equal => left == right,
            Comparison::Different => left != right,
        })
    }
}

/// The numbers of a template.
#[derive(Debug, Clone)]
pub(super) struct StoryNumbers {
    ranges: Vec<StoryRange>,
    conditions: Vec<Condition>,
    steps: Vec<StoryFormula>,
    /// Whether results may have two decimals, which is the case if a range has decimals.
    decimals: bool,
}

/// Sampled numbers with the results of the steps.
#[derive(Debug, Clone)]
pub(super) struct StoryValues {
    pub(super) numbers: Vec<Rational>,
    pub(super) results: Vec<Rational>,
}

impl StoryNumbers {
    /// Parses the line of steps and the line of conditions, without `=` and `?` at the start.
    pub(super) fn parse(steps: &str, conditions: &str) -> Result<Self, String> {
        let mut formulas = Vec::new();
        for step in steps.split(';') {
            formulas.push(StoryFormula::parse(step, formulas.len())?);
        }
        let mut ranges = vec![StoryRange::Any; MAX_NUMBERS];
        let mut comparisons = Vec::new();
        for condition in conditions.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let range = condition.split_once(' ').filter(|(name, _)| {
                name.len() == 1 && name.starts_with(|c: char| matches!(c, 'a'..='h'))
            });
            match range.map(|(name, range)| (name, StoryRange::parse(range.trim()))) {
                Some((name, Some(range))) => {
                    name.chars().for_each(|letter| ranges[number_index(letter)] = range.clone());
                }
                _ => comparisons.push(Condition::parse(condition, formulas.len())?),
            }
        }
        let decimals = ranges.iter().any(StoryRange::has_decimals);
        Ok(Self { ranges, conditions: comparisons, steps: formulas, decimals })
    }

    /// The numbers that the steps use.
    pub(super) fn used(&self) -> impl Iterator<Item = usize> {
        self.steps.iter().flat_map(StoryFormula::numbers)
    }

    /// Samples values that satisfy the conditions; `None` after [`MAX_DRAWS`] attempts.
    pub(super) fn draw(&self, rng: &mut VariantRng) -> Option<StoryValues> {
        (0..MAX_DRAWS).find_map(|_| self.attempt(rng))
    }

    fn attempt(&self, rng: &mut VariantRng) -> Option<StoryValues> {
        let draw = |range: &StoryRange| range.draw(rng);
        let numbers = self.ranges.iter().map(draw).collect::<Option<Vec<_>>>()?;
        let mut results = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let result = step.evaluate(&numbers, &results)?;
            let exact = result.decimals()? <= if self.decimals { 2 } else { 0 };
            if !exact || !result.is_positive() || result >= Rational::whole(MAX_RESULT) {
                return None;
            }
            results.push(result);
        }
        let fits = self.conditions.iter().all(|c| c.holds(&numbers, &results) == Some(true));
        fits.then_some(StoryValues { numbers, results })
    }

    /// The steps in brackets.
    pub(super) fn write_steps(&self, values: &StoryValues) -> Option<Vec<String>> {
        self.steps.iter().map(|step| step.write(&values.numbers, &values.results)).collect()
    }
}
