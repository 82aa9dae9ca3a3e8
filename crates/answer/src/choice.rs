//! The letter of a multiple-choice answer.
//!
//! Letters are upper case, A to J. A stated answer (`boxed{B}`, `the answer is (B)`) has precedence
//! over a marked option (`(B)`, `B)`), and that over a single letter; of several of one kind the
//! last counts.

use super::latex::boxed;

/// The letter that `text` gives as its answer.
pub(crate) fn letter(text: &str) -> Option<char> {
    let in_box = boxed(text).and_then(|inside| alone(inside).map(|(_, letter)| letter).last());
    let marked = || alone(text).filter(|(at, _)| text[at + 1..].starts_with(')')).last();
    // "I" is more often the pronoun than the ninth option.
    let bare = || alone(text).filter(|(_, letter)| *letter != 'I').last();
    in_box.or_else(|| stated(text)).or_else(|| marked().or_else(bare).map(|(_, letter)| letter))
}

/// The letter after the last `answer`, with at most `is`, punctuation and markup in between.
fn stated(text: &str) -> Option<char> {
    let lower = text.to_ascii_lowercase();
    let cue = "answer";
    lower.rmatch_indices(cue).find_map(|(at, _)| {
        let tail = text[at + cue.len()..].trim_start();
        let tail = tail.strip_prefix("is").unwrap_or(tail);
        let tail = tail.trim_start_matches(|c: char| c.is_whitespace() || ":*($[{\"'".contains(c));
        let tail = tail.strip_prefix("\\text{").unwrap_or(tail);
        let mut chars = tail.chars();
        let letter = chars.next().filter(|c| ('A'..='J').contains(c))?;
        let ends = !chars.next().is_some_and(|c| c.is_ascii_alphanumeric());
        ends.then_some(letter)
    })
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
