//! Golden-section search for the strength with the highest coverage, as in the paper.
//!
//! Coverage rises with a little perturbation and falls with much. It is assumed to be unimodal, so
//! an interval around the maximum can be narrowed by comparing two interior values. With the golden
//! ratio, one of the two values is reused by the next narrowing, and each evaluation after the
//! second shrinks the interval by 38%. With several local maxima, the search ends at one of them.

/// 1 / phi: the fraction of the interval that remains after a narrowing.
const INVERSE_PHI: f64 = 0.618_033_988_749_894_9;
/// Maximum number of narrowings; the interval is then 10^-20 of its initial width.
const MAX_NARROWINGS: usize = 100;

/// A search for the maximum of a function on an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoldenSectionSearch {
    low: f64,
    high: f64,
    evaluations: usize,
}

impl GoldenSectionSearch {
    /// A search that ends when the interval is at most `tolerance` wide or after `max_evaluations`,
    /// whichever comes first.
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

    /// Number of evaluations of the function.
    pub fn evaluations(&self) -> usize {
        self.evaluations
    }

    /// Width of the interval at the end.
    pub fn tolerance(&self) -> f64 {
        (self.high - self.low) * INVERSE_PHI.powi(self.evaluations as i32 - 1)
    }

    /// Evaluates `objective` until the interval is narrow enough. The caller stores the values.
    pub fn maximize<E>(&self, mut objective: impl FnMut(f64) -> Result<f64, E>) -> Result<(), E> {
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
            // A tie keeps the lower side: at equal coverage, less perturbation is better.
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

    /// The number of evaluations and the best evaluated point for a parabola with its maximum at
    /// `argmax`.
    fn run_search(search: GoldenSectionSearch, argmax: f64) -> (usize, f64) {
        let mut evaluated = Vec::new();
        let value = |x: f64| -(x - argmax).powi(2);
        search
            .maximize(|x| {
                evaluated.push(x);
                Ok::<f64, ()>(value(x))
            })
            .unwrap();
        let best = evaluated.iter().copied().fold(f64::NAN, |best, x| {
            if value(x) > value(best) || best.is_nan() { x } else { best }
        });
        (evaluated.len(), best)
    }

    #[test]
    fn the_maximum_is_found_within_tolerance_in_the_stated_evaluations() {
        for (low, high, tolerance) in
            [(0.0, 0.9, 0.02), (0.01, 1.5, 0.01), (0.0, 1.0, 0.5), (0.0, 1.0, 1.0)]
        {
            for argmax in [0.0, 0.013, 0.2, 0.5, 0.83] {
                let search = GoldenSectionSearch::new(low, high, tolerance, None);
                let (evaluations, best) = run_search(search, argmax);
                assert_eq!(evaluations, search.evaluations());
                assert!(search.tolerance() <= tolerance + 1e-12, "{search:?}");
                let error = (best - argmax.max(low)).abs();
                assert!(error <= tolerance, "{search:?} {argmax} {best}");
            }
        }
        assert_eq!(GoldenSectionSearch::new(0.0, 0.9, 0.018, None).evaluations(), 10);
    }

    #[test]
    fn max_evaluations_widens_the_tolerance() {
        for limit in 1..8 {
            let search = GoldenSectionSearch::new(0.0, 1.0, 1e-3, Some(limit));
            assert_eq!(run_search(search, 0.3).0, limit);
            assert!(search.tolerance() > 1e-3);
        }
    }

    #[test]
    fn an_error_ends_the_search() {
        let search = GoldenSectionSearch::new(0.0, 1.0, 0.1, None);
        assert_eq!(search.maximize(|_| Err("no")), Err("no"));
    }
}
