//! Converts chat messages and completion prompts to prompts of the model.
//!
//! A latent reasoner was trained on single questions in its family's prompt format, so the last
//! user message is the question, and the reply notes which other messages were ignored. The
//! tokenizer's chat template is used if the model is a plain language model (`cot`), or if the user
//! passes a template.

use engine::{Family, Prompt, Reasoner};
use serde_json::{Value, json};

use crate::ServeError;
use crate::chat_template::JinjaTemplate;
use crate::error::ApiError;
use crate::fields::Fields;

/// Maximum number of prompts per request.
const MAX_PROMPTS: usize = 1024;

/// The template that converts messages to a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChatTemplate {
    /// The tokenizer's template for a `cot` model that has one, otherwise the family's format.
    #[default]
    Auto,
    /// The prompt format of the family.
    Family,
    /// This Jinja text.
    Jinja(String),
}

/// Renders chat messages.
pub(crate) struct ChatPrompts {
    /// The compiled template; `None` for the format of the family.
    template: Option<JinjaTemplate>,
    /// Special tokens such as `bos_token`, under the names that templates use.
    tokens: Value,
}

/// The prompt of a chat.
pub(crate) struct ChatPrompt {
    pub(crate) prompt: Prompt,
    /// Notes on ignored messages, for `latent.notes`.
    pub(crate) notes: Vec<String>,
}

impl ChatPrompts {
    /// Creates the renderer. `config` is tokenizer_config.json.
    pub(crate) fn new(
        template: &ChatTemplate,
        config: &Value,
        family: Family,
    ) -> Result<Self, ServeError> {
        let source = match template {
            ChatTemplate::Jinja(text) => Some(text.clone()),
            ChatTemplate::Auto if family == Family::COT => default_template(config),
            ChatTemplate::Auto | ChatTemplate::Family => None,
        };
        let template = source.map(JinjaTemplate::compile).transpose();
        let template = template.map_err(|why| ServeError::ChatTemplate { why })?;
        let token = |name: &str| match &config[name] {
            Value::String(token) => json!(token),
            other => other["content"].clone(),
        };
        let (bos, eos) = (token("bos_token"), token("eos_token"));
        Ok(Self { template, tokens: json!({ "bos_token": bos, "eos_token": eos }) })
    }

    /// The prompt of a chat request's `messages`.
    pub(crate) fn prompt(&self, of: &Reasoner, body: Fields<'_>) -> Result<ChatPrompt, ApiError> {
        let messages = read_messages(body)?;
        let mut notes = Vec::new();
        let prompt = match &self.template {
            Some(template) => {
                let guarded = messages.iter().map(|message| guarded(of, message));
                let text = self.render(template, &guarded.collect::<Vec<_>>());
                let text = text.map_err(|error| body.error("messages", error))?;
                Prompt::verbatim(of, 0, text)
            }
            None => {
                let absent =
                    || body.error("messages", "messages must include a message with role user");
                let question = last_question(&messages, &mut notes).ok_or_else(absent)?;
                Prompt::new(of, 0, question.trim())
            }
        };
        let prompt = prompt.map_err(|error| ApiError::from(error).at("messages"))?;
        Ok(ChatPrompt { prompt, notes })
    }

    fn render(&self, template: &JinjaTemplate, messages: &[Value]) -> Result<String, String> {
        let mut context = self.tokens.clone();
        context["messages"] = json!(messages);
        context["add_generation_prompt"] = json!(true);
        template.render(context)
    }
}

/// The text of the last user message of a body, if it is plain text.
pub(crate) fn last_user_text(body: Fields<'_>) -> Option<&str> {
    let messages = body.list("messages").ok().flatten()?;
    let last = messages.iter().rfind(|message| message["role"] == "user")?;
    last["content"].as_str().map(str::trim)
}

/// The text of the last user message. All other messages are ignored and reported in `notes`.
fn last_question<'m>(messages: &'m [Value], notes: &mut Vec<String>) -> Option<&'m str> {
    let last = messages.iter().rposition(|message| message["role"] == "user")?;
    let is_system =
        |message: &&Value| message["role"] == "system" || message["role"] == "developer";
    let system = messages.iter().filter(is_system).count();
    let turns = messages.len() - 1 - system;
    let mut note = |count: usize, kind: &str| {
        if count > 0 {
            let messages = if count == 1 { "message was" } else { "messages were" };
            notes.push(format!(
                "{count} {kind} {messages} ignored: this model answers single questions, and its \
                 prompt is the last user message"
            ));
        }
    };
    note(system, "system");
    note(turns, "other conversation");
    messages[last]["content"].as_str()
}

/// A message whose content cannot produce control tokens.
fn guarded(of: &Reasoner, message: &Value) -> Value {
    let content = message["content"].as_str().unwrap_or_default();
    json!({ "role": message["role"], "content": of.tokenizer.guard(content) })
}

/// The template of tokenizer_config.json: a string, or the default one of a list.
fn default_template(config: &Value) -> Option<String> {
    match &config["chat_template"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => {
            let default = list.iter().find(|template| template["name"] == "default")?;
            default["template"].as_str().map(str::to_owned)
        }
        _ => None,
    }
}

/// The messages, with their contents as plain text.
fn read_messages(body: Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let absent =
        || body.error("messages", "messages is required: a list of objects with role and content");
    let list = body.list("messages")?.filter(|list| !list.is_empty()).ok_or_else(absent)?;
    list.iter().enumerate().map(|(i, message)| read_message(i, message)).collect()
}

fn read_message(i: usize, message: &Value) -> Result<Value, ApiError> {
    let role = message["role"].as_str();
    let roles = ["system", "developer", "user", "assistant"];
    let Some(role) = role.filter(|role| roles.contains(role)) else {
        let message = format!("role must be one of {}", roles.join(", "));
        return Err(ApiError::field(format!("messages[{i}].role"), message));
    };
    let wrong = || {
        let message = "content must be a string, or a list of parts of type text";
        ApiError::field(format!("messages[{i}].content"), message)
    };
    let content = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let text = |part: &Value| match part["type"].as_str() {
                Some("text") => part["text"].as_str().map(str::to_owned),
                _ => None,
            };
            parts.iter().map(text).collect::<Option<Vec<String>>>().ok_or_else(wrong)?.concat()
        }
        _ => return Err(wrong()),
    };
    Ok(json!({ "role": role, "content": content }))
}

/// A prompt of a completion request, before applying a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PromptText {
    Text(String),
    Tokens(Vec<u32>),
}

impl PromptText {
    /// Reads the prompts of a completion request: a text, token ids, or a list of either.
    pub(crate) fn read_all(body: Fields<'_>) -> Result<Vec<Self>, ApiError> {
        let wrong = || {
            let message = "prompt must be a string, a list of token ids, or a list of either";
            body.error("prompt", message)
        };
        let prompts = match body.get("prompt").ok_or_else(wrong)? {
            Value::String(text) => vec![Self::Text(text.clone())],
            Value::Array(list) if list.first().is_some_and(Value::is_u64) => {
                vec![Self::Tokens(token_ids(list).ok_or_else(wrong)?)]
            }
            Value::Array(list) => {
                let prompt = |value: &Value| match value {
                    Value::String(text) => Some(Self::Text(text.clone())),
                    Value::Array(ids) => token_ids(ids).map(Self::Tokens),
                    _ => None,
                };
                list.iter().map(prompt).collect::<Option<Vec<Self>>>().ok_or_else(wrong)?
            }
            _ => return Err(wrong()),
        };
        if !(1..=MAX_PROMPTS).contains(&prompts.len()) {
            let message = format!("a request must have 1 to {MAX_PROMPTS} prompts");
            return Err(body.error("prompt", message));
        }
        Ok(prompts)
    }

    /// The question in the prompt format of the family.
    pub(crate) fn prompt(&self, of: &Reasoner) -> Result<Prompt, ApiError> {
        Ok(match self {
            Self::Text(text) => Prompt::new(of, 0, text.trim()),
            Self::Tokens(tokens) => {
                check_ids(of, tokens)?;
                Prompt::of_tokens(of, 0, tokens)
            }
        }?)
    }

    /// The tokens without a template.
    pub(crate) fn tokens(&self, of: &Reasoner) -> Result<Vec<u32>, ApiError> {
        Ok(match self {
            Self::Text(text) => {
                let text = of.tokenizer.guard(text);
                of.tokenizer.encode(&text).map_err(engine::EngineError::from)?
            }
            Self::Tokens(tokens) => tokens.clone(),
        })
    }
}

/// Token ids of a JSON list.
pub(crate) fn token_ids(list: &[Value]) -> Option<Vec<u32>> {
    list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}

fn check_ids(of: &Reasoner, tokens: &[u32]) -> Result<(), ApiError> {
    let vocab = of.decoder.config().vocab;
    match tokens.iter().find(|&&token| token as usize >= vocab) {
        Some(token) => {
            let message = format!("token {token} is outside the vocabulary of {vocab} tokens");
            Err(ApiError::field("prompt", message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_chat_template_is_rendered_like_transformers_does() {
        let template = "{{ bos_token }}{% for m in messages %}\n<|{{ m.role }}|>\
            {{ m['content'].strip() }}{% endfor %}\n{% if add_generation_prompt %}<|a|>{% endif %}";
        let config = json!({ "chat_template": template, "bos_token": { "content": "<s>" } });
        let prompts = ChatPrompts::new(&ChatTemplate::Auto, &config, Family::COT).unwrap();
        let messages = [json!({ "role": "user", "content": " hi " })];
        let template = prompts.template.as_ref().unwrap();
        let text = prompts.render(template, &messages).unwrap();
        // transformers trims the newline after a block.
        assert_eq!(text, "<s><|user|>hi<|a|>");
        let family = ChatPrompts::new(&ChatTemplate::Auto, &config, Family::COCONUT).unwrap();
        assert!(family.template.is_none(), "a latent reasoner has a template of its own");
        let broken = ChatTemplate::Jinja("{% if %}".into());
        assert!(ChatPrompts::new(&broken, &config, Family::COT).is_err());
    }

    #[test]
    fn prompts_are_texts_ids_and_lists_of_either() {
        let read = |text: &str| {
            let body = body(text);
            PromptText::read_all(Fields::of_body(&body).unwrap()).map_err(|error| error.param)
        };
        let text = |text: &str| PromptText::Text(text.into());
        assert_eq!(read(r#"{"prompt": "a"}"#), Ok(vec![text("a")]));
        assert_eq!(read(r#"{"prompt": ["a", "b"]}"#), Ok(vec![text("a"), text("b")]));
        assert_eq!(read(r#"{"prompt": [1, 2]}"#), Ok(vec![PromptText::Tokens(vec![1, 2])]));
        let lists = vec![PromptText::Tokens(vec![1]), PromptText::Tokens(vec![2, 3])];
        assert_eq!(read(r#"{"prompt": [[1], [2, 3]]}"#), Ok(lists));
        for wrong in ["{}", r#"{"prompt": []}"#, r#"{"prompt": [1, "a"]}"#, r#"{"prompt": [-1]}"#] {
            assert_eq!(read(wrong), Err(Some("prompt".into())), "{wrong}");
        }
    }

    #[test]
    fn the_last_user_message_is_the_question_and_the_rest_is_noted() {
        let message = |role: &str, content: &str| json!({ "role": role, "content": content });
        let mut notes = Vec::new();
        let single = [message("user", "a")];
        assert_eq!(last_question(&single, &mut notes), Some("a"));
        assert_eq!(notes.len(), 0);
        let turns = [
            message("system", "s"),
            message("user", "a"),
            message("assistant", "b"),
            message("user", "c"),
        ];
        assert_eq!(last_question(&turns, &mut notes), Some("c"));
        assert!(notes[0].starts_with("1 system message was ignored"), "{notes:?}");
        assert!(notes[1].starts_with("2 other conversation messages were"), "{notes:?}");
        assert_eq!(last_question(&turns[..1], &mut notes), None);
    }

    #[test]
    fn a_message_that_is_not_text_is_named() {
        let body = body(
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "user",
            "content": [{"type": "image_url"}]}]}"#,
        );
        let error = read_messages(Fields::of_body(&body).unwrap()).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages[1].content"));
    }
}
