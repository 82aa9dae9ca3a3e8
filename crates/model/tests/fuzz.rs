//! Fuzzing: corrupt files yield errors or load; none panics, hangs or allocates beyond its size.
//!
//! Each case takes a valid checkpoint, corrupts one file (changed bytes, truncation, arbitrary
//! bytes, or a JSON value replaced by an unexpected one), and reads everything that still opens.

#![expect(clippy::unwrap_used, reason = "a broken test should fail loudly")]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use latent_tts_model::testkit::{
    CheckpointFamily, CheckpointSpec, GgmlType, GgufContent, GgufValue, write_checkpoint,
};
use latent_tts_model::{Checkpoint, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The files of a valid checkpoint.
struct ValidCheckpoint {
    files: Vec<(String, Vec<u8>)>,
}

impl ValidCheckpoint {
    fn new(spec: CheckpointSpec) -> ValidCheckpoint {
        let dir = tempfile::tempdir().unwrap();
        write_checkpoint(dir.path(), &spec).unwrap();
        let read = |e: std::io::Result<fs::DirEntry>| {
            let e = e.unwrap();
            (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())
        };
        ValidCheckpoint { files: fs::read_dir(dir.path()).unwrap().map(read).collect() }
    }

    fn bytes(&self, name: &str) -> &[u8] {
        &self.files.iter().find(|(n, _)| n == name).unwrap().1
    }

    /// Writes all files, one of them replaced, and reads everything that opens.
    fn try_with(&self, name: &str, bytes: &[u8]) {
        let dir = tempfile::tempdir().unwrap();
        for (n, b) in &self.files {
            fs::write(dir.path().join(n), if n == name { bytes } else { b }).unwrap();
        }
        use_all(dir.path());
    }
}

static WHOLE: LazyLock<ValidCheckpoint> =
    LazyLock::new(|| ValidCheckpoint::new(CheckpointSpec::tiny(CheckpointFamily::Coconut)));
static SHARDED: LazyLock<ValidCheckpoint> = LazyLock::new(|| {
    ValidCheckpoint::new(CheckpointSpec {
        shards: 2,
        lora: true,
        ..CheckpointSpec::tiny(CheckpointFamily::LatentSft)
    })
});
static NESTED: LazyLock<ValidCheckpoint> =
    LazyLock::new(|| ValidCheckpoint::new(CheckpointSpec::tiny(CheckpointFamily::Rot)));

/// Valid GGUF files of each architecture, some of them quantized.
static GGUFS: LazyLock<Vec<GgufContent>> = LazyLock::new(|| {
    let content = |(family, kind)| {
        let dir = tempfile::tempdir().unwrap();
        let spec =
            CheckpointSpec { width: 32, head_dim: 16, ffn: 32, ..CheckpointSpec::tiny(family) };
        write_checkpoint(dir.path(), &spec).unwrap();
        GgufContent::from_directory(dir.path(), kind).unwrap()
    };
    let kinds = [
        (CheckpointFamily::Llama, GgmlType::Q4_1),
        (CheckpointFamily::Qwen2, GgmlType::F16),
        (CheckpointFamily::Qwen3, GgmlType::Q8_0),
    ];
    kinds.map(content).to_vec()
});
static LLAMA_GGUF: LazyLock<Vec<u8>> = LazyLock::new(|| GGUFS[0].to_bytes());

fn use_gguf(bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    fs::write(&file, bytes).unwrap();
    use_all(&file);
}

fn odd_gguf_value() -> impl Strategy<Value = GgufValue> {
    let text = |text: &str| GgufValue::Text(text.to_owned());
    prop::sample::select(vec![
        GgufValue::U32(0),
        GgufValue::U32(1),
        GgufValue::U32(7),
        GgufValue::U32(u32::MAX),
        GgufValue::F32(f32::NAN),
        GgufValue::F32(-1.0),
        GgufValue::F32(1e-30),
        GgufValue::Bool(true),
        text(""),
        text("llama"),
        text("qwen2"),
        text("\u{0}"),
        GgufValue::Texts(vec![]),
        GgufValue::Texts(vec!["a b".to_owned(), "c".to_owned(), String::new()]),
        GgufValue::Integers(vec![3, 4, 5, -1]),
    ])
}

fn use_all(dir: &Path) {
    if let Ok(checkpoint) = Checkpoint::open(dir) {
        let entries: Vec<_> =
            checkpoint.tensors().map(|e| (e.canonical.clone(), e.shape.to_vec())).collect();
        for (name, shape) in entries {
            let _ = checkpoint.tensor(&name, &shape);
        }
        let _ = checkpoint.unused_tensors();
    }
    if let Ok(tokenizer) = Tokenizer::read(dir) {
        for text in ["", "a b", "2)### <|latent|> <|start-latent|>x  <|endoftext|>", "ünï\u{0}\n\n"]
        {
            if let Ok(ids) = tokenizer.encode(text) {
                let _ = tokenizer.decode(&ids);
            }
        }
        let _ = tokenizer.decode(&[0, u32::MAX]);
    }
}

/// The file with some bytes changed, truncated, or both.
fn damaged(valid: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    // Half of the changes are near the start: headers have the most ways to be invalid.
    let place = prop_oneof![0..valid.len(), 0..valid.len().min(600)];
    let flips = prop::collection::vec((place, any::<u8>()), 0..6);
    let cut = prop_oneof![3 => Just(valid.len()), 1 => 0..=valid.len()];
    (flips, cut).prop_map(move |(flips, cut)| {
        let mut bytes = valid.to_vec();
        for (at, value) in flips {
            bytes[at] = value;
        }
        bytes.truncate(cut);
        bytes
    })
}

fn odd() -> impl Strategy<Value = Value> {
    let values = vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(7),
        json!(1u64 << 31),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(0.5),
        json!(1e308),
        json!(""),
        json!("x"),
        json!(" "),
        json!("../x"),
        json!("(a+)+$"),
        json!([]),
        json!({}),
        json!([["x"], 3]),
        json!({
            "type": "Split", "pattern": { "Regex": "(?=(a+)+b)" }, "behavior": "Isolated",
            "invert": true,
        }),
        json!({ "type": "Sequence", "pretokenizers": [] }),
        json!({ "type": "ByteLevel" }),
    ];
    prop::sample::select(values)
}

/// Replaces the JSON value at a path; each number selects a member, modulo their count.
fn replaced(mut root: Value, path: &[usize], odd: Value) -> Vec<u8> {
    let mut at = &mut root;
    for &step in path {
        let len = match at {
            Value::Array(items) => items.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        };
        if len == 0 {
            break;
        }
        at = match at {
            Value::Array(items) => &mut items[step % len],
            Value::Object(map) => map.values_mut().nth(step % len).unwrap(),
            _ => unreachable!(),
        };
    }
    *at = odd;
    root.to_string().into_bytes()
}

fn path() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0usize..300, 1..5)
}

/// All JSON files of a checkpoint.
fn json_file(valid: &'static ValidCheckpoint) -> impl Strategy<Value = &'static str> {
    let names: Vec<&str> =
        valid.files.iter().map(|(n, _)| n.as_str()).filter(|n| n.ends_with(".json")).collect();
    prop::sample::select(names)
}

fn check_json(valid: &'static ValidCheckpoint, name: &str, path: &[usize], odd: Value) {
    let root = serde_json::from_slice(valid.bytes(name)).unwrap();
    valid.try_with(name, &replaced(root, path, odd));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_weights(bytes in damaged(WHOLE.bytes("model.safetensors"))) {
        WHOLE.try_with("model.safetensors", &bytes);
    }

    #[test]
    fn damaged_gguf(bytes in damaged(&LLAMA_GGUF)) {
        use_gguf(&bytes);
    }

    #[test]
    fn arbitrary_gguf(version in 2u32..4, rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = [b"GGUF".as_slice(), &version.to_le_bytes()].concat();
        bytes.extend(rest);
        use_gguf(&bytes);
    }

    #[test]
    fn odd_gguf_values(which in 0usize..3, at in any::<usize>(), odd in odd_gguf_value()) {
        let mut content = GGUFS[which].clone();
        let at = at % content.metadata.len();
        content.metadata[at].1 = odd;
        use_gguf(&content.to_bytes());
    }

    #[test]
    fn odd_gguf_tensors(which in 0usize..3, at in any::<usize>(), kind in 0u32..40,
                        shape in prop::collection::vec(
                            prop_oneof![0u64..40, Just(u64::MAX), Just(1u64 << 31)], 0..6)) {
        let mut content = GGUFS[which].clone();
        let at = at % content.tensors.len();
        (content.tensors[at].kind, content.tensors[at].shape) = (kind, shape);
        use_gguf(&content.to_bytes());
    }

    #[test]
    fn arbitrary_weights(size in any::<u16>(), rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = u64::from(size % 256).to_le_bytes().to_vec();
        bytes.extend(rest);
        WHOLE.try_with("model.safetensors", &bytes);
    }

    #[test]
    fn damaged_side_file(bytes in damaged(NESTED.bytes("projection_head.safetensors"))) {
        NESTED.try_with("projection_head.safetensors", &bytes);
    }

    #[test]
    fn damaged_config(bytes in damaged(WHOLE.bytes("config.json"))) {
        WHOLE.try_with("config.json", &bytes);
    }

    #[test]
    fn damaged_index(bytes in damaged(SHARDED.bytes("model.safetensors.index.json"))) {
        SHARDED.try_with("model.safetensors.index.json", &bytes);
    }

    #[test]
    fn damaged_tokenizer(bytes in damaged(WHOLE.bytes("tokenizer.json"))) {
        WHOLE.try_with("tokenizer.json", &bytes);
    }

    #[test]
    fn arbitrary_text(name in json_file(&WHOLE), text in any::<String>()) {
        WHOLE.try_with(name, text.as_bytes());
    }

    #[test]
    fn odd_values_gpt2(name in json_file(&WHOLE), path in path(), odd in odd()) {
        check_json(&WHOLE, name, &path, odd);
    }

    #[test]
    fn odd_values_llama(name in json_file(&SHARDED), path in path(), odd in odd()) {
        check_json(&SHARDED, name, &path, odd);
    }

    #[test]
    fn odd_values_qwen(name in json_file(&NESTED), path in path(), odd in odd()) {
        check_json(&NESTED, name, &path, odd);
    }

    /// Added tokens with any combination of flags, in texts made of their characters.
    #[test]
    fn odd_added_tokens(marks in prop::collection::vec((0usize..8, any::<[bool; 5]>()), 1..6),
                        text in "[ab <|>#ü]{0,24}") {
        let words = ["a", " ", "ab", "<|", "ba ", "###", "ü", " a "];
        let mut root: Value = serde_json::from_slice(WHOLE.bytes("tokenizer.json")).unwrap();
        root["added_tokens"] = marks.iter().map(|(word, m)| json!({
            "content": words[*word], "single_word": m[0], "lstrip": m[1], "rstrip": m[2],
            "normalized": m[3], "special": m[4],
        })).collect();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), root.to_string()).unwrap();
        if let Ok(tokenizer) = Tokenizer::read(dir.path())
            && let Ok(ids) = tokenizer.encode(&text)
        {
            tokenizer.decode(&ids).unwrap();
        }
    }

    #[test]
    fn odd_vocabulary_and_merges(merges in "[#!\\. a-c\n]{0,60}", vocab in any::<String>()) {
        let dir = tempfile::tempdir().unwrap();
        let root: Value = serde_json::from_slice(WHOLE.bytes("tokenizer.json")).unwrap();
        let vocabulary = root["model"]["vocab"].to_string();
        fs::write(dir.path().join("vocab.json"), vocabulary).unwrap();
        fs::write(dir.path().join("merges.txt"), &merges).unwrap();
        use_all(dir.path());
        fs::write(dir.path().join("vocab.json"), vocab).unwrap();
        use_all(dir.path());
    }
}
