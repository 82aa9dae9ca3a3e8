//! What all tests of the engine share: tiny random models of every family, questions, settings, and comparisons.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::OnceLock;

use engine::perturb::{Randomness, RowId};
use engine::prompt::{Prompt, prompt};
use engine::question::GoldKind;
use engine::replay::{self, Replay, Replayed};
use engine::{
    Engine, Family, LatentLength, Nucleus, Outcome, Perturbation, Probability, Question, Range, Reasoner, RewardModel, Scope,
    Settings, Sites,
};
use model::RewardHead;
use model::source::RandomWeights;
use model::testkit::{self, Spec, write_checkpoint};
use tensor::rng::Site;
use tensor::{Device, Tensor};

/// Every family on the backbone that it is published on.
pub const FAMILIES: [testkit::Family; 6] = [
    testkit::Family::Coconut,
    testkit::Family::CodiGpt2,
    testkit::Family::CodiLlama,
    testkit::Family::Colar,
    testkit::Family::LatentSft,
    testkit::Family::Rot,
];

/// The seed of a run unless a test is about seeds.
pub const SEED: u64 = 0x5eed_0001_0000_0007;

/// A reasoner and a judge of its thoughts.
pub struct Pair {
    pub reasoner: Reasoner,
    pub judge: RewardModel,
}

impl Pair {
    /// Tiny models of a family, on the shared device.
    pub fn of(family: testkit::Family) -> Self {
        Self::new(device(), &Spec { family, ..Spec::default() })
    }

    /// Models of a description; the judge has the reasoner's shape and other weights.
    pub fn new(device: &Device, spec: &Spec) -> Self {
        let reasoner = reasoner(device, spec);
        let family = if gpt2(spec.family) { testkit::Family::RewardGpt2 } else { testkit::Family::RewardLlama };
        let spec = Spec { family, seed: spec.seed + 100, ..Spec::default() };
        let judge = written(&spec, |dir| RewardModel::load(device, dir, &reasoner).unwrap());
        Self { reasoner, judge }
    }

    /// Tiny models with a judge that thinks with another reasoner and reads answers.
    pub fn reflecting(family: testkit::Family) -> Self {
        let mut pair = Self::of(family);
        let judge = &mut pair.judge;
        judge.mind = Some(reasoner(device(), &Spec { family, seed: 321, ..Spec::default() }).mind);
        judge.verdict = RewardHead::verdict(device(), judge.decoder.config(), &RandomWeights { seed: 5 }).unwrap();
        pair
    }

    /// The same models, every pass of which is launched and none replayed.
    pub fn without_replays(mut self) -> Self {
        self.reasoner.mind.decoder = self.reasoner.mind.decoder.without_replays();
        self.judge.decoder = self.judge.decoder.without_replays();
        self
    }

    /// An engine that scores what it thinks.
    pub fn engine(&self, settings: Settings) -> Engine<'_> {
        Engine { reasoner: &self.reasoner, judge: Some(&self.judge), settings }
    }

    /// Runs the questions.
    pub fn ask(&self, settings: Settings, questions: &[Question]) -> Vec<Outcome> {
        ask(self.engine(settings), questions).unwrap()
    }

    /// Runs one question.
    pub fn ask_one(&self, settings: Settings, question: &Question) -> Outcome {
        self.ask(settings, std::slice::from_ref(question)).remove(0)
    }
}

/// Whether a family's backbone is GPT-2.
pub fn gpt2(family: testkit::Family) -> bool {
    matches!(family, testkit::Family::Coconut | testkit::Family::CodiGpt2 | testkit::Family::RewardGpt2)
}

/// The device that tests share unless they are about devices.
pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Device::cpu(NonZeroUsize::new(2)).unwrap())
}

/// Writes a checkpoint, hands its directory over, and removes it.
pub fn written<T>(spec: &Spec, load: impl FnOnce(&Path) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), spec).unwrap();
    load(dir.path())
}

/// The reasoner of a description.
pub fn reasoner(device: &Device, spec: &Spec) -> Reasoner {
    written(spec, |dir| load(device, dir, spec.family))
}

/// Loads a checkpoint as its family. It is said and not recognised: the tokenizer of all tiny Llamas is one, so that the
/// markers do not tell Latent-SFT from the others.
pub fn load(device: &Device, dir: &Path, family: testkit::Family) -> Reasoner {
    let family = match family {
        testkit::Family::Coconut => Family::Coconut,
        testkit::Family::CodiGpt2 | testkit::Family::CodiLlama => Family::Codi,
        testkit::Family::Colar => Family::Colar,
        testkit::Family::LatentSft => Family::LatentSft,
        testkit::Family::Rot => Family::Rot,
        testkit::Family::RewardGpt2 | testkit::Family::RewardLlama => panic!("{family:?} is no reasoner"),
    };
    Reasoner::load(device, dir, Some(family)).unwrap()
}

/// Runs an engine over questions.
pub fn ask(engine: Engine<'_>, questions: &[Question]) -> Result<Vec<Outcome>, engine::Error> {
    let mut out = Vec::new();
    engine.run(questions, &mut |outcome| {
        out.push(outcome);
        ControlFlow::Continue(())
    })?;
    Ok(out)
}

/// A question of a number and a text.
pub fn question(id: u32, text: &str) -> Question {
    Question { id, text: text.to_owned(), gold: "7".to_owned(), kind: GoldKind::Number, steps: Vec::new() }
}

/// Questions of unlike length: one byte is one token of the tiny tokenizers. Their numbers are neither dense nor ordered.
pub fn questions() -> Vec<Question> {
    let long = "Tom has 3 apples and eats one. ".repeat(5);
    vec![
        question(9, "2+2?"),
        question(2, &long),
        question(70_000, "A hen lays 12 eggs; how many do 3 hens lay?"),
        question(3, "x"),
        question(11, "How many legs have 4 spiders and 2 dogs together in all?"),
    ]
}

pub fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

pub fn exactly(n: usize) -> LatentLength {
    LatentLength::Exactly(count(n))
}

pub fn at_most(n: usize) -> LatentLength {
    LatentLength::AtMost(count(n))
}

pub fn between(a: usize, b: usize) -> LatentLength {
    LatentLength::Between(Range::new(count(a), count(b)).unwrap())
}

pub fn dropout(p: f32, sites: Sites, scope: Scope) -> Perturbation {
    Perturbation::Dropout { p: Probability::new(p).unwrap(), sites, scope }
}

/// Dropout as the paper uses it: on thoughts, at both sites.
pub fn thoughtful(p: f32) -> Perturbation {
    dropout(p, Sites::BOTH, Scope::Thoughts)
}

/// One of each kind.
pub fn perturbations() -> [Perturbation; 6] {
    [
        Perturbation::None,
        thoughtful(0.2),
        dropout(0.2, Sites::MLP, Scope::Prompt),
        dropout(0.1, Sites::ATTN, Scope::All),
        Perturbation::Gaussian { std: 0.3 },
        drawn(0.8, 0.9),
    ]
}

/// Words drawn from the nucleus.
pub fn drawn(temperature: f32, top_p: f32) -> Perturbation {
    Perturbation::Tokens(Nucleus::new(temperature, top_p).unwrap())
}

/// A short run; open-ended families stay open-ended.
pub fn settings(reasoner: &Reasoner, samples: usize, perturbation: Perturbation) -> Settings {
    let length = match reasoner.method.length {
        LatentLength::None => LatentLength::None,
        LatentLength::AtMost(_) => at_most(5),
        _ => exactly(4),
    };
    let max_new_tokens = count(6);
    Settings { samples: count(samples), perturbation, length, max_new_tokens, seed: SEED, ..Settings::of(&reasoner.method) }
}

/// A question in a reasoner's form.
pub fn prompted(reasoner: &Reasoner, question: &Question) -> Prompt {
    prompt(reasoner, question).unwrap()
}

/// How the rows of a run are run once more.
pub fn replay_of(settings: &Settings) -> Replay<'static> {
    Replay {
        rows: settings.samples.get(),
        length: settings.length,
        perturbation: settings.perturbation,
        randomness: Randomness::Seeded(settings.seed),
        max_new_tokens: settings.max_new_tokens,
        follow: None,
    }
}

/// The rows of a run once more, with their tokens and logits.
pub fn replayed(reasoner: &Reasoner, settings: &Settings, prompt: &Prompt) -> Vec<Replayed> {
    replay::rows(reasoner, prompt, replay_of(settings)).unwrap()
}

/// The name of a question's trajectory in the random function.
pub fn row(question: u32, trajectory: usize) -> RowId {
    RowId { question, trajectory: trajectory as u32 }
}

/// How many thoughts a row may have, by definition.
pub fn most_thoughts(settings: &Settings, id: RowId) -> usize {
    match settings.length {
        LatentLength::Between(range) => id.draw(settings.seed, 0).between(Site::Length, range.low().get(), range.high().get()),
        length => length.limit(),
    }
}

/// Fails unless two outcomes are the same to the bit: thoughts, texts, scores, diversity, cost.
pub fn assert_same(a: &Outcome, b: &Outcome, what: &str) {
    assert_eq!(a.sample, b.sample, "{what}");
    assert_eq!(a.thoughts.len(), b.thoughts.len(), "{what}");
    a.thoughts.iter().zip(&b.thoughts).for_each(|(a, b)| assert_same_bits(a, b, what));
}

/// Fails unless two matrices are the same to the bit; `==` would take 0 for -0.
pub fn assert_same_bits(a: &Tensor, b: &Tensor, what: &str) {
    assert_eq!((a.rows(), a.cols()), (b.rows(), b.cols()), "{what}: shapes");
    let differs = a.data().iter().zip(b.data()).position(|(x, y)| x.to_bits() != y.to_bits());
    if let Some(i) = differs {
        panic!("{what}: element {i} is {} here and {} there; in all they are {:e} apart", a.data()[i], b.data()[i], apart(a, b));
    }
}

/// The largest difference of two matrices, in parts of the largest element.
pub fn apart(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!((a.rows(), a.cols()), (b.rows(), b.cols()), "only matrices of one shape can be compared");
    let largest = |x: f32, y: f32| x.max(y.abs());
    let scale = b.data().iter().copied().fold(f32::MIN_POSITIVE, largest);
    a.data().iter().zip(b.data()).map(|(x, y)| x - y).fold(0.0, largest) / scale
}

/// The same of two rows' thoughts, as far as both go: rounding at a near tie may end one of them earlier.
pub fn apart_as_far(a: &Tensor, b: &Tensor) -> f32 {
    let both = a.rows().min(b.rows());
    if both == 0 { 0.0 } else { apart(&first(both, a), &first(both, b)) }
}

/// One row as a matrix.
pub fn matrix(row: &[f32]) -> Tensor {
    Tensor::from_vec(1, row.len(), row.to_vec())
}

/// The first rows of a matrix.
pub fn first(rows: usize, of: &Tensor) -> Tensor {
    of.select(0..rows)
}
