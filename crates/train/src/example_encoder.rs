//! Examples become lessons: text to tokens, in COCONUT's layout.
//!
//! ```text
//! question \n [start] thoughts [end] step \n … ### answer [eos]        thinking in vectors
//! question \n                        step \n … ### answer [eos]        thinking in words, or not at all
//! ```

use model::Tokenizer;

use crate::curriculum::CurriculumSample;
use crate::dataset::TrainExample;
use crate::tokenized_example::TokenizedExample;

/// The markers around thoughts, and what ends an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentMarkers {
    /// Opens the thoughts.
    pub begin_latent: u32,
    /// Closes them.
    pub end_latent: u32,
    /// Ends an answer.
    pub eos: u32,
}

/// Writes lessons.
pub struct ExampleEncoder<'a> {
    /// Text to tokens.
    pub tokenizer: &'a Tokenizer,
    /// The markers.
    pub markers: LatentMarkers,
    /// Whether thoughts are marked even where there are none: a latent reasoner's prompts all end
    /// alike.
    pub with_markers: bool,
}

impl ExampleEncoder<'_> {
    /// An example's lesson. Steps and answer are tokens of their own, as COCONUT has them.
    pub fn encode(
        &self,
        id: u32,
        example: &TrainExample,
        lot: CurriculumSample,
    ) -> Result<TokenizedExample, model::ModelError> {
        let LatentMarkers { begin_latent: start, end_latent: end, eos } = self.markers;
        let mut prompt = self.tokenizer.encode(&format!("{}\n", example.question))?;
        let mut tail = Vec::new();
        if self.with_markers {
            prompt.push(start);
            tail.push(end);
        }
        for step in &example.steps[lot.removed_steps.min(example.steps.len())..] {
            tail.extend(self.tokenizer.encode(&format!("{step}\n"))?);
        }
        tail.extend(self.tokenizer.encode(&format!("### {}", example.answer))?);
        tail.push(eos);
        let results = example.steps.iter().map_while(|step| result(step)).collect();
        Ok(TokenizedExample {
            id,
            prompt,
            thoughts: lot.thoughts,
            loss_start: usize::from(self.with_markers),
            completion: tail,
            step_results: results,
        })
    }
}

/// The whole number after a step's equals sign.
fn result(step: &str) -> Option<i64> {
    step.trim_end_matches(">>").rsplit_once('=')?.1.trim().replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::result;

    #[test]
    fn a_step_says_its_result() {
        assert_eq!(result("<<7*15=105>>"), Some(105));
        assert_eq!(result("<<7*150=1,050>>"), Some(1050));
        assert_eq!(result("<<7/2=3.5>>"), None);
        assert_eq!(result("seven"), None);
    }
}
