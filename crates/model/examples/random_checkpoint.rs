//! Writes a checkpoint with random weights in the shape of GPT-2 124M and the published layout of
//! COCONUT (or of its reward model), with a given tokenizer: for benchmarks that need a real size
//! and real prompts but no trained weights.
//!
//! ```text
//! cargo run --release -p latent-tts-model --features testkit --example random_checkpoint -- \
//!     TOKENIZER_DIR OUT_DIR [reward]
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use latent_tts_model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(tokenizer), Some(out)) = (args.next(), args.next()) else {
        eprintln!("usage: random_checkpoint TOKENIZER_DIR OUT_DIR [reward]");
        return ExitCode::from(2);
    };
    let family = if args.next().as_deref() == Some("reward") {
        CheckpointFamily::RewardGpt2
    } else {
        CheckpointFamily::Coconut
    };
    match write(family, PathBuf::from(tokenizer), Path::new(&out)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn write(
    family: CheckpointFamily,
    tokenizer: PathBuf,
    out: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(out)?;
    let spec = CheckpointSpec {
        family,
        layers: 12,
        width: 768,
        heads: 12,
        kv_heads: 12,
        head_dim: 64,
        ffn: 3072,
        context: 1024,
        tokenizer_from: Some(tokenizer),
        ..CheckpointSpec::default()
    };
    Ok(write_checkpoint(out, &spec)?)
}
