//! `train reward`: a model that judges thoughts, from what annotate wrote.

use std::path::PathBuf;

use aggregate::ordered_pairs;
use engine::{LatentModel, Prompt, ReferenceTracer};
use model::Parameter;
use model::save::SaveDtype;
use serde_json::{Map, Value, json};
use tensor::{Device, Tensor};

use crate::annotate::{AnnotatedProblem, Annotations};
use crate::data_loader::shuffled_index;
use crate::error::TrainError;
use crate::latent_step::DropoutConfig;
use crate::loss::Objective;
use crate::model_dir::save_weights;
use crate::reward_step::{PredictedRewards, RewardExample, RewardLossConfig, RewardTrainStep};
use crate::trainer::{Evaluation, TrainTask};

/// A reward model's training.
pub struct RewardTask {
    /// Where it computes.
    pub device: Device,
    /// Who learns.
    pub train_step: RewardTrainStep,
    /// What the judge thinks with before it reads what others thought; it does not learn.
    pub reference_reasoner: Option<LatentModel>,
    /// Where that happens.
    pub reference_tracer: ReferenceTracer,
    /// What from; all of them are one list.
    pub annotations: Vec<Annotations>,
    /// What is looked at.
    pub held_out: Option<Annotations>,
    /// The loss; none leaves everything as it was.
    pub objective: Objective,
    /// The last step's weight, as a multiple of the first's.
    pub last_step_weight: f32,
    /// Dropout while learning.
    pub dropout: f32,
    /// Names the order and the masks.
    pub seed: u64,
    /// Problems of a batch.
    pub batch_size: usize,
    /// Parts of a step.
    pub accumulation_steps: u32,
    /// Where the model goes.
    pub out: PathBuf,
    /// The format of its weights.
    pub dtype: SaveDtype,
}

/// Problems that are scored together when it is looked at.
const EVAL_BATCH: usize = 256;

impl RewardTask {
    fn batch(&self, at: u64) -> Result<Vec<RewardExample>, TrainError> {
        let count: u64 = self.annotations.iter().map(|a| a.len() as u64).sum();
        if count == 0 {
            return Err(TrainError::EmptyAnnotations { what: "the annotations".to_owned() });
        }
        let first = at * self.batch_size as u64;
        let place = |index: u64| {
            shuffled_index(index % count, count, self.seed.wrapping_add(index / count)) as usize
        };
        Ok((first..first + self.batch_size as u64)
            .filter_map(|index| self.example(place(index)))
            .collect())
    }

    /// Whether every problem fits the judge and its mind.
    pub fn check(&self) -> Result<(), TrainError> {
        let parts = self.annotations.iter().chain(&self.held_out);
        parts.flat_map(Annotations::problems).try_for_each(|problem| self.check_problem(&problem))
    }

    fn check_problem(&self, problem: &AnnotatedProblem<'_>) -> Result<(), TrainError> {
        let (id, prompt, judge) =
            (problem.id(), problem.prompt(), self.train_step.model.decoder.config());
        let (own, mind) = self
            .reference_reasoner
            .as_ref()
            .map_or((0, judge), |mind| (mind.method.length.limit(), mind.decoder.config()));
        let verdicts = self.train_step.outcome.as_ref();
        let mut longest = prompt.len() + own;
        for trajectory in problem.trajectories() {
            let answer = verdicts.map_or(&[][..], |_| trajectory.answer());
            check_vocab(id, answer, ("the judge", judge.vocab))?;
            let end = verdicts.map_or(0, |verdicts| verdicts.end_latent.len());
            longest =
                longest.max(prompt.len() + own + trajectory.labels().len() + end + answer.len());
        }
        check_vocab(id, prompt, ("the judge", judge.vocab))?;
        check_vocab(id, prompt, ("the mind", mind.vocab))?;
        for (length, context) in [(longest, judge.context), (prompt.len() + own, mind.context)] {
            if length > context {
                return Err(TrainError::TooLong { id: u64::from(id), length, context });
            }
        }
        Ok(())
    }

    /// Lets the judge think about each case.
    fn add_reference_traces(&mut self, cases: &mut [RewardExample]) -> Result<(), TrainError> {
        let Some(mind) = &self.reference_reasoner else { return Ok(()) };
        let prompt = |case: &RewardExample| Prompt {
            id: case.id,
            text: String::new(),
            tokens: case.prompt.clone(),
        };
        let prompts: Vec<Prompt> = cases.iter().map(prompt).collect();
        let reflections = &mut self.reference_tracer;
        let (thoughts, lengths) = self.device.run(|| {
            let own = reflections.trace(mind, &prompts.iter().collect::<Vec<_>>())?;
            Ok::<_, tensor::DeviceError>((own.thoughts.to_host()?, own.lengths))
        })?;
        let mut start = 0;
        for (case, length) in cases.iter_mut().zip(lengths) {
            case.reference_trace = thoughts.select(start..start + length);
            start += length;
        }
        Ok(())
    }

    fn example(&self, mut place: usize) -> Option<RewardExample> {
        for part in &self.annotations {
            if place < part.len() {
                return part.get(place).map(|problem| reward_example(&problem));
            }
            place -= part.len();
        }
        None
    }
}

/// Refuses tokens that a model does not have.
fn check_vocab(
    id: u32,
    tokens: &[u32],
    (what, vocab): (&'static str, usize),
) -> Result<(), TrainError> {
    match tokens.iter().find(|&&token| token as usize >= vocab) {
        Some(&token) => Err(TrainError::UnknownToken { id, token, what, vocab }),
        None => Ok(()),
    }
}

/// A problem as the judge takes it.
pub fn reward_example(problem: &AnnotatedProblem<'_>) -> RewardExample {
    let mut out = RewardExample {
        id: problem.id(),
        prompt: problem.prompt().to_vec(),
        ..RewardExample::default()
    };
    let mut vectors = Vec::new();
    for trajectory in problem.trajectories() {
        let labels = trajectory.labels();
        out.lengths.push(labels.len());
        out.labels.extend(labels);
        out.correct.push(trajectory.correct());
        out.answers.push(trajectory.answer().to_vec());
        vectors.extend(trajectory.thoughts());
    }
    let rows = out.labels.len();
    out.thoughts = Tensor::from_vec(rows, vectors.len() / rows.max(1), vectors);
    out.step_results = problem.steps().to_vec();
    out
}

impl TrainTask for RewardTask {
    fn accumulate_gradients(
        &mut self,
        step: u32,
        part: u32,
    ) -> Result<Map<String, Value>, TrainError> {
        let mut cases =
            self.batch(u64::from(step) * u64::from(self.accumulation_steps) + u64::from(part))?;
        self.add_reference_traces(&mut cases)?;
        let longest = cases
            .iter()
            .flat_map(|case| &case.lengths)
            .max()
            .map_or(1, |&n| n.saturating_sub(1).max(1));
        let late = self.last_step_weight;
        let weight = move |t: usize| 1.0 + (late - 1.0) * (t as f32 / longest as f32).min(1.0);
        let dropped = DropoutConfig { p: self.dropout, seed: self.seed, step };
        let how = RewardLossConfig {
            objective: self.objective,
            step_weight: &weight,
            dropout: (self.dropout > 0.0).then_some(dropped),
        };
        let judge = &mut self.train_step;
        let losses = self.device.run(|| judge.accumulate_gradients(&cases, how))?;
        let mut said = Map::from_iter([("loss".to_owned(), json!(losses.objective))]);
        if self.train_step.digit_heads.is_some() {
            said.insert("digits".to_owned(), json!(losses.digits));
        }
        Ok(said)
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.train_step.parameters()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.train_step.parameters_mut()
    }

    fn sync_weights(&mut self) -> Result<(), TrainError> {
        let judge = &mut self.train_step;
        Ok(self.device.run(|| judge.sync_weights())?)
    }

    fn evaluate(&mut self, steps: u32) -> Result<Option<Evaluation>, TrainError> {
        let Some(held_out) = &self.held_out else { return Ok(None) };
        let mut cases: Vec<RewardExample> =
            held_out.problems().map(|problem| reward_example(&problem)).collect();
        let mut seen = RewardMetrics::default();
        for some in cases.chunks_mut(EVAL_BATCH) {
            self.add_reference_traces(some)?;
            let judge = &mut self.train_step;
            let scores = self.device.run(|| judge.predict(some))?;
            some.iter().zip(&scores).for_each(|(case, scores)| seen.add(case, scores));
        }
        let mut figures = seen.metrics();
        figures.insert("step".to_owned(), json!(steps));
        let score = figures.get("best_of").and_then(Value::as_f64).unwrap_or(0.0);
        Ok(Some(Evaluation { metrics: figures, score }))
    }

    fn save(&mut self) -> Result<(), TrainError> {
        let learner = &self.train_step.model;
        save_weights(
            &self.out,
            learner.decoder.config(),
            learner.parameters(),
            self.train_step.head_parameters(),
            self.dtype,
        )
    }
}

/// How well scores tell right trajectories from wrong ones within a problem.
#[derive(Debug, Default)]
struct RewardMetrics {
    problems: usize,
    random_accuracy: f64,        // the accuracy of a trajectory taken blindly
    best_of_n: f64,              // of the one that the judge likes best
    step_pairs: Vec<(f64, f64)>, // per step: pairs in the right order, pairs
    mean_pairs: (f64, f64),      // the same of the mean scores
    outcome_pairs: (f64, f64),   // the same of verdicts
}

impl RewardMetrics {
    fn add(&mut self, case: &RewardExample, scores: &PredictedRewards) {
        let right = case.correct.iter().filter(|&&c| c).count();
        self.problems += 1;
        self.random_accuracy += right as f64 / case.correct.len().max(1) as f64;
        let mut start = 0;
        let rows: Vec<&[f32]> = case
            .lengths
            .iter()
            .map(|&n| {
                start += n;
                &scores.process[start - n..start]
            })
            .collect();
        let mean = |row: &&[f32]| row.iter().sum::<f32>() / row.len().max(1) as f32;
        let means: Vec<Option<f32>> = rows.iter().map(|row| Some(mean(row))).collect();
        let verdicts: Vec<Option<f32>> = scores.outcome.iter().copied().map(Some).collect();
        let overall = if verdicts.is_empty() { &means } else { &verdicts };
        let order = |&a: &usize, &b: &usize| {
            overall[a].partial_cmp(&overall[b]).unwrap_or(std::cmp::Ordering::Equal).then(b.cmp(&a))
        };
        let best = (0..rows.len()).max_by(order);
        self.best_of_n += best.map_or(0.0, |i| f64::from(u8::from(case.correct[i])));
        count_pairs(&means, &case.correct, &mut self.mean_pairs);
        if !verdicts.is_empty() {
            count_pairs(&verdicts, &case.correct, &mut self.outcome_pairs);
        }
        let longest = case.lengths.iter().copied().max().unwrap_or(0);
        self.step_pairs.resize(self.step_pairs.len().max(longest), (0.0, 0.0));
        for (t, order) in self.step_pairs.iter_mut().enumerate() {
            let at: Vec<Option<f32>> = rows.iter().map(|row| row.get(t).copied()).collect();
            count_pairs(&at, &case.correct, order);
        }
    }

    fn metrics(&self) -> Map<String, Value> {
        let share = |(right, all): (f64, f64)| if all > 0.0 { right / all } else { 0.5 };
        let problems = self.problems.max(1) as f64;
        let steps: Vec<f64> = self.step_pairs.iter().map(|&o| share(o)).collect();
        let mut figures = vec![
            ("problems", json!(self.problems)),
            ("one", json!(self.random_accuracy / problems)),
            ("best_of", json!(self.best_of_n / problems)),
            ("auc", json!(steps)),
            ("auc_mean", json!(share(self.mean_pairs))),
        ];
        if self.outcome_pairs.1 > 0.0 {
            figures.push(("auc_verdict", json!(share(self.outcome_pairs))));
        }
        figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn count_pairs(scores: &[Option<f32>], correct: &[bool], (right, all): &mut (f64, f64)) {
    let (ordered, pairs) = ordered_pairs(scores.iter().copied().zip(correct.iter().copied()));
    *right += ordered;
    *all += pairs;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_a_model_lacks_is_named() {
        assert!(check_vocab(3, &[1, 8], ("the mind", 9)).is_ok());
        let error = check_vocab(3, &[1, 9], ("the mind", 9)).unwrap_err().to_string();
        assert!(
            error.contains("problem 3") && error.contains("token 9, the mind has 9"),
            "{error}"
        );
    }

    #[test]
    fn scores_are_judged_within_a_problem() {
        let case = RewardExample {
            lengths: vec![2, 1, 2],
            correct: vec![true, false, false],
            ..RewardExample::default()
        };
        let mut seen = RewardMetrics::default();
        let mut scores =
            PredictedRewards { process: vec![1.0, 3.0, 2.5, 0.0, 3.0], outcome: Vec::new() }; // means 2, 2.5, 1.5
        seen.add(&case, &scores);
        let figures = seen.metrics();
        assert_eq!(figures["best_of"], json!(0.0), "the second has the largest mean and is wrong");
        assert_eq!(figures["auc_mean"], json!(0.5));
        assert_eq!(
            figures["auc"],
            json!([0.5, 0.5]),
            "first step: one of two; second: a tie with the only other"
        );
        assert!((figures["one"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-12);
        assert!(!figures.contains_key("auc_verdict"));
        scores.outcome = vec![0.5, -1.0, 2.0];
        seen.add(&case, &scores);
        assert_eq!(seen.metrics()["auc_verdict"], json!(0.5));
        assert_eq!(
            seen.metrics()["best_of"],
            json!(0.0),
            "verdicts decide, and the third's is largest"
        );
    }
}
