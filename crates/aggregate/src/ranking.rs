//! Pairwise ranking accuracy: whether rewards order correct trajectories above incorrect ones.

/// Over all pairs of a correct and an incorrect trajectory of one question: the number of pairs
/// that the rewards order correctly (a tie counts one half), and the number of pairs.
///
/// The quotient is the area under the ROC curve. Trajectories without a reward form no pairs.
pub fn ordered_pairs(rewards: impl Iterator<Item = (Option<f32>, bool)>) -> (f64, f64) {
    let mut correct = Vec::new();
    let mut incorrect = Vec::new();
    for (reward, is_correct) in rewards {
        if is_correct { &mut correct } else { &mut incorrect }.extend(reward);
    }
    let credit = |correct: f32, incorrect: f32| match correct.partial_cmp(&incorrect) {
        Some(std::cmp::Ordering::Greater) => 1.0,
        Some(std::cmp::Ordering::Equal) => 0.5,
        _ => 0.0,
    };
    let pairs = correct.iter().flat_map(|&c| incorrect.iter().map(move |&i| credit(c, i)));
    (pairs.sum(), (correct.len() * incorrect.len()) as f64)
}

#[cfg(test)]
mod tests {
    use super::ordered_pairs;

    #[test]
    fn ordered_pairs_are_counted() {
        let rewards = [
            (Some(2.0), true),
            (Some(1.0), false),
            (Some(2.0), false),
            (None, true),
            (Some(0.0), true),
        ];
        assert_eq!(ordered_pairs(rewards.into_iter()), (1.5, 4.0));
        assert_eq!(ordered_pairs([(Some(1.0), true)].into_iter()), (0.0, 0.0));
    }
}
