//! The data of the question browser as compact JSON: distinct answers once, rewards and map
//! positions as base64 bytes.
//!
//! A page of 1,319 questions by 64 trajectories must stay below 10 MB. Runs are added in the order
//! of their coverage. A run that does not fit is included without its map, then without the texts
//! of all trajectories, then without the texts of answers. If it still does not fit, it is left out
//! and the page says so.

use std::io;

use serde_json::{Value, json};

use crate::error::ReportError;
use crate::question_summary::{DistinctAnswer, QuestionSummary};
use crate::run_data::RunData;
use crate::tsne::pca;

/// Size limit of the data of all runs.
const DATA_BUDGET_BYTES: usize = 8_000_000;

/// The data to include for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DetailLevel {
    map: bool,
    /// One text per distinct answer.
    texts: bool,
    /// The text of every trajectory.
    all_texts: bool,
}

const ANSWER_TEXTS: DetailLevel = DetailLevel { map: false, texts: true, all_texts: false };

/// The JSON data, safe inside a script element.
pub fn json(runs: &[RunData]) -> Result<String, ReportError> {
    encode_within(runs, DATA_BUDGET_BYTES)
}

fn encode_within(runs: &[RunData], budget: usize) -> Result<String, ReportError> {
    let mut by_coverage: Vec<usize> = (0..runs.len()).collect();
    by_coverage.sort_by(|a, b| runs[*b].coverage().total_cmp(&runs[*a].coverage()));
    let mut encoded: Vec<Option<String>> = vec![None; runs.len()];
    let mut left = budget;
    for index in by_coverage {
        encoded[index] = encode_fitting(&runs[index], left)?;
        left -= encoded[index].as_ref().map_or(0, String::len);
    }
    let encoded: Vec<String> = encoded.into_iter().flatten().collect();
    let left_out = runs.len() - encoded.len();
    // A question may contain "</script>"; in JSON strings `<` can be escaped.
    Ok(format!("{{\"left_out\":{left_out},\"runs\":[{}]}}", encoded.join(","))
        .replace('<', "\\u003c"))
}

/// A run at the highest level of detail that fits. Maps are expensive to compute, so their size is
/// estimated first: two bytes per thought, times 4/3 for base64.
fn encode_fitting(run: &RunData, room: usize) -> Result<Option<String>, ReportError> {
    let plain = encode_run(run, ANSWER_TEXTS)?.to_string();
    if plain.len() > room {
        let bare = encode_run(run, DetailLevel { texts: false, ..ANSWER_TEXTS })?.to_string();
        return Ok((bare.len() <= room).then_some(bare));
    }
    let detailed = DetailLevel { all_texts: true, ..ANSWER_TEXTS };
    let all = encode_run(run, detailed)?.to_string();
    let (level, plain) = if all.len() <= room { (detailed, all) } else { (ANSWER_TEXTS, plain) };
    let rows = |question: &QuestionSummary| {
        question
            .thought_counts
            .iter()
            .chain(question.thought_counts.iter().max())
            .map(|count| *count as usize)
            .sum::<usize>()
    };
    let maps: usize =
        run.questions.iter().map(|question| (2 * rows(question)).div_ceil(3) * 4).sum();
    if run.latents.is_none() || plain.len() + maps > room {
        return Ok(Some(plain));
    }
    Ok(Some(encode_run(run, DetailLevel { map: true, ..level })?.to_string())
        .filter(|full| full.len() <= room)
        .or(Some(plain)))
}

fn encode_run(run: &RunData, detail: DetailLevel) -> Result<Value, ReportError> {
    let seed = run.dir.manifest().seeds.first().copied().unwrap_or_default();
    let mut questions = Vec::new();
    for question in &run.questions {
        let map = if detail.map { encode_map(run, seed, question)? } else { String::new() };
        questions.push(encode_question(question, map, detail));
    }
    Ok(json!({
        "label": run.label,
        "n": run.traits.n,
        "seed": seed,
        "seeds": run.results.seeds,
        "questions": questions,
    }))
}

/// One question as an array; `named` in `assets/page.js` lists its elements.
fn encode_question(question: &QuestionSummary, map: String, detail: DetailLevel) -> Value {
    let DetailLevel { texts, all_texts, .. } = detail;
    let answer = |answer: &DistinctAnswer| {
        let text = if texts { answer.text.as_str() } else { "" };
        json!([answer.answer, u8::from(answer.correct), text])
    };
    let (rewards, range) = quantize(question.process_rewards.iter().flatten());
    let (outcomes, outcome_range) = quantize(question.outcome_rewards.iter());
    let chosen =
        question.chosen.map(|chosen| chosen.map_or(-1, |k| question.answer_index[k] as i64));
    let uniform = question.thought_counts.windows(2).all(|pair| pair[0] == pair[1]);
    let thoughts = if uniform {
        json!(question.thought_counts.first().copied().unwrap_or_default())
    } else {
        json!(question.thought_counts)
    };
    json!([
        question.id,
        question.question,
        question.gold,
        question.answers.iter().map(answer).collect::<Vec<_>>(),
        question.answer_index,
        thoughts,
        rewards,
        map,
        chosen,
        question.greedy.as_ref().map(answer),
        question.beam.as_ref().map(answer),
        range,
        outcomes,
        outcome_range,
        if texts { encode_lens(&question.greedy_lens) } else { json!([]) },
        if all_texts { json!(question.texts) } else { json!([]) },
        if all_texts { json!(question.text_index) } else { json!([]) },
    ])
}

/// The tokens of each thought with their probabilities in thousandths.
fn encode_lens(lens: &[Vec<(String, f32)>]) -> Value {
    let token = |(text, share): &(String, f32)| json!([text, (1000.0 * share).round() as u32]);
    lens.iter().map(|tokens| tokens.iter().map(token).collect::<Value>()).collect()
}

/// The rewards of a question, quantized to one byte each, in base64; and the rewards of bytes 0 and
/// 255 (null without rewards). The range is per question, because rewards are only comparable
/// within a question and an outlier would reduce the resolution of all other questions.
fn quantize<'a>(rewards: impl Iterator<Item = &'a f32> + Clone) -> (String, Value) {
    let (low, high) = rewards
        .clone()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)));
    let byte =
        |x: &f32| if high > low { (255.0 * (x - low) / (high - low)).round() as u8 } else { 128 };
    (
        base64(&rewards.map(byte).collect::<Vec<_>>()),
        if low.is_finite() { json!([low, high]) } else { Value::Null },
    )
}

/// The projection of every thought on the question's two principal components, one byte per
/// coordinate; the greedy trajectory last.
fn encode_map(run: &RunData, seed: u64, question: &QuestionSummary) -> Result<String, ReportError> {
    let Some(latents) = &run.latents else { return Ok(String::new()) };
    let Some(mut thoughts) = latents.read_sampled(seed, question.id)? else {
        return Ok(String::new());
    };
    let expected: u64 = question.thought_counts.iter().map(|count| u64::from(*count)).sum();
    if thoughts.rows() as u64 != expected {
        let why = format!(
            "question {} under seed {seed} has {} thoughts instead of {expected}",
            question.id,
            thoughts.rows()
        );
        let source = io::Error::new(io::ErrorKind::InvalidData, why);
        return Err(ReportError::Latents {
            path: run.dir.path().join(record::LATENTS_FILE),
            source,
        });
    }
    if let Some(greedy) =
        latents.read_greedy(seed, question.id)?.filter(|greedy| greedy.width == thoughts.width)
    {
        thoughts.values.extend(greedy.values);
    }
    let points = pca(&thoughts.values, thoughts.width);
    let bytes: Vec<u8> =
        points.iter().flatten().map(|x| (127.5 * (x + 1.0)).round() as u8).collect();
    Ok(base64(&bytes))
}

/// Base64 with padding (RFC 4648), for the browser's `atob`.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * i)) as usize & 63];
            text.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use record::{LatentsWriter, Manifest, RunDir, Sample, TrajectoryRecord};

    use super::*;

    /// A run of one question with texts and thoughts.
    fn run_data(dir: &std::path::Path) -> RunData {
        let thoughts: Vec<f32> = (0..400).map(|i| i as f32).collect();
        let trajectory = TrajectoryRecord {
            latent_steps: 100,
            text: "because ".repeat(20),
            ..TrajectoryRecord::default()
        };
        let sample = Sample { trajectories: vec![trajectory], ..Sample::default() };
        let mut writer = RunDir::create(dir, &Manifest::default()).unwrap();
        let mut latents = LatentsWriter::open(dir, 4).unwrap();
        latents.append(&sample, [&thoughts[..]]).unwrap();
        writer.append(&sample).unwrap();
        let run = writer.finish().unwrap();
        latents.finish().unwrap();
        RunData::load(run, false).unwrap()
    }

    #[test]
    fn over_budget_drops_the_map_then_texts_then_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let runs = [run_data(dir.path())];
        let encode = |budget: usize| -> Value {
            serde_json::from_str(&encode_within(&runs, budget).unwrap()).unwrap()
        };
        let level = |data: Value| {
            let question = &data["runs"][0]["questions"][0];
            DetailLevel {
                map: question[7].as_str().is_some_and(|map| !map.is_empty()),
                texts: question[3][0][2].as_str().is_some_and(|text| !text.is_empty()),
                all_texts: question[15].as_array().is_some_and(|texts| !texts.is_empty()),
            }
        };
        let levels = [(true, true, true), (false, true, true), (false, true, false)];
        let levels = levels.into_iter().chain([(false, false, false)]);
        let levels: Vec<DetailLevel> =
            levels.map(|(map, texts, all_texts)| DetailLevel { map, texts, all_texts }).collect();
        let sizes: Vec<usize> = levels
            .iter()
            .map(|level| encode_run(&runs[0], *level).unwrap().to_string().len())
            .collect();
        assert!(sizes.windows(2).all(|pair| pair[1] < pair[0]), "{sizes:?}");
        assert_eq!(level(encode(2 * sizes[0])), levels[0]);
        for lower in 1..4 {
            assert_eq!(level(encode(sizes[lower - 1] - 1)), levels[lower]);
        }
        let bare = sizes[3];
        assert_eq!(encode(bare - 1), json!({ "left_out": 1, "runs": [] }));
    }

    #[test]
    fn base64_matches_rfc_4648() {
        let known =
            ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(known, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}
