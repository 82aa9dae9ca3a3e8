//! A model directory as this program and transformers read it: config.json, weights, tokenizer.

use std::path::Path;

use model::save::{self, Saved};
use model::{Named, Parameter};
use serde_json::Value;

use crate::error::Error;

/// What is written beside the weights.
#[derive(Clone, Debug)]
pub struct Directory {
    /// config.json.
    pub config: Value,
    /// Files of the tokenizer: name and contents.
    pub files: Vec<(String, Vec<u8>)>,
    /// What files put before the decoder's canonical names.
    pub prefix: &'static str,
}

impl Directory {
    /// Writes everything; the weights last, so that what can be loaded is whole.
    pub fn write<'a>(
        &self,
        dir: &Path,
        decoder: impl IntoIterator<Item = &'a Parameter>,
        heads: impl IntoIterator<Item = &'a Parameter>,
        format: Saved,
    ) -> Result<(), Error> {
        for (name, contents) in &self.files {
            save::file(&dir.join(name), contents)?;
        }
        let config = serde_json::to_vec_pretty(&self.config).unwrap_or_default();
        save::file(&dir.join("config.json"), &config)?;
        let mut tensors: Vec<Named> = Vec::new();
        for parameter in decoder {
            // The map to tokens stands beside the decoder in published files.
            let outside = |name: &str| name.starts_with("lm_head.");
            tensors.extend(parameter.named()?.into_iter().map(|named| match outside(&named.name) {
                true => named,
                false => Named { name: format!("{}{}", self.prefix, named.name), ..named },
            }));
        }
        for parameter in heads {
            tensors.extend(parameter.named()?);
        }
        Ok(save::tensors(&dir.join("model.safetensors"), &tensors, format, &[])?)
    }
}
