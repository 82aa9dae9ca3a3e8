//! Budgets as targets: `latent.target_confidence` and `latent.deadline_ms` specify the required
//! confidence or response time, which determine the number of trajectories.
//!
//! Both sample in rounds, like `latent.adaptive`, up to `latent.samples` or 64 trajectories. At the
//! deadline the completed trajectories vote; if none is complete, the request waits for the first.
//! With a deadline the number of trajectories depends on the machine and its load, so the same seed
//! gives a prefix of the same trajectories but not always the same answer.

use std::time::{Duration, Instant};

use engine::scheduler::Event;
use engine::{Output, SamplingParams, Trajectory};
use latent_tts::Rule;
use latent_tts::aggregate::{EarlyStop, StopReason};

use crate::error::ApiError;
use crate::fields::Fields;

/// Maximum deadline, one day.
const MAX_DEADLINE_MS: u64 = 86_400_000;

/// Reads `latent.deadline_ms`, counted from the arrival of the request.
pub(crate) fn read_deadline(latent: Fields<'_>) -> Result<Option<Duration>, ApiError> {
    Ok(latent.count("deadline_ms", 1..=MAX_DEADLINE_MS)?.map(Duration::from_millis))
}

/// The completed trajectories of unfinished prompts, for a vote at the deadline.
pub(crate) struct PartialReplies {
    pub(crate) deadline: Instant,
    /// Indexed by prompt; `None` for finished prompts.
    of_prompts: Vec<Option<Vec<Trajectory>>>,
}

impl PartialReplies {
    pub(crate) fn new(deadline: Instant, prompts: usize) -> Self {
        Self { deadline, of_prompts: vec![Some(Vec::new()); prompts] }
    }

    /// Records an event.
    pub(crate) fn add(&mut self, prompt: usize, event: &Event) {
        let Some(trajectories) = &mut self.of_prompts[prompt] else { return };
        match event {
            Event::Trajectory(trajectory) => {
                let index = trajectories.partition_point(|t| t.number < trajectory.number);
                trajectories.insert(index, trajectory.as_ref().clone());
            }
            Event::Rewards { number, rewards } => {
                if let Some(of) = trajectories.iter_mut().find(|t| t.number == *number) {
                    of.process_rewards = Some(rewards.process.clone());
                    of.outcome_reward = rewards.outcome;
                }
            }
            Event::Done(_) => self.of_prompts[prompt] = None,
            _ => {}
        }
    }

    /// Whether every unfinished prompt has a completed trajectory.
    pub(crate) fn can_vote(&self) -> bool {
        let mut open = self.of_prompts.iter().flatten().peekable();
        open.peek().is_some() && open.all(|trajectories| !trajectories.is_empty())
    }

    /// The replies of the unfinished prompts, from a vote over the completed trajectories.
    pub(crate) fn take(&mut self, params: &SamplingParams, rule: Rule) -> Vec<(usize, Output)> {
        let open = self.of_prompts.iter_mut().enumerate();
        let taken = open.filter_map(|(prompt, trajectories)| Some((prompt, trajectories.take()?)));
        taken
            .map(|(prompt, trajectories)| (prompt, partial_reply(trajectories, params, rule)))
            .collect()
    }
}

/// A vote over some of the trajectories. Rewards are computed last, so a rule that needs them is
/// replaced by majority voting if they are missing.
fn partial_reply(trajectories: Vec<Trajectory>, params: &SamplingParams, rule: Rule) -> Output {
    let rule = if rule.applies(&trajectories, &params.vote) { rule } else { Rule::MAJORITY };
    let requested = u32::try_from(params.samples.get()).unwrap_or(u32::MAX);
    let chosen = rule.choose(&trajectories, &params.vote);
    Output {
        chosen,
        confidence: params.vote.confidence(&trajectories, chosen),
        rule,
        stopped: Some(EarlyStop { requested, reason: StopReason::Deadline }),
        trajectories,
        ..Output::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectory(number: u32) -> Event {
        Event::Trajectory(Box::new(Trajectory { number, ..Trajectory::default() }))
    }

    #[test]
    fn completed_trajectories_vote_at_the_deadline() {
        let mut partial = PartialReplies::new(Instant::now(), 2);
        partial.add(0, &trajectory(3));
        assert!(!partial.can_vote(), "the second prompt has nothing yet");
        partial.add(0, &trajectory(1));
        partial.add(1, &Event::Done(Ok(Box::default())));
        assert!(partial.can_vote());
        let params = latent_tts::SamplingOptions::new(8.try_into().unwrap());
        let engine = latent_tts::Model::load("embedded").unwrap().engine().unwrap();
        let params = params.resolve(&engine.reasoner().method).unwrap();
        let replies = partial.take(&params, Rule::WEIGHTED);
        assert_eq!(replies.len(), 1, "the first prompt only");
        let (prompt, reply) = &replies[0];
        assert_eq!(*prompt, 0);
        let numbers: Vec<u32> = reply.trajectories.iter().map(|t| t.number).collect();
        assert_eq!(numbers, [1, 3]);
        assert_eq!(reply.rule, Rule::MAJORITY, "there are no rewards to weight by");
        assert_eq!(reply.stopped.unwrap().requested, 8);
        assert!(!partial.can_vote());
    }
}
