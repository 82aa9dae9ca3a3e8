//! Writes the model of a GGUF file as a Hugging Face directory with float32 weights, for
//! `runs/gguf_transformers.py` and for programs that read no GGUF.
//!
//! `cargo run -p latent-tts-model --example gguf_directory -- FILE.gguf DIR`

use std::error::Error;
use std::path::{Path, PathBuf};

use latent_tts_model::save::{self, SaveDtype};
use latent_tts_model::{Checkpoint, NamedTensor};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    let [file, dir] = args.as_slice() else {
        return Err("usage: gguf_directory FILE.gguf DIR".into());
    };
    std::fs::create_dir_all(dir)?;
    let checkpoint = Checkpoint::open(file)?;
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        if let Some(text) = checkpoint.model_files().read_optional(name)? {
            std::fs::write(dir.join(name), text)?;
        }
    }
    write_weights(&checkpoint, &dir.join("model.safetensors"))
}

fn write_weights(checkpoint: &Checkpoint, path: &Path) -> Result<(), Box<dyn Error>> {
    let mut tensors = Vec::new();
    for info in checkpoint.tensors().filter(|info| info.ignored.is_none()) {
        let is_head = info.canonical.starts_with("lm_head.");
        let prefix = if is_head { "" } else { checkpoint.config().weight_prefix() };
        tensors.push(NamedTensor {
            name: format!("{prefix}{}", info.canonical),
            shape: info.shape.to_vec(),
            values: checkpoint.tensor(&info.canonical, info.shape)?,
        });
    }
    Ok(save::write_safetensors(path, &tensors, SaveDtype::F32, save::PT_METADATA)?)
}
