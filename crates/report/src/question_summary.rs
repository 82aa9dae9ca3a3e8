//! The data of one question for the page: distinct answers, and the answer of each trajectory.

use aggregate::RewardReduction;
use record::{BeamResult, Sample, TrajectoryRecord};

/// Decoded texts are truncated to this number of characters.
const MAX_TEXT_CHARS: usize = 240;

/// A distinct answer of the trajectories.
#[derive(Debug, Clone, PartialEq)]
pub struct DistinctAnswer {
    /// The canonical answer; `None` if the text has none.
    pub answer: Option<String>,
    /// Whether it equals the gold answer.
    pub correct: bool,
    /// The first text with this answer, truncated.
    pub text: String,
}

impl DistinctAnswer {
    fn from_trajectory(trajectory: &TrajectoryRecord) -> Self {
        Self {
            answer: trajectory.answer.clone(),
            correct: trajectory.is_correct(),
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

/// One question with one seed.
#[derive(Debug, Clone, PartialEq)]
pub struct QuestionSummary {
    /// Index of the question in the data.
    pub id: u32,
    /// The question text.
    pub question: String,
    /// The gold answer.
    pub gold: String,
    /// The distinct answers, in the order of first occurrence.
    pub answers: Vec<DistinctAnswer>,
    /// For each trajectory, the index of its answer in `answers`.
    pub answer_index: Vec<usize>,
    /// The distinct texts, not truncated, in the order of first occurrence.
    pub texts: Vec<String>,
    /// For each trajectory, the index of its text in `texts`.
    pub text_index: Vec<usize>,
    /// For each trajectory, its number of thoughts.
    pub thought_counts: Vec<u32>,
    /// For each trajectory, its process rewards; empty without a reward model.
    pub process_rewards: Vec<Vec<f32>>,
    /// For each trajectory, its outcome reward; empty without an outcome head.
    pub outcome_rewards: Vec<f32>,
    /// The trajectories chosen by majority, weighted vote and best-of-N; the last two need rewards.
    pub chosen: [Option<usize>; 3],
    /// The answer of the trajectory without perturbation.
    pub greedy: Option<DistinctAnswer>,
    /// For each thought of the greedy trajectory, the recorded tokens (text and probability).
    pub greedy_lens: Vec<Vec<(String, f32)>>,
    /// The answer of beam search.
    pub beam: Option<DistinctAnswer>,
}

impl QuestionSummary {
    /// Summarizes a sample.
    pub fn from_sample(sample: &Sample) -> Self {
        let trajectories = &sample.trajectories;
        let mut answers: Vec<DistinctAnswer> = Vec::new();
        let answer_index =
            trajectories.iter().map(|trajectory| intern_answer(&mut answers, trajectory)).collect();
        let mut texts: Vec<String> = Vec::new();
        let text_index = trajectories.iter().map(|t| intern_text(&mut texts, &t.text)).collect();
        let scored = !trajectories.is_empty()
            && trajectories.iter().all(|trajectory| trajectory.process_rewards.is_some());
        let rewarded = |choose: fn(&[TrajectoryRecord]) -> Option<usize>| {
            if scored { choose(trajectories) } else { None }
        };
        Self {
            id: sample.id,
            question: sample.question.clone(),
            gold: sample.gold.clone(),
            answer_index,
            answers,
            texts,
            text_index,
            thought_counts: trajectories.iter().map(|trajectory| trajectory.latent_steps).collect(),
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
            greedy_lens: sample.greedy.as_ref().map_or_else(Vec::new, |greedy| greedy.lens.clone()),
            beam: sample.beam.as_ref().map(DistinctAnswer::from_beam),
        }
    }

    /// Whether trajectory `k` is correct.
    pub fn is_correct(&self, k: usize) -> bool {
        self.answer_index.get(k).is_some_and(|&index| self.answers[index].correct)
    }

    /// The fraction of correct trajectories.
    pub fn share_correct(&self) -> f64 {
        (0..self.answer_index.len()).filter(|&k| self.is_correct(k)).count() as f64
            / self.answer_index.len().max(1) as f64
    }
}

/// The index of the trajectory's answer in `answers`; a new answer is added.
fn intern_answer(answers: &mut Vec<DistinctAnswer>, trajectory: &TrajectoryRecord) -> usize {
    let known = answers
        .iter()
        .position(|a| a.answer == trajectory.answer && a.correct == trajectory.is_correct());
    known.unwrap_or_else(|| {
        answers.push(DistinctAnswer::from_trajectory(trajectory));
        answers.len() - 1
    })
}

/// The index of a text in `texts`; a new text is added.
fn intern_text(texts: &mut Vec<String>, text: &str) -> usize {
    texts.iter().position(|known| known == text).unwrap_or_else(|| {
        texts.push(text.to_owned());
        texts.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectory(k: u32, answer: &str, text: &str) -> TrajectoryRecord {
        let answer = (!answer.is_empty()).then(|| answer.to_owned());
        TrajectoryRecord {
            index: k,
            correct: Some(answer.as_deref() == Some("4")),
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
        let question = QuestionSummary::from_sample(&Sample {
            gold: "4".into(),
            trajectories,
            ..Sample::default()
        });
        assert_eq!(question.answer_index, [0, 1, 2, 1]);
        assert_eq!(
            question.answers.iter().map(|a| a.text.as_str()).collect::<Vec<_>>(),
            ["a", "b", "c"]
        );
        assert_eq!(question.share_correct(), 0.5);
        assert_eq!(question.chosen, [Some(1), None, None]);
        assert!(
            question.process_rewards.is_empty()
                && !question.is_correct(2)
                && !question.is_correct(9)
        );
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "é".repeat(1000);
        let question = QuestionSummary::from_sample(&Sample {
            trajectories: vec![trajectory(0, "1", &text)],
            ..Sample::default()
        });
        assert_eq!(question.answers[0].text, format!("{}…", "é".repeat(MAX_TEXT_CHARS)));
    }
}
