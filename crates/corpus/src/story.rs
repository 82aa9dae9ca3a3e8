//! Stories: an opening, events, and a question, with a sampled total number of steps.

use super::draft::ProblemDraft;
use super::lexicon::{BAKED, GROWN, ITEMS, MADE, StoryItem};
use super::phrases::{
    Distractor, LEAD_INS, SentenceTemplate, TemplateCondition, bill, ood, own, purse, simple, stock,
};
use super::split::Split;

/// Maximum number of attempts at a sentence whose numbers do not fit.
const TRIES: usize = 8;
/// Percentage of stories with a distractor sentence.
const DISTRACTOR_PERCENT: usize = 20;

/// A family of stories.
#[derive(Debug)]
struct StoryFamily {
    weight: usize,
    items: &'static [StoryItem],
    openings: &'static [SentenceTemplate],
    events: &'static [SentenceTemplate],
    closings: &'static [SentenceTemplate],
    distractors: &'static [Distractor],
}

const fn owning_family(weight: usize) -> StoryFamily {
    let (openings, events, closings, distractors) =
        (own::OPENINGS, own::EVENTS, own::CLOSINGS, own::DISTRACTORS);
    StoryFamily { weight, items: &ITEMS, openings, events, closings, distractors }
}

const fn stock_family(
    weight: usize,
    items: &'static [StoryItem],
    openings: &'static [SentenceTemplate],
) -> StoryFamily {
    StoryFamily {
        weight,
        items,
        openings,
        events: stock::EVENTS,
        closings: stock::CLOSINGS,
        distractors: stock::DISTRACTORS,
    }
}

static STORIES: [StoryFamily; 7] = [
    owning_family(30),
    StoryFamily {
        events: purse::EVENTS,
        closings: purse::CLOSINGS,
        openings: purse::OPENINGS,
        items: MADE,
        ..owning_family(14)
    },
    StoryFamily {
        events: bill::EVENTS,
        closings: bill::CLOSINGS,
        openings: bill::OPENINGS,
        items: MADE,
        ..owning_family(12)
    },
    stock_family(10, MADE, stock::MACHINES),
    stock_family(5, GROWN, stock::FARMS),
    stock_family(5, BAKED, stock::BAKERIES),
    stock_family(16, &ITEMS, stock::GROUPS),
];

/// All phrases of these families.
pub(super) fn phrases() -> impl Iterator<Item = &'static str> {
    let stories = STORIES.iter().flat_map(|story| [story.openings, story.events, story.closings]);
    let tables = stories.chain([simple::OPENINGS, simple::CLOSINGS, ood::OPENINGS, ood::CLOSINGS]);
    let sentences = tables.flatten().flat_map(|template| template.phrases);
    let distractors = own::DISTRACTORS.iter().chain(stock::DISTRACTORS).map(Distractor::phrase);
    sentences.chain(LEAD_INS).copied().chain(distractors)
}

/// Generates a story with two to six steps.
pub(super) fn generate(draft: &mut ProblemDraft) -> Option<()> {
    let story = pick_story(draft);
    draft.choose_items(story.items);
    let total = total_steps(draft);
    let closing_steps = draft.rng.below(3.min(total));
    let opening = pick_template(draft, story.openings, |template| {
        template.effect.steps() + closing_steps <= total
    })?;
    add_sentence(draft, opening)?;
    let mut left = total - closing_steps - opening.effect.steps();
    // A story needs more than an opening.
    if left == 0 && closing_steps == 0 {
        return None;
    }
    if draft.rng.chance(DISTRACTOR_PERCENT) {
        add_distractor(draft, story.distractors);
    }
    let mut lost = false;
    while left > 0 {
        let template = add_event(draft, story.events, left)?;
        left -= template.effect.steps();
        lost = template.effect.is_loss();
    }
    add_question(draft, story.closings, closing_steps, lost)
}

/// Adds a question with `steps` steps; it asks for the remaining items only after a loss.
fn add_question(
    draft: &mut ProblemDraft,
    closings: &'static [SentenceTemplate],
    steps: usize,
    lost: bool,
) -> Option<()> {
    let fits = |template: &SentenceTemplate| {
        template.effect.steps() == steps && (template.condition != TemplateCondition::Loss || lost)
    };
    (0..TRIES).find_map(|_| {
        let template = pick_template(draft, closings, fits)?;
        add_sentence(draft, template)
    })
}

fn add_event(
    draft: &mut ProblemDraft,
    events: &'static [SentenceTemplate],
    left: usize,
) -> Option<&'static SentenceTemplate> {
    (0..TRIES).find_map(|_| {
        let template = pick_template(draft, events, |template| template.effect.steps() <= left)?;
        let snapshot = draft.snapshot();
        let (phrase, numbers) = instantiate(draft, template).or_else(|| {
            draft.restore(&snapshot);
            None
        })?;
        add_lead_in(draft, phrase);
        draft.append(phrase, numbers);
        Some(template)
    })
}

/// Sometimes adds a time to a sentence that has none.
fn add_lead_in(draft: &mut ProblemDraft, phrase: &'static str) {
    let states_time = phrase.starts_with("every ") || phrase.starts_with("for ");
    let words = *draft.rng.pick(LEAD_INS);
    if draft.rng.chance(25) && !states_time && !draft.has_used(words) {
        draft.lead_in(words);
    }
}

fn add_sentence(draft: &mut ProblemDraft, template: &'static SentenceTemplate) -> Option<()> {
    let snapshot = draft.snapshot();
    match instantiate(draft, template) {
        Some((phrase, numbers)) => {
            draft.append(phrase, numbers);
            Some(())
        }
        None => {
            draft.restore(&snapshot);
            None
        }
    }
}

/// Samples a new phrase of a template with its numbers, and records its steps.
fn instantiate(
    draft: &mut ProblemDraft,
    template: &'static SentenceTemplate,
) -> Option<(&'static str, [i64; 4])> {
    let phrase = *draft.rng.pick(template.phrases);
    if draft.has_used(phrase)
        || (template.condition == TemplateCondition::Food && !draft.is_about_food())
    {
        return None;
    }
    Some((phrase, template.effect.apply(draft)?))
}

fn add_distractor(draft: &mut ProblemDraft, distractors: &'static [Distractor]) {
    let distractor = draft.rng.pick(distractors);
    let number = match distractor {
        Distractor::Amount(_) => draft.amount(),
        Distractor::Time(_) => draft.time(),
    };
    draft.append(distractor.phrase(), [number, 0, 0, 0]);
    draft.require_hero_name();
}

/// Samples a template that `fits`, with a probability proportional to its number of phrases.
fn pick_template(
    draft: &mut ProblemDraft,
    templates: &'static [SentenceTemplate],
    fits: impl Fn(&SentenceTemplate) -> bool,
) -> Option<&'static SentenceTemplate> {
    let total: usize = templates
        .iter()
        .filter(|template| fits(template))
        .map(|template| template.phrases.len())
        .sum();
    let mut at = if total == 0 { return None } else { draft.rng.below(total) };
    templates.iter().filter(|template| fits(template)).find(|template| {
        let here = at < template.phrases.len();
        at = at.wrapping_sub(template.phrases.len());
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

/// Samples the number of steps: two to six, mostly three or four.
pub(super) fn total_steps(draft: &mut ProblemDraft) -> usize {
    match draft.rng.below(100) {
        0..16 => 2,
        16..42 => 3,
        42..68 => 4,
        68..86 => 5,
        _ => 6,
    }
}

/// Generates a two-step story from the pairs in training.
pub(super) fn generate_two_step(draft: &mut ProblemDraft) -> Option<()> {
    generate_pair(draft, simple::OPENINGS, simple::CLOSINGS, Some(true))
}

/// Generates a two-step story that never occurs in training: a held-out pair, or other sentences
/// with the same words.
pub(super) fn generate_ood(draft: &mut ProblemDraft) -> Option<()> {
    debug_assert_eq!(draft.split(), Split::Ood);
    match draft.rng.below(4) {
        0 | 1 => generate_pair(draft, simple::OPENINGS, simple::CLOSINGS, Some(false)),
        2 => generate_pair(draft, ood::OPENINGS, ood::CLOSINGS, None),
        _ => generate_pair(draft, ood::OPENINGS, simple::CLOSINGS, None),
    }
}

/// Generates an opening and a closing; `trained` selects pairs in training, held-out pairs, or any.
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

/// Whether a two-step pair of opening and closing is in training; three of four pairs are.
pub(super) fn is_train_pair(opening: &'static str, closing: &'static str) -> bool {
    let index = |table: &'static [SentenceTemplate], phrase: &'static str| {
        table
            .iter()
            .flat_map(|template| template.phrases)
            .position(|p| std::ptr::eq(*p, phrase))
            .unwrap_or_default()
    };
    (index(simple::OPENINGS, opening) + index(simple::CLOSINGS, closing)) % 4 != 3
}

#[cfg(test)]
mod tests {
    use super::super::rng::CorpusRng;
    use super::super::scale::NumberScale;
    use super::*;

    fn generated(
        split: Split,
        generate: fn(&mut ProblemDraft) -> Option<()>,
    ) -> impl Iterator<Item = [&'static str; 2]> {
        (0..20_000).filter_map(move |index| {
            let mut draft =
                ProblemDraft::new(split, NumberScale::Base, CorpusRng::new(3, index, 0, 0));
            generate(&mut draft)?;
            draft.used_phrases().try_into().ok()
        })
    }

    #[test]
    fn held_out_pairs_are_never_in_training() {
        let trained: Vec<_> = generated(Split::Train, generate_two_step).collect();
        let held_out: Vec<_> = generated(Split::Ood, generate_ood).collect();
        assert!(trained.len() > 5_000 && held_out.len() > 5_000);
        assert!(trained.iter().all(|[opening, closing]| is_train_pair(opening, closing)));
        assert!(held_out.iter().all(|pair| !trained.contains(pair)));
    }

    #[test]
    fn sentences_of_held_out_pairs_are_in_training_in_other_pairs() {
        let all = |table: &'static [SentenceTemplate]| {
            table.iter().flat_map(|template| template.phrases.iter().copied())
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
