//! Parses bodies, heads and templates as the server does, without a socket, for fuzzing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::{Engine, Family};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper_util::service::TowerToHyperService;
use model::ModelFiles;
use serde_json::{Value, json};

use crate::chat_template::{JinjaTemplate, TemplateLimits};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Generation;
use crate::models::{LoadedModel, ModelPool, ModelSource};
use crate::prompts::{ChatPrompts, PromptText, token_ids};
use crate::state::AppState;
use crate::{ChatTemplate, ServeError, ServeOptions, layers, routes};

/// Parses bodies for an engine.
pub struct BodyReader {
    engine: Engine,
    chat: ChatPrompts,
    max_samples: usize,
}

impl BodyReader {
    /// A reader with the server's default limits.
    pub fn new(engine: Engine) -> Result<Self, ServeError> {
        let chat = ChatPrompts::new(&ChatTemplate::Family, &Value::Null, Family::COT)?;
        Ok(Self { engine, chat, max_samples: ServeOptions::default().max_samples })
    }

    /// Parses a body as every path that accepts one. Returns for how many of them it was valid.
    pub fn read(&self, body: &[u8]) -> usize {
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return 0 };
        let Ok(body) = Fields::of_body(&body) else { return 0 };
        let chat = self.chat.prompt(self.engine.reasoner(), body).and_then(|chat| {
            let generation = self.generation(body)?;
            Ok(generation.params(&chat.prompt))
        });
        let completion = self.completion(body).is_ok();
        let decoded = body.list("tokens").ok().flatten().and_then(|list| token_ids(list));
        let decoded = decoded
            .is_some_and(|ids| self.engine.reasoner().tokenizer.decode_with_special(&ids).is_ok());
        usize::from(chat.is_ok()) + usize::from(completion) + usize::from(decoded)
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

/// Small limits, because the thread of a template that exceeds them never ends.
const SMALL: TemplateLimits = TemplateLimits {
    source: 4 << 10,
    output: 64 << 10,
    memory: 1 << 20,
    stack: 16 << 20,
    time: Duration::from_secs(2),
};

/// Compiles a chat template and renders it with two messages, under small limits.
///
/// # Errors
///
/// The problem with the template, or the exceeded limit.
pub fn render_template(source: &str) -> Result<String, String> {
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let messages = [message("system", "Be brief."), message("user", " What is 1 plus 2? ")];
    let context =
        json!({ "messages": messages, "add_generation_prompt": true, "bos_token": "<s>" });
    JinjaTemplate::compile_within(source.to_owned(), SMALL)?.render(context)
}

/// A server without a socket.
pub struct ConnectionReader {
    state: Arc<AppState>,
    router: axum::Router,
    runtime: tokio::runtime::Runtime,
}

impl ConnectionReader {
    /// A server with the default limits.
    ///
    /// # Errors
    ///
    /// If the threads of the engine or the runtime cannot be started.
    pub fn new(engine: Engine, files: &ModelFiles) -> Result<Self, ServeError> {
        let options = ServeOptions::default();
        let files = files.clone();
        let load = move || Ok(LoadedModel { engine: engine.clone(), files: files.clone() });
        let source =
            ModelSource { name: options.model_name.clone(), bytes: 0, load: Box::new(load) };
        let models = ModelPool::new(vec![source], &options)?;
        let state = Arc::new(AppState::new(models, options, None)?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(ServeError::Runtime)?;
        runtime.block_on(state.models.load_first())?;
        let router = routes::router(Arc::clone(&state));
        Ok(Self { state, router, runtime })
    }

    /// The response of a connection to these bytes followed by the end of the stream.
    pub fn answer(&self, input: &[u8]) -> Vec<u8> {
        let output = Arc::new(Mutex::new(Vec::new()));
        let stream = MemoryStream { input: input.to_vec(), at: 0, output: Arc::clone(&output) };
        let service = TowerToHyperService::new(self.router.clone());
        let connection = http1::Builder::new()
            .max_buf_size(layers::MAX_HEAD_BYTES)
            .serve_connection(stream, service);
        // Invalid HTTP ends the connection with an error.
        let _ = self.runtime.block_on(connection);
        output.lock().map(|mut output| std::mem::take(&mut *output)).unwrap_or_default()
    }

    /// Size of the metrics text in bytes, which requests must not increase.
    pub fn metrics_size(&self) -> usize {
        let models = &self.state.models;
        let text = self.state.metrics.render(models.stats(), models.num_loaded());
        text.map_or(0, |text| text.len())
    }
}

/// Bytes available for reading, and the response.
struct MemoryStream {
    input: Vec<u8>,
    at: usize,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Read for MemoryStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let length = buffer.remaining().min(self.input.len() - self.at);
        buffer.put_slice(&self.input[self.at..][..length]);
        self.at += length;
        Poll::Ready(Ok(()))
    }
}

impl Write for MemoryStream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Ok(mut output) = self.output.lock() {
            output.extend(bytes);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
