//! Reads tensors from files that `torch.save` wrote (`.bin`, `.pt`, `.pth`, `.ckpt`), without
//! executing anything.
//!
//! Such a file is a ZIP archive of a pickle and one entry per storage. `zip` finds the entries,
//! `machine` interprets the pickle's opcodes on plain values: it implements the constructors of
//! tensors and dictionaries, and treats every other class as an opaque value. So a file cannot run
//! code, whatever its contents.
//!
//! Invariants: a tensor's bytes lie inside its storage; memory is bounded by a small multiple of
//! the pickle's size, and the bytes of all tensors together by a multiple of the file's.

mod machine;
mod zip;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, View};

use crate::error::ModelError;
use machine::{PickleValues, Value};

/// Names of the entry that contains a model's weights alongside other data, as written by
/// Lightning, DeepSpeed and training scripts.
const STATE_NAMES: [&str; 4] = ["state_dict", "module", "model_state_dict", "model"];
/// Tied weights are written once per name: limit on the total size of all tensors, as a multiple of
/// the file size.
const MAX_EXPANSION: usize = 4;

/// An opened file of pickled tensors.
pub struct PickledTensors {
    path: PathBuf,
    bytes: Mmap,
    tensors: BTreeMap<String, PickledTensor>,
    /// Classes whose objects were skipped, as `module.name`.
    pub skipped_classes: Vec<String>,
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq)]
struct PickledTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Stride in elements along each dimension.
    strides: Vec<usize>,
    /// From its first element to the end of its storage, in the file.
    range: Range<usize>,
}

impl PickledTensors {
    /// Opens a file, finds its weights and checks all of them.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let file = record::files::open_regular(path).map_err(|e| ModelError::io(path, e))?;
        // SAFETY: the map is read-only, and every bit pattern is a valid u8. As for weights in
        // safetensors, the file must not be truncated while it is read.
        let bytes = unsafe { Mmap::map(&file) }.map_err(|e| ModelError::io(path, e))?;
        let bad = |why: String| ModelError::BadPickle { file: path.to_owned(), why };
        let (tensors, skipped_classes) = read_tensors(&bytes).map_err(bad)?;
        Ok(Self { path: path.to_owned(), bytes, tensors, skipped_classes })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the tensors and their shapes, in order.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.shape.as_slice()))
    }

    /// The tensors under other names, for writing; those for which `rename` returns `None` are
    /// omitted.
    pub fn renamed<'a>(
        &'a self,
        rename: impl Fn(&str) -> Option<String>,
    ) -> Vec<(String, TensorBytes<'a>)> {
        let tensors = self.tensors.iter();
        let named = tensors.filter_map(|(name, tensor)| {
            let bytes = TensorBytes { tensor, bytes: &self.bytes[tensor.range.clone()] };
            Some((rename(name)?, bytes))
        });
        named.collect()
    }
}

/// The elements of a tensor as safetensors stores them.
#[derive(Debug, Clone, Copy)]
pub struct TensorBytes<'a> {
    tensor: &'a PickledTensor,
    bytes: &'a [u8],
}

impl View for TensorBytes<'_> {
    fn dtype(&self) -> Dtype {
        self.tensor.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let size = element_bytes(self.tensor.dtype);
        let PickledTensor { shape, strides, .. } = self.tensor;
        if is_contiguous(shape, strides) {
            return Cow::Borrowed(&self.bytes[..self.data_len()]);
        }
        let mut gathered = Vec::with_capacity(self.data_len());
        let mut index = vec![0; shape.len()];
        for _ in 0..shape.iter().product::<usize>() {
            let at: usize = index.iter().zip(strides).map(|(i, stride)| i * stride).sum();
            gathered.extend_from_slice(&self.bytes[at * size..][..size]);
            for (i, extent) in index.iter_mut().zip(shape).rev() {
                *i += 1;
                if *i < *extent {
                    break;
                }
                *i = 0;
            }
        }
        Cow::Owned(gathered)
    }

    fn data_len(&self) -> usize {
        self.tensor.shape.iter().product::<usize>() * element_bytes(self.tensor.dtype)
    }
}

/// Writes tensors to a safetensors file, which is replaced when it is complete.
pub fn write_tensors(
    path: &Path,
    tensors: Vec<(String, TensorBytes<'_>)>,
) -> Result<(), ModelError> {
    let failed = |e: safetensors::SafeTensorError| ModelError::io(path, std::io::Error::other(e));
    let (key, value) = crate::save::PT_METADATA;
    let metadata = std::collections::HashMap::from([(key.to_owned(), value.to_owned())]);
    let partial = path.with_extension("partial");
    safetensors::serialize_to_file(tensors, Some(metadata), &partial).map_err(failed)?;
    std::fs::rename(&partial, path).map_err(|e| ModelError::io(path, e))
}

fn element_bytes(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}

fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
        let fits = extent <= 1 || stride == expected;
        expected *= extent;
        fits
    })
}

type NamedTensors = (BTreeMap<String, PickledTensor>, Vec<String>);

/// The tensors of the file's state dictionary. Errors describe the problem with the file.
fn read_tensors(bytes: &[u8]) -> Result<NamedTensors, String> {
    let archive = zip::Archive::read(bytes)?;
    let pickle = archive.find("data.pkl").ok_or("no data.pkl in the archive")?;
    let root = pickle.name.strip_suffix("data.pkl").unwrap_or_default().to_owned();
    if let Some(order) = archive.get(&format!("{root}byteorder"))
        && &bytes[order.clone()] != b"little"
    {
        return Err(
            "big-endian data is not supported; save it on a little-endian machine".to_owned()
        );
    }
    let values = machine::run(&bytes[pickle.range.clone()])?;
    let entries = state_entries(&values).ok_or("contains no dictionary of tensors")?;
    let mut tensors = BTreeMap::new();
    let mut total: usize = 0;
    for (name, tensor) in entries {
        let placed = place(&archive, &root, tensor).map_err(|why| format!("`{name}` {why}"))?;
        total = total
            .saturating_add(placed.shape.iter().product::<usize>() * element_bytes(placed.dtype));
        if total > bytes.len().saturating_mul(MAX_EXPANSION) {
            return Err(
                "its tensors share storages so often that the total size exceeds the limit"
                    .to_owned(),
            );
        }
        if tensors.insert(name.to_owned(), placed).is_some() {
            return Err(format!("duplicate tensor `{name}`"));
        }
    }
    let mut skipped = values.skipped_classes;
    skipped.sort();
    skipped.dedup();
    Ok((tensors, skipped))
}

/// The named tensors of the whole dictionary, or of the entry that holds the weights.
fn state_entries(values: &PickleValues) -> Option<Vec<(&str, &machine::TensorValue)>> {
    let tensors = |dictionary: Value| -> Option<Vec<(&str, &machine::TensorValue)>> {
        let entries = values.entries(dictionary)?;
        let named = entries
            .iter()
            .filter_map(|&(key, value)| Some((values.text(key)?, values.tensor(value)?)));
        Some(named.collect()).filter(|named: &Vec<_>| !named.is_empty())
    };
    let top = values.entries(values.result)?;
    let nested = STATE_NAMES.iter().find_map(|name| {
        let (_, value) = top.iter().find(|(key, _)| values.text(*key) == Some(name))?;
        tensors(*value)
    });
    nested.or_else(|| tensors(values.result))
}

/// Finds a tensor's bytes and checks that all of its elements lie inside its storage.
fn place(
    archive: &zip::Archive,
    root: &str,
    tensor: &machine::TensorValue,
) -> Result<PickledTensor, String> {
    let entry = format!("{root}data/{}", tensor.storage.key);
    let stored = archive.get(&entry).ok_or_else(|| format!("has no storage {entry}"))?;
    let size = element_bytes(tensor.storage.dtype);
    let shape = &tensor.shape;
    let strides = &tensor.strides;
    if shape.len() != strides.len() {
        return Err("has a different number of strides than dimensions".to_owned());
    }
    let overflows = || "has a shape larger than its storage".to_owned();
    let count = shape.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent));
    let count = count.ok_or_else(overflows)?;
    let mut last = tensor.offset;
    for (&extent, &stride) in shape.iter().zip(strides) {
        let reach = extent.saturating_sub(1).checked_mul(stride).ok_or_else(overflows)?;
        last = last.checked_add(reach).ok_or_else(overflows)?;
    }
    let elements = stored.len() / size;
    // A broadcast tensor has fewer elements in its storage than in its shape.
    if count > elements || (count > 0 && last >= elements) || tensor.offset > elements {
        return Err(overflows());
    }
    Ok(PickledTensor {
        dtype: tensor.storage.dtype,
        shape: shape.clone(),
        strides: strides.clone(),
        range: stored.start + tensor.offset * size..stored.end,
    })
}

#[cfg(test)]
mod tests;
