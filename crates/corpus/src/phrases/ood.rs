//! Two-step problems with sentences that do not occur in training, in the vocabulary of training.

use super::{SentenceTemplate, template};
use crate::effect::Effect::*;

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
        &["if {he} then needed {0} {items} in all, how many more {items} did {same} need to get?"],
    ),
];
