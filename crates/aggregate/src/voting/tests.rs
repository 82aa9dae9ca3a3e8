//! Tests of every rule on handwritten candidates, and of properties of all rules.

use proptest::prelude::*;

use super::*;
use crate::calibration::CalibrationWeights;
use crate::testing::{TestCandidate, candidate, candidates, scored, unscored};
use crate::{Rule, signals};

#[test]
fn majority_counts() {
    assert_eq!(majority(&unscored(&["1", "2", "2"])), Some(1));
    assert_eq!(majority(&unscored(&["7"])), Some(0));
}

#[test]
fn candidates_without_an_answer_never_vote() {
    assert_eq!(majority(&unscored(&["", "", "3"])), Some(2));
    assert_eq!(weighted(&scored(&[("", 9.0), ("", 9.0), ("3", 0.0)])), Some(2));
    assert_eq!(best_of(&scored(&[("", 9.0), ("3", 0.0)]), RewardReduction::OutcomeOrMean), Some(1));
}

#[test]
fn without_answers_nothing_is_chosen() {
    for none in [unscored(&[]), unscored(&["", ""]), scored(&[("", 1.0), ("", 2.0)])] {
        for rule in Rule::ALL.iter().copied() {
            assert_eq!(choose(rule, &none), None, "{rule:?}");
        }
    }
}

#[test]
fn a_tied_majority_goes_to_the_lowest_number_whatever_the_rewards() {
    assert_eq!(majority(&unscored(&["1", "2", "2", "1"])), Some(0));
    assert_eq!(majority(&scored(&[("1", 0.1), ("2", 0.9), ("2", 0.2), ("1", 0.3)])), Some(0));
    assert_eq!(majority(&scored(&[("1", 0.0), ("2", 9.0)])), Some(0));
    let mut reversed = unscored(&["1", "2"]);
    reversed.reverse();
    assert_eq!(majority(&reversed), Some(1), "by number and not by position");
}

#[test]
fn a_tied_weighted_vote_goes_to_the_summed_reward_then_to_the_lowest_number() {
    // No deviation: the normalized weights are all 1.
    let equal = scored(&[("1", 0.5), ("2", 0.5)]);
    assert_eq!(choose(Rule::NORMALIZED, &equal), Some(0));
    // Rewards so small that exp rounds to 1: equal weights, unequal sums.
    let close = scored(&[("1", 0.0), ("2", 1e-30)]);
    assert_eq!(weighted(&close), Some(1));
    // One candidate without rewards, and sums no longer compare.
    let mut partly = scored(&[("1", 0.0), ("2", 1e-30), ("3", 0.0)]);
    partly[2].process_rewards = None;
    assert_eq!(weighted(&partly), Some(0));
}

#[test]
fn a_tied_likelihood_vote_ignores_rewards() {
    let tied = with_logprobs(scored(&[("1", 0.0), ("2", 9.0)]), &[-1.0, -1.0]);
    assert_eq!(choose(Rule::LIKELIHOOD, &tied), Some(0));
}

#[test]
fn a_large_weight_outvotes_many_votes() {
    // e^0 = 1 against 2 e^-2 = 0.27, then against 2 e^-0.5 = 1.21.
    assert_eq!(weighted(&scored(&[("1", 2.0), ("2", 0.0), ("2", 0.0)])), Some(0));
    assert_eq!(weighted(&scored(&[("1", 2.0), ("2", 1.5), ("2", 1.5)])), Some(1));
    let all = scored(&[("1", 2.0), ("2", 1.5), ("2", 1.5)]);
    let weights: Vec<f64> = votes(&all).iter().map(|votes| votes.weight).collect();
    let larger = 2.0 * (-0.5f64).exp();
    assert_eq!(weights, [1.0 / (1.0 + larger), larger / (1.0 + larger)]);
}

#[test]
fn weights_survive_large_rewards() {
    assert_eq!(weighted(&scored(&[("1", 1e30), ("2", 3e38), ("1", -3e38)])), Some(1));
    // A large reward without an answer must not push every other weight to zero.
    assert_eq!(weighted(&scored(&[("", 1e6), ("1", 0.0), ("2", 1.0)])), Some(2));
}

#[test]
fn best_of_takes_the_largest_then_the_lowest_number() {
    let all = scored(&[("1", 0.2), ("2", 0.7), ("3", 0.7)]);
    assert_eq!(best_of(&all, RewardReduction::OutcomeOrMean), Some(1));
    assert_eq!(best_of(&all[..1], RewardReduction::OutcomeOrMean), Some(0));
}

#[test]
fn reductions() {
    let all = [
        candidate(0, "a", Some(&[3.0, 1.0])),
        candidate(1, "b", Some(&[1.5, 1.5, 1.5])),
        candidate(2, "c", Some(&[0.0, 1.9])),
    ];
    let rewards = |reduction| [0, 1, 2].map(|i| reward(&all[i], reduction));
    assert_eq!(rewards(RewardReduction::OutcomeOrMean)[..2], [2.0, 1.5]);
    assert_eq!(rewards(RewardReduction::Mean)[..2], [2.0, 1.5]);
    assert_eq!(rewards(RewardReduction::Sum)[..2], [4.0, 4.5]);
    assert_eq!(rewards(RewardReduction::Last)[..2], [1.0, 1.5]);
    assert_eq!(rewards(RewardReduction::Min), [1.0, 1.5, 0.0]);
    assert_eq!(best_of(&all, RewardReduction::OutcomeOrMean), Some(0));
    assert_eq!(best_of(&all, RewardReduction::Mean), Some(0));
    assert_eq!(best_of(&all, RewardReduction::Sum), Some(1));
    assert_eq!(best_of(&all, RewardReduction::Last), Some(2));
    assert_eq!(best_of(&all, RewardReduction::Min), Some(1));
}

#[test]
fn without_process_rewards_the_reward_is_lowest_but_the_answer_still_counts() {
    let empty = [candidate(0, "1", Some(&[])), candidate(1, "2", Some(&[]))];
    assert_eq!(best_of(&empty, RewardReduction::OutcomeOrMean), Some(0));
    assert_eq!(weighted(&empty), Some(0));
    let mixed = [candidate(0, "1", Some(&[])), candidate(1, "2", Some(&[-1e30]))];
    assert_eq!(best_of(&mixed, RewardReduction::OutcomeOrMean), Some(1));
    assert_eq!(weighted(&mixed), Some(1));
    assert_eq!(majority(&mixed), Some(0));
}

#[test]
fn rewards_that_are_not_finite_are_the_lowest() {
    let reductions = [
        RewardReduction::OutcomeOrMean,
        RewardReduction::Mean,
        RewardReduction::Sum,
        RewardReduction::Last,
        RewardReduction::Min,
    ];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let all = [candidate(0, "1", Some(&[bad, 0.0])), candidate(1, "2", Some(&[-5.0]))];
        for reduction in reductions {
            assert_eq!(best_of(&all, reduction), Some(1));
        }
        assert_eq!(weighted(&all), Some(1));
    }
}

fn choose(rule: Rule, candidates: &[TestCandidate]) -> Option<usize> {
    rule.choose(candidates, &VoteParams::default())
}

fn with_logprobs(mut candidates: Vec<TestCandidate>, logprobs: &[f32]) -> Vec<TestCandidate> {
    candidates.iter_mut().zip(logprobs).for_each(|(c, &logprob)| c.logprob = Some(logprob));
    candidates
}

#[test]
fn normalized_rewards_do_not_depend_on_scale() {
    // Rewards 3, 1, 1: mean 5/3, std 0.943; z = 1.414, -0.707, -0.707.
    // e^1.414 = 4.11 against 2 e^-0.707 = 0.99.
    for scale in [1e-3f32, 1.0, 1e3] {
        let answers = scored(&[("1", 3.0 * scale), ("2", scale), ("2", scale)]);
        assert_eq!(choose(Rule::NORMALIZED, &answers), Some(0), "{scale}");
        let flat = VoteParams { temperature: 10.0, ..VoteParams::default() };
        let chosen = Rule::NORMALIZED.choose(&answers, &flat);
        assert_eq!(chosen, Some(1), "{scale}: e^0.14 against 2 e^-0.07");
    }
    // Without standardizing, small rewards hardly weigh and large ones decide alone.
    assert_eq!(weighted(&scored(&[("1", 3e-3), ("2", 1e-3), ("2", 1e-3)])), Some(1));
}

#[test]
fn likelihood_needs_no_rewards() {
    let all = with_logprobs(unscored(&["1", "2", "2"]), &[-0.1, -4.0, -4.0]);
    assert_eq!(choose(Rule::LIKELIHOOD, &all), Some(0));
    let equal = with_logprobs(unscored(&["1", "2", "2"]), &[-2.0; 3]);
    assert_eq!(choose(Rule::LIKELIHOOD, &equal), Some(1), "equal: the majority");
    assert!(Rule::LIKELIHOOD.applies(&all, &VoteParams::default()));
    assert!(!Rule::LIKELIHOOD.applies(&unscored(&["1"]), &VoteParams::default()));
}

#[test]
fn combined_adds_both_signals() {
    // Rewards alone prefer "1", log-probabilities alone "3"; their sum prefers "2".
    let all = with_logprobs(scored(&[("1", 1.0), ("2", 0.8), ("3", 0.0)]), &[-9.0, -1.0, -0.5]);
    assert_eq!(choose(Rule::NORMALIZED, &all), Some(0));
    assert_eq!(choose(Rule::LIKELIHOOD, &all), Some(2));
    assert_eq!(choose(Rule::COMBINED, &all), Some(1));
    let rewards_alone = VoteParams { likelihood_weight: 0.0, ..VoteParams::default() };
    assert_eq!(Rule::COMBINED.choose(&all, &rewards_alone), Some(0));
}

#[test]
fn the_pessimistic_bound_grows_with_votes() {
    // Means 1.0 of one and 0.8 of four, std of all five 0.08: 0.92 against 0.8 - 0.04 = 0.76.
    let close = scored(&[("1", 1.0), ("2", 0.8), ("2", 0.8), ("2", 0.8), ("2", 0.8)]);
    assert_eq!(choose(Rule::LCB, &close), Some(0));
    let cautious = VoteParams { lcb_coefficient: 6.0, ..VoteParams::default() };
    let chosen = Rule::LCB.choose(&close, &cautious);
    assert_eq!(chosen, Some(1), "1.0 - 0.48 against 0.8 - 0.24");
    // One high reward against noisy ones: means 2 and 1.5, std 1.5: 2 - 1.5 against 1.5 - 0.75.
    let noisy = scored(&[("1", 2.0), ("2", 3.0), ("2", 0.0), ("2", 3.0), ("2", 0.0)]);
    assert_eq!(choose(Rule::BEST_OF, &noisy), Some(1));
    assert_eq!(choose(Rule::LCB, &noisy), Some(1));
    let equal = scored(&[("1", 1.0), ("2", 1.0), ("2", 1.0)]);
    assert_eq!(choose(Rule::LCB, &equal), Some(1), "equal: the majority");
}

#[test]
fn candidates_without_rewards_are_handled_by_every_rule() {
    let mixed = vec![
        candidate(0, "1", Some(&[])),
        candidate(1, "2", Some(&[-5.0])),
        candidate(2, "1", Some(&[])),
    ];
    let mixed = with_logprobs(mixed, &[-1.0; 3]);
    for rule in Rule::ALL.iter().copied().filter(|rule| rule.needs().rewards) {
        assert_eq!(choose(rule, &mixed), Some(1), "{rule:?}: only one has a reward");
    }
    let empty = ["1", "2", "2"].iter().zip(0..).map(|(a, n)| candidate(n, a, Some(&[]))).collect();
    let empty = with_logprobs(empty, &[-1.0; 3]);
    for rule in Rule::ALL.iter().copied() {
        let is_best_of = rule.reduction().is_some() || rule == Rule::BEST_PROBE;
        let expected = if is_best_of { 0 } else { 1 };
        assert_eq!(choose(rule, &empty), Some(expected), "{rule:?}");
    }
}

#[test]
fn a_rule_applies_where_its_signals_exist() {
    let plain = unscored(&["1", ""]);
    let rewarded = scored(&[("1", 0.5), ("", 0.5)]);
    let applying = |candidates: &[TestCandidate]| {
        Rule::ALL.iter().filter(|rule| rule.applies(candidates, &VoteParams::default())).count()
    };
    assert_eq!((applying(&plain), applying(&rewarded)), (1, 9));
    assert_eq!(applying(&with_logprobs(plain, &[-1.0; 2])), 2);
    assert_eq!(applying(&with_logprobs(rewarded, &[-1.0; 2])), 11);
    assert_eq!(Rule::DEFAULT.last(), Some(&Rule::BEST_OF));
    let mut probed = unscored(&["1", "2"]);
    assert!(!Rule::PROBE.applies(&probed, &VoteParams::default()));
    probed[1].signals.insert(signals::PROBE.to_owned(), 0.5);
    assert!(Rule::PROBE.applies(&probed, &VoteParams::default()));
    assert_eq!(choose(Rule::BEST_PROBE, &probed), Some(1));
    let calibration = Calibration {
        weights: CalibrationWeights { probe: 1.0, ..CalibrationWeights::default() },
        slope: 1.0,
        intercept: 0.0,
    };
    let learned = VoteParams { calibration: Some(calibration), ..VoteParams::default() };
    assert!(!Rule::CALIBRATED.applies(&probed, &VoteParams::default()));
    assert!(Rule::CALIBRATED.applies(&probed, &learned));
    assert_eq!(Rule::CALIBRATED.choose(&probed, &VoteParams::default()), Some(0));
}

#[test]
fn signals_weigh_votes() {
    let mut all = unscored(&["1", "1", "2", "2", "3"]);
    for (candidate, score) in all.iter_mut().zip([0.0, 0.1, 2.0, -1.0, 0.5]) {
        candidate.signals.insert(signals::PROBE.to_owned(), score);
    }
    assert_eq!(choose(Rule::PROBE, &all), Some(2));
    assert_eq!(choose(Rule::BEST_PROBE, &all), Some(2));
    for (candidate, share) in all.iter_mut().zip([0.0, 0.0, 0.5, 0.5, 1.0]) {
        candidate.signals.insert(signals::ARITHMETIC.to_owned(), share);
    }
    assert_eq!(choose(Rule::ARITHMETIC, &all), Some(4));
    all[4].signals.remove(signals::ARITHMETIC);
    assert_eq!(choose(Rule::ARITHMETIC, &all), Some(2), "without equations it is average");
}

#[test]
fn outcome_rewards_take_precedence_over_process_rewards() {
    let mut all = scored(&[("1", 5.0), ("2", 1.0), ("2", 0.0)]);
    let rules = [Rule::BEST_OF, Rule::WEIGHTED, Rule::LCB];
    assert_eq!(rules.map(|rule| choose(rule, &all)), [Some(0); 3]);
    for (candidate, reward) in all.iter_mut().zip([-3.0, 2.0, 1.0]) {
        candidate.outcome_reward = Some(reward);
    }
    assert_eq!(rules.map(|rule| choose(rule, &all)), [Some(1); 3]);
    assert_eq!(reward(&all[0], RewardReduction::OutcomeOrMean), -3.0);
    for process in [RewardReduction::Mean, RewardReduction::Sum, RewardReduction::Last] {
        assert_eq!(reward(&all[0], process), 5.0);
        assert_eq!(best_of(&all, process), Some(0), "the other reductions are of process rewards");
    }
    let empty = TestCandidate { process_rewards: Some(vec![]), ..all[1].clone() };
    let chosen = best_of(&[all[0].clone(), empty], RewardReduction::OutcomeOrMean);
    assert_eq!(chosen, Some(1), "an outcome reward needs no thoughts");
}

proptest! {
    #[test]
    fn the_order_of_the_slice_does_not_matter(
        (ordered, shuffled) in
            candidates().prop_flat_map(|t| (Just(t.clone()), Just(t).prop_shuffle())),
    ) {
        for rule in Rule::ALL.iter().copied() {
            let chosen = |t: &[TestCandidate]| choose(rule, t).map(|index| t[index].number);
            prop_assert_eq!(chosen(&ordered), chosen(&shuffled), "{:?}", rule);
        }
    }

    #[test]
    fn of_one_candidate_every_rule_gives_its_answer(t in candidates()) {
        let one = &t[..t.len().min(1)];
        let answered = one.first().and_then(|t| t.answer.as_ref()).map(|_| 0);
        for rule in Rule::ALL.iter().copied() {
            prop_assert_eq!(choose(rule, one), answered, "{:?}", rule);
        }
    }

    #[test]
    fn a_choice_exists_where_an_answer_does(t in candidates()) {
        let answered = t.iter().any(|t| t.answer.is_some());
        for rule in Rule::ALL.iter().copied() {
            let chosen = choose(rule, &t);
            prop_assert_eq!(chosen.is_some(), answered, "{:?}", rule);
            prop_assert!(chosen.is_none_or(|index| t[index].answer.is_some()), "{:?}", rule);
        }
    }

    #[test]
    fn rules_and_their_functions_agree(t in candidates()) {
        prop_assert_eq!(choose(Rule::MAJORITY, &t), majority(&t));
        prop_assert_eq!(choose(Rule::WEIGHTED, &t), weighted(&t));
        prop_assert_eq!(choose(Rule::BEST_OF, &t), best_of(&t, RewardReduction::OutcomeOrMean));
    }

    #[test]
    fn rules_without_rewards_ignore_them(t in candidates()) {
        let mut unrewarded = t.clone();
        unrewarded.iter_mut().for_each(|c| c.process_rewards = None);
        for rule in [Rule::MAJORITY, Rule::LIKELIHOOD] {
            prop_assert_eq!(choose(rule, &t), choose(rule, &unrewarded), "{:?}", rule);
        }
    }
}
