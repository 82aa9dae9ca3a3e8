//! Checks that a reference dump fits its models. Mismatches would otherwise reach the kernels as
//! out-of-bounds indices.

use model::Config;

use super::failure::{Context, Result};
use super::golden::GoldenDump;

/// The sizes of a model, against which a dump is checked.
#[derive(Clone, Copy)]
pub(super) struct ModelLimits<'a>(pub(super) &'a Config);

impl ModelLimits<'_> {
    /// Checks token ids of `what`, and that the model has enough positions.
    pub(super) fn check_tokens<'t>(
        self,
        what: &str,
        parts: impl IntoIterator<Item = &'t [u32]>,
        more: usize,
    ) -> Result<()> {
        let Config { vocab, context, .. } = *self.0;
        let mut positions = more;
        for tokens in parts {
            positions = positions.saturating_add(tokens.len());
            let unknown = tokens.iter().find(|token| **token as usize >= vocab);
            ensure!(
                unknown.is_none(),
                "{what} has the token {}, the model has {vocab}; regenerate the dump",
                unknown.copied().unwrap_or_default()
            );
        }
        ensure!(
            positions <= context,
            "{what} takes {positions} positions, the model has {context}; regenerate the dump"
        );
        Ok(())
    }

    /// Checks the width of thoughts.
    pub(super) fn check_width(self, what: &str, width: usize) -> Result<()> {
        ensure!(
            width == self.0.width,
            "{what} has width {width}, the model has {}; regenerate the dump",
            self.0.width
        );
        Ok(())
    }
}

/// Checks the inputs of the reasoner's inference and training checks.
pub(super) fn check_reasoner(golden: &GoldenDump, config: &Config) -> Result<()> {
    let (limits, meta) = (ModelLimits(config), &golden.meta);
    let thoughts = meta.latents_exactly.or(meta.latents_at_most).unwrap_or(0);
    let answer = meta.max_new_tokens.saturating_add(thoughts);
    for (i, question) in meta.questions.iter().enumerate() {
        let parts = [&question.prompt_ids[..], &meta.end_ids[..]];
        limits.check_tokens(&format!("question {i}"), parts, answer)?;
        ensure!(!question.prompt_ids.is_empty(), "question {i} has no prompt");
        let [steps, layers, _, positions, width] = golden.recording(i)?.shape;
        let recorded = if meta.loops.is_some() { positions } else { steps };
        limits.check_width(&format!("`{i}.keep`"), width)?;
        ensure!(
            layers == config.layers && recorded >= thoughts,
            "`{i}.keep` has masks of {layers} layers and {recorded} thoughts, but the model has {} \
             layers and the run {thoughts} thoughts; regenerate the dump",
            config.layers
        );
        ensure!(
            meta.loops.is_none_or(|loops| loops == steps && config.defaults.loops == Some(loops)),
            "`{i}.keep` has masks of {steps} loops, golden.json {:?}, and the model {:?}",
            meta.loops,
            config.defaults.loops
        );
    }
    let Some(training) = &meta.training else { return Ok(()) };
    for (i, item) in training.items.iter().enumerate() {
        let steps = item.step_ids.concat();
        let parts = [&item.prompt_ids[..], &meta.end_ids[..], &item.target_ids[..], &steps[..]];
        limits.check_tokens(&format!("training item {i}"), parts, training.latents)?;
        ensure!(
            !item.prompt_ids.is_empty() && !item.target_ids.is_empty(),
            "training item {i} has no prompt or no target"
        );
    }
    Ok(())
}

/// Checks the inputs of the reward model's checks.
pub(super) fn check_reward_model(golden: &GoldenDump, config: &Config) -> Result<()> {
    let limits = ModelLimits(config);
    for (i, question) in golden.meta.questions.iter().enumerate() {
        let latents = golden.tensor(&format!("rm.latents.{i}"))?;
        let &[_, thoughts, width] = &latents.shape[..] else {
            bail!("`rm.latents.{i}` must have shape (rows, thoughts, width)")
        };
        limits.check_width(&format!("`rm.latents.{i}`"), width)?;
        let what = format!("question {i} of the reward model");
        limits.check_tokens(&what, [&question.prompt_ids[..]], thoughts)?;
    }
    golden.tensor("rm.scores").map(drop).context("the reward model")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn tokens_positions_and_widths_beyond_the_model_are_refused() {
        let json = r#"{"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1,
            "vocab_size": 10, "n_positions": 6}"#;
        let config = Config::parse(Path::new("config.json"), json).unwrap();
        let limits = ModelLimits(&config);
        let check = |parts: &[&[u32]], more| limits.check_tokens("it", parts.iter().copied(), more);
        assert!(check(&[&[9, 0], &[1]], 3).is_ok());
        let message = |result: Result<()>| result.unwrap_err().to_string();
        assert!(message(check(&[&[9], &[10]], 0)).contains("the token 10, the model has 10"));
        assert!(message(check(&[&[9, 0], &[1]], 4)).contains("7 positions, the model has 6"));
        assert!(message(check(&[&[1]], usize::MAX)).contains("positions"));
        assert!(limits.check_width("it", 8).is_ok());
        assert!(message(limits.check_width("it", 9)).contains("width 9, the model has 8"));
    }
}
