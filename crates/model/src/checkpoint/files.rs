//! Finds the weight files of a checkpoint and parses their headers.
//!
//! Files are memory-mapped: a tensor's pages are read when the tensor is. Every size in a header is
//! checked against the size of its file before anything is allocated or sliced.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use safetensors::tensor::Metadata;
use serde::Deserialize;

use super::TensorEncoding;
use crate::adapter::ADAPTER_WEIGHTS;
use crate::error::{self, ModelError};
use crate::gguf::{self, GgufFile};
use crate::model_files::{FileBytes, ModelFiles};
use crate::names::{self, TensorRole};

/// Weight files that some families publish next to the model, and the prefix that their tensor
/// names lack.
const SIDE_FILES: [(&str, &str); 8] = [
    ("projection_head.safetensors", "projection_head."),
    ("special_tokens.safetensors", ""),
    ("projector.safetensors", "projector."),
    ("prj.safetensors", "prj."),
    ("prj/projector.safetensors", "projector."),
    ("prj/prj.safetensors", "prj."),
    (ADAPTER_WEIGHTS, ""),
    (ADAPTER_HEADS_FILE, ""),
];
/// The file that LoRA training writes next to the adapter: heads and embeddings of new tokens.
pub const ADAPTER_HEADS_FILE: &str = "heads.safetensors";
/// File extensions of Python's pickle format.
const PICKLE_EXTENSIONS: [&str; 4] = ["bin", "pt", "pth", "ckpt"];
/// Stems of pickle files that trainers write and that contain no weights.
const TRAINER_PICKLES: [&str; 4] = ["training_args", "optimizer", "scheduler", "rng_state"];
/// The limit of the safetensors library.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A weight file, not opened yet.
pub(super) struct WeightFile {
    pub path: PathBuf,
    /// Prepended to names that start with a digit or `ln.`: side files omit their module's name.
    pub prefix: &'static str,
}

/// The weight files of a checkpoint.
pub(super) struct WeightFiles {
    pub files: Vec<WeightFile>,
    /// The path of the index and its map from tensor to shard.
    pub index: Option<(PathBuf, BTreeMap<String, String>)>,
    /// Pickle files; the error for a missing tensor names one.
    pub pickles: Vec<PathBuf>,
}

/// Whether the file names include weights of a full model in a supported format.
pub(crate) fn has_whole_weights(names: &[String]) -> bool {
    let is_side = |name: &String| SIDE_FILES.iter().any(|(side, _)| side == name);
    names.iter().any(|name| {
        name.ends_with(".safetensors.index.json")
            || name.ends_with(".safetensors") && !is_side(name)
    })
}

/// Finds the main weights (one file, or the shards of an index; an adapter has none) and the side
/// files.
pub(super) fn find_weights(model_files: &ModelFiles) -> Result<WeightFiles, ModelError> {
    if let ModelFiles::Gguf(path) = model_files {
        let files = vec![WeightFile { path: path.clone(), prefix: "" }];
        return Ok(WeightFiles { files, index: None, pickles: Vec::new() });
    }
    let dir = model_files.path();
    let names = model_files.file_names()?;
    let pickles: Vec<PathBuf> =
        names.iter().filter(|n| is_pickle(n)).map(|n| dir.join(n)).collect();
    let mut index = None;
    let mut files = Vec::new();
    if names.iter().any(|n| n == "model.safetensors") {
        files.push(WeightFile { path: dir.join("model.safetensors"), prefix: "" });
    } else if let Some(file) = index_file(dir, &names)? {
        let map = read_index(model_files, &file)?;
        files.extend(shards(model_files, &file, &map)?);
        index = Some((file, map));
    } else if let Some(file) = single_file(dir, &names)? {
        files.push(WeightFile { path: file, prefix: "" });
    } else if !names.iter().any(|n| n == ADAPTER_WEIGHTS) || !model_files.is_adapter()? {
        let of_adapter = pickles.iter().find(|file| file.ends_with("adapter_model.bin"));
        return Err(match of_adapter.or(pickles.first()) {
            Some(file) => ModelError::PickleWeights { file: file.clone() },
            None if model_files.is_adapter()? => {
                ModelError::MissingAdapterWeights { dir: dir.to_path_buf() }
            }
            None => ModelError::MissingWeights { dir: dir.to_path_buf() },
        });
    }
    for (name, prefix) in SIDE_FILES {
        let path = dir.join(name);
        if model_files.contains(&path) && !files.iter().any(|f| f.path == path) {
            files.push(WeightFile { path, prefix });
        }
    }
    Ok(WeightFiles { files, index, pickles })
}

fn is_pickle(name: &str) -> bool {
    let Some((stem, ending)) = name.rsplit_once('.') else {
        return false;
    };
    PICKLE_EXTENSIONS.contains(&ending) && !TRAINER_PICKLES.iter().any(|n| stem.starts_with(n))
}

fn index_file(dir: &Path, names: &[String]) -> Result<Option<PathBuf>, ModelError> {
    let found: Vec<&String> =
        names.iter().filter(|n| n.ends_with(".safetensors.index.json")).collect();
    let default = found.iter().find(|n| n.as_str() == "model.safetensors.index.json");
    match (default, found.as_slice()) {
        (Some(name), _) => Ok(Some(dir.join(name))),
        (None, []) => Ok(None),
        (None, [name]) => Ok(Some(dir.join(name))),
        (None, several) => Err(ambiguous(dir, several)),
    }
}

/// The only safetensors file that is not a side file, whatever its name.
fn single_file(dir: &Path, names: &[String]) -> Result<Option<PathBuf>, ModelError> {
    let is_side = |n: &str| SIDE_FILES.iter().any(|(side, _)| *side == n);
    let found: Vec<&String> =
        names.iter().filter(|n| n.ends_with(".safetensors") && !is_side(n)).collect();
    match found.as_slice() {
        [] => Ok(None),
        [name] => Ok(Some(dir.join(name))),
        several => Err(ambiguous(dir, several)),
    }
}

fn ambiguous(dir: &Path, files: &[&String]) -> ModelError {
    ModelError::AmbiguousWeights {
        dir: dir.to_path_buf(),
        files: files.iter().map(|f| (*f).clone()).collect(),
    }
}

fn read_index(
    model_files: &ModelFiles,
    file: &Path,
) -> Result<BTreeMap<String, String>, ModelError> {
    #[derive(Deserialize)]
    struct ShardIndex {
        weight_map: BTreeMap<String, String>,
    }
    let index: ShardIndex = error::parse_json(file, &model_files.read_text(file)?)?;
    Ok(index.weight_map)
}

fn shards(
    model_files: &ModelFiles,
    index: &Path,
    map: &BTreeMap<String, String>,
) -> Result<Vec<WeightFile>, ModelError> {
    let mut names: Vec<&String> = map.values().collect();
    names.sort();
    names.dedup();
    names.into_iter().map(|shard| shard_file(model_files, index, shard)).collect()
}

fn shard_file(
    model_files: &ModelFiles,
    index: &Path,
    shard: &str,
) -> Result<WeightFile, ModelError> {
    let relative = Path::new(shard);
    let stays_inside = relative.components().all(|c| matches!(c, Component::Normal(_)));
    if shard.is_empty() || !stays_inside {
        return Err(ModelError::EscapingShard {
            index: index.to_path_buf(),
            shard: shard.to_owned(),
        });
    }
    let path = model_files.file_path(relative);
    if !model_files.contains(&path) {
        return Err(ModelError::MissingShard {
            index: index.to_path_buf(),
            shard: shard.to_owned(),
        });
    }
    Ok(WeightFile { path, prefix: "" })
}

/// A memory-mapped weight file.
pub(super) struct MappedFile {
    pub path: PathBuf,
    bytes: FileBytes,
}

/// A tensor's entry in the header of a weight file.
pub(super) struct TensorHeader {
    pub name: String,
    pub role: TensorRole,
    pub encoding: TensorEncoding,
    pub shape: Vec<usize>,
    /// Its byte range in the file, checked to lie inside.
    pub range: Range<usize>,
}

impl MappedFile {
    /// Maps a file and reads its header.
    pub fn open(
        model_files: &ModelFiles,
        file: &WeightFile,
    ) -> Result<(MappedFile, Vec<TensorHeader>), ModelError> {
        let path = file.path.clone();
        if let ModelFiles::Gguf(_) = model_files {
            return Self::open_gguf(path);
        }
        let bytes = model_files.map(&path)?;
        let tensors = parse_header(&path, &bytes, file.prefix)?;
        Ok((MappedFile { path, bytes }, tensors))
    }

    fn open_gguf(path: PathBuf) -> Result<(MappedFile, Vec<TensorHeader>), ModelError> {
        let gguf = GgufFile::open(&path)?;
        let header = |tensor: &gguf::GgufTensor| {
            let rows = gguf::row_order(&gguf, tensor)?;
            Ok(TensorHeader {
                role: gguf::tensor_role(&tensor.name),
                name: tensor.name.clone(),
                encoding: TensorEncoding::Ggml { kind: tensor.kind, rows },
                shape: tensor.shape.clone(),
                range: tensor.range.clone(),
            })
        };
        let tensors = gguf.tensors.iter().map(header).collect::<Result<_, ModelError>>()?;
        Ok((MappedFile { path, bytes: gguf.into_bytes() }, tensors))
    }

    /// The bytes of a tensor.
    pub fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }
}

fn parse_header(path: &Path, bytes: &[u8], prefix: &str) -> Result<Vec<TensorHeader>, ModelError> {
    let header = header_bytes(path, bytes)?;
    let text = std::str::from_utf8(header)
        .map_err(|e| ModelError::NotUtf8 { file: path.to_path_buf(), at: 8 + e.valid_up_to() })?;
    // Deserializing checks that offsets are contiguous and agree with shapes. The file's size is
    // compared here, because the library adds offsets without overflow checks.
    let metadata: Metadata = serde_json::from_str(text)
        .map_err(|e| ModelError::BadHeader { file: path.to_path_buf(), why: e.to_string() })?;
    let start = 8 + header.len();
    check_size(path, bytes.len() as u64, (start as u64).checked_add(metadata.data_len() as u64))?;
    let tensors = metadata.offset_keys().into_iter().filter_map(|name| {
        let info = metadata.info(&name)?;
        let (from, to) = info.data_offsets;
        let range = start + from..start + to;
        let name = add_prefix(name, prefix);
        Some(TensorHeader {
            role: names::classify(&name),
            name,
            encoding: TensorEncoding::Safetensors(info.dtype),
            shape: info.shape.clone(),
            range,
        })
    });
    Ok(tensors.collect())
}

fn header_bytes<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a [u8], ModelError> {
    let have = bytes.len() as u64;
    let truncated = |need| ModelError::Truncated { file: path.to_path_buf(), have, need };
    let (size, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| truncated(8))?;
    let size = u64::from_le_bytes(*size);
    if size > MAX_HEADER_BYTES {
        return Err(ModelError::OversizedHeader {
            file: path.to_path_buf(),
            size,
            limit: MAX_HEADER_BYTES,
        });
    }
    rest.get(..size as usize).ok_or_else(|| truncated(8 + size))
}

fn check_size(path: &Path, have: u64, need: Option<u64>) -> Result<(), ModelError> {
    match need {
        Some(need) if need == have => Ok(()),
        Some(need) if need < have => {
            Err(ModelError::TrailingBytes { file: path.to_path_buf(), extra: have - need })
        }
        _ => Err(ModelError::Truncated {
            file: path.to_path_buf(),
            have,
            need: need.unwrap_or(u64::MAX),
        }),
    }
}

fn add_prefix(name: String, prefix: &str) -> String {
    let bare = name.starts_with(|c: char| c.is_ascii_digit()) || name.starts_with("ln.");
    if bare { format!("{prefix}{name}") } else { name }
}
