//! What is saved is what was learned: the engine loads it and computes the same; a directory without markers gets them.

use std::path::Path;

use engine::prompt::Prompt;
use engine::reasoner::MIND;
use engine::reflect::Reflections;
use engine::{Family as Method, Reasoner, RewardModel, Said, replay};
use model::save::Saved;
use model::testkit::{Family, Spec, write_checkpoint};
use model::{Cache, Checkpoint, Decoder, Learner, Pass, Sequence, Tokenizer};
use serde_json::{Value, json};
use tensor::Tensor;
use train::course::Course;
use train::directory::{self, Start, save_weights};
use train::judge::{HeadKind, Judge};

use crate::support::{Reasoning, case, device, judge, judging, optimizer, problems, tiny, verdicts};

/// Hidden states of some tokens.
fn hidden(decoder: &Decoder, tokens: &[u32]) -> Tensor {
    let mut cache = Cache::new(device(), decoder.config(), Cache::slots_for(tokens.len())).unwrap();
    let pass = whole(&mut cache, tokens);
    decoder.forward(&mut cache, &pass, decoder.embed(tokens).unwrap(), None).unwrap()
}

fn whole(cache: &mut Cache, tokens: &[u32]) -> Pass {
    let (mut pass, mut sequence) = (Pass::default(), Sequence::default());
    tokens.iter().for_each(|_| pass.push(cache, &mut sequence, true));
    pass
}

/// The same through the pass that keeps what the way back needs.
fn learned(learner: &Learner, tokens: &[u32]) -> Tensor {
    let mut cache = Cache::new(device(), learner.decoder.config(), Cache::slots_for(tokens.len())).unwrap();
    let pass = whole(&mut cache, tokens);
    learner.forward(&mut cache, &pass, learner.decoder.embed(tokens).unwrap(), None).unwrap().0
}

const TOKENS: [u32; 6] = [40, 9, 77, 40, 3, 120];

fn steps(course: &mut dyn Course) {
    for step in 0..3 {
        course.learn(step, 0).unwrap();
        optimizer(3, 1e-2).step(device(), step, 1, course.parameters_mut()).unwrap();
        course.refresh().unwrap();
    }
}

#[test]
fn a_reasoner_is_what_was_learned() {
    let dir = tempfile::tempdir().unwrap();
    let reasoning = Reasoning { width: 16, layers: 2, batch: 3, accumulate: 1, steps: 3, dropout: 0.1 };
    let mut course = reasoning.course(dir.path(), problems(3));
    let fresh = hidden(&course.study.learner.decoder, &TOKENS);
    steps(&mut course);
    course.save().unwrap();
    let own = hidden(&course.study.learner.decoder, &TOKENS);
    assert_ne!(own.data(), fresh.data(), "it learned nothing");
    let loaded = Reasoner::load(device(), dir.path(), None).unwrap();
    assert_eq!(hidden(&loaded.decoder, &TOKENS).data(), own.data(), "to the bit");
    let segment = learned(&course.study.learner, &TOKENS);
    assert!(segment.data().iter().zip(own.data()).all(|(a, b)| (a - b).abs() < 1e-5), "a segment computes the same");
}

#[test]
fn a_reasoner_in_half_the_size_is_close() {
    let dir = tempfile::tempdir().unwrap();
    let reasoning = Reasoning { width: 16, layers: 2, batch: 3, accumulate: 1, steps: 3, dropout: 0.0 };
    let mut course = reasoning.course(dir.path(), problems(3));
    course.saved = Saved::Bf16;
    course.save().unwrap();
    let loaded = Reasoner::load(device(), dir.path(), None).unwrap();
    let (own, read) = (hidden(&course.study.learner.decoder, &TOKENS), hidden(&loaded.decoder, &TOKENS));
    assert!(own.data().iter().zip(read.data()).all(|(a, b)| (a - b).abs() < 0.1), "{:?} {:?}", own.row(5), read.row(5));
}

#[test]
fn a_judge_scores_as_it_learned_to() {
    let pairs = [
        (Family::Coconut, Family::RewardGpt2, HeadKind::Linear),
        (Family::Coconut, Family::RewardGpt2, HeadKind::Compare),
        (Family::LatentSft, Family::RewardLlama, HeadKind::Compare),
    ];
    for (reasoner, reward, head) in pairs {
        let (thinks, judges) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_checkpoint(thinks.path(), &tiny(reasoner)).unwrap();
        let family = if reasoner == Family::Coconut { Method::Coconut } else { Method::LatentSft };
        let reasoner = Reasoner::load(device(), thinks.path(), Some(family)).unwrap();
        let mut judge = judge(reward, head, true);
        directory::copy_description(thinks.path(), judges.path()).unwrap();
        save(&judge, judges.path());
        let loaded = RewardModel::load(device(), judges.path(), &reasoner).unwrap();
        let of = case(3, &[2, 3, 1]);
        let prompt = Prompt { id: of.id, text: String::new(), tokens: of.prompt.clone() };
        let thoughts = [of.thoughts.select(0..2), of.thoughts.select(2..5), of.thoughts.select(5..6)];
        let engine: Vec<f32> = replay::rewards(&loaded, &prompt, &thoughts).unwrap().concat();
        let own = judge.scores(&[of]).unwrap().remove(0).thoughts;
        let close = engine.iter().zip(&own).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(close && engine.len() == 6, "{head:?}: {engine:?} by the engine, {own:?} by the learner");
        assert!(own.iter().any(|s| (s - own[0]).abs() > 1e-3), "scores that are all alike show nothing");
        let losses = judge.learn(&[case(3, &[2, 3, 1])], judging(train::loss::Objective::Bce, None)).unwrap();
        assert!(losses.score.is_finite());
    }
}

/// One with a mind of its own, which is another reasoner, and which reads answers.
#[test]
fn a_judge_that_thinks_gives_the_verdicts_that_it_learned() {
    let (thinks, reflects, judges) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_checkpoint(thinks.path(), &tiny(Family::Coconut)).unwrap();
    write_checkpoint(reflects.path(), &Spec { seed: 77, ..tiny(Family::Coconut) }).unwrap();
    let reasoner = Reasoner::load(device(), thinks.path(), None).unwrap();
    let mut judge = verdicts(judge(Family::RewardGpt2, HeadKind::Compare, true));
    directory::copy_description(thinks.path(), judges.path()).unwrap();
    directory::copy_model(reflects.path(), &judges.path().join(MIND)).unwrap();
    save(&judge, judges.path());
    let talkative = tempfile::tempdir().unwrap();
    write_checkpoint(talkative.path(), &tiny(Family::LatentSft)).unwrap();
    let talkative = Reasoner::load(device(), talkative.path(), Some(Method::LatentSft)).unwrap();
    let refused = RewardModel::load(device(), judges.path(), &talkative).err();
    assert!(matches!(refused, Some(engine::Error::UnreadableAnswers { reads: 260, says }) if says > 260), "{refused:?}");
    let loaded = RewardModel::load(device(), judges.path(), &reasoner).unwrap();
    let mut of = case(3, &[2, 3, 0]);
    let prompt = Prompt { id: of.id, text: String::new(), tokens: of.prompt.clone() };
    let thoughts = [of.thoughts.select(0..2), of.thoughts.select(2..5), of.thoughts.select(5..5)];
    let answers: Vec<_> = of.answers.iter().map(|tokens| tokens.clone().into()).collect();
    let said = Said { end: &judge.verdicts.as_ref().unwrap().end, answers: &answers };
    let engine = replay::readings(&loaded, &prompt, &thoughts, Some(said)).unwrap();
    of.own = Reflections::default().of(loaded.mind.as_ref().unwrap(), &[&prompt]).unwrap().thoughts;
    let own = judge.scores(std::slice::from_ref(&of)).unwrap().remove(0);
    let scores: Vec<f32> = engine.iter().flat_map(|reading| reading.scores.clone()).collect();
    let verdicts: Vec<f32> = engine.iter().filter_map(|reading| reading.verdict).collect();
    let close = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(close(&scores, &own.thoughts) && close(&verdicts, &own.verdicts), "{engine:?} by the engine, {own:?} by the learner");
    assert!(verdicts.len() == 3 && (verdicts[0] - verdicts[1]).abs() > 1e-4, "{verdicts:?}");
    of.own = Tensor::default();
    let thoughtless = judge.scores(&[of]).unwrap().remove(0);
    assert!(!close(&thoughtless.verdicts, &own.verdicts), "its own thoughts make no difference");
}

fn save(judge: &Judge, to: &Path) {
    let learner = &judge.learner;
    save_weights(to, learner.decoder.config(), learner.parameters(), judge.heads(), Saved::F32).unwrap();
}

/// Takes the markers out of a tokenizer.
fn unmark(dir: &Path) {
    for (file, field) in [("tokenizer.json", "added_tokens"), ("tokenizer_config.json", "added_tokens_decoder")] {
        let path = dir.join(file);
        let mut value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let marker = |token: &Value| token["content"].as_str().unwrap().contains("latent");
        match &mut value[field] {
            Value::Array(list) => list.retain(|token| !marker(token)),
            Value::Object(map) => map.retain(|_, token| !marker(token)),
            other => panic!("{file}: {other}"),
        }
        std::fs::write(path, value.to_string()).unwrap();
    }
}

const MARKERS: [&str; 3] = ["<|start-latent|>", "<|end-latent|>", "<|latent|>"];

/// A directory as GPT-2's is, `padding` rows of its table beyond its vocabulary, and what training makes of it.
fn grown(padded: bool) {
    let (tokens, plain, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_checkpoint(tokens.path(), &tiny(Family::Coconut)).unwrap();
    if !padded {
        unmark(tokens.path());
    }
    let spec = Spec { tokenizer_from: Some(tokens.path().to_owned()), ..tiny(Family::Coconut) };
    write_checkpoint(plain.path(), &spec).unwrap();
    unmark(plain.path());
    let before = Checkpoint::open(plain.path()).unwrap();
    let (rows, words) = (before.config().vocab, Tokenizer::read(plain.path()).unwrap().vocab_size());
    assert_eq!(rows, if padded { words + 3 } else { words });

    let usage = json!({ "family": "coconut", "thoughts": 2, "max_new_tokens": 4 });
    let begun = directory::begin(device(), &Start::From(plain.path().to_owned()), out.path(), usage).unwrap();
    let config = begun.learner.decoder.config();
    assert_eq!(config.vocab, words + 3);
    for (id, marker) in (words as u32..).zip(MARKERS) {
        assert_eq!(begun.tokenizer.id(marker), Some(id), "{marker}");
    }
    save_weights(out.path(), config, begun.learner.parameters(), [], Saved::F32).unwrap();
    let after = Checkpoint::open(out.path()).unwrap();
    let table = after.tensor("wte.weight", &[words + 3, 16]).unwrap();
    let old = before.tensor("wte.weight", &[rows, 16]).unwrap();
    assert_eq!(table[..rows * 16], old[..], "the old ones stay");
    if !padded {
        let like = begun.tokenizer.encode("<<").unwrap()[0] as usize;
        assert!(
            table[rows * 16..].chunks(16).all(|row| *row == old[like * 16..][..16]),
            "new ones begin as a mark that is there"
        );
    }
    let loaded = Reasoner::load(device(), out.path(), None).unwrap();
    assert_eq!(loaded.method.family, Method::Coconut);
    assert_eq!(hidden(&loaded.decoder, &TOKENS).data(), hidden(&begun.learner.decoder, &TOKENS).data());
}

#[test]
fn a_vocabulary_grows_by_its_markers() {
    grown(false);
}

#[test]
fn markers_take_the_free_rows_of_a_padded_table() {
    grown(true);
}
