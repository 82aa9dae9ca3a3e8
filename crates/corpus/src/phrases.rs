//! All sentences, by family and effect.
//!
//! Slots: `{0}` to `{3}` are the effect's numbers, `{times0}` and `{part0}` a number as a word;
//! `{hero}` is the main character's name, `{he}` and `{him}` a pronoun where it is unambiguous,
//! `{his}` follows one of them; `{items}` is what the story counts, `{new}` an item that is bought,
//! `{others}` a distractor; the rest is in `lexicon`. Sentences begin in lower case.
//!
//! A sentence must be unambiguous: an amount is stated to be more of the running quantity, or of
//! something else.

use super::effect::Effect;

pub(super) mod bill;
pub(super) mod ood;
pub(super) mod own;
pub(super) mod people;
pub(super) mod purse;
pub(super) mod simple;
pub(super) mod stock;

/// When a template can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplateCondition {
    Always,
    /// The items are food.
    Food,
    /// The sentence before took items away.
    Loss,
}

/// Phrasings of one effect.
#[derive(Debug)]
pub(super) struct SentenceTemplate {
    pub effect: Effect,
    pub condition: TemplateCondition,
    pub phrases: &'static [&'static str],
}

const fn template(effect: Effect, phrases: &'static [&'static str]) -> SentenceTemplate {
    SentenceTemplate { effect, condition: TemplateCondition::Always, phrases }
}

const fn food_template(effect: Effect, phrases: &'static [&'static str]) -> SentenceTemplate {
    SentenceTemplate { effect, condition: TemplateCondition::Food, phrases }
}

const fn after_loss(effect: Effect, phrases: &'static [&'static str]) -> SentenceTemplate {
    SentenceTemplate { effect, condition: TemplateCondition::Loss, phrases }
}

/// Words that may open the sentence of an event.
pub(super) static LEAD_INS: &[&str] = &["then", "later", "after that,", "the next day"];

/// A sentence that is irrelevant to the question.
#[derive(Debug)]
pub(super) enum Distractor {
    /// States a count of other items.
    Amount(&'static str),
    /// States an age or a duration.
    Time(&'static str),
}

impl Distractor {
    pub(super) fn phrase(&self) -> &'static str {
        match self {
            Distractor::Amount(phrase) | Distractor::Time(phrase) => phrase,
        }
    }
}
