//! The models of a server: loaded on demand within a memory limit, unloading the least recently
//! used.
//!
//! Models are only accessed through [`ModelPool::get`]. A request holds its model while it runs,
//! and only models without requests are unloaded, so unloading never interrupts a request. Models
//! are loaded one at a time. A reload replaces a model for new requests; running requests keep the
//! old one.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::scheduler::{Scheduler, SchedulerStats};
use engine::{Engine, Reasoner};
use latent_tts::notes::{self, Note};
use model::ModelFiles;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::prompts::ChatPrompts;
use crate::state::unix_seconds;
use crate::{ServeError, ServeOptions};

/// How often a request that waits for memory checks for idle models.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);

/// The error of a model that cannot be loaded.
pub type LoadError = Box<dyn Error + Send + Sync>;

/// A model in memory, with the files it was read from.
pub struct LoadedModel {
    /// The engine that runs it.
    pub engine: Engine,
    /// The reasoner's files.
    pub files: ModelFiles,
}

/// A model that can be loaded.
pub struct ModelSource {
    /// The model name in requests and replies.
    pub name: String,
    /// Memory of the loaded model in bytes: weights, keys and values.
    pub bytes: u64,
    /// Loads the model. Called again after unloading and for a reload.
    pub load: Box<dyn Fn() -> Result<LoadedModel, LoadError> + Send + Sync>,
}

/// A loaded model that answers requests.
pub(crate) struct ServedModel {
    pub(crate) name: String,
    pub(crate) scheduler: Scheduler,
    pub(crate) chat: ChatPrompts,
    /// The response body of `/tokenizer_info`.
    pub(crate) tokenizer_info: Value,
    /// When it was loaded, in seconds since 1970.
    pub(crate) created: u64,
    is_embedded: bool,
}

impl ServedModel {
    fn new(name: &str, loaded: LoadedModel, options: &ServeOptions) -> Result<Self, ServeError> {
        let LoadedModel { engine, files } = loaded;
        let config = files.read_optional("tokenizer_config.json")?.unwrap_or_default();
        let config: Value = serde_json::from_slice(&config).unwrap_or(Value::Null);
        let family = engine.reasoner().method.family;
        Ok(Self {
            name: name.to_owned(),
            chat: ChatPrompts::new(&options.chat_template, &config, family)?,
            tokenizer_info: tokenizer_info(&engine, config),
            created: unix_seconds(),
            is_embedded: notes::is_embedded(&files),
            scheduler: Scheduler::start(engine, options.max_waiting_sequences),
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.scheduler.engine()
    }

    pub(crate) fn reasoner(&self) -> &Reasoner {
        self.engine().reasoner()
    }

    /// Notes about a question, as printed by `solve`. The log contains their kinds and counts, but
    /// no words of the question.
    pub(crate) fn notes(&self, question: &str) -> Vec<String> {
        // A text that cannot be tokenized is rejected with its own error.
        let notes = notes::of_question(self.reasoner(), self.is_embedded, question);
        let notes = notes.unwrap_or_default();
        for note in &notes {
            match note {
                Note::UnknownWords(words) => {
                    tracing::info!(words = words.len(), "a question contains unknown words");
                }
                Note::OutOfRange(reasons) => {
                    let reasons = reasons.len();
                    tracing::info!(
                        reasons,
                        "a question is outside the model's training distribution"
                    );
                }
                _ => {}
            }
        }
        notes.iter().map(ToString::to_string).collect()
    }
}

/// All models of a server.
pub(crate) struct ModelPool {
    sources: Vec<ModelSource>,
    options: ServeOptions,
    state: Mutex<PoolState>,
    /// Held while a model is loaded, because loading two at a time would need the memory of both.
    loading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct PoolState {
    /// In order of last use, the least recently used first.
    loaded: Vec<LoadedEntry>,
    closed: bool,
}

struct LoadedEntry {
    index: usize,
    model: Arc<ServedModel>,
}

impl ModelPool {
    /// A pool of these models without loading any. The first one is the default for requests that
    /// name no model.
    pub(crate) fn new(
        sources: Vec<ModelSource>,
        options: &ServeOptions,
    ) -> Result<Self, ServeError> {
        for (index, source) in sources.iter().enumerate() {
            if sources[..index].iter().any(|other| other.name == source.name) {
                return Err(ServeError::DuplicateModel { name: source.name.clone() });
            }
            if let Some(limit) = options.model_memory.filter(|&limit| source.bytes > limit) {
                let (name, bytes) = (source.name.clone(), source.bytes);
                return Err(ServeError::ModelMemory { name, bytes, limit });
            }
        }
        let (state, loading) = (Mutex::default(), tokio::sync::Mutex::new(()));
        Ok(Self { sources, options: options.clone(), state, loading })
    }

    /// The names of all models, the default one first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|source| source.name.as_str())
    }

    /// The model with this name, or the default one. Loads it if necessary.
    pub(crate) async fn get(
        self: &Arc<Self>,
        name: Option<&str>,
        deadline: Instant,
    ) -> Result<Arc<ServedModel>, ApiError> {
        let index = self.index(name)?;
        if let Some(model) = self.lock().touch(index) {
            return Ok(model);
        }
        // A separate task, so that a disconnecting client does not cancel a load that others wait
        // for.
        let pool = Arc::clone(self);
        let load = tokio::spawn(async move { pool.load(index, deadline).await });
        match load.await {
            Ok(model) => model,
            Err(_) => Err(ApiError::internal("loading the model failed; see the log")),
        }
    }

    /// Loads the default model, so that a server that cannot answer does not start.
    pub(crate) async fn load_first(self: &Arc<Self>) -> Result<(), ServeError> {
        let failed = |error| {
            let name = self.sources[0].name.clone();
            ServeError::Load { name, error }
        };
        let model = self.read(0).await.map_err(failed)?;
        self.lock().loaded.push(LoadedEntry { index: 0, model });
        Ok(())
    }

    /// The model with this name if it is in memory. Does not affect the order of use.
    pub(crate) fn loaded(&self, name: &str) -> Option<Arc<ServedModel>> {
        let state = self.lock();
        let entry = state.loaded.iter().find(|entry| entry.model.name == name)?;
        Some(Arc::clone(&entry.model))
    }

    fn index(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let Some(name) = name else {
            return match self.sources.is_empty() {
                true => Err(ApiError::unknown_model("a gateway has no models of its own".into())),
                false => Ok(0),
            };
        };
        self.sources.iter().position(|source| source.name == name).ok_or_else(|| {
            let served: Vec<&str> = self.names().collect();
            let served = served.join("`, `");
            ApiError::unknown_model(format!("unknown model `{name}`; available models: `{served}`"))
        })
    }

    /// Whether there is a model with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    async fn load(
        self: &Arc<Self>,
        index: usize,
        deadline: Instant,
    ) -> Result<Arc<ServedModel>, ApiError> {
        let _one = self.loading.lock().await;
        if let Some(model) = self.lock().touch(index) {
            return Ok(model);
        }
        self.make_room(self.sources[index].bytes, deadline).await?;
        let model = self.read(index).await.map_err(ApiError::model_not_loaded)?;
        let mut state = self.lock();
        if state.closed {
            return Err(ApiError::draining());
        }
        state.loaded.push(LoadedEntry { index, model: Arc::clone(&model) });
        Ok(model)
    }

    /// Loads a model on a thread that may block.
    async fn read(self: &Arc<Self>, index: usize) -> Result<Arc<ServedModel>, LoadError> {
        let pool = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || -> Result<_, LoadError> {
            let source = &pool.sources[index];
            let start = Instant::now();
            let loaded = (source.load)()?;
            let model = ServedModel::new(&source.name, loaded, &pool.options)?;
            let seconds = start.elapsed().as_secs_f64();
            tracing::info!(model = source.name, seconds, "loaded");
            Ok(Arc::new(model))
        });
        let read = read.await.unwrap_or_else(|panic| Err(LoadError::from(panic)));
        read.inspect_err(|error| {
            tracing::error!(model = self.sources[index].name, %error, "cannot load the model");
        })
    }

    /// Unloads idle models, the least recently used first, until `bytes` more fit.
    async fn make_room(&self, bytes: u64, deadline: Instant) -> Result<(), ApiError> {
        loop {
            let unloaded = {
                let mut state = self.lock();
                if self.fits(&state, bytes) {
                    return Ok(());
                }
                state.take_idle()
            };
            match unloaded {
                Some(model) => unload(model).await,
                None if Instant::now() >= deadline => return Err(ApiError::models_busy()),
                None => tokio::time::sleep(IDLE_INTERVAL).await,
            }
        }
    }

    fn fits(&self, state: &PoolState, bytes: u64) -> bool {
        let used: u64 = state.loaded.iter().map(|entry| self.sources[entry.index].bytes).sum();
        self.options.model_memory.is_none_or(|limit| used + bytes <= limit)
    }

    /// Rereads every model in memory, and returns the names of those that were replaced. If the old
    /// and new model do not fit in memory together, the old one is unloaded and the new one is
    /// loaded by the next request.
    pub(crate) async fn reload(self: &Arc<Self>) -> Result<Vec<String>, LoadError> {
        let _one = self.loading.lock().await;
        let indices: Vec<usize> = self.lock().loaded.iter().map(|entry| entry.index).collect();
        let mut names = Vec::new();
        for index in indices {
            let fits = self.fits(&self.lock(), self.sources[index].bytes);
            let new = if fits { Some(self.read(index).await?) } else { None };
            let old = self.lock().replace(index, new);
            if let Some(old) = old {
                unload(old).await;
            }
            names.push(self.sources[index].name.clone());
        }
        Ok(names)
    }

    /// Running and queued requests, summed over all models.
    pub(crate) fn stats(&self) -> SchedulerStats {
        let state = self.lock();
        let mut sum = SchedulerStats::default();
        for stats in state.loaded.iter().map(|entry| entry.model.scheduler.stats()) {
            sum.running_requests += stats.running_requests;
            sum.waiting_requests += stats.waiting_requests;
            sum.running_sequences += stats.running_sequences;
            sum.waiting_sequences += stats.waiting_sequences;
            sum.used_slots += stats.used_slots;
            sum.slots += stats.slots;
            sum.passes += stats.passes;
            sum.prompt_tokens += stats.prompt_tokens;
            sum.cached_prompt_tokens += stats.cached_prompt_tokens;
        }
        sum
    }

    /// Total size of the key-value caches of the models in memory, in bytes.
    pub(crate) fn cache_bytes(&self) -> usize {
        let state = self.lock();
        state.loaded.iter().map(|entry| entry.model.engine().memory()).sum()
    }

    /// Number of models in memory.
    pub(crate) fn num_loaded(&self) -> usize {
        self.lock().loaded.len()
    }

    /// Whether the engines of all loaded models are running.
    pub(crate) fn is_alive(&self) -> bool {
        self.lock().loaded.iter().all(|entry| entry.model.scheduler.is_alive())
    }

    /// Closes all models to further requests, and prevents loading.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.loaded.iter().for_each(|entry| entry.model.scheduler.close());
    }

    /// Cancels every request.
    pub(crate) fn cancel_all(&self) {
        self.lock().loaded.iter().for_each(|entry| entry.model.scheduler.cancel_all());
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Returns a loaded model and makes it the most recently used one.
    fn touch(&mut self, index: usize) -> Option<Arc<ServedModel>> {
        let position = self.loaded.iter().position(|entry| entry.index == index)?;
        let entry = self.loaded.remove(position);
        let model = Arc::clone(&entry.model);
        self.loaded.push(entry);
        Some(model)
    }

    /// Removes and returns the least recently used model without requests.
    fn take_idle(&mut self) -> Option<Arc<ServedModel>> {
        let is_idle = |entry: &LoadedEntry| Arc::strong_count(&entry.model) == 1;
        let position = self.loaded.iter().position(is_idle)?;
        Some(self.loaded.remove(position).model)
    }

    /// Replaces or removes a loaded model. Returns the old one.
    fn replace(&mut self, index: usize, new: Option<Arc<ServedModel>>) -> Option<Arc<ServedModel>> {
        let position = self.loaded.iter().position(|entry| entry.index == index)?;
        match new {
            Some(new) => Some(std::mem::replace(&mut self.loaded[position].model, new)),
            None => Some(self.loaded.remove(position).model),
        }
    }
}

/// Drops a model on a thread that may block, because its scheduler waits for its thread.
async fn unload(model: Arc<ServedModel>) {
    tracing::info!(model = model.name, "unloaded");
    // A panic was printed by the thread itself.
    let _ = tokio::task::spawn_blocking(move || drop(model)).await;
}

/// tokenizer_config.json with special tokens as strings; `eos_token` is always present.
fn tokenizer_info(engine: &Engine, config: Value) -> Value {
    let mut info = match config {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    for (name, value) in info.iter_mut().filter(|(name, _)| name.ends_with("_token")) {
        if let Some(content) = value.get("content").cloned() {
            tracing::debug!(name, "special token");
            *value = content;
        }
    }
    let tokenizer = &engine.reasoner().tokenizer;
    let eos = tokenizer.eos().and_then(|id| tokenizer.id_to_token(id));
    if let Some(eos) = eos {
        info.insert("eos_token".into(), json!(eos));
    }
    info.insert("vocab_size".into(), json!(tokenizer.vocab_size()));
    Value::Object(info)
}
