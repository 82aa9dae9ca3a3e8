//! The reward model reads: r_t at thought t's own position, and, if it is one that reads answers, a
//! verdict at the answer's end.
//!
//! Finished rows are read in one pass ([`score`]); [`Readings`] reads paths thought by thought, as
//! a search makes them. Both pass a prompt once a question and fork it for its paths, and both give
//! the same rewards. What the judge itself thinks about the question stands between the prompt and
//! the thoughts.

use model::{Cache, Pass, RewardInputs, Sequence};
use tensor::{DeviceError, Tensor, ops};

use crate::decode::AnswerTokens;
use crate::prompt::Prompt;
use crate::reasoner::RewardModel;
use crate::reference_trace::ReferenceTrace;
use crate::think::ThoughtBatch;

/// What a judge says of a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewards {
    /// The reward of each thought.
    pub process: Vec<f32>,
    /// The reward of the answer.
    pub outcome: Option<f32>,
}

/// What rows said after their thoughts.
#[derive(Clone, Copy, Debug)]
pub struct AnswerBatch<'a> {
    /// The tokens that end thinking.
    pub end_latent: &'a [u32],
    /// Each row's answer.
    pub answers: &'a [AnswerTokens],
}

/// Reads every row; answers only if they are given and the judge reads answers. The prompt is
/// passed once a question, all in one pass.
pub(crate) fn score(
    judge: &RewardModel,
    cache: &mut Cache,
    (prompts, own): (&[&Prompt], Option<&ReferenceTrace>),
    thoughts: &ThoughtBatch,
    said: Option<AnswerBatch<'_>>,
) -> Result<Vec<Rewards>, DeviceError> {
    let device = judge.decoder.device();
    let ScorerPrefix { mut pass, x, sequences } = ScorerPrefix::new(judge, cache, prompts, own)?;
    let (mut picked, mut before, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for row in &thoughts.rows {
        let mut sequence = sequences[row.spec.prompt].fork();
        let mut last = row.spec.prompt; // hidden states come in the order of positions: the beginnings' last, then all thoughts
        for &thought in &row.thoughts {
            before.push(std::mem::replace(&mut last, prompts.len() + picked.len()));
            pass.push(cache, &mut sequence, true);
            picked.push(thought);
        }
        rows.push(ScoredRow { sequence, thought: last });
    }
    let answers = said.filter(|_| judge.outcome_head.is_some());
    let answers = answers.map(|said| {
        AnswerLayout::new(judge, cache, &mut pass, &mut rows, (said, prompts.len() + picked.len()))
    });
    if picked.is_empty() && answers.is_none() {
        return Ok(vec![Rewards::default(); thoughts.rows.len()]);
    }
    let read =
        if picked.is_empty() { None } else { Some(ops::select(device, &thoughts.steps, &picked)?) };
    let spoken =
        answers.as_ref().map(|answers| judge.decoder.embed(&answers.tokens)).transpose()?;
    let parts: Vec<&Tensor> = [&x].into_iter().chain(&read).chain(&spoken).collect();
    let hidden = judge.decoder.forward(cache, &pass, ops::concat(device, &parts)?, None)?;
    let at: Vec<usize> = (prompts.len()..prompts.len() + picked.len()).collect();
    let rewards = match &read {
        None => Vec::new(),
        Some(thoughts) => {
            let (before, at) =
                (ops::select(device, [&hidden], &before)?, ops::select(device, [&hidden], &at)?);
            judge.head.rewards(device, RewardInputs { before: &before, at: &at, thoughts })?
        }
    };
    let verdicts = match (&judge.outcome_head, answers) {
        (Some(head), Some(AnswerLayout { at, before, .. })) => {
            let last: Vec<usize> = rows.iter().map(|row| row.thought).collect();
            let of = |places: &[usize]| ops::select(device, [&hidden], places);
            head.rewards(
                device,
                RewardInputs { before: &of(&before)?, at: &of(&at)?, thoughts: &of(&last)? },
            )?
        }
        _ => Vec::new(),
    };
    let (mut rewards, mut verdicts) = (rewards.into_iter(), verdicts.into_iter());
    let reading = |count: usize| Rewards {
        process: rewards.by_ref().take(count).collect(),
        outcome: verdicts.next(),
    };
    Ok(thoughts.rows.iter().map(|row| row.thoughts.len()).map(reading).collect())
}

/// A row whose thoughts are in the pass.
struct ScoredRow {
    sequence: Sequence,
    thought: usize, // the hidden state at its last thought, or where it began without any
}

/// Answers at the end of a pass.
struct AnswerLayout {
    tokens: Vec<u32>,
    before: Vec<usize>, // per row: the hidden state before its answer
    at: Vec<usize>,     // and at its end
}

impl AnswerLayout {
    /// Puts end tokens and answers behind the rows' thoughts, as far as the judge's context goes;
    /// `wanted` hidden states come before.
    fn new(
        judge: &RewardModel,
        cache: &mut Cache,
        pass: &mut Pass,
        rows: &mut [ScoredRow],
        (said, mut wanted): (AnswerBatch<'_>, usize),
    ) -> Self {
        let (mut tokens, mut before, mut at) = (Vec::new(), Vec::new(), Vec::new());
        for (row, answer) in rows.iter_mut().zip(said.answers) {
            let room = judge
                .decoder
                .config()
                .context
                .saturating_sub(row.sequence.len() + said.end_latent.len());
            let answer = &answer[..answer.len().min(room)];
            let mut last = row.thought;
            for (part, place) in [(said.end_latent, &mut before), (answer, &mut at)] {
                for (i, &token) in part.iter().enumerate() {
                    let is_last = i + 1 == part.len();
                    pass.push(cache, &mut row.sequence, is_last);
                    tokens.push(token);
                    if is_last {
                        last = wanted;
                        wanted += 1;
                    }
                }
                place.push(last);
            }
        }
        Self { tokens, before, at }
    }
}

/// The beginning of a pass: prompts, and what the judge itself thinks about them. The hidden state
/// at each one's last position is wanted.
struct ScorerPrefix {
    pass: Pass,
    x: Tensor,
    sequences: Vec<Sequence>,
}

impl ScorerPrefix {
    fn new(
        judge: &RewardModel,
        cache: &mut Cache,
        prompts: &[&Prompt],
        own: Option<&ReferenceTrace>,
    ) -> Result<Self, DeviceError> {
        let (mut pass, mut vectors) = (Pass::default(), Vec::new());
        let tokens: Vec<u32> = prompts.iter().flat_map(|prompt| &prompt.tokens).copied().collect();
        let mut sequences = vec![Sequence::default(); prompts.len()];
        let (mut token, mut thought) = (0, tokens.len());
        for (i, (prompt, sequence)) in prompts.iter().zip(&mut sequences).enumerate() {
            let own = own.map_or(0, |own| own.lengths[i]);
            vectors.extend(token..token + prompt.tokens.len());
            vectors.extend(thought..thought + own);
            (token, thought) = (token + prompt.tokens.len(), thought + own);
            let count = prompt.tokens.len() + own;
            (1..=count).for_each(|n| pass.push(cache, sequence, n == count));
        }
        let device = judge.decoder.device();
        let embedded = judge.decoder.embed(&tokens)?;
        let x = match own {
            Some(own) => ops::select(device, [&embedded, &own.thoughts], &vectors)?,
            None => embedded,
        };
        Ok(Self { pass, x, sequences })
    }
}

/// What a judge has read of some paths.
pub(crate) struct ScorerState {
    sequences: Vec<Sequence>,
    hidden: Tensor, // (paths, width): at each path's last position
}

impl ScorerState {
    /// The prompts with the judge's own thoughts about them, a path each.
    pub(crate) fn prefill(
        judge: &RewardModel,
        cache: &mut Cache,
        prompts: &[&Prompt],
        own: Option<&ReferenceTrace>,
    ) -> Result<Self, DeviceError> {
        let ScorerPrefix { pass, x, sequences } = ScorerPrefix::new(judge, cache, prompts, own)?;
        let hidden = judge.decoder.forward(cache, &pass, x, None)?;
        Ok(Self { sequences, hidden })
    }

    /// Reads one more thought on forks of the paths `of`: thoughts (forks, width). Returns the
    /// forks and the thoughts' rewards.
    pub(crate) fn score_thoughts(
        &self,
        judge: &RewardModel,
        cache: &mut Cache,
        of: &[usize],
        thoughts: &Tensor,
    ) -> Result<(Self, Vec<f32>), DeviceError> {
        let device = judge.decoder.device();
        let mut sequences: Vec<Sequence> =
            of.iter().map(|&path| self.sequences[path].fork()).collect();
        let mut pass = Pass::default();
        sequences.iter_mut().for_each(|sequence| pass.push(cache, sequence, true));
        let hidden = judge.decoder.forward(cache, &pass, thoughts.clone(), None)?;
        let before = ops::select(device, [&self.hidden], of)?;
        let rewards =
            judge.head.rewards(device, RewardInputs { before: &before, at: &hidden, thoughts })?;
        Ok((Self { sequences, hidden }, rewards))
    }

    /// Only the paths `kept`, in that order; the slots of the others' last thoughts are given back.
    pub(crate) fn retain(
        self,
        judge: &RewardModel,
        cache: &mut Cache,
        kept: &[usize],
    ) -> Result<Self, DeviceError> {
        let hidden = ops::select(judge.decoder.device(), [&self.hidden], kept)?;
        let mut others: Vec<Option<Sequence>> = self.sequences.into_iter().map(Some).collect();
        let sequences = kept.iter().filter_map(|&path| others[path].take()).collect();
        others.into_iter().flatten().for_each(|sequence| cache.release_last(sequence));
        Ok(Self { sequences, hidden })
    }
}
