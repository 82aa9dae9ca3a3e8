//! Parsing and formatting of numbers in words: `three`, `Twenty-five`.

const UNITS: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] =
    ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

/// The value of a word for a number below 100, such as `seven` or `forty`, in lower case.
pub(super) fn word_value(word: &str) -> Option<i128> {
    let units = UNITS.iter().position(|unit| *unit == word);
    let tens = || TENS.iter().position(|tens| *tens == word && !word.is_empty());
    units.or_else(|| tens().map(|tens| 10 * tens)).map(|value| value as i128)
}

/// The number after `forty-`: 1 to 9.
pub(super) fn unit_after_tens(tens: i128, word: &str) -> Option<i128> {
    let unit = word_value(word).filter(|unit| (1..10).contains(unit))?;
    (tens >= 20 && tens % 10 == 0).then_some(unit)
}

/// The value of `hundred`, `thousand`, `million` or `billion`.
pub(super) fn magnitude(word: &str) -> Option<i128> {
    Some(match word.strip_suffix('s').unwrap_or(word) {
        "hundred" => 100,
        "thousand" => 1000,
        "million" => 1_000_000,
        "billion" => 1_000_000_000,
        _ => return None,
    })
}

/// The denominator of a fraction in words, such as `thirds`.
pub(super) fn denominator(word: &str) -> Option<i128> {
    const ORDINALS: [&str; 8] =
        ["third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];
    match word {
        "half" | "halves" => Some(2),
        "quarter" | "quarters" => Some(4),
        _ => {
            let singular = word.strip_suffix('s').unwrap_or(word);
            ORDINALS.iter().position(|ordinal| *ordinal == singular).map(|at| at as i128 + 3)
        }
    }
}

/// The value of an ordinal such as `fourth`.
pub(super) fn ordinal(word: &str) -> Option<i128> {
    match word {
        "second" => Some(2),
        "eleventh" => Some(11),
        "twelfth" => Some(12),
        "half" | "halves" | "quarter" | "quarters" => None,
        _ if word.ends_with('s') => None,
        _ => denominator(word),
    }
}

/// The words for a number from 0 to 99.
pub(super) fn spelled(value: i128) -> Option<String> {
    let value = usize::try_from(value).ok().filter(|value| *value < 100)?;
    Some(match (value / 10, value % 10) {
        _ if value < 20 => UNITS[value].to_owned(),
        (tens, 0) => TENS[tens].to_owned(),
        (tens, unit) => format!("{}-{}", TENS[tens], UNITS[unit]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_agree() {
        for value in 0..100 {
            let words = spelled(value).unwrap();
            let parsed = match words.split_once('-') {
                Some((tens, unit)) => {
                    let tens = word_value(tens).unwrap();
                    tens + unit_after_tens(tens, unit).unwrap()
                }
                None => word_value(&words).unwrap(),
            };
            assert_eq!(parsed, value);
        }
        assert_eq!((spelled(100), spelled(-1), word_value("")), (None, None, None));
        assert_eq!((denominator("quarters"), denominator("tenth")), (Some(4), Some(10)));
    }
}
