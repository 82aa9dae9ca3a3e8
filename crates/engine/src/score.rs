//! The reward model reads each row's thoughts: r_t at thought t's own position.

use model::{Cache, Pass, Sequence};
use tensor::Tensor;

use crate::prompt::Prompt;
use crate::reasoner::RewardModel;
use crate::think::Row;

/// Step rewards of every row. The prompt is passed once a question; all thoughts go in one pass after it.
pub(crate) fn score(judge: &RewardModel, cache: &mut Cache, prompts: &[&Prompt], rows: &[Row]) -> Vec<Vec<f32>> {
    let width = judge.decoder.config().width;
    let (mut pass, mut x) = (Pass::default(), Tensor::zeros(0, width));
    let mut prefixes = vec![Sequence::default(); prompts.len()];
    let mut vector = vec![0.0; width];
    for (prompt, prefix) in prompts.iter().zip(&mut prefixes) {
        for &token in &prompt.tokens {
            pass.push(cache, prefix, false);
            judge.decoder.embed(token, &mut vector);
            x.push(&vector);
        }
    }
    for row in rows {
        let mut sequence = prefixes[row.start.prompt].fork();
        for t in 0..row.thoughts.rows() {
            pass.push(cache, &mut sequence, true);
            x.push(row.thoughts.row(t));
        }
    }
    let hidden = judge.decoder.forward(cache, &pass, &x, None);
    let mut rewards = judge.head.rewards(judge.decoder.device(), &hidden).into_iter();
    rows.iter().map(|row| rewards.by_ref().take(row.thoughts.rows()).collect()).collect()
}
