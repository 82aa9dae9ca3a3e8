//! Every gold answer of the published files matches itself in the answer format of each family.

use std::path::Path;

use latent_tts_data::answer::{AnswerRule, parse_number};

const RULES: [AnswerRule; 5] = [
    AnswerRule::Hash,
    AnswerRule::LastNumber,
    AnswerRule::AnswerColon,
    AnswerRule::Boxed,
    AnswerRule::Cascade,
];

fn rendered(rule: AnswerRule, gold: f64) -> String {
    match rule {
        AnswerRule::Hash => format!("### {gold}"),
        AnswerRule::LastNumber => format!("The answer is: {gold}"),
        AnswerRule::AnswerColon => format!("Answer:{gold}"),
        AnswerRule::Boxed => format!("The answer is \\boxed{{{gold}}}."),
        AnswerRule::Cascade => format!("assistant\n### {gold} "),
    }
}

#[test]
fn every_published_gold_matches_itself() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    for name in ["gsm_test.json", "gsm_hard.json", "gsm_valid.json", "multiarith.json"] {
        let path = data.join(name);
        if !path.exists() {
            eprintln!("skipped: {} does not exist", path.display());
            return;
        }
        for question in latent_tts_data::read(&path, None).expect(name) {
            let gold = parse_number(&question.gold).expect("a number");
            for rule in RULES {
                // Render-of-Thought's patterns match no sign.
                let unsigned = rule == AnswerRule::Cascade && gold < 0.0;
                let answer = rule.extract(question.kind, &rendered(rule, gold));
                let matches = answer.is_some_and(|answer| answer.matches(&question.gold));
                assert_eq!(matches, !unsigned, "{rule:?} {}", question.gold);
            }
        }
    }
}
