//! Training from a GGUF file: the output is a Hugging Face directory, or an adapter whose base is
//! the file.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::{Path, PathBuf};

use latent_tts_train::model_dir::{ModelInit, TrainableModel, TuningSpec, init_model};
use model::save::SaveDtype;
use model::testkit::{CheckpointFamily, CheckpointSpec, GgmlType, GgufContent, write_checkpoint};
use model::{
    Cache, Checkpoint, Config, Decoder, LmHead, LoraConfig, LoraTargets, Pass, Sequence, Tokenizer,
};
use serde_json::{Value, json};
use tensor::Device;

/// Writes a tiny model in half precision.
fn gguf(folder: &Path, family: CheckpointFamily, tied: bool) -> PathBuf {
    let dir = folder.join("source");
    let file = folder.join("model.gguf");
    write_checkpoint(&dir, &CheckpointSpec { family, tied, ..CheckpointSpec::default() }).unwrap();
    GgufContent::from_directory(&dir, GgmlType::F16).unwrap().write(&file).unwrap();
    file
}

fn start(file: &Path, out: &Path, lora: Option<LoraConfig>) -> TrainableModel {
    let tuning = TuningSpec { lora: lora.map(Into::into), dtype: SaveDtype::F32 };
    let usage = json!({ "family": "coconut", "thoughts": 6 });
    let init = ModelInit::Pretrained(file.into());
    init_model(&Device::cpu(None).unwrap(), &init, out, usage, &tuning).unwrap()
}

/// Hidden states of tokens that are in both the file and the directory.
fn hidden(path: &Path) -> Vec<f32> {
    let device = Device::cpu(None).unwrap();
    let checkpoint = Checkpoint::open(path).unwrap();
    let decoder = Decoder::load(&device, checkpoint.config(), &checkpoint, LmHead::With).unwrap();
    let tokens = Tokenizer::read(path).unwrap().encode("3 + 4 = 7").unwrap();
    let slots = Cache::slots_for(tokens.len());
    let mut cache = Cache::new(&device, decoder.config(), slots).unwrap();
    let mut pass = Pass::default();
    let mut sequence = Sequence::default();
    tokens.iter().for_each(|_| pass.push(&mut cache, &mut sequence, true));
    let x = decoder.embed(&tokens).unwrap();
    decoder.forward(&mut cache, &pass, x, None).unwrap().data().to_vec()
}

#[test]
fn a_training_writes_a_directory() {
    for (family, tied) in [(CheckpointFamily::Llama, true), (CheckpointFamily::Qwen2, false)] {
        let folder = tempfile::tempdir().unwrap();
        let file = gguf(folder.path(), family, tied);
        let out = folder.path().join("out");
        let model = start(&file, &out, None);
        model.writer.write(&out, &model.decoder, []).unwrap();
        assert_eq!(hidden(&out), hidden(&file), "{family:?}: bit by bit");
        let config = Config::read(&out).unwrap();
        let before = Config::read(&file).unwrap();
        assert_eq!((config.architecture, config.tied), (before.architecture, before.tied));
        assert_eq!(config.defaults.family.as_deref(), Some("coconut"));
        let tokenizer = Tokenizer::read(&out).unwrap();
        for marker in ["<|start-latent|>", "<|end-latent|>", "<|latent|>"] {
            let id = tokenizer.token_to_id(marker).unwrap();
            assert!((id as usize) < config.vocab, "{marker}");
        }
        let text = std::fs::read(out.join("tokenizer_config.json")).unwrap();
        let side: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(side["chat_template"], "{{ messages[0].content }}");
        let names: Vec<String> = Checkpoint::open(&out)
            .unwrap()
            .tensors()
            .map(|info| info.original.to_owned())
            .collect();
        assert_eq!(names.contains(&"lm_head.weight".to_owned()), !tied);
        let bias = names.contains(&"model.layers.0.self_attn.q_proj.bias".to_owned());
        assert_eq!(bias, family == CheckpointFamily::Qwen2);
    }
}

#[test]
fn the_base_of_an_adapter_may_be_a_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = gguf(folder.path(), CheckpointFamily::Llama, true);
    let out = folder.path().join("adapter");
    let lora = LoraConfig { rank: 4, alpha: 8.0, targets: LoraTargets::All, dropout: 0.0, seed: 1 };
    let model = start(&file, &out, Some(lora));
    model.writer.write(&out, &model.decoder, []).unwrap();
    assert!(!out.join("model.safetensors").exists() && out.join("adapter_config.json").exists());
    // B is initialized with zeros, so the adapted model equals its base.
    assert_eq!(hidden(&out), hidden(&file));
    let checkpoint = Checkpoint::open(&out).unwrap();
    let file = file.canonicalize().unwrap();
    assert!(checkpoint.tensors().any(|info| info.file == file && info.dtype == "F16"));
}
