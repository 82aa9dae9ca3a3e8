//! Weights into files that this program and transformers read.
//!
//! Files are written beside their final name and renamed, so that a killed program leaves whole files or none.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use crate::error::Error;
use crate::parameters::Named;

/// The format of saved numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// Single precision.
    F32,
    /// bf16: half the size.
    Bf16,
}

/// Writes tensors to a safetensors file, `notes` in its header.
pub fn tensors(path: &Path, tensors: &[Named], format: Saved, notes: &[(&str, String)]) -> Result<(), Error> {
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|t| encoded(&t.values, format)).collect();
    let dtype = match format {
        Saved::F32 => Dtype::F32,
        Saved::Bf16 => Dtype::BF16,
    };
    let views: Vec<(&str, TensorView<'_>)> = tensors
        .iter()
        .zip(&bytes)
        .map(|(t, bytes)| Ok((t.name.as_str(), TensorView::new(dtype, t.shape.clone(), bytes)?)))
        .collect::<Result<_, safetensors::SafeTensorError>>()
        .map_err(|e| failed(path, std::io::Error::other(e)))?;
    // transformers asks for this note.
    let mut header = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    header.extend(notes.iter().map(|(name, note)| ((*name).to_owned(), note.clone())));
    let out = safetensors::serialize(views, Some(header)).map_err(|e| failed(path, std::io::Error::other(e)))?;
    file(path, &out)
}

fn encoded(values: &[f32], format: Saved) -> Vec<u8> {
    match format {
        Saved::F32 => bytemuck::cast_slice(values).to_vec(),
        Saved::Bf16 => values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
    }
}

/// Writes a file beside its name, then renames it.
pub fn file(path: &Path, contents: &[u8]) -> Result<(), Error> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let beside = Path::new(&beside);
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    }
    std::fs::write(beside, contents).map_err(|e| failed(beside, e))?;
    std::fs::rename(beside, path).map_err(|e| failed(path, e))
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
