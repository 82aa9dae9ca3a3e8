//! What is saved is what was learned: the engine loads it and computes the same; a directory
//! without markers gets them.

use std::path::Path;

use engine::prompt::Prompt;
use engine::reasoner::REFERENCE_DIR;
use engine::reference_trace::ReferenceTracer;
use engine::{AnswerBatch, Family as Method, Reasoner, RewardModel, reference};
use model::save::SaveDtype;
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use model::{Cache, Checkpoint, Decoder, Pass, Sequence, Tokenizer, TrainableDecoder};
use serde_json::{Value, json};
use tensor::Tensor;
use train::model_dir::{self, ModelInit, save_weights};
use train::reward_step::{RewardHeadKind, RewardTrainStep};
use train::trainer::TrainTask;

use crate::support::{
    ReasonerFixture, device, loss_config, optimizer, problems, reward_example, reward_step, tiny,
    with_outcome_head,
};

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
fn learned(learner: &TrainableDecoder, tokens: &[u32]) -> Tensor {
    let mut cache =
        Cache::new(device(), learner.decoder.config(), Cache::slots_for(tokens.len())).unwrap();
    let pass = whole(&mut cache, tokens);
    learner.forward(&mut cache, &pass, learner.decoder.embed(tokens).unwrap(), None).unwrap().0
}

const TOKENS: [u32; 6] = [40, 9, 77, 40, 3, 120];

fn steps(course: &mut dyn TrainTask) {
    for step in 0..3 {
        course.accumulate_gradients(step, 0).unwrap();
        optimizer(3, 1e-2).step(device(), step, 1, course.parameters_mut()).unwrap();
        course.sync_weights().unwrap();
    }
}

#[test]
fn a_reasoner_is_what_was_learned() {
    let dir = tempfile::tempdir().unwrap();
    let reasoning = ReasonerFixture {
        width: 16,
        layers: 2,
        batch: 3,
        accumulation_steps: 1,
        steps: 3,
        dropout: 0.1,
    };
    let mut course = reasoning.task(dir.path(), problems(3));
    let fresh = hidden(&course.train_step.model.decoder, &TOKENS);
    steps(&mut course);
    course.save().unwrap();
    let own = hidden(&course.train_step.model.decoder, &TOKENS);
    assert_ne!(own.data(), fresh.data(), "it learned nothing");
    let loaded = Reasoner::load(device(), dir.path(), None).unwrap();
    assert_eq!(hidden(&loaded.decoder, &TOKENS).data(), own.data(), "to the bit");
    let segment = learned(&course.train_step.model, &TOKENS);
    assert!(
        segment.data().iter().zip(own.data()).all(|(a, b)| (a - b).abs() < 1e-5),
        "a segment computes the same"
    );
}

#[test]
fn a_reasoner_in_half_the_size_is_close() {
    let dir = tempfile::tempdir().unwrap();
    let reasoning = ReasonerFixture {
        width: 16,
        layers: 2,
        batch: 3,
        accumulation_steps: 1,
        steps: 3,
        dropout: 0.0,
    };
    let mut course = reasoning.task(dir.path(), problems(3));
    course.dtype = SaveDtype::Bf16;
    course.save().unwrap();
    let loaded = Reasoner::load(device(), dir.path(), None).unwrap();
    let (own, read) =
        (hidden(&course.train_step.model.decoder, &TOKENS), hidden(&loaded.decoder, &TOKENS));
    assert!(
        own.data().iter().zip(read.data()).all(|(a, b)| (a - b).abs() < 0.1),
        "{:?} {:?}",
        own.row(5),
        read.row(5)
    );
}

#[test]
fn a_judge_scores_as_it_learned_to() {
    let pairs = [
        (CheckpointFamily::Coconut, CheckpointFamily::RewardGpt2, RewardHeadKind::Linear),
        (CheckpointFamily::Coconut, CheckpointFamily::RewardGpt2, RewardHeadKind::Compare),
        (CheckpointFamily::LatentSft, CheckpointFamily::RewardLlama, RewardHeadKind::Compare),
    ];
    for (reasoner, reward, head) in pairs {
        let (thinks, judges) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_checkpoint(thinks.path(), &tiny(reasoner)).unwrap();
        let family =
            if reasoner == CheckpointFamily::Coconut { Method::Coconut } else { Method::LatentSft };
        let reasoner = Reasoner::load(device(), thinks.path(), Some(family)).unwrap();
        let mut judge = reward_step(reward, head, true);
        model_dir::copy_description(thinks.path(), judges.path()).unwrap();
        save(&judge, judges.path());
        let loaded = RewardModel::load(device(), judges.path(), &reasoner).unwrap();
        let of = reward_example(3, &[2, 3, 1]);
        let prompt = Prompt { id: of.id, text: String::new(), tokens: of.prompt.clone() };
        let thoughts =
            [of.thoughts.select(0..2), of.thoughts.select(2..5), of.thoughts.select(5..6)];
        let engine: Vec<f32> = reference::rewards(&loaded, &prompt, &thoughts).unwrap().concat();
        let own = judge.predict(&[of]).unwrap().remove(0).process;
        let close = engine.iter().zip(&own).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(
            close && engine.len() == 6,
            "{head:?}: {engine:?} by the engine, {own:?} by the learner"
        );
        assert!(
            own.iter().any(|s| (s - own[0]).abs() > 1e-3),
            "scores that are all alike show nothing"
        );
        let losses = judge
            .accumulate_gradients(
                &[reward_example(3, &[2, 3, 1])],
                loss_config(train::loss::Objective::Bce, None),
            )
            .unwrap();
        assert!(losses.objective.is_finite());
    }
}

/// One with a mind of its own, which is another reasoner, and which reads answers.
#[test]
fn a_judge_that_thinks_gives_the_verdicts_that_it_learned() {
    let (thinks, reflects, judges) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_checkpoint(thinks.path(), &tiny(CheckpointFamily::Coconut)).unwrap();
    write_checkpoint(
        reflects.path(),
        &CheckpointSpec { seed: 77, ..tiny(CheckpointFamily::Coconut) },
    )
    .unwrap();
    let reasoner = Reasoner::load(device(), thinks.path(), None).unwrap();
    let mut judge =
        with_outcome_head(reward_step(CheckpointFamily::RewardGpt2, RewardHeadKind::Compare, true));
    model_dir::copy_description(thinks.path(), judges.path()).unwrap();
    model_dir::copy_model(reflects.path(), &judges.path().join(REFERENCE_DIR)).unwrap();
    save(&judge, judges.path());
    let talkative = tempfile::tempdir().unwrap();
    write_checkpoint(talkative.path(), &tiny(CheckpointFamily::LatentSft)).unwrap();
    let talkative = Reasoner::load(device(), talkative.path(), Some(Method::LatentSft)).unwrap();
    let refused = RewardModel::load(device(), judges.path(), &talkative).err();
    assert!(
        matches!(refused, Some(engine::EngineError::UnreadableAnswers { reads: 260, says }) if says > 260),
        "{refused:?}"
    );
    let loaded = RewardModel::load(device(), judges.path(), &reasoner).unwrap();
    let mut of = reward_example(3, &[2, 3, 0]);
    let prompt = Prompt { id: of.id, text: String::new(), tokens: of.prompt.clone() };
    let thoughts = [of.thoughts.select(0..2), of.thoughts.select(2..5), of.thoughts.select(5..5)];
    let answers: Vec<_> = of.answers.iter().map(|tokens| tokens.clone().into()).collect();
    let said =
        AnswerBatch { end_latent: &judge.outcome.as_ref().unwrap().end_latent, answers: &answers };
    let engine = reference::rewards_with_answers(&loaded, &prompt, &thoughts, Some(said)).unwrap();
    of.reference_trace = ReferenceTracer::default()
        .trace(loaded.reference.as_ref().unwrap(), &[&prompt])
        .unwrap()
        .thoughts;
    let own = judge.predict(std::slice::from_ref(&of)).unwrap().remove(0);
    let scores: Vec<f32> = engine.iter().flat_map(|reading| reading.process.clone()).collect();
    let verdicts: Vec<f32> = engine.iter().filter_map(|reading| reading.outcome).collect();
    let close = |a: &[f32], b: &[f32]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
    };
    assert!(
        close(&scores, &own.process) && close(&verdicts, &own.outcome),
        "{engine:?} by the engine, {own:?} by the learner"
    );
    assert!(verdicts.len() == 3 && (verdicts[0] - verdicts[1]).abs() > 1e-4, "{verdicts:?}");
    of.reference_trace = Tensor::default();
    let thoughtless = judge.predict(&[of]).unwrap().remove(0);
    assert!(!close(&thoughtless.outcome, &own.outcome), "its own thoughts make no difference");
}

fn save(judge: &RewardTrainStep, to: &Path) {
    let learner = &judge.model;
    save_weights(
        to,
        learner.decoder.config(),
        learner.parameters(),
        judge.head_parameters(),
        SaveDtype::F32,
    )
    .unwrap();
}

/// Takes the markers out of a tokenizer.
fn unmark(dir: &Path) {
    for (file, field) in
        [("tokenizer.json", "added_tokens"), ("tokenizer_config.json", "added_tokens_decoder")]
    {
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

/// A directory as GPT-2's is, `padding` rows of its table beyond its vocabulary, and what training
/// makes of it.
fn grown(padded: bool) {
    let (tokens, plain, out) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_checkpoint(tokens.path(), &tiny(CheckpointFamily::Coconut)).unwrap();
    if !padded {
        unmark(tokens.path());
    }
    let spec = CheckpointSpec {
        tokenizer_from: Some(tokens.path().to_owned()),
        ..tiny(CheckpointFamily::Coconut)
    };
    write_checkpoint(plain.path(), &spec).unwrap();
    unmark(plain.path());
    let before = Checkpoint::open(plain.path()).unwrap();
    let (rows, words) =
        (before.config().vocab, Tokenizer::read(plain.path()).unwrap().vocab_size());
    assert_eq!(rows, if padded { words + 3 } else { words });

    let usage = json!({ "family": "coconut", "thoughts": 2, "max_new_tokens": 4 });
    let begun = model_dir::init_model(
        device(),
        &ModelInit::Pretrained(plain.path().to_owned()),
        out.path(),
        usage,
    )
    .unwrap();
    let config = begun.decoder.decoder.config();
    assert_eq!(config.vocab, words + 3);
    for (id, marker) in (words as u32..).zip(MARKERS) {
        assert_eq!(begun.tokenizer.token_to_id(marker), Some(id), "{marker}");
    }
    save_weights(out.path(), config, begun.decoder.parameters(), [], SaveDtype::F32).unwrap();
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
    assert_eq!(
        hidden(&loaded.decoder, &TOKENS).data(),
        hidden(&begun.decoder.decoder, &TOKENS).data()
    );
}

#[test]
fn a_vocabulary_grows_by_its_markers() {
    grown(false);
}

#[test]
fn markers_take_the_free_rows_of_a_padded_table() {
    grown(true);
}
