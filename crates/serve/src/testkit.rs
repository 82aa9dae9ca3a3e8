//! Bodies read as the handlers read them, without a server: what fuzzing calls.

use engine::{Engine, Family};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Generation;
use crate::prompts::{ChatPrompts, PromptText, token_ids};
use crate::{ChatTemplate, ServeError, ServeOptions};

/// Reads bodies for an engine.
pub struct BodyReader {
    engine: Engine,
    /// The family's own template, and one in Jinja.
    templates: [ChatPrompts; 2],
    max_samples: usize,
}

impl BodyReader {
    /// A reader with the server's default limits.
    pub fn new(engine: Engine) -> Result<Self, ServeError> {
        let jinja = "{% for m in messages %}<{{ m.role }}>{{ m.content.strip() }}{% endfor %}";
        let compile =
            |template: ChatTemplate| ChatPrompts::new(&template, &Value::Null, Family::COT);
        let templates =
            [compile(ChatTemplate::Family)?, compile(ChatTemplate::Jinja(jinja.into()))?];
        Ok(Self { engine, templates, max_samples: ServeOptions::default().max_samples })
    }

    /// Reads a body as that of every path that takes one. Returns how many of them would have had
    /// something to run.
    pub fn read(&self, body: &[u8]) -> usize {
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return 0 };
        let Ok(body) = Fields::of_body(&body) else { return 0 };
        let chat = |template: &ChatPrompts| {
            template.prompt(self.engine.reasoner(), body).and_then(|chat| {
                let generation = self.generation(body)?;
                Ok(generation.params(&chat.prompt))
            })
        };
        let chats = self.templates.iter().filter(|template| chat(template).is_ok()).count();
        let completion = self.completion(body).is_ok();
        let decoded = body.list("tokens").ok().flatten().and_then(|list| token_ids(list));
        let decoded = decoded
            .is_some_and(|ids| self.engine.reasoner().tokenizer.decode_with_special(&ids).is_ok());
        chats + usize::from(completion) + usize::from(decoded)
    }

    fn generation(&self, body: Fields<'_>) -> Result<Generation, ApiError> {
        Generation::read(&self.engine, body, self.max_samples)
    }

    fn completion(&self, body: Fields<'_>) -> Result<(), ApiError> {
        let reasoner = self.engine.reasoner();
        let texts = PromptText::read_all(body)?;
        for text in &texts {
            text.tokens(reasoner)?;
        }
        let generation = self.generation(body)?;
        for text in &texts {
            let prompt = text.prompt(reasoner)?;
            generation.params(&prompt);
            let (kept, _) = generation.cut(&prompt.text);
            assert!(prompt.text.starts_with(kept), "a stop sequence only shortens");
        }
        Ok(())
    }
}
