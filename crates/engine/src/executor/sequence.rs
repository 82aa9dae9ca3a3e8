//! A sequence in progress, and what it feeds next.

use std::sync::Arc;

use model::Sequence;
use smallvec::SmallVec;
use tensor::Tensor;
use tensor::ops::TokenLogprob;

use crate::sampler::RowId;

/// The tokens of an answer, stored in place while they are few.
pub type AnswerTokens = SmallVec<[u32; 16]>;

/// A sequence to begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceSpec {
    /// Index of its question among the sampler's items.
    pub(crate) item: usize,
    pub(crate) id: RowId,
    /// False for the greedy trajectory, which no perturbation touches.
    pub(crate) perturbed: bool,
}

/// The thoughts that were made at one step.
pub(crate) struct MadeThoughts {
    /// As they are fed: (thoughts, width), on the device.
    pub(crate) fed: Tensor,
    /// As they were before noise was added, where that is kept.
    pub(crate) noiseless: Option<Tensor>,
}

/// A thought on the device.
#[derive(Clone)]
pub(crate) struct ThoughtRef {
    pub(crate) made: Arc<MadeThoughts>,
    pub(crate) row: usize,
}

/// A hidden state on the device.
#[derive(Clone)]
pub(crate) struct HiddenRef {
    pub(crate) outputs: Arc<Tensor>,
    pub(crate) row: usize,
}

/// One trajectory in progress.
#[derive(Clone)]
pub(crate) struct SequenceState {
    pub(crate) spec: SequenceSpec,
    /// Its keys and values.
    pub(crate) kv: Sequence,
    pub(crate) thoughts: SmallVec<[ThoughtRef; 8]>,
    /// The most thoughts that it may have; `None` until it has passed its prompt.
    pub(crate) limit: Option<usize>,
    /// Passes over latent positions so far, where these are looped.
    pub(crate) loops: usize,
    /// Consecutive thoughts of low entropy, where Cold Stop counts them.
    pub(crate) certain: u32,
    /// The tokens that the LM head predicts where each thought is made, if its request has a lens.
    pub(crate) lens: Vec<Vec<TokenLogprob>>,
    /// The last thought has not been fed yet; it goes with the end tokens, in a clean pass.
    pub(crate) pending: bool,
    pub(crate) tokens: AnswerTokens,
    pub(crate) logprob: f32,
    pub(crate) next: NextInput,
    /// It is done with its last thought.
    pub(crate) without_answer: bool,
}

impl SequenceState {
    /// A sequence that begins with its prompt.
    pub(crate) fn new(spec: SequenceSpec) -> Self {
        Self {
            spec,
            kv: Sequence::default(),
            thoughts: SmallVec::new(),
            limit: None,
            loops: 0,
            certain: 0,
            lens: Vec::new(),
            pending: false,
            tokens: AnswerTokens::new(),
            logprob: 0.0,
            next: NextInput::Prompt,
            without_answer: false,
        }
    }

    /// Adds its next thought, which is to be fed next: alone, or with the end tokens if it is the
    /// last.
    pub(crate) fn push_thought(&mut self, thought: ThoughtRef) {
        self.thoughts.push(thought);
        self.pending = self.limit == Some(self.thoughts.len());
        self.next = NextInput::Thought;
        if self.pending {
            self.end_thoughts();
        }
    }

    /// Has these thoughts in place of those before, to be fed together: in a pass of their own, or
    /// with the end tokens if they are the last.
    pub(super) fn set_thoughts(&mut self, thoughts: SmallVec<[ThoughtRef; 8]>, are_last: bool) {
        self.thoughts = thoughts;
        self.next = NextInput::Thought;
        self.pending = are_last;
        if are_last {
            self.end_thoughts();
        }
    }

    /// The position in the random function of what is fed next. Loops over the same positions count
    /// on, so that no random number is used twice.
    pub(crate) fn random_position(&self) -> usize {
        self.kv.len() + self.loops * self.thoughts.len()
    }

    /// The thought that is fed next, if thoughts are fed one by one.
    pub(crate) fn next_thought(&self) -> ThoughtRow<'_> {
        ThoughtRow { sequence: self, position: self.random_position(), index: 0 }
    }

    /// Goes on to the answer, if there is to be one.
    pub(super) fn end_thoughts(&mut self) {
        self.next = if self.without_answer { NextInput::Done } else { NextInput::End };
    }
}

/// A thought that is about to be fed, as the sampler sees it.
#[derive(Clone, Copy)]
pub(crate) struct ThoughtRow<'s> {
    pub(crate) sequence: &'s SequenceState,
    /// Its position in the random function.
    pub(crate) position: usize,
    /// Its index among the thoughts that are fed together.
    pub(crate) index: usize,
}

/// What a sequence feeds at the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextInput {
    Prompt,
    /// Its last thought; where latent positions are looped, the thoughts of all of them.
    Thought,
    /// Nothing: it forks the sequence of this index, which feeds their last thought.
    Fork(usize),
    /// What `Thought` would feed, if that is pending, and the end tokens.
    End,
    Token(u32),
    /// The token of this index among the pending ones, which the host has not read.
    PendingToken(usize),
    /// Nothing: its last token is pending.
    AwaitLastToken,
    /// Nothing: sequences at earlier stages come first.
    Wait,
    /// Nothing: the answer is complete.
    Done,
}

impl NextInput {
    /// The order in which the sequences of an aligned batch are taken.
    pub(crate) fn stage(self) -> u8 {
        match self {
            Self::Prompt => 0,
            Self::Thought | Self::Fork(_) => 1,
            Self::End | Self::Token(_) | Self::PendingToken(_) | Self::AwaitLastToken => 2,
            Self::Wait | Self::Done => 3,
        }
    }

    /// Whether a thought may still be made.
    pub(crate) fn is_before_end(self) -> bool {
        matches!(self, Self::Prompt | Self::Thought | Self::Fork(_))
    }

    /// Whether it is part of an answer, which only the LM head reads.
    pub(crate) fn is_answer(self) -> bool {
        matches!(self, Self::End | Self::Token(_) | Self::PendingToken(_))
    }
}
