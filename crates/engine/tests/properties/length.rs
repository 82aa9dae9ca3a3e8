//! The number of thoughts of a sequence: fixed, decided by the model up to a limit, or sampled.

use latent_tts_engine::{LatentLength, Output, Perturbation, SamplingParams, Trajectory};
use model::testkit::{CheckpointFamily, CheckpointSpec};

use crate::common::*;

const LIMIT: usize = 6;

/// An open-ended family. With these weights some sequences stop at once, some later, and some only
/// at the limit.
pub fn open_length(family: CheckpointFamily) -> RewardedReasoner {
    let spec = CheckpointSpec { family, seed: 11, ..CheckpointSpec::default() };
    RewardedReasoner::new(device(), &spec)
}

/// The families in which the model decides when thoughts stop.
pub const OPEN_LENGTH: [CheckpointFamily; 2] =
    [CheckpointFamily::Colar, CheckpointFamily::LatentSft];

fn run(pair: &RewardedReasoner, length: LatentLength, perturbation: Perturbation) -> Vec<Output> {
    let params = short_params(&pair.reasoner, 16, perturbation);
    pair.run(SamplingParams { length, ..params }, &questions())
}

fn trajectories(replies: &[Output]) -> impl Iterator<Item = &Trajectory> {
    replies.iter().flat_map(|reply| &reply.trajectories)
}

/// Number of sequences with this number of thoughts, over all questions.
fn rows_of_length(length: usize, replies: &[Output]) -> usize {
    trajectories(replies).filter(|t| t.latents.rows() == length).count()
}

/// Fails unless the sequences of `some` whose length satisfies `which` are bitwise equal to those
/// of `others`, including answers.
fn assert_same_rows(some: &[Output], others: &[Output], which: impl Fn(usize) -> bool, what: &str) {
    let mut compared = 0;
    for (a, b) in trajectories(some).zip(trajectories(others)) {
        if which(a.latents.rows()) {
            assert_same_trajectories(std::slice::from_ref(a), std::slice::from_ref(b), what);
            compared += 1;
        }
    }
    assert!(compared > 0, "{what}: no row to compare");
}

/// Random numbers are keyed by position, so a sequence that stops early starts like one that does
/// not.
fn assert_prefixes(short: &[Output], long: &[Output], what: &str) {
    for (a, b) in trajectories(short).zip(trajectories(long)) {
        let a = &a.latents;
        let b = &b.latents;
        if a.rows() > 0 {
            assert_same_bits(a, &first_rows(a.rows(), b), what);
        }
    }
}

#[test]
fn lengths_are_printed_as_they_are_read() {
    for length in [LatentLength::None, exactly(6), at_most(64), between(4, 6)] {
        assert_eq!(length.to_string().parse(), Ok(length), "{length}");
    }
    assert_eq!(" <= 7".parse(), Ok(at_most(7)));
    for wrong in ["", "six", "-3", "<=0", "6-4", "0-4", "1.5", "99999999999"] {
        assert!(wrong.parse::<LatentLength>().is_err(), "{wrong}");
    }
}

#[test]
fn exactly_is_exactly() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let long = run(&pair, exactly(LIMIT), thought_dropout(0.3));
        for n in [1, 3] {
            let short = run(&pair, exactly(n), thought_dropout(0.3));
            assert_eq!(rows_of_length(n, &short), 16 * short.len(), "{family:?}");
            assert!(trajectories(&short).all(|t| t.thoughts == n));
            assert_prefixes(&short, &long, &format!("{family:?}, {n}"));
        }
    }
}

#[test]
fn at_most_stops_where_the_model_does() {
    for family in OPEN_LENGTH {
        let pair = open_length(family);
        for perturbation in [thought_dropout(0.3), Perturbation::Gaussian { std: 0.6 }] {
            let what = format!("{family:?}, {perturbation:?}");
            let open = run(&pair, at_most(LIMIT), perturbation);
            let none = rows_of_length(0, &open);
            let all = rows_of_length(LIMIT, &open);
            assert!(
                none > 0 && all > 0 && none + all < 16 * open.len(),
                "{what}: {none} without thoughts, {all} at the limit"
            );
            let fixed = run(&pair, exactly(LIMIT), perturbation);
            assert_prefixes(&open, &fixed, &what);
            // At the limit the end tokens are forced, and the last thought is fed as in a sequence
            // of fixed length.
            assert_same_rows(&open, &fixed, |n| n == LIMIT, &what);
            // A lower limit changes no sequence that ends below it.
            let lower = run(&pair, at_most(4), perturbation);
            assert_same_rows(&lower, &open, |n| n < 4, &what);
            assert!(trajectories(&lower).all(|t| t.latents.rows() <= 4));
        }
    }
}

/// If no pass is stochastic, a sequence that stops by itself gives the answer of a sequence of that
/// fixed length.
#[test]
fn a_row_that_stops_by_itself_answers_as_one_of_fixed_length() {
    for family in OPEN_LENGTH {
        let pair = open_length(family);
        for perturbation in [Perturbation::None, Perturbation::Gaussian { std: 0.6 }] {
            let open = run(&pair, at_most(LIMIT), perturbation);
            for n in (1..=LIMIT).filter(|&n| rows_of_length(n, &open) > 0) {
                let what = format!("{family:?}, {perturbation:?}, {n} thoughts");
                let fixed = run(&pair, exactly(n), perturbation);
                assert_same_rows(&open, &fixed, |rows| rows == n, &what);
            }
        }
    }
}

#[test]
fn rows_without_thoughts_have_answers_and_no_process_rewards() {
    for family in OPEN_LENGTH {
        let pair = open_length(family);
        let open = run(&pair, at_most(LIMIT), thought_dropout(0.3));
        let empty: Vec<_> = trajectories(&open).filter(|t| t.thoughts == 0).collect();
        assert!(!empty.is_empty());
        let is_answered =
            |t: &&Trajectory| t.process_rewards.as_deref() == Some(&[]) && !t.text.is_empty();
        assert!(empty.iter().all(is_answered), "{family:?}");
    }
}

#[test]
fn sampled_lengths_cover_their_range_and_change_nothing_else() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for perturbation in [thought_dropout(0.3), Perturbation::Gaussian { std: 0.6 }] {
            let sampled = run(&pair, between(2, 5), perturbation);
            let mut total = 0;
            for n in 2..=5 {
                total += rows_of_length(n, &sampled);
                let what = format!("{family:?}, {perturbation:?}, {n} thoughts");
                let fixed = run(&pair, exactly(n), perturbation);
                assert_same_rows(&sampled, &fixed, |rows| rows == n, &what);
            }
            assert_eq!(total, 16 * sampled.len());
        }
    }
}

#[test]
fn a_range_of_one_length_is_that_length() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let sampled = run(&pair, between(3, 3), thought_dropout(0.3));
    let fixed = run(&pair, exactly(3), thought_dropout(0.3));
    assert_all_same(&sampled, &fixed, "a range of one length");
}

/// The greedy trajectory samples nothing, its length included: it thinks as long as the range
/// allows.
#[test]
fn the_greedy_trajectory_has_the_longest_length() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let params = short_params(&pair.reasoner, 2, thought_dropout(0.3));
    let params = SamplingParams { greedy: true, length: between(2, 5), ..params };
    let sampled = pair.run(params, &questions());
    let fixed = pair.run(SamplingParams { length: exactly(5), ..params }, &questions());
    for (sampled, fixed) in sampled.iter().zip(&fixed) {
        let what = "the greedy trajectory";
        assert_same_trajectories(sampled.greedy.as_slice(), fixed.greedy.as_slice(), what);
    }
}
