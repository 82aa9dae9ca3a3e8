//! A problem under construction: text, steps, the running quantity, and the people and items of
//! the story.

use super::effect::SlotNumbers;
use super::lexicon::{
    COLORS, CONTAINERS, Container, GIFTS, ITEMS, PARTS, PEOPLE, PLACES, Person, RELATIVES, SIZES,
    StoryItem, TIMES,
};
use super::rng::CorpusRng;
use super::scale::NumberScale;
use super::split::Split;
use super::{ArithOp, Calculation, WordProblem};

/// Minimum of all numbers, since 1 would need singular nouns.
const FEWEST: i64 = 2;

/// The words that fill a problem's slots. People are distinct, as are items.
#[derive(Debug, Clone, Copy)]
struct StoryCast {
    people: [&'static Person; 4],
    items: [&'static StoryItem; 4],
    containers: [&'static Container; 2],
    /// Adjectives that distinguish groups of items.
    adjectives: [&'static str; 2],
    gifts: [&'static str; 4],
    place: &'static str,
    relatives: [&'static str; 4],
}

/// A problem under construction.
#[derive(Debug)]
pub(super) struct ProblemDraft {
    pub rng: CorpusRng,
    /// The running quantity.
    pub value: i64,
    /// Indices into the cast of the people of the current comparison.
    pub compared: [usize; 2],
    split: Split,
    scale: NumberScale,
    cast: StoryCast,
    text: String,
    steps: Vec<Calculation>,
    used_phrases: Vec<&'static str>,
    /// Whether a pronoun can only refer to the main character.
    hero_last_named: bool,
    /// Number of bought items of the cast.
    bought: usize,
    /// Number of mentioned gifts of the cast.
    gifts: usize,
    /// Number of mentioned relatives of the cast.
    relatives: usize,
}

/// State to restore if numbers do not fit.
pub(super) struct DraftSnapshot {
    steps: usize,
    value: i64,
}

impl ProblemDraft {
    /// An empty draft of a split.
    pub(super) fn new(split: Split, scale: NumberScale, mut rng: CorpusRng) -> Self {
        let cast = StoryCast::sample(&mut rng);
        Self {
            rng,
            value: 0,
            compared: [1, 0],
            split,
            scale,
            cast,
            text: String::with_capacity(400),
            steps: Vec::with_capacity(6),
            used_phrases: Vec::with_capacity(8),
            hero_last_named: true,
            bought: 0,
            gifts: 0,
            relatives: 0,
        }
    }

    /// The finished problem, if its number of steps and its largest result are in range.
    pub(super) fn finish(self) -> Option<WordProblem> {
        let answer = self.steps.last()?.result;
        let largest = self.steps.iter().map(|step| step.result).max()?;
        let fits = (2..=6).contains(&self.steps.len()) && largest >= self.scale.floor();
        fits.then_some(WordProblem { question: self.text, steps: self.steps, answer })
    }

    pub(super) fn split(&self) -> Split {
        self.split
    }

    /// Chooses the problem's items.
    pub(super) fn choose_items(&mut self, items: &'static [StoryItem]) {
        self.cast.items = distinct(&mut self.rng, items);
        if self.is_about_food() {
            self.cast.adjectives = SIZES;
        }
    }

    pub(super) fn is_about_food(&self) -> bool {
        self.cast.items[0].is_food()
    }

    pub(super) fn steps(&self) -> &[Calculation] {
        &self.steps
    }

    /// Keeps the steps whose index satisfies `needed`.
    pub(super) fn keep_steps(&mut self, needed: impl Fn(usize) -> bool) {
        let mut index = 0;
        self.steps.retain(|_| {
            index += 1;
            needed(index - 1)
        });
    }

    pub(super) fn snapshot(&self) -> DraftSnapshot {
        DraftSnapshot { steps: self.steps.len(), value: self.value }
    }

    pub(super) fn restore(&mut self, snapshot: &DraftSnapshot) {
        self.steps.truncate(snapshot.steps);
        self.value = snapshot.value;
    }

    #[cfg(test)]
    pub(super) fn used_phrases(&self) -> &[&'static str] {
        &self.used_phrases
    }

    pub(super) fn has_used(&self, phrase: &'static str) -> bool {
        self.used_phrases.iter().any(|used| std::ptr::eq(*used, phrase))
    }
}

/// Sampling of numbers.
impl ProblemDraft {
    /// Records a step; `None` if its result is too small, too large, or not an integer.
    pub(super) fn step(&mut self, left: i64, op: ArithOp, right: i64) -> Option<i64> {
        let result = op.apply(left, right)?;
        if !(FEWEST..=self.scale.limit()).contains(&result) || left.max(right) > self.scale.limit()
        {
            return None;
        }
        self.steps.push(Calculation { left, op, right, result });
        Some(result)
    }

    pub(super) fn amount(&mut self) -> i64 {
        self.scale.amount(&mut self.rng)
    }

    /// A number of years or minutes.
    pub(super) fn time(&mut self) -> i64 {
        self.rng.between(20, 60)
    }

    pub(super) fn factor(&mut self) -> i64 {
        self.scale.factor(&mut self.rng)
    }

    pub(super) fn each(&mut self) -> i64 {
        self.scale.each(&mut self.rng)
    }

    /// A small multiple.
    pub(super) fn times(&mut self) -> i64 {
        let most = if self.scale == NumberScale::Hard { 12 } else { 6 };
        self.rng.between(2, most)
    }

    /// An amount to subtract from `v`.
    pub(super) fn amount_below(&mut self, v: i64) -> Option<i64> {
        let amount = self.amount();
        let most = v - FEWEST;
        match amount {
            a if a <= most => Some(a),
            _ if most >= FEWEST => Some(self.rng.between(FEWEST, most)),
            _ => None,
        }
    }

    /// Items per group and number of groups, whose product can be subtracted from `v`.
    pub(super) fn groups_within(&mut self, v: i64) -> Option<SlotNumbers> {
        let groups = self.factor().min(v / 3);
        let most = (v - FEWEST) / groups.max(1);
        if groups < FEWEST || most < FEWEST {
            return None;
        }
        let each = self.each();
        let each = if each <= most { each } else { self.rng.between(FEWEST, most) };
        Some([each, groups, 0, 0])
    }

    /// A divisor of `v` with a quotient of at least two.
    pub(super) fn divisor_of(&mut self, v: i64) -> Option<i64> {
        self.divisor_between(v, 2, self.scale.divisor())
    }

    /// A divisor of `v` from `least` to five.
    pub(super) fn part_of(&mut self, v: i64, least: i64) -> Option<i64> {
        self.divisor_between(v, least, 5)
    }

    fn divisor_between(&mut self, v: i64, low: i64, high: i64) -> Option<i64> {
        let divides = |k: &i64| v % k == 0 && v / k >= FEWEST;
        let count = (low..=high).filter(divides).count();
        let chosen = if count == 0 { return None } else { self.rng.below(count) };
        (low..=high).filter(divides).nth(chosen)
    }
}

/// Text.
impl ProblemDraft {
    /// Adds a phrase to the text, filling slots and capitalizing sentences.
    pub(super) fn append(&mut self, phrase: &'static str, numbers: SlotNumbers) {
        if !self.text.is_empty() && !self.text.ends_with(' ') {
            self.text.push(' ');
        }
        let start = self.text.len();
        let mut rest = phrase;
        while let Some((before, slot_on)) = rest.split_once('{') {
            self.text.push_str(before);
            let (slot, after) = slot_on.split_once('}').unwrap_or((slot_on, ""));
            self.fill(slot, numbers);
            rest = after;
        }
        self.text.push_str(rest);
        self.used_phrases.push(phrase);
        self.capitalise(start);
    }

    /// Adds words that start the next sentence.
    pub(super) fn lead_in(&mut self, words: &'static str) {
        self.append(words, [0; 4]);
        self.text.push(' ');
    }

    fn capitalise(&mut self, start: usize) {
        let text = self.text.as_bytes();
        let opens = |at: usize| at == 0 || (at >= 2 && matches!(text[at - 2], b'.' | b'?'));
        let starts: Vec<usize> = (start..text.len()).filter(|&at| opens(at)).collect();
        for at in starts {
            if let Some(letter) = self.text.get_mut(at..at + 1) {
                letter.make_ascii_uppercase();
            }
        }
    }

    fn fill(&mut self, slot: &str, numbers: SlotNumbers) {
        // Copies a few references, so that `self` can be borrowed mutably.
        let cast = self.cast;
        let word = match slot {
            "hero" => self.name_hero(),
            "he" if self.use_pronoun() => cast.people[0].he,
            "him" if self.hero_last_named => cast.people[0].him,
            "he" | "him" => self.name_hero(),
            "same" => cast.people[0].he,
            "his" => cast.people[0].his,
            "friend" => {
                self.require_hero_name();
                cast.people[1].name
            }
            "who" => cast.people[self.compared[0]].name,
            "than" => cast.people[self.compared[1]].name,
            "items" => cast.items[0].many,
            "item" => cast.items[0].one,
            "others" => cast.items[3].many,
            "new" => {
                self.bought += 1;
                cast.items[(self.bought - 1) % 3].many
            }
            "box" => cast.containers[0].one,
            "boxes" => cast.containers[0].many,
            "case" => cast.containers[1].one,
            "cases" => cast.containers[1].many,
            "red" => cast.adjectives[0],
            "blue" => cast.adjectives[1],
            "place" => cast.place,
            "kin" => {
                self.relatives += 1;
                cast.relatives[(self.relatives - 1) % 4]
            }
            "gift" => {
                self.gifts += 1;
                cast.gifts[(self.gifts - 1) % 4]
            }
            _ => return self.fill_number(slot, numbers),
        };
        self.text.push_str(word);
    }

    /// Fills a number slot such as `{2}`, `{times0}` or `{part0}`.
    fn fill_number(&mut self, slot: &str, numbers: SlotNumbers) {
        use std::fmt::Write;
        let at = slot.bytes().last().map_or(0, |digit| usize::from(digit.wrapping_sub(b'0')));
        let number = numbers.get(at).copied().unwrap_or_default();
        let word = |list: &[&'static str]| {
            usize::try_from(number - 2).ok().and_then(|i| list.get(i).copied())
        };
        let word = match slot.as_bytes().first() {
            Some(b't') => word(&TIMES),
            Some(b'p') => word(&PARTS),
            _ => None,
        };
        let times = if slot.starts_with('t') { " times" } else { "" };
        // Writing to a string cannot fail.
        let _ = match word {
            Some(word) => write!(self.text, "{word}"),
            None => write!(self.text, "{number}{times}"),
        };
    }

    /// Requires the main character's name, because another person was mentioned and a pronoun would
    /// be ambiguous.
    pub(super) fn require_hero_name(&mut self) {
        self.hero_last_named = false;
    }

    fn name_hero(&mut self) -> &'static str {
        self.hero_last_named = true;
        self.cast.people[0].name
    }

    /// Samples whether to use a pronoun; never if it would be ambiguous.
    fn use_pronoun(&mut self) -> bool {
        self.hero_last_named && self.rng.chance(75)
    }
}

impl StoryCast {
    fn sample(rng: &mut CorpusRng) -> Self {
        Self {
            people: distinct(rng, &PEOPLE),
            // Replaced by `choose_items`.
            items: std::array::from_fn(|i| &ITEMS[i]),
            containers: distinct(rng, &CONTAINERS),
            adjectives: distinct(rng, &COLORS).map(|color| *color),
            gifts: distinct(rng, &GIFTS).map(|gift| *gift),
            place: rng.pick::<&str>(&PLACES),
            relatives: distinct(rng, &RELATIVES).map(|relative| *relative),
        }
    }
}

/// N distinct random elements.
fn distinct<T, const N: usize>(rng: &mut CorpusRng, from: &'static [T]) -> [&'static T; N] {
    let mut chosen = [0; N];
    for i in 0..N {
        chosen[i] = rng.below(from.len());
        while chosen[..i].contains(&chosen[i]) {
            chosen[i] = (chosen[i] + 1) % from.len();
        }
    }
    chosen.map(|i| &from[i])
}
