//! Checkpoints pickled as their authors published them, converted and loaded.

#![expect(clippy::unwrap_used, reason = "a broken test should fail loudly")]

use std::fs;
use std::path::{Path, PathBuf};

use latent_tts::convert::{ConversionReport, Converter};
use latent_tts::{Device, Family, Reasoner};
use model::testkit::{CheckpointFamily, CheckpointSpec, pickle_file, write_checkpoint};
use model::{Checkpoint, ModelFiles};
use serde_json::{Value, json};

/// The text files of a base without weights.
const TEXTS: [&str; 3] = ["config.json", "tokenizer.json", "tokenizer_config.json"];

struct Published {
    root: tempfile::TempDir,
}

impl Published {
    /// A checkpoint of a family, stored in `whole` in this project's format.
    fn new(family: CheckpointFamily, lora: bool) -> Self {
        let root = tempfile::tempdir().unwrap();
        let spec = CheckpointSpec { family, lora, ..CheckpointSpec::default() };
        write_checkpoint(&root.path().join("whole"), &spec).unwrap();
        fs::create_dir(root.path().join("published")).unwrap();
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Pickles a file of the complete checkpoint under other names.
    fn pickle(&self, from: &str, to: &str, rename: impl Fn(&str) -> Option<String>) {
        let tensors = fs::read(self.path("whole").join(from)).unwrap();
        fs::write(self.path(to), pickle_file(&tensors, rename)).unwrap();
    }

    /// The base with the modified configuration of the complete checkpoint.
    fn base(&self, change: impl FnOnce(&mut Value)) -> String {
        let base = self.path("base");
        fs::create_dir_all(&base).unwrap();
        for name in TEXTS {
            let from = self.path("whole").join(name);
            if from.exists() {
                fs::copy(from, base.join(name)).unwrap();
            }
        }
        let file = base.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        change(&mut config);
        fs::write(&file, config.to_string()).unwrap();
        base.to_str().unwrap().to_owned()
    }

    fn convert(&self, inputs: &[&str], base: Option<&str>) -> ConversionReport {
        let inputs: Vec<PathBuf> = inputs.iter().map(|name| self.path(name)).collect();
        converter(&inputs, &self.path("out"), base).run().unwrap()
    }
}

fn converter<'a>(inputs: &'a [PathBuf], out: &'a Path, base: Option<&'a str>) -> Converter<'a> {
    Converter { inputs, out, base, lora_alpha: None, overwrite: false }
}

/// The same weights, with low-rank factors merged.
fn assert_same_weights(a: impl Into<ModelFiles>, b: impl Into<ModelFiles>) {
    let a = Checkpoint::open(a).unwrap();
    let b = Checkpoint::open(b).unwrap();
    let mut compared = 0;
    for (name, shape) in a.shapes() {
        assert_eq!(a.tensor(name, shape).unwrap(), b.tensor(name, shape).unwrap(), "{name}");
        compared += 1;
    }
    assert!(compared > 10);
}

fn whole_name(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[test]
fn codi_with_unmerged_adapters_and_a_projector_beside() {
    let published = Published::new(CheckpointFamily::CodiGpt2, true);
    let is_projector = |name: &str| name.starts_with("prj.") || name.starts_with("projector.");
    published.pickle("model.safetensors", "published/pytorch_model.bin", |name| {
        (!is_projector(name)).then(|| name.to_owned())
    });
    published.pickle("model.safetensors", "published/prj.pt", |name| {
        let bare = name.strip_prefix("prj.").or_else(|| name.strip_prefix("projector."));
        bare.map(str::to_owned)
    });
    fs::write(published.path("published/training_args.bin"), b"x").unwrap();
    let report = published.convert(&["published"], Some(&published.base(|_| {})));
    let names: Vec<&str> = report.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["prj.safetensors", "model.safetensors"]);
    assert_same_weights(&published.path("whole"), &published.path("out"));
    let device = Device::cpu(None).unwrap();
    let reasoner = Reasoner::load(&device, &published.path("out"), None).unwrap();
    assert_eq!(reasoner.method.family, Family::CODI);
}

#[test]
fn simcot_over_coconut_without_its_step_decoder() {
    let published = Published::new(CheckpointFamily::Coconut, false);
    let tensors = fs::read(published.path("whole/model.safetensors")).unwrap();
    // The decoder is a separate model; a copy of one tensor represents it here.
    let content = pickle_file(&tensors, |name| Some(format!("base_causallm.{name}")));
    fs::write(published.path("published/checkpoint_28"), content).unwrap();
    let decoder = pickle_file(&tensors, |name| {
        name.contains("wte").then(|| format!("expainable_llm.{name}"))
    });
    fs::write(published.path("published/decoder.pt"), decoder).unwrap();
    let base = published.base(|config| {
        let fields = config.as_object_mut().unwrap();
        let vocab = fields["vocab_size"].as_u64().unwrap();
        fields.insert("vocab_size".to_owned(), json!(vocab - 3));
        fields.remove("latent_start_id");
        fields.remove("latent_end_id");
    });
    let report = published.convert(&["published"], Some(&base));
    assert_eq!((report.files.len(), report.left_out), (1, 1));
    assert_same_weights(&published.path("whole"), &published.path("out"));
    let config = fs::read(published.path("out/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let vocab = config["vocab_size"].as_u64().unwrap();
    assert_eq!(config["latent_start_id"].as_u64(), Some(vocab - 3));
    assert_eq!(config["latent_end_id"].as_u64(), Some(vocab - 2));
}

#[test]
fn colars_trained_parameters_become_an_adapter_over_its_base() {
    let published = Published::new(CheckpointFamily::Colar, true);
    let is_trained = |name: &str| {
        name.contains("lora_") || name.contains("lt_head") || name.contains("latent_policy")
    };
    published.pickle("model.safetensors", "published/colar.ckpt", |name| {
        is_trained(name).then(|| name.to_owned())
    });
    // The base: the same weights without factors and heads.
    let plain = published.path("plain");
    let spec = CheckpointSpec { family: CheckpointFamily::Colar, ..CheckpointSpec::default() };
    write_checkpoint(&plain, &spec).unwrap();
    let inputs = [published.path("published/colar.ckpt")];
    let out = published.path("out");
    let error = converter(&inputs, &out, None).run().unwrap_err().to_string();
    assert!(error.contains("pass the base model"), "{error}");
    assert!(!out.exists(), "nothing is written where a part is missing");
    let report = converter(&inputs, &out, plain.to_str()).run().unwrap();
    let names: Vec<&str> = report.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["adapter_model.safetensors", "heads.safetensors"]);
    assert_same_weights(&published.path("whole"), &out);
    let device = Device::cpu(None).unwrap();
    assert_eq!(Reasoner::load(&device, &out, None).unwrap().method.family, Family::COLAR);
}

#[test]
fn render_of_thoughts_heads_go_beside_its_weights() {
    let published = Published::new(CheckpointFamily::Rot, false);
    let whole = published.path("whole");
    for name in ["projection_head", "special_tokens"] {
        let file = format!("{name}.safetensors");
        published.pickle(&file, &format!("published/{name}.bin"), whole_name);
        fs::remove_file(whole.join(&file)).unwrap();
    }
    let spec = CheckpointSpec { family: CheckpointFamily::Rot, ..CheckpointSpec::default() };
    write_checkpoint(&published.path("expected"), &spec).unwrap();
    let inputs = [published.path("published")];
    let report = converter(&inputs, &whole, None).run().unwrap();
    assert_eq!(report.files.len(), 2);
    assert_same_weights(&published.path("expected"), &whole);
    let again = converter(&inputs, &whole, None).run().unwrap_err().to_string();
    assert!(again.contains("already exists") && again.contains("overwrite"), "{again}");
}

#[test]
fn a_model_published_with_an_empty_configuration_has_its_bases() {
    let published = Published::new(CheckpointFamily::CodiLlama, true);
    let base = published.base(|config| {
        let fields = config.as_object_mut().unwrap();
        let vocab = fields["vocab_size"].as_u64().unwrap();
        fields.insert("vocab_size".to_owned(), json!(vocab - 3));
    });
    let published_dir = published.path("published");
    fs::copy(published.path("whole/model.safetensors"), published_dir.join("model.safetensors"))
        .unwrap();
    fs::write(published_dir.join("config.json"), b"").unwrap();
    let files = ModelFiles::from(&published_dir);
    let error = Checkpoint::open(files.clone()).err().unwrap().to_string();
    assert!(error.contains("config.json is missing or empty"), "{error}");
    let described = files.with_base(ModelFiles::from(Path::new(&base))).unwrap();
    assert_same_weights(&published.path("whole"), described.clone());
    let device = Device::cpu(None).unwrap();
    let reasoner = Reasoner::load(&device, described, Some(Family::CODI)).unwrap();
    assert_eq!(reasoner.method.family, Family::CODI);
}
