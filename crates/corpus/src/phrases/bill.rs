//! A purchase.

use super::{SentenceTemplate, template};
use crate::effect::Effect::*;

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
    template(Keep, &["the store has a sale, and {he} only pays {part0} of the price of all this."]),
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
        &["{friend} spends {0} dollars more than {hero}. how many dollars do they spend together?"],
    ),
];
