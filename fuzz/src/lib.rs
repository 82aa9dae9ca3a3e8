//! Fuzz targets: one body per kind of input, which parses bytes to a value or an error.
//!
//! A body panics if the parser panics, if the parsed value violates an invariant (a round trip, a
//! prefix, finite numbers), or if more memory was live than [`memory_limit`] allows. Tests run the
//! bodies on the corpus and on a few mutations of it, the example `campaign` on millions of
//! mutations, and the targets in `fuzz/libfuzzer` under libFuzzer. docs/explanation/testing.md has
//! the commands and the counts.

mod allocator;
mod fixtures;
mod models;
mod mutate;
mod records;
mod server;
mod texts;

use std::path::{Path, PathBuf};

pub use allocator::CountingAllocator;
pub use mutate::Mutator;

/// Measures the memory of each body; the global allocator of every program that links this crate.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A kind of input.
#[derive(Debug, Clone, Copy)]
pub struct FuzzTarget {
    /// The name: the directory below `fuzz/corpus` and the target of `cargo fuzz`.
    pub name: &'static str,
    body: fn(&[u8]),
    /// Dictionary of the mutator: byte strings that are meaningful to the parser.
    pub words: &'static [&'static str],
}

/// All kinds of input.
pub const TARGETS: [FuzzTarget; 17] = [
    FuzzTarget { name: "safetensors", body: models::safetensors, words: models::HEADER_WORDS },
    FuzzTarget { name: "config", body: models::config, words: models::CONFIG_WORDS },
    FuzzTarget { name: "tokenizer", body: models::tokenizer, words: models::TOKENIZER_WORDS },
    FuzzTarget { name: "gguf", body: models::gguf, words: models::GGUF_WORDS },
    FuzzTarget { name: "pickle", body: models::pickle, words: models::PICKLE_WORDS },
    FuzzTarget { name: "adapter", body: models::adapter, words: models::ADAPTER_WORDS },
    FuzzTarget { name: "questions", body: texts::questions, words: texts::QUESTION_WORDS },
    FuzzTarget { name: "samples", body: records::samples, words: records::SAMPLE_WORDS },
    FuzzTarget { name: "annotations", body: records::annotations, words: models::HEADER_WORDS },
    FuzzTarget { name: "settings", body: texts::settings, words: texts::SETTING_WORDS },
    FuzzTarget { name: "layers", body: texts::layers, words: texts::LAYER_WORDS },
    FuzzTarget { name: "answer", body: texts::answer, words: texts::ANSWER_WORDS },
    FuzzTarget { name: "http", body: texts::http, words: texts::HTTP_WORDS },
    FuzzTarget { name: "grading", body: texts::grading, words: texts::ANSWER_WORDS },
    FuzzTarget { name: "templates", body: server::templates, words: server::TEMPLATE_WORDS },
    FuzzTarget { name: "heads", body: server::heads, words: server::HEAD_WORDS },
    FuzzTarget { name: "pages", body: server::pages, words: records::SAMPLE_WORDS },
];

/// Maximum live memory of a body for an input of `bytes` bytes. Parsed JSON takes tens of bytes per
/// input byte, and a tokenizer or a regular expression takes megabytes.
pub fn memory_limit(bytes: usize) -> usize {
    (64 << 20) + 256 * bytes
}

impl FuzzTarget {
    /// The target of this name.
    pub fn find(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// Runs the body on an input and checks its memory use.
    pub fn run(&self, input: &[u8]) {
        let ((), peak) = allocator::peak_bytes(|| (self.body)(input));
        let limit = memory_limit(input.len());
        assert!(peak <= limit, "{peak} bytes for {} bytes of input, limit {limit}", input.len());
    }

    /// The directory of the corpus.
    pub fn corpus_dir(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// The inputs of the corpus with their names, sorted by name.
    pub fn corpus(&self) -> std::io::Result<Vec<(String, Vec<u8>)>> {
        let mut inputs = Vec::new();
        for entry in std::fs::read_dir(self.corpus_dir())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            inputs.push((name, std::fs::read(entry.path())?));
        }
        inputs.sort();
        Ok(inputs)
    }
}
