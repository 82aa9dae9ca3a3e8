//! Diversity of the thoughts of N trajectories at each step (the paper's definition).
//!
//! ```text
//! d_t = 2 / (N (N-1)) * sum over i < j of (1 - cos(h_t^i, h_t^j))
//! ```
//!
//! For unit vectors u, |sum u|^2 = N + 2 * (sum over i < j of cos), so one running sum of unit
//! vectors per step is enough: memory does not grow with N and each thought is read once. Sums are
//! in f64, because in f32 the difference of two numbers near N^2 would lose small diversities.

/// Accumulates thoughts and computes d_t for every step.
#[derive(Debug, Clone)]
pub struct StepDiversity {
    width: usize,
    steps: Vec<StepSum>,
}

/// Sums of one step over the trajectories that have it.
#[derive(Debug, Clone)]
struct StepSum {
    /// Sum of unit vectors, `[width]`.
    sum: Vec<f64>,
    /// Number of thoughts added.
    rows: usize,
    /// Number of those with a nonzero norm.
    nonzero: usize,
}

impl StepDiversity {
    /// An empty accumulator for thoughts of `width` elements.
    pub fn new(width: usize) -> Self {
        Self { width, steps: Vec::new() }
    }

    /// Adds one trajectory's thought at `step`, counted from 0.
    ///
    /// # Panics
    ///
    /// In debug builds, if the thought does not have the width given to [`StepDiversity::new`].
    pub fn add(&mut self, step: usize, thought: &[f32]) {
        debug_assert_eq!(thought.len(), self.width, "a thought has another width");
        while self.steps.len() <= step {
            self.steps.push(StepSum { sum: vec![0.0; self.width], rows: 0, nonzero: 0 });
        }
        self.steps[step].add(thought);
    }

    /// d_t of steps 0, 1, ... up to the last step that at least two trajectories have.
    ///
    /// Trajectories of unequal length are compared at the steps that both have.
    pub fn values(&self) -> Vec<f64> {
        self.steps.iter().map_while(StepSum::value).collect()
    }
}

impl StepSum {
    fn add(&mut self, thought: &[f32]) {
        self.rows += 1;
        let norm = thought.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        if norm == 0.0 {
            // A zero vector has no direction; its cosine with every other vector is defined as 0.
            return;
        }
        self.nonzero += 1;
        for (sum, &x) in self.sum.iter_mut().zip(thought) {
            *sum += f64::from(x) / norm;
        }
    }

    fn value(&self) -> Option<f64> {
        if self.rows < 2 {
            return None;
        }
        let rows = self.rows as f64;
        let nonzero = self.nonzero as f64;
        let twice_cosines = self.sum.iter().map(|x| x * x).sum::<f64>() - nonzero;
        // Rounding can exceed the range of 1 - cos by an ulp.
        Some((1.0 - twice_cosines / (rows * (rows - 1.0))).clamp(0.0, 2.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, computed pair by pair.
    fn pairwise_diversity(rows: &[Vec<f32>]) -> f64 {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
        };
        let mut sum = 0.0;
        for i in 0..rows.len() {
            for j in i + 1..rows.len() {
                let norms = (dot(&rows[i], &rows[i]) * dot(&rows[j], &rows[j])).sqrt();
                sum += if norms == 0.0 { 1.0 } else { 1.0 - dot(&rows[i], &rows[j]) / norms };
            }
        }
        2.0 * sum / (rows.len() * (rows.len() - 1)) as f64
    }

    fn single_step(rows: &[Vec<f32>]) -> Vec<f64> {
        let mut diversity = StepDiversity::new(rows.first().map_or(0, Vec::len));
        rows.iter().for_each(|row| diversity.add(0, row));
        diversity.values()
    }

    #[test]
    fn known_angles() {
        assert_eq!(single_step(&[vec![1.0, 0.0], vec![3.0, 0.0]]), [0.0]);
        assert_eq!(single_step(&[vec![1.0, 0.0], vec![0.0, 2.0]]), [1.0]);
        assert_eq!(single_step(&[vec![1.0, 0.0], vec![-1.0, 0.0]]), [2.0]);
        assert_eq!(single_step(&[vec![0.0, 0.0], vec![1.0, 0.0]]), [1.0]);
        assert_eq!(single_step(&[vec![0.0, 0.0], vec![0.0, 0.0]]), [1.0]);
    }

    #[test]
    fn fewer_than_two_rows_have_no_diversity() {
        assert!(single_step(&[]).is_empty());
        assert!(single_step(&[vec![1.0]]).is_empty());
    }

    #[test]
    fn trajectories_of_unequal_length_are_compared_at_shared_steps() {
        let mut diversity = StepDiversity::new(2);
        for (step, thought) in [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]].iter().enumerate() {
            diversity.add(step, thought);
        }
        for (step, thought) in [[1.0, 0.0], [0.0, 1.0]].iter().enumerate() {
            diversity.add(step, thought);
        }
        diversity.add(0, &[1.0, 0.0]);
        assert_eq!(diversity.values(), [0.0, 1.0]);
    }

    proptest! {
        #[test]
        fn the_running_sum_equals_the_pairs(
            rows in prop::collection::vec(prop::collection::vec(-10f32..10.0, 5), 2..12),
            zero in any::<bool>(),
        ) {
            let mut rows = rows;
            if zero {
                rows[0] = vec![0.0; 5];
            }
            let values = single_step(&rows);
            prop_assert!((values[0] - pairwise_diversity(&rows)).abs() < 1e-12, "{values:?}");
        }
    }
}
