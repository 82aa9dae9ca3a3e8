//! Server-sent events: trajectories as they finish, with the current vote, and the answer, which is
//! streamed token by token if it is the only one and otherwise sent when it is decided.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use engine::scheduler::Event;
use futures_util::stream;
use serde_json::Value;

use crate::error::ApiError;
use crate::generation::StreamOptions;
use crate::progress::VoteProgress;
use crate::reply::{Choice, Usage};
use crate::response::Envelope;
use crate::text_stream::TextStream;
use crate::work::RunningRequest;

/// Streams the events of a request.
pub(crate) fn respond(
    work: RunningRequest,
    envelope: Envelope,
    options: StreamOptions,
) -> Response {
    let events = stream::unfold(Streamed::new(work, envelope, options), |mut streamed| async {
        let data = streamed.next().await?;
        Some((Ok::<_, Infallible>(SseEvent::default().data(data)), streamed))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

/// A stream in progress.
struct Streamed {
    work: RunningRequest,
    envelope: Envelope,
    options: StreamOptions,
    /// Events that are ready to be sent.
    ready: VecDeque<String>,
    progress: VoteProgress,
    texts: TextStream,
    usage: Usage,
    /// Number of unfinished prompts.
    left: usize,
    end: StreamStatus,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamStatus {
    /// More events follow; if the stream is dropped now, the client has disconnected.
    Open,
    Completed,
    Failed,
}

impl Streamed {
    fn new(work: RunningRequest, envelope: Envelope, options: StreamOptions) -> Self {
        let prompts = work.num_prompts();
        let choices = prompts * work.generation.num_choices();
        let ready = (0..choices).filter_map(|index| envelope.opening(index));
        Self {
            ready: ready.map(|chunk| chunk.to_string()).collect(),
            progress: VoteProgress::new(prompts),
            texts: TextStream::new(choices),
            work,
            envelope,
            options,
            usage: Usage::default(),
            left: prompts,
            end: StreamStatus::Open,
        }
    }

    /// The data of the next event.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Some(data);
            }
            if self.end != StreamStatus::Open {
                return None;
            }
            let told = match self.work.next().await {
                Ok((prompt, event)) => self.tell(prompt, event),
                Err(error) => Err(error),
            };
            if let Err(error) = told {
                self.ready.push_back(error.to_json().to_string());
                self.end = StreamStatus::Failed;
            }
        }
    }

    fn tell(&mut self, prompt: usize, event: Event) -> Result<(), ApiError> {
        if let Some(latent) = self.progress.add(&self.work, prompt, &event) {
            let chunk = self.envelope.chunk(prompt, "", None, latent);
            self.ready.push_back(chunk.to_string());
        }
        if let Some((index, delta)) = self.texts.add(&self.work, prompt, &event)? {
            let chunk = self.envelope.chunk(index, &delta, None, Value::Null);
            self.ready.push_back(chunk.to_string());
        }
        if let Event::Done(done) = event {
            let (choices, usage) = self.work.finish(prompt, done)?;
            let first = prompt * self.work.generation.num_choices();
            for (i, choice) in choices.into_iter().enumerate() {
                self.tell_choice(first + i, choice);
            }
            self.usage.add(usage);
            self.left -= 1;
            if self.left == 0 {
                self.complete();
            }
        }
        Ok(())
    }

    fn tell_choice(&mut self, index: usize, choice: Choice) {
        let Choice { text, finish_reason, latent, reasoning, refusal } = choice;
        if let Some(chunk) = reasoning.and_then(|text| self.envelope.reasoning(index, &text)) {
            self.ready.push_back(chunk.to_string());
        }
        if let Some(chunk) = refusal.and_then(|text| self.envelope.refusal(index, &text)) {
            self.ready.push_back(chunk.to_string());
        }
        let rest = self.texts.rest(index, &text);
        if !rest.is_empty() {
            let chunk = self.envelope.chunk(index, rest, None, Value::Null);
            self.ready.push_back(chunk.to_string());
        }
        let last = self.envelope.chunk(index, "", Some(finish_reason), latent);
        self.ready.push_back(last.to_string());
    }

    fn complete(&mut self) {
        if self.options.include_usage {
            self.ready.push_back(self.envelope.usage(self.usage).to_string());
        }
        self.ready.push_back("[DONE]".to_owned());
        self.end = StreamStatus::Completed;
        self.work.complete();
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        let end = match self.end {
            StreamStatus::Completed if self.ready.is_empty() => "completed",
            StreamStatus::Failed => "error",
            StreamStatus::Open | StreamStatus::Completed => "client_disconnected",
        };
        self.work.state().metrics.count_stream(end);
    }
}
