//! Multiple-choice answers: extraction of the letter.
//!
//! Letters are upper case, A to J. A stated answer (`boxed{B}`, `the answer is (B)`) takes
//! precedence over a marked option (`(B)`, `B)`), and that over a single letter; among several of
//! the same kind the last one counts. In a box, which may repeat the text of the option
//! (`boxed{(B) 3.2 J}`), a marked option or a letter at the start takes precedence.

use super::latex::boxed;

/// The letter that `text` gives as its answer.
pub(crate) fn letter(text: &str) -> Option<char> {
    let in_box = boxed(text).and_then(boxed_letter);
    let marked = || marked(text).last();
    // "I" is more likely the pronoun than the ninth option.
    let bare = || bare(text).filter(|letter| *letter != 'I').last();
    in_box.or_else(|| stated(text)).or_else(marked).or_else(bare)
}

/// The letter in the content of a box.
fn boxed_letter(inside: &str) -> Option<char> {
    let is_markup = |c: char| c.is_whitespace() || "*($[{\"'".contains(c);
    let start = inside.trim_start_matches(is_markup);
    let start = ["\\text{", "\\textbf{", "\\mathrm{", "\\mathbf{"]
        .into_iter()
        .find_map(|command| start.strip_prefix(command))
        .unwrap_or(start);
    let leading = || leading_option(start.trim_start_matches(is_markup));
    marked(inside).next().or_else(leading).or_else(|| bare(inside).last())
}

/// The letter after the last `answer`, with at most `is`, punctuation and markup in between.
fn stated(text: &str) -> Option<char> {
    let lower = text.to_ascii_lowercase();
    let cue = "answer";
    lower.rmatch_indices(cue).find_map(|(at, _)| {
        let tail = text[at + cue.len()..].trim_start();
        let tail = tail.strip_prefix("is").unwrap_or(tail);
        let tail = tail.trim_start_matches(|c: char| c.is_whitespace() || ":*($[{\"'".contains(c));
        leading_option(tail.strip_prefix("\\text{").unwrap_or(tail))
    })
}

/// The option letter at the start of `text`, if it is neither part of a longer word nor the
/// pronoun "I".
fn leading_option(text: &str) -> Option<char> {
    let letter = text.chars().next().filter(|c| ('A'..='J').contains(c))?;
    let tail = &text[1..];
    let is_word = tail.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_pronoun = letter == 'I' && is_pronoun_tail(tail);
    (!is_word && !is_pronoun).then_some(letter)
}

/// Whether an "I" before `tail` is the pronoun: `'m sure`, ` think`, but not ` because`.
fn is_pronoun_tail(tail: &str) -> bool {
    let word = tail.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next();
    let word = word.unwrap_or_default();
    let is_verb = word.starts_with(|c: char| c.is_ascii_lowercase())
        && !["and", "as", "because", "for", "is", "or", "since"].contains(&word);
    tail.starts_with(['\'', '\u{2019}']) && tail.chars().nth(1).is_some_and(char::is_alphabetic)
        || tail.starts_with(char::is_whitespace) && is_verb
}

/// The letters of options written `(B)` or `B)`.
fn marked(text: &str) -> impl Iterator<Item = char> + '_ {
    alone(text).filter(|(at, _)| text[at + 1..].starts_with(')')).map(|(_, letter)| letter)
}

/// The single letters that are not the unit of a number, as in `3.2 J` and `20 °C`.
fn bare(text: &str) -> impl Iterator<Item = char> + '_ {
    let is_unit = |(at, letter): (usize, char)| {
        let before = text[..at].trim_end_matches(|c: char| c.is_whitespace() || c == '~');
        let before = before.strip_suffix("\\text{").unwrap_or(before).trim_end();
        let degrees = before.ends_with('\u{b0}') || before.ends_with("\\circ");
        "ACFJ".contains(letter) && (degrees || before.ends_with(|c: char| c.is_ascii_digit()))
    };
    alone(text).filter(move |found| !is_unit(*found)).map(|(_, letter)| letter)
}

/// The option letters of `text` that are not part of a longer word, with their byte offsets.
fn alone(text: &str) -> impl Iterator<Item = (usize, char)> + '_ {
    let bytes = text.as_bytes();
    let is_boundary = move |at: Option<usize>| {
        !at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_alphanumeric)
    };
    bytes.iter().enumerate().filter_map(move |(at, byte)| {
        let option = (b'A'..=b'J').contains(byte);
        let alone = option && is_boundary(at.checked_sub(1)) && is_boundary(Some(at + 1));
        alone.then_some((at, char::from(*byte)))
    })
}
