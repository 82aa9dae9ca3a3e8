//! Maps the field names of each benchmark to a question.
//!
//! | benchmark | question | gold answer |
//! |---|---|---|
//! | the paper's files, MultiArith | `question` | `answer` or `final_ans` |
//! | GSM8K | `question` | after `####` in `answer`, steps between `<<` and `>>` |
//! | GSM-Hard | `input` | `target` |
//! | SVAMP | `Body` and `Question` | `Answer` |
//! | MATH-500 | `problem` | `answer`, with a `level` or `subject` |
//! | AIME | `problem` or `Problem` | `answer` or `Answer` |
//! | GPQA | `Question` | `Correct Answer`, `Incorrect Answer 1` to `3` |
//! | MMLU and similar | `question`, `choices` | `answer`, a letter or an index from 0 |

use super::record::{DataRecord, FieldValue};
use super::{AnswerKind, Question, RecordFlaw};

/// Every known field; all others are skipped.
pub(super) const FIELDS: [&str; 18] = [
    "question",
    "Question",
    "problem",
    "Problem",
    "input",
    "Body",
    "answer",
    "Answer",
    "target",
    "final_ans",
    "steps",
    "choices",
    "Correct Answer",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
    "level",
    "subject",
];

const QUESTIONS: [&str; 5] = ["question", "Question", "problem", "Problem", "input"];
const ANSWERS: [&str; 4] = ["answer", "Answer", "target", "final_ans"];
const INCORRECT: [&str; 3] = ["Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"];
const LETTERS: &str = "ABCDEFGHIJ";

/// Whether a CSV header has a question field.
pub(super) fn is_header(cells: &[String]) -> bool {
    cells.iter().any(|cell| QUESTIONS.contains(&cell.as_str()))
}

/// The question of a record; its fields determine the benchmark.
pub(super) fn question(record: &DataRecord, index: usize) -> Result<Question, RecordFlaw> {
    // `MAX_BYTES` keeps the number of records far below 2^32.
    let id = index as u32;
    let text = question_text(record)?;
    if let Some(correct) = text_of(record, "Correct Answer")? {
        return four_options(record, id, &text, correct);
    }
    if record.get("choices").is_some() {
        return listed_options(record, id, &text);
    }
    let (field, answer) = gold(record)?;
    let (gold, worked) = match answer.rsplit_once("####") {
        Some((work, gold)) => (gold.trim(), annotations(work)),
        None => (answer, Vec::new()),
    };
    if gold.is_empty() {
        return Err(empty(field));
    }
    let (gold, kind) = classified(record, gold);
    let steps = if worked.is_empty() { steps(record)? } else { worked };
    Ok(Question { id, text, gold, kind, steps })
}

/// The question text, after the body if there is one (SVAMP).
fn question_text(record: &DataRecord) -> Result<String, RecordFlaw> {
    let (field, question) = first_text(record, &QUESTIONS)?.ok_or(RecordFlaw::Missing {
        field: "question",
        accepted: "question, problem, input, Body with Question",
    })?;
    if question.trim().is_empty() {
        return Err(empty(field));
    }
    match text_of(record, "Body")? {
        Some(body) => Ok(format!("{} {}", body.trim_end(), question.trim_start())),
        None => Ok(question.to_owned()),
    }
}

fn gold(record: &DataRecord) -> Result<(&'static str, &str), RecordFlaw> {
    let found = first_text(record, &ANSWERS)?;
    let (field, gold) = found
        .ok_or(RecordFlaw::Missing { field: "answer", accepted: "answer, target, final_ans" })?;
    let gold = gold.trim();
    if gold.is_empty() { Err(empty(field)) } else { Ok((field, gold)) }
}

/// The gold answer and its kind. A number loses its commas; anything else, and every answer of
/// MATH, is a formula.
fn classified(record: &DataRecord, gold: &str) -> (String, AnswerKind) {
    let in_math = record.get("level").or(record.get("subject")).is_some();
    let is_number = crate::answer::parse_number(gold).is_some();
    match is_number && !in_math {
        true => (gold.replace(',', ""), AnswerKind::Number),
        false => (gold.to_owned(), AnswerKind::Math),
    }
}

/// The `<<...>>` calculator annotations of a GSM8K solution, with brackets as in the paper's files.
fn annotations(work: &str) -> Vec<String> {
    let after_open = work.split("<<").skip(1);
    let inside = after_open.filter_map(|piece| piece.split_once(">>"));
    inside.map(|(step, _)| format!("<<{step}>>")).collect()
}

fn steps(record: &DataRecord) -> Result<Vec<String>, RecordFlaw> {
    match record.get("steps") {
        None => Ok(Vec::new()),
        // The paper's files write the lack of steps as one empty step.
        Some(FieldValue::List(steps)) => {
            Ok(steps.iter().filter(|step| !step.trim().is_empty()).cloned().collect())
        }
        Some(other) => Err(wrong("steps", other, "a list of strings")),
    }
}

/// GPQA: the correct answer has its own column, so the options are shuffled by the question's id.
fn four_options(
    record: &DataRecord,
    id: u32,
    text: &str,
    correct: &str,
) -> Result<Question, RecordFlaw> {
    let mut options = vec![correct];
    for field in INCORRECT {
        let missing = RecordFlaw::Missing { field, accepted: "Incorrect Answer 1, 2 and 3" };
        options.push(text_of(record, field)?.ok_or(missing)?);
    }
    let order = shuffled(options.len(), id);
    let options: Vec<&str> = order.iter().map(|&option| options[option]).collect();
    let right = order.iter().position(|&option| option == 0).unwrap_or_default();
    Ok(multiple_choice(id, text, &options, right))
}

/// Options in a list keep their order, to which the answer, and sometimes an option, refers.
fn listed_options(record: &DataRecord, id: u32, text: &str) -> Result<Question, RecordFlaw> {
    let options = match record.get("choices") {
        Some(FieldValue::List(options)) if (2..=LETTERS.len()).contains(&options.len()) => options,
        Some(FieldValue::List(options)) => {
            let problem = format!("has {} options; give it 2 to 10", options.len());
            return Err(RecordFlaw::Field { field: "choices", problem });
        }
        Some(other) => return Err(wrong("choices", other, "a list of strings")),
        None => {
            return Err(RecordFlaw::Missing { field: "choices", accepted: "choices" });
        }
    };
    let (field, gold) = gold(record)?;
    let letter = LETTERS.find(gold).filter(|_| gold.len() == 1);
    let right = letter.or_else(|| gold.parse().ok()).filter(|right| *right < options.len());
    let right = right.ok_or_else(|| {
        let last = options.len() - 1;
        let problem = format!("is {gold:?}; give it a letter from A or an index from 0 to {last}");
        RecordFlaw::Field { field, problem }
    })?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Ok(multiple_choice(id, text, &options, right))
}

fn multiple_choice(id: u32, text: &str, options: &[&str], right: usize) -> Question {
    let mut text = format!("{}\n", text.trim_end());
    for (letter, option) in LETTERS.chars().zip(options) {
        text.push_str(&format!("\n{letter}) {}", option.trim()));
    }
    let gold = LETTERS[right..=right].to_owned();
    Question { id, text, gold, kind: AnswerKind::Choice, steps: Vec::new() }
}

/// A permutation of `0..n` that depends on `id` alone: Fisher-Yates over splitmix64.
fn shuffled(n: usize, id: u32) -> Vec<usize> {
    let mut state = u64::from(id);
    let mut order: Vec<usize> = (0..n).collect();
    for last in (1..n).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        order.swap(last, ((z ^ (z >> 31)) % (last as u64 + 1)) as usize);
    }
    order
}

/// The first of `names` that the record has, and its text.
fn first_text<'a>(
    record: &'a DataRecord,
    names: &[&'static str],
) -> Result<Option<(&'static str, &'a str)>, RecordFlaw> {
    for &name in names {
        if let Some(text) = text_of(record, name)? {
            return Ok(Some((name, text)));
        }
    }
    Ok(None)
}

fn text_of<'a>(record: &'a DataRecord, name: &'static str) -> Result<Option<&'a str>, RecordFlaw> {
    match record.get(name) {
        None => Ok(None),
        Some(FieldValue::Text(text) | FieldValue::Number(text)) => Ok(Some(text)),
        Some(other) => Err(wrong(name, other, "a string or a number")),
    }
}

fn empty(field: &'static str) -> RecordFlaw {
    RecordFlaw::Field { field, problem: "is empty; give it a text".to_owned() }
}

fn wrong(field: &'static str, found: &FieldValue, wanted: &str) -> RecordFlaw {
    let found = match found {
        FieldValue::Text(_) => "a string",
        FieldValue::Number(_) => "a number",
        FieldValue::List(_) => "a list",
        FieldValue::Other(what) => what,
    };
    RecordFlaw::Field { field, problem: format!("is {found}; give it {wanted}") }
}
