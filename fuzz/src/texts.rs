//! Bodies that parse questions, settings, answers and requests.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::LazyLock;

use corpus::Split;
use data::answer::{AnswerKind, AnswerRule};
use engine::{Engine, LatentLength, Reasoner};
use model::testkit::CheckpointFamily;
use serve::testkit::BodyReader;
use tensor::Device;
use toml::{Table, Value};

use crate::fixtures::{checkpoint_dir, with_file};

pub(crate) const QUESTION_WORDS: &[&str] = &[
    "PAR1",
    "\"question\":\"",
    "\"answer\":\"#### 1,000\"",
    "\"Body\":\"\"",
    "\"options\":[",
    "\\boxed{",
    "||<<1+1=2>> #### 2",
    "\u{feff}",
    "\"\"",
    "\r\n",
    "[[[[[[[[",
    "null",
];
pub(crate) const SETTING_WORDS: &[&str] = &[
    "thoughts = \"<=64\"",
    "[[",
    "]]",
    "'''",
    "\"\"\"",
    "nan",
    "-inf",
    "1e999",
    "{",
    "}",
    "\n",
    ".",
];
pub(crate) const LAYER_WORDS: &[&str] = &[
    "samples = 4\n",
    "preset = \"paper\"\n",
    "k = [1, 2]\n",
    "greedy = true\n",
    "quiet = false\n",
    "thoughts = \"4-6\"\n",
    "aggregate = \"majority\"\n",
    "memory = \"1GiB\"\n",
    "seed = 18446744073709551615\n",
    "model = \"\"\n",
    "out = \"--\"\n",
    "p = nan\n",
    "-1",
    ",",
    "=",
];
pub(crate) const ANSWER_WORDS: &[&str] = &[
    "####",
    "Answer:",
    "boxed{",
    "\\frac{",
    "\\sqrt",
    "\\text{",
    "}",
    "{",
    ",",
    "-",
    "1e400",
    "%",
    "inf",
    "nan",
    "\u{663}",
    "answer is:",
    "\\left(",
    "^\\circ",
    "\\%",
    "\\dfrac12",
    "(A)",
    ".",
];
pub(crate) const HTTP_WORDS: &[&str] = &[
    "\"messages\":[",
    "\"role\":\"user\"",
    "\"content\":[{\"type\":\"text\",\"text\":\"\"}]",
    "\"prompt\":[[1],[2]]",
    "\"latent\":{",
    "\"samples\":",
    "\"thoughts\":\"4-6\"",
    "\"adaptive\":0.5",
    "\"beam\":{",
    "\"stop\":[\"\"]",
    "\"temperature\":1e308",
    "\"seed\":18446744073709551615",
    "\\ud800",
    "\\ufdd0",
    "<|end-latent|>",
    "null",
    "[[[[[[[[",
];

/// A file of questions in any format. A limit must not change the questions that are read.
#[expect(unexpected_cfgs, reason = "cargo-fuzz sets `fuzzing`")]
pub(crate) fn questions(input: &[u8]) {
    // libFuzzer aborts at every panic, including caught panics of the parquet crate.
    if cfg!(fuzzing) && input.trim_ascii_start().starts_with(b"PAR1") {
        return;
    }
    let read = |limit| data::parse(Path::new("questions"), input, limit);
    if let Ok(all) = read(None) {
        let first = read(Some(1)).expect("the first of valid questions is valid");
        assert_eq!(first, all[..1], "a limit does not change the questions");
    }
    if input.windows(2).any(|window| window == b"||") {
        with_file("examples.txt", input, |path| {
            let _ = data::examples::read(path, None);
        });
    }
}

/// A settings file in TOML, which must survive a round trip.
pub(crate) fn settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(table) = text.parse::<Table>() else { return };
    let written = toml::to_string(&table).expect("a table serializes to TOML");
    let again: Table = written.parse().expect("written TOML can be read");
    assert_eq!(toml::to_string(&again).ok(), Some(written), "a table survives a round trip");
    table.values().for_each(use_setting);
}

/// A settings file as read with `--config`, overridden by environment and command line.
pub(crate) fn layers(input: &[u8]) {
    let _ = latent_tts_cli::testkit::check_settings(input);
}

fn use_setting(value: &Value) {
    match value {
        Value::String(text) => {
            if let Ok(length) = text.parse::<LatentLength>() {
                assert_eq!(
                    length.to_string().parse(),
                    Ok(length),
                    "a length survives a round trip"
                );
            }
            let _ = text.parse::<Split>();
        }
        Value::Array(items) => items.iter().for_each(use_setting),
        _ => {}
    }
}

/// A decoded text with every rule. An answer must match its canonical form, and its canonical form
/// must be the same vote.
pub(crate) fn answer(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let rules = [
        AnswerRule::Hash,
        AnswerRule::LastNumber,
        AnswerRule::AnswerColon,
        AnswerRule::Boxed,
        AnswerRule::Cascade,
    ];
    for rule in rules {
        for kind in [AnswerKind::Number, AnswerKind::Math, AnswerKind::Choice] {
            let Some(answer) = rule.extract(kind, &text) else { continue };
            let canonical = answer.as_str();
            assert!(!canonical.is_empty(), "{rule:?} {kind:?}: an empty vote");
            assert!(
                answer.matches(canonical),
                "{rule:?} {kind:?}: {canonical:?} does not match itself"
            );
        }
    }
    if let Some(number) = data::answer::parse_number(&text) {
        assert!(number.is_finite(), "numbers are finite");
    }
}

/// A gold answer on the first line and a text below it, with every rule and kind: extraction is
/// deterministic, and an answer with the same text as the gold answer matches it.
pub(crate) fn grading(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (gold, text) = text.split_once('\n').unwrap_or((&text, &text));
    for rule in [AnswerRule::Hash, AnswerRule::LastNumber, AnswerRule::Boxed, AnswerRule::Cascade] {
        for kind in [AnswerKind::Number, AnswerKind::Math, AnswerKind::Choice] {
            let Some(answer) = rule.extract(kind, text) else { continue };
            let again = rule.extract(kind, text).expect("extraction is deterministic");
            assert_eq!(again.as_str(), answer.as_str(), "{rule:?} {kind:?}");
            let matches = answer.matches(gold);
            assert_eq!(matches, again.matches(gold), "{rule:?} {kind:?}: {gold:?}");
            assert!(
                matches || answer.as_str() != gold,
                "{rule:?} {kind:?}: {gold:?} does not match itself"
            );
        }
    }
}

/// Parses request bodies for a tiny reasoner.
static BODIES: LazyLock<BodyReader> =
    LazyLock::new(|| BodyReader::new(tiny_engine()).expect("the templates are valid"));

/// An engine of a tiny reasoner, with one thread.
pub(crate) fn tiny_engine() -> Engine {
    let device = Device::cpu(Some(NonZeroUsize::MIN)).expect("a CPU is available");
    let dir = checkpoint_dir(CheckpointFamily::Coconut);
    let reasoner = Reasoner::load(&device, dir.path(), None);
    Engine::new(reasoner.expect("a valid checkpoint can be loaded"))
}

/// The body of a request, parsed for every path.
pub(crate) fn http(input: &[u8]) {
    BODIES.read(input);
}
