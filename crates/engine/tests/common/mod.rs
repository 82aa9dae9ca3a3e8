//! Shared parts of the engine's tests: tiny random models of every family, questions, sampling
//! parameters, and comparisons of outputs.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use latent_tts_engine::reference::{self, RandomSource, ReferenceRow, ReferenceRun};
use latent_tts_engine::{
    DropoutScope, DropoutSites, Engine, EngineError, Family, LatentLength, LengthRange,
    MaskLifetime, Output, Perturbation, Probability, Prompt, Reasoner, Request, RewardModel,
    SamplingParams, SequenceId, Temperature, TopP, Trajectory,
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

/// The default seed of a run.
pub const SEED: u64 = 0x5eed_0001_0000_0007;

/// A reasoner and a reward model for its thoughts.
pub struct RewardedReasoner {
    pub reasoner: Arc<Reasoner>,
    pub reward_model: Arc<RewardModel>,
}

impl RewardedReasoner {
    /// Tiny models of a family, on the shared device.
    pub fn of(family: testkit::CheckpointFamily) -> Self {
        Self::new(device(), &CheckpointSpec { family, ..CheckpointSpec::default() })
    }

    /// A reasoner of the given shape; the reward model has blocks of the same shape, different
    /// weights and defaults otherwise.
    pub fn new(device: &Device, spec: &CheckpointSpec) -> Self {
        let reasoner = reasoner(device, spec);
        let family = if is_gpt2(spec.family) {
            testkit::CheckpointFamily::RewardGpt2
        } else {
            testkit::CheckpointFamily::RewardLlama
        };
        let CheckpointSpec { width, heads, kv_heads, head_dim, ffn, .. } = *spec;
        let blocks =
            CheckpointSpec { width, heads, kv_heads, head_dim, ffn, ..CheckpointSpec::default() };
        let spec = CheckpointSpec { family, seed: spec.seed + 100, ..blocks };
        let reward_model = Arc::new(with_checkpoint(&spec, |dir: &Path| {
            RewardModel::load(device, dir, &reasoner).unwrap()
        }));
        Self { reasoner: Arc::new(reasoner), reward_model }
    }

    /// Tiny models; the reward model has a reference reasoner and an outcome head.
    pub fn with_reference(family: testkit::CheckpointFamily) -> Self {
        let mut pair = Self::of(family);
        let spec = CheckpointSpec { family, seed: 321, ..CheckpointSpec::default() };
        let reward_model = pair.reward_model_mut();
        reward_model.reference = Some(reasoner(device(), &spec).model);
        let config = reward_model.decoder.config();
        reward_model.outcome_head =
            RewardHead::outcome(device(), config, &RandomWeights { seed: 5 }).unwrap();
        pair
    }

    /// The same models without CUDA graphs: every pass is launched kernel by kernel.
    pub fn without_graphs(self) -> Self {
        let mut reasoner = Arc::into_inner(self.reasoner).unwrap();
        let decoder = Arc::into_inner(reasoner.model.decoder).unwrap();
        reasoner.model.decoder = Arc::new(decoder.without_graphs());
        let mut reward_model = Arc::into_inner(self.reward_model).unwrap();
        reward_model.decoder = reward_model.decoder.without_graphs();
        Self { reasoner: Arc::new(reasoner), reward_model: Arc::new(reward_model) }
    }

    /// Mutable access to the reasoner, while no engine shares it.
    pub fn reasoner_mut(&mut self) -> &mut Reasoner {
        Arc::get_mut(&mut self.reasoner).unwrap()
    }

    /// Mutable access to the reward model, while no engine shares it.
    pub fn reward_model_mut(&mut self) -> &mut RewardModel {
        Arc::get_mut(&mut self.reward_model).unwrap()
    }

    /// An engine with the reward model.
    pub fn engine(&self) -> Engine {
        self.unrewarded_engine().with_reward_model(Arc::clone(&self.reward_model))
    }

    /// An engine without the reward model.
    pub fn unrewarded_engine(&self) -> Engine {
        Engine::new(Arc::clone(&self.reasoner))
    }

    /// Runs the questions with the reward model.
    pub fn run(&self, params: SamplingParams, questions: &[TestQuestion]) -> Vec<Output> {
        run(&self.engine(), params, questions).unwrap()
    }

    /// The same with `memory` bytes of KV cache.
    pub fn run_in_memory(
        &self,
        memory: usize,
        params: SamplingParams,
        questions: &[TestQuestion],
    ) -> Vec<Output> {
        run(&self.engine().with_memory(memory), params, questions).unwrap()
    }

    /// Runs one question.
    pub fn solve(&self, params: SamplingParams, question: &TestQuestion) -> Output {
        self.engine().solve(&question.request(params)).unwrap()
    }
}

/// Whether a family's backbone is GPT-2.
pub fn is_gpt2(family: testkit::CheckpointFamily) -> bool {
    matches!(
        family,
        testkit::CheckpointFamily::Coconut
            | testkit::CheckpointFamily::CodiGpt2
            | testkit::CheckpointFamily::RewardGpt2
    )
}

/// The default device of tests.
pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Device::cpu(NonZeroUsize::new(2)).unwrap())
}

/// Writes a checkpoint, passes its directory to `load`, and removes it.
pub fn with_checkpoint<T>(spec: &CheckpointSpec, load: impl FnOnce(&Path) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), spec).unwrap();
    load(dir.path())
}

/// A reasoner of the given shape.
pub fn reasoner(device: &Device, spec: &CheckpointSpec) -> Reasoner {
    with_checkpoint(spec, |dir| load(device, dir, spec.family))
}

/// Loads a checkpoint as a given family instead of detecting it: all tiny Llamas have the same
/// tokenizer, so its markers do not distinguish Latent-SFT from the others.
pub fn load(device: &Device, dir: &Path, family: testkit::CheckpointFamily) -> Reasoner {
    let family = match family {
        testkit::CheckpointFamily::Coconut => Family::COCONUT,
        testkit::CheckpointFamily::CodiGpt2 | testkit::CheckpointFamily::CodiLlama => Family::CODI,
        testkit::CheckpointFamily::Colar => Family::COLAR,
        testkit::CheckpointFamily::LatentSft => Family::LATENT_SFT,
        testkit::CheckpointFamily::Rot => Family::ROT,
        testkit::CheckpointFamily::Llama
        | testkit::CheckpointFamily::Qwen2
        | testkit::CheckpointFamily::Qwen3 => Family::COT,
        testkit::CheckpointFamily::RewardGpt2 | testkit::CheckpointFamily::RewardLlama => {
            panic!("{family:?} is not a reasoner")
        }
    };
    Reasoner::load(device, dir, Some(family)).unwrap()
}

/// The outputs of some requests, in order; or the first error.
pub fn run_requests(engine: &Engine, requests: &[Request]) -> Result<Vec<Output>, EngineError> {
    let mut replies = Vec::new();
    engine.run(requests, |index, reply| -> Result<(), EngineError> {
        assert_eq!(index, replies.len(), "replies come in the order of the requests");
        replies.push(reply?);
        Ok(())
    })?;
    Ok(replies)
}

/// Runs questions with the same parameters.
pub fn run(
    engine: &Engine,
    params: SamplingParams,
    questions: &[TestQuestion],
) -> Result<Vec<Output>, EngineError> {
    let requests: Vec<Request> = questions.iter().map(|q| q.request(params)).collect();
    run_requests(engine, &requests)
}

/// The smallest memory in which no request is rejected, by bisection.
pub fn smallest_memory(engine: &Engine, requests: &[Request]) -> usize {
    let fits = |memory: usize| engine.clone().with_memory(memory).check(requests).is_ok();
    let mut too_small = 0;
    let mut enough = Engine::DEFAULT_MEMORY;
    while enough - too_small > 1 {
        let middle = (too_small + enough) / 2;
        if fits(middle) { enough = middle } else { too_small = middle }
    }
    enough
}

/// A question with its id, which is the key of its random numbers.
#[derive(Clone, Debug)]
pub struct TestQuestion {
    pub id: u32,
    pub text: String,
}

impl TestQuestion {
    /// A request for a numeric answer.
    pub fn request(&self, params: SamplingParams) -> Request {
        Request { id: self.id, ..Request::new(&self.text, params) }
    }
}

/// A question with an id and a text.
pub fn question(id: u32, text: &str) -> TestQuestion {
    TestQuestion { id, text: text.to_owned() }
}

/// Questions of different lengths: one byte is one token of the tiny tokenizers. Their ids are
/// neither dense nor ordered.
pub fn questions() -> Vec<TestQuestion> {
    let long = "Tom has 3 apples and eats one. ".repeat(5);
    vec![
        question(9, "2+2?"),
        question(2, &long),
        question(70_000, "A hen lays 12 eggs; how many do 3 hens lay?"),
        question(3, "x"),
        question(11, "How many legs have 4 spiders and 2 dogs together in all?"),
    ]
}

/// The outputs of all requests.
pub fn solve_all(engine: &Engine, requests: &[Request]) -> Vec<Output> {
    let mut replies = Vec::new();
    engine
        .run(requests, |_, reply| -> Result<(), EngineError> {
            replies.push(reply?);
            Ok(())
        })
        .unwrap();
    replies
}

/// The output with a given id.
pub fn reply_to(replies: &[Output], id: u32) -> &Output {
    replies.iter().find(|reply| reply.id == id).unwrap()
}

/// The latents of an output's trajectories.
pub fn latents(reply: &Output) -> Vec<Tensor> {
    reply.trajectories.iter().map(|trajectory| trajectory.latents.clone()).collect()
}

pub fn nonzero(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

pub fn exactly(n: usize) -> LatentLength {
    LatentLength::Exactly(nonzero(n))
}

pub fn at_most(n: usize) -> LatentLength {
    LatentLength::AtMost(nonzero(n))
}

pub fn between(a: usize, b: usize) -> LatentLength {
    LatentLength::Between(LengthRange::new(nonzero(a), nonzero(b)).unwrap())
}

pub fn dropout(p: f32, sites: DropoutSites, scope: DropoutScope) -> Perturbation {
    let p = Probability::new(p).unwrap();
    let mask = MaskLifetime::Step;
    Perturbation::Dropout { p, sites, scope, mask }
}

/// The same dropout with masks that are fixed per trajectory.
pub fn with_kept_masks(perturbation: Perturbation) -> Perturbation {
    match perturbation {
        Perturbation::Dropout { p, sites, scope, .. } => {
            Perturbation::Dropout { p, sites, scope, mask: MaskLifetime::Trajectory }
        }
        other => other,
    }
}

/// Dropout as in the paper: in the passes that compute thoughts, at both sites.
pub fn thought_dropout(p: f32) -> Perturbation {
    dropout(p, DropoutSites::BOTH, DropoutScope::Thoughts)
}

/// Answer tokens sampled from the top-p tokens at a temperature.
pub fn sampled(temperature: f32, top_p: f32) -> Perturbation {
    Perturbation::Tokens {
        temperature: Temperature::new(temperature).unwrap(),
        top_p: TopP::new(top_p).unwrap(),
    }
}

/// One perturbation of each kind.
pub fn perturbations() -> [Perturbation; 7] {
    [
        Perturbation::None,
        thought_dropout(0.2),
        dropout(0.2, DropoutSites::MLP, DropoutScope::Prompt),
        dropout(0.1, DropoutSites::ATTN, DropoutScope::All),
        with_kept_masks(dropout(0.2, DropoutSites::BOTH, DropoutScope::Prompt)),
        Perturbation::Gaussian { std: 0.3 },
        sampled(0.8, 0.9),
    ]
}

/// Parameters of a short run; open-ended families stay open-ended.
pub fn short_params(
    reasoner: &Reasoner,
    samples: usize,
    perturbation: Perturbation,
) -> SamplingParams {
    let length = match reasoner.method.length {
        LatentLength::None => LatentLength::None,
        LatentLength::AtMost(_) => at_most(5),
        _ => exactly(4),
    };
    SamplingParams {
        samples: nonzero(samples),
        perturbation,
        length,
        max_new_tokens: nonzero(6),
        seed: SEED,
        ..SamplingParams::defaults_for(&reasoner.method)
    }
}

/// A question in a reasoner's prompt template.
pub fn prompt_of(reasoner: &Reasoner, question: &TestQuestion) -> Prompt {
    Prompt::new(reasoner, question.id, &question.text).unwrap()
}

/// The arguments with which [`reference::run_sequences`] runs the sequences of a request with these
/// parameters.
pub fn reference_run(params: &SamplingParams) -> ReferenceRun<'static> {
    ReferenceRun {
        rows: params.samples.get(),
        length: params.length,
        perturbation: params.perturbation,
        source: RandomSource::Seeded(params.seed),
        max_new_tokens: params.max_new_tokens,
        forced_thoughts: None,
    }
}

/// The sequences of a request run individually, with their first logits.
pub fn run_sequences(
    reasoner: &Reasoner,
    params: &SamplingParams,
    prompt: &Prompt,
) -> Vec<ReferenceRow> {
    reference::run_sequences(reasoner, prompt, reference_run(params)).unwrap()
}

/// The random number key of a question's trajectory.
pub fn row_id(question: u32, trajectory: usize) -> SequenceId {
    SequenceId { question, trajectory: trajectory as u32 }
}

/// Maximum thoughts of a sequence, by definition.
pub fn max_thoughts(params: &SamplingParams, id: SequenceId) -> usize {
    match params.length {
        LatentLength::Between(range) => id.rng_key(params.seed, 0).uniform_int(
            Site::Length,
            range.low().get(),
            range.high().get(),
        ),
        length => length.limit(),
    }
}

/// Fails unless two outputs are bitwise equal except for their timings.
pub fn assert_same(a: &Output, b: &Output, what: &str) {
    assert_eq!(a.id, b.id, "{what}: id");
    assert_same_trajectories(&a.trajectories, &b.trajectories, what);
    assert_same_trajectories(a.greedy.as_slice(), b.greedy.as_slice(), what);
    let best = |reply: &Output| reply.beam.as_ref().map(|beam| beam.best.clone());
    assert_same_trajectories(best(a).as_slice(), best(b).as_slice(), what);
    let beam_cost = |reply: &Output| reply.beam.as_ref().map(|beam| beam.cost);
    assert_eq!((a.cost, beam_cost(a)), (b.cost, beam_cost(b)), "{what}: cost");
    let bits = |reply: &Output| reply.diversity.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(a), bits(b), "{what}: diversity");
    assert_eq!((a.stopped, a.rule, a.chosen), (b.stopped, b.rule, b.chosen), "{what}: vote");
}

/// Fails unless runs of the same questions have bitwise equal outputs.
pub fn assert_all_same(a: &[Output], b: &[Output], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: number of replies");
    a.iter().zip(b).for_each(|(a, b)| assert_same(a, b, what));
}

/// Fails unless trajectories are bitwise equal: latents, tokens, text, answers and rewards.
pub fn assert_same_trajectories(a: &[Trajectory], b: &[Trajectory], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: number of trajectories");
    for (a, b) in a.iter().zip(b) {
        let what = format!("{what}, trajectory {}", a.number);
        assert_same_bits(&a.latents, &b.latents, &what);
        let bits = |x: &Option<f32>| x.map(f32::to_bits);
        assert_eq!(bits(&a.logprob), bits(&b.logprob), "{what}: log-probability");
        assert_eq!(bits(&a.outcome_reward), bits(&b.outcome_reward), "{what}: outcome reward");
        let rewards = |t: &Trajectory| {
            t.process_rewards.as_ref().map(|r| r.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        assert_eq!(rewards(a), rewards(b), "{what}: process rewards");
        let rest = |t: &Trajectory| {
            (t.number, t.thoughts, t.tokens.clone(), t.text.clone(), t.answer.clone())
        };
        assert_eq!(rest(a), rest(b), "{what}");
    }
}

/// Fails unless two matrices are bitwise equal; `==` would treat 0 and -0 as equal.
pub fn assert_same_bits(a: &Tensor, b: &Tensor, what: &str) {
    assert_eq!((a.rows(), a.cols()), (b.rows(), b.cols()), "{what}: shapes");
    let differs = a.data().iter().zip(b.data()).position(|(x, y)| x.to_bits() != y.to_bits());
    if let Some(i) = differs {
        let x = a.data()[i];
        let y = b.data()[i];
        let error = relative_error(a, b);
        panic!("{what}: element {i} is {x} and {y}; the relative error is {error:e}");
    }
}

/// The largest difference of two matrices, relative to the largest element.
pub fn relative_error(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!((a.rows(), a.cols()), (b.rows(), b.cols()), "matrices of different shapes");
    let largest = |x: f32, y: f32| x.max(y.abs());
    let scale = b.data().iter().copied().fold(f32::MIN_POSITIVE, largest);
    a.data().iter().zip(b.data()).map(|(x, y)| x - y).fold(0.0, largest) / scale
}

/// The relative error of two sequences' thoughts over their common length: rounding at a near tie
/// may end one of them earlier.
pub fn common_prefix_error(a: &Tensor, b: &Tensor) -> f32 {
    let both = a.rows().min(b.rows());
    if both == 0 { 0.0 } else { relative_error(&first_rows(both, a), &first_rows(both, b)) }
}

/// One row as a matrix.
pub fn matrix(row: &[f32]) -> Tensor {
    Tensor::from_vec(1, row.len(), row.to_vec())
}

/// The first rows of a matrix.
pub fn first_rows(count: usize, of: &Tensor) -> Tensor {
    of.select(0..count)
}
