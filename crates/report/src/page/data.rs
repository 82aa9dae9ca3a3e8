//! The questions of the page, small: every answer once, trajectories as numbers, rewards and places as bytes.
//!
//! A page of 1,319 questions by 64 trajectories has to stay below 10 MB. Runs are taken by their coverage; one that no longer fits
//! goes without its map, then without its texts, and at last is left out, which the page says.

use std::io;

use serde_json::{Value, json};

use crate::brief::{Answer, Brief};
use crate::error::Error;
use crate::study::Study;
use crate::tsne::principal;

/// Bytes that all questions may take.
const BUDGET: usize = 8_000_000;

/// How much of a run is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Detail {
    map: bool,
    texts: bool,
}

/// The data of the page as JSON that can stand inside a script element.
pub fn json(studies: &[Study]) -> Result<String, Error> {
    within(studies, BUDGET)
}

fn within(studies: &[Study], budget: usize) -> Result<String, Error> {
    let mut by_coverage: Vec<usize> = (0..studies.len()).collect();
    by_coverage.sort_by(|a, b| studies[*b].coverage().total_cmp(&studies[*a].coverage()));
    let mut told: Vec<Option<String>> = vec![None; studies.len()];
    let mut left = budget;
    for place in by_coverage {
        told[place] = fitting(&studies[place], left)?;
        left -= told[place].as_ref().map_or(0, String::len);
    }
    let runs: Vec<String> = told.into_iter().flatten().collect();
    let left_out = studies.len() - runs.len();
    // A question may hold "</script>"; a JSON string says the same with an escape.
    Ok(format!("{{\"left_out\":{left_out},\"runs\":[{}]}}", runs.join(",")).replace('<', "\\u003c"))
}

/// As much of a run as fits. Maps take the time of their making, so their size is reckoned first: two bytes a thought, four thirds
/// of it in base64.
fn fitting(study: &Study, room: usize) -> Result<Option<String>, Error> {
    let plain = run(study, Detail { map: false, texts: true })?.to_string();
    if plain.len() > room {
        let bare = run(study, Detail { map: false, texts: false })?.to_string();
        return Ok((bare.len() <= room).then_some(bare));
    }
    let rows =
        |brief: &Brief| brief.thoughts.iter().chain(brief.thoughts.iter().max()).map(|count| *count as usize).sum::<usize>();
    let maps: usize = study.briefs.iter().map(|brief| (2 * rows(brief)).div_ceil(3) * 4).sum();
    if study.latents.is_none() || plain.len() + maps > room {
        return Ok(Some(plain));
    }
    Ok(Some(run(study, Detail { map: true, texts: true })?.to_string()).filter(|full| full.len() <= room).or(Some(plain)))
}

fn run(study: &Study, detail: Detail) -> Result<Value, Error> {
    let seed = study.run.manifest().seeds.first().copied().unwrap_or_default();
    let mut questions = Vec::new();
    for brief in &study.briefs {
        let map = if detail.map { map(study, seed, brief)? } else { String::new() };
        questions.push(question(brief, map, detail.texts));
    }
    let seeds = study.results.seeds;
    Ok(json!({ "label": study.label, "n": study.traits.n, "seed": seed, "seeds": seeds, "questions": questions }))
}

/// One question as a row; `assets/page.js` names the columns.
fn question(brief: &Brief, map: String, texts: bool) -> Value {
    let answer = |answer: &Answer| {
        let text = if texts { answer.text.as_str() } else { "" };
        json!([answer.answer, u8::from(answer.correct), text])
    };
    let (rewards, range) = scaled(brief.scores.iter().flatten());
    let (judged, judged_range) = scaled(brief.judged.iter());
    let verdicts = brief.verdicts.map(|chosen| chosen.map_or(-1, |k| brief.given[k] as i64));
    let even = brief.thoughts.windows(2).all(|pair| pair[0] == pair[1]);
    let thoughts = if even { json!(brief.thoughts.first().copied().unwrap_or_default()) } else { json!(brief.thoughts) };
    json!([
        brief.id,
        brief.question,
        brief.gold,
        brief.answers.iter().map(answer).collect::<Vec<_>>(),
        brief.given,
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

/// Rewards of a question as a byte each, and what the smallest and the largest byte mean; nothing without rewards. They compare
/// within a question only, and one far-off question would take the bytes and colours of all others.
fn scaled<'a>(rewards: impl Iterator<Item = &'a f32> + Clone) -> (String, Value) {
    let (low, high) = rewards.clone().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)));
    let byte = |x: &f32| if high > low { (255.0 * (x - low) / (high - low)).round() as u8 } else { 128 };
    (base64(&rewards.map(byte).collect::<Vec<_>>()), if low.is_finite() { json!([low, high]) } else { Value::Null })
}

/// Every thought's place along the question's two principal components, a byte each; the unperturbed trajectory's at the end.
fn map(study: &Study, seed: u64, brief: &Brief) -> Result<String, Error> {
    let Some(latents) = &study.latents else { return Ok(String::new()) };
    let Some(mut thoughts) = latents.of(seed, brief.id)? else { return Ok(String::new()) };
    let expected: u64 = brief.thoughts.iter().map(|count| u64::from(*count)).sum();
    if thoughts.rows() as u64 != expected {
        let why = format!("question {} under seed {seed} has {} thoughts instead of {expected}", brief.id, thoughts.rows());
        let source = io::Error::new(io::ErrorKind::InvalidData, why);
        return Err(Error::Latents { path: study.run.path().join("latents.safetensors"), source });
    }
    if let Some(greedy) = latents.of_greedy(seed, brief.id)?.filter(|greedy| greedy.width == thoughts.width) {
        thoughts.numbers.extend(greedy.numbers);
    }
    let places = principal(&thoughts.numbers, thoughts.width);
    let bytes: Vec<u8> = places.iter().flatten().map(|x| (127.5 * (x + 1.0)).round() as u8).collect();
    Ok(base64(&bytes))
}

/// RFC 4648, as the browser's `atob` reads it.
fn base64(bytes: &[u8]) -> String {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let sign = SIGNS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(sign) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use record::{Latents, Manifest, RunDir, Sample, Trajectory};

    use super::*;

    /// A run of one question with texts and thoughts.
    fn study(dir: &std::path::Path) -> Study {
        let thoughts: Vec<f32> = (0..400).map(|i| i as f32).collect();
        let trajectory = Trajectory { thoughts: 100, text: "because ".repeat(20), ..Trajectory::default() };
        let sample = Sample { trajectories: vec![trajectory], ..Sample::default() };
        let mut writer = RunDir::create(dir, &Manifest::default()).unwrap();
        let mut latents = Latents::open(dir, 4).unwrap();
        latents.append(&sample, [&thoughts[..]]).unwrap();
        writer.append(&sample).unwrap();
        let run = writer.finish().unwrap();
        latents.finish().unwrap();
        Study::load(run, false).unwrap()
    }

    #[test]
    fn what_does_not_fit_goes_map_first_then_texts_then_all() {
        let dir = tempfile::tempdir().unwrap();
        let studies = [study(dir.path())];
        let told = |budget: usize| -> Value { serde_json::from_str(&within(&studies, budget).unwrap()).unwrap() };
        let of = |told: &Value| {
            let question = &told["runs"][0]["questions"][0];
            (
                question[7].as_str().is_some_and(|map| !map.is_empty()),
                question[3][0][2].as_str().is_some_and(|text| !text.is_empty()),
            )
        };
        let [full, plain, bare] = [(true, true), (false, true), (false, false)]
            .map(|(map, texts)| run(&studies[0], Detail { map, texts }).unwrap().to_string().len());
        assert!(bare < plain && plain < full);
        assert_eq!(of(&told(2 * full)), (true, true));
        assert_eq!(of(&told(full - 1)), (false, true));
        assert_eq!(of(&told(plain - 1)), (false, false));
        assert_eq!(told(bare - 1), json!({ "left_out": 1, "runs": [] }));
    }

    #[test]
    fn base64_is_the_standard_one() {
        let known = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(known, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}
