//! Says what to do about absent weights before the compiler trips over them in `src/embedded.rs`.

use std::path::Path;

const WEIGHTS: [&str; 2] = ["reasoner/model.safetensors", "reward/model.safetensors"];

fn main() {
    for name in WEIGHTS {
        let file = Path::new("../../assets").join(name);
        println!("cargo::rerun-if-changed={}", file.display());
        if !file.is_file() {
            println!(
                "cargo::error=assets/{name} is missing, and this program carries it inside; \
                 check out the whole repository, or train it as assets/README.md says"
            );
        }
    }
}
