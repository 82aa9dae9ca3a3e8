//! Handwritten and random candidates for the tests of this crate.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::Candidate;

/// A candidate that consists of its fields.
#[derive(Debug, Clone, Default)]
pub(crate) struct TestCandidate {
    pub(crate) number: u32,
    pub(crate) answer: Option<String>,
    pub(crate) process_rewards: Option<Vec<f32>>,
    pub(crate) outcome_reward: Option<f32>,
    pub(crate) logprob: Option<f32>,
    pub(crate) signals: BTreeMap<String, f32>,
}

impl Candidate for TestCandidate {
    fn number(&self) -> u32 {
        self.number
    }

    fn answer(&self) -> Option<&str> {
        self.answer.as_deref()
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

/// A candidate; an empty string means no answer.
pub(crate) fn candidate(number: u32, answer: &str, rewards: Option<&[f32]>) -> TestCandidate {
    TestCandidate {
        number,
        answer: (!answer.is_empty()).then(|| answer.into()),
        process_rewards: rewards.map(Into::into),
        ..TestCandidate::default()
    }
}

/// Numbered candidates without rewards.
pub(crate) fn unscored(answers: &[&str]) -> Vec<TestCandidate> {
    answers.iter().zip(0..).map(|(answer, number)| candidate(number, answer, None)).collect()
}

/// Numbered candidates with one process reward each.
pub(crate) fn scored(answers: &[(&str, f32)]) -> Vec<TestCandidate> {
    let one = |((answer, reward), number): (&(&str, f32), u32)| {
        candidate(number, answer, Some(&[*reward]))
    };
    answers.iter().zip(0..).map(one).collect()
}

/// Up to eight numbered candidates with few distinct answers and rewards, so that ties are common.
pub(crate) fn candidates() -> impl Strategy<Value = Vec<TestCandidate>> {
    let reward = || (-2i8..3).prop_map(f32::from);
    let rewards = prop::option::weighted(0.9, prop::collection::vec(reward(), 0..3));
    let logprob = prop::option::weighted(0.9, (-3i8..1).prop_map(f32::from));
    let one = (prop::sample::select(vec!["", "1", "2", "3"]), rewards, logprob);
    let one = one.prop_map(|(answer, rewards, logprob)| TestCandidate {
        logprob,
        ..candidate(0, answer, rewards.as_deref())
    });
    prop::collection::vec(one, 0..9).prop_map(|mut all| {
        all.iter_mut().zip(0..).for_each(|(candidate, number)| candidate.number = number);
        all
    })
}
