//! GGUF files, the format of llama.cpp: metadata, tokenizer and quantized weights in one file.
//!
//! ```text
//! metadata ──> config.json, tokenizer.json, tokenizer_config.json (as texts)
//! tensors ───> names, types, byte ranges ──> Checkpoint
//! ```
//!
//! `reader` parses the header, `config` and `tokenizer` turn the metadata into the texts of a
//! Hugging Face directory, `names` maps tensor names to canonical ones, `blocks` widens quantized
//! blocks to f32. [`ModelFiles`](crate::ModelFiles) offers the texts as the files of a directory:
//! configuration and tokenizer are read, checked and saved as a directory's are.
//!
//! The file is memory-mapped. Every size in it is checked against the size of the file before
//! anything is allocated or sliced.

mod blocks;
mod config;
mod names;
mod reader;
mod tokenizer;

use std::path::Path;

use serde_json::Value;

use crate::error::ModelError;

pub use blocks::GgmlType;
pub(crate) use blocks::{RowOrder, dequantize};
pub(crate) use config::row_order;
pub(crate) use names::tensor_role;
pub(crate) use reader::{GgufFile, GgufTensor};

/// The names of the virtual text files of a GGUF file.
pub(crate) const TEXT_NAMES: [&str; 3] = ["config.json", "tokenizer.json", "tokenizer_config.json"];

/// Whether a path names a GGUF file.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && !path.is_dir()
}

/// One of [`TEXT_NAMES`], derived from the metadata; `None` for other names.
pub(crate) fn text(path: &Path, name: &str) -> Result<Option<String>, ModelError> {
    let derive: fn(&GgufFile) -> Result<Value, ModelError> = match name {
        "config.json" => config::config_json,
        "tokenizer.json" => tokenizer::tokenizer_json,
        "tokenizer_config.json" => tokenizer::tokenizer_config_json,
        _ => return Ok(None),
    };
    Ok(Some(derive(&GgufFile::open(path)?)?.to_string()))
}
