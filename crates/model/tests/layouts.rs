//! Every family reads back as the same weights from every layout that it is published in.

#![expect(clippy::unwrap_used, reason = "a broken test should fail loudly")]

use std::collections::BTreeMap;
use std::path::Path;

use latent_tts_model::testkit::{CheckpointFamily, CheckpointSpec, WeightDtype, write_checkpoint};
use latent_tts_model::{Checkpoint, EmbeddedFiles, ModelError, ModelFiles, Tokenizer};
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// All weights by canonical name.
fn weights(dir: &Path) -> BTreeMap<String, Vec<f32>> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let names: Vec<(String, Vec<usize>)> = checkpoint
        .tensors()
        .filter(|e| e.ignored.is_none() && checkpoint.has(&e.canonical))
        .map(|e| (e.canonical.clone(), e.shape.to_vec()))
        .collect();
    let weights = names.into_iter().map(|(name, shape)| {
        let values = checkpoint.tensor(&name, &shape).unwrap();
        (name, values)
    });
    let weights = weights.collect();
    assert!(checkpoint.unused_tensors().is_empty(), "{:?}", checkpoint.unused_tensors());
    weights
}

fn written(spec: &CheckpointSpec) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), spec).unwrap();
    dir
}

#[test]
fn shards_equal_a_single_file() {
    for family in CheckpointFamily::ALL {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let whole = weights(written(&spec).path());
        let sharded = written(&CheckpointSpec { shards: 3, ..spec.clone() });
        assert!(weights(sharded.path()) == whole, "{family:?}");
        let base = if family == CheckpointFamily::Rot { "RoT" } else { "model" };
        assert!(sharded.path().join(format!("{base}.safetensors.index.json")).is_file());
        let other = written(&CheckpointSpec { seed: 2, ..spec });
        assert!(weights(other.path()) != whole, "{family:?}");
    }
}

#[test]
fn half_precision_is_the_rounded_weight() {
    for (dtype, tolerance) in [(WeightDtype::F16, 1.0 / 2048.0), (WeightDtype::Bf16, 1.0 / 256.0)] {
        let spec = CheckpointSpec { family: CheckpointFamily::Colar, ..CheckpointSpec::default() };
        let exact = weights(written(&spec).path());
        let rounded = weights(written(&CheckpointSpec { dtype, ..spec }).path());
        for (name, exact) in &exact {
            for (a, b) in exact.iter().zip(&rounded[name]) {
                assert!((a - b).abs() <= tolerance * a.abs().max(1e-4), "{name}: {a} {b}");
            }
        }
    }
}

/// The layouts of the training code: wrappers, `base_layer`, LoRA factors, aliases of the heads.
#[test]
fn lora_merge_matches_definition() {
    for (family, scale) in [
        (CheckpointFamily::Coconut, 2.0),
        (CheckpointFamily::CodiGpt2, 0.25),
        (CheckpointFamily::CodiLlama, 0.25),
        (CheckpointFamily::Colar, 0.25),
        (CheckpointFamily::LatentSft, 2.0),
        (CheckpointFamily::Rot, 2.0),
    ] {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let base = weights(written(&spec).path());
        let adapted = written(&CheckpointSpec { lora: true, ..spec });
        let merged = weights(adapted.path());
        assert_eq!(
            merged.keys().collect::<Vec<_>>(),
            base.keys().collect::<Vec<_>>(),
            "{family:?}"
        );
        let bytes = std::fs::read(adapted.path().join("model.safetensors")).unwrap();
        let raw = SafeTensors::deserialize(&bytes).unwrap();
        let mut changed = 0;
        for (name, base) in &base {
            let factors = factors(&raw, name.trim_end_matches(".weight"));
            let expected = match &factors {
                Some(factors) => naive(base, factors, scale, name.contains(".c_")),
                None => base.clone(),
            };
            changed += usize::from(factors.is_some());
            let close = merged[name].iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(close, "{family:?} {name}");
        }
        assert!(changed >= 2, "{family:?}");
    }
}

struct LoraTensors {
    a: Vec<f32>,
    b: Vec<f32>,
    rank: usize,
    inputs: usize,
    outputs: usize,
}

fn factors(raw: &SafeTensors, module: &str) -> Option<LoraTensors> {
    let find = |half: &str| {
        raw.iter().find(|(name, _)| name.ends_with(&format!("{module}.{half}.default.weight")))
    };
    let a = find("lora_A")?.1;
    let b = find("lora_B")?.1;
    let read =
        |bytes: &[u8]| bytes.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    Some(LoraTensors {
        a: read(a.data()),
        b: read(b.data()),
        rank: a.shape()[0],
        inputs: a.shape()[1],
        outputs: b.shape()[0],
    })
}

fn naive(base: &[f32], f: &LoraTensors, scale: f32, conv: bool) -> Vec<f32> {
    let mut out = base.to_vec();
    for o in 0..f.outputs {
        for i in 0..f.inputs {
            let delta: f32 = (0..f.rank).map(|k| f.b[o * f.rank + k] * f.a[k * f.inputs + i]).sum();
            out[if conv { i * f.outputs + o } else { o * f.inputs + i }] += scale * delta;
        }
    }
    out
}

#[test]
fn tokenizers_have_their_family_tokens() {
    for family in CheckpointFamily::ALL {
        let dir = written(&CheckpointSpec { family, ..CheckpointSpec::default() });
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let tokenizer = Tokenizer::read(dir.path()).unwrap();
        assert_eq!(checkpoint.config().vocab, tokenizer.vocab_size());
        assert_eq!(checkpoint.config().eos, vec![tokenizer.eos().unwrap()], "{family:?}");
        let text = "Is it 7?\n  Ünïcode — ok";
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
    }
    let read = |family| {
        Tokenizer::read(written(&CheckpointSpec { family, ..CheckpointSpec::default() }).path())
            .unwrap()
    };
    let colar = read(CheckpointFamily::Colar);
    let hashes = colar.token_to_id("###").unwrap();
    assert_eq!(
        colar.encode("2)###").unwrap(),
        [colar.token_to_id("2").unwrap(), colar.token_to_id(")").unwrap(), hashes]
    );
    assert_eq!(colar.encode("###").unwrap(), [hashes]);
    assert_eq!(colar.decode(&[hashes, colar.eos().unwrap()]).unwrap(), "###");
    assert_eq!(read(CheckpointFamily::LatentSft).encode("</think>").unwrap().len(), 8);
    let coconut = read(CheckpointFamily::Coconut);
    let start = coconut.token_to_id("<|start-latent|>").unwrap();
    assert_eq!(coconut.encode("?\n<|start-latent|>").unwrap().last(), Some(&start));
    // Added but not special: decoding keeps it, which the reference's reward model relies on.
    assert_eq!(coconut.decode(&[start]).unwrap(), "<|start-latent|>");
    // An id without a token, as of a padded embedding.
    assert_eq!(coconut.decode(&[start, 9999]).unwrap(), "<|start-latent|>");
}

#[test]
fn tokenizer_from_sets_the_vocabulary() {
    let from =
        written(&CheckpointSpec { family: CheckpointFamily::Rot, ..CheckpointSpec::default() });
    let spec = CheckpointSpec {
        tokenizer_from: Some(from.path().to_path_buf()),
        ..CheckpointSpec::default()
    };
    let dir = written(&spec);
    assert_eq!(Checkpoint::open(dir.path()).unwrap().config().vocab, 256 + 6);
}

/// CODI's projector may be in a side file, with or without the module's name in the tensor names.
#[test]
fn side_files_are_found() {
    for (place, prefix) in [
        ("prj/projector.safetensors", ""),
        ("projector.safetensors", ""),
        ("prj.safetensors", "prj."),
    ] {
        let dir = written(&CheckpointSpec::default());
        let path = dir.path().join(place);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let data = [0u8; 8];
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &data).unwrap();
        let names = [format!("{prefix}1.bias"), format!("{prefix}ln.bias")];
        let bytes = safetensors::serialize(names.iter().map(|n| (n, &view)), None).unwrap();
        std::fs::write(path, bytes).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert!(
            checkpoint.has("projector.1.bias") && checkpoint.has("projector.4.bias"),
            "{place}"
        );
        assert!(checkpoint.unused_tensors().iter().any(|u| u.starts_with("projector.4.bias (")));
    }
}

/// A tied LM head and equal copies of a tensor are neither errors nor reported as unused.
#[test]
fn equal_copies_are_ignored() {
    let dir = written(&CheckpointSpec::default());
    let path = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let raw = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<(String, _)> = raw.iter().map(|(n, v)| (n.to_owned(), v)).collect();
    let embedding = raw.tensor("transformer.wte.weight").unwrap();
    for name in ["lm_head.weight", "base_causallm.transformer.wte.weight", "embedding.weight"] {
        tensors.push((name.to_owned(), embedding.clone()));
    }
    let mask = raw.tensor("transformer.ln_f.weight").unwrap();
    tensors.push(("transformer.h.0.attn.masked_bias".to_owned(), mask));
    let serialized = safetensors::serialize(tensors, None).unwrap();
    std::fs::write(&path, serialized).unwrap();
    weights(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert!(checkpoint.has("lm_head.weight"));
    assert_eq!(checkpoint.tensors().filter(|e| e.ignored.is_some()).count(), 4);
}

/// The pipelines of Llama's and Qwen's tokenizer.json: a regex split, then bytes; Qwen normalizes
/// first.
#[test]
fn published_pipelines_are_read() {
    let spec = CheckpointSpec { family: CheckpointFamily::Colar, ..CheckpointSpec::default() };
    let dir = written(&spec);
    let plain = Tokenizer::read(dir.path()).unwrap();
    let file = dir.path().join("tokenizer.json");
    let mut whole: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let expression = [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
    .concat();
    whole["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [
        {
            "type": "Split", "pattern": { "Regex": expression }, "behavior": "Isolated",
            "invert": false,
        },
        {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false,
        },
    ] });
    whole["normalizer"] = json!({ "type": "NFC" });
    // Post-processing (BOS) and truncation are ignored: prompts are encoded unchanged.
    whole["post_processor"] =
        json!({ "type": "TemplateProcessing", "single": [{ "SpecialToken": {} }] });
    whole["truncation"] = json!({ "max_length": 2 });
    std::fs::write(file, whole.to_string()).unwrap();
    let published = Tokenizer::read(dir.path()).unwrap();
    let text = "Question: It's 1,234? Let's think step by step:(Thinking speed: 2)###";
    assert_eq!(published.encode(text).unwrap(), plain.encode(text).unwrap());
    assert_eq!(published.encode("e\u{301}").unwrap(), plain.encode("\u{e9}").unwrap());
}

/// `clean_up_tokenization_spaces`, which Llama's tokenizer_config.json sets.
#[test]
fn spaces_are_cleaned_up_when_asked() {
    let dir = written(&CheckpointSpec::default());
    let file = dir.path().join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    config["clean_up_tokenization_spaces"] = json!(true);
    std::fs::write(file, config.to_string()).unwrap();
    let tokenizer = Tokenizer::read(dir.path()).unwrap();
    let ids = tokenizer.encode("It is n't 3 , but 4 .").unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), "It isn't 3, but 4.");
}

#[test]
fn embedded_files_read_like_a_directory() {
    for spec in [
        CheckpointSpec::default(),
        CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() },
    ] {
        let dir = written(&spec);
        let files =
            EmbeddedFiles { name: "embedded", files: embedded_files(dir.path()), subdirs: &[] };
        let embedded = ModelFiles::Embedded(files);
        let on_disk = Checkpoint::open(dir.path()).unwrap();
        let in_memory = Checkpoint::open(&embedded).unwrap();
        assert_eq!(on_disk.config(), in_memory.config());
        assert_eq!(on_disk.tensors().count(), in_memory.tensors().count());
        for entry in on_disk.tensors().filter(|entry| on_disk.has(&entry.canonical)) {
            let read =
                |checkpoint: &Checkpoint| checkpoint.tensor(&entry.canonical, entry.shape).unwrap();
            assert_eq!(read(&on_disk), read(&in_memory), "{}", entry.canonical);
        }
        let text = "What is 3 plus 4?";
        let ids = |files: ModelFiles| Tokenizer::read(&files).unwrap().encode(text).unwrap();
        assert_eq!(ids(dir.path().into()), ids(embedded));

        let missing = |name: &str| {
            ModelFiles::Embedded(EmbeddedFiles {
                files: Vec::leak(without(files.files, name)),
                ..files
            })
        };
        let error = Checkpoint::open(missing("config.json")).err().unwrap();
        assert!(
            matches!(error, ModelError::MissingConfig { .. })
                && error.to_string().contains("embedded"),
            "{error}"
        );
        assert!(matches!(
            Checkpoint::open(missing("model.safetensors")).err().unwrap(),
            ModelError::MissingWeights { .. }
        ));
        assert!(matches!(
            Tokenizer::read(missing("tokenizer.json")).err().unwrap(),
            ModelError::MissingTokenizer { .. }
        ));
    }
}

/// The files of a directory, leaked to be static.
fn embedded_files(dir: &Path) -> &'static [(&'static str, &'static [u8])] {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let leak = |entry: std::fs::DirEntry| -> (&'static str, &'static [u8]) {
        let name = entry.file_name().into_string().unwrap();
        (name.leak(), std::fs::read(entry.path()).unwrap().leak())
    };
    Vec::leak(files.map(leak).collect())
}

fn without<'a>(files: &[(&'a str, &'a [u8])], name: &str) -> Vec<(&'a str, &'a [u8])> {
    files.iter().filter(|(known, _)| *known != name).copied().collect()
}
