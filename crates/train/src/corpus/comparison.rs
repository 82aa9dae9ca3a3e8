//! Comparisons: two to four people, each of whom has more, fewer, or so many times as many as one before.

use super::Op;
use super::draft::Draft;
use super::lexicon::ITEMS;
use super::phrases::people;

/// Every phrase of this family.
pub(super) fn phrases() -> impl Iterator<Item = &'static str> {
    let made = people::RELATIONS.iter().chain(people::ENDS).flat_map(|maker| maker.phrases);
    made.chain(people::START).chain(people::ONE).chain(people::TOGETHER).chain(people::MORE).copied()
}

/// What is known of the people so far.
struct Group {
    /// How many of them.
    size: usize,
    /// What each has.
    owned: [i64; 4],
    /// Whom each was compared with.
    than: [usize; 4],
}

/// A comparison of two to six steps.
pub(super) fn tell(draft: &mut Draft) -> Option<()> {
    draft.about(&ITEMS);
    let group = introduce(draft)?;
    match draft.draws.below(8) {
        0 => ask_for_last(draft, &group),
        1 | 2 => ask_for_difference(draft, &group),
        3..=5 => {
            add_up(draft, &group)?;
            say_one(draft, people::TOGETHER, [0; 4]);
            Some(())
        }
        _ => {
            add_up(draft, &group)?;
            let maker = draft.draws.pick(people::ENDS);
            let numbers = maker.effect.apply(draft)?;
            say_one(draft, maker.phrases, numbers);
            Some(())
        }
    }
}

/// Says what everyone has. The step of person `i` is number `i - 1`.
fn introduce(draft: &mut Draft) -> Option<Group> {
    let mut group = Group { size: 2 + draft.draws.below(3), owned: [draft.amount(); 4], than: [0; 4] };
    draft.compared = [0, 0];
    say_one(draft, people::START, [group.owned[0], 0, 0, 0]);
    for who in 1..group.size {
        let than = draft.draws.below(who);
        draft.compared = [who, than];
        draft.value = group.owned[than];
        let maker = draft.draws.pick(people::RELATIONS);
        let numbers = maker.effect.apply(draft)?;
        say_one(draft, maker.phrases, numbers);
        (group.owned[who], group.than[who]) = (draft.value, than);
    }
    Some(group)
}

fn ask_for_last(draft: &mut Draft, group: &Group) -> Option<()> {
    let last = group.size - 1;
    forget_all_but(draft, group, &[last]);
    draft.compared = [last, last];
    say_one(draft, people::ONE, [0; 4]);
    Some(())
}

/// How many more one has than another, unless the text says so.
fn ask_for_difference(draft: &mut Draft, group: &Group) -> Option<()> {
    let last = group.size - 1;
    let other = draft.draws.below(last);
    let told = matches!(draft.steps()[last - 1].op, Op::Add | Op::Sub);
    if told && group.than[last] == other {
        return None;
    }
    let (more, fewer) = if group.owned[last] > group.owned[other] { (last, other) } else { (other, last) };
    forget_all_but(draft, group, &[more, fewer]);
    draft.step(group.owned[more], Op::Sub, group.owned[fewer])?;
    draft.compared = [more, fewer];
    say_one(draft, people::MORE, [0; 4]);
    Some(())
}

/// Drops the steps that the answer does not need; their sentences stay, to distract.
fn forget_all_but(draft: &mut Draft, group: &Group, asked: &[usize]) {
    let mut needed = [false; 4];
    for &person in asked {
        let mut who = person;
        while who > 0 {
            needed[who] = true;
            who = group.than[who];
        }
    }
    draft.keep_steps(|step| needed[step + 1]);
}

fn add_up(draft: &mut Draft, group: &Group) -> Option<()> {
    let mut sum = group.owned[0];
    for more in &group.owned[1..group.size] {
        sum = draft.step(sum, Op::Add, *more)?;
    }
    draft.value = sum;
    Some(())
}

fn say_one(draft: &mut Draft, phrases: &'static [&'static str], numbers: [i64; 4]) {
    let phrase = *draft.draws.pick(phrases);
    draft.say(phrase, numbers);
}
