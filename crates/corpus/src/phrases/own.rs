//! A person with items.

use super::{Distractor, SentenceTemplate, after_loss, food_template, template};
use crate::effect::Effect::*;

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
