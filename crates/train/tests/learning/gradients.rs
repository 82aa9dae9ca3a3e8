//! Gradients against slopes: the loss a little further in some direction, less the loss a little before.

use model::Parameter;
use model::testkit::Family;
use train::judge::{Case, HeadKind, Judge, Judging};
use train::lesson::Lesson;
use train::loss::Objective;
use train::study::{Droppings, Study};

use crate::support::{DIGITS, case, device, dropped, judge, judging, lesson, study, taken, verdicts};

/// How far the nearer two of four losses are from where the slope is: their rounding over this, and the fifth derivative
/// times its fourth power, are a slope's error.
const REACH: f32 = 0.002;
/// Of a gradient's norm, and of what rounding alone makes.
const TOLERANCE: (f64, f64) = (0.01, 3e-4);

/// Something with a loss.
trait Subject {
    /// The loss; its gradients are added up.
    fn learn(&mut self) -> f64;
    fn parameters(&mut self) -> Vec<&mut Parameter>;
    fn refresh(&mut self);
}

/// A direction of unit length, or nothing where there is none.
fn unit(direction: Vec<f32>) -> Option<Vec<f32>> {
    let norm = direction.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32;
    (norm > 1e-6).then(|| direction.iter().map(|x| x / norm).collect())
}

/// The gradient itself, two halves of it, and signs that know nothing of it: what is missing in a gradient shows in those.
fn directions(gradient: &[f32]) -> Vec<Vec<f32>> {
    let coin = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9) >> 15 & 1 == 1;
    let half = |which: bool| gradient.iter().enumerate().map(|(i, g)| if coin(i) == which { *g } else { 0.0 }).collect();
    let signs = (0..gradient.len()).map(|i| if coin(i) { 1.0 } else { -1.0 }).collect();
    [gradient.to_vec(), half(true), half(false), signs].into_iter().filter_map(unit).collect()
}

fn moved(subject: &mut dyn Subject, at: usize, by: f32, direction: &[f32]) -> f64 {
    let mut parameters = subject.parameters();
    let value = parameters[at].value.data_mut();
    let before = value.to_vec();
    value.iter_mut().zip(direction).for_each(|(x, d)| *x += by * d);
    subject.refresh();
    let loss = subject.learn();
    subject.parameters()[at].value.data_mut().copy_from_slice(&before);
    loss
}

fn gradients_are_slopes(subject: &mut dyn Subject) {
    subject.learn();
    let gradients = taken(subject.parameters());
    let mut seen = 0;
    for (at, (name, gradient)) in gradients.iter().enumerate() {
        let norm = gradient.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        seen += usize::from(norm > 10.0 * TOLERANCE.1);
        for (i, direction) in directions(gradient).iter().enumerate() {
            let mut between = |reach: f32| moved(subject, at, reach, direction) - moved(subject, at, -reach, direction);
            let slope = (8.0 * between(REACH) - between(2.0 * REACH)) / (12.0 * f64::from(REACH));
            let said: f64 = gradient.iter().zip(direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            let (of, least) = TOLERANCE;
            assert!((slope - said).abs() < of * norm + least, "{name}, direction {i}: slope {slope}, gradient {said} of {norm}");
        }
    }
    assert!(seen * 10 > gradients.len() * 7, "only {seen} of {} tensors have a gradient to speak of", gradients.len());
}

struct Studied {
    study: Study,
    lessons: Vec<Lesson>,
    droppings: Option<Droppings>,
}

impl Subject for Studied {
    fn learn(&mut self) -> f64 {
        let losses = self.study.learn(&self.lessons, self.droppings).unwrap();
        losses.tokens + f64::from(DIGITS) * losses.digits
    }

    fn parameters(&mut self) -> Vec<&mut Parameter> {
        let Study { learner, head, digits, .. } = &mut self.study;
        let digits = digits.iter_mut().flat_map(|(d, _)| d.map.parameters_mut());
        learner.parameters_mut().chain(head.parameters_mut()).chain(digits).collect()
    }

    fn refresh(&mut self) {
        self.study.learner.refresh().unwrap();
        self.study.head.refresh(device()).unwrap();
        self.study.digits.iter_mut().for_each(|(d, _)| d.map.refresh(device()).unwrap());
    }
}

fn thoughts(family: Family, droppings: Option<Droppings>) {
    let lessons = vec![lesson(1, 2, 3), lesson(2, 0, 2), lesson(3, 3, 4)];
    gradients_are_slopes(&mut Studied { study: study(family, true), lessons, droppings });
}

#[test]
fn through_the_thoughts_of_a_gpt2() {
    thoughts(Family::Coconut, None);
}

#[test]
fn through_the_thoughts_of_a_gpt2_under_dropout() {
    thoughts(Family::Coconut, Some(dropped()));
}

#[test]
fn through_a_projector_between_thoughts() {
    thoughts(Family::CodiGpt2, Some(dropped()));
}

#[test]
fn through_the_thoughts_of_a_llama_under_dropout() {
    thoughts(Family::LatentSft, Some(dropped()));
}

struct Judged {
    judge: Judge,
    cases: Vec<Case>,
    how: Judging<'static>,
}

impl Subject for Judged {
    fn learn(&mut self) -> f64 {
        let losses = self.judge.learn(&self.cases, self.how).unwrap();
        losses.score + f64::from(DIGITS) * losses.digits
    }

    fn parameters(&mut self) -> Vec<&mut Parameter> {
        self.judge.parameters_mut()
    }

    fn refresh(&mut self) {
        self.judge.refresh().unwrap();
    }
}

fn judgement(family: Family, head: HeadKind, how: Judging<'static>) {
    // Trajectories of unlike length, one without any thought; results for fewer steps than there are.
    let cases = vec![case(1, &[2, 3, 1, 0]), case(2, &[1, 3])];
    gradients_are_slopes(&mut Judged { judge: judge(family, head, true), cases, how });
}

#[test]
fn of_a_judge_with_the_published_head() {
    judgement(Family::RewardGpt2, HeadKind::Linear, judging(Objective::Bce, None));
}

#[test]
fn of_a_judge_that_compares() {
    judgement(Family::RewardGpt2, HeadKind::Compare, judging(Objective::Contrastive, Some(dropped())));
}

#[test]
fn of_a_judge_that_thinks_and_reads_answers() {
    let mut cases = vec![case(1, &[2, 3, 1, 0]), case(2, &[1, 3])];
    cases[0].own = case(4, &[2]).thoughts; // the other has none
    let judge = verdicts(judge(Family::RewardGpt2, HeadKind::Compare, true));
    gradients_are_slopes(&mut Judged { judge, cases, how: judging(Objective::Pairwise, Some(dropped())) });
}

#[test]
fn of_a_llama_that_judges() {
    judgement(Family::RewardLlama, HeadKind::Compare, judging(Objective::Bce, Some(dropped())));
}
