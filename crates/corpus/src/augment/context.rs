//! Properties of a number inferred from the surrounding words.

use std::ops::Range;

use super::lexer::{QuestionToken, TokenKind};
use super::mention::MentionUnit;
use super::number_words::ordinal;
use super::rational::Rational;

/// Units that may follow a number without a space.
const UNITS: &[&str] = &[
    "kg", "g", "km", "m", "cm", "mm", "ml", "l", "lb", "lbs", "oz", "ft", "in", "mph", "kph", "hr",
    "hrs", "min", "mins", "gb", "mb", "cents", "kw", "w", "c",
];
/// Words after which a number is a label or a date.
const LABELS: &[&str] = &[
    "grade",
    "room",
    "level",
    "chapter",
    "page",
    "number",
    "route",
    "highway",
    "section",
    "figure",
    "question",
    "step",
    "stage",
    "phase",
    "lane",
    "bus",
    "flight",
    "version",
    "volume",
    "part",
    "channel",
    "size",
    "no",
    "box",
    "day",
    "week",
    "year",
    "round",
    "type",
    "gate",
    "exit",
    "world",
    "age",
    "book",
    "game",
    "quarter",
    "round",
    "period",
    "class",
    "train",
    "store",
    "#",
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
/// Words before a number that refers back to known things.
const BACK_REFERENCES: &[&str] =
    &["the", "these", "those", "all", "other", "remaining", "another", "them"];
/// Things whose number is a fact about the world.
const FACT_NOUNS: &[&str] = &[
    "leg",
    "wheel",
    "wing",
    "eye",
    "side",
    "corner",
    "finger",
    "toe",
    "hand",
    "arm",
    "tire",
    "string",
    "quarter",
    "half",
    "semester",
    "season",
    "inning",
    "degree",
    "bill",
    "note",
    "continent",
    "ocean",
    "planet",
    "story",
    "stories",
    "player",
    "o'clock",
    "am",
    "pm",
    "a",
    "p",
    "way",
    "card",
    "decade",
    "century",
    "tens",
    "figure",
    "speed",
    "gauge",
    "star",
    "parent",
    "grandparent",
    "twin",
    "ply",
    "kick",
    "dimensional",
    "bedroom",
];

/// The unit of the number in `span`.
pub(super) fn unit(tokens: &[QuestionToken], span: &Range<usize>) -> MentionUnit {
    let mut after = tokens[span.end..].iter().filter(|token| token.text != "-");
    let next = after.next();
    let word = |token: Option<&QuestionToken>| match token {
        Some(token) if token.kind == TokenKind::Word => singular(&token.text).to_owned(),
        _ => String::new(),
    };
    MentionUnit {
        percent: next.is_some_and(|next| matches!(next.text.as_str(), "%" | "percent")),
        dollars: span.start > 0 && tokens[span.start - 1].text == "$",
        noun: word(next),
        after_noun: word(after.next()),
    }
}

/// A noun without its plural ending.
fn singular(word: &str) -> &str {
    word.strip_suffix('s').filter(|stem| stem.len() > 2).unwrap_or(word)
}

/// Whether a change of the number in `span` would break the text.
pub(super) fn is_fixed(tokens: &[QuestionToken], span: &Range<usize>, value: Rational) -> bool {
    let unit = unit(tokens, span);
    value <= Rational::ONE && value.is_whole()
        || is_part_of_numeral(tokens, span)
        || is_clock_time(tokens, span, &unit)
        || is_year(tokens, span, value)
        || is_label(tokens, span)
        || is_and_a_half(tokens, span)
        || has_ordinal(tokens, value)
        || is_count_of_family(tokens, &unit)
        || is_score(tokens, &unit, value)
        || is_fact(&unit, value)
        || is_count_of_list(tokens, span, value)
}

/// Whether the number is joined to letters, to `:` or to another number.
fn is_part_of_numeral(tokens: &[QuestionToken], span: &Range<usize>) -> bool {
    let first = &tokens[span.start];
    let last = &tokens[span.end - 1];
    let before = span.start.checked_sub(1).map(|at| &tokens[at]);
    let joined_before = before.filter(|token| token.range.end == first.range.start);
    let joined_after = tokens.get(span.end).filter(|token| token.range.start == last.range.end);
    let number_at = |at: usize| tokens.get(at).is_some_and(|t| t.kind == TokenKind::Number);
    let before_is_bad = joined_before.is_some_and(|token| match token.text.as_str() {
        "$" | "(" | "\"" | "'" | "“" | "‘" | "£" | "€" | "," | "." => false,
        // A dash between words (`ten-year`) is allowed; between numbers it is a range.
        "-" | "–" | "—" | "/" => span.start >= 2 && number_at(span.start - 2),
        _ => true,
    });
    let after_is_bad = joined_after.is_some_and(|token| match token.kind {
        TokenKind::Word => !UNITS.contains(&token.text.as_str()),
        TokenKind::Number => true,
        TokenKind::Mark => match token.text.as_str() {
            "-" | "–" | "—" | "/" | "x" => number_at(span.end + 1),
            ":" | "^" | "°" | "'" | "’" | "\"" | "*" | "+" | "=" => true,
            _ => false,
        },
    });
    before_is_bad || after_is_bad
}

/// Whether the number is a time of the day.
fn is_clock_time(tokens: &[QuestionToken], span: &Range<usize>, unit: &MentionUnit) -> bool {
    let clock = |token: &QuestionToken| {
        matches!(token.text.as_str(), "am" | "pm" | "o'clock" | "noon" | "midnight")
    };
    let dotted = |at: usize| {
        matches!(&tokens[at..], [letter, dot, m, ..]
            if matches!(letter.text.as_str(), "a" | "p") && dot.text == "." && m.text == "m")
    };
    let is_time_at = |at: usize| tokens.get(at).is_some_and(clock) || dotted(at.min(tokens.len()));
    let has_times = || (0..tokens.len()).any(is_time_at);
    let before = span.start.checked_sub(1).map_or("", |at| &tokens[at].text);
    let after_time_word =
        matches!(before, "at" | "until" | "till" | "from" | "to" | "by" | "before");
    is_time_at(span.end)
        || (after_time_word
            && (unit.noun.is_empty() || before == "at")
            && !unit.dollars
            && has_times())
}

/// Whether the number is a calendar year.
fn is_year(tokens: &[QuestionToken], span: &Range<usize>, value: Rational) -> bool {
    let in_range = value >= Rational::whole(1500) && value <= Rational::whole(2100);
    let text = &tokens[span.start].text;
    let before = span.start.checked_sub(1).map_or("", |at| &tokens[at].text);
    in_range && value.is_whole() && !text.contains(',') && !matches!(before, "$" | "of" | "are")
}

/// Whether the number names a thing: `grade 5`, `May 3`.
fn is_label(tokens: &[QuestionToken], span: &Range<usize>) -> bool {
    let before = span.start.checked_sub(1).map_or("", |at| &tokens[at].text);
    LABELS.contains(&before)
}

/// Whether the number is the whole part of `2 and a half`.
fn is_and_a_half(tokens: &[QuestionToken], span: &Range<usize>) -> bool {
    let after = |at: usize| tokens.get(span.end + at).map_or("", |token| &token.text);
    let half = |word: &str| matches!(word, "half" | "quarter" | "third");
    after(0) == "and" && (after(1) == "a" && half(after(2)) || after(1) == "one" && half(after(2)))
}

/// Whether the text mentions the last of this many things, or one more: `3 machines`, `a fourth`.
fn has_ordinal(tokens: &[QuestionToken], value: Rational) -> bool {
    let ordinals = tokens.iter().filter_map(|token| ordinal(&token.text));
    value > Rational::whole(2)
        && ordinals
            .into_iter()
            .any(|n| value == Rational::whole(n) || value == Rational::whole(n - 1))
}

/// Whether the number counts people who are all mentioned.
fn is_count_of_family(tokens: &[QuestionToken], unit: &MentionUnit) -> bool {
    const ROLES: &[&str] = &[
        "mom", "dad", "mother", "father", "wife", "husband", "twin", "twins", "son", "daughter",
        "brother", "sister", "grandma", "grandpa", "uncle", "aunt", "adult", "adults", "parents",
    ];
    let people = ["people", "person", "family", "member", "sibling", "friend", "children", "kid"];
    let roles = tokens.iter().filter(|token| ROLES.contains(&token.text.as_str())).count();
    people.contains(&unit.noun.as_str()) && roles >= 2
}

/// Whether the number is the value of a basket or goal in a game with known rules.
fn is_score(tokens: &[QuestionToken], unit: &MentionUnit, value: Rational) -> bool {
    const GAMES: &[&str] = &["basketball", "football", "touchdown", "touchdowns", "baskets", "nba"];
    let game = |token: &QuestionToken| GAMES.contains(&token.text.as_str());
    let counts = matches!(unit.noun.as_str(), "point" | "pointer" | "quarter" | "half");
    counts && value <= Rational::whole(7) && tokens.iter().any(game)
}

fn is_fact(unit: &MentionUnit, value: Rational) -> bool {
    let small = value <= Rational::whole(100);
    let physical = matches!(unit.noun.as_str(), "degree" | "°");
    let tall = matches!(unit.noun.as_str(), "feet" | "foot") && unit.after_noun == "tall";
    physical
        || small && (FACT_NOUNS.contains(&unit.noun.as_str()) || tall)
        || unit.dollars && matches!(unit.noun.as_str(), "bill" | "note" | "coin")
        || matches!(unit.after_noun.as_str(), "bill" | "note" | "coin")
}

/// Whether the rest of the sentence lists as many things as the number.
fn is_count_of_list(tokens: &[QuestionToken], span: &Range<usize>, value: Rational) -> bool {
    let Some(count) = value.as_whole().filter(|count| (2..=6).contains(count)) else {
        return false;
    };
    let rest =
        tokens[span.end..].iter().take_while(|token| !matches!(token.text.as_str(), "." | "?"));
    let rest: Vec<&QuestionToken> = rest.collect();
    let commas = rest.iter().filter(|token| token.text == ",").count() as i128;
    let colon = rest.iter().any(|token| token.text == ":");
    let names = rest.iter().filter(|token| token.capital).count() as i128;
    let numbers = rest.iter().filter(|token| token.kind == TokenKind::Number).count() as i128;
    colon
        || (commas >= 1 && (names == count || numbers == count && commas + 1 >= count))
        || count == 2 && names == 2
}

/// Whether the number refers to things introduced before: `the 5 boxes`, `all three`.
pub(super) fn refers_back(tokens: &[QuestionToken], span: &Range<usize>) -> bool {
    let before = span.start.checked_sub(1).map_or("", |at| &tokens[at].text);
    BACK_REFERENCES.contains(&before) && !unit(tokens, span).percent
}
