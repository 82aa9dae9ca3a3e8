//! A template: its text with alternatives and slots, and its numbers.

use super::super::VariantSource;
use super::super::stream::VariantRng;
use super::numbers::StoryNumbers;
use super::text::StoryText;
use data::TrainExample;

/// A story with other words, people, things and numbers in every variant.
#[derive(Debug, Clone)]
pub struct StoryTemplate {
    text: StoryText,
    numbers: StoryNumbers,
}

impl StoryTemplate {
    /// Parses the lines of one template: text, `= steps`, perhaps `? conditions`.
    pub(super) fn parse(lines: &[&str]) -> Result<Self, String> {
        let (text, steps, conditions) = match lines {
            [text, steps] => (text, steps, "?"),
            [text, steps, conditions] => (text, steps, *conditions),
            _ => return Err("has a text, a line `= steps` and perhaps one `? conditions`".into()),
        };
        let steps = steps.strip_prefix('=').ok_or("its second line must begin with `=`")?;
        let conditions =
            conditions.strip_prefix('?').ok_or("its third line must begin with `?`")?;
        let numbers = StoryNumbers::parse(steps, conditions)?;
        let text = StoryText::parse(text)?;
        // A number that stands only in some alternatives would be missing from some questions.
        let always: Vec<usize> = text.fixed_numbers().collect();
        let missing = numbers.used().find(|number| !always.contains(number));
        match missing {
            Some(number) => {
                let letter = char::from(b'a' + number as u8);
                Err(format!("its steps use {letter}, which not every variant's text has"))
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
