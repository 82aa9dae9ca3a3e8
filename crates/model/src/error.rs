//! The errors of this crate: one variant for each way in which a checkpoint can be invalid.
//!
//! Messages are lower case, name the file and the tensor or field, and end with the remedy. Invalid
//! files never cause a panic.

use std::path::{Path, PathBuf};

use crate::hub::HubId;

/// Why a checkpoint, a configuration or a tokenizer could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The device failed, e.g. for lack of memory.
    #[error(transparent)]
    Device(#[from] tensor::DeviceError),

    /// An I/O error.
    #[error("{}: {}", path.display(), describe_io(error))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause. Part of the message, and therefore not its source as well.
        error: std::io::Error,
    },

    /// The checkpoint directory does not exist, or is a file.
    #[error(
        "{}: no such directory; pass the directory that contains config.json and model.safetensors",
        dir.display()
    )]
    MissingDirectory {
        /// The path.
        dir: PathBuf,
    },

    /// A directory without a probe.
    #[error("{}: no probe.json; pass a directory that `train probe` wrote", dir.display())]
    MissingProbe {
        /// The directory.
        dir: PathBuf,
    },

    /// An invalid probe file.
    #[error("{}: invalid probe: {reason}; train it again", path.display())]
    InvalidProbe {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },

    /// No config.json.
    #[error(
        "{}: config.json is missing or empty; pass the base model, or copy its config.json into \
         the directory",
        dir.display()
    )]
    MissingConfig {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// No safetensors file, and no pickle file that could be converted.
    #[error(
        "{}: no weights; expected model.safetensors or shards with *.safetensors.index.json",
        dir.display()
    )]
    MissingWeights {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// Weights in Python's pickle format, which can execute code when loaded.
    #[error(
        "{}: pickled weights are not loaded, because unpickling can execute code; convert the \
         checkpoint to safetensors first (the converter executes nothing)",
        file.display()
    )]
    PickleWeights {
        /// The pickle file.
        file: PathBuf,
    },

    /// A file that `torch.save` did not write, or that contains no tensors.
    #[error("{}: not a valid PyTorch checkpoint: {why}", file.display())]
    BadPickle {
        /// The file.
        file: PathBuf,
        /// The problem.
        why: String,
    },

    /// A stop gate whose last layer does not have one output.
    #[error(
        "{}: unsupported stop gate: its last layer `{tensor}` has shape {shape:?} and must have \
         one output",
        dir.display()
    )]
    BadGate {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The weight of the last layer.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },

    /// Several weight files without an index.
    #[error(
        "{}: several weight files: {}; keep one, or add the *.safetensors.index.json of the \
         shards",
        dir.display(),
        files.join(", ")
    )]
    AmbiguousWeights {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The candidates.
        files: Vec<String>,
    },

    /// A text file that is not UTF-8.
    #[error("{}: not UTF-8 at byte {at}; the file is damaged, download it again", file.display())]
    NotUtf8 {
        /// The file.
        file: PathBuf,
        /// The first byte that is not UTF-8.
        at: usize,
    },

    /// A JSON file that does not parse, or is not of the expected form.
    #[error("{}: invalid JSON: {why}; the file is damaged, download it again", file.display())]
    BadJson {
        /// The file.
        file: PathBuf,
        /// The parser's message, with line and column.
        why: String,
    },

    /// A required field is absent.
    #[error(
        "{}: no field `{field}`; copy it from the base model's config.json",
        file.display()
    )]
    MissingField {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
    },

    /// A field with an invalid value.
    #[error("{}: field `{field}` {why}", file.display())]
    BadField {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
        /// The problem, and the valid values.
        why: String,
    },

    /// A feature that is not implemented.
    #[error(
        "{}: `{field}` is {found}, which is not supported; supported: {supported}",
        file.display()
    )]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// The supported values.
        supported: String,
    },

    /// A weight file that is shorter than its header implies.
    #[error("{}: truncated: {have} of {need} bytes; download it again", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Its size in bytes.
        have: u64,
        /// The size that its header implies, in bytes.
        need: u64,
    },

    /// A safetensors file with bytes after its last tensor.
    #[error("{}: {extra} bytes after the last tensor; download it again", file.display())]
    TrailingBytes {
        /// The file.
        file: PathBuf,
        /// The number of those bytes.
        extra: u64,
    },

    /// A safetensors header above the size limit.
    #[error(
        "{}: header of {size} bytes exceeds the limit of {limit}; not a safetensors file",
        file.display()
    )]
    OversizedHeader {
        /// The file.
        file: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },

    /// An invalid safetensors header.
    #[error("{}: invalid safetensors header: {why}; download the file again", file.display())]
    BadHeader {
        /// The file.
        file: PathBuf,
        /// The problem.
        why: String,
    },

    /// A file with the extension `.gguf` that is not a GGUF file.
    #[error("{}: not a GGUF file (bad magic number); download it again", file.display())]
    NotGguf {
        /// The file.
        file: PathBuf,
    },

    /// A GGUF file of an unsupported version.
    #[error(
        "{}: unsupported GGUF version {found}; supported: 2 and 3, little-endian; convert the \
         model again with llama.cpp's convert_hf_to_gguf.py",
        file.display()
    )]
    GgufVersion {
        /// The file.
        file: PathBuf,
        /// Its version, or `big-endian`.
        found: String,
    },

    /// An invalid GGUF header.
    #[error("{}: invalid GGUF header: {why}; download the file again", file.display())]
    BadGguf {
        /// The file.
        file: PathBuf,
        /// The problem.
        why: String,
    },

    /// A key that a GGUF file lacks.
    #[error(
        "{}: no key `{key}`; convert the model again with llama.cpp's convert_hf_to_gguf.py",
        file.display()
    )]
    MissingMetadata {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
    },

    /// A tensor of a GGUF file with an unsupported type.
    #[error(
        "{}: tensor `{tensor}` has type {found}, which is not supported; supported: {supported}; \
         quantize the model again with llama-quantize",
        file.display()
    )]
    GgufTensorType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
        /// The supported types.
        supported: String,
    },

    /// A shard named in the index is missing.
    #[error("{}: shard {shard} is not in the directory; download it", index.display())]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The shard.
        shard: String,
    },

    /// A shard lacks a tensor that the index assigns to it.
    #[error(
        "{}: tensor `{tensor}` is not in {shard}; index and shards are from different versions",
        index.display()
    )]
    MissingInShard {
        /// The index file.
        index: PathBuf,
        /// The shard.
        shard: String,
        /// The tensor.
        tensor: String,
    },

    /// The index names a file outside the checkpoint directory.
    #[error(
        "{}: shard path `{shard}` leaves the directory; only plain file names are allowed",
        index.display()
    )]
    EscapingShard {
        /// The index file.
        index: PathBuf,
        /// The path in the index.
        shard: String,
    },

    /// Two different tensors have the same canonical name.
    #[error(
        "{}: `{first}` and `{second}` are both `{tensor}` but differ; remove one",
        file.display()
    )]
    DuplicateTensor {
        /// The file that contains the second tensor.
        file: PathBuf,
        /// The canonical name.
        tensor: String,
        /// The name of the first in its file.
        first: String,
        /// The name of the second in its file.
        second: String,
    },

    /// A weight that the model needs is in none of the files.
    #[error("{}: no tensor `{tensor}`; {hint}", dir.display())]
    MissingTensor {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The canonical name.
        tensor: String,
        /// The likely cause or remedy.
        hint: String,
    },

    /// A weight whose shape is not the one that config.json implies.
    #[error(
        "{}: tensor `{tensor}` has shape {found:?}, expected {expected:?}; config.json and the \
         weights do not match",
        file.display()
    )]
    WrongShape {
        /// The file.
        file: PathBuf,
        /// The name in the file.
        tensor: String,
        /// The expected shape.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },

    /// A weight with an infinity or NaN.
    #[error(
        "{}: tensor `{tensor}` is {value} at element {index}; the training run diverged or the \
         file is damaged",
        file.display()
    )]
    NonFinite {
        /// The file.
        file: PathBuf,
        /// The name in the file.
        tensor: String,
        /// The first such element, in row-major order.
        index: usize,
        /// Its value.
        value: f64,
    },

    /// A weight with an unsupported dtype.
    #[error("{}: tensor `{tensor}` has dtype {dtype}; save it as F32, F16 or BF16", file.display())]
    UnsupportedDtype {
        /// The file.
        file: PathBuf,
        /// The name in the file.
        tensor: String,
        /// Its dtype.
        dtype: String,
    },

    /// The number of embedding rows differs from config.json's `vocab_size`.
    #[error(
        "{}: `{tensor}` has {rows} rows but vocab_size is {vocab}; set vocab_size to {rows} if \
         the tokens were added in training",
        file.display()
    )]
    VocabMismatch {
        /// The file that holds the embedding.
        file: PathBuf,
        /// The embedding's name in the file.
        tensor: String,
        /// Its rows.
        rows: usize,
        /// `vocab_size`.
        vocab: usize,
    },

    /// The base model of an adapter was not found.
    #[error("{}: the adapter's base model `{base}` was not found; {how}", file.display())]
    MissingBase {
        /// adapter_config.json.
        file: PathBuf,
        /// Its name: a path or an id.
        base: String,
        /// Its id on the Hugging Face Hub, if it is one.
        id: Option<Box<HubId>>,
        /// How to get it.
        how: String,
    },

    /// An adapter is among its own bases, or there are too many of them.
    #[error(
        "{}: the chain of base models does not end in a full model; correct \
         `base_model_name_or_path`",
        dir.display()
    )]
    EndlessAdapters {
        /// The adapter's directory.
        dir: PathBuf,
    },

    /// The base model of an adapter is not the one that it was trained on.
    #[error(
        "{}: the base {} has {found}, but the adapter was trained on one with {expected}; pass the \
         model that it was trained on",
        dir.display(),
        base.display()
    )]
    OtherBase {
        /// The adapter's directory.
        dir: PathBuf,
        /// The base model.
        base: PathBuf,
        /// The first differing tensor, as it was in training.
        expected: String,
        /// The same tensor in this base model.
        found: String,
    },

    /// adapter_config.json without weights.
    #[error(
        "{}: adapter_config.json but no adapter_model.safetensors; save the adapter again",
        dir.display()
    )]
    MissingAdapterWeights {
        /// The adapter's directory.
        dir: PathBuf,
    },

    /// adapter_model.safetensors without any factor.
    #[error("{}: contains no LoRA factors; save the adapter again", file.display())]
    EmptyAdapter {
        /// adapter_model.safetensors.
        file: PathBuf,
    },

    /// A LoRA factor whose rank is not adapter_config.json's, or whose shape does not fit its
    /// module.
    #[error(
        "{}: `{tensor}` has shape {found:?}, expected {expected:?} {reason}",
        file.display()
    )]
    FactorShape {
        /// The file.
        file: PathBuf,
        /// The factor's name in the file.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The expected shape.
        expected: Vec<usize>,
        /// The source of the expected shape, and the remedy.
        reason: &'static str,
    },

    /// A LoRA factor of a module that the base does not have.
    #[error(
        "{}: `{tensor}` adapts `{module}`, which the base {} does not have; pass the model that \
         it was trained on",
        file.display(),
        base.display()
    )]
    UnknownModule {
        /// The file.
        file: PathBuf,
        /// The factor's name in the file.
        tensor: String,
        /// The module.
        module: String,
        /// The base model.
        base: PathBuf,
    },

    /// A module has only one of the two LoRA factors.
    #[error(
        "{}: `{module}` has {present} but no {missing}; the adapter is incomplete, save it again",
        dir.display()
    )]
    IncompleteAdapter {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The adapted module.
        module: String,
        /// The factor that is present.
        present: &'static str,
        /// The factor that is missing.
        missing: &'static str,
    },

    /// An adapter without adapter_config.json whose rank matches no known family.
    #[error(
        "{}: unknown scale of the rank-{rank} adapter of `{module}`; add an adapter_config.json \
         with r and lora_alpha",
        dir.display()
    )]
    UnknownAdapterScale {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The adapted module.
        module: String,
        /// Its rank.
        rank: usize,
    },

    /// An adapter that cannot be merged.
    #[error(
        "{}: {what} is not supported; merge the adapter with peft's merge_and_unload() first",
        file.display()
    )]
    UnsupportedAdapter {
        /// The file.
        file: PathBuf,
        /// The feature.
        what: String,
    },

    /// Neither tokenizer.json nor vocab.json with merges.txt.
    #[error(
        "{}: no tokenizer.json and no vocab.json with merges.txt; copy the base model's tokenizer \
         into the directory",
        dir.display()
    )]
    MissingTokenizer {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// An invalid or unsupported tokenizer.
    #[error("{}: invalid tokenizer: {why}", file.display())]
    BadTokenizer {
        /// The file.
        file: PathBuf,
        /// The problem.
        why: String,
    },

    /// The tokenizer failed to encode a text or to decode ids.
    #[error(
        "tokenizer error: {why}; its vocabulary is incomplete, copy the base model's tokenizer"
    )]
    Tokenize {
        /// The library's message.
        why: String,
    },
}

impl ModelError {
    pub(crate) fn io(path: &Path, error: std::io::Error) -> ModelError {
        ModelError::Io { path: path.to_path_buf(), error }
    }
}

fn describe_io(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file; check the path".to_owned(),
        _ => error.to_string(),
    }
}

/// Decodes the bytes of a text file.
pub(crate) fn parse_utf8(file: &Path, bytes: Vec<u8>) -> Result<String, ModelError> {
    String::from_utf8(bytes).map_err(|e| ModelError::NotUtf8 {
        file: file.to_path_buf(),
        at: e.utf8_error().valid_up_to(),
    })
}

/// Parses JSON; errors name the file.
pub(crate) fn parse_json<T: serde::de::DeserializeOwned>(
    file: &Path,
    text: &str,
) -> Result<T, ModelError> {
    serde_json::from_str(text)
        .map_err(|e| ModelError::BadJson { file: file.to_path_buf(), why: e.to_string() })
}
