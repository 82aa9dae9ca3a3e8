//! The JSON around choices: complete responses and chunks of streams, for chats and completions.

use engine::{Reasoner, TokenScore};
use serde_json::{Value, json};

use crate::reply::{Choice, Usage};

/// The kind of completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiKind {
    Chat,
    Text,
}

/// The common fields of all JSON of one response.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    pub(crate) kind: ApiKind,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// Texts that precede the completions, by index: echoed prompts.
    pub(crate) echoed: Vec<String>,
}

impl Envelope {
    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        let Self { id, created, model, .. } = self;
        json!({
            "id": id,
            "object": object,
            "created": created,
            "model": model,
            "choices": choices,
        })
    }

    /// A complete response.
    pub(crate) fn response(&self, choices: Vec<Choice>, usage: Usage) -> Value {
        let choice = |(index, choice): (usize, Choice)| {
            let Choice { text, finish_reason, latent, reasoning, refusal } = choice;
            match self.kind {
                ApiKind::Chat => {
                    let content = if refusal.is_some() { Value::Null } else { json!(text) };
                    let mut message =
                        json!({ "role": "assistant", "content": content, "refusal": refusal });
                    if let Some(reasoning) = reasoning {
                        // Clients read either name.
                        message["reasoning_content"] = json!(reasoning);
                        message["reasoning"] = json!(reasoning);
                    }
                    json!({
                        "index": index,
                        "message": message,
                        "logprobs": null,
                        "finish_reason": finish_reason,
                        "latent": latent,
                    })
                }
                ApiKind::Text => json!({
                    "index": index,
                    "text": format!("{}{text}", self.echo(index)),
                    "logprobs": null,
                    "finish_reason": finish_reason,
                    "latent": latent,
                }),
            }
        };
        let object = match self.kind {
            ApiKind::Chat => "chat.completion",
            ApiKind::Text => "text_completion",
        };
        let choices = choices.into_iter().enumerate().map(choice).collect();
        let mut response = self.object(object, choices);
        response["usage"] = usage.to_json();
        response
    }

    fn echo(&self, index: usize) -> &str {
        self.echoed.get(index).map_or("", String::as_str)
    }

    fn chunk_of(&self, choices: Vec<Value>) -> Value {
        match self.kind {
            ApiKind::Chat => self.object("chat.completion.chunk", choices),
            ApiKind::Text => self.object("text_completion", choices),
        }
    }

    /// The first chunk of a choice, if it has one.
    pub(crate) fn opening(&self, index: usize) -> Option<Value> {
        match self.kind {
            ApiKind::Chat => {
                let delta = json!({ "role": "assistant", "content": "" });
                let choice = json!({ "index": index, "delta": delta, "finish_reason": null });
                Some(self.chunk_of(vec![choice]))
            }
            ApiKind::Text => {
                let echo = self.echo(index);
                (!echo.is_empty()).then(|| self.chunk(index, echo, None, Value::Null))
            }
        }
    }

    /// A chunk of a choice.
    pub(crate) fn chunk(
        &self,
        index: usize,
        text: &str,
        finish_reason: Option<&str>,
        latent: Value,
    ) -> Value {
        let mut choice = match self.kind {
            ApiKind::Chat if text.is_empty() => json!({ "index": index, "delta": {} }),
            ApiKind::Chat => json!({ "index": index, "delta": { "content": text } }),
            ApiKind::Text => json!({ "index": index, "text": text, "logprobs": null }),
        };
        choice["finish_reason"] = json!(finish_reason);
        if !latent.is_null() {
            choice["latent"] = latent;
        }
        self.chunk_of(vec![choice])
    }

    /// The chunk that summarizes the vote, in a chat.
    pub(crate) fn reasoning(&self, index: usize, text: &str) -> Option<Value> {
        let delta = json!({ "reasoning_content": text, "reasoning": text });
        let choice = json!({ "index": index, "delta": delta, "finish_reason": null });
        (self.kind == ApiKind::Chat).then(|| self.chunk_of(vec![choice]))
    }

    /// The chunk with the refusal, in a chat.
    pub(crate) fn refusal(&self, index: usize, text: &str) -> Option<Value> {
        let delta = json!({ "refusal": text });
        let choice = json!({ "index": index, "delta": delta, "finish_reason": null });
        (self.kind == ApiKind::Chat).then(|| self.chunk_of(vec![choice]))
    }

    /// The chunk with the usage, which has no choices.
    pub(crate) fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.chunk_of(Vec::new());
        chunk["usage"] = usage.to_json();
        chunk
    }

    /// The response to a log-likelihood request: each prompt with the log-probabilities of its
    /// tokens and, if `next` is set, of the most likely next token.
    pub(crate) fn scored(
        &self,
        reasoner: &Reasoner,
        prompts: &[(Vec<u32>, Vec<TokenScore>)],
        next: bool,
    ) -> Value {
        let choice = |(index, (tokens, scores)): (usize, &(Vec<u32>, Vec<TokenScore>))| {
            let count = scores.len() - usize::from(!next);
            scored_choice(reasoner, index, tokens[0], &scores[..count])
        };
        let choices = prompts.iter().enumerate().map(choice).collect();
        let usage = Usage {
            prompt: prompts.iter().map(|(tokens, _)| tokens.len()).sum(),
            answers: if next { prompts.len() } else { 0 },
            thoughts: 0,
        };
        let mut response = self.object("text_completion", choices);
        response["usage"] = usage.to_json();
        response
    }
}

fn scored_choice(reasoner: &Reasoner, index: usize, first: u32, scores: &[TokenScore]) -> Value {
    let text_of = |token: u32| {
        let text = reasoner.tokenizer.decode_with_special(&[token]);
        text.unwrap_or_default()
    };
    let mut tokens = vec![text_of(first)];
    let (mut logprobs, mut top) = (vec![Value::Null], vec![Value::Null]);
    for score in scores {
        tokens.push(text_of(score.token));
        logprobs.push(json!(score.logprob));
        top.push(json!({ text_of(score.top): score.top_logprob }));
    }
    let offset = |end: &mut usize, token: &String| {
        let start = *end;
        *end += token.chars().count();
        Some(start)
    };
    let offsets: Vec<usize> = tokens.iter().scan(0, offset).collect();
    let ids: Vec<u32> = std::iter::once(first).chain(scores.iter().map(|s| s.token)).collect();
    json!({
        "index": index,
        "text": reasoner.tokenizer.decode_with_special(&ids).unwrap_or_default(),
        "logprobs": {
            "tokens": tokens,
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": offsets,
        },
        "finish_reason": "length",
    })
}
