//! Held-out evaluation of a policy: greedy accuracy, majority and coverage, with the weights in
//! memory.

use std::num::NonZeroUsize;

use aggregate::{Rule, VoteParams};
use data::TrainExample;
use engine::{Engine, Request, SamplingParams};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use super::reward::is_correct;
use crate::error::TrainError;
use crate::trainer::EvalResult;

/// The held-out metric that selects the best model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum SelectionMetric {
    /// Accuracy of the unperturbed trajectory
    #[default]
    Greedy,
    /// Accuracy of the majority vote over samples
    Majority,
    /// Fraction of problems with at least one correct sample
    Coverage,
}

/// How a policy is evaluated.
#[derive(Clone, Copy, Debug)]
pub struct EvaluationConfig {
    /// Perturbation of the samples. Their answers are decoded greedily unless tokens are sampled.
    pub params: SamplingParams,
    /// Samples per problem.
    pub samples: NonZeroUsize,
    /// The metric that selects the best model.
    pub select: SelectionMetric,
}

impl EvaluationConfig {
    /// The metrics of a policy on held-out problems.
    pub fn evaluate(
        &self,
        engine: &Engine,
        problems: &[TrainExample],
    ) -> Result<EvalResult, TrainError> {
        let params = SamplingParams { samples: self.samples, greedy: true, ..self.params };
        let request = |(id, problem): (u32, &TrainExample)| Request {
            id,
            ..Request::new(problem.question.clone(), params)
        };
        let requests: Vec<Request> = (0..).zip(problems).map(request).collect();
        let [mut greedy, mut majority, mut coverage, mut mean] = [0.0; 4];
        engine.run(&requests, |index, reply| -> Result<(), TrainError> {
            let reply = reply?;
            let gold = &problems[index].answer;
            let hit = |right: bool| f64::from(u8::from(right));
            greedy += hit(reply.greedy.as_ref().is_some_and(|one| is_correct(one, gold)));
            let chosen = reply.choose(Rule::MAJORITY, &VoteParams::default());
            majority += hit(chosen.is_some_and(|one| is_correct(one, gold)));
            let right = reply.trajectories.iter().filter(|one| is_correct(one, gold)).count();
            coverage += hit(right > 0);
            mean += right as f64 / reply.trajectories.len().max(1) as f64;
            Ok(())
        })?;
        let count = problems.len().max(1) as f64;
        let score = match self.select {
            SelectionMetric::Greedy => greedy,
            SelectionMetric::Majority => majority,
            SelectionMetric::Coverage => coverage,
        };
        let metrics = Map::from_iter([
            ("greedy".to_owned(), json!(greedy / count)),
            ("majority".to_owned(), json!(majority / count)),
            ("coverage".to_owned(), json!(coverage / count)),
            ("mean".to_owned(), json!(mean / count)),
            ("samples".to_owned(), json!(self.samples)),
            ("problems".to_owned(), json!(problems.len())),
        ]);
        Ok(EvalResult { metrics, score: score / count })
    }
}
