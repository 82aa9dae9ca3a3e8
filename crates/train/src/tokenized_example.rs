//! One training example as tokens.

use crate::digit_head::ThoughtTarget;
use crate::methods::ExampleRows;

/// A prompt, a number of latent thoughts, and a completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizedExample {
    /// Index in the data; part of the RNG key of dropout masks.
    pub id: u32,
    /// Prompt tokens.
    pub prompt: Vec<u32>,
    /// Latent thoughts between prompt and completion.
    pub thoughts: usize,
    /// Tokens after the thoughts.
    pub completion: Vec<u32>,
    /// Index of the first completion token in the loss; earlier ones are context only.
    pub loss_start: usize,
    /// Target of the digit heads per thought; thoughts beyond the end of the list have none.
    pub thought_targets: Vec<Option<ThoughtTarget>>,
    /// Tokens of the solution's steps, the targets of the step decoder.
    pub step_tokens: Vec<Vec<u32>>,
    /// Student or teacher in self-distillation.
    pub role: DistillRole,
    /// Index of the completion token at which student and teacher of the same id are compared.
    pub compared_at: Option<usize>,
}

/// The two roles of self-distillation (CODI).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DistillRole {
    /// Uses latent thoughts. The only role in other methods.
    #[default]
    Student,
    /// Uses a chain of thought in text.
    Teacher,
}

impl TokenizedExample {
    /// Number of input positions; the last completion token is only a target.
    pub fn len(&self) -> usize {
        self.prompt.len() + self.thoughts + self.completion.len().saturating_sub(1)
    }

    /// Whether there are no input positions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers of rows of this example.
    pub fn rows(&self) -> ExampleRows {
        let logits = self.loss_tokens();
        ExampleRows { fed: self.len(), output: self.thoughts + logits, logits }
    }

    /// Number of completion tokens in the loss.
    pub fn loss_tokens(&self) -> usize {
        self.completion.len().saturating_sub(self.loss_start)
    }
}
