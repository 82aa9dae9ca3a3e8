//! The paper's interval search: the strength with the largest coverage, in a stated number of
//! evaluations.
//!
//! Coverage rises with a little perturbation and falls with much, so an interval that holds the top
//! can be narrowed by comparing two values inside. Golden-section search places them so that one of
//! the two serves the next narrowing as well: each evaluation after the second takes 38% off. On a
//! curve with several tops it ends at one of them.

use anyhow::Result;

/// The share of the interval that is left after a narrowing.
const INVERSE_PHI: f64 = 0.618_033_988_749_894_9;
/// No search needs more: the interval is then a 10^-20 part.
const MAX_NARROWINGS: usize = 100;

/// A search for the largest value in an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoldenSectionSearch {
    low: f64,
    high: f64,
    evaluations: usize,
}

impl GoldenSectionSearch {
    /// A search that ends when the interval is `tolerance` wide or after `most` evaluations,
    /// whichever is first.
    pub fn new(low: f64, high: f64, tolerance: f64, max_evaluations: Option<usize>) -> Self {
        let narrowings = ((tolerance / (high - low)).ln() / INVERSE_PHI.ln())
            .ceil()
            .clamp(1.0, MAX_NARROWINGS as f64) as usize;
        let needed = narrowings + 1;
        Self {
            low,
            high,
            evaluations: max_evaluations.map_or(needed, |limit| limit.min(needed)).max(1),
        }
    }

    /// How often the function is asked for.
    pub fn evaluations(&self) -> usize {
        self.evaluations
    }

    /// How wide the interval is at the end.
    pub fn tolerance(&self) -> f64 {
        (self.high - self.low) * INVERSE_PHI.powi(self.evaluations as i32 - 1)
    }

    /// Asks for values until the top is known closely enough. The caller remembers them.
    pub fn maximize(&self, mut objective: impl FnMut(f64) -> Result<f64>) -> Result<()> {
        let (mut low, mut high) = (self.low, self.high);
        let inner = |low: f64, high: f64| {
            (high - INVERSE_PHI * (high - low), low + INVERSE_PHI * (high - low))
        };
        let (mut a, mut b) = inner(low, high);
        let mut at_a = objective(a)?;
        if self.evaluations == 1 {
            return Ok(());
        }
        let mut at_b = objective(b)?;
        for _ in 2..self.evaluations {
            // Of equals the weaker side: where perturbing more brings nothing, less is better.
            if at_a >= at_b {
                (high, b, at_b) = (b, a, at_a);
                a = inner(low, high).0;
                at_a = objective(a)?;
            } else {
                (low, a, at_a) = (a, b, at_b);
                b = inner(low, high).1;
                at_b = objective(b)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values asked for, and the best of them.
    fn run_search(search: GoldenSectionSearch, top: f64) -> (usize, f64) {
        let mut asked = Vec::new();
        let value = |x: f64| -(x - top).powi(2);
        search
            .maximize(|x| {
                asked.push(x);
                Ok(value(x))
            })
            .unwrap();
        let best = asked.iter().copied().fold(f64::NAN, |best, x| {
            if value(x) > value(best) || best.is_nan() { x } else { best }
        });
        (asked.len(), best)
    }

    #[test]
    fn the_maximum_is_found_within_tolerance_in_the_stated_evaluations() {
        for (low, high, tolerance) in
            [(0.0, 0.9, 0.02), (0.01, 1.5, 0.01), (0.0, 1.0, 0.5), (0.0, 1.0, 1.0)]
        {
            for top in [0.0, 0.013, 0.2, 0.5, 0.83] {
                let search = GoldenSectionSearch::new(low, high, tolerance, None);
                let (asked, best) = run_search(search, top);
                assert_eq!(asked, search.evaluations());
                assert!(search.tolerance() <= tolerance + 1e-12, "{search:?}");
                assert!((best - top.max(low)).abs() <= tolerance, "{search:?} {top} {best}");
            }
        }
        assert_eq!(GoldenSectionSearch::new(0.0, 0.9, 0.018, None).evaluations(), 10);
    }

    #[test]
    fn max_evaluations_widens_the_tolerance() {
        for most in 1..8 {
            let search = GoldenSectionSearch::new(0.0, 1.0, 1e-3, Some(most));
            assert_eq!(run_search(search, 0.3).0, most);
            assert!(search.tolerance() > 1e-3);
        }
    }

    #[test]
    fn an_error_ends_the_search() {
        assert!(
            GoldenSectionSearch::new(0.0, 1.0, 0.1, None)
                .maximize(|_| anyhow::bail!("no"))
                .is_err()
        );
    }
}
