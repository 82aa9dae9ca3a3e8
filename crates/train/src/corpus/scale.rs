//! How large the numbers of a problem are.

use super::rng::CorpusRng;
use super::split::Split;

/// A problem's size of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberScale {
    /// Numbers mostly 3 to 150, results to 999.
    Base,
    /// Numbers to 600, results to 2,999, the largest at least 500.
    Mid,
    /// Numbers to 800, results to 99,999, the largest at least 1,000.
    Hard,
}

impl NumberScale {
    /// The scale of a split's next problem. Training has some large numbers, so that `Hard` is not
    /// hopeless.
    pub(super) fn sample(split: Split, draws: &mut CorpusRng) -> Self {
        let large = match split {
            Split::Train => 10,
            Split::Valid | Split::Test | Split::Ood => 0,
            Split::Hard => 100,
        };
        match draws.chance(large) {
            true => NumberScale::Hard,
            false if draws.chance(50) => NumberScale::Mid,
            false => NumberScale::Base,
        }
    }

    /// The largest result of a step.
    pub(super) fn limit(self) -> i64 {
        match self {
            NumberScale::Base => 999,
            NumberScale::Mid => 2_999,
            NumberScale::Hard => 99_999,
        }
    }

    /// What the largest result must reach, so that a scale is what it says.
    pub(super) fn floor(self) -> i64 {
        match self {
            NumberScale::Base => 0,
            NumberScale::Mid => 500,
            NumberScale::Hard => 1_000,
        }
    }

    /// How many there are of something.
    pub(super) fn amount(self, draws: &mut CorpusRng) -> i64 {
        let small = draws.chance(60);
        match (self, small) {
            (NumberScale::Base, true) => draws.between(3, 60),
            (NumberScale::Base, false) => draws.between(3, 150),
            (NumberScale::Mid, true) => draws.between(5, 200),
            (NumberScale::Mid, false) => draws.between(50, 600),
            (NumberScale::Hard, true) => draws.between(20, 400),
            (NumberScale::Hard, false) => draws.between(100, 800),
        }
    }

    /// How many times, how many groups, days, friends, boxes.
    pub(super) fn factor(self, draws: &mut CorpusRng) -> i64 {
        let small = draws.chance(75);
        match (self, small) {
            (NumberScale::Base, true) => draws.between(2, 9),
            (NumberScale::Base, false) => draws.between(6, 16),
            (NumberScale::Mid, true) => draws.between(3, 12),
            (NumberScale::Mid, false) => draws.between(8, 30),
            (NumberScale::Hard, true) => draws.between(4, 30),
            (NumberScale::Hard, false) => draws.between(12, 90),
        }
    }

    /// How many there are in each of several groups, or what one costs.
    pub(super) fn each(self, draws: &mut CorpusRng) -> i64 {
        let small = draws.chance(75);
        match (self, small) {
            (NumberScale::Base, true) => draws.between(2, 20),
            (NumberScale::Base, false) => draws.between(10, 60),
            (NumberScale::Mid, true) => draws.between(5, 60),
            (NumberScale::Mid, false) => draws.between(20, 200),
            (NumberScale::Hard, true) => draws.between(10, 150),
            (NumberScale::Hard, false) => draws.between(50, 500),
        }
    }

    /// The largest number that something is divided by.
    pub(super) fn divisor(self) -> i64 {
        match self {
            NumberScale::Base => 12,
            NumberScale::Mid => 20,
            NumberScale::Hard => 60,
        }
    }
}
