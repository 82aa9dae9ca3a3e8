//! Writes tiny GGUF files with random weights: every architecture, every tensor type, tied and
//! untied, for `runs/gguf_transformers.py`.
//!
//! `cargo run -p latent-tts-model --features testkit --example random_gguf -- DIR`

use std::error::Error;
use std::path::PathBuf;

use latent_tts_model::testkit::{
    CheckpointFamily, CheckpointSpec, GgmlType, GgufContent, write_checkpoint,
};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = PathBuf::from(std::env::args().nth(1).ok_or("usage: random_gguf DIR")?);
    let families = [
        ("llama", CheckpointFamily::Llama),
        ("qwen2", CheckpointFamily::Qwen2),
        ("qwen3", CheckpointFamily::Qwen3),
    ];
    for (i, kind) in GgmlType::ALL.into_iter().enumerate() {
        let (name, family) = families[i % families.len()];
        let spec = CheckpointSpec {
            family,
            width: 256,
            heads: 8,
            kv_heads: 4,
            head_dim: 32,
            ffn: 256,
            tied: i % 2 == 0,
            ..CheckpointSpec::default()
        };
        let source = dir.join("source");
        write_checkpoint(&source, &spec)?;
        let file = dir.join(format!("{name}-{}.gguf", kind.name()));
        GgufContent::from_directory(&source, kind)?.write(&file)?;
        println!("{}", file.display());
    }
    Ok(std::fs::remove_dir_all(dir.join("source"))?)
}
