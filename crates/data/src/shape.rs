//! Maps the field names of each benchmark to a question.
//!
//! | benchmark | question | gold answer |
//! |---|---|---|
//! | the paper's files, MultiArith | `question` | `answer` or `final_ans` |
//! | GSM8K | `question` | after `####` in `answer`; steps between `<<` and `>>` |
//! | GSM8k-Aug (zen-E, whynlp) | `question` | `answer`; steps in `cot` (a text) or `steps` (a list) |
//! | Latent-SFT | `problem` | the box in `cot_answer`; steps in `cot` |
//! | GSM-Hard | `input` | `target` |
//! | SVAMP | `Body` and `Question` | `Answer` |
//! | MATH, MATH-500 | `problem` | `answer`, else the box in `solution`; with a `level` or `subject` |
//! | AIME | `problem` or `Problem` | `answer` or `Answer` |
//! | GPQA | `Question` | `Correct Answer`, `Incorrect Answer 1` to `3` |
//! | MMLU, CommonsenseQA | `question`, `choices` | `answer` or `answerKey`, a letter or an index |
//! | StrategyQA, ProntoQA | `question` | `answer`: true or false, yes or no; steps in `facts` |
//! | ProsQA | `question` | `answer`, a sentence; steps are sentences |
//!
//! [`FieldNames`] sets the field names of other files.

use super::answer::{boxed, truth_word};
use super::fields::FieldNames;
use super::record::{DataRecord, FieldValue};
use super::worked_step::steps_of_text;
use super::{AnswerKind, Question, RecordFlaw};

/// All known fields; other fields are skipped.
pub(super) const FIELDS: [&str; 24] = [
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
    "final_answer",
    "answerKey",
    "cot_answer",
    "solution",
    "steps",
    "cot",
    "facts",
    "choices",
    "Correct Answer",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
    "level",
    "subject",
];

pub(super) const QUESTIONS: [&str; 5] = ["question", "Question", "problem", "Problem", "input"];
/// Fields with answers, in order of precedence: fields with a whole solution are last.
pub(super) const ANSWERS: [&str; 8] = [
    "answer",
    "Answer",
    "target",
    "final_ans",
    "final_answer",
    "answerKey",
    "cot_answer",
    "solution",
];
/// Fields with solutions that have the answer in a box.
const SOLUTIONS: [&str; 2] = ["cot_answer", "solution"];
pub(super) const STEPS: [&str; 3] = ["steps", "cot", "facts"];
const INCORRECT: [&str; 3] = ["Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"];
const LETTERS: &str = "ABCDEFGHIJ";

/// Whether a CSV header has a question field.
pub(super) fn is_header(fields: &FieldNames, cells: &[String]) -> bool {
    let questions = fields.questions();
    cells.iter().any(|cell| questions.contains(&cell.as_str()))
}

/// The question of a record, in the format of the benchmark determined by its fields.
pub(super) fn question(
    record: &DataRecord,
    fields: &FieldNames,
    index: usize,
) -> Result<Question, RecordFlaw> {
    // `MAX_BYTES` keeps the number of records far below 2^32.
    let id = index as u32;
    let text = question_text(record, fields)?;
    if let (Some(correct), None) = (text_of(record, "Correct Answer")?, &fields.answer_field) {
        return four_options(record, id, &text, correct);
    }
    if record.get("choices").is_some() {
        return listed_options(record, fields, id, &text);
    }
    let (field, answer) = gold(record, fields)?;
    let (gold, worked) = match answer.rsplit_once("####") {
        Some((work, gold)) => (gold.trim(), annotations(work)),
        None => (boxed_answer(field, answer)?, Vec::new()),
    };
    if gold.is_empty() {
        return Err(empty(field));
    }
    let (gold, kind) = classified(record, gold);
    let own = steps(record, fields)?;
    let steps = if worked.is_empty() || fields.steps_field.is_some() { own } else { worked };
    Ok(Question { id, text, gold, kind, steps })
}

/// The content of the last box of a solution; other answers are returned unchanged.
fn boxed_answer<'a>(field: &str, answer: &'a str) -> Result<&'a str, RecordFlaw> {
    match boxed(answer) {
        Some(inside) => Ok(inside.trim()),
        None if SOLUTIONS.contains(&field) => {
            let problem = "has no \\boxed{} and no ####; specify the field of the answer";
            Err(RecordFlaw::Field { field: field.to_owned(), problem: problem.to_owned() })
        }
        None => Ok(answer),
    }
}

/// The question text, preceded by the body if there is one (SVAMP).
fn question_text(record: &DataRecord, fields: &FieldNames) -> Result<String, RecordFlaw> {
    let missing = RecordFlaw::Missing {
        field: "question",
        accepted: "question, problem, input, Body with Question",
    };
    let (field, question) = first_text(record, &fields.questions())?
        .ok_or_else(|| missing_named(fields.question_field.as_ref(), "question_field", missing))?;
    if question.trim().is_empty() {
        return Err(empty(field));
    }
    if fields.question_field.is_some() {
        return Ok(question.to_owned());
    }
    match text_of(record, "Body")? {
        Some(body) => Ok(format!("{} {}", body.trim_end(), question.trim_start())),
        None => Ok(question.to_owned()),
    }
}

fn gold<'a>(
    record: &'a DataRecord,
    fields: &'a FieldNames,
) -> Result<(&'a str, &'a str), RecordFlaw> {
    let missing = RecordFlaw::Missing {
        field: "answer",
        accepted: "answer, target, final_ans, final_answer, answerKey, cot_answer, solution",
    };
    let (field, gold) = first_text(record, &fields.answers())?
        .ok_or_else(|| missing_named(fields.answer_field.as_ref(), "answer_field", missing))?;
    let gold = gold.trim();
    if gold.is_empty() { Err(empty(field)) } else { Ok((field, gold)) }
}

/// The error for a missing field, whose name may have been given by the caller.
fn missing_named(given: Option<&String>, role: &'static str, known: RecordFlaw) -> RecordFlaw {
    match given {
        Some(field) => RecordFlaw::MissingNamed { field: field.clone(), role },
        None => known,
    }
}

/// The gold answer and its kind. Commas are removed from numbers; a yes or no is kept as written;
/// anything else, and every answer of MATH, is a formula.
fn classified(record: &DataRecord, gold: &str) -> (String, AnswerKind) {
    let in_math = record.get("level").or(record.get("subject")).is_some();
    let is_number = crate::answer::parse_number(gold).is_some();
    match (in_math, is_number, truth_word(gold)) {
        (false, true, _) => (gold.replace(',', ""), AnswerKind::Number),
        (false, false, Some(_)) => (gold.to_owned(), AnswerKind::YesNo),
        _ => (gold.to_owned(), AnswerKind::Math),
    }
}

/// The `<<...>>` calculator annotations of a GSM8K solution, with brackets as in the paper's files.
fn annotations(work: &str) -> Vec<String> {
    let after_open = work.split("<<").skip(1);
    let inside = after_open.filter_map(|piece| piece.split_once(">>"));
    inside.map(|(step, _)| format!("<<{step}>>")).collect()
}

fn steps(record: &DataRecord, fields: &FieldNames) -> Result<Vec<String>, RecordFlaw> {
    for name in fields.steps() {
        match record.get(name) {
            None => {}
            // The paper's files represent missing steps as one empty step.
            Some(FieldValue::List(steps)) => {
                return Ok(steps.iter().filter(|step| !step.trim().is_empty()).cloned().collect());
            }
            Some(FieldValue::Text(text)) => return Ok(steps_of_text(text)),
            Some(other) => return Err(wrong(name, other, "a list of strings or a string")),
        }
    }
    match &fields.steps_field {
        Some(field) => Err(RecordFlaw::MissingNamed { field: field.clone(), role: "steps_field" }),
        None => Ok(Vec::new()),
    }
}

/// GPQA: the correct answer is in a separate column, so the options are shuffled by question id.
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

/// Options in a list keep their order, because the answer, and sometimes an option, refers to it.
fn listed_options(
    record: &DataRecord,
    fields: &FieldNames,
    id: u32,
    text: &str,
) -> Result<Question, RecordFlaw> {
    let options = match record.get("choices") {
        Some(FieldValue::List(options)) if (2..=LETTERS.len()).contains(&options.len()) => options,
        Some(FieldValue::List(options)) => {
            let problem = format!("has {} options; expected 2 to 10", options.len());
            return Err(RecordFlaw::Field { field: "choices".to_owned(), problem });
        }
        Some(other) => return Err(wrong("choices", other, "a list of strings")),
        None => {
            return Err(RecordFlaw::Missing { field: "choices", accepted: "choices" });
        }
    };
    let (field, gold) = gold(record, fields)?;
    let letter = LETTERS.find(gold).filter(|_| gold.len() == 1);
    let right = letter.or_else(|| gold.parse().ok()).filter(|right| *right < options.len());
    let right = right.ok_or_else(|| {
        let last = options.len() - 1;
        let problem = format!("is {gold:?}; expected a letter from A or an index from 0 to {last}");
        RecordFlaw::Field { field: field.to_owned(), problem }
    })?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let steps = steps(record, fields)?;
    Ok(Question { steps, ..multiple_choice(id, text, &options, right) })
}

fn multiple_choice(id: u32, text: &str, options: &[&str], right: usize) -> Question {
    let mut text = format!("{}\n", text.trim_end());
    for (letter, option) in LETTERS.chars().zip(options) {
        text.push_str(&format!("\n{letter}) {}", option.trim()));
    }
    let gold = LETTERS[right..=right].to_owned();
    Question { id, text, gold, kind: AnswerKind::Choice, steps: Vec::new() }
}

/// A permutation of `0..n` determined by `id`: Fisher-Yates with splitmix64.
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

/// The text of the first of `names` that the record has.
fn first_text<'a>(
    record: &'a DataRecord,
    names: &[&'a str],
) -> Result<Option<(&'a str, &'a str)>, RecordFlaw> {
    for &name in names {
        if let Some(text) = text_of(record, name)? {
            return Ok(Some((name, text)));
        }
    }
    Ok(None)
}

fn text_of<'a>(record: &'a DataRecord, name: &str) -> Result<Option<&'a str>, RecordFlaw> {
    match record.get(name) {
        None => Ok(None),
        Some(FieldValue::Text(text) | FieldValue::Number(text)) => Ok(Some(text)),
        // StrategyQA expects yes or no.
        Some(FieldValue::Truth(truth)) => Ok(Some(if *truth { "yes" } else { "no" })),
        Some(other) => Err(wrong(name, other, "a string or a number")),
    }
}

fn empty(field: &str) -> RecordFlaw {
    RecordFlaw::Field { field: field.to_owned(), problem: "is empty; expected a string".to_owned() }
}

fn wrong(field: &str, found: &FieldValue, expected: &str) -> RecordFlaw {
    let found = match found {
        FieldValue::Text(_) => "a string",
        FieldValue::Number(_) => "a number",
        FieldValue::List(_) => "a list",
        FieldValue::Truth(_) => "true or false",
        FieldValue::Other(what) => what,
    };
    RecordFlaw::Field {
        field: field.to_owned(),
        problem: format!("is {found}; expected {expected}"),
    }
}
