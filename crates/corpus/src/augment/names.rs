//! Swaps first names for others of the same gender throughout a question.
//!
//! The lists contain only unambiguous names: no words (Mark, Grace), months, places (Austin,
//! Georgia) or names of both genders. A name with a surname is a known person and is kept.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use super::lexer::{QuestionToken, TokenKind};
use super::stream::VariantRng;

static FEMALE: LazyLock<Vec<&str>> = LazyLock::new(|| {
    "\
     Mary Sarah Janet Jenny Jane Martha Sally Carla Anna Hannah Susan Lisa Emily Maria Karen \
     Betty Alice Nancy Rachel Tina Annie Amanda Julia Jessica Jenna Beth Emma Julie Sara Carrie \
     Megan Amy Janice Linda Lucy Ann Carly Mandy Brenda Nina Donna Sandra Stacy Monica Leila \
     Samantha Jennifer Angela Madeline Susie Kate Gina Laura Cindy Kendra Wendy Bella Marcy \
     Rebecca Michelle Katie Diane Olivia Joan Barbara Elsa Anne Dorothy Melissa Stephanie Kylie \
     Tiffany Brittany Carolyn Tara Haley Becky Helen Kayla Claire Tonya Abigail Elizabeth \
     Ashley Patricia Cheryl Sophie Rita Molly Mia Sheila Mabel Natalie Marla Tanya Lydia Maggie \
     Layla Veronica Polly Andrea Ella Erin Paula Danielle Erica Marta Phoebe Christine Lara \
     Diana Gretchen Zoe Nicole Alyssa Stella Christina Pam Lana Miriam Kelsey Tammy Clara \
     Pauline Ruth Nora Melanie Shelly Maddie Marcia Cynthia Amelia Lola Peggy Isabella Ellen \
     Bethany Ava Leah Irene Ellie Valerie Angie Katrina Sabrina Gloria Cathy Fiona Theresa \
     Margaret Alicia Tabitha Wanda Greta Louise Maya Doris Teresa Juanita Chloe Naomi Priya \
     Yasmin Amina Ingrid Rosa Elena Heidi Nadia Keisha Mei Aisha Lena Vera"
        .split_whitespace()
        .collect()
});
static MALE: LazyLock<Vec<&str>> = LazyLock::new(|| {
    "\
     John James Tom Tim Mike Jerry Peter Jason Tony Matt Jim Michael Steve Joe Billy Ben Harry \
     Paul Jake Josh Adam Carl Jacob Andy Jimmy Jeff Ryan George Randy Andrew Henry Rick Kevin \
     Tommy Bobby Brian Greg Marcus Thomas Kyle David Oliver Jeremy Johnny Fred Roger Toby Danny \
     Justin William Martin Dave Carlos Gerald Aaron Daniel Simon Gary Barry Samuel Joseph Eric \
     Pete Jose Luke Alan Leo Brandon Dan Joey Robert Diego Caleb Manny Ian Phil Bryan Trevor \
     Patrick Sean Nathan Jerome Mario Derek Bert Charlie Javier Tyler Lucas Steven Connor Bruce \
     Charles Jared Albert Noah Larry Richard Kenny Calvin Juan Anthony Ivan Brad Ron Matthew \
     Arthur Hank Scott Ralph Todd Ted Nate Phillip Stan Micah Joel Neil Walter Jorge Zach \
     Malcolm Dexter Oscar Rodney Travis Brendan Trey Alexander Stephen Vincent Kenneth Gordon \
     Theo Joshua Philip Dante Mitch Freddy Marco Gabriel Tobias Keith Hans Archie Seth Arnold \
     Ronald Timothy Roberto Jonah Bart Trent Christopher Antonio Julian Timmy Evan Julio Pablo \
     Hugo Ethan Dennis Sebastian Benjamin Harold Boris Omar Ahmed Raj Kwame Felix Edgar Emilio \
     Mateo Viktor Hassan Luis Rafael Amir"
        .split_whitespace()
        .collect()
});

/// Whether a word in lower case is in the lists.
pub(super) fn is_first_name(word: &str) -> bool {
    FIRST_NAMES.contains(word)
}

static FIRST_NAMES: LazyLock<HashSet<String>> =
    LazyLock::new(|| FEMALE.iter().chain(MALE.iter()).map(|name| name.to_lowercase()).collect());

/// A person in a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoryPerson {
    pub(super) name: &'static str,
    pub(super) is_female: bool,
}

impl StoryPerson {
    /// Samples a person whose name starts with a different letter than the names in `taken`.
    pub(super) fn draw(rng: &mut VariantRng, taken: &[&str]) -> Option<Self> {
        let initial = |name: &str| name.chars().next();
        (0..64).find_map(|_| {
            let is_female = rng.chance(50);
            let list: &[&'static str] = if is_female { &FEMALE } else { &MALE };
            let name = list[rng.below(list.len() as u32) as usize];
            let free = taken.iter().all(|other| initial(other) != initial(name));
            free.then_some(Self { name, is_female })
        })
    }
}

/// Words of texts in which the letters or the number of names matter.
const LETTER_WORDS: &[&str] = &["letter", "letters", "alphabet", "alphabetical", "spell", "named"];

/// The names of a question that can be swapped, in alphabetical order.
#[derive(Debug, Clone, Default)]
pub(super) struct SwappableNames {
    /// Name in lower case -> its list.
    names: BTreeMap<String, &'static [&'static str]>,
    /// All capitalized words of the question, in lower case.
    taken: Vec<String>,
}

impl SwappableNames {
    /// Finds the names among a question's tokens.
    pub(super) fn find(tokens: &[QuestionToken]) -> Self {
        let taken: Vec<String> =
            tokens.iter().filter(|t| t.capital).map(|t| stem(&t.text).to_owned()).collect();
        let about_letters = tokens.iter().any(|t| LETTER_WORDS.contains(&t.text.as_str()));
        let mut names = BTreeMap::new();
        for token in tokens.iter().filter(|token| token.capital && !about_letters) {
            let name = stem(&token.text);
            let lists: [&'static [&'static str]; 2] = [&FEMALE, &MALE];
            if let Some(list) = lists.into_iter().find(|list| position(list, name).is_some()) {
                names.insert(name.to_owned(), list);
            }
        }
        names.retain(|name, _| stands_alone(tokens, name));
        // Samuel and Sam may be the same person.
        let short = |name: &str| name.chars().take(3).collect::<String>();
        let alone = |name: &str| taken.iter().all(|t| t == name || short(t) != short(name));
        names.retain(|name, _| alone(name));
        Self { names, taken }
    }

    /// Samples a new name for each, all distinct and not in the question.
    pub(super) fn draw(&self, rng: &mut VariantRng) -> NameSwap {
        let mut swap = BTreeMap::new();
        for (name, list) in &self.names {
            let drawn = list[rng.below(list.len() as u32) as usize];
            let lower = drawn.to_lowercase();
            let initial = |text: &str| text.chars().next();
            let free = !self.taken.iter().any(|taken| initial(taken) == initial(&lower))
                && swap.values().all(|other: &&str| initial(other) != initial(drawn));
            if free {
                swap.insert(name.clone(), drawn);
            }
        }
        NameSwap(swap)
    }
}

/// A name without its possessive ending.
fn stem(word: &str) -> &str {
    word.strip_suffix("'s").unwrap_or(word)
}

fn position(list: &[&str], name: &str) -> Option<usize> {
    list.iter().position(|listed| listed.eq_ignore_ascii_case(name))
}

/// Whether no mention of a name is part of a longer one (`Harry Potter`, `St. John`).
fn stands_alone(tokens: &[QuestionToken], name: &str) -> bool {
    let is_titled = |token: &QuestionToken| matches!(token.text.as_str(), "st" | "saint");
    tokens.iter().enumerate().all(|(at, token)| {
        if stem(&token.text) != name {
            return true;
        }
        let joined = |other: Option<&QuestionToken>| {
            other.is_some_and(|o| o.kind == TokenKind::Word && o.capital && o.text.len() > 1)
        };
        let possessive = token.text.ends_with("'s");
        let before = at.checked_sub(1).map(|at| &tokens[at]);
        let starts_sentence =
            at < 2 || matches!(tokens[at - 2].text.as_str(), "." | "?" | "!" | ",");
        token.capital
            && !joined(tokens.get(at + 1))
            && !(possessive && joined(tokens.get(at + 1)))
            && (starts_sentence || !joined(before) || before.is_some_and(is_common_opening))
            && !(at >= 2 && is_titled(&tokens[at - 2]))
            && tokens.get(at + 1).is_none_or(|next| next.text != "-")
    })
}

/// Whether a capitalized word starts a sentence before a name: `If John`, `Then Mary`.
fn is_common_opening(token: &QuestionToken) -> bool {
    const OPENINGS: &[&str] = &[
        "if",
        "then",
        "when",
        "after",
        "before",
        "while",
        "since",
        "because",
        "but",
        "and",
        "so",
        "yesterday",
        "today",
        "now",
        "how",
        "on",
        "in",
        "at",
        "as",
        "for",
        "with",
        "both",
        "last",
    ];
    OPENINGS.contains(&token.text.as_str())
}

/// Names and what takes their place.
#[derive(Debug, Clone, Default)]
pub(super) struct NameSwap(BTreeMap<String, &'static str>);

impl NameSwap {
    /// The text with all names swapped.
    pub(super) fn apply(&self, text: &str) -> String {
        if self.0.is_empty() {
            return text.to_owned();
        }
        let mut swapped = String::with_capacity(text.len() + 16);
        let mut copied = 0;
        for token in super::lexer::tokens(text) {
            let name = stem(&token.text);
            let Some(other) = self.0.get(name).filter(|_| token.capital) else { continue };
            swapped.push_str(&text[copied..token.range.start]);
            swapped.push_str(other);
            copied = token.range.start + name.len();
            // `James'` becomes `Tom's`.
            let rest = &text[copied..];
            let bare = |mark| rest.strip_prefix(mark).filter(|rest| !rest.starts_with('s'));
            if let Some(after) = bare("' ").or_else(|| bare("’ ")).filter(|_| name.ends_with('s'))
            {
                swapped.push_str("'s ");
                copied = text.len() - after.len();
            }
        }
        swapped.push_str(&text[copied..]);
        swapped
    }
}

#[cfg(test)]
mod tests {
    use super::super::lexer::tokens;
    use super::*;

    fn swapped(question: &str) -> (String, usize) {
        let names = SwappableNames::find(&tokens(question));
        // A sample may use a name that is in use; at least one of these streams does not.
        let swaps = (0..50).map(|variant| names.draw(&mut VariantRng::new(1, 2, variant)));
        let swap = swaps.max_by_key(|swap| swap.0.len()).unwrap();
        (swap.apply(question), swap.0.len())
    }

    #[test]
    fn names_are_swapped_everywhere() {
        let (text, count) = swapped("James has 3 dogs. Mary likes James' dogs and James's cat.");
        assert_eq!(count, 2);
        assert!(!text.contains("James") && !text.contains("Mary"), "{text}");
        let name = text.split(' ').next().unwrap();
        assert_eq!(text.matches(&format!("{name}'s")).count(), 2, "{text}");
    }

    #[test]
    fn words_places_and_the_known_stay() {
        for question in [
            "Mark has 3 dogs.",
            "Will Grace go to Austin in May?",
            "Harry Potter has 3 owls, and Harry loves them.",
            "Sam is Samuel's nickname.",
            "The letters of Mary",
            "They live near St. John",
        ] {
            assert_eq!(swapped(question), (question.to_owned(), 0));
        }
    }

    #[test]
    fn lists_are_disjoint_and_without_words() {
        for name in FEMALE.iter() {
            assert!(!MALE.contains(name), "{name}");
        }
        for list in [&FEMALE, &MALE] {
            let mut sorted = list.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), list.len());
            for word in ["Mark", "Grace", "Rose", "Bill", "Will", "Austin", "Georgia", "April"] {
                assert!(!list.contains(&word));
            }
        }
    }
}
