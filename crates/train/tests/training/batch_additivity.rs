//! Examples of a batch are independent: a batch's gradients are the weighted sum of the gradients
//! of the single examples.

use latent_tts_train::loss::Objective;
use latent_tts_train::methods::TrainStep;
use latent_tts_train::reward_step::RewardHeadKind;
use latent_tts_train::tokenized_example::TokenizedExample;
use model::testkit::CheckpointFamily;

use crate::support::{
    NamedGradients, dropout, latent_step, loss_config, reward_example, reward_step, take_gradients,
    tokenized_example,
};

/// Checks that a batch's gradients are the weighted sum of the parts.
#[track_caller]
fn assert_sum(whole: &NamedGradients, parts: &[(f32, NamedGradients)]) {
    for (at, (name, gradient)) in whole.iter().enumerate() {
        let max = gradient.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        for (i, own) in gradient.iter().enumerate() {
            let sum: f32 = parts.iter().map(|(share, part)| share * part[at].1[i]).sum();
            assert!(
                (sum - own).abs() <= 2e-5 * max + 1e-7,
                "{name}[{i}]: {own} in a batch, {sum} one by one"
            );
        }
    }
}

fn assert_gradients_add_up(family: CheckpointFamily, examples: &[TokenizedExample], digits: bool) {
    let mut step = latent_step(family, digits);
    let mut gradients = |batch: &[TokenizedExample]| {
        let losses = step.batch_losses(batch, Some(dropout())).unwrap();
        (losses, take_gradients(step.parameters_mut()))
    };
    let (losses, whole) = gradients(examples);
    let total: usize = examples.iter().map(TokenizedExample::loss_tokens).sum();
    let mut parts = Vec::new();
    let mut tokens = 0.0;
    for example in examples {
        let share = example.loss_tokens() as f32 / total as f32;
        let (alone, gradients) = gradients(std::slice::from_ref(example));
        tokens += f64::from(share) * alone.tokens;
        parts.push((share, gradients));
    }
    assert!(
        (losses.tokens - tokens).abs() < 1e-6,
        "{} in a batch, {tokens} one by one",
        losses.tokens
    );
    assert_sum(&whole, &parts);
}

#[test]
fn gradients_of_examples_of_different_lengths_add_up() {
    let examples = [
        tokenized_example(1, 2, 3),
        tokenized_example(2, 0, 2),
        tokenized_example(3, 3, 4),
        tokenized_example(4, 1, 1),
        tokenized_example(5, 0, 5),
    ];
    for family in
        [CheckpointFamily::Coconut, CheckpointFamily::CodiGpt2, CheckpointFamily::LatentSft]
    {
        assert_gradients_add_up(family, &examples, false);
    }
}

#[test]
fn gradients_of_digit_losses_add_up() {
    // All examples have equal numbers of tokens and digits, so that both losses have equal weights.
    assert_gradients_add_up(
        CheckpointFamily::Coconut,
        &[tokenized_example(1, 4, 3), tokenized_example(2, 6, 3), tokenized_example(3, 5, 3)],
        true,
    );
}

#[test]
fn gradients_of_reward_examples_add_up() {
    let examples = [reward_example(1, &[2, 2, 3]), reward_example(2, &[3, 2, 2])];
    for (head, objective) in [
        (RewardHeadKind::Linear, Objective::Contrastive),
        (RewardHeadKind::Compare, Objective::Bce),
    ] {
        let mut step = reward_step(CheckpointFamily::RewardGpt2, head, true);
        let mut gradients = |batch: &[_]| {
            step.accumulate_gradients(batch, loss_config(objective, Some(dropout()))).unwrap();
            take_gradients(step.model.parameters_mut().chain(step.head.parameters_mut()))
        };
        let whole = gradients(&examples);
        assert_sum(&whole, &[(0.5, gradients(&examples[..1])), (0.5, gradients(&examples[1..]))]);
    }
}
