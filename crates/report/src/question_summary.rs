//! One question in brief: its distinct answers once each, and which trajectory gave which.

use aggregate::RewardReduction;
use record::{BeamResult, Sample, TrajectoryRecord};

/// Letters of a decoded text that are kept.
const MAX_TEXT_CHARS: usize = 240;

/// An answer that at least one trajectory gave.
#[derive(Debug, Clone, PartialEq)]
pub struct DistinctAnswer {
    /// The canonical answer; `None` of texts without one.
    pub answer: Option<String>,
    /// Whether it is right.
    pub correct: bool,
    /// The beginning of the first text that gave it.
    pub text: String,
}

impl DistinctAnswer {
    fn from_trajectory(trajectory: &TrajectoryRecord) -> Self {
        Self {
            answer: trajectory.answer.clone(),
            correct: trajectory.correct,
            text: shorten(&trajectory.text),
        }
    }

    fn from_beam(beam: &BeamResult) -> Self {
        Self { answer: beam.answer.clone(), correct: beam.correct, text: shorten(&beam.text) }
    }
}

fn shorten(text: &str) -> String {
    let mut short: String = text.trim().chars().take(MAX_TEXT_CHARS).collect();
    if short.len() < text.trim().len() {
        short.push('…');
    }
    short
}

/// Everything that the page shows of a question.
#[derive(Debug, Clone, PartialEq)]
pub struct QuestionSummary {
    /// The question's number in its data set.
    pub id: u32,
    /// The question.
    pub question: String,
    /// The right answer.
    pub gold: String,
    /// The answers that were given, in the order of their first trajectories.
    pub answers: Vec<DistinctAnswer>,
    /// For each trajectory, the place of its answer in `answers`.
    pub answer_index: Vec<usize>,
    /// For each trajectory, its number of thoughts.
    pub thought_counts: Vec<u32>,
    /// For each trajectory, its step rewards; empty where none were given.
    pub process_rewards: Vec<Vec<f32>>,
    /// For each trajectory, the reward of its answer; empty where the reward model reads none.
    pub outcome_rewards: Vec<f32>,
    /// The trajectories that vote, weighted vote and best-of-N choose; the last two only with
    /// rewards.
    pub chosen: [Option<usize>; 3],
    /// What the trajectory without perturbation gave.
    pub greedy: Option<DistinctAnswer>,
    /// What the beam search gave.
    pub beam: Option<DistinctAnswer>,
}

impl QuestionSummary {
    /// The sample in brief.
    pub fn from_sample(sample: &Sample) -> Self {
        let trajectories = &sample.trajectories;
        let mut answers: Vec<DistinctAnswer> = Vec::new();
        let given =
            trajectories.iter().map(|trajectory| intern_answer(&mut answers, trajectory)).collect();
        let scored = !trajectories.is_empty()
            && trajectories.iter().all(|trajectory| trajectory.process_rewards.is_some());
        let rewarded = |choose: fn(&[TrajectoryRecord]) -> Option<usize>| {
            if scored { choose(trajectories) } else { None }
        };
        Self {
            id: sample.id,
            question: sample.question.clone(),
            gold: sample.gold.clone(),
            answer_index: given,
            answers,
            thought_counts: trajectories.iter().map(|trajectory| trajectory.thoughts).collect(),
            process_rewards: if scored {
                trajectories.iter().filter_map(|t| t.process_rewards.clone()).collect()
            } else {
                Vec::new()
            },
            outcome_rewards: trajectories
                .iter()
                .map(|t| t.outcome_reward)
                .collect::<Option<_>>()
                .unwrap_or_default(),
            chosen: [
                aggregate::majority(trajectories),
                rewarded(aggregate::weighted),
                rewarded(|t| aggregate::best_of(t, RewardReduction::OutcomeOrMean)),
            ],
            greedy: sample.greedy.as_ref().map(DistinctAnswer::from_trajectory),
            beam: sample.beam.as_ref().map(DistinctAnswer::from_beam),
        }
    }

    /// Whether trajectory `k` is right.
    pub fn is_correct(&self, k: usize) -> bool {
        self.answer_index.get(k).is_some_and(|&place| self.answers[place].correct)
    }

    /// The share of trajectories that are right.
    pub fn share_correct(&self) -> f64 {
        (0..self.answer_index.len()).filter(|&k| self.is_correct(k)).count() as f64
            / self.answer_index.len().max(1) as f64
    }
}

fn intern_answer(answers: &mut Vec<DistinctAnswer>, trajectory: &TrajectoryRecord) -> usize {
    let known = answers
        .iter()
        .position(|a| a.answer == trajectory.answer && a.correct == trajectory.correct);
    known.unwrap_or_else(|| {
        answers.push(DistinctAnswer::from_trajectory(trajectory));
        answers.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectory(k: u32, answer: &str, text: &str) -> TrajectoryRecord {
        let answer = (!answer.is_empty()).then(|| answer.to_owned());
        TrajectoryRecord {
            k,
            correct: answer.as_deref() == Some("4"),
            answer,
            text: text.into(),
            ..TrajectoryRecord::default()
        }
    }

    #[test]
    fn distinct_answers_keep_their_first_text() {
        let trajectories = vec![
            trajectory(0, "3", "a"),
            trajectory(1, "4", "b"),
            trajectory(2, "", "c"),
            trajectory(3, "4", "d"),
        ];
        let brief = QuestionSummary::from_sample(&Sample {
            gold: "4".into(),
            trajectories,
            ..Sample::default()
        });
        assert_eq!(brief.answer_index, [0, 1, 2, 1]);
        assert_eq!(
            brief.answers.iter().map(|a| a.text.as_str()).collect::<Vec<_>>(),
            ["a", "b", "c"]
        );
        assert_eq!(brief.share_correct(), 0.5);
        assert_eq!(brief.chosen, [Some(1), None, None]);
        assert!(brief.process_rewards.is_empty() && !brief.is_correct(2) && !brief.is_correct(9));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "é".repeat(1000);
        let brief = QuestionSummary::from_sample(&Sample {
            trajectories: vec![trajectory(0, "1", &text)],
            ..Sample::default()
        });
        assert_eq!(brief.answers[0].text, format!("{}…", "é".repeat(MAX_TEXT_CHARS)));
    }
}
