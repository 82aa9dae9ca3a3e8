//! Measures whether a reasoner uses its thoughts: the greedy run of each question, with its
//! thoughts replaced.
//!
//! An unmodified run produces the thoughts and the answer of every question. A second run feeds the
//! replacements, as trajectories of one request per question, so that each prompt is processed only
//! once. The number of thoughts is that of the unmodified run. Keys and values at the positions of
//! thoughts are computed from the replacements; those of the prompt are unchanged.

mod rounding;

use std::num::NonZeroUsize;

use data::Question;
use engine::{Engine, EngineError, LatentLength, Output, Perturbation, Request, SamplingParams};
use record::{AblatedAnswer, AblatedQuestion, Ablation, AblationKind};
use report::interval::Bootstrap;
use tensor::Tensor;
use tensor::rng::{RngKey, Site};

use self::rounding::Rounding;
use crate::{Error, grade};

/// Replaces the thoughts of a reasoner's greedy runs.
#[derive(Clone, Debug)]
pub struct Ablator<'a> {
    /// The kinds of replacement, without duplicates.
    pub kinds: &'a [AblationKind],
    /// Lengths and limits of the run whose thoughts are replaced. The number of samples and the
    /// perturbation are ignored; the seed determines the shuffled orders.
    pub params: SamplingParams,
}

impl Ablator<'_> {
    /// Returns an error for a model without thoughts.
    pub fn check(&self, engine: &Engine) -> Result<(), Error> {
        let family = engine.reasoner().method.family;
        match self.params.length {
            LatentLength::None if !self.kinds.is_empty() => {
                Err(EngineError::NothingToReplace { family }.into())
            }
            _ => Ok(()),
        }
    }

    /// Runs all questions unchanged and with each replacement. Stores the thoughts of all questions
    /// in memory, (thoughts, width) floats each.
    pub fn run(&self, engine: &Engine, questions: &[Question]) -> Result<Ablation, Error> {
        self.check(engine)?;
        let engine = engine.clone().without_reward_model();
        let request = |question| grade::request(question, self.greedy_params(1));
        let clean = replies(&engine, questions.iter().map(request).collect())?;
        let thoughts: Vec<Tensor> =
            clean.iter().map(|reply| reply.trajectories[0].latents.clone()).collect();
        let mut replacements = Replacements::new(questions, &thoughts, self.params.seed);
        if self.kinds.contains(&AblationKind::Round) {
            let rounding = Rounding::new(engine.reasoner())?;
            for thoughts in &thoughts {
                replacements.rounded.push(rounding.round(thoughts)?);
            }
        }
        let forced = |(i, question): (usize, &Question)| {
            let thoughts = self.kinds.iter().map(|&kind| replacements.of(kind, i));
            Request {
                forced_thoughts: thoughts.collect(),
                ..grade::request(question, self.greedy_params(self.kinds.len()))
            }
        };
        let ablated = if self.kinds.is_empty() {
            clean.clone()
        } else {
            replies(&engine, questions.iter().enumerate().map(forced).collect())?
        };
        let answer = |question: &Question, reply: &Output, k: usize| {
            let record = grade::trajectory_record(question, &reply.trajectories[k]);
            AblatedAnswer { correct: record.is_correct(), answer: record.answer }
        };
        let rows = questions.iter().zip(clean.iter().zip(&ablated));
        let rows = rows.map(|(question, (clean, ablated))| AblatedQuestion {
            id: question.id,
            latent_steps: clean.trajectories[0].thoughts as u32,
            clean: answer(question, clean, 0),
            ablated: (0..self.kinds.len()).map(|k| answer(question, ablated, k)).collect(),
        });
        let seed = self.params.seed;
        Ok(report::ablation::measure(self.kinds, rows.collect(), seed, &Bootstrap::default()))
    }

    /// Parameters of `samples` trajectories without perturbation.
    fn greedy_params(&self, samples: usize) -> SamplingParams {
        SamplingParams {
            samples: NonZeroUsize::new(samples).unwrap_or(NonZeroUsize::MIN),
            greedy: false,
            adaptive: None,
            search: None,
            perturbation: Perturbation::None,
            ..self.params
        }
    }
}

/// The replies of all requests, or the first error.
fn replies(engine: &Engine, requests: Vec<Request>) -> Result<Vec<Output>, Error> {
    let mut replies = Vec::with_capacity(requests.len());
    engine.run(&requests, |_, reply| -> Result<(), Error> {
        replies.push(reply?);
        Ok(())
    })?;
    Ok(replies)
}

/// The thoughts of all questions and their replacements. Questions without thoughts are unchanged.
struct Replacements<'a> {
    questions: &'a [Question],
    /// The thoughts of each question, of shape (thoughts, width).
    thoughts: &'a [Tensor],
    /// The mean over the questions with a thought at a position, of shape (positions, width).
    mean: Tensor,
    /// The nearest token embeddings of the thoughts of each question; empty unless needed.
    rounded: Vec<Tensor>,
    seed: u64,
}

impl<'a> Replacements<'a> {
    fn new(questions: &'a [Question], thoughts: &'a [Tensor], seed: u64) -> Self {
        let mean = mean_thoughts(thoughts);
        Self { questions, thoughts, mean, rounded: Vec::new(), seed }
    }

    /// The replacement for the thoughts of question `i`, with the same number of thoughts.
    fn of(&self, kind: AblationKind, i: usize) -> Tensor {
        let own = &self.thoughts[i];
        let count = own.rows();
        match kind {
            AblationKind::Zero => Tensor::zeros(count, own.cols()),
            AblationKind::Mean => self.mean.select(0..count),
            AblationKind::Freeze => own.select((0..count).map(|_| 0)),
            AblationKind::Shuffle => {
                own.select(shuffled(self.questions[i].id, self.seed, count).into_iter())
            }
            AblationKind::Round => self.rounded[i].clone(),
            AblationKind::Swap => {
                let donor = &self.thoughts[donor(self.thoughts, i)];
                // The thoughts of a donor with fewer thoughts are repeated cyclically.
                donor.select((0..count).map(|t| t % donor.rows().max(1)))
            }
        }
    }
}

/// The question whose thoughts question `i` receives: the next question with thoughts, cyclically.
/// Among the questions with thoughts this is a derangement, unless there is only one.
fn donor(thoughts: &[Tensor], i: usize) -> usize {
    let after = (1..=thoughts.len()).map(|step| (i + step) % thoughts.len());
    after.into_iter().find(|&j| thoughts[j].rows() > 0).unwrap_or(i)
}

/// The order in which the thoughts of a question are fed: a permutation of `0..count`, not the
/// identity if another exists. Draws are keyed by seed, question and position; the identity is
/// rejected and drawn again under the next trajectory number.
fn shuffled(question: u32, seed: u64, count: usize) -> Vec<usize> {
    let identity: Vec<usize> = (0..count).collect();
    if count < 2 {
        return identity;
    }
    let order = |attempt: u32| {
        let mut order = identity.clone();
        for last in (1..count).rev() {
            let key = RngKey { seed, question, trajectory: attempt, position: last as u32 };
            order.swap(last, key.uniform_int(Site::Order, 0, last));
        }
        order
    };
    // Each attempt is the identity with probability at most one half.
    (0..64).map(order).find(|order| *order != identity).unwrap_or_else(|| {
        let mut rotated = identity.clone();
        rotated.rotate_left(1);
        rotated
    })
}

/// The mean thought at each position, summed in f64 in question order.
fn mean_thoughts(thoughts: &[Tensor]) -> Tensor {
    let width = thoughts.iter().map(Tensor::cols).max().unwrap_or(0);
    let positions = thoughts.iter().map(Tensor::rows).max().unwrap_or(0);
    let mut mean = Tensor::zeros(0, width);
    for t in 0..positions {
        let mut sum = vec![0.0; width];
        let with_thought = thoughts.iter().filter(|own| own.rows() > t);
        let count = with_thought.clone().count() as f64;
        for own in with_thought {
            sum.iter_mut().zip(own.row(t)).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        mean.push(&sum.iter().map(|sum| (sum / count) as f32).collect::<Vec<_>>());
    }
    mean
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn thoughts(counts: &[usize]) -> Vec<Tensor> {
        let own = |(i, &count): (usize, &usize)| {
            let data = (0..2 * count).map(|x| (100 * i + x) as f32).collect();
            Tensor::from_vec(count, 2, data)
        };
        counts.iter().enumerate().map(own).collect()
    }

    #[test]
    fn swapping_is_a_derangement() {
        for counts in [&[1, 2, 3][..], &[2; 2], &[0, 4, 0, 1, 2, 0], &[3; 17]] {
            let thoughts = thoughts(counts);
            let with = (0..counts.len()).filter(|&i| counts[i] > 0);
            let donors: BTreeSet<usize> = with.clone().map(|i| donor(&thoughts, i)).collect();
            assert_eq!(donors, with.clone().collect(), "{counts:?}");
            assert!(with.clone().all(|i| donor(&thoughts, i) != i), "{counts:?}");
        }
    }

    #[test]
    fn shuffled_orders_are_permutations_other_than_the_identity() {
        let mut seen = BTreeSet::new();
        for question in 0..200 {
            let order = shuffled(question, 7, 3);
            assert_ne!(order, [0, 1, 2]);
            assert_eq!(BTreeSet::from_iter(order.clone()).len(), 3);
            assert_eq!(order, shuffled(question, 7, 3), "deterministic");
            seen.insert(order);
        }
        assert_eq!(seen.len(), 5, "all other orders occur");
        assert_eq!(shuffled(0, 0, 2), [1, 0]);
        assert_eq!(shuffled(0, 0, 1), [0]);
        assert_eq!(shuffled(0, 0, 0), [0; 0]);
    }

    #[test]
    fn replacements_have_as_many_thoughts_as_the_question() {
        let thoughts = thoughts(&[3, 1, 0, 2]);
        let questions: Vec<Question> = (0..4)
            .map(|id| Question {
                id,
                kind: data::answer::AnswerKind::Number,
                text: String::new(),
                gold: String::new(),
                steps: Vec::new(),
            })
            .collect();
        let mut all = Replacements::new(&questions, &thoughts, 0);
        all.rounded = thoughts.clone();
        for kind in AblationKind::ALL {
            for (i, own) in thoughts.iter().enumerate() {
                assert_eq!(all.of(kind, i).rows(), own.rows(), "{kind} of question {i}");
            }
        }
        // Position 1 exists in questions 0 and 3, position 2 in question 0.
        assert_eq!(all.of(AblationKind::Mean, 0).row(1), [152.0, 153.0]);
        assert_eq!(all.of(AblationKind::Mean, 0).row(2), [4.0, 5.0]);
        assert_eq!(all.of(AblationKind::Freeze, 0).row(2), thoughts[0].row(0));
        assert_eq!(all.of(AblationKind::Zero, 3).data(), [0.0; 4]);
        assert_eq!(all.of(AblationKind::Shuffle, 3), thoughts[3].select([1, 0].into_iter()));
        // Question 0 receives the single thought of question 1, three times.
        assert_eq!(all.of(AblationKind::Swap, 0), thoughts[1].select([0; 3].into_iter()));
        // Question 2 has no thoughts; question 1 receives the first thought of question 3.
        assert_eq!(all.of(AblationKind::Swap, 1), thoughts[3].select([0].into_iter()));
    }
}
