//! Accuracy of a voting rule at k of n trajectories: the mean over all subsets of size k.
//!
//! Coverage at k is the same mean (pass@k), which makes both comparable: if a rule used only the
//! first k trajectories, it could exceed its upper bound by chance.
//!
//! Best-of-k has a closed form. Other rules are averaged over all subsets if there are few, and
//! over random subsets otherwise: the accuracy of the rule is estimated on subsets that contain a
//! correct trajectory, and multiplied by the exact fraction of such subsets, which is coverage. The
//! estimate therefore never exceeds coverage.

use aggregate::{Rule, VoteParams, best_first};
use record::TrajectoryRecord;

use crate::interval::SplitMix64;

/// Maximum number of subsets to enumerate.
const ENUMERATED: u64 = 128;
/// Number of random subsets with a correct trajectory, if subsets are not enumerated.
const DRAWN: u32 = 32;
/// Maximum number of draws, for questions where few subsets contain a correct trajectory.
const MAX_DRAWS: u32 = 8 * DRAWN;

/// The trajectories of one question.
pub(crate) struct Subsets<'a> {
    trajectories: &'a [TrajectoryRecord],
    correct: usize,
    seed: u64,
}

impl<'a> Subsets<'a> {
    /// The subsets of a question's trajectories; the seed determines the random draws.
    pub(crate) fn new(trajectories: &'a [TrajectoryRecord], seed: u64) -> Self {
        let correct = trajectories.iter().filter(|trajectory| trajectory.is_correct()).count();
        Self { trajectories, correct, seed }
    }

    /// The fraction of subsets of size k with a correct trajectory.
    pub(crate) fn coverage(&self, k: usize) -> f64 {
        coverage(self.trajectories.len(), self.correct, k)
    }

    /// The fraction of subsets of size k for which the rule chooses a correct trajectory. Uses all
    /// trajectories if there are at most k.
    pub(crate) fn accuracy(&self, rule: Rule, params: &VoteParams, k: usize) -> f64 {
        let n = self.trajectories.len();
        if self.correct == 0 {
            return 0.0;
        }
        if k == 1 {
            return self.coverage(1);
        }
        if k >= n {
            let all: Vec<usize> = (0..n).collect();
            return f64::from(u8::from(self.is_right(&all, rule, params)));
        }
        if let Some(reduction) = rule.reduction() {
            return self.best_of(&best_first(self.trajectories, reduction), k);
        }
        match binomial(n, k).filter(|subsets| *subsets <= ENUMERATED) {
            Some(subsets) => {
                let right = combinations(n, k).filter(|chosen| self.is_right(chosen, rule, params));
                right.count() as f64 / subsets as f64
            }
            None => self.coverage(k) * self.drawn_share(rule, params, k),
        }
    }

    /// Best-of-k: the rule chooses the first trajectory in `order` that is in the subset.
    fn best_of(&self, order: &[usize], k: usize) -> f64 {
        let n = self.trajectories.len();
        // The fraction of subsets that contain none of the first `place` trajectories.
        let without = |place: usize| 1.0 - coverage(n, place, k);
        let chosen = |place: usize| without(place) - without(place + 1);
        let right = |(_, index): &(usize, &usize)| self.trajectories[**index].is_correct();
        order.iter().enumerate().filter(right).map(|(place, _)| chosen(place)).sum()
    }

    /// The rule's accuracy on random subsets of size k with a correct trajectory.
    fn drawn_share(&self, rule: Rule, params: &VoteParams, k: usize) -> f64 {
        let mut rng = SplitMix64(self.seed ^ (k as u64) << 48);
        let mut order: Vec<usize> = (0..self.trajectories.len()).collect();
        let mut right = 0u32;
        let mut drawn = 0u32;
        for _ in 0..MAX_DRAWS {
            for place in 0..k {
                let other = place + rng.below(order.len() - place);
                order.swap(place, other);
            }
            if order[..k].iter().any(|&index| self.trajectories[index].is_correct()) {
                drawn += 1;
                right += u32::from(self.is_right(&order[..k], rule, params));
            }
            if drawn == DRAWN {
                break;
            }
        }
        f64::from(right) / f64::from(drawn.max(1))
    }

    fn is_right(&self, chosen: &[usize], rule: Rule, params: &VoteParams) -> bool {
        let subset: Vec<&TrajectoryRecord> =
            chosen.iter().map(|&index| &self.trajectories[index]).collect();
        rule.choose(&subset, params).is_some_and(|index| subset[index].is_correct())
    }
}

/// The unbiased pass@k estimator for c correct of n trajectories: 1 - C(n-c, k) / C(n, k).
///
/// Computed as a product of c ratios below one, which neither overflows nor cancels.
pub fn coverage(n: usize, c: usize, k: usize) -> f64 {
    let wrong = n.saturating_sub(c);
    if wrong < k {
        return 1.0;
    }
    1.0 - (wrong + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
}

/// The number of subsets of size k; `None` on overflow.
fn binomial(n: usize, k: usize) -> Option<u64> {
    (0..k as u64).try_fold(1u64, |count, i| Some(count.checked_mul(n as u64 - i)? / (i + 1)))
}

/// All subsets of size k of `0..n`.
fn combinations(n: usize, k: usize) -> impl Iterator<Item = Vec<usize>> {
    let mut next = (k <= n).then(|| (0..k).collect::<Vec<usize>>());
    std::iter::from_fn(move || {
        let current = next.take()?;
        // The last element that can still move to the right; the following ones go next to it.
        let place = (0..k).rev().find(|&place| current[place] < n - k + place);
        next = place.map(|place| {
            let moved = (0..k - place).map(|i| current[place] + 1 + i);
            current[..place].iter().copied().chain(moved).collect()
        });
        Some(current)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The fraction of k-subsets of n trajectories with a correct one; the first c are correct.
    fn enumerated(n: usize, c: usize, k: usize) -> f64 {
        let all = combinations(n, k).count();
        combinations(n, k).filter(|chosen| chosen[0] < c).count() as f64 / all as f64
    }

    #[test]
    fn the_estimator_equals_the_enumeration_of_subsets() {
        for n in 1..=9 {
            for c in 0..=n {
                for k in 1..=n {
                    assert_eq!(Some(combinations(n, k).count() as u64), binomial(n, k));
                    let error = (coverage(n, c, k) - enumerated(n, c, k)).abs();
                    assert!(error < 1e-12, "n = {n}, c = {c}, k = {k}");
                }
            }
        }
    }

    #[test]
    fn the_estimator_is_stable_for_large_n() {
        assert_eq!(coverage(100_000, 0, 50_000), 0.0);
        assert_eq!(coverage(100_000, 100_000, 1), 1.0);
        assert!((coverage(100_000, 1, 1000) - 0.01).abs() < 1e-12);
        assert!((coverage(64, 16, 1) - 0.25).abs() < 1e-12);
    }

    fn trajectories(answers: &[u8], rewards: &[f32]) -> Vec<TrajectoryRecord> {
        let one = |(k, (answer, reward)): (usize, (&u8, &f32))| TrajectoryRecord {
            index: k as u32,
            answer: (*answer < 9).then(|| answer.to_string()),
            correct: Some(*answer == 1),
            process_rewards: Some(vec![*reward]),
            logprob: Some(-*reward),
            ..TrajectoryRecord::default()
        };
        answers.iter().zip(rewards).enumerate().map(one).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn no_rule_exceeds_coverage(
            answers in prop::collection::vec(0u8..10, 1..40),
            rewards in prop::collection::vec(-2.0f32..2.0, 40),
            seed in any::<u64>(),
        ) {
            let trajectories = trajectories(&answers, &rewards);
            let subsets = Subsets::new(&trajectories, seed);
            for &rule in Rule::ALL {
                for k in 1..=answers.len() {
                    let accuracy = subsets.accuracy(rule, &VoteParams::default(), k);
                    prop_assert!((0.0..=subsets.coverage(k) + 1e-12).contains(&accuracy));
                }
            }
        }

        #[test]
        fn best_of_equals_the_enumeration(
            answers in prop::collection::vec(0u8..10, 2..9),
            rewards in prop::collection::vec(0u8..3, 9),
            k in 1usize..9,
        ) {
            let rewards: Vec<f32> = rewards.into_iter().map(f32::from).collect();
            let trajectories = trajectories(&answers, &rewards);
            let n = answers.len();
            let k = k.min(answers.len());
            let subsets = Subsets::new(&trajectories, 0);
            let rule = Rule::BEST_OF_MEAN;
            let params = VoteParams::default();
            let right = combinations(n, k).filter(|chosen| subsets.is_right(chosen, rule, &params));
            let expected = right.count() as f64 / binomial(n, k).unwrap() as f64;
            prop_assert!((subsets.accuracy(rule, &params, k) - expected).abs() < 1e-9);
        }

        #[test]
        fn draws_estimate_the_enumeration(answers in prop::collection::vec(0u8..4, 12)) {
            let trajectories = trajectories(&answers, &[0.0; 12]);
            let params = VoteParams::default();
            let right = |chosen: &Vec<usize>| {
                Subsets::new(&trajectories, 0).is_right(chosen, Rule::MAJORITY, &params)
            };
            let exact = combinations(12, 5).filter(right).count() as f64 / 792.0;
            let estimate = |seed| {
                Subsets::new(&trajectories, seed).accuracy(Rule::MAJORITY, &params, 5)
            };
            let mean = (0..64).map(estimate).sum::<f64>() / 64.0;
            // 64 estimates of 32 draws each: five standard deviations are at most 0.056.
            prop_assert!((mean - exact).abs() < 0.056, "{mean} for {exact}");
        }
    }
}
