//! config.json and generation_config.json.

use std::fs;
use std::path::Path;

use latent_tts_model::config::GenerationDefaults;
use latent_tts_model::testkit::{CheckpointFamily, CheckpointSpec};
use latent_tts_model::{Checkpoint, Config, ModelError, Tokenizer};
use serde_json::json;

use crate::{Fixture, assert_message};

#[test]
fn missing_directory() {
    let error = Checkpoint::open(Path::new("/nowhere/at/all")).err().unwrap();
    assert_is!(
        assert_message(error, &["/nowhere/at/all", "no such directory"]),
        ModelError::MissingDirectory { .. }
    );
    assert_is!(
        Tokenizer::read(Path::new("/nowhere")).err().unwrap(),
        ModelError::MissingDirectory { .. }
    );
}

#[test]
fn missing_config() {
    let fixture = Fixture::tiny();
    fs::remove_file(fixture.path("config.json")).unwrap();
    assert_is!(
        fixture.open_error(&["config.json is missing or empty"]),
        ModelError::MissingConfig { .. }
    );
}

#[test]
fn not_utf8() {
    let fixture = Fixture::tiny();
    fs::write(fixture.path("config.json"), b"{\"a\": \"\xff\"}").unwrap();
    assert_is!(fixture.open_error(&["config.json", "byte 7"]), ModelError::NotUtf8 { at: 7, .. });
    let fixture = Fixture::tiny();
    fixture.bytes(|b| b[12] = 0xff);
    assert_is!(fixture.open_error(&["model.safetensors"]), ModelError::NotUtf8 { at: 12, .. });
}

#[test]
fn bad_json() {
    for text in ["{", "[]", "null", "{\"model_type\": }", &"[".repeat(100_000)] {
        let fixture = Fixture::tiny();
        fs::write(fixture.path("config.json"), text).unwrap();
        assert_is!(fixture.open_error(&["config.json"]), ModelError::BadJson { .. });
    }
    let fixture = Fixture::new(CheckpointSpec { shards: 2, ..CheckpointSpec::default() });
    fs::write(fixture.path("model.safetensors.index.json"), "{\"weight_map\": 3}").unwrap();
    assert_is!(fixture.open_error(&["model.safetensors.index.json"]), ModelError::BadJson { .. });
}

#[test]
fn missing_field() {
    for field in ["model_type", "n_layer", "n_embd", "n_head", "vocab_size"] {
        let fixture = Fixture::tiny();
        fixture.edit("config.json", |c| drop(c.as_object_mut().unwrap().remove(field)));
        assert_is!(fixture.open_error(&["config.json", field]), ModelError::MissingField { .. });
    }
    let fixture = Fixture::family(CheckpointFamily::Rot);
    fixture.edit("config.json", |c| drop(c.as_object_mut().unwrap().remove("text_config")));
    assert_is!(fixture.open_error(&["text_config"]), ModelError::MissingField { .. });
}

#[test]
fn generation_defaults_are_validated() {
    let fixture = Fixture::tiny();
    assert_eq!(Config::read(fixture.0.path()).unwrap().defaults, GenerationDefaults::default());
    let defaults =
        json!({ "family": "cot", "thoughts": 0, "max_new_tokens": 24, "p": 0.2, "sigma": 0.5 });
    fixture.edit("config.json", |c| c["latent_tts"] = defaults.clone());
    let read = Config::read(fixture.0.path()).unwrap().defaults;
    assert_eq!((read.thoughts, read.p), (Some(0), Some(0.2)));
    assert_eq!(serde_json::to_value(&read).unwrap(), defaults, "serialized as read");
    for (field, value) in [
        ("family", json!(3)),
        ("thoughts", json!(-1)),
        ("thoughts", json!("6")),
        ("max_new_tokens", json!(0)),
        ("p", json!(1.0)),
        ("p", json!(-0.1)),
        ("sigma", json!(-1)),
        ("sigma", json!(1e300)),
        ("temprature", json!(1.0)),
    ] {
        let fixture = Fixture::tiny();
        fixture.edit("config.json", |c| c["latent_tts"] = json!({ field: value }));
        assert_is!(
            fixture.open_error(&["config.json", &format!("latent_tts.{field}")]),
            ModelError::BadField { .. }
        );
    }
    let fixture = Fixture::tiny();
    fixture.edit("config.json", |c| c["latent_tts"] = json!("cot"));
    assert_is!(fixture.open_error(&["latent_tts", "object"]), ModelError::BadField { .. });
}

#[test]
fn bad_field() {
    for (field, value) in [
        ("n_layer", json!(0)),
        ("n_layer", json!(10_001)),
        ("n_layer", json!(-1)),
        ("n_layer", json!(1.5)),
        ("n_layer", json!("2")),
        ("n_head", json!(5)),
        ("n_layer", json!(1025)),
        ("n_embd", json!(1 << 19)),
        ("n_embd", json!(u64::MAX)),
        ("n_positions", json!(1u64 << 30)),
        ("vocab_size", json!(1u64 << 40)),
        ("layer_norm_epsilon", json!(0)),
        ("layer_norm_epsilon", json!(1e-60)),
        ("eos_token_id", json!("end")),
        ("tie_word_embeddings", json!("yes")),
        ("latent_start_id", json!(1u64 << 33)),
    ] {
        let fixture = Fixture::tiny();
        fixture.edit("config.json", |c| c[field] = value.clone());
        assert_is!(fixture.open_error(&["config.json"]), ModelError::BadField { .. });
    }
    for (field, value) in
        [("num_key_value_heads", json!(3)), ("head_dim", json!(7)), ("rope_theta", json!(-1))]
    {
        let fixture = Fixture::family(CheckpointFamily::Colar);
        fixture.edit("config.json", |c| c[field] = value.clone());
        assert_is!(fixture.open_error(&[field]), ModelError::BadField { .. });
    }
    let fixture = Fixture::family(CheckpointFamily::Colar);
    fixture.edit("config.json", |c| c["rope_scaling"]["high_freq_factor"] = json!(1.0));
    assert_is!(fixture.open_error(&["high_freq_factor"]), ModelError::BadField { .. });
    // Counts whose product would overflow.
    let fixture = Fixture::family(CheckpointFamily::Colar);
    fixture.edit("config.json", |c| {
        c["hidden_size"] = json!(1u64 << 31);
        c["intermediate_size"] = json!(1u64 << 31);
    });
    assert_is!(
        fixture.open_error(&["hidden_size", "the maximum is 262144"]),
        ModelError::BadField { .. }
    );
}

#[test]
fn unsupported() {
    for (field, value) in [
        ("model_type", json!("mamba")),
        ("activation_function", json!("relu")),
        ("scale_attn_by_inverse_layer_idx", json!(true)),
        ("scale_attn_weights", json!(false)),
        ("add_cross_attention", json!(true)),
    ] {
        let fixture = Fixture::tiny();
        fixture.edit("config.json", |c| c[field] = value.clone());
        assert_is!(fixture.open_error(&[field, "supported"]), ModelError::Unsupported { .. });
    }
    for (field, value) in [
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("use_sliding_window", json!(true)),
        ("layer_types", json!(["full_attention", "sliding_attention"])),
        ("rope_scaling", json!({ "rope_type": "yarn", "factor": 4.0 })),
        ("partial_rotary_factor", json!(0.5)),
    ] {
        let fixture = Fixture::family(CheckpointFamily::Colar);
        fixture.edit("config.json", |c| c[field] = value.clone());
        assert_is!(fixture.open_error(&[field]), ModelError::Unsupported { .. });
    }
    let fixture = Fixture::tiny();
    fixture.edit("tokenizer.json", |t| t["pre_tokenizer"] = json!({ "type": "Metaspace" }));
    assert_is!(
        assert_message(fixture.tokenizer().err().unwrap(), &["Metaspace", "ByteLevel"]),
        ModelError::Unsupported { .. }
    );
}

/// Not an error: the EOS tokens of generation_config.json override those of config.json.
#[test]
fn generation_config_overrides_eos() {
    let fixture = Fixture::tiny();
    fs::write(fixture.path("generation_config.json"), "{\"eos_token_id\": [3, 5, -1]}").unwrap();
    assert_eq!(Config::read(fixture.0.path()).unwrap().eos, [3, 5]);
}
