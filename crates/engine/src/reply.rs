//! The output of a request: its trajectories, the answer chosen by the voting rule, and the cost.

use std::collections::BTreeMap;

use aggregate::{AnswerVotes, Candidate, EarlyStop, Rule, VoteParams};
use data::answer::Answer;
use schema::TrajectoryRecord;
pub use schema::{ComputeCost, StageSeconds};
use tensor::Tensor;

use crate::executor::AnswerTokens;

/// One sampled sequence of thoughts and its answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trajectory {
    /// Index among the trajectories of the request, from 0.
    pub number: u32,
    /// Number of thoughts.
    pub thoughts: usize,
    /// The thoughts as they were fed: (thoughts, width), on the host; empty for a beam search.
    pub latents: Tensor,
    /// The tokens that each thought's hidden state predicts, the most probable first; empty unless
    /// the request has a [`Lens`](crate::Lens) for it.
    pub lens: Vec<Vec<LensToken>>,
    /// The answer's tokens, including EOS.
    pub tokens: AnswerTokens,
    /// The decoded answer text.
    pub text: String,
    /// The answer extracted by the family's rule. A trajectory without an answer never votes.
    pub answer: Option<Answer>,
    /// One reward per thought, if a reward model scored the trajectory.
    pub process_rewards: Option<Vec<f32>>,
    /// The reward of the whole answer, if the reward model scores answers.
    pub outcome_reward: Option<f32>,
    /// The log-probability of the answer's tokens; `None` where it is not finite.
    pub logprob: Option<f32>,
    /// Signals other than rewards and log-probability, by name; see [`aggregate::signals`].
    pub signals: BTreeMap<String, f32>,
    /// The hidden states, after the final norm, from which first its thoughts and then its answer's
    /// tokens were computed: (thoughts + tokens, width), on the host. Empty unless the engine
    /// returns them.
    pub states: Tensor,
}

/// A token predicted at a thought's hidden state.
#[derive(Clone, Debug, PartialEq)]
pub struct LensToken {
    /// Token id.
    pub token: u32,
    /// The token's text; empty for special tokens.
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

    fn signal(&self, name: &str) -> Option<f32> {
        self.signals.get(name).copied()
    }
}

/// Omits the thoughts; the record is not graded.
impl From<&Trajectory> for TrajectoryRecord {
    fn from(trajectory: &Trajectory) -> Self {
        let tokens = |tokens: &Vec<LensToken>| {
            tokens.iter().map(|token: &LensToken| (token.text.clone(), token.probability)).collect()
        };
        Self {
            index: trajectory.number,
            latent_steps: trajectory.thoughts as u32,
            text: trajectory.text.clone(),
            answer: trajectory.answer().map(str::to_owned),
            process_rewards: trajectory.process_rewards.clone(),
            outcome_reward: trajectory.outcome_reward,
            logprob: trajectory.logprob,
            signals: trajectory.signals.clone(),
            lens: trajectory.lens.iter().map(tokens).collect(),
            ..Self::default()
        }
    }
}

/// The result of a beam search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchResult {
    /// The best path and its answer, with number 0.
    pub best: Trajectory,
    /// The cost of the search, excluding the samples.
    pub cost: ComputeCost,
}

/// A finished request.
///
/// ```
/// use aggregate::{Rule, VoteParams};
/// use latent_tts_engine::Output;
///
/// /// The answer chosen by each rule.
/// fn answers(reply: &Output) -> Vec<(&'static str, Option<&str>)> {
///     let by = |&rule: &Rule| {
///         let chosen = reply.choose(rule, &VoteParams::default());
///         (rule.name(), chosen.and_then(|chosen| chosen.answer.as_ref()).map(|a| a.as_str()))
///     };
///     Rule::DEFAULT.iter().map(by).collect()
/// }
/// assert_eq!(answers(&Output::default())[0], ("majority", None));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// The request's id.
    pub id: u32,
    /// The sampled trajectories, by number.
    pub trajectories: Vec<Trajectory>,
    /// The unperturbed trajectory, if requested.
    pub greedy: Option<Trajectory>,
    /// The beam search, if requested.
    pub beam: Option<SearchResult>,
    /// d_t of each thought step: the mean pairwise cosine dissimilarity of the trajectories'
    /// thoughts before Gaussian noise is added, as the paper's algorithm stores them.
    pub diversity: Vec<f64>,
    /// The same for the thoughts with noise, as they are fed; empty without Gaussian noise, where
    /// both are equal.
    pub fed_diversity: Vec<f64>,
    /// The reason that there are fewer trajectories than requested, if so.
    pub stopped: Option<EarlyStop>,
    /// The rule that chose the answer.
    pub rule: Rule,
    /// The chosen trajectory's index; `None` if no trajectory has an answer.
    pub chosen: Option<usize>,
    /// The probability that the chosen answer is correct, if the request has a calibration.
    pub confidence: Option<f64>,
    /// The cost of the samples, excluding the beam search.
    pub cost: ComputeCost,
    /// Seconds per stage since the previous output: requests of one batch are timed together.
    pub seconds: StageSeconds,
}

impl Output {
    /// The answer chosen by the rule.
    pub fn answer(&self) -> Option<&str> {
        self.trajectories[self.chosen?].answer()
    }

    /// The distinct answers with their votes and rewards, ordered by first vote.
    pub fn votes(&self) -> Vec<AnswerVotes<'_>> {
        aggregate::votes(&self.trajectories)
    }

    /// The trajectory chosen by another rule.
    pub fn choose(&self, rule: Rule, params: &VoteParams) -> Option<&Trajectory> {
        rule.choose(&self.trajectories, params).map(|index| &self.trajectories[index])
    }
}
