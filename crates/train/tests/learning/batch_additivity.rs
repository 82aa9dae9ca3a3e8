//! A lesson's loss does not depend on what is learned beside it: the gradients of a batch are the
//! sum of its parts'.

use model::testkit::CheckpointFamily;
use train::loss::Objective;
use train::reward_step::RewardHeadKind;
use train::tokenized_example::TokenizedExample;

use crate::support::{
    dropout, latent_step, loss_config, reward_example, reward_step, take_gradients,
    tokenized_example,
};

type NamedGradients = Vec<(String, Vec<f32>)>;

/// Whether a batch's gradients are its parts', each by its share.
#[track_caller]
fn adds_up(whole: &NamedGradients, parts: &[(f32, NamedGradients)]) {
    for (at, (name, gradient)) in whole.iter().enumerate() {
        let most = gradient.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        for (i, own) in gradient.iter().enumerate() {
            let sum: f32 = parts.iter().map(|(share, part)| share * part[at].1[i]).sum();
            assert!(
                (sum - own).abs() <= 2e-5 * most + 1e-7,
                "{name}[{i}]: {own} in a batch, {sum} one by one"
            );
        }
    }
}

fn assert_gradients_add_up(family: CheckpointFamily, lessons: &[TokenizedExample], digits: bool) {
    let mut study = latent_step(family, digits);
    let mut gradients = |some: &[TokenizedExample]| {
        let losses = study.accumulate_gradients(some, Some(dropout())).unwrap();
        let own = study.model.parameters_mut().chain(study.head.parameters_mut());
        (
            losses,
            take_gradients(
                own.chain(study.digit_head.iter_mut().flat_map(|(d, _)| d.linear.parameters_mut())),
            ),
        )
    };
    let (losses, whole) = gradients(lessons);
    let total: usize = lessons.iter().map(TokenizedExample::loss_tokens).sum();
    let (mut parts, mut tokens) = (Vec::new(), 0.0);
    for lesson in lessons {
        let share = lesson.loss_tokens() as f32 / total as f32;
        let (alone, gradients) = gradients(std::slice::from_ref(lesson));
        tokens += f64::from(share) * alone.tokens;
        parts.push((share, gradients));
    }
    assert!(
        (losses.tokens - tokens).abs() < 1e-6,
        "{} in a batch, {tokens} one by one",
        losses.tokens
    );
    adds_up(&whole, &parts);
}

#[test]
fn lessons_of_unlike_length_add_up() {
    let lessons = [
        tokenized_example(1, 2, 3),
        tokenized_example(2, 0, 2),
        tokenized_example(3, 3, 4),
        tokenized_example(4, 1, 1),
        tokenized_example(5, 0, 5),
    ];
    for family in
        [CheckpointFamily::Coconut, CheckpointFamily::CodiGpt2, CheckpointFamily::LatentSft]
    {
        assert_gradients_add_up(family, &lessons, false);
    }
}

#[test]
fn losses_on_thoughts_add_up() {
    // As many tokens and numbers each, so that both losses have the same shares.
    assert_gradients_add_up(
        CheckpointFamily::Coconut,
        &[tokenized_example(1, 2, 3), tokenized_example(2, 6, 3), tokenized_example(3, 3, 3)],
        true,
    );
}

#[test]
fn problems_of_a_judge_add_up() {
    let cases = [reward_example(1, &[2, 2, 3]), reward_example(2, &[3, 2, 2])];
    for (head, objective) in [
        (RewardHeadKind::Linear, Objective::Contrastive),
        (RewardHeadKind::Compare, Objective::Bce),
    ] {
        let mut judge = reward_step(CheckpointFamily::RewardGpt2, head, true);
        let mut gradients = |some: &[_]| {
            judge.accumulate_gradients(some, loss_config(objective, Some(dropout()))).unwrap();
            take_gradients(judge.model.parameters_mut().chain(judge.head.parameters_mut()))
        };
        let whole = gradients(&cases);
        adds_up(&whole, &[(0.5, gradients(&cases[..1])), (0.5, gradients(&cases[1..]))]);
    }
}
