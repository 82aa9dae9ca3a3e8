//! Gradients against slopes: the loss a little further in some direction, less the loss a little
//! before.

use model::Parameter;
use model::testkit::CheckpointFamily;
use train::latent_step::{DropoutConfig, LatentTrainStep};
use train::loss::Objective;
use train::reward_step::{RewardExample, RewardHeadKind, RewardLossConfig, RewardTrainStep};
use train::tokenized_example::TokenizedExample;

use crate::support::{
    DIGIT_WEIGHT, device, dropout, latent_step, loss_config, reward_example, reward_step,
    take_gradients, tokenized_example, with_outcome_head,
};

/// How far the nearer two of four losses are from where the slope is: their rounding over this, and
/// the fifth derivative times its fourth power, are a slope's error.
const STEP_SIZE: f32 = 0.002;
/// Of a gradient's norm, and of what rounding alone makes.
const TOLERANCE: (f64, f64) = (0.01, 3e-4);

/// Something with a loss.
trait Differentiable {
    /// The loss; its gradients are added up.
    fn accumulate_gradients(&mut self) -> f64;
    fn parameters(&mut self) -> Vec<&mut Parameter>;
    fn sync_weights(&mut self);
}

/// A direction of unit length, or nothing where there is none.
fn unit(direction: Vec<f32>) -> Option<Vec<f32>> {
    let norm = direction.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32;
    (norm > 1e-6).then(|| direction.iter().map(|x| x / norm).collect())
}

/// The gradient itself, two halves of it, and signs that know nothing of it: what is missing in a
/// gradient shows in those.
fn directions(gradient: &[f32]) -> Vec<Vec<f32>> {
    let coin = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9) >> 15 & 1 == 1;
    let half = |which: bool| {
        gradient.iter().enumerate().map(|(i, g)| if coin(i) == which { *g } else { 0.0 }).collect()
    };
    let signs = (0..gradient.len()).map(|i| if coin(i) { 1.0 } else { -1.0 }).collect();
    [gradient.to_vec(), half(true), half(false), signs].into_iter().filter_map(unit).collect()
}

fn moved(subject: &mut dyn Differentiable, at: usize, by: f32, direction: &[f32]) -> f64 {
    let mut parameters = subject.parameters();
    let value = parameters[at].value.data_mut();
    let before = value.to_vec();
    value.iter_mut().zip(direction).for_each(|(x, d)| *x += by * d);
    subject.sync_weights();
    let loss = subject.accumulate_gradients();
    subject.parameters()[at].value.data_mut().copy_from_slice(&before);
    loss
}

fn gradients_are_slopes(subject: &mut dyn Differentiable) {
    subject.accumulate_gradients();
    let gradients = take_gradients(subject.parameters());
    let mut seen = 0;
    for (at, (name, gradient)) in gradients.iter().enumerate() {
        let norm = gradient.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        seen += usize::from(norm > 10.0 * TOLERANCE.1);
        for (i, direction) in directions(gradient).iter().enumerate() {
            let mut between = |reach: f32| {
                moved(subject, at, reach, direction) - moved(subject, at, -reach, direction)
            };
            let slope = (8.0 * between(STEP_SIZE) - between(2.0 * STEP_SIZE))
                / (12.0 * f64::from(STEP_SIZE));
            let said: f64 =
                gradient.iter().zip(direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            let (of, least) = TOLERANCE;
            assert!(
                (slope - said).abs() < of * norm + least,
                "{name}, direction {i}: slope {slope}, gradient {said} of {norm}"
            );
        }
    }
    assert!(
        seen * 10 > gradients.len() * 7,
        "only {seen} of {} tensors have a gradient to speak of",
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
        let LatentTrainStep { model: learner, head, digit_head: digits, .. } = &mut self.train_step;
        let digits = digits.iter_mut().flat_map(|(d, _)| d.linear.parameters_mut());
        learner.parameters_mut().chain(head.parameters_mut()).chain(digits).collect()
    }

    fn sync_weights(&mut self) {
        self.train_step.model.sync_weights().unwrap();
        self.train_step.head.sync_weights(device()).unwrap();
        self.train_step
            .digit_head
            .iter_mut()
            .for_each(|(d, _)| d.linear.sync_weights(device()).unwrap());
    }
}

fn thoughts(family: CheckpointFamily, droppings: Option<DropoutConfig>) {
    let lessons =
        vec![tokenized_example(1, 2, 3), tokenized_example(2, 0, 2), tokenized_example(3, 3, 4)];
    gradients_are_slopes(&mut LatentSubject {
        train_step: latent_step(family, true),
        examples: lessons,
        dropout: droppings,
    });
}

#[test]
fn through_the_thoughts_of_a_gpt2() {
    thoughts(CheckpointFamily::Coconut, None);
}

#[test]
fn through_the_thoughts_of_a_gpt2_under_dropout() {
    thoughts(CheckpointFamily::Coconut, Some(dropout()));
}

#[test]
fn through_a_projector_between_thoughts() {
    thoughts(CheckpointFamily::CodiGpt2, Some(dropout()));
}

#[test]
fn through_the_thoughts_of_a_llama_under_dropout() {
    thoughts(CheckpointFamily::LatentSft, Some(dropout()));
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

fn judgement(family: CheckpointFamily, head: RewardHeadKind, how: RewardLossConfig<'static>) {
    // Trajectories of unlike length, one without any thought; results for fewer steps than there
    // are.
    let cases = vec![reward_example(1, &[2, 3, 1, 0]), reward_example(2, &[1, 3])];
    gradients_are_slopes(&mut RewardSubject {
        train_step: reward_step(family, head, true),
        examples: cases,
        config: how,
    });
}

#[test]
fn of_a_judge_with_the_published_head() {
    judgement(
        CheckpointFamily::RewardGpt2,
        RewardHeadKind::Linear,
        loss_config(Objective::Bce, None),
    );
}

#[test]
fn of_a_judge_that_compares() {
    judgement(
        CheckpointFamily::RewardGpt2,
        RewardHeadKind::Compare,
        loss_config(Objective::Contrastive, Some(dropout())),
    );
}

#[test]
fn of_a_judge_that_thinks_and_reads_answers() {
    let mut cases = vec![reward_example(1, &[2, 3, 1, 0]), reward_example(2, &[1, 3])];
    cases[0].reference_trace = reward_example(4, &[2]).thoughts; // the other has none
    let judge =
        with_outcome_head(reward_step(CheckpointFamily::RewardGpt2, RewardHeadKind::Compare, true));
    gradients_are_slopes(&mut RewardSubject {
        train_step: judge,
        examples: cases,
        config: loss_config(Objective::Pairwise, Some(dropout())),
    });
}

#[test]
fn of_a_llama_that_judges() {
    judgement(
        CheckpointFamily::RewardLlama,
        RewardHeadKind::Compare,
        loss_config(Objective::Bce, Some(dropout())),
    );
}
