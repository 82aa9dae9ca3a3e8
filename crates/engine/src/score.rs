//! The reward model reads thoughts: r_t at thought t's own position.
//!
//! Finished rows are read in one pass ([`score`]); [`Readings`] reads paths thought by thought, as a search makes them. Both
//! pass a prompt once a question and fork it for its paths, and both give the same rewards.

use model::{Cache, Judged, Pass, Sequence};
use tensor::{DeviceError, Tensor, ops};

use crate::prompt::Prompt;
use crate::reasoner::RewardModel;
use crate::think::Thoughts;

/// Step rewards of every row. The prompt is passed once a question; all thoughts go in one pass with it.
pub(crate) fn score(
    judge: &RewardModel,
    cache: &mut Cache,
    prompts: &[&Prompt],
    thoughts: &Thoughts,
) -> Result<Vec<Vec<f32>>, DeviceError> {
    let device = judge.decoder.device();
    let Prompted { mut pass, tokens, sequences } = Prompted::new(cache, prompts);
    let (mut picked, mut before) = (Vec::new(), Vec::new());
    for row in &thoughts.rows {
        let mut sequence = sequences[row.start.prompt].fork();
        for (t, &thought) in row.thoughts.iter().enumerate() {
            // Hidden states come in the order of positions: the prompts' last, then all thoughts.
            before.push(if t == 0 { row.start.prompt } else { prompts.len() + picked.len() - 1 });
            pass.push(cache, &mut sequence, true);
            picked.push(thought);
        }
    }
    if picked.is_empty() {
        return Ok(vec![Vec::new(); thoughts.rows.len()]);
    }
    let read = ops::select(device, &thoughts.all, &picked)?;
    let x = ops::concat(device, &[&judge.decoder.embed(&tokens)?, &read])?;
    let hidden = judge.decoder.forward(cache, &pass, x, None)?;
    let at: Vec<usize> = (prompts.len()..hidden.rows()).collect();
    let (before, at) = (ops::select(device, &hidden, &before)?, ops::select(device, &hidden, &at)?);
    let rewards = judge.head.rewards(device, Judged { before: &before, at: &at, thoughts: &read })?;
    let mut rewards = rewards.into_iter();
    Ok(thoughts.rows.iter().map(|row| rewards.by_ref().take(row.thoughts.len()).collect()).collect())
}

/// Prompts at the beginning of a pass; the hidden state at each one's last token is wanted.
struct Prompted {
    pass: Pass,
    tokens: Vec<u32>,
    sequences: Vec<Sequence>,
}

impl Prompted {
    fn new(cache: &mut Cache, prompts: &[&Prompt]) -> Self {
        let (mut pass, mut tokens) = (Pass::default(), Vec::new());
        let mut sequences = vec![Sequence::default(); prompts.len()];
        for (prompt, sequence) in prompts.iter().zip(&mut sequences) {
            let last = prompt.tokens.len() - 1;
            (0..=last).for_each(|i| pass.push(cache, sequence, i == last));
            tokens.extend(&prompt.tokens);
        }
        Self { pass, tokens, sequences }
    }
}

/// What a judge has read of some paths.
pub(crate) struct Readings {
    sequences: Vec<Sequence>,
    hidden: Tensor, // (paths, width): at each path's last position
}

impl Readings {
    /// The prompts, a path each.
    pub(crate) fn of_prompts(judge: &RewardModel, cache: &mut Cache, prompts: &[&Prompt]) -> Result<Self, DeviceError> {
        let Prompted { pass, tokens, sequences } = Prompted::new(cache, prompts);
        let hidden = judge.decoder.forward(cache, &pass, judge.decoder.embed(&tokens)?, None)?;
        Ok(Self { sequences, hidden })
    }

    /// Reads one more thought on forks of the paths `of`: thoughts (forks, width). Returns the forks and the thoughts' rewards.
    pub(crate) fn read(
        &self,
        judge: &RewardModel,
        cache: &mut Cache,
        of: &[usize],
        thoughts: &Tensor,
    ) -> Result<(Self, Vec<f32>), DeviceError> {
        let device = judge.decoder.device();
        let mut sequences: Vec<Sequence> = of.iter().map(|&path| self.sequences[path].fork()).collect();
        let mut pass = Pass::default();
        sequences.iter_mut().for_each(|sequence| pass.push(cache, sequence, true));
        let hidden = judge.decoder.forward(cache, &pass, thoughts.clone(), None)?;
        let before = ops::select(device, &self.hidden, of)?;
        let rewards = judge.head.rewards(device, Judged { before: &before, at: &hidden, thoughts })?;
        Ok((Self { sequences, hidden }, rewards))
    }

    /// Only the paths `kept`, in that order; the slots of the others' last thoughts are given back.
    pub(crate) fn keep(self, judge: &RewardModel, cache: &mut Cache, kept: &[usize]) -> Result<Self, DeviceError> {
        let hidden = ops::select(judge.decoder.device(), &self.hidden, kept)?;
        let mut others: Vec<Option<Sequence>> = self.sequences.into_iter().map(Some).collect();
        let sequences = kept.iter().filter_map(|&path| others[path].take()).collect();
        others.into_iter().flatten().for_each(|sequence| cache.give_back_last(sequence));
        Ok(Self { sequences, hidden })
    }
}
