//! The state of a question from its first finished sequence to its output.
//!
//! Closed batches ([`crate::engine`]) and the continuous batch ([`crate::scheduler`]) share this
//! code, so an output does not depend on which of them ran its sequences.

use std::collections::BTreeMap;
use std::ops::Range;

use aggregate::{EarlyStop, Rule, StepDiversity, check_steps, signals, stop_reason};
use data::answer::{Answer, AnswerKind};
use tensor::Tensor;
use tensor::ops::TokenLogprob;

use crate::batch::BatchItem;
use crate::beam_search::{AnsweredPath, SearchOutput};
use crate::cost::CostModel;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::executor::{AnswerTokens, SequenceState};
use crate::perturb::Perturbation;
use crate::probed::Probed;
use crate::reply::{LensToken, Output, SearchResult, StageSeconds, Trajectory};
use crate::sampler::SequenceId;
use crate::sampling_params::{AdaptiveSampling, SamplingParams, SearchMethod};
use crate::score::Rewards;

/// A finished sequence with its answer.
#[derive(Clone)]
pub(crate) struct FinishedSequence {
    pub(crate) id: SequenceId,
    pub(crate) perturbed: bool,
    /// Number of thoughts.
    pub(crate) thoughts: usize,
    /// (thoughts, width), if latents are returned.
    pub(crate) latents: Option<Tensor>,
    /// See [`SequenceState::lens`].
    pub(crate) lens: Vec<Vec<TokenLogprob>>,
    pub(crate) tokens: AnswerTokens,
    pub(crate) logprob: f32,
    pub(crate) rewards: Option<Rewards>,
    pub(crate) probed: Probed,
    /// The answer's text and the extracted answer, once decoded.
    parsed: Option<(String, Option<Answer>)>,
}

impl FinishedSequence {
    /// Extracts a finished sequence, without latents, lens, rewards and probe results.
    pub(crate) fn new(sequence: &SequenceState) -> Self {
        Self {
            id: sequence.spec.id,
            perturbed: sequence.spec.perturbed,
            thoughts: sequence.thoughts.len(),
            latents: None,
            lens: Vec::new(),
            tokens: sequence.tokens.clone(),
            logprob: sequence.logprob,
            rewards: None,
            probed: Probed::default(),
            parsed: None,
        }
    }
}

/// The context for decoding a question's sequences.
#[derive(Clone, Copy)]
pub(crate) struct QuestionContext<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) item: BatchItem<'a>,
}

impl<'a> QuestionContext<'a> {
    fn costs(&self) -> CostModel<'a> {
        CostModel { context: self.engine.context(), item: self.item }
    }

    /// Decodes a sequence's answer, once.
    pub(crate) fn parse(
        &self,
        kind: AnswerKind,
        row: &mut FinishedSequence,
    ) -> Result<(), EngineError> {
        if row.parsed.is_none() {
            row.parsed = Some(self.engine.reasoner().parse_answer(kind, &row.tokens)?);
        }
        Ok(())
    }

    /// The trajectory of a sequence.
    pub(crate) fn trajectory(
        &self,
        kind: AnswerKind,
        mut row: FinishedSequence,
    ) -> Result<Trajectory, EngineError> {
        self.parse(kind, &mut row)?;
        let (text, answer) = row.parsed.unwrap_or_default();
        let mut lens = self.lens(row.lens)?;
        let mut signals = BTreeMap::new();
        signals.extend(row.probed.score.map(|score| (signals::PROBE.to_owned(), score)));
        if self.item.params.check_steps {
            let answer = answer.as_ref().map(Answer::as_str);
            add_step_signals(&self.item.prompt.text, (&lens, &text), answer, &mut signals);
            // The lens may have been computed for the steps only.
            let requested = self.item.lens.is_some_and(|lens| lens.sampled || !row.perturbed);
            lens.truncate(if requested { lens.len() } else { 0 });
        }
        Ok(Trajectory {
            number: row.id.trajectory,
            thoughts: row.thoughts,
            latents: row.latents.unwrap_or_default(),
            lens,
            signals,
            states: row.probed.states.unwrap_or_default(),
            tokens: row.tokens,
            text,
            answer,
            outcome_reward: row.rewards.as_ref().and_then(|rewards| rewards.outcome),
            process_rewards: row.rewards.map(|rewards| rewards.process),
            logprob: row.logprob.is_finite().then_some(row.logprob),
        })
    }

    /// The tokens of a lens, with their texts. A NaN logit yields no probability and no token.
    fn lens(&self, found: Vec<Vec<TokenLogprob>>) -> Result<Vec<Vec<LensToken>>, EngineError> {
        let tokenizer = &self.engine.reasoner().tokenizer;
        let lens_token = |&TokenLogprob { token, logprob }: &TokenLogprob| {
            let text = tokenizer.decode(&[token])?;
            Ok::<_, EngineError>(LensToken { token, text, probability: logprob.exp() })
        };
        let thought = |tokens: Vec<TokenLogprob>| {
            tokens.iter().filter(|token| !token.logprob.is_nan()).map(lens_token).collect()
        };
        found.into_iter().map(thought).collect()
    }
}

/// Adds the signals from the equations of a trajectory: those of its thoughts, each read as its
/// most probable token, and those in its text.
fn add_step_signals(
    question: &str,
    (lens, text): (&[Vec<LensToken>], &str),
    answer: Option<&str>,
    signals: &mut BTreeMap<String, f32>,
) {
    let thoughts = lens.iter().filter_map(|tokens| tokens.first());
    let mut steps: String = thoughts.map(|token| token.text.as_str()).collect();
    steps.push('\n');
    steps.push_str(text);
    let check = check_steps(question, &steps);
    let found = [
        (signals::ARITHMETIC, check.arithmetic()),
        (signals::GROUNDING, check.grounding()),
        (signals::CONCLUSION, answer.and_then(|answer| check.conclusion(answer))),
    ];
    for (name, value) in found {
        signals.extend(value.map(|value| (name.to_owned(), value)));
    }
}

/// A question whose sequences are being collected.
pub(crate) struct QuestionState {
    answer_kind: AnswerKind,
    reply: Output,
    diversity: StepDiversity,
    /// See [`Output::fed_diversity`].
    fed_diversity: StepDiversity,
    /// The sequences of the current round.
    pub(crate) round: Range<usize>,
    pub(crate) cancelled: bool,
    pub(crate) done: bool,
}

impl QuestionState {
    pub(crate) fn new(of: QuestionContext<'_>, answer_kind: AnswerKind) -> Self {
        let width = of.engine.reasoner().decoder.config().width;
        Self {
            answer_kind,
            reply: Output { id: of.item.prompt.id, ..Output::default() },
            diversity: StepDiversity::new(width),
            fed_diversity: StepDiversity::new(width),
            round: 0..0,
            cancelled: false,
            done: false,
        }
    }

    /// The sequences of the next round: all of them, or, if the vote is checked between rounds,
    /// enough to double the number of samples.
    pub(crate) fn next_rows(&self, params: &SamplingParams) -> Range<usize> {
        let start = self.round.end;
        let greedy = usize::from(params.greedy);
        let samples = (2 * start.saturating_sub(greedy)).max(AdaptiveSampling::FIRST_ROUND);
        let end = if params.adaptive.is_some() { greedy + samples } else { params.rows() };
        start..end.min(params.rows())
    }

    /// Adds the sequences of a range of the round; there are fewer than in the range if the request
    /// is cancelled.
    pub(crate) fn add_rows(
        &mut self,
        of: QuestionContext<'_>,
        range: &Range<usize>,
        rows: Vec<FinishedSequence>,
    ) -> Result<(), EngineError> {
        if self.cancelled || rows.len() < range.len() {
            (self.cancelled, self.done) = (true, true);
            return Ok(());
        }
        if range.start == self.round.start {
            self.reply.cost += of.costs().prompt();
        }
        rows.into_iter().try_for_each(|row| self.add_row(of, row))?;
        if range.end == self.round.end {
            self.decide(of.item.params);
        }
        Ok(())
    }

    fn add_row(
        &mut self,
        of: QuestionContext<'_>,
        row: FinishedSequence,
    ) -> Result<(), EngineError> {
        let FinishedSequence { id, perturbed, .. } = row;
        self.reply.cost += of.costs().row(row.thoughts, row.tokens.len());
        let trajectory = of.trajectory(self.answer_kind, row)?;
        if perturbed {
            self.add_thoughts(of, id, &trajectory.latents);
            self.reply.trajectories.push(trajectory);
        } else {
            self.reply.greedy = Some(trajectory);
        }
        Ok(())
    }

    /// Adds a sequence's thoughts to the diversity: before noise is added, as the paper's algorithm
    /// stores them, and as they are fed. The noise is a function of its key, so it is subtracted
    /// again instead of being stored.
    fn add_thoughts(&mut self, of: QuestionContext<'_>, id: SequenceId, latents: &Tensor) {
        let BatchItem { prompt, params, forced_thoughts, .. } = of.item;
        let loops = of.engine.reasoner().method.looped.map_or(0, |looped| looped.loops);
        let first = prompt.tokens.len() + loops * latents.rows();
        for t in 0..latents.rows() {
            let fed = latents.row(t);
            match params.perturbation {
                Perturbation::Gaussian { std } if forced_thoughts.is_empty() => {
                    let mut stored = fed.to_vec();
                    let id = of.item.keys().thoughts_of(id);
                    let key = id.rng_key(params.seed, first + t);
                    key.add_noise(-std, &mut stored);
                    self.diversity.add(t, &stored);
                    self.fed_diversity.add(t, fed);
                }
                _ => self.diversity.add(t, fed),
            }
        }
    }

    /// Finishes the question when all samples are drawn or the vote is decided.
    fn decide(&mut self, params: &SamplingParams) {
        let requested = params.samples.get();
        let left = requested - self.reply.trajectories.len();
        if let (Some(AdaptiveSampling { confidence }), 1..) = (params.adaptive, left) {
            let reason = stop_reason(&self.reply.trajectories, left, confidence);
            self.reply.stopped =
                reason.map(|reason| EarlyStop { requested: requested as u32, reason });
        }
        self.done = left == 0 || self.reply.stopped.is_some();
    }

    pub(crate) fn finish(
        self,
        of: QuestionContext<'_>,
        beam: Option<SearchOutput>,
        seconds: StageSeconds,
    ) -> Result<Output, EngineError> {
        let params = of.item.params;
        if self.cancelled || (params.search.is_some() && beam.is_none()) {
            return Err(EngineError::Cancelled { id: self.reply.id });
        }
        let beam = beam.map(|beam| self.beam_reply(of, beam)).transpose()?;
        let rule = of.engine.rule_of(params);
        let chosen = rule.choose(&self.reply.trajectories, &params.vote);
        let confidence = params.vote.confidence(&self.reply.trajectories, chosen);
        let diversity = self.diversity.values();
        let fed_diversity = self.fed_diversity.values();
        Ok(Output {
            beam,
            diversity,
            fed_diversity,
            rule,
            chosen,
            confidence,
            seconds,
            ..self.reply
        })
    }

    fn beam_reply(
        &self,
        of: QuestionContext<'_>,
        output: SearchOutput,
    ) -> Result<SearchResult, EngineError> {
        let SearchOutput { paths, cost } = output;
        let trajectory = |(number, path): (usize, AnsweredPath)| {
            let AnsweredPath { thoughts, tokens, rewards } = path;
            let (text, answer) = of.engine.reasoner().parse_answer(self.answer_kind, &tokens)?;
            Ok::<_, EngineError>(Trajectory {
                number: number as u32,
                thoughts,
                tokens,
                text,
                answer,
                outcome_reward: rewards.outcome,
                process_rewards: Some(rewards.process),
                ..Trajectory::default()
            })
        };
        let paths = paths.into_iter().enumerate().map(trajectory);
        let mut paths = paths.collect::<Result<Vec<Trajectory>, EngineError>>()?;
        let chosen = vote_of_paths(&paths, of.item.params);
        let best = Trajectory { number: 0, ..paths.swap_remove(chosen) };
        Ok(SearchResult { best, cost })
    }
}

/// The index of the path that the reward-weighted vote over a search's paths selects. Particles
/// were resampled by all rewards but the last, so without outcome rewards the last one weighs them.
fn vote_of_paths(paths: &[Trajectory], params: &SamplingParams) -> usize {
    let is_particles = params.search.is_some_and(|search| search.method == SearchMethod::Particles);
    let temperature = params.search.map_or(1.0, |search| search.temperature);
    let weighted = |path: &Trajectory| {
        let last = path.process_rewards.as_ref().and_then(|rewards| rewards.last());
        let last = last.map(|&reward| (f64::from(reward) / temperature) as f32);
        let weight = path.outcome_reward.or(last.filter(|_| is_particles));
        Trajectory { outcome_reward: weight, ..path.clone() }
    };
    let weighted: Vec<Trajectory> = paths.iter().map(weighted).collect();
    Rule::WEIGHTED.choose(&weighted, &params.vote).unwrap_or(0)
}
