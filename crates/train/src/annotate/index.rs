//! The annotation index, `index.json`, and the directory that shards are written to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use record::files::Checksum;
use record::{DirLock, Fingerprint};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::AnnotationError;
use super::reader::{check_shard, sign_shard};
use super::shard::AnnotationShard;

/// The format version. Incremented when readers of the old format would misread the new one.
const FORMAT: u32 = 1;
const INDEX_FILE: &str = "index.json";
/// Limit on the hidden size, so that the size of a thought in bytes cannot overflow.
const MAX_WIDTH: usize = 1 << 31;

/// Storage format of thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThoughtsDtype {
    /// Single precision, as computed by the reasoner.
    F32,
    /// Rounded to bfloat16.
    Bf16,
}

impl ThoughtsDtype {
    pub(super) fn safetensors(self) -> safetensors::Dtype {
        match self {
            Self::F32 => safetensors::Dtype::F32,
            Self::Bf16 => safetensors::Dtype::BF16,
        }
    }
}

/// The content of `index.json`, the same on every machine that computes some of the shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnnotationIndex {
    /// Format version.
    pub version: u32,
    /// Program and version that created the index. Other versions may add shards.
    pub program: String,
    /// Commit of the build, if known.
    pub commit: Option<String>,
    /// All settings that affect the content, and only those.
    pub settings: Value,
    /// Digest of the reasoner and of the data.
    pub fingerprint: String,
    /// Total number of questions.
    pub questions: usize,
    /// Questions per shard.
    pub per_shard: usize,
    /// Trajectories per question.
    pub trajectories: usize,
    /// Hidden size of a thought.
    pub width: usize,
    /// Storage format of thoughts.
    pub dtype: ThoughtsDtype,
}

impl AnnotationIndex {
    /// The format version that this program writes and reads.
    pub const VERSION: u32 = FORMAT;

    /// Total number of shards.
    pub fn shards(&self) -> usize {
        self.questions.div_ceil(self.per_shard.max(1))
    }

    /// Indices of the questions of a shard.
    pub fn questions_of(&self, shard: usize) -> std::ops::Range<usize> {
        let at = |shard: usize| shard.saturating_mul(self.per_shard).min(self.questions);
        at(shard)..at(shard + 1)
    }

    fn shard_file(&self, shard: usize) -> String {
        format!("{shard:05}-of-{:05}.safetensors", self.shards())
    }

    pub(super) fn read(dir: &Path) -> Result<Self, AnnotationError> {
        let path = dir.join(INDEX_FILE);
        let text = match record::files::read_regular(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(AnnotationError::NoIndex { dir: dir.into() });
            }
            other => {
                other.map_err(|source| AnnotationError::Read { path: path.clone(), source })?
            }
        };
        let bad = |why: String| AnnotationError::BadIndex { path: path.clone(), why };
        let value: Value = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
        // Checked first; otherwise another version would be reported as a missing field.
        let found = value
            .get("version")
            .and_then(Value::as_u64)
            .ok_or_else(|| bad("`version` is missing".into()))?;
        if found != u64::from(FORMAT) {
            return Err(AnnotationError::Version { path, found, reads: FORMAT });
        }
        let index: Self = serde_json::from_value(value).map_err(|e| bad(e.to_string()))?;
        let positive = [
            ("per_shard", index.per_shard),
            ("trajectories", index.trajectories),
            ("width", index.width),
        ];
        if let Some((field, _)) = positive.iter().find(|(_, count)| *count == 0) {
            return Err(bad(format!("`{field}` is 0")));
        }
        match index.width <= MAX_WIDTH {
            true => Ok(index),
            false => Err(bad(format!("`width` is {}, the maximum is {MAX_WIDTH}", index.width))),
        }
    }

    /// Checks that all settings that affect the content of shards are equal.
    fn check_resumable(&self, requested: &Self, path: PathBuf) -> Result<(), AnnotationError> {
        let comparable = |index: &Self| {
            index.comparable().map_err(|why| AnnotationError::BadIndex { path: path.clone(), why })
        };
        match record::first_difference("index", &comparable(self)?, &comparable(requested)?) {
            Some(by) => Err(AnnotationError::SettingsDiffer { path, by }),
            None => Ok(()),
        }
    }

    /// The settings that affect the content of shards, as JSON.
    fn comparable(&self) -> Result<Value, String> {
        let index = Self { program: String::new(), commit: None, ..self.clone() };
        serde_json::to_value(index).map_err(|e| e.to_string())
    }

    /// The digest of a shard: covers the index, the shard's number and its content.
    pub(super) fn shard_digest(
        &self,
        shard: usize,
        header: &[u8],
        data: &[u8],
    ) -> Result<String, String> {
        let mut checksum = Checksum::new();
        checksum.update(data);
        // Sorted, because the order of keys may differ between the programs that wrote the index.
        let mut parts: Vec<String> = Vec::new();
        flatten("", &self.comparable()?, &mut parts);
        parts.sort();
        let digest = Fingerprint::default()
            .with("index", parts.join("\n").as_bytes())
            .with("shard", &(shard as u64).to_le_bytes())
            .with("header", header)
            .with("data", &checksum.finalize().to_le_bytes());
        Ok(digest.finish())
    }
}

/// Appends the leaves of a JSON value, each with its path.
fn flatten(path: &str, value: &Value, parts: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            entries.iter().for_each(|(key, value)| flatten(&format!("{path}.{key}"), value, parts));
        }
        other => parts.push(format!("{path} {other}")),
    }
}

/// A directory that shards are written to. Several processes may share one if they write different
/// shards.
#[derive(Debug)]
pub struct AnnotationStore {
    dir: PathBuf,
    index: AnnotationIndex,
}

impl AnnotationStore {
    /// Starts in a directory without annotations, which is created if missing.
    pub fn create(dir: &Path, index: &AnnotationIndex) -> Result<Self, AnnotationError> {
        match dir.join(INDEX_FILE).exists() {
            true => Err(AnnotationError::Exists { dir: dir.into() }),
            false => Self::write_index(dir, index),
        }
    }

    /// Continues the annotations of a directory, or starts them.
    pub fn resume(dir: &Path, index: &AnnotationIndex) -> Result<Self, AnnotationError> {
        match AnnotationIndex::read(dir) {
            Err(AnnotationError::NoIndex { .. }) => Self::write_index(dir, index),
            stored => {
                stored?.check_resumable(index, dir.join(INDEX_FILE))?;
                let store = Self { dir: dir.into(), index: index.clone() };
                store.check_shards()?;
                Ok(store)
            }
        }
    }

    /// Replaces the annotations of a directory. Other files stay.
    pub fn overwrite(dir: &Path, index: &AnnotationIndex) -> Result<Self, AnnotationError> {
        let failed = |source| AnnotationError::Read { path: dir.into(), source };
        // Fails if another process is writing to the directory.
        drop(record::lock_dir(dir)?);
        if dir.exists() {
            for entry in fs::read_dir(dir).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                if is_shard(&entry.file_name().to_string_lossy()) {
                    fs::remove_file(entry.path()).map_err(failed)?;
                }
            }
        }
        Self::write_index(dir, index)
    }

    fn write_index(dir: &Path, index: &AnnotationIndex) -> Result<Self, AnnotationError> {
        record::create_dir(dir)?;
        record::write_document(&dir.join(INDEX_FILE), index)?;
        Ok(Self { dir: dir.into(), index: index.clone() })
    }

    /// Locks the shards of part `part` of `of` for this process, or the whole directory if there is
    /// one part.
    pub fn claim(&self, part: usize, of: usize) -> Result<DirLock, AnnotationError> {
        Ok(match of {
            1 => record::lock_dir(&self.dir)?,
            _ => record::lock_part(&self.dir, &format!("{:05}-of-{of:05}", part + 1))?,
        })
    }

    /// Checks that the existing shards are complete and belong to this index.
    fn check_shards(&self) -> Result<(), AnnotationError> {
        let on_file = (0..self.index.shards()).filter(|shard| self.path(*shard).exists());
        for shard in on_file {
            check_shard(&self.path(shard), &self.index, shard)?;
        }
        Ok(())
    }

    /// Missing shards of part `part` of `of`, counted from 0. Parts interleave, which makes them
    /// equal in size.
    pub fn missing(&self, part: usize, of: usize) -> Vec<usize> {
        (0..self.index.shards()).filter(|s| s % of == part && !self.path(*s).exists()).collect()
    }

    /// Writes a shard atomically.
    pub fn write(&self, number: usize, shard: &AnnotationShard) -> Result<(), AnnotationError> {
        let bytes = shard.to_bytes();
        self.write_bytes(
            number,
            &bytes.map_err(|why| AnnotationError::BadShard { path: self.path(number), why })?,
        )
    }

    /// Writes a shard serialized by [`AnnotationShard::to_bytes`], possibly in another process.
    pub fn write_bytes(&self, number: usize, bytes: &[u8]) -> Result<(), AnnotationError> {
        let signed = sign_shard(&self.index, number, bytes)
            .map_err(|why| AnnotationError::BadShard { path: self.path(number), why })?;
        Ok(record::write_atomic(&self.path(number), &signed)?)
    }

    fn path(&self, shard: usize) -> PathBuf {
        self.dir.join(self.index.shard_file(shard))
    }
}

/// The files of all shards, in order; an error if one is missing.
pub(super) fn shard_files(
    dir: &Path,
    index: &AnnotationIndex,
) -> Result<Vec<PathBuf>, AnnotationError> {
    let shards = index.shards();
    // Compared with the directory listing, so that an index of billions of shards fails at once.
    let entries =
        fs::read_dir(dir).map_err(|source| AnnotationError::Read { path: dir.into(), source })?;
    let names: std::collections::HashSet<String> =
        entries.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned())).collect();
    let exists = |s: &usize| names.contains(&index.shard_file(*s));
    if names.len() < shards || !(0..shards).all(|s| exists(&s)) {
        let found = names.iter().filter(|name| is_shard(name)).count();
        let first =
            (0..shards).find(|s| !exists(s)).map_or_else(String::new, |s| index.shard_file(s));
        return Err(AnnotationError::MissingShards {
            dir: dir.into(),
            shards,
            missing: shards.saturating_sub(found),
            first,
        });
    }
    Ok((0..shards).map(|s| dir.join(index.shard_file(s))).collect())
}

/// Whether a file name has the form of a shard's.
fn is_shard(name: &str) -> bool {
    let digits = |text: &str| text.len() >= 5 && text.bytes().all(|b| b.is_ascii_digit());
    let numbers = name.strip_suffix(".safetensors").and_then(|stem| stem.split_once("-of-"));
    numbers.is_some_and(|(shard, of)| digits(shard) && digits(of))
}
