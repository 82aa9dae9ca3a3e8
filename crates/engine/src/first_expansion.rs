//! The first step of beam searches, taken from the batch that sampled the trajectories.
//!
//! Extension j of a question's empty path equals trajectory j up to its first thought. If one batch
//! contains all of them, its caches contain their keys and values, and the question's search starts
//! from these ([`crate::beam_search`]). They are valid until the caches are cleared.

use std::ops::Range;

use model::{Cache, CacheMark, Sequence};
use tensor::{Device, DeviceError};

use crate::executor::{SequenceState, ThoughtRef};
use crate::score::{ScoreOutput, ScoredPath, ScorerState};

/// The first extensions of some questions.
pub(crate) struct FirstExpansion {
    /// Each question, as an index into the plan's items, and the range of its extensions.
    questions: Vec<(usize, Range<usize>)>,
    extensions: Vec<FirstExtension>,
    scorer: ScorerState,
    cache: CacheMark,
    reward_cache: CacheMark,
}

/// A trajectory up to its first thought, which has not been fed yet.
pub(crate) struct FirstExtension {
    pub(crate) kv: Sequence,
    /// `None` if the trajectory ended without a thought.
    pub(crate) thought: Option<FirstThought>,
    scored: ScoredPath,
}

/// The first thought of an extension.
#[derive(Clone)]
pub(crate) struct FirstThought {
    pub(crate) thought: ThoughtRef,
    pub(crate) reward: f32,
}

/// The first extensions of the questions of one search.
pub(crate) struct SearchStart<'a> {
    /// Ordered by question.
    pub(crate) extensions: Vec<&'a FirstExtension>,
    /// The reward model's state for each extension.
    pub(crate) scored: Vec<ScoredPath>,
    pub(crate) scorer: ScorerState,
}

/// A question whose first extensions are among the sequences of a batch.
pub(crate) struct SearchedQuestion {
    /// Index into the plan's items.
    pub(crate) question: usize,
    pub(crate) prompt_len: usize,
    /// The range of its extensions among the batch's sequences.
    pub(crate) rows: Range<usize>,
}

/// A finished batch.
pub(crate) struct FinishedBatch<'a> {
    pub(crate) sequences: &'a [SequenceState],
    pub(crate) scores: &'a ScoreOutput,
    pub(crate) cache: &'a Cache,
    pub(crate) reward_cache: &'a Cache,
}

impl FinishedBatch<'_> {
    /// The first expansions of some questions; `None` if there are none, or if the reward model has
    /// scored nothing.
    pub(crate) fn first_expansion(
        &self,
        device: &Device,
        questions: &[SearchedQuestion],
    ) -> Result<Option<FirstExpansion>, DeviceError> {
        if questions.is_empty() || self.scores.state.is_empty() {
            return Ok(None);
        }
        let rows = questions.iter().flat_map(|of| of.rows.clone());
        let at_first: Vec<ScoredPath> = rows.map(|row| self.scores.at_first_thought(row)).collect();
        let (scorer, scored) = self.scores.state.select(device, at_first.iter())?;
        let mut extensions = Vec::new();
        let mut ranges = Vec::new();
        let mut scored = scored.into_iter();
        for SearchedQuestion { question, prompt_len, rows } in questions {
            let start = extensions.len();
            for (row, scored) in rows.clone().zip(scored.by_ref()) {
                let SequenceState { kv, thoughts, .. } = &self.sequences[row];
                let reward = self.scores.rewards[row].process.first();
                let thought = thoughts.first().zip(reward);
                let thought = thought
                    .map(|(thought, &reward)| FirstThought { thought: thought.clone(), reward });
                extensions.push(FirstExtension { kv: kv.fork_at(*prompt_len), thought, scored });
            }
            ranges.push((*question, start..extensions.len()));
        }
        Ok(Some(FirstExpansion {
            questions: ranges,
            extensions,
            scorer,
            cache: self.cache.mark(),
            reward_cache: self.reward_cache.mark(),
        }))
    }
}

impl FirstExpansion {
    /// Whether it contains all of these questions.
    pub(crate) fn holds(&self, questions: &[usize]) -> bool {
        questions.iter().all(|&question| self.extensions_of(question).is_some())
    }

    fn extensions_of(&self, question: usize) -> Option<&[FirstExtension]> {
        let (_, range) = self.questions.iter().find(|(of, _)| *of == question)?;
        Some(&self.extensions[range.clone()])
    }

    /// Prepares a search of these questions. The slots of an earlier search are freed.
    pub(crate) fn start(
        &self,
        device: &Device,
        questions: &[usize],
        cache: &mut Cache,
        reward_cache: &mut Cache,
    ) -> Result<SearchStart<'_>, DeviceError> {
        cache.rewind(self.cache);
        reward_cache.rewind(self.reward_cache);
        let extensions: Vec<&FirstExtension> = questions
            .iter()
            .flat_map(|&question: &usize| self.extensions_of(question).unwrap_or_default())
            .collect();
        let paths = extensions.iter().map(|extension| &extension.scored);
        let (scorer, scored) = self.scorer.select(device, paths)?;
        Ok(SearchStart { extensions, scored, scorer })
    }
}
