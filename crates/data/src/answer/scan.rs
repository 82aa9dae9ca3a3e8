//! Hand-written equivalents of the regular expressions in the families' graders.
//!
//! Each function documents its expression and follows Python's `re`: leftmost match, greedy digits.
//! Matches start and end at ASCII digits or markers, so byte offsets are character boundaries.

use std::borrow::Cow;

use super::number::{float_without_base, is_space, parse_number, python_float};

/// The text after the last `mark`, if there is one.
pub(crate) fn after_last<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.rsplit_once(mark).map(|(_, tail)| tail)
}

/// COCONUT: `float(text.split("#")[-1].replace(",", "").strip())`.
///
/// A text without `#` has no answer: the reference grades prompt and completion together, so its
/// `float` fails on the prompt's words.
pub(crate) fn after_hash(text: &str) -> Option<f64> {
    parse_number(after_last(text, "#")?)
}

/// CoLaR: `float(text.strip("#").split("Answer:")[-1])`. Commas are not removed and make the parse
/// fail. As with [`after_hash`], a text without the marker has no answer.
pub(crate) fn after_answer_colon(text: &str) -> Option<f64> {
    float_without_base(after_last(text.trim_matches('#'), "Answer:")?)
}

/// CODI: the last of `re.findall(r"-?\d+\.?\d*", text.replace(",", ""))`.
///
/// Matches proceed from left to right, so the last of `10-2` is `-2` and of `1.2.3` is `3`.
pub(crate) fn last_number(text: &str) -> Option<f64> {
    let text = without_commas(text);
    let mut at = 0;
    let mut last = None;
    while let Some(offset) = text[at..].find(|c: char| c.is_ascii_digit()) {
        let start = at + offset;
        let number = leading_number(&text[start..]);
        let signed = start > at && text.as_bytes()[start - 1] == b'-';
        last = Some(&text[start - usize::from(signed)..start + number.len()]);
        at = start + number.len();
    }
    python_float(last?)
}

fn without_commas(text: &str) -> Cow<'_, str> {
    if text.contains(',') { text.replace(',', "").into() } else { text.into() }
}

/// `\d+\.?\d*` at the start of `text`; empty if it does not start with a digit.
fn leading_number(text: &str) -> &str {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(text);
    if whole == 0 || !text[whole..].starts_with('.') {
        return &text[..whole];
    }
    &text[..whole + 1 + digits(&text[whole + 1..])]
}

/// Render-of-Thought: the first of six patterns that matches anywhere, `re.IGNORECASE`.
///
/// The models write `### 18`, one `#` short of the first pattern, so usually the last pattern
/// matches. No pattern includes a sign (`-5` is read as 5) or a comma (`1,234` is read as 234).
pub(crate) fn cascade(text: &str) -> Option<f64> {
    let lower = text.to_ascii_lowercase();
    let number = marked_number(&lower, "####", Some) // ####\s*num
        .or_else(|| marked_number(&lower, "答案是", after_colon)) // 答案是[：:]\s*num
        .or_else(|| therefore(&lower)) // Therefore,?\s+.*?num
        .or_else(|| marked_number(&lower, "answer", after_colon)) // Answer[：:]\s*num
        .or_else(|| dollars(&lower)) // \$num
        .or_else(|| trailing_number(&lower)); // num\s*$
    python_float(number?)
}

/// The number after the first `mark` that is followed by a separator, white space and a digit.
/// `separator` strips the separator or rejects the position. Markers may overlap, as in `##### 5`.
fn marked_number<'a>(
    text: &'a str,
    mark: &str,
    separator: impl Fn(&'a str) -> Option<&'a str>,
) -> Option<&'a str> {
    positions(text, mark).find_map(|at| {
        let tail = separator(&text[at + mark.len()..])?;
        some_number(leading_number(tail.trim_start_matches(is_space)))
    })
}

/// All byte offsets of `mark`, including overlapping matches.
fn positions<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.char_indices().map(|(at, _)| at).filter(move |&at| text[at..].starts_with(mark))
}

fn some_number(number: &str) -> Option<&str> {
    (!number.is_empty()).then_some(number)
}

fn after_colon(text: &str) -> Option<&str> {
    text.strip_prefix([':', '：'])
}

/// The first number on the line that follows `therefore` and white space.
fn therefore(text: &str) -> Option<&str> {
    positions(text, "therefore").find_map(|at| {
        let tail = &text[at + "therefore".len()..];
        let tail = tail.strip_prefix(',').unwrap_or(tail);
        let rest = tail.trim_start_matches(is_space);
        let line = rest.split('\n').next().filter(|_| rest.len() < tail.len())?;
        let digit = line.find(|c: char| c.is_ascii_digit())?;
        Some(leading_number(&line[digit..]))
    })
}

fn dollars(text: &str) -> Option<&str> {
    text.match_indices('$').find_map(|(at, _)| some_number(leading_number(&text[at + 1..])))
}

/// The longest `\d+\.?\d*` at the end of the text, ignoring trailing white space.
fn trailing_number(text: &str) -> Option<&str> {
    let text = text.trim_end_matches(is_space);
    let digit = |c: char| c.is_ascii_digit();
    let before_fraction = text.trim_end_matches(digit);
    let decimal = before_fraction.strip_suffix('.').map(|head| head.trim_end_matches(digit).len());
    let has_whole = |&start: &usize| text.as_bytes()[start].is_ascii_digit();
    let start = decimal.filter(has_whole).unwrap_or(before_fraction.len());
    some_number(&text[start..])
}
