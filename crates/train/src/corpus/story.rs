//! Stories: an opening, events, and a question, each picked by the number of steps that is left to fill.

use super::draft::Draft;
use super::lexicon::{BAKED, GROWN, ITEMS, Item, MADE};
use super::phrases::{Aside, LEAD_INS, Maker, Needs, bill, ood, own, purse, simple, stock};
use super::split::Split;

/// How often a sentence is drawn again where its numbers do not fit.
const TRIES: usize = 8;
/// Of a hundred stories, how many hold a sentence that has nothing to do with the question.
const DISTRACTED: usize = 20;

/// A family of stories.
#[derive(Debug)]
struct Story {
    weight: usize,
    /// What it can be about.
    things: &'static [Item],
    openings: &'static [Maker],
    events: &'static [Maker],
    closings: &'static [Maker],
    /// Sentences that have nothing to do with the question.
    asides: &'static [Aside],
}

const fn owning(weight: usize) -> Story {
    let (openings, events, closings, asides) = (own::OPENINGS, own::EVENTS, own::CLOSINGS, own::ASIDES);
    Story { weight, things: &ITEMS, openings, events, closings, asides }
}

const fn stocking(weight: usize, things: &'static [Item], openings: &'static [Maker]) -> Story {
    Story { weight, things, openings, events: stock::EVENTS, closings: stock::CLOSINGS, asides: stock::ASIDES }
}

static STORIES: [Story; 7] = [
    owning(30),
    Story { events: purse::EVENTS, closings: purse::CLOSINGS, openings: purse::OPENINGS, things: MADE, ..owning(14) },
    Story { events: bill::EVENTS, closings: bill::CLOSINGS, openings: bill::OPENINGS, things: MADE, ..owning(12) },
    stocking(10, MADE, stock::MACHINES),
    stocking(5, GROWN, stock::FARMS),
    stocking(5, BAKED, stock::BAKERIES),
    stocking(16, &ITEMS, stock::GROUPS),
];

/// Every phrase of this file's families.
pub(super) fn phrases() -> impl Iterator<Item = &'static str> {
    let stories = STORIES.iter().flat_map(|story| [story.openings, story.events, story.closings]);
    let tables = stories.chain([simple::OPENINGS, simple::CLOSINGS, ood::OPENINGS, ood::CLOSINGS]);
    let made = tables.flatten().flat_map(|maker| maker.phrases);
    let asides = own::ASIDES.iter().chain(stock::ASIDES).map(Aside::phrase);
    made.chain(LEAD_INS).copied().chain(asides)
}

/// A story of two to six steps.
pub(super) fn tell(draft: &mut Draft) -> Option<()> {
    let story = pick_story(draft);
    draft.about(story.things);
    let total = total_steps(draft);
    let closing_steps = draft.draws.below(3.min(total));
    let opening = one_of(draft, story.openings, |maker| maker.effect.steps() + closing_steps <= total)?;
    say(draft, opening)?;
    let mut left = total - closing_steps - opening.effect.steps();
    // A question about the opening alone would be no story.
    if left == 0 && closing_steps == 0 {
        return None;
    }
    if draft.draws.chance(DISTRACTED) {
        distract(draft, story.asides);
    }
    let mut lost = false;
    while left > 0 {
        let maker = tell_event(draft, story.events, left)?;
        left -= maker.effect.steps();
        lost = maker.effect.is_loss();
    }
    close(draft, story.closings, closing_steps, lost)
}

/// The question: one that takes `steps`, and asks for what is left only after a loss.
fn close(draft: &mut Draft, closings: &'static [Maker], steps: usize, lost: bool) -> Option<()> {
    let fits = |maker: &Maker| maker.effect.steps() == steps && (maker.needs != Needs::Loss || lost);
    (0..TRIES).find_map(|_| {
        let maker = one_of(draft, closings, fits)?;
        say(draft, maker)
    })
}

fn tell_event(draft: &mut Draft, events: &'static [Maker], left: usize) -> Option<&'static Maker> {
    (0..TRIES).find_map(|_| {
        let maker = one_of(draft, events, |maker| maker.effect.steps() <= left)?;
        let mark = draft.mark();
        let (phrase, numbers) = prepared(draft, maker).or_else(|| {
            draft.go_back(&mark);
            None
        })?;
        lead_in(draft, phrase);
        draft.say(phrase, numbers);
        Some(maker)
    })
}

/// Says when it happens, now and then, unless the sentence does.
fn lead_in(draft: &mut Draft, phrase: &'static str) {
    let says_when = phrase.starts_with("every ") || phrase.starts_with("for ");
    let words = *draft.draws.pick(LEAD_INS);
    if draft.draws.chance(25) && !says_when && !draft.has_said(words) {
        draft.lead_in(words);
    }
}

fn say(draft: &mut Draft, maker: &'static Maker) -> Option<()> {
    let mark = draft.mark();
    match prepared(draft, maker) {
        Some((phrase, numbers)) => {
            draft.say(phrase, numbers);
            Some(())
        }
        None => {
            draft.go_back(&mark);
            None
        }
    }
}

/// A phrase that was not said yet, its steps written.
fn prepared(draft: &mut Draft, maker: &'static Maker) -> Option<(&'static str, [i64; 4])> {
    let phrase = *draft.draws.pick(maker.phrases);
    if draft.has_said(phrase) || (maker.needs == Needs::Food && !draft.is_about_food()) {
        return None;
    }
    Some((phrase, maker.effect.apply(draft)?))
}

fn distract(draft: &mut Draft, asides: &'static [Aside]) {
    let aside = draft.draws.pick(asides);
    let number = match aside {
        Aside::Amount(_) => draft.amount(),
        Aside::Time(_) => draft.time(),
    };
    draft.say(aside.phrase(), [number, 0, 0, 0]);
    draft.name_next();
}

/// One of the makers that `fits`, each as likely as it has phrases.
fn one_of(draft: &mut Draft, makers: &'static [Maker], fits: impl Fn(&Maker) -> bool) -> Option<&'static Maker> {
    let total: usize = makers.iter().filter(|maker| fits(maker)).map(|maker| maker.phrases.len()).sum();
    let mut at = if total == 0 { return None } else { draft.draws.below(total) };
    makers.iter().filter(|maker| fits(maker)).find(|maker| {
        let here = at < maker.phrases.len();
        at = at.wrapping_sub(maker.phrases.len());
        here
    })
}

fn pick_story(draft: &mut Draft) -> &'static Story {
    let mut at = draft.draws.below(STORIES.iter().map(|story| story.weight).sum());
    let chosen = STORIES.iter().find(|story| {
        let here = at < story.weight;
        at = at.wrapping_sub(story.weight);
        here
    });
    chosen.unwrap_or(&STORIES[0])
}

/// Two to six, mostly three or four.
pub(super) fn total_steps(draft: &mut Draft) -> usize {
    match draft.draws.below(100) {
        0..16 => 2,
        16..42 => 3,
        42..68 => 4,
        68..86 => 5,
        _ => 6,
    }
}

/// A two-step story of the pairs that training may show.
pub(super) fn tell_simple(draft: &mut Draft) -> Option<()> {
    pair(draft, simple::OPENINGS, simple::CLOSINGS, Some(true))
}

/// A two-step story that training never shows: a pair held out from it, or other sentences of the same words.
pub(super) fn out_of_distribution(draft: &mut Draft) -> Option<()> {
    debug_assert_eq!(draft.split(), Split::Ood);
    match draft.draws.below(4) {
        0 | 1 => pair(draft, simple::OPENINGS, simple::CLOSINGS, Some(false)),
        2 => pair(draft, ood::OPENINGS, ood::CLOSINGS, None),
        _ => pair(draft, ood::OPENINGS, simple::CLOSINGS, None),
    }
}

/// An opening and a closing, of pairs that are in training, not in training, or of any.
fn pair(draft: &mut Draft, openings: &'static [Maker], closings: &'static [Maker], trained: Option<bool>) -> Option<()> {
    draft.about(&ITEMS);
    let (opening, closing) = (one_of(draft, openings, |_| true)?, one_of(draft, closings, |_| true)?);
    let (first, numbers) = prepared(draft, opening)?;
    let (second, more) = prepared(draft, closing)?;
    if trained.is_some_and(|trained| trained != is_trained(first, second)) {
        return None;
    }
    draft.say(first, numbers);
    draft.say(second, more);
    Some(())
}

/// Whether training may show a simple closing after a simple opening: three of four pairs.
pub(super) fn is_trained(opening: &'static str, closing: &'static str) -> bool {
    let place = |table: &'static [Maker], phrase: &'static str| {
        table.iter().flat_map(|maker| maker.phrases).position(|p| std::ptr::eq(*p, phrase)).unwrap_or_default()
    };
    (place(simple::OPENINGS, opening) + place(simple::CLOSINGS, closing)) % 4 != 3
}

#[cfg(test)]
mod tests {
    use super::super::draws::Draws;
    use super::super::scale::Scale;
    use super::*;

    fn said(split: Split, tell: fn(&mut Draft) -> Option<()>) -> impl Iterator<Item = [&'static str; 2]> {
        (0..20_000).filter_map(move |index| {
            let mut draft = Draft::new(split, Scale::Base, Draws::new(3, index, 0, 0));
            tell(&mut draft)?;
            draft.said().try_into().ok()
        })
    }

    #[test]
    fn pairs_that_are_held_out_are_never_trained_on() {
        let trained: Vec<_> = said(Split::Train, tell_simple).collect();
        let held_out: Vec<_> = said(Split::Ood, out_of_distribution).collect();
        assert!(trained.len() > 5_000 && held_out.len() > 5_000);
        assert!(trained.iter().all(|[opening, closing]| is_trained(opening, closing)));
        assert!(held_out.iter().all(|pair| !trained.contains(pair)));
    }

    #[test]
    fn every_sentence_of_a_pair_that_is_held_out_is_in_training_with_others() {
        let all = |table: &'static [Maker]| table.iter().flat_map(|maker| maker.phrases.iter().copied());
        for opening in all(simple::OPENINGS) {
            assert!(all(simple::CLOSINGS).any(|closing| is_trained(opening, closing)));
            assert!(all(simple::CLOSINGS).any(|closing| !is_trained(opening, closing)));
        }
        for closing in all(simple::CLOSINGS) {
            assert!(all(simple::OPENINGS).any(|opening| is_trained(opening, closing)));
        }
    }
}
