//! What a request gets: its trajectories, the answer that the voting rule chose, and the cost.

use std::ops::AddAssign;

use aggregate::{AnswerVotes, Candidate, EarlyStop, Rule, VoteParams};
use data::answer::Answer;
use tensor::Tensor;

use crate::executor::AnswerTokens;
use crate::stage_timer::Stage;

/// One sampled path of thoughts and the answer it led to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trajectory {
    /// Its number among the trajectories of the request, from 0.
    pub number: u32,
    /// How many thoughts it has.
    pub thoughts: usize,
    /// The thoughts as they were fed: (thoughts, width), on the host; empty for a beam search.
    pub latents: Tensor,
    /// The tokens that each thought's hidden state predicts, the most probable first; empty unless
    /// the request has a [`Lens`](crate::Lens) for it.
    pub lens: Vec<Vec<LensToken>>,
    /// The answer's tokens, the EOS token included.
    pub tokens: AnswerTokens,
    /// The decoded answer text.
    pub text: String,
    /// What the family's rule finds in the text. A trajectory without an answer never votes.
    pub answer: Option<Answer>,
    /// One reward per thought, where a reward model scored it.
    pub process_rewards: Option<Vec<f32>>,
    /// The reward of the whole answer, where the reward model reads answers.
    pub outcome_reward: Option<f32>,
    /// The log-probability of the answer's tokens; `None` where it is not finite.
    pub logprob: Option<f32>,
}

/// A token of the vocabulary at a thought's hidden state.
#[derive(Clone, Debug, PartialEq)]
pub struct LensToken {
    /// Its index in the vocabulary.
    pub token: u32,
    /// Its text; special tokens have none.
    pub text: String,
    /// softmax(logits)\[token\], over the whole vocabulary.
    pub probability: f32,
}

impl Candidate for Trajectory {
    fn number(&self) -> u32 {
        self.number
    }

    fn answer(&self) -> Option<&str> {
        self.answer.as_ref().map(Answer::as_str)
    }

    fn process_rewards(&self) -> Option<&[f32]> {
        self.process_rewards.as_deref()
    }

    fn outcome_reward(&self) -> Option<f32> {
        self.outcome_reward
    }

    fn logprob(&self) -> Option<f32> {
        self.logprob
    }
}

/// The result of a beam search.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamReply {
    /// The best path and its answer; its number is 0.
    pub best: Trajectory,
    /// What the search cost, beside the samples.
    pub cost: ComputeCost,
}

/// A finished request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The request's id.
    pub id: u32,
    /// The sampled trajectories, by number.
    pub trajectories: Vec<Trajectory>,
    /// The unperturbed trajectory, if it was asked for.
    pub greedy: Option<Trajectory>,
    /// The beam search, if one was asked for.
    pub beam: Option<BeamReply>,
    /// d_t of each thought step: the mean pairwise cosine dissimilarity of the trajectories, of
    /// thoughts before Gaussian noise is added, as the paper's algorithm stores them.
    pub diversity: Vec<f64>,
    /// The same of the thoughts with their noise, as they are fed; empty without Gaussian noise,
    /// where the two are one.
    pub fed_diversity: Vec<f64>,
    /// Why there are fewer trajectories than requested, where there are.
    pub stopped: Option<EarlyStop>,
    /// The rule that chose the answer.
    pub rule: Rule,
    /// The chosen trajectory's index; `None` where no trajectory has an answer.
    pub chosen: Option<usize>,
    /// What the samples cost, the beam search aside.
    pub cost: ComputeCost,
    /// Time by stage since the reply before it: requests of one batch are timed together.
    pub seconds: StageSeconds,
}

impl Reply {
    /// The answer that the rule chose.
    pub fn answer(&self) -> Option<&str> {
        self.trajectories[self.chosen?].answer()
    }

    /// The different answers with their votes and rewards, in the order of their first votes.
    pub fn votes(&self) -> Vec<AnswerVotes<'_>> {
        aggregate::votes(&self.trajectories)
    }

    /// The trajectory that another rule chooses.
    pub fn choose(&self, rule: Rule, params: &VoteParams) -> Option<&Trajectory> {
        rule.choose(&self.trajectories, params).map(|index| &self.trajectories[index])
    }
}

/// Work, counted and not timed: a function of lengths, the same on every machine and in every
/// batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ComputeCost {
    /// Positions computed after the prompt: thoughts, end tokens and answer tokens of all rows.
    pub steps: u64,
    /// Floating-point operations; a multiply-add counts as two.
    pub flops: f64,
}

impl AddAssign for ComputeCost {
    fn add_assign(&mut self, more: Self) {
        self.steps += more.steps;
        self.flops += more.flops;
    }
}

/// Wall-clock seconds by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageSeconds {
    /// Prompts.
    pub prefill: f64,
    /// Latent thoughts.
    pub thoughts: f64,
    /// The reward model.
    pub scores: f64,
    /// Answer tokens.
    pub answers: f64,
    /// Beam search, all of it.
    pub beam: f64,
    /// Everything.
    pub total: f64,
}

impl StageSeconds {
    /// The seconds of one stage.
    pub(crate) fn of_mut(&mut self, stage: Stage) -> &mut f64 {
        match stage {
            Stage::Prefill => &mut self.prefill,
            Stage::Thoughts => &mut self.thoughts,
            Stage::Answers => &mut self.answers,
            Stage::Scores => &mut self.scores,
        }
    }

    /// Every stage times `factor`.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        let Self { prefill, thoughts, scores, answers, beam, total } = self;
        Self {
            prefill: prefill * factor,
            thoughts: thoughts * factor,
            scores: scores * factor,
            answers: answers * factor,
            beam: beam * factor,
            total: total * factor,
        }
    }
}

impl AddAssign for StageSeconds {
    fn add_assign(&mut self, more: Self) {
        self.prefill += more.prefill;
        self.thoughts += more.thoughts;
        self.scores += more.scores;
        self.answers += more.answers;
        self.beam += more.beam;
        self.total += more.total;
    }
}
