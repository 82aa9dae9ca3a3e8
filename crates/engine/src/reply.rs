//! What a request gets: its trajectories, the answer that the voting rule chose, and the cost.

use aggregate::{AnswerVotes, Candidate, EarlyStop, Rule, VoteParams};
use data::answer::Answer;
use schema::TrajectoryRecord;
pub use schema::{ComputeCost, StageSeconds};
use tensor::Tensor;

use crate::executor::AnswerTokens;

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

/// Without its thoughts, and not graded.
impl From<&Trajectory> for TrajectoryRecord {
    fn from(trajectory: &Trajectory) -> Self {
        let token = |token: &LensToken| (token.text.clone(), token.probability);
        let tokens = |tokens: &Vec<LensToken>| tokens.iter().map(token).collect();
        Self {
            index: trajectory.number,
            latent_steps: trajectory.thoughts as u32,
            text: trajectory.text.clone(),
            answer: trajectory.answer().map(str::to_owned),
            process_rewards: trajectory.process_rewards.clone(),
            outcome_reward: trajectory.outcome_reward,
            logprob: trajectory.logprob,
            lens: trajectory.lens.iter().map(tokens).collect(),
            ..Self::default()
        }
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
///
/// ```
/// use aggregate::{Rule, VoteParams};
/// use latent_tts_engine::Reply;
///
/// /// What every rule answers.
/// fn answers(reply: &Reply) -> Vec<(&'static str, Option<&str>)> {
///     let by = |&rule: &Rule| {
///         let chosen = reply.choose(rule, &VoteParams::default());
///         (rule.name(), chosen.and_then(|chosen| chosen.answer.as_ref()).map(|a| a.as_str()))
///     };
///     Rule::DEFAULT.iter().map(by).collect()
/// }
/// assert_eq!(answers(&Reply::default())[0], ("majority", None));
/// ```
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
