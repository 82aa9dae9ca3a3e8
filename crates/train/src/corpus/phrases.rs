//! All sentences, by family and effect.
//!
//! Slots: `{0}` to `{3}` are the effect's numbers, `{times0}` and `{part0}` a number as a word;
//! `{hero}` is the main character's name, `{he}` and `{him}` a pronoun where it is unambiguous,
//! `{his}` follows one of them; `{items}` is what the story counts, `{new}` an item that is bought,
//! `{others}` a distractor; the rest is in `lexicon`. Sentences begin in lower case.
//!
//! A sentence must be unambiguous: an amount is stated to be more of the running quantity, or of
//! something else.

use super::effect::Effect::{self, *};

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

/// A person with items.
pub(super) mod own {
    use super::*;

    pub(crate) static DISTRACTORS: &[Distractor] = &[
        Distractor::Amount("{hero} also has {0} {others}."),
        Distractor::Amount("{friend} has {0} {others}."),
        Distractor::Amount("{his} {kin} has {0} {others}."),
        Distractor::Time("{his} {kin} is {0} years old."),
        Distractor::Time("it takes {0} minutes to walk to the {place}."),
    ];

    pub(crate) static OPENINGS: &[SentenceTemplate] = &[
        template(
            Start,
            &[
                "{hero} has {0} {items}.",
                "{hero} keeps {0} {items} in a {box}.",
                "{hero} collects {0} {items} at the {place}.",
                "{hero} brings {0} {items} home from the {place}.",
                "{hero} starts the week with {0} {items}.",
                "at the {place}, {hero} gets {0} {items}.",
            ],
        ),
        template(
            Product,
            &[
                "{hero} has {0} {boxes} of {items}. there are {1} {items} in each {box}.",
                "{hero} buys {0} {boxes} of {1} {items} each.",
                "for {0} days, {hero} gets {1} {items} every day.",
                "{hero} gets {1} {items} from each of {0} friends.",
            ],
        ),
        template(
            Sum,
            &[
                "{hero} has {0} {red} {items} and {1} {blue} {items}.",
                "{hero} has {0} {items} at home and {1} {items} at school.",
                "{hero} gets {0} {items} from {his} {kin} and {1} {items} from a friend.",
            ],
        ),
    ];

    pub(crate) static EVENTS: &[SentenceTemplate] = &[
        template(
            Add,
            &[
                "{he} buys {0} more {items}.",
                "{he} collects {0} more {items} at the {place}.",
                "{he} gets {0} more {items} from {his} {kin}.",
                "a friend gives {him} {0} {items}.",
                "{he} brings {0} more {items} home.",
            ],
        ),
        template(
            Take,
            &[
                "{he} gives {0} {items} to {his} {kin}.",
                "{he} loses {0} {items} at the {place}.",
                "{he} sells {0} {items}.",
                "{he} throws {0} old {items} away.",
                "{he} gives {0} of the {items} to {friend}.",
            ],
        ),
        food_template(Take, &["{he} and {his} friends eat {0} {items}."]),
        template(
            AddEach,
            &[
                "{he} gets {0} {items} a day for {1} days.",
                "{he} buys {1} {boxes} of {0} {items} each.",
                "{1} friends give {him} {0} {items} each.",
                "every day for {1} days, {he} collects {0} more {items}.",
            ],
        ),
        template(
            TakeEach,
            &[
                "{he} gives {0} {items} to each of {1} friends.",
                "{he} sells {0} {items} a day for {1} days.",
                "{he} puts {0} {items} into each of {1} {cases} and sells the {cases}.",
                "{he} gives away {1} {cases} with {0} of the {items} in each {case}.",
            ],
        ),
        food_template(TakeEach, &["{he} and {his} friends eat {0} {items} a day for {1} days."]),
        template(
            Keep,
            &[
                "{he} keeps only {part0} of the {items} and gives the rest to {his} {kin}.",
                "{he} sells all but {part0} of the {items}.",
            ],
        ),
        template(
            TakePart,
            &[
                "{he} gives {part0} of the {items} to {his} {kin}.",
                "{he} loses {part0} of the {items}.",
                "{he} sells {part0} of the {items}.",
            ],
        ),
        template(Times, &["{he} gets more {items} until {same} has {times0} as many as before."]),
    ];

    pub(crate) static CLOSINGS: &[SentenceTemplate] = &[
        template(
            Ask,
            &[
                "how many {items} does {hero} have now?",
                "how many {items} does {hero} have in the end?",
            ],
        ),
        after_loss(Ask, &["how many {items} does {hero} have left?", "how many {items} are left?"]),
        template(
            Divide,
            &[
                "if {hero} shares all of {his} {items} equally among {0} friends, how many {items} does each friend get?",
                "if {hero} puts {0} {items} into each {case}, how many {cases} does {same} need for all of {his} {items}?",
                "{he} packs all of {his} {items} into {0} {cases}, with the same number in each. how many {items} are in each {case}?",
                "if {hero} uses {0} {items} a day, how many days will {his} {items} last?",
            ],
        ),
        template(
            Price,
            &[
                "if {hero} sells all of {his} {items} for {0} dollars each, how many dollars does {same} get?",
                "each {item} is worth {0} dollars. how many dollars are all of {his} {items} worth?",
            ],
        ),
        template(
            Missing,
            &[
                "{hero} needs {0} {items} in all. how many more {items} does {same} need?",
                "how many more {items} must {hero} get to have {0} {items}?",
            ],
        ),
        template(
            Times,
            &[
                "{friend} has {times0} as many {items} as {hero} has now. how many {items} does {friend} have?",
            ],
        ),
        template(
            Add,
            &[
                "{friend} has {0} more {items} than {hero} has now. how many {items} does {friend} have?",
            ],
        ),
        template(
            Take,
            &[
                "{friend} has {0} fewer {items} than {hero} has now. how many {items} does {friend} have?",
                "{friend} has {0} {items}. how many more {items} does {hero} have now than {friend}?",
            ],
        ),
        template(
            JoinTimes,
            &[
                "{friend} has {times0} as many {items} as {hero} has now. how many {items} do they have together?",
            ],
        ),
        template(
            JoinMore,
            &[
                "{friend} has {0} more {items} than {hero} has now. how many {items} do they have together?",
            ],
        ),
        template(
            PackAndSell,
            &[
                "{he} packs all of {his} {items} into {cases} of {0} and sells each {case} for {1} dollars. how many dollars does {hero} get?",
            ],
        ),
        template(
            SellAndSpend,
            &[
                "{he} sells all of {his} {items} for {0} dollars each and spends {1} dollars of this money. how many dollars are left?",
            ],
        ),
        template(
            MissingDivide,
            &[
                "{hero} wants to have {0} {items} and gets {1} more every day. how many days will it take?",
            ],
        ),
    ];
}

/// Items at a place that are made, delivered or sold.
pub(super) mod stock {
    use super::*;

    pub(crate) static DISTRACTORS: &[Distractor] = &[
        Distractor::Amount("there are also {0} {others}."),
        Distractor::Amount("{hero} has {0} {others}."),
        Distractor::Time("{hero} is {0} years old."),
        Distractor::Time("all of this takes {0} minutes."),
    ];

    pub(crate) static MACHINES: &[SentenceTemplate] = &[
        template(
            Product,
            &[
                "{0} machines make {1} {items} each.",
                "a machine makes {1} {items} an hour. it works for {0} hours.",
                "in a factory, {0} workers make {1} {items} each.",
            ],
        ),
        template(
            Product3,
            &[
                "a factory has {0} machines. each machine makes {1} {items} an hour. the machines work for {2} hours.",
                "{0} workers make {1} {items} each every day. they work for {2} days.",
            ],
        ),
        template(
            TwoProducts,
            &[
                "in a factory, {0} old machines make {1} {items} each and {2} new machines make {3} {items} each.",
                "a machine makes {1} {items} an hour for {0} hours. a new machine makes {3} {items} an hour for {2} hours.",
            ],
        ),
    ];

    pub(crate) static FARMS: &[SentenceTemplate] = &[
        template(
            Product,
            &[
                "a farmer has {0} rows of plants. each row has {1} {items}.",
                "a farmer picks {1} {items} an hour. she works for {0} hours.",
                "{0} workers pick {1} {items} each.",
            ],
        ),
        template(
            Product3,
            &[
                "{0} workers pick {1} {items} each every day. they work for {2} days.",
                "a farm has {2} fields with {0} rows of plants in each field. there are {1} {items} in each row.",
            ],
        ),
    ];

    pub(crate) static BAKERIES: &[SentenceTemplate] = &[
        template(
            Product,
            &[
                "a baker makes {1} {items} an hour. he works for {0} hours.",
                "a baker fills {0} plates with {1} {items} on each plate.",
            ],
        ),
        template(
            Product3,
            &["{0} bakers make {1} {items} each every day. they work for {2} days."],
        ),
        template(
            TwoProducts,
            &[
                "a baker makes {1} {items} an hour for {0} hours and {3} {items} an hour for {2} hours.",
            ],
        ),
    ];

    pub(crate) static GROUPS: &[SentenceTemplate] = &[
        template(
            Product,
            &[
                "there are {0} {boxes} at the {place}. each {box} holds {1} {items}.",
                "the {place} has {0} shelves with {1} {items} on each shelf.",
                "{0} classes collect {1} {items} each for the {place}.",
            ],
        ),
        template(
            Product3,
            &[
                "the {place} has {2} shelves with {0} {boxes} on each shelf. each {box} holds {1} {items}.",
                "{2} trucks bring {0} {boxes} each to the {place}. there are {1} {items} in each {box}.",
            ],
        ),
        template(
            TwoProducts,
            &[
                "the {place} has {0} big {boxes} with {1} {items} in each and {2} small {boxes} with {3} {items} in each.",
                "there are {0} {red} {boxes} and {2} {blue} {boxes} at the {place}. each {red} {box} holds {1} {items} and each {blue} {box} holds {3} {items}.",
            ],
        ),
        template(
            Sum,
            &[
                "there are {0} {red} {items} and {1} {blue} {items} at the {place}.",
                "a truck brings {0} {items} and another truck brings {1} {items} to the {place}.",
            ],
        ),
        template(Start, &["there are {0} {items} at the {place}.", "the {place} has {0} {items}."]),
    ];

    pub(crate) static EVENTS: &[SentenceTemplate] = &[
        template(
            Add,
            &[
                "a truck brings {0} more {items}.",
                "{0} more {items} are bought.",
                "people bring {0} more {items}.",
            ],
        ),
        template(
            Take,
            &[
                "{0} of the {items} are bad and are thrown away.",
                "{0} of the {items} are sold.",
                "{0} of the {items} are given away.",
                "people buy {0} of the {items}.",
            ],
        ),
        template(
            AddEach,
            &[
                "{1} trucks bring {0} more {items} each.",
                "every day for {1} days, {0} more {items} are bought.",
            ],
        ),
        template(
            TakeEach,
            &[
                "{1} people buy {0} {items} each.",
                "for {1} days, {0} of the {items} are sold every day.",
                "{1} classes get {0} {items} each.",
            ],
        ),
        template(Keep, &["all but {part0} of the {items} are sold."]),
        template(
            TakePart,
            &["{part0} of the {items} are sold.", "{part0} of the {items} are given away."],
        ),
    ];

    pub(crate) static CLOSINGS: &[SentenceTemplate] = &[
        template(
            Ask,
            &["how many {items} are there now?", "how many {items} are there in the end?"],
        ),
        after_loss(Ask, &["how many {items} are left?"]),
        template(
            Divide,
            &[
                "the {items} are now packed into {cases} of {0}. how many {cases} are needed?",
                "the {items} are now shared equally among {0} classes. how many {items} does each class get?",
                "the {items} are now put into {0} {cases}, with the same number in each. how many {items} are in each {case}?",
                "if people now buy {0} {items} a day, how many days will the {items} last?",
            ],
        ),
        template(
            Price,
            &[
                "if all of the {items} that are there now are sold for {0} dollars each, how many dollars is that in all?",
                "each {item} is worth {0} dollars. how many dollars are all of the {items} worth now?",
            ],
        ),
        template(Missing, &["{0} {items} are needed in all. how many more {items} are needed?"]),
        template(
            PackAndSell,
            &[
                "the {items} are now packed into {cases} of {0} and each {case} is sold for {1} dollars. how many dollars is that in all?",
            ],
        ),
        template(
            MissingDivide,
            &[
                "{0} {items} are needed in all, and {1} people bring the same number each. how many {items} must each of them bring?",
            ],
        ),
    ];
}

/// A person with money.
pub(super) mod purse {
    use super::*;

    pub(crate) static OPENINGS: &[SentenceTemplate] = &[
        template(
            Start,
            &[
                "{hero} has {0} dollars.",
                "{hero} goes to the {place} with {0} dollars.",
                "{hero} gets {0} dollars from {his} {kin}.",
            ],
        ),
        template(
            Product,
            &[
                "{hero} earns {1} dollars an hour and works for {0} hours.",
                "{hero} saves {1} dollars a week for {0} weeks.",
                "{hero} sells {0} {new} for {1} dollars each.",
            ],
        ),
        template(
            TwoProducts,
            &[
                "{hero} works {0} hours for {1} dollars an hour and {2} hours for {3} dollars an hour.",
            ],
        ),
    ];

    pub(crate) static EVENTS: &[SentenceTemplate] = &[
        template(
            Add,
            &[
                "{he} gets {0} more dollars from {his} {kin}.",
                "{he} finds {0} dollars.",
                "{he} sells a {gift} for {0} dollars.",
            ],
        ),
        template(
            Take,
            &[
                "{he} buys a {gift} for {0} dollars.",
                "{he} spends {0} dollars on food.",
                "{he} gives {0} dollars to {his} {kin}.",
            ],
        ),
        template(
            AddEach,
            &[
                "{he} sells {1} {new} for {0} dollars each.",
                "{he} saves {0} more dollars a week for {1} weeks.",
            ],
        ),
        template(
            TakeEach,
            &[
                "{he} buys {1} {new} for {0} dollars each.",
                "{he} spends {0} dollars a day for {1} days.",
            ],
        ),
        template(
            Keep,
            &["{he} keeps only {part0} of the money and gives the rest to {his} {kin}."],
        ),
        template(
            TakePart,
            &[
                "{he} spends {part0} of the money on a {gift}.",
                "{he} gives {part0} of the money to {his} {kin}.",
            ],
        ),
    ];

    pub(crate) static CLOSINGS: &[SentenceTemplate] = &[
        template(
            Ask,
            &[
                "how many dollars does {hero} have now?",
                "how much money does {hero} have in the end?",
            ],
        ),
        after_loss(
            Ask,
            &["how many dollars does {hero} have left?", "how much money does {hero} have left?"],
        ),
        template(
            Divide,
            &[
                "how many {new} can {hero} buy with this money if they cost {0} dollars each?",
                "{he} shares the money equally among {0} friends. how many dollars does each friend get?",
                "if {hero} spends {0} dollars a day, how many days will the money last?",
            ],
        ),
        template(
            Missing,
            &[
                "{hero} wants to buy a {gift} for {0} dollars. how many more dollars does {same} need?",
            ],
        ),
        template(
            Times,
            &[
                "{friend} has {times0} as much money as {hero} has now. how many dollars does {friend} have?",
            ],
        ),
        template(
            JoinTimes,
            &[
                "{friend} has {times0} as much money as {hero} has now. how many dollars do they have together?",
            ],
        ),
        template(
            MissingDivide,
            &[
                "{hero} wants to buy a {gift} for {0} dollars and saves {1} more dollars every week. how many weeks will it take?",
            ],
        ),
    ];
}

/// A purchase.
pub(super) mod bill {
    use super::*;

    pub(crate) static OPENINGS: &[SentenceTemplate] = &[
        template(
            Product,
            &[
                "{hero} buys {0} {new} for {1} dollars each.",
                "at the {place}, {hero} buys {0} {new} that cost {1} dollars each.",
            ],
        ),
        template(Sum, &["{hero} buys a {gift} for {0} dollars and a {gift} for {1} dollars."]),
        template(
            TwoProducts,
            &["{hero} buys {0} {new} for {1} dollars each and {2} {new} for {3} dollars each."],
        ),
    ];

    pub(crate) static EVENTS: &[SentenceTemplate] = &[
        template(
            Add,
            &["{he} also buys a {gift} for {0} dollars.", "{he} also pays {0} dollars for lunch."],
        ),
        template(
            AddEach,
            &[
                "{he} also buys {1} {new} for {0} dollars each.",
                "{he} also gets {1} {new} that cost {0} dollars each.",
            ],
        ),
        template(Take, &["the store takes {0} dollars off the price of all this."]),
        template(
            Keep,
            &["the store has a sale, and {he} only pays {part0} of the price of all this."],
        ),
    ];

    pub(crate) static CLOSINGS: &[SentenceTemplate] = &[
        template(
            Ask,
            &["how many dollars does {hero} spend in all?", "how much money does {hero} pay?"],
        ),
        template(
            Missing,
            &[
                "{he} pays with {0} dollars. how many dollars does {hero} get back?",
                "{he} had {0} dollars before. how many dollars does {hero} have left?",
            ],
        ),
        template(
            Divide,
            &["{0} people share the cost equally. how many dollars does each of them pay?"],
        ),
        template(
            Times,
            &[
                "{friend} spends {times0} as much money as {hero}. how many dollars does {friend} spend?",
            ],
        ),
        template(
            JoinTimes,
            &[
                "{friend} spends {times0} as much money as {hero}. how many dollars do they spend together?",
            ],
        ),
        template(
            JoinMore,
            &[
                "{friend} spends {0} dollars more than {hero}. how many dollars do they spend together?",
            ],
        ),
    ];
}

/// Two-step problems. `story` decides which closing may follow which opening.
pub(super) mod simple {
    use super::*;

    pub(crate) static OPENINGS: &[SentenceTemplate] = &[
        template(
            Left,
            &[
                "{hero} had {0} {items} but lost {1} of them.",
                "{hero} collected {0} {items} for a fair and sold {1} of them.",
                "{hero} had a {box} of {0} {items} and threw {1} of them away.",
                "{hero} had {0} {items} and gave {1} of them to a friend.",
            ],
        ),
        food_template(
            Left,
            &["{hero} had {0} {items} for lunch, and {his} friends ate {1} of them."],
        ),
        template(
            Sum,
            &[
                "{hero} had {0} {items} and got {1} more from a friend.",
                "{hero} found {0} {items}, and a friend gave {him} {1} more.",
                "{hero} bought {0} {red} {items} and {1} {blue} {items}.",
                "{hero} collected {0} {items} on the first day and {1} {items} on the second day.",
            ],
        ),
        template(
            Product,
            &[
                "{hero} bought {0} {boxes} with {1} {items} in each {box}.",
                "{hero} got {1} {items} from each of {0} friends.",
                "for {0} days, {hero} collected {1} {items} a day.",
                "{hero} put {1} {items} on each of {0} shelves.",
            ],
        ),
    ];

    pub(crate) static CLOSINGS: &[SentenceTemplate] = &[
        template(
            Divide,
            &[
                "{he} then put all {his} {items} into {0} {cases} equally. how many {items} were in each {case}?",
                "if {he} then put {0} {items} into each {case}, how many {cases} did {same} need for all of {his} {items}?",
                "{he} then shared all {his} {items} equally among {0} friends. how many {items} did each friend get?",
                "if {he} then used {0} {items} a day, how many days did {his} {items} last?",
            ],
        ),
        template(
            Price,
            &[
                "{he} then sold all {his} {items} for {0} dollars each. how many dollars did {same} get?",
                "{his} {items} were then worth {0} dollars each. how much money were all of them worth?",
            ],
        ),
        template(
            Add,
            &[
                "{he} then got {0} more from {his} {kin}. how many {items} did {hero} have in the end?",
                "{friend} then had {0} more {items} than {hero}. how many {items} did {friend} have?",
            ],
        ),
        template(
            Take,
            &[
                "{he} then gave {0} {items} to {his} {kin}. how many {items} did {hero} have left?",
                "{friend} then had {0} fewer {items} than {hero}. how many {items} did {friend} have?",
            ],
        ),
        template(
            Missing,
            &["how many more {items} did {he} then need to have {0} {items} in all?"],
        ),
    ];
}

/// Two-step problems of other sentences, in the vocabulary of training.
pub(super) mod ood {
    use super::*;

    pub(crate) static OPENINGS: &[SentenceTemplate] = &[
        template(
            Left,
            &[
                "{hero} had {0} {items} with {him} at the {place} but lost {1} of them there.",
                "{hero} found a {box} with {0} old {items} in it and threw {1} of them away.",
                "{hero} had {0} {items} to sell, and people bought {1} of them before lunch.",
            ],
        ),
        template(
            Sum,
            &[
                "{hero} got {0} {items} from {his} {kin} and then {1} {items} from {his} {kin}.",
                "{hero} had a {box} with {0} {items} in it and another {box} with {1} {items} in it.",
            ],
        ),
        template(
            Product,
            &[
                "{0} friends gave {hero} {1} {items} each.",
                "for {0} hours, {hero} collected {1} {items} an hour.",
                "{hero} had {0} shelves at home with {1} {items} on each shelf.",
            ],
        ),
    ];

    pub(crate) static CLOSINGS: &[SentenceTemplate] = &[
        template(
            Divide,
            &[
                "how many {cases} of {0} {items} each did {he} then need for all of {his} {items}?",
                "{0} people then shared all of {his} {items} equally. how many {items} did each of them get?",
                "{he} then gave all of {his} {items} away, {0} to each friend. how many friends got {items}?",
            ],
        ),
        template(
            Price,
            &[
                "people then bought all of {his} {items} for {0} dollars each. how much money did {hero} get in all?",
            ],
        ),
        template(
            Add,
            &["then {his} {kin} gave {him} {0} more. how many {items} did {hero} have in all?"],
        ),
        template(Take, &["if {he} then used {0} of {his} {items}, how many {items} were left?"]),
        template(
            Missing,
            &[
                "if {he} then needed {0} {items} in all, how many more {items} did {same} need to get?",
            ],
        ),
    ];
}

/// Several people with the same items.
pub(super) mod people {
    use super::*;

    pub(crate) static START: &[&str] = &[
        "{who} has {0} {items}.",
        "{who} collects {items} and has {0} of them.",
        "there are {0} {items} in the {box} that {who} has.",
    ];

    pub(crate) static RELATIONS: &[SentenceTemplate] = &[
        template(
            Times,
            &[
                "{who} has {times0} as many {items} as {than}.",
                "{who} has {times0} as many as {than}.",
            ],
        ),
        template(
            Add,
            &["{who} has {0} more {items} than {than}.", "{who} has {0} more than {than}."],
        ),
        template(
            Take,
            &["{who} has {0} fewer {items} than {than}.", "{who} has {0} fewer than {than}."],
        ),
        template(Keep, &["{who} has {part0} as many {items} as {than}."]),
    ];

    pub(crate) static ONE: &[&str] = &["how many {items} does {who} have?"];
    pub(crate) static TOGETHER: &[&str] = &[
        "how many {items} do they have together?",
        "how many {items} do they have in all?",
        "how many {items} do these friends have together?",
    ];
    pub(crate) static MORE: &[&str] = &[
        "how many more {items} does {who} have than {than}?",
        "how many {items} must {than} get to have as many as {who}?",
    ];

    /// What is done with the total.
    pub(crate) static ENDS: &[SentenceTemplate] = &[
        template(
            Divide,
            &[
                "they put all of their {items} into {cases} of {0}. how many {cases} do they need?",
                "they share all of their {items} equally among {0} classes. how many {items} does each class get?",
            ],
        ),
        template(
            Price,
            &[
                "they sell all of their {items} for {0} dollars each. how many dollars do they get in all?",
            ],
        ),
        template(
            Take,
            &["they give away {0} of their {items}. how many {items} do they have left together?"],
        ),
        template(Missing, &["they need {0} {items} in all. how many more {items} do they need?"]),
    ];
}
