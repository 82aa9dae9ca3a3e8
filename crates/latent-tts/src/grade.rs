//! Grading: converts a reply to the record of a question with a known answer.

use aggregate::Candidate;
use data::Question;
use engine::{Output, Request, SamplingParams, Trajectory};
use record::{BeamResult, Sample, TrajectoryRecord};

/// The request for a question of a data set.
pub fn request(question: &Question, params: SamplingParams) -> Request {
    Request {
        id: question.id,
        answer_kind: question.kind,
        ..Request::new(question.text.clone(), params)
    }
}

/// The record of a question's reply under these parameters. Each answer is compared with the gold
/// answer.
pub fn grade(question: &Question, params: &SamplingParams, reply: &Output) -> Sample {
    let limit = params.max_new_tokens.get();
    let trajectory = |trajectory: &Trajectory| TrajectoryRecord {
        truncated: trajectory.answer.is_none() && trajectory.tokens.len() >= limit,
        ..trajectory_record(question, trajectory)
    };
    Sample {
        id: question.id,
        seed: params.seed,
        question: question.text.clone(),
        gold: question.gold.clone(),
        greedy: reply.greedy.as_ref().map(trajectory),
        trajectories: reply.trajectories.iter().map(trajectory).collect(),
        diversity: (!reply.diversity.is_empty()).then(|| reply.diversity.clone()),
        fed_diversity: (!reply.fed_diversity.is_empty()).then(|| reply.fed_diversity.clone()),
        beam: beam_record(question, params, reply),
        stopped: reply.stopped,
        steps: reply.cost.steps,
        flops: reply.cost.flops,
    }
}

fn is_correct(question: &Question, trajectory: &Trajectory) -> bool {
    trajectory.answer.as_ref().is_some_and(|answer| answer.matches(&question.gold))
}

pub(crate) fn trajectory_record(question: &Question, trajectory: &Trajectory) -> TrajectoryRecord {
    let correct = Some(is_correct(question, trajectory));
    TrajectoryRecord { correct, ..TrajectoryRecord::from(trajectory) }
}

fn beam_record(question: &Question, params: &SamplingParams, reply: &Output) -> Option<BeamResult> {
    let (beam, size) = (reply.beam.as_ref()?, params.search?);
    let process_rewards = beam.best.process_rewards.clone().unwrap_or_default();
    Some(BeamResult {
        method: size.method,
        width: size.width.get() as u32,
        candidates: size.candidates.get() as u32,
        latent_steps: beam.best.thoughts as u32,
        text: beam.best.text.clone(),
        answer: beam.best.answer().map(str::to_owned),
        reward: process_rewards.iter().sum(),
        process_rewards,
        outcome_reward: beam.best.outcome_reward,
        correct: is_correct(question, &beam.best),
        steps: beam.cost.steps,
        flops: beam.cost.flops,
    })
}
