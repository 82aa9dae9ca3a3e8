//! Which rows run together: as many as the memory budget holds, in the order of the questions.
//!
//! A trajectory does not depend on its company, so the plan changes speed and memory and nothing
//! else. A question whose rows do not fit at once is split; its prompt is then computed once for
//! each part.

use std::ops::Range;

use model::{Cache, Config, Decoder};

use crate::error::EngineError;
use crate::prompt::Prompt;
use crate::reasoner::{LatentModel, RewardModel};
use crate::streams;
use crate::wave::BatchContext;

/// Some rows of one question. The first one is the deterministic one, if that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowRange {
    /// Index of the question in the list.
    pub(crate) question: usize,
    /// Its rows in this wave.
    pub(crate) rows: Range<usize>,
}

impl RowRange {
    /// The same rows of each of some questions.
    pub(crate) fn for_each_question(
        questions: impl IntoIterator<Item = usize>,
        rows: &Range<usize>,
    ) -> Vec<Self> {
        questions.into_iter().map(|question| Self { question, rows: rows.clone() }).collect()
    }
}

/// What one row, one prompt and the whole wave may take.
pub(crate) struct BatchPlan<'a> {
    prompts: &'a [Prompt],
    streams: usize,         // in which waves run at the same time
    stream_min_rows: usize, // rows from which on there are several
    max_rows: usize,        // of a wave: beyond, speed does not grow
    budget: usize,          // of a lane
    private_prompt: bool,
    row_slots: usize, // slots of one row beside the prompt
    reward_memory: RewardMemory,
    position_bytes: usize, // bytes of a reasoner's position
    beam_memory: Option<BeamMemory>,
}

/// What a reward model takes; nothing where there is none.
#[derive(Clone, Copy, Default)]
struct RewardMemory {
    position_bytes: usize,           // bytes of a position
    reference_thoughts: usize,       // positions of its own thoughts behind a prompt
    row_slots: usize,                // slots of a row
    reference_position_bytes: usize, // bytes of a position of the mind that reflects
}

impl RewardMemory {
    fn of(judge: &RewardModel, thoughts: usize, said: usize) -> Self {
        let bytes =
            |decoder: &Decoder| Cache::bytes_per_position(decoder.device(), decoder.config());
        Self {
            position_bytes: bytes(&judge.decoder),
            reference_thoughts: judge.reference_thoughts(),
            row_slots: Cache::slots_for(judge.positions_read(thoughts, said)),
            reference_position_bytes: judge
                .reference
                .as_ref()
                .map_or(0, |mind| bytes(&mind.decoder)),
        }
    }

    /// Slots that a prompt of so many tokens takes, the thoughts about it included.
    fn shared(self, prompt: usize) -> usize {
        if self.position_bytes == 0 {
            0
        } else {
            Cache::slots_for(prompt + self.reference_thoughts)
        }
    }

    /// Bytes of a prompt.
    fn bytes(self, prompt: usize) -> usize {
        let reflection = Cache::slots_for(prompt) + Cache::slots_for(self.reference_thoughts);
        self.shared(prompt) * self.position_bytes + reflection * self.reference_position_bytes
    }
}

/// What a beam search of one question takes.
struct BeamMemory {
    extensions: usize,
    paths: usize,     // slots of all its paths in either cache
    answer: usize,    // slots of its answers
    finalists: usize, // paths that are decoded
}

impl<'a> BatchPlan<'a> {
    /// The plan, if every question can be thought about.
    pub(crate) fn new(
        party: &BatchContext<'_>,
        prompts: &'a [Prompt],
    ) -> Result<Self, EngineError> {
        let BatchContext { model: mind, reward_model: judge, params: settings, .. } = *party;
        settings.check(&mind.method)?;
        if settings.beam.is_some() && (judge.is_none() || settings.length.limit() == 0) {
            return Err(EngineError::NothingToSearch);
        }
        // More thoughts than the context has positions are refused below, whatever their number.
        let thoughts = settings.length.limit().min(mind.decoder.config().context);
        let answer = row_positions(mind, 0, settings.max_new_tokens.get());
        let finalists =
            settings.beam.zip(judge).map_or(1, |(size, judge)| size.num_finalists(judge));
        let mut plan = Self {
            prompts,
            streams: 1,
            stream_min_rows: streams::min_rows_for_streams(&mind.decoder),
            max_rows: mind.decoder.device().max_batch_rows(),
            budget: settings.memory,
            private_prompt: settings.perturbation.prompt_is_private(),
            row_slots: Cache::slots_for(row_positions(
                mind,
                thoughts,
                settings.max_new_tokens.get(),
            )),
            reward_memory: judge.map_or_else(RewardMemory::default, |judge| {
                RewardMemory::of(judge, thoughts, answer)
            }),
            position_bytes: Cache::bytes_per_position(mind.decoder.device(), mind.decoder.config()),
            beam_memory: settings.beam.map(|size| BeamMemory {
                extensions: size.extensions(),
                // What is tried at one step, what was kept at each, and the best that ended with one that they replace.
                paths: size.extensions() + size.width.get() * thoughts + finalists + 1,
                answer: finalists * Cache::slots_for(answer) + Cache::slots_for(1), // chunks start at whole blocks
                finalists,
            }),
        };
        for prompt in prompts {
            check_context(mind.decoder.config(), prompt, thoughts + mind.method.end_latent.len())?;
            if let Some(judge) = judge {
                prompt.check_tokens(judge.decoder.config().vocab)?;
                check_context(
                    judge.decoder.config(),
                    prompt,
                    judge.reference_thoughts()
                        + judge.positions_read(thoughts, mind.method.end_latent.len()),
                )?;
                if let Some(own) = &judge.reference {
                    prompt.check_tokens(own.decoder.config().vocab)?;
                    check_context(own.decoder.config(), prompt, judge.reference_thoughts())?;
                }
            }
            plan.check_memory(prompt)?;
        }
        // A search takes turns with waves in the caches of a lane, so it has but one.
        if settings.beam.is_none() && prompts.len() * party.rows() >= plan.stream_min_rows {
            plan.split_among_streams(mind.decoder.device().streams());
        }
        Ok(plan)
    }

    /// Shares memory and rows among lanes, if each can then hold a row of every question.
    fn split_among_streams(&mut self, lanes: usize) {
        let most = self
            .prompts
            .iter()
            .map(|prompt| self.bytes(prompt))
            .map(|(shared, row)| shared + row)
            .max();
        if most.unwrap_or(0) <= self.budget / lanes {
            (self.streams, self.max_rows, self.budget) =
                (lanes, self.max_rows / lanes, self.budget / lanes);
        }
    }

    /// Lanes in which waves run at the same time.
    pub(crate) fn streams(&self) -> usize {
        self.streams
    }

    /// Bytes that the caches of a lane may take.
    pub(crate) fn budget(&self) -> usize {
        self.budget
    }

    fn check_memory(&self, prompt: &Prompt) -> Result<(), EngineError> {
        let (id, budget) = (prompt.id, self.budget >> 20);
        let (shared, row) = self.bytes(prompt);
        if shared + row > self.budget {
            return Err(EngineError::Memory { id, need: (shared + row).div_ceil(1 << 20), budget });
        }
        let search = self.search_bytes(self.search_slots(std::slice::from_ref(prompt)));
        if search > self.budget {
            return Err(EngineError::BeamMemory { id, need: search.div_ceil(1 << 20), budget });
        }
        Ok(())
    }

    /// What a question takes once, and what each of its rows takes.
    fn bytes(&self, prompt: &Prompt) -> (usize, usize) {
        let length = Cache::slots_for(prompt.tokens.len());
        let reward = (
            self.reward_memory.bytes(prompt.tokens.len()),
            self.reward_memory.row_slots * self.reward_memory.position_bytes,
        );
        if self.private_prompt {
            (reward.0, (length + self.row_slots) * self.position_bytes + reward.1)
        } else {
            (
                length * self.position_bytes + reward.0,
                self.row_slots * self.position_bytes + reward.1,
            )
        }
    }

    /// The prompts of the run.
    pub(crate) fn prompts(&self) -> &'a [Prompt] {
        self.prompts
    }

    /// Slots of the reasoner's and the reward model's cache that a wave takes at most.
    pub(crate) fn slots(&self, wave: &[RowRange]) -> (usize, usize) {
        let (mut reasoner, mut reward) = (0, 0);
        for share in wave {
            let length = self.prompts[share.question].tokens.len();
            let prompts = if self.private_prompt { share.rows.len() } else { 1 };
            reasoner += prompts * Cache::slots_for(length) + share.rows.len() * self.row_slots;
            reward +=
                self.reward_memory.shared(length) + share.rows.len() * self.reward_memory.row_slots;
        }
        (reasoner, reward)
    }

    /// The same of searches for some prompts.
    pub(crate) fn search_slots(&self, prompts: &[Prompt]) -> (usize, usize) {
        let Some(BeamMemory { extensions, paths, answer, finalists }) = self.beam_memory else {
            return (0, 0);
        };
        let copies = if self.private_prompt { extensions } else { 1 };
        let slots = |prompt: &Prompt| {
            let length = Cache::slots_for(prompt.tokens.len());
            // The judge reads the answers when the search is over, and its cache is empty again.
            (
                copies * length + paths + answer,
                self.reward_memory.shared(prompt.tokens.len())
                    + paths.max(finalists * self.reward_memory.row_slots),
            )
        };
        let all = prompts.iter().map(slots).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (Cache::slots_for(all.0), Cache::slots_for(all.1))
    }

    fn search_bytes(&self, (reasoner, reward): (usize, usize)) -> usize {
        reasoner * self.position_bytes + reward * self.reward_memory.position_bytes
    }

    /// The questions in groups that are taken up together: as many as a wave in every lane holds
    /// with `rows` of each, at least one.
    pub(crate) fn groups(&self, rows: usize) -> Vec<Range<usize>> {
        let fits = |group: &Range<usize>| {
            let bytes = |prompt| {
                let (shared, row) = self.bytes(prompt);
                shared + rows * row
            };
            let all: usize = self.prompts[group.clone()].iter().map(bytes).sum();
            group.len() * rows <= self.streams * self.max_rows && all / self.streams <= self.budget
        };
        split_greedily(0..self.prompts.len(), fits)
    }

    /// Questions in groups whose searches fit together.
    pub(crate) fn searches(&self, questions: Range<usize>) -> Vec<Range<usize>> {
        let Some(BeamMemory { extensions, .. }) = self.beam_memory else { return Vec::new() };
        split_greedily(questions, |group| {
            let bytes = self.search_bytes(self.search_slots(&self.prompts[group.clone()]));
            group.len() * extensions <= self.max_rows && bytes <= self.budget
        })
    }

    /// Rows of a wave at most, so that lanes end at the same time and no wave is left with the rest
    /// of one question.
    fn max_wave_rows(&self, shares: &[RowRange]) -> usize {
        let rows: usize = shares.iter().map(|share| share.rows.len()).sum();
        if self.streams == 1 || rows < self.stream_min_rows {
            return self.max_rows;
        }
        let even = rows.div_ceil(rows.div_ceil(self.max_rows).next_multiple_of(self.streams));
        let question = shares.iter().map(|share| share.rows.len()).max().unwrap_or(1);
        let whole = if question <= even { even.next_multiple_of(question) } else { even };
        whole.min(self.max_rows)
    }

    /// Rows of some questions in waves that fit, in their order.
    pub(crate) fn waves(&self, shares: &[RowRange]) -> Vec<Vec<RowRange>> {
        let most_rows = self.max_wave_rows(shares);
        let (mut waves, mut wave, mut used, mut rows) = (Vec::new(), Vec::new(), 0, 0);
        for share in shares {
            let (shared, row) = self.bytes(&self.prompts[share.question]);
            let mut first = share.rows.start;
            while first < share.rows.end {
                let (left, room) = (
                    share.rows.end - first,
                    self.budget.saturating_sub(used + shared) / row.max(1),
                );
                let count = room.min(left).min(most_rows - rows);
                // A question that would be split waits for a wave of its own, unless it has one
                // already.
                if count < left && !wave.is_empty() {
                    waves.push(std::mem::take(&mut wave));
                    (used, rows) = (0, 0);
                    continue;
                }
                // One row always fits: that was checked when the plan was made.
                let end = first + count.max(1);
                wave.push(RowRange { question: share.question, rows: first..end });
                (used, rows, first) = (used + shared + count * row, rows + count, end);
            }
        }
        waves.extend((!wave.is_empty()).then_some(wave));
        waves
    }
}

/// Cuts a range into the longest pieces that fit; a piece of one always does.
fn split_greedily(range: Range<usize>, fits: impl Fn(&Range<usize>) -> bool) -> Vec<Range<usize>> {
    let (mut pieces, mut start) = (Vec::new(), range.start);
    while start < range.end {
        let mut end = start + 1;
        while end < range.end && fits(&(start..end + 1)) {
            end += 1;
        }
        pieces.push(start..end);
        start = end;
    }
    pieces
}

/// Positions that a row may have beside its prompt. Answers end with the context, so that no limit
/// makes them longer.
pub(crate) fn row_positions(mind: &LatentModel, thoughts: usize, max_new_tokens: usize) -> usize {
    1 + thoughts + mind.method.end_latent.len() + max_new_tokens.min(mind.decoder.config().context)
}

/// Refuses a prompt that leaves no room for an answer after so many positions more.
pub(crate) fn check_context(
    config: &Config,
    prompt: &Prompt,
    more: usize,
) -> Result<(), EngineError> {
    if prompt.tokens.len() + more >= config.context {
        return Err(EngineError::TooLong {
            id: prompt.id,
            prompt: prompt.tokens.len(),
            thoughts: more,
            context: config.context,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the waves of so many questions with so many rows each, in two lanes.
    fn waves(questions: usize, rows: usize) -> Vec<usize> {
        let prompt = |id| Prompt { id, text: String::new(), tokens: vec![0; 8] };
        let prompts: Vec<Prompt> = (0..questions as u32).map(prompt).collect();
        let plan = BatchPlan {
            prompts: &prompts,
            streams: 2,
            stream_min_rows: 12288,
            max_rows: 8192,
            budget: usize::MAX / 4,
            private_prompt: false,
            row_slots: 16,
            reward_memory: RewardMemory::default(),
            position_bytes: 1,
            beam_memory: None,
        };
        let waves = plan.waves(&RowRange::for_each_question(0..questions, &(0..rows)));
        waves.iter().map(|wave| wave.iter().map(|share| share.rows.len()).sum()).collect()
    }

    #[test]
    fn lanes_get_like_waves_of_whole_questions() {
        assert_eq!(waves(192, 64), [6144, 6144]);
        assert_eq!(waves(193, 64), [97 * 64, 96 * 64]);
        assert_eq!(waves(256, 64), [8192, 8192]);
        assert_eq!(waves(300, 64), [4800; 4]);
        assert_eq!(waves(1, 15000), [7500, 7500]);
    }

    #[test]
    fn few_rows_stay_together() {
        assert_eq!(waves(64, 64), [64 * 64]);
        assert_eq!(waves(128, 64), [128 * 64]);
        assert_eq!(waves(1, 1), [1]);
    }
}
