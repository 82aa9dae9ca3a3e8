//! Structured answers: `response_format` determines which answers are accepted and how they are
//! formatted.
//!
//! | `response_format` | content |
//! |---|---|
//! | `{"type": "json_object"}` | `{"answer": 7}` |
//! | `{"type": "json_schema", "json_schema": {"schema": ...}}` | `{"answer": 7}`, valid by the schema |
//! | `{"type": "number"}` | `7` |
//! | `{"type": "choice", "choices": ["A", "B"]}` | one of the choices |
//!
//! A latent reasoner writes only an answer, so a schema has one property. Trajectories whose
//! answers are not accepted do not vote. If no answer is accepted, the message is a refusal.

use engine::{Output, SamplingParams, Trajectory};
use latent_tts::AnswerKind;
use latent_tts::answer::{Answer, parse_number};
use serde_json::{Number, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;

/// Maximum number of choices, and maximum bytes of each.
const MAX_CHOICES: usize = 64;
const MAX_CHOICE_BYTES: usize = 256;
/// Schema keywords that only describe and do not restrict.
const ANNOTATIONS: [&str; 6] = ["title", "description", "$schema", "default", "examples", "$id"];
/// The name of the property for answers without a schema.
const DEFAULT_PROPERTY: &str = "answer";

/// How an answer is formatted, and which answers are accepted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnswerFormat {
    kind: AcceptedAnswers,
    /// The property of the JSON object that holds the answer; `None` for a plain answer.
    property: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum AcceptedAnswers {
    /// A number if the answer is one, otherwise text.
    Any,
    Text,
    Number(AcceptedRange),
    /// One of these texts or numbers.
    Choice(Vec<Value>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct AcceptedRange {
    is_integer: bool,
    minimum: f64,
    maximum: f64,
}

impl AcceptedRange {
    const ALL: Self =
        Self { is_integer: false, minimum: f64::NEG_INFINITY, maximum: f64::INFINITY };
}

impl AnswerFormat {
    /// Reads `response_format`; `None` if it is absent or plain text.
    pub(crate) fn read(body: Fields<'_>) -> Result<Option<Self>, ApiError> {
        let Some(format) = body.object("response_format")? else { return Ok(None) };
        let wrong = |message: &str| Err(body.error("response_format", message));
        match format.text("type")? {
            Some("text") => Ok(None),
            Some("json_object") => {
                let property = Some(DEFAULT_PROPERTY.to_owned());
                Ok(Some(Self { kind: AcceptedAnswers::Any, property }))
            }
            Some("number") => {
                let kind = AcceptedAnswers::Number(AcceptedRange::ALL);
                Ok(Some(Self { kind, property: None }))
            }
            Some("choice") => {
                let kind = AcceptedAnswers::Choice(read_choices(body, format.list("choices")?)?);
                Ok(Some(Self { kind, property: None }))
            }
            Some("json_schema") => {
                // Chat completions wrap the schema in an object with its name; responses do not.
                let wrapped = format.object("json_schema")?;
                let schema = wrapped.unwrap_or(format).get("schema");
                match schema {
                    Some(schema) => read_schema(body, schema).map(Some),
                    None => wrong("json_schema requires a schema"),
                }
            }
            _ => wrong("type must be one of text, json_object, json_schema, number, choice"),
        }
    }

    /// The kind of answer to extract from texts.
    pub(crate) fn answer_kind(&self) -> AnswerKind {
        let is_letter = |choice: &Value| {
            let text = choice.as_str().unwrap_or_default();
            text.len() == 1 && text.as_bytes()[0].is_ascii_uppercase()
        };
        match &self.kind {
            AcceptedAnswers::Choice(choices) if choices.iter().all(is_letter) => AnswerKind::Choice,
            _ => AnswerKind::Number,
        }
    }

    /// Removes answers that are not accepted, and votes again.
    pub(crate) fn apply(&self, reply: &mut Output, params: &SamplingParams) {
        let beam = reply.beam.as_mut().map(|beam| &mut beam.best);
        for trajectory in reply.trajectories.iter_mut().chain(beam) {
            if trajectory.answer.as_ref().is_some_and(|answer| self.value(answer).is_none()) {
                trajectory.answer = None;
            }
        }
        reply.chosen = reply.rule.choose(&reply.trajectories, &params.vote);
    }

    /// The content of a message; `None` if the trajectory has no accepted answer.
    pub(crate) fn content(&self, of: &Trajectory) -> Option<String> {
        let value = self.value(of.answer.as_ref()?)?;
        Some(match (&self.property, value) {
            (Some(property), value) => json!({ property: value }).to_string(),
            (None, Value::String(text)) => text,
            (None, value) => value.to_string(),
        })
    }

    /// An answer as JSON, if it is accepted.
    fn value(&self, answer: &Answer) -> Option<Value> {
        let text = answer.as_str();
        match &self.kind {
            AcceptedAnswers::Any => Some(number(text).unwrap_or_else(|| json!(text))),
            AcceptedAnswers::Text => Some(json!(text)),
            AcceptedAnswers::Number(range) => {
                let value = parse_number(text)?;
                let fits = (range.minimum..=range.maximum).contains(&value);
                let is_whole = value.fract() == 0.0;
                number(text).filter(|_| fits && (is_whole || !range.is_integer))
            }
            AcceptedAnswers::Choice(choices) => {
                let is_same = |choice: &&Value| match choice {
                    Value::String(choice) => choice == text || answer.matches(choice),
                    choice => answer.matches(&choice.to_string()),
                };
                choices.iter().find(is_same).cloned()
            }
        }
    }
}

/// A canonical answer as a JSON number, as an integer if possible.
fn number(text: &str) -> Option<Value> {
    let value = parse_number(text)?;
    let integer = text.parse::<i64>().map(Number::from).ok();
    integer.or_else(|| Number::from_f64(value)).map(Value::Number)
}

fn read_choices(body: Fields<'_>, list: Option<&Vec<Value>>) -> Result<Vec<Value>, ApiError> {
    let fits = |choice: &Value| match choice {
        Value::String(text) => (1..=MAX_CHOICE_BYTES).contains(&text.len()),
        other => other.is_number(),
    };
    let list = list.filter(|list| (1..=MAX_CHOICES).contains(&list.len()) && list.iter().all(fits));
    let message = || {
        let limits = format!("1 to {MAX_CHOICES} texts of up to {MAX_CHOICE_BYTES} bytes");
        body.error("response_format", format!("choices must be {limits}, or numbers"))
    };
    list.cloned().ok_or_else(message)
}

/// Reads a schema of an object with one property.
fn read_schema(body: Fields<'_>, schema: &Value) -> Result<AnswerFormat, ApiError> {
    let wrong = |message: String| body.error("response_format", message);
    let known = ["type", "properties", "required", "additionalProperties"];
    refuse_keywords(body, schema, &known)?;
    let properties = schema["properties"].as_object().filter(|_| schema["type"] == "object");
    let single = properties.filter(|properties| properties.len() == 1);
    let Some((name, property)) = single.and_then(|properties| properties.iter().next()) else {
        let message = "the schema must be an object with one property, e.g. {\"type\": \
                       \"object\", \"properties\": {\"answer\": {\"type\": \"number\"}}}";
        return Err(wrong(message.to_owned()));
    };
    refuse_keywords(body, property, &["type", "enum", "minimum", "maximum"])?;
    let bound = |name: &str, default: f64| match &property[name] {
        Value::Null => Ok(default),
        bound => bound.as_f64().ok_or_else(|| wrong(format!("{name} must be a number"))),
    };
    let range = AcceptedRange {
        is_integer: property["type"] == "integer",
        minimum: bound("minimum", f64::NEG_INFINITY)?,
        maximum: bound("maximum", f64::INFINITY)?,
    };
    let kind = match (property["enum"].as_array(), property["type"].as_str()) {
        (Some(choices), _) => AcceptedAnswers::Choice(read_choices(body, Some(choices))?),
        (None, Some("number" | "integer")) => AcceptedAnswers::Number(range),
        (None, Some("string")) => AcceptedAnswers::Text,
        _ => {
            let message = format!("`{name}` must be a number, integer, string or enum");
            return Err(wrong(message));
        }
    };
    Ok(AnswerFormat { kind, property: Some(name.clone()) })
}

/// Rejects keywords that would restrict answers and are not supported.
fn refuse_keywords(body: Fields<'_>, schema: &Value, known: &[&str]) -> Result<(), ApiError> {
    let mut names = schema.as_object().into_iter().flat_map(|object| object.keys());
    let is_known = |name: &str| known.contains(&name) || ANNOTATIONS.contains(&name);
    match names.find(|name| !is_known(name)) {
        Some(name) => {
            let name: String = name.chars().take(64).collect();
            let message = format!("the schema keyword `{name}` is not supported; omit it");
            Err(body.error("response_format", message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use latent_tts::AnswerRule;

    use super::*;

    fn read(format: Value) -> Result<Option<AnswerFormat>, Option<String>> {
        let body = json!({ "response_format": format });
        AnswerFormat::read(Fields::of_body(&body).unwrap()).map_err(|error| error.param)
    }

    fn content(format: Value, text: &str) -> Option<String> {
        let format = read(format).unwrap().unwrap();
        let answer = AnswerRule::LastNumber.extract(format.answer_kind(), text);
        format.content(&Trajectory { answer, ..Trajectory::default() })
    }

    fn schema(property: Value) -> Value {
        let schema = json!({ "type": "object", "properties": { "result": property },
            "required": ["result"], "additionalProperties": false });
        json!({ "type": "json_schema", "json_schema": { "name": "r", "schema": schema } })
    }

    #[test]
    fn answers_are_written_as_requested() {
        let integer = || schema(json!({ "type": "integer", "minimum": 0 }));
        for (format, text, expected) in [
            (json!({ "type": "json_object" }), "7", Some(r#"{"answer":7}"#)),
            (json!({ "type": "number" }), "it is 7.50", Some("7.5")),
            (schema(json!({ "type": "number" })), "7.5", Some(r#"{"result":7.5}"#)),
            (integer(), "7", Some(r#"{"result":7}"#)),
            (integer(), "7.5", None),
            (integer(), "-7", None),
            (schema(json!({ "type": "string" })), "7", Some(r#"{"result":"7"}"#)),
            (schema(json!({ "enum": [7, 8] })), "8", Some(r#"{"result":8}"#)),
            (schema(json!({ "enum": [7, 8] })), "9", None),
            (json!({ "type": "choice", "choices": ["7", "8"] }), "7", Some("7")),
            (json!({ "type": "choice", "choices": ["A", "B"] }), "The answer is B", Some("B")),
            (json!({ "type": "choice", "choices": ["A", "B"] }), "The answer is C", None),
            (json!({ "type": "number" }), "no number", None),
        ] {
            assert_eq!(content(format.clone(), text).as_deref(), expected, "{format} {text}");
        }
    }

    #[test]
    fn formats_that_cannot_be_honoured_are_refused() {
        assert_eq!(read(json!({ "type": "text" })), Ok(None));
        let two = json!({ "type": "object", "properties": { "a": {}, "b": {} } });
        let pattern = json!({ "type": "string", "pattern": "^a" });
        for format in [
            json!({ "type": "xml" }),
            json!({ "type": "choice" }),
            json!({ "type": "choice", "choices": [] }),
            json!({ "type": "choice", "choices": [""] }),
            json!({ "type": "json_schema" }),
            json!({ "type": "json_schema", "json_schema": { "schema": two } }),
            json!({ "type": "json_schema", "json_schema": { "schema": 3 } }),
            schema(json!({ "type": "boolean" })),
            schema(pattern),
            schema(json!({ "type": "number", "minimum": "low" })),
        ] {
            assert_eq!(read(format.clone()), Err(Some("response_format".into())), "{format}");
        }
    }
}
