//! Gradients against finite differences of the loss along several directions.

use model::Parameter;
use model::testkit::CheckpointFamily;
use train::dropout::DropoutConfig;
use train::latent_step::LatentTrainStep;
use train::loss::Objective;
use train::reward_step::{RewardExample, RewardHeadKind, RewardLossConfig, RewardTrainStep};
use train::tokenized_example::TokenizedExample;

use crate::support::{
    DIGIT_WEIGHT, dropout, latent_step, loss_config, reward_example, reward_step, take_gradients,
    tokenized_example, with_outcome_head,
};

/// Step of the five-point stencil. Its error is the loss's rounding over the step, and the fifth
/// derivative times the step's fourth power.
const STEP_SIZE: f32 = 0.002;
/// Relative to the gradient's norm, and absolute for rounding.
const TOLERANCE: (f64, f64) = (0.01, 3e-4);

/// A model with a loss.
trait Differentiable {
    /// Returns the loss and adds its gradients.
    fn accumulate_gradients(&mut self) -> f64;
    fn parameters(&mut self) -> Vec<&mut Parameter>;
    fn sync_weights(&mut self);
}

/// The direction of unit length; `None` for zero.
fn unit(direction: Vec<f32>) -> Option<Vec<f32>> {
    let norm = direction.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32;
    (norm > 1e-6).then(|| direction.iter().map(|x| x / norm).collect())
}

/// The gradient itself, two halves of it, and random signs. The signs are independent of the
/// gradient, so they show what is missing in it.
fn directions(gradient: &[f32]) -> Vec<Vec<f32>> {
    let coin = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9) >> 15 & 1 == 1;
    let half = |which: bool| {
        gradient.iter().enumerate().map(|(i, g)| if coin(i) == which { *g } else { 0.0 }).collect()
    };
    let signs = (0..gradient.len()).map(|i| if coin(i) { 1.0 } else { -1.0 }).collect();
    [gradient.to_vec(), half(true), half(false), signs].into_iter().filter_map(unit).collect()
}

/// The loss with parameter `at` moved along a direction.
fn loss_at(subject: &mut dyn Differentiable, at: usize, by: f32, direction: &[f32]) -> f64 {
    let mut parameters = subject.parameters();
    let value = parameters[at].value.data_mut();
    let before = value.to_vec();
    value.iter_mut().zip(direction).for_each(|(x, d)| *x += by * d);
    subject.sync_weights();
    let loss = subject.accumulate_gradients();
    subject.parameters()[at].value.data_mut().copy_from_slice(&before);
    loss
}

fn assert_gradients(subject: &mut dyn Differentiable) {
    subject.accumulate_gradients();
    let gradients = take_gradients(subject.parameters());
    let mut nonzero = 0;
    for (at, (name, gradient)) in gradients.iter().enumerate() {
        let norm = gradient.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        nonzero += usize::from(norm > 10.0 * TOLERANCE.1);
        for (i, direction) in directions(gradient).iter().enumerate() {
            let mut difference = |step: f32| {
                loss_at(subject, at, step, direction) - loss_at(subject, at, -step, direction)
            };
            let slope = (8.0 * difference(STEP_SIZE) - difference(2.0 * STEP_SIZE))
                / (12.0 * f64::from(STEP_SIZE));
            let product: f64 =
                gradient.iter().zip(direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            let (relative, absolute) = TOLERANCE;
            assert!(
                (slope - product).abs() < relative * norm + absolute,
                "{name}, direction {i}: slope {slope}, gradient {product} of norm {norm}"
            );
        }
    }
    assert!(
        nonzero * 10 > gradients.len() * 7,
        "only {nonzero} of {} tensors have a gradient above rounding",
        gradients.len()
    );
}

struct LatentSubject {
    train_step: LatentTrainStep,
    examples: Vec<TokenizedExample>,
    dropout: Option<DropoutConfig>,
}

impl Differentiable for LatentSubject {
    fn accumulate_gradients(&mut self) -> f64 {
        let losses = self.train_step.accumulate_gradients(&self.examples, self.dropout).unwrap();
        losses.tokens + f64::from(DIGIT_WEIGHT) * losses.digits
    }

    fn parameters(&mut self) -> Vec<&mut Parameter> {
        self.train_step.parameters_mut()
    }

    fn sync_weights(&mut self) {
        self.train_step.sync_weights().unwrap();
    }
}

fn assert_latent_gradients(family: CheckpointFamily, dropout: Option<DropoutConfig>) {
    let examples =
        vec![tokenized_example(1, 2, 3), tokenized_example(2, 0, 2), tokenized_example(3, 3, 4)];
    assert_gradients(&mut LatentSubject {
        train_step: latent_step(family, true),
        examples,
        dropout,
    });
}

#[test]
fn gpt2_thoughts() {
    assert_latent_gradients(CheckpointFamily::Coconut, None);
}

#[test]
fn gpt2_thoughts_with_dropout() {
    assert_latent_gradients(CheckpointFamily::Coconut, Some(dropout()));
}

#[test]
fn projected_thoughts_with_dropout() {
    assert_latent_gradients(CheckpointFamily::CodiGpt2, Some(dropout()));
}

#[test]
fn llama_thoughts_with_dropout() {
    assert_latent_gradients(CheckpointFamily::LatentSft, Some(dropout()));
}

#[test]
fn qwen3_thoughts_with_dropout() {
    assert_latent_gradients(CheckpointFamily::Rot, Some(dropout()));
}

struct RewardSubject {
    train_step: RewardTrainStep,
    examples: Vec<RewardExample>,
    config: RewardLossConfig<'static>,
}

impl Differentiable for RewardSubject {
    fn accumulate_gradients(&mut self) -> f64 {
        let losses = self.train_step.accumulate_gradients(&self.examples, self.config).unwrap();
        losses.objective + f64::from(DIGIT_WEIGHT) * losses.digits
    }

    fn parameters(&mut self) -> Vec<&mut Parameter> {
        self.train_step.parameters_mut()
    }

    fn sync_weights(&mut self) {
        self.train_step.sync_weights().unwrap();
    }
}

fn assert_reward_gradients(
    family: CheckpointFamily,
    head: RewardHeadKind,
    config: RewardLossConfig<'static>,
) {
    // Trajectories of different lengths, one without thoughts; fewer results than steps.
    let examples = vec![reward_example(1, &[2, 3, 1, 0]), reward_example(2, &[1, 3])];
    assert_gradients(&mut RewardSubject {
        train_step: reward_step(family, head, true),
        examples,
        config,
    });
}

#[test]
fn linear_reward_head() {
    assert_reward_gradients(
        CheckpointFamily::RewardGpt2,
        RewardHeadKind::Linear,
        loss_config(Objective::Bce, None),
    );
}

#[test]
fn compare_reward_head_with_dropout() {
    assert_reward_gradients(
        CheckpointFamily::RewardGpt2,
        RewardHeadKind::Compare,
        loss_config(Objective::Contrastive, Some(dropout())),
    );
}

#[test]
fn reference_trace_and_outcome_head() {
    let mut examples = vec![reward_example(1, &[2, 3, 1, 0]), reward_example(2, &[1, 3])];
    examples[0].reference_trace = reward_example(4, &[2]).thoughts; // the other has none
    let train_step =
        with_outcome_head(reward_step(CheckpointFamily::RewardGpt2, RewardHeadKind::Compare, true));
    assert_gradients(&mut RewardSubject {
        train_step,
        examples,
        config: loss_config(Objective::Pairwise, Some(dropout())),
    });
}

#[test]
fn llama_reward_model_with_dropout() {
    assert_reward_gradients(
        CheckpointFamily::RewardLlama,
        RewardHeadKind::Compare,
        loss_config(Objective::Bce, Some(dropout())),
    );
}
