//! One batch of a reward model: prompts, thoughts and answers in one segment, scores, and the
//! gradients of their loss.
//!
//! Thoughts are given, so that a whole trajectory is one pass; the N trajectories of a problem
//! share its prompt and what the judge itself thinks about it.

mod layout;

use model::{Cache, Parameter, TensorSource, TrainableDecoder, TrainableLinear};
use serde::{Deserialize, Serialize};
use tensor::ops::{self, OutputDtype};
use tensor::{Device, DeviceError, Tensor};

use crate::digit_head::DigitHead;
use crate::latent_step::{DropoutConfig, scatter_add};
use crate::loss::{Objective, ScoredProblem};
use layout::{HeadForward, RewardForward};

/// A problem with its trajectories.
#[derive(Clone, Debug, Default)]
pub struct RewardExample {
    /// Its number in the data.
    pub id: u32,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// What the judge itself thinks about it: (thoughts, width), none for a judge without a mind.
    pub reference_trace: Tensor,
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
    pub step_results: Vec<i64>,
}

impl RewardExample {
    /// Which step each thought is.
    pub fn step_indices(&self) -> Vec<usize> {
        self.lengths.iter().flat_map(|&n| 0..n).collect()
    }
}

/// What reads a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RewardHeadKind {
    /// A linear map of the hidden state at the thought (the published layout).
    Linear,
    /// A SwiGLU over the hidden states at the thought and one position before it, and the thought
    /// itself: the judge may compare what it expected with what came.
    Compare,
}

/// A score head that learns.
#[derive(Debug)]
pub enum TrainableRewardHead {
    /// width -> 1
    Linear(Box<TrainableLinear>),
    /// Three maps to one inner layer, and one from it.
    Compare(Box<TrainableCompareHead>),
}

/// The parts of a comparing head.
#[derive(Debug)]
pub struct TrainableCompareHead {
    at: TrainableLinear,
    before: TrainableLinear,
    thought: TrainableLinear,
    out: TrainableLinear,
}

/// What a head reads, one row a thought or an answer; or the gradients of that.
pub(crate) struct RewardHeadRows {
    at: Tensor,
    before: Tensor,
    thought: Tensor,
}

impl TrainableRewardHead {
    /// A head of that kind.
    pub fn load(
        device: &Device,
        source: &impl TensorSource,
        kind: RewardHeadKind,
        width: usize,
    ) -> Result<Self, model::ModelError> {
        Ok(match kind {
            RewardHeadKind::Linear => Self::Linear(Box::new(TrainableLinear::load(
                device,
                source,
                "classifier",
                width,
                1,
            )?)),
            RewardHeadKind::Compare => Self::load_compare(device, source, "compare", width)?,
        })
    }

    /// A head that judges answers, by comparing.
    pub fn outcome(
        device: &Device,
        source: &impl TensorSource,
        width: usize,
    ) -> Result<Self, model::ModelError> {
        Self::load_compare(device, source, "verdict", width)
    }

    fn load_compare(
        device: &Device,
        source: &impl TensorSource,
        name: &str,
        width: usize,
    ) -> Result<Self, model::ModelError> {
        let load = |part: &str, outputs| {
            TrainableLinear::load(device, source, &format!("{name}.{part}"), width, outputs)
        };
        Ok(Self::Compare(Box::new(TrainableCompareHead {
            at: load("at", 2 * width)?,
            before: load("before", 2 * width)?,
            thought: load("thought", 2 * width)?,
            out: load("out", 1)?,
        })))
    }

    fn linears(&self) -> Vec<&TrainableLinear> {
        match self {
            Self::Linear(map) => vec![map],
            Self::Compare(of) => vec![&of.at, &of.before, &of.thought, &of.out],
        }
    }

    fn linears_mut(&mut self) -> Vec<&mut TrainableLinear> {
        match self {
            Self::Linear(map) => vec![map],
            Self::Compare(of) => vec![&mut of.at, &mut of.before, &mut of.thought, &mut of.out],
        }
    }

    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.linears().into_iter().flat_map(TrainableLinear::parameters)
    }

    /// Its parameters, to be changed.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.linears_mut().into_iter().flat_map(TrainableLinear::parameters_mut)
    }

    /// Makes a change of the parameters known to what computes.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.linears_mut().into_iter().try_for_each(|part| part.sync_weights(device))
    }

    /// The scores (rows, 1), and what the way back needs: the inner layer before and after its
    /// activation.
    fn forward(
        &self,
        device: &Device,
        of: &RewardHeadRows,
    ) -> Result<(Tensor, [Tensor; 2]), DeviceError> {
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
        of: &RewardHeadRows,
        [before, inner]: &[Tensor; 2],
        dscores: &Tensor,
    ) -> Result<RewardHeadRows, DeviceError> {
        match self {
            Self::Linear(map) => Ok(RewardHeadRows {
                at: map.backward(device, &of.at, dscores)?,
                before: Tensor::default(),
                thought: Tensor::default(),
            }),
            Self::Compare(maps) => {
                let dinner = maps.out.backward(device, inner, dscores)?;
                let mut dbefore = Tensor::default();
                ops::swiglu_backward(device, before, &dinner, OutputDtype::F32, &mut dbefore)?;
                Ok(RewardHeadRows {
                    thought: maps.thought.backward(device, &of.thought, &dbefore)?,
                    at: maps.at.backward(device, &of.at, &dbefore)?,
                    before: maps.before.backward(device, &of.before, &dbefore)?,
                })
            }
        }
    }
}

/// Readers of numbers from the judge's hidden states: of the step whose thought it has just seen,
/// and of the next one.
#[derive(Debug)]
pub struct DigitHeads {
    /// From the hidden state at thought t: step t's result.
    pub current: DigitHead,
    /// From the hidden state one position before thought t: step t's result.
    pub next: DigitHead,
    /// From the hidden state before an answer: the last step's result. Used by judges that read
    /// answers.
    pub answer: DigitHead,
    /// The weight of their losses.
    pub weight: f32,
}

/// What judges answers.
#[derive(Debug)]
pub struct OutcomeHead {
    /// What reads a score at an answer's end.
    pub head: TrainableRewardHead,
    /// The tokens between thoughts and answer.
    pub end_latent: Vec<u32>,
}

/// Who learns to judge.
#[derive(Debug)]
pub struct RewardTrainStep {
    /// The decoder.
    pub model: TrainableDecoder,
    /// What reads scores.
    pub head: TrainableRewardHead,
    /// What judges answers, in a judge that reads them.
    pub outcome: Option<OutcomeHead>,
    /// A loss on what the judge itself knows.
    pub digit_heads: Option<DigitHeads>,
    cache: Option<Cache>,
}

/// What a batch is judged by.
#[derive(Clone, Copy)]
pub struct RewardLossConfig<'a> {
    /// The loss.
    pub objective: Objective,
    /// The weight of each step.
    pub step_weight: &'a (dyn Fn(usize) -> f32 + Sync),
    /// Dropout in the judge.
    pub dropout: Option<DropoutConfig>,
}

/// What a judge says of a case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PredictedRewards {
    /// Of every thought, trajectory after trajectory.
    pub process: Vec<f32>,
    /// Of every answer, if it reads answers.
    pub outcome: Vec<f32>,
}

/// Mean losses of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct RewardLosses {
    /// A problem's, of the objective.
    pub objective: f64,
    /// A digit's, of what the judge expects.
    pub digits: f64,
}

impl RewardTrainStep {
    /// From its parts.
    pub fn new(
        learner: TrainableDecoder,
        head: TrainableRewardHead,
        expectations: Option<DigitHeads>,
    ) -> Self {
        Self { model: learner, head, outcome: None, digit_heads: expectations, cache: None }
    }

    /// One that reads answers as well.
    pub fn with_outcome_head(self, verdicts: OutcomeHead) -> Self {
        Self { outcome: Some(verdicts), ..self }
    }

    /// The scores of every case.
    pub fn predict(
        &mut self,
        cases: &[RewardExample],
    ) -> Result<Vec<PredictedRewards>, DeviceError> {
        let mut cache = self.cache_for(cases)?;
        let heard = self.forward(&mut cache, cases, None);
        self.cache = Some(cache);
        let heard = heard?;
        let thoughts = heard.thoughts.scores.to_host()?;
        let verdicts = heard.answers.map(|answers| answers.scores.to_host()).transpose()?;
        let (mut thoughts, mut verdicts) =
            (thoughts.data().iter(), verdicts.iter().flat_map(|v| v.data()));
        let mut of = |case: &RewardExample| PredictedRewards {
            process: thoughts.by_ref().take(case.thoughts.rows()).copied().collect(),
            outcome: verdicts.by_ref().take(case.lengths.len()).copied().collect(),
        };
        Ok(cases.iter().map(&mut of).collect())
    }

    /// Adds the gradients of a batch's mean loss.
    pub fn accumulate_gradients(
        &mut self,
        cases: &[RewardExample],
        how: RewardLossConfig<'_>,
    ) -> Result<RewardLosses, DeviceError> {
        let mut cache = self.cache_for(cases)?;
        let heard = self.forward(&mut cache, cases, how.dropout)?;
        let losses = self.backward(&cache, cases, how, heard);
        self.cache = Some(cache);
        losses
    }

    /// The parameters of its heads.
    pub fn head_parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.head.parameters().chain(self.outcome.iter().flat_map(|v| v.head.parameters()))
    }

    /// All parameters, always in the same order.
    pub fn parameters(&self) -> Vec<&Parameter> {
        let numbers = self.digit_heads.iter().flat_map(|e| [&e.current, &e.next, &e.answer]);
        self.model
            .parameters()
            .chain(self.head_parameters())
            .chain(numbers.flat_map(|reader| reader.linear.parameters()))
            .collect()
    }

    /// All parameters, to be changed. [`Self::refresh`] makes the change known to what computes.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let Self { model: learner, head, outcome: verdicts, digit_heads: expectations, .. } = self;
        let numbers =
            expectations.iter_mut().flat_map(|e| [&mut e.current, &mut e.next, &mut e.answer]);
        let heads =
            head.parameters_mut().chain(verdicts.iter_mut().flat_map(|v| v.head.parameters_mut()));
        learner
            .parameters_mut()
            .chain(heads)
            .chain(numbers.flat_map(|reader| reader.linear.parameters_mut()))
            .collect()
    }

    /// Makes a change of the parameters known to what computes.
    pub fn sync_weights(&mut self) -> Result<(), DeviceError> {
        let device = &self.model.decoder.device().clone();
        self.model.sync_weights()?;
        self.head.sync_weights(device)?;
        self.outcome.as_mut().map_or(Ok(()), |v| v.head.sync_weights(device))?;
        let numbers =
            self.digit_heads.iter_mut().flat_map(|e| [&mut e.current, &mut e.next, &mut e.answer]);
        numbers.into_iter().try_for_each(|reader| reader.linear.sync_weights(device))
    }

    fn cache_for(&mut self, cases: &[RewardExample]) -> Result<Cache, DeviceError> {
        let said = |answer: &Vec<u32>| {
            self.outcome.as_ref().map_or(0, |v| v.end_latent.len() + answer.len())
        };
        let rows = |case: &RewardExample| {
            let said = case.answers.iter().map(said).chain(std::iter::repeat(0));
            case.lengths
                .iter()
                .zip(said)
                .map(|(&thoughts, said)| Cache::slots_for(thoughts + said))
                .sum::<usize>()
        };
        let slots = cases
            .iter()
            .map(|case| {
                Cache::slots_for(case.prompt.len() + case.reference_trace.rows()) + rows(case)
            })
            .sum();
        match self.cache.take() {
            Some(mut cache) if cache.slots() >= slots => {
                cache.clear();
                Ok(cache)
            }
            _ => Cache::new(
                self.model.decoder.device(),
                self.model.decoder.config(),
                slots + slots / 8,
            ),
        }
    }

    fn backward(
        &mut self,
        cache: &Cache,
        cases: &[RewardExample],
        how: RewardLossConfig<'_>,
        heard: RewardForward,
    ) -> Result<RewardLosses, DeviceError> {
        let device = self.model.decoder.device().clone();
        let RewardForward { hidden, segment, tokens, token_rows, thoughts, answers } = heard;
        let mut dhidden = Tensor::zeros_on(&device, hidden.rows(), hidden.cols())?;
        let labelled = |case: &RewardExample| (case.labels.clone(), case.step_indices());
        let mut score = head_loss_backward(
            &device,
            &mut self.head,
            &thoughts,
            (cases, &labelled, how),
            &mut dhidden,
        )?;
        if let (Some(verdicts), Some(answers)) = (&mut self.outcome, &answers) {
            let labelled = |case: &RewardExample| {
                (
                    case.correct.iter().map(|&c| f32::from(u8::from(c))).collect(),
                    vec![0; case.correct.len()],
                )
            };
            let how = RewardLossConfig { step_weight: &|_| 1.0, ..how };
            score += head_loss_backward(
                &device,
                &mut verdicts.head,
                answers,
                (cases, &labelled, how),
                &mut dhidden,
            )?;
        }
        let digits = self.add_digit_losses(
            &device,
            cases,
            (&hidden, &thoughts, answers.as_ref()),
            &mut dhidden,
        )?;
        let mut dkv = cache.gradients(&device)?;
        let dx = self.model.backward(cache, &mut dkv, segment, &dhidden)?;
        self.model
            .accumulate_embedding_gradients(tokens, &ops::select(&device, [&dx], &token_rows)?)?;
        Ok(RewardLosses { objective: score, digits })
    }

    /// Adds the gradients of the loss on what the judge knows; returns its mean a digit.
    fn add_digit_losses(
        &mut self,
        device: &Device,
        cases: &[RewardExample],
        (hidden, thoughts, answers): (&Tensor, &HeadForward, Option<&HeadForward>),
        dhidden: &mut Tensor,
    ) -> Result<f64, DeviceError> {
        let Some(DigitHeads { current, next, answer, weight }) = &mut self.digit_heads else {
            return Ok(0.0);
        };
        let results = cases.iter().flat_map(|case| {
            case.step_indices().into_iter().map(|t| case.step_results.get(t).copied())
        });
        let (told, numbers): (Vec<usize>, Vec<i64>) =
            results.enumerate().filter_map(|(i, number)| Some((i, number?))).unzip();
        let places = |all: &[usize]| told.iter().map(|&i| all[i]).collect::<Vec<_>>();
        let mut readers = vec![
            (current, places(&thoughts.at), numbers.clone()),
            (next, places(&thoughts.before), numbers),
        ];
        if let Some(answers) = answers {
            let last = cases
                .iter()
                .flat_map(|case| case.lengths.iter().map(|_| case.step_results.last().copied()));
            let (places, numbers) = answers
                .before
                .iter()
                .zip(last)
                .filter_map(|(&place, number)| Some((place, number?)))
                .unzip();
            readers.push((answer, places, numbers));
        }
        readers.retain(|(_, places, _)| !places.is_empty());
        let (mut total, kinds) = (0.0, readers.len());
        for (reader, places, numbers) in readers {
            let count = (numbers.len() * crate::digit_head::DIGITS * kinds) as f32;
            let read = reader.accumulate_gradients(
                device,
                &ops::select(device, [hidden], &places)?,
                &numbers,
                *weight / count,
            )?;
            scatter_add(device, &read.gradient, &places, dhidden)?;
            total += read.losses.to_host()?.data().iter().map(|&x| f64::from(x)).sum::<f64>()
                / f64::from(count);
        }
        Ok(total)
    }
}

/// A case's labels, and the step that each belongs to.
type LabelFn<'a> = dyn Fn(&RewardExample) -> (Vec<f32>, Vec<usize>) + 'a;

/// Teaches a head, and adds the gradients of what it read; returns the mean loss of a case.
fn head_loss_backward(
    device: &Device,
    head: &mut TrainableRewardHead,
    read: &HeadForward,
    (cases, labelled, how): (&[RewardExample], &LabelFn<'_>, RewardLossConfig<'_>),
    dhidden: &mut Tensor,
) -> Result<f64, DeviceError> {
    let scores = read.scores.clone().to_host()?;
    let (mut loss, mut start, mut dscores) = (0.0, 0, vec![0.0; read.at.len()]);
    for case in cases {
        let (labels, steps) = labelled(case);
        let end = start + labels.len();
        let problem =
            ScoredProblem { scores: &scores.data()[start..end], labels: &labels, steps: &steps };
        loss += how.objective.loss(problem, how.step_weight, &mut dscores[start..end]);
        start = end;
    }
    let share = 1.0 / cases.len() as f32;
    dscores.iter_mut().for_each(|d| *d *= share);
    let dscores = Tensor::from_vec(read.at.len(), 1, dscores).to_device(device)?;
    let gradients = head.backward(device, &read.input, &read.saved, &dscores)?;
    scatter_add(device, &gradients.at, &read.at, dhidden)?;
    if gradients.before.rows() > 0 {
        scatter_add(device, &gradients.before, &read.before, dhidden)?;
    }
    if let Some(places) = &read.thoughts {
        scatter_add(device, &gradients.thought, places, dhidden)?;
    }
    Ok(loss / cases.len() as f64)
}
