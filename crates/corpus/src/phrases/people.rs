//! Several people with the same items.

use super::{SentenceTemplate, template};
use crate::effect::Effect::*;

pub(crate) static START: &[&str] = &[
    "{who} has {0} {items}.",
    "{who} collects {items} and has {0} of them.",
    "there are {0} {items} in the {box} that {who} has.",
];

pub(crate) static RELATIONS: &[SentenceTemplate] = &[
    template(
        Times,
        &["{who} has {times0} as many {items} as {than}.", "{who} has {times0} as many as {than}."],
    ),
    template(Add, &["{who} has {0} more {items} than {than}.", "{who} has {0} more than {than}."]),
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

/// Closings about the total.
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
