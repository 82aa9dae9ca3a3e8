//! A yes or no: the words yes and no, true and false.
//!
//! A stated answer (`boxed{yes}`, after the family's marker, `the answer is no`) has precedence
//! over a word elsewhere; of several of one kind the last counts.

use super::latex::boxed;

/// The truth of a text that is one word, perhaps with a final period.
pub(crate) fn truth_word(text: &str) -> Option<bool> {
    match text.trim().trim_end_matches(['.', '!']).to_ascii_lowercase().as_str() {
        "yes" | "true" => Some(true),
        "no" | "false" => Some(false),
        _ => None,
    }
}

/// The yes or no that `text` gives as its answer; `marked` is what follows the family's marker.
pub(crate) fn truth(text: &str, marked: Option<&str>) -> Option<bool> {
    let in_box = boxed(text).and_then(|inside| words(inside).next());
    let after_marker = || marked.and_then(|marked| words(marked).next());
    in_box.or_else(after_marker).or_else(|| stated(text)).or_else(|| words(text).last())
}

/// The first of the words after the last `answer` that is followed by one.
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

/// The words of a text that say yes or no.
fn words(text: &str) -> impl DoubleEndedIterator<Item = bool> + '_ {
    text.split(|c: char| !c.is_alphanumeric() && c != '\'').filter_map(truth_word)
}
