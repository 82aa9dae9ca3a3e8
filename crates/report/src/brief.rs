//! One question in brief: its distinct answers once each, and which trajectory gave which.

use record::aggregate::{self, Reduction};
use record::{Beam, Sample, Trajectory};

/// Letters of a decoded text that are kept.
const TEXT: usize = 240;

/// An answer that at least one trajectory gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The canonical answer; `None` of texts without one.
    pub answer: Option<String>,
    /// Whether it is right.
    pub correct: bool,
    /// The beginning of the first text that gave it.
    pub text: String,
}

impl Answer {
    fn of(trajectory: &Trajectory) -> Self {
        Self { answer: trajectory.answer.clone(), correct: trajectory.correct, text: begin(&trajectory.text) }
    }

    fn of_beam(beam: &Beam) -> Self {
        Self { answer: beam.answer.clone(), correct: beam.correct, text: begin(&beam.text) }
    }
}

fn begin(text: &str) -> String {
    let mut short: String = text.trim().chars().take(TEXT).collect();
    if short.len() < text.trim().len() {
        short.push('…');
    }
    short
}

/// Everything that the page shows of a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Brief {
    /// The question's number in its data set.
    pub id: u32,
    /// The question.
    pub question: String,
    /// The right answer.
    pub gold: String,
    /// The answers that were given, in the order of their first trajectories.
    pub answers: Vec<Answer>,
    /// For each trajectory, the place of its answer in `answers`.
    pub given: Vec<usize>,
    /// For each trajectory, its number of thoughts.
    pub thoughts: Vec<u32>,
    /// For each trajectory, its step rewards; empty where none were given.
    pub scores: Vec<Vec<f32>>,
    /// For each trajectory, the reward of its answer; empty where the reward model reads none.
    pub judged: Vec<f32>,
    /// The trajectories that vote, weighted vote and best-of-N choose; the last two only with rewards.
    pub verdicts: [Option<usize>; 3],
    /// What the trajectory without perturbation gave.
    pub greedy: Option<Answer>,
    /// What the beam search gave.
    pub beam: Option<Answer>,
}

impl Brief {
    /// The sample in brief.
    pub fn of(sample: &Sample) -> Self {
        let trajectories = &sample.trajectories;
        let mut answers: Vec<Answer> = Vec::new();
        let given = trajectories.iter().map(|trajectory| place(&mut answers, trajectory)).collect();
        let scored = !trajectories.is_empty() && trajectories.iter().all(|trajectory| trajectory.scores.is_some());
        let rewarded = |choose: fn(&[Trajectory]) -> Option<usize>| if scored { choose(trajectories) } else { None };
        Self {
            id: sample.id,
            question: sample.question.clone(),
            gold: sample.gold.clone(),
            given,
            answers,
            thoughts: trajectories.iter().map(|trajectory| trajectory.thoughts).collect(),
            scores: if scored { trajectories.iter().filter_map(|t| t.scores.clone()).collect() } else { Vec::new() },
            judged: trajectories.iter().map(|t| t.verdict).collect::<Option<_>>().unwrap_or_default(),
            verdicts: [
                aggregate::majority(trajectories),
                rewarded(aggregate::weighted),
                rewarded(|t| aggregate::best_of(t, Reduction::Overall)),
            ],
            greedy: sample.greedy.as_ref().map(Answer::of),
            beam: sample.beam.as_ref().map(Answer::of_beam),
        }
    }

    /// Whether trajectory `k` is right.
    pub fn is_correct(&self, k: usize) -> bool {
        self.given.get(k).is_some_and(|&place| self.answers[place].correct)
    }

    /// The share of trajectories that are right.
    pub fn share_correct(&self) -> f64 {
        (0..self.given.len()).filter(|&k| self.is_correct(k)).count() as f64 / self.given.len().max(1) as f64
    }
}

fn place(answers: &mut Vec<Answer>, trajectory: &Trajectory) -> usize {
    let known = answers.iter().position(|a| a.answer == trajectory.answer && a.correct == trajectory.correct);
    known.unwrap_or_else(|| {
        answers.push(Answer::of(trajectory));
        answers.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectory(k: u32, answer: &str, text: &str) -> Trajectory {
        let answer = (!answer.is_empty()).then(|| answer.to_owned());
        Trajectory { k, correct: answer.as_deref() == Some("4"), answer, text: text.into(), ..Trajectory::default() }
    }

    #[test]
    fn every_answer_is_kept_once_with_its_first_text() {
        let trajectories =
            vec![trajectory(0, "3", "a"), trajectory(1, "4", "b"), trajectory(2, "", "c"), trajectory(3, "4", "d")];
        let brief = Brief::of(&Sample { gold: "4".into(), trajectories, ..Sample::default() });
        assert_eq!(brief.given, [0, 1, 2, 1]);
        assert_eq!(brief.answers.iter().map(|a| a.text.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(brief.share_correct(), 0.5);
        assert_eq!(brief.verdicts, [Some(1), None, None]);
        assert!(brief.scores.is_empty() && !brief.is_correct(2) && !brief.is_correct(9));
    }

    #[test]
    fn long_texts_are_cut_between_letters() {
        let text = "é".repeat(1000);
        let brief = Brief::of(&Sample { trajectories: vec![trajectory(0, "1", &text)], ..Sample::default() });
        assert_eq!(brief.answers[0].text, format!("{}…", "é".repeat(TEXT)));
    }
}
