//! Settings from config.json and the tokenizer: a checkpoint's family, lengths and default
//! perturbation strengths.

use std::path::Path;

use latent_tts_engine::{EngineError, Family, LatentLength, Method, Reasoner};
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use serde_json::{Value, json};

use crate::common::*;

/// Loads a checkpoint after its files were changed.
fn load_changed(
    spec: &CheckpointSpec,
    change: impl FnOnce(&Path),
) -> Result<Reasoner, EngineError> {
    with_checkpoint(spec, |dir| {
        change(dir);
        Reasoner::load(device(), dir, None)
    })
}

fn edit_json(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    change(&mut json);
    std::fs::write(file, json.to_string()).unwrap();
}

/// The method of a checkpoint whose config.json has a field `latent_tts`.
fn method_with(family: CheckpointFamily, latent_tts: Value) -> Result<Method, EngineError> {
    let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
    let set = |config: &mut Value| config["latent_tts"] = latent_tts;
    let changed = load_changed(&spec, |dir| edit_json(&dir.join("config.json"), set));
    changed.map(|reasoner| reasoner.model.method)
}

#[test]
fn the_checkpoint_overrides_its_family() {
    let settings = json!({ "thoughts": 3, "max_new_tokens": 24, "p": 0.05, "sigma": 0.5 });
    let method = method_with(CheckpointFamily::Coconut, settings).unwrap();
    assert_eq!((method.family, method.length), (Family::COCONUT, exactly(3)));
    assert_eq!((method.max_new_tokens, method.p, method.sigma), (24, 0.05, 0.5));
    let cot = method_with(CheckpointFamily::Coconut, json!({ "family": "cot" })).unwrap();
    assert_eq!((cot.family, cot.length), (Family::COT, LatentLength::None));
    assert_eq!(cot.max_new_tokens, 128);
    let template = json!({ "prompt_prefix": "Q: ", "prompt_suffix": "\nA: " });
    let template = method_with(CheckpointFamily::Coconut, template).unwrap();
    assert_eq!((&template.prompt_prefix[..], &template.prompt_suffix[..]), ("Q: ", "\nA: "));
    let open = method_with(CheckpointFamily::Colar, json!({ "thoughts": 9 })).unwrap();
    assert_eq!(open.length, at_most(9), "a family of open length keeps an open length");
    let silent = method_with(CheckpointFamily::Coconut, json!({ "thoughts": 0 })).unwrap();
    assert_eq!(silent.length, LatentLength::None);
    let error = method_with(CheckpointFamily::Coconut, json!({ "family": "words" })).unwrap_err();
    assert!(matches!(&error, EngineError::UnknownFamily { name, .. } if name == "words"));
    let message = error.to_string();
    for part in ["config.json", "latent_tts.family", "words", "coconut", "cot"] {
        assert!(message.contains(part), "no {part} in {message}");
    }
}

#[test]
fn a_named_family_overrides_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), &CheckpointSpec::default()).unwrap();
    let set = |config: &mut Value| config["latent_tts"] = json!({ "family": "cot" });
    edit_json(&dir.path().join("config.json"), set);
    let reasoner = load(device(), dir.path(), CheckpointFamily::Coconut);
    assert_eq!(reasoner.method.family, Family::COCONUT);
}

/// Removes the latent markers from a checkpoint's tokenizer and config; the vocabulary keeps its
/// size.
fn remove_markers(dir: &Path) {
    edit_json(&dir.join("tokenizer.json"), |json| {
        for token in json["added_tokens"].as_array_mut().unwrap() {
            let content = token["content"].as_str().unwrap().replace("latent", "unused");
            token["content"] = json!(content);
        }
    });
    edit_json(&dir.join("tokenizer_config.json"), |json| {
        json.as_object_mut().unwrap().remove("added_tokens_decoder");
    });
    edit_json(&dir.join("config.json"), |json| {
        for field in ["latent_id", "latent_start_id", "latent_end_id"] {
            json.as_object_mut().unwrap().remove(field);
        }
    });
}

/// Every language model qualifies as a chain-of-thought baseline, so none is detected as one: the
/// family must be specified.
#[test]
fn a_plain_language_model_is_not_detected_as_a_cot_baseline() {
    let error = load_changed(&CheckpointSpec::default(), remove_markers).err().unwrap();
    assert!(matches!(error, EngineError::Unrecognised { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("specify its family") && message.contains("cot"), "{message}");
    let spec = CheckpointSpec { family: CheckpointFamily::LatentSft, ..CheckpointSpec::default() };
    let llama = load_changed(&spec, remove_markers).unwrap();
    assert_eq!(llama.method.family, Family::LATENT_SFT);
}
