//! Tests of every benchmark's format, malformed files, and the published counts.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

fn parse_all(text: &str) -> Result<Vec<Question>, DatasetError> {
    parse(Path::new("data.json"), text.as_bytes(), None)
}

fn one(text: &str) -> Question {
    let mut questions = parse_all(text).expect("a question");
    assert_eq!(questions.len(), 1);
    questions.remove(0)
}

fn error(bytes: &[u8]) -> String {
    let outcome = parse(Path::new("data.json"), bytes, None);
    outcome.expect_err("no question").to_string()
}

/// A file of the reference data, which is outside the repository.
fn shared(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = root.join(name);
    if !path.exists() {
        eprintln!("skipped: {} does not exist", path.display());
        return None;
    }
    Some(path)
}

#[test]
fn an_empty_step_is_none() {
    let question = one(r#"[{"question": "Two?", "answer": "2", "steps": ["", " "]}]"#);
    assert!(question.steps.is_empty());
}

#[test]
fn the_papers_array() {
    let text = r#"[{"question": " Two and two? ", "answer": "1,004", "steps": ["<<2+2=4>>"]}]"#;
    let question = one(text);
    assert_eq!(question.text, " Two and two? ");
    assert_eq!((question.gold.as_str(), question.kind), ("1004", AnswerKind::Number));
    assert_eq!(question.steps, ["<<2+2=4>>"]);
}

#[test]
fn gsm8k_lines() {
    let text = "{\"question\": \"Q\", \"answer\": \
                \"48/2 = <<48/2=24>>24.\\nSum <<48+24=72>>72\\n#### 1,072\"}\n";
    let question = one(text);
    assert_eq!((question.gold.as_str(), question.kind), ("1072", AnswerKind::Number));
    assert_eq!(question.steps, ["<<48/2=24>>", "<<48+24=72>>"]);
}

#[test]
fn gsm_hard_lines_with_numeric_targets() {
    let text = "{\"input\": \"Q\", \"code\": \"x\", \"target\": -9867630.0}\n\n\
                {\"input\": \"R\", \"target\": 2.0107e-06}";
    let questions = parse_all(text).expect("questions");
    let golds: Vec<&str> = questions.iter().map(|question| question.gold.as_str()).collect();
    assert_eq!(golds, ["-9867630", "0.0000020107"]);
    assert_eq!(questions[1].id, 1);
}

#[test]
fn original_multiarith() {
    assert_eq!(one(r#"[{"question": "Q", "final_ans": "7"}]"#).gold, "7");
}

#[test]
fn svamp_joins_body_and_question() {
    let question = one(r#"{"Body": "Ann has 3 figs. ", "Question": "How many?", "Answer": 3.0}"#);
    assert_eq!(question.text, "Ann has 3 figs. How many?");
    assert_eq!(question.gold, "3");
}

#[test]
fn math_500_answers_are_formulas_even_if_numeric() {
    let line = r#"{"problem": "P", "solution": "s", "answer": "42", "level": 3}"#;
    assert_eq!(one(line).kind, AnswerKind::Math);
    let fraction = one(r#"{"problem": "P", "answer": "\\frac{1}{2}"}"#);
    assert_eq!((fraction.gold.as_str(), fraction.kind), ("\\frac{1}{2}", AnswerKind::Math));
}

#[test]
fn aime_keeps_leading_zeros() {
    let question = one(r#"{"Problem": "P", "Solution": "s", "Answer": "073"}"#);
    assert_eq!((question.gold.as_str(), question.kind), ("073", AnswerKind::Number));
    assert_eq!(one(r#"{"problem": "P", "answer": 73}"#).gold, "73");
}

#[test]
fn gsm8k_aug_in_both_publishers_forms() {
    let steps = ["<<600*30/100=180>>", "<<600*10/100=60>>"];
    let zen_e = one(r#"{"question": "Q", "cot": "<<600*30/100=180>> <<600*10/100=60>>",
        "answer": "360"}"#
        .replace('\n', " ")
        .as_str());
    let whynlp = one(r#"{"question": "Q", "steps": ["<<600*30/100=180>>", "<<600*10/100=60>>"],
        "answer": "360"}"#
        .replace('\n', " ")
        .as_str());
    assert_eq!(zen_e.steps, steps);
    assert_eq!((&zen_e.steps, &zen_e.gold), (&whynlp.steps, &whynlp.gold));
    let sentences = one(r#"{"question": "Q", "cot": "Half is 3.5. Then 7.", "answer": "7"}"#);
    assert_eq!(sentences.steps, ["Half is 3.5.", "Then 7."]);
}

#[test]
fn solutions_hold_the_answer_in_a_box() {
    let latent_sft =
        one(r#"{"problem": "P", "cot": "<<6*7=42>>", "cot_answer": "So \\boxed{42}."}"#);
    assert_eq!((latent_sft.gold.as_str(), latent_sft.kind), ("42", AnswerKind::Number));
    assert_eq!(latent_sft.steps, ["<<6*7=42>>"]);
    let math = one(r#"{"problem": "P", "level": "Level 2", "type": "Algebra",
        "solution": "Thus $x=\\boxed{\\frac{1}{2}}$."}"#
        .replace('\n', " ")
        .as_str());
    assert_eq!((math.gold.as_str(), math.kind), ("\\frac{1}{2}", AnswerKind::Math));
    let without = error(br#"{"problem": "P", "solution": "none"}"#);
    assert!(without.contains("the field \"solution\" has no \\boxed{} and no ####"), "{without}");
}

#[test]
fn yes_and_no_in_every_spelling() {
    for (answer, gold) in
        [("true", "yes"), ("false", "no"), ("\"Yes\"", "Yes"), ("\"False\"", "False")]
    {
        let question = one(&format!(r#"{{"question": "Q", "answer": {answer}, "facts": ["a."]}}"#));
        assert_eq!((question.gold.as_str(), question.kind), (gold, AnswerKind::YesNo));
        assert_eq!(question.steps, ["a."]);
    }
    let prosqa = one(r#"{"question": "Q", "steps": ["Tom is a zhorpus."],
        "answer": "Tom is a lempus."}"#
        .replace('\n', " ")
        .as_str());
    assert_eq!((prosqa.gold.as_str(), prosqa.kind), ("Tom is a lempus.", AnswerKind::Math));
    assert_eq!(prosqa.steps, ["Tom is a zhorpus."]);
}

#[test]
fn commonsense_choices_are_an_object_with_texts() {
    let question = one(r#"{"question": "Q", "answerKey": "B",
        "choices": {"label": ["A", "B"], "text": ["bank", "mall"]}}"#
        .replace('\n', " ")
        .as_str());
    assert_eq!((question.gold.as_str(), question.text.as_str()), ("B", "Q\n\nA) bank\nB) mall"));
}

#[test]
fn given_names_take_the_place_of_known_ones() {
    let fields = FieldNames {
        question_field: Some("prompt".to_owned()),
        answer_field: Some("solution".to_owned()),
        steps_field: Some("solution".to_owned()),
    };
    let read = |text: &str| parse_fields(Path::new("data.json"), text.as_bytes(), &fields, None);
    let json = r#"{"prompt": "P", "question": "not this", "answer": "9", "steps": ["no"],
        "solution": "Six.\\nThen \\boxed{8}."}"#
        .replace('\n', " ")
        .replace("\\\\n", "\\n");
    let json = &json[..];
    let csv = "prompt,question,answer,steps,solution\nP,not this,9,no,\"Six.\nThen \\boxed{8}.\"\n";
    for text in [json, &format!("[{json}]"), csv] {
        let question = &read(text).expect(text)[0];
        assert_eq!((question.text.as_str(), question.gold.as_str()), ("P", "8"), "{text}");
        assert_eq!(question.steps.len(), 2, "{text}");
    }
    for (text, expected) in [
        (
            r#"{"question": "Q", "solution": "1"}"#,
            "no \"prompt\" field, as requested by question_field",
        ),
        (
            r#"{"prompt": "Q", "answer": "1"}"#,
            "no \"solution\" field, as requested by answer_field",
        ),
    ] {
        let message = read(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

const GPQA: &str = r#"{"Question": "Which?\n", "Correct Answer": " right\n",
    "Incorrect Answer 1": "one", "Incorrect Answer 2": "two", "Incorrect Answer 3": "three"}"#;

#[test]
fn gpqa_options_are_ordered_by_the_index_alone() {
    let line = GPQA.replace('\n', " ");
    let many = parse_all(&vec![line; 64].join("\n")).expect("questions");
    let mut golds = std::collections::BTreeSet::new();
    for question in &many {
        assert_eq!(question.kind, AnswerKind::Choice);
        assert!(question.text.starts_with("Which?\n\nA) "));
        assert!(question.text.contains(&format!("\n{}) right", question.gold)));
        golds.insert(question.gold.clone());
    }
    assert_eq!(golds.len(), 4, "64 questions use every position");
    let few = parse(Path::new("x"), GPQA.replace('\n', " ").as_bytes(), None).expect("one");
    assert_eq!(few[0], many[0]);
}

#[test]
fn gpqa_as_csv() {
    let csv = "\u{feff}Record ID,Question,Correct Answer,\
        Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\r\n\
        r1,\"Is \"\"this\"\", or\r\nthat?\",right,\"a, b\",c,d\r\n\
        r2,Plain?,right,b,c,d";
    let questions = parse_all(csv).expect("questions");
    assert_eq!(questions.len(), 2);
    assert!(questions[0].text.starts_with("Is \"this\", or\r\nthat?\n\nA) "));
    assert!(questions[0].text.contains(") a, b"));
    assert!(questions[1].text.contains(&format!("{}) right", questions[1].gold)));
}

#[test]
fn listed_choices_keep_their_order() {
    let with = |answer: &str| {
        format!(r#"{{"question": "Q", "choices": ["x", "y", 3], "answer": {answer}}}"#)
    };
    assert_eq!(one(&with("2")).gold, "C");
    let question = one(&with("\"B\""));
    assert_eq!((question.gold.as_str(), question.text.as_str()), ("B", "Q\n\nA) x\nB) y\nC) 3"));
    for answer in ["3", "\"D\"", "-1", "\"AB\""] {
        assert!(error(with(answer).as_bytes()).contains("a letter from A or an index from 0 to 2"));
    }
}

#[test]
fn a_limit_keeps_the_first_and_parses_no_further() {
    let array = r#"[{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}, broken"#;
    let lines = "{\"question\": \"a\", \"answer\": \"1\"}\n\
                 {\"question\": \"b\", \"answer\": \"2\"}\nbroken";
    for text in [array, lines] {
        let read = |limit| parse(Path::new("x"), text.as_bytes(), Some(limit));
        assert_eq!(read(0).expect("none").len(), 0);
        assert_eq!(read(2).expect("two").len(), 2);
        assert!(read(3).is_err());
    }
}

#[test]
fn byte_order_mark_crlf_and_blank_lines_are_skipped() {
    let text = "\u{feff}\r\n{\"question\": \"a\", \"answer\": \"1\"}\r\n\r\n\
                {\"question\": \"b\", \"answer\": \"2\"}\r\n";
    let ids: Vec<u32> = parse_all(text).expect("two").iter().map(|q| q.id).collect();
    assert_eq!(ids, [0, 1]);
}

#[test]
fn errors_name_file_position_field_and_accepted_names() {
    let lines = b"\n{\"question\": \"a\", \"answer\": \"1\"}\n{\"question\": \"b\"}";
    assert_eq!(
        error(lines),
        "data file data.json: line 3: no \"answer\" field; accepted names are answer, target, \
         final_ans, final_answer, answerKey, cot_answer, solution"
    );
    let array = br#"[{"question": "a", "answer": "1"}, {"text": "b"}]"#;
    assert!(
        error(array)
            .starts_with("data file data.json: element 2 (counted from 1): no \"question\" field")
    );
    assert!(
        error(b"\n{\"question\": 1,}")
            .contains("line 2, column 16: trailing comma; expected a JSON array")
    );
}

#[test]
fn malformed_files_are_rejected_with_a_reason() {
    let cases: [(&[u8], &str); 16] = [
        (b"", "contains no questions"),
        (b" \n\t ", "contains no questions"),
        (b"[]", "contains no questions"),
        (b"[1]", "expected an object with a question"),
        (b"[{\"question\": \"a\", \"answer\": \"1\"}] x", "trailing characters"),
        (b"[{\"question\": \"a\", \"answer\": \"1\"}", "EOF"),
        (b"{\"question\": \"a\", \"question\": \"b\", \"answer\": 1}", "\"question\" occurs twice"),
        (b"{\"question\": \"a\xff\", \"answer\": \"1\"}", "invalid unicode"),
        (b"\xff\xfe[\0]\0", "neither JSON nor UTF-8"),
        (b"{\"question\": [[\"a\"]], \"answer\": 1}", "a list with elements other than strings"),
        (
            b"{\"question\": \"a\", \"answer\": {\"x\": [1, {}]}}",
            "the field \"answer\" is an object",
        ),
        (b"{\"question\": \"a\", \"answer\": null}", "no \"answer\" field"),
        (b"{\"question\": \"  \", \"answer\": 1}", "the field \"question\" is empty"),
        (b"{\"question\": \"a\", \"answer\": \"work #### \"}", "the field \"answer\" is empty"),
        (b"once upon a time", "has an unknown format (it starts with \"once upon a time\")"),
        (b"Question,Correct Answer\n\"a,b", "line 2: unterminated quoted cell"),
    ];
    for (bytes, reason) in cases {
        let message = error(bytes);
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn csv_rows_must_fit_the_header() {
    assert!(
        error(b"Question,Answer\na,1\nb\n")
            .contains("line 3: the row has 1 cells, the header has 2")
    );
    assert!(error(b"Question,Answer\n\"a\"b,1\n").contains("text after a closing quote"));
}

#[test]
fn deep_nesting_is_skipped_or_rejected() {
    let deep = "[".repeat(100_000);
    assert!(parse_all(&deep).is_err());
    let closed = format!("{deep}{}", "]".repeat(100_000));
    let known = format!("{{\"question\": {closed}, \"answer\": 1}}");
    assert!(error(known.as_bytes()).contains("recursion limit"));
    let unknown = format!("{{\"extra\": {closed}, \"question\": \"a\", \"answer\": 1}}");
    assert_eq!(one(&unknown).text, "a");
}

#[test]
fn a_huge_line_is_read() {
    let long = "x".repeat(4 << 20);
    let text = format!("{{\"question\": \"{long}\", \"answer\": 1, \"extra\": \"{long}\"}}");
    assert_eq!(one(&text).text.len(), 4 << 20);
}

#[test]
fn a_missing_file_is_named() {
    let error = read(Path::new("/nowhere/at/all.json"), None).expect_err("missing");
    let message = error.to_string();
    assert!(message.contains("/nowhere/at/all.json: no such file; check"), "{message}");
}

#[test]
fn a_file_over_the_limit_is_rejected_unread() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(MAX_BYTES + 1).expect("a sparse file");
    let error = read(file.path(), None).expect_err("too large");
    assert!(matches!(error.problem, DatasetProblem::TooLarge));
}

#[test]
fn published_counts() {
    let counts = [
        ("gsm_test.json", 1319),
        ("gsm_hard.json", 1318),
        ("multiarith.json", 580),
        ("gsm_valid.json", 500),
        ("gsm8k_train.jsonl", 7473),
    ];
    for (name, count) in counts {
        let Some(path) = shared(name) else { return };
        let questions = read(&path, None).expect(name);
        assert_eq!(questions.len(), count, "{name}");
        assert!(questions.iter().all(|question| question.kind == AnswerKind::Number), "{name}");
        assert!(questions.iter().zip(0..).all(|(question, id)| question.id == id));
    }
}

#[test]
fn gsm_hard_golds_are_as_published() {
    let Some(path) = shared("gsm_hard.json") else {
        return;
    };
    let questions = read(&path, None).expect("gsm_hard");
    let golds: Vec<f64> = questions.iter().map(|q| q.gold.parse().expect("a number")).collect();
    let count = |condition: fn(&f64) -> bool| golds.iter().filter(|gold| condition(gold)).count();
    assert_eq!(count(|gold| *gold < 0.0), 146);
    assert_eq!(count(|gold| gold.fract() != 0.0), 302);
    assert_eq!(count(|gold| *gold == 0.0), 4);
}

#[test]
fn train_steps_are_cut_from_the_annotations() {
    let Some(path) = shared("gsm8k_train.jsonl") else {
        return;
    };
    let questions = read(&path, Some(1)).expect("one");
    assert_eq!(questions[0].steps, ["<<48/2=24>>", "<<48+24=72>>"]);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(Path::new("x"), bytes.as_slice(), None);
    }

    #[test]
    fn mangled_json_never_panics(
        at in 0usize..200, byte in any::<u8>(), start in prop_oneof![Just("["), Just("")],
    ) {
        let mut bytes = format!("{start}{GPQA}, {GPQA}]").into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = parse(Path::new("x"), bytes.as_slice(), None);
    }

    #[test]
    fn arbitrary_tables_never_panic(rows in "[a,\"\r\n é]{0,60}") {
        let _ = parse_all(&format!("Question,Answer\n{rows}"));
    }

    #[test]
    fn quoted_cells_round_trip(cell in "[a-z,\"\r\n é]{1,20}[a-z]", answer in any::<i32>()) {
        let quoted = cell.replace('"', "\"\"");
        let question = one(&format!("Question,Answer\n\"{quoted}\",{answer}\n"));
        prop_assert_eq!(question.text, cell);
        prop_assert_eq!(question.gold, answer.to_string());
    }
}
