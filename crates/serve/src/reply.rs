//! Converts replies of the engine to the JSON of choices and usage.

use engine::{Output, Trajectory};
use latent_tts::aggregate::{self, AnswerVotes, Candidate};
use latent_tts::{AnswerRule, RewardReduction};
use schema::{TrajectoryRecord, Vote};
use serde_json::{Value, json};

use crate::generation::{Choices, Generation, Returned};

/// The returned part of one trajectory, or of the vote over all.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) finish_reason: &'static str,
    pub(crate) latent: Value,
    /// A description of the vote, for clients that show a model's reasoning.
    pub(crate) reasoning: Option<String>,
    /// The reason why there is no text, if no answer has the requested format.
    pub(crate) refusal: Option<String>,
}

/// Numbers of tokens read and computed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Answer tokens of all trajectories.
    pub(crate) answers: usize,
    /// Thoughts of all trajectories.
    pub(crate) thoughts: usize,
}

impl Usage {
    pub(crate) fn of(prompt: usize, reply: &Output) -> Self {
        let mut usage = Self { prompt, ..Self::default() };
        let beam = reply.beam.iter().map(|beam| &beam.best);
        for trajectory in reply.trajectories.iter().chain(beam) {
            usage.answers += trajectory.tokens.len();
            usage.thoughts += trajectory.thoughts;
        }
        usage
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.prompt += more.prompt;
        self.answers += more.answers;
        self.thoughts += more.thoughts;
    }

    /// Number of generated tokens; a thought counts as one.
    pub(crate) fn completion(&self) -> usize {
        self.answers + self.thoughts
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion(),
            "total_tokens": self.prompt + self.completion(),
            "completion_tokens_details": { "reasoning_tokens": self.thoughts },
        })
    }
}

/// Converts a reply to choices.
pub(crate) struct ReplyReader<'a> {
    pub(crate) generation: &'a Generation,
    /// Tokens that end an answer.
    pub(crate) eos: &'a [u32],
    /// The seed used by the engine.
    pub(crate) seed: u64,
    /// The index of the prompt in the request.
    pub(crate) prompt: usize,
}

impl ReplyReader<'_> {
    /// The choices of a reply, in order.
    pub(crate) fn choices(&self, reply: &Output) -> Vec<Choice> {
        let mut choices = match self.generation.choices {
            Choices::Vote => vec![self.voted(reply)],
            Choices::Each => {
                let each = |trajectory: &Trajectory| {
                    let latent = self.of_trajectory(trajectory, self.generation.returned);
                    self.choice(trajectory, latent, None)
                };
                reply.trajectories.iter().map(each).collect()
            }
        };
        let own = self.generation.prompt_notes.get(self.prompt).into_iter().flatten();
        let notes: Vec<&String> = self.generation.notes.iter().chain(own).collect();
        if !notes.is_empty() {
            for choice in &mut choices {
                choice.latent["notes"] = json!(notes);
            }
        }
        choices
    }

    /// The choice determined by the vote or the beam search. If no trajectory has an answer, the
    /// text of the first one is returned.
    fn voted(&self, reply: &Output) -> Choice {
        let chosen = reply.chosen.or((!reply.trajectories.is_empty()).then_some(0));
        let sampled = chosen.map(|index| &reply.trajectories[index]);
        let beam = reply.beam.as_ref().map(|beam| &beam.best);
        let nothing = Trajectory::default();
        let trajectory = beam.or(sampled).unwrap_or(&nothing);
        let reasoning = (reply.trajectories.len() > 1).then(|| self.summary(reply));
        self.choice(trajectory, self.latent(reply, trajectory), reasoning)
    }

    fn choice(&self, of: &Trajectory, mut latent: Value, reasoning: Option<String>) -> Choice {
        let raw = || json!(of.text);
        let (text, stopped) = match (&self.generation.format, self.generation.marker) {
            (Some(format), _) => {
                latent["raw_text"] = raw();
                let Some(text) = format.content(of) else {
                    let refusal = Some("no answer has the requested format".to_owned());
                    let text = String::new();
                    return Choice { text, finish_reason: "stop", latent, reasoning, refusal };
                };
                (text, true)
            }
            (None, Some(rule)) => {
                latent["raw_text"] = raw();
                let (text, stopped) = self.generation.cut(without_marker(rule, &of.text));
                (text.to_owned(), stopped)
            }
            (None, None) => {
                let (text, stopped) = self.generation.cut(&of.text);
                (text.to_owned(), stopped)
            }
        };
        let ended = stopped || of.tokens.last().is_some_and(|token| self.eos.contains(token));
        let finish_reason = if ended { "stop" } else { "length" };
        Choice { text, finish_reason, latent, reasoning, refusal: None }
    }

    /// The name of the rule or of the search that determined the answer.
    fn rule(&self, reply: &Output) -> &'static str {
        match self.generation.params.search.filter(|_| reply.beam.is_some()) {
            Some(search) => search.method.name(),
            None => reply.rule.name(),
        }
    }

    fn latent(&self, reply: &Output, chosen: &Trajectory) -> Value {
        let returned = self.generation.returned;
        let trajectories = &reply.trajectories;
        let mut latent = json!({
            "seed": self.seed,
            "samples": trajectories.len(),
            "rule": self.rule(reply),
            "chosen": reply.chosen.map(|index| trajectories[index].number),
            "answer": chosen.answer(),
            "stopped": reply.stopped,
        });
        if let Some(confidence) = reply.confidence.filter(|_| reply.beam.is_none()) {
            latent["confidence"] = json!(confidence);
        }
        if returned.votes {
            latent["votes"] = votes_json(&reply.votes());
        }
        if returned.rewards {
            let reward = |t: &Trajectory| finite(reward_of(t));
            latent["rewards"] = trajectories.iter().map(reward).collect();
        }
        if returned.trajectories || returned.thoughts {
            let one = |t: &Trajectory| self.of_trajectory(t, returned);
            latent["trajectories"] = trajectories.iter().map(one).collect();
        }
        if self.generation.inspection.gold.is_some() {
            latent["correct"] = json!(self.generation.inspection.is_correct(chosen));
        }
        if let Some(projection) = self.generation.inspection.map {
            (latent["map"], latent["map_method"]) = projection.map_json(trajectories);
        }
        if let Some(beam) = &reply.beam {
            latent["beam"] = self.of_trajectory(&beam.best, returned);
        }
        latent
    }

    /// The requested parts of a trajectory.
    pub(crate) fn of_trajectory(&self, of: &Trajectory, returned: Returned) -> Value {
        let mut record = TrajectoryRecord::from(of);
        if !returned.rewards {
            record.process_rewards = None;
            record.outcome_reward = None;
        }
        if self.generation.inspection.gold.is_some() {
            record.correct = self.generation.inspection.is_correct(of);
        }
        if returned.thoughts {
            let rows = 0..of.latents.rows();
            record.latents = Some(rows.map(|t| of.latents.row(t).to_vec()).collect());
        }
        json!(record)
    }

    /// A one-line summary of the vote.
    fn summary(&self, reply: &Output) -> String {
        let mut votes = reply.votes();
        votes.sort_by_key(|answer| std::cmp::Reverse(answer.votes));
        let votes: Vec<String> =
            votes.iter().map(|answer| format!("{} x {}", answer.votes, answer.answer)).collect();
        let (count, rule) = (reply.trajectories.len(), reply.rule.name());
        let thoughts: usize = reply.trajectories.iter().map(|t| t.thoughts).sum();
        let votes = if votes.is_empty() { "no answer".into() } else { votes.join(", ") };
        format!("{count} trajectories, {thoughts} latent thoughts; votes: {votes}; rule: {rule}")
    }
}

/// Removes the marker that the family writes before an answer: `### 7` and `Answer:7` become `7`. A
/// text that does not start with the marker is not changed.
pub(crate) fn without_marker(rule: AnswerRule, text: &str) -> &str {
    let answer = match rule {
        AnswerRule::Hash | AnswerRule::Cascade => text.trim_start().strip_prefix('#'),
        AnswerRule::AnswerColon => {
            text.trim().trim_matches('#').trim_start().strip_prefix("Answer:")
        }
        // A sentence or a LaTeX box is part of the answer.
        AnswerRule::LastNumber | AnswerRule::Boxed => None,
    };
    answer.map_or(text, |answer| answer.trim_start_matches('#').trim())
}

/// The distinct answers with their votes.
pub(crate) fn votes_json(votes: &[AnswerVotes<'_>]) -> Value {
    votes.iter().map(|votes| json!(Vote::from(votes))).collect()
}

fn reward_of(trajectory: &Trajectory) -> f64 {
    aggregate::reward(trajectory, RewardReduction::OutcomeOrMean)
}

/// A JSON number, or null if it is not finite.
pub(crate) fn finite(number: f64) -> Value {
    if number.is_finite() { json!(number) } else { Value::Null }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_markers_are_removed() {
        for (rule, text, expected) in [
            (AnswerRule::Hash, "### 7", "7"),
            (AnswerRule::Hash, "7 # 8", "7 # 8"),
            (AnswerRule::Hash, "<<3*4=12>> ### 7", "<<3*4=12>> ### 7"),
            (AnswerRule::Cascade, " ### 18\n", "18"),
            (AnswerRule::AnswerColon, "Answer:7", "7"),
            (AnswerRule::AnswerColon, "###Answer: -6 ###", "-6"),
            (AnswerRule::AnswerColon, "7", "7"),
            (AnswerRule::LastNumber, "The answer is: 7", "The answer is: 7"),
            (AnswerRule::Boxed, "\\boxed{7}", "\\boxed{7}"),
            (AnswerRule::Hash, "", ""),
        ] {
            assert_eq!(without_marker(rule, text), expected);
        }
    }
}
