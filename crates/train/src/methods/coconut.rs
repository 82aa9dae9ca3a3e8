//! COCONUT's layout, and that of the baselines with explicit or no steps.
//!
//! ```text
//! question \n [begin-latent] thoughts [end-latent] step \n … ### answer [eos]   latent
//! question \n                                      step \n … ### answer [eos]   CoT and no-CoT
//! ```

use std::sync::Arc;

use model::{ModelError, Tokenizer};

use super::{ExampleEncoder, ExamplePlace, ExampleRows, LatentMarkers, guarded};
use crate::curriculum::{Curriculum, CurriculumSample};
use crate::digit_head::ThoughtTarget;
use crate::tokenized_example::TokenizedExample;
use data::TrainExample;
use data::worked_step::{step_operands, step_result};

/// Tokenizes examples in COCONUT's layout.
#[derive(Clone)]
pub struct CoconutEncoder {
    /// Tokenizes text.
    pub tokenizer: Arc<Tokenizer>,
    /// Special tokens.
    pub markers: LatentMarkers,
    /// Decides which steps become thoughts.
    pub curriculum: Curriculum,
    /// Thoughts that a step should take, for the digit heads: the last of them holds the step's
    /// result; the first, if it is another one, its operands and operator.
    pub thoughts_per_step: usize,
}

impl CoconutEncoder {
    fn thought_targets(&self, steps: &[String]) -> Vec<Option<ThoughtTarget>> {
        let mut targets = Vec::with_capacity(steps.len() * self.thoughts_per_step);
        for step in steps {
            let first = targets.len();
            targets.resize(first + self.thoughts_per_step, None);
            targets[first] = step_operands(step).map(ThoughtTarget::Operands);
            if let Some(last) = targets.last_mut() {
                *last = step_result(step).map(ThoughtTarget::Result);
            }
        }
        targets
    }

    /// Tokenizes an example in a given layout. Steps and answer are tokenized one by one, as in
    /// COCONUT.
    pub fn encode_sample(
        &self,
        id: u32,
        example: &TrainExample,
        sample: CurriculumSample,
    ) -> Result<TokenizedExample, ModelError> {
        let LatentMarkers { begin_latent, end_latent, eos } = self.markers;
        let example = &guarded(&self.tokenizer, example);
        let encode = |text: &str| self.tokenizer.encode(text);
        let mut prompt = encode(&format!("{}\n", example.question))?;
        let mut completion = Vec::new();
        // Even around no thoughts: the prompts of a latent reasoner all end alike.
        let with_markers = matches!(self.curriculum, Curriculum::Latent { .. });
        if with_markers {
            prompt.push(begin_latent);
            completion.push(end_latent);
        }
        for step in &example.steps[sample.removed_steps.min(example.steps.len())..] {
            completion.extend(encode(&format!("{step}\n"))?);
        }
        completion.extend(encode(&format!("### {}", example.answer))?);
        completion.push(eos);
        Ok(TokenizedExample {
            id,
            prompt,
            thoughts: sample.thoughts,
            completion,
            loss_start: usize::from(with_markers),
            thought_targets: self.thought_targets(&example.steps),
            step_tokens: example.steps.iter().map(|step| encode(step)).collect::<Result<_, _>>()?,
            ..TokenizedExample::default()
        })
    }
}

impl ExampleEncoder for CoconutEncoder {
    type Encoded = TokenizedExample;

    fn encode(
        &self,
        example: &TrainExample,
        place: ExamplePlace,
    ) -> Result<Vec<TokenizedExample>, ModelError> {
        let ExamplePlace { id, progress, uniforms } = place;
        let sample = self.curriculum.sample(progress, example.steps.len(), uniforms);
        Ok(vec![self.encode_sample(id as u32, example, sample)?])
    }

    fn rows(&self, encoded: &TokenizedExample) -> ExampleRows {
        encoded.rows()
    }
}
