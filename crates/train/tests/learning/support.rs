//! What the tests share: tiny models, lessons and cases, and gradients to compare.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use model::testkit::{Family, Spec, write_checkpoint};
use model::{Checkpoint, HeadLearner, Learner, LmHead, Parameter, RandomWeights};
use tensor::{Device, Tensor};
use train::corpus::{self, Split};
use train::curriculum::{Curriculum, Removal};
use train::dataset::Example;
use train::digits::Digits;
use train::directory::{self, Shape, Start};
use train::feed::{Data, Feed, Recipe};
use train::judge::{Case, Expectations, HeadKind, Judge, Judging, ScoreLearner, Verdicts};
use train::lesson::Lesson;
use train::loss::Objective;
use train::reasoner::ReasonerCourse;
use train::schedule::{Optimizer, Schedule};
use train::study::{Droppings, Study};

/// Weights of everything that a checkpoint lacks: large enough to matter.
const HEADS: RandomWeights = RandomWeights { seed: 5 };
/// The weight of losses on digits.
pub const DIGITS: f32 = 0.7;

pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Device::cpu(NonZeroUsize::new(2)).unwrap())
}

/// A model of 16 numbers a position.
pub fn tiny(family: Family) -> Spec {
    let (width, heads, kv_heads, head_dim, ffn, head_width) = (16, 2, 1, 8, 24, 12);
    Spec { family, width, heads, kv_heads, head_dim, ffn, head_width, context: 64, ..Spec::default() }
}

/// Who learns to think, from a tiny checkpoint.
pub fn study(family: Family, digits: bool) -> Study {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), &tiny(family)).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let config = checkpoint.config();
    let head = match checkpoint.shape("projector.1.weight") {
        Some(shape) => HeadLearner::projector(device(), config, &checkpoint, shape[0]).unwrap(),
        None => HeadLearner::Identity,
    };
    let learner = Learner::load(device(), config, &checkpoint, LmHead::With).unwrap();
    let digits = digits.then(|| (Digits::new(device(), &HEADS, "digits", config.width).unwrap(), DIGITS));
    Study::new(learner, head, digits)
}

/// Who learns to judge, from a tiny checkpoint.
pub fn judge(family: Family, head: HeadKind, expecting: bool) -> Judge {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), &tiny(family)).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let width = checkpoint.config().width;
    let learner = Learner::load(device(), checkpoint.config(), &checkpoint, LmHead::Without).unwrap();
    let reader = |name| Digits::new(device(), &HEADS, name, width).unwrap();
    let expectations =
        Expectations { current: reader("current"), next: reader("next"), answer: reader("answer"), weight: DIGITS };
    Judge::new(learner, ScoreLearner::load(device(), &HEADS, head, width).unwrap(), expecting.then_some(expectations))
}

/// The same judge reading answers, too.
pub fn verdicts(judge: Judge) -> Judge {
    let head = ScoreLearner::verdict(device(), &HEADS, judge.learner.decoder.config().width).unwrap();
    judge.reading_answers(Verdicts { head, end: vec![5] })
}

/// A lesson of a number of thoughts, a given token and a number of tokens to learn.
pub fn lesson(id: u32, thoughts: usize, targets: usize) -> Lesson {
    let tokens = |count: usize, salt: u32| (0..count as u32).map(|i| (i * 37 + id * 11 + salt) % 250).collect::<Vec<_>>();
    let results = vec![i64::from(id) * 17 + 3, 240 - i64::from(id)];
    Lesson { id, prompt: tokens(4 + id as usize % 3, 1), thoughts, tail: tokens(1 + targets, 90), given: 1, results }
}

/// Dropout with the same masks whenever it is asked for.
pub fn dropped() -> Droppings {
    Droppings { p: 0.2, seed: 3, step: 1 }
}

/// A problem whose trajectories have so many thoughts.
pub fn case(id: u32, lengths: &[usize]) -> Case {
    let rows: usize = lengths.iter().sum();
    let thoughts = (0..rows * 16).map(|i| ((i as f32 + 1.0) * (id as f32 + 0.7)).sin()).collect();
    Case {
        id,
        prompt: (0..4 + id).map(|i| i * 29 + id).collect(),
        thoughts: Tensor::from_vec(rows, 16, thoughts),
        lengths: lengths.to_vec(),
        labels: (0..rows).map(|i| (i * 3 % 5) as f32 / 4.0).collect(),
        own: Tensor::default(),
        answers: (0..lengths.len() as u32).map(|n| (0..=n % 3).map(|i| i * 13 + id + n).collect()).collect(),
        correct: (0..lengths.len()).map(|n| n % 2 == 0).collect(),
        results: vec![i64::from(id) + 41, 7],
    }
}

/// How a batch of cases is judged.
pub fn judging(objective: Objective, droppings: Option<Droppings>) -> Judging<'static> {
    Judging { objective, weight: &|t| 1.0 + 0.5 * t as f32, droppings }
}

/// Takes all gradients away.
pub fn taken<'a>(parameters: impl IntoIterator<Item = &'a mut Parameter>) -> Vec<(String, Vec<f32>)> {
    let take = |parameter: &mut Parameter| {
        let gradient = parameter.gradient.data().to_vec();
        parameter.gradient.data_mut().fill(0.0);
        (parameter.name().to_owned(), gradient)
    };
    parameters.into_iter().map(take).collect()
}

/// Problems of the corpus.
pub fn problems(count: u64) -> Vec<Example> {
    (0..count).map(|i| corpus::problem(Split::Train, 1, i).into()).collect()
}

/// The way of every training here.
pub fn optimizer(steps: u32, peak: f32) -> Optimizer {
    let schedule = Schedule { peak, warmup: 2, steps, floor: 0.1 };
    Optimizer { schedule, betas: (0.9, 0.98), eps: 1e-8, weight_decay: 0.01, decay_all: false, clip: Some(1.0) }
}

/// The training of a new latent reasoner of six thoughts that says no step from the beginning.
pub struct Reasoning {
    pub width: usize,
    pub layers: usize,
    pub batch: usize,
    pub accumulate: u32,
    pub steps: u32,
    pub dropout: f32,
}

impl Reasoning {
    pub fn course(&self, out: &Path, examples: Vec<Example>) -> ReasonerCourse {
        let shape = Shape { width: self.width, layers: self.layers, heads: 2, context: 256, seed: 4 };
        let usage = serde_json::json!({ "family": "coconut", "thoughts": 6, "max_new_tokens": 8 });
        let begun = directory::begin(device(), &Start::Scratch(shape), out, usage).unwrap();
        let digits = Digits::new(device(), &HEADS, "digits", self.width).unwrap();
        let removal = Removal::Smooth { rise: 0.0, all: 1.0, random: 0.0 };
        let recipe = Recipe {
            data: Data::List { examples: Arc::new(examples.clone()), seed: 2 },
            tokenizer: Arc::new(begun.tokenizer),
            markers: begun.markers,
            curriculum: Curriculum::Latent { thoughts: 6, removal },
            batch: self.batch,
            batches: u64::from(self.steps * self.accumulate),
            seed: 9,
            context: 256,
        };
        ReasonerCourse {
            device: device().clone(),
            study: Study::new(begun.learner, HeadLearner::Identity, Some((digits, 0.1))),
            feed: Feed::new(recipe),
            dropout: self.dropout,
            seed: 6,
            accumulate: self.accumulate,
            out: out.to_owned(),
            saved: model::save::Saved::F32,
            held_out: examples,
        }
    }
}
