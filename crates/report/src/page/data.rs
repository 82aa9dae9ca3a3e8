//! The questions of the page, small: every answer once, trajectories as numbers, rewards and places
//! as bytes.
//!
//! A page of 1,319 questions by 64 trajectories has to stay below 10 MB. Runs are taken by their
//! coverage; one that no longer fits goes without its map, then without its texts, and at last is
//! left out, which the page says.

use std::io;

use serde_json::{Value, json};

use crate::error::ReportError;
use crate::question_summary::{DistinctAnswer, QuestionSummary};
use crate::run_data::RunData;
use crate::tsne::pca;

/// Bytes that all questions may take.
const DATA_BUDGET_BYTES: usize = 8_000_000;

/// How much of a run is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DetailLevel {
    map: bool,
    texts: bool,
}

/// The data of the page as JSON that can stand inside a script element.
pub fn json(studies: &[RunData]) -> Result<String, ReportError> {
    encode_within(studies, DATA_BUDGET_BYTES)
}

fn encode_within(studies: &[RunData], budget: usize) -> Result<String, ReportError> {
    let mut by_coverage: Vec<usize> = (0..studies.len()).collect();
    by_coverage.sort_by(|a, b| studies[*b].coverage().total_cmp(&studies[*a].coverage()));
    let mut told: Vec<Option<String>> = vec![None; studies.len()];
    let mut left = budget;
    for place in by_coverage {
        told[place] = encode_fitting(&studies[place], left)?;
        left -= told[place].as_ref().map_or(0, String::len);
    }
    let runs: Vec<String> = told.into_iter().flatten().collect();
    let left_out = studies.len() - runs.len();
    // A question may hold "</script>"; a JSON string says the same with an escape.
    Ok(format!("{{\"left_out\":{left_out},\"runs\":[{}]}}", runs.join(",")).replace('<', "\\u003c"))
}

/// As much of a run as fits. Maps take the time of their making, so their size is reckoned first:
/// two bytes a thought, four thirds of it in base64.
fn encode_fitting(study: &RunData, room: usize) -> Result<Option<String>, ReportError> {
    let plain = encode_run(study, DetailLevel { map: false, texts: true })?.to_string();
    if plain.len() > room {
        let bare = encode_run(study, DetailLevel { map: false, texts: false })?.to_string();
        return Ok((bare.len() <= room).then_some(bare));
    }
    let rows = |brief: &QuestionSummary| {
        brief
            .thought_counts
            .iter()
            .chain(brief.thought_counts.iter().max())
            .map(|count| *count as usize)
            .sum::<usize>()
    };
    let maps: usize = study.questions.iter().map(|brief| (2 * rows(brief)).div_ceil(3) * 4).sum();
    if study.latents.is_none() || plain.len() + maps > room {
        return Ok(Some(plain));
    }
    Ok(Some(encode_run(study, DetailLevel { map: true, texts: true })?.to_string())
        .filter(|full| full.len() <= room)
        .or(Some(plain)))
}

fn encode_run(study: &RunData, detail: DetailLevel) -> Result<Value, ReportError> {
    let seed = study.run.manifest().seeds.first().copied().unwrap_or_default();
    let mut questions = Vec::new();
    for brief in &study.questions {
        let map = if detail.map { encode_map(study, seed, brief)? } else { String::new() };
        questions.push(encode_question(brief, map, detail.texts));
    }
    let seeds = study.results.seeds;
    Ok(
        json!({ "label": study.label, "n": study.traits.n, "seed": seed, "seeds": seeds, "questions": questions }),
    )
}

/// One question as a row; `assets/page.js` names the columns.
fn encode_question(brief: &QuestionSummary, map: String, texts: bool) -> Value {
    let answer = |answer: &DistinctAnswer| {
        let text = if texts { answer.text.as_str() } else { "" };
        json!([answer.answer, u8::from(answer.correct), text])
    };
    let (rewards, range) = quantize(brief.process_rewards.iter().flatten());
    let (judged, judged_range) = quantize(brief.outcome_rewards.iter());
    let verdicts = brief.chosen.map(|chosen| chosen.map_or(-1, |k| brief.answer_index[k] as i64));
    let even = brief.thought_counts.windows(2).all(|pair| pair[0] == pair[1]);
    let thoughts = if even {
        json!(brief.thought_counts.first().copied().unwrap_or_default())
    } else {
        json!(brief.thought_counts)
    };
    json!([
        brief.id,
        brief.question,
        brief.gold,
        brief.answers.iter().map(answer).collect::<Vec<_>>(),
        brief.answer_index,
        thoughts,
        rewards,
        map,
        verdicts,
        brief.greedy.as_ref().map(answer),
        brief.beam.as_ref().map(answer),
        range,
        judged,
        judged_range,
    ])
}

/// Rewards of a question as a byte each, and what the smallest and the largest byte mean; nothing
/// without rewards. They compare within a question only, and one far-off question would take the
/// bytes and colours of all others.
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

/// Every thought's place along the question's two principal components, a byte each; the
/// unperturbed trajectory's at the end.
fn encode_map(study: &RunData, seed: u64, brief: &QuestionSummary) -> Result<String, ReportError> {
    let Some(latents) = &study.latents else { return Ok(String::new()) };
    let Some(mut thoughts) = latents.read_sampled(seed, brief.id)? else {
        return Ok(String::new());
    };
    let expected: u64 = brief.thought_counts.iter().map(|count| u64::from(*count)).sum();
    if thoughts.rows() as u64 != expected {
        let why = format!(
            "question {} under seed {seed} has {} thoughts instead of {expected}",
            brief.id,
            thoughts.rows()
        );
        let source = io::Error::new(io::ErrorKind::InvalidData, why);
        return Err(ReportError::Latents {
            path: study.run.path().join("latents.safetensors"),
            source,
        });
    }
    if let Some(greedy) =
        latents.read_greedy(seed, brief.id)?.filter(|greedy| greedy.width == thoughts.width)
    {
        thoughts.values.extend(greedy.values);
    }
    let places = pca(&thoughts.values, thoughts.width);
    let bytes: Vec<u8> =
        places.iter().flatten().map(|x| (127.5 * (x + 1.0)).round() as u8).collect();
    Ok(base64(&bytes))
}

/// RFC 4648, as the browser's `atob` reads it.
fn base64(bytes: &[u8]) -> String {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let sign = SIGNS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(sign) } else { '=' });
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
            thoughts: 100,
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
        let studies = [run_data(dir.path())];
        let told = |budget: usize| -> Value {
            serde_json::from_str(&encode_within(&studies, budget).unwrap()).unwrap()
        };
        let of = |told: &Value| {
            let question = &told["runs"][0]["questions"][0];
            (
                question[7].as_str().is_some_and(|map| !map.is_empty()),
                question[3][0][2].as_str().is_some_and(|text| !text.is_empty()),
            )
        };
        let [full, plain, bare] =
            [(true, true), (false, true), (false, false)].map(|(map, texts)| {
                encode_run(&studies[0], DetailLevel { map, texts }).unwrap().to_string().len()
            });
        assert!(bare < plain && plain < full);
        assert_eq!(of(&told(2 * full)), (true, true));
        assert_eq!(of(&told(full - 1)), (false, true));
        assert_eq!(of(&told(plain - 1)), (false, false));
        assert_eq!(told(bare - 1), json!({ "left_out": 1, "runs": [] }));
    }

    #[test]
    fn base64_is_the_standard_one() {
        let known =
            ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(known, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}
