//! Writes the valid files of tiny models to the corpora. Run it again when a format changes.
//!
//! `cargo run -p latent-tts-fuzz --example seeds`

#![expect(clippy::unwrap_used, reason = "a broken example should fail loudly")]

use std::fs;

use latent_tts_fuzz::FuzzTarget;
use model::testkit::{CheckpointFamily, CheckpointSpec, GgmlType, GgufContent, write_checkpoint};

fn main() {
    for (family, name) in [
        (CheckpointFamily::Coconut, "gpt2"),
        (CheckpointFamily::Llama, "llama"),
        (CheckpointFamily::Qwen3, "qwen3"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write_checkpoint(dir.path(), &CheckpointSpec::tiny(family)).unwrap();
        let copy = |file: &str, target: &str| {
            write(target, name, &fs::read(dir.path().join(file)).unwrap());
        };
        copy("config.json", "config");
        copy("model.safetensors", "safetensors");
        copy("tokenizer.json", "tokenizer");
        let wide = tempfile::tempdir().unwrap();
        let spec =
            CheckpointSpec { width: 32, head_dim: 16, ffn: 32, ..CheckpointSpec::tiny(family) };
        write_checkpoint(wide.path(), &spec).unwrap();
        if family != CheckpointFamily::Coconut {
            let gguf = GgufContent::from_directory(wide.path(), GgmlType::Q8_0).unwrap();
            write("gguf", name, &gguf.to_bytes());
        }
    }
}

fn write(target: &str, name: &str, bytes: &[u8]) {
    let dir = FuzzTarget::find(target).unwrap().corpus_dir();
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(name), bytes).unwrap();
}
