//! Numbers in a solution from general knowledge: days in a week, cents in a dollar.
//!
//! Such a number is accepted only if a word of the question implies it, and is never changed.

use super::lexer::QuestionToken;
use super::number_words::denominator;
use super::rational::Rational;

/// A fact about the world: its words imply its numbers; a partner word makes the implication
/// certain.
struct WorldFact {
    /// In the singular and in lower case.
    words: &'static [&'static str],
    /// Without partners the words are sufficient.
    partners: &'static [&'static str],
    numbers: &'static [&'static str],
}

const fn fact(
    words: &'static [&'static str],
    partners: &'static [&'static str],
    numbers: &'static [&'static str],
) -> WorldFact {
    WorldFact { words, partners, numbers }
}

const DAYS: &[&str] = &["day", "daily", "everyday", "week"];
const WEEKDAYS: &[&str] =
    &["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
/// Matches no word: the implication of such a fact is never certain.
const NEVER: &[&str] = &[" "];
const CURRENCY: &[&str] = &["cent", "penny", "pennies", "¢"];

const FACTS: &[WorldFact] = &[
    fact(&["week", "weekly"], DAYS, &["7"]),
    fact(&["week", "weekly"], &["month", "monthly"], &["4"]),
    fact(&["week", "weekly"], &["year", "yearly"], &["52"]),
    fact(&["weekend"], &[], &["2"]),
    fact(&["weekday", "workday", "workweek"], &[], &["5"]),
    fact(&["school", "work"], &["week"], &["5"]),
    fact(WEEKDAYS, NEVER, &["7", "5", "2", "3", "4", "6"]),
    fact(&["day", "daily"], &["hour"], &["24"]),
    fact(&["day", "daily"], &["week"], &["7"]),
    fact(&["day", "daily"], &["month"], &["30", "31"]),
    fact(&["day", "daily"], &["year"], &["365"]),
    fact(&["month", "monthly"], &["year", "yearly", "annual", "annually"], &["12"]),
    fact(&["month", "monthly"], &["day", "daily"], &["30", "31", "28"]),
    fact(&["year", "yearly", "annual", "annually"], &["month", "monthly"], &["12", "6"]),
    fact(&["year", "yearly"], &["day", "daily"], &["365"]),
    fact(&["january", "march", "july", "august", "october", "december"], &[], &["31"]),
    fact(&["april", "june", "september", "november"], &[], &["30"]),
    fact(&["february"], &[], &["28"]),
    fact(&["leap"], &[], &["366", "29"]),
    fact(&["decade"], &[], &["10"]),
    fact(&["century"], &[], &["100"]),
    fact(&["fortnight"], &[], &["14"]),
    fact(&["hour", "hourly", "hr"], &["minute"], &["60", "30"]),
    fact(&["hour", "hourly", "hr"], &["second"], &["3600", "60"]),
    fact(&["hour"], &["half"], &["30", "0.5", "90", "1.5"]),
    fact(&["parent", "grandparent"], &[], &["2"]),
    fact(&["brother", "husband", "mother", "mom"], &["sister", "wife", "father", "dad"], &["2"]),
    fact(&["boyfriend", "girlfriend", "partner", "eyes", "hands"], &[], &["2"]),
    fact(&["minute", "min"], &["second", "hour"], &["60"]),
    fact(&["p.m", "a.m", "pm", "am", "noon", "midnight", "o'clock"], &[], &["12"]),
    fact(&["percent", "percentage", "%"], &[], &["100", "0.01"]),
    fact(CURRENCY, &[], &["100", "0.01"]),
    fact(&["nickel"], &[], &["5", "0.05"]),
    fact(&["dime"], &[], &["10", "0.1"]),
    fact(&["quarter"], &[], &["25", "0.25", "4"]),
    fact(&["foot", "feet"], &["inch", "inches"], &["12"]),
    fact(&["yard"], &["foot", "feet"], &["3"]),
    fact(&["yard"], &["inch", "inches"], &["36"]),
    fact(&["mile"], &["foot", "feet"], &["5280"]),
    fact(&["centimeter", "cm"], &["meter", "m"], &["100"]),
    fact(&["kilometer", "km", "kilogram", "kg", "liter", "l", "kilo"], &[], &["1000"]),
    fact(&["ton", "tonne"], &[], &["2000", "1000"]),
    fact(&["pound", "lb"], &["ounce", "oz"], &["16"]),
    fact(&["gallon"], &["quart", "pint", "cup", "ounce"], &["4", "8", "16", "128"]),
    fact(&["quart"], &["pint", "cup"], &["2", "4"]),
    fact(&["cup"], &["ounce"], &["8"]),
    fact(&["tablespoon"], &["teaspoon"], &["3"]),
    fact(&["square"], &["side", "perimeter", "around"], &["4"]),
    fact(&["perimeter", "rectangle", "rectangular", "fence", "border"], &[], &["2"]),
    fact(&["triangle", "triangular"], &[], &["3", "180", "2"]),
    fact(&["pentagon"], &[], &["5"]),
    fact(&["hexagon", "cube"], &[], &["6"]),
    fact(&["insect", "ant", "bee", "beetle"], &["leg", "feet"], &["6"]),
    fact(&["octagon", "octopus"], &[], &["8"]),
    fact(&["spider"], &["leg", "feet"], &["8"]),
    fact(
        &["dog", "cat", "cow", "horse", "goat", "sheep", "pig", "elephant"],
        &["leg", "feet"],
        &["4"],
    ),
    fact(&["bird", "chicken", "person", "people"], &["leg", "feet"], &["2"]),
    fact(&["car", "truck", "table", "chair"], &["wheel", "tire", "leg"], &["4"]),
    fact(&["tricycle"], &[], &["3"]),
    fact(&["bicycle", "bike"], &["wheel", "tire"], &["2"]),
    fact(&["season"], &["year"], &["4"]),
    fact(&["twice", "double", "doubled", "doubles", "doubling", "pair", "couple"], &[], &["2"]),
    fact(&["both", "twin", "half", "halve", "halves", "halved", "halfway", "duet"], &[], &["2"]),
    fact(&["every", "each"], &["other"], &["2"]),
    fact(&["round"], &["trip"], &["2"]),
    fact(&["thrice", "triple", "tripled", "triples", "tripling", "triplet", "trio"], &[], &["3"]),
    fact(&["quadruple", "quadrupled", "quadruplet"], &[], &["4"]),
    fact(&["quintuple", "quintupled"], &[], &["5"]),
    fact(&["dozen"], &[], &["12", "6"]),
    fact(&["average", "mean", "median"], &[], &["2"]),
];

/// The numbers implied by the words of a question.
#[derive(Debug, Clone)]
pub(super) struct KnownConstants {
    /// Constants even if the question contains the same number.
    certain: Vec<Rational>,
    /// Constants if there is no other explanation.
    possible: Vec<Rational>,
}

impl KnownConstants {
    /// The constants of a question.
    pub(super) fn of(tokens: &[QuestionToken]) -> Self {
        let mut known = Self {
            certain: Vec::new(),
            possible: vec![Rational::ZERO, Rational::ONE, Rational::whole(2)],
        };
        let has = |words: &[&str]| tokens.iter().any(|token| matches(words, token));
        for fact in FACTS.iter().filter(|fact| has(fact.words)) {
            let numbers = fact.numbers.iter().filter_map(|number| Rational::parse(number));
            if fact.partners.is_empty() || has(fact.partners) {
                known.certain.extend(numbers.clone());
            }
            known.possible.extend(numbers);
        }
        for parts in tokens.iter().filter_map(|token| denominator(&token.text)) {
            let numbers = [Some(Rational::whole(parts)), Rational::new(1, parts)];
            known.certain.extend(numbers.into_iter().flatten());
        }
        known
    }

    /// Adds a number in a format that is never rewritten.
    pub(super) fn add(&mut self, value: Rational) {
        self.certain.push(value);
    }

    /// Small integers implied by words of the question, such as 2 by `twice`.
    pub(super) fn factors(&self) -> Vec<Rational> {
        let low = Rational::whole(2);
        let high = Rational::whole(10);
        let is_factor = |value: &Rational| value.is_whole() && (low..=high).contains(value);
        let mut factors: Vec<Rational> = self.certain.iter().copied().filter(is_factor).collect();
        factors.sort_unstable();
        factors.dedup();
        factors
    }

    /// Whether the number may be a constant even if the question contains the same number.
    pub(super) fn is_certain(&self, value: Rational) -> bool {
        self.certain.contains(&value)
    }

    /// Whether the number may be a constant if there is no other explanation.
    pub(super) fn is_possible(&self, value: Rational) -> bool {
        self.is_certain(value) || self.possible.contains(&value)
    }
}

fn matches(words: &[&str], token: &QuestionToken) -> bool {
    let text = token.text.strip_suffix("'s").unwrap_or(&token.text);
    let single = text.strip_suffix('s').unwrap_or(text);
    words.contains(&text) || words.contains(&single)
}

#[cfg(test)]
mod tests {
    use super::super::lexer::tokens;
    use super::*;

    #[test]
    fn words_bring_their_constants() {
        let known = KnownConstants::of(&tokens("A week's rent a day, a third of it in cents"));
        for (number, certain) in [("7", true), ("3", true), ("100", true), ("60", false)] {
            assert_eq!(known.is_certain(Rational::parse(number).unwrap()), certain, "{number}");
        }
        let known = KnownConstants::of(&tokens("She saved for 4 months"));
        let twelve = Rational::whole(12);
        assert!(known.is_possible(twelve) && !known.is_certain(twelve));
    }
}
