//! Writes safetensors files that this crate and transformers read.
//!
//! Files are replaced atomically: a killed process leaves a complete file or none.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};

use crate::error::ModelError;
use crate::parameters::NamedTensor;

/// The dtype of saved tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SaveDtype {
    /// float32.
    F32,
    /// bfloat16: half the size.
    Bf16,
}

impl SaveDtype {
    /// PyTorch's name of the dtype, as in config.json.
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
        }
    }
}

/// The header metadata that transformers requires of weight files.
pub const PT_METADATA: (&str, &str) = ("format", "pt");

/// Writes tensors to a safetensors file. Its metadata is one (key, value) pair: several would be
/// written in the random order of a hash map, and equal tensors must give equal bytes.
pub fn write_safetensors(
    path: &Path,
    tensors: &[NamedTensor],
    dtype: SaveDtype,
    metadata: (&str, &str),
) -> Result<(), ModelError> {
    let out = safetensors_bytes(path, tensors, dtype, metadata)?;
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|e| ModelError::io(dir, e))?;
    }
    record::files::write_atomic(path, &out).map_err(|e| ModelError::io(path, e))
}

/// The bytes that [`write_safetensors`] writes; `path` is for messages.
pub fn safetensors_bytes(
    path: &Path,
    tensors: &[NamedTensor],
    dtype: SaveDtype,
    metadata: (&str, &str),
) -> Result<Vec<u8>, ModelError> {
    if let Some(error) = tensors.iter().find_map(|tensor| non_finite(path, tensor, dtype)) {
        return Err(error);
    }
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|t| encode(&t.values, dtype)).collect();
    let stored = match dtype {
        SaveDtype::F32 => Dtype::F32,
        SaveDtype::Bf16 => Dtype::BF16,
    };
    let views: Vec<(&str, TensorView<'_>)> = tensors
        .iter()
        .zip(&bytes)
        .map(|(t, bytes)| Ok((t.name.as_str(), TensorView::new(stored, t.shape.clone(), bytes)?)))
        .collect::<Result<_, safetensors::SafeTensorError>>()
        .map_err(|e| ModelError::io(path, std::io::Error::other(e)))?;
    let header = HashMap::from([(metadata.0.to_owned(), metadata.1.to_owned())]);
    safetensors::serialize(views, Some(header))
        .map_err(|e| ModelError::io(path, std::io::Error::other(e)))
}

/// The error for a tensor that would contain non-finite values in its file, which no reader
/// accepts.
fn non_finite(path: &Path, tensor: &NamedTensor, dtype: SaveDtype) -> Option<ModelError> {
    let stored = |x: f32| match dtype {
        SaveDtype::F32 => x,
        SaveDtype::Bf16 => half::bf16::from_f32(x).to_f32(),
    };
    let found = tensor.values.iter().position(|x| !stored(*x).is_finite());
    found.map(|index| ModelError::NonFinite {
        file: path.to_owned(),
        tensor: tensor.name.clone(),
        index,
        value: f64::from(stored(tensor.values[index])),
    })
}

fn encode(values: &[f32], dtype: SaveDtype) -> Vec<u8> {
    match dtype {
        SaveDtype::F32 => bytemuck::cast_slice(values).to_vec(),
        SaveDtype::Bf16 => {
            values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_not_finite_in_the_file_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let write = |value: f32, dtype| {
            let tensor = NamedTensor { name: "w".into(), shape: vec![2], values: vec![0.0, value] };
            write_safetensors(&path, &[tensor], dtype, PT_METADATA)
        };
        for (value, dtype) in [
            (f32::NAN, SaveDtype::F32),
            (f32::INFINITY, SaveDtype::F32),
            (f32::MAX, SaveDtype::Bf16), // rounds up to infinity
        ] {
            let error = write(value, dtype).unwrap_err();
            assert!(matches!(error, ModelError::NonFinite { index: 1, .. }), "{error}");
            assert!(!path.exists());
        }
        write(f32::MAX, SaveDtype::F32).unwrap();
    }
}
