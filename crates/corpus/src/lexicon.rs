//! The words for the slots of phrases.

/// A name with its pronouns.
#[derive(Debug)]
pub(super) struct Person {
    pub name: &'static str,
    pub he: &'static str,
    pub his: &'static str,
    pub him: &'static str,
}

const fn man(name: &'static str) -> Person {
    Person { name, he: "he", his: "his", him: "him" }
}

const fn woman(name: &'static str) -> Person {
    Person { name, he: "she", his: "her", him: "her" }
}

pub(super) static PEOPLE: [Person; 36] = [
    man("Adam"),
    man("Ben"),
    man("Carl"),
    man("David"),
    man("Eric"),
    man("Frank"),
    man("George"),
    man("Henry"),
    man("Ivan"),
    man("Jack"),
    man("Kevin"),
    man("Leo"),
    man("Mark"),
    man("Noah"),
    man("Oscar"),
    man("Paul"),
    man("Sam"),
    man("Tom"),
    woman("Alice"),
    woman("Beth"),
    woman("Clara"),
    woman("Diana"),
    woman("Emma"),
    woman("Fiona"),
    woman("Grace"),
    woman("Helen"),
    woman("Iris"),
    woman("Julia"),
    woman("Kate"),
    woman("Laura"),
    woman("Maria"),
    woman("Nina"),
    woman("Olivia"),
    woman("Rosa"),
    woman("Sarah"),
    woman("Wendy"),
];

/// A countable noun.
#[derive(Debug)]
pub(super) struct StoryItem {
    pub one: &'static str,
    pub many: &'static str,
}

const fn item(one: &'static str, many: &'static str) -> StoryItem {
    StoryItem { one, many }
}

/// All items, in the order [`GROWN`], [`BAKED`], [`MADE`].
pub(super) static ITEMS: [StoryItem; 34] = [
    item("apple", "apples"),
    item("carrot", "carrots"),
    item("lemon", "lemons"),
    item("orange", "oranges"),
    item("peach", "peaches"),
    item("pear", "pears"),
    item("plum", "plums"),
    item("tomato", "tomatoes"),
    item("candy", "candies"),
    item("cookie", "cookies"),
    item("cupcake", "cupcakes"),
    item("muffin", "muffins"),
    item("badge", "badges"),
    item("ball", "balls"),
    item("balloon", "balloons"),
    item("bead", "beads"),
    item("block", "blocks"),
    item("book", "books"),
    item("bottle", "bottles"),
    item("button", "buttons"),
    item("candle", "candles"),
    item("card", "cards"),
    item("coin", "coins"),
    item("crayon", "crayons"),
    item("cup", "cups"),
    item("doll", "dolls"),
    item("marble", "marbles"),
    item("pen", "pens"),
    item("pencil", "pencils"),
    item("plate", "plates"),
    item("ribbon", "ribbons"),
    item("stamp", "stamps"),
    item("sticker", "stickers"),
    item("toy", "toys"),
];

/// Fruit and vegetables.
pub(super) static GROWN: &[StoryItem] = ITEMS.split_at(8).0;
/// Baked food.
pub(super) static BAKED: &[StoryItem] = ITEMS.split_at(8).1.split_at(4).0;
/// Manufactured items.
pub(super) static MADE: &[StoryItem] = ITEMS.split_at(12).1;

impl StoryItem {
    pub(super) fn is_food(&self) -> bool {
        !MADE.iter().any(|made| std::ptr::eq(made, self))
    }
}

/// A container of items.
#[derive(Debug)]
pub(super) struct Container {
    pub one: &'static str,
    pub many: &'static str,
}

const fn container(one: &'static str, many: &'static str) -> Container {
    Container { one, many }
}

pub(super) static CONTAINERS: [Container; 7] = [
    container("bag", "bags"),
    container("basket", "baskets"),
    container("box", "boxes"),
    container("bucket", "buckets"),
    container("crate", "crates"),
    container("jar", "jars"),
    container("pack", "packs"),
];

pub(super) static RELATIVES: [&str; 9] =
    ["aunt", "brother", "cousin", "father", "grandmother", "mother", "neighbor", "sister", "uncle"];

/// Places where people go.
pub(super) static PLACES: [&str; 7] =
    ["fair", "library", "market", "museum", "park", "school", "store"];

/// Things that are bought once, for a price. All take the article `a`.
pub(super) static GIFTS: [&str; 10] =
    ["bike", "chair", "coat", "dress", "game", "hat", "jacket", "lamp", "shirt", "watch"];

/// Adjectives for food, used instead of colors.
pub(super) static SIZES: [&str; 2] = ["big", "small"];

pub(super) static COLORS: [&str; 6] = ["black", "blue", "green", "red", "white", "yellow"];

/// Words for multiples from 2 on; larger numbers are written in digits.
pub(super) static TIMES: [&str; 5] =
    ["twice", "three times", "four times", "five times", "six times"];

/// Fractions 1/n, from n = 2 on.
pub(super) static PARTS: [&str; 4] = ["half", "a third", "a quarter", "a fifth"];

/// All words of this file.
pub(super) fn words() -> impl Iterator<Item = &'static str> {
    let people = PEOPLE.iter().flat_map(|p| [p.name, p.he, p.his, p.him]);
    let items = ITEMS.iter().flat_map(|i| [i.one, i.many]);
    let containers = CONTAINERS.iter().flat_map(|c| [c.one, c.many]);
    let plain = RELATIVES
        .iter()
        .chain(&PLACES)
        .chain(&GIFTS)
        .chain(&SIZES)
        .chain(&COLORS)
        .chain(&TIMES)
        .chain(&PARTS);
    people.chain(items).chain(containers).chain(plain.copied())
}
