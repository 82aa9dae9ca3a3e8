//! A request: one question with its sampling parameters, and a way to cancel it.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use data::answer::AnswerKind;
use tensor::Tensor;
use tensor::ops::TokenSampling;

use crate::batch::BatchItem;
use crate::prompt::Prompt;
use crate::sampling_params::SamplingParams;

/// One question and everything that determines its trajectories.
///
/// Requests with different parameters share forward passes; a request's output does not depend on
/// the other requests.
///
/// ```no_run
/// use std::time::Duration;
/// use latent_tts_engine::{CancelToken, Engine, EngineError, Request, SamplingParams};
///
/// # fn example(engine: &Engine) -> Result<(), Box<dyn std::error::Error>> {
/// let params = SamplingParams { samples: 64.try_into()?, ..engine.default_params() };
/// let cancel = CancelToken::with_timeout(Duration::from_secs(10));
/// let request = Request { cancel, ..Request::new("2 + 3?", params) };
/// match engine.solve(&request) {
///     Err(EngineError::Cancelled { .. }) => println!("not within ten seconds"),
///     reply => println!("{:?}", reply?.answer()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    /// The question's index in its data set; together with the seed it is the key of the request's
    /// random numbers. Two requests with the same id, seed and parameters get the same
    /// trajectories.
    pub id: u32,
    /// The question's text, without the family's prompt template.
    pub question: String,
    /// The kind of answer to extract from the decoded text.
    pub answer_kind: AnswerKind,
    /// Number, perturbation and length of the trajectories.
    pub params: SamplingParams,
    /// Thoughts to feed instead of the computed ones: trajectory k is fed the rows of element k,
    /// each (thoughts, width) and on the host, and has that number of thoughts. Trajectories beyond
    /// the list and the greedy one compute their thoughts.
    pub forced_thoughts: Arc<[Tensor]>,
    /// Reads thoughts through the LM head, into [`Trajectory::lens`](crate::Trajectory::lens),
    /// without changing any other result.
    pub lens: Option<Lens>,
    /// Samples the answer tokens of the perturbed trajectories, in addition to any perturbation of
    /// their thoughts. Reinforcement learning explores with both.
    pub answer_sampling: Option<AnswerSampling>,
    /// Checked between forward passes; the sequences of a cancelled request leave the batch.
    pub cancel: CancelToken,
}

impl Request {
    /// A request for a numeric answer, with id 0.
    pub fn new(question: impl Into<String>, params: SamplingParams) -> Self {
        Self {
            id: 0,
            question: question.into(),
            answer_kind: AnswerKind::Number,
            params,
            forced_thoughts: Arc::default(),
            lens: None,
            answer_sampling: None,
            cancel: CancelToken::default(),
        }
    }

    /// The request with its prompt, as a batch item.
    pub(crate) fn item<'a>(&'a self, prompt: &'a Prompt) -> BatchItem<'a> {
        let Self { params, forced_thoughts, cancel, .. } = self;
        let lens = self.lens;
        let answer_sampling = self.answer_sampling;
        BatchItem { prompt, params, forced_thoughts, lens, answer_sampling, cancel }
    }
}

/// How the answers of perturbed trajectories are sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AnswerSampling {
    /// Temperature and top-p of each token.
    pub tokens: TokenSampling,
    /// Number of consecutive trajectories that share the random numbers of their thoughts and
    /// differ only in their answers.
    pub per_thoughts: NonZeroU32,
}

/// The logit lens: the tokens with the largest logits at the hidden state from which a thought is
/// computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lens {
    /// Number of tokens per thought.
    pub tokens: NonZeroUsize,
    /// Applies to all trajectories instead of only the greedy one.
    pub sampled: bool,
}

/// Cancels requests. Clones share one state: cancelling any of them cancels all.
///
/// The engine checks it between forward passes, so a cancelled request stops after at most one pass
/// over its sequences.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    cancelled: AtomicBool,
    deadline: Option<Instant>,
    parents: Vec<CancelToken>,
    #[cfg(test)]
    checks: CheckCounter,
}

/// Lets tests cancel a request at any of the engine's checks.
#[cfg(test)]
#[derive(Debug, Default)]
struct CheckCounter {
    count: AtomicUsize,
    /// The check, counted from 0, from which on the token is cancelled.
    cancel_at: Option<usize>,
}

impl CancelToken {
    /// A token that also cancels itself after `limit` from now.
    pub fn with_timeout(limit: Duration) -> Self {
        let deadline = Instant::now().checked_add(limit);
        Self(Arc::new(CancelState { deadline, ..CancelState::default() }))
    }

    /// A child token: cancelled with this one, and cancellable independently.
    pub fn child(&self) -> Self {
        Self(Arc::new(CancelState { parents: vec![self.clone()], ..CancelState::default() }))
    }

    /// A token that is cancelled when either of the two is.
    pub(crate) fn joined(&self, other: &Self) -> Self {
        let parents = vec![self.clone(), other.clone()];
        Self(Arc::new(CancelState { parents, ..CancelState::default() }))
    }

    /// Cancels every request that holds this token, a clone or a child of it.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called here or on a parent, or a time limit has passed.
    pub fn is_cancelled(&self) -> bool {
        #[cfg(test)]
        self.count_check();
        let CancelState { cancelled, deadline, parents, .. } = &*self.0;
        cancelled.load(Ordering::Relaxed)
            || deadline.is_some_and(|deadline| Instant::now() >= deadline)
            || parents.iter().any(Self::is_cancelled)
    }
}

#[cfg(test)]
impl CancelToken {
    /// A token that is cancelled from check number `check` on, counted from 0.
    pub(crate) fn at_check(check: usize) -> Self {
        let checks = CheckCounter { cancel_at: Some(check), ..CheckCounter::default() };
        Self(Arc::new(CancelState { checks, ..CancelState::default() }))
    }

    /// Number of checks so far.
    pub(crate) fn checks(&self) -> usize {
        self.0.checks.count.load(Ordering::Relaxed)
    }

    fn count_check(&self) {
        let CheckCounter { count, cancel_at } = &self.0.checks;
        let check = count.fetch_add(1, Ordering::Relaxed);
        if cancel_at.is_some_and(|first| check >= first) {
            self.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_their_state() {
        let token = CancelToken::default();
        let clone = token.clone();
        assert!(!clone.is_cancelled());
        token.cancel();
        assert!(clone.is_cancelled());
    }

    #[test]
    fn a_child_ends_with_its_parent_and_not_the_other_way_round() {
        let parent = CancelToken::default();
        let [first, second] = [parent.child(), parent.child()];
        first.cancel();
        assert!(first.is_cancelled() && !parent.is_cancelled() && !second.is_cancelled());
        parent.cancel();
        assert!(second.is_cancelled());
    }

    #[test]
    fn a_timeout_of_zero_has_passed() {
        assert!(CancelToken::with_timeout(Duration::ZERO).is_cancelled());
        assert!(!CancelToken::with_timeout(Duration::from_secs(3600)).is_cancelled());
    }
}
