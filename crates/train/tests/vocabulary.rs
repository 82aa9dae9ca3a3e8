//! Tests of the corpus's tokenizer, read by the same code as the tokenizers of models.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::{BTreeSet, HashSet};

use corpus::{Split, problem};
use data::TrainExample;
use data::answer::{AnswerKind, AnswerRule};
use latent_tts_train::vocabulary::{self, UNKNOWN};
use model::Tokenizer;

fn tokenizer() -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    vocabulary::write(dir.path()).unwrap();
    Tokenizer::read(dir.path()).unwrap()
}

/// Words are tokenized independently, so each is tokenized once.
#[test]
fn no_problem_has_an_unknown_word() {
    let tokenizer = tokenizer();
    let unknown = tokenizer.token_to_id(UNKNOWN).unwrap();
    for split in Split::ALL {
        let mut words = HashSet::new();
        for index in 0..50_000 {
            for word in problem(split, 5, index).question.split_whitespace() {
                if !words.contains(word) {
                    words.insert(word.to_owned());
                }
            }
        }
        let text = words.into_iter().collect::<Vec<_>>().join(" ");
        assert!(!tokenizer.encode(&text).unwrap().contains(&unknown), "{}", split.name());
    }
}

#[test]
fn examples_decode_to_their_text_and_fit_the_context() {
    let tokenizer = tokenizer();
    let unknown = tokenizer.token_to_id(UNKNOWN).unwrap();
    for split in Split::ALL {
        let mut length = 0;
        for index in 0..500 {
            let example = TrainExample::from(problem(split, 6, index));
            let text =
                format!("{}\n{} ### {}", example.question, example.steps.join(" "), example.answer);
            let ids = tokenizer.encode(&text).unwrap();
            assert!(!ids.contains(&unknown), "{text}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), text.to_lowercase().replace('\n', " "));
            let prompt = tokenizer.encode(&example.question).unwrap().len();
            assert!((20..=130).contains(&prompt) && ids.len() <= 200, "{prompt}, {}", ids.len());
            length += prompt;
        }
        assert!((30..=65).contains(&(length / 500)), "{}: {} tokens", split.name(), length / 500);
    }
}

#[test]
fn ids_do_not_change() {
    let tokenizer = tokenizer();
    let tokens = vocabulary::tokens();
    assert_eq!(tokenizer.vocab_size(), tokens.len());
    assert!(tokens.iter().zip(0..).all(|(token, id)| tokenizer.token_to_id(token) == Some(id)));
    assert_eq!(
        tokens[..8],
        [
            "<|endoftext|>",
            "<unk>",
            "<|start-latent|>",
            "<|end-latent|>",
            "<|latent|>",
            "<<",
            ">>",
            "###"
        ]
    );
    assert_eq!(tokenizer.eos(), Some(0));
    assert_eq!(tokens.len(), 363);
    assert_eq!(tokenizer.encode("Fiona keeps 15 cups.").unwrap(), [148, 201, 9, 13, 117, 23]);
    assert_eq!(tokenizer.encode("years yellow").unwrap(), [361, 362]);
}

#[test]
fn answers_are_extracted_from_decoded_text() {
    let tokenizer = tokenizer();
    for (text, decoded, value) in [
        ("### 19", "### 19", "19"),
        ("###19<|endoftext|>", "### 19", "19"),
        ("<<105+15=120>><<120/6=20>> ###20", "<<105+15=120>> <<120/6=20>> ### 20", "20"),
        ("<|end-latent|>### 1250", "<|end-latent|> ### 1250", "1250"),
    ] {
        let found = tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap();
        assert_eq!(found, decoded);
        let answer = AnswerRule::Hash.extract(AnswerKind::Number, &found).unwrap();
        assert_eq!(answer.as_str(), value);
    }
}

#[test]
fn case_and_white_space_do_not_matter_and_other_words_are_unknown() {
    let tokenizer = tokenizer();
    let unknown = tokenizer.token_to_id(UNKNOWN).unwrap();
    assert_eq!(tokenizer.encode("Zebras eat 7 apples").unwrap()[0], unknown);
    assert_eq!(
        tokenizer.encode("  TOM has\n12 apples .").unwrap(),
        tokenizer.encode("Tom has 12 apples.").unwrap()
    );
}

#[test]
fn every_word_occurs_in_training() {
    let trained: BTreeSet<String> = (0..50_000)
        .map(|index| problem(Split::Train, 0, index))
        .flat_map(|p| {
            let words = p.question.split(|c: char| !c.is_ascii_alphabetic());
            words.filter(|w| !w.is_empty()).map(str::to_lowercase).collect::<Vec<_>>()
        })
        .collect();
    let all: BTreeSet<String> = vocabulary::tokens()
        .into_iter()
        .filter(|t| t.bytes().all(|b| b.is_ascii_lowercase()))
        .collect();
    let unseen: Vec<&String> = all.difference(&trained).collect();
    assert!(unseen.is_empty(), "never in training: {unseen:?}");
    assert!(corpus::texts().count() > 200);
}
