//! Rewards: process rewards r_t at thought t's position and, for a reward model that scores
//! answers, the outcome reward at the end of the answer.
//!
//! [`score`] scores finished sequences in one forward pass; [`ScorerState`] scores paths thought by
//! thought, as a beam search extends them. Both compute a prompt once per question and fork it for
//! its paths, and both yield the same rewards. If the reward model has a reference reasoner, the
//! reference trace is inserted between the prompt and the thoughts.

use model::{Cache, Pass, RewardHead, RewardInputs, Sequence};
use tensor::{Device, DeviceError, Tensor, ops};

use crate::executor::{AnswerTokens, Gather, ThoughtRef};
use crate::prompt::Prompt;
use crate::reasoner::RewardModel;
use crate::reference_trace::ReferenceTrace;

/// The rewards of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewards {
    /// Process rewards, one per thought.
    pub process: Vec<f32>,
    /// Outcome reward, if the reward model scores answers.
    pub outcome: Option<f32>,
}

/// The answers of a batch, as input of a reward model.
#[derive(Clone, Copy, Debug)]
pub struct AnswerBatch<'a> {
    /// The tokens between thoughts and answer.
    pub end_latent: &'a [u32],
    /// The answer of each sequence.
    pub answers: &'a [AnswerTokens],
}

/// Finished sequences to be scored.
#[derive(Clone, Copy)]
pub(crate) struct ScoreBatch<'a> {
    /// The prompts of the batch's items.
    pub(crate) prompts: &'a [&'a Prompt],
    pub(crate) trace: Option<&'a ReferenceTrace>,
    pub(crate) sequences: &'a [ScoredSequence<'a>],
    /// Used only by a reward model with an outcome head.
    pub(crate) answers: Option<AnswerBatch<'a>>,
}

/// A sequence whose thoughts are scored.
#[derive(Clone, Copy)]
pub(crate) struct ScoredSequence<'a> {
    /// Index of its prompt.
    pub(crate) item: usize,
    pub(crate) thoughts: &'a [ThoughtRef],
}

/// The rewards of a batch, and the reward model's state after scoring it.
pub(crate) struct ScoreOutput {
    /// Per sequence.
    pub(crate) rewards: Vec<Rewards>,
    /// Without outputs if there was nothing to score.
    pub(crate) state: ScorerState,
    rows: Vec<ScoredPath>,
    /// Length of each sequence's prefix in positions.
    prefixes: Vec<usize>,
}

impl ScoreOutput {
    /// The path of a sequence up to its first thought, or up to its prefix if it has none.
    pub(crate) fn at_first_thought(&self, row: usize) -> ScoredPath {
        let ScoredPath { sequence, last_thought } = &self.rows[row];
        let thoughts = self.rewards[row].process.len();
        let sequence = sequence.fork_at(self.prefixes[row] + thoughts.min(1));
        ScoredPath { sequence, last_thought: last_thought - thoughts.saturating_sub(1) }
    }
}

/// Scores every sequence in one forward pass, which computes each prompt once.
pub(crate) fn score(
    reward_model: &RewardModel,
    cache: &mut Cache,
    batch: ScoreBatch<'_>,
) -> Result<ScoreOutput, DeviceError> {
    let ScoreBatch { prompts, trace, sequences: scored, answers } = batch;
    let decoder = &reward_model.decoder;
    let device = decoder.device();
    let ScorerPrefix { mut pass, x, sequences } =
        ScorerPrefix::new(reward_model, cache, prompts, trace)?;
    let thoughts = || scored.iter().flat_map(|row| row.thoughts);
    let mut before = Vec::new();
    let mut rows = Vec::new();
    let prefixes = scored.iter().map(|row| sequences[row.item].len()).collect();
    for row in scored {
        let mut sequence = sequences[row.item].fork();
        // Outputs are ordered by position: the prefixes' last positions, then all thoughts.
        let mut last = row.item;
        for _ in row.thoughts {
            let output = prompts.len() + before.len();
            before.push(std::mem::replace(&mut last, output));
            pass.push(cache, &mut sequence, true);
        }
        rows.push(ScoredPath { sequence, last_thought: last });
    }
    let outputs = prompts.len() + before.len();
    let answers = answers.filter(|_| reward_model.outcome_head.is_some()).map(|answers| {
        AnswerLayout { outputs, ..AnswerLayout::default() }.extend(
            decoder.config().context,
            cache,
            &mut pass,
            &mut rows,
            answers,
        )
    });
    if before.is_empty() && answers.is_none() {
        let rewards = vec![Rewards::default(); scored.len()];
        return Ok(ScoreOutput { rewards, state: ScorerState::default(), rows, prefixes });
    }
    let latents = match before.is_empty() {
        true => None,
        false => Some(Gather::of_thoughts(thoughts()).select(device)?),
    };
    let tokens = answers.as_ref().map(|answers| decoder.embed(&answers.tokens)).transpose()?;
    let parts: Vec<&Tensor> = [&x].into_iter().chain(&latents).chain(&tokens).collect();
    let hidden = decoder.forward(cache, &pass, ops::concat(device, &parts)?, None)?;
    let at = |rows: &[usize]| ops::select(device, [&hidden], rows);
    let process = match &latents {
        None => Vec::new(),
        Some(latents) => {
            let positions: Vec<usize> = (prompts.len()..outputs).collect();
            let before = at(&before)?;
            let at = at(&positions)?;
            let inputs = RewardInputs { before: &before, at: &at, thoughts: latents };
            reward_model.head.rewards(device, inputs)?
        }
    };
    let outcome = match (&reward_model.outcome_head, answers) {
        (Some(head), Some(answers)) => {
            answers.rewards(device, head, std::slice::from_ref(&hidden), &rows)?
        }
        _ => Vec::new(),
    };
    let mut process = process.into_iter();
    let mut outcome = outcome.into_iter();
    let rewards = |thoughts: usize| Rewards {
        process: process.by_ref().take(thoughts).collect(),
        outcome: outcome.next(),
    };
    let rewards = scored.iter().map(|row| row.thoughts.len()).map(rewards).collect();
    Ok(ScoreOutput { rewards, state: ScorerState::new(hidden), rows, prefixes })
}

/// A prompt and thoughts that the reward model has scored, or scores in the current pass.
#[derive(Clone)]
pub(crate) struct ScoredPath {
    pub(crate) sequence: Sequence,
    /// Index of the output at its last thought, or at its prefix if it has none.
    last_thought: usize,
}

impl ScoredPath {
    /// A path that shares all positions so far.
    pub(crate) fn fork(&self) -> Self {
        Self { sequence: self.sequence.fork(), ..*self }
    }
}

/// The answers at the end of a forward pass.
#[derive(Default)]
struct AnswerLayout {
    tokens: Vec<u32>,
    /// Per sequence: index of the output before its answer, and of the one at its end.
    before: Vec<usize>,
    at: Vec<usize>,
    /// Number of outputs of the pass so far.
    outputs: usize,
}

impl AnswerLayout {
    /// Appends end tokens and answers to the sequences, up to the reward model's context length.
    fn extend(
        mut self,
        context: usize,
        cache: &mut Cache,
        pass: &mut Pass,
        rows: &mut [ScoredPath],
        batch: AnswerBatch<'_>,
    ) -> Self {
        for (row, answer) in rows.iter_mut().zip(batch.answers) {
            let room = context.saturating_sub(row.sequence.len() + batch.end_latent.len());
            let answer = &answer[..answer.len().min(room)];
            let mut last = row.last_thought;
            for (part, place) in [(batch.end_latent, &mut self.before), (answer, &mut self.at)] {
                for (i, &token) in part.iter().enumerate() {
                    let is_last = i + 1 == part.len();
                    pass.push(cache, &mut row.sequence, is_last);
                    self.tokens.push(token);
                    if is_last {
                        last = self.outputs;
                        self.outputs += 1;
                    }
                }
                place.push(last);
            }
        }
        self
    }

    /// The outcome rewards from the outputs of all passes: (outputs, width) when concatenated.
    fn rewards(
        &self,
        device: &Device,
        head: &RewardHead,
        hidden: &[Tensor],
        rows: &[ScoredPath],
    ) -> Result<Vec<f32>, DeviceError> {
        let last: Vec<usize> = rows.iter().map(|row| row.last_thought).collect();
        let at = |outputs: &[usize]| ops::select(device, hidden, outputs);
        let before = at(&self.before)?;
        let end = at(&self.at)?;
        let last = at(&last)?;
        head.rewards(device, RewardInputs { before: &before, at: &end, thoughts: &last })
    }
}

/// The start of a forward pass: prompts with their reference traces. The hidden state at the last
/// position of each is an output.
struct ScorerPrefix {
    pass: Pass,
    x: Tensor,
    sequences: Vec<Sequence>,
}

impl ScorerPrefix {
    fn new(
        reward_model: &RewardModel,
        cache: &mut Cache,
        prompts: &[&Prompt],
        trace: Option<&ReferenceTrace>,
    ) -> Result<Self, DeviceError> {
        let mut pass = Pass::default();
        let mut vectors = Vec::new();
        let tokens: Vec<u32> = prompts.iter().flat_map(|prompt| &prompt.tokens).copied().collect();
        let mut sequences = vec![Sequence::default(); prompts.len()];
        let mut token = 0;
        let mut thought = tokens.len();
        for (i, (prompt, sequence)) in prompts.iter().zip(&mut sequences).enumerate() {
            let length = prompt.tokens.len();
            let traced = trace.map_or(0, |t| t.lengths[i]);
            vectors.extend(token..token + length);
            vectors.extend(thought..thought + traced);
            (token, thought) = (token + length, thought + traced);
            let count = length + traced;
            (1..=count).for_each(|n| pass.push(cache, sequence, n == count));
        }
        let device = reward_model.decoder.device();
        let embedded = reward_model.decoder.embed(&tokens)?;
        let x = match trace {
            Some(trace) => ops::select(device, [&embedded, &trace.thoughts], &vectors)?,
            None => embedded,
        };
        Ok(Self { pass, x, sequences })
    }
}

/// The reward model's state after some paths.
#[derive(Default)]
pub(crate) struct ScorerState {
    /// Hidden states at the last position of every scored path, pass after pass: (paths, width)
    /// when concatenated.
    hidden: Vec<Tensor>,
    outputs: usize,
}

impl ScorerState {
    fn new(hidden: Tensor) -> Self {
        Self { outputs: hidden.rows(), hidden: vec![hidden] }
    }

    /// Whether no path was scored.
    pub(crate) fn is_empty(&self) -> bool {
        self.outputs == 0
    }

    /// The state restricted to some paths, with their forks.
    pub(crate) fn select<'p>(
        &self,
        device: &Device,
        paths: impl Iterator<Item = &'p ScoredPath>,
    ) -> Result<(Self, Vec<ScoredPath>), DeviceError> {
        let mut forks = Vec::new();
        let mut outputs = Vec::new();
        for (i, path) in paths.enumerate() {
            forks.push(ScoredPath { sequence: path.sequence.fork(), last_thought: i });
            outputs.push(path.last_thought);
        }
        Ok((Self::new(ops::select(device, &self.hidden, &outputs)?), forks))
    }

    /// Runs the prompts with their reference traces, one path each.
    pub(crate) fn prefill(
        reward_model: &RewardModel,
        cache: &mut Cache,
        prompts: &[&Prompt],
        trace: Option<&ReferenceTrace>,
    ) -> Result<(Self, Vec<ScoredPath>), DeviceError> {
        let ScorerPrefix { pass, x, sequences } =
            ScorerPrefix::new(reward_model, cache, prompts, trace)?;
        let hidden = reward_model.decoder.forward(cache, &pass, x, None)?;
        let paths = sequences.into_iter().enumerate();
        let paths = paths.map(|(i, sequence)| ScoredPath { sequence, last_thought: i }).collect();
        Ok((Self::new(hidden), paths))
    }

    /// Scores one more thought of each path, thoughts (paths, width), and returns their process
    /// rewards.
    pub(crate) fn score_thoughts<'p>(
        &mut self,
        reward_model: &RewardModel,
        cache: &mut Cache,
        paths: impl Iterator<Item = &'p mut ScoredPath>,
        thoughts: &Tensor,
    ) -> Result<Vec<f32>, DeviceError> {
        let device = reward_model.decoder.device();
        let mut pass = Pass::default();
        let mut before = Vec::new();
        for (path, output) in paths.zip(self.outputs..) {
            pass.push(cache, &mut path.sequence, true);
            before.push(std::mem::replace(&mut path.last_thought, output));
        }
        let hidden = reward_model.decoder.forward(cache, &pass, thoughts.clone(), None)?;
        let before = ops::select(device, &self.hidden, &before)?;
        let inputs = RewardInputs { before: &before, at: &hidden, thoughts };
        let rewards = reward_model.head.rewards(device, inputs)?;
        self.outputs += hidden.rows();
        self.hidden.push(hidden);
        Ok(rewards)
    }

    /// Scores the answers of some paths in one forward pass and returns their outcome rewards;
    /// empty if the reward model does not score answers.
    pub(crate) fn score_answers(
        mut self,
        reward_model: &RewardModel,
        cache: &mut Cache,
        paths: &mut [ScoredPath],
        answers: AnswerBatch<'_>,
    ) -> Result<Vec<f32>, DeviceError> {
        let Some(head) = &reward_model.outcome_head else { return Ok(Vec::new()) };
        let decoder = &reward_model.decoder;
        let mut pass = Pass::default();
        let answers = AnswerLayout { outputs: self.outputs, ..AnswerLayout::default() }.extend(
            decoder.config().context,
            cache,
            &mut pass,
            paths,
            answers,
        );
        let x = decoder.embed(&answers.tokens)?;
        self.hidden.push(decoder.forward(cache, &pass, x, None)?);
        answers.rewards(decoder.device(), head, &self.hidden, paths)
    }
}
