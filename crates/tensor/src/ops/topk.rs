//! The largest elements of a row.

/// The `k` largest elements of a row with their indices, largest first; the lower index first among equals.
///
/// Not-a-number counts as smaller than everything.
pub fn top_k(row: &[f32], k: usize) -> Vec<(usize, f32)> {
    let mut best: Vec<(usize, f32)> = Vec::with_capacity(k + 1);
    for (i, &x) in row.iter().enumerate() {
        if x.is_nan() || (best.len() == k && best.last().is_none_or(|&(_, worst)| x <= worst)) {
            continue;
        }
        let at = best.partition_point(|&(_, y)| y >= x);
        best.insert(at, (i, x));
        best.truncate(k);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_first_and_lower_index_among_equals() {
        assert_eq!(top_k(&[1.0, 3.0, 2.0, 3.0, f32::NAN], 3), [(1, 3.0), (3, 3.0), (2, 2.0)]);
        assert_eq!(top_k(&[1.0], 3), [(0, 1.0)]);
        assert_eq!(top_k(&[], 3), []);
        assert_eq!(top_k(&[1.0, 2.0], 0), []);
    }

    proptest::proptest! {
        #[test]
        fn equals_a_sort(row in proptest::collection::vec(-5i8..5, 0..40), k in 0usize..12) {
            let row: Vec<f32> = row.into_iter().map(f32::from).collect();
            let mut sorted: Vec<(usize, f32)> = row.iter().copied().enumerate().collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            sorted.truncate(k);
            proptest::prop_assert_eq!(top_k(&row, k), sorted);
        }
    }
}
