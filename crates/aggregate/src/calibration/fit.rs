//! Fits a [`Calibration`] to questions with known answers. Both fits are convex and solved by
//! Newton's method starting from the plain majority, with a small penalty on the distance from it:
//! an uninformative signal keeps the weight 0.

use std::fmt;

use super::{
    Calibration, CalibrationWeights, FEATURES, Features, answer_features, dot, log_odds, sigmoid,
};
use crate::Candidate;

/// Penalty on half the squared distance of the weights from those of the majority, for all
/// questions together: a normal prior with standard deviation 1, which many questions outweigh.
const RIDGE: f64 = 1.0;
/// Maximum Newton steps; ten are usual.
const MAX_STEPS: usize = 100;
/// Maximum halvings of a step that does not lower the loss.
const MAX_HALVINGS: usize = 30;

/// A question with its distinct answers.
#[derive(Debug, Clone, Default)]
pub struct CalibrationExample {
    answers: Vec<Features>,
    correct: Vec<bool>,
}

impl CalibrationExample {
    /// Builds an example from the candidates of a question; `is_correct` decides which of them are
    /// correct.
    pub fn new<T: Candidate>(candidates: &[T], is_correct: impl Fn(&T) -> bool) -> Self {
        let answers = answer_features(candidates);
        let correct = answers.iter().map(|answer| is_correct(&candidates[answer.first])).collect();
        Self { answers: answers.into_iter().map(|answer| answer.features).collect(), correct }
    }

    /// Whether there are both correct and incorrect answers.
    fn is_mixed(&self) -> bool {
        self.correct.contains(&true) && self.correct.contains(&false)
    }

    /// P(a) of every answer.
    fn shares(&self, weights: &Features) -> Vec<f64> {
        let scores: Vec<f64> = self.answers.iter().map(|answer| dot(weights, answer)).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        scores.iter().map(|score| (score - max).exp() / total).collect()
    }

    /// The log-odds of the chosen answer's share, and whether it is correct.
    fn choice(&self, weights: &Features) -> Option<(f64, bool)> {
        let shares = self.shares(weights);
        let best = (0..shares.len()).reduce(|a, b| if shares[b] > shares[a] { b } else { a })?;
        Some((log_odds(shares[best]), self.correct[best]))
    }
}

/// The reason that a calibration cannot be fitted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FitError {
    /// No question has both correct and incorrect answers.
    NoMixedQuestions {
        /// Total number of questions.
        questions: usize,
    },
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::NoMixedQuestions { questions } = self;
        write!(
            f,
            "none of the {questions} questions has both correct and incorrect answers; use a run \
             with more questions or samples"
        )
    }
}

impl std::error::Error for FitError {}

/// Fits the calibration under which the correct answers are most likely. Signals with `uses` false
/// keep the weight 0; the order is that of [`CalibrationWeights::NAMES`].
///
/// # Errors
///
/// If no question has both correct and incorrect answers.
pub fn fit_calibration(
    examples: &[CalibrationExample],
    uses: [bool; FEATURES],
) -> Result<Calibration, FitError> {
    let mixed: Vec<&CalibrationExample> =
        examples.iter().filter(|example| example.is_mixed()).collect();
    if mixed.is_empty() {
        return Err(FitError::NoMixedQuestions { questions: examples.len() });
    }
    let mut prior = [0.0; FEATURES];
    prior[0] = 1.0;
    let weights = newton((prior, mixed.len()), |weights| choice_loss(&mixed, weights, uses));
    let choices: Vec<(f64, bool)> =
        examples.iter().filter_map(|example| example.choice(&weights)).collect();
    let prior = ([1.0, 0.0], choices.len());
    let [slope, intercept] = newton(prior, |platt| platt_loss(&choices, platt));
    Ok(Calibration { weights: CalibrationWeights::from_array(weights), slope, intercept })
}

/// A loss with its first and second derivatives.
struct Quadratic<const N: usize> {
    loss: f64,
    gradient: [f64; N],
    curvature: [[f64; N]; N],
}

/// The mean of -ln P(correct answers) over questions.
fn choice_loss(
    examples: &[&CalibrationExample],
    weights: &Features,
    uses: [bool; FEATURES],
) -> Quadratic<FEATURES> {
    let mut sum =
        Quadratic { loss: 0.0, gradient: [0.0; FEATURES], curvature: [[0.0; FEATURES]; FEATURES] };
    let share_of_example = 1.0 / examples.len() as f64;
    for example in examples {
        let shares = example.shares(weights);
        let right: f64 =
            shares.iter().zip(&example.correct).filter(|(_, right)| **right).map(|(p, _)| p).sum();
        sum.loss -= share_of_example * right.max(f64::MIN_POSITIVE).ln();
        let mut mean = [0.0; FEATURES];
        for (share, answer) in shares.iter().zip(&example.answers) {
            (0..FEATURES).for_each(|k| mean[k] += share * answer[k]);
        }
        for ((share, answer), correct) in shares.iter().zip(&example.answers).zip(&example.correct)
        {
            let target = if *correct { share / right.max(f64::MIN_POSITIVE) } else { 0.0 };
            for k in (0..FEATURES).filter(|&k| uses[k]) {
                sum.gradient[k] += share_of_example * (share - target) * answer[k];
                for l in (0..FEATURES).filter(|&l| uses[l]) {
                    let product = (answer[k] - mean[k]) * (answer[l] - mean[l]);
                    sum.curvature[k][l] += share_of_example * share * product;
                }
            }
        }
    }
    sum
}

/// The mean cross-entropy of the correctness of the chosen answers.
fn platt_loss(choices: &[(f64, bool)], [slope, intercept]: &[f64; 2]) -> Quadratic<2> {
    let mut sum = Quadratic { loss: 0.0, gradient: [0.0; 2], curvature: [[0.0; 2]; 2] };
    let share = 1.0 / choices.len().max(1) as f64;
    for &(odds, correct) in choices {
        let logit = intercept + slope * odds;
        let target = f64::from(u8::from(correct));
        sum.loss += share * (logit.max(0.0) - logit * target + (-logit.abs()).exp().ln_1p());
        let probability = sigmoid(logit);
        let inputs = [odds, 1.0];
        for k in 0..2 {
            sum.gradient[k] += share * (probability - target) * inputs[k];
            for l in 0..2 {
                let weight = share * probability * (1.0 - probability);
                sum.curvature[k][l] += weight * inputs[k] * inputs[l];
            }
        }
    }
    sum
}

/// Minimizes a convex mean loss over `questions` questions plus the penalty on the distance from
/// `prior`.
fn newton<const N: usize>(
    (prior, questions): ([f64; N], usize),
    loss: impl Fn(&[f64; N]) -> Quadratic<N>,
) -> [f64; N] {
    let ridge = RIDGE / questions.max(1) as f64;
    let penalized = |at: &[f64; N]| {
        let mut sum = loss(at);
        for k in 0..N {
            let distance = at[k] - prior[k];
            sum.loss += 0.5 * ridge * distance * distance;
            sum.gradient[k] += ridge * distance;
            sum.curvature[k][k] += ridge;
        }
        sum
    };
    let mut at = prior;
    let mut now = penalized(&at);
    for _ in 0..MAX_STEPS {
        let step = solve(now.curvature, now.gradient);
        let decrease: f64 = step.iter().zip(&now.gradient).map(|(s, g)| s * g).sum();
        if decrease < 1e-12 {
            break;
        }
        let mut scale = 1.0;
        let mut next = None;
        for _ in 0..MAX_HALVINGS {
            let mut candidate = at;
            (0..N).for_each(|k| candidate[k] -= scale * step[k]);
            let value = penalized(&candidate);
            if value.loss < now.loss {
                next = Some((candidate, value));
                break;
            }
            scale *= 0.5;
        }
        let Some((candidate, value)) = next else { break };
        at = candidate;
        now = value;
    }
    at
}

/// Solves A x = b for positive definite A, by Gaussian elimination with pivoting.
fn solve<const N: usize>(mut a: [[f64; N]; N], mut b: [f64; N]) -> [f64; N] {
    for column in 0..N {
        let pivot = (column..N)
            .reduce(
                |best, row| if a[row][column].abs() > a[best][column].abs() { row } else { best },
            )
            .unwrap_or(column);
        a.swap(column, pivot);
        b.swap(column, pivot);
        for row in column + 1..N {
            let pivot = a[column];
            let factor = a[row][column] / pivot[column];
            for (entry, above) in a[row].iter_mut().zip(pivot).skip(column) {
                *entry -= factor * above;
            }
            b[row] -= factor * b[column];
        }
    }
    for row in (0..N).rev() {
        let known: f64 = (row + 1..N).map(|k| a[row][k] * b[k]).sum();
        b[row] = (b[row] - known) / a[row][row];
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestCandidate, scored};

    /// Questions whose correct answer has the larger reward and, in most of them, fewer votes.
    fn examples() -> Vec<CalibrationExample> {
        let question = |i: u32| {
            let flip = if i.is_multiple_of(4) { -1.0 } else { 1.0 };
            let of = [("right", flip), ("wrong", -flip), ("wrong", -flip * 0.5), ("none", -0.2)];
            let candidates = scored(&of);
            CalibrationExample::new(&candidates, |c: &TestCandidate| {
                c.answer.as_deref() == Some("right")
            })
        };
        (0..40).map(question).collect()
    }

    #[test]
    fn a_signal_that_tells_gets_weight_and_others_none() {
        let fitted = fit_calibration(&examples(), [true; FEATURES]).unwrap();
        assert!(fitted.weights.reward > 0.3, "{fitted:?}");
        assert_eq!((fitted.weights.probe, fitted.weights.arithmetic), (0.0, 0.0));
        let mut uses = [true; FEATURES];
        uses[2] = false;
        let without = fit_calibration(&examples(), uses).unwrap();
        assert_eq!(without.weights.reward, 0.0);
    }

    #[test]
    fn derivatives_match_finite_differences() {
        let examples = examples();
        let mixed: Vec<&CalibrationExample> = examples.iter().collect();
        let at = [0.7, 0.1, 0.4, 0.2, 0.0, 0.3, -0.1];
        let analytic = choice_loss(&mixed, &at, [true; FEATURES]);
        for k in 0..FEATURES {
            let moved = |by: f64| {
                let mut at = at;
                at[k] += by;
                choice_loss(&mixed, &at, [true; FEATURES])
            };
            let slope = (moved(1e-5).loss - moved(-1e-5).loss) / 2e-5;
            assert!((slope - analytic.gradient[k]).abs() < 1e-7, "{k}");
            for l in 0..FEATURES {
                let slope = (moved(1e-5).gradient[l] - moved(-1e-5).gradient[l]) / 2e-5;
                assert!((slope - analytic.curvature[k][l]).abs() < 1e-6, "{k} {l}");
            }
        }
        let choices = [(0.5, true), (2.0, true), (1.0, false), (-0.5, false)];
        let platt = platt_loss(&choices, &[0.8, 0.2]);
        let moved = |by| platt_loss(&choices, &[0.8 + by, 0.2]).loss;
        assert!(((moved(1e-5) - moved(-1e-5)) / 2e-5 - platt.gradient[0]).abs() < 1e-7);
    }

    #[test]
    fn confidence_meets_the_accuracy_it_was_fitted_on() {
        let examples = examples();
        let fitted = fit_calibration(&examples, [true; FEATURES]).unwrap();
        let weights = fitted.weights.to_array();
        let choices: Vec<(f64, bool)> =
            examples.iter().filter_map(|example| example.choice(&weights)).collect();
        let confidence = |odds: f64| sigmoid(fitted.intercept + fitted.slope * odds);
        let mean = choices.iter().map(|(odds, _)| confidence(*odds)).sum::<f64>();
        let right = choices.iter().filter(|(_, right)| *right).count() as f64;
        assert!((mean - right).abs() < 2.0, "of 40: {mean} {right}");
    }

    #[test]
    fn without_a_choice_there_is_nothing_to_fit() {
        let all_right = CalibrationExample::new(&scored(&[("1", 0.0), ("1", 1.0)]), |_| true);
        let error = fit_calibration(&[all_right], [true; FEATURES]).unwrap_err();
        assert_eq!(error, FitError::NoMixedQuestions { questions: 1 });
        assert!(error.to_string().contains("more questions"));
    }
}
