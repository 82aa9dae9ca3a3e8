//! A GGUF file is bitwise equal to the model of the directory that it was made from.

#![expect(clippy::unwrap_used, reason = "a broken test should fail loudly")]

use std::path::{Path, PathBuf};

use latent_tts_model::config::Architecture;
use latent_tts_model::save::{self, SaveDtype};
use latent_tts_model::testkit::{
    CheckpointFamily, CheckpointSpec, GgmlType, GgufContent, GgufValue, WeightDtype,
    write_checkpoint,
};
use latent_tts_model::{
    Cache, Checkpoint, Config, Decoder, LmHead, ModelFiles, NamedTensor, Pass, Sequence, Tokenizer,
    head,
};
use tensor::Device;

const FAMILIES: [CheckpointFamily; 3] =
    [CheckpointFamily::Llama, CheckpointFamily::Qwen2, CheckpointFamily::Qwen3];

/// A directory and the GGUF file of its model.
struct Pair {
    folder: tempfile::TempDir,
}

impl Pair {
    fn new(spec: &CheckpointSpec, kind: GgmlType) -> Self {
        let pair = Self { folder: tempfile::tempdir().unwrap() };
        write_checkpoint(&pair.dir(), spec).unwrap();
        GgufContent::from_directory(&pair.dir(), kind).unwrap().write(&pair.file()).unwrap();
        pair
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("dir")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }
}

/// The logits of every position, as bits.
fn logits(path: &Path) -> Vec<u32> {
    let device = Device::cpu(None).unwrap();
    let checkpoint = Checkpoint::open(path).unwrap();
    let tokens = Tokenizer::read(path).unwrap().encode("2 + 2 = <|im_end|>4###").unwrap();
    let decoder = Decoder::load(&device, checkpoint.config(), &checkpoint, LmHead::With).unwrap();
    assert!(checkpoint.unused_tensors().is_empty(), "{:?}", checkpoint.unused_tensors());
    let slots = Cache::slots_for(tokens.len());
    let mut cache = Cache::new(&device, decoder.config(), slots).unwrap();
    let mut pass = Pass::default();
    let mut sequence = Sequence::default();
    tokens.iter().for_each(|_| pass.push(&mut cache, &mut sequence, true));
    let x = decoder.embed(&tokens).unwrap();
    let hidden = decoder.forward(&mut cache, &pass, x, None).unwrap();
    let logits = head::logits(&decoder, &hidden).unwrap().to_host().unwrap();
    let values: Vec<f32> = (0..logits.rows()).flat_map(|r| logits.row(r)).copied().collect();
    assert!(values.iter().all(|x| x.is_finite() && *x != 0.0));
    values.into_iter().map(f32::to_bits).collect()
}

/// A configuration without the fields of latent reasoners.
fn plain_config(path: &Path) -> Config {
    Config { latent: Default::default(), ..Config::read(path).unwrap() }
}

#[test]
fn a_gguf_file_has_the_logits_of_its_directory() {
    for family in FAMILIES {
        for (dtype, kind, tied) in [
            (WeightDtype::F32, GgmlType::F32, true),
            (WeightDtype::F16, GgmlType::F16, false),
            (WeightDtype::Bf16, GgmlType::Bf16, true),
        ] {
            let spec = CheckpointSpec { family, dtype, tied, ..CheckpointSpec::default() };
            let pair = Pair::new(&spec, kind);
            assert_eq!(plain_config(&pair.file()), plain_config(&pair.dir()), "{family:?}");
            assert!(logits(&pair.file()) == logits(&pair.dir()), "{family:?} {kind:?}");
        }
    }
}

/// As in training: configuration and tokenizer are written as texts, weights as f32.
fn as_directory(file: &Path, dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let files = ModelFiles::from(file);
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::write(dir.join(name), files.read_optional(name).unwrap().unwrap()).unwrap();
    }
    let checkpoint = Checkpoint::open(file).unwrap();
    let prefix = checkpoint.config().weight_prefix();
    let weights = checkpoint.tensors().filter(|info| info.ignored.is_none());
    let named = weights.map(|info| NamedTensor {
        name: format!("{prefix}{}", info.canonical),
        shape: info.shape.to_vec(),
        values: checkpoint.tensor(&info.canonical, info.shape).unwrap(),
    });
    let tensors: Vec<NamedTensor> = named.collect();
    let path = dir.join("model.safetensors");
    save::write_safetensors(&path, &tensors, SaveDtype::F32, save::PT_METADATA).unwrap();
}

#[test]
fn quantised_types_load_and_can_be_written_as_a_directory() {
    for (i, kind) in GgmlType::ALL.into_iter().enumerate() {
        let spec = CheckpointSpec {
            family: FAMILIES[i % FAMILIES.len()],
            layers: 1,
            width: 256,
            heads: 8,
            kv_heads: 4,
            head_dim: 32,
            ffn: 256,
            ..CheckpointSpec::default()
        };
        let pair = Pair::new(&spec, kind);
        let checkpoint = Checkpoint::open(&pair.file()).unwrap();
        let mut types: Vec<String> = checkpoint.tensors().map(|info| info.dtype).collect();
        types.sort();
        types.dedup();
        assert!(types.contains(&kind.name().to_owned()), "{types:?}");
        let written = pair.folder.path().join("written");
        as_directory(&pair.file(), &written);
        assert!(logits(&written) == logits(&pair.file()), "{kind:?}");
        assert_eq!(plain_config(&written), plain_config(&pair.file()));
    }
}

#[test]
fn a_gguf_tokenizer_is_that_of_its_directory() {
    for family in FAMILIES {
        let pair =
            Pair::new(&CheckpointSpec { family, ..CheckpointSpec::default() }, GgmlType::F32);
        let ours = Tokenizer::read(&pair.file()).unwrap();
        let theirs = Tokenizer::read(&pair.dir()).unwrap();
        assert_eq!((ours.vocab_size(), ours.eos()), (theirs.vocab_size(), theirs.eos()));
        for text in ["", "Is it 7?\n  Ünïcode — ok", "a<|im_end|><|eot_id|> ### <img>b", "\t12345"]
        {
            let ids = ours.encode(text).unwrap();
            assert_eq!(ids, theirs.encode(text).unwrap(), "{family:?} {text:?}");
            assert_eq!(ours.decode(&ids).unwrap(), theirs.decode(&ids).unwrap());
        }
    }
}

/// The words into which each pre-tokenizer splits digits and apostrophes.
#[test]
fn pre_tokenizers_split_as_their_models_do() {
    let pair = Pair::new(
        &CheckpointSpec { family: CheckpointFamily::Llama, ..CheckpointSpec::default() },
        GgmlType::F32,
    );
    let mut content = GgufContent::from_directory(&pair.dir(), GgmlType::F32).unwrap();
    let text = |text: &str| GgufValue::Text(text.to_owned());
    // A token of two digits is found only if digits stay together.
    for (key, value) in &mut content.metadata {
        match (key.as_str(), value) {
            ("tokenizer.ggml.tokens", GgufValue::Texts(tokens)) => tokens.push("12".to_owned()),
            ("tokenizer.ggml.token_type", GgufValue::Integers(types)) => types.push(1),
            ("tokenizer.ggml.merges", GgufValue::Texts(merges)) => merges.push("1 2".to_owned()),
            _ => {}
        }
    }
    for (pre, together) in [
        ("gpt-2", true),
        ("default", true),
        ("llama-bpe", true),
        ("smollm", false),
        ("qwen2", false),
    ] {
        content.set("tokenizer.ggml.pre", text(pre)).write(&pair.file()).unwrap();
        let tokenizer = Tokenizer::read(&pair.file()).unwrap();
        let found =
            tokenizer.encode("a 12").unwrap().contains(&tokenizer.token_to_id("12").unwrap());
        assert_eq!(found, together, "{pre}");
    }
}

/// Unused tokens at the end are padding; the chat template and the token before a text are kept.
#[test]
fn tokenizer_files_keep_what_transformers_needs() {
    let pair = Pair::new(
        &CheckpointSpec { family: CheckpointFamily::Llama, ..CheckpointSpec::default() },
        GgmlType::F32,
    );
    let before = Tokenizer::read(&pair.file()).unwrap().vocab_size();
    let mut content = GgufContent::from_directory(&pair.dir(), GgmlType::F32).unwrap();
    for (key, value) in &mut content.metadata {
        match (key.as_str(), value) {
            ("tokenizer.ggml.tokens", GgufValue::Texts(tokens)) => tokens.push("[PAD]9".to_owned()),
            ("tokenizer.ggml.token_type", GgufValue::Integers(types)) => types.push(5),
            _ => {}
        }
    }
    content.set("tokenizer.ggml.add_bos_token", GgufValue::Bool(true));
    content.write(&pair.file()).unwrap();
    assert_eq!(Tokenizer::read(&pair.file()).unwrap().vocab_size(), before);
    let read = |name: &str| -> serde_json::Value {
        let text = ModelFiles::from(&pair.file()).read_optional(name).unwrap().unwrap();
        serde_json::from_slice(&text).unwrap()
    };
    let tokenizer = read("tokenizer.json");
    let config = read("tokenizer_config.json");
    assert_eq!(tokenizer["post_processor"]["type"], "TemplateProcessing");
    assert_eq!(config["add_bos_token"], true);
    assert_eq!(config["bos_token"], "<|begin_of_text|>");
    assert_eq!(config["chat_template"], "{{ messages[0].content }}");
    assert!(ModelFiles::from(&pair.file()).read_optional("merges.txt").unwrap().is_none());
}

/// Plain Qwen2 and Qwen3 have the names of Llama; only Qwen3-VL nests its text tower.
#[test]
fn qwen_directories_have_their_prefix() {
    for (family, architecture, prefix) in [
        (CheckpointFamily::Qwen2, Architecture::Qwen2, "model."),
        (CheckpointFamily::Qwen3, Architecture::Qwen3, "model."),
        (CheckpointFamily::Rot, Architecture::Qwen3Vl, "model.language_model."),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write_checkpoint(folder.path(), &CheckpointSpec { family, ..CheckpointSpec::default() })
            .unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let config = checkpoint.config();
        assert_eq!((config.architecture, config.weight_prefix()), (architecture, prefix));
        assert_eq!(config.qkv_bias, family == CheckpointFamily::Qwen2);
        let named =
            |info: latent_tts_model::checkpoint::TensorInfo<'_>| info.original.starts_with(prefix);
        assert!(checkpoint.tensors().any(named));
    }
}
