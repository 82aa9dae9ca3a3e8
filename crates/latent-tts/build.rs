//! Reports missing weights before the compiler fails on them in `src/embedded.rs`.

use std::path::Path;

const WEIGHTS: [&str; 2] = ["reasoner/model.safetensors", "reward/model.safetensors"];

fn main() {
    if std::env::var_os("CARGO_FEATURE_EMBEDDED").is_none() {
        return;
    }
    for name in WEIGHTS {
        let file = Path::new("../../assets").join(name);
        println!("cargo::rerun-if-changed={}", file.display());
        if !file.is_file() {
            println!(
                "cargo::error=assets/{name} not found, which the feature `embedded` includes; \
                 check out the entire repository, train the model (see assets/README.md), or \
                 build without the feature"
            );
        }
    }
}
