//! Grading: a reply becomes the record of a question with a known answer.

use data::Question;
use engine::{LensToken, Reply, Request, SamplingParams, StageSeconds, Trajectory};
use record::{BeamResult, Sample, Seconds, TrajectoryRecord};

/// The request for a question of a data set.
pub fn request(question: &Question, params: SamplingParams) -> Request {
    Request {
        id: question.id,
        answer_kind: question.kind,
        ..Request::new(question.text.clone(), params)
    }
}

/// The record of a question's reply under these parameters, each answer compared with the gold
/// answer.
pub fn grade(question: &Question, params: &SamplingParams, reply: &Reply) -> Sample {
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

fn answer(trajectory: &Trajectory) -> Option<String> {
    trajectory.answer.as_ref().map(|answer| answer.as_str().to_owned())
}

pub(crate) fn trajectory_record(question: &Question, trajectory: &Trajectory) -> TrajectoryRecord {
    TrajectoryRecord {
        index: trajectory.number,
        latent_steps: trajectory.thoughts as u32,
        text: trajectory.text.clone(),
        answer: answer(trajectory),
        process_rewards: trajectory.process_rewards.clone(),
        outcome_reward: trajectory.outcome_reward,
        correct: is_correct(question, trajectory),
        truncated: false,
        logprob: trajectory.logprob,
        lens: lens_record(&trajectory.lens),
    }
}

/// The tokens of a lens as records have them: text and probability.
pub fn lens_record(lens: &[Vec<LensToken>]) -> Vec<Vec<(String, f32)>> {
    let token = |token: &LensToken| (token.text.clone(), token.probability);
    lens.iter().map(|tokens| tokens.iter().map(token).collect()).collect()
}

fn beam_record(question: &Question, params: &SamplingParams, reply: &Reply) -> Option<BeamResult> {
    let (beam, size) = (reply.beam.as_ref()?, params.beam?);
    let process_rewards = beam.best.process_rewards.clone().unwrap_or_default();
    Some(BeamResult {
        width: size.width.get() as u32,
        candidates: size.candidates.get() as u32,
        latent_steps: beam.best.thoughts as u32,
        text: beam.best.text.clone(),
        answer: answer(&beam.best),
        reward: process_rewards.iter().sum(),
        process_rewards,
        outcome_reward: beam.best.outcome_reward,
        correct: is_correct(question, &beam.best),
        steps: beam.cost.steps,
        flops: beam.cost.flops,
    })
}

/// Stage times as a run directory records them.
pub fn seconds(stages: StageSeconds) -> Seconds {
    let StageSeconds { prefill, thoughts, scores, answers, beam, total } = stages;
    Seconds { prefill, thoughts, scores, answers, beam, total }
}
