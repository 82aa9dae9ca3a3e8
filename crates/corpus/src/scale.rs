//! The size of a problem's numbers.

use super::rng::CorpusRng;
use super::split::Split;

/// The size of a problem's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberScale {
    /// Numbers mostly 3 to 150, results up to 999.
    Base,
    /// Numbers up to 600, results up to 2,999, the largest at least 500.
    Mid,
    /// Numbers up to 800, results up to 99,999, the largest at least 1,000.
    Hard,
}

impl NumberScale {
    /// Samples the scale of a problem of a split. A tenth of the training split has large numbers,
    /// so that the split `Hard` is learnable.
    pub(super) fn sample(split: Split, rng: &mut CorpusRng) -> Self {
        let large = match split {
            Split::Train => 10,
            Split::Valid | Split::Test | Split::Ood => 0,
            Split::Hard => 100,
        };
        match rng.chance(large) {
            true => NumberScale::Hard,
            false if rng.chance(50) => NumberScale::Mid,
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

    /// Lower bound of the largest result, which separates the scales.
    pub(super) fn floor(self) -> i64 {
        match self {
            NumberScale::Base => 0,
            NumberScale::Mid => 500,
            NumberScale::Hard => 1_000,
        }
    }

    /// A count of items.
    pub(super) fn amount(self, rng: &mut CorpusRng) -> i64 {
        let small = rng.chance(60);
        match (self, small) {
            (NumberScale::Base, true) => rng.between(3, 60),
            (NumberScale::Base, false) => rng.between(3, 150),
            (NumberScale::Mid, true) => rng.between(5, 200),
            (NumberScale::Mid, false) => rng.between(50, 600),
            (NumberScale::Hard, true) => rng.between(20, 400),
            (NumberScale::Hard, false) => rng.between(100, 800),
        }
    }

    /// A count of groups, days, friends or boxes.
    pub(super) fn factor(self, rng: &mut CorpusRng) -> i64 {
        let small = rng.chance(75);
        match (self, small) {
            (NumberScale::Base, true) => rng.between(2, 9),
            (NumberScale::Base, false) => rng.between(6, 16),
            (NumberScale::Mid, true) => rng.between(3, 12),
            (NumberScale::Mid, false) => rng.between(8, 30),
            (NumberScale::Hard, true) => rng.between(4, 30),
            (NumberScale::Hard, false) => rng.between(12, 90),
        }
    }

    /// A count of items per group, or a price.
    pub(super) fn each(self, rng: &mut CorpusRng) -> i64 {
        let small = rng.chance(75);
        match (self, small) {
            (NumberScale::Base, true) => rng.between(2, 20),
            (NumberScale::Base, false) => rng.between(10, 60),
            (NumberScale::Mid, true) => rng.between(5, 60),
            (NumberScale::Mid, false) => rng.between(20, 200),
            (NumberScale::Hard, true) => rng.between(10, 150),
            (NumberScale::Hard, false) => rng.between(50, 500),
        }
    }

    /// The largest divisor.
    pub(super) fn divisor(self) -> i64 {
        match self {
            NumberScale::Base => 12,
            NumberScale::Mid => 20,
            NumberScale::Hard => 60,
        }
    }
}
