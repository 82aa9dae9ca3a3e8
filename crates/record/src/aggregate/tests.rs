//! Every rule on trajectories made by hand, and what holds for all of them.

use proptest::prelude::*;

use super::*;

/// Trajectory `k`; an empty answer is none.
fn trajectory(k: u32, answer: &str, scores: Option<&[f32]>) -> TrajectoryRecord {
    TrajectoryRecord {
        k,
        thoughts: scores.map_or(0, |scores| scores.len() as u32),
        answer: (!answer.is_empty()).then(|| answer.into()),
        process_rewards: scores.map(Into::into),
        ..TrajectoryRecord::default()
    }
}

fn unscored(answers: &[&str]) -> Vec<TrajectoryRecord> {
    answers.iter().zip(0..).map(|(answer, k)| trajectory(k, answer, None)).collect()
}

fn scored(answers: &[(&str, f32)]) -> Vec<TrajectoryRecord> {
    answers
        .iter()
        .zip(0..)
        .map(|((answer, score), k)| trajectory(k, answer, Some(&[*score])))
        .collect()
}

#[test]
fn majority_counts() {
    assert_eq!(majority(&unscored(&["1", "2", "2"])), Some(1));
    assert_eq!(majority(&unscored(&["7"])), Some(0));
}

#[test]
fn trajectories_without_an_answer_never_vote() {
    assert_eq!(majority(&unscored(&["", "", "3"])), Some(2));
    assert_eq!(weighted(&scored(&[("", 9.0), ("", 9.0), ("3", 0.0)])), Some(2));
    assert_eq!(best_of(&scored(&[("", 9.0), ("3", 0.0)]), RewardReduction::OutcomeOrMean), Some(1));
}

#[test]
fn without_answers_nothing_is_chosen() {
    for trajectories in [unscored(&[]), unscored(&["", ""]), scored(&[("", 1.0), ("", 2.0)])] {
        assert_eq!(majority(&trajectories), None);
        assert_eq!(weighted(&trajectories), None);
        assert_eq!(best_of(&trajectories, RewardReduction::OutcomeOrMean), None);
    }
}

#[test]
fn tied_votes_go_to_the_summed_reward_then_to_the_lowest_number() {
    assert_eq!(majority(&unscored(&["1", "2", "2", "1"])), Some(0));
    assert_eq!(majority(&scored(&[("1", 0.1), ("2", 0.9), ("2", 0.2), ("1", 0.3)])), Some(1));
    assert_eq!(majority(&scored(&[("1", 0.5), ("2", 0.5)])), Some(0));
    // One trajectory without scores, and sums of rewards no longer compare.
    let mut partly = scored(&[("1", 0.1), ("2", 0.9)]);
    partly[0].process_rewards = None;
    assert_eq!(majority(&partly), Some(0));
}

#[test]
fn a_large_weight_outvotes_many_votes() {
    // e^0 = 1 against 2 e^-2 = 0.27, then against 2 e^-0.5 = 1.21.
    assert_eq!(weighted(&scored(&[("1", 2.0), ("2", 0.0), ("2", 0.0)])), Some(0));
    assert_eq!(weighted(&scored(&[("1", 2.0), ("2", 1.5), ("2", 1.5)])), Some(1));
    let trajectories = scored(&[("1", 2.0), ("2", 1.5), ("2", 1.5)]);
    let weights: Vec<f64> = votes(&trajectories).iter().map(|candidate| candidate.weight).collect();
    assert_eq!(weights, [1.0, 2.0 * (-0.5f64).exp()]);
}

#[test]
fn weights_survive_large_rewards() {
    assert_eq!(weighted(&scored(&[("1", 1e30), ("2", 3e38), ("1", -3e38)])), Some(1));
    // A large reward without an answer must not push every other weight to zero.
    assert_eq!(weighted(&scored(&[("", 1e6), ("1", 0.0), ("2", 1.0)])), Some(2));
}

#[test]
fn best_of_takes_the_largest_then_the_lowest_number() {
    let trajectories = scored(&[("1", 0.2), ("2", 0.7), ("3", 0.7)]);
    assert_eq!(best_of(&trajectories, RewardReduction::OutcomeOrMean), Some(1));
    assert_eq!(best_of(&trajectories[..1], RewardReduction::OutcomeOrMean), Some(0));
}

#[test]
fn reductions() {
    let trajectories = [
        trajectory(0, "a", Some(&[3.0, 1.0])),
        trajectory(1, "b", Some(&[1.5, 1.5, 1.5])),
        trajectory(2, "c", Some(&[0.0, 1.9])),
    ];
    let rewards = |reduction| [0, 1, 2].map(|i| reward(&trajectories[i], reduction));
    assert_eq!(rewards(RewardReduction::OutcomeOrMean)[..2], [2.0, 1.5]);
    assert_eq!(rewards(RewardReduction::Sum)[..2], [4.0, 4.5]);
    assert_eq!(rewards(RewardReduction::Last)[..2], [1.0, 1.5]);
    assert_eq!(rewards(RewardReduction::Min), [1.0, 1.5, 0.0]);
    assert_eq!(best_of(&trajectories, RewardReduction::OutcomeOrMean), Some(0));
    assert_eq!(best_of(&trajectories, RewardReduction::Sum), Some(1));
    assert_eq!(best_of(&trajectories, RewardReduction::Last), Some(2));
    assert_eq!(best_of(&trajectories, RewardReduction::Min), Some(1));
}

#[test]
fn without_process_rewards_the_reward_is_lowest_but_the_answer_still_counts() {
    let thoughtless = [trajectory(0, "1", Some(&[])), trajectory(1, "2", Some(&[]))];
    assert_eq!(best_of(&thoughtless, RewardReduction::OutcomeOrMean), Some(0));
    assert_eq!(weighted(&thoughtless), Some(0));
    let mixed = [trajectory(0, "1", Some(&[])), trajectory(1, "2", Some(&[-1e30]))];
    assert_eq!(best_of(&mixed, RewardReduction::OutcomeOrMean), Some(1));
    assert_eq!(weighted(&mixed), Some(1));
    assert_eq!(majority(&mixed), Some(1));
}

#[test]
fn rewards_that_are_not_finite_are_the_lowest() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for reduction in [
            RewardReduction::OutcomeOrMean,
            RewardReduction::Sum,
            RewardReduction::Last,
            RewardReduction::Min,
        ] {
            let trajectories =
                [trajectory(0, "1", Some(&[bad, 0.0])), trajectory(1, "2", Some(&[-5.0]))];
            assert_eq!(best_of(&trajectories, reduction), Some(1));
            assert_eq!(weighted(&trajectories), Some(1));
        }
    }
}

fn choose(rule: Aggregator, trajectories: &[TrajectoryRecord]) -> Option<usize> {
    rule.choose(trajectories, &VoteParams::default())
}

/// The same trajectories with log-probabilities.
fn with_logprobs(
    mut trajectories: Vec<TrajectoryRecord>,
    logprobs: &[f32],
) -> Vec<TrajectoryRecord> {
    trajectories.iter_mut().zip(logprobs).for_each(|(t, &logprob)| t.logprob = Some(logprob));
    trajectories
}

#[test]
fn normalized_rewards_do_not_depend_on_scale() {
    // Rewards 3, 1, 1: mean 5/3, deviation 0.943; z = 1.414, -0.707, -0.707. e^1.414 = 4.11 against
    // 2 e^-0.707 = 0.99.
    for scale in [1e-3f32, 1.0, 1e3] {
        let answers = [("1", 3.0 * scale), ("2", scale), ("2", scale)];
        assert_eq!(choose(Aggregator::Normalized, &scored(&answers)), Some(0), "{scale}");
        let calm = VoteParams { temperature: 10.0, ..VoteParams::default() };
        assert_eq!(
            Aggregator::Normalized.choose(&scored(&answers), &calm),
            Some(1),
            "{scale}: e^0.14 against 2 e^-0.07"
        );
    }
    // As they are, small rewards hardly weigh and large ones decide alone.
    assert_eq!(weighted(&scored(&[("1", 3e-3), ("2", 1e-3), ("2", 1e-3)])), Some(1));
}

#[test]
fn likelihood_needs_no_rewards() {
    let trajectories = with_logprobs(unscored(&["1", "2", "2"]), &[-0.1, -4.0, -4.0]);
    assert_eq!(choose(Aggregator::Likelihood, &trajectories), Some(0));
    assert_eq!(
        choose(Aggregator::Likelihood, &with_logprobs(unscored(&["1", "2", "2"]), &[-2.0; 3])),
        Some(1),
        "all alike: a vote"
    );
    assert!(
        Aggregator::Likelihood.applies(&trajectories)
            && !Aggregator::Likelihood.applies(&unscored(&["1"]))
    );
}

#[test]
fn combined_adds_both_signals() {
    // z of the rewards prefers "1", z of the likelihoods "3", each alone; both together prefer "2".
    let answers = [("1", 1.0), ("2", 0.8), ("3", 0.0)];
    let trajectories = with_logprobs(scored(&answers), &[-9.0, -1.0, -0.5]);
    assert_eq!(choose(Aggregator::Normalized, &trajectories), Some(0));
    assert_eq!(choose(Aggregator::Likelihood, &trajectories), Some(2));
    assert_eq!(choose(Aggregator::Combined, &trajectories), Some(1));
    let rewards_alone = VoteParams { lambda: 0.0, ..VoteParams::default() };
    assert_eq!(Aggregator::Combined.choose(&trajectories, &rewards_alone), Some(0));
}

#[test]
fn the_pessimistic_bound_grows_with_votes() {
    // Means 1.0 of one and 0.8 of four, deviation of all five 0.08: 1.0 - 0.08 = 0.92 against 0.8 -
    // 0.04 = 0.76.
    let close = [("1", 1.0), ("2", 0.8), ("2", 0.8), ("2", 0.8), ("2", 0.8)];
    assert_eq!(choose(Aggregator::Pessimistic, &scored(&close)), Some(0));
    let careful = VoteParams { caution: 6.0, ..VoteParams::default() };
    assert_eq!(
        Aggregator::Pessimistic.choose(&scored(&close), &careful),
        Some(1),
        "1.0 - 0.48 against 0.8 - 0.24"
    );
    // One high reward among a noisy crowd: means 2 and 1.5, deviation 1.5: 2 - 1.5 against 1.5 -
    // 0.75.
    let noisy = [("1", 2.0), ("2", 3.0), ("2", 0.0), ("2", 3.0), ("2", 0.0)];
    assert_eq!(best_of(&scored(&noisy), RewardReduction::OutcomeOrMean), Some(1));
    assert_eq!(choose(Aggregator::Pessimistic, &scored(&noisy)), Some(1));
    assert_eq!(
        choose(Aggregator::Pessimistic, &scored(&[("1", 1.0), ("2", 1.0), ("2", 1.0)])),
        Some(1),
        "alike: a vote"
    );
}

#[test]
fn trajectories_without_rewards_are_handled_by_every_rule() {
    let mixed = [
        trajectory(0, "1", Some(&[])),
        trajectory(1, "2", Some(&[-5.0])),
        trajectory(2, "1", Some(&[])),
    ];
    for rule in Aggregator::ALL
        .into_iter()
        .filter(|rule| !matches!(rule, Aggregator::Majority | Aggregator::Likelihood))
    {
        let chosen = choose(rule, &with_logprobs(mixed.to_vec(), &[-1.0, -1.0, -1.0]))
            .map(|i| mixed[i].answer.clone().unwrap());
        assert_eq!(chosen.as_deref(), Some("2"), "{rule:?}: only one has a reward");
    }
    let thoughtless = [
        trajectory(0, "1", Some(&[])),
        trajectory(1, "2", Some(&[])),
        trajectory(2, "2", Some(&[])),
    ];
    for rule in Aggregator::ALL {
        let vote = if matches!(rule, Aggregator::BestOf(_)) { 0 } else { 1 };
        assert_eq!(
            choose(rule, &with_logprobs(thoughtless.to_vec(), &[-1.0; 3])),
            Some(vote),
            "{rule:?}"
        );
    }
}

#[test]
fn a_rule_applies_where_its_signals_exist() {
    let (plain, rewarded) = (unscored(&["1", ""]), scored(&[("1", 0.5), ("", 0.5)]));
    let applying = |trajectories: &[TrajectoryRecord]| {
        Aggregator::ALL.into_iter().filter(|rule| rule.applies(trajectories)).count()
    };
    assert_eq!((applying(&plain), applying(&rewarded)), (1, 8));
    assert_eq!(
        (
            applying(&with_logprobs(plain, &[-1.0; 2])),
            applying(&with_logprobs(rewarded, &[-1.0; 2]))
        ),
        (2, 10)
    );
    assert_eq!(
        Aggregator::DEFAULT.last(),
        Some(&Aggregator::BestOf(RewardReduction::OutcomeOrMean))
    );
}

/// Few answers and few scores, so that ties are common.
pub(crate) fn trajectories() -> impl Strategy<Value = Vec<TrajectoryRecord>> {
    let scores =
        prop::option::weighted(0.9, prop::collection::vec((-2i8..3).prop_map(f32::from), 0..3));
    let logprob = prop::option::weighted(0.9, (-3i8..1).prop_map(f32::from));
    let one = (prop::sample::select(vec!["", "1", "2", "3"]), scores, logprob);
    let one = one.prop_map(|(answer, scores, logprob)| TrajectoryRecord {
        logprob,
        ..trajectory(0, answer, scores.as_deref())
    });
    prop::collection::vec(one, 0..9).prop_map(|mut drawn| {
        drawn.iter_mut().zip(0..).for_each(|(t, k)| t.k = k);
        drawn
    })
}

proptest! {
    #[test]
    fn the_order_of_the_slice_does_not_matter(
        (ordered, shuffled) in trajectories().prop_flat_map(|t| (Just(t.clone()), Just(t).prop_shuffle())),
    ) {
        for rule in Aggregator::ALL {
            let verdict = |t: &[TrajectoryRecord]| choose(rule, t).map(|index| t[index].k);
            prop_assert_eq!(verdict(&ordered), verdict(&shuffled), "{:?}", rule);
        }
    }

    #[test]
    fn of_one_trajectory_every_rule_gives_its_answer(t in trajectories()) {
        let one = &t[..t.len().min(1)];
        let answered = one.first().and_then(|t| t.answer.as_ref()).map(|_| 0);
        for rule in Aggregator::ALL {
            prop_assert_eq!(choose(rule, one), answered, "{:?}", rule);
        }
    }

    #[test]
    fn a_choice_exists_where_an_answer_does(t in trajectories()) {
        let answered = t.iter().any(|t| t.answer.is_some());
        for rule in Aggregator::ALL {
            let chosen = choose(rule, &t);
            prop_assert_eq!(chosen.is_some(), answered, "{:?}", rule);
            prop_assert!(chosen.is_none_or(|index| t[index].answer.is_some()), "{:?}", rule);
        }
    }

    #[test]
    fn rules_and_their_functions_agree(t in trajectories()) {
        prop_assert_eq!(choose(Aggregator::Majority, &t), majority(&t));
        prop_assert_eq!(choose(Aggregator::Weighted, &t), weighted(&t));
        prop_assert_eq!(choose(Aggregator::BestOf(RewardReduction::OutcomeOrMean), &t), best_of(&t, RewardReduction::OutcomeOrMean));
    }
}

#[test]
fn outcome_rewards_take_precedence_over_process_rewards() {
    let mut trajectories = scored(&[("1", 5.0), ("2", 1.0), ("2", 0.0)]);
    let all = [
        Aggregator::BestOf(RewardReduction::OutcomeOrMean),
        Aggregator::Weighted,
        Aggregator::Pessimistic,
    ];
    assert_eq!(all.map(|rule| choose(rule, &trajectories)), [Some(0); 3]);
    for (trajectory, verdict) in trajectories.iter_mut().zip([-3.0, 2.0, 1.0]) {
        trajectory.outcome_reward = Some(verdict);
    }
    assert_eq!(all.map(|rule| choose(rule, &trajectories)), [Some(1); 3]);
    assert_eq!(reward(&trajectories[0], RewardReduction::OutcomeOrMean), -3.0);
    assert_eq!(reward(&trajectories[0], RewardReduction::Sum), 5.0);
    assert_eq!(
        best_of(&trajectories, RewardReduction::Last),
        Some(0),
        "the other reductions are of step rewards"
    );
    let (thoughtless, silent) = (
        TrajectoryRecord { process_rewards: Some(vec![]), thoughts: 0, ..trajectories[1].clone() },
        trajectories[0].clone(),
    );
    assert_eq!(
        best_of(&[silent, thoughtless], RewardReduction::OutcomeOrMean),
        Some(1),
        "an answer is judged with or without thoughts"
    );
}
