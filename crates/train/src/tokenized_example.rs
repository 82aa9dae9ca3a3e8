//! One example as tokens: what is read, how long to think, what is to be said.

/// An example, ready to be learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizedExample {
    /// Its number in the data, which names its random numbers.
    pub id: u32,
    /// Read first.
    pub prompt: Vec<u32>,
    /// Thoughts after it.
    pub thoughts: usize,
    /// Tokens after the thoughts.
    pub completion: Vec<u32>,
    /// How many tokens of the tail are given; the others are learned.
    pub loss_start: usize,
    /// The results of the solution's steps, for a loss on the thoughts.
    pub step_results: Vec<i64>,
}

impl TokenizedExample {
    /// Positions that it takes; the last token is never fed.
    pub fn len(&self) -> usize {
        self.prompt.len() + self.thoughts + self.completion.len().saturating_sub(1)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens that are learned.
    pub fn loss_tokens(&self) -> usize {
        self.completion.len().saturating_sub(self.loss_start)
    }
}
