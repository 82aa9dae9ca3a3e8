//! Tokenization of examples in COCONUT's layout.
//!
//! ```text
//! question \n [begin-latent] thoughts [end-latent] step \n … ### answer [eos]   latent
//! question \n                                      step \n … ### answer [eos]   CoT and no-CoT
//! ```

use model::{ModelError, Tokenizer};

use crate::curriculum::CurriculumSample;
use crate::dataset::TrainExample;
use crate::tokenized_example::TokenizedExample;
use crate::worked_step::step_result;

/// Special tokens of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentMarkers {
    /// Before the first thought.
    pub begin_latent: u32,
    /// After the last thought.
    pub end_latent: u32,
    /// Ends an answer.
    pub eos: u32,
}

/// Tokenizes examples.
pub struct ExampleEncoder<'a> {
    /// Tokenizes text.
    pub tokenizer: &'a Tokenizer,
    /// Special tokens.
    pub markers: LatentMarkers,
    /// Whether the latent markers are written, even around no thoughts: the prompts of a latent
    /// reasoner all end alike.
    pub with_markers: bool,
}

impl ExampleEncoder<'_> {
    /// Tokenizes an example. Steps and answer are tokenized one by one, as in COCONUT.
    pub fn encode(
        &self,
        id: u32,
        example: &TrainExample,
        sample: CurriculumSample,
    ) -> Result<TokenizedExample, ModelError> {
        let LatentMarkers { begin_latent, end_latent, eos } = self.markers;
        let mut prompt = self.tokenizer.encode(&format!("{}\n", example.question))?;
        let mut completion = Vec::new();
        if self.with_markers {
            prompt.push(begin_latent);
            completion.push(end_latent);
        }
        for step in &example.steps[sample.removed_steps.min(example.steps.len())..] {
            completion.extend(self.tokenizer.encode(&format!("{step}\n"))?);
        }
        completion.extend(self.tokenizer.encode(&format!("### {}", example.answer))?);
        completion.push(eos);
        Ok(TokenizedExample {
            id,
            prompt,
            thoughts: sample.thoughts,
            completion,
            loss_start: usize::from(self.with_markers),
            // Up to the first step without a whole result, so that index t is step t.
            step_results: example.steps.iter().map_while(|step| step_result(step)).collect(),
        })
    }
}
