//! A story template: text with alternatives and slots, and numbers.

use super::super::VariantSource;
use super::super::stream::VariantRng;
use super::numbers::StoryNumbers;
use super::text::StoryText;
use data::TrainExample;

/// A story with different words, people, things and numbers in every variant.
#[derive(Debug, Clone)]
pub struct StoryTemplate {
    text: StoryText,
    numbers: StoryNumbers,
}

impl StoryTemplate {
    /// Parses the lines of one template: text, `= steps`, and optionally `? conditions`.
    pub(super) fn parse(lines: &[&str]) -> Result<Self, String> {
        let (text, steps, conditions) = match lines {
            [text, steps] => (text, steps, "?"),
            [text, steps, conditions] => (text, steps, *conditions),
            _ => {
                return Err(
                    "expected a text, a line `= steps` and optionally `? conditions`".into()
                );
            }
        };
        let steps = steps.strip_prefix('=').ok_or("the second line must start with `=`")?;
        let conditions =
            conditions.strip_prefix('?').ok_or("the third line must start with `?`")?;
        let numbers = StoryNumbers::parse(steps, conditions)?;
        let text = StoryText::parse(text)?;
        // A number that occurs only in some alternatives would be missing from some questions.
        let always: Vec<usize> = text.fixed_numbers().collect();
        let missing = numbers.used().find(|number| !always.contains(number));
        match missing {
            Some(number) => {
                let letter = char::from(b'a' + number as u8);
                Err(format!("the steps use {letter}, which is not in the text of every variant"))
            }
            None => Ok(Self { text, numbers }),
        }
    }
}

impl VariantSource for StoryTemplate {
    fn variant(&self, seed: u64, problem: u32, variant: u32) -> Option<TrainExample> {
        let mut rng = VariantRng::new(seed, problem, variant);
        let values = self.numbers.draw(&mut rng)?;
        let question = self.text.write(&values.numbers, &mut rng)?;
        let steps = self.numbers.write_steps(&values)?;
        let answer = values.results.last()?.to_decimal()?;
        Some(TrainExample { question, steps, answer })
    }
}
