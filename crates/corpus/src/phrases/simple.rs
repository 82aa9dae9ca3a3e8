//! Two-step problems. `story` determines which closing may follow which opening.

use super::{SentenceTemplate, food_template, template};
use crate::effect::Effect::*;

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
    food_template(Left, &["{hero} had {0} {items} for lunch, and {his} friends ate {1} of them."]),
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
    template(Missing, &["how many more {items} did {he} then need to have {0} {items} in all?"]),
];
