//! GGUF files.

use std::fs;
use std::path::PathBuf;

use latent_tts_model::testkit::{
    CheckpointFamily, CheckpointSpec, GgmlType, GgufContent, GgufValue, StoredGgufTensor,
    write_checkpoint,
};
use latent_tts_model::{Checkpoint, ModelError, Tokenizer};

use crate::assert_message;

/// A tiny GGUF file to corrupt.
struct GgufFixture {
    folder: tempfile::TempDir,
    content: GgufContent,
}

impl GgufFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = CheckpointSpec { family: CheckpointFamily::Llama, ..CheckpointSpec::default() };
        write_checkpoint(&folder.path().join("dir"), &spec).unwrap();
        let content =
            GgufContent::from_directory(&folder.path().join("dir"), GgmlType::F32).unwrap();
        Self { folder, content }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }

    fn set(mut self, key: &str, value: GgufValue) -> Self {
        self.content.set(key, value);
        self
    }

    fn set_text(self, key: &str, value: &str) -> Self {
        self.set(key, GgufValue::Text(value.to_owned()))
    }

    fn without(mut self, key: &str) -> Self {
        self.content.remove(key);
        self
    }

    fn tensor(mut self, name: &str, change: impl FnOnce(&mut StoredGgufTensor)) -> Self {
        change(self.content.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap());
        self
    }

    fn open_bytes(&self, bytes: &[u8]) -> Result<Checkpoint, ModelError> {
        fs::write(self.file(), bytes).unwrap();
        Checkpoint::open(&self.file())
    }

    /// The error of opening; its message names the file and contains all of `words`.
    fn open_error(&self, words: &[&str]) -> ModelError {
        self.open_bytes_error(&self.content.to_bytes(), words)
    }

    fn open_bytes_error(&self, bytes: &[u8], words: &[&str]) -> ModelError {
        let error = self.open_bytes(bytes).err().expect("the file opens");
        assert_message(assert_message(error, &["model.gguf"]), words)
    }

    fn tokenizer_error(&self, words: &[&str]) -> ModelError {
        fs::write(self.file(), self.content.to_bytes()).unwrap();
        let error = Tokenizer::read(&self.file()).err().expect("the tokenizer is read");
        assert_message(assert_message(error, &["model.gguf"]), words)
    }
}

#[test]
fn missing_file() {
    let error = Checkpoint::open(&GgufFixture::new().file()).err().unwrap();
    assert_is!(assert_message(error, &["model.gguf"]), ModelError::Io { .. });
}

#[test]
fn other_magic_and_versions() {
    let fixture = GgufFixture::new();
    let bytes = fixture.content.to_bytes();
    let with = |at: usize, new: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    assert_is!(
        fixture.open_bytes_error(&with(0, b"GGML"), &["download"]),
        ModelError::NotGguf { .. }
    );
    for (version, words) in [([1, 0, 0, 0], "version 1"), ([0, 0, 0, 3], "big-endian")] {
        let error = fixture.open_bytes_error(&with(4, &version), &[words, "convert"]);
        assert_is!(error, ModelError::GgufVersion { .. });
    }
    assert!(fixture.open_bytes(&with(4, &[2, 0, 0, 0])).is_ok());
}

#[test]
fn truncated_at_every_length_and_absurd_counts() {
    let fixture = GgufFixture::new();
    let bytes = fixture.content.to_bytes();
    let lengths = (0..bytes.len()).step_by(997).chain(0..64).chain([bytes.len() - 1]);
    for length in lengths {
        let error = fixture.open_bytes_error(&bytes[..length], &["truncated", "download"]);
        assert_is!(error, ModelError::Truncated { .. });
    }
    // The numbers of tensors and of values, then the length of the first key.
    for at in [8, 16, 24] {
        let mut absurd = bytes.clone();
        absurd[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(fixture.open_bytes(&absurd).is_err());
    }
}

#[test]
fn duplicate_names() {
    let mut fixture = GgufFixture::new();
    let first = fixture.content.metadata[0].clone();
    fixture.content.metadata.push(first);
    assert_is!(
        fixture.open_error(&["duplicate key", "general.architecture"]),
        ModelError::BadGguf { .. }
    );
    let mut fixture = GgufFixture::new();
    let first = fixture.content.tensors[0].clone();
    fixture.content.tensors.push(first);
    assert_is!(fixture.open_error(&["duplicate tensor"]), ModelError::BadGguf { .. });
}

#[test]
fn tensor_types_and_shapes() {
    let name = "blk.0.ffn_up.weight";
    let fixture = GgufFixture::new().tensor(name, |tensor| tensor.kind = 16);
    assert_is!(
        fixture.open_error(&[name, "IQ2_XXS", "Q4_K", "llama-quantize"]),
        ModelError::GgufTensorType { .. }
    );
    let fixture = GgufFixture::new().tensor(name, |tensor| tensor.kind = 12);
    assert_is!(fixture.open_error(&[name, "block size 256"]), ModelError::BadGguf { .. });
    for shape in [vec![], vec![1; 5], vec![0, 4], vec![1 << 40, 1], vec![1 << 31; 4]] {
        let fixture = GgufFixture::new().tensor(name, |tensor| tensor.shape = shape);
        assert_is!(fixture.open_error(&[name]), ModelError::BadGguf { .. });
    }
    let fixture = GgufFixture::new().tensor("blk.0.attn_q.weight", |tensor| tensor.shape[0] = 6);
    assert_is!(fixture.open_error(&["attn_q", "heads"]), ModelError::BadField { .. });
    let fixture = GgufFixture::new().tensor(name, |tensor| tensor.shape = vec![32, 48]);
    let checkpoint = fixture.open_bytes(&fixture.content.to_bytes()).unwrap();
    let error = checkpoint.tensor("layers.0.mlp.up_proj.weight", &[48, 32]).unwrap_err();
    assert_is!(assert_message(error, &[name, "[32, 48]"]), ModelError::WrongShape { .. });
}

#[test]
fn missing_keys() {
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.context_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        let error = GgufFixture::new().without(key).open_error(&[key, "convert"]);
        assert_is!(error, ModelError::MissingMetadata { .. });
    }
    for key in ["model", "tokens", "merges"].map(|name| format!("tokenizer.ggml.{name}")) {
        let error = GgufFixture::new().without(&key).tokenizer_error(&[&key, "convert"]);
        assert_is!(error, ModelError::MissingMetadata { .. });
    }
    let mut fixture = GgufFixture::new();
    fixture.content.tensors.retain(|tensor| tensor.name != "token_embd.weight");
    assert_is!(fixture.open_error(&["token_embd.weight"]), ModelError::MissingTensor { .. });
}

#[test]
fn bad_values() {
    for (key, value) in [
        ("general.alignment", GgufValue::U32(3)),
        ("llama.block_count", GgufValue::U32(0)),
        ("llama.block_count", GgufValue::U32(u32::MAX)),
        ("llama.block_count", GgufValue::Text("2".to_owned())),
        ("llama.attention.head_count", GgufValue::Integers(vec![4, 4])),
        ("general.architecture", GgufValue::U32(1)),
    ] {
        let error = GgufFixture::new().set(key, value).open_error(&[key]);
        assert_is!(error, ModelError::BadField { .. });
    }
    for (key, value) in [
        ("tokenizer.ggml.token_type", GgufValue::Integers(vec![1])),
        ("tokenizer.ggml.tokens", GgufValue::Integers(vec![1])),
        ("tokenizer.ggml.eos_token_id", GgufValue::U32(1 << 20)),
    ] {
        let error = GgufFixture::new().set(key, value).tokenizer_error(&[key]);
        assert_is!(error, ModelError::BadField { .. });
    }
}

#[test]
fn unsupported_features() {
    for (key, value, words) in [
        ("general.architecture", GgufValue::Text("mamba".to_owned()), "llama, qwen2, qwen3"),
        ("split.count", GgufValue::U32(2), "llama-gguf-split"),
        ("llama.expert_count", GgufValue::U32(8), "0"),
        ("llama.rope.scaling.type", GgufValue::Text("yarn".to_owned()), "none"),
        ("llama.rope.scaling.factor", GgufValue::F32(4.0), "1"),
        ("llama.rope.dimension_count", GgufValue::U32(4), "8"),
    ] {
        let error = GgufFixture::new().set(key, value).open_error(&[key, words]);
        assert_is!(error, ModelError::Unsupported { .. });
    }
    let error = GgufFixture::new()
        .tensor("rope_freqs.weight", |tensor| tensor.bytes[3] = 0x42)
        .open_error(&["rope_freqs.weight", "Llama 3"]);
    assert_is!(error, ModelError::Unsupported { .. });
    for (key, value, words) in [
        ("tokenizer.ggml.model", "llama", "byte-level BPE"),
        ("tokenizer.ggml.pre", "tekken", "qwen2"),
    ] {
        let error = GgufFixture::new().set_text(key, value).tokenizer_error(&[key, value, words]);
        assert_is!(error, ModelError::Unsupported { .. });
    }
}
