//! Stories: an opening, events, and a question, each picked by the number of steps that is left to
//! fill.

use super::draft::ProblemDraft;
use super::lexicon::{BAKED, GROWN, ITEMS, MADE, StoryItem};
use super::phrases::{
    Distractor, LEAD_INS, SentenceTemplate, TemplateCondition, bill, ood, own, purse, simple, stock,
};
use super::split::Split;

/// How often a sentence is drawn again where its numbers do not fit.
const TRIES: usize = 8;
/// Of a hundred stories, how many hold a sentence that has nothing to do with the question.
const DISTRACTOR_PERCENT: usize = 20;

/// A family of stories.
#[derive(Debug)]
struct StoryFamily {
    weight: usize,
    /// What it can be about.
    items: &'static [StoryItem],
    openings: &'static [SentenceTemplate],
    events: &'static [SentenceTemplate],
    closings: &'static [SentenceTemplate],
    /// Sentences that have nothing to do with the question.
    distractors: &'static [Distractor],
}

const fn owning(weight: usize) -> StoryFamily {
    let (openings, events, closings, asides) =
        (own::OPENINGS, own::EVENTS, own::CLOSINGS, own::DISTRACTORS);
    StoryFamily { weight, items: &ITEMS, openings, events, closings, distractors: asides }
}

const fn stocking(
    weight: usize,
    things: &'static [StoryItem],
    openings: &'static [SentenceTemplate],
) -> StoryFamily {
    StoryFamily {
        weight,
        items: things,
        openings,
        events: stock::EVENTS,
        closings: stock::CLOSINGS,
        distractors: stock::DISTRACTORS,
    }
}

static STORIES: [StoryFamily; 7] = [
    owning(30),
    StoryFamily {
        events: purse::EVENTS,
        closings: purse::CLOSINGS,
        openings: purse::OPENINGS,
        items: MADE,
        ..owning(14)
    },
    StoryFamily {
        events: bill::EVENTS,
        closings: bill::CLOSINGS,
        openings: bill::OPENINGS,
        items: MADE,
        ..owning(12)
    },
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
    let asides = own::DISTRACTORS.iter().chain(stock::DISTRACTORS).map(Distractor::phrase);
    made.chain(LEAD_INS).copied().chain(asides)
}

/// A story of two to six steps.
pub(super) fn generate(draft: &mut ProblemDraft) -> Option<()> {
    let story = pick_story(draft);
    draft.choose_items(story.items);
    let total = total_steps(draft);
    let closing_steps = draft.rng.below(3.min(total));
    let opening = pick_template(draft, story.openings, |maker| {
        maker.effect.steps() + closing_steps <= total
    })?;
    add_sentence(draft, opening)?;
    let mut left = total - closing_steps - opening.effect.steps();
    // A question about the opening alone would be no story.
    if left == 0 && closing_steps == 0 {
        return None;
    }
    if draft.rng.chance(DISTRACTOR_PERCENT) {
        add_distractor(draft, story.distractors);
    }
    let mut lost = false;
    while left > 0 {
        let maker = add_event(draft, story.events, left)?;
        left -= maker.effect.steps();
        lost = maker.effect.is_loss();
    }
    close(draft, story.closings, closing_steps, lost)
}

/// The question: one that takes `steps`, and asks for what is left only after a loss.
fn close(
    draft: &mut ProblemDraft,
    closings: &'static [SentenceTemplate],
    steps: usize,
    lost: bool,
) -> Option<()> {
    let fits = |maker: &SentenceTemplate| {
        maker.effect.steps() == steps && (maker.condition != TemplateCondition::Loss || lost)
    };
    (0..TRIES).find_map(|_| {
        let maker = pick_template(draft, closings, fits)?;
        add_sentence(draft, maker)
    })
}

fn add_event(
    draft: &mut ProblemDraft,
    events: &'static [SentenceTemplate],
    left: usize,
) -> Option<&'static SentenceTemplate> {
    (0..TRIES).find_map(|_| {
        let maker = pick_template(draft, events, |maker| maker.effect.steps() <= left)?;
        let mark = draft.snapshot();
        let (phrase, numbers) = instantiate(draft, maker).or_else(|| {
            draft.restore(&mark);
            None
        })?;
        lead_in(draft, phrase);
        draft.append(phrase, numbers);
        Some(maker)
    })
}

/// Says when it happens, now and then, unless the sentence does.
fn lead_in(draft: &mut ProblemDraft, phrase: &'static str) {
    let says_when = phrase.starts_with("every ") || phrase.starts_with("for ");
    let words = *draft.rng.pick(LEAD_INS);
    if draft.rng.chance(25) && !says_when && !draft.has_used(words) {
        draft.lead_in(words);
    }
}

fn add_sentence(draft: &mut ProblemDraft, maker: &'static SentenceTemplate) -> Option<()> {
    let mark = draft.snapshot();
    match instantiate(draft, maker) {
        Some((phrase, numbers)) => {
            draft.append(phrase, numbers);
            Some(())
        }
        None => {
            draft.restore(&mark);
            None
        }
    }
}

/// A phrase that was not said yet, its steps written.
fn instantiate(
    draft: &mut ProblemDraft,
    maker: &'static SentenceTemplate,
) -> Option<(&'static str, [i64; 4])> {
    let phrase = *draft.rng.pick(maker.phrases);
    if draft.has_used(phrase)
        || (maker.condition == TemplateCondition::Food && !draft.is_about_food())
    {
        return None;
    }
    Some((phrase, maker.effect.apply(draft)?))
}

fn add_distractor(draft: &mut ProblemDraft, asides: &'static [Distractor]) {
    let aside = draft.rng.pick(asides);
    let number = match aside {
        Distractor::Amount(_) => draft.amount(),
        Distractor::Time(_) => draft.time(),
    };
    draft.append(aside.phrase(), [number, 0, 0, 0]);
    draft.require_hero_name();
}

/// One of the makers that `fits`, each as likely as it has phrases.
fn pick_template(
    draft: &mut ProblemDraft,
    makers: &'static [SentenceTemplate],
    fits: impl Fn(&SentenceTemplate) -> bool,
) -> Option<&'static SentenceTemplate> {
    let total: usize =
        makers.iter().filter(|maker| fits(maker)).map(|maker| maker.phrases.len()).sum();
    let mut at = if total == 0 { return None } else { draft.rng.below(total) };
    makers.iter().filter(|maker| fits(maker)).find(|maker| {
        let here = at < maker.phrases.len();
        at = at.wrapping_sub(maker.phrases.len());
        here
    })
}

fn pick_story(draft: &mut ProblemDraft) -> &'static StoryFamily {
    let mut at = draft.rng.below(STORIES.iter().map(|story| story.weight).sum());
    let chosen = STORIES.iter().find(|story| {
        let here = at < story.weight;
        at = at.wrapping_sub(story.weight);
        here
    });
    chosen.unwrap_or(&STORIES[0])
}

/// Two to six, mostly three or four.
pub(super) fn total_steps(draft: &mut ProblemDraft) -> usize {
    match draft.rng.below(100) {
        0..16 => 2,
        16..42 => 3,
        42..68 => 4,
        68..86 => 5,
        _ => 6,
    }
}

/// A two-step story of the pairs that training may show.
pub(super) fn generate_two_step(draft: &mut ProblemDraft) -> Option<()> {
    generate_pair(draft, simple::OPENINGS, simple::CLOSINGS, Some(true))
}

/// A two-step story that training never shows: a pair held out from it, or other sentences of the
/// same words.
pub(super) fn generate_ood(draft: &mut ProblemDraft) -> Option<()> {
    debug_assert_eq!(draft.split(), Split::Ood);
    match draft.rng.below(4) {
        0 | 1 => generate_pair(draft, simple::OPENINGS, simple::CLOSINGS, Some(false)),
        2 => generate_pair(draft, ood::OPENINGS, ood::CLOSINGS, None),
        _ => generate_pair(draft, ood::OPENINGS, simple::CLOSINGS, None),
    }
}

/// An opening and a closing, of pairs that are in training, not in training, or of any.
fn generate_pair(
    draft: &mut ProblemDraft,
    openings: &'static [SentenceTemplate],
    closings: &'static [SentenceTemplate],
    trained: Option<bool>,
) -> Option<()> {
    draft.choose_items(&ITEMS);
    let (opening, closing) =
        (pick_template(draft, openings, |_| true)?, pick_template(draft, closings, |_| true)?);
    let (first, numbers) = instantiate(draft, opening)?;
    let (second, more) = instantiate(draft, closing)?;
    if trained.is_some_and(|trained| trained != is_train_pair(first, second)) {
        return None;
    }
    draft.append(first, numbers);
    draft.append(second, more);
    Some(())
}

/// Whether training may show a simple closing after a simple opening: three of four pairs.
pub(super) fn is_train_pair(opening: &'static str, closing: &'static str) -> bool {
    let place = |table: &'static [SentenceTemplate], phrase: &'static str| {
        table
            .iter()
            .flat_map(|maker| maker.phrases)
            .position(|p| std::ptr::eq(*p, phrase))
            .unwrap_or_default()
    };
    (place(simple::OPENINGS, opening) + place(simple::CLOSINGS, closing)) % 4 != 3
}

#[cfg(test)]
mod tests {
    use super::super::rng::CorpusRng;
    use super::super::scale::NumberScale;
    use super::*;

    fn said(
        split: Split,
        tell: fn(&mut ProblemDraft) -> Option<()>,
    ) -> impl Iterator<Item = [&'static str; 2]> {
        (0..20_000).filter_map(move |index| {
            let mut draft =
                ProblemDraft::new(split, NumberScale::Base, CorpusRng::new(3, index, 0, 0));
            tell(&mut draft)?;
            draft.used_phrases().try_into().ok()
        })
    }

    #[test]
    fn pairs_that_are_held_out_are_never_trained_on() {
        let trained: Vec<_> = said(Split::Train, generate_two_step).collect();
        let held_out: Vec<_> = said(Split::Ood, generate_ood).collect();
        assert!(trained.len() > 5_000 && held_out.len() > 5_000);
        assert!(trained.iter().all(|[opening, closing]| is_train_pair(opening, closing)));
        assert!(held_out.iter().all(|pair| !trained.contains(pair)));
    }

    #[test]
    fn every_sentence_of_a_pair_that_is_held_out_is_in_training_with_others() {
        let all = |table: &'static [SentenceTemplate]| {
            table.iter().flat_map(|maker| maker.phrases.iter().copied())
        };
        for opening in all(simple::OPENINGS) {
            assert!(all(simple::CLOSINGS).any(|closing| is_train_pair(opening, closing)));
            assert!(all(simple::CLOSINGS).any(|closing| !is_train_pair(opening, closing)));
        }
        for closing in all(simple::CLOSINGS) {
            assert!(all(simple::OPENINGS).any(|opening| is_train_pair(opening, closing)));
        }
    }
}
