//! One batch of a reward model: prompts and thoughts in one segment, scores, and the gradients of their loss.
//!
//! Thoughts are given, so that a whole trajectory is one pass; the N trajectories of a problem share its prompt.

use model::{Cache, Dropout, LearnedLinear, Learner, Masks, Parameter, Pass, Sequence, TensorSource};
use serde::{Deserialize, Serialize};
use tensor::ops::{self, Format};
use tensor::rng::Draw;
use tensor::{Device, DeviceError, Tensor};

use crate::digits::Digits;
use crate::loss::{Objective, Scored};
use crate::study::{Droppings, rows_of, scatter};

/// A problem with its trajectories.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// Its number in the data.
    pub id: u32,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// All thoughts, trajectory after trajectory: (thoughts, width).
    pub thoughts: Tensor,
    /// How many each trajectory has.
    pub lengths: Vec<usize>,
    /// A label for each thought.
    pub labels: Vec<f32>,
    /// Whether each trajectory's answer is right.
    pub correct: Vec<bool>,
    /// The results of the solution's steps.
    pub results: Vec<i64>,
}

impl Case {
    /// Which step each thought is.
    pub fn steps(&self) -> Vec<usize> {
        self.lengths.iter().flat_map(|&n| 0..n).collect()
    }
}

/// What reads a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadKind {
    /// A linear map of the hidden state at the thought (the published layout).
    Linear,
    /// A SwiGLU over the hidden states at the thought and one position before it, and the thought itself: the judge may
    /// compare what it expected with what came.
    Compare,
}

/// A score head that learns.
#[derive(Debug)]
pub enum ScoreLearner {
    /// width -> 1
    Linear(Box<LearnedLinear>),
    /// Three maps to one inner layer, and one from it.
    Compare(Box<Comparing>),
}

/// The parts of a comparing head.
#[derive(Debug)]
pub struct Comparing {
    at: LearnedLinear,
    before: LearnedLinear,
    thought: LearnedLinear,
    out: LearnedLinear,
}

/// What a head reads, one row a thought.
struct Judged {
    at: Tensor,
    before: Tensor,
    thought: Tensor,
}

impl ScoreLearner {
    /// A head of that kind.
    pub fn load(device: &Device, source: &impl TensorSource, kind: HeadKind, width: usize) -> Result<Self, model::Error> {
        let load = |name: &str, shape| LearnedLinear::load(device, source, name, shape);
        Ok(match kind {
            HeadKind::Linear => Self::Linear(Box::new(load("classifier", (width, 1))?)),
            HeadKind::Compare => Self::Compare(Box::new(Comparing {
                at: load("compare.at", (width, 2 * width))?,
                before: load("compare.before", (width, 2 * width))?,
                thought: load("compare.thought", (width, 2 * width))?,
                out: load("compare.out", (width, 1))?,
            })),
        })
    }

    fn parts(&self) -> Vec<&LearnedLinear> {
        match self {
            Self::Linear(map) => vec![map],
            Self::Compare(of) => vec![&of.at, &of.before, &of.thought, &of.out],
        }
    }

    fn parts_mut(&mut self) -> Vec<&mut LearnedLinear> {
        match self {
            Self::Linear(map) => vec![map],
            Self::Compare(of) => vec![&mut of.at, &mut of.before, &mut of.thought, &mut of.out],
        }
    }

    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.parts().into_iter().flat_map(LearnedLinear::parameters)
    }

    /// Its parameters, to be changed.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.parts_mut().into_iter().flat_map(LearnedLinear::parameters_mut)
    }

    /// Makes a change of the parameters known to what computes.
    pub fn refresh(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.parts_mut().into_iter().try_for_each(|part| part.refresh(device))
    }

    /// The scores (rows, 1), and what the way back needs: the inner layer before and after its activation.
    fn forward(&self, device: &Device, of: &Judged) -> Result<(Tensor, [Tensor; 2]), DeviceError> {
        match self {
            Self::Linear(map) => Ok((map.forward(device, &of.at)?, Default::default())),
            Self::Compare(maps) => {
                let mut before = maps.at.forward(device, &of.at)?;
                ops::add(device, &mut before, &maps.before.forward(device, &of.before)?)?;
                ops::add(device, &mut before, &maps.thought.forward(device, &of.thought)?)?;
                let mut inner = Tensor::default();
                ops::swiglu(device, &before, &mut inner)?;
                Ok((maps.out.forward(device, &inner)?, [before, inner]))
            }
        }
    }

    /// The gradients of the hidden states at the thoughts and before them.
    fn backward(
        &mut self,
        device: &Device,
        of: &Judged,
        [before, inner]: &[Tensor; 2],
        dscores: &Tensor,
    ) -> Result<(Tensor, Option<Tensor>), DeviceError> {
        match self {
            Self::Linear(map) => Ok((map.backward(device, &of.at, dscores)?, None)),
            Self::Compare(maps) => {
                let dinner = maps.out.backward(device, inner, dscores)?;
                let mut dbefore = Tensor::default();
                ops::swiglu_backward(device, before, &dinner, Format::Single, &mut dbefore)?;
                maps.thought.backward(device, &of.thought, &dbefore)?;
                let dat = maps.at.backward(device, &of.at, &dbefore)?;
                Ok((dat, Some(maps.before.backward(device, &of.before, &dbefore)?)))
            }
        }
    }
}

/// Readers of numbers from the judge's hidden states: of the step whose thought it has just seen, and of the next one.
#[derive(Debug)]
pub struct Expectations {
    /// From the hidden state at thought t: step t's result.
    pub current: Digits,
    /// From the hidden state one position before thought t: step t's result.
    pub next: Digits,
    /// The weight of their losses.
    pub weight: f32,
}

/// Who learns to judge.
#[derive(Debug)]
pub struct Judge {
    /// The decoder.
    pub learner: Learner,
    /// What reads scores.
    pub head: ScoreLearner,
    /// A loss on what the judge itself knows.
    pub expectations: Option<Expectations>,
    cache: Option<Cache>,
}

/// What a batch is judged by.
#[derive(Clone, Copy)]
pub struct Judging<'a> {
    /// The loss.
    pub objective: Objective,
    /// The weight of each step.
    pub weight: &'a (dyn Fn(usize) -> f32 + Sync),
    /// Dropout in the judge.
    pub droppings: Option<Droppings>,
}

/// Mean losses of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct JudgeLosses {
    /// A problem's, of the objective.
    pub score: f64,
    /// A digit's, of what the judge expects.
    pub digits: f64,
}

/// Cases in one pass.
struct Heard {
    hidden: Tensor, // (wanted, width)
    segment: model::Segment,
    tokens: Vec<u32>,
    at: Vec<usize>,     // per thought: its place among the wanted rows
    before: Vec<usize>, // per thought: that of the position before it
    judged: Judged,
    scores: Tensor, // (thoughts, 1)
    kept: [Tensor; 2],
}

impl Judge {
    /// From its parts.
    pub fn new(learner: Learner, head: ScoreLearner, expectations: Option<Expectations>) -> Self {
        Self { learner, head, expectations, cache: None }
    }

    /// The scores of every thought of every case.
    pub fn scores(&mut self, cases: &[Case]) -> Result<Vec<Vec<f32>>, DeviceError> {
        let mut cache = self.ready(cases)?;
        let heard = self.hear(&mut cache, cases, None);
        self.cache = Some(cache);
        let scores = heard?.scores.to_host()?;
        let mut left = scores.data();
        let mut next = |n: usize| {
            let (own, rest) = left.split_at(n);
            left = rest;
            own.to_vec()
        };
        Ok(cases.iter().map(|case| next(case.thoughts.rows())).collect())
    }

    /// Adds the gradients of a batch's mean loss.
    pub fn learn(&mut self, cases: &[Case], how: Judging<'_>) -> Result<JudgeLosses, DeviceError> {
        let mut cache = self.ready(cases)?;
        let heard = self.hear(&mut cache, cases, how.droppings)?;
        let losses = self.learn_heard(&cache, cases, how, heard);
        self.cache = Some(cache);
        losses
    }

    /// All parameters, always in the same order.
    pub fn parameters(&self) -> Vec<&Parameter> {
        let readers = self.expectations.iter().flat_map(|e| e.current.map.parameters().chain(e.next.map.parameters()));
        self.learner.parameters().chain(self.head.parameters()).chain(readers).collect()
    }

    /// All parameters, to be changed. [`Self::refresh`] makes the change known to what computes.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let readers = self.expectations.iter_mut();
        let readers = readers.flat_map(|e| e.current.map.parameters_mut().chain(e.next.map.parameters_mut()));
        self.learner.parameters_mut().chain(self.head.parameters_mut()).chain(readers).collect()
    }

    /// Makes a change of the parameters known to what computes.
    pub fn refresh(&mut self) -> Result<(), DeviceError> {
        let device = &self.learner.decoder.device().clone();
        self.learner.refresh()?;
        self.head.refresh(device)?;
        self.expectations.as_mut().map_or(Ok(()), |e| {
            e.current.map.refresh(device)?;
            e.next.map.refresh(device)
        })
    }

    fn ready(&mut self, cases: &[Case]) -> Result<Cache, DeviceError> {
        let own = |case: &Case| case.lengths.iter().map(|&n| Cache::slots_for(n)).sum::<usize>();
        let slots = cases.iter().map(|case| Cache::slots_for(case.prompt.len()) + own(case)).sum();
        match self.cache.take() {
            Some(mut cache) if cache.slots() >= slots => {
                cache.clear();
                Ok(cache)
            }
            _ => Cache::new(self.learner.decoder.device(), self.learner.decoder.config(), slots + slots / 8),
        }
    }

    fn hear(&self, cache: &mut Cache, cases: &[Case], droppings: Option<Droppings>) -> Result<Heard, DeviceError> {
        let device = self.learner.decoder.device();
        let (mut pass, mut draws, mut tokens) = (Pass::default(), Vec::new(), Vec::new());
        let mut prefixes = vec![Sequence::default(); cases.len()];
        let draw = |case: &Case, trajectory: usize, sequence: &Sequence| {
            let position = sequence.len() as u32;
            // Steps and trajectories share a number; 4096 trajectories a problem are more than anyone has.
            droppings.map(|d| Draw { seed: d.seed, question: case.id, trajectory: d.step << 12 | trajectory as u32, position })
        };
        for (case, prefix) in cases.iter().zip(&mut prefixes) {
            for (i, &token) in case.prompt.iter().enumerate() {
                draws.push(draw(case, 0, prefix));
                tokens.push(token);
                pass.push(cache, prefix, i + 1 == case.prompt.len());
            }
        }
        let (mut at, mut before, mut wanted) = (Vec::new(), Vec::new(), cases.len());
        for (i, case) in cases.iter().enumerate() {
            for (n, &length) in case.lengths.iter().enumerate() {
                let mut sequence = prefixes[i].fork();
                for t in 0..length {
                    draws.push(draw(case, n + 1, &sequence));
                    pass.push(cache, &mut sequence, true);
                    before.push(if t == 0 { i } else { wanted - 1 });
                    at.push(wanted);
                    wanted += 1;
                }
            }
        }
        let mut thoughts = Tensor::zeros(0, self.learner.decoder.config().width);
        cases.iter().for_each(|case| thoughts.extend(&case.thoughts));
        let thoughts = thoughts.to_device(device)?;
        let x = ops::concat(device, &[&self.learner.decoder.embed(&tokens)?, &thoughts])?;
        let dropout = droppings.map(|d| Dropout { p: d.p, attn_out: true, mlp_out: true, masks: Masks::Drawn(&draws) });
        let (hidden, segment) = self.learner.forward(cache, &pass, x, dropout)?;
        let (own, earlier) = (rows_of(device, &hidden, &at)?, rows_of(device, &hidden, &before)?);
        let judged = Judged { at: own, before: earlier, thought: thoughts };
        let (scores, kept) = self.head.forward(device, &judged)?;
        Ok(Heard { hidden, segment, tokens, at, before, judged, scores, kept })
    }

    fn learn_heard(&mut self, cache: &Cache, cases: &[Case], how: Judging<'_>, heard: Heard) -> Result<JudgeLosses, DeviceError> {
        let device = self.learner.decoder.device().clone();
        let Heard { hidden, segment, tokens, at, before, judged, scores, kept } = heard;
        let scores = scores.to_host()?;
        let (mut loss, mut start, mut dscores) = (0.0, 0, vec![0.0; at.len()]);
        for case in cases {
            let (end, steps) = (start + case.thoughts.rows(), case.steps());
            let problem = Scored { scores: &scores.data()[start..end], labels: &case.labels, steps: &steps };
            loss += how.objective.of(problem, how.weight, &mut dscores[start..end]);
            start = end;
        }
        let share = 1.0 / cases.len() as f32;
        dscores.iter_mut().for_each(|d| *d *= share);
        let dscores = Tensor::from_vec(at.len(), 1, dscores).to_device(&device)?;
        let (dat, dbefore) = self.head.backward(&device, &judged, &kept, &dscores)?;
        let mut dhidden = Tensor::zeros_on(&device, hidden.rows(), hidden.cols())?;
        scatter(&device, &dat, &at, &mut dhidden)?;
        if let Some(dbefore) = dbefore {
            scatter(&device, &dbefore, &before, &mut dhidden)?;
        }
        let digits = self.expect(&device, cases, (&hidden, &at, &before), &mut dhidden)?;
        let mut dkv = cache.gradients(&device)?;
        let dx = self.learner.backward(cache, &mut dkv, segment, &dhidden)?;
        let read: Vec<usize> = (0..tokens.len()).collect();
        self.learner.embedded(tokens, &rows_of(&device, &dx, &read)?)?;
        Ok(JudgeLosses { score: loss / cases.len() as f64, digits })
    }

    /// Adds the gradients of the loss on what the judge knows; returns its mean a digit.
    fn expect(
        &mut self,
        device: &Device,
        cases: &[Case],
        (hidden, at, before): (&Tensor, &[usize], &[usize]),
        dhidden: &mut Tensor,
    ) -> Result<f64, DeviceError> {
        let Some(Expectations { current, next, weight }) = &mut self.expectations else { return Ok(0.0) };
        let results = cases.iter().flat_map(|case| case.steps().into_iter().map(|t| case.results.get(t).copied()));
        let (told, numbers): (Vec<usize>, Vec<i64>) = results.enumerate().filter_map(|(i, number)| Some((i, number?))).unzip();
        if told.is_empty() {
            return Ok(0.0);
        }
        let (mut total, count) = (0.0, 2 * told.len() * crate::digits::PLACES);
        for (reader, places) in [(current, at), (next, before)] {
            let places: Vec<usize> = told.iter().map(|&i| places[i]).collect();
            let read = reader.learn(device, &rows_of(device, hidden, &places)?, &numbers, *weight / count as f32)?;
            scatter(device, &read.gradient, &places, dhidden)?;
            total += read.losses.to_host()?.data().iter().map(|&x| f64::from(x)).sum::<f64>();
        }
        Ok(total / count as f64)
    }
}
