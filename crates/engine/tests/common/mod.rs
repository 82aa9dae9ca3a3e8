//! What all tests of the engine share: tiny random models of every family, questions, settings, and
//! comparisons.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::OnceLock;

use engine::perturb::{RandomSource, RowId};
use engine::prompt::{Prompt, prompt};
use engine::question::AnswerKind;
use engine::reference::{self, ReferenceRow, ReferenceRun};
use engine::{
    DropoutScope, DropoutSites, Engine, Family, LatentLength, LengthRange, Outcome, Perturbation,
    Probability, Question, Reasoner, RewardModel, SamplingParams, TokenSampling,
};
use model::RewardHead;
use model::source::RandomWeights;
use model::testkit::{self, CheckpointSpec, write_checkpoint};
use tensor::rng::Site;
use tensor::{Device, Tensor};

/// Every family on the backbone that it is published on.
pub const FAMILIES: [testkit::CheckpointFamily; 6] = [
    testkit::CheckpointFamily::Coconut,
    testkit::CheckpointFamily::CodiGpt2,
    testkit::CheckpointFamily::CodiLlama,
    testkit::CheckpointFamily::Colar,
    testkit::CheckpointFamily::LatentSft,
    testkit::CheckpointFamily::Rot,
];

/// The seed of a run unless a test is about seeds.
pub const SEED: u64 = 0x5eed_0001_0000_0007;

/// A reasoner and a judge of its thoughts.
pub struct RewardedReasoner {
    pub reasoner: Reasoner,
    pub judge: RewardModel,
}

impl RewardedReasoner {
    /// Tiny models of a family, on the shared device.
    pub fn of(family: testkit::CheckpointFamily) -> Self {
        Self::new(device(), &CheckpointSpec { family, ..CheckpointSpec::default() })
    }

    /// Models of a description; the judge has the reasoner's shape and other weights.
    pub fn new(device: &Device, spec: &CheckpointSpec) -> Self {
        let reasoner = reasoner(device, spec);
        let family = if gpt2(spec.family) {
            testkit::CheckpointFamily::RewardGpt2
        } else {
            testkit::CheckpointFamily::RewardLlama
        };
        let spec = CheckpointSpec { family, seed: spec.seed + 100, ..CheckpointSpec::default() };
        let judge = written(&spec, |dir| RewardModel::load(device, dir, &reasoner).unwrap());
        Self { reasoner, judge }
    }

    /// Tiny models with a judge that thinks with another reasoner and reads answers.
    pub fn reflecting(family: testkit::CheckpointFamily) -> Self {
        let mut pair = Self::of(family);
        let judge = &mut pair.judge;
        judge.reference = Some(
            reasoner(device(), &CheckpointSpec { family, seed: 321, ..CheckpointSpec::default() })
                .model,
        );
        judge.outcome_head =
            RewardHead::outcome(device(), judge.decoder.config(), &RandomWeights { seed: 5 })
                .unwrap();
        pair
    }

    /// The same models, every pass of which is launched and none replayed.
    pub fn without_replays(mut self) -> Self {
        self.reasoner.model.decoder = self.reasoner.model.decoder.without_graphs();
        self.judge.decoder = self.judge.decoder.without_graphs();
        self
    }

    /// An engine that scores what it thinks.
    pub fn engine(&self, settings: SamplingParams) -> Engine<'_> {
        Engine { reasoner: &self.reasoner, reward_model: Some(&self.judge), params: settings }
    }

    /// Runs the questions.
    pub fn ask(&self, settings: SamplingParams, questions: &[Question]) -> Vec<Outcome> {
        ask(self.engine(settings), questions).unwrap()
    }

    /// Runs one question.
    pub fn ask_one(&self, settings: SamplingParams, question: &Question) -> Outcome {
        self.ask(settings, std::slice::from_ref(question)).remove(0)
    }
}

/// Whether a family's backbone is GPT-2.
pub fn gpt2(family: testkit::CheckpointFamily) -> bool {
    matches!(
        family,
        testkit::CheckpointFamily::Coconut
            | testkit::CheckpointFamily::CodiGpt2
            | testkit::CheckpointFamily::RewardGpt2
    )
}

/// The device that tests share unless they are about devices.
pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Device::cpu(NonZeroUsize::new(2)).unwrap())
}

/// Writes a checkpoint, hands its directory over, and removes it.
pub fn written<T>(spec: &CheckpointSpec, load: impl FnOnce(&Path) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), spec).unwrap();
    load(dir.path())
}

/// The reasoner of a description.
pub fn reasoner(device: &Device, spec: &CheckpointSpec) -> Reasoner {
    written(spec, |dir| load(device, dir, spec.family))
}

/// Loads a checkpoint as its family. It is said and not recognised: the tokenizer of all tiny
/// Llamas is one, so that the markers do not tell Latent-SFT from the others.
pub fn load(device: &Device, dir: &Path, family: testkit::CheckpointFamily) -> Reasoner {
    let family = match family {
        testkit::CheckpointFamily::Coconut => Family::Coconut,
        testkit::CheckpointFamily::CodiGpt2 | testkit::CheckpointFamily::CodiLlama => Family::Codi,
        testkit::CheckpointFamily::Colar => Family::Colar,
        testkit::CheckpointFamily::LatentSft => Family::LatentSft,
        testkit::CheckpointFamily::Rot => Family::Rot,
        testkit::CheckpointFamily::RewardGpt2 | testkit::CheckpointFamily::RewardLlama => {
            panic!("{family:?} is no reasoner")
        }
    };
    Reasoner::load(device, dir, Some(family)).unwrap()
}

/// Runs an engine over questions.
pub fn ask(
    engine: Engine<'_>,
    questions: &[Question],
) -> Result<Vec<Outcome>, engine::EngineError> {
    let mut out = Vec::new();
    engine.run(questions, &mut |outcome| {
        out.push(outcome);
        ControlFlow::Continue(())
    })?;
    Ok(out)
}

/// A question of a number and a text.
pub fn question(id: u32, text: &str) -> Question {
    Question {
        id,
        text: text.to_owned(),
        gold: "7".to_owned(),
        kind: AnswerKind::Number,
        steps: Vec::new(),
    }
}

/// Questions of unlike length: one byte is one token of the tiny tokenizers. Their numbers are
/// neither dense nor ordered.
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
    LatentLength::Between(LengthRange::new(count(a), count(b)).unwrap())
}

pub fn dropout(p: f32, sites: DropoutSites, scope: DropoutScope) -> Perturbation {
    Perturbation::Dropout { p: Probability::new(p).unwrap(), sites, scope }
}

/// Dropout as the paper uses it: on thoughts, at both sites.
pub fn thoughtful(p: f32) -> Perturbation {
    dropout(p, DropoutSites::BOTH, DropoutScope::Thoughts)
}

/// One of each kind.
pub fn perturbations() -> [Perturbation; 6] {
    [
        Perturbation::None,
        thoughtful(0.2),
        dropout(0.2, DropoutSites::MLP, DropoutScope::Prompt),
        dropout(0.1, DropoutSites::ATTN, DropoutScope::All),
        Perturbation::Gaussian { std: 0.3 },
        drawn(0.8, 0.9),
    ]
}

/// Words drawn from the nucleus.
pub fn drawn(temperature: f32, top_p: f32) -> Perturbation {
    Perturbation::Tokens(TokenSampling::new(temperature, top_p).unwrap())
}

/// A short run; open-ended families stay open-ended.
pub fn settings(reasoner: &Reasoner, samples: usize, perturbation: Perturbation) -> SamplingParams {
    let length = match reasoner.method.length {
        LatentLength::None => LatentLength::None,
        LatentLength::AtMost(_) => at_most(5),
        _ => exactly(4),
    };
    let max_new_tokens = count(6);
    SamplingParams {
        samples: count(samples),
        perturbation,
        length,
        max_new_tokens,
        seed: SEED,
        ..SamplingParams::defaults_for(&reasoner.method)
    }
}

/// A question in a reasoner's form.
pub fn prompted(reasoner: &Reasoner, question: &Question) -> Prompt {
    prompt(reasoner, question).unwrap()
}

/// How the rows of a run are run once more.
pub fn replay_of(settings: &SamplingParams) -> ReferenceRun<'static> {
    ReferenceRun {
        rows: settings.samples.get(),
        length: settings.length,
        perturbation: settings.perturbation,
        source: RandomSource::Seeded(settings.seed),
        max_new_tokens: settings.max_new_tokens,
        forced_thoughts: None,
    }
}

/// The rows of a run once more, with their tokens and logits.
pub fn replayed(
    reasoner: &Reasoner,
    settings: &SamplingParams,
    prompt: &Prompt,
) -> Vec<ReferenceRow> {
    reference::run_rows(reasoner, prompt, replay_of(settings)).unwrap()
}

/// The name of a question's trajectory in the random function.
pub fn row(question: u32, trajectory: usize) -> RowId {
    RowId { question, trajectory: trajectory as u32 }
}

/// How many thoughts a row may have, by definition.
pub fn most_thoughts(settings: &SamplingParams, id: RowId) -> usize {
    match settings.length {
        LatentLength::Between(range) => id.rng_key(settings.seed, 0).uniform_int(
            Site::Length,
            range.low().get(),
            range.high().get(),
        ),
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
        panic!(
            "{what}: element {i} is {} here and {} there; in all they are {:e} apart",
            a.data()[i],
            b.data()[i],
            apart(a, b)
        );
    }
}

/// The largest difference of two matrices, in parts of the largest element.
pub fn apart(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(
        (a.rows(), a.cols()),
        (b.rows(), b.cols()),
        "only matrices of one shape can be compared"
    );
    let largest = |x: f32, y: f32| x.max(y.abs());
    let scale = b.data().iter().copied().fold(f32::MIN_POSITIVE, largest);
    a.data().iter().zip(b.data()).map(|(x, y)| x - y).fold(0.0, largest) / scale
}

/// The same of two rows' thoughts, as far as both go: rounding at a near tie may end one of them
/// earlier.
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
