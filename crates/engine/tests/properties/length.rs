//! How many thoughts a row has: a fixed number, its own decision up to a limit, or a drawn number.

use engine::{LatentLength, Outcome, Perturbation, SamplingParams};
use model::testkit::{CheckpointFamily, CheckpointSpec};

use crate::common::*;

const LIMIT: usize = 6;

/// A family that ends its thoughts by itself. With these weights rows stop at once, later, and not
/// before the limit.
pub fn open_ended(family: CheckpointFamily) -> RewardedReasoner {
    RewardedReasoner::new(
        device(),
        &CheckpointSpec { family, seed: 11, ..CheckpointSpec::default() },
    )
}

pub const OPEN_ENDED: [CheckpointFamily; 2] =
    [CheckpointFamily::Colar, CheckpointFamily::LatentSft];

fn run(pair: &RewardedReasoner, length: LatentLength, perturbation: Perturbation) -> Vec<Outcome> {
    pair.ask(SamplingParams { length, ..settings(&pair.reasoner, 16, perturbation) }, &questions())
}

/// Rows of one length, over all questions.
fn rows_of(length: usize, outcomes: &[Outcome]) -> usize {
    outcomes.iter().flat_map(|o| &o.thoughts).filter(|t| t.rows() == length).count()
}

/// Fails unless the rows of `some` that `which` picks by their length are to the bit those of
/// `others`, answers included.
fn assert_same_rows(
    some: &[Outcome],
    others: &[Outcome],
    which: impl Fn(usize) -> bool,
    what: &str,
) {
    let mut compared = 0;
    for (a, b) in some.iter().zip(others) {
        for k in (0..a.thoughts.len()).filter(|&k| which(a.thoughts[k].rows())) {
            assert_same_bits(&a.thoughts[k], &b.thoughts[k], what);
            assert_eq!(a.sample.trajectories[k], b.sample.trajectories[k], "{what}");
            compared += 1;
        }
    }
    assert!(compared > 0, "{what}: no row to compare");
}

/// Random numbers belong to positions, so that a row that stops early starts as one that does not.
fn assert_prefixes(short: &[Outcome], long: &[Outcome], what: &str) {
    for (a, b) in short.iter().zip(long).flat_map(|(a, b)| a.thoughts.iter().zip(&b.thoughts)) {
        if a.rows() > 0 {
            assert_same_bits(a, &first(a.rows(), b), what);
        }
    }
}

#[test]
fn exactly_is_exactly() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let long = run(&pair, exactly(LIMIT), thoughtful(0.3));
        for n in [1, 3] {
            let short = run(&pair, exactly(n), thoughtful(0.3));
            assert_eq!(rows_of(n, &short), 16 * short.len(), "{family:?}");
            assert!(
                short.iter().flat_map(|o| &o.sample.trajectories).all(|t| t.thoughts as usize == n)
            );
            assert_prefixes(&short, &long, &format!("{family:?}, {n}"));
        }
    }
}

#[test]
fn at_most_stops_where_the_model_does() {
    for family in OPEN_ENDED {
        let pair = open_ended(family);
        for perturbation in [thoughtful(0.3), Perturbation::Gaussian { std: 0.6 }] {
            let what = format!("{family:?}, {perturbation:?}");
            let open = run(&pair, at_most(LIMIT), perturbation);
            let (none, all) = (rows_of(0, &open), rows_of(LIMIT, &open));
            assert!(
                none > 0 && all > 0 && none + all < 16 * open.len(),
                "{what}: {none} without thoughts, {all} at the limit"
            );
            let fixed = run(&pair, exactly(LIMIT), perturbation);
            assert_prefixes(&open, &fixed, &what);
            // At the limit the end is forced, and the last thought is passed as that of any other
            // row is.
            assert_same_rows(&open, &fixed, |n| n == LIMIT, &what);
            // A lower limit takes nothing from rows that end below it.
            let lower = run(&pair, at_most(4), perturbation);
            assert_same_rows(&lower, &open, |n| n < 4, &what);
            assert!(lower.iter().flat_map(|o| &o.thoughts).all(|t| t.rows() <= 4));
        }
    }
}

/// Where no pass is stochastic it makes no difference to the answer whether a row stopped by itself
/// or was told to.
#[test]
fn a_row_that_stops_by_itself_answers_as_one_that_was_told_to() {
    for family in OPEN_ENDED {
        let pair = open_ended(family);
        for perturbation in [Perturbation::None, Perturbation::Gaussian { std: 0.6 }] {
            let open = run(&pair, at_most(LIMIT), perturbation);
            let lengths = (1..=LIMIT).filter(|&n| rows_of(n, &open) > 0);
            lengths.for_each(|n| {
                let what = format!("{family:?}, {perturbation:?}, {n} thoughts");
                assert_same_rows(
                    &open,
                    &run(&pair, exactly(n), perturbation),
                    |rows| rows == n,
                    &what,
                );
            });
        }
    }
}

#[test]
fn rows_without_thoughts_have_answers_and_empty_scores() {
    for family in OPEN_ENDED {
        let pair = open_ended(family);
        let open = run(&pair, at_most(LIMIT), thoughtful(0.3));
        let trajectories: Vec<_> =
            open.iter().flat_map(|o| &o.sample.trajectories).filter(|t| t.thoughts == 0).collect();
        assert!(!trajectories.is_empty());
        assert!(
            trajectories
                .iter()
                .all(|t| t.process_rewards.as_deref() == Some(&[]) && !t.text.is_empty()),
            "{family:?}"
        );
    }
}

#[test]
fn drawn_lengths_cover_their_range_and_change_nothing_else() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in [thoughtful(0.3), Perturbation::Gaussian { std: 0.6 }] {
            let drawn = run(&pair, between(2, 5), perturbation);
            let mut total = 0;
            for n in 2..=5 {
                total += rows_of(n, &drawn);
                let what = format!("{family:?}, {perturbation:?}, {n} thoughts");
                assert_same_rows(
                    &drawn,
                    &run(&pair, exactly(n), perturbation),
                    |rows| rows == n,
                    &what,
                );
            }
            assert_eq!(total, 16 * drawn.len());
        }
    }
}

#[test]
fn a_range_of_one_length_is_that_length() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let (drawn, fixed) =
        (run(&pair, between(3, 3), thoughtful(0.3)), run(&pair, exactly(3), thoughtful(0.3)));
    drawn.iter().zip(&fixed).for_each(|(a, b)| assert_same(a, b, "a range of one"));
}

/// The deterministic trajectory draws nothing, its length included: it thinks as long as the range
/// allows.
#[test]
fn the_greedy_trajectory_draws_no_length() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let settings = SamplingParams {
        greedy: true,
        length: between(2, 5),
        ..settings(&pair.reasoner, 2, thoughtful(0.3))
    };
    let fixed = SamplingParams { length: exactly(5), ..settings };
    for (drawn, fixed) in pair.ask(settings, &questions()).iter().zip(pair.ask(fixed, &questions()))
    {
        assert_eq!(drawn.sample.greedy, fixed.sample.greedy);
    }
}
