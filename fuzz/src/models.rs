//! Bodies that parse model files.

use std::num::NonZeroUsize;
use std::sync::LazyLock;

use model::adapter::ADAPTER_WEIGHTS;
use model::pickle::{PickledTensors, write_tensors};
use model::{AdapterFiles, Checkpoint, Config, Decoder, LmHead, ModelFiles, Tokenizer};
use tensor::Device;

use crate::fixtures::{GPT2, LLAMA, with_file, with_files};

pub(crate) const HEADER_WORDS: &[&str] = &[
    "\"data_offsets\":[0,0]",
    "\"shape\":[]",
    "\"dtype\":\"BF16\"",
    "\"dtype\":\"F64\"",
    "\"dtype\":\"F8_E4M3\"",
    "\"__metadata__\":{}",
    "18446744073709551615",
    "lora_A.weight",
    "{",
    "}",
];
pub(crate) const CONFIG_WORDS: &[&str] = &[
    "\"model_type\":\"llama\"",
    "\"model_type\":\"qwen3\"",
    "\"n_embd\":1073741824",
    "\"n_head\":",
    "\"head_dim\":",
    "\"rope_scaling\":{\"rope_type\":\"llama3\"}",
    "\"latent_tts\":{\"family\":\"codi\"}",
    "1e308",
    "null",
    "-1",
    "[[[[[[[[",
];
pub(crate) const TOKENIZER_WORDS: &[&str] = &[
    "\"added_tokens\":[",
    "\"special\":true",
    "\"type\":\"WordLevel\"",
    "\"type\":\"Split\"",
    "\"type\":\"Sequence\"",
    "\"Regex\":\"(a+)+$\"",
    "\"normalizer\":{\"type\":\"NFC\"}",
    "\\ufdd0",
    "#version: 0.2\n",
    "\n",
];
pub(crate) const GGUF_WORDS: &[&str] = &[
    "GGUF",
    "general.alignment",
    "general.architecture",
    "tokenizer.ggml.tokens",
    "llama",
    "qwen3",
];
pub(crate) const PICKLE_WORDS: &[&str] = &[
    "ctorch._utils\n_rebuild_tensor_v2\n",
    "ccollections\nOrderedDict\n",
    "ctorch\nFloatStorage\n",
    "cos\nsystem\n",
    "PK\u{3}\u{4}",
    "PK\u{5}\u{6}",
    "tR",
    "K\u{7f}",
    "}(",
    "u.",
];
pub(crate) const ADAPTER_WORDS: &[&str] = &[
    "\"r\":0",
    "\"lora_alpha\":1e308",
    "\"rank_pattern\":{\".*\":4}",
    "\"alpha_pattern\":{\".*\":4}",
    "\"use_rslora\":true",
    "\"use_dora\":true",
    "\"modules_to_save\":[\"lm_head\"]",
    "\"fan_in_fan_out\":true",
    "lora_B.weight",
    "null",
];

static DEVICE: LazyLock<Device> =
    LazyLock::new(|| Device::cpu(Some(NonZeroUsize::MIN)).expect("a CPU is available"));

/// Opens a checkpoint and reads all listed tensors. They must have the requested shape and finite
/// values.
fn read_checkpoint(files: ModelFiles) -> Option<Checkpoint> {
    let checkpoint = Checkpoint::open(files).ok()?;
    let listed: Vec<_> =
        checkpoint.tensors().map(|info| (info.canonical.clone(), info.shape.to_vec())).collect();
    for (name, shape) in listed {
        if let Ok(values) = checkpoint.tensor(&name, &shape) {
            assert_eq!(values.len(), shape.iter().product::<usize>(), "`{name}` {shape:?}");
            assert!(values.iter().all(|value| value.is_finite()), "`{name}` is finite");
        }
    }
    let _ = checkpoint.unused_tensors();
    Some(checkpoint)
}

/// model.safetensors with a valid configuration.
pub(crate) fn safetensors(input: &[u8]) {
    with_files(&GPT2, &[("model.safetensors", input)], |files| {
        read_checkpoint(files);
    });
}

/// config.json with valid weights; the model is loaded if the weights match the configuration.
pub(crate) fn config(input: &[u8]) {
    with_files(&GPT2, &[("config.json", input)], |files| {
        let Ok(config) = Config::read(&files) else { return };
        assert!(config.heads.is_multiple_of(config.kv_heads), "kv_heads divides heads");
        let _ = config.parameters();
        if let Ok(checkpoint) = Checkpoint::open(files) {
            let _ = Decoder::load(&DEVICE, checkpoint.config(), &checkpoint, LmHead::With);
        }
    });
}

/// tokenizer.json, or merges.txt if the input is not JSON.
pub(crate) fn tokenizer(input: &[u8]) {
    if input.trim_ascii_start().starts_with(b"{") {
        with_files(&[], &[("tokenizer.json", input)], |files| use_tokenizer(&files));
    } else {
        let files = [("vocab.json", VOCABULARY.as_slice()), ("merges.txt", input)];
        with_files(&[], &files, |files| use_tokenizer(&files));
    }
}

/// vocab.json of the tiny GPT-2.
static VOCABULARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let (_, content) =
        GPT2.iter().find(|(name, _)| name == "tokenizer.json").expect("it has a tokenizer");
    let json: serde_json::Value = serde_json::from_slice(content).expect("it is JSON");
    json["model"]["vocab"].to_string().into_bytes()
});

fn use_tokenizer(files: &ModelFiles) {
    let Ok(tokenizer) = Tokenizer::read(files) else { return };
    for text in ["", "a b", "2)### <|latent|> <|start-latent|>x  <|endoftext|>", "ünï\u{0}\n\n"] {
        let guarded = tokenizer.guard(text);
        assert_eq!(guarded.replace(Tokenizer::CUT, ""), text, "a guarded text keeps its letters");
        for text in [text, &guarded] {
            if let Ok(ids) = tokenizer.encode(text) {
                let _ = tokenizer.decode(&ids);
                let _ = tokenizer.decode_with_special(&ids);
            }
        }
    }
    let _ = tokenizer.decode(&[0, u32::MAX]);
}

/// A file of `torch.save`, which is converted or rejected.
pub(crate) fn pickle(input: &[u8]) {
    with_file("model.pt", input, |path| {
        let Ok(pickled) = PickledTensors::open(path) else { return };
        let shapes: Vec<Vec<usize>> = pickled.shapes().map(|(_, shape)| shape.to_vec()).collect();
        let tensors = pickled.renamed(|name| Some(name.to_owned()));
        assert_eq!(tensors.len(), shapes.len(), "every tensor is converted");
        let _ = write_tensors(&path.with_extension("safetensors"), tensors);
    });
}

/// A GGUF file: its weights and its tokenizer.
pub(crate) fn gguf(input: &[u8]) {
    with_file("model.gguf", input, |path| {
        let files = ModelFiles::Gguf(path.to_owned());
        read_checkpoint(files.clone());
        use_tokenizer(&files);
    });
}

/// adapter_config.json, or adapter_model.safetensors if the input is not JSON, with a valid base.
pub(crate) fn adapter(input: &[u8]) {
    let (config, weights) =
        if input.starts_with(b"{") { (input, ADAPTER_FACTORS) } else { (ADAPTER_CONFIG, input) };
    with_files(&LLAMA, &[], |base| {
        let files = [("adapter_config.json", config), (ADAPTER_WEIGHTS, weights)];
        with_files(&[], &files, |files| {
            read_checkpoint(ModelFiles::Adapter(Box::new(AdapterFiles { files, base })));
        });
    });
}

/// An adapter of one module with rank 2.
const ADAPTER_CONFIG: &[u8] = include_bytes!("../corpus/adapter/config");
const ADAPTER_FACTORS: &[u8] = include_bytes!("../corpus/adapter/factors");
