//! A scorer that replaces the reward model, and rules on a recorded run.

#![cfg(feature = "embedded")]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;

use latent_tts::aggregate::{Candidate, Signals, VoteParams, VotingRule};
use latent_tts::record::{MetricName, RunDir};
use latent_tts::{
    DataSource, Error, Evaluation, Model, ModelSelection, RewardModelChoice, Rule, SamplingParams,
    Scorer, Trajectory, rescore,
};

/// Rewards by the first thought's first element; fails for a question without text.
struct FirstElement {
    rewards: usize,
}

impl Scorer for FirstElement {
    fn name(&self) -> &str {
        "first_element"
    }

    fn score(
        &self,
        question: &str,
        trajectories: &[&Trajectory],
    ) -> Result<Vec<f32>, Box<dyn StdError + Send + Sync>> {
        if self.rewards == 0 {
            return Err(format!("the question {question} has no reward").into());
        }
        Ok(trajectories.iter().map(|t| t.latents.row(0)[0]).take(self.rewards).collect())
    }
}

/// Chooses the trajectory with the highest number.
struct Last;

impl VotingRule for Last {
    fn name(&self) -> &str {
        "last_of_test"
    }

    fn describe(&self) -> &str {
        "the last trajectory"
    }

    fn needs(&self) -> Signals {
        Signals::default()
    }

    fn choose(&self, candidates: &[&dyn Candidate], _: &VoteParams) -> Option<usize> {
        (0..candidates.len()).max_by_key(|&index| candidates[index].number())
    }
}

fn run(out: &Path, scorer: Option<Arc<dyn Scorer>>) -> Result<RunDir, Error> {
    let models = ModelSelection::new("embedded", RewardModelChoice::None)?;
    let engine = Model::load("embedded")?.without_reward_model().engine()?;
    let data = DataSource::parse("embedded:test:0..3")?;
    let params =
        SamplingParams { samples: 4.try_into().unwrap(), greedy: true, ..engine.default_params() };
    let evaluation = Evaluation::new(&models, &data, params).out(out).scorer(scorer);
    Ok(evaluation.run(&engine, &data.read(None, 0)?, &mut ())?.run)
}

#[test]
fn rewards_of_a_scorer_are_recorded_and_read_by_rules() {
    let dir = tempfile::tempdir().unwrap();
    let scored = run(&dir.path().join("scored"), Some(Arc::new(FirstElement { rewards: 5 })));
    let scored = scored.unwrap();
    assert_eq!(scored.manifest().settings["scorer"], "first_element");
    for sample in scored.samples().unwrap() {
        let sample = sample.unwrap();
        for trajectory in sample.trajectories.iter().chain(&sample.greedy) {
            let reward = trajectory.outcome_reward.unwrap();
            assert_eq!(
                trajectory.process_rewards,
                Some(vec![reward; trajectory.latent_steps as usize])
            );
        }
    }
    let names = |run: &RunDir| -> Vec<MetricName> {
        run.results().unwrap().metrics.into_iter().map(|metric| metric.name).collect()
    };
    assert!(names(&scored).contains(&MetricName::BEST_OF));
    let plain = run(&dir.path().join("plain"), None).unwrap();
    assert!(!names(&plain).contains(&MetricName::BEST_OF));
    for (rewards, message) in [(0, "has no reward"), (2, "2 rewards for 5")] {
        let out = dir.path().join(rewards.to_string());
        let error = run(&out, Some(Arc::new(FirstElement { rewards }))).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn a_rule_is_measured_on_a_recorded_run() {
    let dir = tempfile::tempdir().unwrap();
    let recorded = run(&dir.path().join("run"), None).unwrap();
    let before = recorded.results().unwrap();
    let rule = Rule::register(Box::new(Last)).unwrap();
    let after = rescore(&recorded, &[rule]).unwrap();
    assert_eq!(recorded.results().unwrap(), after);
    let of_rule: Vec<_> =
        after.metrics.iter().filter(|metric| metric.name == MetricName::Rule(rule)).collect();
    assert_eq!(of_rule.iter().map(|metric| metric.k).collect::<Vec<_>>(), [1, 2, 4]);
    let last_is_right = |sample: &latent_tts::record::Sample| sample.trajectories[3].is_correct();
    let samples: Vec<_> = recorded.samples().unwrap().map(Result::unwrap).collect();
    let share = samples.iter().filter(|sample| last_is_right(sample)).count() as f64 / 3.0;
    assert!((of_rule[2].value - share).abs() < 1e-12);
    let mut rest = after.metrics.clone();
    rest.retain(|metric| metric.name != MetricName::Rule(rule));
    assert_eq!(rest, before.metrics);
}
