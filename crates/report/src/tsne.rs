//! Dimensionality reduction to two dimensions: PCA and exact t-SNE.
//!
//! t-SNE (van der Maaten and Hinton, 2008) uses the exact O(n^2) algorithm: the maps have a few
//! hundred points, and crates with a faster algorithm depend on FFT libraries. It is initialized
//! with PCA, which preserves global structure (Kobak and Berens, 2019) and makes it deterministic.

/// The effective number of neighbors of a point, if there are enough points.
const PERPLEXITY: f64 = 20.0;
/// Fewer points than this are projected by PCA, because t-SNE shows spurious clusters with few
/// neighbors.
const MIN_TSNE_POINTS: usize = 60;
/// Steps of gradient descent.
const STEPS: usize = 500;
/// Factor on attractive forces in the first steps.
const EARLY_EXAGGERATION: f64 = 12.0;
/// The number of steps with early exaggeration.
const EARLY_STEPS: usize = 120;
/// Power iterations of PCA. An approximation is sufficient for display, and a page computes PCA for
/// each of about a thousand questions.
const POWER_ITERATIONS: usize = 10;
/// Rows used in each power iteration, evenly spaced.
const POWER_ROWS: usize = 64;

/// The method of a projection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Embedding {
    /// The first two principal components.
    Pca,
    /// t-SNE.
    Tsne {
        /// The perplexity, less than 20 for few points.
        perplexity: f64,
    },
}

/// The t-SNE map of rows of `width` elements, or their principal components if there are fewer than
/// 60 rows.
pub fn embed(values: &[f32], width: usize) -> (Vec<[f64; 2]>, Embedding) {
    let n = values.len() / width.max(1);
    match n < MIN_TSNE_POINTS {
        true => (pca(values, width), Embedding::Pca),
        false => (tsne(values, width), Embedding::Tsne { perplexity: perplexity(n) }),
    }
}

/// The perplexity of a t-SNE map of `n` points: at most a third of the other points.
fn perplexity(n: usize) -> f64 {
    PERPLEXITY.min(n.saturating_sub(1) as f64 / 3.0)
}

/// Projects rows of `width` elements on their first two principal components, scaled to [-1, 1].
pub fn pca(values: &[f32], width: usize) -> Vec<[f64; 2]> {
    let rows = centered(values, width);
    let mut components: Vec<Vec<f64>> = Vec::new();
    for seed in 0..2 {
        let mut direction: Vec<f64> =
            (0..width).map(|i| ((i * 7919 + seed * 104_729 + 13) % 101) as f64 - 50.0).collect();
        for _ in 0..POWER_ITERATIONS {
            orthogonalize(&mut direction, &components);
            normalize(&mut direction);
            let mut next = vec![0.0; width];
            for row in rows.iter().step_by(rows.len().div_ceil(POWER_ROWS).max(1)) {
                let projection = dot(row, &direction);
                next.iter_mut().zip(row).for_each(|(sum, x)| *sum += projection * x);
            }
            direction = next;
        }
        orthogonalize(&mut direction, &components);
        normalize(&mut direction);
        components.push(direction);
    }
    let points: Vec<[f64; 2]> =
        rows.iter().map(|row| [dot(row, &components[0]), dot(row, &components[1])]).collect();
    let largest = points.iter().flatten().fold(0.0_f64, |most, x| most.max(x.abs()));
    points
        .into_iter()
        .map(|point| point.map(|x: f64| if largest > 0.0 { x / largest } else { 0.0 }))
        .collect()
}

/// The rows with their mean subtracted.
fn centered(values: &[f32], width: usize) -> Vec<Vec<f64>> {
    let mut rows: Vec<Vec<f64>> = values
        .chunks_exact(width.max(1))
        .map(|row| row.iter().map(|&x| finite_or_zero(x)).collect())
        .collect();
    let mut mean = vec![0.0; width];
    rows.iter().for_each(|row| mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x));
    let count = rows.len().max(1) as f64;
    rows.iter_mut()
        .for_each(|row| row.iter_mut().zip(&mean).for_each(|(x, sum)| *x -= sum / count));
    rows
}

/// Replaces non-finite elements by zero: thoughts may overflow, but the map must be finite.
fn finite_or_zero(x: f32) -> f64 {
    if x.is_finite() { f64::from(x) } else { 0.0 }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn orthogonalize(direction: &mut [f64], others: &[Vec<f64>]) {
    for other in others {
        let projection = dot(direction, other);
        direction.iter_mut().zip(other).for_each(|(x, o)| *x -= projection * o);
    }
}

fn normalize(direction: &mut [f64]) {
    let norm = dot(direction, direction).sqrt();
    direction.iter_mut().for_each(|x| *x = if norm > 1e-300 { *x / norm } else { 0.0 });
}

/// Embeds rows of `width` elements in the plane by t-SNE.
pub fn tsne(values: &[f32], width: usize) -> Vec<[f64; 2]> {
    let start = pca(values, width);
    let n = start.len();
    if n < 4 {
        return start;
    }
    let joint = joint_probabilities(&squared_distances(&centered(values, width)), n);
    let mut descent = TsneDescent {
        positions: start.iter().map(|point| point.map(|x| 1e-2 * x)).collect(),
        velocity: vec![[0.0; 2]; n],
        gain: vec![[1.0; 2]; n],
        rate: (n as f64 / EARLY_EXAGGERATION).max(50.0),
    };
    for step in 0..STEPS {
        let (exaggeration, momentum) =
            if step < EARLY_STEPS { (EARLY_EXAGGERATION, 0.5) } else { (1.0, 0.8) };
        let gradient = gradient(&descent.positions, &joint, exaggeration);
        descent.step(&gradient, momentum);
    }
    descent.positions
}

/// Squared Euclidean distances, `[n, n]`.
fn squared_distances(rows: &[Vec<f64>]) -> Vec<f64> {
    let n = rows.len();
    let mut distances = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..i {
            let squared: f64 = rows[i].iter().zip(&rows[j]).map(|(a, b)| (a - b) * (a - b)).sum();
            (distances[i * n + j], distances[j * n + i]) = (squared, squared);
        }
    }
    distances
}

/// Symmetric joint probabilities, `[n, n]`; bandwidths are chosen to give every point the same
/// perplexity.
fn joint_probabilities(distances: &[f64], n: usize) -> Vec<f64> {
    let entropy = perplexity(n).ln();
    let mut joint = vec![0.0; n * n];
    for i in 0..n {
        for (j, p) in
            neighbor_probabilities(&distances[i * n..][..n], i, entropy).into_iter().enumerate()
        {
            joint[i * n + j] += p / (2 * n) as f64;
            joint[j * n + i] += p / (2 * n) as f64;
        }
    }
    joint
}

/// Conditional probabilities of the neighbors of point `i`, by bisection on the precision `beta`.
fn neighbor_probabilities(squared: &[f64], i: usize, entropy: f64) -> Vec<f64> {
    let nearest = squared
        .iter()
        .enumerate()
        .filter(|(j, _)| *j != i)
        .map(|(_, d)| *d)
        .fold(f64::INFINITY, f64::min);
    let mut beta = 1.0;
    let mut low = 0.0;
    let mut high = f64::INFINITY;
    let mut p = vec![0.0; squared.len()];
    for _ in 0..60 {
        p.iter_mut().enumerate().for_each(|(j, p)| {
            *p = if j == i { 0.0 } else { (-beta * (squared[j] - nearest)).exp() }
        });
        let sum: f64 = p.iter().sum();
        let mean: f64 = p.iter().zip(squared).map(|(p, d)| p * (d - nearest)).sum::<f64>() / sum;
        p.iter_mut().for_each(|p| *p /= sum);
        let actual = sum.ln() + beta * mean;
        if (actual - entropy).abs() < 1e-5 {
            break;
        }
        if actual > entropy {
            low = beta
        } else {
            high = beta
        }
        beta = if high.is_finite() { (low + high) / 2.0 } else { 2.0 * beta };
        // If all points coincide, no bandwidth has the required entropy.
        if beta > 1e300 {
            break;
        }
    }
    p
}

/// The gradient of the Kullback-Leibler divergence, `[n, 2]`.
fn gradient(positions: &[[f64; 2]], joint: &[f64], exaggeration: f64) -> Vec<[f64; 2]> {
    let n = positions.len();
    let kernel = |i: usize, j: usize| {
        let dx = positions[i][0] - positions[j][0];
        let dy = positions[i][1] - positions[j][1];
        (dx, dy, 1.0 / (1.0 + dx * dx + dy * dy))
    };
    let total: f64 = (0..n).map(|i| (0..i).map(|j| 2.0 * kernel(i, j).2).sum::<f64>()).sum();
    let mut gradient = vec![[0.0; 2]; n];
    for i in 0..n {
        for j in 0..i {
            let (dx, dy, near) = kernel(i, j);
            let force = 4.0 * (exaggeration * joint[i * n + j] - near / total) * near;
            gradient[i][0] += force * dx;
            gradient[i][1] += force * dy;
            gradient[j][0] -= force * dx;
            gradient[j][1] -= force * dy;
        }
    }
    gradient
}

/// Gradient descent with momentum and adaptive gains per coordinate.
struct TsneDescent {
    positions: Vec<[f64; 2]>,
    velocity: Vec<[f64; 2]>,
    gain: Vec<[f64; 2]>,
    rate: f64,
}

impl TsneDescent {
    fn step(&mut self, gradient: &[[f64; 2]], momentum: f64) {
        for (i, slopes) in gradient.iter().enumerate() {
            for (axis, &slope) in slopes.iter().enumerate() {
                let velocity = &mut self.velocity[i][axis];
                let gain = &mut self.gain[i][axis];
                *gain = if (slope > 0.0) == (*velocity > 0.0) {
                    (*gain * 0.8).max(0.01)
                } else {
                    *gain + 0.2
                };
                *velocity = momentum * *velocity - self.rate * *gain * slope;
                self.positions[i][axis] += *velocity;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three clusters of points in ten dimensions.
    fn clusters() -> Vec<f32> {
        let noise = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5;
        (0..60)
            .flat_map(|i| {
                (0..10).map(move |j| noise(i * 10 + j) + if j == i % 3 { 8.0 } else { 0.0 })
            })
            .collect()
    }

    /// The largest distance within a cluster and the smallest between clusters.
    fn cluster_distances(map: &[[f64; 2]]) -> (f64, f64) {
        let distance =
            |a: [f64; 2], b: [f64; 2]| ((a[0] - b[0]).powi(2) + (a[1] - b[1]).powi(2)).sqrt();
        let mut within = 0.0_f64;
        let mut between = f64::INFINITY;
        for i in 0..map.len() {
            for j in 0..i {
                let d = distance(map[i], map[j]);
                if i % 3 == j % 3 { within = within.max(d) } else { between = between.min(d) }
            }
        }
        (within, between)
    }

    #[test]
    fn clusters_stay_separate() {
        for map in [tsne(&clusters(), 10), pca(&clusters(), 10)] {
            let (within, between) = cluster_distances(&map);
            assert!(within < between, "{within} {between}");
        }
    }

    #[test]
    fn few_points_are_projected_and_many_name_their_perplexity() {
        let values = clusters();
        assert_eq!(
            embed(&values, 10),
            (tsne(&values, 10), Embedding::Tsne { perplexity: 59.0 / 3.0 })
        );
        assert_eq!(embed(&values[10..], 10), (pca(&values[10..], 10), Embedding::Pca));
        assert_eq!(perplexity(1000), 20.0);
        assert_eq!(embed(&[], 10), (vec![], Embedding::Pca));
    }

    #[test]
    fn the_same_thoughts_give_the_same_map() {
        assert_eq!(tsne(&clusters(), 10), tsne(&clusters(), 10));
    }

    #[test]
    fn principal_components_are_the_largest_directions() {
        // Extends by 10 along (1, 1) and by 1 along (1, -1).
        let rows = [[10.0, 10.0], [-10.0, -10.0], [1.0, -1.0], [-1.0, 1.0f32]].concat();
        let positions = pca(&rows, 2);
        assert!(
            (positions[0][0].abs() - 1.0).abs() < 1e-9 && positions[0][1].abs() < 1e-6,
            "{positions:?}"
        );
        assert!(
            positions[2][0].abs() < 1e-6 && (positions[2][1].abs() - 0.1).abs() < 1e-6,
            "{positions:?}"
        );
    }

    #[test]
    fn degenerate_inputs_give_finite_points() {
        for (numbers, width) in [
            (vec![1.0; 50], 5),
            (vec![f32::NAN; 50], 5),
            (vec![], 5),
            (vec![1.0, 2.0], 1),
            (vec![], 0),
        ] {
            for map in [tsne(&numbers, width), pca(&numbers, width)] {
                assert_eq!(map.len(), numbers.len() / width.max(1));
                assert!(map.iter().flatten().all(|x| x.is_finite()), "{map:?}");
            }
        }
    }
}
