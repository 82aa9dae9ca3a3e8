//! Every method, with all weights and with LoRA, overfits ten problems, which the engine then
//! answers with the saved model, and resumes byte for byte.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use data::TrainExample;
use engine::Reasoner;
use latent_tts_train::curriculum::{Curriculum, Removal};
use latent_tts_train::methods::coconut::CoconutMethod;
use latent_tts_train::methods::codi::CodiMethod;
use latent_tts_train::methods::colar::ColarMethod;
use latent_tts_train::methods::latent_sft::LatentSftMethod;
use latent_tts_train::methods::lotus::LotusMethod;
use latent_tts_train::methods::rot::RotMethod;
use latent_tts_train::methods::simcot::StepDecoderSpec;
use latent_tts_train::methods::{TrainingMethod, colar, latent_sft, rot};
use latent_tts_train::reasoner::greedy_accuracy;
use latent_tts_train::trainer::{TrainEvent, TrainOutcome, TrainTask};
use latent_tts_train::vocabulary;
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use model::{LoraConfig, LoraTargets, Tokenizer};

use crate::resumable::{ACCUMULATION_STEPS, STEPS, assert_resumable};
use crate::support::{ReasonerFixture, device, problems, train, train_config};

pub const STEP_DECODER: StepDecoderSpec =
    StepDecoderSpec { loss_weight: 0.5, thoughts_per_step: 1 };

pub fn coconut(step_decoder: StepDecoderSpec) -> CoconutMethod {
    let removal = Removal::Smooth { end: 0.0, no_cot_fraction: 1.0, uniform_prob: 0.0 };
    let curriculum = Curriculum::Latent { thoughts: 6, removal };
    CoconutMethod { curriculum, thoughts_per_step: 1, digit_loss_weight: 0.1, step_decoder }
}

pub fn codi(step_decoder: StepDecoderSpec) -> CodiMethod {
    CodiMethod {
        thoughts: 6,
        gamma: 1.0,
        projector: None,
        keeps_last_step: false,
        prompt_prefix: String::new(),
        step_decoder,
    }
}

pub fn colar_method() -> ColarMethod {
    ColarMethod { speeds: (1, 3), ordered: true, latent_head: 32 }
}

fn latent_sft_method(tokenizer: &Tokenizer) -> LatentSftMethod {
    let layout = latent_sft::layout(tokenizer).unwrap();
    let ordered = true;
    let scheduled_sampling = 0.5;
    LatentSftMethod { compression: 2, ordered, scheduled_sampling, thoughts: 48, layout }
}

pub fn lotus() -> LotusMethod {
    let removal = Removal::Smooth { end: 0.5, no_cot_fraction: 0.5, uniform_prob: 0.0 };
    let curriculum = Curriculum::Latent { thoughts: 3, removal };
    LotusMethod { curriculum, blocks: 3, block_width: 4, loops: 2, step_loss_weight: 0.3 }
}

fn rot_method(tokenizer: &Tokenizer) -> RotMethod {
    RotMethod {
        thoughts: 12,
        compression: 2,
        ordered: true,
        gamma: 1.0,
        scheduled_sampling: 0.5,
        latent_head: 32,
        layout: rot::layout(tokenizer).unwrap(),
    }
}

fn lora() -> Option<LoraConfig> {
    Some(LoraConfig { rank: 8, alpha: 16.0, targets: LoraTargets::All, dropout: 0.0, seed: 3 })
}

pub fn lora_with_dropout() -> Option<LoraConfig> {
    lora().map(|lora| LoraConfig { dropout: 0.1, ..lora })
}

/// A model trained on ten problems.
fn ten_problems(steps: u32) -> ReasonerFixture {
    ReasonerFixture { width: 32, layers: 2, batch: 10, accumulation_steps: 1, steps, dropout: 0.0 }
}

#[track_caller]
fn assert_overfits(method: impl TrainingMethod, lora: Option<LoraConfig>, steps: u32) {
    let dir = tempfile::tempdir().unwrap();
    let task = ten_problems(steps).method_task(dir.path(), &method, lora, problems(10));
    assert_answers(task, dir.path(), steps, &problems(10));
}

/// Trains on some problems and answers them with the saved model.
#[track_caller]
fn assert_answers(mut task: Box<dyn TrainTask>, dir: &Path, steps: u32, problems: &[TrainExample]) {
    let config = train_config(dir, steps, 1e-2);
    let mut losses = Vec::new();
    let outcome = train(&mut *task, &config, &mut |event| {
        if let TrainEvent::Stepped { record, .. } = event {
            losses.push(record.losses.get("loss").unwrap());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(outcome.unwrap(), TrainOutcome::Finished);
    let last = losses[losses.len() - 1];
    let reasoner = Reasoner::load(device(), dir, None).unwrap();
    let accuracy = greedy_accuracy(reasoner, problems).unwrap();
    assert_eq!(accuracy, 1.0, "the loss is {last} after {steps} steps");
}

#[test]
fn coconut_with_a_step_decoder_overfits() {
    assert_overfits(coconut(STEP_DECODER), None, 150);
}

#[test]
fn codi_overfits() {
    assert_overfits(codi(StepDecoderSpec::NONE), None, 200);
}

#[test]
fn codi_with_a_step_decoder_overfits() {
    assert_overfits(codi(STEP_DECODER), None, 200);
}

#[test]
fn codi_with_adapters_overfits() {
    assert_overfits(codi(StepDecoderSpec::NONE), lora(), 400);
}

/// Ten short problems: the byte-level vocabulary of the tiny Llama makes long ones very long.
pub fn short_problems() -> Vec<TrainExample> {
    let problem = |i: u32| TrainExample {
        question: format!("{i} and {}?", i * i),
        steps: vec![format!("<<{i}+{}={}>>", i * i, i + i * i)],
        answer: (i + i * i).to_string(),
    };
    (1..=10).map(problem).collect()
}

/// A tiny Llama in `out/base`, whose vocabulary has the words of CoLaR's layout.
pub fn colar_base(out: &Path, fixture: &ReasonerFixture) -> PathBuf {
    let base = out.join("base");
    if !base.exists() {
        let spec = CheckpointSpec {
            family: CheckpointFamily::Llama,
            width: fixture.width,
            layers: fixture.layers,
            context: 256,
            ..CheckpointSpec::default()
        };
        write_checkpoint(&base, &spec).unwrap();
    }
    base
}

fn colar_task(out: &Path, fixture: &ReasonerFixture) -> Box<dyn TrainTask> {
    let base = colar_base(out, fixture);
    fixture.pretrained_task(out, base, &colar_method(), None, short_problems())
}

#[test]
fn colar_overfits() {
    let dir = tempfile::tempdir().unwrap();
    let steps = 400;
    let task = colar_task(dir.path(), &ten_problems(steps));
    assert_answers(task, dir.path(), steps, &short_problems());
}

#[test]
fn colar_needs_the_words_of_its_layout() {
    let dir = tempfile::tempdir().unwrap();
    let model = ten_problems(1).scratch(dir.path(), colar_method().usage());
    let error = colar::check_vocabulary(&model.tokenizer).unwrap_err().to_string();
    assert!(error.contains("###Answer:7") && error.contains("pretrained"), "{error}");
}

#[test]
fn latent_sft_overfits() {
    let method = latent_sft_method(&vocabulary::tokenizer().unwrap());
    assert_overfits(method, None, 300);
}

#[test]
fn lotus_overfits() {
    assert_overfits(lotus(), None, 200);
}

#[test]
fn lotus_with_adapters_resumes() {
    assert_resumable(|out| small(out, lotus(), lora_with_dropout()));
}

#[test]
fn rot_overfits() {
    let method = rot_method(&vocabulary::tokenizer().unwrap());
    assert_overfits(method, None, 600);
}

/// Layouts of both families: a word-level vocabulary gets added tokens, a byte-level vocabulary
/// uses the published prompt, and an end marker that starts like a step becomes a token.
#[test]
fn layouts_follow_the_vocabulary() {
    let words = vocabulary::tokenizer().unwrap();
    let layout = latent_sft::layout(&words).unwrap();
    assert_eq!(layout.added_tokens, ["<think>", "</think>", "\\boxed{", "}"]);
    assert_eq!((&*layout.prompt_prefix, &*layout.prompt_suffix), ("", "\n"));
    assert_eq!(rot::layout(&words).unwrap().added_tokens, ["<img_begin>", "<img_end>"]);
    let dir = tempfile::tempdir().unwrap();
    let spec = CheckpointSpec { family: CheckpointFamily::Llama, ..CheckpointSpec::default() };
    write_checkpoint(dir.path(), &spec).unwrap();
    let bytes = Tokenizer::read(dir.path()).unwrap();
    let layout = latent_sft::layout(&bytes).unwrap();
    assert!(layout.prompt_prefix.contains("Please reason step by step"), "{layout:?}");
    assert_eq!(layout.added_tokens, ["</think>"]);
}

/// A small model with all sources of randomness.
pub const SMALL: ReasonerFixture = ReasonerFixture {
    width: 16,
    layers: 1,
    batch: 3,
    accumulation_steps: ACCUMULATION_STEPS,
    steps: STEPS,
    dropout: 0.1,
};

fn small(out: &Path, method: impl TrainingMethod, lora: Option<LoraConfig>) -> Box<dyn TrainTask> {
    SMALL.method_task(out, &method, lora, problems(4))
}

#[test]
fn coconut_with_a_step_decoder_resumes() {
    assert_resumable(|out| small(out, coconut(STEP_DECODER), None));
}

#[test]
fn codi_with_a_step_decoder_resumes() {
    assert_resumable(|out| small(out, codi(STEP_DECODER), None));
}

#[test]
fn codi_with_adapters_resumes() {
    assert_resumable(|out| small(out, codi(StepDecoderSpec::NONE), lora_with_dropout()));
}

#[test]
fn latent_sft_resumes() {
    assert_resumable(|out| {
        let method = latent_sft_method(&vocabulary::tokenizer().unwrap());
        small(out, method, None)
    });
}

#[test]
fn rot_with_adapters_resumes() {
    assert_resumable(|out| {
        let method = rot_method(&vocabulary::tokenizer().unwrap());
        small(out, method, lora_with_dropout())
    });
}

#[test]
fn colar_resumes() {
    assert_resumable(|out| colar_task(out, &SMALL));
}
