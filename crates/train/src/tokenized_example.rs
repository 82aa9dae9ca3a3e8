//! One training example as tokens.

/// A prompt, a number of latent thoughts, and a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizedExample {
    /// Index in the data; part of the RNG key of dropout masks.
    pub id: u32,
    /// Prompt tokens.
    pub prompt: Vec<u32>,
    /// Latent thoughts between prompt and completion.
    pub thoughts: usize,
    /// Tokens after the thoughts.
    pub completion: Vec<u32>,
    /// Index of the first completion token that is part of the loss; those before it are given.
    pub loss_start: usize,
    /// Results of the solution's steps, the targets of the digit head.
    pub step_results: Vec<i64>,
}

impl TokenizedExample {
    /// Positions that are fed to the decoder; the last completion token is only a target.
    pub fn len(&self) -> usize {
        self.prompt.len() + self.thoughts + self.completion.len().saturating_sub(1)
    }

    /// Whether nothing is fed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Completion tokens that are part of the loss.
    pub fn loss_tokens(&self) -> usize {
        self.completion.len().saturating_sub(self.loss_start)
    }
}
