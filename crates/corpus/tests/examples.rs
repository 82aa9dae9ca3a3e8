//! Training examples from every file format, and errors that locate invalid ones.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::Write;

use data::TrainExample;
use data::examples::read;
use latent_tts_corpus::{Split, problem};
use proptest::prelude::*;

fn file(content: impl AsRef<[u8]>) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content.as_ref()).unwrap();
    file
}

fn example(question: &str, steps: &[&str], answer: &str) -> TrainExample {
    let steps = steps.iter().map(|step| (*step).to_owned()).collect();
    TrainExample { question: question.to_owned(), steps, answer: answer.to_owned() }
}

#[test]
fn every_format_gives_the_same_examples() {
    let expected = [
        example("Two ducks?", &["<<16-3-4=9>>", "<<9*2=18>>"], "18"),
        example("One?", &["<<500*2=1000>>"], "1000"),
    ];
    let files = [
        r#"[{"question": "Two ducks?", "steps": ["<<16-3-4=9>>", "<<9*2=18>>"], "answer": "18"},
            {"question": "One?", "steps": ["<<500*2=1000>>"], "answer": "1,000", "idx": 1}]"#
            .to_owned(),
        [
            r#"{"question": "Two ducks?", "answer": "<<16-3-4=9>>9, <<9*2=18>>18.\n#### 18"}"#,
            r#"{"question": "One?", "answer": "It is <<500*2=1000>>1000\n#### 1,000"}"#,
        ]
        .join("\n"),
        ["Two ducks?||<<16-3-4=9>> <<9*2=18>> #### 18\n", "One?||<<500*2=1000>> #### 1,000\r\n"]
            .join("\n"),
    ];
    for content in files {
        assert_eq!(read(file(&content).path(), None).unwrap(), expected, "{content}");
        assert_eq!(read(file(&content).path(), Some(1)).unwrap(), expected[..1]);
    }
}

#[test]
fn problems_of_the_corpus_round_trip() {
    let examples: Vec<TrainExample> = (0..50).map(|i| problem(Split::Test, 0, i).into()).collect();
    let json = file(serde_json::to_string(&examples).unwrap());
    assert_eq!(read(json.path(), None).unwrap(), examples);
}

#[test]
fn errors_name_file_position_and_field() {
    let cases = [
        ("Q||<<1+1=2>> #### 2\nno separator here\n", "line 2: no \"steps\" field"),
        ("Q||<<1+1=2>> 2\n", "line 1: no \"answer\" field"),
        ("\nQ||<<1+1=2>> ####  \n", "line 2: the field \"answer\" is empty"),
        ("  ||<<1+1=2>> #### 2\n", "line 1: the field \"question\" is empty"),
        (
            r#"[{"question": "a", "answer": "1", "steps": 3}]"#,
            "element 1 (counted from 1): the field \"steps\" is a number",
        ),
        (r#"{"question": "a"}"#, "line 1: no \"answer\" field"),
        ("", "contains no questions"),
    ];
    for (content, reason) in cases {
        let file = file(content);
        let message = read(file.path(), None).unwrap_err().to_string();
        assert!(
            message.contains(reason) && message.contains(&file.path().display().to_string()),
            "{message}"
        );
    }
    let message = read("/nowhere/at/all.txt".as_ref(), None).unwrap_err().to_string();
    assert!(message.contains("/nowhere/at/all.txt: no such file"), "{message}");
}

proptest! {
    #[test]
    fn damaged_files_never_panic(
        at in 0usize..60,
        byte: u8,
        extra in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let text = "Two ducks?||<<16-3-4=9>> <<9*2=18>> #### 18\nQ||<<1+1=2>> #### 2\n";
        let mut bytes = text.as_bytes().to_vec();
        bytes[at] = byte;
        bytes.extend(extra);
        let _ = read(file(bytes).path(), None);
    }
}
