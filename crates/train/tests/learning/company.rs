//! A lesson's loss does not depend on what is learned beside it: the gradients of a batch are the sum of its parts'.

use model::testkit::Family;
use train::judge::HeadKind;
use train::lesson::Lesson;
use train::loss::Objective;

use crate::support::{case, dropped, judge, judging, lesson, study, taken};

type Gradients = Vec<(String, Vec<f32>)>;

/// Whether a batch's gradients are its parts', each by its share.
#[track_caller]
fn adds_up(whole: &Gradients, parts: &[(f32, Gradients)]) {
    for (at, (name, gradient)) in whole.iter().enumerate() {
        let most = gradient.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        for (i, own) in gradient.iter().enumerate() {
            let sum: f32 = parts.iter().map(|(share, part)| share * part[at].1[i]).sum();
            assert!((sum - own).abs() <= 2e-5 * most + 1e-7, "{name}[{i}]: {own} in a batch, {sum} one by one");
        }
    }
}

fn lessons_add_up(family: Family, lessons: &[Lesson], digits: bool) {
    let mut study = study(family, digits);
    let mut gradients = |some: &[Lesson]| {
        let losses = study.learn(some, Some(dropped())).unwrap();
        let own = study.learner.parameters_mut().chain(study.head.parameters_mut());
        (losses, taken(own.chain(study.digits.iter_mut().flat_map(|(d, _)| d.map.parameters_mut()))))
    };
    let (losses, whole) = gradients(lessons);
    let total: usize = lessons.iter().map(Lesson::targets).sum();
    let (mut parts, mut tokens) = (Vec::new(), 0.0);
    for lesson in lessons {
        let share = lesson.targets() as f32 / total as f32;
        let (alone, gradients) = gradients(std::slice::from_ref(lesson));
        tokens += f64::from(share) * alone.tokens;
        parts.push((share, gradients));
    }
    assert!((losses.tokens - tokens).abs() < 1e-6, "{} in a batch, {tokens} one by one", losses.tokens);
    adds_up(&whole, &parts);
}

#[test]
fn lessons_of_unlike_length_add_up() {
    let lessons = [lesson(1, 2, 3), lesson(2, 0, 2), lesson(3, 3, 4), lesson(4, 1, 1), lesson(5, 0, 5)];
    for family in [Family::Coconut, Family::CodiGpt2, Family::LatentSft] {
        lessons_add_up(family, &lessons, false);
    }
}

#[test]
fn losses_on_thoughts_add_up() {
    // As many tokens and numbers each, so that both losses have the same shares.
    lessons_add_up(Family::Coconut, &[lesson(1, 2, 3), lesson(2, 6, 3), lesson(3, 3, 3)], true);
}

#[test]
fn problems_of_a_judge_add_up() {
    let cases = [case(1, &[2, 2, 3]), case(2, &[3, 2, 2])];
    for (head, objective) in [(HeadKind::Linear, Objective::Contrastive), (HeadKind::Compare, Objective::Bce)] {
        let mut judge = judge(Family::RewardGpt2, head, true);
        let mut gradients = |some: &[_]| {
            judge.learn(some, judging(objective, Some(dropped()))).unwrap();
            taken(judge.learner.parameters_mut().chain(judge.head.parameters_mut()))
        };
        let whole = gradients(&cases);
        adds_up(&whole, &[(0.5, gradients(&cases[..1])), (0.5, gradients(&cases[1..]))]);
    }
}
