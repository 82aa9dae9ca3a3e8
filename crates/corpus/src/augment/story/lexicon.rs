//! The things of stories by class, read from `lexicon.txt`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A noun with its plural.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Noun {
    pub(super) singular: &'static str,
    pub(super) plural: &'static str,
}

static CLASSES: LazyLock<BTreeMap<&'static str, Vec<Noun>>> = LazyLock::new(|| {
    let classes = include_str!("lexicon.txt").lines().filter_map(|line| line.split_once(": "));
    classes.map(|(class, nouns)| (class, nouns.split(", ").filter_map(noun).collect())).collect()
});

/// Parses `apple/apples`, or a single word, which has no plural.
fn noun(text: &'static str) -> Option<Noun> {
    let text = text.trim();
    let (singular, plural) = text.split_once('/').unwrap_or((text, text));
    (!text.is_empty()).then_some(Noun { singular, plural })
}

/// Looks up a class by name.
pub(super) fn class(name: &str) -> Option<&'static str> {
    CLASSES.get_key_value(name).map(|(class, _)| *class)
}

/// The things of a class.
pub(super) fn nouns(class: &str) -> Option<&'static [Noun]> {
    CLASSES.get(class).map(Vec::as_slice)
}
