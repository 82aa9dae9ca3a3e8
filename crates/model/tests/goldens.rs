//! Comparison with transformers' reference dumps: token ids, texts, configurations and the names of
//! all weights.
//!
//! The dumps are not part of the repository. Without them the tests print that they are skipped.

#![expect(clippy::unwrap_used, reason = "a broken test should fail loudly")]

use std::path::{Path, PathBuf};

use latent_tts_model::config::{Architecture, Mlp, NormConfig, PositionEncoding};
use latent_tts_model::{Checkpoint, Config, Tokenizer};
use serde_json::Value;

const FAMILIES: [&str; 6] =
    ["coconut-gpt2", "codi-gpt2", "codi-llama", "colar-llama", "latent-sft-llama", "rot-qwen3vl"];

/// A directory of reference data; without it prints that the test is skipped.
fn reference_dir(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if !path.is_dir() {
        println!("skipped: no reference data at {}", path.display());
        return None;
    }
    Some(path)
}

fn json(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

#[test]
fn prompt_ids_match_transformers() {
    let Some(goldens) = reference_dir("goldens") else {
        return;
    };
    for family in FAMILIES {
        let tokenizer = Tokenizer::read(&goldens.join(family).join("checkpoint")).unwrap();
        let golden = json(&goldens.join(family).join("golden.json"));
        assert_eq!(tokenizer.eos(), Some(golden["eos_id"].as_u64().unwrap() as u32), "{family}");
        for question in golden["questions"].as_array().unwrap() {
            let mut found = tokenizer.encode(question["prompt_text"].as_str().unwrap()).unwrap();
            if family == "latent-sft-llama" {
                found.extend(tokenizer.encode("<think>").unwrap());
            }
            assert_eq!(found, ids(&question["prompt_ids"]), "{family}");
        }
    }
}

#[test]
fn answer_texts_match_transformers() {
    let Some(goldens) = reference_dir("goldens") else {
        return;
    };
    for family in FAMILIES {
        let tokenizer = Tokenizer::read(&goldens.join(family).join("checkpoint")).unwrap();
        let golden = json(&goldens.join(family).join("golden.json"));
        let runs = golden["questions"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|q| q["runs"].as_object().unwrap().values());
        let rows: Vec<&Value> = runs.flat_map(|run| run.as_array().unwrap()).collect();
        assert!(!rows.is_empty());
        for row in rows {
            assert_eq!(
                tokenizer.decode(&ids(&row["answer_ids"])).unwrap(),
                row["text"].as_str().unwrap(),
                "{family}"
            );
        }
    }
}

/// tokenizer.json, and vocab.json with merges.txt.
#[test]
fn gpt2_tokenizer_forms_give_equal_ids() {
    let Some(published) = reference_dir("tokenizers/gpt2") else {
        return;
    };
    let halves = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"] {
        std::fs::copy(published.join(name), halves.path().join(name)).unwrap();
    }
    for dir in [published.as_path(), halves.path()] {
        let tokenizer = Tokenizer::read(dir).unwrap();
        assert_eq!((tokenizer.vocab_size(), tokenizer.eos()), (50260, Some(50256)));
        assert_eq!(tokenizer.token_to_id("<|start-latent|>"), Some(50257));
        for golden in json(&published.join("golden_ids.json")).as_array().unwrap() {
            let text = golden["text"].as_str().unwrap();
            let ids = ids(&golden["ids"]);
            assert_eq!(tokenizer.encode(text).unwrap(), ids);
            assert_eq!(tokenizer.decode(&ids).unwrap(), text.replace("<|endoftext|>", ""));
        }
    }
}

#[test]
fn configs_match_transformers() {
    let Some(goldens) = reference_dir("goldens") else {
        return;
    };
    let config = |family: &str| Config::read(&goldens.join(family).join("checkpoint")).unwrap();
    let gpt2 = config("codi-gpt2");
    assert_eq!(gpt2.architecture, Architecture::Gpt2);
    assert_eq!(
        (gpt2.layers, gpt2.width, gpt2.heads, gpt2.kv_heads, gpt2.head_dim, gpt2.ffn),
        (3, 48, 4, 4, 12, 192)
    );
    assert_eq!((gpt2.vocab, gpt2.context, gpt2.tied), (383, 160, true));
    assert_eq!(
        (gpt2.norm, gpt2.positions, gpt2.mlp),
        (NormConfig::LayerNorm { eps: 1e-5 }, PositionEncoding::Learned, Mlp::GeluTanh)
    );
    assert_eq!(gpt2.class_name.as_deref(), Some("CODIGPT2"));
    assert_eq!((gpt2.latent.start_id, gpt2.eos), (Some(380), vec![0]));
    let llama = config("colar-llama");
    assert_eq!((llama.latent.start_id, llama.latent.end_id), (None, Some(320)));
    assert_eq!(llama.latent.embedding_std, Some(0.25));
    assert_eq!(
        (llama.kv_heads, llama.head_dim, llama.qk_norm, llama.mlp),
        (2, 16, false, Mlp::SwiGlu)
    );
    let PositionEncoding::Rope { theta, scaling: Some(scaling) } = llama.positions else {
        panic!("{:?}", llama.positions)
    };
    assert_eq!(
        (theta, scaling.factor, scaling.low, scaling.high, scaling.original_context),
        (5e5, 32.0, 1.0, 4.0, 64)
    );
    let qwen = config("rot-qwen3vl");
    assert_eq!(
        (qwen.architecture, qwen.qk_norm, qwen.head_dim, qwen.tied),
        (Architecture::Qwen3Vl, true, 32, true)
    );
    assert_eq!(qwen.positions, PositionEncoding::Rope { theta: 5e6, scaling: None });
    assert_eq!(qwen.norm, NormConfig::RmsNorm { eps: 1e-6 });
    assert!(qwen.eos.is_empty());
}

/// Every tensor of the reference checkpoints has a canonical name and is read under it.
#[test]
fn every_tensor_is_read() {
    let Some(goldens) = reference_dir("goldens") else {
        return;
    };
    let dirs = FAMILIES
        .iter()
        .map(|f| format!("{f}/checkpoint"))
        .chain(["coconut-gpt2/latent-rm".to_owned()]);
    for dir in dirs {
        let checkpoint = Checkpoint::open(&goldens.join(&dir)).unwrap();
        let entries: Vec<(String, Vec<usize>)> =
            checkpoint.tensors().map(|e| (e.canonical.clone(), e.shape.to_vec())).collect();
        assert_eq!(checkpoint.unused_tensors().len(), entries.len(), "{dir}");
        for (name, shape) in entries {
            assert_eq!(checkpoint.shape(&name), Some(shape.as_slice()));
            assert_eq!(
                checkpoint.tensor(&name, &shape).unwrap().len(),
                shape.iter().product::<usize>()
            );
        }
        assert!(checkpoint.unused_tensors().is_empty(), "{dir}: {:?}", checkpoint.unused_tensors());
        let config = checkpoint.config();
        let embedding = if config.architecture == Architecture::Gpt2 {
            "wte.weight"
        } else {
            "embed_tokens.weight"
        };
        assert_eq!(
            checkpoint.shape(embedding),
            Some([config.vocab, config.width].as_slice()),
            "{dir}"
        );
    }
    let rot = Checkpoint::open(&goldens.join("rot-qwen3vl/checkpoint")).unwrap();
    for name in [
        "projection_head.0.weight",
        "projection_head.2.w3.weight",
        "projection_head.3.bias",
        "img_begin_emb",
    ] {
        assert!(rot.has(name), "{name}");
    }
}
