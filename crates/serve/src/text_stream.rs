//! Texts of choices during generation: the prefix of an answer that can be sent before it is
//! complete.
//!
//! A prefix is sent if neither further tokens, nor a stop sequence, nor the removal of the family's
//! answer marker can change it, so the concatenated pieces equal the text of the choice.

use engine::AnswerText;
use engine::scheduler::Event;
use latent_tts::AnswerRule;

use crate::error::ApiError;
use crate::generation::{Choices, Generation};
use crate::reply::without_marker;
use crate::work::RunningRequest;

/// The texts of a request's choices so far, by choice.
pub(crate) struct TextStream(Vec<StreamedText>);

#[derive(Clone, Default)]
struct StreamedText {
    answer: AnswerText,
    /// Number of bytes of the choice's text that were sent.
    sent: usize,
}

impl TextStream {
    pub(crate) fn new(choices: usize) -> Self {
        Self(vec![StreamedText::default(); choices])
    }

    /// The choice that an event appends text to, and the text.
    pub(crate) fn add(
        &mut self,
        work: &RunningRequest,
        prompt: usize,
        event: &Event,
    ) -> Result<Option<(usize, String)>, ApiError> {
        let Event::Token { number, token, .. } = *event else { return Ok(None) };
        let generation = &work.generation;
        let choice = match generation.choices {
            Choices::Vote => prompt,
            Choices::Each => prompt * generation.num_choices() + number as usize,
        };
        let Some(streamed) = self.0.get_mut(choice) else { return Ok(None) };
        streamed.answer.push(work.tokenizer(), token)?;
        let settled = settled_text(generation, streamed.answer.settled());
        let Some(delta) = settled.get(streamed.sent..).filter(|delta| !delta.is_empty()) else {
            return Ok(None);
        };
        streamed.sent = settled.len();
        Ok(Some((choice, delta.to_owned())))
    }

    /// The unsent part of a choice's text.
    pub(crate) fn rest<'t>(&self, choice: usize, text: &'t str) -> &'t str {
        let sent = self.0.get(choice).map_or(0, |streamed| streamed.sent);
        text.get(sent..).unwrap_or_default()
    }
}

/// The prefix of a choice's text that is final when the answer starts with `text`.
fn settled_text<'t>(generation: &Generation, text: &'t str) -> &'t str {
    let text = generation.marker.map_or(text, |rule| settled_without_marker(rule, text));
    match generation.cut(text) {
        (text, true) => text,
        (text, false) => &text[..text.len() - begun_stop(&generation.stop, text)],
    }
}

/// Number of bytes at the end of a text that may be the start of a stop sequence.
fn begun_stop(stops: &[String], text: &str) -> usize {
    let begun = |stop: &String| {
        let lengths = (1..stop.len()).rev().filter(|&length| stop.is_char_boundary(length));
        lengths.into_iter().find(|&length| text.ends_with(&stop[..length]))
    };
    stops.iter().filter_map(begun).max().unwrap_or(0)
}

/// A prefix of an answer without its marker; empty while it may be part of a marker.
fn settled_without_marker(rule: AnswerRule, text: &str) -> &str {
    let is_margin = |c: char| c.is_whitespace() || c == '#';
    let first = text.trim_start_matches(is_margin);
    let is_undecided = match rule {
        AnswerRule::Hash | AnswerRule::Cascade => first.is_empty(),
        AnswerRule::AnswerColon => "Answer:".starts_with(first),
        AnswerRule::LastNumber | AnswerRule::Boxed => false,
    };
    match is_undecided {
        true => "",
        false => without_marker(rule, text).trim_end_matches(is_margin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_beginnings_of_the_whole() {
        for (rule, text) in [
            (AnswerRule::Hash, " ### 18 apples #"),
            (AnswerRule::Hash, "so 7 # 8"),
            (AnswerRule::Cascade, "#### 1 2 "),
            (AnswerRule::AnswerColon, "###Answer: -6 ###"),
            (AnswerRule::AnswerColon, "Answers are 7"),
            (AnswerRule::LastNumber, " The answer is: 7 "),
        ] {
            let whole = without_marker(rule, text);
            let mut last = "";
            for end in 0..=text.len() {
                let settled = settled_without_marker(rule, &text[..end]);
                assert!(whole.starts_with(settled), "{text:?}: {settled:?} of {whole:?}");
                assert!(settled.starts_with(last), "{text:?}: {settled:?} after {last:?}");
                last = settled;
            }
            assert!(whole.trim_end_matches(['#', ' ']) == last, "{text:?}: {last:?}");
        }
    }

    #[test]
    fn the_beginning_of_a_stop_sequence_is_held_back() {
        let stops = ["\n\n".to_owned(), "END".to_owned()];
        for (text, expected) in [("a", 0), ("a\n", 1), ("aE", 1), ("aEN", 2), ("aENx", 0)] {
            assert_eq!(begun_stop(&stops, text), expected, "{text:?}");
        }
    }
}
