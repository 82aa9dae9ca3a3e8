//! Details of a GGUF file that `inspect` prints: its tensor types and its chat template.

use std::collections::BTreeMap;

use anyhow::Result;
use model::{Checkpoint, ModelFiles};
use serde_json::{Value, json};

use super::listing::TensorListing;
use crate::args::values::format_bytes;

/// Properties that only GGUF files have.
pub struct GgufDetails {
    /// Number and total bytes of the tensors of each type.
    types: BTreeMap<String, (usize, u64)>,
    /// The Jinja chat template, as used by transformers and llama.cpp.
    pub chat_template: Option<String>,
}

impl GgufDetails {
    /// Reads the details of a GGUF file; `None` for a directory.
    pub fn read(checkpoint: &Checkpoint, listing: &TensorListing<'_>) -> Result<Option<Self>> {
        let files = checkpoint.model_files();
        let (ModelFiles::Gguf(_), Some(text)) =
            (files, files.read_optional("tokenizer_config.json")?)
        else {
            return Ok(None);
        };
        let config: Value = serde_json::from_slice(&text)?;
        let types = listing.by_dtype().into_iter();
        Ok(Some(Self {
            types: types.map(|(name, sizes)| (name.to_owned(), sizes)).collect(),
            chat_template: config["chat_template"].as_str().map(str::to_owned),
        }))
    }

    /// The lines of the text report.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let types = self.types.iter().map(|(name, (count, bytes))| {
            let tensors = if *count == 1 { "tensor" } else { "tensors" };
            format!("{name} in {count} {tensors} ({})", format_bytes(*bytes))
        });
        let template = match &self.chat_template {
            Some(text) => format!("{} characters; --json prints it", text.chars().count()),
            None => "none".to_owned(),
        };
        vec![("types", types.collect::<Vec<_>>().join(", ")), ("template", template)]
    }

    /// The tensor types, for `--json`.
    pub fn types_json(&self) -> Value {
        let entry = |(name, (count, bytes)): (&String, &(usize, u64))| {
            (name.clone(), json!({ "tensors": count, "bytes": bytes }))
        };
        Value::Object(self.types.iter().map(entry).collect())
    }
}
