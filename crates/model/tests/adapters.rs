//! Adapter directories: their bases, chains of adapters, and errors.

#![expect(clippy::unwrap_used, reason = "a broken test should fail loudly")]

use std::fs;
use std::path::PathBuf;

use latent_tts_model::adapter::{BASE_RECORD, BaseRecord, path_from};
use latent_tts_model::save::{self, SaveDtype};
use latent_tts_model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use latent_tts_model::{
    Checkpoint, Config, ModelError, ModelFiles, ModelWarning, NamedTensor, TensorSource, Tokenizer,
    UnmergedCheckpoint,
};
use serde_json::{Value, json};

const RANK: usize = 2;
const MODULE: &str = "layers.0.self_attn.q_proj";
const WEIGHT: &str = "layers.0.self_attn.q_proj.weight";

/// A folder with a tiny Llama in `base`.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.base("base", 0);
        folder
    }

    fn base(&self, name: &str, seed: u64) {
        let spec = CheckpointSpec {
            family: CheckpointFamily::Llama,
            seed,
            width: 32,
            ..CheckpointSpec::default()
        };
        write_checkpoint(&self.path(name), &spec).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self, name: &str) -> Result<Checkpoint, ModelError> {
        Checkpoint::open(&self.path(name))
    }

    /// An adapter of one module with `base.json`, whose factors follow from a seed.
    fn adapter(&self, name: &str, base: &str, seed: f32) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir_all(&dir).unwrap();
        self.factors(name, RANK, seed);
        let base = self.path(base);
        let config = json!({
            "peft_type": "LORA", "r": RANK, "lora_alpha": 4.0, "base_model_name_or_path": base,
        });
        fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
        let path = Some(path_from(&dir, &base).unwrap());
        let record =
            BaseRecord { path, ..BaseRecord::of(&Checkpoint::open(&base).unwrap()).unwrap() };
        fs::write(dir.join(BASE_RECORD), serde_json::to_string(&record).unwrap()).unwrap();
        dir
    }

    fn factors(&self, name: &str, rank: usize, seed: f32) {
        let (a, b) = factors(rank, seed);
        let prefix = format!("base_model.model.model.{MODULE}");
        let named = |which: &str, shape: Vec<usize>, values| NamedTensor {
            name: format!("{prefix}.{which}.weight"),
            shape,
            values,
        };
        let tensors = [named("lora_A", vec![rank, 32], a), named("lora_B", vec![32, rank], b)];
        self.write(name, &tensors);
    }

    fn write(&self, name: &str, tensors: &[NamedTensor]) {
        let file = self.path(name).join("adapter_model.safetensors");
        save::write_safetensors(&file, tensors, SaveDtype::F32, save::PT_METADATA).unwrap();
    }

    fn edit(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.path(file);
        let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
    }

    /// The error of opening a model; its message is one line that contains all of `words`.
    fn error(&self, name: &str, words: &[&str]) -> ModelError {
        let error = self.open(name).err().expect("it opens");
        let message = error.to_string();
        assert!(!message.contains('\n') && !message.ends_with('.'), "{message}");
        for word in words {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
        error
    }
}

/// A (rank, 32) and B (32, rank).
fn factors(rank: usize, seed: f32) -> (Vec<f32>, Vec<f32>) {
    let numbers =
        |from: f32| (0..rank * 32).map(|i| ((i as f32 + from) * 0.7 + seed).sin()).collect();
    (numbers(0.0), numbers(100.0))
}

/// `scale B A` by the definition, scale 2.
fn product(seed: f32) -> Vec<f32> {
    let (a, b) = factors(RANK, seed);
    let element =
        |o: usize, i: usize| (0..RANK).map(|k| b[o * RANK + k] * a[k * 32 + i]).sum::<f32>();
    (0..32).flat_map(|o| (0..32).map(move |i| (o, i))).map(|(o, i)| 2.0 * element(o, i)).collect()
}

fn weight(source: &impl TensorSource) -> Vec<f32> {
    source.tensor(WEIGHT, &[32, 32]).unwrap()
}

fn assert_close(a: &[f32], b: &[f32]) {
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5), "{:?} {:?}", &a[..4], &b[..4]);
}

#[test]
fn adapters_lie_over_one_another() {
    let folder = Folder::new();
    folder.adapter("one", "base", 0.1);
    folder.adapter("two", "one", 0.2);
    let base = folder.open("base").unwrap();
    let two = folder.open("two").unwrap();
    assert_eq!(two.warnings(), []);
    assert_eq!(two.base().unwrap().path(), folder.path("one").canonicalize().unwrap());
    let sums = |seeds: &[f32]| {
        let mut sum = weight(&base);
        for seed in seeds {
            sum.iter_mut().zip(product(*seed)).for_each(|(w, p)| *w += p);
        }
        sum
    };
    assert_close(&weight(&two), &sums(&[0.1, 0.2]));
    assert_close(&weight(&folder.open("one").unwrap()), &sums(&[0.1]));
    // Continued training has the topmost factors separate, and the layers below merged.
    let apart = UnmergedCheckpoint(&two);
    assert_close(&weight(&apart), &sums(&[0.1]));
    let factor = apart.tensor(&format!("{MODULE}.lora_A.weight"), &[RANK, 32]).unwrap();
    assert_eq!(factor, factors(RANK, 0.2).0);
    // Missing files of an adapter are inherited from its base.
    assert_eq!(two.config(), &Config::read(&folder.path("base")).unwrap());
    let read = |name: &str| Tokenizer::read(&folder.path(name)).unwrap().encode("3 + 4").unwrap();
    assert_eq!(read("two"), read("base"));
}

#[test]
fn a_base_is_found_from_where_the_adapter_is() {
    let folder = Folder::new();
    folder.adapter("one", "base", 0.1);
    folder.adapter("two", "one", 0.2);
    let before = weight(&folder.open("two").unwrap());
    // All of them elsewhere: by the path from the adapter's directory.
    fs::create_dir(folder.path("moved")).unwrap();
    for name in ["base", "one", "two"] {
        fs::rename(folder.path(name), folder.path("moved").join(name)).unwrap();
    }
    assert_eq!(weight(&folder.open("moved/two").unwrap()), before);
    // The adapter alone elsewhere: by the absolute path.
    fs::create_dir_all(folder.path("far/away")).unwrap();
    fs::rename(folder.path("moved"), folder.path("back")).unwrap();
    fs::rename(folder.path("back/one"), folder.path("far/away/one")).unwrap();
    fs::rename(folder.path("back/base"), folder.path("base")).unwrap();
    assert!(folder.open("far/away/one").unwrap().warnings().is_empty());
    // A name in adapter_config.json, relative to it.
    fs::remove_file(folder.path("far/away/one/base.json")).unwrap();
    folder.edit("far/away/one/adapter_config.json", |config| {
        config["base_model_name_or_path"] = json!("../../../base");
    });
    folder.open("far/away/one").unwrap();
}

#[test]
fn a_base_that_is_given_goes_to_the_bottom() {
    let folder = Folder::new();
    folder.adapter("one", "base", 0.1);
    folder.adapter("two", "one", 0.2);
    let expected = weight(&folder.open("two").unwrap());
    fs::rename(folder.path("base"), folder.path("elsewhere")).unwrap();
    let how = folder.error("two", &["adapter_config.json", "base`", "was not found"]);
    assert!(matches!(how, ModelError::MissingBase { .. }));
    let files = |name: &str| ModelFiles::from(&folder.path(name));
    let given = files("two").with_base(files("elsewhere")).unwrap();
    let opened = Checkpoint::open(&given).unwrap();
    assert_eq!((weight(&opened), opened.warnings()), (expected.clone(), &[][..]));
    // An adapter is attached directly below.
    fs::rename(folder.path("one"), folder.path("other")).unwrap();
    let below = files("other").with_base(files("elsewhere")).unwrap();
    let given = files("two").with_base(below).unwrap();
    assert_eq!(weight(&Checkpoint::open(&given).unwrap()), expected);
    // A full model does not replace an adapter in the middle.
    let error = files("two").with_base(files("elsewhere")).unwrap_err();
    assert!(matches!(error, ModelError::MissingBase { .. }), "{error}");
    // A full model has no base.
    assert_eq!(files("elsewhere").with_base(files("other")).unwrap(), files("elsewhere"));
}

#[test]
fn the_way_to_a_missing_base_is_told() {
    let folder = Folder::new();
    folder.adapter("one", "base", 0.1);
    fs::remove_dir_all(folder.path("base")).unwrap();
    folder.edit("one/base.json", |record| record["id"] = json!("nobody/nothing"));
    folder.error("one", &["nobody/nothing", "`hf download nobody/nothing`"]);
    folder.edit("one/base.json", |record| record["source"] = json!("ask for it"));
    folder.error("one", &["nobody/nothing", "ask for it"]);
    folder.edit("one/adapter_config.json", |config| {
        config["base_model_name_or_path"] = Value::Null;
    });
    fs::remove_file(folder.path("one/base.json")).unwrap();
    folder.error("one", &["base_model_name_or_path"]);
}

#[test]
fn adapters_in_a_circle_are_refused() {
    let folder = Folder::new();
    folder.adapter("one", "base", 0.1);
    folder.adapter("two", "one", 0.2);
    folder.edit("one/base.json", |record| record["path"] = json!("../two"));
    for name in ["one", "two"] {
        assert!(matches!(folder.error(name, &[name]), ModelError::EndlessAdapters { .. }));
        assert!(Tokenizer::read(&folder.path(name)).is_err());
    }
    folder.edit("one/base.json", |record| record["path"] = json!("../one"));
    assert!(matches!(folder.error("one", &[]), ModelError::EndlessAdapters { .. }));
}

#[test]
fn another_base_is_noticed() {
    let folder = Folder::new();
    let dir = folder.adapter("one", "base", 0.1);
    folder.base("seeded", 7);
    let over = |base: &str| {
        let files = ModelFiles::from(&dir).with_base(ModelFiles::from(&folder.path(base)));
        Checkpoint::open(files.unwrap())
    };
    let warnings = over("seeded").unwrap().warnings().to_vec();
    let base = folder.path("seeded");
    assert_eq!(warnings, [ModelWarning::OtherBase { dir: dir.clone(), base }]);
    // A GGUF file of the same values is the same base.
    let content = latent_tts_model::testkit::GgufContent::from_directory(
        &folder.path("base"),
        latent_tts_model::testkit::GgmlType::F32,
    );
    content.unwrap().write(&folder.path("base.gguf")).unwrap();
    assert_eq!(over("base.gguf").unwrap().warnings(), []);
    // Different shapes, also of weights that are not adapted.
    let wide = CheckpointSpec {
        family: CheckpointFamily::Llama,
        width: 32,
        ffn: 80,
        ..CheckpointSpec::default()
    };
    write_checkpoint(&folder.path("wide"), &wide).unwrap();
    let error = over("wide").err().unwrap();
    assert!(matches!(error, ModelError::OtherBase { .. }), "{error}");
    assert!(error.to_string().contains("layers.0.mlp.down_proj.weight"), "{error}");
    fs::remove_file(dir.join(BASE_RECORD)).unwrap();
    let gpt2 = CheckpointSpec { width: 32, ..CheckpointSpec::default() };
    write_checkpoint(&folder.path("gpt2"), &gpt2).unwrap();
    let error = over("gpt2").err().unwrap();
    assert!(matches!(error, ModelError::UnknownModule { .. }), "{error}");
}

#[test]
fn damaged_adapters_are_refused() {
    let folder = Folder::new();
    folder.adapter("one", "base", 0.1);
    let weights = folder.path("one/adapter_model.safetensors");
    let whole = fs::read(&weights).unwrap();
    fs::remove_file(&weights).unwrap();
    let error = folder.error("one", &["adapter_model.safetensors", "save"]);
    assert!(matches!(error, ModelError::MissingAdapterWeights { .. }), "{error}");
    fs::write(folder.path("one/adapter_model.bin"), "pickle").unwrap();
    let error = folder.error("one", &["adapter_model.bin", "convert"]);
    assert!(matches!(error, ModelError::PickleWeights { .. }), "{error}");
    fs::write(&weights, "").unwrap();
    assert!(matches!(folder.error("one", &["adapter_model"]), ModelError::Truncated { .. }));
    folder.write("one", &[]);
    assert!(matches!(folder.error("one", &["no LoRA factor"]), ModelError::EmptyAdapter { .. }));
    folder.factors("one", 3, 0.1);
    let error = folder.error("one", &["q_proj.lora_A", "[3, 32]", "[2, 32]", "`r`"]);
    assert!(matches!(error, ModelError::FactorShape { .. }), "{error}");
    fs::write(&weights, whole).unwrap();
    folder.open("one").unwrap();
    for (field, value) in [("lora_alpha", json!(1e300)), ("r", json!(0)), ("r", json!(2.5))] {
        let config = fs::read(folder.path("one/adapter_config.json")).unwrap();
        folder.edit("one/adapter_config.json", |config| config[field] = value.clone());
        let error = folder.error("one", &["adapter_config.json", field]);
        assert!(matches!(error, ModelError::BadField { .. }), "{error}");
        fs::write(folder.path("one/adapter_config.json"), config).unwrap();
    }
}

/// A full model next to the configuration of an adapter does not run without the adapter.
#[test]
fn an_adapter_beside_its_base_is_not_left_out() {
    let folder = Folder::new();
    folder.adapter("one", "base", 0.1);
    folder.base("both", 1);
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(folder.path(&format!("one/{name}")), folder.path(&format!("both/{name}")))
            .unwrap();
    }
    folder.open("both").unwrap();
    folder.write("both", &[]);
    assert!(matches!(folder.error("both", &["no LoRA"]), ModelError::EmptyAdapter { .. }));
    fs::remove_file(folder.path("both/adapter_model.safetensors")).unwrap();
    let error = folder.error("both", &["adapter_model.safetensors", "save"]);
    assert!(matches!(error, ModelError::MissingAdapterWeights { .. }), "{error}");
    fs::write(folder.path("both/adapter_model.bin"), "pickle").unwrap();
    let error = folder.error("both", &["adapter_model.bin"]);
    assert!(matches!(error, ModelError::PickleWeights { .. }), "{error}");
}

#[test]
fn the_digest_tells_weights_apart() {
    let folder = Folder::new();
    folder.base("same", 0);
    folder.base("seeded", 7);
    let digest = |name: &str| folder.open(name).unwrap().digest().unwrap();
    assert_eq!(digest("base"), digest("same"));
    assert_ne!(digest("base"), digest("seeded"));
    folder.adapter("one", "base", 0.1);
    folder.adapter("two", "base", 0.2);
    assert!(digest("one") != digest("two") && digest("one") != digest("base"));
    let before = digest("one");
    folder.edit("one/adapter_config.json", |config| config["lora_alpha"] = json!(8.0));
    assert_ne!(digest("one"), before, "the scale counts");
}
