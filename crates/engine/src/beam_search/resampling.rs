//! Systematic resampling of particles.

/// Copies of each particle, as many in all as there are particles, in proportion to
/// exp(reward / temperature).
///
/// Systematic resampling places one comb of equidistant points, shifted by `offset` in `[0, 1)`, on
/// the cumulative weights. A particle with the share w of the weight gets floor(n w) or ceil(n w)
/// copies. A particle whose reward is not finite gets none, unless all are such.
pub(super) fn systematic_resampling(rewards: &[f64], temperature: f64, offset: f64) -> Vec<usize> {
    let largest = rewards.iter().copied().filter(|r| r.is_finite()).reduce(f64::max);
    let Some(largest) = largest else { return vec![1; rewards.len()] };
    let weight = |reward: &f64| match reward.is_finite() {
        true => ((reward - largest) / temperature).exp(),
        false => 0.0,
    };
    let weights: Vec<f64> = rewards.iter().map(weight).collect();
    let total: f64 = weights.iter().sum();
    let count = rewards.len();
    let mut copies = vec![0; count];
    let mut particle = 0;
    let mut cumulative = weights[0];
    for point in 0..count {
        let position = (point as f64 + offset) / count as f64 * total;
        // Rounding must not lead beyond the last particle that has weight.
        while position >= cumulative && weights[particle + 1..].iter().any(|&w| w > 0.0) {
            particle += 1;
            cumulative += weights[particle];
        }
        copies[particle] += 1;
    }
    copies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_in_proportion_to_the_weights() {
        let rewards = [1f64.ln(), 3f64.ln(), f64::NEG_INFINITY, 4f64.ln()];
        for offset in [0.0, 0.3, 0.999] {
            let copies = systematic_resampling(&rewards, 1.0, offset);
            assert_eq!(copies.iter().sum::<usize>(), 4);
            // Shares of 4 particles: 0.5, 1.5, 0 and 2 copies.
            assert!(copies[0] <= 1 && (1..=2).contains(&copies[1]), "{copies:?}");
            assert_eq!((copies[2], copies[3]), (0, 2));
        }
        let mean: f64 = (0..1000)
            .map(|i| systematic_resampling(&rewards, 1.0, f64::from(i) / 1000.0)[0] as f64)
            .sum::<f64>()
            / 1000.0;
        assert!((mean - 0.5).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn a_small_temperature_keeps_the_best_and_a_large_one_keeps_all() {
        let rewards = [0.0, 1.0, 0.5];
        assert_eq!(systematic_resampling(&rewards, 1e-3, 0.5), [0, 3, 0]);
        assert_eq!(systematic_resampling(&rewards, 1e6, 0.5), [1, 1, 1]);
    }

    #[test]
    fn rewards_that_are_not_finite_lose_unless_all_are_such() {
        assert_eq!(systematic_resampling(&[f64::NAN, 0.0], 1.0, 0.0), [0, 2]);
        assert_eq!(systematic_resampling(&[0.0, f64::NAN], 1.0, 0.999), [2, 0]);
        assert_eq!(systematic_resampling(&[f64::NAN, f64::NAN], 1.0, 0.2), [1, 1]);
        assert_eq!(systematic_resampling(&[0.3], 1.0, 0.9), [1]);
    }
}
