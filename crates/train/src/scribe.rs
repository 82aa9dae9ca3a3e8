//! Examples become lessons: text to tokens, in COCONUT's layout.
//!
//! ```text
//! question \n [start] thoughts [end] step \n … ### answer [eos]        thinking in vectors
//! question \n                        step \n … ### answer [eos]        thinking in words, or not at all
//! ```

use model::Tokenizer;

use crate::curriculum::Lot;
use crate::dataset::Example;
use crate::lesson::Lesson;

/// The markers around thoughts, and what ends an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markers {
    /// Opens the thoughts.
    pub start: u32,
    /// Closes them.
    pub end: u32,
    /// Ends an answer.
    pub eos: u32,
}

/// Writes lessons.
pub struct Scribe<'a> {
    /// Text to tokens.
    pub tokenizer: &'a Tokenizer,
    /// The markers.
    pub markers: Markers,
    /// Whether thoughts are marked even where there are none: a latent reasoner's prompts all end alike.
    pub marked: bool,
}

impl Scribe<'_> {
    /// An example's lesson. Steps and answer are tokens of their own, as COCONUT has them.
    pub fn lesson(&self, id: u32, example: &Example, lot: Lot) -> Result<Lesson, model::Error> {
        let Markers { start, end, eos } = self.markers;
        let mut prompt = self.tokenizer.encode(&format!("{}\n", example.question))?;
        let mut tail = Vec::new();
        if self.marked {
            prompt.push(start);
            tail.push(end);
        }
        for step in &example.steps[lot.removed.min(example.steps.len())..] {
            tail.extend(self.tokenizer.encode(&format!("{step}\n"))?);
        }
        tail.extend(self.tokenizer.encode(&format!("### {}", example.answer))?);
        tail.push(eos);
        let results = example.steps.iter().map_while(|step| result(step)).collect();
        Ok(Lesson { id, prompt, thoughts: lot.thoughts, given: usize::from(self.marked), tail, results })
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
