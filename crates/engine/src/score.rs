//! The reward model reads each row's thoughts: r_t at thought t's own position.

use model::{Cache, Pass, Sequence};
use tensor::{DeviceError, ops};

use crate::prompt::Prompt;
use crate::reasoner::RewardModel;
use crate::think::Thoughts;

/// Step rewards of every row. The prompt is passed once a question; all thoughts go in one pass after it.
pub(crate) fn score(
    judge: &RewardModel,
    cache: &mut Cache,
    prompts: &[&Prompt],
    thoughts: &Thoughts,
) -> Result<Vec<Vec<f32>>, DeviceError> {
    let device = judge.decoder.device();
    let (mut pass, mut tokens, mut picked) = (Pass::default(), Vec::new(), Vec::new());
    let mut prefixes = vec![Sequence::default(); prompts.len()];
    for (prompt, prefix) in prompts.iter().zip(&mut prefixes) {
        prompt.tokens.iter().for_each(|_| pass.push(cache, prefix, false));
        tokens.extend(&prompt.tokens);
    }
    for row in &thoughts.rows {
        let mut sequence = prefixes[row.start.prompt].fork();
        row.thoughts.iter().for_each(|_| pass.push(cache, &mut sequence, true));
        picked.extend(&row.thoughts);
    }
    let x = ops::concat(device, &[&judge.decoder.embed(&tokens)?, &ops::select(device, &thoughts.all, &picked)?])?;
    let hidden = judge.decoder.forward(cache, &pass, x, None)?;
    let mut rewards = judge.head.rewards(device, &hidden)?.into_iter();
    Ok(thoughts.rows.iter().map(|row| rewards.by_ref().take(row.thoughts.len()).collect()).collect())
}
