//! Properties of the corpus: exact arithmetic, disjoint splits, ranges of numbers, vocabulary.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::{BTreeMap, HashSet};

use latent_tts_corpus::{ArithOp, Split, WordProblem, problem};
use proptest::prelude::*;
use record::Fingerprint;

fn problems(split: Split, seed: u64, count: u64) -> impl Iterator<Item = WordProblem> {
    (0..count).map(move |index| problem(split, seed, index))
}

fn numbers(text: &str) -> Vec<i64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// Evaluates a printed step; returns the value and the printed result.
fn evaluate(step: &str) -> (i64, i64) {
    let (left, result) = step.split_once('=').unwrap();
    let at = left.find(|c: char| !c.is_ascii_digit()).unwrap();
    let (a, b): (i64, i64) = (left[..at].parse().unwrap(), left[at + 1..].parse().unwrap());
    let value = match &left[at..=at] {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        _ => {
            assert_eq!(a % b, 0, "{step}");
            a / b
        }
    };
    (value, result.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn steps_are_exact_and_use_known_numbers(seed: u64, index: u64, which in 0usize..5) {
        let found = problem(Split::ALL[which], seed, index);
        prop_assert!((2..=6).contains(&found.steps.len()));
        let mut known = numbers(&found.question);
        for step in &found.steps {
            let (value, written) = evaluate(&step.to_string());
            prop_assert_eq!(value, written);
            prop_assert_eq!(step.result, written);
            prop_assert!(step.result > 0);
            prop_assert!(known.contains(&step.left), "{} of {:?}", step, &found);
            let in_words = has_word_for(&found.question, step.op, step.right);
            prop_assert!(known.contains(&step.right) || in_words, "{} of {:?}", step, &found);
            known.push(step.result);
        }
        prop_assert_eq!(found.answer, found.steps.last().unwrap().result);
        prop_assert_eq!(&found, &problem(Split::ALL[which], seed, index));
        prop_assert_eq!(Split::of_question(&found.question), Split::ALL[which]);
    }
}

/// Multiples and fractions may be words.
fn has_word_for(question: &str, op: ArithOp, right: i64) -> bool {
    let words: &[(i64, &str)] = match op {
        ArithOp::Mul => &[
            (2, "twice"),
            (3, "three times"),
            (4, "four times"),
            (5, "five times"),
            (6, "six times"),
        ],
        ArithOp::Div => &[(2, "half"), (3, "a third"), (4, "a quarter"), (5, "a fifth")],
        ArithOp::Add | ArithOp::Sub => &[],
    };
    words.iter().any(|(number, word)| *number == right && question.to_lowercase().contains(word))
}

#[test]
fn every_number_of_a_question_is_used_or_a_distractor() {
    let mut idle = 0;
    for found in problems(Split::Test, 0, 2000) {
        let mut left = numbers(&found.question);
        for step in &found.steps {
            for operand in [step.left, step.right] {
                if let Some(at) = left.iter().position(|n| *n == operand) {
                    left.remove(at);
                }
            }
        }
        idle += usize::from(!left.is_empty());
    }
    // A fifth of the stories have a distractor, some comparisons an irrelevant person.
    assert!((200..500).contains(&idle), "{idle} of 2000 questions have a number that no step uses");
}

#[test]
fn splits_share_no_question_and_no_numbers() {
    let trained: HashSet<Vec<i64>> = (0..4)
        .flat_map(|seed| problems(Split::Train, seed, 50_000))
        .map(|p| numbers(&p.question))
        .collect();
    assert!(trained.len() > 150_000, "{}", trained.len());
    let mut seen: HashSet<Vec<i64>> = HashSet::new();
    for split in &Split::ALL[1..] {
        let own: HashSet<Vec<i64>> =
            problems(*split, 9, 5_000).map(|p| numbers(&p.question)).collect();
        assert!(own.is_disjoint(&trained) && own.is_disjoint(&seen), "{}", split.name());
        seen.extend(own);
    }
}

#[test]
fn questions_rarely_repeat() {
    let count = 5_000;
    for split in Split::ALL {
        let texts: HashSet<String> = problems(split, 1, count).map(|p| p.question).collect();
        assert!(texts.len() as u64 > count * 99 / 100, "{}: {}", split.name(), texts.len());
    }
}

#[test]
fn splits_have_their_number_of_steps_and_size_of_numbers() {
    for split in Split::ALL {
        let mut steps = BTreeMap::new();
        let mut largest = 0;
        let mut operand = 0;
        for found in problems(split, 2, 5_000) {
            *steps.entry(found.steps.len()).or_insert(0) += 1;
            largest = largest.max(found.steps.iter().map(|s| s.result).max().unwrap());
            // Targets (`she needs 900 in all`) may be as large as results; sampled numbers are not.
            operand = operand.max(
                found
                    .steps
                    .iter()
                    .filter(|s| s.op == ArithOp::Add)
                    .map(|s| s.right.min(s.left))
                    .max()
                    .unwrap_or(0),
            );
        }
        let limit = if matches!(split, Split::Train | Split::Hard) { 99_999 } else { 2_999 };
        assert!(largest <= limit && largest > limit / 3, "{}: {largest}", split.name());
        assert!(operand <= limit);
        match split {
            Split::Ood => assert_eq!(steps.keys().copied().collect::<Vec<_>>(), [2]),
            _ => assert!(
                (2..=6).all(|n| steps.get(&n).is_some_and(|count| *count > 300)),
                "{}: {steps:?}",
                split.name()
            ),
        }
    }
}

/// The words of a text in lower case, without numbers.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_ascii_alphabetic()).filter(|w| !w.is_empty()).map(str::to_lowercase)
}

#[test]
fn questions_have_12_to_100_words() {
    for split in Split::ALL {
        let lengths: Vec<usize> =
            problems(split, 3, 2_000).map(|p| words(&p.question).count()).collect();
        let shortest = lengths.iter().min().unwrap();
        let longest = lengths.iter().max().unwrap();
        assert!(
            *shortest >= 12 && *longest <= 100,
            "{}: {shortest} to {longest} words",
            split.name()
        );
    }
}

/// The problems must not change between versions, because models are trained and evaluated on them.
#[test]
fn problems_do_not_change() {
    let first: Vec<String> = Split::ALL
        .into_iter()
        .map(|split| problem(split, 0, 0))
        .map(|p| format!("{} {}", p.question, p.answer))
        .collect();
    let texts: String = Split::ALL
        .into_iter()
        .flat_map(|split| problems(split, 7, 500))
        .map(|p| p.question)
        .collect();
    let fingerprint = Fingerprint::default().with("questions", texts.as_bytes()).finish();
    assert_eq!(
        fingerprint, PINNED,
        "the corpus changed, which requires a new version of it; the first problems are {first:#?}"
    );
}

const PINNED: &str = "93d493da0a87247b";
