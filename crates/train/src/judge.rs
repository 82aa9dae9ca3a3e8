//! One batch of a reward model: prompts, thoughts and answers in one segment, scores, and the gradients of their loss.
//!
//! Thoughts are given, so that a whole trajectory is one pass; the N trajectories of a problem share its prompt and what the judge
//! itself thinks about it.

mod hearing;

use model::{Cache, LearnedLinear, Learner, Parameter, TensorSource};
use serde::{Deserialize, Serialize};
use tensor::ops::{self, Format};
use tensor::{Device, DeviceError, Tensor};

use crate::digits::Digits;
use crate::loss::{Objective, Scored};
use crate::study::{Droppings, scatter};
use hearing::{Heard, Reading};

/// A problem with its trajectories.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// Its number in the data.
    pub id: u32,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// What the judge itself thinks about it: (thoughts, width), none for a judge without a mind.
    pub own: Tensor,
    /// All thoughts, trajectory after trajectory: (thoughts, width).
    pub thoughts: Tensor,
    /// How many each trajectory has.
    pub lengths: Vec<usize>,
    /// A label for each thought.
    pub labels: Vec<f32>,
    /// The tokens of each trajectory's answer, for a judge that reads answers.
    pub answers: Vec<Vec<u32>>,
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

/// What a head reads, one row a thought or an answer; or the gradients of that.
pub(crate) struct Judged {
    at: Tensor,
    before: Tensor,
    thought: Tensor,
}

impl ScoreLearner {
    /// A head of that kind.
    pub fn load(device: &Device, source: &impl TensorSource, kind: HeadKind, width: usize) -> Result<Self, model::Error> {
        Ok(match kind {
            HeadKind::Linear => Self::Linear(Box::new(LearnedLinear::load(device, source, "classifier", (width, 1))?)),
            HeadKind::Compare => Self::comparing(device, source, "compare", width)?,
        })
    }

    /// A head that judges answers, by comparing.
    pub fn verdict(device: &Device, source: &impl TensorSource, width: usize) -> Result<Self, model::Error> {
        Self::comparing(device, source, "verdict", width)
    }

    fn comparing(device: &Device, source: &impl TensorSource, name: &str, width: usize) -> Result<Self, model::Error> {
        let load = |part: &str, shape| LearnedLinear::load(device, source, &format!("{name}.{part}"), shape);
        Ok(Self::Compare(Box::new(Comparing {
            at: load("at", (width, 2 * width))?,
            before: load("before", (width, 2 * width))?,
            thought: load("thought", (width, 2 * width))?,
            out: load("out", (width, 1))?,
        })))
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

    /// The gradients of what was read; a linear head gives that of one part alone.
    fn backward(
        &mut self,
        device: &Device,
        of: &Judged,
        [before, inner]: &[Tensor; 2],
        dscores: &Tensor,
    ) -> Result<Judged, DeviceError> {
        match self {
            Self::Linear(map) => {
                Ok(Judged { at: map.backward(device, &of.at, dscores)?, before: Tensor::default(), thought: Tensor::default() })
            }
            Self::Compare(maps) => {
                let dinner = maps.out.backward(device, inner, dscores)?;
                let mut dbefore = Tensor::default();
                ops::swiglu_backward(device, before, &dinner, Format::Single, &mut dbefore)?;
                Ok(Judged {
                    thought: maps.thought.backward(device, &of.thought, &dbefore)?,
                    at: maps.at.backward(device, &of.at, &dbefore)?,
                    before: maps.before.backward(device, &of.before, &dbefore)?,
                })
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
    /// From the hidden state before an answer: the last step's result. Used by judges that read answers.
    pub answer: Digits,
    /// The weight of their losses.
    pub weight: f32,
}

/// What judges answers.
#[derive(Debug)]
pub struct Verdicts {
    /// What reads a score at an answer's end.
    pub head: ScoreLearner,
    /// The tokens between thoughts and answer.
    pub end: Vec<u32>,
}

/// Who learns to judge.
#[derive(Debug)]
pub struct Judge {
    /// The decoder.
    pub learner: Learner,
    /// What reads scores.
    pub head: ScoreLearner,
    /// What judges answers, in a judge that reads them.
    pub verdicts: Option<Verdicts>,
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

/// What a judge says of a case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Of every thought, trajectory after trajectory.
    pub thoughts: Vec<f32>,
    /// Of every answer, if it reads answers.
    pub verdicts: Vec<f32>,
}

/// Mean losses of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct JudgeLosses {
    /// A problem's, of the objective.
    pub score: f64,
    /// A digit's, of what the judge expects.
    pub digits: f64,
}

impl Judge {
    /// From its parts.
    pub fn new(learner: Learner, head: ScoreLearner, expectations: Option<Expectations>) -> Self {
        Self { learner, head, verdicts: None, expectations, cache: None }
    }

    /// One that reads answers as well.
    pub fn reading_answers(self, verdicts: Verdicts) -> Self {
        Self { verdicts: Some(verdicts), ..self }
    }

    /// The scores of every case.
    pub fn scores(&mut self, cases: &[Case]) -> Result<Vec<Scores>, DeviceError> {
        let mut cache = self.ready(cases)?;
        let heard = self.hear(&mut cache, cases, None);
        self.cache = Some(cache);
        let heard = heard?;
        let thoughts = heard.thoughts.scores.to_host()?;
        let verdicts = heard.answers.map(|answers| answers.scores.to_host()).transpose()?;
        let (mut thoughts, mut verdicts) = (thoughts.data().iter(), verdicts.iter().flat_map(|v| v.data()));
        let mut of = |case: &Case| Scores {
            thoughts: thoughts.by_ref().take(case.thoughts.rows()).copied().collect(),
            verdicts: verdicts.by_ref().take(case.lengths.len()).copied().collect(),
        };
        Ok(cases.iter().map(&mut of).collect())
    }

    /// Adds the gradients of a batch's mean loss.
    pub fn learn(&mut self, cases: &[Case], how: Judging<'_>) -> Result<JudgeLosses, DeviceError> {
        let mut cache = self.ready(cases)?;
        let heard = self.hear(&mut cache, cases, how.droppings)?;
        let losses = self.learn_heard(&cache, cases, how, heard);
        self.cache = Some(cache);
        losses
    }

    /// The parameters of its heads.
    pub fn heads(&self) -> impl Iterator<Item = &Parameter> {
        self.head.parameters().chain(self.verdicts.iter().flat_map(|v| v.head.parameters()))
    }

    /// All parameters, always in the same order.
    pub fn parameters(&self) -> Vec<&Parameter> {
        let numbers = self.expectations.iter().flat_map(|e| [&e.current, &e.next, &e.answer]);
        self.learner.parameters().chain(self.heads()).chain(numbers.flat_map(|reader| reader.map.parameters())).collect()
    }

    /// All parameters, to be changed. [`Self::refresh`] makes the change known to what computes.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let Self { learner, head, verdicts, expectations, .. } = self;
        let numbers = expectations.iter_mut().flat_map(|e| [&mut e.current, &mut e.next, &mut e.answer]);
        let heads = head.parameters_mut().chain(verdicts.iter_mut().flat_map(|v| v.head.parameters_mut()));
        learner.parameters_mut().chain(heads).chain(numbers.flat_map(|reader| reader.map.parameters_mut())).collect()
    }

    /// Makes a change of the parameters known to what computes.
    pub fn refresh(&mut self) -> Result<(), DeviceError> {
        let device = &self.learner.decoder.device().clone();
        self.learner.refresh()?;
        self.head.refresh(device)?;
        self.verdicts.as_mut().map_or(Ok(()), |v| v.head.refresh(device))?;
        let numbers = self.expectations.iter_mut().flat_map(|e| [&mut e.current, &mut e.next, &mut e.answer]);
        numbers.into_iter().try_for_each(|reader| reader.map.refresh(device))
    }

    fn ready(&mut self, cases: &[Case]) -> Result<Cache, DeviceError> {
        let said = |answer: &Vec<u32>| self.verdicts.as_ref().map_or(0, |v| v.end.len() + answer.len());
        let rows = |case: &Case| {
            let said = case.answers.iter().map(said).chain(std::iter::repeat(0));
            case.lengths.iter().zip(said).map(|(&thoughts, said)| Cache::slots_for(thoughts + said)).sum::<usize>()
        };
        let slots = cases.iter().map(|case| Cache::slots_for(case.prompt.len() + case.own.rows()) + rows(case)).sum();
        match self.cache.take() {
            Some(mut cache) if cache.slots() >= slots => {
                cache.clear();
                Ok(cache)
            }
            _ => Cache::new(self.learner.decoder.device(), self.learner.decoder.config(), slots + slots / 8),
        }
    }

    fn learn_heard(&mut self, cache: &Cache, cases: &[Case], how: Judging<'_>, heard: Heard) -> Result<JudgeLosses, DeviceError> {
        let device = self.learner.decoder.device().clone();
        let Heard { hidden, segment, tokens, token_rows, thoughts, answers } = heard;
        let mut dhidden = Tensor::zeros_on(&device, hidden.rows(), hidden.cols())?;
        let labelled = |case: &Case| (case.labels.clone(), case.steps());
        let mut score = taught(&device, &mut self.head, &thoughts, (cases, &labelled, how), &mut dhidden)?;
        if let (Some(verdicts), Some(answers)) = (&mut self.verdicts, &answers) {
            let labelled =
                |case: &Case| (case.correct.iter().map(|&c| f32::from(u8::from(c))).collect(), vec![0; case.correct.len()]);
            let how = Judging { weight: &|_| 1.0, ..how };
            score += taught(&device, &mut verdicts.head, answers, (cases, &labelled, how), &mut dhidden)?;
        }
        let digits = self.expect(&device, cases, (&hidden, &thoughts, answers.as_ref()), &mut dhidden)?;
        let mut dkv = cache.gradients(&device)?;
        let dx = self.learner.backward(cache, &mut dkv, segment, &dhidden)?;
        self.learner.embedded(tokens, &ops::select(&device, [&dx], &token_rows)?)?;
        Ok(JudgeLosses { score, digits })
    }

    /// Adds the gradients of the loss on what the judge knows; returns its mean a digit.
    fn expect(
        &mut self,
        device: &Device,
        cases: &[Case],
        (hidden, thoughts, answers): (&Tensor, &Reading, Option<&Reading>),
        dhidden: &mut Tensor,
    ) -> Result<f64, DeviceError> {
        let Some(Expectations { current, next, answer, weight }) = &mut self.expectations else { return Ok(0.0) };
        let results = cases.iter().flat_map(|case| case.steps().into_iter().map(|t| case.results.get(t).copied()));
        let (told, numbers): (Vec<usize>, Vec<i64>) = results.enumerate().filter_map(|(i, number)| Some((i, number?))).unzip();
        let places = |all: &[usize]| told.iter().map(|&i| all[i]).collect::<Vec<_>>();
        let mut readers = vec![(current, places(&thoughts.at), numbers.clone()), (next, places(&thoughts.before), numbers)];
        if let Some(answers) = answers {
            let last = cases.iter().flat_map(|case| case.lengths.iter().map(|_| case.results.last().copied()));
            let (places, numbers) = answers.before.iter().zip(last).filter_map(|(&place, number)| Some((place, number?))).unzip();
            readers.push((answer, places, numbers));
        }
        readers.retain(|(_, places, _)| !places.is_empty());
        let (mut total, kinds) = (0.0, readers.len());
        for (reader, places, numbers) in readers {
            let count = (numbers.len() * crate::digits::PLACES * kinds) as f32;
            let read = reader.learn(device, &ops::select(device, [hidden], &places)?, &numbers, *weight / count)?;
            scatter(device, &read.gradient, &places, dhidden)?;
            total += read.losses.to_host()?.data().iter().map(|&x| f64::from(x)).sum::<f64>() / f64::from(count);
        }
        Ok(total)
    }
}

/// A case's labels, and the step that each belongs to.
type Labelled<'a> = dyn Fn(&Case) -> (Vec<f32>, Vec<usize>) + 'a;

/// Teaches a head, and adds the gradients of what it read; returns the mean loss of a case.
fn taught(
    device: &Device,
    head: &mut ScoreLearner,
    read: &Reading,
    (cases, labelled, how): (&[Case], &Labelled<'_>, Judging<'_>),
    dhidden: &mut Tensor,
) -> Result<f64, DeviceError> {
    let scores = read.scores.clone().to_host()?;
    let (mut loss, mut start, mut dscores) = (0.0, 0, vec![0.0; read.at.len()]);
    for case in cases {
        let (labels, steps) = labelled(case);
        let end = start + labels.len();
        let problem = Scored { scores: &scores.data()[start..end], labels: &labels, steps: &steps };
        loss += how.objective.of(problem, how.weight, &mut dscores[start..end]);
        start = end;
    }
    let share = 1.0 / cases.len() as f32;
    dscores.iter_mut().for_each(|d| *d *= share);
    let dscores = Tensor::from_vec(read.at.len(), 1, dscores).to_device(device)?;
    let gradients = head.backward(device, &read.judged, &read.kept, &dscores)?;
    scatter(device, &gradients.at, &read.at, dhidden)?;
    if gradients.before.rows() > 0 {
        scatter(device, &gradients.before, &read.before, dhidden)?;
    }
    if let Some(places) = &read.thoughts {
        scatter(device, &gradients.thought, places, dhidden)?;
    }
    Ok(loss / cases.len() as f64)
}
