//! Yes-or-no answers: the words yes and no, true and false.
//!
//! A stated answer (`boxed{yes}`, after the family's marker, `the answer is no`) takes precedence
//! over a word elsewhere; among several of the same kind the last one counts.

use super::latex::boxed;

/// The truth value of a text that is a single word, with an optional final period.
pub(crate) fn truth_word(text: &str) -> Option<bool> {
    match text.trim().trim_end_matches(['.', '!']).to_ascii_lowercase().as_str() {
        "yes" | "true" => Some(true),
        "no" | "false" => Some(false),
        _ => None,
    }
}

/// The yes or no that `text` gives as its answer; `marked` is the text after the family's marker.
pub(crate) fn truth(text: &str, marked: Option<&str>) -> Option<bool> {
    let in_box = boxed(text).and_then(|inside| words(inside).next());
    in_box
        .or_else(|| marked.and_then(|marked| words(marked).next()))
        .or_else(|| stated(text))
        .or_else(|| words(text).last())
}

/// The first yes or no after the last `answer` that is followed by one.
fn stated(text: &str) -> Option<bool> {
    let lower = text.to_ascii_lowercase();
    let cue = "answer";
    lower.rmatch_indices(cue).find_map(|(at, _)| {
        let tail = text[at + cue.len()..].trim_start();
        let tail = tail.strip_prefix("is").unwrap_or(tail);
        let tail = tail.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        tail.split(|c: char| !c.is_ascii_alphabetic()).next().and_then(truth_word)
    })
}

/// The truth values of the words of a text that mean yes or no.
fn words(text: &str) -> impl DoubleEndedIterator<Item = bool> + '_ {
    text.split(|c: char| !c.is_alphanumeric() && c != '\'').filter_map(truth_word)
}
