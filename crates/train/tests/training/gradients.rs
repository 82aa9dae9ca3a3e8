//! Compares gradients with finite differences of the loss along several directions.

use engine::family::{CODI_PROJECTOR, COLAR_HEAD, ROT_HEAD};
use latent_tts_train::dropout::DropoutConfig;
use latent_tts_train::latent_step::{AuxiliaryLosses, LatentTrainStep};
use latent_tts_train::loss::Objective;
use latent_tts_train::methods::TrainStep;
use latent_tts_train::methods::codi::Distillation;
use latent_tts_train::methods::colar::{ColarExample, ColarTrainStep};
use latent_tts_train::methods::compressed::CompressedExample;
use latent_tts_train::methods::latent_sft::LatentSftTrainStep;
use latent_tts_train::methods::rot::RotTrainStep;
use latent_tts_train::methods::simcot::StepDecoder;
use latent_tts_train::order_preference::add_permuted;
use latent_tts_train::reward_step::{
    RewardExample, RewardHeadKind, RewardLossConfig, RewardTrainStep,
};
use latent_tts_train::tokenized_example::{DistillRole, TokenizedExample};
use model::testkit::{CheckpointFamily, write_checkpoint};
use model::{
    Checkpoint, DecoderTuning, LmHead, LoraConfig, LoraTargets, ModelError, Parameter,
    RandomWeights, TensorSource, TrainableDecoder, TrainableGaussianHead, TrainableHead,
    TrainableSwiGlu,
};

use crate::support::{
    DIGIT_WEIGHT, device, dropout, latent_step, loss_config, reward_example, reward_step,
    take_gradients, tiny, tokenized_example, with_outcome_head,
};

/// Step size of the five-point stencil. Its error is the rounding of the loss divided by the step,
/// plus the fifth derivative times the fourth power of the step.
const STEP_SIZE: f32 = 0.002;
/// Relative tolerance with respect to the gradient's norm, and absolute tolerance for rounding.
const TOLERANCE: (f64, f64) = (0.01, 3e-4);

/// Weight of the distillation loss.
const DISTILL_WEIGHT: f32 = 1.7;
/// Weight of the step decoder's loss.
const STEPS_WEIGHT: f32 = 0.6;

/// A model with a loss.
pub trait Differentiable {
    /// Returns the loss and adds its gradients.
    fn accumulate_gradients(&mut self) -> f64;
    fn parameters(&mut self) -> Vec<&mut Parameter>;
    fn sync_weights(&mut self);
}

/// The normalized direction; `None` for zero.
fn unit(direction: Vec<f32>) -> Option<Vec<f32>> {
    let norm = direction.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32;
    (norm > 1e-6).then(|| direction.iter().map(|x| x / norm).collect())
}

/// The gradient itself, two halves of it, and random signs. The signs are independent of the
/// gradient, so they detect missing parts.
fn directions(gradient: &[f32]) -> Vec<Vec<f32>> {
    let coin = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9) >> 15 & 1 == 1;
    let half = |which: bool| {
        gradient.iter().enumerate().map(|(i, g)| if coin(i) == which { *g } else { 0.0 }).collect()
    };
    let signs = (0..gradient.len()).map(|i| if coin(i) { 1.0 } else { -1.0 }).collect();
    [gradient.to_vec(), half(true), half(false), signs].into_iter().filter_map(unit).collect()
}

/// The loss with parameter `at` moved along a direction.
fn loss_at(subject: &mut dyn Differentiable, at: usize, by: f32, direction: &[f32]) -> f64 {
    let mut parameters = subject.parameters();
    let value = parameters[at].value.data_mut();
    let before = value.to_vec();
    value.iter_mut().zip(direction).for_each(|(x, d)| *x += by * d);
    subject.sync_weights();
    let loss = subject.accumulate_gradients();
    subject.parameters()[at].value.data_mut().copy_from_slice(&before);
    loss
}

/// Compares every gradient with finite differences of the loss.
pub fn assert_gradients(subject: &mut dyn Differentiable) {
    subject.accumulate_gradients();
    let gradients = take_gradients(subject.parameters());
    let mut nonzero = 0;
    for (at, (name, gradient)) in gradients.iter().enumerate() {
        let norm = gradient.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        nonzero += usize::from(norm > 10.0 * TOLERANCE.1);
        for (i, direction) in directions(gradient).iter().enumerate() {
            let mut difference = |step: f32| {
                loss_at(subject, at, step, direction) - loss_at(subject, at, -step, direction)
            };
            let slope = (8.0 * difference(STEP_SIZE) - difference(2.0 * STEP_SIZE))
                / (12.0 * f64::from(STEP_SIZE));
            let product: f64 =
                gradient.iter().zip(direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            let (relative, absolute) = TOLERANCE;
            assert!(
                (slope - product).abs() < relative * norm + absolute,
                "{name}, direction {i}: slope {slope}, gradient {product} of norm {norm}"
            );
        }
    }
    assert!(
        nonzero * 10 > gradients.len() * 7,
        "only {nonzero} of {} tensors have a gradient above rounding",
        gradients.len()
    );
}

struct LatentSubject {
    train_step: LatentTrainStep,
    examples: Vec<TokenizedExample>,
    dropout: Option<DropoutConfig>,
}

impl Differentiable for LatentSubject {
    fn accumulate_gradients(&mut self) -> f64 {
        let losses = self.train_step.batch_losses(&self.examples, self.dropout).unwrap();
        let weighted = |loss: Option<f64>, weight: f32| loss.unwrap_or(0.0) * f64::from(weight);
        losses.tokens
            + weighted(losses.teacher, 1.0)
            + weighted(losses.distill, DISTILL_WEIGHT)
            + weighted(losses.steps, STEPS_WEIGHT)
            + weighted(losses.digits, DIGIT_WEIGHT)
            + weighted(losses.operands, DIGIT_WEIGHT)
    }

    fn parameters(&mut self) -> Vec<&mut Parameter> {
        self.train_step.parameters_mut()
    }

    fn sync_weights(&mut self) {
        self.train_step.sync_weights().unwrap();
    }
}

fn assert_latent_gradients(family: CheckpointFamily, dropout: Option<DropoutConfig>) {
    let examples =
        vec![tokenized_example(1, 2, 3), tokenized_example(2, 0, 2), tokenized_example(3, 3, 4)];
    assert_gradients(&mut LatentSubject {
        train_step: latent_step(family, true),
        examples,
        dropout,
    });
}

#[test]
fn gpt2_thoughts() {
    assert_latent_gradients(CheckpointFamily::Coconut, None);
}

#[test]
fn gpt2_thoughts_with_dropout() {
    assert_latent_gradients(CheckpointFamily::Coconut, Some(dropout()));
}

#[test]
fn projected_thoughts_with_dropout() {
    assert_latent_gradients(CheckpointFamily::CodiGpt2, Some(dropout()));
}

#[test]
fn llama_thoughts_with_dropout() {
    assert_latent_gradients(CheckpointFamily::LatentSft, Some(dropout()));
}

#[test]
fn qwen3_thoughts_with_dropout() {
    assert_latent_gradients(CheckpointFamily::Rot, Some(dropout()));
}

/// Student and teacher of an example, with steps to decode.
fn distilled_pair(id: u32, thoughts: usize) -> [TokenizedExample; 2] {
    let student = TokenizedExample {
        step_tokens: vec![vec![7, 8 + id], vec![20, 21, 22], vec![3], vec![9, 30 + id]],
        compared_at: Some(2),
        ..tokenized_example(id, thoughts, 4)
    };
    let teacher = TokenizedExample {
        prompt: student.prompt[..student.prompt.len() - 1].to_vec(),
        thoughts: 0,
        completion: [&[50, 51, 52], &student.completion[1..]].concat(),
        loss_start: 0,
        thought_targets: Vec::new(),
        role: DistillRole::Teacher,
        compared_at: Some(4),
        ..student.clone()
    };
    [student, teacher]
}

/// A tiny reasoner with LoRA training and two new tokens.
fn lora_step(family: CheckpointFamily, dropout: f32) -> LatentTrainStep {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), &tiny(family)).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let lora = LoraConfig { rank: 3, alpha: 4.0, targets: LoraTargets::All, dropout, seed: 1 };
    let tuning = DecoderTuning::Lora { config: &lora, new_tokens: 2 };
    let config = checkpoint.config();
    let source = &WithFactors(&checkpoint);
    let model =
        TrainableDecoder::load_tuned(device(), config, source, LmHead::With, tuning).unwrap();
    let head = TrainableHead::mlp(device(), &checkpoint, &CODI_PROJECTOR).unwrap();
    LatentTrainStep::new(model, head, AuxiliaryLosses::default())
}

/// Non-zero low-rank factors, so that both have a gradient.
struct WithFactors<'a>(&'a Checkpoint);

impl TensorSource for WithFactors<'_> {
    fn has(&self, name: &str) -> bool {
        name.contains(".lora_") || self.0.has(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        if name.contains(".lora_") {
            return RandomWeights { seed: 2 }.tensor(name, shape);
        }
        self.0.tensor(name, shape)
    }
}

/// Adds CODI's losses, and SIM-CoT's with `step_decoder`.
fn with_distillation(mut step: LatentTrainStep, step_decoder: bool) -> LatentTrainStep {
    step.auxiliary.distillation = Some(Distillation { loss_weight: DISTILL_WEIGHT });
    if step_decoder {
        let decoder = latent_step(CheckpointFamily::CodiGpt2, false).model;
        let mut decoder = StepDecoder::new(decoder, 1, 2);
        decoder.loss_weight = STEPS_WEIGHT;
        step.auxiliary.step_decoder = Some(decoder);
    }
    step
}

fn assert_distillation_gradients(train_step: LatentTrainStep, dropout: Option<DropoutConfig>) {
    let examples = [distilled_pair(1, 2), distilled_pair(2, 3)].concat();
    assert_gradients(&mut LatentSubject { train_step, examples, dropout });
}

#[test]
fn qwen2_thoughts_with_dropout() {
    assert_latent_gradients(CheckpointFamily::Qwen2, Some(dropout()));
}

/// Only the projector's parameters of a model with distillation. The teacher has no thoughts, so
/// they affect only the student; the teacher is a constant of the loss.
struct ProjectorSubject(LatentSubject);

impl Differentiable for ProjectorSubject {
    fn accumulate_gradients(&mut self) -> f64 {
        let loss = self.0.accumulate_gradients();
        // The test does not check the decoder's gradients.
        take_gradients(self.0.train_step.model.parameters_mut());
        loss
    }

    fn parameters(&mut self) -> Vec<&mut Parameter> {
        self.0.train_step.head.parameters_mut().collect()
    }

    fn sync_weights(&mut self) {
        self.0.sync_weights();
    }
}

#[test]
fn distillation_moves_the_student() {
    let train_step = with_distillation(latent_step(CheckpointFamily::CodiGpt2, false), false);
    let examples = [distilled_pair(1, 2), distilled_pair(2, 3)].concat();
    let subject = LatentSubject { train_step, examples, dropout: Some(dropout()) };
    assert_gradients(&mut ProjectorSubject(subject));
}

#[test]
fn step_decoder_and_unfed_thought() {
    let mut train_step = with_distillation(latent_step(CheckpointFamily::CodiGpt2, true), true);
    train_step.auxiliary.distillation = None;
    assert_distillation_gradients(train_step, Some(dropout()));
}

#[test]
fn step_decoder_of_two_thoughts_a_step() {
    let mut train_step = with_distillation(latent_step(CheckpointFamily::Coconut, false), true);
    train_step.auxiliary.distillation = None;
    if let Some(decoder) = &mut train_step.auxiliary.step_decoder {
        decoder.thoughts_per_step = 2;
        decoder.reads_unfed_thought = false;
    }
    let examples = [distilled_pair(1, 4), distilled_pair(2, 3), distilled_pair(3, 1)].concat();
    assert_gradients(&mut LatentSubject { train_step, examples, dropout: None });
}

#[test]
fn adapters_and_new_tokens_on_gpt2() {
    let mut train_step = lora_step(CheckpointFamily::CodiGpt2, 0.0);
    // The last tokens of the vocabulary are inputs and targets.
    let last = train_step.model.decoder.config().vocab as u32 - 1;
    let mut examples = vec![tokenized_example(1, 2, 3), tokenized_example(2, 0, 2)];
    examples[0].prompt[0] = last;
    examples[1].completion[1] = last - 1;
    train_step.sync_weights().unwrap();
    assert_gradients(&mut LatentSubject { train_step, examples, dropout: Some(dropout()) });
}

#[test]
fn adapters_on_llama() {
    let train_step = lora_step(CheckpointFamily::CodiLlama, 0.0);
    let examples = vec![tokenized_example(1, 2, 3), tokenized_example(2, 0, 2)];
    let last = train_step.model.decoder.config().vocab as u32 - 1;
    let mut examples = examples;
    examples[0].prompt[0] = last;
    assert_gradients(&mut LatentSubject { train_step, examples, dropout: None });
}

#[test]
fn adapters_with_dropout() {
    for family in [CheckpointFamily::CodiGpt2, CheckpointFamily::CodiLlama] {
        let train_step = lora_step(family, 0.3);
        let examples = vec![tokenized_example(1, 2, 3), tokenized_example(2, 0, 2)];
        assert_gradients(&mut LatentSubject { train_step, examples, dropout: Some(dropout()) });
    }
}

/// Without dropout, an unmerged adapter computes the same as a merged one.
#[test]
fn an_adapter_apart_equals_a_merged_one() {
    let examples = vec![tokenized_example(1, 2, 3), tokenized_example(2, 0, 2)];
    let mut losses = [0.0, 0.3].map(|dropout| {
        let mut step = lora_step(CheckpointFamily::CodiLlama, dropout);
        let losses = step.batch_losses(&examples, None).unwrap();
        (losses.tokens, take_gradients(step.parameters_mut()))
    });
    let [(merged, gradients), (apart, others)] = &mut losses;
    assert!((*merged - *apart).abs() < 1e-5, "{merged} {apart}");
    for ((name, one), (_, other)) in gradients.iter().zip(others) {
        let largest = one.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let close = one.iter().zip(other).all(|(a, b)| (a - *b).abs() <= 1e-4 * largest + 1e-6);
        assert!(close, "{name}");
    }
}

struct ColarSubject {
    train_step: ColarTrainStep,
    examples: Vec<ColarExample>,
}

impl Differentiable for ColarSubject {
    fn accumulate_gradients(&mut self) -> f64 {
        let losses = self.train_step.batch_losses(&self.examples, Some(dropout())).unwrap();
        losses.tokens + losses.latent
    }

    fn parameters(&mut self) -> Vec<&mut Parameter> {
        self.train_step.parameters_mut()
    }

    fn sync_weights(&mut self) {
        self.train_step.sync_weights().unwrap();
    }
}

/// The target of the latent loss is a constant, so the embedding is excluded: finite differences
/// would change the target too. Its gradient is checked against the reference dump.
#[test]
fn compressed_steps_and_gaussian_head() {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), &tiny(CheckpointFamily::Colar)).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let config = checkpoint.config();
    let targets = LoraTargets::All;
    let lora = LoraConfig { rank: 4, alpha: 4.0, targets, dropout: 0.0, seed: 1 };
    let tuning = DecoderTuning::Lora { config: &lora, new_tokens: 0 };
    let source = &WithFactors(&checkpoint);
    let model =
        TrainableDecoder::load_tuned(device(), config, source, LmHead::With, tuning).unwrap();
    let head = RandomWeights { seed: 9 };
    let head = TrainableGaussianHead::load(device(), &head, &COLAR_HEAD, (16, 12)).unwrap();
    let example = |id: u32| ColarExample {
        id,
        prompt: (0..4 + id).map(|i| i * 29 + id).collect(),
        groups: vec![vec![5], vec![10, 11 + id], vec![12, 13, 14], vec![15]],
        labels: vec![5, 11 + id, 12, 15],
        completion: vec![5, 40, 41 + id, 2],
        noise: None,
    };
    assert_gradients(&mut ColarSubject {
        train_step: ColarTrainStep::new(model, head, 0.5),
        examples: vec![example(1), example(2)],
    });
}

struct CompressedSubject<S> {
    train_step: S,
    examples: Vec<CompressedExample>,
    /// The weight of each term of the loss.
    weights: [f64; 2],
}

impl<S: TrainStep<Example = CompressedExample>> Differentiable for CompressedSubject<S> {
    fn accumulate_gradients(&mut self) -> f64 {
        let losses = self.train_step.accumulate_gradients(&self.examples, Some(dropout()));
        losses.unwrap().iter().zip(self.weights).map(|((_, loss), weight)| loss * weight).sum()
    }

    fn parameters(&mut self) -> Vec<&mut Parameter> {
        self.train_step.parameters_mut()
    }

    fn sync_weights(&mut self) {
        self.train_step.sync_weights().unwrap();
    }
}

/// Examples with several groups, one of which has a repeated token; the second example has none.
fn compressed_examples(loss_start: usize) -> Vec<CompressedExample> {
    let example = |id: u32, groups: Vec<Vec<u32>>| CompressedExample {
        id,
        prompt: (0..4 + id).map(|i| i * 29 + id).collect(),
        groups,
        completion: vec![5, 40, 41 + id, 2],
        loss_start,
        feeds_thoughts: false,
    };
    let groups = vec![vec![10, 11], vec![12, 13, 12], vec![15]];
    vec![example(1, groups), example(2, Vec::new()), example(3, vec![vec![16, 17]])]
}

#[test]
fn mixtures_of_embeddings() {
    for ordered in [false, true] {
        let model = latent_step(CheckpointFamily::LatentSft, false).model;
        assert_gradients(&mut CompressedSubject {
            train_step: LatentSftTrainStep::new(model, ordered),
            examples: compressed_examples(0),
            weights: [1.0, 1.0],
        });
    }
}

/// The targets of the regression are constants, so the embedding is excluded, as in CoLaR's test.
#[test]
fn slots_and_projection_head() {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), &tiny(CheckpointFamily::Rot)).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let targets = LoraTargets::All;
    let lora = LoraConfig { rank: 4, alpha: 4.0, targets, dropout: 0.0, seed: 1 };
    let tuning = DecoderTuning::Lora { config: &lora, new_tokens: 0 };
    let config = checkpoint.config();
    let source = &WithFactors(&checkpoint);
    let model =
        TrainableDecoder::load_tuned(device(), config, source, LmHead::With, tuning).unwrap();
    let head = RandomWeights { seed: 9 };
    let head = TrainableSwiGlu::load(device(), &head, &ROT_HEAD, (16, 12)).unwrap();
    let mut train_step = RotTrainStep::new(model, head, 0.5);
    (train_step.loss_weight, train_step.ordered) = (0.7, true);
    let examples = compressed_examples(1);
    assert_gradients(&mut CompressedSubject { train_step, examples, weights: [1.0, 0.7] });
}

struct RewardSubject {
    train_step: RewardTrainStep,
    examples: Vec<RewardExample>,
    config: RewardLossConfig<'static>,
}

impl Differentiable for RewardSubject {
    fn accumulate_gradients(&mut self) -> f64 {
        let losses = self.train_step.accumulate_gradients(&self.examples, self.config).unwrap();
        losses.objective + f64::from(DIGIT_WEIGHT) * losses.digits
    }

    fn parameters(&mut self) -> Vec<&mut Parameter> {
        self.train_step.parameters_mut()
    }

    fn sync_weights(&mut self) {
        self.train_step.sync_weights().unwrap();
    }
}

fn assert_reward_gradients(
    family: CheckpointFamily,
    head: RewardHeadKind,
    config: RewardLossConfig<'static>,
) {
    // Trajectories of different lengths, one without thoughts; fewer results than steps.
    let examples = vec![reward_example(1, &[2, 3, 1, 0]), reward_example(2, &[1, 3])];
    assert_gradients(&mut RewardSubject {
        train_step: reward_step(family, head, true),
        examples,
        config,
    });
}

#[test]
fn linear_reward_head() {
    assert_reward_gradients(
        CheckpointFamily::RewardGpt2,
        RewardHeadKind::Linear,
        loss_config(Objective::Bce, None),
    );
}

#[test]
fn compare_reward_head_with_dropout() {
    assert_reward_gradients(
        CheckpointFamily::RewardGpt2,
        RewardHeadKind::Compare,
        loss_config(Objective::Contrastive, Some(dropout())),
    );
}

#[test]
fn reference_trace_and_outcome_head() {
    let mut examples = vec![reward_example(1, &[2, 3, 1, 0]), reward_example(2, &[1, 3])];
    examples[0].reference_trace = reward_example(4, &[2]).thoughts; // the other example has none
    let train_step =
        with_outcome_head(reward_step(CheckpointFamily::RewardGpt2, RewardHeadKind::Compare, true));
    assert_gradients(&mut RewardSubject {
        train_step,
        examples,
        config: loss_config(Objective::Pairwise, Some(dropout())),
    });
}

/// Permuted copies have no labels and occur only in the preference loss, of outcome rewards or,
/// without an outcome head, of process rewards.
#[test]
fn preference_for_the_order_of_thoughts() {
    for reads_answers in [false, true] {
        let mut examples = vec![reward_example(1, &[2, 3, 1, 0]), reward_example(2, &[1, 3])];
        examples.iter_mut().for_each(|example| {
            example.correct.fill(true);
            add_permuted(example, 5);
            assert!(!example.permuted_from.is_empty());
        });
        let step = reward_step(CheckpointFamily::RewardGpt2, RewardHeadKind::Compare, true);
        let train_step = if reads_answers { with_outcome_head(step) } else { step };
        let config = loss_config(Objective::Bce, Some(dropout()));
        let config = RewardLossConfig { order_preference: 0.7, ..config };
        assert_gradients(&mut RewardSubject { train_step, examples, config });
    }
}

#[test]
fn llama_reward_model_with_dropout() {
    assert_reward_gradients(
        CheckpointFamily::RewardLlama,
        RewardHeadKind::Compare,
        loss_config(Objective::Bce, Some(dropout())),
    );
}
