//! Whether scores put right trajectories above wrong ones, within a question.

/// Pairs of a right and a wrong trajectory: how many of them scores put in the right order (ties
/// count half), and how many there are. Their quotient is the area under the ROC curve;
/// trajectories without a score take no part.
pub fn ordered_pairs(scored: impl Iterator<Item = (Option<f32>, bool)>) -> (f64, f64) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for (score, correct) in scored {
        if correct { &mut good } else { &mut bad }.extend(score);
    }
    let one = |good: f32, bad: f32| match good.partial_cmp(&bad) {
        Some(std::cmp::Ordering::Greater) => 1.0,
        Some(std::cmp::Ordering::Equal) => 0.5,
        _ => 0.0,
    };
    let right = good.iter().flat_map(|&g| bad.iter().map(move |&b| one(g, b))).sum();
    (right, (good.len() * bad.len()) as f64)
}

#[cfg(test)]
mod tests {
    use super::ordered_pairs;

    #[test]
    fn ordered_pairs_are_counted() {
        let scored = [
            (Some(2.0), true),
            (Some(1.0), false),
            (Some(2.0), false),
            (None, true),
            (Some(0.0), true),
        ];
        assert_eq!(ordered_pairs(scored.into_iter()), (1.5, 4.0));
        assert_eq!(ordered_pairs([(Some(1.0), true)].into_iter()), (0.0, 0.0));
    }
}
