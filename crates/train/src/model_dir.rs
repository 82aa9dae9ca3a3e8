//! Model directories in the format of transformers: config.json, tokenizer, weights.
//!
//! Everything except the weights is written before training starts, and the model is loaded from
//! the written files. `adapter` contains the parts specific to LoRA.

mod adapter;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use model::adapter::{ADAPTER_WEIGHTS, BASE_RECORD, BaseRecord};
use model::checkpoint::ADAPTER_HEADS_FILE;
use model::save::{self, SaveDtype};
use model::{
    Checkpoint, Config, DecoderTuning, InitialWeights, LmHead, MemoryFiles, ModelError, ModelFiles,
    ModelWarning, NamedTensor, Parameter, ResizedEmbeddings, TensorSource, Tokenizer,
    TrainableDecoder,
};
use serde_json::{Value, json};
use tensor::Device;

use crate::error::TrainError;
use crate::methods::LatentMarkers;
use crate::trainer::check_new_model;
use crate::vocabulary::{self, END_LATENT, END_OF_TEXT, LATENT, START_LATENT};
use adapter::base_record;
pub use adapter::{AdapterSource, AdapterSpec, AdapterStart, SavedAdapter};

/// The initial model of a training.
#[derive(Clone, Debug)]
pub enum ModelInit {
    /// Random weights of this shape, with the corpus's vocabulary.
    Scratch(ScratchShape),
    /// A directory, adapter or GGUF file of GPT-2, Llama, Qwen2 or Qwen3. Latent markers missing
    /// from its vocabulary are added.
    Pretrained(ModelFiles),
}

/// The shape of a new GPT-2.
#[derive(Clone, Copy, Debug)]
pub struct ScratchShape {
    /// Hidden size.
    pub width: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; a divisor of the width.
    pub heads: usize,
    /// Positions of the context.
    pub context: usize,
    /// Seed of the weights.
    pub seed: u64,
}

/// A model with its tokenizer, ready for training.
pub struct TrainableModel {
    /// The weights.
    pub decoder: TrainableDecoder,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Ids of the latent markers and of end of text.
    pub markers: LatentMarkers,
    /// Writes the trained weights.
    pub writer: WeightWriter,
    /// The initial model.
    pub initial: InitialModel,
}

/// Which weights of a model are trained, and the dtype they are saved in.
#[derive(Clone, Debug)]
pub struct TuningSpec {
    /// The adapter to train; `None` trains all weights.
    pub lora: Option<AdapterSpec>,
    /// Data type of the saved weights.
    pub dtype: SaveDtype,
}

/// The method-specific parts of a model's configuration and vocabulary.
#[derive(Clone, Debug, Default)]
pub struct ModelUsage {
    /// config.json's `latent_tts`: the method and defaults that the engine applies.
    pub config: Value,
    /// Tokens that the method adds to the vocabulary, in addition to the latent markers.
    pub added_tokens: Vec<String>,
}

impl From<Value> for ModelUsage {
    fn from(config: Value) -> Self {
        Self { config, added_tokens: Vec::new() }
    }
}

/// Writes the configuration and the tokenizer to `out` and loads the initial weights.
pub fn init_model(
    device: &Device,
    init: &ModelInit,
    out: &Path,
    usage: impl Into<ModelUsage>,
    tuning: &TuningSpec,
) -> Result<TrainableModel, TrainError> {
    let usage = usage.into();
    std::fs::create_dir_all(out)
        .map_err(|source| TrainError::Io { path: out.to_owned(), source })?;
    match init {
        ModelInit::Scratch(shape) => {
            vocabulary::write(out)?;
            let added: Vec<&str> = usage.added_tokens.iter().map(String::as_str).collect();
            let first = vocabulary::tokens().len();
            add_tokens(&out.join("tokenizer.json"), &added, first)?;
            let tokenizer = Tokenizer::read(out)?;
            let markers = markers(&tokenizer)?;
            let mut config = scratch_config(shape, tokenizer.vocab_size(), &tokenizer);
            config["latent_tts"] = usage.config;
            write_json(&out.join("config.json"), &config)?;
            let source = InitialWeights { seed: shape.seed, layers: shape.layers };
            let config = Config::read(out)?;
            check_new_model(device, config.parameters())?;
            let decoder =
                device.run(|| TrainableDecoder::load(device, &config, &source, LmHead::With))?;
            let writer = WeightWriter { dtype: tuning.dtype, adapter: None };
            let vocab = config.vocab;
            let resize = Resize { old_vocab: vocab, new_vocab: vocab, copy_from: 0, new_tokens: 0 };
            let initial = InitialModel { init: init.clone(), resize, warnings: Vec::new() };
            Ok(TrainableModel { decoder, tokenizer: Arc::new(tokenizer), markers, writer, initial })
        }
        ModelInit::Pretrained(files) => init_from_pretrained(device, files, out, usage, tuning),
    }
}

/// Copies the configuration and the tokenizer of a model to `out` and adds missing latent markers.
fn init_from_pretrained(
    device: &Device,
    files: &ModelFiles,
    out: &Path,
    usage: ModelUsage,
    tuning: &TuningSpec,
) -> Result<TrainableModel, TrainError> {
    let checkpoint = Checkpoint::open(files)?;
    let before = Tokenizer::read(files)?;
    copy_description(files, out)?;
    // An embedding table may be padded beyond its vocabulary: new tokens use the padding first.
    let old_vocab = checkpoint.config().vocab;
    let first = before.vocab_size();
    let mut missing = vec![START_LATENT, END_LATENT, LATENT];
    missing.extend(usage.added_tokens.iter().map(String::as_str));
    missing.retain(|marker| before.token_to_id(marker).is_none());
    add_tokens(&out.join("tokenizer.json"), &missing, first)?;
    let new_vocab = old_vocab.max(first + missing.len());
    let tokenizer = Tokenizer::read(out)?;
    let markers = markers(&tokenizer)?;
    // A tokenizer may have tokens beyond the table; their rows are new as well.
    let mut candidates = tokenizer.encode("<<")?.into_iter().chain([markers.eos]);
    let copy_from = candidates.find(|token| (*token as usize) < old_vocab).unwrap_or(0);
    let mut config = read_json(&out.join("config.json"))?;
    let vocab = json!(new_vocab);
    match config.get_mut("text_config") {
        Some(text) => text["vocab_size"] = vocab, // Qwen3-VL's text tower
        None => config["vocab_size"] = vocab,
    }
    config["latent_tts"] = usage.config;
    name_dtype(&mut config, tuning);
    for (field, token) in
        [("latent_id", LATENT), ("latent_start_id", START_LATENT), ("latent_end_id", END_LATENT)]
    {
        config[field] = json!(tokenizer.token_to_id(token));
    }
    write_json(&out.join("config.json"), &config)?;
    let config = Config::read(out)?;
    let writer = WeightWriter::new(tuning, &checkpoint)?;
    let new_tokens = match missing.is_empty() {
        true => checkpoint.added_tokens(),
        // The rows of an adapter include those of the adapters below it.
        false => (new_vocab - first).max(checkpoint.added_tokens() + new_vocab - old_vocab),
    };
    let resize = Resize { old_vocab, new_vocab, copy_from, new_tokens };
    let decoder = device.run(|| resize.load(device, &checkpoint, &config, tuning.lora.as_ref()))?;
    let warnings = checkpoint.warnings().to_vec();
    let initial = InitialModel { init: ModelInit::Pretrained(files.clone()), resize, warnings };
    Ok(TrainableModel { decoder, tokenizer: Arc::new(tokenizer), markers, writer, initial })
}

/// A trained reasoner whose training continues with its own method and vocabulary.
pub struct ContinuedModel {
    /// The weights.
    pub decoder: TrainableDecoder,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Writes the trained weights.
    pub writer: WeightWriter,
    /// The initial checkpoint.
    pub checkpoint: Checkpoint,
}

/// Copies configuration and tokenizer of a reasoner to `out` and loads its weights for training.
/// Unlike [`init_model`] it adds no tokens and keeps the method.
pub fn continue_model(
    device: &Device,
    files: &ModelFiles,
    out: &Path,
    tuning: &TuningSpec,
) -> Result<ContinuedModel, TrainError> {
    let checkpoint = Checkpoint::open(files)?;
    copy_description(files, out)?;
    let mut config = read_json(&out.join("config.json"))?;
    name_dtype(&mut config, tuning);
    write_json(&out.join("config.json"), &config)?;
    let tokenizer = Arc::new(Tokenizer::read(out)?);
    let writer = WeightWriter::new(tuning, &checkpoint)?;
    let decoder = load_continued(device, &checkpoint, tuning.lora.as_ref())?;
    Ok(ContinuedModel { decoder, tokenizer, writer, checkpoint })
}

/// The weights of a checkpoint for training, with its own vocabulary.
pub fn load_continued(
    device: &Device,
    checkpoint: &Checkpoint,
    lora: Option<&AdapterSpec>,
) -> Result<TrainableDecoder, TrainError> {
    let config = checkpoint.config();
    let vocab = config.vocab;
    let new_tokens = checkpoint.added_tokens();
    let resize = Resize { old_vocab: vocab, new_vocab: vocab, copy_from: 0, new_tokens };
    Ok(device.run(|| resize.load(device, checkpoint, config, lora))?)
}

/// Sets the dtype of the saved weights in a configuration that has one; transformers loads the
/// model in this dtype.
fn name_dtype(config: &mut Value, tuning: &TuningSpec) {
    for field in ["dtype", "torch_dtype"] {
        if let (Some(dtype), None) = (config.get_mut(field), &tuning.lora) {
            *dtype = json!(tuning.dtype.torch_name());
        }
    }
}

/// The initial weights of a training, which can be loaded again.
#[derive(Clone, Debug)]
pub struct InitialModel {
    init: ModelInit,
    resize: Resize,
    /// Warnings about the checkpoint.
    pub warnings: Vec<ModelWarning>,
}

/// How an embedding table grows.
#[derive(Clone, Copy, Debug)]
struct Resize {
    old_vocab: usize,
    new_vocab: usize,
    /// The token whose row initializes new rows.
    copy_from: u32,
    /// Number of rows at the end of the table for new tokens or padding.
    new_tokens: usize,
}

impl Resize {
    fn load(
        self,
        device: &Device,
        checkpoint: &Checkpoint,
        config: &Config,
        lora: Option<&AdapterSpec>,
    ) -> Result<TrainableDecoder, ModelError> {
        let Self { old_vocab, new_vocab, copy_from, new_tokens } = self;
        let Some(lora) = lora else {
            let source = ResizedEmbeddings { source: checkpoint, old_vocab, new_vocab, copy_from };
            return TrainableDecoder::load(device, config, &source, LmHead::With);
        };
        let tuning = DecoderTuning::Lora { config: &lora.config, new_tokens };
        let source = &lora.source(checkpoint);
        let source = ResizedEmbeddings { source, old_vocab, new_vocab, copy_from };
        TrainableDecoder::load_tuned(device, config, &source, LmHead::With, tuning)
    }
}

impl InitialModel {
    /// A second model with the same initial weights, all of them trained.
    pub fn load_copy(
        &self,
        device: &Device,
        config: &Config,
    ) -> Result<TrainableDecoder, TrainError> {
        Ok(match &self.init {
            ModelInit::Scratch(shape) => {
                let source = InitialWeights { seed: shape.seed, layers: shape.layers };
                device.run(|| TrainableDecoder::load(device, config, &source, LmHead::With))?
            }
            ModelInit::Pretrained(files) => {
                let checkpoint = Checkpoint::open(files)?;
                device.run(|| self.resize.load(device, &checkpoint, config, None))?
            }
        })
    }

    /// The weights of a head: from the initial model if it has them, else randomly initialized.
    pub fn head_source(&self, seed: u64, layers: usize) -> Result<HeadSource, TrainError> {
        let checkpoint = match &self.init {
            ModelInit::Scratch(_) => None,
            ModelInit::Pretrained(files) => Some(Checkpoint::open(files)?),
        };
        Ok(HeadSource { checkpoint, initial: InitialWeights { seed, layers } })
    }
}

/// Head weights from the initial model, or random ones where it has none.
pub struct HeadSource {
    checkpoint: Option<Checkpoint>,
    initial: InitialWeights,
}

impl HeadSource {
    /// The number of rows of a weight of the initial model; `None` if it has no such weight.
    pub fn rows(&self, name: &str) -> Option<usize> {
        self.checkpoint.as_ref()?.shape(name)?.first().copied()
    }
}

impl TensorSource for HeadSource {
    fn has(&self, _: &str) -> bool {
        true
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        match self.checkpoint.as_ref().filter(|checkpoint| checkpoint.has(name)) {
            Some(checkpoint) => checkpoint.tensor(name, shape),
            None => self.initial.tensor(name, shape),
        }
    }
}

fn scratch_config(shape: &ScratchShape, vocab: usize, tokenizer: &Tokenizer) -> Value {
    let id = |token: &str| tokenizer.token_to_id(token);
    json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
        "activation_function": "gelu_new", "n_embd": shape.width, "n_layer": shape.layers,
        "n_head": shape.heads, "n_positions": shape.context,
        "vocab_size": vocab, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        "bos_token_id": id(END_OF_TEXT), "eos_token_id": id(END_OF_TEXT),
        "pad_token_id": id(END_OF_TEXT), "latent_id": id(LATENT),
        "latent_start_id": id(START_LATENT), "latent_end_id": id(END_LATENT),
    })
}

fn markers(tokenizer: &Tokenizer) -> Result<LatentMarkers, TrainError> {
    let [begin_latent, end_latent] = token_ids(tokenizer, [START_LATENT, END_LATENT])?;
    let end_of_text = || token_ids(tokenizer, [END_OF_TEXT]).map(|[id]| id);
    let eos = tokenizer.eos().map_or_else(end_of_text, Ok)?;
    Ok(LatentMarkers { begin_latent, end_latent, eos })
}

/// The ids of tokens; an error if one is missing from the vocabulary.
pub fn token_ids<const N: usize>(
    tokenizer: &Tokenizer,
    tokens: [&str; N],
) -> Result<[u32; N], TrainError> {
    let mut ids = [0; N];
    for (id, token) in ids.iter_mut().zip(tokens) {
        let how = "use a model whose tokenizer.json contains it, or train from scratch";
        *id = tokenizer
            .token_to_id(token)
            .ok_or_else(|| TrainError::MissingToken { token: token.to_owned(), how })?;
    }
    Ok(ids)
}

/// Names of tokenizer files.
const TOKENIZER_FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
];

/// Copies the tokenizer files.
pub fn copy_tokenizer(from: impl Into<ModelFiles>, to: &Path) -> Result<(), TrainError> {
    std::fs::create_dir_all(to).map_err(|source| TrainError::Io { path: to.to_owned(), source })?;
    copy_inherited(&from.into(), to, &["tokenizer.json", "vocab.json"], &TOKENIZER_FILES)
}

/// Copies configuration and tokenizer; files missing from an adapter are taken from its base.
pub fn copy_description(from: impl Into<ModelFiles>, to: &Path) -> Result<(), TrainError> {
    let files = from.into();
    copy_tokenizer(&files, to)?;
    copy_inherited(&files, to, &["config.json"], &["config.json"])
}

/// Copies configuration, tokenizer and weights. The copy of an adapter keeps the same base.
pub fn copy_model(from: impl Into<ModelFiles>, to: &Path) -> Result<(), TrainError> {
    let files = from.into();
    copy_description(&files, to)?;
    let dir = files.path();
    let entries =
        std::fs::read_dir(dir).map_err(|source| TrainError::Io { path: dir.to_owned(), source })?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let weights: Vec<String> = names.filter(|name| name.contains(".safetensors")).collect();
    copy_existing(&files, to, &weights.iter().map(String::as_str).collect::<Vec<_>>())?;
    let Some(base) = files.base()? else { return Ok(()) };
    copy_existing(&files, to, &["adapter_config.json"])?;
    let record = BaseRecord::read(&files)?.unwrap_or_default();
    Ok(record::write_document(&to.join(BASE_RECORD), &base_record(to, base.path(), record)?)?)
}

/// Copies files from the first model in the chain of bases that has one of `marks`.
fn copy_inherited(
    files: &ModelFiles,
    to: &Path,
    marks: &[&str],
    names: &[&str],
) -> Result<(), TrainError> {
    match files.first_with(marks)? {
        Some(described) => copy_existing(&described, to, names),
        None => Ok(()),
    }
}

/// Copies the files of `names` that exist.
fn copy_existing(files: &ModelFiles, to: &Path, names: &[&str]) -> Result<(), TrainError> {
    for name in names {
        if let Some(contents) = files.read_optional(name)? {
            record::write_atomic(&to.join(name), &contents)?;
        }
    }
    Ok(())
}

/// Adds tokens to tokenizer.json, with ids starting at `first`. As in COCONUT they are not special:
/// decoded text contains them.
fn add_tokens(path: &Path, tokens: &[&str], first: usize) -> Result<(), TrainError> {
    if tokens.is_empty() {
        return Ok(());
    }
    let mut file = read_json(path)?;
    let Some(added) = file.get_mut("added_tokens").and_then(Value::as_array_mut) else {
        return Err(TrainError::BadFile {
            path: path.to_owned(),
            reason: "the list `added_tokens` is missing".to_owned(),
        });
    };
    for (id, content) in (first..).zip(tokens) {
        added.push(json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false,
        }));
    }
    write_json(path, &file)
}

/// Reads a JSON file.
pub fn read_json(path: &Path) -> Result<Value, TrainError> {
    let text = record::files::read_regular(path)
        .map_err(|source| TrainError::Io { path: path.to_owned(), source })?;
    serde_json::from_slice(&text)
        .map_err(|e| TrainError::BadFile { path: path.to_owned(), reason: e.to_string() })
}

/// Writes a JSON file atomically.
pub fn write_json(path: &Path, value: &Value) -> Result<(), TrainError> {
    Ok(record::write_document(path, value)?)
}

/// Sets config.json's `latent_embedding_std`, the unit of CoLaR's latent head.
pub fn set_embedding_std(dir: &Path, std: f32) -> Result<(), TrainError> {
    let path = dir.join("config.json");
    let mut config = read_json(&path)?;
    config["latent_embedding_std"] = json!(std);
    write_json(&path, &config)
}

/// Writes the trained weights: the whole model or an adapter.
#[derive(Clone, Debug)]
pub struct WeightWriter {
    /// Data type of the saved weights.
    pub dtype: SaveDtype,
    /// The trained adapter; `None` if all weights are trained.
    pub adapter: Option<SavedAdapter>,
}

impl WeightWriter {
    /// A writer for a model that starts from a checkpoint.
    pub fn new(tuning: &TuningSpec, start: &Checkpoint) -> Result<Self, TrainError> {
        let adapter =
            tuning.lora.as_ref().map(|spec| SavedAdapter::new(spec, start)).transpose()?;
        Ok(Self { dtype: tuning.dtype, adapter })
    }

    /// Whether [`WeightWriter::write`] has written weights to `out`.
    pub fn is_written(&self, out: &Path) -> bool {
        let weights = if self.adapter.is_some() { ADAPTER_WEIGHTS } else { "model.safetensors" };
        out.join(weights).is_file()
    }

    /// Writes the trained weights to `out`. A whole model becomes `model.safetensors`, with
    /// transformers' names for the decoder and ours for the heads. An adapter becomes peft's
    /// `adapter_model.safetensors` and `adapter_config.json`, with `base.json` for its base and
    /// `heads.safetensors` for all other weights.
    pub fn write<'a>(
        &self,
        out: &Path,
        model: &TrainableDecoder,
        heads: impl IntoIterator<Item = &'a Parameter>,
    ) -> Result<(), TrainError> {
        let WrittenFiles { weights, documents } = self.files(out, model, heads)?;
        for (name, tensors) in weights {
            save::write_safetensors(&out.join(name), &tensors, self.dtype, save::PT_METADATA)?;
        }
        documents.into_iter().try_for_each(|(name, content)| write_json(&out.join(name), &content))
    }

    /// The model that [`Self::write`] would write to `out`, in memory, together with the
    /// configuration and the tokenizer in `out`. It loads bit-identically to the written model.
    pub fn in_memory<'a>(
        &self,
        out: &Path,
        model: &TrainableDecoder,
        heads: impl IntoIterator<Item = &'a Parameter>,
    ) -> Result<ModelFiles, TrainError> {
        let mut files = BTreeMap::new();
        let described = ModelFiles::Directory(out.to_owned());
        for name in TOKENIZER_FILES.into_iter().chain(["config.json"]) {
            files.extend(
                described.read_optional(name)?.map(|bytes| (name.to_owned(), bytes.into())),
            );
        }
        let WrittenFiles { weights, documents } = self.files(out, model, heads)?;
        for (name, tensors) in weights {
            let path = out.join(name);
            let bytes = save::safetensors_bytes(&path, &tensors, self.dtype, save::PT_METADATA)?;
            files.insert(name.to_owned(), bytes.into());
        }
        for (name, content) in documents {
            files.insert(name.to_owned(), content.to_string().into_bytes().into());
        }
        Ok(ModelFiles::Memory(Arc::new(MemoryFiles { dir: out.to_owned(), files })))
    }

    fn files<'a>(
        &self,
        out: &Path,
        model: &TrainableDecoder,
        heads: impl IntoIterator<Item = &'a Parameter>,
    ) -> Result<WrittenFiles, TrainError> {
        let prefix = model.decoder.config().weight_prefix();
        let mut beside: Vec<NamedTensor> = Vec::new();
        for parameter in heads {
            beside.extend(parameter.named_values()?);
        }
        let mut tensors: Vec<NamedTensor> = Vec::new();
        for parameter in model.parameters() {
            for named in parameter.named_values()? {
                // transformers keeps the language-model head outside of the decoder's prefix.
                let prefix = if named.name.starts_with("lm_head.") { "" } else { prefix };
                match &self.adapter {
                    Some(_) if !named.name.contains(".lora_") => beside.push(named),
                    Some(_) => tensors.push(NamedTensor {
                        name: format!("base_model.model.{prefix}{}", named.name),
                        ..named
                    }),
                    None => tensors
                        .push(NamedTensor { name: format!("{prefix}{}", named.name), ..named }),
                }
            }
        }
        let Some(adapter) = &self.adapter else {
            tensors.extend(beside);
            let weights = vec![("model.safetensors", tensors)];
            return Ok(WrittenFiles { weights, documents: Vec::new() });
        };
        let mut weights = vec![(ADAPTER_HEADS_FILE, beside), (ADAPTER_WEIGHTS, tensors)];
        weights.retain(|(name, tensors)| *name == ADAPTER_WEIGHTS || !tensors.is_empty());
        let config = adapter.peft_config(model.decoder.config());
        let base = base_record(out, &adapter.base, adapter.record.clone())?;
        let documents = vec![("adapter_config.json", config), (BASE_RECORD, json!(base))];
        Ok(WrittenFiles { weights, documents })
    }
}

/// The weight files of a model, by name.
struct WrittenFiles {
    weights: Vec<(&'static str, Vec<NamedTensor>)>,
    documents: Vec<(&'static str, Value)>,
}
