//! Tokenizer files.

use std::fs;

use latent_tts_model::ModelError;
use serde_json::{Value, json};

use crate::{Fixture, assert_message};

#[test]
fn missing_tokenizer() {
    let fixture = Fixture::tiny();
    fs::remove_file(fixture.path("tokenizer.json")).unwrap();
    fs::write(fixture.path("vocab.json"), "{}").unwrap();
    assert_is!(
        assert_message(fixture.tokenizer().err().unwrap(), &["merges.txt"]),
        ModelError::MissingTokenizer { .. }
    );
}

#[test]
fn bad_tokenizer() {
    let changes: [fn(&mut Value); 12] = [
        |t| t["model"]["type"] = json!("Unigram"),
        |t| t["model"]["dropout"] = json!(0.1),
        |t| t["model"]["continuing_subword_prefix"] = json!("##"),
        |t| t["model"]["merges"] = json!([["x", "nowhere"]]),
        |t| t["model"]["merges"] = json!(["one"]),
        |t| t["model"]["vocab"]["!"] = json!(1),
        |t| t["model"]["vocab"]["!"] = json!(u32::MAX),
        |t| t["added_tokens"][0]["id"] = json!(900),
        |t| t["model"] = json!({ "type": "WordLevel", "vocab": { "a": 0 }, "unk_token": "b" }),
        |t| {
            t["decoder"] =
                json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aa" })
        },
        |t| t["decoder"]["decoders"] = json!([{ "type": "Sequence", "decoders": [] }]),
        // With these two tokens the library panics on the text `a  `.
        |t| {
            t["added_tokens"] = json!([
                { "content": "a", "rstrip": true },
                { "content": " ", "lstrip": true },
            ]);
        },
    ];
    for change in changes {
        let fixture = Fixture::tiny();
        fixture.edit("tokenizer.json", change);
        assert_is!(
            assert_message(fixture.tokenizer().err().unwrap(), &["invalid tokenizer"]),
            ModelError::BadTokenizer { .. }
        );
    }
}

#[test]
fn tokenize() {
    let fixture = Fixture::tiny();
    fixture.edit("tokenizer.json", |t| {
        t["model"]["unk_token"] = json!("<nowhere>");
        let vocab = t["model"]["vocab"].as_object_mut().unwrap();
        let id = vocab.remove("!").unwrap();
        vocab.insert("~~~".to_owned(), id);
    });
    assert_is!(fixture.tokenizer().unwrap().encode("!").unwrap_err(), ModelError::Tokenize { .. });
}
