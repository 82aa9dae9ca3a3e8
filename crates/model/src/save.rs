//! Weights into files that this program and transformers read.
//!
//! Files are written beside their final name and renamed, so that a killed program leaves whole
//! files or none.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use crate::error::ModelError;
use crate::parameters::NamedTensor;

/// The format of saved numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveDtype {
    /// Single precision.
    F32,
    /// bf16: half the size.
    Bf16,
}

/// What transformers asks for in the header of a file of weights.
pub const PT_METADATA: (&str, &str) = ("format", "pt");

/// Writes tensors to a safetensors file. Its header holds one note: the order of several would be
/// chance, and the same tensors shall make the same bytes.
pub fn write_safetensors(
    path: &Path,
    tensors: &[NamedTensor],
    format: SaveDtype,
    metadata: (&str, &str),
) -> Result<(), ModelError> {
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|t| encode(&t.values, format)).collect();
    let dtype = match format {
        SaveDtype::F32 => Dtype::F32,
        SaveDtype::Bf16 => Dtype::BF16,
    };
    let views: Vec<(&str, TensorView<'_>)> = tensors
        .iter()
        .zip(&bytes)
        .map(|(t, bytes)| Ok((t.name.as_str(), TensorView::new(dtype, t.shape.clone(), bytes)?)))
        .collect::<Result<_, safetensors::SafeTensorError>>()
        .map_err(|e| io_error(path, std::io::Error::other(e)))?;
    let header = HashMap::from([(metadata.0.to_owned(), metadata.1.to_owned())]);
    let out = safetensors::serialize(views, Some(header))
        .map_err(|e| io_error(path, std::io::Error::other(e)))?;
    write_atomic(path, &out)
}

fn encode(values: &[f32], dtype: SaveDtype) -> Vec<u8> {
    match dtype {
        SaveDtype::F32 => bytemuck::cast_slice(values).to_vec(),
        SaveDtype::Bf16 => {
            values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect()
        }
    }
}

/// Writes a file beside its name, then renames it.
fn write_atomic(path: &Path, contents: &[u8]) -> Result<(), ModelError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let beside = Path::new(&beside);
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|e| io_error(dir, e))?;
    }
    // Without waiting for the disk a power cut could leave the new name on an empty file.
    let write = || {
        std::fs::File::create(beside)
            .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
    };
    write().map_err(|e| io_error(beside, e))?;
    std::fs::rename(beside, path).map_err(|e| io_error(path, e))
}

fn io_error(path: &Path, source: std::io::Error) -> ModelError {
    ModelError::Io { path: path.to_owned(), source }
}
