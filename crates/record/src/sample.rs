//! One question under one seed: a line of `samples.jsonl`.
//!
//! Order and names of the JSON keys are a stable interface for scripts. Records are validated on
//! reading and on writing ([`Validate`]): every number is finite, trajectories are sorted by
//! `index`, and one without an answer is not correct.

use aggregate::EarlyStop;
use schema::{SearchMethod, TrajectoryRecord};
use serde::{Deserialize, Serialize};

use crate::error::FieldError;

/// A record with invariants beyond its schema.
pub(crate) trait Validate {
    /// Fails with the first field that violates an invariant.
    fn validate(&self) -> Result<(), FieldError>;
}

/// All samples of one question under one seed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The question's index in its data set.
    pub id: u32,
    /// The seed of the run.
    pub seed: u64,
    /// The question text.
    pub question: String,
    /// The canonical gold answer.
    pub gold: String,
    /// The sampled trajectories, sorted by `index`.
    pub trajectories: Vec<TrajectoryRecord>,
    /// The result of beam search, if it ran.
    #[serde(default)]
    pub beam: Option<BeamResult>,
    /// The unperturbed trajectory, if it ran.
    #[serde(default)]
    pub greedy: Option<TrajectoryRecord>,
    /// Diversity d_t of the sampled trajectories at each step, before noise; see
    /// [`StepDiversity`](aggregate::StepDiversity).
    #[serde(default)]
    pub diversity: Option<Vec<f64>>,
    /// The same for the thoughts with Gaussian noise, as they are fed, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fed_diversity: Option<Vec<f64>>,
    /// Set if sampling stopped before the requested number of trajectories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<EarlyStop>,
    /// Sequential forward steps, summed over all trajectories.
    #[serde(default)]
    pub steps: u64,
    /// Floating-point operations, without those of beam search.
    #[serde(default)]
    pub flops: f64,
}

/// The path that a reward-guided search selected.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BeamResult {
    /// How the search selected paths; beam search if absent.
    #[serde(default, skip_serializing_if = "is_beam")]
    pub method: SearchMethod,
    /// Beams selected at each step, B.
    pub width: u32,
    /// Candidates sampled per beam and step, K.
    pub candidates: u32,
    /// The number of thoughts of the best path.
    #[serde(alias = "thoughts")]
    pub latent_steps: u32,
    /// Its decoded text.
    pub text: String,
    /// Its canonical answer; `None` is never correct.
    #[serde(default)]
    pub answer: Option<String>,
    /// The sum of its process rewards; 0 without thoughts.
    pub reward: f32,
    /// Its process rewards, one per thought.
    #[serde(default, alias = "scores")]
    pub process_rewards: Vec<f32>,
    /// The reward of its answer, if the reward model scores answers; it then selected the path
    /// among the finished ones.
    #[serde(default, alias = "verdict", skip_serializing_if = "Option::is_none")]
    pub outcome_reward: Option<f32>,
    /// Whether the answer equals the gold answer.
    pub correct: bool,
    /// Decoding steps of the search.
    #[serde(default)]
    pub steps: u64,
    /// Floating-point operations of the search.
    #[serde(default)]
    pub flops: f64,
}

fn is_beam(method: &SearchMethod) -> bool {
    *method == SearchMethod::Beam
}

const NOT_FINITE: &str = "contains a non-finite number";

impl Validate for Sample {
    fn validate(&self) -> Result<(), FieldError> {
        for (index, trajectory) in self.trajectories.iter().enumerate() {
            validate_trajectory(&format!("trajectories[{index}]"), trajectory)?;
        }
        if let Some(index) =
            self.trajectories.windows(2).position(|pair| pair[0].index >= pair[1].index)
        {
            return Err(FieldError::new(
                format!("trajectories[{}].index", index + 1),
                "is not in ascending order",
            ));
        }
        if let Some(greedy) = &self.greedy {
            validate_trajectory("greedy", greedy)?;
        }
        if self.stopped.is_some_and(|stopped| stopped.requested as usize <= self.trajectories.len())
        {
            return Err(FieldError::new(
                "stopped.requested",
                "is not larger than the number of trajectories",
            ));
        }
        if let Some(beam) = &self.beam {
            check_finite("beam.reward", [f64::from(beam.reward)])?;
            check_finite(
                "beam.process_rewards",
                beam.process_rewards.iter().copied().map(f64::from),
            )?;
            check_finite("beam.outcome_reward", beam.outcome_reward.map(f64::from))?;
            check_finite("beam.flops", [beam.flops])?;
            check_answer("beam", &beam.answer, beam.correct)?;
        }
        check_finite("diversity", self.diversity.iter().flatten().copied())?;
        check_finite("fed_diversity", self.fed_diversity.iter().flatten().copied())?;
        check_finite("flops", [self.flops])
    }
}

fn validate_trajectory(field: &str, trajectory: &TrajectoryRecord) -> Result<(), FieldError> {
    check_answer(field, &trajectory.answer, trajectory.is_correct())?;
    check_finite(&format!("{field}.logprob"), trajectory.logprob.map(f64::from))?;
    check_finite(&format!("{field}.outcome_reward"), trajectory.outcome_reward.map(f64::from))?;
    check_finite(&format!("{field}.signals"), trajectory.signals.values().copied().map(f64::from))?;
    let lens = trajectory.lens.iter().flatten();
    check_finite(&format!("{field}.lens"), lens.map(|&(_, share)| f64::from(share)))?;
    if trajectory.latents.is_some() {
        return Err(FieldError::new(format!("{field}.latents"), "belongs in latents.safetensors"));
    }
    let Some(rewards) = &trajectory.process_rewards else {
        return Ok(());
    };
    let field = format!("{field}.process_rewards");
    if rewards.len() != trajectory.latent_steps as usize {
        return Err(FieldError::new(field, "does not have one reward per thought"));
    }
    check_finite(&field, rewards.iter().copied().map(f64::from))
}

pub(crate) fn check_answer(
    field: &str,
    answer: &Option<String>,
    correct: bool,
) -> Result<(), FieldError> {
    if correct && answer.is_none() {
        return Err(FieldError::new(
            format!("{field}.correct"),
            "is true although there is no answer",
        ));
    }
    Ok(())
}

/// JSON cannot represent NaN and infinity: serde_json would write `null`, which does not parse
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
    use aggregate::StopReason;

    use super::*;

    fn sample(trajectory: TrajectoryRecord) -> Sample {
        Sample { trajectories: vec![trajectory], ..Sample::default() }
    }

    fn invalid_field(sample: Sample) -> String {
        sample.validate().expect_err("an invalid sample").field
    }

    #[test]
    fn a_line_keeps_its_json_keys() {
        let trajectory = TrajectoryRecord {
            latent_steps: 1,
            process_rewards: Some(vec![0.5]),
            outcome_reward: Some(0.25),
            correct: Some(false),
            ..TrajectoryRecord::default()
        };
        let line = serde_json::to_string(&sample(trajectory)).unwrap();
        let expected = concat!(
            r#"{"id":0,"seed":0,"question":"","gold":"","trajectories":[{"index":0,"latent_steps":1,"#,
            r#""text":"","answer":null,"process_rewards":[0.5],"outcome_reward":0.25,"correct":false}],"#,
            r#""beam":null,"greedy":null,"diversity":null,"steps":0,"flops":0.0}"#,
        );
        assert_eq!(line, expected);
        let beam = BeamResult { outcome_reward: Some(0.25), ..BeamResult::default() };
        let expected = concat!(
            r#"{"width":0,"candidates":0,"latent_steps":0,"text":"","answer":null,"reward":0.0,"#,
            r#""process_rewards":[],"outcome_reward":0.25,"correct":false,"steps":0,"flops":0.0}"#,
        );
        assert_eq!(serde_json::to_string(&beam).unwrap(), expected);
    }

    #[test]
    fn required_fields_alone_are_enough_to_read() {
        let line = r#"{"id":1,"seed":2,"question":"q","gold":"3","trajectories":[],"later":true}"#;
        let sample: Sample = serde_json::from_str(line).unwrap();
        assert_eq!((sample.id, sample.beam, sample.steps), (1, None, 0));
    }

    #[test]
    fn keys_of_version_1_are_read() {
        let line = concat!(
            r#"{"id":1,"seed":2,"question":"q","gold":"3","stopped":{"asked":2,"why":"certain"},"#,
            r#""trajectories":[{"k":0,"thoughts":1,"text":"3","answer":"3","scores":[0.5],"#,
            r#""verdict":0.25,"correct":true}]}"#,
        );
        let sample: Sample = serde_json::from_str(line).unwrap();
        let trajectory = &sample.trajectories[0];
        assert_eq!((trajectory.index, trajectory.latent_steps), (0, 1));
        assert_eq!(trajectory.process_rewards, Some(vec![0.5]));
        assert_eq!(trajectory.outcome_reward, Some(0.25));
        assert_eq!(sample.stopped.unwrap().requested, 2);
    }

    #[test]
    fn a_log_probability_is_written_where_there_is_one() {
        let without = TrajectoryRecord::default();
        let line =
            serde_json::to_string(&TrajectoryRecord { logprob: Some(-1.5), ..without.clone() })
                .unwrap();
        assert!(line.ends_with(r#""process_rewards":null,"logprob":-1.5}"#), "{line}");
        let line = serde_json::to_string(&without).unwrap();
        assert!(!line.contains("logprob"));
        assert_eq!(
            serde_json::from_str::<TrajectoryRecord>(&line).unwrap(),
            without,
            "runs of earlier versions have none"
        );
    }

    #[test]
    fn numbers_must_be_finite() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let scored = TrajectoryRecord {
                latent_steps: 2,
                process_rewards: Some(vec![0.0, bad]),
                ..TrajectoryRecord::default()
            };
            assert_eq!(invalid_field(sample(scored.clone())), "trajectories[0].process_rewards");
            assert_eq!(
                invalid_field(Sample { greedy: Some(scored), ..Sample::default() }),
                "greedy.process_rewards"
            );
            let unlikely = TrajectoryRecord { logprob: Some(bad), ..TrajectoryRecord::default() };
            assert_eq!(invalid_field(sample(unlikely)), "trajectories[0].logprob");
            let read = TrajectoryRecord {
                lens: vec![vec![("7".into(), bad)]],
                ..TrajectoryRecord::default()
            };
            assert_eq!(invalid_field(sample(read)), "trajectories[0].lens");
            let rewarded =
                TrajectoryRecord { outcome_reward: Some(bad), ..TrajectoryRecord::default() };
            assert_eq!(invalid_field(sample(rewarded)), "trajectories[0].outcome_reward");
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
        let unscored = TrajectoryRecord { latent_steps: 2, ..TrajectoryRecord::default() };
        sample(unscored.clone()).validate().unwrap();
        let short = TrajectoryRecord { process_rewards: Some(vec![1.0]), ..unscored };
        assert_eq!(invalid_field(sample(short)), "trajectories[0].process_rewards");
        sample(TrajectoryRecord { process_rewards: Some(vec![]), ..TrajectoryRecord::default() })
            .validate()
            .unwrap();
    }

    #[test]
    fn trajectories_ascend() {
        let numbered = |indices: &[u32]| Sample {
            trajectories: indices
                .iter()
                .map(|&index| TrajectoryRecord { index, ..TrajectoryRecord::default() })
                .collect(),
            ..Sample::default()
        };
        numbered(&[0, 1, 2]).validate().unwrap();
        assert_eq!(invalid_field(numbered(&[0, 2, 1])), "trajectories[2].index");
        assert_eq!(invalid_field(numbered(&[0, 0])), "trajectories[1].index");
    }

    #[test]
    fn an_early_stop_has_fewer_trajectories_than_requested() {
        let stopped = |requested| Some(EarlyStop { requested, reason: StopReason::Certain });
        let one = sample(TrajectoryRecord::default());
        Sample { stopped: stopped(2), ..one.clone() }.validate().unwrap();
        assert_eq!(
            invalid_field(Sample { stopped: stopped(1), ..one.clone() }),
            "stopped.requested"
        );
        let line = serde_json::to_string(&Sample { stopped: stopped(2), ..one }).unwrap();
        assert!(line.contains(r#""stopped":{"requested":2,"reason":"certain"}"#), "{line}");
    }

    #[test]
    fn what_has_no_answer_is_not_correct() {
        let lucky = TrajectoryRecord { correct: Some(true), ..TrajectoryRecord::default() };
        assert_eq!(invalid_field(sample(lucky)), "trajectories[0].correct");
        let lucky = BeamResult { correct: true, ..BeamResult::default() };
        assert_eq!(
            invalid_field(Sample { beam: Some(lucky), ..Sample::default() }),
            "beam.correct"
        );
    }
}
