//! Saved models: the engine loads them and computes the same as the trained models; missing latent
//! markers are added to the vocabulary.

use std::path::Path;
use std::sync::Arc;

use engine::{
    AnswerBatch, EngineError, Family, OLD_REFERENCE_DIR, Prompt, REFERENCE_DIR, Reasoner,
    ReferenceTracer, RewardModel, reference,
};
use latent_tts_train::methods::simcot::StepDecoderSpec;
use latent_tts_train::model_dir::{
    self, AdapterSpec, AdapterStart, ModelInit, TuningSpec, WeightWriter,
};
use latent_tts_train::reward_step::{RewardHeadKind, RewardTrainStep};
use latent_tts_train::trainer::TrainTask;
use model::save::SaveDtype;
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use model::{
    Cache, Checkpoint, Decoder, DecoderTuning, LmHead, LoraConfig, LoraTargets, Pass, Sequence,
    Tokenizer, TrainableDecoder,
};
use serde_json::{Value, json};
use tensor::Tensor;

use crate::methods::{coconut, lora_with_dropout};
use crate::support::{
    FULL_TUNING, FULL_WRITER, ReasonerFixture, device, loss_config, optimizer, problems,
    reward_example, reward_step, tiny, with_outcome_head,
};

/// Hidden states of some tokens.
fn hidden(decoder: &Decoder, tokens: &[u32]) -> Tensor {
    let mut cache = Cache::new(device(), decoder.config(), Cache::slots_for(tokens.len())).unwrap();
    let pass = whole(&mut cache, tokens);
    decoder.forward(&mut cache, &pass, decoder.embed(tokens).unwrap(), None).unwrap()
}

fn whole(cache: &mut Cache, tokens: &[u32]) -> Pass {
    let mut pass = Pass::default();
    let mut sequence = Sequence::default();
    tokens.iter().for_each(|_| pass.push(cache, &mut sequence, true));
    pass
}

/// Hidden states computed by the forward pass of training.
fn train_hidden(model: &TrainableDecoder, tokens: &[u32]) -> Tensor {
    let mut cache =
        Cache::new(device(), model.decoder.config(), Cache::slots_for(tokens.len())).unwrap();
    let pass = whole(&mut cache, tokens);
    model.forward(&mut cache, &pass, model.decoder.embed(tokens).unwrap(), None).unwrap().0
}

const TOKENS: [u32; 6] = [40, 9, 77, 40, 3, 120];

fn run_steps(task: &mut dyn TrainTask) {
    for step in 0..3 {
        task.accumulate_gradients(step, 0).unwrap();
        optimizer(3, 1e-2).step(device(), step, 1, task.parameters_mut()).unwrap();
        task.sync_weights().unwrap();
    }
}

#[test]
fn a_saved_reasoner_computes_what_was_trained() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = ReasonerFixture {
        width: 16,
        layers: 2,
        batch: 3,
        accumulation_steps: 1,
        steps: 3,
        dropout: 0.1,
    };
    let mut task = fixture.task(dir.path(), problems(3));
    let fresh = hidden(&task.train_step.model.decoder, &TOKENS);
    run_steps(&mut task);
    task.save().unwrap();
    let own = hidden(&task.train_step.model.decoder, &TOKENS);
    assert_ne!(own.data(), fresh.data(), "training changed nothing");
    let loaded = Reasoner::load(device(), dir.path(), None).unwrap();
    assert_eq!(hidden(&loaded.decoder, &TOKENS).data(), own.data(), "bit by bit");
    let segment = train_hidden(&task.train_step.model, &TOKENS);
    assert!(
        segment.data().iter().zip(own.data()).all(|(a, b)| (a - b).abs() < 1e-5),
        "training's forward pass computes the same"
    );
}

/// Evaluations use the model in memory, which is bit-identical to the saved one, and write no
/// files.
#[test]
fn a_model_in_memory_is_the_saved_one() {
    let fixture = ReasonerFixture {
        width: 16,
        layers: 2,
        batch: 3,
        accumulation_steps: 1,
        steps: 3,
        dropout: 0.1,
    };
    for (lora, dtype) in [
        (None, SaveDtype::F32),
        (None, SaveDtype::Bf16),
        (lora_with_dropout(), SaveDtype::F32),
        (lora_with_dropout(), SaveDtype::Bf16),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut model = fixture.model(dir.path(), &coconut(StepDecoderSpec::NONE), lora);
        model.decoder.parameters_mut().for_each(|p| p.value.data_mut()[0] += 0.25);
        model.decoder.sync_weights().unwrap();
        model.writer.dtype = dtype;
        let files = model.writer.in_memory(dir.path(), &model.decoder, []).unwrap();
        let in_memory = Reasoner::load(device(), files, None).unwrap();
        assert!(!model.writer.is_written(dir.path()), "a model in memory wrote files");
        model.writer.write(dir.path(), &model.decoder, []).unwrap();
        let saved = Reasoner::load(device(), dir.path(), None).unwrap();
        let of_memory = hidden(&in_memory.decoder, &TOKENS);
        assert_eq!(of_memory.data(), hidden(&saved.decoder, &TOKENS).data(), "bit by bit");
        assert_eq!(in_memory.method.family, saved.method.family);
    }
}

#[test]
fn a_reasoner_saved_in_bf16_is_close() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = ReasonerFixture {
        width: 16,
        layers: 2,
        batch: 3,
        accumulation_steps: 1,
        steps: 3,
        dropout: 0.0,
    };
    let mut task = fixture.task(dir.path(), problems(3));
    task.writer.dtype = SaveDtype::Bf16;
    task.save().unwrap();
    let loaded = Reasoner::load(device(), dir.path(), None).unwrap();
    let own = hidden(&task.train_step.model.decoder, &TOKENS);
    let read = hidden(&loaded.decoder, &TOKENS);
    assert!(
        own.data().iter().zip(read.data()).all(|(a, b)| (a - b).abs() < 0.1),
        "{:?} {:?}",
        own.row(5),
        read.row(5)
    );
}

#[test]
fn a_saved_reward_model_gives_the_rewards_of_training() {
    let pairs = [
        (CheckpointFamily::Coconut, CheckpointFamily::RewardGpt2, RewardHeadKind::Linear),
        (CheckpointFamily::Coconut, CheckpointFamily::RewardGpt2, RewardHeadKind::Compare),
        (CheckpointFamily::LatentSft, CheckpointFamily::RewardLlama, RewardHeadKind::Compare),
    ];
    for (reasoner, reward, head) in pairs {
        let reasoner_dir = tempfile::tempdir().unwrap();
        let reward_dir = tempfile::tempdir().unwrap();
        write_checkpoint(reasoner_dir.path(), &tiny(reasoner)).unwrap();
        let family = if reasoner == CheckpointFamily::Coconut {
            Family::COCONUT
        } else {
            Family::LATENT_SFT
        };
        let reasoner = Reasoner::load(device(), reasoner_dir.path(), Some(family)).unwrap();
        let mut step = reward_step(reward, head, true);
        model_dir::copy_description(reasoner_dir.path(), reward_dir.path()).unwrap();
        save(&step, reward_dir.path());
        let loaded = RewardModel::load(device(), reward_dir.path(), &reasoner).unwrap();
        let example = reward_example(3, &[2, 3, 1]);
        let prompt = Prompt { id: example.id, text: String::new(), tokens: example.prompt.clone() };
        let thoughts = [
            example.thoughts.select(0..2),
            example.thoughts.select(2..5),
            example.thoughts.select(5..6),
        ];
        let engine: Vec<f32> = reference::rewards(&loaded, &prompt, &thoughts).unwrap().concat();
        let own = step.predict(&[example]).unwrap().remove(0).process;
        let close = engine.iter().zip(&own).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(
            close && engine.len() == 6,
            "{head:?}: {engine:?} by the engine, {own:?} by the train step"
        );
        assert!(own.iter().any(|s| (s - own[0]).abs() > 1e-3), "the test needs different rewards");
        let losses = step
            .accumulate_gradients(
                &[reward_example(3, &[2, 3, 1])],
                loss_config(latent_tts_train::loss::Objective::Bce, None),
            )
            .unwrap();
        assert!(losses.objective.is_finite());
    }
}

/// With another reasoner as its reference, and an outcome head.
#[test]
fn a_saved_outcome_head_gives_the_outcome_rewards_of_training() {
    let reasoner_dir = tempfile::tempdir().unwrap();
    let reference_dir = tempfile::tempdir().unwrap();
    let reward_dir = tempfile::tempdir().unwrap();
    write_checkpoint(reasoner_dir.path(), &tiny(CheckpointFamily::Coconut)).unwrap();
    write_checkpoint(
        reference_dir.path(),
        &CheckpointSpec { seed: 77, ..tiny(CheckpointFamily::Coconut) },
    )
    .unwrap();
    let reasoner = Reasoner::load(device(), reasoner_dir.path(), None).unwrap();
    let mut step =
        with_outcome_head(reward_step(CheckpointFamily::RewardGpt2, RewardHeadKind::Compare, true));
    model_dir::copy_description(reasoner_dir.path(), reward_dir.path()).unwrap();
    model_dir::copy_model(reference_dir.path(), &reward_dir.path().join(REFERENCE_DIR)).unwrap();
    save(&step, reward_dir.path());
    let other = tempfile::tempdir().unwrap();
    write_checkpoint(other.path(), &tiny(CheckpointFamily::LatentSft)).unwrap();
    let other = Reasoner::load(device(), other.path(), Some(Family::LATENT_SFT)).unwrap();
    let error = RewardModel::load(device(), reward_dir.path(), &other).err();
    let Some(EngineError::UnreadableAnswers { reads: 260, says }) = error else {
        panic!("{error:?}")
    };
    assert!(says > 260, "{says}");
    // The directory's name in models of version 0.1.
    let (new, old) =
        [REFERENCE_DIR, OLD_REFERENCE_DIR].map(|name| reward_dir.path().join(name)).into();
    std::fs::rename(new, old).unwrap();
    let loaded = RewardModel::load(device(), reward_dir.path(), &reasoner).unwrap();
    assert!(loaded.reference.is_some());
    let mut example = reward_example(3, &[2, 3, 0]);
    let prompt = Prompt { id: example.id, text: String::new(), tokens: example.prompt.clone() };
    let thoughts = [
        example.thoughts.select(0..2),
        example.thoughts.select(2..5),
        example.thoughts.select(5..5),
    ];
    let answers: Vec<_> = example.answers.iter().map(|tokens| tokens.clone().into()).collect();
    let batch =
        AnswerBatch { end_latent: &step.outcome.as_ref().unwrap().end_latent, answers: &answers };
    let engine = reference::rewards_with_answers(&loaded, &prompt, &thoughts, Some(batch)).unwrap();
    example.reference_trace = ReferenceTracer::default()
        .trace(loaded.reference.as_ref().unwrap(), &[&prompt])
        .unwrap()
        .thoughts;
    let own = step.predict(std::slice::from_ref(&example)).unwrap().remove(0);
    let process: Vec<f32> = engine.iter().flat_map(|rewards| rewards.process.clone()).collect();
    let outcome: Vec<f32> = engine.iter().filter_map(|rewards| rewards.outcome).collect();
    let close = |a: &[f32], b: &[f32]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
    };
    assert!(
        close(&process, &own.process) && close(&outcome, &own.outcome),
        "{engine:?} by the engine, {own:?} by the train step"
    );
    assert!(outcome.len() == 3 && (outcome[0] - outcome[1]).abs() > 1e-4, "{outcome:?}");
    example.reference_trace = Tensor::default();
    let without = step.predict(&[example]).unwrap().remove(0);
    assert!(!close(&without.outcome, &own.outcome), "the reference trace has no effect");
}

fn save(step: &RewardTrainStep, dir: &Path) {
    FULL_WRITER.write(dir, &step.model, step.head_parameters()).unwrap();
}

/// Removes the latent markers from a tokenizer.
fn remove_markers(dir: &Path) {
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

/// Initializes a model from a directory without markers; `padded` embedding tables have more rows
/// than the vocabulary.
fn assert_markers_are_added(padded: bool) {
    let tokens = tempfile::tempdir().unwrap();
    let plain = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    write_checkpoint(tokens.path(), &tiny(CheckpointFamily::Coconut)).unwrap();
    if !padded {
        remove_markers(tokens.path());
    }
    let spec = CheckpointSpec {
        tokenizer_from: Some(tokens.path().to_owned()),
        ..tiny(CheckpointFamily::Coconut)
    };
    write_checkpoint(plain.path(), &spec).unwrap();
    remove_markers(plain.path());
    let before = Checkpoint::open(plain.path()).unwrap();
    let rows = before.config().vocab;
    let words = Tokenizer::read(plain.path()).unwrap().vocab_size();
    assert_eq!(rows, if padded { words + 3 } else { words });

    let usage = json!({ "family": "coconut", "thoughts": 2, "max_new_tokens": 4 });
    let model = model_dir::init_model(
        device(),
        &ModelInit::Pretrained(plain.path().into()),
        out.path(),
        usage,
        &FULL_TUNING,
    )
    .unwrap();
    let config = model.decoder.decoder.config();
    assert_eq!(config.vocab, words + 3);
    for (id, marker) in (words as u32..).zip(MARKERS) {
        assert_eq!(model.tokenizer.token_to_id(marker), Some(id), "{marker}");
    }
    model.writer.write(out.path(), &model.decoder, []).unwrap();
    let after = Checkpoint::open(out.path()).unwrap();
    let table = after.tensor("wte.weight", &[words + 3, 16]).unwrap();
    let old = before.tensor("wte.weight", &[rows, 16]).unwrap();
    assert_eq!(table[..rows * 16], old[..], "old embeddings are unchanged");
    if !padded {
        let copied = model.tokenizer.encode("<<").unwrap()[0] as usize;
        assert!(
            table[rows * 16..].chunks(16).all(|row| *row == old[copied * 16..][..16]),
            "new embeddings are copies of an existing token's"
        );
    }
    let loaded = Reasoner::load(device(), out.path(), None).unwrap();
    assert_eq!(loaded.method.family, Family::COCONUT);
    assert_eq!(
        hidden(&loaded.decoder, &TOKENS).data(),
        hidden(&model.decoder.decoder, &TOKENS).data()
    );
}

#[test]
fn markers_extend_the_embedding_table() {
    assert_markers_are_added(false);
}

#[test]
fn markers_take_the_padding_of_the_embedding_table() {
    assert_markers_are_added(true);
}

/// Qwen3-VL has the vocabulary size in the configuration of its text tower.
#[test]
fn markers_extend_a_text_tower() {
    let plain = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    write_checkpoint(plain.path(), &tiny(CheckpointFamily::Rot)).unwrap();
    let words = Tokenizer::read(plain.path()).unwrap().vocab_size();
    let init = ModelInit::Pretrained(plain.path().into());
    let usage = json!({ "family": "coconut", "thoughts": 2, "max_new_tokens": 4 });
    let model = model_dir::init_model(device(), &init, out.path(), usage, &FULL_TUNING).unwrap();
    let config = model.decoder.decoder.config();
    assert_eq!(config.vocab, words + MARKERS.len());
    model.writer.write(out.path(), &model.decoder, []).unwrap();
    let loaded = Reasoner::load(device(), out.path(), None).unwrap();
    assert_eq!(
        hidden(&loaded.decoder, &TOKENS).data(),
        hidden(&model.decoder.decoder, &TOKENS).data()
    );
}

/// With LoRA, the markers' rows are trained and saved, both new rows and former padding.
#[test]
fn an_adapter_brings_the_rows_of_its_markers() {
    for padded in [false, true] {
        let (tokens, plain, out) = (
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
        );
        write_checkpoint(tokens.path(), &tiny(CheckpointFamily::Coconut)).unwrap();
        if !padded {
            remove_markers(tokens.path());
        }
        let tokenizer_from = Some(tokens.path().to_owned());
        let spec = CheckpointSpec { tokenizer_from, ..tiny(CheckpointFamily::Coconut) };
        write_checkpoint(plain.path(), &spec).unwrap();
        remove_markers(plain.path());
        let words = Tokenizer::read(plain.path()).unwrap().vocab_size();
        let lora =
            LoraConfig { rank: 2, alpha: 4.0, targets: LoraTargets::All, dropout: 0.0, seed: 1 };
        let (init, tuning) = (
            ModelInit::Pretrained(plain.path().into()),
            TuningSpec { lora: Some(lora.into()), ..FULL_TUNING },
        );
        let usage = json!({ "family": "coconut", "thoughts": 2, "max_new_tokens": 4 });
        let mut model = model_dir::init_model(device(), &init, out.path(), usage, &tuning).unwrap();
        for parameter in model.decoder.parameters_mut() {
            parameter.value.data_mut().iter_mut().for_each(|x| *x += 0.25);
        }
        model.decoder.sync_weights().unwrap();
        model.writer.write(out.path(), &model.decoder, []).unwrap();
        let loaded = Checkpoint::open(out.path()).unwrap();
        assert_eq!((loaded.config().vocab, loaded.added_tokens()), (words + 3, 3));
        let marker = [words as u32, 40, words as u32 + 1];
        let reasoner = Reasoner::load(device(), out.path(), None).unwrap();
        let own = hidden(&model.decoder.decoder, &marker);
        let read = hidden(&reasoner.decoder, &marker);
        let close = own.data().iter().zip(read.data()).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(close, "padded {padded}: {:?} {:?}", own.row(2), read.row(2));
    }
}

/// A reward model that is an adapter over the reasoner's adapter, with the reasoner as its
/// reference: the saved model gives the rewards of training, bit-identical after it is moved.
#[test]
fn an_adapter_over_an_adapter_gives_the_rewards_of_training() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write_checkpoint(&path("base"), &tiny(CheckpointFamily::Coconut)).unwrap();
    let lora = LoraConfig { rank: 2, alpha: 4.0, targets: LoraTargets::All, dropout: 0.0, seed: 1 };
    let spec = AdapterSpec { start: AdapterStart::Over, ..AdapterSpec::from(lora) };
    let tuning = TuningSpec { lora: Some(spec.clone()), ..FULL_TUNING };
    let usage = json!({ "family": "coconut", "thoughts": 2, "max_new_tokens": 4 });
    let init = ModelInit::Pretrained((&path("base")).into());
    let mut model =
        model_dir::init_model(device(), &init, &path("reasoner"), usage, &tuning).unwrap();
    perturb(&mut model.decoder, 0.125);
    model.writer.write(&path("reasoner"), &model.decoder, []).unwrap();

    let checkpoint = Checkpoint::open(&path("reasoner")).unwrap();
    let config = checkpoint.config().clone();
    let new_tokens = checkpoint.added_tokens();
    let source = spec.source(&checkpoint);
    let tuned = DecoderTuning::Lora { config: &spec.config, new_tokens };
    let mut decoder =
        TrainableDecoder::load_tuned(device(), &config, &source, LmHead::Without, tuned).unwrap();
    perturb(&mut decoder, 0.0625);
    let scratch = reward_step(CheckpointFamily::RewardGpt2, RewardHeadKind::Compare, false);
    let mut step = RewardTrainStep::new(decoder, scratch.head, None);
    model_dir::copy_description(&path("reasoner"), &path("reward_model")).unwrap();
    let mut reward_model = model_dir::read_json(&path("reward_model/config.json")).unwrap();
    reward_model["latent_tts"] = json!({ "reference": {
        "path": "../reasoner", "digest": checkpoint.digest().unwrap(),
    } });
    model_dir::write_json(&path("reward_model/config.json"), &reward_model).unwrap();
    let writer = WeightWriter::new(&tuning, &checkpoint).unwrap();
    writer.write(&path("reward_model"), &step.model, step.head.parameters()).unwrap();

    let mut example = reward_example(3, &[2, 3, 1]);
    let prompt = Prompt { id: example.id, text: String::new(), tokens: example.prompt.clone() };
    let thoughts = [0..2, 2..5, 5..6].map(|range| example.thoughts.select(range));
    let load = |folder: &Path| {
        let reasoner = Reasoner::load(device(), &folder.join("reasoner"), None).unwrap();
        let loaded = RewardModel::load(device(), &folder.join("reward_model"), &reasoner).unwrap();
        assert!(reasoner.warnings.is_empty() && loaded.warnings.is_empty());
        let reference = loaded.reference.as_ref().unwrap();
        assert!(Arc::ptr_eq(&reference.decoder, &reasoner.decoder), "one copy of the weights");
        let rewards = reference::rewards(&loaded, &prompt, &thoughts).unwrap().concat();
        let trace = ReferenceTracer::default().trace(reference, &[&prompt]).unwrap();
        (rewards, trace.thoughts)
    };
    let (engine, trace) = load(folder.path());
    example.reference_trace = trace;
    let own = step.predict(&[example]).unwrap().remove(0).process;
    let close = engine.iter().zip(&own).all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(close && engine.len() == 6, "{engine:?} by the engine, {own:?} by the train step");
    assert!(own.iter().any(|s| (s - own[0]).abs() > 1e-3), "the test needs different rewards");
    let elsewhere = tempfile::tempdir().unwrap();
    for name in ["base", "reasoner", "reward_model"] {
        std::fs::rename(path(name), elsewhere.path().join(name)).unwrap();
    }
    assert_eq!(load(elsewhere.path()).0, engine, "bit by bit");
}

fn perturb(decoder: &mut TrainableDecoder, by: f32) {
    for parameter in decoder.parameters_mut() {
        let values = parameter.value.data_mut().iter_mut().enumerate();
        values.for_each(|(i, x)| *x += by * ((i % 7) as f32 - 3.0) / 3.0);
    }
    decoder.sync_weights().unwrap();
}
