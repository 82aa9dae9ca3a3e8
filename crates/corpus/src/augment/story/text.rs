//! The text of a story template: fixed words, alternatives, and slots for numbers, people and
//! things.

use std::collections::BTreeMap;

use super::super::names::StoryPerson;
use super::super::number_words::spelled;
use super::super::rational::Rational;
use super::super::render::{capitalised, fix_article};
use super::super::stream::VariantRng;
use super::formula::number_index;
use super::lexicon::{self, Noun};

/// Percentage of small numbers written in words.
const SPELLED: u32 = 12;
/// Numbers above this are always written in digits.
const LARGEST_SPELLED: i128 = 12;

/// A parsed text.
#[derive(Debug, Clone)]
pub(super) struct StoryText {
    parts: Vec<TextPart>,
}

#[derive(Debug, Clone)]
enum TextPart {
    Words(String),
    Slot(Slot),
    Alternatives(Vec<Vec<TextPart>>),
}

#[derive(Debug, Clone, PartialEq)]
enum Slot {
    Number(usize),
    Person { letter: char, form: PersonForm },
    Thing { letter: char, class: Option<&'static str>, form: NounForm },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PersonForm {
    Name,
    Possessive,
    He,
    Him,
    His,
    Himself,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NounForm {
    Plural,
    Singular,
    WithArticle,
}

impl StoryText {
    /// Parses a text and checks that things are declared before they are used, for every choice of
    /// alternatives.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('[') {
            let end = at + rest[at..].find(']').ok_or("unclosed bracket [")?;
            parts.extend(parse_slots(&rest[..at])?);
            let inside = &rest[at + 1..end];
            if inside.contains('[') {
                return Err("alternatives [..] cannot be nested".to_owned());
            }
            let alternatives: Result<_, _> = inside.split('|').map(parse_slots).collect();
            parts.push(TextPart::Alternatives(alternatives?));
            rest = &rest[end + 1..];
        }
        if rest.contains(']') {
            return Err("unmatched bracket ]".to_owned());
        }
        parts.extend(parse_slots(rest)?);
        check_declarations(&parts)?;
        Ok(Self { parts })
    }

    /// Numbers that are in the text for every choice of alternatives.
    pub(super) fn fixed_numbers(&self) -> impl Iterator<Item = usize> {
        let has = |parts: &[TextPart], number| {
            parts.iter().any(|part| matches!(part, TextPart::Slot(Slot::Number(n)) if *n == number))
        };
        (0..super::numbers::MAX_NUMBERS).filter(move |number| {
            self.parts.iter().any(|part| match part {
                TextPart::Alternatives(all) => all.iter().all(|parts| has(parts, *number)),
                part => has(std::slice::from_ref(part), *number),
            })
        })
    }

    /// The text with these numbers; `None` if a number has no short decimal form.
    pub(super) fn write(&self, numbers: &[Rational], rng: &mut VariantRng) -> Option<String> {
        let mut chosen = Vec::new();
        for part in &self.parts {
            match part {
                TextPart::Alternatives(all) => {
                    chosen.extend(&all[rng.below(all.len() as u32) as usize]);
                }
                part => chosen.push(part),
            }
        }
        let mut writer = TextWriter::new(numbers, rng);
        for (at, part) in chosen.iter().enumerate() {
            match part {
                TextPart::Words(words) => writer.text.push_str(words),
                TextPart::Slot(slot) => {
                    let next = chosen[at + 1..].iter().find_map(|part| part.first_char());
                    writer.slot(slot, next)?;
                }
                TextPart::Alternatives(_) => unreachable!("alternatives are not nested"),
            }
        }
        Some(writer.text)
    }
}

impl TextPart {
    /// The first character, if the part is fixed words.
    fn first_char(&self) -> Option<char> {
        match self {
            Self::Words(words) => words.chars().next(),
            _ => Some('{'),
        }
    }
}

/// Splits a text without alternatives into words and slots.
fn parse_slots(text: &str) -> Result<Vec<TextPart>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let end = at + rest[at..].find('}').ok_or("unclosed brace {")?;
        if at > 0 {
            parts.push(TextPart::Words(rest[..at].to_owned()));
        }
        parts.push(TextPart::Slot(Slot::parse(&rest[at + 1..end])?));
        rest = &rest[end + 1..];
    }
    if !rest.is_empty() {
        parts.push(TextPart::Words(rest.to_owned()));
    }
    Ok(parts)
}

impl Slot {
    fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("unknown slot {{{text}}}; see docs/how-to/augment-data.md");
        let (rest, class) = text.split_once(':').map_or((text, None), |(r, c)| (r, Some(c)));
        let (name, form) = rest.split_once('.').map_or((rest, ""), |(n, f)| (n, f));
        let mut letters = name.chars();
        let (Some(letter), None) = (letters.next(), letters.next()) else { return Err(bad()) };
        match (letter, form, class) {
            ('a'..='h', "", None) => Ok(Self::Number(number_index(letter))),
            ('A'..='D', form, None) => {
                let form = match form {
                    "" => PersonForm::Name,
                    "s" => PersonForm::Possessive,
                    "he" | "He" => PersonForm::He,
                    "him" => PersonForm::Him,
                    "his" | "His" => PersonForm::His,
                    "self" => PersonForm::Himself,
                    _ => return Err(bad()),
                };
                Ok(Self::Person { letter, form })
            }
            ('i'..='m' | 'x', form, class) => {
                let form = match form {
                    "" => NounForm::Plural,
                    "one" => NounForm::Singular,
                    "a" => NounForm::WithArticle,
                    _ => return Err(bad()),
                };
                let class = class
                    .map(|class| {
                        lexicon::class(class)
                            .ok_or_else(|| format!("unknown class of things `{class}`"))
                    })
                    .transpose()?;
                Ok(Self::Thing { letter, class, form })
            }
            _ => Err(bad()),
        }
    }
}

/// Checks that everything is declared once, before its first use, in every choice of alternatives.
fn check_declarations(parts: &[TextPart]) -> Result<(), String> {
    let mut declared = Vec::new();
    for part in parts {
        match part {
            TextPart::Alternatives(all) => {
                let mut common: Option<Vec<char>> = None;
                for parts in all {
                    let mut own = declared.clone();
                    parts.iter().try_for_each(|part| declare(part, &mut own))?;
                    common = Some(match common {
                        Some(common) => common.into_iter().filter(|c| own.contains(c)).collect(),
                        None => own,
                    });
                }
                declared = common.unwrap_or(declared);
            }
            part => declare(part, &mut declared)?,
        }
    }
    Ok(())
}

fn declare(part: &TextPart, declared: &mut Vec<char>) -> Result<(), String> {
    let TextPart::Slot(Slot::Thing { letter, class, .. }) = part else { return Ok(()) };
    match (class, declared.contains(letter)) {
        (Some(_), true) => Err(format!("{{{letter}}} is declared twice")),
        (None, false) => Err(format!("{{{letter}}} is used before {{{letter}:CLASS}} declares it")),
        (Some(_), false) => {
            declared.push(*letter);
            Ok(())
        }
        (None, true) => Ok(()),
    }
}

/// The text of a variant under construction.
struct TextWriter<'a> {
    numbers: &'a [Rational],
    rng: &'a mut VariantRng,
    people: BTreeMap<char, StoryPerson>,
    things: BTreeMap<char, Noun>,
    text: String,
}

impl<'a> TextWriter<'a> {
    fn new(numbers: &'a [Rational], rng: &'a mut VariantRng) -> Self {
        let people = BTreeMap::new();
        let things = BTreeMap::new();
        Self { numbers, rng, people, things, text: String::new() }
    }

    /// Writes a slot; `next` is the character that follows.
    fn slot(&mut self, slot: &Slot, next: Option<char>) -> Option<()> {
        let words = match *slot {
            Slot::Number(number) => {
                let value = *self.numbers.get(number)?;
                let words = self.number(value, next)?;
                fix_article(&mut self.text, &words);
                words
            }
            Slot::Person { letter, form } => self.person(letter)?.write(form),
            Slot::Thing { letter, class, form } => {
                let form = match form {
                    NounForm::Plural if self.is_after_one() => NounForm::Singular,
                    form => form,
                };
                self.thing(letter, class)?.write(form)
            }
        };
        let begins = self.text.is_empty()
            || [". ", "? ", "! ", "\" ", ": \""].iter().any(|end| self.text.ends_with(end));
        self.text.push_str(&if begins { capitalised(&words) } else { words });
        Some(())
    }

    fn number(&mut self, value: Rational, next: Option<char>) -> Option<String> {
        if !value.is_whole() {
            // Money has two decimals; other numbers as few as necessary.
            return match self.text.ends_with('$') {
                true => value.to_decimal_with(2),
                false => value.to_decimal(),
            };
        }
        let is_apart = self.text.ends_with(' ') || self.text.is_empty();
        let stands_alone = is_apart && next.is_none_or(|next| " .,?!;".contains(next));
        let value = value.as_whole()?;
        let in_words = stands_alone && value <= LARGEST_SPELLED && self.rng.chance(SPELLED);
        if in_words { spelled(value) } else { Some(value.to_string()) }
    }

    fn is_after_one(&self) -> bool {
        let mut words = self.text.trim_end().rsplit([' ', '$']);
        matches!(words.next(), Some("1" | "one" | "One")) && self.text.ends_with(' ')
    }

    fn person(&mut self, letter: char) -> Option<StoryPerson> {
        if let Some(person) = self.people.get(&letter) {
            return Some(*person);
        }
        let taken: Vec<&str> = self.people.values().map(|person| person.name).collect();
        let person = StoryPerson::draw(self.rng, &taken)?;
        self.people.insert(letter, person);
        Some(person)
    }

    fn thing(&mut self, letter: char, class: Option<&'static str>) -> Option<Noun> {
        if let Some(noun) = self.things.get(&letter) {
            return Some(*noun);
        }
        let nouns = lexicon::nouns(class?)?;
        for _ in 0..64 {
            let noun = nouns[self.rng.below(nouns.len() as u32) as usize];
            if self.things.values().all(|other| *other != noun) {
                self.things.insert(letter, noun);
                return Some(noun);
            }
        }
        None
    }
}

impl StoryPerson {
    fn write(self, form: PersonForm) -> String {
        let female = self.is_female;
        match form {
            PersonForm::Name => self.name.to_owned(),
            PersonForm::Possessive => format!("{}'s", self.name),
            PersonForm::He => if female { "she" } else { "he" }.to_owned(),
            PersonForm::Him => if female { "her" } else { "him" }.to_owned(),
            PersonForm::His => if female { "her" } else { "his" }.to_owned(),
            PersonForm::Himself => if female { "herself" } else { "himself" }.to_owned(),
        }
    }
}

impl Noun {
    fn write(self, form: NounForm) -> String {
        match form {
            NounForm::Plural => self.plural.to_owned(),
            NounForm::Singular => self.singular.to_owned(),
            NounForm::WithArticle => {
                let vowel = self.singular.starts_with(['a', 'e', 'i', 'o', 'u']);
                format!("{} {}", if vowel { "an" } else { "a" }, self.singular)
            }
        }
    }
}
