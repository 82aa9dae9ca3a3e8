//! Which files of a folder hold weights, and what their headers say.
//!
//! Files are mapped, never read into memory: a tensor's pages are touched when it is asked for. Every size in a header is
//! checked against the size of its file before anything is allocated or sliced.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::Deserialize;

use crate::error::{self, Error};
use crate::folder::{Bytes, Folder};

/// Weights that some families publish beside the model, with the prefix that their bare names lack.
const SIDE_FILES: [(&str, &str); 7] = [
    ("projection_head.safetensors", "projection_head."),
    ("special_tokens.safetensors", ""),
    ("projector.safetensors", "projector."),
    ("prj.safetensors", "prj."),
    ("prj/projector.safetensors", "projector."),
    ("prj/prj.safetensors", "prj."),
    ("adapter_model.safetensors", ""),
];
/// Endings of Python's pickle format.
const PICKLES: [&str; 4] = ["bin", "pt", "pth", "ckpt"];
/// Pickles that a trainer leaves behind and that hold no weights.
const NOT_WEIGHTS: [&str; 4] = ["training_args", "optimizer", "scheduler", "rng_state"];
/// The safetensors format's own limit.
const LARGEST_HEADER: u64 = 100_000_000;

/// A weight file of a directory, not opened yet.
pub(super) struct Source {
    pub path: PathBuf,
    /// Put before names that start with a digit or `ln.`: a side file's own module is not in its names.
    pub prefix: &'static str,
}

/// The weight files of a directory.
pub(super) struct Sources {
    pub files: Vec<Source>,
    /// The index, and for each tensor the shard it names.
    pub index: Option<(PathBuf, BTreeMap<String, String>)>,
    /// Pickle files, which are named when a tensor is missing.
    pub pickles: Vec<PathBuf>,
}

/// Finds the main weights (one file, or an index with its shards), then the side files.
pub(super) fn find(folder: &Folder) -> Result<Sources, Error> {
    let (dir, names) = (folder.path(), folder.names()?);
    let pickles: Vec<PathBuf> = names.iter().filter(|n| is_pickle(n)).map(|n| dir.join(n)).collect();
    let mut index = None;
    let mut files = Vec::new();
    if names.iter().any(|n| n == "model.safetensors") {
        files.push(Source { path: dir.join("model.safetensors"), prefix: "" });
    } else if let Some(file) = index_file(dir, &names)? {
        let map = read_index(folder, &file)?;
        files.extend(shards(folder, &file, &map)?);
        index = Some((file, map));
    } else if let Some(file) = lone_file(dir, &names)? {
        files.push(Source { path: file, prefix: "" });
    } else {
        return Err(match pickles.into_iter().next() {
            Some(file) => Error::PickleWeights { file },
            None => Error::MissingWeights { dir: dir.to_path_buf() },
        });
    }
    for (name, prefix) in SIDE_FILES {
        let path = dir.join(name);
        if folder.has(&path) && !files.iter().any(|f| f.path == path) {
            files.push(Source { path, prefix });
        }
    }
    Ok(Sources { files, index, pickles })
}

fn is_pickle(name: &str) -> bool {
    let Some((stem, ending)) = name.rsplit_once('.') else {
        return false;
    };
    PICKLES.contains(&ending) && !NOT_WEIGHTS.iter().any(|n| stem.starts_with(n))
}

fn index_file(dir: &Path, names: &[String]) -> Result<Option<PathBuf>, Error> {
    let found: Vec<&String> = names.iter().filter(|n| n.ends_with(".safetensors.index.json")).collect();
    let usual = found.iter().find(|n| n.as_str() == "model.safetensors.index.json");
    match (usual, found.as_slice()) {
        (Some(name), _) => Ok(Some(dir.join(name))),
        (None, []) => Ok(None),
        (None, [name]) => Ok(Some(dir.join(name))),
        (None, several) => Err(ambiguous(dir, several)),
    }
}

/// A single safetensors file of any name that is not a side file.
fn lone_file(dir: &Path, names: &[String]) -> Result<Option<PathBuf>, Error> {
    let is_side = |n: &str| SIDE_FILES.iter().any(|(side, _)| *side == n);
    let found: Vec<&String> = names.iter().filter(|n| n.ends_with(".safetensors") && !is_side(n)).collect();
    match found.as_slice() {
        [] => Ok(None),
        [name] => Ok(Some(dir.join(name))),
        several => Err(ambiguous(dir, several)),
    }
}

fn ambiguous(dir: &Path, files: &[&String]) -> Error {
    Error::AmbiguousWeights { dir: dir.to_path_buf(), files: files.iter().map(|f| (*f).clone()).collect() }
}

fn read_index(folder: &Folder, file: &Path) -> Result<BTreeMap<String, String>, Error> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = error::parse_json(file, &folder.text(file)?)?;
    Ok(index.weight_map)
}

fn shards(folder: &Folder, index: &Path, map: &BTreeMap<String, String>) -> Result<Vec<Source>, Error> {
    let mut names: Vec<&String> = map.values().collect();
    names.sort();
    names.dedup();
    names.into_iter().map(|shard| shard_file(folder, index, shard)).collect()
}

fn shard_file(folder: &Folder, index: &Path, shard: &str) -> Result<Source, Error> {
    let relative = Path::new(shard);
    let stays = relative.components().all(|c| matches!(c, Component::Normal(_)));
    if shard.is_empty() || !stays {
        return Err(Error::EscapingShard { index: index.to_path_buf(), shard: shard.to_owned() });
    }
    let path = folder.file(relative);
    if !folder.has(&path) {
        return Err(Error::MissingShard { index: index.to_path_buf(), shard: shard.to_owned() });
    }
    Ok(Source { path, prefix: "" })
}

/// A mapped weight file.
pub(super) struct Mapped {
    pub path: PathBuf,
    bytes: Bytes,
}

/// One tensor of a mapped file, as its header describes it.
pub(super) struct Described {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Where its bytes are; checked to lie inside the file.
    pub range: Range<usize>,
}

impl Mapped {
    /// Maps a file and reads its header.
    pub fn open(folder: &Folder, source: &Source) -> Result<(Mapped, Vec<Described>), Error> {
        let path = source.path.clone();
        let bytes = folder.map(&path)?;
        let described = describe(&path, &bytes, source.prefix)?;
        Ok((Mapped { path, bytes }, described))
    }

    /// The bytes of a tensor.
    pub fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }
}

fn describe(path: &Path, bytes: &[u8], prefix: &str) -> Result<Vec<Described>, Error> {
    let header = header(path, bytes)?;
    let text = std::str::from_utf8(header).map_err(|e| Error::NotUtf8 { file: path.to_path_buf(), at: 8 + e.valid_up_to() })?;
    // Parsing checks that offsets are contiguous and agree with shapes; the file's size is compared here, because the
    // library adds offsets without minding overflow.
    let metadata: Metadata =
        serde_json::from_str(text).map_err(|e| Error::BadHeader { file: path.to_path_buf(), why: e.to_string() })?;
    let start = 8 + header.len();
    check_size(path, bytes.len() as u64, (start as u64).checked_add(metadata.data_len() as u64))?;
    let tensors = metadata.offset_keys().into_iter().filter_map(|name| {
        let info = metadata.info(&name)?;
        let (from, to) = info.data_offsets;
        let range = start + from..start + to;
        Some(Described { name: prefixed(name, prefix), dtype: info.dtype, shape: info.shape.clone(), range })
    });
    Ok(tensors.collect())
}

fn header<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
    let have = bytes.len() as u64;
    let truncated = |need| Error::Truncated { file: path.to_path_buf(), have, need };
    let (size, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| truncated(8))?;
    let size = u64::from_le_bytes(*size);
    if size > LARGEST_HEADER {
        return Err(Error::OversizedHeader { file: path.to_path_buf(), size, limit: LARGEST_HEADER });
    }
    rest.get(..size as usize).ok_or_else(|| truncated(8 + size))
}

fn check_size(path: &Path, have: u64, need: Option<u64>) -> Result<(), Error> {
    match need {
        Some(need) if need == have => Ok(()),
        Some(need) if need < have => Err(Error::TrailingBytes { file: path.to_path_buf(), extra: have - need }),
        _ => Err(Error::Truncated { file: path.to_path_buf(), have, need: need.unwrap_or(u64::MAX) }),
    }
}

fn prefixed(name: String, prefix: &str) -> String {
    let bare = name.starts_with(|c: char| c.is_ascii_digit()) || name.starts_with("ln.");
    if bare { format!("{prefix}{name}") } else { name }
}
