//! Writes new numbers into a question.

use super::derivation::Assignment;
use super::mention::{NumberMention, NumberStyle};
use super::number_words::spelled;
use super::rational::Rational;

/// The question with the variables of all mentions replaced; `None` if a number has no valid form.
pub(super) fn question(
    question: &str,
    mentions: &[NumberMention],
    variables: &[Option<usize>],
    assignment: &Assignment,
) -> Option<String> {
    let mut text = String::with_capacity(question.len() + 16);
    let mut copied = 0;
    for (mention, variable) in mentions.iter().zip(variables) {
        let Some(value) = variable.and_then(|index| assignment.variables.get(index)) else {
            continue;
        };
        if *value == mention.value {
            continue;
        }
        let number = write(*value, mention.style)?;
        text.push_str(&question[copied..mention.range.start]);
        fix_article(&mut text, &number);
        text.push_str(&number);
        copied = mention.range.end;
    }
    text.push_str(&question[copied..]);
    Some(text)
}

fn write(value: Rational, style: NumberStyle) -> Option<String> {
    match style {
        NumberStyle::Words { capital } => {
            let words = spelled(value.as_whole()?)?;
            Some(if capital { capitalised(&words) } else { words })
        }
        NumberStyle::Digits { commas, decimals } => {
            let digits = match decimals {
                0 | 1 => value.to_decimal()?,
                _ => value.to_decimal_with(decimals)?,
            };
            Some(if commas { with_commas(&digits) } else { digits })
        }
    }
}

pub(super) fn capitalised(words: &str) -> String {
    let mut chars = words.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// Inserts commas between groups of three digits before the point.
fn with_commas(digits: &str) -> String {
    let (whole, decimals) = digits.split_once('.').map_or((digits, None), |(w, d)| (w, Some(d)));
    let mut text = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    decimals.map_or(text.clone(), |decimals| format!("{text}.{decimals}"))
}

/// Makes `a` or `an` at the end of the text agree with the number that follows.
pub(super) fn fix_article(text: &mut String, number: &str) {
    let body = text.trim_end_matches([' ', '-']);
    let gap = text[body.len()..].to_owned();
    let word = body.rsplit(|c: char| !c.is_alphabetic()).next().unwrap_or("");
    if gap.is_empty() || !matches!(word, "a" | "an" | "A" | "An") {
        return;
    }
    let article = match (&word[..1], starts_with_vowel(number)) {
        ("a", true) => "an",
        ("a", false) => "a",
        (_, true) => "An",
        (_, false) => "A",
    };
    let kept = body.len() - word.len();
    text.truncate(kept);
    text.push_str(article);
    text.push_str(&gap);
}

/// Whether the spoken number starts with a vowel: eight, eighty, eleven, eighteen.
fn starts_with_vowel(number: &str) -> bool {
    let whole = number.split(['.', ',']).next().unwrap_or(number);
    let groups_of_three = number.split('.').next().unwrap_or(number).replace(',', "").len() % 3;
    match whole.chars().next() {
        Some('8') => true,
        Some('1') => (whole.starts_with("11") || whole.starts_with("18")) && groups_of_three == 2,
        Some(first) => {
            matches!(first.to_ascii_lowercase(), 'a' | 'e' | 'i' | 'o' | 'u') && {
                !whole.to_ascii_lowercase().starts_with("one")
            }
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn articles_agree_with_the_number() {
        for (before, number, after) in [
            ("It is an ", "7", "It is a "),
            ("It is a ", "8", "It is an "),
            ("A ", "eleven", "An "),
            ("a ", "18", "an "),
            ("a ", "180", "a "),
            ("a ", "11,000", "an "),
            ("a ", "1.5", "a "),
            ("has ", "8", "has "),
            ("Canada ", "8", "Canada "),
        ] {
            let mut text = before.to_owned();
            fix_article(&mut text, number);
            assert_eq!(text, after, "{before}{number}");
        }
    }

    #[test]
    fn numbers_keep_their_style() {
        let digits = |commas, decimals| NumberStyle::Digits { commas, decimals };
        for (value, style, text) in [
            ("1234567", digits(true, 0), "1,234,567"),
            ("3.5", digits(false, 2), "3.50"),
            ("950", digits(true, 0), "950"),
            ("21", NumberStyle::Words { capital: true }, "Twenty-one"),
        ] {
            assert_eq!(write(Rational::parse(value).unwrap(), style).unwrap(), text);
        }
        let words = NumberStyle::Words { capital: false };
        assert_eq!(write(Rational::whole(100), words), None);
    }
}
