//! Weight files: headers, tensors and adapters.

use std::fs;

use latent_tts_model::ModelError;
use latent_tts_model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::{Fixture, assert_message};

#[test]
fn io() {
    let fixture = Fixture::tiny();
    let below_a_file = fixture.path("config.json").join("sub");
    assert_is!(
        write_checkpoint(&below_a_file, &CheckpointSpec::default()).unwrap_err(),
        ModelError::Io { .. }
    );
}

#[test]
fn missing_weights() {
    let fixture = Fixture::tiny();
    fs::remove_file(fixture.path("model.safetensors")).unwrap();
    // A trainer's pickle file is not a weight file.
    fs::write(fixture.path("training_args.bin"), b"x").unwrap();
    assert_is!(fixture.open_error(&["no weights"]), ModelError::MissingWeights { .. });
}

#[test]
fn pickle_weights() {
    for name in ["pytorch_model.bin", "prj.pt", "model.pth", "epoch.ckpt"] {
        let fixture = Fixture::tiny();
        fs::rename(fixture.path("model.safetensors"), fixture.path(name)).unwrap();
        assert_is!(
            fixture.open_error(&[name, "convert the checkpoint to safetensors"]),
            ModelError::PickleWeights { .. }
        );
    }
}

#[test]
fn ambiguous_weights() {
    let fixture = Fixture::new(CheckpointSpec { shards: 2, ..CheckpointSpec::default() });
    fs::remove_file(fixture.path("model.safetensors.index.json")).unwrap();
    assert_is!(
        fixture.open_error(&["model-00001-of-00002", "index.json"]),
        ModelError::AmbiguousWeights { .. }
    );
}

#[test]
fn truncated() {
    for keep in [0, 7, 8, 100] {
        let fixture = Fixture::tiny();
        fixture.bytes(|b| b.truncate(keep));
        assert_is!(
            fixture.open_error(&["model.safetensors", "truncated"]),
            ModelError::Truncated { .. }
        );
    }
    let fixture = Fixture::tiny();
    fixture.bytes(|b| b.truncate(b.len() - 1));
    assert_is!(fixture.open_error(&["truncated"]), ModelError::Truncated { .. });
}

#[test]
fn trailing_bytes() {
    let fixture = Fixture::tiny();
    fixture.bytes(|b| b.extend([0; 3]));
    assert_is!(fixture.open_error(&["3 bytes after"]), ModelError::TrailingBytes { extra: 3, .. });
}

#[test]
fn oversized_header() {
    for size in [100_000_001, u64::MAX] {
        let fixture = Fixture::tiny();
        fixture.bytes(|b| b[..8].copy_from_slice(&size.to_le_bytes()));
        assert_is!(fixture.open_error(&["header of"]), ModelError::OversizedHeader { .. });
    }
}

/// Offsets that overlap, contradict the shape, or overflow when added.
#[test]
fn bad_header() {
    let huge = u64::MAX / 16 * 2;
    for header in [
        json!({ "a": { "dtype": "F32", "shape": [2], "data_offsets": [0, 4] } }).to_string(),
        json!({ "a": { "dtype": "F32", "shape": [1], "data_offsets": [4, 8] } }).to_string(),
        json!({ "a": { "dtype": "F9", "shape": [1], "data_offsets": [0, 4] } }).to_string(),
        json!({ "a": { "dtype": "F64", "shape": [huge, huge], "data_offsets": [0, 4] } })
            .to_string(),
        "{".to_owned(),
    ] {
        let fixture = Fixture::tiny();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend([0; 4]);
        fs::write(fixture.path("model.safetensors"), bytes).unwrap();
        assert_is!(
            fixture.open_error(&["invalid safetensors header"]),
            ModelError::BadHeader { .. }
        );
    }
    // Contiguous tensors whose total size wraps around: valid one by one, but outside the file.
    let step = 1u64 << 60;
    let tensors: serde_json::Map<String, Value> = (0..16u64)
        .map(|i| {
            let end = if i == 15 { u64::MAX - 3 } else { (i + 1) * step };
            let size = end - i * step;
            let offsets = [i * step, end];
            let info = json!({ "dtype": "U8", "shape": [size], "data_offsets": offsets });
            (format!("t{i}"), info)
        })
        .collect();
    let header = Value::Object(tensors).to_string();
    let fixture = Fixture::tiny();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    fs::write(fixture.path("model.safetensors"), bytes).unwrap();
    assert!(matches!(
        fixture.open_error(&[]),
        ModelError::Truncated { .. } | ModelError::BadHeader { .. }
    ));
}

#[test]
fn missing_shard() {
    let fixture = Fixture::new(CheckpointSpec { shards: 2, ..CheckpointSpec::default() });
    fs::remove_file(fixture.path("model-00002-of-00002.safetensors")).unwrap();
    assert_is!(
        fixture.open_error(&["index.json", "model-00002-of-00002"]),
        ModelError::MissingShard { .. }
    );
}

#[test]
fn missing_in_shard() {
    let fixture = Fixture::new(CheckpointSpec { shards: 2, ..CheckpointSpec::default() });
    fixture.edit("model.safetensors.index.json", |index| {
        index["weight_map"]["transformer.h.9.ln_1.weight"] =
            json!("model-00001-of-00002.safetensors");
    });
    assert_is!(
        fixture.open_error(&["transformer.h.9.ln_1.weight", "model-00001"]),
        ModelError::MissingInShard { .. }
    );
}

#[test]
fn escaping_shard() {
    for path in ["../model.safetensors", "/etc/passwd", "", "a/../../b", "./model.safetensors"] {
        let fixture = Fixture::new(CheckpointSpec { shards: 2, ..CheckpointSpec::default() });
        fixture
            .edit("model.safetensors.index.json", |index| index["weight_map"]["x"] = json!(path));
        assert_is!(fixture.open_error(&["leaves the directory"]), ModelError::EscapingShard { .. });
    }
}

#[test]
fn duplicate_tensor() {
    let fixture = Fixture::tiny();
    fixture.tensors(&[("model.ln_f.bias", Some((Dtype::F32, vec![1], vec![0; 4])))]);
    assert_is!(
        fixture.open_error(&["ln_f.bias", "transformer.ln_f.bias"]),
        ModelError::DuplicateTensor { .. }
    );
}

#[test]
fn missing_tensor() {
    let fixture = Fixture::tiny();
    fixture.tensors(&[("transformer.ln_f.bias", None)]);
    let missing = |name| fixture.open().unwrap().tensor(name, &[32]).unwrap_err();
    assert_is!(
        assert_message(missing("ln_f.bias"), &["`ln_f.bias`"]),
        ModelError::MissingTensor { .. }
    );
    assert_is!(
        assert_message(missing("lm_head.weight"), &["tie_word_embeddings"]),
        ModelError::MissingTensor { .. }
    );
    // The likely cause is a projector in pickle format, which has to be converted.
    fs::write(fixture.path("prj.pt"), b"x").unwrap();
    assert_is!(
        assert_message(missing("projector.1.weight"), &["prj.pt", "convert"]),
        ModelError::MissingTensor { .. }
    );
}

#[test]
fn wrong_shape() {
    let fixture = Fixture::tiny();
    let error = fixture.open().unwrap().tensor("ln_f.bias", &[33]).unwrap_err();
    assert_is!(
        assert_message(error, &["transformer.ln_f.bias", "[32]", "[33]"]),
        ModelError::WrongShape { .. }
    );
    let spec =
        CheckpointSpec { family: CheckpointFamily::Colar, lora: true, ..CheckpointSpec::default() };
    let fixture = Fixture::new(spec);
    let factor = "llm.base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight";
    fixture.tensors(&[(factor, Some((Dtype::F32, vec![128], vec![0; 512])))]);
    let error =
        fixture.open().unwrap().tensor("layers.0.self_attn.q_proj.weight", &[32, 32]).unwrap_err();
    assert_is!(assert_message(error, &["lora_B"]), ModelError::WrongShape { .. });
}

#[test]
fn non_finite() {
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let fixture = Fixture::tiny();
        let mut data = vec![0; 128];
        data[20..24].copy_from_slice(&value.to_le_bytes());
        fixture.tensors(&[("transformer.ln_f.bias", Some((Dtype::F32, vec![32], data)))]);
        let error = fixture.open().unwrap().tensor("ln_f.bias", &[32]).unwrap_err();
        assert_is!(
            assert_message(error, &["ln_f.bias", "element 5", word]),
            ModelError::NonFinite { index: 5, .. }
        );
    }
    let fixture = Fixture::tiny();
    let data = 1e300f64.to_le_bytes().to_vec();
    fixture.tensors(&[("x", Some((Dtype::F64, vec![1], data)))]);
    assert_is!(
        fixture.open().unwrap().tensor("x", &[1]).unwrap_err(),
        ModelError::NonFinite { index: 0, .. }
    );
}

#[test]
fn unsupported_dtype() {
    let fixture = Fixture::tiny();
    fixture.tensors(&[("transformer.ln_f.bias", Some((Dtype::I8, vec![32], vec![0; 32])))]);
    let error = fixture.open().unwrap().tensor("ln_f.bias", &[32]).unwrap_err();
    assert_is!(
        assert_message(error, &["ln_f.bias", "I8", "BF16"]),
        ModelError::UnsupportedDtype { .. }
    );
}

#[test]
fn vocab_mismatch() {
    let fixture = Fixture::tiny();
    fixture.edit("config.json", |c| c["vocab_size"] = json!(300));
    assert_is!(
        fixture.open_error(&["wte.weight", "260", "300"]),
        ModelError::VocabMismatch { rows: 260, vocab: 300, .. }
    );
}

#[test]
fn half_adapter() {
    let fixture = Fixture::new(CheckpointSpec {
        family: CheckpointFamily::Colar,
        lora: true,
        ..CheckpointSpec::default()
    });
    fixture.tensors(&[(
        "llm.base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight",
        None,
    )]);
    assert_is!(
        fixture.open_error(&["layers.0.self_attn.q_proj", "lora_A", "lora_B"]),
        ModelError::IncompleteAdapter { .. }
    );
}

#[test]
fn unknown_adapter_scale() {
    let fixture = Fixture::new(CheckpointSpec {
        family: CheckpointFamily::LatentSft,
        lora: true,
        ..CheckpointSpec::default()
    });
    fs::remove_file(fixture.path("adapter_config.json")).unwrap();
    let error =
        fixture.open().unwrap().tensor("layers.0.self_attn.q_proj.weight", &[32, 32]).unwrap_err();
    assert_is!(
        assert_message(error, &["rank-8", "q_proj", "adapter_config.json"]),
        ModelError::UnknownAdapterScale { rank: 8, .. }
    );
}

#[test]
fn unsupported_adapter() {
    for (field, value) in [
        ("use_dora", json!(true)),
        ("peft_type", json!("IA3")),
        ("alpha_pattern", json!({ "q_proj": 3 })),
    ] {
        let fixture = Fixture::new(CheckpointSpec { lora: true, ..CheckpointSpec::default() });
        fixture.edit("adapter_config.json", |c| c[field] = value.clone());
        assert_is!(
            fixture.open_error(&["adapter_config.json", "merge_and_unload"]),
            ModelError::UnsupportedAdapter { .. }
        );
    }
    let fixture = Fixture::tiny();
    let factor = || Some((Dtype::F32, vec![1, 1], vec![0; 4]));
    fixture.tensors(&[("ln_f.lora_A.weight", factor()), ("ln_f.lora_B.weight", factor())]);
    let error = fixture.open().unwrap().tensor("ln_f.weight", &[32]).unwrap_err();
    assert_is!(
        assert_message(error, &["ln_f.lora_A", "not a matrix"]),
        ModelError::UnsupportedAdapter { .. }
    );
    let fixture = Fixture::tiny();
    let name = "transformer.h.0.attn.c_attn.lora_magnitude_vector.default.weight";
    fixture.tensors(&[(name, Some((Dtype::F32, vec![1], vec![0; 4])))]);
    assert_is!(fixture.open_error(&[name]), ModelError::UnsupportedAdapter { .. });
}
