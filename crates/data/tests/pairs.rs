//! Grades every pair of `pairs.tsv` and reports all differences from the table.

use std::collections::HashSet;

use latent_tts_data::answer::{AnswerKind, AnswerRule};

fn rule(name: &str) -> AnswerRule {
    match name {
        "hash" => AnswerRule::Hash,
        "codi" => AnswerRule::LastNumber,
        "colar" => AnswerRule::AnswerColon,
        "boxed" => AnswerRule::Boxed,
        "rot" => AnswerRule::Cascade,
        _ => panic!("unknown rule {name:?}"),
    }
}

fn kind(name: &str) -> AnswerKind {
    match name {
        "number" => AnswerKind::Number,
        "math" => AnswerKind::Math,
        "choice" => AnswerKind::Choice,
        _ => panic!("unknown kind {name:?}"),
    }
}

fn is_accepted(grade: &str) -> bool {
    match grade {
        "right" | "lenient" => true,
        "wrong" | "missed" => false,
        _ => panic!("unknown grade {grade:?}"),
    }
}

#[test]
fn pairs_are_graded_as_in_the_table() {
    let table = include_str!("pairs.tsv");
    let mut seen = HashSet::new();
    let mut failures = Vec::new();
    for (row, line) in table.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let row = row + 1;
        let fields: Vec<&str> = line.split('\t').collect();
        let [rule_name, kind_name, gold, grade, text] = fields[..] else {
            panic!("line {row} has {} fields", fields.len());
        };
        assert!(seen.insert((rule_name, kind_name, gold, text)), "line {row} is a duplicate");
        let answer = rule(rule_name).extract(kind(kind_name), &text.replace('⏎', "\n"));
        let accepted = answer.as_ref().is_some_and(|answer| answer.matches(gold));
        if accepted != is_accepted(grade) {
            let read = answer.as_ref().map(latent_tts_data::answer::Answer::as_str);
            failures.push(format!("line {row}: {line:?}, answer {read:?}"));
        }
    }
    assert!(seen.len() >= 300, "only {} pairs", seen.len());
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
