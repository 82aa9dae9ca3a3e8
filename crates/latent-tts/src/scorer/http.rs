//! A scorer behind HTTP: a reward endpoint, or a language model that judges answers.
//!
//! Each distinct text of a question is scored once. A reward endpoint gets all texts of a question
//! in one request:
//!
//! ```text
//! POST URL {"question": "...", "answers": ["...", "..."], "model": "..."}
//! 200      {"rewards": [0.1, 2.3]}   or   {"data": [{"index": 0, "score": 0.1}, ...]}
//! ```
//!
//! The second form is what `/v1/score` of `latent-tts serve` replies. A URL that ends in
//! `/chat/completions` is a judge: it gets one request per text and replies with a number from 0 to
//! 10. Requests run in parallel, and transient errors are retried.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::Trajectory;
use serde_json::{Value, json};
use ureq::Agent;

use super::Scorer;

/// The largest reply that is read.
const MAX_REPLY_BYTES: u64 = 16 << 20;
/// The pause before the first retry, doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Characters of a server's message that an error repeats.
const MAX_SHOWN: usize = 200;
/// The path of endpoints that judge.
const CHAT_PATH: &str = "/chat/completions";
/// The largest grade of a judge.
const MAX_GRADE: f32 = 10.0;

/// A scorer's endpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpScorerOptions {
    /// The URL that requests are sent to.
    pub url: String,
    /// The field `model` of requests; required by judges.
    pub model: Option<String>,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// The time limit of one request.
    pub timeout: Duration,
    /// Requests of one question that run at a time.
    pub concurrency: usize,
    /// Attempts for one request, the first included.
    pub attempts: u32,
}

impl HttpScorerOptions {
    /// An endpoint without a model and a key, with a limit of 60 s and 8 requests at a time.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            model: None,
            api_key: None,
            timeout: Duration::from_secs(60),
            concurrency: 8,
            attempts: 4,
        }
    }
}

/// Why no endpoint can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpScorerError {
    /// The URL has another scheme.
    #[error("{url:?} is not an http:// or https:// URL")]
    Scheme {
        /// The URL.
        url: String,
    },
    /// A judge without a model.
    #[error("{url} is a chat endpoint: name the model that judges")]
    NoModel {
        /// The URL.
        url: String,
    },
}

/// Rewards from an HTTP endpoint.
pub struct HttpScorer {
    options: HttpScorerOptions,
    agent: Agent,
    /// The URL and the model: what the rewards depend on.
    name: String,
}

impl HttpScorer {
    /// A scorer for an endpoint. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// The URL is not one of HTTP, or a judge has no model.
    pub fn new(options: HttpScorerOptions) -> Result<Self, HttpScorerError> {
        let url = options.url.clone();
        if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(HttpScorerError::Scheme { url });
        }
        if is_judge(&url) && options.model.is_none() {
            return Err(HttpScorerError::NoModel { url });
        }
        // A redirect could send the key to another host.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(options.timeout))
            .user_agent(concat!("latent-tts/", env!("CARGO_PKG_VERSION")))
            .build();
        let name = match &options.model {
            Some(model) => format!("{model} at {url}"),
            None => url,
        };
        Ok(Self { options, agent: config.into(), name })
    }

    /// The reply to a request, repeated after transient errors.
    fn post(&self, body: &Value) -> Result<Value, String> {
        let body = body.to_string();
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            match self.try_post(&body) {
                Ok(reply) => return Ok(reply),
                Err(error) if error.is_transient && attempt < self.options.attempts => {
                    tracing::warn!(url = self.options.url, error = error.message, "retrying");
                    std::thread::sleep(pause);
                    pause *= 2;
                }
                Err(error) => return Err(error.message),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn try_post(&self, body: &str) -> Result<Value, RequestError> {
        let request = self.agent.post(&self.options.url).header("content-type", "application/json");
        let request = match &self.options.api_key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        };
        let mut response = request.send(body.as_bytes()).map_err(RequestError::transport)?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(MAX_REPLY_BYTES).read_to_string();
        let text = text.map_err(RequestError::transport)?;
        if status != 200 {
            let parsed = serde_json::from_str::<Value>(&text).unwrap_or_default();
            let message = parsed["error"]["message"].as_str().unwrap_or(&text);
            let message: String = message.chars().take(MAX_SHOWN).collect();
            let is_transient = matches!(status, 408 | 429) || status >= 500;
            return Err(RequestError {
                message: format!("status {status}: {message}"),
                is_transient,
            });
        }
        serde_json::from_str(&text).map_err(|error| RequestError {
            message: format!("the reply is not JSON: {error}"),
            is_transient: false,
        })
    }

    /// The rewards of distinct texts by a reward endpoint.
    fn rewards(&self, question: &str, texts: &[&str]) -> Result<Vec<f32>, String> {
        let mut body = json!({ "question": question, "answers": texts });
        if let Some(model) = &self.options.model {
            body["model"] = json!(model);
        }
        read_rewards(&self.post(&body)?, texts.len())
    }

    /// The rewards of distinct texts by a judge, one request for each.
    fn grades(&self, question: &str, texts: &[&str]) -> Result<Vec<f32>, String> {
        let next = AtomicUsize::new(0);
        let grades = Mutex::new(vec![Err(String::new()); texts.len()]);
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(text) = texts.get(index) else { return };
                let grade = self.grade(question, text);
                let is_error = grade.is_err();
                if let Ok(mut grades) = grades.lock() {
                    grades[index] = grade;
                }
                if is_error {
                    // One failure ends the question: no further request is sent.
                    next.store(texts.len(), Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            let workers = self.options.concurrency.clamp(1, texts.len());
            for _ in 1..workers {
                // Without a further thread the others do its share.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        let grades = grades.into_inner().unwrap_or_default();
        let failed = grades.iter().find_map(|grade| grade.as_ref().err().filter(|e| !e.is_empty()));
        match failed {
            Some(error) => Err(error.clone()),
            None => grades.into_iter().collect(),
        }
    }

    fn grade(&self, question: &str, text: &str) -> Result<f32, String> {
        let prompt = format!(
            "Question: {question}\n\nProposed answer: {text}\n\nHow likely is it that the proposed \
             answer is correct? Reply with one number from 0 (certainly wrong) to 10 (certainly \
             correct) and nothing else."
        );
        let reply = self.post(&json!({
            "model": self.options.model,
            "messages": [{ "role": "user", "content": prompt }],
            "temperature": 0,
            "max_tokens": 16,
        }))?;
        let content = reply["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        first_number(content).map(|grade| grade.clamp(0.0, MAX_GRADE)).ok_or_else(|| {
            let shown: String = content.chars().take(MAX_SHOWN).collect();
            format!("the reply has no number: {shown:?}")
        })
    }
}

impl Scorer for HttpScorer {
    fn name(&self) -> &str {
        &self.name
    }

    fn score(
        &self,
        question: &str,
        trajectories: &[&Trajectory],
    ) -> Result<Vec<f32>, Box<dyn StdError + Send + Sync>> {
        let mut indices = BTreeMap::<&str, usize>::new();
        let mut texts = Vec::new();
        for trajectory in trajectories {
            let text = trajectory.text.trim();
            indices.entry(text).or_insert_with(|| {
                texts.push(text);
                texts.len() - 1
            });
        }
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let rewards = match is_judge(&self.options.url) {
            true => self.grades(question, &texts)?,
            false => self.rewards(question, &texts)?,
        };
        Ok(trajectories.iter().map(|t| rewards[indices[t.text.trim()]]).collect())
    }
}

/// A request that failed.
struct RequestError {
    message: String,
    /// Whether the same request may succeed later.
    is_transient: bool,
}

impl RequestError {
    fn transport(error: ureq::Error) -> Self {
        Self { message: error.to_string(), is_transient: true }
    }
}

fn is_judge(url: &str) -> bool {
    url.trim_end_matches('/').ends_with(CHAT_PATH)
}

/// The rewards of a reply in either form, in the order of the texts.
fn read_rewards(reply: &Value, expected: usize) -> Result<Vec<f32>, String> {
    let number = |value: &Value| value.as_f64().map(|reward| reward as f32);
    if let Some(rewards) = reply["rewards"].as_array() {
        let read: Option<Vec<f32>> = rewards.iter().map(number).collect();
        return match read {
            Some(read) if read.len() == expected => Ok(read),
            Some(read) => Err(format!("{} rewards for {expected} answers", read.len())),
            None => Err("`rewards` has an element that is not a number".to_owned()),
        };
    }
    let Some(data) = reply["data"].as_array() else {
        return Err("the reply has neither `rewards` nor `data`".to_owned());
    };
    let mut rewards = vec![None; expected];
    for entry in data {
        let index = entry["index"].as_u64().and_then(|index| usize::try_from(index).ok());
        let reward = index.and_then(|index| rewards.get_mut(index));
        let Some(reward) = reward else { return Err("`data` has an unknown `index`".to_owned()) };
        *reward = number(&entry["score"]);
    }
    let read: Option<Vec<f32>> = rewards.into_iter().collect();
    read.ok_or_else(|| format!("`data` lacks the score of one of {expected} answers"))
}

/// The first decimal number of a text.
fn first_number(text: &str) -> Option<f32> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let rest = &text[start..];
    let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    let is_negative = text[..start].ends_with('-');
    let number: f32 = rest[..end].trim_end_matches('.').parse().ok()?;
    Some(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;

    use super::*;

    /// A server on the loopback interface that answers each request with the next of `replies`, and
    /// the bodies it got.
    fn server(replies: Vec<(u16, Value)>) -> (String, Arc<Mutex<Vec<Value>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&bodies);
        std::thread::spawn(move || {
            for (status, reply) in replies {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream);
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                received.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                let text = reply.to_string();
                let head = format!(
                    "HTTP/1.1 {status} -\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    text.len()
                );
                reader.get_mut().write_all((head + &text).as_bytes()).unwrap();
            }
        });
        (url, bodies)
    }

    fn trajectories(texts: &[&str]) -> Vec<Trajectory> {
        let of = |text: &&str| Trajectory { text: (*text).to_owned(), ..Trajectory::default() };
        texts.iter().map(of).collect()
    }

    fn score(options: HttpScorerOptions, texts: &[&str]) -> Result<Vec<f32>, String> {
        let scorer = HttpScorer::new(options).map_err(|error| error.to_string())?;
        let trajectories = trajectories(texts);
        let trajectories: Vec<&Trajectory> = trajectories.iter().collect();
        scorer.score("2+2?", &trajectories).map_err(|error| error.to_string())
    }

    #[test]
    fn distinct_texts_are_sent_once_and_transient_errors_retried() {
        let (url, bodies) = server(vec![
            (503, json!({ "error": { "message": "loading" } })),
            (200, json!({ "rewards": [0.5, -1.0] })),
        ]);
        let rewards = score(HttpScorerOptions::new(url), &["4", "5", " 4"]).unwrap();
        assert_eq!(rewards, [0.5, -1.0, 0.5]);
        let bodies = bodies.lock().unwrap();
        assert_eq!(bodies.len(), 2);
        assert_eq!(bodies[1], json!({ "question": "2+2?", "answers": ["4", "5"] }));
    }

    #[test]
    fn scores_of_this_projects_server_are_read_by_index() {
        let data = json!([{ "index": 1, "score": 2.0 }, { "index": 0, "score": 1.0 }]);
        let (url, _) = server(vec![(200, json!({ "data": data }))]);
        assert_eq!(score(HttpScorerOptions::new(url), &["a", "b"]).unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn a_judge_grades_each_text() {
        let reply =
            |content: &str| (200, json!({ "choices": [{ "message": { "content": content } }] }));
        let (url, bodies) = server(vec![reply("Grade: 7.5"), reply("42")]);
        let options = HttpScorerOptions {
            model: Some("judge".to_owned()),
            concurrency: 1,
            ..HttpScorerOptions::new(format!("{url}{CHAT_PATH}"))
        };
        assert_eq!(score(options, &["4", "5"]).unwrap(), [7.5, 10.0]);
        let bodies = bodies.lock().unwrap();
        let prompt = bodies[0]["messages"][0]["content"].as_str().unwrap();
        assert!(prompt.contains("2+2?") && prompt.contains("answer: 4"), "{prompt}");
    }

    #[test]
    fn failures_name_the_problem() {
        let problem = |status, reply| {
            let (url, _) = server(vec![(status, reply)]);
            score(HttpScorerOptions::new(url), &["4"]).unwrap_err()
        };
        assert_eq!(problem(200, json!({ "rewards": [1, 2] })), "2 rewards for 1 answers");
        assert_eq!(problem(200, json!({})), "the reply has neither `rewards` nor `data`");
        let refused = problem(401, json!({ "error": { "message": "no key" } }));
        assert_eq!(refused, "status 401: no key");
        let chat = HttpScorerOptions::new("http://127.0.0.1:1/v1/chat/completions");
        assert!(score(chat, &["4"]).unwrap_err().contains("name the model"));
        assert!(score(HttpScorerOptions::new("ftp://a"), &["4"]).unwrap_err().contains("ftp://a"));
        let unreachable =
            HttpScorerOptions { attempts: 1, ..HttpScorerOptions::new("http://127.0.0.1:1/score") };
        assert!(!score(unreachable, &["4"]).unwrap_err().is_empty());
    }

    #[test]
    fn the_first_number_of_a_reply_is_the_grade() {
        let cases = [("9", 9.0), ("Score: 3/10", 3.0), ("about 7.5.", 7.5), ("-2", -2.0)];
        for (text, number) in cases {
            assert_eq!(first_number(text), Some(number), "{text}");
        }
        assert_eq!(first_number("none"), None);
    }
}
