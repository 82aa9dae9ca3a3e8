//! Comparisons: two to four people, each with more, fewer, or a multiple of the items of an earlier
//! person.

use super::ArithOp;
use super::draft::ProblemDraft;
use super::lexicon::ITEMS;
use super::phrases::people;

/// All phrases of this family.
pub(super) fn phrases() -> impl Iterator<Item = &'static str> {
    let templates =
        people::RELATIONS.iter().chain(people::ENDS).flat_map(|template| template.phrases);
    templates
        .chain(people::START)
        .chain(people::ONE)
        .chain(people::TOGETHER)
        .chain(people::MORE)
        .copied()
}

/// The people of a comparison.
struct ComparedPeople {
    /// Number of people.
    size: usize,
    /// Number of items per person.
    owned: [i64; 4],
    /// Per person: the person it is compared to.
    compared_to: [usize; 4],
}

/// Generates a comparison with two to six steps.
pub(super) fn generate(draft: &mut ProblemDraft) -> Option<()> {
    draft.choose_items(&ITEMS);
    let group = introduce(draft)?;
    match draft.rng.below(8) {
        0 => ask_for_last(draft, &group),
        1 | 2 => ask_for_difference(draft, &group),
        3..=5 => {
            sum_all(draft, &group)?;
            append_one(draft, people::TOGETHER, [0; 4]);
            Some(())
        }
        _ => {
            sum_all(draft, &group)?;
            let template = draft.rng.pick(people::ENDS);
            let numbers = template.effect.apply(draft)?;
            append_one(draft, template.phrases, numbers);
            Some(())
        }
    }
}

/// States the items of every person. The step of person `i` is number `i - 1`.
fn introduce(draft: &mut ProblemDraft) -> Option<ComparedPeople> {
    let mut group = ComparedPeople {
        size: 2 + draft.rng.below(3),
        owned: [draft.amount(); 4],
        compared_to: [0; 4],
    };
    draft.compared = [0, 0];
    append_one(draft, people::START, [group.owned[0], 0, 0, 0]);
    for who in 1..group.size {
        let than = draft.rng.below(who);
        draft.compared = [who, than];
        draft.value = group.owned[than];
        let template = draft.rng.pick(people::RELATIONS);
        let numbers = template.effect.apply(draft)?;
        append_one(draft, template.phrases, numbers);
        (group.owned[who], group.compared_to[who]) = (draft.value, than);
    }
    Some(group)
}

fn ask_for_last(draft: &mut ProblemDraft, group: &ComparedPeople) -> Option<()> {
    let last = group.size - 1;
    keep_needed_steps(draft, group, &[last]);
    draft.compared = [last, last];
    append_one(draft, people::ONE, [0; 4]);
    Some(())
}

/// Asks for the difference of two people; `None` if the text states it.
fn ask_for_difference(draft: &mut ProblemDraft, group: &ComparedPeople) -> Option<()> {
    let last = group.size - 1;
    let other = draft.rng.below(last);
    let stated = matches!(draft.steps()[last - 1].op, ArithOp::Add | ArithOp::Sub);
    if stated && group.compared_to[last] == other {
        return None;
    }
    let (more, fewer) =
        if group.owned[last] > group.owned[other] { (last, other) } else { (other, last) };
    keep_needed_steps(draft, group, &[more, fewer]);
    draft.step(group.owned[more], ArithOp::Sub, group.owned[fewer])?;
    draft.compared = [more, fewer];
    append_one(draft, people::MORE, [0; 4]);
    Some(())
}

/// Drops the steps that the answer does not need; their sentences remain as distractors.
fn keep_needed_steps(draft: &mut ProblemDraft, group: &ComparedPeople, requested: &[usize]) {
    let mut needed = [false; 4];
    for &person in requested {
        let mut who = person;
        while who > 0 {
            needed[who] = true;
            who = group.compared_to[who];
        }
    }
    draft.keep_steps(|step| needed[step + 1]);
}

fn sum_all(draft: &mut ProblemDraft, group: &ComparedPeople) -> Option<()> {
    let mut sum = group.owned[0];
    for more in &group.owned[1..group.size] {
        sum = draft.step(sum, ArithOp::Add, *more)?;
    }
    draft.value = sum;
    Some(())
}

fn append_one(draft: &mut ProblemDraft, phrases: &'static [&'static str], numbers: [i64; 4]) {
    let phrase = *draft.rng.pick(phrases);
    draft.append(phrase, numbers);
}
