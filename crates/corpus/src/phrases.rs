//! All sentences, by family and effect.
//!
//! Slots: `{0}` to `{3}` are the effect's numbers, `{times0}` and `{part0}` a number as a word;
//! `{hero}` is the main character's name, `{he}` and `{him}` a pronoun if it is unambiguous, and
//! `{his}` follows one of them; `{items}` are the counted items, `{new}` is a bought item,
//! `{others}` a distractor; other slots are in `lexicon`. Sentences start in lower case.
//!
//! A sentence must be unambiguous: it states whether an amount is more of the running quantity or
//! of something else.

use super::effect::Effect;

pub(super) mod bill;
pub(super) mod ood;
pub(super) mod own;
pub(super) mod people;
pub(super) mod purse;
pub(super) mod simple;
pub(super) mod stock;

/// Condition for using a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplateCondition {
    Always,
    /// The items are food.
    Food,
    /// The previous sentence removed items.
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

/// Words that may start the sentence of an event.
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
