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
    /// Index of the first completion token that is part of the loss; those before it are given.
    pub loss_start: usize,
    /// What the digit heads predict from each thought; thoughts beyond the last have no target.
    pub thought_targets: Vec<Option<ThoughtTarget>>,
    /// Tokens of the solution's steps, the targets of the step decoder.
    pub step_tokens: Vec<Vec<u32>>,
    /// Who solves it in self-distillation.
    pub role: DistillRole,
    /// Index of the completion token at which student and teacher of the same id are compared.
    pub compared_at: Option<usize>,
}

/// The two ways in which self-distillation (CODI) solves an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DistillRole {
    /// Through latent thoughts; every other method has students only.
    #[default]
    Student,
    /// By its chain of thought in text.
    Teacher,
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

    /// The rows that it takes.
    pub fn rows(&self) -> ExampleRows {
        let logits = self.loss_tokens();
        ExampleRows { fed: self.len(), output: self.thoughts + logits, logits }
    }

    /// Completion tokens that are part of the loss.
    pub fn loss_tokens(&self) -> usize {
        self.completion.len().saturating_sub(self.loss_start)
    }
}
