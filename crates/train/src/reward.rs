//! `train reward`: a model that judges thoughts, from what annotate wrote.

use std::path::PathBuf;

use engine::Mind;
use engine::prompt::Prompt;
use engine::reflect::Reflections;
use model::Parameter;
use model::save::Saved;
use record::ranking::ordered_pairs;
use serde_json::{Map, Value, json};
use tensor::{Device, Tensor};

use crate::annotate::{Annotations, Problem};
use crate::course::{Course, Examined};
use crate::directory::save_weights;
use crate::error::Error;
use crate::feed::shuffled;
use crate::judge::{Case, Judge, Judging, Scores};
use crate::loss::Objective;
use crate::study::Droppings;

/// A reward model's training.
pub struct RewardCourse {
    /// Where it computes.
    pub device: Device,
    /// Who learns.
    pub judge: Judge,
    /// What the judge thinks with before it reads what others thought; it does not learn.
    pub mind: Option<Mind>,
    /// Where that happens.
    pub reflections: Reflections,
    /// What from; all of them are one list.
    pub annotations: Vec<Annotations>,
    /// What is looked at.
    pub held_out: Option<Annotations>,
    /// The loss; none leaves everything as it was.
    pub objective: Objective,
    /// The last step's weight, as a multiple of the first's.
    pub late: f32,
    /// Dropout while learning.
    pub dropout: f32,
    /// Names the order and the masks.
    pub seed: u64,
    /// Problems of a batch.
    pub batch: usize,
    /// Parts of a step.
    pub accumulate: u32,
    /// Where the model goes.
    pub out: PathBuf,
    /// The format of its weights.
    pub saved: Saved,
}

/// Problems that are scored together when it is looked at.
const AT_ONCE: usize = 256;

impl RewardCourse {
    fn batch(&self, at: u64) -> Result<Vec<Case>, Error> {
        let count: u64 = self.annotations.iter().map(|a| a.len() as u64).sum();
        if count == 0 {
            return Err(Error::Empty { what: "the annotations".to_owned() });
        }
        let first = at * self.batch as u64;
        let place = |index: u64| shuffled(index % count, count, self.seed.wrapping_add(index / count)) as usize;
        Ok((first..first + self.batch as u64).filter_map(|index| self.case(place(index))).collect())
    }

    /// Whether every problem fits the judge and its mind.
    pub fn check(&self) -> Result<(), Error> {
        let parts = self.annotations.iter().chain(&self.held_out);
        parts.flat_map(Annotations::problems).try_for_each(|problem| self.check_problem(&problem))
    }

    fn check_problem(&self, problem: &Problem<'_>) -> Result<(), Error> {
        let (id, prompt, judge) = (problem.id(), problem.prompt(), self.judge.learner.decoder.config());
        let (own, mind) = self.mind.as_ref().map_or((0, judge), |mind| (mind.method.length.limit(), mind.decoder.config()));
        let verdicts = self.judge.verdicts.as_ref();
        let mut longest = prompt.len() + own;
        for trajectory in problem.trajectories() {
            let answer = verdicts.map_or(&[][..], |_| trajectory.answer());
            known(id, answer, ("the judge", judge.vocab))?;
            let end = verdicts.map_or(0, |verdicts| verdicts.end.len());
            longest = longest.max(prompt.len() + own + trajectory.labels().len() + end + answer.len());
        }
        known(id, prompt, ("the judge", judge.vocab))?;
        known(id, prompt, ("the mind", mind.vocab))?;
        for (length, context) in [(longest, judge.context), (prompt.len() + own, mind.context)] {
            if length > context {
                return Err(Error::TooLong { id: u64::from(id), length, context });
            }
        }
        Ok(())
    }

    /// Lets the judge think about each case.
    fn reflect(&mut self, cases: &mut [Case]) -> Result<(), Error> {
        let Some(mind) = &self.mind else { return Ok(()) };
        let prompt = |case: &Case| Prompt { id: case.id, text: String::new(), tokens: case.prompt.clone() };
        let prompts: Vec<Prompt> = cases.iter().map(prompt).collect();
        let reflections = &mut self.reflections;
        let (thoughts, lengths) = self.device.run(|| {
            let own = reflections.of(mind, &prompts.iter().collect::<Vec<_>>())?;
            Ok::<_, tensor::DeviceError>((own.thoughts.to_host()?, own.lengths))
        })?;
        let mut start = 0;
        for (case, length) in cases.iter_mut().zip(lengths) {
            case.own = thoughts.select(start..start + length);
            start += length;
        }
        Ok(())
    }

    fn case(&self, mut place: usize) -> Option<Case> {
        for part in &self.annotations {
            if place < part.len() {
                return part.get(place).map(|problem| case(&problem));
            }
            place -= part.len();
        }
        None
    }
}

/// Refuses tokens that a model does not have.
fn known(id: u32, tokens: &[u32], (what, vocab): (&'static str, usize)) -> Result<(), Error> {
    match tokens.iter().find(|&&token| token as usize >= vocab) {
        Some(&token) => Err(Error::UnknownToken { id, token, what, vocab }),
        None => Ok(()),
    }
}

/// A problem as the judge takes it.
pub fn case(problem: &Problem<'_>) -> Case {
    let mut out = Case { id: problem.id(), prompt: problem.prompt().to_vec(), ..Case::default() };
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
    out.results = problem.steps().to_vec();
    out
}

impl Course for RewardCourse {
    fn learn(&mut self, step: u32, part: u32) -> Result<Map<String, Value>, Error> {
        let mut cases = self.batch(u64::from(step) * u64::from(self.accumulate) + u64::from(part))?;
        self.reflect(&mut cases)?;
        let longest = cases.iter().flat_map(|case| &case.lengths).max().map_or(1, |&n| n.saturating_sub(1).max(1));
        let late = self.late;
        let weight = move |t: usize| 1.0 + (late - 1.0) * (t as f32 / longest as f32).min(1.0);
        let dropped = Droppings { p: self.dropout, seed: self.seed, step };
        let how = Judging { objective: self.objective, weight: &weight, droppings: (self.dropout > 0.0).then_some(dropped) };
        let judge = &mut self.judge;
        let losses = self.device.run(|| judge.learn(&cases, how))?;
        let mut said = Map::from_iter([("loss".to_owned(), json!(losses.score))]);
        if self.judge.expectations.is_some() {
            said.insert("digits".to_owned(), json!(losses.digits));
        }
        Ok(said)
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.judge.parameters()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.judge.parameters_mut()
    }

    fn refresh(&mut self) -> Result<(), Error> {
        let judge = &mut self.judge;
        Ok(self.device.run(|| judge.refresh())?)
    }

    fn examine(&mut self, steps: u32) -> Result<Option<Examined>, Error> {
        let Some(held_out) = &self.held_out else { return Ok(None) };
        let mut cases: Vec<Case> = held_out.problems().map(|problem| case(&problem)).collect();
        let mut seen = Seen::default();
        for some in cases.chunks_mut(AT_ONCE) {
            self.reflect(some)?;
            let judge = &mut self.judge;
            let scores = self.device.run(|| judge.scores(some))?;
            some.iter().zip(&scores).for_each(|(case, scores)| seen.add(case, scores));
        }
        let mut figures = seen.figures();
        figures.insert("step".to_owned(), json!(steps));
        let score = figures.get("best_of").and_then(Value::as_f64).unwrap_or(0.0);
        Ok(Some(Examined { figures, score }))
    }

    fn save(&mut self) -> Result<(), Error> {
        let learner = &self.judge.learner;
        save_weights(&self.out, learner.decoder.config(), learner.parameters(), self.judge.heads(), self.saved)
    }
}

/// How well scores tell right trajectories from wrong ones within a problem.
#[derive(Debug, Default)]
struct Seen {
    problems: usize,
    one: f64,               // the accuracy of a trajectory taken blindly
    best: f64,              // of the one that the judge likes best
    order: Vec<(f64, f64)>, // per step: pairs in the right order, pairs
    mean_order: (f64, f64), // the same of the mean scores
    verdicts: (f64, f64),   // the same of verdicts
}

impl Seen {
    fn add(&mut self, case: &Case, scores: &Scores) {
        let right = case.correct.iter().filter(|&&c| c).count();
        self.problems += 1;
        self.one += right as f64 / case.correct.len().max(1) as f64;
        let mut start = 0;
        let rows: Vec<&[f32]> = case
            .lengths
            .iter()
            .map(|&n| {
                start += n;
                &scores.thoughts[start - n..start]
            })
            .collect();
        let mean = |row: &&[f32]| row.iter().sum::<f32>() / row.len().max(1) as f32;
        let means: Vec<Option<f32>> = rows.iter().map(|row| Some(mean(row))).collect();
        let verdicts: Vec<Option<f32>> = scores.verdicts.iter().copied().map(Some).collect();
        let overall = if verdicts.is_empty() { &means } else { &verdicts };
        let order =
            |&a: &usize, &b: &usize| overall[a].partial_cmp(&overall[b]).unwrap_or(std::cmp::Ordering::Equal).then(b.cmp(&a));
        let best = (0..rows.len()).max_by(order);
        self.best += best.map_or(0.0, |i| f64::from(u8::from(case.correct[i])));
        count_pairs(&means, &case.correct, &mut self.mean_order);
        if !verdicts.is_empty() {
            count_pairs(&verdicts, &case.correct, &mut self.verdicts);
        }
        let longest = case.lengths.iter().copied().max().unwrap_or(0);
        self.order.resize(self.order.len().max(longest), (0.0, 0.0));
        for (t, order) in self.order.iter_mut().enumerate() {
            let at: Vec<Option<f32>> = rows.iter().map(|row| row.get(t).copied()).collect();
            count_pairs(&at, &case.correct, order);
        }
    }

    fn figures(&self) -> Map<String, Value> {
        let share = |(right, all): (f64, f64)| if all > 0.0 { right / all } else { 0.5 };
        let problems = self.problems.max(1) as f64;
        let steps: Vec<f64> = self.order.iter().map(|&o| share(o)).collect();
        let mut figures = vec![
            ("problems", json!(self.problems)),
            ("one", json!(self.one / problems)),
            ("best_of", json!(self.best / problems)),
            ("auc", json!(steps)),
            ("auc_mean", json!(share(self.mean_order))),
        ];
        if self.verdicts.1 > 0.0 {
            figures.push(("auc_verdict", json!(share(self.verdicts))));
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
        assert!(known(3, &[1, 8], ("the mind", 9)).is_ok());
        let error = known(3, &[1, 9], ("the mind", 9)).unwrap_err().to_string();
        assert!(error.contains("problem 3") && error.contains("token 9, the mind has 9"), "{error}");
    }

    #[test]
    fn scores_are_judged_within_a_problem() {
        let case = Case { lengths: vec![2, 1, 2], correct: vec![true, false, false], ..Case::default() };
        let mut seen = Seen::default();
        let mut scores = Scores { thoughts: vec![1.0, 3.0, 2.5, 0.0, 3.0], verdicts: Vec::new() }; // means 2, 2.5, 1.5
        seen.add(&case, &scores);
        let figures = seen.figures();
        assert_eq!(figures["best_of"], json!(0.0), "the second has the largest mean and is wrong");
        assert_eq!(figures["auc_mean"], json!(0.5));
        assert_eq!(figures["auc"], json!([0.5, 0.5]), "first step: one of two; second: a tie with the only other");
        assert!((figures["one"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-12);
        assert!(!figures.contains_key("auc_verdict"));
        scores.verdicts = vec![0.5, -1.0, 2.0];
        seen.add(&case, &scores);
        assert_eq!(seen.figures()["auc_verdict"], json!(0.5));
        assert_eq!(seen.figures()["best_of"], json!(0.0), "verdicts decide, and the third's is largest");
    }
}
