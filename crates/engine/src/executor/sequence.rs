//! A sequence in progress, and its next input.

use std::sync::Arc;

use model::Sequence;
use smallvec::SmallVec;
use tensor::Tensor;
use tensor::ops::TokenLogprob;

use crate::sampler::SequenceId;

/// The tokens of an answer, stored inline while there are few.
pub type AnswerTokens = SmallVec<[u32; 16]>;

/// The specification of a new sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceSpec {
    /// Index of its question among the sampler's items.
    pub(crate) item: usize,
    pub(crate) id: SequenceId,
    /// False for the greedy trajectory, which is never perturbed.
    pub(crate) perturbed: bool,
}

/// The thoughts computed in one step.
pub(crate) struct MadeThoughts {
    /// As they are fed: (thoughts, width), on the device.
    pub(crate) fed: Tensor,
    /// Without noise, if that is stored.
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

/// The state of one trajectory in progress.
#[derive(Clone)]
pub(crate) struct SequenceState {
    pub(crate) spec: SequenceSpec,
    /// Its keys and values.
    pub(crate) kv: Sequence,
    pub(crate) thoughts: SmallVec<[ThoughtRef; 8]>,
    /// Maximum number of thoughts; `None` until its prompt is computed.
    pub(crate) limit: Option<usize>,
    /// Passes over latent positions so far, if these are looped.
    pub(crate) loops: usize,
    /// Number of consecutive low-entropy thoughts, for Cold Stop.
    pub(crate) certain: u32,
    /// The tokens that the LM head predicts where each thought is computed, if its request has a
    /// lens.
    pub(crate) lens: Vec<Vec<TokenLogprob>>,
    /// The hidden states from which its thoughts and then its answer's tokens were computed, if
    /// they are stored.
    pub(crate) states: Vec<HiddenRef>,
    /// Whether the last thought has not been fed yet; it is fed with the end tokens, unperturbed.
    pub(crate) pending: bool,
    pub(crate) tokens: AnswerTokens,
    pub(crate) logprob: f32,
    pub(crate) next: NextInput,
    /// Whether it ends after its last thought, without an answer.
    pub(crate) without_answer: bool,
}

impl SequenceState {
    /// A new sequence, whose first input is its prompt.
    pub(crate) fn new(spec: SequenceSpec) -> Self {
        Self {
            spec,
            kv: Sequence::default(),
            thoughts: SmallVec::new(),
            limit: None,
            loops: 0,
            certain: 0,
            lens: Vec::new(),
            states: Vec::new(),
            pending: false,
            tokens: AnswerTokens::new(),
            logprob: 0.0,
            next: NextInput::Prompt,
            without_answer: false,
        }
    }

    /// Appends a thought, which is fed next: alone, or with the end tokens if it is the last.
    pub(crate) fn push_thought(&mut self, thought: ThoughtRef) {
        self.thoughts.push(thought);
        self.pending = self.limit == Some(self.thoughts.len());
        self.next = NextInput::Thought;
        if self.pending {
            self.end_thoughts();
        }
    }

    /// Replaces its thoughts by these, which are fed together: in their own pass, or with the end
    /// tokens if they are the last.
    pub(super) fn set_thoughts(&mut self, thoughts: SmallVec<[ThoughtRef; 8]>, are_last: bool) {
        self.thoughts = thoughts;
        self.next = NextInput::Thought;
        self.pending = are_last;
        if are_last {
            self.end_thoughts();
        }
    }

    /// The position of the next input in the random number key. Loops over the same positions keep
    /// counting, so that no random number is reused.
    pub(crate) fn random_position(&self) -> usize {
        self.kv.len() + self.loops * self.thoughts.len()
    }

    /// The next thought to feed, if thoughts are fed one by one.
    pub(crate) fn next_thought(&self) -> ThoughtRow<'_> {
        ThoughtRow { sequence: self, position: self.random_position(), index: 0 }
    }

    /// Ends the thoughts and continues with the answer, if there is one.
    pub(super) fn end_thoughts(&mut self) {
        self.next = if self.without_answer { NextInput::Done } else { NextInput::End };
    }
}

/// A thought to be fed, as seen by the sampler.
#[derive(Clone, Copy)]
pub(crate) struct ThoughtRow<'s> {
    pub(crate) sequence: &'s SequenceState,
    /// Its position in the random number key.
    pub(crate) position: usize,
    /// Its index among the thoughts that are fed together.
    pub(crate) index: usize,
}

/// The input of a sequence in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextInput {
    Prompt,
    /// Its last thought, or the thoughts of all latent positions if these are looped.
    Thought,
    /// Nothing: it forks the sequence of this index, which feeds their last thought.
    Fork(usize),
    /// The input of `Thought`, if pending, and the end tokens.
    End,
    Token(u32),
    /// The pending token of this index, which the host has not read.
    PendingToken(usize),
    /// Nothing: its last token is pending.
    AwaitLastToken,
    /// Nothing: sequences at earlier stages come first.
    Wait,
    /// Nothing: the answer is complete.
    Done,
}

impl NextInput {
    /// The stage of the input: aligned batches run the lowest stage first.
    pub(crate) fn stage(self) -> u8 {
        match self {
            Self::Prompt => 0,
            Self::Thought | Self::Fork(_) => 1,
            Self::End | Self::Token(_) | Self::PendingToken(_) | Self::AwaitLastToken => 2,
            Self::Wait | Self::Done => 3,
        }
    }

    /// Whether a thought may still be computed.
    pub(crate) fn is_before_end(self) -> bool {
        matches!(self, Self::Prompt | Self::Thought | Self::Fork(_))
    }

    /// Whether it is part of an answer, which only the LM head reads.
    pub(crate) fn is_answer(self) -> bool {
        matches!(self, Self::End | Self::Token(_) | Self::PendingToken(_))
    }
}
