//! A person with money.

use super::{SentenceTemplate, after_loss, template};
use crate::effect::Effect::*;

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
        &["{hero} works {0} hours for {1} dollars an hour and {2} hours for {3} dollars an hour."],
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
    template(Keep, &["{he} keeps only {part0} of the money and gives the rest to {his} {kin}."]),
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
        &["how many dollars does {hero} have now?", "how much money does {hero} have in the end?"],
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
        &["{hero} wants to buy a {gift} for {0} dollars. how many more dollars does {same} need?"],
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
