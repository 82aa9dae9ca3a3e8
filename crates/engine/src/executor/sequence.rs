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
    /// The tokens that the LM head predicts where each thought is made, if its request has a lens.
    pub(crate) lens: Vec<Vec<TokenLogprob>>,
    /// The hidden states from which its thoughts were made and its answer's tokens read, in that
    /// order, where they are kept.
    pub(crate) states: Vec<HiddenRef>,
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
            lens: Vec::new(),
            states: Vec::new(),
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

    /// Goes on to the answer, if there is to be one.
    pub(super) fn end_thoughts(&mut self) {
        self.next = if self.without_answer { NextInput::Done } else { NextInput::End };
    }
}

/// What a sequence feeds at the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextInput {
    Prompt,
    /// Its last thought.
    Thought,
    /// Nothing: it forks the sequence of this index, which feeds their last thought.
    Fork(usize),
    /// The last thought, if it is pending, and the end tokens.
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
