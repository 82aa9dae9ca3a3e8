//! One question under one seed: a line of `samples.jsonl`.
//!
//! The order and names of the fields are a contract with scripts. What a line may say is checked on
//! the way in and on the way out ([`Check`]), so that readers need not ask: every number is finite,
//! trajectories are in the order of `k`, and what has no answer is not correct.

use aggregate::{Candidate, EarlyStop};
use serde::{Deserialize, Serialize};

use crate::error::FieldError;

/// A record that can tell whether it makes sense.
pub(crate) trait Validate {
    /// The first broken rule.
    fn validate(&self) -> Result<(), FieldError>;
}

/// Everything that was sampled for one question under one seed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The question's number in its data set.
    pub id: u32,
    /// The seed of the run.
    pub seed: u64,
    /// The question as it was asked.
    pub question: String,
    /// The right answer, canonical.
    pub gold: String,
    /// The sampled trajectories, `k` ascending.
    pub trajectories: Vec<TrajectoryRecord>,
    /// The beam search, where one ran.
    #[serde(default)]
    pub beam: Option<BeamResult>,
    /// The trajectory without perturbation, where one ran.
    #[serde(default)]
    pub greedy: Option<TrajectoryRecord>,
    /// d_t of each thought step, over the sampled trajectories; see
    /// [`StepDiversity`](aggregate::StepDiversity).
    #[serde(default)]
    pub diversity: Option<Vec<f64>>,
    /// Why there are fewer trajectories than were asked for, where there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<EarlyStop>,
    /// Decoding steps: positions computed one after another, over all trajectories.
    #[serde(default)]
    pub steps: u64,
    /// Floating-point operations spent on this question, without those of its beam search.
    #[serde(default)]
    pub flops: f64,
}

/// One path of thoughts and the answer it came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrajectoryRecord {
    /// Its number among the trajectories of the question.
    pub k: u32,
    /// The number of thoughts.
    pub thoughts: u32,
    /// The decoded text.
    pub text: String,
    /// The canonical answer: equal answers are equal strings. `None` never votes and is never
    /// correct.
    #[serde(default)]
    pub answer: Option<String>,
    /// One step reward per thought, where a reward model scored it.
    #[serde(default, rename = "scores")]
    pub process_rewards: Option<Vec<f32>>,
    /// The reward of the answer, where the reward model reads answers.
    #[serde(default, rename = "verdict", skip_serializing_if = "Option::is_none")]
    pub outcome_reward: Option<f32>,
    /// Whether the answer equals the right one.
    pub correct: bool,
    /// The natural logarithm of the decoded text's probability, its ending token included, where
    /// that is a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
}

impl Candidate for TrajectoryRecord {
    fn number(&self) -> u32 {
        self.k
    }

    fn answer(&self) -> Option<&str> {
        self.answer.as_deref()
    }

    fn process_rewards(&self) -> Option<&[f32]> {
        self.process_rewards.as_deref()
    }

    fn outcome_reward(&self) -> Option<f32> {
        self.outcome_reward
    }

    fn logprob(&self) -> Option<f32> {
        self.logprob
    }
}

/// The best finished beam of a reward-guided search.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BeamResult {
    /// Beams kept at each step, B.
    pub width: u32,
    /// Extensions tried for each beam, K.
    pub candidates: u32,
    /// The number of thoughts of the best beam.
    pub thoughts: u32,
    /// Its decoded text.
    pub text: String,
    /// Its canonical answer; `None` is never correct.
    #[serde(default)]
    pub answer: Option<String>,
    /// Its cumulative reward; 0 without thoughts.
    pub reward: f32,
    /// Its step rewards, one per thought.
    #[serde(default, rename = "scores")]
    pub process_rewards: Vec<f32>,
    /// The reward of its answer, where the reward model reads answers; it then chose the path
    /// among those that ended.
    #[serde(default, rename = "verdict", skip_serializing_if = "Option::is_none")]
    pub outcome_reward: Option<f32>,
    /// Whether the answer equals the right one.
    pub correct: bool,
    /// Decoding steps of the search.
    #[serde(default)]
    pub steps: u64,
    /// Floating-point operations of the search.
    #[serde(default)]
    pub flops: f64,
}

const NOT_FINITE: &str = "holds a number that is not finite";

impl Validate for Sample {
    fn validate(&self) -> Result<(), FieldError> {
        for (index, trajectory) in self.trajectories.iter().enumerate() {
            trajectory.validate_field(&format!("trajectories[{index}]"))?;
        }
        if let Some(index) = self.trajectories.windows(2).position(|pair| pair[0].k >= pair[1].k) {
            return Err(FieldError::new(
                format!("trajectories[{}].k", index + 1),
                "does not ascend",
            ));
        }
        if let Some(greedy) = &self.greedy {
            greedy.validate_field("greedy")?;
        }
        if self.stopped.is_some_and(|stopped| stopped.requested as usize <= self.trajectories.len())
        {
            return Err(FieldError::new(
                "stopped.asked",
                "is not more than the trajectories that are there",
            ));
        }
        if let Some(beam) = &self.beam {
            check_finite("beam.reward", [f64::from(beam.reward)])?;
            check_finite("beam.scores", beam.process_rewards.iter().copied().map(f64::from))?;
            check_finite("beam.verdict", beam.outcome_reward.map(f64::from))?;
            check_finite("beam.flops", [beam.flops])?;
            check_answer("beam", &beam.answer, beam.correct)?;
        }
        check_finite("diversity", self.diversity.iter().flatten().copied())?;
        check_finite("flops", [self.flops])
    }
}

impl TrajectoryRecord {
    fn validate_field(&self, field: &str) -> Result<(), FieldError> {
        check_answer(field, &self.answer, self.correct)?;
        check_finite(&format!("{field}.logprob"), self.logprob.map(f64::from))?;
        check_finite(&format!("{field}.verdict"), self.outcome_reward.map(f64::from))?;
        let Some(scores) = &self.process_rewards else {
            return Ok(());
        };
        let field = format!("{field}.scores");
        if scores.len() != self.thoughts as usize {
            return Err(FieldError::new(field, "does not hold one score per thought"));
        }
        check_finite(&field, scores.iter().copied().map(f64::from))
    }
}

fn check_answer(field: &str, answer: &Option<String>, correct: bool) -> Result<(), FieldError> {
    if correct && answer.is_none() {
        return Err(FieldError::new(
            format!("{field}.correct"),
            "is true although there is no answer",
        ));
    }
    Ok(())
}

/// JSON has no word for NaN and infinity; serde_json would write `null`, which no reader could take
/// back.
pub(crate) fn check_finite(
    field: &str,
    values: impl IntoIterator<Item = f64>,
) -> Result<(), FieldError> {
    match values.into_iter().all(f64::is_finite) {
        true => Ok(()),
        false => Err(FieldError::new(field, NOT_FINITE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aggregate::StopReason;

    fn sample(trajectory: TrajectoryRecord) -> Sample {
        Sample { trajectories: vec![trajectory], ..Sample::default() }
    }

    fn invalid_field(sample: Sample) -> String {
        sample.validate().expect_err("a broken rule").field
    }

    #[test]
    fn a_line_keeps_its_json_keys() {
        let trajectory = TrajectoryRecord {
            thoughts: 1,
            process_rewards: Some(vec![0.5]),
            ..TrajectoryRecord::default()
        };
        let line = serde_json::to_string(&sample(trajectory)).unwrap();
        let expected = concat!(
            r#"{"id":0,"seed":0,"question":"","gold":"","trajectories":[{"k":0,"thoughts":1,"text":"","#,
            r#""answer":null,"scores":[0.5],"correct":false}],"beam":null,"greedy":null,"#,
            r#""diversity":null,"steps":0,"flops":0.0}"#,
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn required_fields_alone_are_enough_to_read() {
        let line = r#"{"id":1,"seed":2,"question":"q","gold":"3","trajectories":[],"later":true}"#;
        let sample: Sample = serde_json::from_str(line).unwrap();
        assert_eq!((sample.id, sample.beam, sample.steps), (1, None, 0));
    }

    #[test]
    fn a_log_probability_is_written_where_there_is_one() {
        let without = TrajectoryRecord::default();
        let line =
            serde_json::to_string(&TrajectoryRecord { logprob: Some(-1.5), ..without.clone() })
                .unwrap();
        assert!(line.ends_with(r#""correct":false,"logprob":-1.5}"#), "{line}");
        let line = serde_json::to_string(&without).unwrap();
        assert!(!line.contains("logprob"));
        assert_eq!(
            serde_json::from_str::<TrajectoryRecord>(&line).unwrap(),
            without,
            "as older runs have it"
        );
    }

    #[test]
    fn numbers_must_be_finite() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let scored = TrajectoryRecord {
                thoughts: 2,
                process_rewards: Some(vec![0.0, bad]),
                ..TrajectoryRecord::default()
            };
            assert_eq!(invalid_field(sample(scored.clone())), "trajectories[0].scores");
            assert_eq!(
                invalid_field(Sample { greedy: Some(scored), ..Sample::default() }),
                "greedy.scores"
            );
            let unlikely = TrajectoryRecord { logprob: Some(bad), ..TrajectoryRecord::default() };
            assert_eq!(invalid_field(sample(unlikely)), "trajectories[0].logprob");
            let judged =
                TrajectoryRecord { outcome_reward: Some(bad), ..TrajectoryRecord::default() };
            assert_eq!(invalid_field(sample(judged)), "trajectories[0].verdict");
            let beam = BeamResult { reward: bad, ..BeamResult::default() };
            assert_eq!(
                invalid_field(Sample { beam: Some(beam), ..Sample::default() }),
                "beam.reward"
            );
            let bad = f64::from(bad);
            assert_eq!(
                invalid_field(Sample { diversity: Some(vec![bad]), ..Sample::default() }),
                "diversity"
            );
            assert_eq!(invalid_field(Sample { flops: bad, ..Sample::default() }), "flops");
        }
    }

    #[test]
    fn one_process_reward_per_thought() {
        let unscored = TrajectoryRecord { thoughts: 2, ..TrajectoryRecord::default() };
        sample(unscored.clone()).validate().unwrap();
        let short = TrajectoryRecord { process_rewards: Some(vec![1.0]), ..unscored };
        assert_eq!(invalid_field(sample(short)), "trajectories[0].scores");
        sample(TrajectoryRecord { process_rewards: Some(vec![]), ..TrajectoryRecord::default() })
            .validate()
            .unwrap();
    }

    #[test]
    fn trajectories_ascend() {
        let numbered = |ks: &[u32]| Sample {
            trajectories: ks
                .iter()
                .map(|&k| TrajectoryRecord { k, ..TrajectoryRecord::default() })
                .collect(),
            ..Sample::default()
        };
        numbered(&[0, 1, 2]).validate().unwrap();
        assert_eq!(invalid_field(numbered(&[0, 2, 1])), "trajectories[2].k");
        assert_eq!(invalid_field(numbered(&[0, 0])), "trajectories[1].k");
    }

    #[test]
    fn an_early_stop_has_fewer_trajectories_than_requested() {
        let stopped = |asked| Some(EarlyStop { requested: asked, reason: StopReason::Certain });
        let one = sample(TrajectoryRecord::default());
        Sample { stopped: stopped(2), ..one.clone() }.validate().unwrap();
        assert_eq!(invalid_field(Sample { stopped: stopped(1), ..one.clone() }), "stopped.asked");
        let line = serde_json::to_string(&Sample { stopped: stopped(2), ..one }).unwrap();
        assert!(line.contains(r#""stopped":{"asked":2,"why":"certain"}"#), "{line}");
    }

    #[test]
    fn what_has_no_answer_is_not_correct() {
        let lucky = TrajectoryRecord { correct: true, ..TrajectoryRecord::default() };
        assert_eq!(invalid_field(sample(lucky)), "trajectories[0].correct");
        let lucky = BeamResult { correct: true, ..BeamResult::default() };
        assert_eq!(
            invalid_field(Sample { beam: Some(lucky), ..Sample::default() }),
            "beam.correct"
        );
    }
}
