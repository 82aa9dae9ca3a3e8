//! Order preference: an auxiliary loss that rewards a trajectory above a copy with permuted
//! thoughts.
//!
//! A reward model that ranks trajectories by their answers may ignore the order of thoughts. Each
//! correct trajectory of a problem gets a permuted copy, a negative that needs no sampling: two
//! neighbors are swapped, two segments are swapped, or all thoughts are reversed. The loss is
//! logistic with a margin,
//!
//! ```text
//! mean over pairs of ln(1 + exp(margin - (score - score of the copy)))
//! ```
//!
//! where the score is the outcome reward or, without an outcome head, the mean process reward.

use std::ops::Range;

use tensor::Tensor;

use crate::data_loader::shuffled_index;
use crate::reward_step::RewardExample;

/// Margin by which a score should exceed the score of the copy.
const MARGIN: f64 = 0.05;
/// Number of kinds of permutations.
const KINDS: u64 = 3;

/// Adds a permuted copy of every correct trajectory with at least two thoughts. The permutations
/// are determined by `key` and the problem.
pub fn add_permuted(example: &mut RewardExample, key: u64) {
    let width = example.thoughts.cols();
    let starts: Vec<usize> = starts(&example.lengths);
    let mut thoughts = std::mem::take(&mut example.thoughts).into_data();
    for (from, start) in starts.into_iter().enumerate() {
        let length = example.lengths[from];
        if !example.correct[from] || length < 2 {
            continue;
        }
        let key = key ^ u64::from(example.id) << 32 ^ (from as u64) << 8;
        for t in permutation(length, key) {
            let row = start + t;
            thoughts.extend_from_within(row * width..(row + 1) * width);
        }
        example.lengths.push(length);
        if let Some(answer) = example.answers.get(from).cloned() {
            example.answers.push(answer);
        }
        example.permuted_from.push(from);
    }
    let rows = thoughts.len() / width.max(1);
    example.thoughts = Tensor::from_vec(rows, width, thoughts);
}

/// The first row of each trajectory.
fn starts(lengths: &[usize]) -> Vec<usize> {
    let start = |sum: &mut usize, length: &usize| {
        *sum += length;
        Some(*sum - length)
    };
    lengths.iter().scan(0, start).collect()
}

/// A permutation of `0..length` other than the identity.
fn permutation(length: usize, key: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..length).collect();
    let place = 1 + shuffled_index(0, length as u64 - 1, !key) as usize;
    match shuffled_index(0, 64, key) % KINDS {
        0 => order.swap(place - 1, place),
        1 => order.rotate_left(place),
        _ => order.reverse(),
    }
    order
}

/// The mean loss over an example's pairs. `scores` are a head's rewards for the example, `ranges`
/// the range of each trajectory in them; the gradient is added to `gradient`.
pub(crate) fn loss(
    permuted_from: &[usize],
    ranges: &[Range<usize>],
    scores: &[f32],
    weight: f32,
    gradient: &mut [f32],
) -> f64 {
    let originals = ranges.len() - permuted_from.len();
    let share = f64::from(weight) / permuted_from.len().max(1) as f64;
    let mut total = 0.0;
    for (k, &from) in permuted_from.iter().enumerate() {
        let pair = [&ranges[from], &ranges[originals + k]];
        let [score, copy] = pair.map(|range| mean(&scores[range.clone()]));
        let gap = MARGIN - (score - copy);
        total += share * (gap.max(0.0) + (-gap.abs()).exp().ln_1p());
        let slope = share / (1.0 + (-gap).exp());
        for (range, sign) in pair.into_iter().zip([-1.0, 1.0]) {
            let each = (sign * slope / range.len().max(1) as f64) as f32;
            gradient[range.clone()].iter_mut().for_each(|d| *d += each);
        }
    }
    total
}

fn mean(values: &[f32]) -> f64 {
    values.iter().copied().map(f64::from).sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_trajectories_get_a_copy_in_another_order() {
        let thoughts: Vec<f32> = (0..9).map(|i| i as f32).collect();
        let example = RewardExample {
            id: 3,
            thoughts: Tensor::from_vec(9, 1, thoughts),
            lengths: vec![4, 4, 1],
            labels: vec![0.5; 9],
            answers: vec![vec![7], vec![8], vec![9]],
            correct: vec![true, false, true],
            ..RewardExample::default()
        };
        for key in 0..40 {
            let mut permuted = example.clone();
            add_permuted(&mut permuted, key);
            assert_eq!(permuted.permuted_from, [0], "a single thought cannot be permuted");
            assert_eq!(permuted.lengths, [4, 4, 1, 4]);
            assert_eq!(permuted.answers[3], [7]);
            assert_eq!((permuted.labels.len(), permuted.correct.len()), (9, 3));
            let copy = &permuted.thoughts.data()[9..];
            let mut sorted = copy.to_vec();
            sorted.sort_by(f32::total_cmp);
            assert_eq!(sorted, [0.0, 1.0, 2.0, 3.0]);
            assert_ne!(copy, sorted);
        }
    }

    #[test]
    fn all_kinds_are_drawn() {
        let orders: std::collections::BTreeSet<Vec<usize>> =
            (0..200).map(|key| permutation(5, key)).collect();
        assert!(orders.contains(&vec![4, 3, 2, 1, 0]) && orders.contains(&vec![1, 0, 2, 3, 4]));
        assert!(orders.contains(&vec![2, 3, 4, 0, 1]), "{orders:?}");
    }

    #[test]
    fn gradients_match_finite_differences() {
        let ranges = [0..2, 2..4, 4..6];
        let scores = [0.3, -0.2, 0.9, 0.1, 0.4, 0.6];
        let of = |scores: &[f32]| loss(&[0], &ranges, scores, 0.7, &mut [0.0; 6]);
        let mut gradient = [0.0; 6];
        loss(&[0], &ranges, &scores, 0.7, &mut gradient);
        for i in 0..6 {
            let moved = |by: f32| {
                let mut scores = scores;
                scores[i] += by;
                of(&scores)
            };
            let slope = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            assert!((slope - f64::from(gradient[i])).abs() < 1e-4, "{i}");
        }
        let mut better = scores;
        better[0] += 1.0;
        assert!(of(&better) < of(&scores));
    }
}
