//! Recomputed activations: losses and gradients are bit-identical to those with stored activations,
//! for every method and architecture, also if a resumed training switches between them; the memory
//! estimate is smaller.

use std::path::Path;

use latent_tts_train::curriculum::Curriculum;
use latent_tts_train::loss::Objective;
use latent_tts_train::methods::TrainStep;
use latent_tts_train::methods::TrainingMethod;
use latent_tts_train::methods::coconut::CoconutMethod;
use latent_tts_train::methods::simcot::StepDecoderSpec;
use latent_tts_train::reasoner::TaskSetup;
use latent_tts_train::reward_step::RewardHeadKind;
use latent_tts_train::trainer::TrainTask;
use model::LoraConfig;
use model::testkit::{CheckpointFamily, CheckpointSpec};

use crate::methods::{
    SMALL, STEP_DECODER, coconut, codi, colar_base, colar_method, lora_with_dropout, lotus,
    short_problems,
};
use crate::resumable::{FinalFiles, Stop, trained};
use crate::support::{
    NamedGradients, ReasonerFixture, device, dropout, latent_step_of, loss_config, pretrained,
    problems, reward_example, reward_step, take_gradients, tiny, tokenized_example,
    with_outcome_head,
};

/// Three layers, of which two are recomputed.
const FIXTURE: ReasonerFixture = ReasonerFixture { layers: 3, ..SMALL };

#[track_caller]
fn assert_same_bits(kept: &NamedGradients, recomputed: &NamedGradients, what: &str) {
    assert_eq!(kept.len(), recomputed.len());
    let mut changed = 0;
    for ((name, kept), (_, recomputed)) in kept.iter().zip(recomputed) {
        let bits = |gradient: &[f32]| gradient.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(kept) == bits(recomputed), "{what}: the gradient of {name} differs");
        changed += usize::from(kept.iter().any(|&x| x != 0.0));
    }
    assert!(2 * changed > kept.len(), "{what}: most gradients are zero");
}

#[test]
fn a_reasoners_gradients_have_the_same_bits() {
    let examples = [(1, 2, 3), (2, 0, 2), (3, 3, 4), (4, 1, 1)]
        .map(|(id, thoughts, targets)| tokenized_example(id, thoughts, targets));
    for family in [
        CheckpointFamily::Coconut,
        CheckpointFamily::CodiGpt2,
        CheckpointFamily::CodiLlama,
        CheckpointFamily::Qwen2,
        CheckpointFamily::Qwen3,
    ] {
        for masks in [None, Some(dropout())] {
            let spec = CheckpointSpec { layers: 3, ..tiny(family) };
            let mut step = latent_step_of(&spec, true);
            let mut run = |recompute: bool| {
                step.model.set_recompute(recompute);
                let losses = step.batch_losses(&examples, masks).unwrap();
                (losses, take_gradients(step.parameters_mut()))
            };
            let kept = run(false);
            let recomputed = run(true);
            assert_eq!(kept.0, recomputed.0, "{family:?}");
            assert_same_bits(&kept.1, &recomputed.1, &format!("{family:?}"));
        }
    }
}

#[test]
fn a_reward_models_gradients_have_the_same_bits() {
    let examples = [reward_example(1, &[2, 2, 3]), reward_example(2, &[3, 2, 2])];
    for family in [CheckpointFamily::RewardGpt2, CheckpointFamily::RewardLlama] {
        for objective in [Objective::Contrastive, Objective::Bce, Objective::Pairwise] {
            let mut step = with_outcome_head(reward_step(family, RewardHeadKind::Compare, true));
            let mut run = |recompute: bool| {
                step.model.set_recompute(recompute);
                let config = loss_config(objective, Some(dropout()));
                let losses = step.accumulate_gradients(&examples, config).unwrap();
                let losses = [losses.objective, losses.digits].map(f64::to_bits);
                (losses, take_gradients(step.parameters_mut()))
            };
            let kept = run(false);
            let recomputed = run(true);
            assert_eq!(kept.0, recomputed.0, "{family:?}");
            assert_same_bits(&kept.1, &recomputed.1, &format!("{family:?}, {objective:?}"));
        }
    }
}

/// The task of a method, with or without recomputation.
fn task(
    out: &Path,
    method: &dyn TrainingMethod,
    lora: Option<LoraConfig>,
    recompute: bool,
) -> Box<dyn TrainTask> {
    let (mut model, examples) = match method.settings()["method"] == "colar" {
        true => (pretrained(out, colar_base(out, &FIXTURE), method, lora), short_problems()),
        false => (FIXTURE.model(out, method, lora), problems(4)),
    };
    model.decoder.set_recompute(recompute);
    let training = FIXTURE.training(out, examples);
    method.task(TaskSetup { device: device().clone(), model, training }).unwrap()
}

fn cot() -> CoconutMethod {
    let step_decoder = StepDecoderSpec::NONE;
    let curriculum = Curriculum::Cot;
    CoconutMethod { curriculum, thoughts_per_step: 1, digit_loss_weight: 0.0, step_decoder }
}

#[test]
fn every_methods_gradients_have_the_same_bits_and_less_memory_is_told() {
    let methods: [(Box<dyn TrainingMethod>, Option<LoraConfig>); 7] = [
        (Box::new(cot()), None),
        (Box::new(coconut(StepDecoderSpec::NONE)), None),
        (Box::new(coconut(STEP_DECODER)), lora_with_dropout()),
        (Box::new(codi(STEP_DECODER)), None),
        (Box::new(codi(StepDecoderSpec::NONE)), lora_with_dropout()),
        (Box::new(colar_method()), None),
        (Box::new(lotus()), None),
    ];
    for (method, lora) in methods {
        let what = format!("{method:?}");
        let run = |recompute: bool| {
            let dir = tempfile::tempdir().unwrap();
            let mut task = task(dir.path(), &*method, lora.clone(), recompute);
            let bytes = task.activation_bytes().unwrap().unwrap();
            let losses = task.accumulate_gradients(3, 1).unwrap();
            (losses, take_gradients(task.parameters_mut()), bytes)
        };
        let kept = run(false);
        let recomputed = run(true);
        assert_eq!(kept.0, recomputed.0, "{what}");
        assert_same_bits(&kept.1, &recomputed.1, &what);
        assert!(recomputed.2 < kept.2, "{what}: {} and {} bytes", kept.2, recomputed.2);
    }
}

/// A training that starts with stored activations and is resumed with recomputed ones.
#[test]
fn a_training_that_changes_ends_with_the_same_bytes() {
    fn kept(out: &Path) -> Box<dyn TrainTask> {
        task(out, &codi(STEP_DECODER), None, false)
    }
    fn changed(out: &Path) -> Box<dyn TrainTask> {
        let begun = out.join("training/state.safetensors").exists();
        task(out, &codi(STEP_DECODER), None, begun)
    }
    let expected: FinalFiles = trained(kept, Stop::Never);
    for ((name, expected), (_, found)) in expected.iter().zip(trained(changed, Stop::Every(2))) {
        assert!(found == *expected, "{name} differs");
    }
}
