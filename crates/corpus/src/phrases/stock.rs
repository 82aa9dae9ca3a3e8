//! Items at a place that are made, delivered or sold.

use super::{Distractor, SentenceTemplate, after_loss, template};
use crate::effect::Effect::*;

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
    template(Product3, &["{0} bakers make {1} {items} each every day. they work for {2} days."]),
    template(
        TwoProducts,
        &["a baker makes {1} {items} an hour for {0} hours and {3} {items} an hour for {2} hours."],
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
    template(Ask, &["how many {items} are there now?", "how many {items} are there in the end?"]),
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
