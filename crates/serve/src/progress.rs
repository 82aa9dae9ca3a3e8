//! Progress events of streams: each trajectory, the votes so far, and the rewards.

use engine::Trajectory;
use engine::scheduler::Event;
use latent_tts::Rule;
use latent_tts::aggregate;
use serde_json::{Value, json};

use crate::generation::Choices;
use crate::reply::votes_json;
use crate::work::RunningRequest;

/// The trajectories of each prompt so far.
pub(crate) struct VoteProgress {
    of_prompts: Vec<Vec<Trajectory>>,
}

impl VoteProgress {
    pub(crate) fn new(prompts: usize) -> Self {
        Self { of_prompts: vec![Vec::new(); prompts] }
    }

    /// The `latent` of a progress event; `None` for events that are not reported, such as those of
    /// requests without a vote.
    pub(crate) fn add(
        &mut self,
        work: &RunningRequest,
        prompt: usize,
        event: &Event,
    ) -> Option<Value> {
        let latent = match event {
            Event::Trajectory(trajectory) => self.trajectory(work, prompt, trajectory),
            Event::Rewards { number, rewards } => {
                let of = self.of_prompts[prompt].iter_mut().find(|t| t.number == *number)?;
                of.process_rewards = Some(rewards.process.clone());
                of.outcome_reward = rewards.outcome;
                json!({ "rewards": {
                    "index": number,
                    "process_rewards": of.process_rewards,
                    "outcome_reward": of.outcome_reward,
                }})
            }
            _ => return None,
        };
        (work.generation.choices == Choices::Vote).then_some(latent)
    }

    /// A trajectory with the current majority. The final answer may be selected by another rule
    /// once all are complete.
    fn trajectory(&mut self, work: &RunningRequest, prompt: usize, of: &Trajectory) -> Value {
        let value = work.reader(prompt).of_trajectory(of, work.generation.returned);
        let so_far = &mut self.of_prompts[prompt];
        let index = so_far.partition_point(|t| t.number < of.number);
        so_far.insert(index, of.clone());
        let leader = Rule::MAJORITY.choose(so_far, &Default::default());
        let leader = leader.and_then(|i| so_far[i].answer.as_ref().map(|a| a.as_str().to_owned()));
        let votes = votes_json(&aggregate::votes(so_far));
        json!({ "trajectory": value, "votes": votes, "leader": leader })
    }
}
