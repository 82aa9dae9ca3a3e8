//! Every way in which a checkpoint directory can be wrong, one variant each.
//!
//! Messages are lower case, name the file and the tensor or field, and end with what to do about
//! it. Nothing in this crate panics on a broken file: it returns one of these.

use std::path::{Path, PathBuf};

/// Why a checkpoint, a configuration or a tokenizer could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The device refused to take the weights.
    #[error(transparent)]
    Device(#[from] tensor::DeviceError),

    /// The backward of a part is not there.
    #[error("a model with {what} cannot be trained; use a GPT-2 or a Llama")]
    NotTrainable {
        /// The part.
        what: &'static str,
    },

    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// The checkpoint directory does not exist, or is a file.
    #[error("{}: no such directory; give the folder that holds config.json and model.safetensors", dir.display())]
    MissingDirectory {
        /// What was given.
        dir: PathBuf,
    },

    /// No config.json.
    #[error("{}: no config.json; copy the one of the base model there", dir.display())]
    MissingConfig {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// Neither safetensors nor anything that could be converted to it.
    #[error("{}: no weights; expected model.safetensors or shards with *.safetensors.index.json", dir.display())]
    MissingWeights {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// Weights in Python's pickle format, which can run code when it is read.
    #[error("{}: pickle weights are not read; convert them: {}", file.display(), conversion_command(file))]
    PickleWeights {
        /// The pickle file.
        file: PathBuf,
    },

    /// Several weight files and nothing that says which belong together.
    #[error("{}: cannot choose between {}; keep one, or add the *.safetensors.index.json of the shards", dir.display(), files.join(", "))]
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
    #[error("{}: bad json: {why}; the file is damaged, download it again", file.display())]
    BadJson {
        /// The file.
        file: PathBuf,
        /// What the parser said, with line and column.
        why: String,
    },

    /// A field that has no default is absent.
    #[error("{}: no field `{field}`; add it as the base model's config.json has it", file.display())]
    MissingField {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
    },

    /// A field whose value makes no sense.
    #[error("{}: field `{field}` {why}", file.display())]
    BadField {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
        /// What is wrong and what would be right.
        why: String,
    },

    /// A feature that the decoder does not have.
    #[error("{}: `{field}` is {found}, which is not supported; supported: {supported}", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// What it may be.
        supported: String,
    },

    /// A safetensors file shorter than it says it is.
    #[error("{}: truncated: {have} bytes, {need} expected; download it again", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Its size.
        have: u64,
        /// The size that its header asks for.
        need: u64,
    },

    /// A safetensors file with bytes after its last tensor.
    #[error("{}: {extra} bytes after the last tensor; download it again", file.display())]
    TrailingBytes {
        /// The file.
        file: PathBuf,
        /// How many bytes no tensor owns.
        extra: u64,
    },

    /// A safetensors header larger than any real one.
    #[error("{}: header of {size} bytes, more than the {limit} allowed; this is no safetensors file", file.display())]
    OversizedHeader {
        /// The file.
        file: PathBuf,
        /// The size it claims.
        size: u64,
        /// The largest size accepted.
        limit: u64,
    },

    /// A safetensors header that contradicts itself.
    #[error("{}: bad safetensors header: {why}; download the file again", file.display())]
    BadHeader {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },

    /// The index names a shard that is not there.
    #[error("{}: shard {shard} is not in the directory; download it", index.display())]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The shard it names.
        shard: String,
    },

    /// The index says that a shard holds a tensor, and it does not.
    #[error("{}: tensor `{tensor}` is not in {shard}; index and shards are of different versions", index.display())]
    MissingInShard {
        /// The index file.
        index: PathBuf,
        /// The shard.
        shard: String,
        /// The tensor.
        tensor: String,
    },

    /// The index names a file outside the checkpoint directory.
    #[error("{}: shard path `{shard}` leaves the directory; only plain file names are read", index.display())]
    EscapingShard {
        /// The index file.
        index: PathBuf,
        /// The path it names.
        shard: String,
    },

    /// Two tensors that differ are the same weight under different names.
    #[error("{}: `{first}` and `{second}` both are `{tensor}` and differ; remove one", file.display())]
    DuplicateTensor {
        /// The file that holds the second one.
        file: PathBuf,
        /// The canonical name.
        tensor: String,
        /// The first original name.
        first: String,
        /// The second original name.
        second: String,
    },

    /// A weight the model needs is in none of the files.
    #[error("{}: no tensor `{tensor}`; {hint}", dir.display())]
    MissingTensor {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The canonical name.
        tensor: String,
        /// What may have happened to it.
        hint: String,
    },

    /// A weight whose shape is not what config.json asks for.
    #[error("{}: tensor `{tensor}` has shape {found:?}, {expected:?} expected; config.json and weights do not belong together", file.display())]
    WrongShape {
        /// The file.
        file: PathBuf,
        /// The original name.
        tensor: String,
        /// The shape asked for.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },

    /// A weight that is infinite or not a number.
    #[error("{}: tensor `{tensor}` holds {value} at element {index}; the training run diverged or the file is damaged", file.display())]
    NonFinite {
        /// The file.
        file: PathBuf,
        /// The original name.
        tensor: String,
        /// The first such element, counted in row-major order.
        index: usize,
        /// Its value.
        value: f64,
    },

    /// A weight in a number format that is not read.
    #[error("{}: tensor `{tensor}` has dtype {dtype}; save it as F32, F16 or BF16", file.display())]
    UnsupportedDtype {
        /// The file.
        file: PathBuf,
        /// The original name.
        tensor: String,
        /// Its dtype.
        dtype: String,
    },

    /// config.json and the embedding disagree about the vocabulary.
    #[error("{}: `{tensor}` has {rows} rows but vocab_size is {vocab}; set vocab_size to {rows} if the tokens were added in training", file.display())]
    VocabMismatch {
        /// The file that holds the embedding.
        file: PathBuf,
        /// The embedding's original name.
        tensor: String,
        /// Its rows.
        rows: usize,
        /// What config.json says.
        vocab: usize,
    },

    /// One half of a low-rank pair is missing.
    #[error("{}: `{module}` has {present} but no {missing}; the adapter is incomplete, save it again", dir.display())]
    IncompleteAdapter {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The adapted module.
        module: String,
        /// The half that is there.
        present: &'static str,
        /// The half that is not.
        missing: &'static str,
    },

    /// An adapter whose scale is written nowhere and belongs to no known family.
    #[error("{}: nothing says by how much the rank-{rank} adapter of `{module}` is scaled; put adapter_config.json there with r and lora_alpha", dir.display())]
    UnknownAdapterScale {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The adapted module.
        module: String,
        /// Its rank.
        rank: usize,
    },

    /// An adapter of a kind that is not merged here.
    #[error("{}: {what} is not supported; merge the adapter with peft's merge_and_unload() first", file.display())]
    UnsupportedAdapter {
        /// The file.
        file: PathBuf,
        /// The feature.
        what: String,
    },

    /// Neither tokenizer.json nor vocab.json with merges.txt.
    #[error("{}: no tokenizer.json, nor vocab.json with merges.txt; copy the base model's tokenizer there", dir.display())]
    MissingTokenizer {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// A tokenizer that contradicts itself or is of an unknown kind.
    #[error("{}: bad tokenizer: {why}", file.display())]
    BadTokenizer {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },

    /// A text that the tokenizer could not take apart, or ids that it could not put together.
    #[error(
        "the tokenizer failed: {why}; its vocabulary is incomplete, copy the base model's tokenizer"
    )]
    Tokenize {
        /// What the tokenizer said.
        why: String,
    },
}

impl ModelError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> ModelError {
        ModelError::Io { path: path.to_path_buf(), source }
    }
}

/// The line of Python that turns a pickle file into the safetensors file expected in its place.
fn conversion_command(file: &Path) -> String {
    let from = file.file_name().unwrap_or_default().to_string_lossy();
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let to = match stem.as_ref() {
        "projection_head" | "special_tokens" => format!("{stem}.safetensors"),
        "prj" | "projector" => "projector.safetensors".to_owned(),
        _ => "model.safetensors".to_owned(),
    };
    format!(
        "python -c \"import torch, safetensors.torch as s; d = torch.load('{from}', map_location='cpu'); \
         d = d.get('state_dict', d.get('module', d)); \
         s.save_file({{k: v.clone().contiguous() for k, v in d.items() if torch.is_tensor(v)}}, '{to}')\""
    )
}

/// Bytes of a file that should be text.
pub(crate) fn parse_utf8(file: &Path, bytes: Vec<u8>) -> Result<String, ModelError> {
    String::from_utf8(bytes).map_err(|e| ModelError::NotUtf8 {
        file: file.to_path_buf(),
        at: e.utf8_error().valid_up_to(),
    })
}

/// Parses JSON into any type, naming the file when it does not parse.
pub(crate) fn parse_json<T: serde::de::DeserializeOwned>(
    file: &Path,
    text: &str,
) -> Result<T, ModelError> {
    serde_json::from_str(text)
        .map_err(|e| ModelError::BadJson { file: file.to_path_buf(), why: e.to_string() })
}
